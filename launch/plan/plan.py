"""One plan: a profile resolved for a GPU, a model and its weights, with the memory it takes and the least time a request takes.

Starts nothing and needs no GPU. How a plan is asked for and shown, `plan_command` and `plan_text` know.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from launch.plan.arguments import Argument, Choice, arguments_of, choices_of, split_by_user
from launch.plan.gpu import Gpu, gpu_named
from launch.plan.memory_plan import MemoryPlan, MemoryRequest, plan_memory
from launch.plan.model_shape import ModelShape, known_models, named_like, shape_of_release
from launch.plan.pools import PoolArguments, Traffic
from launch.plan.profile import DEFAULT_PROFILE, GRID_TOKENS, Profile, profiles
from launch.plan.roofline import Bound, Work, bound, request_work
from launch.plan.tensors import Tensor, WeightsFormat, format_of, listed_tensors, read_tensors
from launch.plan.token_memory import StateFormat, token_memory
from launch.plan.user_arguments import UserArguments

# The context Cloudflare documents, and what SGLang keeps of a context (serving/engine.py, RESERVED_TOKENS).
_CONTEXT_TOKENS = 65_536 + 8
TP_SIZES = (1, 2, 4, 8)


class PlanError(ValueError):
    """What was asked for cannot be served; the message says why."""


@dataclass(frozen=True, kw_only=True)
class PlanInputs:
    """What an operator asks for. `None` leaves the choice to the profile or the release.

    Attributes:
        model: `clef-flash`, `clef`, or a directory.
        weights: how the release is stored; read from the files where `model` is a directory.
    """

    gpu: str
    model: str
    profile: str = DEFAULT_PROFILE
    tp: int = 1
    weights: WeightsFormat | None = None
    text_only: bool = False
    state_tokens: int | None = None
    schema_tokens: int | None = None
    state_format: StateFormat = "float32"
    prefill_graphs: bool = False
    user: UserArguments = field(default_factory=UserArguments)


@dataclass(frozen=True, kw_only=True)
class Change:
    """What another choice would give: whether it fits, and how many states stay cached beside how many requests."""

    what: str
    fits: bool
    cached_states: int
    running_requests: int
    state_bytes: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything `clef-serve plan` shows. `overridden` are arguments of ours in whose place the user's stand."""

    inputs: PlanInputs
    gpu: Gpu
    shape: ModelShape
    profile: Profile
    weights: WeightsFormat
    memory: MemoryPlan
    arguments: list[Argument]
    overridden: list[Argument]
    choices: list[Choice]
    cold: tuple[Work, Bound]
    cached: tuple[Work, Bound]
    changes: list[Change]

    @property
    def server_arguments(self) -> list[str]:
        """For SGLang's command line, the user's last."""
        return [token for argument in self.arguments for token in argument.tokens] + list(self.inputs.user.tokens)


def make_plan(inputs: PlanInputs, *, with_changes: bool = True) -> Plan:
    """Resolve a profile and compute what follows.

    Raises:
        PlanError: the combination cannot be served.
        ValueError: a subclass that says what is wrong with a data file, a release or a user argument.
    """
    gpu = gpu_named(inputs.gpu)
    if inputs.profile not in profiles():
        raise PlanError(f"no profile is called {inputs.profile!r}; there are {', '.join(profiles())}")
    shape, tensors, weights, model = _release(inputs)
    profile = profiles()[inputs.profile].for_model(model)
    tp = inputs.user.count("--tp-size") or inputs.tp
    _refuse(gpu, shape, weights, tp)
    request = _memory_request(inputs, gpu, shape, tensors, profile, tp)
    memory = plan_memory(request)
    arguments, overridden = split_by_user(arguments_of(memory, profile), inputs.user)
    traffic = memory.request.traffic
    whole = token_memory(shape, tp=1, state="bfloat16" if request.state_format == "bfloat16" else "float32")
    cold = request_work(shape, tensors, whole, cached_tokens=0, new_tokens=traffic.prompt_tokens)
    cached = request_work(
        shape,
        tensors,
        whole,
        cached_tokens=traffic.cached_tokens,
        new_tokens=traffic.prompt_tokens - traffic.cached_tokens,
    )
    return Plan(
        inputs=inputs,
        gpu=gpu,
        shape=shape,
        profile=profile,
        weights=weights,
        memory=memory,
        arguments=arguments,
        overridden=overridden,
        choices=choices_of(memory, gpu, weights, inputs.user),
        cold=(cold, bound(cold, gpu, tp=tp)),
        cached=(cached, bound(cached, gpu, tp=tp)),
        changes=_changes(request, weights, listed=not Path(inputs.model).is_dir()) if with_changes else [],
    )


def _release(inputs: PlanInputs) -> tuple[ModelShape, list[Tensor], WeightsFormat, str | None]:
    """Sizes, tensors and storage format of the release, and which known model it is."""
    if shape := known_models().get(inputs.model):
        weights = inputs.weights or "bf16"
        return shape, listed_tensors(shape, weights), weights, inputs.model
    directory = Path(inputs.model).expanduser()
    if not directory.is_dir():
        raise PlanError(f"{inputs.model!r} is neither a directory here nor one of {', '.join(known_models())}")
    shape, tensors = shape_of_release(directory), read_tensors(directory)
    stored = format_of(tensors)
    if inputs.weights not in (None, stored):
        raise PlanError(f"the weights in {directory} are {stored}, not {inputs.weights}")
    return shape, tensors, stored, named_like(shape)


def _refuse(gpu: Gpu, shape: ModelShape, weights: WeightsFormat, tp: int) -> None:
    if weights == "nvfp4" and gpu.fp4_tflop_s is None:
        raise PlanError(
            f"NVFP4 weights are for Blackwell: {gpu.name} has no FP4 tensor cores, and SGLang would widen them in the "
            "Marlin kernel, with no gain over an int4 release; use fp8 or int4"
        )
    if tp not in TP_SIZES:
        raise PlanError(f"tp must be one of {', '.join(map(str, TP_SIZES))}, not {tp}")
    # The same rule as our plugin's (model_plugin/sglang_hooks.py, refuse_wrong_arguments).
    for what, count in (
        ("key-value heads", shape.text.num_key_value_heads),
        ("attention heads", shape.text.num_attention_heads),
        ("linear key heads", shape.text.linear_num_key_heads),
        ("linear value heads", shape.text.linear_num_value_heads),
    ):
        if count % tp:
            raise PlanError(f"{tp} GPUs cannot share {count} {what} evenly; start more servers instead")


def _memory_request(
    inputs: PlanInputs, gpu: Gpu, shape: ModelShape, tensors: list[Tensor], profile: Profile, tp: int
) -> MemoryRequest:
    user = inputs.user
    page = user.count("--page-size") or (64 if gpu.architecture == "blackwell" else 1)
    grid = max(GRID_TOKENS, page)
    if grid % min(GRID_TOKENS, page):
        raise PlanError(f"--page-size {page} must divide {GRID_TOKENS} or be a multiple of it")
    state_format = inputs.state_format
    if dtype := user.choices.get("--mamba-ssm-dtype"):
        state_format = "bfloat16" if dtype == "bfloat16" else "float32"
    if "--enable-int8-mamba-checkpoint" in user.given:
        if state_format == "bfloat16":
            raise PlanError(
                "--enable-int8-mamba-checkpoint is planned with FP32 running states, not with bfloat16 ones"
            )
        state_format = "int8"
    state_tokens = inputs.state_tokens or profile.state_tokens.value
    traffic = Traffic(
        state_tokens=state_tokens,
        schema_tokens=inputs.schema_tokens or profile.schema_tokens.value,
        running_requests=user.count("--max-running-requests") or profile.running_requests.value,
        chunk_tokens=user.count("--chunked-prefill-size") or profile.chunk_tokens.value,
        states_cap=user.count("--mamba-max-states-per-path") or profile.states_per_path.value,
        grid=grid,
    )
    context = user.count("--context-length") or _CONTEXT_TOKENS
    if traffic.prompt_tokens > context:
        raise PlanError(
            f"a state of {state_tokens:,} tokens with {traffic.schema_tokens:,} of schema exceeds the context of {context:,}"
        )
    return MemoryRequest(
        shape=shape,
        tensors=tensors,
        gpu=gpu,
        tp=tp,
        traffic=traffic,
        text_only=inputs.text_only,
        state_format=state_format,
        prefill_graphs=inputs.prefill_graphs,
        static_fraction=user.fraction("--mem-fraction-static"),
        pools=PoolArguments(
            page_size=page,
            context_tokens=context,
            max_total_tokens=user.count("--max-total-tokens"),
            max_running_requests=user.count("--max-running-requests"),
            max_mamba_cache_size=user.count("--max-mamba-cache-size"),
            mamba_full_memory_ratio=user.fraction("--mamba-full-memory-ratio"),
        ),
        checkpoint_slots=user.count("--int8-mamba-ckpt-size"),
    )


def _changes(request: MemoryRequest, weights: WeightsFormat, *, listed: bool) -> list[Change]:
    """What each single other choice would give."""
    others: list[tuple[str, MemoryRequest]] = []
    if request.state_format == "float32":
        others.append(("recurrent states in BF16", replace(request, state_format="bfloat16")))
        others.append(("cached recurrent states in int8", replace(request, state_format="int8")))
    traffic = request.traffic
    if traffic.chunk_ends > traffic.states_per_path:
        keep_all = replace(request, traffic=replace(traffic, states_cap=None))
        others.append((f"a state kept at each of {traffic.chunk_ends} chunk ends (SGLang's default)", keep_all))
    if not request.text_only:
        others.append(("text only", replace(request, text_only=True)))
    if listed and weights == "bf16":
        smaller: tuple[WeightsFormat, ...] = ("fp8", "int4")
        others += [
            (f"{name} weights", replace(request, tensors=listed_tensors(request.shape, name))) for name in smaller
        ]
    if request.tp < 4:
        others.append((f"{2 * request.tp} GPUs", replace(request, tp=2 * request.tp)))
    half = replace(traffic, chunk_tokens=max(GRID_TOKENS, traffic.chunk_tokens // 2))
    others.append(("half the chunk", replace(request, traffic=half)))
    return [_change(what, plan_memory(other)) for what, other in others]


def _change(what: str, plan: MemoryPlan) -> Change:
    memory = plan.memory
    return Change(
        what=what,
        fits=plan.fits,
        cached_states=plan.cached_states,
        running_requests=plan.running_requests,
        state_bytes=memory.int8_bytes if plan.checkpoint_slots else memory.state_bytes,
    )
