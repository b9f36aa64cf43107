"""Promises: what they mean, and samples held to them."""

import math
from pathlib import Path

import pytest

from benchmarks.load.samples import Sample, Samples
from benchmarks.load.slo import Verdict, Watch, parse_slo, read_slo, verdict_of


def samples(latencies_s: list[float], kinds: list[str] | None = None) -> Samples:
    return Samples(
        [
            Sample(
                slice_number=0,
                due_s=float(number),
                started_s=float(number),
                done_s=number + (0 if math.isinf(latency) else latency),
                outcome="status 503" if math.isinf(latency) else "answered",
                kind="cold" if kinds is None else kinds[number],
            )
            for number, latency in enumerate(latencies_s)
        ]
    )


@pytest.mark.parametrize(
    ("text", "kind", "limit_s", "allowed", "strictly"),
    [
        ("p99<200ms", None, 0.2, 0.01, True),
        ("p99.9 <= 1.5s", None, 1.5, 0.001, False),
        ("p50<900us", None, 0.0009, 0.5, True),
        ("errors<0.1%", None, None, 0.001, True),
        ("errors<=0%", None, None, 0, False),
        ("cold.p95<2s", "cold", 2, 0.05, True),
    ],
)
def test_terms(text: str, kind: str | None, limit_s: float | None, allowed: float, strictly: bool) -> None:
    (term,) = parse_slo(text).terms
    assert (term.kind, term.limit_s, term.strictly) == (kind, limit_s, strictly)
    assert term.allowed == pytest.approx(allowed, abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "p99",
        "p99<200",
        "p99>200ms",
        "p100<1s",
        "p0<1s",
        "p99<0ms",
        "p99<5%",
        "errors<5ms",
        "errors<100%",
        "warm.p99<1s",
        "x",
    ],
)
def test_what_is_no_promise_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"SLO|percent|none of"):
        parse_slo(text)


def test_a_percentile_is_met_exactly_at_its_rank() -> None:
    slo = parse_slo("p90<100ms")
    (met,) = slo.judge(samples([0.05] * 9 + [0.2]), 0.95)
    (missed,) = slo.judge(samples([0.05] * 8 + [0.2] * 2), 0.95)
    assert (met.met, met.misses, missed.met, missed.misses) == (True, 1, False, 2)


def test_less_than_is_strict() -> None:
    (strict,) = parse_slo("p50<125ms").judge(samples([0.125] * 4), 0.95)
    (other,) = parse_slo("p50<=125ms").judge(samples([0.125] * 4), 0.95)
    assert (strict.met, other.met) == (False, True)


def test_a_request_without_an_answer_misses_every_promise() -> None:
    slo = parse_slo("p50<1s,errors<10%")
    latency, errors = slo.judge(samples([0.1] * 4 + [math.inf] * 6), 0.95)
    assert (latency.met, latency.misses, errors.met, errors.misses) == (False, 6, False, 6)


def test_each_kind_is_held_to_its_own_promise() -> None:
    slo = parse_slo("cold.p50<1s,prefix.p50<100ms,repeated.p50<1s")
    kinds = ["cold", "prefix"] * 10
    cold, prefix, repeated = slo.judge(samples([0.5, 0.2] * 10, kinds), 0.95)
    assert (cold.met, cold.requests, prefix.met, prefix.requests) == (True, 10, False, 10)
    assert (repeated.met, repeated.certain, repeated.requests) == (False, False, 0)


@pytest.mark.parametrize(
    ("count", "late", "verdict"),
    [
        (367, 0, Verdict(met=True, certain=False)),
        (368, 0, Verdict(met=True, certain=True)),  # 1 - 0.025 ** (1 / n) is at most 1% from here on
        (400, 1, Verdict(met=True, certain=False, near_the_edge=True)),
        (400, 8, Verdict(met=False, certain=False, near_the_edge=True)),
        (400, 20, Verdict(met=False, certain=True)),
    ],
)
def test_what_is_certain_and_what_more_requests_may_tell(count: int, late: int, verdict: Verdict) -> None:
    latencies = [0.1] * count
    for number in range(late):
        latencies[number * count // late] = 0.9
    results = parse_slo("p99<200ms").judge(samples(latencies), 0.95)
    assert verdict_of(results) == verdict


def test_one_certain_miss_is_enough() -> None:
    results = parse_slo("p50<200ms,p99<200ms").judge(samples([0.1] * 50 + [0.9] * 50), 0.95)
    assert verdict_of(results) == Verdict(met=False, certain=True)


def test_a_watch_knows_when_it_is_lost_and_not_before() -> None:
    """Of 100 requests of which 10% miss, 17 or more miss in 2.1% of cases, and 16 or more in 4.0%: 17 are too many for 2.5%."""

    def at_least(misses: int) -> float:
        return sum(math.comb(100, k) * 0.1**k * 0.9 ** (100 - k) for k in range(misses, 101))

    assert at_least(17) < 0.025 < at_least(16)
    watch = Watch(parse_slo("p90<100ms"), 100, 0.95)
    for _ in range(15):
        watch.add(0.2)
        watch.add(0.05)
    watch.add(math.inf)
    assert not watch.lost
    watch.add(0.2)
    assert watch.lost


def test_slo_files(tmp_path: Path) -> None:
    file = tmp_path / "slo.toml"
    file.write_text('description = "x"\nslo = ["p99<200ms", "errors<1%"]\n')
    assert read_slo(file) == parse_slo("p99<200ms,errors<1%")
    for wrong in ('slo = "p99<200ms"', 'slo = ["p99<200ms"]\np50 = 3', "slo = [", "slo = []"):
        file.write_text(wrong)
        with pytest.raises(ValueError, match=r"slo|SLO"):
            read_slo(file)
    with pytest.raises(ValueError, match=r"missing\.toml"):
        read_slo(tmp_path / "missing.toml")


def test_the_slo_that_comes_with_the_harness_is_one() -> None:
    import benchmarks.load

    folder = Path(benchmarks.load.__file__).parent / "slos"
    assert [file.name for file in folder.iterdir()] == ["interactive.toml"]
    assert read_slo(folder / "interactive.toml").tightest_s == 0.1
