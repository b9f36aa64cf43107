"""What a test can ask of the engine in a running server, beside what the server answers; see `inspector_plugin`."""

import contextlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine import inspector_plugin
from tests.launch.running import ROOT

ANSWER_TIMEOUT_S = 60


@dataclass(frozen=True)
class Inspector:
    """Asks through a socket of the server's process. `environ` lets a server in."""

    directory: Path
    environ: dict[str, str]

    def state(self) -> dict[str, Any]:
        """Who runs and waits, each pool slot by slot, what was aborted and evicted so far; see `inspector_plugin.tell`."""
        state: dict[str, Any] = self._ask(what="state")
        return state

    def until(self, comes_true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first state for which something is true."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while not comes_true(state := self.state()):
            assert time.monotonic() < deadline, state
        return state

    def settled(self) -> dict[str, Any]:
        """The state once nothing runs or waits, and SGLang's side of the server process knows of no request."""
        return self.until(lambda state: state["idle"] and not state["front"]["requests"])

    def flush(self, timeout_s: float) -> bool:
        """Empty the cache, as SGLang's own route does; False if somebody was served for all that time."""
        flushed: bool = self._ask(what="flush", timeout_s=timeout_s)
        return flushed

    def lose(self, pool: str) -> None:
        """Lose a slot of a pool. The server may have ended of it before it could answer."""
        with contextlib.suppress(ConnectionError):
            self._send(what="lose", pool=pool)

    def _ask(self, **asked: Any) -> Any:
        return json.loads(self._send(**asked))

    def _send(self, **asked: Any) -> str:
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(ANSWER_TIMEOUT_S)
            door.connect(str(self.directory / "door"))
            door.sendall(json.dumps(asked).encode() + b"\n")
            with door.makefile() as answers:
                return answers.readline()


@contextlib.contextmanager
def inspector(*, free_bytes: int | None = None) -> Iterator[Inspector]:
    """Let servers that are started with its `environ` be looked into.

    Args:
        free_bytes: what they shall take for the machine's free memory.
    """
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="inspector-") as temporary:
        directory = Path(temporary)
        # The least that Python takes for an installed package with an entry point, as SGLang discovers plugins by those.
        name = inspector_plugin.ENTRY_POINT
        information = directory / f"{name}-0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n", encoding="utf-8")
        entry = f"[sglang.srt.plugins]\n{name} = {inspector_plugin.__name__}:register\n"
        (information / "entry_points.txt").write_text(entry, encoding="utf-8")
        path = [temporary, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environ = {"PYTHONPATH": os.pathsep.join(path), inspector_plugin.DOOR: str(directory / "door")}
        if free_bytes is not None:
            environ[inspector_plugin.FREE_BYTES] = str(free_bytes)
        yield Inspector(directory, environ)
