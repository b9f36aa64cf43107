"""Runs `clef-serve up` for a benchmark, and stops it. Knows nothing of what is asked of it."""

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STOP_TIMEOUT_S = 90


class ServerFailedError(Exception):
    """The server did not start or stop; the message ends with the last lines of its log."""


@contextlib.contextmanager
def serving(arguments: Sequence[str], say: Callable[[str], None], *, start_timeout_s: float = 300) -> Iterator[str]:
    """The URL of a `clef-serve up` that runs with these arguments meanwhile.

    Raises:
        ServerFailedError: it did not start or stop.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:

        def tail() -> str:
            log.seek(0)
            return "\n".join(log.read().splitlines()[-20:])

        command = [sys.executable, "-m", "launch", "up", "--port", "0", *arguments]
        say(" ".join(command[1:]))
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        try:
            yield _ready_url(process, tail, start_timeout_s)
            process.send_signal(signal.SIGTERM)
            if process.wait(STOP_TIMEOUT_S) != 0:
                raise ServerFailedError(f"the server ended with status {process.returncode}:\n{tail()}")
        except subprocess.TimeoutExpired as err:
            raise ServerFailedError(f"the server did not stop:\n{tail()}") from err
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _ready_url(process: "subprocess.Popen[str]", tail: Callable[[], str], timeout_s: float) -> str:
    found: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if ready := re.search(r"clef-serve is ready at (http://\S+)", line):
                found.put(ready[1])
        found.put(None)

    threading.Thread(target=read, daemon=True).start()
    try:
        url = found.get(timeout=timeout_s)
    except queue.Empty:
        url = None
    if url is None:
        raise ServerFailedError(f"the server did not start:\n{tail()}")
    return url
