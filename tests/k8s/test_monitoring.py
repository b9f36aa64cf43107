"""Alerts fire when they should, and alerts, dashboard and autoscaling read figures that the server really has."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving import engine_metrics
from serving.metrics import Metrics
from tests.k8s.chart import CHART, NAME, Helm, pick
from tests.k8s.variants import VARIANTS

ALERTS = Path(__file__).parent / "alerts.yaml"
# Prometheus' own, about what it scrapes.
PROMETHEUS = {"up"}
FUNCTIONS = {"sum", "max", "by", "rate", "vector", "or", "histogram_quantile", "ignoring", "group_left", "label_values"}
LABELS = {"use", "phase", "outcome", "stage", "pod", "reason", "kind", "type", "key", "le"}


@pytest.fixture
def monitoring(helm: Helm) -> list[dict[str, Any]]:
    return helm.objects(VARIANTS["monitoring"])


def promtool(folder: Path, *arguments: str) -> str:
    """What it says; the test is skipped where it is not installed."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool (Debian package prometheus) is not on PATH")
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def expressions(rules: dict[str, Any]) -> list[str]:
    return [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def names_in(expression: str) -> set[str]:
    """The series that an expression reads."""
    bare = re.sub(r'"[^"]*"|\[[^]]*\]|\{[^}]*\}', "", expression)
    return set(re.findall(r"[a-z_][a-z_0-9]*", bare)) - FUNCTIONS - LABELS


def known_names() -> set[str]:
    """Every series that the server's page can hold."""
    metrics = Metrics(served_model_name="clef")
    families = list(metrics.registry.collect())
    names = {family.name + "_total" for family in families if family.type == "counter"}
    names |= {family.name for family in families if family.type == "gauge"}
    for family in families:
        if family.type == "histogram":
            names |= {family.name + suffix for suffix in ("_bucket", "_sum", "_count")}
    # Made only in a running server: its gauges, and the engine's figures.
    names |= {"clef_build_info", "clef_lifecycle_phase"}
    names |= {f"clef_{what}_{unit}" for what in ("queue", "running") for unit in ("requests", "tokens")}
    names |= {"clef_schema_cache_entries", "clef_schema_cache_tokens"}
    names |= set(engine_metrics.POOLS) | {ours + "_total" for ours, _ in engine_metrics.EVICTIONS.values()}
    return names | {f"sglang_{name}" for name in engine_metrics.KEPT}


def test_alerts_fire_when_they_should(tmp_path: Path, monitoring: list[dict[str, Any]]) -> None:
    rules = pick(monitoring, "PrometheusRule")["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    shutil.copy(ALERTS, tmp_path / "alerts.yaml")
    assert f"{len(expressions(rules))} rules found" in promtool(tmp_path, "check", "rules", "rules.yaml")
    assert "SUCCESS" in promtool(tmp_path, "test", "rules", "alerts.yaml")


def test_every_alert_is_seen_firing_and_silent(monitoring: list[dict[str, Any]]) -> None:
    rules = pick(monitoring, "PrometheusRule")["spec"]
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    checks = [
        check
        for played in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["tests"]
        for check in played["alert_rule_test"]
    ]
    assert {check["alertname"] for check in checks if check["exp_alerts"]} == names
    assert {check["alertname"] for check in checks if not check["exp_alerts"]} == names


def test_limits_of_alerts_follow_the_values(helm: Helm) -> None:
    rules = {"enabled": True, "p99Seconds": 0.25, "queueRequests": 7, "refusedShare": 0.5, "failedShare": 0.125}
    found = pick(helm.objects({"metrics": {"rules": rules}}), "PrometheusRule")["spec"]
    text = " ".join(expressions(found))
    assert all(limit in text for limit in ("> 0.25", "> 7", "> 0.5 *", "> 0.125 *"))


def test_alerts_read_figures_that_exist(monitoring: list[dict[str, Any]]) -> None:
    for expression in expressions(pick(monitoring, "PrometheusRule")["spec"]):
        assert names_in(expression) <= known_names() | PROMETHEUS, expression


def test_outcomes_and_routes_in_alerts_exist(monitoring: list[dict[str, Any]]) -> None:
    from serving.metrics import REFUSALS

    text = " ".join(expressions(pick(monitoring, "PrometheusRule")["spec"]))
    for reasons in re.findall(r'(?:reason=~|outcome!~)"([^"]*)"', text):
        assert set(reasons.split("|")) <= set(REFUSALS)
    assert set(re.findall(r'route="([^"]*)"', text)) == {"/v1/systemone"}


def test_what_scales_exists() -> None:
    assert {"clef_queue_requests", "clef_running_tokens"} <= known_names()


def test_the_service_monitor_reads_the_metrics_port_of_the_engines(monitoring: list[dict[str, Any]]) -> None:
    spec = pick(monitoring, "ServiceMonitor")["spec"]
    services = [
        found["metadata"]["name"]
        for found in monitoring
        if found["kind"] == "Service" and spec["selector"]["matchLabels"].items() <= found["metadata"]["labels"].items()
    ]
    assert services == [f"{NAME}-engine"]
    assert spec["endpoints"] == [{"port": "metrics", "path": "/metrics", "interval": "15s"}]


def test_the_dashboard_reads_figures_that_exist() -> None:
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels:
        for target in panel["targets"]:
            assert names_in(target["expr"]) <= known_names(), target["expr"]
            selectors = re.findall(r"\{([^}]*)\}", target["expr"])
            assert all(s.startswith('namespace="$namespace",job="$job"') for s in selectors), target["expr"]
    for variable in dashboard["templating"]["list"][1:]:
        assert "clef_build_info" in variable["query"]["query"]


def test_the_dashboards_expressions_are_promql(tmp_path: Path) -> None:
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    rules = [
        {"record": f"panel_{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(found)
    ]
    document = {"groups": [{"name": "dashboard", "rules": rules}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    assert f"{len(rules)} rules found" in promtool(tmp_path, "check", "rules", "rules.yaml")


def test_the_config_map_holds_the_dashboard_as_it_is(monitoring: list[dict[str, Any]]) -> None:
    found = pick(monitoring, "ConfigMap")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))
    assert json.loads(found["data"][f"{NAME}.json"]) == dashboard
