"""Alerts fire when they should, and alerts, dashboard and autoscaling read figures that the server really has."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from serving import engine_metrics
from serving.fake_engine import FakeEngine
from serving.metrics import Metrics
from tests.k8s.chart import CHART, NAME, Helm, pick
from tests.k8s.variants import VARIANTS
from tests.serving.exposition import series
from tests.serving.harness import key_ring, make_app, running_server
from tests.serving.observed import REQUEST

ALERTS = Path(__file__).parent / "alerts.yaml"
# Prometheus' own, about what it scrapes.
PROMETHEUS = {"up"}
# Labels that Prometheus adds to what it scrapes from a pod.
ADDED = {"namespace", "job", "pod", "instance"}
# Stands for SGLang's scheduler: the figures by which the engine's are known.
SCHEDULER = """
import sys
from prometheus_client import Counter, Gauge
for name in sys.argv[1:]:
    if name.endswith("_total"):
        Counter(f"sglang:{name}", "h", ["tp_rank"]).labels("0").inc()
    else:
        Gauge(f"sglang:{name}", "h", ["tp_rank"], multiprocess_mode="mostrecent").labels("0").set(1)
"""
OF_SGLANG = [*engine_metrics.SLOTS, "num_retracted_requests_total"]
# Of each series' labels the values.
Page = dict[str, dict[str, set[str]]]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """What a server's page holds once it has answered a request of a known key."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(engine_metrics.DIRECTORY_VARIABLE, str(folder))
        subprocess.run([sys.executable, "-c", SCHEDULER, *OF_SGLANG], check=True)
    metrics = Metrics(served_model_name="clef")
    metrics.add_engine(folder)
    keys = key_ring(folder / "keys.toml", {"clef-key-1": ""})
    with running_server(make_app(FakeEngine(), keys=keys, metrics=metrics)) as url:
        headers = {"authorization": "Bearer clef-key-1"}
        assert httpx.post(f"{url}/v1/systemone", json=REQUEST, headers=headers).status_code == 200
        text = httpx.get(f"{url}/metrics").text
    found: Page = {}
    for name, labels in series(text.encode()):
        for label, value in labels:
            found.setdefault(name, {}).setdefault(label, set()).add(value)
        found.setdefault(name, {})
    return found


def selectors(expression: str) -> list[tuple[str, dict[str, tuple[str, str]]]]:
    """The series that an expression reads: names, and of each label the operator and the value it must have."""
    bare = expression.replace("$__rate_interval", "5m")
    found = re.findall(r"\b([a-z_]+)\{([^}]*)\}", bare)
    return [
        (
            name,
            {label: (operator, value) for label, operator, value in re.findall(r'(\w+)(=~|!~|!=|=)"([^"]*)"', inside)},
        )
        for name, inside in found
    ]


def check_expression(expression: str, page: Page) -> None:
    """Every series, label and value that it names is one of the page, and every series is one of this deployment."""
    found = selectors(expression)
    assert found, expression
    # Nothing is read without a selector, which would be every deployment's.
    assert set(re.findall(r"\b(?:clef|sglang)_\w+", expression)) == {name for name, _ in found} - PROMETHEUS
    grouped = {label for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in re.split(r", ?", labels)}
    for name, wanted in found:
        assert name in page or name in PROMETHEUS, name
        assert {"namespace", "job"} <= wanted.keys(), expression
        labels = page.get(name, {})
        assert (wanted.keys() | grouped) <= labels.keys() | ADDED, expression
        for label, (operator, value) in wanted.items():
            if operator == "=" and label not in ADDED:
                assert value in labels[label], (name, label, value)


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


def dashboard() -> dict[str, Any]:
    loaded = json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


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


def test_alerts_read_figures_that_exist(monitoring: list[dict[str, Any]], page: Page) -> None:
    for expression in expressions(pick(monitoring, "PrometheusRule")["spec"]):
        check_expression(expression, page)


@pytest.mark.parametrize(
    "wrong",
    [
        'sum(clef_queue_request{namespace="a",job="b"})',
        'sum by (use) (clef_kv_slots{namespace="a",job="b",kind="x"})',
        'sum by (uses) (clef_kv_slots{namespace="a",job="b"})',
        'sum(clef_tokens_total{namespace="a",job="b",kind="cache"})',
        'sum(clef_queue_requests{job="b"})',
        'sum(clef_queue_requests{namespace="a",job="b"}) + clef_queue_tokens',
    ],
    ids=["name", "label", "grouping", "value", "any namespace's", "no selector"],
)
def test_a_figure_that_does_not_exist_is_seen(page: Page, wrong: str) -> None:
    with pytest.raises(AssertionError):
        check_expression(wrong, page)


def test_outcomes_and_routes_in_alerts_exist(monitoring: list[dict[str, Any]]) -> None:
    from serving.metrics import REFUSALS

    text = " ".join(expressions(pick(monitoring, "PrometheusRule")["spec"]))
    for reasons in re.findall(r'(?:reason=~|outcome!~)"([^"]*)"', text):
        assert set(reasons.split("|")) <= set(REFUSALS)
    assert set(re.findall(r'route="([^"]*)"', text)) == {"/v1/systemone"}


def test_what_scales_exists(helm: Helm, page: Page) -> None:
    for trigger in pick(helm.objects(VARIANTS["keda"]), "ScaledObject")["spec"]["triggers"]:
        check_expression(trigger["metadata"]["query"], page)
    metrics = pick(helm.objects(VARIANTS["hpa"]), "HorizontalPodAutoscaler")["spec"]["metrics"]
    # An adapter serves a figure of a pod: one without labels of its own.
    assert [page[metric["pods"]["metric"]["name"]] for metric in metrics] == [{}, {}]


def test_the_service_monitor_reads_the_metrics_port_of_the_engines(monitoring: list[dict[str, Any]]) -> None:
    spec = pick(monitoring, "ServiceMonitor")["spec"]
    services = [
        found["metadata"]["name"]
        for found in monitoring
        if found["kind"] == "Service" and spec["selector"]["matchLabels"].items() <= found["metadata"]["labels"].items()
    ]
    assert services == [f"{NAME}-engine"]
    assert spec["endpoints"] == [{"port": "metrics", "path": "/metrics", "interval": "15s"}]


def test_the_dashboard_reads_figures_that_exist(page: Page) -> None:
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(dashboard()["panels"])
    for panel in panels:
        assert panel["targets"]
        for target in panel["targets"]:
            check_expression(target["expr"], page)
            wanted = [wanted for _, wanted in selectors(target["expr"])]
            assert all((w["namespace"], w["job"]) == (("=", "$namespace"), ("=", "$job")) for w in wanted)
    for variable in dashboard()["templating"]["list"][1:]:
        assert re.findall(r"clef_\w+", variable["query"]["query"]) == ["clef_build_info"]
    assert "clef_build_info" in page


def test_figures_of_the_engine_have_sglangs_names() -> None:
    found = importlib.util.find_spec("sglang")  # importing it would take seconds
    assert found is not None
    assert found.origin is not None
    source = (Path(found.origin).parent / "srt" / "observability" / "metrics_collector.py").read_text(encoding="utf-8")
    assert [name for name in OF_SGLANG if f'"sglang:{name}"' not in source] == []


def test_the_dashboards_expressions_are_promql(tmp_path: Path) -> None:
    found = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]
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
    assert json.loads(found["data"][f"{NAME}.json"]) == dashboard()
