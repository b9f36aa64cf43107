"""The gate against a baseline file: which way each metric may move, and how far."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality.baseline import TOLERANCES, BaselineError, behind, read_baseline, write_baseline
from benchmarks.quality.decisions import Decision
from benchmarks.quality.measuring import Rules, Scope, measure
from benchmarks.quality.sample import METRICS

RULES = Rules(drawings=10)


@pytest.fixture(scope="module")
def scopes() -> dict[str, Scope]:
    """Of ten answers with a confidence of 0.9, nine are right."""
    decisions = [
        Decision(
            record=record,
            record_name=str(record),
            question="level",
            question_type="score",
            options=("0", "1"),
            probabilities=(0.9, 0.1),
            label=int(record == 0),
            group="seen",
        )
        for record in range(10)
    ]
    return measure(decisions, RULES)


def test_what_is_written_holds(tmp_path: Path, scopes: dict[str, Scope]) -> None:
    write_baseline(tmp_path / "b.json", scopes, asked_sha256="abc", rules=RULES)
    baseline = read_baseline(tmp_path / "b.json", asked_sha256="abc", rules=RULES)
    assert list(baseline) == ["overall", "type:score", "group:seen", "group:seen/type:score"]
    assert list(baseline["overall"]) == [metric for metric in METRICS if metric != "ece_equal_mass"]
    assert behind(baseline, scopes, dict.fromkeys(METRICS, 0.0)) == []


@pytest.mark.parametrize("metric", METRICS)
def test_each_metric_has_a_better_side_and_a_tolerance(scopes: dict[str, Scope], metric: str) -> None:
    now, tolerance = scopes["overall"].figures[metric].value, TOLERANCES[metric]
    sign = 1 if metric in ("accuracy", "macro_f1", "coverage") else -1
    far_better, just_passes, too_far = now - sign * 10, now + sign * tolerance, now + sign * (tolerance + 1e-6)
    said = f"{metric} is {now:.4f}; the baseline is {too_far:.4f}, its tolerance {tolerance:g}"
    assert behind({"overall": {metric: far_better}}, scopes, TOLERANCES) == []
    assert behind({"overall": {metric: just_passes}}, scopes, TOLERANCES) == []
    assert behind({"overall": {metric: too_far}}, scopes, TOLERANCES) == [said]


def test_a_decimal_at_the_edge_passes(scopes: dict[str, Scope]) -> None:
    assert behind({"overall": {"accuracy": 0.91}}, scopes, TOLERANCES) == []


def test_what_is_behind_is_named_with_its_scope(scopes: dict[str, Scope]) -> None:
    baseline = {"question:level": {"accuracy": 1.0}, "group:unseen": {"ece": 0.1}}
    assert behind(baseline, scopes, TOLERANCES) == [
        "accuracy of question:level is 0.9000; the baseline is 1.0000, its tolerance 0.01",
        "ece of group:unseen was not measured; the baseline has it",
    ]


def test_an_infinite_tolerance_holds_a_metric_to_nothing(scopes: dict[str, Scope]) -> None:
    assert behind({"overall": {"accuracy": 5.0}}, scopes, {**TOLERANCES, "accuracy": float("inf")}) == []


def test_a_baseline_by_hand_needs_scopes_alone(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text('{"scopes": {"overall": {"accuracy": 1}}}')
    assert read_baseline(tmp_path / "b.json", asked_sha256="abc", rules=RULES) == {"overall": {"accuracy": 1}}


GOOD = {"scopes": {"overall": {"accuracy": 0.9}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("{", "cannot be read", id="no-json"),
        pytest.param([], "it has no scopes", id="list"),
        pytest.param({"scopes": {}}, "it has no scopes", id="no-scopes"),
        pytest.param({"scopes": {"overall": 1}}, "scopes.overall must be an object", id="scope-number"),
        pytest.param({"scopes": {"overall": {"acuracy": 1}}}, "acuracy of overall is no metric", id="metric"),
        pytest.param({"scopes": {"overall": {"ece": "1"}}}, "ece of overall must be a number", id="text"),
        pytest.param(GOOD | {"asked_sha256": "def"}, "its asked_sha256 is def, now it is abc", id="other-data"),
        pytest.param(GOOD | {"bins": 15}, "its bins is 15, now it is 10", id="other-bins"),
        pytest.param(
            GOOD | {"target_precision": 0.9}, "its target_precision is 0.9, now it is 0.99", id="other-target"
        ),
    ],
)
def test_a_file_that_is_no_baseline_of_this_is_an_error(tmp_path: Path, content: Any, message: str) -> None:
    file = tmp_path / "b.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(BaselineError, match=message):
        read_baseline(file, asked_sha256="abc", rules=RULES)


def test_a_file_that_is_not_there_and_one_that_cannot_be_written_are_errors(
    tmp_path: Path, scopes: dict[str, Scope]
) -> None:
    with pytest.raises(BaselineError, match="cannot be read"):
        read_baseline(tmp_path / "b.json", asked_sha256="abc", rules=RULES)
    with pytest.raises(BaselineError, match="cannot be written"):
        write_baseline(tmp_path / "none" / "b.json", scopes, asked_sha256="abc", rules=RULES)
