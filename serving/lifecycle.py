"""Whether this server answers: starting, ready, draining or dead. Knows nothing of HTTP or of what made it so."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Literal

from serving.engine import EngineDeadError
from serving.errors import NotServingError

Phase = Literal["starting", "ready", "draining", "dead"]


class Lifecycle:
    """The server's phase. It only moves forward: starting, ready, draining; dead from any of them and for good.

    Args:
        on_fatal: called once with the reason when the server becomes dead, so that the launcher can end the process.

    Attributes:
        in_flight: requests that were taken and are not answered yet.
    """

    def __init__(self, *, on_fatal: Callable[[str], None] | None = None) -> None:
        self.phase: Phase = "starting"
        self.reason = ""
        self.in_flight = 0
        self._on_fatal = on_fatal

    def mark_ready(self) -> None:
        """The warm-up is done."""
        if self.phase == "starting":
            self.phase = "ready"

    def drain(self) -> None:
        """Take no new request; those in flight are answered."""
        if self.phase != "dead":
            self.phase = "draining"

    def fail(self, reason: str) -> None:
        """No later request can succeed."""
        if self.phase == "dead":
            return
        self.phase, self.reason = "dead", reason
        if self._on_fatal is not None:
            self._on_fatal(reason)

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """One request in flight while the body runs. It is answered also if the server starts to shut down meanwhile.

        Raises:
            EngineDeadError: the server is dead.
            NotServingError: it is shutting down already.
        """
        self.require_serving()
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def require_alive(self) -> None:
        """Raise EngineDeadError if the server is dead."""
        if self.phase == "dead":
            raise EngineDeadError(self.reason)

    def require_serving(self) -> None:
        """Raise EngineDeadError or NotServingError unless a request may be tried.

        While starting it may: whoever was told to wait asks /readyz.
        """
        self.require_alive()
        if self.phase == "draining":
            raise NotServingError("the server is shutting down")

    def require_ready(self) -> None:
        """Raise EngineDeadError or NotServingError unless the server is ready."""
        self.require_serving()
        if self.phase == "starting":
            raise NotServingError("the server is warming up")
