"""What a run was measured on and with: versions, the machine, and how busy other programs kept it."""

import contextlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Sequence
from typing import Any

import psutil

PACKAGES = ("clef-serving", "aiohttp", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Of the generator; a server's own stand with the server, as far as it tells."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package.replace("-", "_")] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package.replace("-", "_")] = "not installed"
    return found


def machine() -> dict[str, Any]:
    """Where the generator ran."""
    return {"platform": platform.platform(), "processor": platform.machine(), "cpu_cores": os.cpu_count()}


class OtherLoad:
    """How many cores programs other than this one and the servers named keep busy; more than a few tenths spoil the figures."""

    def __init__(self, server_pids: Sequence[int]) -> None:
        self._pids = (os.getpid(), *server_pids)
        self._started, self._before = time.monotonic(), self._other_s()

    def _other_s(self) -> float:
        times = psutil.cpu_times()
        busy_s = float(times.user + times.nice + times.system)
        return busy_s - sum(_tree_s(pid) for pid in self._pids)

    def cores(self) -> float:
        """On average since the start."""
        return max(0.0, self._other_s() - self._before) / (time.monotonic() - self._started)


def _tree_s(pid: int) -> float:
    """Processor time of a process and those below it; one that has ended counts nothing."""
    total = 0.0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                total += times.user + times.system
    return total
