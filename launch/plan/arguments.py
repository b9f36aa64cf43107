"""The SGLang server arguments that follow from a plan, each with its reason and source; and what SGLang then decides itself.

Sources are files of SGLang 0.5.23 below `sglang/srt/`, unless they begin with one of our packages.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from launch.plan.gpu import Gpu
from launch.plan.memory_plan import MemoryPlan
from launch.plan.pools import SLOTS_A_REQUEST
from launch.plan.profile import Profile
from launch.plan.tensors import WeightsFormat
from launch.plan.user_arguments import UserArguments

TEXT_ONLY = json.dumps({"language_model_only": True})


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One server argument. `value` is None for a switch."""

    flag: str
    value: str | None
    reason: str
    source: str

    @property
    def tokens(self) -> tuple[str, ...]:
        return (self.flag,) if self.value is None else (self.flag, self.value)

    @property
    def text(self) -> str:
        return shlex.join(self.tokens)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What SGLang, or our plugin inside it, decides from the arguments and the GPU. No argument is given for it."""

    what: str
    value: str
    reason: str
    source: str


def split_by_user(arguments: Sequence[Argument], user: UserArguments) -> tuple[list[Argument], list[Argument]]:
    """Ours that stay, and ours in whose place the user's stand."""
    kept = [argument for argument in arguments if argument.flag not in user.given]
    return kept, [argument for argument in arguments if argument.flag in user.given]


def arguments_of(plan: MemoryPlan, profile: Profile) -> list[Argument]:
    """Every argument of ours, whether or not the user gives it too."""
    request, memory = plan.request, plan.memory
    arguments = []
    if request.tp > 1:
        arguments.append(
            Argument(
                flag="--tp-size",
                value=str(request.tp),
                reason=f"weights, keys and values and recurrent states divided over {request.tp} GPUs",
                source="arg_groups/fields/parallel.py, tp_size",
            )
        )
    if request.text_only:
        arguments.append(
            Argument(
                flag="--json-model-override-args",
                value=TEXT_ONLY,
                reason="leaves the vision tower out. SGLang 0.5.23 refuses --language-model-only for this architecture and "
                "takes the same from the checkpoint's configuration",
                source="arg_groups/model_hook.py, handle_language_model_only; configs/model_config.py, is_lm_only",
            )
        )
    arguments += [
        Argument(
            flag="--mem-fraction-static",
            value=f"{plan.static_fraction:g}",
            reason=f"leaves {_gib(plan.reserve_bytes + plan.checkpoint_bytes)} for forward passes"
            + ("" if request.text_only else " and images")
            + (", and for the int8 states, which SGLang does not count" if plan.checkpoint_slots else ""),
            source="arg_groups/memory_hook.py, handle_gpu_memory_settings",
        ),
        Argument(
            flag="--chunked-prefill-size",
            value=str(request.traffic.chunk_tokens),
            reason=profile.chunk_tokens.reason,
            source="arg_groups/fields/schedule.py, chunked_prefill_size",
        ),
        Argument(
            flag="--max-running-requests",
            value=str(plan.running_requests or request.traffic.running_requests),
            reason=_running_reason(plan, profile),
            source="mem_cache/kv_cache_configurator.py, resolve_max_num_reqs",
        ),
        Argument(
            flag="--max-mamba-cache-size",
            value=str(plan.pools.state_slots if plan.pools else SLOTS_A_REQUEST),
            reason=_state_slots_reason(plan),
            source="mem_cache/kv_cache_configurator.py, _handle_max_mamba_cache, _calculate_mamba_ratio",
        ),
        Argument(
            flag="--mamba-radix-cache-strategy",
            value="extra_buffer",
            reason="the only one that keeps a state inside a prefill; named, so that SGLang stops where it cannot have it",
            source="arg_groups/overrides.py, _mamba_radix_cache_resolution; model_plugin/sglang_hooks.py",
        ),
        Argument(
            flag="--mamba-max-states-per-path",
            value=str(request.traffic.states_cap),
            reason=f"{profile.states_per_path.reason}; {request.traffic.states_per_path} stay of a state of "
            f"{request.traffic.state_tokens:,} tokens",
            source="mem_cache/unified_cache/components/mamba.py, _evict_excess_path_states",
        ),
        Argument(
            flag="--mamba-ssm-dtype",
            value="bfloat16" if request.state_format == "bfloat16" else "float32",
            reason=f"a recurrent state is {_mb(memory.state_bytes)}"
            + (" in BF16" if request.state_format == "bfloat16" else ", as the model was made"),
            source="configs/mamba_utils.py, mamba2_state_dtype",
        ),
    ]
    if plan.checkpoint_slots:
        arguments += [
            Argument(
                flag="--enable-int8-mamba-checkpoint",
                value=None,
                reason=f"a cached state is {_mb(memory.int8_bytes)}, not {_mb(memory.state_bytes)}; running ones stay FP32",
                source="mem_cache/mamba_checkpoint_pool.py",
            ),
            Argument(
                flag="--int8-mamba-ckpt-size",
                value=str(plan.checkpoint_slots),
                reason=f"{_gib(plan.checkpoint_bytes)} outside of what --mem-fraction-static counts",
                source="mem_cache/mamba_checkpoint_pool.py, maybe_init_int8_mamba_checkpoint_pool",
            ),
        ]
    return arguments + _graph_arguments(plan)


def _graph_arguments(plan: MemoryPlan) -> list[Argument]:
    decode = Argument(
        flag="--cuda-graph-backend-decode",
        value="disabled",
        reason="no token is ever generated",
        source="model_executor/cuda_graph_config.py; model_plugin/sglang_hooks.py, resolve_clef_arguments",
    )
    if not plan.request.prefill_graphs:
        prefill = Argument(
            flag="--cuda-graph-backend-prefill",
            value="disabled",
            reason="the plugin turns prefill graphs off; answers under them have not been checked",
            source="model_plugin/sglang_hooks.py, resolve_clef_arguments",
        )
        return [decode, prefill]
    return [
        decode,
        Argument(
            flag="--cuda-graph-backend-prefill",
            value="breakable",
            reason="UNMEASURED and without effect today: the plugin turns prefill graphs off whatever is asked. "
            f"SGLang would reserve {_mb(plan.graph_bytes)} for them",
            source="arg_groups/cuda_graph_hook.py, disable_breakable_cudagraph_if_incompatible",
        ),
        Argument(
            flag="--cuda-graph-max-bs-prefill",
            value=str(plan.request.traffic.chunk_tokens),
            reason="captures batches up to a whole chunk",
            source="arg_groups/memory_hook.py, handle_gpu_memory_settings",
        ),
    ]


def _running_reason(plan: MemoryPlan, profile: Profile) -> str:
    wish = profile.running_requests
    if plan.request.pools.max_running_requests is None and plan.request.traffic.running_requests < wish.value:
        return f"{wish.value} would leave cache for fewer states than requests, so halved until it does not ({wish.reason})"
    return wish.reason


def _state_slots_reason(plan: MemoryPlan) -> str:
    running = plan.request.traffic.running_requests
    reason = f"{SLOTS_A_REQUEST} for each of {running} running requests, as SGLang counts them"
    if plan.checkpoint_slots:
        return f"{reason}; cached states have a pool of their own"
    return f"{reason}, and the others for cached states of {plan.request.traffic.state_tokens:,} tokens; tokens get the rest"


def choices_of(plan: MemoryPlan, gpu: Gpu, weights: WeightsFormat, user: UserArguments) -> list[Choice]:
    """What follows without an argument."""
    request = plan.request
    hopper = gpu.architecture == "hopper"
    choices = [
        Choice(
            what="attention backend",
            value="fa3, pages of 1 token" if hopper else "trtllm_mha, pages of 64 tokens",
            reason="SGLang's rule for " + ("Hopper" if hopper else "Blackwell with the extra_buffer strategy"),
            source="arg_groups/model_override_base.py, get_default_attn_backend"
            + ("" if hopper else "; arg_groups/model_overrides/qwen3_5.py, _qwen3_5_hybrid_overrides"),
        ),
        _delta_net(plan, hopper),
        Choice(
            what="checkpoint grid",
            value=f"{request.traffic.grid} tokens",
            reason="a cached state ends at a multiple of it; what lies after is computed again",
            source="runtime_context.py, mamba_checkpoint_grid",
        ),
        Choice(
            what="schedule policy",
            value="shortest-prefill-first",
            reason="a long prompt leaves room in each chunk for shorter ones that wait",
            source="model_plugin/sglang_hooks.py, resolve_clef_arguments",
        ),
    ]
    if request.tp > 1:
        choices.append(
            Choice(
                what="all-reduce",
                value="fused with the norm by FlashInfer (auto)",
                reason="SGLang's rule for this architecture on several GPUs of one node",
                source="arg_groups/overrides.py, _flashinfer_allreduce_fusion_auto_enable",
            )
        )
    if weights == "nvfp4":
        choices.append(
            Choice(
                what="NVFP4 products",
                value="flashinfer_cutedsl",
                reason="SGLang's rule for Blackwell",
                source="arg_groups/fields/exec_.py, fp4_gemm_runner_backend",
            )
        )
    if weights == "int4":
        choices.append(
            Choice(
                what="int4 products",
                value="Marlin",
                reason="weights are widened to BF16 inside the kernel: less memory, no faster arithmetic",
                source="layers/quantization/awq/awq.py, AWQMarlinConfig.override_quantization_method; gptq/gptq.py",
            )
        )
    named = {"attention backend": "--attention-backend", "schedule policy": "--schedule-policy"}
    named |= {"Gated DeltaNet prefill": "--linear-attn-prefill-backend"}
    return [choice for choice in choices if named.get(choice.what) not in user.given]


def _delta_net(plan: MemoryPlan, hopper: bool) -> Choice:
    """Source: flashinfer_gdn_prefill_default."""
    bf16, chunk = plan.request.state_format == "bfloat16", plan.request.traffic.chunk_tokens
    if hopper:
        flashinfer = not bf16 and chunk <= 32_768
        reason = "FlashInfer's Hopper kernel takes FP32 states and chunks up to 32,768"
    else:
        flashinfer = bf16 and chunk <= 8192
        reason = "FlashInfer's Blackwell kernel takes BF16 states, chunks up to 8,192 and CUDA 13 or later"
    return Choice(
        what="Gated DeltaNet prefill",
        value="FlashInfer where it is installed, else Triton" if flashinfer else "Triton",
        reason=f"{reason}; heads of 128",
        source="layers/attention/linear/gdn_backend.py, flashinfer_gdn_prefill_default",
    )


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"


def _mb(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
