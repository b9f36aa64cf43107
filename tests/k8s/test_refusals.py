"""What cannot work is refused before anything is installed, in words that name the value and the remedy."""

import argparse
import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import yaml

from launch import settings
from tests.k8s.chart import CHART, Helm
from tests.k8s.variants import PER_REPLICA

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
# Settings that the chart sets itself, from values of their own.
OWN = {
    "model",
    "revision",
    "device",
    "profile",
    "host",
    "port",
    "metrics-port",
    "insecure",
    "api-keys",
    "served-model-name",
}
# What Kubernetes defines is Kubernetes' to check; other keys a user names freely.
OPEN = {"affinity", "commonLabels", "settings", "nodeSelector", "podAnnotations", "podLabels"}


def closed_objects(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every object of values.yaml whose keys are fixed."""
    yield path
    for name, value in values.items():
        if isinstance(value, dict) and name not in OPEN | {"labels", "annotations", "requests", "limits"}:
            yield from closed_objects(value, (*path, name))


def with_typo(path: tuple[str, ...]) -> dict[str, Any]:
    typo: dict[str, Any] = {"tpyo": "x"}
    for name in reversed(path):
        typo = {name: typo}
    return typo


@pytest.mark.parametrize("path", list(closed_objects(VALUES)), ids=lambda path: ".".join(path) or "top")
def test_a_key_that_is_not_known_is_refused_at_every_level(helm: Helm, path: tuple[str, ...]) -> None:
    assert "tpyo" in helm.refusal(with_typo(path))


@pytest.mark.parametrize(
    "values",
    [
        {"topologySpread": [{"topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "tpyo": 1}]},
        {"extraEnv": [{"name": "A", "tpyo": "b"}]},
        {"modelCache": {"extraEnv": [{"name": "A", "tpyo": "b"}]}},
        {"resources": {"tpyo": {"cpu": "1"}}},
        {"affinity": {"tpyo": {}}},
    ],
    ids=["topologySpread", "extraEnv", "modelCache.extraEnv", "resources", "affinity"],
)
def test_so_is_one_inside_a_list_or_what_the_chart_adds_to(helm: Helm, values: dict[str, Any]) -> None:
    assert "tpyo" in helm.refusal(values)


def test_both_majors_refuse_by_the_schema(any_helm: Helm) -> None:
    assert "replica" in any_helm.refusal({"replica": 2})
    assert "replicas" in any_helm.refusal({"replicas": 0})


def test_the_schema_is_a_schema_and_covers_every_value() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    declared = {path: _schema_at(path)["properties"].keys() for path in closed_objects(VALUES)}
    given = {path: _values_at(path).keys() for path in declared}
    assert declared.pop(()) - given.pop(()) == {"global"}
    assert declared == given


def _schema_at(path: tuple[str, ...]) -> dict[str, Any]:
    found = SCHEMA
    for name in path:
        found = found["properties"][name]
        if "$ref" in found:
            found = SCHEMA["definitions"][found["$ref"].rsplit("/", 1)[-1]]
    return found


def _values_at(path: tuple[str, ...]) -> dict[str, Any]:
    found = VALUES
    for name in path:
        found = found[name]
    return found


def test_settings_are_those_of_the_server() -> None:
    """To bring values.schema.json up to date: python -m tests.k8s.regenerate"""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    settings.add_flags(parser)
    flags = {action.option_strings[-1].removeprefix("--") for action in parser._actions}
    assert SCHEMA["properties"]["settings"]["propertyNames"]["enum"] == sorted(flags - OWN)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no-revision": ({"model": {"revision": ""}}, "revision"),
    "a-branch-as-revision": ({"model": {"revision": "main"}}, "revision"),
    "a-short-revision": ({"model": {"revision": "0123abc"}}, "revision"),
    "no-image-version": ({"image": {"digest": ""}}, "set image.digest (or image.tag)"),
    "half-a-digest": ({"image": {"digest": "sha256:abc"}}, "digest"),
    "no-keys": ({"apiKeys": {"secretName": ""}}, "set apiKeys.secretName"),
    "keys-and-insecure": ({"apiKeys": {"insecure": True}}, "contradict"),
    "three-replicas-on-one-node's-volume": ({"replicas": 3}, "ReadWriteMany"),
    "scaling-on-one-node's-volume": ({"autoscaling": {"kind": "hpa"}}, "ReadWriteMany"),
    "a-job-for-volumes-to-come": ({"modelCache": {"mode": "perReplica"}}, "modelCache.download=initContainer"),
    "a-claim-of-a-volume-each": ({"modelCache": PER_REPLICA | {"existingClaim": "weights"}}, "mode=shared"),
    "killed-before-the-end": ({"shutdown": {"graceSeconds": 60}}, "preStopSeconds + 50 = 60, not 60"),
    "ranks-as-engine-arguments": ({"engineArgs": ["--tp-size", "2"]}, "leave --tp-size out"),
    "ranks-in-one-word": ({"gpu": {"count": 2}, "engineArgs": ["--tp=2"]}, "leave --tp=2 out"),
    "prefetch-without-a-job": (
        {"modelCache": {"prefetch": ["f" * 40], "download": "initContainer"}},
        "modelCache.download=job",
    ),
    "a-branch-to-prefetch": ({"modelCache": {"prefetch": ["main"]}}, "prefetch"),
    "two-replicas-on-a-claim-of-one-node": (
        {"replicas": 2, "modelCache": {"existingClaim": "weights"}},
        "ReadWriteMany",
    ),
    "a-timeout-without-unit": ({"httpRoute": {"requestTimeout": "300"}}, "requestTimeout"),
    "an-update-that-cannot-begin": ({"maxUnavailable": 0}, "cannot both be 0"),
    "fewer-at-most-than-at-least": ({"autoscaling": {"minReplicas": 5}}, "maxReplicas"),
    "keda-without-prometheus": (
        {"autoscaling": {"kind": "keda"}, "modelCache": PER_REPLICA},
        "autoscaling.prometheusAddress",
    ),
    "an-ingress-without-host": ({"ingress": {"enabled": True}}, "ingress.host"),
    "a-route-without-gateway": ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs"),
    "a-router-without-version": ({"router": {"enabled": True}}, "set router.image.digest (or router.image.tag)"),
    "a-setting-that-is-none": ({"settings": {"max-promt-tokens": 1}}, "max-promt-tokens"),
    "a-setting-of-the-chart": ({"settings": {"host": "127.0.0.1"}}, "host"),
    "a-key-as-setting": ({"settings": {"api-keys": "/tmp/keys"}}, "api-keys"),
    "a-label-of-the-chart": ({"commonLabels": {"app.kubernetes.io/name": "x"}}, "app.kubernetes.io/name"),
    "cpu-as-what-scales": ({"autoscaling": {"targetCPUUtilizationPercentage": 80}}, "targetCPUUtilizationPercentage"),
    "root": ({"user": {"id": 0}}, "user"),
    "a-profile-that-is-none": ({"model": {"profile": "fast"}}, "profile"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(helm: Helm, case: str) -> None:
    values, words = REFUSED[case]
    assert words in helm.refusal(copy.deepcopy(values))


def test_with_nothing_given_the_schema_says_what_is_missing(any_helm: Helm) -> None:
    assert "revision" in any_helm.refusal({}, required=False)
