"""The whole manifest of each preset as committed, so that a change of the chart is seen in review."""

from pathlib import Path

import pytest

from tests.k8s.chart import GOLDEN, PRESETS, Helm
from tests.k8s.regenerate import golden_text


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_renders_as_committed(helm: Helm, path: Path) -> None:
    """After a change that is meant: python -m tests.k8s.regenerate"""
    assert golden_text(helm, path) == (GOLDEN / path.name).read_text(encoding="utf-8")


def test_there_is_a_golden_manifest_for_each_preset_and_no_other() -> None:
    names = [path.name for path in PRESETS]
    assert names == ["clef-b300.yaml", "clef-flash-b200.yaml", "clef-flash-h200.yaml", "clef-h200.yaml"]
    assert sorted(path.name for path in GOLDEN.iterdir()) == names
