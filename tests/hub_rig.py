"""A model hub on the loopback for the real clients of both hubs. It can misbehave."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """A hub with one repository. `requests` lists the requested files: (path of the file, Range or "")."""

    repo: str
    files: dict[str, bytes]
    git_files: frozenset[str] = frozenset()
    """Files in git itself, for which the hub gives a git hash instead of a SHA-256"""
    wrong: set[str] = field(default_factory=set)
    """Files that are sent with one changed byte"""
    cut: dict[str, int] = field(default_factory=dict)
    """By file: bytes after which the connection breaks, once"""
    stall: dict[str, int] = field(default_factory=dict)
    """By file: bytes after which nothing more is sent"""
    failing: dict[str, int] = field(default_factory=dict)
    """By file: requests that get HTTP status 503"""
    ignores_range: bool = False
    redirects: bool = False
    """Redirects files to another host name, as a content network does"""
    tells_no_hash: bool = False
    requests: list[tuple[str, str]] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)
    tokens: list[str] = field(default_factory=list)
    """Authorization headers of the requests for files; "" if there was none"""
    url: str = ""

    def fetched(self, name: str) -> list[str]:
        """The requested ranges of a file."""
        return [asked for path, asked in self.requests if path == name]

    def sha256(self, name: str) -> str:
        return hashlib.sha256(self.files[name]).hexdigest()

    def git_sha1(self, name: str) -> str:
        data = self.files[name]
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serves until the block ends. `hub.url` is the endpoint for both clients."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.0"  # one request per connection: no connection outlives the server

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, parts = self.hub, urlsplit(self.path)
        path, query = unquote(parts.path), parse_qs(parts.query)
        if path.startswith("/api/models/"):
            self._hugging_face_listing(path.removeprefix("/api/models/"))
        elif path == f"/api/v1/models/{hub.repo}/repo/files":
            self._model_scope_listing(query["Revision"][0])
        elif path == f"/api/v1/models/{hub.repo}/repo":
            self._file(query["FilePath"][0])
        elif path.startswith((f"/{hub.repo}/resolve/{COMMIT}/", f"/{hub.repo}/resolve/main/")):
            name = path.removeprefix(f"/{hub.repo}/resolve/").partition("/")[2]
            if hub.redirects:
                elsewhere = hub.url.replace("127.0.0.1", "localhost")
                self._json(302, {}, {"Location": f"{elsewhere}/elsewhere/{name}"})
            else:
                self._file(name)
        elif path.startswith("/elsewhere/"):
            self._file(path.removeprefix("/elsewhere/"))
        else:
            self._json(404, {"Code": 10010205001, "Message": "the model does not exist", "error": "not found"})

    def _hugging_face_listing(self, path: str) -> None:
        repo, _, revision = path.partition("/revision/")
        if repo != self.hub.repo:
            self._json(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("", "main", "v1", COMMIT):
            self._json(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        else:
            siblings = [self._sibling(name) for name in self.hub.files]
            self._json(200, {"id": repo, "sha": COMMIT, "siblings": siblings})

    def _sibling(self, name: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"rfilename": name, "size": len(self.hub.files[name])}
        if self.hub.tells_no_hash:
            return entry
        if name in self.hub.git_files:
            return {**entry, "blobId": self.hub.git_sha1(name)}
        lfs = {"sha256": self.hub.sha256(name), "size": entry["size"], "pointerSize": 134}
        return {**entry, "blobId": "0" * 40, "lfs": lfs}

    def _model_scope_listing(self, revision: str) -> None:
        if revision not in ("master", "v1"):
            self._json(404, {"Code": 10010205001, "Message": "revision not found", "Success": False})
            return
        files = [
            {"Path": name, "Name": name.split("/")[-1], "Size": len(data), "Type": "blob",
             "Sha256": self.hub.sha256(name)}
            for name, data in self.hub.files.items()
        ]  # fmt: skip
        folder = {"Path": "CosyVoice-BlankEN", "Name": "CosyVoice-BlankEN", "Size": 0, "Type": "tree", "Sha256": ""}
        self._json(200, {"Code": 200, "Success": True, "Data": {"Files": [folder, *files]}})

    def _file(self, name: str) -> None:
        hub, asked = self.hub, self.headers.get("Range", "")
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            self._json(406, {"error": "an offset has no meaning in a compressed file"})
            return
        hub.requests.append((name, asked))
        hub.tokens.append(self.headers.get("Authorization", ""))
        if hub.failing.get(name, 0):
            hub.failing[name] -= 1
            self._json(503, {"error": "busy"})
            return
        if name not in hub.files:
            self._json(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            return
        data = hub.files[name]
        if name in hub.wrong:
            data = data[:-1] + bytes([data[-1] ^ 1])
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and not hub.ignores_range else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        cut = hub.cut.pop(name, None)
        end = cut if cut is not None else hub.stall.get(name, len(data))
        self.wfile.write(data[start:end])
        self.wfile.flush()
        if cut is not None:
            self.close_connection = True
            self.connection.close()
        elif name in hub.stall:
            hub.stalled.set()
            hub.closing.wait(30)

    def _json(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
