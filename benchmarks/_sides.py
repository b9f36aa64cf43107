"""Starts stock SGLang and ours, each in a process with an environment of its own, and asks them rounds of prompts.

Knows processes and environments; what an engine is, `_worker` knows.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import psutil

from benchmarks import _stock_platform
from benchmarks._workloads import Prompt
from model_plugin import cpu

ROOT = Path(__file__).resolve().parents[1]
SideName = Literal["stock", "ours"]
CLOSE_TIMEOUT_S = 90


class SideFailedError(Exception):
    """An engine did not start, ended, or took too long; the message ends with the last lines of its log."""


@dataclass(frozen=True, kw_only=True)
class SideSettings:
    """How to start both engines: equally, except for the plugin. `extra_args` are further SGLang server arguments."""

    model_path: Path
    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    max_prompt_tokens: int
    extra_args: tuple[str, ...] = ()
    start_timeout_s: float = 600
    round_timeout_s: float = 600


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one prompt cost and gave: logits of each question, tokens of the prompt, those not computed, seconds."""

    logits: list[list[float]]
    prompt_tokens: int
    cached_tokens: int
    seconds: float

    @property
    def prefill_tokens(self) -> int:
        """Tokens computed for this prompt."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(frozen=True, kw_only=True)
class Round:
    """The answers to prompts asked at once, and the time until the last one."""

    answers: list[Answer]
    seconds: float


class Side:
    """One running engine."""

    def __init__(self, name: SideName, process: "subprocess.Popen[str]", log: IO[str], settings: SideSettings) -> None:
        self.name, self._process, self._log, self._settings = name, process, log, settings
        self.facts: dict[str, Any] = self._read(settings.start_timeout_s)

    def cpu_seconds(self) -> float:
        """Processor time that the engine's processes have used."""
        worker = psutil.Process(self._process.pid)
        times = [process.cpu_times() for process in (worker, *worker.children(recursive=True))]
        return float(sum(each.user + each.system for each in times))

    def ask(self, prompts: Sequence[Prompt]) -> Round:
        """Ask these prompts at once.

        Raises:
            SideFailedError: the engine is gone or took too long.
        """
        message = [
            {
                "input_ids": prompt.input_ids,
                "questions": [(q.question_type, q.question, q.options) for q in prompt.questions],
                "state_end": prompt.state_end,
            }
            for prompt in prompts
        ]
        assert self._process.stdin is not None
        try:
            print(json.dumps(message), file=self._process.stdin, flush=True)
        except OSError as err:
            raise self._failed("ended") from err
        reply = self._read(self._settings.round_timeout_s)
        return Round(seconds=reply["seconds"], answers=[Answer(**answer) for answer in reply["answers"]])

    def _read(self, timeout_s: float) -> dict[str, Any]:
        # One reply is outstanding at a time, so nothing can wait in the buffer.
        output = self._process.stdout
        assert output is not None
        if not select.select([output], [], [], timeout_s)[0]:
            raise self._failed(f"gave no answer in {timeout_s:.0f} s")
        line = output.readline()
        if not line:
            raise self._failed("ended")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _failed(self, how: str) -> SideFailedError:
        self._log.flush()
        tail = Path(self._log.name).read_text(encoding="utf-8", errors="replace").splitlines()[-25:]
        return SideFailedError("\n".join([f"the {self.name} engine {how}; the end of its log:", *tail]))


@contextlib.contextmanager
def running(name: SideName, settings: SideSettings) -> Iterator[Side]:
    """An engine that has been started, and is ended with all its processes."""
    with tempfile.TemporaryDirectory(prefix=f"clef-benchmark-{name}-") as temporary:
        values = {
            "side": name,
            "model_path": str(settings.model_path),
            "device": settings.device,
            "dtype": settings.dtype,
            "max_prompt_tokens": settings.max_prompt_tokens,
            "served_model_name": "benchmark",
            "extra_args": settings.extra_args,
        }
        with (Path(temporary) / "log").open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks._worker", json.dumps(values)],
                cwd=ROOT,
                env=environment(name, settings, Path(temporary)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # a process group, so that whatever is left of it can be ended
            )
            try:
                yield Side(name, process, log, settings)
            finally:
                _end(process)


def environment(name: SideName, settings: SideSettings, directory: Path) -> dict[str, str]:
    """The environment that decides which plugin SGLang loads in the worker and in every process it spawns."""
    environ = dict(os.environ)
    environ.pop("SGLANG_EXTERNAL_MODEL_PACKAGE", None)
    environ["TOKENIZERS_PARALLELISM"] = "false"
    if settings.device == "cpu":
        # glibc would give each large tensor's memory back and fetch it anew, page by page: a tenth of a request's time on
        # either side, and most of its noise.
        environ |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
    path = [str(ROOT), *filter(None, [environ.get("PYTHONPATH")])]
    if name == "ours":
        environ["SGLANG_PLUGINS"] = "clef"
    else:
        # SGLang loads the plugins named here and no other; on a CUDA machine stock SGLang needs none, so none has this name.
        environ["SGLANG_PLUGINS"] = _stock_platform.ENTRY_POINT
        if settings.device == "cpu":
            path.insert(0, str(_plugin_distribution(directory)))
    environ["PYTHONPATH"] = os.pathsep.join(path)
    if settings.device == "cpu":
        cpu.activate(settings.dtype, environ=environ)
    return environ


def _plugin_distribution(directory: Path) -> Path:
    """The least that Python takes for an installed package with an entry point, as SGLang discovers plugins by those."""
    name = _stock_platform.ENTRY_POINT
    info = directory / "plugin" / f"{name}-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n", encoding="utf-8")
    entry = f"[sglang.srt.plugins]\n{name} = {_stock_platform.__name__}:register\n"
    (info / "entry_points.txt").write_text(entry, encoding="utf-8")
    return info.parent


def _end(process: "subprocess.Popen[str]") -> None:
    """Ask the worker to stop by closing its input, and end what is left of its process group after a while."""
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    kill = threading.Timer(CLOSE_TIMEOUT_S, os.killpg, (process.pid, signal.SIGKILL))
    kill.start()
    try:
        process.wait()
    finally:
        kill.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
