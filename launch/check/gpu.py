"""Checks of the GPUs: there, of an architecture and with a driver that PyTorch was built for, with memory for the plan.

Asks nvidia-smi and the driver library, and starts nothing on a GPU.
"""

import ctypes
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launch.check.install import Built
from launch.check.result import CheckResult, failed, not_needed, passed, warning
from launch.device import DRIVER_LIBRARY
from launch.plan import gpu_detect
from launch.plan.gpu import gpus
from launch.plan.memory_plan import CONTEXT_BYTES, LOADING_BYTES, MemoryPlan
from launch.plan.plan import PlanInputs, make_plan
from launch.plan.pools import GIB
from launch.plan.profile import DEFAULT_PROFILE
from launch.plan.user_arguments import UserArgumentError, read_user_arguments

FACTS = "index,uuid,name,driver_version,compute_cap,memory.free,memory.total"
QUERY = ("nvidia-smi", f"--query-gpu={FACTS}", "--format=csv,noheader,nounits")
QUERY_TIMEOUT_S = 30
# The first driver of each CUDA major version, NVIDIA's "CUDA Compatibility", table of minor version compatibility.
FIRST_DRIVER = {12: 525, 13: 580}
# What NCCL's own documentation asks a container to have (troubleshooting, shared memory): --shm-size=1g. SGLang's
# broadcasts take 24 MiB of it for each group of ranks (distributed/parallel_state.py, create_from_process_group).
SHARED_MEMORY_BYTES = GIB
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - measured, not written to
NAMES = ("gpu", "architecture", "driver", "gpu memory", "shared memory")


class GpuFactsError(ValueError):
    """nvidia-smi does not tell of any GPU; the message says why."""


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """One GPU as nvidia-smi shows it; memory in MiB."""

    name: str
    driver: str
    capability: tuple[int, int]
    free_mib: int
    total_mib: int


def visible_gpus(environ: Mapping[str, str] = os.environ, ask: Callable[[], str] | None = None) -> list[GpuFacts]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order.

    Args:
        ask: gives the output of QUERY.

    Raises:
        GpuFactsError: see there.
    """
    try:
        rows = gpu_detect.visible_entries((ask or _ask)(), environ.get("CUDA_VISIBLE_DEVICES"))
        return [_facts(row) for row in rows]
    except gpu_detect.GpuDetectError as err:
        raise GpuFactsError(str(err)) from err


def _facts(row: str) -> GpuFacts:
    try:
        name, driver, capability, free, total = (field.strip() for field in row.rsplit(",", 4))
        major, minor = (int(number) for number in capability.split("."))
        return GpuFacts(name=name, driver=driver, capability=(major, minor), free_mib=int(free), total_mib=int(total))
    except ValueError as err:
        raise GpuFactsError(f"nvidia-smi answered what cannot be read: {row!r}") from err


def _ask() -> str:
    try:
        answered = subprocess.run(QUERY, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S)  # noqa: S603 - constant
    except FileNotFoundError as err:
        raise GpuFactsError("nvidia-smi is not installed here") from err
    except subprocess.TimeoutExpired as err:
        raise GpuFactsError(f"nvidia-smi did not answer within {QUERY_TIMEOUT_S} s") from err
    if answered.returncode:
        reason = (answered.stderr or answered.stdout).strip().splitlines() or ["no message"]
        raise GpuFactsError(f"nvidia-smi failed with status {answered.returncode}: {reason[0]}")
    return answered.stdout


def driver_cuda_version(library: str = DRIVER_LIBRARY) -> tuple[int, int] | None:
    """The CUDA version that the installed driver library speaks; None if there is none."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(version)):
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def no_gpu_checks(reason: str) -> list[CheckResult]:
    """All of this file's checks, where no GPU is used."""
    return [not_needed(name, reason) for name in NAMES]


def check_gpu(found: list[GpuFacts], tp: int) -> CheckResult:
    """Whether there are as many as the ranks need."""
    if len(found) < tp:
        remedy = "make more visible (CUDA_VISIBLE_DEVICES, the container's GPUs), or ask for fewer with -- --tp-size"
        return failed("gpu", f"{tp} GPUs are needed and {len(found)} visible", remedy)
    used = found[:tp]
    return passed("gpu", f"{tp} x {used[0].name}" if tp > 1 else used[0].name)


def check_architecture(found: list[GpuFacts], built: Built | None) -> CheckResult:
    """Whether PyTorch holds code for each GPU: of its own architecture, or an earlier one of the same major version."""
    if built is None:
        return warning("architecture", "not compared: PyTorch could not be asked", "see the check of the plugin")
    codes = [_architecture(code) for code in built.built_for]
    for gpu in found:
        major, minor = gpu.capability
        if not any(code[0] == major and code[1] <= minor for code in codes):
            line = (
                f"{gpu.name} has compute capability {major}.{minor}, and PyTorch code for {' '.join(built.built_for)}"
            )
            return failed("architecture", line, "serve on a GPU of one of these, or without one: --device cpu")
    major, minor = found[0].capability
    return passed("architecture", f"compute capability {major}.{minor}, for which PyTorch has code")


def check_driver(found: list[GpuFacts], built: Built | None, speaks: tuple[int, int] | None) -> CheckResult:
    """Whether the driver knows the CUDA version PyTorch was built with; any minor version of the same major one does."""
    driver = found[0].driver
    if speaks is None:
        return failed("driver", f"{DRIVER_LIBRARY} does not answer", "install the NVIDIA driver, or mount it here")
    if built is None:
        return warning("driver", f"{driver} not compared: PyTorch could not be asked", "see the check of the plugin")
    if built.cuda is None:
        return failed("driver", "PyTorch was built without CUDA", "make install DEVICE=cuda")
    major = int(built.cuda.split(".")[0])
    line = f"driver {driver} speaks CUDA {speaks[0]}.{speaks[1]}, PyTorch is built with {built.cuda}"
    if speaks[0] >= major:
        return passed("driver", line)
    least = FIRST_DRIVER.get(major)
    remedy = f"install driver {least} or later" if least else f"install a driver that speaks CUDA {major}"
    return failed("driver", line, remedy)


def check_memory(
    found: list[GpuFacts], release: Path, *, tp: int, profile: str | None, engine_args: tuple[str, ...]
) -> CheckResult:
    """Whether the profile's plan fits the GPU, and what it counts on is free; without one, whether the weights find room."""
    short = next((name for name, gpu in gpus().items() if found[0].name in gpu.smi_names), None)
    if short is None and profile is not None:
        line = f"there is no profile for a {found[0].name}; there are for {', '.join(gpus())}"
        return failed("gpu memory", line, "leave --profile out, and SGLang chooses")
    if short is None:
        line = f"there is no plan for a {found[0].name}, so {_gib(_least_free(found))} free are compared with nothing"
        return warning("gpu memory", line, f"watch the first start; plans exist for {', '.join(gpus())}")
    try:
        user = read_user_arguments(engine_args)
        inputs = PlanInputs(gpu=short, model=str(release), profile=profile or DEFAULT_PROFILE, tp=tp, user=user)
        plan = make_plan(inputs, with_changes=False)
    except UserArgumentError as err:
        if profile is not None:
            return failed("gpu memory", str(err), "leave --profile or this argument out")
        return warning("gpu memory", f"not planned: {err}", "watch the first start")
    except ValueError as err:
        return failed("gpu memory", str(err), f"clef-serve plan --gpu {short} shows what can be served")
    if profile is not None and not plan.memory.fits:
        remedy = f"clef-serve plan --gpu {short} --model {release} --profile {profile} says what to change"
        return failed("gpu memory", "; ".join(plan.memory.problems), remedy)
    return _compare(plan.memory, _least_free(found), planned=profile is not None)


def _compare(plan: MemoryPlan, free: int, *, planned: bool) -> CheckResult:
    """Bytes that are free against those of a plan; not `planned`, only what any start needs."""
    least = plan.weights.total_bytes + LOADING_BYTES + plan.reserve_bytes
    others = "end the other processes on it (nvidia-smi lists them)"
    if free < least:
        line = f"{_gib(free)} are free, and weights and forward passes alone take {_gib(least)}"
        return failed("gpu memory", line, f"{others}, or divide the model with -- --tp-size")
    line = f"{_gib(free)} free, {_gib(plan.weights.total_bytes)} of weights"
    if not planned:
        return passed("gpu memory", f"{line}; without --profile SGLang divides the rest")
    counted_on = plan.request.gpu.memory_bytes - CONTEXT_BYTES
    if free < counted_on:
        line = f"{_gib(free)} are free and the plan counts on {_gib(counted_on)}: fewer states stay cached"
        return warning("gpu memory", line, others)
    cached = f"{plan.cached_states} states of {plan.request.traffic.state_tokens:,} tokens stay cached"
    return passed("gpu memory", f"{line}; {cached}")


def check_shared_memory(tp: int, folder: Path = SHARED_MEMORY) -> CheckResult:
    """Whether several ranks find the shared memory they talk through; one rank talks to nobody."""
    if tp == 1:
        return not_needed("shared memory", "one GPU; it is for several")
    remedy = "give the container more: --shm-size=1g, or in Kubernetes an emptyDir of medium Memory on /dev/shm"
    try:
        status = os.statvfs(folder)
    except OSError as err:
        return failed("shared memory", f"{folder} cannot be used: {err.strerror}", remedy)
    free = status.f_bavail * status.f_frsize
    line = f"{folder} has {free / (1 << 20):,.0f} MiB free, and {tp} ranks want {SHARED_MEMORY_BYTES >> 20:,}"
    return passed("shared memory", line) if free >= SHARED_MEMORY_BYTES else failed("shared memory", line, remedy)


def _architecture(code: str) -> tuple[int, int]:
    """`sm_103` -> (10, 3)."""
    digits = "".join(character for character in code.partition("_")[2] if character.isdigit())
    return int(digits[:-1] or 0), int(digits[-1:] or 0)


def _least_free(found: list[GpuFacts]) -> int:
    """Bytes on the fullest of them."""
    return min(gpu.free_mib for gpu in found) << 20


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
