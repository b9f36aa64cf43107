"""How the state benchmark counts: kept states, cold and cached differences."""

import math

from benchmarks._sides import Answer
from benchmarks.state_precision import STATE_TOKENS, VARIANTS, compare


def answer(probability: float, cached_tokens: int = 0) -> Answer:
    """One question with two options."""
    logits = [[math.log(probability), math.log(1 - probability)]]
    return Answer(logits=logits, prompt_tokens=100, cached_tokens=cached_tokens, seconds=1.0)


def test_only_answers_from_the_cache_count_as_cached() -> None:
    expected = [[answer(0.5), answer(0.5)] for _ in range(3)]
    found = [
        [answer(0.5), answer(0.6)],
        [answer(0.52, cached_tokens=64), answer(0.9)],
        [answer(0.54, cached_tokens=64), answer(0.5, cached_tokens=64)],
    ]
    outcome = compare(expected, found)
    assert (outcome.kept_states, outcome.cached_answers) == (1, 3)
    assert math.isclose(outcome.cold_max_abs_dp, 0.1)
    assert math.isclose(outcome.cached_max_abs_dp, 0.04)
    assert math.isclose(outcome.cached_mean_abs_dp, (2 * 0.02 + 2 * 0.04) / 6)


def test_no_cached_answer_is_no_difference() -> None:
    rounds = [[answer(0.5)], [answer(0.7)]]
    outcome = compare([[answer(0.5)], [answer(0.5)]], rounds)
    assert (outcome.kept_states, outcome.cached_answers, outcome.cached_max_abs_dp) == (0, 0, 0.0)


def test_every_variant_but_one_has_a_cap_and_all_name_the_type_of_states() -> None:
    assert [name for name, arguments in VARIANTS.items() if "--mamba-max-states-per-path" not in arguments] == [
        "FP32, no cap on a path"
    ]
    assert all("--mamba-ssm-dtype" in arguments for arguments in VARIANTS.values())
    assert len(STATE_TOKENS) > 1
