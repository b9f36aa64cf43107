"""The chart's README tells the truth about values, presets and files."""

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import yaml

from serving.settings import ServingSettings
from tests.k8s.chart import CHART, PRESETS, ROOT
from tests.k8s.test_refusals import OPEN

README = (CHART / "README.md").read_text(encoding="utf-8")
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


def leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every value that is no closed object, by its dotted path."""
    for name, value in values.items():
        if isinstance(value, dict) and name not in OPEN | {"labels", "annotations", "requests", "limits"}:
            yield from leaves(value, (*path, name))
        else:
            yield ".".join((*path, name)), value


def test_every_value_is_there_with_its_default_and_no_other() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| `([^`]*)` \| .+ \|$", README, flags=re.MULTILINE)
    assert {name: json.loads(default) for name, default in rows} == dict(leaves(VALUES))
    assert len(rows) == len(dict(rows))


def test_values_named_in_the_text_exist() -> None:
    text = README.split("## Values")[0]
    known = dict(leaves(VALUES)).keys()
    prefixes = {name.rsplit(".", depth)[0] for name in known for depth in (1, 2) if name.count(".") >= depth}
    tops = {re.escape(name) for name in VALUES}
    named = set(re.findall(rf"`((?:{'|'.join(tops)})(?:\.\w+)*)(?::[^`]*)?`", text))
    assert len(named) >= 10
    assert named <= known | prefixes


def test_every_preset_is_there_and_every_file_exists() -> None:
    named = set(re.findall(r"`(presets/[\w.-]+)`", README))
    assert named == {f"presets/{path.name}" for path in PRESETS}
    assert all((ROOT / name).exists() for name in re.findall(r"k8s/clef-serving/[\w./-]+\.yaml", README))


def test_limits_of_an_ingress_are_those_of_the_server() -> None:
    defaults = {field.name: field.default for field in fields(ServingSettings)}
    size, seconds = re.findall(r"proxy-body-size: (\d+)m`.*proxy-read-timeout: \"(\d+)\"`", README)[0]
    assert int(size) * 2**20 == defaults["max_wire_bytes"]
    assert int(seconds) * 1000 == defaults["request_timeout_ms"]
