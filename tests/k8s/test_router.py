"""The router in the chart: what it is started with, who reaches it, and where the requests go that it cannot carry.

That smg does with these arguments what is meant is shown in tests/routing.
"""

from dataclasses import fields
from typing import Any

import pytest

from serving.settings import CLOUDFLARE_PREFIX, ServingSettings
from tests.k8s.chart import NAME, NAMESPACE, Helm, Object, pick, pods
from tests.k8s.test_rules import selects
from tests.k8s.variants import PEER, ROUTER, VARIANTS

ROUTER_POD, ENGINE_POD = f"Deployment {NAME}-router", f"StatefulSet {NAME}-engine"
DOOR = {
    "ingress": {"enabled": True, "host": "clef.example"},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "d"}]},
}


def routed(helm: Helm, **values: Any) -> list[Object]:
    return helm.objects({**VARIANTS["router"], **values})


def container(objects: list[Object]) -> Object:
    (found,) = pick(objects, "Deployment", f"{NAME}-router")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def test_it_is_off_by_default_and_nothing_of_it_is_there(helm: Helm) -> None:
    objects = helm.objects()
    assert not [found for found in objects if "router" in found["metadata"]["name"]]
    assert not [found for found in objects if found["metadata"]["name"].endswith("-direct")]
    assert selects(pick(objects, "Service", NAME)["spec"]["selector"], objects) == {f"Deployment {NAME}-engine"}


def test_two_find_the_engines_by_their_labels(helm: Helm) -> None:
    objects = routed(helm)
    assert pick(objects, "Deployment", f"{NAME}-router")["spec"]["replicas"] == 2
    arguments = container(objects)["args"]
    at = arguments.index("--selector") + 1
    labels = dict(entry.split("=", 1) for entry in arguments[at : at + 3])
    assert arguments[at + 3].startswith("--")
    assert selects(labels, objects) == {ENGINE_POD}
    wanted = {"--policy=prefix_hash", "--service-discovery", f"--service-discovery-namespace={NAMESPACE}"}
    assert wanted <= set(arguments)


def test_it_may_only_list_and_watch_pods_of_its_namespace(helm: Helm) -> None:
    objects = routed(helm)
    assert pick(objects, "Role")["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    binding = pick(objects, "RoleBinding")
    assert binding["roleRef"]["name"] == f"{NAME}-router"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": f"{NAME}-router", "namespace": NAMESPACE}]
    assert not [found for found in objects if found["kind"].startswith("Cluster")]


def test_its_control_plane_has_one_key_that_no_header_can_hold(helm: Helm) -> None:
    (argument,) = [text for text in container(routed(helm))["args"] if "control-plane" in text]
    assert argument == "--control-plane-api-keys=closed:closed:user:\n"


def test_it_is_asked_on_its_own_port_whether_it_is_well(helm: Helm) -> None:
    found = container(routed(helm))
    ports = {port["name"]: port["containerPort"] for port in found["ports"]}
    assert ports == {"http": 8080, "health": 8081, "metrics": 29000}
    flags = {"http": "port", "health": "health-check-port", "metrics": "prometheus-port"}
    assert {f"--{flags[name]}={port}" for name, port in ports.items()} <= set(found["args"])
    probes = {probe: found[probe]["httpGet"] for probe in ("readinessProbe", "livenessProbe")}
    assert probes == {
        "readinessProbe": {"path": "/readiness", "port": "health"},
        "livenessProbe": {"path": "/liveness", "port": "health"},
    }


def test_it_ends_before_it_is_killed(helm: Helm) -> None:
    objects = routed(helm, shutdown={"preStopSeconds": 20, "graceSeconds": 100})
    spec = pick(objects, "Deployment", f"{NAME}-router")["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == 100
    assert container(objects)["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "20"]
    assert "--shutdown-grace-period-secs=75" in container(objects)["args"]


def default(name: str) -> Any:
    (found,) = [field.default for field in fields(ServingSettings) if field.name == name]
    return found


@pytest.mark.parametrize(
    ("values", "served", "aliases"),
    [
        ({}, "Cloudflare/clef-flash", default("model_aliases")),
        ({"model": {"servedName": "orders"}}, "orders", default("model_aliases")),
        ({"settings": {"model-aliases": "a, b"}}, "Cloudflare/clef-flash", ("a", "b")),
        ({"model": {"servedName": "clef"}, "settings": {"model-aliases": "clef"}}, "clef", ("clef",)),
    ],
    ids=["defaults", "named", "other-aliases", "named-as-an-alias"],
)
def test_it_knows_every_name_of_the_model_that_the_engine_takes(
    helm: Helm, values: dict[str, Any], served: str, aliases: tuple[str, ...]
) -> None:
    made = ServingSettings(served_model_name=served, max_prompt_tokens=1, model_aliases=aliases)
    names = {form for name in made.accepted_names for form in (name, CLOUDFLARE_PREFIX + name)} - {served}
    arguments = [text for text in container(routed(helm, **values))["args"] if text.startswith("--model-alias=")]
    assert sorted(arguments) == sorted(f"--model-alias={name}={served}" for name in names)


@pytest.mark.parametrize(
    ("values", "limit"),
    [({}, default("max_wire_bytes")), ({"settings": {"max-wire-bytes": 12_000_000}}, 12_000_000)],
    ids=["default", "set"],
)
def test_it_takes_bodies_as_large_as_the_engine_does(helm: Helm, values: dict[str, Any], limit: int) -> None:
    assert f"--max-payload-size={limit}" in container(routed(helm, **values))["args"]


def test_further_arguments_come_last_so_that_they_win(helm: Helm) -> None:
    given = ["--log-level=warn", "--retry-max-retries=1"]
    assert container(routed(helm, router={**ROUTER, "args": given}))["args"][-2:] == given


def services(objects: list[Object]) -> dict[str, set[str]]:
    """Which pods each Service leads to."""
    found = [entry for entry in objects if entry["kind"] == "Service"]
    return {entry["metadata"]["name"]: selects(entry["spec"]["selector"], objects) for entry in found}


def test_one_service_leads_to_it_and_one_past_it(helm: Helm) -> None:
    objects = routed(helm)
    assert services(objects) == {
        NAME: {ROUTER_POD},
        f"{NAME}-direct": {ENGINE_POD},
        f"{NAME}-engine": {ENGINE_POD},
        f"{NAME}-router": {ROUTER_POD},
    }
    past = pick(objects, "Service", f"{NAME}-direct")["spec"]
    assert past["ports"] == [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}]
    assert "publishNotReadyAddresses" not in past


def test_from_outside_the_one_path_leads_to_it_and_the_others_past_it(helm: Helm) -> None:
    objects = routed(helm, **DOOR, publicPaths=["/v1/systemone", "/v1/models", "/client/v4"])
    (rule,) = pick(objects, "Ingress")["spec"]["rules"]
    paths = [
        (path["pathType"], path["path"], path["backend"]["service"]["name"].removeprefix(NAME))
        for path in rule["http"]["paths"]
    ]
    assert paths == [
        ("Exact", "/v1/systemone", ""),
        ("Prefix", "/v1/models", "-direct"),
        ("Prefix", "/client/v4", "-direct"),
    ]
    through, past = pick(objects, "HTTPRoute")["spec"]["rules"]
    assert [backend["name"] for backend in through["backendRefs"]] == [NAME]
    assert through["matches"] == [{"path": {"type": "Exact", "value": "/v1/systemone"}}]
    assert [backend["name"] for backend in past["backendRefs"]] == [f"{NAME}-direct"]
    # Of rules with one path the one with more headers wins (Gateway API, HTTPRouteRule).
    compressed = [
        {
            "path": {"type": "Exact", "value": "/v1/systemone"},
            "headers": [{"name": "content-encoding", "value": coding}],
        }
        for coding in ("gzip", "x-gzip", "zstd")
    ]
    prefixes = [{"path": {"type": "PathPrefix", "value": path}} for path in ("/v1/models", "/client/v4")]
    assert past["matches"] == compressed + prefixes


def test_without_it_every_public_path_leads_to_the_engines(helm: Helm) -> None:
    objects = helm.objects(DOOR)
    (rule,) = pick(objects, "Ingress")["spec"]["rules"]
    assert {path["backend"]["service"]["name"] for path in rule["http"]["paths"]} == {NAME}
    assert [path["path"] for path in rule["http"]["paths"]] == ["/v1/systemone", "/v1/models"]
    (only,) = pick(objects, "HTTPRoute")["spec"]["rules"]
    assert [backend["name"] for backend in only["backendRefs"]] == [NAME]


def test_it_reaches_engines_and_kubernetes_and_is_reached_as_the_engines_are(helm: Helm) -> None:
    objects = routed(helm, networkPolicy={"from": [PEER], "metricsFrom": [PEER]})
    engines, router = (pick(objects, "NetworkPolicy", f"{NAME}-{name}")["spec"] for name in ("engine", "router"))
    ports = [[port["port"] for port in rule["ports"]] for rule in router["egress"]]
    assert ports == [[8000], [443, 6443], [53, 53]]
    (to,) = router["egress"][0]["to"]
    assert selects(to["podSelector"]["matchLabels"], objects) == {ENGINE_POD}
    asking, reading = router["ingress"]
    assert (asking["ports"][0]["port"], reading["ports"][0]["port"]) == ("http", "metrics")
    assert reading["from"] == [PEER]
    helm_test = asking["from"][1]
    assert asking["from"] == [PEER, helm_test]
    assert selects(helm_test["podSelector"]["matchLabels"], objects) == {f"Pod {NAME}-test"}
    # What asks the router may ask past it too; only the router's own pods are added.
    first, *others = engines["ingress"][0]["from"]
    assert selects(first["podSelector"]["matchLabels"], objects) == {ROUTER_POD}
    assert others == asking["from"]


def test_its_figures_are_read_where_the_engines_are(helm: Helm) -> None:
    objects = routed(helm, metrics={"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}})
    monitor = pick(objects, "ServiceMonitor", f"{NAME}-router")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    labels = monitor["spec"]["selector"]["matchLabels"]
    chosen = [
        entry["metadata"]["name"]
        for entry in objects
        if entry["kind"] == "Service" and labels.items() <= entry["metadata"]["labels"].items()
    ]
    assert chosen == [f"{NAME}-router"]
    ports = [port["name"] for port in pick(objects, "Service", f"{NAME}-router")["spec"]["ports"]]
    assert [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]] == ports == ["metrics"]


def test_every_pod_of_it_has_a_budget(helm: Helm) -> None:
    budget = pick(routed(helm), "PodDisruptionBudget", f"{NAME}-router")["spec"]
    assert budget["maxUnavailable"] == 1
    assert selects(budget["selector"]["matchLabels"], routed(helm)) == {ROUTER_POD}
    assert ROUTER_POD in pods(routed(helm))
