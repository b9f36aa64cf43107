"""A server for TypeSafe's client, whose engine can be held and whose every exchange is kept; what is asked of it."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from typesafe_sdk import AsyncTypeSafeClient, Choice, Noul, Score, SystemOneResponse, TypeSafeClient

from serving.engine import ScoreRequest, ScoreResult
from serving.fake_engine import FakeEngine
from tests.clients.exchanges import Exchange, record_exchanges
from tests.serving.harness import SERVED_NAME, demo_processor, make_app, reference_body, running_server

MAX_PROMPT_TOKENS = 10_000
STATE = {"ticket": "The parcel arrived broken.", "customer": "Vermeer Tools"}
QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Does the customer want a refund?"},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"Logistics": None, "Billing": "payments"}},
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["low", {"level": "high"}]},
}
SDK_QUESTIONS = {
    "refund": Noul(instructions="Does the customer want a refund?"),
    "team": Choice(instructions="Which team?", criteria={"Logistics": None, "Billing": "payments"}),
    "urgency": Score(instructions="How urgent?", criteria=["low", {"level": "high"}]),
}
REFUND = SDK_QUESTIONS["refund"]
KEY, LIMITED_KEY, TOKENS_KEY = "clef-key-of-orders", "clef-key-with-2-requests", "clef-key-with-few-tokens"
# The keys that are known to a guarded server, and their limits.
KEYS = {KEY: "", LIMITED_KEY: "requests_per_minute = 2", TOKENS_KEY: "tokens_per_minute = 1500"}


@dataclass(kw_only=True)
class HeldEngine(FakeEngine):
    """Answers nobody while it is held."""

    open: threading.Event = field(default_factory=threading.Event)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """See `serving.engine.Engine`."""
        result = await super().score(request)
        self.running += 1
        try:
            while not self.open.is_set():  # noqa: ASYNC110 - it is set in another thread
                await asyncio.sleep(0.002)
        finally:
            self.running -= 1
        return result


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server, its engine, and all that was asked of it."""

    url: str
    engine: HeldEngine
    exchanges: list[Exchange]

    def client(self, **options: Any) -> TypeSafeClient:
        return TypeSafeClient(**{"api_key": KEY, "base_url": self.url} | options)

    def new_client(self, **options: Any) -> AsyncTypeSafeClient:
        return AsyncTypeSafeClient(**{"api_key": KEY, "base_url": self.url} | options)


@contextlib.contextmanager
def sdk_server(**options: Any) -> Iterator[Server]:
    """Run one that serves media; options are those of `make_app`."""
    engine = HeldEngine()
    engine.open.set()
    app = make_app(engine, processor=demo_processor(), max_prompt_tokens=MAX_PROMPT_TOKENS, **options)
    exchanges = record_exchanges(app)
    with running_server(app) as url:
        yield Server(url=url, engine=engine, exchanges=exchanges)


def fresh(server: Server) -> Server:
    """The same server, as if nothing had been asked of it."""
    server.engine.fault = None
    server.engine.requests.clear()
    server.exchanges.clear()
    return server


def assert_answers(response: SystemOneResponse, state: Any = STATE) -> None:
    """Fail unless these are the answers to `QUESTIONS` about the state."""
    expected = reference_body({"state": state, "questions": QUESTIONS}, processor=demo_processor())
    answers = expected["answers"]
    assert response.model == SERVED_NAME
    assert response.usage.input_tokens == expected["usage"]["input_tokens"]
    assert response.usage.output_tokens == 0
    assert response.nouls["refund"].noul == pytest.approx(answers["refund"]["noul"], abs=1e-12)
    team, urgency = response.choices["team"], response.scores["urgency"]
    assert team.choice == answers["team"]["choice"]
    assert team.confidence == pytest.approx(answers["team"]["confidence"], abs=1e-12)
    assert team.probabilities == pytest.approx(answers["team"]["probabilities"], abs=1e-12)
    assert urgency.score == pytest.approx(answers["urgency"]["score"], abs=1e-12)
    assert urgency.confidence == pytest.approx(answers["urgency"]["confidence"], abs=1e-12)
    assert urgency.legend == {0: "low", 1: {"level": "high"}}
