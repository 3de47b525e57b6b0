"""Serves the files of a cell's page on the loopback interface, from a thread of the cell's child.

The warm parent holds the listening socket, so that the page's origin is the same for all cells: the browser can then reuse the runtime's
compiled code. The headers make the page cross-origin isolated, which browsers require for threads.
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
"""The runtime's files never change during a browser's life. Only with this header does the browser cache its compiled WebAssembly too."""


def listening_socket() -> socket.socket:
    """Return a socket that listens on the loopback interface, on a free port."""
    return socket.create_server(("127.0.0.1", 0))


def serve(descriptor: int, folders: Mapping[str, Path], *, kept: frozenset[str]) -> http.server.ThreadingHTTPServer:
    """Serve the files directly in each folder under the folder's name, until this process ends or the returned server is shut down.

    ``descriptor`` is the file descriptor of the listening socket. ``folders`` may grow later. ``kept`` names the folders whose files the
    browser may cache.
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
        """Serve one file, or 404. Only plain names directly in the folders are found."""
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

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Log nothing."""
