"""The engine's own figures: what SGLang's processes write into files, read back and put under names that conventions allow.

Knows of SGLang only the names of its figures. Its processes write because `prometheus_client` finds a directory named in
their environment; this process keeps its own figures in memory.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import Metric, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.samples import Sample

DIRECTORY_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
THEIRS = "sglang:"
EVICTED_STATES = "clef_evicted_states"  # written by our plugin inside SGLang's processes


def open_directory() -> "tempfile.TemporaryDirectory[str]":
    """A new directory for the figures of the processes that will be started, so that none of an earlier run is read again.

    It is made inside the one that an operator named, and goes with this process at the latest.
    """
    named = os.environ.get(DIRECTORY_VARIABLE)
    parent = named if named and Path(named).is_dir() else None
    directory = tempfile.TemporaryDirectory(prefix="clef-metrics-", dir=parent, ignore_cleanup_errors=True)
    os.environ[DIRECTORY_VARIABLE] = directory.name
    keep_own_values_in_memory()
    return directory


def keep_own_values_in_memory() -> None:
    """For this process's figures made from here on, whatever its environment names."""
    values.ValueClass = values.MutexValue  # the client library's way to choose where values live


def remove_directory(directory: "tempfile.TemporaryDirectory[str]") -> None:
    """Remove the figures. Their processes have ended."""
    directory.cleanup()
    if os.environ.get(DIRECTORY_VARIABLE) == directory.name:
        del os.environ[DIRECTORY_VARIABLE]


@dataclass(frozen=True, kw_only=True)
class _Use:
    """One of SGLang's gauges as one use of the slots of a pool."""

    pool: str
    use: str


SLOTS = {
    "kv_used_tokens": _Use(pool="clef_kv_slots", use="running"),
    "kv_evictable_tokens": _Use(pool="clef_kv_slots", use="cached"),
    "kv_available_tokens": _Use(pool="clef_kv_slots", use="free"),
    "mamba_used_tokens": _Use(pool="clef_recurrent_states", use="running"),
    "mamba_evictable_tokens": _Use(pool="clef_recurrent_states", use="cached"),
    "mamba_available_tokens": _Use(pool="clef_recurrent_states", use="free"),
}
POOLS = {
    "clef_kv_slots": "Slots of the KV pool by use. Each holds a token, and its memory row where the radix cache is on.",
    "clef_recurrent_states": "Slots of the pool of recurrent (Mamba) states by use. Each cached one is a prefix to reuse.",
}
EVICTIONS = {
    THEIRS + "evicted_tokens": ("clef_evicted_tokens", "Cached tokens whose KV slots were given to others."),
    EVICTED_STATES: (EVICTED_STATES, "Cached recurrent states that were given up."),
}
# What else SGLang can say where a request is one prefill. Its other families are about generating text, sessions, LoRA,
# speculation and disaggregation, which this server has not, or say again what the above and our own figures say.
KEPT = frozenset(
    {
        "cache_hit_rate",  # of the last batch
        "cuda_graph_passes",
        "estimated_flops_per_gpu",  # these three only with --enable-mfu-metrics
        "estimated_read_bytes_per_gpu",
        "estimated_write_bytes_per_gpu",
        "eviction_duration_seconds",
        "forward_execution_seconds",  # only on a GPU with SGLang's device timer on
        "num_queue_reqs",
        "num_retracted_requests",
        "prefill_effective_tokens",
        "scheduler_idle_seconds",
        "scheduler_process_cpu_seconds",
        "scheduler_stage_seconds",
    }
)


class EngineMetrics:
    """A collector for `prometheus_client` over the directory that the engine's processes write into.

    Of several ranks, which all do the same, it shows the first; of several replicas the sum.
    """

    def __init__(self, directory: Path) -> None:
        self._files = MultiProcessCollector(None, path=str(directory))  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        found: dict[str, Metric] = {family.name: family for family in self._files.collect()}  # type: ignore[no-untyped-call]
        for pool, help_text in POOLS.items():
            slots = GaugeMetricFamily(pool, help_text, labels=["use"])
            for name, place in SLOTS.items():
                if place.pool == pool and (family := found.get(THEIRS + name)) is not None:
                    slots.add_metric([place.use], _total(family.samples))
            yield slots
        for name, (ours, help_text) in EVICTIONS.items():
            # There from the start, as a first increase that brings its series with it would not be seen as one.
            yield CounterMetricFamily(ours, help_text, value=_total(found[name].samples) if name in found else 0)
        for name in sorted(KEPT):
            if (family := found.get(THEIRS + name)) is not None:
                yield _renamed(family)


def _total(samples: Iterable[Sample]) -> float:
    return sum(sample.value for sample in samples if sample.labels.get("tp_rank", "0") == "0")


def _renamed(family: Metric) -> Metric:
    """The same under a name without the colon, which Prometheus keeps for recording rules."""
    renamed = Metric(family.name.replace(THEIRS, "sglang_"), family.documentation, family.type)
    renamed.samples = [
        sample._replace(name=sample.name.replace(THEIRS, "sglang_"))
        for sample in family.samples
        if sample.labels.get("tp_rank", "0") == "0"
    ]
    return renamed
