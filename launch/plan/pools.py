"""How SGLang divides what is left of a GPU between tokens and recurrent states. The arithmetic is SGLang's, to the byte.

Source: SGLang 0.5.23, mem_cache/kv_cache_configurator.py (_profile_available_bytes, _handle_max_mamba_cache,
_calculate_mamba_ratio, resolve_max_num_reqs, config_from_budget) and model_executor/pool_configurator.py
(calculate_pool_sizes), for a hybrid model without speculation on one pipeline stage. `tests/engine/test_memory_plan.py`
holds it to what an engine does.
"""

from dataclasses import dataclass

from launch.plan.token_memory import TokenMemory

GIB = 1 << 30
# Slots of the state pool that SGLang counts for a running request: MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO, and
# get_mamba_tracking_slots for the extra_buffer strategy under overlap scheduling.
SLOTS_A_REQUEST = 3 + 2
# The schedule field `mamba_full_memory_ratio` (arg_groups/fields/schedule.py).
DEFAULT_RATIO = 0.9


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What SGLang finds on a device, in GiB as it counts them, and how much of it may be static.

    Attributes:
        before_load_gib: free before the weights are loaded.
        after_load_gib: free after.
        static_fraction: `--mem-fraction-static`.
        reserved_gib: kept for what is allocated later for media.
    """

    before_load_gib: float
    after_load_gib: float
    static_fraction: float
    reserved_gib: float = 0.0

    @property
    def pools_gib(self) -> float:
        """For both pools."""
        return self.after_load_gib - self.before_load_gib * (1 - self.static_fraction) - self.reserved_gib


@dataclass(frozen=True, kw_only=True)
class PoolArguments:
    """Server arguments that the division depends on; None where not given."""

    page_size: int = 1
    context_tokens: int = 65_536 + 8
    max_total_tokens: int | None = None
    max_running_requests: int | None = None
    max_mamba_cache_size: int | None = None
    mamba_full_memory_ratio: float | None = None


@dataclass(frozen=True, kw_only=True)
class Pools:
    """What SGLang allocates: usable slots, without the one or the page that takes writes of padding."""

    token_slots: int
    state_slots: int
    running_requests: int


class PoolError(ValueError):
    """The pools cannot be allocated; SGLang would end at start."""


def divide(budget: Budget, memory: TokenMemory, arguments: PoolArguments) -> Pools:
    """The pools SGLang allocates.

    Raises:
        PoolError: nothing is left for one of them.
    """
    rest_gib = budget.pools_gib
    states = arguments.max_mamba_cache_size
    if states is None:
        ratio = arguments.mamba_full_memory_ratio or DEFAULT_RATIO
        states_gib = rest_gib * ratio / (1 + ratio)
        states = int((states_gib * GIB - memory.state_bytes) // memory.state_bytes)
    if states <= 0:
        raise PoolError(f"no memory is left for recurrent states ({rest_gib:.1f} GiB for all pools)")
    tokens_gib = rest_gib - (states + 1) * memory.state_bytes / GIB
    if tokens_gib <= 0:
        raise PoolError(
            f"{states} recurrent states leave no memory for tokens ({rest_gib:.1f} GiB for all pools, "
            f"{states * memory.state_bytes / GIB:.1f} GiB for states)"
        )
    page = arguments.page_size
    tokens = int(tokens_gib * GIB) // memory.cell_bytes // page * page
    if arguments.max_total_tokens is not None and arguments.max_total_tokens < tokens:
        tokens = arguments.max_total_tokens // page * page
    estimated = max(min(int(tokens / arguments.context_tokens * 512), 4096), 2048)
    running = min(arguments.max_running_requests or estimated, tokens // 2, states // SLOTS_A_REQUEST)
    if running <= 0:
        raise PoolError(
            f"{states} recurrent states and {tokens} tokens serve no request; one takes {SLOTS_A_REQUEST} states"
        )
    return Pools(token_slots=tokens, state_slots=states, running_requests=running)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the pools are divided for.

    Attributes:
        state_tokens: of a state, with the system text before it.
        schema_tokens: of questions and suffix.
        running_requests: at once, each over a state of its own.
        chunk_tokens: prompts are computed in chunks of at most as many tokens.
        states_cap: `--mamba-max-states-per-path`; None for no cap.
        grid: a cached prefix ends at a multiple of it, in tokens.
    """

    state_tokens: int
    schema_tokens: int
    running_requests: int
    chunk_tokens: int
    states_cap: int | None = 1
    grid: int = 64

    @property
    def cached_tokens(self) -> int:
        """Of a state, what stays in the cache: up to the last checkpoint position inside it."""
        return self.state_tokens // self.grid * self.grid

    @property
    def chunk_ends(self) -> int:
        """Of a prompt computed alone, up to the end of its cached state: SGLang keeps a recurrent state at each."""
        return max(1, -(-self.cached_tokens // self.chunk_tokens))

    @property
    def states_per_path(self) -> int:
        """Recurrent states that one cached state keeps.

        One more than the cap: when the last chunk's is added, the running request still holds the one before it, and SGLang
        removes only what nobody holds. Seen on the CPU platform: with a cap of 1, prompts of 1, 2, 3 and 5 chunks kept
        1, 2, 2 and 2 states; without one 1, 2, 3 and 5.
        """
        return self.chunk_ends if self.states_cap is None else min(self.chunk_ends, self.states_cap + 1)

    @property
    def prompt_tokens(self) -> int:
        return self.state_tokens + self.schema_tokens


def states_that_fit(pool_bytes: int, memory: TokenMemory, traffic: Traffic, *, in_int8: bool) -> int:
    """How many distinct states stay cached beside `running_requests` over other ones, if the split is the best for that.

    Negative if not even the running requests fit. The bytes are `Budget.pools_gib`, and, in int8, the checkpoint pool's
    besides: its states live in a pool of their own.
    """
    running = traffic.running_requests * traffic.prompt_tokens * memory.cell_bytes
    slots = (traffic.running_requests * SLOTS_A_REQUEST + 1) * memory.state_bytes
    checkpoint = memory.int8_bytes if in_int8 else memory.state_bytes
    each = traffic.cached_tokens * memory.cell_bytes + traffic.states_per_path * checkpoint
    padding = memory.int8_bytes if in_int8 else 0
    return (pool_bytes - running - slots - padding) // each


def cached_states(pools: Pools, traffic: Traffic, checkpoints: int | None = None) -> int:
    """How many distinct states stay cached beside as many running requests, in pools that are as they are.

    Args:
        checkpoints: slots of the int8 pool; None where cached states share the pool of the running ones.
    """
    running = min(traffic.running_requests, pools.running_requests)
    if checkpoints is None:
        checkpoints = pools.state_slots - running * SLOTS_A_REQUEST
    tokens = pools.token_slots - running * traffic.prompt_tokens
    by_tokens = tokens // traffic.cached_tokens if traffic.cached_tokens else 0
    return max(0, min(checkpoints // traffic.states_per_path, by_tokens))
