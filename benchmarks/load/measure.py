"""Measures points: a rate, or a number of clients, held for a while on one server. Knows time and bounds, nothing of HTTP.

A point is one or several slices, each with a warm-up that does not count, states of its own and, before it, a server that
answers a single request about as fast as at the beginning.
"""

import asyncio
import contextlib
import gc
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.load.intervals import percentile
from benchmarks.load.progress import Progress
from benchmarks.load.requests import Request, RequestStream, request_stream, taken
from benchmarks.load.samples import ANSWERED, Sample, Samples, cache_report, latency_report, outcomes
from benchmarks.load.schedule import poisson
from benchmarks.load.sender import Flight, Reply, Sent, closed_loop, open_loop
from benchmarks.load.slo import Slo, TermResult, Verdict, Watch, verdict_of
from benchmarks.load.workloads import Workload

PROBES = 5  # of which the first two are not counted
LAG_FLOOR_S = 0.005
LAG_SHARE = 0.1


class Server(Protocol):
    """What is measured."""

    name: str
    model_asked: str

    @property
    def connections_opened(self) -> int:
        """Since the start."""
        ...

    async def ask(self, body: bytes) -> Reply:
        """One request."""
        ...


class UnusableServerError(Exception):
    """The server did not answer the first requests; the message says how."""


class BoundReachedError(Exception):
    """The run has had all the requests or time that it may have; the message names the bound."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is asked and within which bounds. `duration_s` is of all slices of a point together, warm-ups not counted.

    Attributes:
        warmup_s: of each slice.
        timeout_s: of a request, from when it was due.
        settle_s: how long a server may take to become idle again before a slice.
        max_lag_s: how late the generator may be at the 99th percentile; None: a tenth of the tightest limit of the SLO, or
            of the median latency, and 5 ms at least.
    """

    workload: Workload
    slo: Slo | None
    duration_s: float
    warmup_s: float
    slices: int
    timeout_s: float
    settle_s: float
    seed: int
    run_id: str
    confidence: float
    max_requests: int
    max_seconds: float
    max_in_flight: int
    max_lag_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("duration_s", "timeout_s", "max_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name):g}")
        for name in ("slices", "max_requests", "max_in_flight"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.warmup_s < 0 or self.settle_s < 0:
            raise ValueError("warmup_s and settle_s must not be negative")
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"a confidence lies between 0.5 and 1, not {self.confidence:g}")
        if self.slo is not None and self.slo.tightest_s is not None:
            longest = max(term.limit_s for term in self.slo.terms if term.limit_s is not None)
            if self.timeout_s < longest:
                raise ValueError(f"timeout_s is {self.timeout_s:g}, less than the SLO's limit of {longest:g} s")
        missing = {term.kind for term in self.slo.terms if term.kind} - self.workload.kinds if self.slo else set()
        if missing:
            raise ValueError(f"the SLO speaks of {', '.join(map(str, missing))}, which {self.workload.name} never asks")


@dataclass(frozen=True, kw_only=True)
class Load:
    """How a server is asked: `rate_rps` of an open loop, or `clients` of a closed one."""

    rate_rps: float | None = None
    clients: int | None = None

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.rate_rps:.4g}/s" if self.rate_rps is not None else f"{self.clients} clients"


@dataclass(kw_only=True)
class Point:
    """All slices measured under one load on one server."""

    load: Load
    samples: list[Sample] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    ticks_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    slices: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    connections_opened: int = 0
    answered_in_time: int = 0
    stopped_early: bool = False
    settled: bool = True

    def judged(self, settings: Settings) -> list[TermResult]:
        """Each promise held to all slices together."""
        return [] if settings.slo is None else settings.slo.judge(Samples(self.samples), settings.confidence)

    def verdict(self, settings: Settings) -> Verdict:
        """All promises; without any, all is well."""
        return verdict_of(self.judged(settings))

    def lag_bound_s(self, settings: Settings) -> float:
        """See `Settings.max_lag_s`."""
        if settings.max_lag_s is not None:
            return settings.max_lag_s
        scale = None if settings.slo is None else settings.slo.tightest_s
        if scale is None:
            answered = [sample.latency_s for sample in self.samples if sample.outcome == ANSWERED]
            scale = percentile(answered, 0.5) if answered else 0.0
        return max(LAG_FLOOR_S, LAG_SHARE * scale)

    def lag_p99_s(self) -> float:
        """How late requests were started, or the event loop's clock ticked, at the 99th percentile: the worse of the two."""
        return max((percentile(lags, 0.99) for lags in (self.lags_s, self.ticks_s) if lags), default=0.0)

    def generator_limited(self, settings: Settings) -> bool:
        """Whether the generator, not the server, may be what was measured."""
        not_sent = any(sample.outcome == "not sent" for sample in self.samples)
        return not_sent or self.lag_p99_s() > self.lag_bound_s(settings)

    def report(self, settings: Settings) -> dict[str, Any]:
        """For the JSON object; units stand in the names."""
        samples = Samples(self.samples)
        results = self.judged(settings)
        verdict = verdict_of(results)
        return {
            "offered_rps": self.load.rate_rps,
            "clients": self.load.clients,
            "measured_s": round(self.seconds, 3),
            "slices": self.slices,
            "requests": len(samples),
            "sent_rps": round(len(samples) / self.seconds, 3),
            "answered_rps": round(self.answered_in_time / self.seconds, 3),
            "outcomes": outcomes(samples),
            "latency": {
                name: latency_report(samples, kind, settings.confidence)
                for name, kind in (("all", None), ("cold", "cold"), ("prefix", "prefix"), ("repeated", "repeated"))
            },
            "cache": cache_report(samples),
            "slo": [result.report() for result in results],
            "slo_met": verdict.met if results else None,
            "slo_certain": verdict.certain if results else None,
            "stopped_early": self.stopped_early,
            "settled_before": self.settled,
            "generator": {
                "limited": self.generator_limited(settings),
                "lag_p99_ms": round(self.lag_p99_s() * 1000, 3),
                "lag_bound_ms": round(self.lag_bound_s(settings) * 1000, 3),
                "send_lag_p50_ms": round(percentile(self.lags_s, 0.5) * 1000, 3) if self.lags_s else None,
                "event_loop_lag_p99_ms": round(percentile(self.ticks_s, 0.99) * 1000, 3) if self.ticks_s else None,
                "cpu_cores": round(self.cpu_s / self.wall_s, 3) if self.wall_s else None,
                "connections_opened": self.connections_opened,
            },
        }


class Measurer:
    """Measures slices within the bounds of a run."""

    def __init__(self, settings: Settings, progress: Progress) -> None:
        self.settings, self._progress = settings, progress
        self.requests_sent = 0
        self._deadline = asyncio.get_running_loop().time() + settings.max_seconds
        self._idle_s: dict[str, float] = {}
        self._probes: Counter[str] = Counter()

    async def preflight(self, server: Server) -> float:
        """Ask a few requests one after another; returns the slowest of those that count, in seconds.

        Raises:
            UnusableServerError: one was not answered with 200.
        """
        seconds = [await self._probe(server) for _ in range(PROBES)][2:]
        self._idle_s[server.name] = max(seconds)
        return max(seconds)

    async def _probe(self, server: Server) -> float:
        self._probes[server.name] += 1
        stream = self._stream(server, f"probe-{self._probes[server.name]}")
        outcome, seconds = await self._ask_alone(server, next(stream.requests))
        if outcome != ANSWERED and server.name not in self._idle_s:
            raise UnusableServerError(
                f"server {server.name} did not answer the first request ({outcome}); "
                "is the URL with its path right, and the model and the key?"
            )
        return seconds if outcome == ANSWERED else math.inf

    async def _ask_alone(self, server: Server, request: Request) -> tuple[str, float]:
        """The outcome of a request that belongs to no slice, and its seconds."""
        self._spend(1)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                outcome = (await server.ask(request.body)).outcome
        except TimeoutError:
            outcome = "timeout"
        return outcome, loop.time() - started

    async def _settle(self, server: Server) -> bool:
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.settings.settle_s
        while await self._probe(server) > 2 * self._idle_s[server.name] + 0.01:
            if loop.time() > ends:
                return False
            await asyncio.sleep(0.1)
        return True

    def _stream(self, server: Server, draw: str) -> RequestStream:
        return request_stream(
            self.settings.workload,
            seed=self.settings.seed,
            draw=draw,
            namespace=f"{self.settings.run_id}/{server.name}/{draw}",
            model=server.model_asked,
        )

    def _spend(self, requests: int) -> None:
        if self.requests_sent + requests > self.settings.max_requests:
            raise BoundReachedError(f"max_requests is {self.settings.max_requests}")
        if self._out_of_time():
            raise self._too_long()
        self.requests_sent += requests

    async def slice(self, server: Server, point: Point, draw: str) -> None:
        """Measure one slice more of a point; `draw` names the arrivals and requests, the same for every server.

        Raises:
            BoundReachedError: it would be more than the run may have, or was cut off; the point is as it was.
            ValueError: the requests need too much memory.
        """
        settings = self.settings
        if not await self._settle(server):
            point.settled = False
        stream = self._stream(server, draw)
        for primer in stream.primers:
            await self._ask_alone(server, primer)
        until = settings.warmup_s + settings.duration_s / settings.slices
        flight = Flight()
        if point.load.rate_rps is not None:
            due = poisson(point.load.rate_rps, until, f"{settings.seed}/{draw}/arrivals")
            self._spend(len(due))
            requests = taken(stream.requests, len(due))
            running = open_loop(
                due,
                lambda number: server.ask(requests[number].body),
                timeout_s=settings.timeout_s,
                max_in_flight=settings.max_in_flight,
                lost=self._lost(sum(at >= settings.warmup_s for at in due)),
                flight=flight,
            )
        else:
            assert point.load.clients is not None
            requests = []
            running = closed_loop(
                point.load.clients,
                until,
                lambda number: server.ask(requests[number].body),
                timeout_s=settings.timeout_s,
                max_requests=settings.max_requests - self.requests_sent,
                prepare=lambda _: requests.append(next(stream.requests)),
                lost=self._lost(0),
                flight=flight,
            )
        opened, cpu_s, wall_s = server.connections_opened, time.process_time(), time.perf_counter()
        with self._progress.of(f"{server.name} {point.load.label}", flight), _no_collection():
            await running
        point.cpu_s += time.process_time() - cpu_s
        point.wall_s += time.perf_counter() - wall_s
        if point.load.clients is not None:
            self.requests_sent += len(flight.sent)
        if flight.stopped_early and self._out_of_time():
            raise self._too_long()
        measured = [sent for sent in flight.sent if sent.due_s >= settings.warmup_s]
        if flight.stopped_early and measured:
            point.stopped_early = True
            until = max(sent.done_s for sent in measured)
        point.samples += [_sample(sent, requests[sent.number].kind, point.slices) for sent in measured]
        if point.load.rate_rps is not None:
            point.lags_s += [sent.started_s - sent.due_s for sent in measured]
        point.ticks_s += flight.ticks_s
        point.seconds += until - settings.warmup_s
        point.answered_in_time += sum(
            sent.outcome == ANSWERED and settings.warmup_s <= sent.done_s <= until for sent in flight.sent
        )
        point.connections_opened += server.connections_opened - opened
        point.slices += 1

    def _lost(self, planned: int) -> Callable[[Flight], bool]:
        """Whether a slice should end: time is up, or of so many planned requests too many have missed."""
        settings = self.settings
        watch = Watch(settings.slo, planned, settings.confidence) if settings.slo and planned else None
        seen = 0

        def lost(flight: Flight) -> bool:
            nonlocal seen
            if watch is not None:
                for sent in flight.sent[seen:]:
                    if sent.due_s >= settings.warmup_s:
                        watch.add(sent.done_s - sent.due_s if sent.outcome == ANSWERED else math.inf)
                seen = len(flight.sent)
            return self._out_of_time() or (watch is not None and watch.lost)

        return lost

    def _out_of_time(self) -> bool:
        return asyncio.get_running_loop().time() > self._deadline

    def _too_long(self) -> BoundReachedError:
        return BoundReachedError(f"max_seconds is {self.settings.max_seconds:g}")


def _sample(sent: Sent, kind: str, slice_number: int) -> Sample:
    return Sample(
        slice_number=slice_number,
        due_s=sent.due_s,
        started_s=sent.started_s,
        done_s=sent.done_s,
        outcome=sent.outcome,
        kind=kind,
        cached_tokens=sent.usage.get("x_cached_tokens"),
        input_tokens=sent.usage.get("input_tokens"),
    )


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """A garbage collection among thousands of requests would take tens of milliseconds."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
