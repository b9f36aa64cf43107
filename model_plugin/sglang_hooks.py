"""Everything of SGLang that the plugin touches beyond its public API: the hooks, the reasons, and the guard.

The only file of `model_plugin` that names SGLang's private symbols. SGLang logs and goes on when a hook cannot be applied,
which would change answers silently; `install` therefore applies the hooks itself, checks each one and ends the process if
anything is not as expected. Two tables at the end, `CALLED` and `HOOKS`, list every symbol with its reason.
"""

import functools
import hashlib
import importlib
import inspect
import logging
import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import model_plugin
from model_plugin.schema_layout import PromptLayout, unpack_layout

logger = logging.getLogger(__name__)

SUPPORTED_SGLANG = ("0.5.23",)
MODEL_PACKAGE = "model_plugin.models"


@dataclass(frozen=True, kw_only=True)
class Symbol:
    """Something of SGLang that the plugin relies on, and why. `parameters` is None where we do not call it."""

    target: str
    parameters: tuple[str, ...] | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Hook(Symbol):
    """A patched symbol: what we expect to find, what we put there, and why no official hook serves."""

    kind: str  # BEFORE, AFTER, AROUND or REPLACE, as in sglang.srt.plugins.hook_registry
    function: Callable[..., Any]


class PluginError(SystemExit):
    """Ends the process: SGLang catches every Exception of a plugin, logs it and serves without the plugin."""


def install() -> None:
    """Check SGLang, register our model, put every hook this device needs in place and check that each took effect.

    Raises:
        PluginError: the installed SGLang is not supported, or something did not apply. Ends the process unless caught.
    """
    import sglang

    if sglang.__version__ not in SUPPORTED_SGLANG:
        raise PluginError(
            f"clef-serving: SGLang {sglang.__version__} is installed, this plugin supports "
            f"{', '.join(SUPPORTED_SGLANG)}; install a supported version (make install) or a newer clef-serving"
        )
    try:
        register_model()
        for symbol in CALLED:
            check_target(symbol)
        hooks = needed_hooks()
        apply(hooks)
    except Exception as err:
        logger.exception("clef-serving plugin")
        raise PluginError(f"clef-serving: the plugin cannot be installed: {type(err).__name__}: {err}") from err
    # Shown also where SGLang's own lines are not: what the pools hold is for the operator to know.
    logging.getLogger("model_plugin").setLevel(logging.INFO)
    logger.debug("clef-serving plugin: %d hooks in place", len(hooks))


def needed_hooks() -> tuple[Hook, ...]:
    """The hooks for the device SGLang runs on."""
    from sglang.srt.utils import is_cpu

    if not is_cpu():
        return HOOKS
    from model_plugin.cpu.hooks import CPU_HOOKS

    return HOOKS + CPU_HOOKS


def register_model() -> None:
    """Put our class behind the architecture's name.

    Raises:
        PluginError: the registry does not answer with our class.
    """
    # As its external model package, the registry imports ours at once and SGLang's 200 others only if one is asked for,
    # which saves seconds in each process.
    os.environ.setdefault("SGLANG_EXTERNAL_MODEL_PACKAGE", MODEL_PACKAGE)
    from sglang.srt.models.registry import ModelRegistry

    from model_plugin.checkpoint import ARCHITECTURE

    # The registry itself would only log why our class cannot be imported.
    ours = importlib.import_module(f"{MODEL_PACKAGE}.clef").EntryClass
    if ModelRegistry.models.get(ARCHITECTURE) is not ours:
        # The user named another package, or the registry was imported before.
        ModelRegistry.register(MODEL_PACKAGE, overwrite=True, strict=True)
    served, _ = ModelRegistry.resolve_model_cls([ARCHITECTURE])
    if served is not ours:
        raise PluginError(f"clef-serving: SGLang would serve {ARCHITECTURE} with {served.__module__}, not with ours")


def apply(hooks: tuple[Hook, ...]) -> None:
    """Register and apply hooks, each against the signature it was written for.

    Raises:
        PluginError: a target is missing, has other parameters, or was not patched.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in hooks:
        check_target(hook)
        HookRegistry.register(hook.target, hook.function, HookType[hook.kind])
    originals = {hook.target: resolve(hook.target) for hook in hooks}
    HookRegistry.apply_hooks()
    for hook in hooks:
        if resolve(hook.target) is originals[hook.target]:
            raise PluginError(f"clef-serving: the hook on {hook.target} did not apply; see the log ({hook.reason})")


def check_target(symbol: Symbol) -> None:
    """Raise PluginError unless the symbol exists with the parameters it is expected to have."""
    try:
        target = resolve(symbol.target)
    except (ImportError, AttributeError) as err:
        raise PluginError(
            f"clef-serving: SGLang has no {symbol.target} ({err}), needed because: {symbol.reason}"
        ) from err
    if symbol.parameters is None:
        return
    found = tuple(inspect.signature(target).parameters)
    if found != symbol.parameters:
        raise PluginError(f"clef-serving: {symbol.target} takes {found}, expected {symbol.parameters}: {symbol.reason}")


def resolve(target: str) -> Any:
    """The object behind a dotted name."""
    parent, _, name = target.rpartition(".")
    return getattr(pkgutil.resolve_name(parent), name)


# What our model class asks of SGLang's runtime context.


def served_head_config() -> dict[str, Any] | None:
    """`joint_head_config.json` of the checkpoint being served, or None if it has none."""
    from sglang.srt.configs.model_config import load_joint_head_config
    from sglang.srt.runtime_context import get_model

    config: dict[str, Any] | None = load_joint_head_config(get_model().model_path, get_model().revision)
    return config


def served_file(name: str) -> str:
    """The path of a file of the checkpoint being served."""
    from sglang.srt.runtime_context import get_model
    from transformers.utils.hub import cached_file

    path = cached_file(get_model().model_path, name, revision=get_model().revision)
    return str(path)


# The hooks' functions.


def resolve_clef_arguments(original: Callable[[Any], None], server_args: Any) -> None:
    """Serve a Clef checkpoint as an embedding model that keeps the radix cache, chunked prefill, overlap and TP."""
    from sglang.srt.arg_groups.overrides import declare_resolution, model_config_of, resolving_view
    from sglang.srt.model_executor.cuda_graph_config import Backend, Phase, with_phase

    model_config = model_config_of(server_args)
    head_config = model_config.joint_head_config
    if head_config is None:
        original(server_args)
        return
    # SGLang's own rule for a joint head turns off all that we keep, so it must not see one.
    model_config.joint_head_config = None
    try:
        original(server_args)
    finally:
        model_config.joint_head_config = head_config
    cfg = resolving_view(server_args)
    refuse_wrong_arguments(cfg, model_config)
    source = "clef"
    declare_resolution(server_args, source, is_embedding=True)
    if cfg.disable_radix_cache:
        # Without a cache to fill, one prefill a prompt needs no KV write and no row pool.
        declare_resolution(server_args, source, chunked_prefill_size=-1)
    elif cfg.schedule_policy == "fcfs":
        # SGLang gives a prompt in chunks the whole budget of every batch until it ends; this policy leaves room for
        # shorter prompts that wait.
        declare_resolution(server_args, source, schedule_policy="shortest-prefill-first")
    for phase in (Phase.DECODE, Phase.PREFILL):
        graphs = with_phase(cfg.cuda_graph_config, phase, backend=Backend.DISABLED)
        declare_resolution(server_args, source, cuda_graph_config=graphs)


# Arguments under which answers would be wrong or which make no sense for one prefill a request: value that is fine, reason.
REFUSED_ARGUMENTS: dict[str, tuple[Any, str]] = {
    "pp_size": (1, "the joint schema head reads the last stage's hidden states and the LM head in one process"),
    "enable_hierarchical_cache": (False, "a prefix loaded back from host memory has no memory rows (and sglang#39830)"),
    "enable_lmcache": (False, "a prefix loaded from LMCache has no memory rows"),
    "enable_unified_cache_external_linker": (False, "a prefix loaded from outside has no memory rows"),
    "enable_unified_memory": (False, "the unified pool moves KV slots, and memory rows would not move with them"),
    "radix_cache_backend": (None, "memory rows follow the built-in radix cache's slots"),
    "disaggregation_mode": ("null", "a request is one prefill; there is nothing to hand to a decode server"),
    "speculative_algorithm": (None, "a request generates no token"),
    "enable_streaming_session": (False, "a session keeps KV slots outside the cache's rules"),
    "enable_session_radix_cache": (False, "a session keeps KV slots outside the cache's rules"),
    "enable_dp_attention": (False, "attention data parallelism splits a batch whose spans we count whole"),
    "attn_cp_size": (1, "context parallelism splits a prompt over ranks, and its spans with it"),
    "dcp_size": (1, "decode context parallelism spreads a prompt's KV slots over ranks"),
    "enable_two_batch_overlap": (False, "it splits a batch whose spans we count whole"),
    "enable_lora": (False, "the head's weights belong to one backbone"),
    "enable_kv_cache_sharding": (False, "memory rows are not sharded"),
}


def refuse_wrong_arguments(cfg: Any, model_config: Any) -> None:
    """Raise ValueError, naming the flag, for arguments under which answers would be wrong."""
    for name, (fine, reason) in REFUSED_ARGUMENTS.items():
        value = getattr(cfg, name)
        if value != fine and value:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"Clef checkpoints cannot be served with {flag} {value}: {reason}")
    text = model_config.hf_text_config
    for what, count in (
        ("key-value heads", text.num_key_value_heads),
        ("attention heads", text.num_attention_heads),
        ("linear key heads", text.linear_num_key_heads),
        ("linear value heads", text.linear_num_value_heads),
    ):
        if count % cfg.tp_size:
            raise ValueError(
                f"Clef checkpoints cannot be served with --tp-size {cfg.tp_size}: "
                f"this one has {count} {what}, which {cfg.tp_size} ranks cannot share evenly"
            )


def validate_clef_request(original: Callable[..., None], manager: Any, obj: Any, input_ids: list[int]) -> None:
    """Accept layouts in our format, and prompts up to the context length where prefill may be cut into chunks."""
    layout = getattr(obj, "decision_layout", None)
    if manager.model_config.joint_head_config is None or layout is None:
        original(manager, obj, input_ids)
        return
    limit = prompt_limit(manager)
    if len(input_ids) > limit:
        raise ValueError(f"the prompt has {len(input_ids)} tokens, this server takes at most {limit}")
    unpack_layout(layout).expanded(len(input_ids))


def prompt_limit(manager: Any) -> int:
    """The longest prompt, media expanded: the scheduler's limit and, where prompts are not cut, what one prefill holds."""
    from sglang.srt.runtime_context import get_memory, get_schedule

    limit: int = min(manager.context_len - manager.num_reserved_tokens, manager.max_req_input_len) - 1
    return min(limit, get_schedule().max_prefill_tokens) if get_memory().disable_radix_cache else limit


def mark_state_end(original: Callable[..., Any], tokenizer: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Tell SGLang's own /v1/systemone route where the state of its prompt ends."""
    input_ids, packed = original(tokenizer, request, *args, **kwargs)
    layout = unpack_layout(packed)
    question_id, question = next(iter(request.questions.items()))
    # The pieces between the state and the first instruction, tokenized apart as SGLang does.
    header = ("\n\nSCHEMA FIELDS:\n", f"\nFIELD 1\nID: {question_id}\nTYPE: {question.type}\nINSTRUCTION: ")
    before = sum(len(tokenizer.encode(piece, add_special_tokens=False)) for piece in header)
    return input_ids, [*packed, layout.questions[0].question[0] - before]


def adopt_layout(scheduler: Any, request: Any, is_retracted: bool = False) -> None:
    """Before a request is queued, when its media are expanded: read its layout, once, and take its cache namespace."""
    packed = request.decision_layout
    if packed is None or isinstance(packed, PromptLayout):
        return
    if request.to_finish is not None:
        # Refused in the scheduler, for its media say: its prompt is cut to one token, which no layout fits.
        request.decision_layout = None
        return
    layout = unpack_layout(packed).expanded(len(request.origin_input_ids))
    request.decision_layout = layout
    if layout.namespace:
        request.extra_key = f"{request.extra_key or ''}{layout.namespace}"


def identify_media(original: Callable[[Any], None], item: Any) -> None:
    """Know an image or video by 256 bits over its features and its grid, given by the front or made here.

    SGLang knows it by 64 bits of its features. Those are equal for two plain pictures of one colour and size, one wide and
    one high, whose positions are not.
    """
    if item.pad_value is not None:
        return
    values = item.model_specific_data
    given = values.pop(model_plugin.MEDIA_DIGESTS, None)
    if given is not None:
        (digest,) = given
        item.set_identity(digest)
        return
    original(item)
    grids = [values[name] for name in ("image_grid_thw", "video_grid_thw") if values.get(name) is not None]
    if grids:
        whole = f"{item.modality.name} {item.hash} {[grid.tolist() for grid in grids]}"
        item.set_identity(hashlib.sha256(whole.encode()).digest())


def cap_prefix_at_state(longest: int, request: Any, input_len: int) -> int:
    """The head needs what only a forward computes of every token after the state, so no prefix reaches further."""
    layout = request.decision_layout
    return min(longest, layout.state_end) if isinstance(layout, PromptLayout) else longest


def checkpoint_at_state(original: Callable[..., Any], batch: Any, request: Any) -> Any:
    """Keep the recurrent state at the last checkpoint position inside the state, and none after it.

    SGLang keeps the one at the end of a prefill, and a branching point that it discovers on the second request. We know
    the branching point beforehand. What lies after it belongs to one request's questions: caching it would only push
    states out of the pools.
    """
    layout = request.decision_layout
    if not isinstance(layout, PromptLayout):
        return original(batch, request)
    from sglang.srt.runtime_context import mamba_checkpoint_grid

    grid = mamba_checkpoint_grid(batch.tree_cache.page_size)
    branch = layout.state_end // grid * grid
    if request.extend_end < branch:
        return original(batch, request)
    if branch <= request.prefix_len:
        # Nothing of the state is new: SGLang's entry for "do not track".
        from sglang.srt.managers.schedule_batch import _MambaRadixCacheV2TrackEntry

        return _MambaRadixCacheV2TrackEntry(
            track_mask=False, track_position=request.kv.mamba_next_track_idx, track_seqlen=-1
        )
    request.mamba_branching_seqlen = branch
    return original(batch, request)


def chunk_grid(grid: int) -> int:
    """Cut prompts on the checkpoint grid only, or the state's checkpoint would fall between the kernel's snapshots."""
    from sglang.srt.runtime_context import get_context, get_memory, mamba_cache_chunk_size

    context = get_context()
    if not context.is_config_namespace_published("memory") or get_memory().disable_radix_cache:
        return grid
    return max(grid, int(mamba_cache_chunk_size())) if served_head_config() is not None else grid


def chunk_limit_on_grid(
    policy: Any, chunked_req: Any, waiting_queue: Any, budget: int, page_size: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Let the share of a prompt in chunks be a multiple of the checkpoint grid."""
    return (policy, chunked_req, waiting_queue, budget, max(page_size, chunk_grid(1))), {}


def count_memory_rows(cell_size: int, configurator: Any, kvc: Any, num_layers: int) -> int:
    """A token's memory row is part of what a KV slot costs."""
    from sglang.srt.runtime_context import get_memory

    from model_plugin.memory_pool import row_bytes

    head_config = kvc.model_config.joint_head_config
    if head_config is None or get_memory().disable_radix_cache:
        return cell_size
    return cell_size + row_bytes(head_config["width"], kvc.model_config.dtype)


def allocate_memory_rows(result: None, runner: Any, *args: Any, **kwargs: Any) -> None:
    """Give the pooler one row for every KV slot, next to the KV pool."""
    from sglang.srt.runtime_context import get_memory

    from model_plugin.memory_pool import MemoryRows

    head_config = runner.model_config.joint_head_config
    if head_config is None or get_memory().disable_radix_cache:
        return
    # SGLang hands out slots from page_size on, and page 0 takes the writes of padding.
    slots = runner.token_to_kv_pool.size + runner.token_to_kv_pool.page_size
    rows = MemoryRows(
        slots=slots, width=head_config["width"], dtype=runner.model.memory_row_dtype, device=runner.device
    )
    runner.model.pooler.use_pools(rows, runner.req_to_token_pool.req_to_token)
    logger.info("Memory rows are allocated: %d slots, %.3f GB", slots, rows.size_bytes / 1e9)


def count_evicted_states(result: Any, cache: Any, *args: Any, **kwargs: Any) -> None:
    """Count the recurrent states that the cache gave up, beside SGLang's own count of tokens."""
    collector = cache.metrics_collector
    if collector is not None and result.mamba_num_evicted:
        _evicted_states(tuple(collector.labels)).labels(**collector.labels).inc(result.mamba_num_evicted)


@functools.cache
def _evicted_states(labels: tuple[str, ...]) -> Any:
    # Not before SGLang has named the directory that its processes write their figures into.
    from prometheus_client import Counter

    return Counter("clef_evicted_states", "Cached recurrent states that were given up.", labels)


def report_cached_tokens(manager: Any, output: Any) -> None:
    """Keep what a reply says of cached tokens for whoever asked; SGLang drops it for embeddings."""
    from sglang.srt.managers.io_struct import BatchEmbeddingOutput

    if not isinstance(output, BatchEmbeddingOutput):
        return
    for request, cached in zip(output.rids, output.cached_tokens, strict=True):
        if request in model_plugin.cached_tokens:
            model_plugin.cached_tokens[request] = cached


# What is called or subclassed as it is: by this file, by models/clef.py and by cpu/.
CALLED = tuple(
    Symbol(target=f"sglang.srt.{name}", parameters=parameters, reason=reason)
    for name, parameters, reason in (
        ("utils.is_cpu", (), "the CPU platform's hooks apply on a CPU only"),
        ("models.registry.ModelRegistry.register", ("package_name", "overwrite", "strict"), "puts our class in place"),
        ("models.registry.ModelRegistry.resolve_model_cls", ("architectures",), "says whether our class is in place"),
        ("plugins.hook_registry.HookRegistry.register", ("target", "hook", "hook_type", "source"), "official hooks"),
        ("plugins.hook_registry.HookRegistry.apply_hooks", (), "we apply at once, to check before anything runs"),
        ("plugins.hook_registry.HookType", None, "the kinds of hooks"),
        (
            "configs.model_config.load_joint_head_config",
            ("model_path", "revision"),
            "says whether we serve a Clef release",
        ),
        ("runtime_context.get_model", (), "which checkpoint is served"),
        ("runtime_context.get_memory", (), "whether there is a radix cache"),
        ("runtime_context.get_schedule", (), "the longest prefill where prompts are not cut"),
        ("runtime_context.get_context", (), "whether the configuration is known yet"),
        ("runtime_context.mamba_checkpoint_grid", ("tree_page",), "where a recurrent state can be kept"),
        ("runtime_context.mamba_cache_chunk_size", (), "where a prompt may be cut"),
        ("arg_groups.overrides.model_config_of", ("server_args",), "the checkpoint while arguments are resolved"),
        ("arg_groups.overrides.resolving_view", ("server_args",), "the arguments as resolved so far"),
        ("arg_groups.overrides.declare_resolution", ("server_args", "source", "fields"), "changes an argument openly"),
        ("model_executor.cuda_graph_config.Backend", None, "names a graph backend"),
        ("model_executor.cuda_graph_config.Phase", None, "names the phases that have graphs"),
        ("model_executor.cuda_graph_config.with_phase", ("config", "phase", "changes"), "turns graphs off"),
        (
            "managers.schedule_batch._MambaRadixCacheV2TrackEntry",
            ("track_mask", "track_position", "track_seqlen"),
            "says that no recurrent state of a prefill is kept",
        ),
        (
            "managers.schedule_batch.MultimodalDataItem.set_identity",
            ("self", "identity"),
            "gives an image or video the 256 bits by which caches know it",
        ),
        ("managers.io_struct.BatchEmbeddingOutput", None, "the replies that say how many tokens were cached"),
        ("distributed.tensor_model_parallel_all_reduce", ("input_",), "sums option tokens over ranks"),
        ("layers.pooler.EmbeddingPoolerOutput", ("embeddings", "pooled_hidden_states"), "what a pooler returns"),
        ("layers.vocab_parallel_embedding.VocabParallelEmbedding", None, "the LM head whose rows are read"),
        (
            "models.qwen3_5.Qwen3_5ForConditionalGeneration",
            ("config", "quant_config", "prefix", "language_model_cls"),
            "the class that ours extends",
        ),
    )
)

HOOKS = (
    Hook(
        target="sglang.srt.arg_groups.model_hook.handle_model_capability_adjustments",
        parameters=("server_args",),
        kind="AROUND",
        function=resolve_clef_arguments,
        reason="SGLang turns off radix cache, chunked prefill and TP for a joint head; resolution has no plugin hook",
    ),
    Hook(
        target="sglang.srt.managers.tokenizer_manager.TokenizerManager._validate_joint_schema_request",
        parameters=("self", "obj", "input_ids"),
        kind="AROUND",
        function=validate_clef_request,
        reason="SGLang refuses what one uncached prefill cannot hold, and layouts that say where the state ends",
    ),
    Hook(
        target="sglang.srt.entrypoints.systemone.joint_schema.encode_joint_schema",
        parameters=("tokenizer", "request", "max_length", "image_token_counts"),
        kind="AROUND",
        function=mark_state_end,
        reason="SGLang's own route does not say where the state ends, without which its prefixes are cut short",
    ),
    Hook(
        target="sglang.srt.managers.scheduler.Scheduler._add_request_to_queue",
        parameters=("self", "req", "is_retracted"),
        kind="BEFORE",
        function=adopt_layout,
        reason="embedding requests carry no cache namespace, and spans move when media expand in the scheduler",
    ),
    Hook(
        target="sglang.srt.managers.schedule_batch.MultimodalDataItem.set_pad_value",
        parameters=("self",),
        kind="AROUND",
        function=identify_media,
        reason="SGLang would take two pictures whose features have one 64-bit hash for the same, whatever their grids",
    ),
    Hook(
        target="sglang.srt.managers.schedule_batch.Req._compute_max_prefix_len",
        parameters=("self", "input_len"),
        kind="AFTER",
        function=cap_prefix_at_state,
        reason="the only place that bounds how much of a prompt the cache may serve",
    ),
    Hook(
        target="sglang.srt.managers.schedule_batch.ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend",
        parameters=("self", "req"),
        kind="AROUND",
        function=checkpoint_at_state,
        reason="the only place that chooses which recurrent state of a prefill is kept",
    ),
    Hook(
        target="sglang.srt.managers.schedule_policy.mamba_prefill_chunk_grid",
        parameters=(),
        kind="AFTER",
        function=chunk_grid,
        reason="without it a chunk may end off the checkpoint grid, and the state's checkpoint is lost",
    ),
    Hook(
        target="sglang.srt.managers.schedule_policy.SchedulePolicy.shortest_prefill_chunk_limit",
        parameters=("self", "chunked_req", "waiting_queue", "budget", "page_size"),
        kind="BEFORE",
        function=chunk_limit_on_grid,
        reason="the same, for the share of a chunk that is left to shorter prompts",
    ),
    Hook(
        target="sglang.srt.model_executor.pool_configurator.DefaultPoolConfigurator._compute_cell_size",
        parameters=("self", "kvc", "num_layers"),
        kind="AFTER",
        function=count_memory_rows,
        reason="memory rows must be counted where KV slots are sized, or the server over-commits memory",
    ),
    Hook(
        target="sglang.srt.model_executor.model_runner.ModelRunner.alloc_memory_pool",
        parameters=("self", "memory_pool_config", "draft_parallel_layout"),
        kind="AFTER",
        function=allocate_memory_rows,
        reason="a model is built before its pools are, and is not told when they are there",
    ),
    Hook(
        target="sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache._evict",
        parameters=("self", "params", "available_size_targets", "allocation_reclaim_satisfied"),
        kind="AFTER",
        function=count_evicted_states,
        reason="SGLang counts evicted tokens alone, and a prefix without its recurrent state is of no use",
    ),
    Hook(
        target="sglang.srt.managers.tokenizer_manager.TokenizerManager._handle_batch_output",
        parameters=("self", "recv_obj"),
        kind="BEFORE",
        function=report_cached_tokens,
        reason="SGLang's embedding replies carry no cached tokens",
    ),
)
