"""Serves this machine's package folders to a build while it runs: nothing is copied or stored in an image layer."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import secrets
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hwmatrix.host.pip_settings import PipSettings


@contextlib.contextmanager
def serving(settings: PipSettings, *, on_line: Callable[[str], None]) -> Iterator[PipSettings]:
    """Serve the folders and ``file:`` indexes that this machine's pip uses, and yield settings with their URLs.

    The server listens only on 127.0.0.1, under a path that cannot be guessed, and stops with the block. A folder that does not exist is
    left out, as pip does.
    """
    places: list[str] = [
        *settings.lists.get("find-links", ()),
        *settings.lists.get("extra-index-url", ()),
        settings.single.get("index-url", ""),
    ]
    if not any(local_path(place) for place in places if place):
        yield settings
        return
    with _Server() as server:
        lists = dict(settings.lists)
        lists["find-links"] = _served(lists.get("find-links", ()), server.folder, on_line)
        lists["extra-index-url"] = _served(lists.get("extra-index-url", ()), server.index, on_line)
        single = dict(settings.single)
        if "index-url" in single:
            single["index-url"] = "".join(_served((single["index-url"],), server.index, on_line)) or single["index-url"]
        yield dataclasses.replace(settings, single=single, lists=lists)


def local_path(place: str) -> Path | None:
    """Return the path that a ``file:`` URL or a plain path means; None for other URLs."""
    if place.startswith("file:"):
        return Path(unquote(urlsplit(place).path))
    return None if "://" in place else Path(place).expanduser().absolute()


def _served(places: tuple[str, ...], serve: Callable[[Path], str], on_line: Callable[[str], None]) -> tuple[str, ...]:
    urls: list[str] = []
    for place in places:
        path = local_path(place)
        if path is None:
            urls.append(place)
        elif path.exists():
            urls.append(serve(path))
        else:
            on_line(f"pip's settings name {path}, which does not exist: left out of the build")
    return tuple(urls)


class _Server:
    """One server for all folders and files. Each is a number under the secret path, which :class:`_Handler` maps back."""

    def __init__(self) -> None:
        self._roots: dict[str, Path] = {}
        self._token = secrets.token_urlsafe(24)

    def __enter__(self) -> Self:
        roots, token = self._roots, self._token

        class Handler(_Handler):
            served_roots = roots
            served_token = token

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, name="local-index", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def folder(self, path: Path) -> str:
        """The URL of a folder of packages, or of a page that lists packages: of a page, only the file itself is served."""
        return self._url(path, "" if path.is_dir() else path.name)

    def index(self, path: Path) -> str:
        """The URL of an index. Its parent is served, because the pages of local mirrors link to files beside them."""
        return self._url(path.parent, f"{path.name}/")

    def _url(self, root: Path, below: str) -> str:
        number = str(len(self._roots))
        self._roots[number] = root
        return f"http://127.0.0.1:{self._http.server_port}/{self._token}/{number}/{quote(below)}"


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files in the given roots without caching, since the next build has another address."""

    served_roots: Mapping[str, Path] = {}
    served_token = ""

    def translate_path(self, path: str) -> str:
        """Map ``/token/number/rest`` to a file. The base class removes ``..``."""
        parts = path.lstrip("/").split("/", 2)
        known = len(parts) == 3 and secrets.compare_digest(parts[0], self.served_token) and parts[1] in self.served_roots  # noqa: PLR2004 - as above
        if not known:
            return "/nonexistent"
        root = self.served_roots[parts[1]]
        if not root.is_dir():
            return str(root) if unquote(parts[2]) == root.name else "/nonexistent"
        self.directory = str(root)
        return super().translate_path(f"/{parts[2]}")

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing, to keep the terminal for the build."""
