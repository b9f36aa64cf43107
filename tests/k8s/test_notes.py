"""What helm prints after an installation says what to do next, and warns of what these values leave open."""

from typing import Any

import pytest

from tests.k8s.chart import NAME, NAMESPACE, RELEASE, Helm, engine, kinds
from tests.k8s.variants import PEER, VARIANTS


def notes(helm: Helm, values: dict[str, Any]) -> str:
    """Of the newer helm alone: the older one shows none without a cluster."""
    answer = helm.run("install", values, "--dry-run=client")
    assert answer.error is None, answer.error
    return answer.text.split("\nNOTES:\n")[1]


@pytest.mark.parametrize("variant", ["defaults", "three-replicas-a-volume-each", "everything"])
def test_the_next_steps_name_what_was_installed(helm: Helm, variant: str) -> None:
    values = VARIANTS[variant]
    text, objects = notes(helm, values), helm.objects(values)
    assert f"rollout status {engine(objects)['kind'].lower()}/{NAME}-engine" in text
    assert f"helm -n {NAMESPACE} test {RELEASE} --logs" in text
    assert f"port-forward svc/{NAME} 8000:80" in text
    assert "get secret clef-keys" in text
    job = [name for name in kinds(objects) if name.startswith("Job")]
    assert ("app.kubernetes.io/component=download" in text) is bool(job)


MONITORED = {"metrics": {"serviceMonitor": {"enabled": True}}}
WARNINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "apiKeys.insecure is set": (VARIANTS["insecure"], {}),
    "networkPolicy.from is empty": (VARIANTS["ingress"], VARIANTS["ingress"] | {"networkPolicy": {"from": [PEER]}}),
    "networkPolicy.metricsFrom is empty": (MONITORED, MONITORED | {"networkPolicy": {"metricsFrom": [PEER]}}),
    "may reach any host on port 443": (VARIANTS["init-container"], {}),
    "More than one replica and no router": (VARIANTS["existing-claim"], {}),
    "test.apiKey.secretName is empty": ({}, {"test": {"apiKey": {"secretName": "a-key"}}}),
    "starts from nothing": ({}, VARIANTS["three-replicas-one-volume"]),
}


@pytest.mark.parametrize("words", WARNINGS)
def test_a_warning_is_there_where_it_is_due_and_only_there(helm: Helm, words: str) -> None:
    due, not_due = WARNINGS[words]
    assert words in notes(helm, due)
    assert words not in notes(helm, not_due)
