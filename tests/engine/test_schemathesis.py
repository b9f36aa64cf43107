"""Schemathesis against a real server: requests made from our OpenAPI document, answers held to it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.served import Served, serving
from tests.launch.running import ROOT

pytestmark = pytest.mark.engine

# Prompts in Schemathesis's own text are long, a token for each byte; those over the limit cost nothing.
MAX_PROMPT_TOKENS = 2000
CASES = 5000
# Cases for each of the two routes that take a body, beside those that Schemathesis always tries.
EXAMPLES = {"negative": 1200, "positive": 800}
# Cases depend on the seed alone, not on earlier answers or runs.
CONFIG = """
[generation]
database = "none"

[phases.fuzzing]
extra-data-sources = { responses = false }
error-feedback = { enabled = false }

[checks]
ignored_auth.enabled = false               # this server has no keys
positive_data_acceptance.enabled = false   # valid_is_answered in its place

[[operations]]
include-path = "/client/v4/accounts/{account_id}/ai/run/{model_name}"
parameters = { model_name = "@cf/cloudflare/clef" }
"""


@pytest.fixture(scope="module")
def served(release: Callable[[int], Path]) -> Iterator[Served]:
    with serving(release(1), "--max-prompt-tokens", str(MAX_PROMPT_TOKENS)) as started:
        yield started


def test_no_response_is_outside_the_document(served: Served, tmp_path: Path) -> None:
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG, encoding="utf-8")
    documented = served.client.get("/openapi.json")
    (tmp_path / "openapi.json").write_bytes(documented.content)
    # Both at once: making invalid cases is work for one core, answering valid ones for another.
    running = {mode: _start(mode, count, served.url, tmp_path) for mode, count in EXAMPLES.items()}
    outputs = {mode: process.communicate()[0] for mode, process in running.items()}
    cases = answered = 0
    for mode, process in running.items():
        assert process.returncode == 0, outputs[mode]
        report = json.loads((tmp_path / f"{mode}.json").read_text(encoding="utf-8"))
        assert report["operations"]["tested"] == report["operations"]["total"] == 9
        assert (report["failures"], report["errors"], report["filtered"]) == ([], [], 0)
        cases += report["test_cases"]["generated"]
        # Counted for valid cases alone.
        answered += sum(phase["accepted"] for route in report["valid_rates"].values() for phase in route.values())
    assert cases >= CASES
    assert answered >= CASES // 10
    assert served.client.get("/readyz").status_code == 200


def _start(mode: str, count: int, url: str, folder: Path) -> "subprocess.Popen[str]":
    program = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(folder / "schemathesis.toml")]
    generated = ["--mode", mode, "--phases", "examples,coverage,fuzzing", "--max-examples", str(count), "--seed", "1"]
    told = [
        "--continue-on-failure",
        "--no-color",
        "--report",
        "json",
        "--report-json-path",
        str(folder / f"{mode}.json"),
    ]
    return subprocess.Popen(
        [*program, "run", str(folder / "openapi.json"), "--url", url, *generated, *told],
        cwd=folder,  # it leaves a folder of its own where it runs
        env={**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.engine.schemathesis_hooks"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
