"""Our server as a router sees it: the app with a fake engine on a port of its own, which can drain, die and come back."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.auth import KeyRing
from serving.engine import ScoreRequest, ScoreResult
from serving.fake_engine import FakeEngine
from serving.lifecycle import Lifecycle
from tests.serving.harness import make_app


@dataclass(kw_only=True)
class HoldingEngine(FakeEngine):
    """Answers nothing while `held`."""

    held: bool = False

    async def score(self, request: ScoreRequest) -> ScoreResult:
        self.requests.append(request)
        self.running += 1
        try:
            while self.held:  # noqa: ASYNC110  (set from another thread)
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.aborted.append(request.request_id)
            raise
        finally:
            self.running -= 1
        self.requests.pop()  # the next line notes it again
        return await super().score(request)


@dataclass(kw_only=True)
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)


class Backend:
    """One server. `seen` holds what it was asked, probes too, and `engine.requests` the prompts it scored.

    Args:
        host: an address of the loopback.
        port: a free one if 0.
        keys: who may ask; anyone without.
        settings: of the front.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, keys: KeyRing | None = None, **settings: Any) -> None:
        self.engine = HoldingEngine()
        self.seen: list[Seen] = []
        self._app = make_app(self.engine, keys=keys, **settings)
        self._listening = socket.create_server((host, port))
        self.host, self.port = self._listening.getsockname()
        config = uvicorn.Config(self._recording(self._app), loop="asyncio", log_level="error", timeout_keep_alive=30)
        self._server = uvicorn.Server(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],))

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def lifecycle(self) -> Lifecycle:
        found: Lifecycle = self._app.state.lifecycle
        return found

    @property
    def asked(self) -> list[Seen]:
        """The questions among what it was asked."""
        return [seen for seen in self.seen if seen.method == "POST"]

    def start(self) -> "Backend":
        self._thread.start()
        while self.lifecycle.phase == "starting":
            assert self._thread.is_alive(), "the server did not start"
            self._thread.join(0.005)
        self.engine.requests.clear()
        return self

    def kill(self) -> None:
        """End as a killed process does: every connection is reset, and no new one accepted."""
        assert self._loop is not None
        self._server.force_exit = self._server.should_exit = True
        self._loop.call_soon_threadsafe(self._reset)
        self._thread.join()

    def stop(self) -> None:
        """End if it has not."""
        self.engine.held = False
        self._server.should_exit = True
        self._thread.join()

    def _reset(self) -> None:
        for server in self._server.servers:
            server.close()
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()

    def _recording(self, app: ASGIApp) -> ASGIApp:
        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            self._loop = asyncio.get_running_loop()
            if scope["type"] != "http":
                await app(scope, receive, send)
                return
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            query = scope["query_string"].decode()
            path = scope["path"] + (f"?{query}" if query else "")
            seen = Seen(method=scope["method"], path=path, headers=headers)
            self.seen.append(seen)

            async def receiving() -> Message:
                message = await receive()
                seen.body += message.get("body", b"")
                return message

            await app(scope, receiving, send)

        return recorded


@contextlib.contextmanager
def backends(count: int, **arguments: Any) -> Iterator[list[Backend]]:
    """So many of them, ready."""
    made = [Backend(**arguments).start() for _ in range(count)]
    try:
        yield made
    finally:
        for backend in made:
            backend.stop()
