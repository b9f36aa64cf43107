"""A second plugin of an engine under test: looks into SGLang's scheduler, and opens a door through which a test asks it.

Runs inside SGLang's processes, put there by `tests.engine.inspector`. It changes nothing that SGLang decides, but two things
a test may ask for: a slot that is lost, and a machine with so much free memory.
"""

import asyncio
import json
import os
from collections import Counter
from typing import Any

import model_plugin

ENTRY_POINT = "clef_test_inspector"
DOOR = "CLEF_TEST_INSPECTOR_DOOR"  # path of the socket that the server process opens
FREE_BYTES = "CLEF_TEST_INSPECTOR_FREE_BYTES"  # what SGLang shall take for the machine's free memory
_CONTROLLER = "managers.scheduler_components.internal_state.SchedulerInternalStateController"

# What happened in this scheduler: `aborted waiting`, `aborted between chunks`, `aborted running`, `evicted KV slots` ...
_seen: Counter[str] = Counter()
# Bytes that SGLang let its pools have between them, where it measured.
_budget_bytes: list[int] = []
_door_is_open = False


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for name, hook, kind in (
        ("managers.tokenizer_manager.TokenizerManager.auto_create_handle_loop", open_door, HookType.AFTER),
        ("managers.scheduler.Scheduler.abort_request", count_abort, HookType.BEFORE),
        ("mem_cache.unified_radix_cache.UnifiedRadixCache.evict", count_evicted, HookType.AFTER),
        ("mem_cache.unified_radix_cache.UnifiedRadixCache.evict_for_alloc", count_evicted, HookType.AFTER),
        ("mem_cache.kv_cache_configurator.KVCacheConfigurator._handle_max_mamba_cache", note_budget, HookType.BEFORE),
        (f"{_CONTROLLER}.get_internal_state", tell, HookType.AFTER),
        (f"{_CONTROLLER}.set_internal_state", lose_a_slot, HookType.AROUND),
    ):
        HookRegistry.register(f"sglang.srt.{name}", hook, kind)
    if FREE_BYTES in os.environ:
        free = int(os.environ[FREE_BYTES])
        HookRegistry.register("sglang.srt.utils.common.get_free_cpu_memory", lambda: free, HookType.REPLACE)


# In the scheduler.


def count_abort(scheduler: Any, request: Any) -> None:
    """Before SGLang aborts by an id: what it is about to hit, none if the request has ended or never came."""

    def hit(req: Any) -> bool:
        return bool(req.rid.startswith(request.rid))

    _seen["aborts asked for"] += 1
    if any(map(hit, scheduler.waiting_queue)):
        _seen["aborted waiting"] += 1
    elif scheduler.chunked_req is not None and hit(scheduler.chunked_req):
        _seen["aborted between chunks"] += 1
    elif any(hit(req) and not req.finished() for req in scheduler.collect_inflight_reqs()):
        _seen["aborted running"] += 1


def count_evicted(result: Any, *args: Any, **kwargs: Any) -> None:
    """After the cache gave up slots because others needed them."""
    _seen["evicted KV slots"] += result.num_tokens_evicted
    _seen["evicted states"] += result.mamba_num_evicted


def note_budget(configurator: Any, total_rest_memory: float) -> None:
    """Before SGLang divides what it may use, in GiB, between recurrent states and KV slots."""
    _budget_bytes.append(int(total_rest_memory * (1 << 30)))


def tell(output: Any, controller: Any, *args: Any) -> Any:
    """Add to SGLang's own report what a test wants to know. SGLang makes it between two batches."""
    scheduler = controller.scheduler
    running = {id(req) for req in (*scheduler.running_batch.reqs, *scheduler.collect_inflight_reqs())}
    output.internal_state["inspected"] = {
        "idle": scheduler.is_fully_idle(),
        "running": len(running),
        "waiting": len(scheduler.waiting_queue),
        "seen": dict(_seen),
        "pools": pools(scheduler),
        "bytes": pool_bytes(scheduler),
    }
    return output


def pools(scheduler: Any) -> dict[str, dict[str, int]]:
    """Of each pool how many slots are free, cached, and in all; `lost` are neither, `twice` are both or one of them twice.

    Slot by slot, not by SGLang's counters; between requests every slot is free or cached.
    """
    tree, kv, requests = scheduler.tree_cache, scheduler.token_to_kv_pool_allocator, scheduler.req_to_token_pool
    assert kv.page_size == 1
    return {
        "kv": _pool(kv.get_all_free_pages().tolist(), tree.all_values_flatten().tolist(), kv.size),
        "states": _pool(
            requests.mamba_allocator.free_slots.tolist(),
            tree.all_mamba_values_flatten().tolist(),
            requests.mamba_allocator.size,
        ),
        # SGLang keeps the first row of this one for padding, as it does the first slot of the others.
        "requests": _pool(list(requests.free_slots), [], requests.size),
    }


def _pool(free: list[int], cached: list[int], total: int) -> dict[str, int]:
    both = Counter(free) + Counter(cached)
    return {
        "free": len(free),
        "cached": len(cached),
        "total": total,
        "lost": total - len(both),
        "twice": sum(count - 1 for count in both.values()),
    }


def pool_bytes(scheduler: Any) -> dict[str, int]:
    """What the pools occupy, from the tensors themselves, and what SGLang let them have; 0 where it did not measure."""
    runner = scheduler.tp_worker.model_runner
    attention = runner.token_to_kv_pool.full_kv_pool
    states = runner.req_to_token_pool.mamba_pool.mamba_cache
    rows = runner.model.pooler.schema.rows
    return {
        "budget": _budget_bytes[-1] if _budget_bytes else 0,
        "kv": sum(buffer.nbytes for buffer in (*attention.k_buffer, *attention.v_buffer)),
        "states": sum(buffer.nbytes for buffer in (*states.conv, states.temporal)),
        "rows": rows.size_bytes,
    }


def lose_a_slot(original: Any, controller: Any, request: Any) -> Any:
    """Take a slot that nobody will give back, as a leak would."""
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    (pool,) = request.server_args
    scheduler = controller.scheduler
    allocator = {
        "kv": scheduler.token_to_kv_pool_allocator,
        "states": scheduler.req_to_token_pool.mamba_allocator,
    }[pool]
    assert allocator.alloc(1) is not None
    return SetInternalStateReqOutput(updated=True)


# In the server's process.


def open_door(result: None, manager: Any) -> None:
    """After SGLang began to listen to its scheduler: listen to the test."""
    global _door_is_open
    if _door_is_open:
        return
    _door_is_open = True

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.readline())
        writer.write(json.dumps(await _do(manager, **asked)).encode() + b"\n")
        await writer.drain()
        writer.close()

    task = asyncio.get_running_loop().create_task(asyncio.start_unix_server(answer, os.environ[DOOR]))
    manager.asyncio_tasks.add(task)


async def _do(manager: Any, *, what: str, **values: Any) -> Any:
    from sglang.srt.managers.io_struct import SetInternalStateReq

    if what == "flush":
        return (await manager.flush_cache(**values)).success
    if what == "lose":
        return await manager.set_internal_state(SetInternalStateReq(server_args={values["pool"]: 1}))
    # Every rank schedules the same; the first one answers.
    (state,) = await manager.get_internal_state()
    front = {"requests": len(manager.rid_to_state), "cached_tokens": len(model_plugin.cached_tokens)}
    return {**state["inspected"], "front": front}
