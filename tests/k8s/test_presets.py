"""A preset is what `clef-serve plan` says of its model and GPU, and a release can go from one preset to any other."""

import itertools
import tomllib
from typing import Any

import pytest

from launch.plan.plan import Plan, PlanInputs, make_plan
from tests.k8s.chart import CHART, PRESETS, ROOT, Helm, Object, engine, engine_container, kinds, pick, preset
from tests.k8s.variants import VARIANTS

GIB = 2**30
NAMES = [path.stem for path in PRESETS]
presets = pytest.mark.parametrize("name", NAMES)
# What a Deployment's and a StatefulSet's spec may change; the API server refuses the rest.
CHANGEABLE = {
    "Deployment": {"replicas", "template", "strategy", "progressDeadlineSeconds", "revisionHistoryLimit"},
    "StatefulSet": {"replicas", "template", "updateStrategy", "persistentVolumeClaimRetentionPolicy"},
}


def parts(name: str) -> tuple[str, str]:
    """Model and GPU by `clef-serve plan`'s names."""
    model, _, gpu = name.rpartition("-")
    return model, gpu


def values_of(name: str) -> dict[str, Any]:
    return preset(CHART / "presets" / f"{name}.yaml")


def plan_of(name: str, values: dict[str, Any]) -> Plan:
    model, gpu = parts(name)
    inputs = PlanInputs(gpu=gpu, model=model, profile=values["model"]["profile"])
    return make_plan(inputs, with_changes=False)


def gibibytes(quantity: str) -> int:
    assert quantity.endswith("Gi")
    return int(quantity.removesuffix("Gi"))


@presets
def test_a_preset_names_its_model_and_its_gpu_as_the_cluster_labels_it(name: str) -> None:
    """GPU feature discovery labels a node with nvidia-smi's name, spaces as dashes."""
    model, gpu = parts(name)
    gpus, models = (
        tomllib.loads((ROOT / "launch" / "plan" / file).read_text(encoding="utf-8"))
        for file in ("gpus.toml", "models.toml")
    )
    values = values_of(name)
    assert values["gpu"]["products"] == [found.replace(" ", "-") for found in gpus[gpu]["smi_names"]]
    assert values["model"]["repository"] == models[model]["repository"]
    assert f"clef-serve plan --gpu {gpu} --model {model}" in (CHART / "presets" / f"{name}.yaml").read_text()


@presets
def test_the_plan_of_a_preset_fits_and_holds_the_longest_prompt(helm: Helm, name: str) -> None:
    values = values_of(name)
    plan = plan_of(name, values)
    assert plan.memory.fits, plan.memory.problems
    assert plan.memory.pools is not None
    assert plan.memory.pools.token_slots >= 65_536
    assert plan.memory.cached_states >= plan.memory.running_requests
    # One GPU, as the plan has it, and nothing that the plan does not know.
    container = engine_container(helm.objects(values))
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert f"--profile={plan.inputs.profile}" in container["args"]
    assert "--" not in container["args"]


@presets
def test_scaling_begins_where_the_plan_is_full(helm: Helm, name: str) -> None:
    """Another replica is started once the prompts in the engine are as many as it runs at once, or some of them wait."""
    values = values_of(name)
    plan = plan_of(name, values)
    state_tokens = plan.memory.request.traffic.state_tokens
    cache = {"modelCache": {"accessModes": ["ReadWriteMany"]}}
    scaler = pick(
        helm.objects(values | cache | {"autoscaling": values.get("autoscaling", {}) | {"kind": "hpa"}}),
        "HorizontalPodAutoscaler",
    )
    queue, running = (int(metric["pods"]["target"]["averageValue"]) for metric in scaler["spec"]["metrics"])
    assert running == plan.memory.running_requests * state_tokens
    assert queue == plan.memory.running_requests // 4


@presets
def test_volume_memory_and_start_are_enough_for_the_weights(helm: Helm, name: str) -> None:
    objects = helm.objects(values_of(name))
    weights = {other: plan_of(other, values_of(other)).memory.weights.total_bytes for other in NAMES}
    volume = gibibytes(pick(objects, "PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"])
    # Two revisions of each model: an update need not make room first, nor a change of the preset.
    assert volume * GIB > 2 * sum({parts(other)[0]: size for other, size in weights.items()}.values())
    limit = gibibytes(engine_container(objects)["resources"]["limits"]["memory"])
    assert limit * GIB > weights[name] + 8 * GIB  # shared memory is counted too
    probe = engine_container(objects)["startupProbe"]
    seconds = probe["failureThreshold"] * probe["periodSeconds"]
    # From a network disk at 50 MB/s, and half as long again for compiling and warming up.
    assert seconds >= 1.5 * weights[name] / 50e6


def fixed(found: Object) -> Object:
    """Of an object what the API server lets no update change."""
    if found["kind"] in CHANGEABLE:
        return {key: value for key, value in found["spec"].items() if key not in CHANGEABLE[found["kind"]]}
    if found["kind"] in ("PersistentVolumeClaim", "Job"):
        return dict(found["spec"])
    if found["kind"] == "Service":
        return {"clusterIP": found["spec"].get("clusterIP")}
    return {"roleRef": found.get("roleRef")}


def refused(before: list[Object], after: list[Object]) -> set[str]:
    """The objects of which an update from one to the other would be refused."""
    kept = {f"{found['kind']} {found['metadata']['name']}": fixed(found) for found in before}
    names = {f"{found['kind']} {found['metadata']['name']}": fixed(found) for found in after}
    return {name for name, now in names.items() if kept.get(name, now) != now}


def test_a_release_goes_from_any_preset_to_any_other(helm: Helm) -> None:
    for before, after in itertools.permutations(NAMES, 2):
        assert refused(helm.objects(values_of(before)), helm.objects(values_of(after))) == set(), (before, after)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in NAMES])
def test_turning_something_on_or_off_changes_nothing_that_cannot_be_changed(helm: Helm, variant: str) -> None:
    """But how many nodes mount a volume, which its README says, is for good."""
    before, after = helm.objects(), helm.objects(VARIANTS[variant])
    of_many_nodes = variant in ("three-replicas-one-volume", "hpa")
    expected = {f"PersistentVolumeClaim {pick(before, 'PersistentVolumeClaim')['metadata']['name']}"}
    assert refused(before, after) == refused(after, before) == (expected if of_many_nodes else set())


def test_a_change_that_would_be_refused_is_seen(helm: Helm) -> None:
    objects = helm.objects()
    renamed = helm.objects({"nameOverride": "other", "fullnameOverride": "demo-clef-serving"})
    assert engine(renamed)["metadata"]["name"] == engine(objects)["metadata"]["name"]
    assert refused(objects, renamed) == {"Deployment demo-clef-serving-engine"}
    assert "Deployment demo-clef-serving-engine" in kinds(renamed)
