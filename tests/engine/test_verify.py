"""`clef-serve verify` on the real engine in FP32: the random release passes, and a spoilt reference does not."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clef_finetune.jsm import VENDORED_PATH

from benchmarks.random_release import build_random_release
from launch.verify.command import add_verify_arguments, verify_command
from launch.verify.records import RECORDS
from tests import tolerances
from tests.engine.served import Served, serving

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def demonstration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_release(tmp_path_factory.mktemp("verify") / "demo")


@pytest.fixture(scope="module")
def served(demonstration: Path) -> Iterator[Served]:
    with serving(demonstration) as served:
        yield served


def verify(served: Served, release: Path, reference: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    parser = argparse.ArgumentParser()
    add_verify_arguments(parser)
    arguments = ["--url", served.url, "--model", str(release), "--reference", str(reference)]
    status = verify_command(parser.parse_args([*arguments, "--tolerance", str(tolerances.FP32)]), lambda line: None)
    return status, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_server_says_what_the_reference_says(
    served: Served, demonstration: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = verify(served, demonstration, VENDORED_PATH, capsys)
    assert found["not_compared"] == {}
    assert found["records"] == len(RECORDS) + 2
    assert found["other_prompt_tokens"] == []
    assert found["max_abs_dp"] <= tolerances.FP32
    assert (status, found["tolerance_that_holds"]) == (0, "FP32")


def test_a_reference_whose_head_differs_is_noticed(
    served: Served, demonstration: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(VENDORED_PATH).read_text(encoding="utf-8")
    assert source.count("clamp(max=math.log(100.0)).exp()") == 2
    doctored = tmp_path / "doctored.py"
    doctored.write_text(source.replace("clamp(max=math.log(100.0)).exp()", "clamp(max=math.log(100.0)).exp() * 1.01"))
    status, found = verify(served, demonstration, doctored, capsys)
    assert found["max_abs_dp"] > 10 * tolerances.FP32
    assert (status, found["passed"]) == (1, False)
