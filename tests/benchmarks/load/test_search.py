"""The search: which rates it tries, and what it finds."""

import math

import pytest

from benchmarks.load.search import RateFound, SearchSettings, Trial, found, next_rate
from benchmarks.load.slo import Verdict

SURE = {True: Verdict(met=True, certain=True), False: Verdict(met=False, certain=True)}
EDGE = Verdict(met=True, certain=False, near_the_edge=True)


def tried(edge_rps: float, settings: SearchSettings) -> tuple[list[float], dict[float, Trial]]:
    """Rates in order, for a server that certainly meets its SLO below `edge_rps` and certainly misses it from there on."""
    trials: dict[float, Trial] = {}
    rates: list[float] = []
    while (rate := next_rate(trials, settings)) is not None:
        rates.append(rate)
        looks = trials[rate].looks + 1 if rate in trials else 1
        trials[rate] = Trial(verdict=SURE[rate < edge_rps], looks=looks)
    return rates, trials


def test_doubles_then_halves_the_distance_then_looks_once_more() -> None:
    rates, trials = tried(11, SearchSettings(start_rps=4, max_rps=1000, resolution=1.2))
    assert rates == pytest.approx([4, 8, 16, 8 * math.sqrt(2), 8 * 2**0.25, 8 * 2**0.25])
    found_rate = found(trials)
    assert (found_rate.rate_rps, found_rate.low_rps, found_rate.high_rps) == pytest.approx(
        (8 * 2**0.25, 8 * 2**0.25, 8 * math.sqrt(2))
    )


def test_halves_down_to_a_rate_that_meets_it() -> None:
    rates, trials = tried(3, SearchSettings(start_rps=16, max_rps=1000, resolution=2))
    assert rates == [16, 8, 4, 2, 2]
    assert found(trials) == RateFound(rate_rps=2, low_rps=2, high_rps=4)


def test_ends_where_nothing_meets_it() -> None:
    rates, trials = tried(0, SearchSettings(start_rps=256, max_rps=1000, max_measurements=100))
    assert rates == [256, 128, 64, 32, 16, 8, 4, 2, 1]
    assert found(trials) == RateFound(rate_rps=None, low_rps=None, high_rps=1)


def test_ends_at_the_highest_rate_allowed() -> None:
    rates, trials = tried(math.inf, SearchSettings(start_rps=30, max_rps=100))
    assert rates == [30, 60, 100, 100]
    assert found(trials) == RateFound(rate_rps=100, low_rps=100, high_rps=None)


def test_looks_again_near_the_edge_and_no_more_often_than_allowed() -> None:
    settings = SearchSettings(start_rps=10, max_rps=1000, max_looks=3)
    trials = {10.0: Trial(verdict=EDGE, looks=1)}
    assert next_rate(trials, settings) == 10
    trials = {10.0: Trial(verdict=EDGE, looks=3)}
    assert next_rate(trials, settings) == 20


def test_a_second_look_that_misses_moves_the_edge_down() -> None:
    settings = SearchSettings(start_rps=10, max_rps=1000, resolution=1.05)
    trials = {5.0: Trial(verdict=SURE[True], looks=1), 10.0: Trial(verdict=SURE[False], looks=2)}
    assert found(trials).rate_rps == 5
    assert next_rate(trials, settings) == pytest.approx(math.sqrt(50))


def test_a_rate_above_one_that_missed_is_no_find() -> None:
    trials = {rate: Trial(verdict=SURE[met], looks=1) for rate, met in ((5.0, True), (10.0, False), (20.0, True))}
    assert found(trials) == RateFound(rate_rps=5, low_rps=5, high_rps=10)


def test_the_interval_holds_what_is_certain_alone() -> None:
    trials = {
        4.0: Trial(verdict=SURE[True], looks=1),
        5.0: Trial(verdict=Verdict(met=True, certain=False), looks=1),
        6.0: Trial(verdict=Verdict(met=False, certain=False), looks=3),
        8.0: Trial(verdict=SURE[False], looks=1),
    }
    assert found(trials) == RateFound(rate_rps=5, low_rps=4, high_rps=8)


def test_ends_after_so_many_measurements() -> None:
    rates, _ = tried(700, SearchSettings(start_rps=1, max_rps=1e6, resolution=1.0001, max_measurements=12))
    assert len(rates) == 12


@pytest.mark.parametrize(
    "wrong", [{"start_rps": 200}, {"start_rps": -1}, {"resolution": 1}, {"max_looks": 0}, {"max_rps": -5}]
)
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"rate|resolution"):
        SearchSettings(**{"max_rps": 100, **wrong})  # type: ignore[arg-type]


def test_starts_at_half_of_what_one_client_gets_unless_told() -> None:
    assert SearchSettings(max_rps=100).starting(0.02).start_rps == 25
    assert SearchSettings(max_rps=10).starting(0.02).start_rps == 10
    assert SearchSettings(max_rps=100, start_rps=3).starting(0.02).start_rps == 3
