"""As much of a Kubernetes API server as finds pods: their list, and a watch on it. Records what is asked."""

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

TOKEN = "a-service-account"


class FakeKubernetes:
    """Serves one namespace's pods by HTTP. `asked` holds path and query of each request."""

    def __init__(self, namespace: str, labels: dict[str, str]) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self._namespace = namespace
        self._labels = labels
        self._pods: dict[str, Any] = {}
        self._version = 1
        self._watches: list[queue.Queue[bytes | None]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def kubeconfig(self, path: Path) -> Path:
        """Write how a client reaches it."""
        server = f"http://127.0.0.1:{self._server.server_port}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": server}}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
        }
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    def put(self, name: str, ip: str, *, ready: bool = True, terminating: bool = False) -> None:
        """A pod as it is now."""
        kind = "MODIFIED" if name in self._pods else "ADDED"
        self._version += 1
        metadata = {
            "name": name,
            "namespace": self._namespace,
            "uid": f"uid-of-{name}",
            "resourceVersion": str(self._version),
            "labels": self._labels,
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if terminating else {}),
        }
        condition = {"type": "Ready", "status": str(ready)}
        self._pods[name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": []},
            "status": {"phase": "Running", "podIP": ip, "conditions": [condition]},
        }
        self._tell(kind, self._pods[name])

    def delete(self, name: str) -> None:
        """A pod that is gone."""
        self._tell("DELETED", self._pods.pop(name))

    def close(self) -> None:
        """End, and every watch with it."""
        for watch in self._watches:
            watch.put(None)
        self._server.shutdown()
        self._server.server_close()

    def _tell(self, kind: str, pod: Any) -> None:
        line = json.dumps({"type": kind, "object": pod}).encode() + b"\n"
        for watch in self._watches:
            watch.put(line)

    def _list(self) -> bytes:
        metadata = {"resourceVersion": str(self._version)}
        pods = {"apiVersion": "v1", "kind": "PodList", "metadata": metadata, "items": list(self._pods.values())}
        return json.dumps(pods).encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlparse(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                fake.asked.append((url.path, query))
                known = url.path == f"/api/v1/namespaces/{fake._namespace}/pods"
                if not known or self.headers["authorization"] != f"Bearer {TOKEN}":
                    self.send_error(403)
                elif query.get("watch") == "true":
                    self._watch()
                else:
                    self._answer(fake._list())

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _watch(self) -> None:
                lines: queue.Queue[bytes | None] = queue.Queue()
                fake._watches.append(lines)
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                self.wfile.flush()
                while (line := lines.get()) is not None:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
                self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler
