"""`clef-serve` with the real SGLang engine on the CPU, as a person runs it: `demo` from start to stop; a killed scheduler."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import psutil
import pytest

from launch.demo_records import RECORDS
from tests.launch.mini_checks import LABELS
from tests.launch.running import ROOT, alive, running

pytestmark = pytest.mark.engine

START_TIMEOUT_S = 300
# Routes of SGLang's own server that change or reveal something. `/health` and `/server_info` are our own, for routers.
SGLANG_ROUTES = (
    "/generate",
    "/flush_cache",
    "/get_server_info",
    "/start_profile",
    "/v1/embeddings",
)


def test_the_demonstration_answers_both_records_rightly_and_leaves_nothing_running() -> None:
    command = [sys.executable, "-m", "launch", "demo", "--device", "cpu", "--max-prompt-tokens", "4096"]
    before = psutil.Process().children(recursive=True)
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=START_TIMEOUT_S)
    assert ended.returncode == 0, ended.stderr
    assert "clef-mini is for trying the server" in ended.stderr
    answers = json.loads(ended.stdout.splitlines()[-1])
    assert list(answers) == ["invoice", "alert"]
    for name, record in RECORDS.items():
        assert answers[name]["answers"].keys() == record["questions"].keys()
        assert answers[name]["model"] == "clef-mini"
        for question, answer in answers[name]["answers"].items():
            assert probability_of(answer, LABELS[name][question]) > 0.6, (question, answer)
    assert set(psutil.Process().children(recursive=True)) <= set(before)


def probability_of(answer: dict[str, Any], label: bool | str | int) -> float:
    """What an answer says of an option, as clef-finetune writes it."""
    probability: float = answer["noul"] if label is True else answer["probabilities"][str(label)]
    return probability


def test_a_killed_scheduler_ends_the_server_within_10_seconds() -> None:
    with running("launch", "up", "--device", "cpu", "--port", "0", "--max-prompt-tokens", "4096") as server:
        url = server.wait_for(r"clef-serve is ready at (http://\S+)", START_TIMEOUT_S)[1]
        command = server.wait_for("^curl ", 5).string
        answered = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=True)
        assert json.loads(answered.stdout)["answers"].keys() == {"page", "team"}
        for route in SGLANG_ROUTES:
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{url}{route}", timeout=10)
            assert refused.value.code == 404, route

        tree = server.tree()
        (scheduler,) = [process for process in tree if "scheduler" in " ".join(process.cmdline())]
        killed = time.monotonic()
        scheduler.kill()
        assert server.end(12) == 1
        assert time.monotonic() - killed < 10
        expected = f"clef-serve: the engine's scheduler process (pid {scheduler.pid}) ended with exit code -9"
        assert server.lines[-1] == expected
        assert alive(tree) == []
