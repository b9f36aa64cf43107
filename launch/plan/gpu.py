"""The GPUs that plans are made for, from `gpus.toml`. Knows numbers of datasheets; nothing of the machine it runs on."""

from functools import cache
from typing import Literal

from pydantic import Field

from launch.plan.data_file import DIRECTORY, Table, read_table

Architecture = Literal["hopper", "blackwell"]
GpuName = Literal["h100", "h200", "b200", "b300"]


class Gpu(Table):
    """One kind of GPU. `fp4_tflop_s` is None where there are no FP4 tensor cores.

    Attributes:
        smi_names: what nvidia-smi calls it.
        memory_mib: what nvidia-smi shows as its total, in MiB.
        bandwidth_tb_s: of its memory, in units of 10^12 bytes a second.
        bf16_tflop_s: dense products a second, in units of 10^12 operations.
        source: the datasheet.
    """

    name: str
    architecture: Architecture
    smi_names: list[str] = Field(min_length=1)
    memory_mib: int = Field(gt=0)
    bandwidth_tb_s: float = Field(gt=0)
    bf16_tflop_s: float = Field(gt=0)
    fp8_tflop_s: float = Field(gt=0)
    fp4_tflop_s: float | None = Field(default=None, gt=0)
    source: str

    @property
    def memory_bytes(self) -> int:
        return self.memory_mib << 20


class _Gpus(Table):
    h100: Gpu
    h200: Gpu
    b200: Gpu
    b300: Gpu


@cache
def gpus() -> dict[str, Gpu]:
    """Every GPU by its short name."""
    table = read_table(DIRECTORY / "gpus.toml", _Gpus)
    return {name: getattr(table, name) for name in _Gpus.model_fields}


def gpu_named(name: str) -> Gpu:
    """The GPU of that short name.

    Raises:
        ValueError: there is none.
    """
    if name not in gpus():
        raise ValueError(f"no GPU is called {name!r}; plans are made for {', '.join(gpus())}")
    return gpus()[name]
