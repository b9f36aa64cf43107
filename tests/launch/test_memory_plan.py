"""The arithmetic of memory, against figures worked out elsewhere: design.md's table, SGLang's own numbers, paper and pencil."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.plan.activations import activation_estimate, prefill_graph_bytes, sglang_reserve
from launch.plan.gpu import gpu_named
from launch.plan.memory_plan import MemoryRequest, plan_memory
from launch.plan.model_shape import ModelShape, ShapeError, known_models, named_like, shape_of_release
from launch.plan.pools import Budget, PoolArguments, PoolError, Traffic, divide
from launch.plan.tensors import (
    FORMATS,
    Tensor,
    WeightsError,
    WeightsFormat,
    format_of,
    listed_tensors,
    read_tensors,
)
from launch.plan.token_memory import token_memory
from launch.plan.weight_plan import plan_weights
from model_plugin.checkpoint import CheckpointError, head_tensor_shapes

FLASH, CLEF = known_models()["clef-flash"], known_models()["clef"]
# The design's table: (Gated DeltaNet, full attention) layers, hidden size, query heads, key-value heads, GB in BF16.
STATED = {"clef-flash": (24, 8, 4096, 16, 4, 18.8), "clef": (48, 16, 5120, 24, 4, 55.0)}
TRAFFIC = Traffic(state_tokens=4096, schema_tokens=512, running_requests=8, chunk_tokens=8192)


def config_of(shape: ModelShape) -> dict[str, Any]:
    """A `config.json` with these sizes."""
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": {**shape.text.model_dump(), "model_type": "qwen3_5_text"},
        "vision_config": {**shape.vision.model_dump(), "deepstack_visual_indexes": []},
    }


def write_release(
    directory: Path,
    shape: ModelShape,
    tensors: list[Tensor],
    *,
    index: bool = False,
    config: dict[str, Any] | None = None,
) -> Path:
    """A release whose files end after their headers' sizes: sparse, so that 19 GB take no room."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config or config_of(shape)))
    (directory / "joint_head_config.json").write_text(json.dumps(shape.head.model_dump()))
    head_names = head_tensor_shapes(shape.head.checked())
    head = [tensor for tensor in tensors if tensor.name in head_names]
    backbone = [tensor for tensor in tensors if tensor.name not in head_names]
    half = len(backbone) // 2
    parts = {"joint_head.safetensors": head}
    if index:
        parts |= {"model-1-of-2.safetensors": backbone[:half], "model-2-of-2.safetensors": backbone[half:]}
        placed = {tensor.name: name for name, part in parts.items() if part is not head for tensor in part}
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    else:
        parts["model.safetensors"] = backbone
    for name, part in parts.items():
        header, end = {}, 0
        for tensor in part:
            entry = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [end, end + tensor.stored_bytes]}
            header[tensor.name], end = entry, end + tensor.stored_bytes
        written = json.dumps(header).encode()
        with (directory / name).open("wb") as file:
            file.write(struct.pack("<Q", len(written)) + written)
            file.truncate(8 + len(written) + end)
    return directory


@pytest.mark.parametrize("name", STATED)
def test_the_known_releases_have_the_sizes_their_cards_state(name: str) -> None:
    linear, attention, hidden, heads, kv_heads, gigabytes = STATED[name]
    shape = known_models()[name]
    text = shape.text
    assert (text.linear_layers, text.attention_layers, text.hidden_size) == (linear, attention, hidden)
    assert (text.num_attention_heads, text.num_key_value_heads, text.head_dim) == (heads, kv_heads, 256)
    assert (text.vocab_size, shape.head.width, shape.head.feedforward) == (248_320, 1024, 4096)
    plan = plan_weights(listed_tensors(shape, "bf16"), tp=1, text_only=False)
    backbone = plan.total_bytes - plan.by_group["head"]
    assert backbone / 1e9 == pytest.approx(gigabytes, abs=0.05 if name == "clef-flash" else 0.5)


def test_weights_of_clef_flash_group_by_group() -> None:
    """Worked out by hand from the sizes."""
    hidden, inner, vocabulary = 4096, 12_288, 248_320
    mlp = 3 * hidden * inner + 2 * hidden
    delta = hidden * (8192 + 4096 + 64) + 4096 * hidden + 8192 * 4 + 32 + 128
    attention = hidden * (2 * 4096 + 2 * 1024) + 4096 * hidden + 2 * 256
    a_log_in_fp32 = 24 * 32
    plan = plan_weights(listed_tensors(FLASH, "bf16"), tp=1, text_only=False)
    assert plan.by_group["embeddings"] == plan.by_group["lm_head"] == 2 * vocabulary * hidden
    assert plan.by_group["text"] == 2 * (32 * mlp + 24 * delta + 8 * attention + hidden) + 4 * a_log_in_fp32
    assert plan.unloaded_bytes == 0


def test_a_token_and_a_state_of_clef_flash() -> None:
    memory = token_memory(FLASH, tp=1, state="float32")
    assert memory.kv_bytes == 32 * 1024
    assert memory.row_bytes == 2 * 1024
    assert memory.temporal_bytes == 24 * 32 * 128 * 128 * 4
    assert memory.conv_bytes == 24 * 8192 * 3 * 2
    assert memory.state_bytes / 1e6 == pytest.approx(51.5, abs=0.05)
    assert memory.state_bytes > 1500 * memory.kv_bytes


@pytest.mark.parametrize(("state", "megabytes"), [("float32", 51.5), ("bfloat16", 26.3)])
def test_what_a_state_weighs_by_type(state: Any, megabytes: float) -> None:
    assert token_memory(FLASH, tp=1, state=state).state_bytes / 1e6 == pytest.approx(megabytes, abs=0.05)


def test_a_state_in_int8_has_a_byte_a_number_and_a_scale_a_key() -> None:
    memory = token_memory(CLEF, tp=1, state="float32")
    assert memory.int8_bytes == 48 * 48 * 128 * 128 + 48 * 48 * 128 * 4 + memory.conv_bytes


def test_ranks_share_what_has_heads_and_each_keep_the_head_and_its_rows() -> None:
    tensors = listed_tensors(CLEF, "bf16")
    one, four = (plan_weights(tensors, tp=tp, text_only=False) for tp in (1, 4))
    assert four.by_group["head"] == one.by_group["head"]
    assert four.by_group["lm_head"] * 4 == one.by_group["lm_head"]
    norms = 2 * (2 * 64 * 5120 + 5120 + 48 * 128 + 16 * 2 * 256)
    assert four.by_group["text"] - norms == (one.by_group["text"] - norms) // 4
    a, b = (token_memory(CLEF, tp=tp, state="float32") for tp in (1, 4))
    assert (b.kv_bytes, b.state_bytes, b.row_bytes) == (a.kv_bytes // 4, a.state_bytes // 4, a.row_bytes)


def test_a_vocabulary_that_ranks_cannot_share_is_padded() -> None:
    tensors = [Tensor(name="lm_head.weight", shape=(500, 64), dtype="BF16")]
    # 500 rows become 512 = 8 x 64 for two ranks; three need a multiple of 192.
    assert plan_weights(tensors, tp=2, text_only=False).by_group["lm_head"] == 256 * 64 * 2
    assert plan_weights(tensors, tp=3, text_only=False).by_group["lm_head"] == 192 * 64 * 2


@pytest.mark.parametrize(("weights", "bits"), [("bf16", 16.0), ("fp8", 8.0), ("nvfp4", 4.5), ("int4", 4.15)])
def test_listed_weights_take_their_formats_bits(weights: WeightsFormat, bits: float) -> None:
    layers = [t for t in listed_tensors(CLEF, weights) if ".layers." in t.name and t.name.startswith("model.")]
    stored, parameters = sum(t.stored_bytes for t in layers), sum(t.parameters for t in layers)
    plain = [t for t in listed_tensors(CLEF, "bf16") if ".layers." in t.name and t.name.startswith("model.")]
    assert parameters == sum(t.parameters for t in plain)
    assert 8 * stored / parameters == pytest.approx(bits, abs=0.07)


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("index", [False, True])
def test_headers_say_the_same_as_the_list(tmp_path: Path, weights: WeightsFormat, index: bool) -> None:
    tensors = listed_tensors(FLASH, weights)
    release = write_release(tmp_path / "release", FLASH, tensors, index=index)
    assert {(t.name, t.shape, t.dtype) for t in read_tensors(release)} == {(t.name, t.shape, t.dtype) for t in tensors}
    assert format_of(read_tensors(release)) == weights
    shape = shape_of_release(release)
    assert (shape.text, shape.vision, shape.head) == (FLASH.text, FLASH.vision, FLASH.head)
    assert named_like(shape) == "clef-flash"


def test_layers_for_guessing_several_tokens_are_not_loaded() -> None:
    extra = Tensor(name="mtp.layers.0.mlp.up_proj.weight", shape=(10, 10), dtype="BF16")
    plan = plan_weights([extra], tp=1, text_only=False)
    assert (plan.total_bytes, plan.unloaded_bytes) == (0, 200)


def test_a_text_only_server_leaves_the_vision_tower_in_the_file() -> None:
    tensors = listed_tensors(FLASH, "bf16")
    both, text = (plan_weights(tensors, tp=1, text_only=text_only) for text_only in (False, True))
    assert text.by_group["vision"] == 0
    assert text.unloaded_bytes == both.by_group["vision"] == both.total_bytes - text.total_bytes


def test_a_quantized_lm_head_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"lm_head.weight is quantized \(F8_E4M3\)"):
        format_of([Tensor(name="lm_head.weight", shape=(8, 8), dtype="F8_E4M3")])


def test_a_shard_cut_short_is_named(tmp_path: Path) -> None:
    release = write_release(tmp_path / "release", FLASH, listed_tensors(FLASH, "bf16"), index=True)
    with (release / "model-2-of-2.safetensors").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(WeightsError, match="model-2-of-2.safetensors is missing, cut short"):
        read_tensors(release)
    (release / "model-2-of-2.safetensors").unlink()
    with pytest.raises(WeightsError, match="model-2-of-2.safetensors is missing"):
        read_tensors(release)


def test_a_tensor_that_the_index_promises_is_missed(tmp_path: Path) -> None:
    release = write_release(tmp_path / "release", FLASH, listed_tensors(FLASH, "bf16"), index=True)
    index = release / "model.safetensors.index.json"
    placed = json.loads(index.read_text())
    placed["weight_map"]["model.language_model.extra"] = "model-1-of-2.safetensors"
    index.write_text(json.dumps(placed))
    with pytest.raises(WeightsError, match=r"not hold: \['model.language_model.extra'\] \(1 in all\)"):
        read_tensors(release)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "architectures is"),
        ({"text_config": None}, "text_config is missing"),
        ({"text_config": {"hidden_size": 4096}}, "text_config.full_attention_interval: Field required"),
        ({"text_config": {"hidden_size": "wide"}}, "text_config.hidden_size: "),
    ],
)
def test_a_configuration_without_a_size_names_it(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    release = write_release(tmp_path / "release", FLASH, [], config={**config_of(FLASH), **change})
    with pytest.raises(ShapeError, match=message):
        shape_of_release(release)


# The division of memory. Exact figures of a running engine are in tests/engine/test_memory_plan.py.


def test_the_default_ratio_gives_states_nine_tenths_of_what_tokens_get() -> None:
    memory = token_memory(FLASH, tp=1, state="float32")
    budget = Budget(before_load_gib=100.0, after_load_gib=80.0, static_fraction=0.9)
    pools = divide(budget, memory, PoolArguments())
    states, tokens = (pools.state_slots + 1) * memory.state_bytes, pools.token_slots * memory.cell_bytes
    assert states / tokens == pytest.approx(0.9, rel=2e-3)
    assert states + tokens <= 70 * 2**30 < states + tokens + memory.state_bytes + memory.cell_bytes


def test_pages_round_tokens_down_and_states_limit_requests() -> None:
    memory = token_memory(FLASH, tp=1, state="float32")
    budget = Budget(before_load_gib=100.0, after_load_gib=80.0, static_fraction=0.9)
    pools = divide(budget, memory, PoolArguments(page_size=64, max_mamba_cache_size=23, max_running_requests=50))
    assert pools.token_slots % 64 == 0
    assert (pools.state_slots, pools.running_requests) == (23, 4)
    capped = divide(budget, memory, PoolArguments(page_size=64, max_mamba_cache_size=23, max_total_tokens=1000))
    assert capped.token_slots == 960


@pytest.mark.parametrize(
    ("after", "arguments", "message"),
    [
        (20.0, PoolArguments(), "no memory is left for recurrent states"),
        (50.0, PoolArguments(max_mamba_cache_size=1000), "1000 recurrent states leave no memory for tokens"),
        (50.0, PoolArguments(max_mamba_cache_size=4), "serve no request; one takes 5 states"),
    ],
)
def test_pools_that_sglang_could_not_allocate(after: float, arguments: PoolArguments, message: str) -> None:
    budget = Budget(before_load_gib=80.0, after_load_gib=after, static_fraction=0.7)
    with pytest.raises(PoolError, match=message):
        divide(budget, token_memory(FLASH, tp=1, state="float32"), arguments)


def request(**changed: Any) -> MemoryRequest:
    """Clef-Flash on one H100."""
    fields = {
        "shape": FLASH,
        "tensors": listed_tensors(FLASH, "bf16"),
        "gpu": gpu_named("h100"),
        "tp": 1,
        "traffic": TRAFFIC,
    }
    return MemoryRequest(**{**fields, **changed})


def test_both_pools_hold_as_many_states_as_the_plan_says() -> None:
    plan = plan_memory(request())
    assert plan.fits
    assert plan.pools is not None
    for_states = plan.pools.state_slots - 5 * 8
    for_tokens = (plan.pools.token_slots - 8 * 4608) // 4096
    assert plan.cached_states == for_states
    assert for_tokens - for_states in (0, 1)
    assert plan.running_requests == 8


def test_nothing_is_given_away_twice() -> None:
    plan = plan_memory(request())
    assert plan.pools is not None
    static = (
        plan.weights.total_bytes
        + (plan.pools.state_slots + 1) * plan.memory.state_bytes
        + plan.pools.token_slots * plan.memory.cell_bytes
    )
    assert static + plan.reserve_bytes <= plan.request.gpu.memory_bytes


@pytest.mark.parametrize("state_tokens", [64, 1000, 4096, 32_768])
def test_longer_states_move_memory_from_states_to_tokens(state_tokens: int) -> None:
    traffic = replace(TRAFFIC, state_tokens=state_tokens)
    plan = plan_memory(request(traffic=traffic))
    ratio = plan_memory(request(traffic=traffic, pools=PoolArguments(mamba_full_memory_ratio=0.9)))
    assert plan.cached_states >= ratio.cached_states


def test_requests_are_halved_until_as_many_states_stay_cached() -> None:
    plan = plan_memory(request(shape=CLEF, tensors=listed_tensors(CLEF, "bf16")))
    assert plan.running_requests < 8
    assert plan.cached_states >= plan.running_requests
    fixed = PoolArguments(max_running_requests=8)
    insisted = plan_memory(request(shape=CLEF, tensors=listed_tensors(CLEF, "bf16"), pools=fixed))
    assert insisted.problems == (
        "40 recurrent states leave no memory for tokens (5.7 GiB for all pools, 5.7 GiB for states)",
    )


@pytest.mark.parametrize(
    ("chunks", "uncapped", "cap_1", "cap_2"), [(0.5, 1, 1, 1), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 2, 3), (5, 5, 2, 3)]
)
def test_states_kept_of_a_path(chunks: float, uncapped: int, cap_1: int, cap_2: int) -> None:
    """As counted in an engine on the CPU platform, but for the cap of 2."""
    traffic = replace(TRAFFIC, chunk_tokens=1024, state_tokens=int(chunks * 1024))
    kept = [replace(traffic, states_cap=cap).states_per_path for cap in (None, 1, 2)]
    assert kept == [uncapped, cap_1, cap_2]


def test_states_at_each_chunk_end_cost_states() -> None:
    capped = replace(TRAFFIC, state_tokens=32_768, running_requests=2)
    two, four = (plan_memory(request(traffic=traffic)) for traffic in (capped, replace(capped, states_cap=None)))
    assert two.cached_states > four.cached_states
    assert four.pools is not None
    assert four.pools.state_slots == 10 + 4 * four.cached_states


def test_int8_states_have_a_pool_outside_the_static_fraction() -> None:
    plain, int8 = plan_memory(request()), plan_memory(request(state_format="int8"))
    assert int8.cached_states > plain.cached_states
    assert int8.pools is not None
    assert int8.pools.state_slots == 5 * 8
    assert int8.checkpoint_bytes == (int8.checkpoint_slots + 1) * int8.memory.int8_bytes
    outside = int8.request.gpu.memory_bytes * (1 - int8.static_fraction)
    assert outside >= int8.checkpoint_bytes + int8.reserve_bytes - 2 * 2**30


def test_the_users_fraction_is_kept_and_its_cost_is_seen() -> None:
    plan = plan_memory(request(static_fraction=0.995))
    assert plan.static_fraction == 0.995
    assert not plan.fits
    assert plan.problems[0].startswith("a forward pass needs about 0.9 GiB and 0.4 GiB stay free")


def test_a_model_too_large_for_a_gpu_does_not_fit() -> None:
    small = gpu_named("h100").model_copy(update={"memory_mib": 48 * 1024})
    plan = plan_memory(request(shape=CLEF, tensors=listed_tensors(CLEF, "bf16"), gpu=small))
    assert not plan.fits
    assert (plan.pools, plan.running_requests, plan.cached_states) == (None, 0, 0)
    assert "no memory" in plan.problems[0]


@pytest.mark.parametrize(
    ("memory_mib", "tp", "chunk", "mebibytes"),
    [(81_559, 1, 8192, 512 + 12_288 + 128), (81_559, 1, 2048, 10_240), (48_000, 2, 2048, 512 + 3072 + 256)],
)
def test_sglangs_reserve(memory_mib: int, tp: int, chunk: int, mebibytes: int) -> None:
    assert sglang_reserve(memory_mib=memory_mib, tp=tp, chunk_tokens=chunk) == mebibytes << 20


def test_prefill_graphs_take_8_mib_a_size() -> None:
    # 8 sizes up to 32, 14 to 256, 8 to 512, 8 to 1,024, 12 to 4,096, 8 to 8,192
    assert prefill_graph_bytes(8192) == 58 * 8 << 20
    assert prefill_graph_bytes(32) == 8 * 8 << 20


def test_activations_of_a_chunk() -> None:
    """Worked out by hand: the Gated DeltaNet layer is the largest, 2 D + 3 C + 4 V + K' + S / 64 elements a token."""
    elements = 2 * 4096 + 3 * 8192 + 4 * 4096 + 4096 + 32 * 128 * 128 // 64
    assert activation_estimate(FLASH, tp=1, chunk_tokens=8192) == 8192 * elements * 2
    # A short chunk needs less than one pass of the head over 65,536 rows.
    assert activation_estimate(FLASH, tp=1, chunk_tokens=64) == 2 * (64 * (2 * 4096 + 1024) + 65_536 * 6 * 1024)
