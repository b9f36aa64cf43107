"""A plan as text for people and as one JSON object for programs. Decides nothing."""

from typing import Any

from launch.plan.plan import Plan
from launch.plan.roofline import Bound, Work
from launch.plan.state_levers import state_levers

_GIB = 1 << 30


def plan_json(plan: Plan) -> dict[str, Any]:
    """Everything, with units in the names."""
    memory, request = plan.memory, plan.memory.request
    return {
        "gpu": {"name": plan.inputs.gpu, **plan.gpu.model_dump()},
        "model": {
            "name": plan.inputs.model,
            "source": plan.shape.source,
            "assumed": plan.shape.assumed,
            "weights": plan.weights,
            "text_only": request.text_only,
        },
        "profile": plan.inputs.profile,
        "tp": request.tp,
        "state_tokens": request.traffic.state_tokens,
        "schema_tokens": request.traffic.schema_tokens,
        "fits": memory.fits,
        "problems": list(memory.problems),
        "server_arguments": plan.server_arguments,
        "arguments": [vars(argument) for argument in plan.arguments],
        "overridden_by_user": [vars(argument) for argument in plan.overridden],
        "decided_by_sglang": [vars(choice) for choice in plan.choices],
        "memory_of_each_gpu": _memory_json(plan),
        "capacity": {
            "cached_states": memory.cached_states,
            "running_requests": memory.running_requests,
            "token_slots": memory.pools.token_slots if memory.pools else 0,
            "state_slots": memory.pools.state_slots if memory.pools else 0,
            "int8_state_slots": memory.checkpoint_slots,
        },
        "least_time_of_a_request": {"cold": _bound_json(*plan.cold), "cached": _bound_json(*plan.cached)},
        "changes": [vars(change) for change in plan.changes],
        "state_precision_measured": {name: lever.model_dump() for name, lever in state_levers().items()},
    }


def _memory_json(plan: Plan) -> dict[str, Any]:
    memory = plan.memory
    pools, sizes = memory.pools, memory.memory
    return {
        "total_bytes": plan.gpu.memory_bytes,
        "free_before_load_bytes_estimated": round(memory.budget.before_load_gib * _GIB),
        "weights_bytes": memory.weights.by_group,
        "weights_total_bytes": memory.weights.total_bytes,
        "weights_replicated_bytes": memory.weights.replicated_bytes,
        "rotary_bytes": memory.rotary_bytes,
        "pools_bytes": round(max(0.0, memory.budget.pools_gib) * _GIB),
        "token_pool_bytes": pools.token_slots * sizes.cell_bytes if pools else 0,
        "state_pool_bytes": (pools.state_slots + 1) * sizes.state_bytes if pools else 0,
        "int8_state_pool_bytes": memory.checkpoint_bytes,
        "reserve_bytes": memory.reserve_bytes,
        "activations_bytes_estimated": memory.activation_bytes,
        "cuda_graphs_bytes_estimated": memory.graph_bytes,
        "kv_bytes_a_token": sizes.kv_bytes,
        "row_bytes_a_token": sizes.row_bytes,
        "state_bytes": sizes.state_bytes,
        "state_temporal_bytes": sizes.temporal_bytes,
        "state_conv_bytes": sizes.conv_bytes,
        "int8_state_bytes": sizes.int8_bytes,
    }


def _bound_json(work: Work, least: Bound) -> dict[str, Any]:
    return {
        "computed_tokens": work.computed_tokens,
        "tflop": work.flop / 1e12,
        "tflop_by_rate": {rate: flop / 1e12 for rate, flop in work.flop_by_rate.items() if flop},
        "gb_moved": work.bytes_moved / 1e9,
        "least_ms": least.least_s * 1e3,
        "limit": least.limit,
    }


def plan_text(plan: Plan) -> str:
    """For a terminal, at most 128 columns."""
    request = plan.memory.request
    traffic = request.traffic
    gpus = plan.gpu.name if request.tp == 1 else f"{request.tp} x {plan.gpu.name}"
    kind = "text only" if request.text_only else "text and images"
    lines = [
        f"{plan.inputs.model} ({plan.weights}, {kind}) on {gpus}, profile {plan.inputs.profile}: {plan.profile.summary}",
        f"planned for states of {traffic.state_tokens:,} tokens and schemas of {traffic.schema_tokens:,}",
        "",
        "Server arguments",
        *(f"  {argument.text}\n      {argument.reason}\n      [{argument.source}]" for argument in plan.arguments),
        *(f"  {argument.flag}: yours, not the profile's" for argument in plan.overridden),
    ]
    if plan.inputs.user.tokens:
        lines.append(f"  {' '.join(plan.inputs.user.tokens)}\n      as you gave them")
    lines += ["", "Decided by SGLang and the plugin, without an argument"]
    lines += [
        f"  {choice.what}: {choice.value}\n      {choice.reason}\n      [{choice.source}]" for choice in plan.choices
    ]
    lines += ["", f"Memory of {'the GPU' if request.tp == 1 else 'each GPU'} (GiB)", *_memory_lines(plan)]
    lines += ["", "What fits", *_capacity_lines(plan)]
    lines += ["", "Least time of one request alone (a bound: datasheet rates, every byte once)"]
    lines += _bound_lines("state new", *plan.cold) + _bound_lines("state cached", *plan.cached)
    lines += ["", "One thing changed", *_change_lines(plan)]
    lines += ["", "What state formats cost in answers, max |dp| (`python -m benchmarks.state_precision`)"]
    lines += [f"  {lever.summary}" for lever in state_levers().values()]
    if plan.shape.assumed:
        lines += ["", f"Assumed, not from the release's own card: {', '.join(plan.shape.assumed)}"]
    return "\n".join(lines)


def _memory_lines(plan: Plan) -> list[str]:
    memory = plan.memory
    sizes, pools = memory.memory, memory.pools
    rows = [(f"weights: {name.replace('_', ' ')}", count) for name, count in memory.weights.by_group.items() if count]
    rows.append(("rotary table", memory.rotary_bytes))
    if pools:
        rows.append((f"tokens: {pools.token_slots:,} x {sizes.cell_bytes:,} B", pools.token_slots * sizes.cell_bytes))
        rows.append(
            (f"recurrent states: {pools.state_slots:,} x {sizes.state_bytes / 1e6:.1f} MB",
             (pools.state_slots + 1) * sizes.state_bytes)
        )  # fmt: skip
    if memory.checkpoint_slots:
        rows.append(
            (
                f"cached states in int8: {memory.checkpoint_slots:,} x {sizes.int8_bytes / 1e6:.1f} MB",
                memory.checkpoint_bytes,
            )
        )
    left = plan.gpu.memory_bytes - sum(count for _, count in rows)
    rows.append(("left for context, forward passes and images", left))
    lines = [f"  {name:<52}{count / _GIB:>8.2f}" for name, count in rows]
    lines.append(
        f"  a token: {sizes.kv_bytes:,} B of keys and values, {sizes.row_bytes:,} B memory row; "
        f"a state: {sizes.state_bytes / 1e6:.1f} MB, as much as {sizes.state_bytes // sizes.cell_bytes:,} tokens"
    )
    lines.append(
        f"  a forward pass: about {memory.activation_bytes / _GIB:.1f} GiB by our estimate, {memory.reserve_bytes / _GIB:.1f} "
        "GiB by SGLang's rule, which is followed; neither was measured on a GPU"
    )
    return lines


def _capacity_lines(plan: Plan) -> list[str]:
    memory = plan.memory
    traffic = memory.request.traffic
    if not memory.fits:
        return ["  IT DOES NOT FIT", *(f"  {problem}" for problem in memory.problems)]
    return [
        f"  {memory.cached_states:,} states of {traffic.state_tokens:,} tokens stay cached beside "
        f"{memory.running_requests:,} requests at once, each over another new state"
    ]


def _bound_lines(name: str, work: Work, least: Bound) -> list[str]:
    return [
        f"  {name:<13}{work.computed_tokens:>7,} tokens computed, {work.flop / 1e12:>8.2f} TFLOP, "
        f"{work.bytes_moved / 1e9:>7.2f} GB: at least {least.least_s * 1e3:>8.2f} ms ({least.limit})"
    ]


def _change_lines(plan: Plan) -> list[str]:
    return [
        f"  {change.what:<58}{change.cached_states:>7,} states beside {change.running_requests:>3,} requests"
        if change.fits
        else f"  {change.what:<58}does not fit"
        for change in plan.changes
    ]
