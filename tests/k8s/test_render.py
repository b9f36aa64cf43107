"""The chart renders with both majors of helm, for every preset and variant, to objects that Kubernetes accepts."""

import json

import kubernetes_validate
import pytest

from tests.k8s.chart import NAMESPACE, Helm, Object, kinds
from tests.k8s.variants import VARIANTS

KUBERNETES = [f"1.{minor}" for minor in range(29, 38)]
# Of other projects; only there where they are asked for.
CUSTOM = {"HTTPRoute", "PrometheusRule", "ScaledObject", "ServiceMonitor"}
variants = pytest.mark.parametrize("variant", VARIANTS)


@variants
def test_lint_is_content(any_helm: Helm, variant: str) -> None:
    answer = any_helm.run("lint", VARIANTS[variant], "--strict")
    assert answer.error is None, answer.error
    assert "1 chart(s) linted, 0 chart(s) failed" in answer.text


@variants
def test_both_majors_render_the_same(helms: dict[int, Helm], variant: str) -> None:
    older, newer = (helms[major].objects(VARIANTS[variant]) for major in sorted(helms))
    assert older == newer


@pytest.fixture(scope="module")
def different_objects(helms: dict[int, Helm]) -> list[Object]:
    """Each object once that any variant renders."""
    rendered = (found for values in VARIANTS.values() for found in helms[max(helms)].objects(values))
    return list({json.dumps(found): found for found in rendered if found["kind"] not in CUSTOM}.values())


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_knows_every_field(different_objects: list[Object], version: str) -> None:
    for found in different_objects:
        assert kubernetes_validate.validate(found, version, strict=True) == version


@variants
def test_every_object_is_of_the_release_and_none_is_there_twice(helm: Helm, variant: str) -> None:
    objects = helm.objects(VARIANTS[variant])
    assert {found["metadata"]["namespace"] for found in objects} == {NAMESPACE}
    for found in objects:
        labels = found["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "demo"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert all(len(value) <= 63 for value in labels.values())
    assert len(set(kinds(objects))) == len(objects)


def test_a_kubernetes_that_is_too_old_is_refused_and_the_oldest_tested_is_not(any_helm: Helm) -> None:
    oldest = KUBERNETES[0]
    refused = any_helm.run("template", {}, "--kube-version", "1.28.15").error
    assert f"requires kubeVersion: >={oldest}.0-0" in (refused or "")
    assert any_helm.run("template", {}, "--kube-version", f"{oldest}.0").error is None


def test_what_is_installed_by_default(helm: Helm) -> None:
    names = [name.replace(name[-8:], "HASH") if name.startswith("Job") else name for name in kinds(helm.objects())]
    assert names == [
        "Deployment demo-clef-serving-engine",
        "Job demo-clef-serving-download-HASH",
        "NetworkPolicy demo-clef-serving-download",
        "NetworkPolicy demo-clef-serving-engine",
        "NetworkPolicy demo-clef-serving-test",
        "PersistentVolumeClaim demo-clef-serving-models",
        "Pod demo-clef-serving-test",
        "PodDisruptionBudget demo-clef-serving-engine",
        "Service demo-clef-serving",
        "Service demo-clef-serving-engine",
        "ServiceAccount demo-clef-serving",
    ]


@pytest.mark.parametrize(
    ("variant", "custom"),
    [
        ("http-route", {"HTTPRoute"}),
        ("monitoring", {"PrometheusRule", "ServiceMonitor"}),
        ("keda", {"ScaledObject"}),
        ("hpa", set()),
    ],
)
def test_objects_of_other_projects_are_there_only_where_asked_for(helm: Helm, variant: str, custom: set[str]) -> None:
    assert {found["kind"] for found in helm.objects(VARIANTS[variant])} & CUSTOM == custom


def test_long_release_names_still_make_names_that_kubernetes_takes(helm: Helm) -> None:
    objects = helm.objects(
        VARIANTS["everything"]
        | {"fullnameOverride": "a" * 63, "modelCache": {}, "replicas": 1}
        | {"autoscaling": {"kind": "none"}}
    )
    assert max(len(found["metadata"]["name"]) for found in objects) <= 63
