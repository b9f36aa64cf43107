"""clef-rag's client of Clef on Workers AI, by its base URL setting."""

from types import SimpleNamespace
from typing import Any

import pytest
from clef_rag.clef import client as clef_client
from clef_rag.clef.questions import Choice, Noul, Score, answer_to_dict

from serving.errors import AuthenticationError, OverloadedError, RateLimitedError
from tests.clients.conftest import QUESTIONS, TICKET
from tests.clients.hosted import ACCOUNT, NAMES
from tests.serving.harness import same

pytestmark = pytest.mark.asyncio

REFUND, TEAM, URGENCY = QUESTIONS.values()
ASKED = {
    "refund": Noul(REFUND["instructions"]),
    "team": Choice(TEAM["instructions"], TEAM["criteria"]),
    "urgency": Score(URGENCY["instructions"], URGENCY["criteria"]),
}


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDFLARE_API_TOKEN", "any-token")


def client_of(server: SimpleNamespace, *, max_retries: int = 0) -> clef_client.ClefClient:
    return clef_client.ClefClient(
        clef_client.ClefConfig(
            backend="workers-ai",
            model="clef",
            base_url=f"{server.base_url}/accounts/{{account_id}}/ai/run/@cf/cloudflare",
            account_id=ACCOUNT,
            cache_dir=None,
            max_retries=max_retries,
        )
    )


async def test_answers(server: SimpleNamespace, expected: dict[str, Any]) -> None:
    async with client_of(server) as client:
        answered = await client.ask(TICKET, ASKED)
    assert answered.model == NAMES["served_model_name"]
    assert answered.input_tokens == expected["usage"]["input_tokens"]
    for name, answer in answered.answers.items():
        wanted = expected["answers"][name]
        assert same(answer_to_dict(answer), {key: wanted[key] for key in answer_to_dict(answer)})


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        (AuthenticationError("no key"), "HTTP 401: 10000 no key"),
        (RateLimitedError("too fast", retry_after_ms=1), "HTTP 429: 3040 too fast"),
        (OverloadedError("queue full", retry_after_ms=1), "HTTP 503: 3040 queue full"),
    ],
    ids=["401", "429", "503"],
)
async def test_refusals_are_errors_with_their_status(server: SimpleNamespace, refusal: Exception, message: str) -> None:
    server.engine.refusals.append(refusal)
    async with client_of(server) as client:
        with pytest.raises(clef_client.ClefError) as raised:
            await client.ask(TICKET, ASKED)
    assert (raised.value.status, str(raised.value)) == (int(message[5:8]), message)


@pytest.mark.parametrize(
    ("state", "asked", "message"),
    [
        (TICKET, {"": Noul("Refund?")}, "HTTP 422: 5012 question '' has an empty id"),
        ("x" * 5_000, ASKED, "HTTP 413: 5021 "),
    ],
    ids=["422", "413"],
)
async def test_wrong_requests_are_errors_and_not_tried_again(
    server: SimpleNamespace, state: Any, asked: dict[str, Any], message: str
) -> None:
    async with client_of(server, max_retries=2) as client:
        with pytest.raises(clef_client.ClefError) as raised:
            await client.ask(state, asked)
    assert str(raised.value).startswith(message)
    assert server.engine.requests == []


@pytest.mark.parametrize("refusal", [RateLimitedError, OverloadedError], ids=["429", "503"])
async def test_429_and_503_are_tried_again(
    server: SimpleNamespace, expected: dict[str, Any], refusal: type[RateLimitedError | OverloadedError]
) -> None:
    server.engine.refusals.append(
        refusal("not now", retry_after_ms=1)
    )  # it waits the whole second that retry-after says
    async with client_of(server, max_retries=1) as client:
        answered = await client.ask(TICKET, ASKED)
    assert same(answered.answers["refund"].value, expected["answers"]["refund"]["noul"])
    assert len(server.engine.requests) == 2
