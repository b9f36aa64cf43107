"""What is made of the load harness' figures for a GPU: latency and rate beside the roofline."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.run_all import Roofline, latency, rate
from benchmarks.random_release import build_random_release
from launch.plan.gpu import gpu_named
from launch.plan.model_shape import shape_of_release
from launch.plan.roofline import bound, request_work
from launch.plan.tensors import read_tensors
from launch.plan.token_memory import token_memory


@pytest.fixture(scope="module")
def roofline(tmp_path_factory: pytest.TempPathFactory) -> Roofline:
    return Roofline(build_random_release(tmp_path_factory.mktemp("gpu") / "demo"), gpu_named("h200"), 1)


def cache(requests: int, tokens: float, share: float) -> dict[str, Any]:
    return {"requests": requests, "input_tokens_mean": tokens, "cached_token_share": share, "unexpected": 0}


def point(rate_rps: float | None) -> dict[str, Any]:
    def measured(p50_ms: float) -> dict[str, Any]:
        return {
            "requests": 40,
            "p50_ms": p50_ms,
            "p50_ms_interval": [p50_ms, p50_ms],
            "p99_ms": p50_ms,
            "p99_ms_interval": [p50_ms, None],
        }

    return {
        "offered_rps": rate_rps,
        "latency": {"all": measured(3.0), "cold": measured(4.0), "prefix": measured(2.0), "repeated": None},
        "cache": {"cold": cache(1, 5000.0, 0.0), "prefix": cache(3, 5000.0, 0.75), "repeated": None},
    }


def test_the_least_time_is_that_of_the_plan(tmp_path: Path, roofline: Roofline) -> None:
    release = build_random_release(tmp_path / "demo")
    work = request_work(
        shape_of_release(release),
        read_tensors(release),
        token_memory(shape_of_release(release), tp=1, state="float32"),
        cached_tokens=3750,
        new_tokens=1250,
    )
    expected = bound(work, gpu_named("h200"), tp=1)
    assert roofline.least_s(tokens=5000.0, cached_share=0.75) == (expected.least_s, expected.compute_s)


def test_latency_stands_beside_the_roofline_of_its_own_kind(roofline: Roofline) -> None:
    found = latency({"sides": [{"points": [point(None)]}]}, roofline)
    assert list(found) == ["cold", "prefix"]
    for kind, share, p50_ms in (("cold", 0.0, 4.0), ("prefix", 0.75, 2.0)):
        least_s, _ = roofline.least_s(tokens=5000.0, cached_share=share)
        assert found[kind]["roofline_ms"] == round(least_s * 1000, 3)
        assert found[kind]["roofline_share"] == round(least_s * 1000 / p50_ms, 4)
        assert found[kind]["p50_ms"] == p50_ms
    assert "roofline_ms" not in latency({"sides": [{"points": [point(None)]}]}, None)["cold"]


def test_a_rate_asks_for_a_share_of_the_arithmetic(roofline: Roofline) -> None:
    side = {"rate_at_slo": {"rate_rps": 1000.0}, "points": [point(500.0), point(1000.0), point(2000.0)]}
    found = rate({"slo": ["p99<200ms"], "result": "met", "sides": [side]}, roofline)
    cold, cached = (roofline.least_s(tokens=5000.0, cached_share=share)[1] for share in (0.0, 0.75))
    assert found == {
        "slo": ["p99<200ms"],
        "result": "met",
        "rate_rps": 1000.0,
        "arithmetic_share": round(1000.0 * (cold + 3 * cached) / 4, 4),
    }


def test_no_rate_is_none(roofline: Roofline) -> None:
    load = {"slo": ["p99<1ms"], "result": "not met", "sides": [{"rate_at_slo": None, "points": [point(1.0)]}]}
    assert rate(load, roofline) == {"slo": ["p99<1ms"], "result": "not met", "rate_rps": None}
