"""clef-evals, a client of Clef on Workers AI that reads answers and errors into types of its own."""

import time
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import clef_evals
import pytest

from serving.errors import AuthenticationError, NotServingError, OverloadedError, RateLimitedError
from tests.clients.conftest import QUESTIONS, TICKET
from tests.clients.hosted import ACCOUNT, NAMES
from tests.serving.harness import same

REFUND, TEAM, URGENCY = QUESTIONS.values()
ASKED = {
    "refund": clef_evals.Noul(REFUND["instructions"]),
    "team": clef_evals.Choice(TEAM["instructions"], TEAM["criteria"]),
    "urgency": clef_evals.Score(URGENCY["instructions"], URGENCY["criteria"]),
}


def client_of(server: SimpleNamespace, *, max_retries: int = 0, model: str = "clef-flash") -> clef_evals.ClefClient:
    return clef_evals.ClefClient(
        clef_evals.ClefConfig(
            account_id=ACCOUNT,
            api_token="any-token",
            model=f"@cf/cloudflare/{model}",
            base_url=server.base_url,
            max_retries=max_retries,
        )
    )


def test_answers(server: SimpleNamespace, expected: dict[str, Any]) -> None:
    with client_of(server) as client:
        answered = client.run(TICKET, ASKED)
    refund, team, urgency = (expected["answers"][name] for name in ASKED)
    assert answered.model == NAMES["served_model_name"]
    assert answered.usage.input_tokens == expected["usage"]["input_tokens"]
    assert same(
        {name: asdict(answer) for name, answer in answered.answers.items()},
        {
            "refund": {"question_id": "refund", "probability": refund["noul"]},
            "team": {
                "question_id": "team",
                "choice": team["choice"],
                "probabilities": team["probabilities"],
                "confidence": team["confidence"],
            },
            "urgency": {
                "question_id": "urgency",
                "score": urgency["score"],
                "legend": {0: "low", 1: "medium", 2: "high"},
                "probabilities": urgency["probabilities"],
                "confidence": urgency["confidence"],
            },
        },
    )


@pytest.mark.parametrize(
    ("refusal", "error", "code"),
    [
        (AuthenticationError("no key"), clef_evals.ClefAuthError, 10000),
        (RateLimitedError("too fast", retry_after_ms=1500), clef_evals.ClefRateLimitError, 3040),
        (OverloadedError("queue full", retry_after_ms=1500), clef_evals.ClefServerError, 3040),
        (NotServingError("shutting down"), clef_evals.ClefServerError, 3040),
    ],
    ids=["401", "429", "503-overloaded", "503-draining"],
)
def test_refusals_are_typed_errors(
    server: SimpleNamespace, refusal: Exception, error: type[clef_evals.ClefAPIError], code: int
) -> None:
    server.engine.refusals.append(refusal)
    with client_of(server) as client, pytest.raises(error) as raised:
        client.run(TICKET, ASKED)
    assert (raised.value.error_code, raised.value.message) == (code, str(refusal))


def test_a_rate_limit_says_when_to_come_back(server: SimpleNamespace) -> None:
    server.engine.refusals.append(RateLimitedError("too fast", retry_after_ms=1500))
    with client_of(server) as client, pytest.raises(clef_evals.ClefRateLimitError) as raised:
        client.run(TICKET, ASKED)
    assert raised.value.retry_after == 2.0  # it reads whole seconds alone, and 1.5 s are rounded up


@pytest.mark.parametrize(
    ("state", "asked", "model", "status", "code"),
    [
        (TICKET, {"": clef_evals.Noul("Refund?")}, "clef-flash", 422, 5012),
        ("x" * 5_000, ASKED, "clef-flash", 413, 5021),
        (TICKET, ASKED, "clef-omni", 404, 3042),
    ],
    ids=["422", "413", "404"],
)
def test_wrong_requests_are_typed_errors(
    server: SimpleNamespace, state: Any, asked: dict[str, Any], model: str, status: int, code: int
) -> None:
    with client_of(server, model=model, max_retries=2) as client, pytest.raises(clef_evals.ClefAPIError) as raised:
        client.run(state, asked)
    assert (raised.value.status_code, raised.value.error_code, raised.value.retryable) == (status, code, False)


def test_429_and_503_are_tried_again(
    server: SimpleNamespace, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    clock = SimpleNamespace(perf_counter=time.perf_counter, sleep=waits.append)
    monkeypatch.setattr("clef_evals.client.time", clock)
    server.engine.refusals += [
        RateLimitedError("too fast", retry_after_ms=2500),
        OverloadedError("queue full", retry_after_ms=2500),
    ]
    with client_of(server, max_retries=2) as client:
        answered = client.run(TICKET, ASKED)
    assert answered.answers["team"].choice == expected["answers"]["team"]["choice"]
    assert len(server.engine.requests) == 3
    assert waits[0] == 3.0
    assert len(waits) == 2  # how long it waits after a 503 is its own affair
