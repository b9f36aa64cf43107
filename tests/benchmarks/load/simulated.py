"""Simulated servers, asked as real ones are, and what theory says of one of them."""

import asyncio
import json
import math
from dataclasses import dataclass, field
from typing import Any

from benchmarks.load.measure import Settings
from benchmarks.load.samples import ANSWERED
from benchmarks.load.slo import parse_slo
from benchmarks.load.workloads import read_workload


@dataclass(frozen=True, kw_only=True)
class SimulatedReply:
    outcome: str = ANSWERED
    told: dict[str, int] = field(default_factory=dict)

    def usage(self) -> dict[str, int]:
        return self.told


@dataclass(kw_only=True)
class SimulatedServer:
    """Does one request after another, each in `service_s`; pauses for a while where it is told to."""

    name: str = "A"
    model_asked: str = "m"
    service_s: float = 0.01
    pause_at_s: float = math.inf
    pause_s: float = 0.0
    outcomes: tuple[str, ...] = (ANSWERED,)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    _free_at: float = 0.0

    @property
    def connections_opened(self) -> int:
        return 0

    async def ask(self, body: bytes) -> SimulatedReply:
        loop = asyncio.get_running_loop()
        self.bodies.append(json.loads(body))
        begins = max(loop.time(), self._free_at)
        if begins >= self.pause_at_s:
            begins, self.pause_at_s = begins + self.pause_s, math.inf
        self._free_at = begins + self.service_s
        outcome = self.outcomes[len(self.bodies) % len(self.outcomes)]
        await asyncio.sleep(self._free_at - loop.time())
        return SimulatedReply(outcome=outcome)


def settings(**changed: Any) -> Settings:
    values: dict[str, Any] = {
        "workload": read_workload("hot-path"),
        "slo": parse_slo("p99<60ms"),
        "duration_s": 60,
        "warmup_s": 2,
        "slices": 1,
        "timeout_s": 5,
        "settle_s": 20,
        "seed": 1,
        "run_id": "test",
        "confidence": 0.95,
        "max_requests": 1_000_000,
        "max_seconds": 1e6,
        "max_in_flight": 100_000,
    }
    return Settings(**values | changed)


def md1_sojourn_cdf(load: float, services: float) -> float:
    """P(waiting + service <= services), in units of one service, for Poisson arrivals at a single server of fixed speed.

    Erlang's series for the wait of M/D/1: (1 - load) sum_k (-load (t - k))^k / k! e^(load (t - k)), k up to t.
    """
    wait = services - 1
    if wait < 0:
        return 0.0
    terms = (
        (-load * (wait - k)) ** k / math.factorial(k) * math.exp(load * (wait - k)) for k in range(math.floor(wait) + 1)
    )
    return (1 - load) * math.fsum(terms)


def md1_rate_at(share: float, limit_s: float, service_s: float) -> float:
    """The rate at which this share of requests takes at most `limit_s`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if md1_sojourn_cdf(middle, limit_s / service_s) >= share else (low, middle)
    return low / service_s
