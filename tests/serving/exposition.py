"""Reads a page of metrics, and says what is wrong with its names as `promtool check metrics` would."""

import re
import shutil
import subprocess
import warnings
from collections.abc import Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]

# Of promtool's own tables, what a page of ours could come to hold (prometheus/util/promlint).
NOT_BASE_UNITS = {
    "milliseconds",
    "microseconds",
    "nanoseconds",
    "minutes",
    "hours",
    "days",
    "bits",
    "kilobytes",
    "percent",
}
ABBREVIATED = {"s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d"}
TYPES = {"counter", "gauge", "histogram", "summary"}


def families(page: bytes, content_type: str) -> list[Metric]:
    """The page's families, by a parser as strict as the format is."""
    parse = open_metrics if content_type.startswith("application/openmetrics-text") else plain_text
    return list(parse(page.decode()))


def series(page: bytes) -> Series:
    """Each value of a text page by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in plain_text(page.decode())
        for sample in family.samples
    }


def monotone(page: bytes) -> Series:
    """Of a text page the values that may never decrease."""
    names = {family.name for family in plain_text(page.decode()) if family.type in ("counter", "histogram")}
    found = series(page)
    return {key: value for key, value in found.items() if re.sub("_(total|bucket|count|sum)$", "", key[0]) in names}


def faults(page: bytes) -> list[str]:
    """What is wrong with a text page: by our own reading of the rules and, where it is installed, by promtool."""
    found = list(_faults(plain_text(page.decode())))
    promtool = shutil.which("promtool")
    if promtool is None:
        warnings.warn(
            "promtool (Debian package prometheus) is not on PATH: only our own rules were checked", stacklevel=2
        )
        return found
    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True)
    return found + checked.stderr.decode().splitlines() + ([] if checked.returncode == 0 else ["promtool failed"])


def _faults(found: Iterable[Metric]) -> Iterator[str]:
    for family in found:
        if family.type == "unknown":
            yield f"{family.name} has no type"
        if not family.documentation:
            yield f"{family.name} has no help"
        names = {family.name, *(sample.name for sample in family.samples)}
        for name in names:
            if not re.fullmatch("[a-z][a-z0-9_]*", name):
                yield f"{name} is not in snake case"
        parts = set(family.name.split("_"))
        for wrong in parts & (NOT_BASE_UNITS | ABBREVIATED | TYPES):
            yield f"{family.name} should not say {wrong}"
        if family.type == "counter" and not all(name.endswith("_total") for name in names - {family.name}):
            yield f"{family.name} is a counter without _total"
        if family.type == "gauge" and re.search("_(total|count|sum|bucket)$", family.name):
            yield f"{family.name} is a gauge by another type's name"
        labels = {label for sample in family.samples for label in sample.labels}
        if "le" in labels and family.type != "histogram":
            yield f"{family.name} has a label le"
