"""Fills a virtual environment from a lock, or leaves it alone when it already holds exactly that lock.

Standard library only: it runs before anything is installed. It knows the locks and pip, nothing of what they are for.
"""

import argparse
import hashlib
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
# Measured on 2 cores from a fast mirror; README.md has the commands.
COSTS = {"cpu": "about 7 GB on disk, a few minutes", "cuda": "about 10 GB on disk, several minutes"}
# A package whose download is at least this large is worth a line of its own, in MB.
LARGE_DOWNLOAD_MB = 50
HEARTBEAT_S = 15


def main() -> None:
    """Entry point; ends with status 1 and pip's own words when pip fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, required=True, help="directory of the virtual environment")
    parser.add_argument("--device", choices=sorted(COSTS), required=True, help="which lock of the two")
    parser.add_argument("--dev", action="store_true", help="also what tests and lint need")
    options = parser.parse_args()
    environment = Environment(options.venv.absolute())

    lock = REQUIREMENTS / f"{options.device}.txt"
    if environment.holds("lock", lock):
        say(f"{options.venv} already holds {lock.relative_to(ROOT)}")
    else:
        say(f"installing {lock.relative_to(ROOT)} into {options.venv}: {COSTS[options.device]}")
        environment.create()
        environment.install_lock(lock)
        environment.record("lock", lock)
    environment.complete_cuda_toolkit()
    if options.dev and not environment.holds("dev", REQUIREMENTS / "dev.txt"):
        environment.install_lock(REQUIREMENTS / "dev.txt")
        environment.record("dev", REQUIREMENTS / "dev.txt")
    if not environment.holds("package", ROOT / "pyproject.toml"):
        # Editable and built with the setuptools of the lock, so that nothing unpinned is downloaded.
        environment.pip(["--no-deps", "--no-build-isolation", "--editable", str(ROOT)], title="clef-serving", total=1)
        environment.record("package", ROOT / "pyproject.toml")


class Environment:
    """One virtual environment and the stamps that say what was installed into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamps = path / ".clef-serving"

    def holds(self, part: str, source: Path) -> bool:
        """Whether `part` was installed completely, from exactly this `source`, by this Python, in this place."""
        stamp = self._stamps / part
        return stamp.is_file() and stamp.read_text(encoding="utf-8") == self._fingerprint(source)

    def record(self, part: str, source: Path) -> None:
        """Remember that `part` is installed completely."""
        (self._stamps / part).write_text(self._fingerprint(source), encoding="utf-8")

    def _fingerprint(self, source: Path) -> str:
        digest = hashlib.sha256(source.read_bytes())
        digest.update(f"{sys.version_info[:2]} {self.path} {ROOT}".encode())
        return digest.hexdigest()

    def create(self) -> None:
        """Start from an empty environment: a lock means exactly these packages, none left from before."""
        shutil.rmtree(self.path, ignore_errors=True)
        venv.create(self.path, with_pip=True, symlinks=True)
        self._stamps.mkdir(parents=True)
        (self.path / ".gitignore").write_text("*\n", encoding="utf-8")

    def install_lock(self, lock: Path) -> None:
        """Install every package of a lock; each download must match one of its hashes."""
        total = sum("==" in line for line in lock.read_text(encoding="utf-8").splitlines() if line[:1].isalnum())
        self.pip(
            ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(lock)], title=lock.name, total=total
        )

    def complete_cuda_toolkit(self) -> None:
        """Add to NVIDIA's packages, where they are installed, the names under which a linker looks for their libraries.

        They hold what a finished program loads (lib/libcudart.so.13). SGLang, FlashInfer and TVM compile kernels while a
        server starts, with -L$CUDA_HOME/lib64 -L$CUDA_HOME/lib64/stubs -lcudart -lcuda; `launch/device.py` sets CUDA_HOME.
        """
        for compiler in self.path.glob("lib/python3.*/site-packages/nvidia/cu*/bin/nvcc"):
            toolkit = compiler.parent.parent
            _link(toolkit / "lib64", "lib")
            for library in sorted((toolkit / "lib").glob("lib*.so.*")):
                _link(library.with_name(library.name.partition(".so.")[0] + ".so"), library.name)
            # The driver's own library is none of a package's: one line of GNU ld's language that says where it is.
            stubs = toolkit / "lib" / "stubs"
            stubs.mkdir(exist_ok=True)
            (stubs / "libcuda.so").write_text("INPUT(-l:libcuda.so.1)\n", encoding="utf-8")

    def pip(self, arguments: list[str], *, title: str, total: int) -> None:
        """Run `pip install`, with its output condensed to a few lines and kept in full beside the stamps.

        Raises:
            SystemExit: pip failed; its last lines have been printed.
        """
        command = [str(self.path / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
        command += ["--progress-bar", "off", "--no-input", *arguments]
        log_path, started = self._stamps / f"pip-{title}.log", time.monotonic()
        with log_path.open("w", encoding="utf-8") as log:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own files
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
            lines: queue.Queue[str | None] = queue.Queue()
            threading.Thread(target=_forward, args=(process, lines), daemon=True).start()
            _condense(lines, log.write, total)
        if process.wait() != 0:
            say(f"pip failed on {title}; its last lines, from {log_path}:")
            print(*log_path.read_text(encoding="utf-8").splitlines()[-15:], sep="\n", file=sys.stderr)
            raise SystemExit(1)
        say(f"{title} installed in {time.monotonic() - started:.0f} s")


def _link(path: Path, target: str) -> None:
    """A symbolic link, unless something of that name is there."""
    if not path.is_symlink() and not path.exists():
        path.symlink_to(target)


def _forward(process: "subprocess.Popen[str]", lines: "queue.Queue[str | None]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _condense(lines: "queue.Queue[str | None]", keep: Callable[[str], object], total: int) -> None:
    """Print a line for each large download, for every 25 packages, and one now and then while pip is silent."""
    collected, step, started = 0, "resolving", time.monotonic()
    while True:
        try:
            line = lines.get(timeout=HEARTBEAT_S)
        except queue.Empty:
            say(f"  ... still {step}, {time.monotonic() - started:.0f} s so far")
            continue
        if line is None:
            return
        keep(line)
        if line.startswith(("Collecting", "Processing")):
            collected, step = collected + 1, "downloading"
            if collected % 25 == 0:
                say(f"  {collected} of {total} packages")
        elif large := re.match(r"\s+Downloading (\S+?)-\d\S* \(([\d.]+) MB\)", line):
            if float(large[2]) >= LARGE_DOWNLOAD_MB:
                say(f"  downloading {large[1]}, {float(large[2]):.0f} MB")
        elif line.startswith("Installing collected packages"):
            step = "unpacking"
            if total > 1:
                say(f"  unpacking {collected} packages")


def say(message: str) -> None:
    """One line of progress, on stderr and at once."""
    print(f"install: {message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
