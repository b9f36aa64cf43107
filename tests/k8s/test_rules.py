"""What an operator may rely on, each rule held to the rendered objects of every variant."""

from dataclasses import fields
from typing import Any

import pytest

from launch import server
from serving.settings import ServingSettings
from tests.k8s.chart import (
    DIGEST,
    NAME,
    NAMESPACE,
    REVISION,
    ROOT,
    Helm,
    Object,
    containers,
    engine,
    engine_container,
    environment,
    pick,
    pods,
)
from tests.k8s.variants import PEER, PER_REPLICA, VARIANTS

variants = pytest.mark.parametrize("variant", VARIANTS)


@pytest.fixture
def objects(helm: Helm, variant: str) -> list[Object]:
    return helm.objects(VARIANTS[variant])


def selects(selector: dict[str, str], objects: list[Object]) -> set[str]:
    """Which pods have all of these labels."""
    return {name for name, pod in pods(objects).items() if selector.items() <= pod["metadata"]["labels"].items()}


def volumes(pod: Object) -> dict[str, Object]:
    return {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}


def mounts(container: Object) -> dict[str, Object]:
    return {mount["mountPath"]: mount for mount in container["volumeMounts"]}


# Pod security


@variants
def test_every_pod_meets_the_restricted_standard(objects: list[Object]) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards, rule by rule."""
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for pod in pods(objects).values():
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all(set(volume) - {"name"} <= allowed for volume in spec.get("volumes", []))
        for container in containers(pod):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in security
            assert all("hostPort" not in port for port in container.get("ports", []))


@variants
def test_root_file_systems_are_read_only_and_what_libraries_write_has_a_place(objects: list[Object]) -> None:
    for name, pod in pods(objects).items():
        for container in containers(pod):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            if container["name"] in ("ask", "router"):
                continue
            assert {"/tmp", "/var/cache/clef"} <= mounts(container).keys(), name
            for place in ("/tmp", "/var/cache/clef"):
                mount = mounts(container)[place]
                assert "readOnly" not in mount
                assert volumes(pod)[mount["name"]]["emptyDir"]["sizeLimit"]
            paths = {key: value for key, value in environment(container).items() if value.startswith("/")}
            assert paths.keys() >= {"HOME", "XDG_CACHE_HOME", "HF_HOME", "TRITON_CACHE_DIR", "SGLANG_CACHE_DIR"}
            assert paths.pop("HF_HUB_CACHE") == "/models/hub"
            assert all(value.startswith("/var/cache/clef") for value in paths.values())


@variants
def test_no_pod_but_the_router_gets_a_token(objects: list[Object]) -> None:
    with_token = {name for name, pod in pods(objects).items() if pod["spec"]["automountServiceAccountToken"]}
    assert with_token <= {f"Deployment {NAME}-router"}
    accounts = [found for found in objects if found["kind"] == "ServiceAccount"]
    assert all(account["automountServiceAccountToken"] is False for account in accounts)


# Images


@variants
def test_images_are_of_a_digest_or_a_tag(objects: list[Object], variant: str) -> None:
    ours = "registry.example/clef-serving:0.1.0" if variant == "by-tag" else f"registry.example/clef-serving@{DIGEST}"
    images = {container["image"] for pod in pods(objects).values() for container in containers(pod)}
    assert images <= {ours, "registry.example/smg:1.13.0"}


def test_the_registry_can_be_another_or_none(helm: Helm) -> None:
    other = helm.objects({"image": {"registry": "mirror.example/team"}})
    assert engine_container(other)["image"] == f"mirror.example/team/clef-serving@{DIGEST}"
    none = helm.objects({"image": {"registry": "", "repository": "local/clef"}})
    assert engine_container(none)["image"] == f"local/clef@{DIGEST}"


def test_pull_secrets_reach_every_pod(helm: Helm) -> None:
    found = pods(helm.objects(VARIANTS["by-tag"])).values()
    assert [pod["spec"]["imagePullSecrets"] for pod in found] == [[{"name": "pull"}]] * 3


# GPUs and placement


@pytest.mark.parametrize(("variant", "count"), [("defaults", 1), ("two-gpus", 2)])
def test_the_engine_alone_gets_gpus_and_divides_the_model_over_them(objects: list[Object], count: int) -> None:
    resources = engine_container(objects)["resources"]
    _, _, given = " ".join(engine_container(objects)["args"]).partition(" -- ")
    assert given == ("--tp-size 2 --log-level info" if count == 2 else "")
    assert resources["limits"]["nvidia.com/gpu"] == resources["requests"]["nvidia.com/gpu"] == count
    others = [c for pod in pods(objects).values() for c in containers(pod) if c["name"] != "engine"]
    assert not [c for c in others if "nvidia.com/gpu" in c["resources"]["limits"]]


@variants
def test_every_container_has_memory_limits_and_requests(objects: list[Object]) -> None:
    for pod in pods(objects).values():
        for container in containers(pod):
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


@variants
def test_on_a_volume_of_one_node_engine_and_download_meet(objects: list[Object], variant: str) -> None:
    """Else the one that mounts the volume first waits for the other, which waits for the volume."""
    jobs = {name for name in pods(objects) if name.startswith("Job")}
    of_many_nodes = variant in ("three-replicas-one-volume", "hpa")
    meeting = jobs | {f"Deployment {NAME}-engine"} if jobs and not of_many_nodes else set()
    for name, pod in pods(objects).items():
        affinity = pod["spec"].get("affinity", {}).get("podAffinity")
        if name not in meeting:
            assert affinity is None
            continue
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        (component,) = term["labelSelector"]["matchExpressions"]
        assert component == {"key": "app.kubernetes.io/component", "operator": "In", "values": ["download", "engine"]}
        # Each is among those it must meet: the first of them may go anywhere.
        assert meeting <= selects(term["labelSelector"]["matchLabels"], objects)


def test_an_affinity_of_ones_own_is_kept_beside_it(helm: Helm) -> None:
    near = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": "cache"}}}
    far = {"preferredDuringSchedulingIgnoredDuringExecution": []}
    wanted = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}, "podAntiAffinity": far}
    objects = helm.objects({"affinity": wanted, "gpu": {"products": ["NVIDIA-H200"]}})
    found = engine(objects)["spec"]["template"]["spec"]["affinity"]
    assert found.keys() == {"nodeAffinity", "podAffinity", "podAntiAffinity"}
    first, meeting = found["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert first == near
    assert meeting["labelSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "demo"
    assert pods(objects)[f"Pod {NAME}-test"]["spec"]["affinity"] == {
        **wanted,
        "nodeAffinity": found["nodeAffinity"],
    }


def test_our_pods_run_on_the_named_gpus_only(helm: Helm) -> None:
    """The download too: a volume may be bound to the node that used it first."""
    objects = helm.objects({"gpu": {"products": ["NVIDIA-H200"]}, "nodeSelector": {"pool": "gpu"}})
    wanted = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-H200"]}
    for pod in pods(objects).values():
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert terms == {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
        assert pod["spec"]["nodeSelector"] == {"pool": "gpu"}
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["spec"]["tolerations"]


@variants
def test_replicas_are_spread(objects: list[Object]) -> None:
    found = engine(objects)
    constraints = found["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert [c["topologyKey"] for c in constraints] == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    for constraint in constraints:
        assert constraint["labelSelector"] == found["spec"]["selector"]


@variants
def test_a_disruption_budget_selects_the_engines_and_nothing_else(objects: list[Object]) -> None:
    budget = pick(objects, "PodDisruptionBudget", f"{NAME}-engine")
    assert selects(budget["spec"]["selector"]["matchLabels"], objects) == {f"{engine(objects)['kind']} {NAME}-engine"}
    # Never minAvailable: with one replica no node could ever be drained.
    assert budget["spec"]["maxUnavailable"] == 1


@variants
def test_shared_memory_is_sized_and_counted_in_the_limit(objects: list[Object]) -> None:
    pod = engine(objects)["spec"]["template"]
    mount = mounts(engine_container(objects))["/dev/shm"]
    assert volumes(pod)[mount["name"]] == {"name": mount["name"], "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    limit = engine_container(objects)["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("Gi")) > 8


# The release


@variants
def test_every_process_names_the_pinned_revision(objects: list[Object], variant: str) -> None:
    named = [c for pod in pods(objects).values() for c in containers(pod) if c["command"][0] != "python"]
    for container in named:
        if container["name"] != "router":
            (revision,) = [argument for argument in container["args"] if argument.startswith("--revision=")]
            ahead = variant == "prefetch" and container["name"] == "download"
            assert revision == f"--revision={REVISION}" or (ahead and revision == f"--revision={'f' * 40}")


@variants
def test_the_engine_is_offline_and_cannot_write_to_the_cache(objects: list[Object]) -> None:
    container = engine_container(objects)
    assert environment(container)["HF_HUB_OFFLINE"] == environment(container)["TRANSFORMERS_OFFLINE"] == "1"
    assert mounts(container)["/models"]["readOnly"] is True
    assert "HF_TOKEN" not in {entry["name"] for entry in container["env"]}


@pytest.mark.parametrize("variant", ["hub-token", "init-container"])
def test_the_download_has_the_token_from_its_secret_and_may_write(objects: list[Object]) -> None:
    """Writable for the hub's lock files too."""
    (download,) = [c for pod in pods(objects).values() for c in containers(pod) if c["name"] == "download"]
    assert download["command"] == ["clef-serve", "download"]
    assert {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}} in download["env"]
    assert "HF_HUB_OFFLINE" not in environment(download)
    assert mounts(download)["/models"] == {"name": "models", "mountPath": "/models"}


def test_a_job_fills_the_volume_that_the_engine_waits_for(helm: Helm) -> None:
    objects = helm.objects()
    job = next(found for found in objects if found["kind"] == "Job")
    claim = {"claimName": f"{NAME}-models"}
    waiting = engine(objects)["spec"]["template"]
    for pod in (job["spec"]["template"], waiting):
        assert volumes(pod)["models"]["persistentVolumeClaim"] == claim
    assert pick(objects, "PersistentVolumeClaim")["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    (wait,) = waiting["spec"]["initContainers"]
    assert (wait["name"], environment(wait)["HF_HUB_OFFLINE"]) == ("wait-for-model", "1")
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    drained, hopeless = job["spec"]["podFailurePolicy"]["rules"]
    assert drained == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert hopeless == {
        "action": "FailJob",
        "onExitCodes": {"containerName": "download", "operator": "In", "values": [2]},
    }


def test_another_revision_is_another_job(helm: Helm) -> None:
    names = [
        next(
            found["metadata"]["name"]
            for found in helm.objects({"model": {"revision": digit * 40}})
            if found["kind"] == "Job"
        )
        for digit in ("1", "2", "1")
    ]
    assert names[0] == names[2] != names[1]


def test_revisions_to_come_are_downloaded_by_jobs_of_their_own(helm: Helm) -> None:
    jobs = [found for found in helm.objects(VARIANTS["prefetch"]) if found["kind"] == "Job"]
    (now,) = [found for found in helm.objects() if found["kind"] == "Job"]
    # The one that is served is not downloaded twice, and its Job is the same as without: nothing runs again.
    assert len(jobs) == 2
    assert now in jobs
    (ahead,) = [found for found in jobs if found != now]
    (container,) = ahead["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["--model=Cloudflare/clef-flash", f"--revision={'f' * 40}"]
    assert ahead["metadata"]["name"] != now["metadata"]["name"]


def test_an_existing_claim_is_used_and_none_created(helm: Helm) -> None:
    objects = helm.objects(VARIANTS["existing-claim"])
    pod = engine(objects)["spec"]["template"]
    assert volumes(pod)["models"]["persistentVolumeClaim"] == {"claimName": "weights"}
    assert not [found for found in objects if found["kind"] in ("PersistentVolumeClaim", "Job")]


def test_a_volume_each_makes_a_stateful_set(helm: Helm) -> None:
    found = engine(helm.objects(VARIANTS["three-replicas-a-volume-each"]))
    assert (found["kind"], found["spec"]["replicas"], found["spec"]["serviceName"]) == (
        "StatefulSet",
        3,
        f"{NAME}-engine",
    )
    (template,) = found["spec"]["volumeClaimTemplates"]
    assert template["metadata"]["name"] == "models"
    assert "models" not in volumes(found["spec"]["template"])
    assert found["spec"]["template"]["spec"]["initContainers"][0]["name"] == "download"


@pytest.mark.parametrize(("keep", "deleted"), [(True, "Retain"), (False, "Delete")])
def test_what_becomes_of_volumes_is_one_value(helm: Helm, keep: bool, deleted: str) -> None:
    cache = {"keep": keep}
    set_of_replicas = engine(helm.objects({"modelCache": PER_REPLICA | cache}))
    policy = set_of_replicas["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenScaled": "Retain", "whenDeleted": deleted}
    claim = pick(helm.objects({"modelCache": cache}), "PersistentVolumeClaim")
    assert ("annotations" in claim["metadata"]) is keep


@pytest.mark.parametrize(
    ("variant", "strategy"),
    [
        ("defaults", {"type": "Recreate"}),
        ("three-replicas-one-volume", {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
        ("existing-claim", {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
    ],
)
def test_an_update_waits_for_no_volume_and_no_gpu_that_the_old_replica_holds(
    objects: list[Object], strategy: Object
) -> None:
    assert engine(objects)["spec"]["strategy"] == strategy


# Start and end


@variants
def test_probes(objects: list[Object]) -> None:
    container = engine_container(objects)
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"http": 8000, "metrics": 9100}
    paths = {probe: container[probe]["httpGet"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {
        "startupProbe": {"path": "/readyz", "port": "http"},
        "readinessProbe": {"path": "/readyz", "port": "http"},
        "livenessProbe": {"path": "/livez", "port": "http"},
    }
    start = container["startupProbe"]
    # 19 GB from a network disk at 25 MB/s, or 55 GB at 50 MB/s, and half as long again for warming up.
    large = "--model=Cloudflare/clef" in container["args"]
    assert start["failureThreshold"] * start["periodSeconds"] >= 1.5 * (55_000 / 50 if large else 19_000 / 25)


def test_the_start_may_take_as_long_as_said(helm: Helm) -> None:
    probe = engine_container(helm.objects({"probes": {"startSeconds": 605}}))["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 610


@variants
def test_a_pod_is_not_killed_before_the_server_has_ended(objects: list[Object]) -> None:
    spec = engine(objects)["spec"]["template"]["spec"]
    command, seconds = engine_container(objects)["lifecycle"]["preStop"]["exec"]["command"]
    assert command == "sleep"
    assert spec["terminationGracePeriodSeconds"] > int(seconds) + server.LIMIT_WHEN_STOPPING_S


def test_the_server_ends_itself_when_the_chart_says_it_does() -> None:
    helpers = (ROOT / "k8s/clef-serving/templates/_helpers.tpl").read_text(encoding="utf-8")
    assert f"(add (int .Values.shutdown.preStopSeconds) {server.LIMIT_WHEN_STOPPING_S})" in helpers


# Who may ask


@variants
def test_keys_come_from_a_mounted_secret_and_stand_in_no_argument(objects: list[Object], variant: str) -> None:
    container, pod = engine_container(objects), engine(objects)["spec"]["template"]
    assert "--host=0.0.0.0" in container["args"]
    if variant == "insecure":
        assert "--insecure=true" in container["args"]
        assert "api-keys" not in volumes(pod)
        return
    assert "--api-keys=/etc/clef/keys" in container["args"]
    assert not [argument for argument in container["args"] if argument.startswith("--insecure")]
    mount = mounts(container)["/etc/clef/keys"]
    # A file of its own (subPath) would never be read again after a change.
    assert mount == {"name": "api-keys", "mountPath": "/etc/clef/keys", "readOnly": True}
    assert volumes(pod)["api-keys"]["secret"] == {"secretName": "clef-keys", "defaultMode": 0o440}
    # Readable for the group, which is the pod's.
    assert pod["spec"]["securityContext"]["fsGroup"] == pod["spec"]["securityContext"]["runAsGroup"]


@variants
def test_the_service_leads_to_the_router_where_there_is_one_else_to_the_engines(
    objects: list[Object], variant: str
) -> None:
    door = pick(objects, "Service", NAME)
    routed = variant in ("router", "everything")
    assert selects(door["spec"]["selector"], objects) == {
        f"Deployment {NAME}-router" if routed else f"{engine(objects)['kind']} {NAME}-engine"
    }
    (port,) = door["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (80, "http")
    headless = pick(objects, "Service", f"{NAME}-engine")
    assert headless["spec"]["clusterIP"] == "None"
    assert [port["name"] for port in headless["spec"]["ports"]] == ["http", "metrics"]
    assert selects(headless["spec"]["selector"], objects) == {f"{engine(objects)['kind']} {NAME}-engine"}


def test_the_engine_reaches_nothing_and_is_reached_from_its_namespace(helm: Helm) -> None:
    objects = helm.objects()
    policy = pick(objects, "NetworkPolicy", f"{NAME}-engine")["spec"]
    assert selects(policy["podSelector"]["matchLabels"], objects) == {f"Deployment {NAME}-engine"}
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["egress"] == []
    assert policy["ingress"] == [
        {"ports": [{"port": port, "protocol": "TCP"}], "from": [{"podSelector": {}}]} for port in ("http", "metrics")
    ]


def test_the_download_reaches_the_hub_and_names_alone(helm: Helm) -> None:
    objects = helm.objects()
    policy = pick(objects, "NetworkPolicy", f"{NAME}-download")["spec"]
    assert len(selects(policy["podSelector"]["matchLabels"], objects)) == 1
    assert policy["ingress"] == []
    ports = [(port["port"], port["protocol"]) for rule in policy["egress"] for port in rule["ports"]]
    assert ports == [(443, "TCP"), (53, "UDP"), (53, "TCP")]


@pytest.mark.parametrize("variant", ["defaults", "router"])
def test_the_test_reaches_what_it_asks_and_names_alone(objects: list[Object], variant: str) -> None:
    policy = pick(objects, "NetworkPolicy", f"{NAME}-test")["spec"]
    assert selects(policy["podSelector"]["matchLabels"], objects) == {f"Pod {NAME}-test"}
    assert (policy["policyTypes"], policy["ingress"]) == (["Ingress", "Egress"], [])
    asked, names = policy["egress"]
    assert asked["ports"] == [{"port": "http", "protocol": "TCP"}]
    reached = {name for to in asked["to"] for name in selects(to["podSelector"]["matchLabels"], objects)}
    router = {f"Deployment {NAME}-router"} if variant == "router" else set()
    assert reached == router | {f"{engine(objects)['kind']} {NAME}-engine"}
    assert [(port["port"], port["protocol"]) for port in names["ports"]] == [(53, "UDP"), (53, "TCP")]


def test_every_pod_has_a_network_policy(helm: Helm) -> None:
    objects = helm.objects(VARIANTS["everything"])
    policies = [found["spec"] for found in objects if found["kind"] == "NetworkPolicy"]
    assert {name for policy in policies for name in selects(policy["podSelector"]["matchLabels"], objects)} == set(
        pods(objects)
    )
    without = helm.objects(VARIANTS["no-network-policy"])
    assert not [found for found in without if found["kind"] == "NetworkPolicy"]


def test_an_engine_that_downloads_itself_reaches_the_hub_too(helm: Helm) -> None:
    policy = pick(helm.objects(VARIANTS["init-container"]), "NetworkPolicy", f"{NAME}-engine")["spec"]
    ports = [(port["port"], port["protocol"]) for rule in policy["egress"] for port in rule["ports"]]
    assert ports == [(443, "TCP"), (53, "UDP"), (53, "TCP")]


def test_named_peers_may_ask_and_helms_test_still_may(helm: Helm) -> None:
    objects = helm.objects(VARIANTS["http-route"])
    asking, reading = pick(objects, "NetworkPolicy", f"{NAME}-engine")["spec"]["ingress"]
    asker, test = asking["from"]
    assert [asker] == reading["from"] == [PEER]
    assert selects(test["podSelector"]["matchLabels"], objects) == {f"Pod {NAME}-test"}


@pytest.mark.parametrize("variant", ["ingress", "http-route"])
def test_outside_only_the_api_is_reachable(objects: list[Object], variant: str) -> None:
    if variant == "ingress":
        spec = pick(objects, "Ingress")["spec"]
        (rule,) = spec["rules"]
        assert [path["path"] for path in rule["http"]["paths"]] == ["/v1/systemone", "/v1/models"]
        assert rule["http"]["paths"][0]["backend"]["service"] == {"name": NAME, "port": {"name": "http"}}
        assert spec["tls"] == [{"hosts": ["clef.example"], "secretName": "clef-tls"}]
    else:
        (rule,) = pick(objects, "HTTPRoute")["spec"]["rules"]
        assert [match["path"]["value"] for match in rule["matches"]] == ["/v1/systemone", "/v1/models"]
        assert rule["backendRefs"] == [{"name": NAME, "port": 80}]
        # Gateways of their own accord end a request earlier, Envoy's after 15 s.
        longest = next(f.default for f in fields(ServingSettings) if f.name == "request_timeout_ms")
        assert rule["timeouts"] == {"request": f"{longest // 1000}s"}


# Arguments


def test_settings_and_engine_arguments_reach_the_server_as_written(helm: Helm) -> None:
    settings: dict[str, Any] = {
        "max-prompt-tokens": 32768,
        "max-waiting-tokens": 12_000_000,
        "max-aspect-ratio": 2.5,
        "exact-control-tokens": True,
        "confidence": "reference",
        "media-hosts": "img.example,video.example",
    }
    arguments = engine_container(helm.objects({"settings": settings, "engineArgs": ["--log-level", "info"]}))["args"]
    assert arguments[-10:] == [
        "--confidence=reference",
        "--exact-control-tokens=true",
        "--log-format=json",
        "--max-aspect-ratio=2.5",
        "--max-prompt-tokens=32768",
        "--max-waiting-tokens=12000000",
        "--media-hosts=img.example,video.example",
        "--",
        "--log-level",
        "info",
    ]


@variants
def test_the_server_takes_its_arguments(objects: list[Object]) -> None:
    from launch import cli, settings

    own, engine_arguments = cli.split_arguments(engine_container(objects)["args"])
    given = vars(cli._parser().parse_args(["up", *own]))
    resolved = settings.resolve(given, {}, engine_arguments)
    assert (resolved.host, resolved.port, resolved.metrics_port) == ("0.0.0.0", 8000, 9100)


@variants
def test_the_download_takes_its_arguments(objects: list[Object]) -> None:
    from launch import cli

    found = [
        c for pod in pods(objects).values() for c in containers(pod) if c["name"] in ("download", "wait-for-model")
    ]
    for container in found:
        given = cli._parser().parse_args(["download", *container["args"]])
        assert [f"--model={given.model}", f"--revision={given.revision}"] == container["args"]


def test_extras_reach_the_engine(helm: Helm) -> None:
    objects = helm.objects(VARIANTS["extras"])
    pod = engine(objects)["spec"]["template"]
    assert {"name": "A", "value": "b"} in engine_container(objects)["env"]
    assert volumes(pod)["certificates"]["configMap"] == {"name": "certificates"}
    assert mounts(engine_container(objects))["/etc/certificates"]["readOnly"] is True
    assert pod["metadata"]["labels"]["team"] == pod["metadata"]["labels"]["owner"] == "billing"
    assert pod["metadata"]["annotations"] == {"note": "hello"}
    assert (pod["spec"]["priorityClassName"], pod["spec"]["runtimeClassName"]) == ("serving", "nvidia")
    assert "--served-model-name=clef" in engine_container(objects)["args"]


# Scale


@pytest.mark.parametrize("variant", ["hpa", "keda", "everything"])
def test_scale_follows_the_queue_and_the_tokens_and_never_the_cpu(objects: list[Object], variant: str) -> None:
    assert "replicas" not in engine(objects)["spec"]
    if variant == "hpa":
        scaler = pick(objects, "HorizontalPodAutoscaler")["spec"]
        metrics = {m["pods"]["metric"]["name"]: m["pods"]["target"]["averageValue"] for m in scaler["metrics"]}
        assert metrics == {"clef_queue_requests": "8", "clef_running_tokens": "131072"}
    else:
        scaler = pick(objects, "ScaledObject")["spec"]
        selected = f'{{namespace="{NAMESPACE}",job="{NAME}-engine"}}'
        assert [(t["type"], t["metadata"]["query"], t["metadata"]["threshold"]) for t in scaler["triggers"]] == [
            ("prometheus", f"sum(clef_queue_requests{selected})", "8"),
            ("prometheus", f"sum(clef_running_tokens{selected})", "131072"),
        ]
        # KEDA's default takes a Prometheus that has no figures for a queue that is empty.
        assert [t["metadata"]["ignoreNullValues"] for t in scaler["triggers"]] == ["false", "false"]
    assert scaler["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": engine(objects)["kind"],
        "name": f"{NAME}-engine",
    }
    assert "cpu" not in str(scaler).lower()
