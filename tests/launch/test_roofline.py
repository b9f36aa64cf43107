"""The bound on a request's time, against figures worked out by hand from the sizes."""

import pytest

from launch.plan.gpu import gpu_named, gpus
from launch.plan.model_shape import known_models
from launch.plan.roofline import bound, request_work
from launch.plan.tensors import listed_tensors
from launch.plan.token_memory import token_memory

FLASH = known_models()["clef-flash"]
MEMORY = token_memory(FLASH, tp=1, state="float32")
# Matrices, convolutions, norms and what else the 32 layers hold.
LAYER_PARAMETERS = sum(
    t.parameters for t in listed_tensors(FLASH, "bf16") if t.name.startswith("model.") and ".layers." in t.name
)


def test_arithmetic_of_a_new_state() -> None:
    new = 4608
    work = request_work(FLASH, listed_tensors(FLASH, "bf16"), MEMORY, cached_tokens=0, new_tokens=new)
    matrices = 2 * LAYER_PARAMETERS * new
    attention = 4 * 16 * 256 * 8 * new * (new + 1) // 2
    delta = 6 * 128 * 128 * 32 * 24 * new
    head = 2 * 4096 * 1024 * new + 4 * 1024**2 * 6 * new
    assert work.flop == pytest.approx(matrices + attention + delta + head, rel=1e-12)
    # The rule of thumb, 2 operations a parameter and token, is most of it.
    assert matrices / work.flop == pytest.approx(0.97, abs=0.01)


def test_bytes_of_a_cached_state() -> None:
    work = request_work(FLASH, listed_tensors(FLASH, "bf16"), MEMORY, cached_tokens=4096, new_tokens=512)
    weights = sum(
        t.stored_bytes for t in listed_tensors(FLASH, "bf16") if t.name.startswith("model.") and ".layers." in t.name
    )
    head = 2 * (1024 * 4096 + 6 * 4 * 1024**2)
    tokens = 4608 * (32_768 + 2048) + 512 * 4096 * 2
    assert work.bytes_moved == weights + head + tokens + 3 * MEMORY.state_bytes


def test_new_tokens_attend_to_cached_ones() -> None:
    tensors = listed_tensors(FLASH, "bf16")
    near, far = (request_work(FLASH, tensors, MEMORY, cached_tokens=n, new_tokens=100) for n in (0, 10_000))
    attention = 4 * 16 * 256 * 8 * 100 * 10_000
    assert far.flop - near.flop == pytest.approx(attention + 4 * 1024**2 * 6 * 10_000)


def test_a_long_new_state_is_bound_by_arithmetic_and_a_short_question_by_memory() -> None:
    tensors = listed_tensors(FLASH, "bf16")
    h200 = gpu_named("h200")
    cold = bound(request_work(FLASH, tensors, MEMORY, cached_tokens=0, new_tokens=4608), h200, tp=1)
    short = bound(request_work(FLASH, tensors, MEMORY, cached_tokens=4096, new_tokens=64), h200, tp=1)
    assert (cold.limit, short.limit) == ("compute", "memory")
    assert cold.least_s == cold.compute_s == pytest.approx(65.7e12 / 989e12, rel=0.01)
    assert short.least_s == short.memory_s == pytest.approx(14.2e9 / 4.8e12, rel=0.01)


def test_fp8_weights_use_fp8_rates_for_the_matrices_alone() -> None:
    h200 = gpu_named("h200")
    work = request_work(FLASH, listed_tensors(FLASH, "fp8"), MEMORY, cached_tokens=0, new_tokens=4096)
    assert work.flop_by_rate["fp8"] / work.flop > 0.9
    plain = request_work(FLASH, listed_tensors(FLASH, "bf16"), MEMORY, cached_tokens=0, new_tokens=4096)
    assert work.flop == pytest.approx(plain.flop, rel=1e-9)
    assert bound(plain, h200, tp=1).compute_s / bound(work, h200, tp=1).compute_s == pytest.approx(1.94, abs=0.03)
    assert work.bytes_moved < 0.6 * plain.bytes_moved


def test_int4_weights_move_fewer_bytes_and_compute_in_bf16() -> None:
    work = request_work(FLASH, listed_tensors(FLASH, "int4"), MEMORY, cached_tokens=0, new_tokens=4096)
    assert work.flop_by_rate == {"bf16": work.flop, "fp8": 0.0, "fp4": 0.0}


def test_fp4_needs_tensor_cores_for_it() -> None:
    work = request_work(FLASH, listed_tensors(FLASH, "nvfp4"), MEMORY, cached_tokens=0, new_tokens=4096)
    with pytest.raises(ValueError, match="H100 SXM 80 GB has no FP4 tensor cores"):
        bound(work, gpu_named("h100"), tp=1)
    assert bound(work, gpu_named("b300"), tp=1).compute_s < bound(work, gpu_named("b200"), tp=1).compute_s


def test_two_gpus_halve_the_bound() -> None:
    work = request_work(FLASH, listed_tensors(FLASH, "bf16"), MEMORY, cached_tokens=0, new_tokens=4096)
    assert bound(work, gpu_named("b200"), tp=2).least_s == bound(work, gpu_named("b200"), tp=1).least_s / 2


@pytest.mark.parametrize("name", gpus())
def test_rates_are_those_of_dense_products(name: str) -> None:
    """Each halving of the type doubles the rate, to the digits of the datasheets, but for the B300's FP4."""
    gpu = gpus()[name]
    assert gpu.fp8_tflop_s / gpu.bf16_tflop_s == pytest.approx(2, abs=0.002)
    assert gpu.fp4_tflop_s is None or gpu.fp4_tflop_s / gpu.fp8_tflop_s == pytest.approx(
        2 if name == "b200" else 3.1, abs=0.02
    )
    assert (gpu.fp4_tflop_s is None) == (gpu.architecture == "hopper")
