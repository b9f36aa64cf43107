"""Runs the front under uvicorn: signals, the ready line, and an end that never hangs.

Knows how a process starts and stops, nothing of models or requests.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

import h11
import psutil
import uvicorn
import uvloop
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from serving.lifecycle import Lifecycle

# How long requests in flight may take after SIGTERM, in seconds.
GRACE_S = 30
# The same once the engine is dead: its requests have already failed.
GRACE_WHEN_DEAD_S = 2
# When the process is ended whatever it still does, in seconds after the engine died or after a signal to stop.
LIMIT_WHEN_DEAD_S = 8
LIMIT_WHEN_STOPPING_S = GRACE_S + 20
# Longer than the keep-alive of common proxies and clients, so that they and not we close an idle connection.
KEEP_ALIVE_S = 75
READY_CHECK_INTERVAL_S = 0.05
DRAIN_CHECK_INTERVAL_S = 0.02


class StopRequested(BaseException):
    """SIGTERM or Ctrl-C while the engine was starting. Not an Exception: no library may take it for a failure."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """A bound TCP socket and how to reach it."""

    listener: socket.socket
    host: str

    @property
    def url(self) -> str:
        """An address a client on this machine can use."""
        port = self.listener.getsockname()[1]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - compared, not bound
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bind(host: str, port: int) -> Address:
    """Take the port before the engine is loaded: a port in use should cost a second, not minutes.

    Raises:
        ValueError: the address cannot be used.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with _bound(family, kind, protocol, address) as probe:
            probe.listen()
        # Not listening yet: until the server accepts, a client is refused rather than left waiting.
        listener = _bound(family, kind, protocol, address)
    except OSError as err:
        raise ValueError(
            f"cannot listen on {host} port {port}: {err.strerror or err}; choose another with --port"
        ) from err
    return Address(listener=listener, host=host)


def _bound(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    bound = socket.socket(family, kind, protocol)
    # A server that stopped a moment ago leaves connections in TIME_WAIT, which are no reason to refuse.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(address)
    return bound


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """While the body runs, SIGTERM and Ctrl-C raise `StopRequested` in the main thread.

    Processes spawned meanwhile inherit a blocked SIGINT: a terminal sends Ctrl-C to the whole process group, and it is
    for this process to end its children after their last answers.
    """

    def stop(signum: int, frame: object) -> None:
        del signum, frame
        raise StopRequested

    before = {signum: signal.signal(signum, stop) for signum in (signal.SIGTERM, signal.SIGINT)}
    # Multiprocessing starts its tracker with the first child and unblocks SIGINT on the way; not after ours is blocked.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    done = threading.Event()

    def forward() -> None:
        while not done.is_set():
            if signal.sigtimedwait({signal.SIGINT}, 0.2):
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=forward, name="clef-ctrl-c", daemon=True).start()
    try:
        yield
    finally:
        done.set()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for signum, handler in before.items():
            signal.signal(signum, handler)


def end_children(timeout_s: float = 5) -> None:
    """Kill every process below this one and wait for them."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=timeout_s)


class Server:
    """One run of the front: from the first accepted connection until a signal or the engine's death."""

    def __init__(self, address: Address, on_ready: Callable[[], None]) -> None:
        self._address = address
        self._on_ready = on_ready
        self._uvicorn: _Uvicorn | None = None
        self._stopping = False
        self._draining: asyncio.Task[None] | None = None
        # Why the server died; None while it lives and after a clean stop.
        self.fatal: str | None = None

    def run(self, app: FastAPI) -> None:
        """Serve until stopped. `fatal` tells afterwards whether that was asked for."""
        config = uvicorn.Config(
            app,
            http=HttpProtocol,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
        self._uvicorn = _Uvicorn(config)
        # SGLang's children report trouble to their parent with SIGQUIT, whose default would end this process with a
        # core dump once the event loop is closed. Their deaths are noticed without it.
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._serve(app.state.lifecycle))
            except SystemExit:  # uvicorn's way to say that the application did not start; it has logged why
                self.fatal = self.fatal or "the front did not start; see the log above"
            except OSError as err:  # another process took the port while the engine was loading
                self.fatal = f"cannot listen on {self._address.url}: {err.strerror or err}"

    def take_signals(self, lifecycle: Lifecycle) -> None:
        """Own SIGTERM and SIGINT from here on. Called in the event loop, after the engine has been bound to it."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._stop, lifecycle)

    def die(self, reason: str) -> None:
        """End the server because no request can succeed any more. Called in the event loop."""
        if self._stopping:
            return  # an engine that ends while we stop is no news
        self.fatal = reason
        self._stopping = True
        assert self._uvicorn is not None
        self._uvicorn.config.timeout_graceful_shutdown = GRACE_WHEN_DEAD_S
        self._uvicorn.should_exit = True
        end_process_after(LIMIT_WHEN_DEAD_S, reason)

    def _stop(self, lifecycle: Lifecycle) -> None:
        assert self._uvicorn is not None
        if self._stopping:
            self._uvicorn.force_exit = True  # asked twice
            return
        self._stopping = True
        lifecycle.drain()
        self._draining = asyncio.get_running_loop().create_task(self._exit_when_answered(lifecycle))
        end_process_after(LIMIT_WHEN_STOPPING_S, f"did not stop within {LIMIT_WHEN_STOPPING_S} s")

    async def _exit_when_answered(self, lifecycle: Lifecycle) -> None:
        """Keep the door open for those who do not know yet that we stop: they are told, rather than left to wonder."""
        assert self._uvicorn is not None
        try:
            async with asyncio.timeout(GRACE_S):
                while lifecycle.in_flight:  # noqa: ASYNC110 - a Lifecycle has no event
                    await asyncio.sleep(DRAIN_CHECK_INTERVAL_S)
        except TimeoutError:
            # They had their time; uvicorn would give it to them once more.
            self._uvicorn.config.timeout_graceful_shutdown = GRACE_WHEN_DEAD_S
        self._uvicorn.should_exit = True

    async def _serve(self, lifecycle: Lifecycle) -> None:
        assert self._uvicorn is not None
        announcing = asyncio.create_task(self._announce(lifecycle))
        try:
            await self._uvicorn.serve(sockets=[self._address.listener])
        finally:
            announcing.cancel()

    async def _announce(self, lifecycle: Lifecycle) -> None:
        while lifecycle.phase == "starting":  # noqa: ASYNC110 - a Lifecycle has no event
            await asyncio.sleep(READY_CHECK_INTERVAL_S)
        if lifecycle.phase == "ready":
            self._on_ready()


class HttpProtocol(H11Protocol):
    """Uvicorn's, but broken bytes behind an answer end the connection quietly."""

    def send_400_response(self, msg: str) -> None:
        # Uvicorn would answer once more, h11 refuses that, and each such client left a traceback in the log.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Uvicorn's own handlers would end the process by the signal's default after a clean stop, not with status 0.
        yield


def end_process_after(seconds: float, reason: str) -> None:
    """As a last resort end this process with status 1 after so many seconds, whatever it is waiting for."""

    def end() -> None:
        print(f"clef-serve: {reason}", file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):
            end_children(timeout_s=1)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
