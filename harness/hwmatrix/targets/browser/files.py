"""Serves the files of a cell's page on the loopback interface, from a thread of the cell's child.

The warm parent holds the listening socket, so that the page's origin is the same for all cells: the browser then keeps the
runtime's compiled code. A page is isolated from others by its headers, which is what browsers ask for before threads.
"""

from __future__ import annotations

import http.server
import os
import shutil
import socket
import threading
from http import HTTPStatus
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".wasm": "application/wasm",
    ".json": "application/json",
}
_KEEP: Final = "max-age=31536000, immutable"
"""The runtime's files never change in a browser's life: only then is its compiled WebAssembly kept as well."""


def listening_socket() -> socket.socket:
    """A socket that listens on the loopback, on a free port."""
    return socket.create_server(("127.0.0.1", 0))


def serve(descriptor: int, folders: Mapping[str, Path], *, kept: frozenset[str]) -> http.server.ThreadingHTTPServer:
    """Serve the files right in each folder, under the folder's name, until this process ends or the server that is given back is shut down.

    ``descriptor`` is that of the listening socket; ``folders`` may grow later; ``kept`` names the folders whose files the browser
    may keep.
    """

    class Handler(_Handler):
        pass

    Handler.folders = folders
    Handler.kept = kept
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=os.dup(descriptor))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="files", daemon=True).start()
    return server


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folders: ClassVar[Mapping[str, Path]] = {}
    kept: ClassVar[frozenset[str]] = frozenset()

    def do_GET(self) -> None:
        """One file, or 404: nothing but plain names right in the folders is looked for."""
        path = PurePosixPath(self.path.partition("?")[0])
        folder = self.folders.get(path.parent.name)
        file = folder / path.name if folder is not None and len(path.parts) == 3 and ".." not in path.parts else None  # noqa: PLR2004 - root, folder, name
        if file is None or not file.is_file():
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with file.open("rb") as content:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", _TYPES.get(file.suffix, "application/octet-stream"))
            self.send_header("Content-Length", str(os.fstat(content.fileno()).st_size))
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            self.send_header("Cross-Origin-Resource-Policy", "same-origin")
            self.send_header("Cache-Control", _KEEP if path.parent.name in self.kept else "no-store")
            self.end_headers()
            shutil.copyfileobj(content, self.wfile, 1 << 20)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the library
        """What a page loads is nothing to tell."""
