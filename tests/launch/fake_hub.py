"""A Hugging Face hub on the loopback: the requests that huggingface_hub makes of one, with the faults a hub can have."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "nordwind/clef-tiny"
GOOD_TOKEN = "hf_good"


@dataclass(kw_only=True)
class FakeHub:
    """One repository whose `main` is COMMIT.

    Attributes:
        files: what it holds, by path.
        refuse: a status and the hub's error code for every request.
        gated: files are for GOOD_TOKEN alone, and an account without access gets 403.
        cuts: for a file, after how many bytes its next answers break off; an answer for each entry.
        held: for a file, after how many bytes its answer stops until `release` is set.
        requests: method, path and Range header of every request.
    """

    files: dict[str, bytes]
    refuse: tuple[int, str | None] | None = None
    gated: bool = False
    cuts: dict[str, list[int]] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    holding: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    url: str = ""

    def fetched(self) -> list[str]:
        """The files whose content was asked for, in order."""
        return [path.rsplit("/", 1)[-1] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path]

    def ranges(self, name: str) -> list[str | None]:
        """The Range header of each request for that file's content."""
        return [
            wanted
            for method, path, wanted in self.requests
            if method == "GET" and path.endswith(f"/resolve/{COMMIT}/{name}")
        ]

    @contextlib.contextmanager
    def running(self) -> Iterator["FakeHub"]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.release.set()
            server.shutdown()
            thread.join()
            server.server_close()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = self.path.split("?")[0]
            hub.requests.append((self.command, path, self.headers.get("range")))
            if hub.refuse is not None:
                return self._error(*hub.refuse)
            api, resolve = f"/api/models/{REPOSITORY}", f"/{REPOSITORY}/resolve/{COMMIT}/"
            if path in (api, f"{api}/revision/main"):
                return self._json({"id": REPOSITORY, "sha": COMMIT})
            if path.startswith(f"{api}/revision/"):
                return self._error(404, "RevisionNotFound")
            if path == f"{api}/tree/{COMMIT}":
                deep = "recursive=true" in self.path
                return self._json([_listed(name, hub.files[name]) for name in hub.files if deep or "/" not in name])
            if path.startswith(f"{api}/tree/"):
                return self._error(404, "RevisionNotFound")
            if path.startswith(resolve):
                return self._file(path.removeprefix(resolve))
            return self._error(401, "RepoNotFound")  # the hub does not tell what is missing from what is private

        def _file(self, name: str) -> None:
            token = self.headers.get("authorization")
            if hub.gated and token != f"Bearer {GOOD_TOKEN}":
                return self._error(403 if token else 401, "GatedRepo")
            content = hub.files[name]
            wanted = self.headers.get("range")
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
            self.send_response(206 if wanted else 200)
            self.send_header("content-length", str(len(content) - start))
            if wanted:
                self.send_header("content-range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("etag", f'"{hashlib.sha1(content).hexdigest()}"')
            self.send_header("x-repo-commit", COMMIT)
            self.end_headers()
            if self.command == "HEAD":
                return None
            if cuts := hub.cuts.get(name):
                self.wfile.write(content[start : start + cuts.pop(0)])
                self.close_connection = True
                return None
            if name in hub.held:
                self.wfile.write(content[start : hub.held[name]])
                self.wfile.flush()
                start = hub.held[name]
                hub.holding.set()
                hub.release.wait()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content[start:])
            return None

        def _json(self, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _error(self, status: int, code: str | None) -> None:
            self.send_response(status)
            self.send_header("content-length", "0")
            if code:
                self.send_header("x-error-code", code)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler


def _listed(name: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
