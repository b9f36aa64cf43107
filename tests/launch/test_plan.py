"""Plans as an operator asks for them: arguments with reasons, what the user's own change, what is refused, text and JSON."""

import argparse
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from launch.plan import table as plan_table
from launch.plan.command import add_plan_arguments, add_profiles_arguments, plan_command, profiles_command
from launch.plan.model_shape import known_models
from launch.plan.plan import Plan, PlanError, PlanInputs, make_plan
from launch.plan.tensors import listed_tensors
from launch.plan.text import plan_json, plan_text
from launch.plan.user_arguments import UserArgumentError, read_user_arguments
from tests.launch.test_memory_plan import write_release

FLASH = known_models()["clef-flash"]


def planned(*user: str, **changed: Any) -> Plan:
    """A plan for Clef-Flash on one H200."""
    inputs = {"gpu": "h200", "model": "clef-flash", "user": read_user_arguments(user), **changed}
    return make_plan(PlanInputs(**inputs), with_changes=False)


def value(plan: Plan, flag: str) -> str | None:
    """Of one of our arguments."""
    (found,) = [argument.value for argument in plan.arguments if argument.flag == flag]
    return found


def flags(plan: Plan) -> set[str]:
    return {argument.flag for argument in plan.arguments}


def test_a_plan_is_a_command_line() -> None:
    assert planned().server_arguments == [
        *("--mem-fraction-static", "0.851"),
        *("--chunked-prefill-size", "8192"),
        *("--max-running-requests", "32"),
        *("--max-mamba-cache-size", "642"),
        *("--mamba-radix-cache-strategy", "extra_buffer"),
        *("--mamba-max-states-per-path", "1"),
        *("--mamba-ssm-dtype", "float32"),
        *("--cuda-graph-backend-decode", "disabled"),
        *("--cuda-graph-backend-prefill", "disabled"),
    ]


def test_every_source_exists_in_the_sglang_that_is_installed() -> None:
    """Files and symbols that reasons point to."""
    found = importlib.util.find_spec("sglang")  # importing it would take seconds
    assert found is not None
    assert found.origin is not None
    root = Path(found.origin).parent / "srt"
    here = Path(__file__).resolve().parents[2]
    variants = [
        planned(tp=2, text_only=True, prefill_graphs=True, state_format="int8", weights="int4"),
        planned(gpu="b200", weights="nvfp4", state_format="bfloat16"),
    ]
    sources = {source.source for plan in variants for source in (*plan.arguments, *plan.choices)}
    assert len(sources) > 15
    for part in (part for source in sources for part in source.split("; ")):
        name, *symbols = part.split(", ")
        candidates = [root / name, root / "layers/quantization" / name, here / name]
        texts = [path.read_text() for path in candidates if path.is_file()]
        assert texts, name
        for symbol in symbols:
            assert re.search(rf"\b{symbol.split('.')[-1]}\b", texts[0]), (name, symbol)


def test_several_gpus_and_text_only_add_their_arguments() -> None:
    plan = planned(tp=2, text_only=True)
    assert value(plan, "--tp-size") == "2"
    assert json.loads(value(plan, "--json-model-override-args") or "") == {"language_model_only": True}
    assert planned().memory.weights.by_group["vision"] > 0 == plan.memory.weights.by_group["vision"]


def test_int8_states_bring_a_switch_and_a_pool() -> None:
    plan = planned(state_format="int8")
    assert value(plan, "--enable-int8-mamba-checkpoint") is None
    assert value(plan, "--int8-mamba-ckpt-size") == str(plan.memory.checkpoint_slots)
    assert plan.server_arguments.count("--enable-int8-mamba-checkpoint") == 1
    assert "--enable-int8-mamba-checkpoint" not in flags(planned(state_format="bfloat16"))
    assert value(planned(state_format="bfloat16"), "--mamba-ssm-dtype") == "bfloat16"


def test_prefill_graphs_are_marked_unmeasured() -> None:
    (argument,) = [a for a in planned(prefill_graphs=True).arguments if a.flag == "--cuda-graph-backend-prefill"]
    assert argument.value == "breakable"
    assert argument.reason.startswith("UNMEASURED and without effect today")


@pytest.mark.parametrize(
    ("gpu", "changed", "attention", "delta_net"),
    [
        ("h100", {}, "fa3", "FlashInfer where"),
        ("h200", {"state_format": "bfloat16"}, "fa3", "Triton"),
        ("b200", {}, "trtllm_mha, pages of 64", "Triton"),
        ("b300", {"state_format": "bfloat16"}, "trtllm_mha, pages of 64", "FlashInfer where"),
    ],
)
def test_backends_follow_sglangs_rules(gpu: str, changed: dict[str, Any], attention: str, delta_net: str) -> None:
    choices = {choice.what: choice.value for choice in planned(gpu=gpu, **changed).choices}
    assert choices["attention backend"].startswith(attention)
    assert choices["Gated DeltaNet prefill"].startswith(delta_net)


@pytest.mark.parametrize("user", [("--chunked-prefill-size", "4096"), ("--chunked-prefill-size=4096",)])
def test_user_arguments_win_and_the_plan_follows_them(user: tuple[str, ...]) -> None:
    plan = planned(*user)
    assert "--chunked-prefill-size" not in flags(plan)
    assert [argument.flag for argument in plan.overridden] == ["--chunked-prefill-size"]
    assert plan.server_arguments[-len(user) :] == list(user)
    assert plan.memory.request.traffic.chunk_tokens == 4096
    # SGLang reserves less for a smaller chunk.
    assert plan.memory.static_fraction > planned().memory.static_fraction


@pytest.mark.parametrize(
    ("user", "field", "expected"),
    [
        (("--max-mamba-cache-size", "100"), "state_slots", 100),
        (("--max-total-tokens", "50000"), "token_slots", 50_000),
        (("--max-running-requests", "7"), "running_requests", 7),
        (("--page-size", "64", "--max-total-tokens", "1000"), "token_slots", 960),
    ],
)
def test_users_pools_are_theirs(user: tuple[str, ...], field: str, expected: int) -> None:
    assert getattr(planned(*user).memory.pools, field) == expected


def test_users_tp_and_state_type_are_planned_with() -> None:
    plan = planned("--tp", "2", "--mamba-ssm-dtype", "bfloat16", "--mamba-max-states-per-path", "3")
    assert (plan.memory.request.tp, plan.memory.request.state_format) == (2, "bfloat16")
    assert plan.memory.request.traffic.states_cap == 3
    assert not flags(plan) & {"--tp-size", "--mamba-ssm-dtype", "--mamba-max-states-per-path"}


def test_an_argument_that_changes_nothing_passes_through() -> None:
    plan = planned("--log-level", "info", "--sleep-on-idle")
    assert plan.arguments == planned().arguments
    assert plan.server_arguments[-3:] == ["--log-level", "info", "--sleep-on-idle"]


def test_a_backend_the_user_names_is_no_choice_of_sglangs() -> None:
    assert "attention backend" not in {choice.what for choice in planned("--attention-backend", "triton").choices}


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (
            ("--chunked-prefill-size", "8k"),
            "--chunked-prefill-size must be a whole number of at least 1 for a plan, not '8k'",
        ),
        (("--chunked-prefill-size",), "not ''"),
        (("--chunked-prefill-size", "-1"), "not '-1'"),
        (("--mem-fraction-static", "1.5"), "must be a number above 0 and below 1, not '1.5'"),
        (("--mem-fraction-static=nan",), "not 'nan'"),
        (("--mamba-ssm-dtype", "float16"), "is planned for float32 and bfloat16, not 'float16'"),
        (("--kv-cache-dtype", "fp8_e4m3"), "a plan cannot follow --kv-cache-dtype"),
        (("--disable-radix-cache",), "a plan cannot follow --disable-radix-cache"),
    ],
)
def test_arguments_a_plan_cannot_follow(tokens: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserArgumentError, match=message):
        read_user_arguments(tokens)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "clef-2"}, "'clef-2' is neither a directory here nor one of clef-flash, clef"),
        ({"profile": "fast"}, "no profile is called 'fast'; there are throughput, latency, long-context"),
        ({"state_tokens": 65_536}, "65,536 tokens with 512 of schema exceeds the context of 65,544"),
        ({"gpu": "h100", "weights": "nvfp4"}, "NVFP4 weights are for Blackwell"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        planned(**changed)


def test_a_gpu_without_a_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="no GPU is called 'a100'; plans are made for h100, h200, b200, b300"):
        planned(gpu="a100")


def test_pages_off_the_grid_are_refused() -> None:
    with pytest.raises(PlanError, match="--page-size 48 must divide 64"):
        planned("--page-size", "48")


def test_a_directory_is_planned_from_its_headers(tmp_path: Path) -> None:
    release = write_release(tmp_path / "mine", FLASH, listed_tensors(FLASH, "fp8"))
    mine, known = planned(model=str(release)), planned(weights="fp8")
    assert mine.weights == "fp8"
    assert mine.memory.weights == known.memory.weights
    assert mine.server_arguments == known.server_arguments
    assert mine.shape.assumed == []
    with pytest.raises(PlanError, match="are fp8, not bf16"):
        planned(model=str(release), weights="bf16")


def test_json_holds_the_plan_with_units() -> None:
    plan = make_plan(PlanInputs(gpu="h200", model="clef-flash"))
    shown = json.loads(json.dumps(plan_json(plan)))
    assert shown["fits"] is True
    assert shown["server_arguments"] == plan.server_arguments
    memory = shown["memory_of_each_gpu"]
    assert (memory["kv_bytes_a_token"], memory["row_bytes_a_token"], memory["state_bytes"]) == (
        32_768,
        2048,
        51_511_296,
    )
    assert memory["weights_total_bytes"] == sum(memory["weights_bytes"].values())
    assert shown["capacity"]["cached_states"] == plan.memory.cached_states
    assert shown["least_time_of_a_request"]["cold"]["least_ms"] == pytest.approx(66.4, abs=0.05)
    changes = {change["what"]: change["cached_states"] for change in shown["changes"]}
    assert changes["recurrent states in BF16"] > plan.memory.cached_states
    assert changes["2 GPUs"] > 1.9 * plan.memory.cached_states


def test_text_says_what_does_not_fit_and_what_would() -> None:
    text = plan_text(make_plan(PlanInputs(gpu="h100", model="clef", state_tokens=65_000)))
    assert "IT DOES NOT FIT" in text
    assert re.search(r"half the chunk +does not fit", text)
    assert re.search(r"2 GPUs +\d+ states beside", text)
    assert "Assumed, not from the release's own card: intermediate_size" in text


def run_plan(*arguments: str, engine: tuple[str, ...] = ()) -> int:
    parser = argparse.ArgumentParser()
    add_plan_arguments(parser)
    return plan_command(parser.parse_args(arguments), engine)


def test_the_plan_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plan("--gpu", "h200", "--model", "clef-flash", "--json", engine=("--max-running-requests", "4")) == 0
    assert json.loads(capsys.readouterr().out)["capacity"]["running_requests"] == 4
    assert run_plan("--gpu", "b200", "--model", "clef", "--tp", "2", "--weights", "nvfp4", "--text-only") == 0
    assert "2 x B200 SXM 180 GB" in capsys.readouterr().out.splitlines()[0]
    assert run_plan("--gpu", "h100", "--model", "clef", "--state-tokens", "65000") == 1


@pytest.mark.parametrize(
    ("flag", "given"), [("--tp", "0"), ("--tp", "1_0"), ("--gpu", "a100"), ("--state-tokens", "x")]
)
def test_a_wrong_command_line_ends_with_2(flag: str, given: str, capsys: pytest.CaptureFixture[str]) -> None:
    right = {"--gpu": "h200", "--model": "clef-flash"}
    with pytest.raises(SystemExit) as ended:
        run_plan(*(token for pair in {**right, flag: given}.items() for token in pair))
    assert ended.value.code == 2
    assert given in capsys.readouterr().err


def test_the_profiles_command(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_profiles_arguments(parser)
    assert profiles_command(parser.parse_args([])) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("throughput (default): ")
    assert "clef: running requests 16" in shown
    assert profiles_command(parser.parse_args(["--json"])) == 0
    assert json.loads(capsys.readouterr().out)["latency"]["chunk_tokens"]["value"] == 4096


def test_the_committed_table_is_current() -> None:
    page = plan_table.PAGE.read_text(encoding="utf-8")
    assert plan_table.with_table(page) == page, "run: python -m launch.plan.table"
    assert page.count("\n| clef") == 24
