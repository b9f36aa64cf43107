"""Profiles: what may stand in one, and that each resolves for every GPU, model and weights format, or says why not."""

import itertools
from pathlib import Path

import pytest

from launch.plan.data_file import DataFileError, read_table
from launch.plan.gpu import gpus
from launch.plan.model_shape import known_models
from launch.plan.plan import PlanError, PlanInputs, make_plan
from launch.plan.profile import DEFAULT_PROFILE, Profile, profiles
from launch.plan.tensors import FORMATS, WeightsFormat

GOOD = """
summary = "an example"
state_tokens = { value = 100, reason = "r" }
schema_tokens = { value = 100, reason = "r" }
chunk_tokens = { value = 128, reason = "r" }
running_requests = { value = 2, reason = "r" }
states_per_path = { value = 1, reason = "r" }
"""


def test_the_three_profiles_of_the_issue_are_there_the_default_first() -> None:
    assert list(profiles()) == ["throughput", "latency", "long-context"]
    assert next(iter(profiles())) == DEFAULT_PROFILE


def test_a_model_may_have_values_of_its_own() -> None:
    profile = profiles()["throughput"]
    assert profile.for_model("clef").running_requests.value == 16
    assert profile.for_model("clef-flash") == profile.for_model(None) == profile
    assert profile.running_requests.value == 32


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("chunk_token = { value = 64, reason = 'r' }", "chunk_token: Extra inputs are not permitted"),
        ("[models.clef]\nrunning = { value = 1, reason = 'r' }", "models.clef.running: Extra inputs"),
        (
            "[models.clef-flash]\nchunk_tokens = { value = 65, reason = 'r' }",
            "models.clef-flash.chunk_tokens: .*must be a multiple of 64, not 65",
        ),
        ("[models.clef2]", "models.clef2: Extra inputs"),
        ("[chunk]", "chunk: Extra inputs"),
    ],
)
def test_a_slip_names_the_file_and_the_key(tmp_path: Path, change: str, fault: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"{GOOD}\n{change}\n")
    with pytest.raises(DataFileError, match=rf"mine\.toml: {fault}"):
        read_table(path, Profile)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("value = 2", "value = '2'", "running_requests.value: Input should be a valid integer"),
        ("value = 2", "value = 0", "running_requests.value: Input should be greater than 0"),
        ('value = 2, reason = "r"', "value = 2", "running_requests.reason: Field required"),
        ('summary = "an example"', "", "summary: Field required"),
        ("value = 128", "value = 100", "chunk_tokens: .*must be a multiple of 64, not 100"),
        ("summary", "[summary", "cannot be read as TOML"),
    ],
)
def test_a_wrong_value_names_the_file_and_the_key(tmp_path: Path, old: str, new: str, fault: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(DataFileError, match=rf"mine\.toml: {fault}"):
        read_table(path, Profile)


def test_every_profile_keeps_to_the_documented_context() -> None:
    for profile in profiles().values():
        assert profile.state_tokens.value + profile.schema_tokens.value <= 65_536


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("gpu", gpus())
@pytest.mark.parametrize("model", known_models())
def test_every_combination_resolves_or_says_why_not(model: str, gpu: str, weights: WeightsFormat) -> None:
    for profile, text_only, tp in itertools.product(profiles(), (False, True), (1, 2, 4)):
        inputs = PlanInputs(gpu=gpu, model=model, profile=profile, weights=weights, text_only=text_only, tp=tp)
        if weights == "nvfp4" and gpu in ("h100", "h200"):
            with pytest.raises(PlanError, match="NVFP4 weights are for Blackwell"):
                make_plan(inputs, with_changes=False)
            continue
        plan = make_plan(inputs, with_changes=False)
        assert plan.memory.fits, (inputs, plan.memory.problems)
        assert 0.5 < plan.memory.static_fraction < 0.97
        assert all(argument.reason and argument.source for argument in plan.arguments)
        flags = [token for token in plan.server_arguments if token.startswith("--")]
        assert len(flags) == len(set(flags))


@pytest.mark.parametrize("tp", [3, 8])
def test_gpus_that_cannot_share_the_heads_are_refused(tp: int) -> None:
    message = "tp must be one of 1, 2, 4, 8, not 3" if tp == 3 else "8 GPUs cannot share 4 key-value heads evenly"
    with pytest.raises(PlanError, match=message):
        make_plan(PlanInputs(gpu="h100", model="clef", tp=tp))
