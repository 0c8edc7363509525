"""A small model hub on loopback, with the endpoints that huggingface_hub uses, and faults to switch on."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Repository:
    """Commits by hash, and branches and tags that point to them."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], ref: str = "main") -> str:
        sha = hashlib.sha1(f"{len(self.commits)}{sorted(files)}".encode()).hexdigest()
        self.commits[sha] = {**self.commits.get(self.refs.get(ref, ""), {}), **files}
        self.refs[ref] = sha
        return sha

    def resolve(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.refs.get(revision)


@dataclass
class Fault:
    """What goes wrong with requests whose "METHOD /path" matches, ``times`` times."""

    pattern: str
    action: Callable[[Handler, bytes], None]
    times: int = 1


class Hub(ThreadingHTTPServer):
    """``with Hub() as hub:`` serves at ``hub.url``; ``hub.asked`` lists the requests with their headers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, Repository] = {}
        self.uploads: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.asked: list[tuple[str, dict[str, str]]] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def fail(self, pattern: str, action: Callable[[Handler, bytes], None], times: int = 1) -> None:
        self.faults.append(Fault(pattern, action, times))

    def count(self, pattern: str) -> int:
        return sum(re.match(pattern, line) is not None for line, _ in self.asked)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


def status(code: int, **headers: str) -> Callable[[Handler, bytes], None]:
    """Answer with this status; ``Retry_After="1"`` becomes a header."""

    def act(handler: Handler, _: bytes) -> None:
        handler.reply(code, b"{}", {name.replace("_", "-"): value for name, value in headers.items()})

    return act


def cut(keep: int) -> Callable[[Handler, bytes], None]:
    """Close the connection after ``keep`` bytes of the body that was promised whole."""

    def act(handler: Handler, body: bytes) -> None:
        handler.head_of(200 if "Range" not in handler.headers else 206, len(body))
        handler.wfile.write(body[:keep])
        handler.close_connection = True

    return act


def reset(handler: Handler, _: bytes) -> None:
    """Reset the connection in the middle of the answer."""
    handler.head_of(200, 1 << 20)
    handler.wfile.write(b"x" * 100)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True


def garbled(handler: Handler, body: bytes) -> None:
    """The right number of bytes, one of them wrong."""
    handler.reply(200, body[:-1] + bytes([body[-1] ^ 1]))


def page(handler: Handler, _: bytes) -> None:
    """A web page where an answer should be, as a portal of a hotel gives."""
    handler.reply(200, b"<html>Please log in</html>", {"Content-Type": "text/html"})


class Handler(BaseHTTPRequestHandler):
    """One request; the faults are looked at first."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        self.serve()

    do_HEAD = do_POST = do_PUT = do_GET

    def serve(self) -> None:
        self.sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.sent = self._chunks()
        path = urlsplit(self.path).path
        line = f"{self.command} {path}"
        self.server.asked.append((line, {name.lower(): value for name, value in self.headers.items()}))
        self.fault = next((f for f in self.server.faults if f.times and re.match(f.pattern, line)), None)
        if self.fault:
            self.fault.times -= 1
            if self.command in ("POST", "PUT"):
                return self.reply(500)  # the fault comes before the deed
        for pattern, answer in ROUTES:
            if found := re.fullmatch(pattern, line):
                return answer(self, *map(unquote, found.groups()))
        return self.reply(404)

    def reply(self, code: int, body: bytes = b"{}", headers: dict[str, str] | None = None) -> None:
        if self.fault:
            fault, self.fault = self.fault, None
            return fault.action(self, body)
        self.head_of(code, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)
        return None

    def head_of(self, code: int, length: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(length), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def json(self, answer: object, code: int = 200) -> None:
        self.reply(code, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def found(self, repo: str, revision: str) -> tuple[Repository, str] | None:
        """The repository and commit, or ``None`` after an answer of 404."""
        repository = self.server.repositories.get(repo)
        sha = repository.resolve(revision) if repository else None
        if repository is None or sha is None:
            self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound" if repository else "RepoNotFound"})
            return None
        return repository, sha

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)


def _info(handler: Handler, repo: str, revision: str = "main") -> None:
    if place := handler.found(repo, revision):
        repository, sha = place
        handler.json(
            {
                "id": repo,
                "modelId": repo,
                "sha": sha,
                "private": repository.private,
                "siblings": [_sibling(name, body) for name, body in repository.commits[sha].items()],
            }
        )


def _sibling(name: str, body: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": name, "size": len(body), "blobId": hashlib.sha1(body).hexdigest()}
    if name.endswith(".safetensors"):
        entry["lfs"] = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 130}
    return entry


def _resolve(handler: Handler, repo: str, revision: str, name: str) -> None:
    if place := handler.found(repo, revision):
        repository, sha = place
        body = repository.commits[sha].get(name)
        if body is None:
            return handler.reply(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        headers = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if wished := re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range") or ""):
            start = int(wished[1])
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            return handler.reply(206, body[start:], headers)
        return handler.reply(200, body, headers)
    return None


def _create(handler: Handler) -> None:
    wish = json.loads(handler.sent)
    repo = f"{wish['organization']}/{wish['name']}"
    existed = repo in handler.server.repositories
    private = bool(wish.get("private") or wish.get("visibility") == "private")
    repository = handler.server.repositories.setdefault(repo, Repository(private))
    if not existed:
        repository.commit({".gitattributes": b"*.safetensors filter=lfs\n"})
    handler.json({"url": f"{handler.server.url}/{repo}"}, 409 if existed else 200)


def _preupload(handler: Handler, repo: str, revision: str) -> None:
    files = [
        {
            "path": f["path"],
            "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular",
            "shouldIgnore": False,
        }
        for f in json.loads(handler.sent)["files"]
    ]
    handler.json({"files": files})


def _batch(handler: Handler, repo: str) -> None:
    objects = [
        {**wish, "actions": {"upload": {"href": f"{handler.server.url}/lfs/{wish['oid']}"}}}
        for wish in json.loads(handler.sent)["objects"]
    ]
    handler.json({"transfer": "basic", "objects": objects})


def _put(handler: Handler, oid: str) -> None:
    handler.server.uploads[oid] = handler.sent
    handler.reply(200 if hashlib.sha256(handler.sent).hexdigest() == oid else 400)


def _commit(handler: Handler, repo: str, revision: str) -> None:
    files: dict[str, bytes] = {}
    for entry in map(json.loads, handler.sent.splitlines()):
        value = entry["value"]
        if entry["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif entry["key"] == "lfsFile":
            files[value["path"]] = handler.server.uploads[value["oid"]]
    sha = handler.server.repositories[repo].commit(files, revision)
    handler.json({"commitUrl": f"{handler.server.url}/{repo}/commit/{sha}", "commitOid": sha})


_ID = r"([^/]+/[^/]+)"
ROUTES: list[tuple[str, Callable[..., None]]] = [
    (rf"GET /api/models/{_ID}", _info),
    (rf"GET /api/models/{_ID}/revision/([^/]+)", _info),
    (rf"(?:HEAD|GET) /{_ID}/resolve/([^/]+)/(.+)", _resolve),
    (r"POST /api/repos/create", _create),
    (r"POST /api/validate-yaml", lambda handler: handler.json({"errors": [], "warnings": []})),
    (rf"POST /api/models/{_ID}/preupload/([^/]+)", _preupload),
    (rf"POST /{_ID}\.git/info/lfs/objects/batch", _batch),
    (r"PUT /lfs/([0-9a-f]{64})", _put),
    (rf"POST /api/models/{_ID}/commit/([^/]+)", _commit),
]
