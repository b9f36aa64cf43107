"""Where the memory of each GPU goes, and what fits: states cached, requests at once. From sizes alone, before anything runs.

Weights and pools follow SGLang to the byte; what it measures on a GPU (its own context, activations, graphs) is estimated
and named so. Knows no profile and no command line.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from launch.plan.activations import (
    MEDIA_CACHE_BYTES,
    VISION_RESERVE_BYTES,
    activation_estimate,
    prefill_graph_bytes,
    sglang_reserve,
)
from launch.plan.gpu import Gpu
from launch.plan.model_shape import ModelShape
from launch.plan.pools import (
    GIB,
    SLOTS_A_REQUEST,
    Budget,
    PoolArguments,
    PoolError,
    Pools,
    Traffic,
    cached_states,
    divide,
    states_that_fit,
)
from launch.plan.tensors import Tensor
from launch.plan.token_memory import StateFormat, TokenMemory, token_memory
from launch.plan.weight_plan import WeightPlan, plan_weights

# Not available to anyone: what the driver and a CUDA context with NCCL hold before weights are loaded. Assumed.
CONTEXT_BYTES = 3 * GIB // 2
# Library workspaces and what the allocator loses while it loads weights. Assumed.
LOADING_BYTES = GIB // 2
# Fractions are given to SGLang with this many digits.
_FRACTION_DIGITS = 3


@dataclass(frozen=True, kw_only=True)
class MemoryRequest:
    """What to plan for.

    Attributes:
        traffic: state and schema lengths, requests at once, chunks, states kept of a path.
        text_only: without the vision tower.
        state_format: how recurrent states are kept; int8 is for cached ones, running ones stay FP32.
        prefill_graphs: whether prefill is captured in CUDA graphs.
        static_fraction, pools, checkpoint_slots: what the user fixed; None, or its None fields, where the plan chooses.
        context_tokens: the longest prompt with SGLang's reserve.
    """

    shape: ModelShape
    tensors: Sequence[Tensor]
    gpu: Gpu
    tp: int
    traffic: Traffic
    text_only: bool = False
    state_format: StateFormat = "float32"
    prefill_graphs: bool = False
    static_fraction: float | None = None
    pools: PoolArguments = field(default_factory=PoolArguments)
    checkpoint_slots: int | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The plan for each rank. Bytes throughout.

    Attributes:
        reserve_bytes: kept free for forward passes, by SGLang's rule.
        activation_bytes: our estimate of what a forward pass takes of that.
        graph_bytes: SGLang's allowance for prefill graphs, part of the reserve.
        checkpoint_slots, checkpoint_bytes: the int8 pool, which SGLang does not count among the static memory.
        pools: None if they cannot be allocated.
        cached_states: distinct states that stay cached beside `running_requests` over other ones.
        problems: why it does not fit; empty if it does.
    """

    request: MemoryRequest
    weights: WeightPlan
    memory: TokenMemory
    budget: Budget
    rotary_bytes: int
    reserve_bytes: int
    activation_bytes: int
    graph_bytes: int
    checkpoint_slots: int
    checkpoint_bytes: int
    pools: Pools | None
    running_requests: int
    cached_states: int
    problems: tuple[str, ...]

    @property
    def fits(self) -> bool:
        return not self.problems

    @property
    def static_fraction(self) -> float:
        return self.budget.static_fraction


def plan_memory(request: MemoryRequest) -> MemoryPlan:
    """Plan, choosing what the user left open.

    The number of running requests is halved until as many states stay cached as run at once, or one runs.
    """
    wish = request.pools.max_running_requests or request.traffic.running_requests
    running = wish
    while True:
        plan = _plan(replace(request, traffic=replace(request.traffic, running_requests=running)))
        fixed = request.pools.max_running_requests is not None
        if fixed or running == 1 or (plan.fits and plan.cached_states >= running):
            return plan
        running = max(1, running // 2)


def _plan(request: MemoryRequest) -> MemoryPlan:
    tp, traffic = request.tp, request.traffic
    weights = plan_weights(request.tensors, tp=tp, text_only=request.text_only)
    in_int8 = request.state_format == "int8"
    memory = token_memory(request.shape, tp=tp, state="bfloat16" if request.state_format == "bfloat16" else "float32")
    text = request.shape.text
    rotary = text.max_position_embeddings * (text.head_dim // 4) * 4
    graphs = prefill_graph_bytes(traffic.chunk_tokens) if request.prefill_graphs else 0
    reserve = sglang_reserve(
        memory_mib=request.gpu.memory_mib, tp=tp, chunk_tokens=traffic.chunk_tokens, graph_bytes=graphs
    )
    reserve += 0 if request.text_only else VISION_RESERVE_BYTES
    before = request.gpu.memory_bytes - CONTEXT_BYTES
    after = before - LOADING_BYTES - weights.total_bytes - rotary
    media = 0 if request.text_only else MEDIA_CACHE_BYTES

    slots = request.checkpoint_slots or 0
    fraction = request.static_fraction
    if fraction is None:
        pool_bytes = after - reserve - media
        if in_int8 and request.checkpoint_slots is None:
            states = states_that_fit(pool_bytes, memory, traffic, in_int8=True)
            slots = max(1, states) * traffic.states_per_path
        outside = reserve + (_checkpoint_bytes(memory, slots) if in_int8 else 0)
        scale = 10**_FRACTION_DIGITS
        fraction = max(0.0, math.floor((before - outside) / before * scale) / scale)
    elif in_int8 and request.checkpoint_slots is None:
        # SGLang's default: twice the active pool (maybe_init_int8_mamba_checkpoint_pool).
        slots = 2 * (request.pools.max_mamba_cache_size or SLOTS_A_REQUEST * traffic.running_requests)
    budget = Budget(
        before_load_gib=before / GIB,
        after_load_gib=after / GIB,
        static_fraction=fraction,
        reserved_gib=media / GIB,
    )
    arguments = _pool_arguments(request, budget, memory, in_int8)
    pools, problems = None, []
    try:
        pools = divide(budget, memory, arguments)
    except PoolError as err:
        problems.append(str(err))
    cached = cached_states(pools, traffic, slots if in_int8 else None) if pools else 0
    if pools and pools.token_slots < traffic.prompt_tokens:
        problems.append(f"{pools.token_slots:,} tokens of cache hold no prompt of {traffic.prompt_tokens:,}")
    elif pools and not cached:
        problems.append(f"no state of {traffic.state_tokens:,} tokens stays cached beside the running requests")
    outside = round(before * (1 - fraction)) - (_checkpoint_bytes(memory, slots) if in_int8 else 0)
    activations = activation_estimate(request.shape, tp=tp, chunk_tokens=traffic.chunk_tokens)
    if outside < activations + graphs:
        problems.append(
            f"a forward pass needs about {activations / GIB:.1f} GiB and {max(0, outside) / GIB:.1f} GiB stay free for it"
        )
    return MemoryPlan(
        request=request,
        weights=weights,
        memory=memory,
        budget=budget,
        rotary_bytes=rotary,
        reserve_bytes=reserve,
        activation_bytes=activations,
        graph_bytes=graphs,
        checkpoint_slots=slots if in_int8 else 0,
        checkpoint_bytes=_checkpoint_bytes(memory, slots) if in_int8 else 0,
        pools=pools,
        running_requests=pools.running_requests if pools else 0,
        cached_states=cached,
        problems=tuple(problems),
    )


def _checkpoint_bytes(memory: TokenMemory, slots: int) -> int:
    """Slot 0 is reserved (MambaCheckpointPool)."""
    return (slots + 1) * memory.int8_bytes


def _pool_arguments(request: MemoryRequest, budget: Budget, memory: TokenMemory, in_int8: bool) -> PoolArguments:
    """The user's, completed by a split for the traffic."""
    given, traffic = request.pools, request.traffic
    states = given.max_mamba_cache_size
    if states is None and given.mamba_full_memory_ratio is None:
        states = SLOTS_A_REQUEST * traffic.running_requests
        if not in_int8:
            fit = states_that_fit(int(budget.pools_gib * GIB), memory, traffic, in_int8=False)
            states += max(0, fit) * traffic.states_per_path
    return replace(
        given,
        max_mamba_cache_size=states,
        max_running_requests=given.max_running_requests or traffic.running_requests,
    )
