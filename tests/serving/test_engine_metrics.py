"""The engine's figures out of the files of several processes: sums, ranks, names, and nothing left of an earlier run."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import values

from serving.engine_metrics import DIRECTORY_VARIABLE, open_directory, remove_directory
from serving.metrics import Metrics
from tests.serving.exposition import faults, series

# Stands for one of SGLang's scheduler processes.
SCHEDULER = """
import sys
from prometheus_client import Counter, Gauge, Histogram
rank, evicted, used = sys.argv[1:]
labels = {"model_name": "m", "tp_rank": rank}
gauges = {name: Gauge(f"sglang:{name}", "h", list(labels), multiprocess_mode="mostrecent") for name in (
    "kv_used_tokens", "kv_evictable_tokens", "kv_available_tokens",
    "mamba_used_tokens", "mamba_evictable_tokens", "mamba_available_tokens", "cache_hit_rate", "kv_transfer_latency_ms")}
for number, gauge in enumerate(gauges.values()):
    gauge.labels(**labels).set(int(used) + number)
counter = Counter("sglang:evicted_tokens_total", "h", ["tp_rank"])
if int(evicted):
    counter.labels(rank).inc(int(evicted))
    Counter("clef_evicted_states", "h", ["tp_rank"]).labels(rank).inc(1)
    Histogram("sglang:eviction_duration_seconds", "h", ["tp_rank"], buckets=[1]).labels(rank).observe(0.5)
"""


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    monkeypatch.setattr(values, "ValueClass", values.ValueClass)
    directory = open_directory()
    yield Path(directory.name)
    remove_directory(directory)


def run_scheduler(*, rank: int, evicted: int = 0, used: int = 0) -> None:
    subprocess.run([sys.executable, "-c", SCHEDULER, str(rank), str(evicted), str(used)], check=True)


def page_of(directory: Path) -> tuple[bytes, Any]:
    metrics = Metrics(served_model_name="m")
    metrics.add_engine(directory)
    page, _ = metrics.page("")
    found = series(page)
    return page, lambda name, **labels: found.get((name, frozenset(labels.items())))


def test_pools_by_use_and_evictions_of_the_first_rank(directory: Path) -> None:
    run_scheduler(rank=0, evicted=7, used=10)
    run_scheduler(rank=1, evicted=7, used=90)
    page, value = page_of(directory)
    assert [value("clef_kv_slots", use=use) for use in ("running", "cached", "free")] == [10, 11, 12]
    assert [value("clef_recurrent_states", use=use) for use in ("running", "cached", "free")] == [13, 14, 15]
    assert (value("clef_evicted_tokens_total"), value("clef_evicted_states_total")) == (7, 1)
    assert value("sglang_cache_hit_rate", model_name="m", tp_rank="0") == 16
    assert value("sglang_cache_hit_rate", model_name="m", tp_rank="1") is None
    assert value("sglang_eviction_duration_seconds_count", tp_rank="0") == 1
    assert "kv_transfer" not in page.decode()
    assert faults(page) == []


def test_a_process_that_comes_after_another_adds_to_it(directory: Path) -> None:
    run_scheduler(rank=0, evicted=7)
    run_scheduler(rank=0, evicted=5)
    assert page_of(directory)[1]("clef_evicted_tokens_total") == 12


def test_evictions_are_there_before_the_first(directory: Path) -> None:
    run_scheduler(rank=0)
    _, value = page_of(directory)
    assert (value("clef_evicted_tokens_total"), value("clef_evicted_states_total")) == (0, 0)


def test_nothing_of_an_earlier_run_is_read(directory: Path) -> None:
    run_scheduler(rank=0, evicted=7)
    later = open_directory()
    assert Path(later.name).parent == directory
    run_scheduler(rank=0, evicted=2)
    assert page_of(Path(later.name))[1]("clef_evicted_tokens_total") == 2
    remove_directory(later)
    assert not Path(later.name).exists()
    assert DIRECTORY_VARIABLE not in os.environ


def test_our_own_figures_stay_out_of_the_files(directory: Path) -> None:
    metrics = Metrics(served_model_name="m")
    metrics.add_engine(directory)
    with metrics.in_flight():
        assert series(metrics.page("")[0])["clef_requests_in_flight", frozenset()] == 1
    assert list(directory.iterdir()) == []


def test_a_directory_that_is_gone_has_no_figures(directory: Path) -> None:
    run_scheduler(rank=0, evicted=7)
    metrics = Metrics(served_model_name="m")
    metrics.add_engine(directory)
    shutil.rmtree(directory)
    assert "clef_kv_slots{" not in metrics.page("")[0].decode()
