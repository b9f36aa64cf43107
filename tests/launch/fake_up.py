"""`clef-serve` with a fake in the place of the SGLang engine, as a program: `python -m tests.launch.fake_up up ...`.

The fake has one real child process, so that what happens to an engine's children can be seen. FAKE_ENGINE names a fault:
`slow_start`, `start_error`, `hang_on_close` or `slow_answers`.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import serving.engine
from launch.cli import main
from serving.engine import EngineDeadError, EngineSettings, EngineStartError, ScoreRequest, ScoreResult
from serving.fake_engine import FakeEngine

FAULT = os.environ.get("FAKE_ENGINE")


class FakeSGLangEngine(FakeEngine):
    """What `launch.up` uses of `serving.engine.SGLangEngine`."""

    @classmethod
    def start(cls, settings: EngineSettings) -> "FakeSGLangEngine":
        from transformers import AutoTokenizer

        engine = cls(delay_s=1.0 if FAULT == "slow_answers" else 0.0)
        engine.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(f"fake engine child {engine.child.pid} {settings}", file=sys.stderr, flush=True)
        if FAULT == "slow_start":
            time.sleep(600)
        if FAULT == "start_error":
            raise EngineStartError("the fake engine did not start")
        engine.tokenizer = AutoTokenizer.from_pretrained(settings.model_path)
        engine.max_prompt_tokens = settings.max_prompt_tokens
        return engine

    async def attach(self, on_death: Callable[[str], None]) -> None:
        # As SGLang does: handlers that would swallow the signals if they stayed.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
        self.watch = asyncio.create_task(self._watch(on_death))

    async def _watch(self, on_death: Callable[[str], None]) -> None:
        while self.child.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        self.dead = (
            f"the engine's scheduler process (pid {self.child.pid}) ended with exit code {self.child.returncode}"
        )
        on_death(self.dead)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        if self.child.poll() is not None:
            raise EngineDeadError("the child is gone")
        return await super().score(request)

    def close(self) -> None:
        if FAULT == "hang_on_close":
            time.sleep(600)
        self.child.kill()
        self.child.wait()

    child: Any = None
    tokenizer: Any = None
    processor: Any = None
    max_prompt_tokens: int = 0
    metrics_directory = Path(tempfile.mkdtemp())


if __name__ == "__main__":
    serving.engine.SGLangEngine = FakeSGLangEngine  # type: ignore[assignment,misc]
    main()
