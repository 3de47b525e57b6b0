"""A minimal image registry on loopback that implements the parts of the distribution specification needed for pushes, in memory."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator


class Registry(ThreadingHTTPServer):
    """``blobs`` by digest; ``manifests`` by name and tag or digest, as the pushed bytes; ``refuse``: answer uploads with 403.

    ``login``, if set, is the ``user:password`` that every request must contain.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.blobs: dict[str, bytes] = {}
        self.uploads: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.authorizations: list[str | None] = []
        self.refuse = False
        self.login: str | None = None

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def serving() -> Iterator[Registry]:
    """Run a registry until the block ends."""
    with Registry() as registry:
        thread = threading.Thread(target=registry.serve_forever, daemon=True)
        thread.start()
        try:
            yield registry
        finally:
            registry.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Registry

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _has_login(self) -> bool:
        """Whether the request has the login. If not, answer it."""
        given = self.headers.get("Authorization")
        self.server.authorizations.append(given)
        if self.server.login is None or given == "Basic " + base64.b64encode(self.server.login.encode()).decode():
            return True
        self._body()
        self._answer(401, b'{"errors":[{"code":"UNAUTHORIZED"}]}', WWW_Authenticate='Basic realm="test"')
        return False

    def do_GET(self) -> None:
        """Answer requests for the version, blobs and manifests."""
        if not self._has_login():
            return
        path = urlsplit(self.path).path
        if path == "/v2/":
            self._answer(200, b"{}")
        elif found := re.fullmatch(r"/v2/(.+)/blobs/(sha256:[0-9a-f]{64})", path):
            blob = self.server.blobs.get(found[2])
            self._answer(404) if blob is None else self._answer(200, blob, Docker_Content_Digest=found[2])
        elif found := re.fullmatch(r"/v2/(.+)/manifests/(.+)", path):
            kind, raw = self.server.manifests.get((found[1], found[2]), ("", b""))
            digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
            self._answer(200, raw, Content_Type=kind, Docker_Content_Digest=digest) if raw else self._answer(404)
        else:
            self._answer(404)

    do_HEAD = do_GET  # noqa: N815 - the server's own name for it

    def do_POST(self) -> None:
        """Start an upload."""
        if not self._has_login():
            return
        name = urlsplit(self.path).path.removeprefix("/v2/").removesuffix("/blobs/uploads/")
        self._body()
        if self.server.refuse:
            self._answer(403, b'{"errors":[{"code":"DENIED","message":"requested access to the resource is denied"}]}')
            return
        number = str(uuid.uuid4())
        self.server.uploads[number] = b""
        self._answer(202, Location=f"/v2/{name}/blobs/uploads/{number}", Range="0-0", Docker_Upload_UUID=number)

    def do_PATCH(self) -> None:
        """Receive a part of an upload."""
        if not self._has_login():
            return
        path = urlsplit(self.path).path
        number = path.rpartition("/")[2]
        self.server.uploads[number] += self._body()
        self._answer(202, Location=path, Range=f"0-{len(self.server.uploads[number]) - 1}", Docker_Upload_UUID=number)

    def do_PUT(self) -> None:
        """Finish an upload, or store a manifest if all its blobs exist."""
        if not self._has_login():
            return
        parts = urlsplit(self.path)
        body = self._body()
        if found := re.fullmatch(r"/v2/(.+)/manifests/(.+)", parts.path):
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            self.server.manifests[found[1], found[2]] = self.server.manifests[found[1], digest] = (self.headers["Content-Type"], body)
            self._answer(201, Docker_Content_Digest=digest)
            return
        digest = parse_qs(parts.query)["digest"][0]
        content = self.server.uploads.pop(parts.path.rpartition("/")[2]) + body
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            self._answer(400)
            return
        self.server.blobs[digest] = content
        self._answer(201, Docker_Content_Digest=digest)
