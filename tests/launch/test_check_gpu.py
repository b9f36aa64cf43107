"""What is said of GPUs that are too few, too old, too full, or behind an old driver. No GPU is asked."""

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.random_release import build_random_release
from launch.check import gpu as module
from launch.check.gpu import (
    GpuFacts,
    GpuFactsError,
    check_architecture,
    check_driver,
    check_gpu,
    check_memory,
    check_shared_memory,
    driver_cuda_version,
    visible_gpus,
)
from launch.check.install import Built
from launch.plan.memory_plan import CONTEXT_BYTES, LOADING_BYTES
from launch.plan.plan import PlanInputs, make_plan
from launch.plan.profile import DEFAULT_PROFILE

BUILT = Built(cuda="13.0", built_for=("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"))
TOTAL_MIB = 143_771


def gpu(**changes: Any) -> GpuFacts:
    facts = {"name": "NVIDIA H200", "driver": "580.95.05", "capability": (9, 0), "free_mib": 143_000}
    return GpuFacts(**facts | {"total_mib": TOTAL_MIB} | changes)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_release(tmp_path_factory.mktemp("check-gpu") / "demo")


LISTING = (
    "0, GPU-aa1, NVIDIA H200, 580.95.05, 9.0, 143000, 143771\n1, GPU-bb2, NVIDIA H200, 580.95.05, 9.0, 90000, 143771\n"
)


def test_nvidia_smi_is_read_and_only_visible_gpus_count() -> None:
    assert visible_gpus({}, lambda: LISTING) == [gpu(), gpu(free_mib=90_000)]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-bb"}, lambda: LISTING) == [gpu(free_mib=90_000)]
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": ""}, lambda: LISTING) == []


@pytest.mark.parametrize("listing", ["no devices\n", "0, GPU-a, NVIDIA H200, 580, 9, x, 1\n", "0, GPU-a, H200\n"])
def test_what_nvidia_smi_should_not_say_is_quoted(listing: str) -> None:
    with pytest.raises(GpuFactsError, match="nvidia-smi answered what cannot be read"):
        visible_gpus({}, lambda: listing)


def test_a_missing_and_a_failing_nvidia_smi_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GpuFactsError, match="nvidia-smi is not installed here"):
        visible_gpus({})
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'no driver here' >&2\nexit 9\n")
    program.chmod(0o755)
    with pytest.raises(GpuFactsError, match="failed with status 9: no driver here"):
        visible_gpus({})
    program.write_text(f'#!/bin/sh\n[ "$1" = "{module.QUERY[1]}" ] && printf "{LISTING}"\n')
    assert len(visible_gpus({})) == 2


def test_a_gpu_for_each_rank_is_needed() -> None:
    assert check_gpu([gpu()], 1).line == "NVIDIA H200"
    assert check_gpu([gpu(), gpu()], 2).line == "2 x NVIDIA H200"
    result = check_gpu([gpu()], 2)
    assert (result.status, result.line) == ("failed", "2 GPUs are needed and 1 visible")
    assert check_gpu([], 1).line == "1 GPUs are needed and 0 visible"


@pytest.mark.parametrize(
    ("capability", "status"),
    [((9, 0), "ok"), ((10, 3), "ok"), ((8, 9), "ok"), ((7, 0), "failed"), ((11, 0), "failed")],
    ids=["H200", "B300-by-code-for-B200", "L40S", "V100", "none-of-its-major"],
)
def test_pytorch_must_hold_code_for_the_architecture(capability: tuple[int, int], status: str) -> None:
    result = check_architecture([gpu(capability=capability)], BUILT)
    assert result.status == status
    assert f"compute capability {capability[0]}.{capability[1]}" in result.line


def test_every_rank_s_gpu_is_compared() -> None:
    assert check_architecture([gpu(), gpu(capability=(7, 0))], BUILT).status == "failed"


@pytest.mark.parametrize(
    ("speaks", "built", "status", "remedy"),
    [
        ((13, 0), BUILT, "ok", ""),
        ((13, 2), BUILT, "ok", ""),
        ((14, 0), BUILT, "ok", ""),
        ((12, 9), BUILT, "failed", "install driver 580 or later"),
        (None, BUILT, "failed", "install the NVIDIA driver, or mount it here"),
        ((13, 0), Built(cuda=None, built_for=()), "failed", "make install DEVICE=cuda"),
        ((13, 0), Built(cuda="13.2", built_for=()), "ok", ""),
        ((13, 0), Built(cuda="15.0", built_for=()), "failed", "install a driver that speaks CUDA 15"),
        ((13, 0), None, "warning", "see the check of the plugin"),
    ],
    ids=["same", "newer-minor", "newer-major", "older", "none", "no-cuda", "older-minor", "unknown", "not-asked"],
)
def test_the_driver_must_know_pytorch_s_cuda(
    speaks: tuple[int, int] | None, built: Built | None, status: str, remedy: str
) -> None:
    result = check_driver([gpu()], built, speaks)
    assert (result.status, result.remedy) == (status, remedy)


def test_the_driver_library_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802 - the driver's name
            version._obj.value = 13_020
            return 0

    monkeypatch.setattr(module.ctypes, "CDLL", lambda library: Driver())
    assert driver_cuda_version() == (13, 2)
    monkeypatch.undo()
    assert driver_cuda_version("libclef-no-such-driver.so") is None
    assert driver_cuda_version("libc.so.6") is None


def memory(release: Path, free: int, **changes: Any) -> Any:
    options = {"tp": 1, "profile": DEFAULT_PROFILE, "engine_args": ()} | changes
    return check_memory([gpu(), gpu(free_mib=free >> 20)], release, **options)


def test_free_memory_is_held_against_the_plan(release: Path) -> None:
    plan = make_plan(PlanInputs(gpu="h200", model=str(release)), with_changes=False).memory
    planned = (TOTAL_MIB << 20) - CONTEXT_BYTES
    least = plan.weights.total_bytes + LOADING_BYTES + plan.reserve_bytes
    mib = 1 << 20
    good = memory(release, planned)
    assert good.status == "ok"
    assert f"{plan.cached_states} states of {plan.request.traffic.state_tokens:,} tokens stay cached" in good.line
    assert memory(release, planned - mib).status == "warning"
    assert memory(release, least + mib).status == "warning"
    full = memory(release, least - mib)
    assert full.status == "failed"
    assert "end the other processes on it" in full.remedy


def test_a_plan_that_does_not_fit_fails(release: Path) -> None:
    result = memory(release, TOTAL_MIB << 20, engine_args=("--mem-fraction-static", "0.001"))
    assert result.status == "failed"
    assert (
        result.remedy == f"clef-serve plan --gpu h200 --model {release} --profile {DEFAULT_PROFILE} says what to change"
    )


def test_without_a_profile_the_weights_need_room(release: Path) -> None:
    small = ("--mem-fraction-static", "0.001")
    result = memory(release, 40 << 30, profile=None, engine_args=small)
    assert (result.status, result.line) == (
        "ok",
        "40.0 GiB free, 0.0 GiB of weights; without --profile SGLang divides the rest",
    )
    assert memory(release, 1 << 30, profile=None).status == "failed"


def test_what_cannot_be_served_fails_and_what_cannot_be_planned_is_a_warning(release: Path) -> None:
    result = memory(release, TOTAL_MIB << 20, tp=4, engine_args=("--tp-size", "4"))
    assert result.status == "failed"
    assert "4 GPUs cannot share 2 key-value heads evenly" in result.line
    without_cache = ("--disable-radix-cache",)
    assert memory(release, TOTAL_MIB << 20, engine_args=without_cache).status == "failed"
    result = memory(release, TOTAL_MIB << 20, profile=None, engine_args=without_cache)
    assert (result.status, result.line) == (
        "warning",
        "not planned: a plan cannot follow --disable-radix-cache: without the cache there is nothing to plan",
    )
    unknown = [gpu(name="NVIDIA L40S")]
    other = check_memory(unknown, release, tp=1, profile=DEFAULT_PROFILE, engine_args=())
    assert (other.status, other.remedy) == ("failed", "leave --profile out, and SGLang chooses")
    other = check_memory(unknown, release, tp=1, profile=None, engine_args=())
    assert (other.status, other.remedy) == ("warning", "watch the first start; plans exist for h100, h200, b200, b300")


def test_shared_memory_is_for_several_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_shared_memory(1).status == "not needed"
    sizes = {"bsize": 4096, "frsize": 4096}

    def has(mebibytes: int) -> None:
        found = os.statvfs_result((sizes["bsize"], sizes["frsize"], 0, 0, mebibytes * 256, 0, 0, 0, 0, 255))
        monkeypatch.setattr(module.os, "statvfs", lambda folder: found)

    has(1024)
    assert check_shared_memory(2).status == "ok"
    has(64)
    result = check_shared_memory(2)
    assert (result.status, result.line) == ("failed", "/dev/shm has 64 MiB free, and 2 ranks want 1,024")
    assert "--shm-size=1g" in result.remedy
    monkeypatch.undo()
    assert check_shared_memory(2, tmp_path / "none").status == "failed"
