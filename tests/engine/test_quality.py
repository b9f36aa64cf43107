"""clef-mini decides as well on every path of computation: cold, cached, in chunks, in a batch, on two ranks, in FP32.

The other tests hold a path to the reference, over random weights. This one holds decisions to labels, so that a change that
makes answers worse is noticed, and not only one that makes them different. After clef-mini was trained again, the baseline is
made anew of `clef-serve up --dtype float32`:

    python -m launch.mini records --count 200 --out records.jsonl
    python -m benchmarks.quality --url URL --data records.jsonl --group-by id --write-baseline tests/engine/mini_baseline.json
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.quality.asking import ask, find_server
from benchmarks.quality.baseline import TOLERANCES, behind, read_baseline
from benchmarks.quality.compare import compare, what_differs
from benchmarks.quality.decisions import Decision
from benchmarks.quality.measuring import Rules, measure
from benchmarks.quality.records import Record, asked_sha256, read_records
from launch.checkpoint_source import MINI_DIRECTORY
from launch.mini.__main__ import main as write_records
from tests import tolerances
from tests.engine.served import GRID, Served, serving

pytestmark = pytest.mark.engine
RECORDS = 200
BASELINE = Path(__file__).with_name("mini_baseline.json")
NEAR_TIE = 0.01
CHUNK = 2 * GRID
RULES = Rules(drawings=2)  # intervals are not looked at


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Record]:
    file = tmp_path_factory.mktemp("quality") / "records.jsonl"
    assert write_records(["records", "--count", str(RECORDS), "--out", str(file)]) == 0
    return read_records(file, group_by="id").records


def decide(served: Served, records: Sequence[Record], *, salt: str, together: int = 1) -> Sequence[Decision]:
    asked = ask(records, find_server(served.url), concurrency=together, extra={"cache_salt": salt})
    assert not asked.failures
    return asked.decisions


def cached_tokens(served: Served) -> float:
    page = served.client.get("/metrics").text
    (value,) = [line.split()[-1] for line in page.splitlines() if line.startswith('clef_tokens_total{kind="cached"')]
    return float(value)


@pytest.fixture(scope="module")
def paths(records: Sequence[Record]) -> dict[str, Sequence[Decision]]:
    """The answers to all records by path."""
    found = {}
    with serving(MINI_DIRECTORY) as served:
        found["cold"] = decide(served, records, salt="one")
        assert cached_tokens(served) == 0
        found["cached"] = decide(served, records, salt="one")
        # Of each prompt 64 tokens or a multiple, but of those whose state ends before.
        assert cached_tokens(served) > GRID * len(records) * 3 / 4
        found["batched"] = decide(served, records, salt="another", together=32)
    with serving(MINI_DIRECTORY, "--", "--chunked-prefill-size", str(CHUNK)) as served:
        found["chunked"] = decide(served, records, salt="one")
    first, second = sorted(os.sched_getaffinity(0))[:2]
    environ = {"SGLANG_CPU_OMP_THREADS_BIND": f"{first}|{second}"}
    with serving(MINI_DIRECTORY, "--", "--tp-size", "2", environ=environ) as served:
        found["two ranks"] = decide(served, records, salt="one", together=8)
    return found


def test_every_path_gives_the_same_top_options(paths: dict[str, Sequence[Decision]]) -> None:
    assert what_differs(paths, margin=NEAR_TIE) == []


def test_no_probability_differs_beyond_its_tolerance(paths: dict[str, Sequence[Decision]]) -> None:
    for path, decisions in paths.items():
        allowed = tolerances.FP32_TENSOR_PARALLEL if path == "two ranks" else tolerances.FP32
        assert compare(paths["cold"], decisions).max_abs_dp <= allowed, path


@pytest.mark.parametrize("path", ["cold", "cached", "batched", "chunked", "two ranks"])
def test_no_figure_is_behind_the_baseline(
    paths: dict[str, Sequence[Decision]], records: Sequence[Record], path: str
) -> None:
    baseline = read_baseline(BASELINE, asked_sha256=asked_sha256(records), rules=RULES)
    assert behind(baseline, measure(paths[path], RULES), TOLERANCES) == []


def test_worse_answers_would_be_noticed(paths: dict[str, Sequence[Decision]], records: Sequence[Record]) -> None:
    """Otherwise the test above would show nothing: every tenth decision made by the least probable option."""
    worse = [
        Decision(**{**vars(one), "probabilities": one.probabilities[::-1]}) if number % 10 == 0 else one
        for number, one in enumerate(paths["cold"])
    ]
    baseline = read_baseline(BASELINE, asked_sha256=asked_sha256(records), rules=RULES)
    assert any(line.startswith("accuracy is") for line in behind(baseline, measure(worse, RULES), TOLERANCES))
    assert what_differs({"cold": paths["cold"], "worse": worse}, margin=NEAR_TIE) != []
