"""A `clef-serve` process under test: its output as it comes, its end, and what it leaves behind."""

import contextlib
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]


class Running:
    """Standard output and standard error arrive in one list of lines."""

    def __init__(self, module: str, arguments: list[str], environ: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def wait_for(self, pattern: str, timeout_s: float) -> re.Match[str]:
        """The first new line that matches; fails with all output if none comes."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                line = self._queue.get(timeout=left)
            except queue.Empty:
                break
            if line is None:
                break
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no line matches {pattern!r} in {timeout_s} s:\n" + "\n".join(self.lines))

    def end(self, timeout_s: float) -> int:
        """The exit status, once all output has been read."""
        status = self.process.wait(timeout_s)
        while (line := self._queue.get(timeout=timeout_s)) is not None:
            self.lines.append(line)
        return status

    def tree(self) -> list[psutil.Process]:
        """Every process below this one."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def engine(self) -> list[psutil.Process]:
        """The same without multiprocessing's own tracker, which is no part of the engine."""
        return [process for process in self.tree() if "resource_tracker" not in " ".join(process.cmdline())]

    def send(self, signum: int) -> None:
        """Signal the process alone."""
        self.process.send_signal(signum)

    def press_ctrl_c(self) -> None:
        """Signal the whole process group, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)


@contextlib.contextmanager
def running(module: str, *arguments: str, environ: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Start `python -m module arguments`, and leave nothing of it behind."""
    started = Running(module, list(arguments), environ or {})
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.process.pid, signal.SIGKILL)
        started.process.wait()


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run."""
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
