"""What SGLang's levers on the size of a recurrent state cost in answers, as measured: `state_levers.toml`."""

from functools import cache

from launch.plan.data_file import DIRECTORY, Table, read_table


class Lever(Table):
    """Max |dp| over all options, against an engine that caches nothing, by the type the engine computes in.

    Attributes:
        summary: one line for people.
        cold_fp32, cold_bf16: of requests that compute their state, in chunks.
        cached_fp32, cached_bf16: of requests that find it cached.
    """

    summary: str
    cold_fp32: float
    cached_fp32: float
    cold_bf16: float
    cached_bf16: float


class _Levers(Table):
    float32: Lever
    bfloat16: Lever
    int8: Lever


@cache
def state_levers() -> dict[str, Lever]:
    """By state format."""
    table = read_table(DIRECTORY / "state_levers.toml", _Levers)
    return {"float32": table.float32, "bfloat16": table.bfloat16, "int8": table.int8}
