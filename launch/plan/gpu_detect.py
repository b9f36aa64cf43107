"""Which of the planned-for GPUs this machine has, asked of nvidia-smi. Needs no package and starts nothing on the GPU."""

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from launch.plan.gpu import gpus

QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader")
_TIMEOUT_S = 30


class GpuDetectError(ValueError):
    """The GPU could not be told; the message says why and how to name one."""


@dataclass(frozen=True, kw_only=True)
class DetectedGpu:
    """The short name of the visible GPUs, which are all of one kind, and how many there are."""

    name: str
    count: int


def detect_gpu(environ: Mapping[str, str] = os.environ, ask: Callable[[], str] | None = None) -> DetectedGpu:
    """The visible GPUs of this machine, CUDA_VISIBLE_DEVICES honoured.

    Args:
        ask: gives the output of QUERY.

    Raises:
        GpuDetectError: see there.
    """
    names = visible_entries((ask or _ask)(), environ.get("CUDA_VISIBLE_DEVICES"))
    if not names:
        raise GpuDetectError("nvidia-smi shows no GPU that CUDA_VISIBLE_DEVICES leaves visible")
    if len(set(names)) > 1:
        raise GpuDetectError(
            f"the visible GPUs differ ({', '.join(sorted(set(names)))}); choose with CUDA_VISIBLE_DEVICES"
        )
    for short, gpu in gpus().items():
        if names[0] in gpu.smi_names:
            return DetectedGpu(name=short, count=len(names))
    known = ", ".join(f"{short} ({gpu.name})" for short, gpu in gpus().items())
    raise GpuDetectError(
        f"this machine has a {names[0]}, for which there is no profile; profiles exist for {known}. Start without "
        "--profile and SGLang chooses, or name the nearest with --gpu in `clef-serve plan`"
    )


def visible_entries(listing: str, visible: str | None) -> list[str]:
    """What a listing of `index, UUID, more` by nvidia-smi says of each GPU that the variable's value leaves visible, in order.

    Raises:
        GpuDetectError: the listing is something else.
    """
    rows = [[field.strip() for field in line.split(",", 2)] for line in listing.splitlines() if line.strip()]
    if any(len(row) != 3 for row in rows):
        raise GpuDetectError(f"nvidia-smi answered what cannot be read: {listing.splitlines()[0]!r}")
    if visible is None:
        return [name for _, _, name in rows]
    chosen = []
    for entry in (part.strip() for part in visible.split(",")):
        # The driver ends the list at the first entry that names no GPU, and takes any unique beginning of a UUID.
        found = [name for index, uuid, name in rows if entry and (entry == index or uuid.startswith(entry))]
        if len(found) != 1:
            break
        chosen.append(found[0])
    return chosen


def _ask() -> str:
    try:
        answered = subprocess.run(QUERY, capture_output=True, text=True, timeout=_TIMEOUT_S)  # noqa: S603 - constant
    except FileNotFoundError as err:
        raise GpuDetectError("nvidia-smi is not installed, so the GPU cannot be told; name a profile and GPU") from err
    except subprocess.TimeoutExpired as err:
        raise GpuDetectError(f"nvidia-smi did not answer within {_TIMEOUT_S} s") from err
    if answered.returncode:
        reason = (answered.stderr or answered.stdout).strip().splitlines() or ["no message"]
        raise GpuDetectError(f"nvidia-smi failed with status {answered.returncode}: {reason[0]}")
    return answered.stdout
