"""A file of figures that later answers must not fall behind. Knows what is better of each metric, and nothing of how it came.

    {"asked_sha256": "...", "target_precision": 0.99, "bins": 10, "scopes": {"overall": {"accuracy": 0.93, "ece": 0.04}}}

Whatever scopes and metrics it names are held to it, so that it can be cut down or written by hand. The other keys are optional;
where they stand, they must be the same again.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.quality.measuring import OVERALL, Rules, Scope
from benchmarks.quality.sample import METRICS

# How much worse still passes: shares of 1, nats for `log_loss`, levels for `score_mae_levels`.
TOLERANCES: Mapping[str, float] = {
    "accuracy": 0.01,
    "macro_f1": 0.02,
    "brier": 0.01,
    "log_loss": 0.02,
    "ece": 0.02,
    "ece_equal_mass": 0.02,
    "score_mae_levels": 0.05,
    "coverage": 0.05,
}
# A decimal written by hand is not exactly the double that a division gives.
_ROUNDING = 1e-9


class BaselineError(ValueError):
    """The file cannot be used; the message says why."""


def write_baseline(path: Path, scopes: Mapping[str, Scope], *, asked_sha256: str, rules: Rules) -> None:
    """Keep the figures that rounding moves little: of all scopes but single questions, and not `ece_equal_mass`, whose bins
    have their edges in the midst of the answers.

    Raises:
        BaselineError: the file cannot be written.
    """
    content = {
        "asked_sha256": asked_sha256,
        "target_precision": rules.target_precision,
        "bins": rules.bins,
        "scopes": {
            name: {metric: figure.value for metric, figure in scope.figures.items() if metric != "ece_equal_mass"}
            for name, scope in scopes.items()
            if not name.startswith("question:")
        },
    }
    try:
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as err:
        raise BaselineError(f"{path} cannot be written: {err.strerror}") from err


def read_baseline(path: Path, *, asked_sha256: str, rules: Rules) -> Mapping[str, Mapping[str, float]]:
    """Its figures, by scope and metric.

    Raises:
        BaselineError: it cannot be read, is no baseline, or was made from other questions or by other rules.
    """
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise BaselineError(f"{path} cannot be read: {err}") from err
    scopes = read.get("scopes") if isinstance(read, dict) else None
    if not isinstance(scopes, dict) or not scopes:
        raise BaselineError(f"{path} is no baseline: it has no scopes")
    now: dict[str, Any] = {"asked_sha256": asked_sha256, "target_precision": rules.target_precision, "bins": rules.bins}
    for key, value in now.items():
        if read.get(key, value) != value:
            raise BaselineError(f"{path} does not fit: its {key} is {read[key]}, now it is {value}")
    for name, figures in scopes.items():
        if not isinstance(figures, dict):
            raise BaselineError(f"{path} is no baseline: scopes.{name} must be an object")
        for metric, value in figures.items():
            if metric not in METRICS:
                raise BaselineError(f"{path}: {metric} of {name} is no metric; these are: {', '.join(METRICS)}")
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise BaselineError(f"{path}: {metric} of {name} must be a number")
    return scopes


def behind(
    baseline: Mapping[str, Mapping[str, float]], scopes: Mapping[str, Scope], tolerances: Mapping[str, float]
) -> list[str]:
    """A line for each figure that is worse than the baseline's by more than its tolerance, or was not measured."""
    lines = []
    for name, figures in baseline.items():
        for metric, old in figures.items():
            said = metric if name == OVERALL else f"{metric} of {name}"
            if name not in scopes or metric not in scopes[name].figures:
                lines.append(f"{said} was not measured; the baseline has it")
                continue
            new = scopes[name].figures[metric].value
            worse = old - new if METRICS[metric] else new - old
            if worse > tolerances[metric] + _ROUNDING:
                lines.append(f"{said} is {new:.4f}; the baseline is {old:.4f}, its tolerance {tolerances[metric]:g}")
    return lines
