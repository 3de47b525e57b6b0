"""Serves this machine's package folders to a build while it runs: nothing is copied or stored in an image layer."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.server
import secrets
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hwmatrix.host.pip_settings import PipSettings


@contextlib.contextmanager
def serving(settings: PipSettings, *, on_line: Callable[[str], None]) -> Iterator[PipSettings]:
    """Serve the folders and ``file:`` indexes that this machine's pip uses, and yield settings with their URLs.

    The server listens only on 127.0.0.1, under a path that cannot be guessed, and stops with the block. A folder that does not exist is
    left out, as pip does. Of an index the parent is served, because the pages of local mirrors link to files beside them; of a page that
    lists packages only the page itself.
    """
    lists, index = settings.lists, settings.single.get("index-url", "")
    if all(local_path(place) is None for place in (*lists.get("find-links", ()), *lists.get("extra-index-url", ()), index) if place):
        yield settings
        return
    with tempfile.TemporaryDirectory(prefix="hwmatrix-index-") as folder, _server(Path(folder)) as address:
        site = Path(folder) / secrets.token_urlsafe(24)
        site.mkdir()

        def served(place: str, *, is_index: bool) -> str | None:
            path = local_path(place)
            if path is None:
                return place
            if not path.exists():
                on_line(f"pip's settings name {path}, which does not exist: left out of the build")
                return None
            link = site / f"{len(list(site.iterdir()))}"
            if is_index:
                link.symlink_to(path.parent)
                below = f"{link.name}/{quote(path.name)}/"
            elif path.is_dir():
                link.symlink_to(path)
                below = f"{link.name}/"
            else:
                link.mkdir()
                (link / path.name).symlink_to(path)
                below = f"{link.name}/{quote(path.name)}"
            return f"{address}/{site.name}/{below}"

        def all_served(key: str, *, is_index: bool) -> tuple[str, ...]:
            return tuple(url for place in lists.get(key, ()) if (url := served(place, is_index=is_index)) is not None)

        links, indexes = all_served("find-links", is_index=False), all_served("extra-index-url", is_index=True)
        single = {**settings.single, "index-url": served(index, is_index=True) or index} if index else settings.single
        yield dataclasses.replace(settings, single=single, lists={**lists, "find-links": links, "extra-index-url": indexes})


def local_path(place: str) -> Path | None:
    """Return the path that a ``file:`` URL or a plain path means; None for other URLs."""
    if place.startswith("file:"):
        return Path(unquote(urlsplit(place).path))
    return None if "://" in place else Path(place).expanduser().absolute()


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[str]:
    """Serve a folder on loopback, and what its links lead to. Yield the address."""
    (folder / "index.html").touch()  # instead of a list, which would tell the names of its folders
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="local-index", daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files without caching, since the next build has another address."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing, to keep the terminal for the build."""
