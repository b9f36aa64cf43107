"""Neutral ids and isolated questions: what of a request may not move an answer, and what the engine is asked for it."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from serving.api_types import MAX_ISOLATED_QUESTIONS, parse_request
from serving.engine import ScoreRequest, ScoreResult
from serving.fake_engine import FakeEngine, Fault, fake_logit
from serving.front import Front
from serving.lifecycle import Lifecycle
from serving.request_body import RequestBody
from serving.request_record import RequestRecord
from tests.serving.harness import (
    body_of,
    client_of,
    composing_tokenizer,
    encoder,
    make_app,
    reference_body,
    same,
    settings,
    tiny_tokenizer,
)

pytestmark = pytest.mark.asyncio

STATE = "Customer says the parcel arrived broken and wants money back."
QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Does the customer want a refund?"},
    "team": {"type": "choice", "instructions": "Which team?", "criteria": {"logistics": "damage", "billing": None}},
    "urgency": {"type": "score", "criteria": ["low", "medium", "high"]},
}
ISOLATED = {"x_isolated": True}
NEUTRAL = {"x_question_ids": "neutral"}
WARM_UP_REQUESTS = 3


class WholePrompt(FakeEngine):
    """Its logits depend on every token before an option, as the model's do. Reports a cached token for each prompt."""

    async def score(self, request: ScoreRequest) -> ScoreResult:
        scored = await super().score(request)
        return ScoreResult(logits=scored.logits, prompt_tokens=scored.prompt_tokens, cached_tokens=1)

    def _logits(self, request: ScoreRequest) -> list[list[float]]:
        ids = request.input_ids
        return [[fake_logit(ids, ids[slice(*span)]) for span in spans.options] for spans in request.questions]


async def ask(client: httpx.AsyncClient, questions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/systemone", json={"state": STATE, "questions": questions, **fields})
    assert response.status_code == 200, response.text
    answered: dict[str, Any] = response.json()
    return answered


def prompts_of(engine: FakeEngine) -> list[str]:
    """What was asked since the warm-up."""
    return [tiny_tokenizer().decode(list(request.input_ids)) for request in engine.requests[WARM_UP_REQUESTS:]]


async def test_neutral_ids_leave_nothing_of_the_ids_in_the_prompt() -> None:
    engine = WholePrompt()
    refund, team = QUESTIONS["refund"], QUESTIONS["team"]
    ids = [["refund", "team"], ["q1", "q2"], ["q2", "q1"], ["질문 🎯", "\n"]]
    async with client_of(make_app(engine)) as client:
        answered = [await ask(client, {first: refund, second: team}, **NEUTRAL) for first, second in ids]
        sent = await ask(client, {"q1": refund, "q2": team})
    requests = engine.requests[WARM_UP_REQUESTS:]
    assert all(request.input_ids == requests[0].input_ids for request in requests)
    assert all(request.questions == requests[0].questions for request in requests)
    assert [list(body["answers"]) for body in answered] == ids
    assert all(list(body["answers"].values()) == list(sent["answers"].values()) for body in answered)
    assert "FIELD 1\nID: q1\n" in prompts_of(engine)[0]
    assert "FIELD 2\nID: q2\n" in prompts_of(engine)[0]


async def test_ids_as_sent_are_part_of_the_prompt() -> None:
    async with client_of(make_app(WholePrompt())) as client:
        one, other, explicit = (
            await ask(client, {"refund": QUESTIONS["refund"]}),
            await ask(client, {"q1": QUESTIONS["refund"]}),
            await ask(client, {"refund": QUESTIONS["refund"]}, x_question_ids="sent", x_isolated=False),
        )
    assert one["answers"]["refund"] != other["answers"]["q1"]
    assert one == explicit


@pytest.mark.parametrize(
    "instructions", [{}, {"instructions": None}, {"instructions": ""}], ids=["none", "null", "empty"]
)
async def test_a_question_without_instructions_asks_the_id_it_was_sent_with(instructions: dict[str, Any]) -> None:
    engine = FakeEngine()
    question = {"type": "score", "criteria": ["low", "high"], **instructions}
    async with client_of(make_app(engine)) as client:
        neutral = await ask(client, {"How urgent?": question}, **NEUTRAL)
    assert "ID: q1\nTYPE: score\nINSTRUCTION: How urgent?\n" in prompts_of(engine)[0]
    spelt_out = {"q1": {**question, "instructions": "How urgent?"}}
    expected = reference_body({"state": STATE, "questions": spelt_out})
    assert same(neutral["answers"]["How urgent?"], expected["answers"]["q1"])
    assert neutral["usage"] == expected["usage"]


async def test_neutral_and_sent_ids_do_not_meet_in_the_schema_cache() -> None:
    prompts = encoder()
    questions = parse_request({"state": "", "questions": QUESTIONS}).questions
    for _ in range(2):
        sent, neutral = prompts.encode(STATE, questions), prompts.encode(STATE, questions, neutral_ids=True)
        assert b"ID: refund" in bytes_of(sent.input_ids)
        assert b"ID: refund" not in bytes_of(neutral.input_ids)
        assert b"INSTRUCTION: urgency" in bytes_of(neutral.input_ids)


def bytes_of(ids: Sequence[int]) -> bytes:
    return tiny_tokenizer().decode(list(ids)).encode()


@pytest.mark.parametrize("fields", [{}, NEUTRAL], ids=["sent", "neutral"])
async def test_isolated_questions_are_answered_as_each_alone_in_any_order(fields: dict[str, Any]) -> None:
    async with client_of(make_app(WholePrompt())) as client:
        alone = {key: await ask(client, {key: question}, **fields) for key, question in QUESTIONS.items()}
        together = await ask(client, QUESTIONS, **fields)
        for order in itertools.permutations(QUESTIONS):
            isolated = await ask(client, {key: QUESTIONS[key] for key in order}, **ISOLATED, **fields)
            assert list(isolated["answers"]) == list(order)
            assert isolated["answers"] == {key: alone[key]["answers"][key] for key in order}
            assert isolated["usage"] == {
                "input_tokens": sum(body["usage"]["input_tokens"] for body in alone.values()),
                "output_tokens": 0,
                "x_cached_tokens": 3,
                "x_truncated_tokens": 0,
            }
    assert all(together["answers"][key] != alone[key]["answers"][key] for key in ("team", "urgency"))


async def test_one_isolated_question_is_the_request_that_it_is_by_default() -> None:
    engine = FakeEngine()
    async with client_of(make_app(engine)) as client:
        bodies = [await ask(client, {"urgency": QUESTIONS["urgency"]}, **fields) for fields in ({}, ISOLATED)]
    assert bodies[0] == bodies[1]
    default, isolated = engine.requests[WARM_UP_REQUESTS:]
    assert default.input_ids == isolated.input_ids


async def test_the_first_isolated_question_is_asked_before_all_the_others_at_once() -> None:
    engine = FakeEngine()
    questions = {f"r{number}": QUESTIONS["refund"] for number in range(MAX_ISOLATED_QUESTIONS)}
    async with client_of(make_app(engine)) as client:
        engine.delay_s = 0.1
        asking = asyncio.create_task(ask(client, questions, cache_salt="acme", **ISOLATED))
        seen: list[int] = []
        while not asking.done():
            if engine.running not in (0, *seen[-1:]):
                seen.append(engine.running)
            await asyncio.sleep(0.001)
        assert list((await asking)["answers"]) == list(questions)
    assert seen[:2] == [1, MAX_ISOLATED_QUESTIONS - 1]  # then fewer, as they end
    assert {request.cache_salt for request in engine.requests[WARM_UP_REQUESTS:]} == {"acme"}
    ids = [request.request_id for request in engine.requests]
    assert not any(one.startswith(other) for one, other in itertools.permutations(ids, 2))


async def test_the_state_of_isolated_questions_is_tokenized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = encoder()
    tokenized: list[str] = []
    tokenize = prompts._tokenize.__call__

    def noted(texts: Any) -> Any:
        tokenized.extend(texts)
        return tokenize(texts)

    monkeypatch.setattr(prompts, "_tokenize", noted)
    questions = parse_request({"state": "", "questions": QUESTIONS}).questions
    for _ in range(2):
        encoded = prompts.encode_isolated(STATE, questions)
        assert tokenized.count(STATE) == 1
        tokenized.clear()
        assert encoded == [prompts.encode(STATE, {key: question}) for key, question in questions.items()]
        tokenized.clear()
    assert prompts.encode_isolated("", questions)[1] == prompts.encode("", {"team": questions["team"]})


async def test_the_prompt_limit_is_one_for_each_isolated_question() -> None:
    state, refund = "x" * 300, QUESTIONS["refund"]
    limit = reference_body({"state": state, "questions": {"refund": refund}})["usage"]["input_tokens"]
    questions = {"team": QUESTIONS["team"], "refund": refund}
    longer = {**refund, "instructions": refund["instructions"] + "?"}
    async with client_of(make_app(FakeEngine(), max_prompt_tokens=limit)) as client:

        async def post(**body: Any) -> httpx.Response:
            return await client.post("/v1/systemone", json={"state": state, **body})

        assert (await post(questions=questions)).status_code == 413
        assert (await post(questions=questions, **ISOLATED)).status_code == 200
        refused = await post(questions=questions | {"longer": longer}, **ISOLATED)
    assert refused.status_code == 413
    message = f"question 'longer': the prompt has {limit + 1} tokens and the limit is {limit}: state 300, "
    assert refused.json()["detail"]["message"].startswith(message)


class FailsOnce(FakeEngine):
    """Fails for one prompt, while all others would take a minute."""

    def __init__(self, number: int, fault: Fault) -> None:
        super().__init__()
        self.failing, self.kind, self.asked = number + WARM_UP_REQUESTS, fault, 0

    async def score(self, request: ScoreRequest) -> ScoreResult:
        number, self.asked = self.asked, self.asked + 1
        if number == self.failing:
            return await FakeEngine(fault=self.kind).score(request)
        if self.failing > WARM_UP_REQUESTS and number > WARM_UP_REQUESTS:
            self.delay_s = 60
        return await super().score(request)


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize(
    ("fault", "status", "error_type"),
    [("refuse", 500, "engine_error"), ("dead", 503, "engine_dead")],
)
async def test_one_failure_is_the_answer_and_ends_the_others(
    number: int, fault: Fault, status: int, error_type: str
) -> None:
    engine = FailsOnce(number, fault)
    app = make_app(engine)
    questions = {f"r{number}": QUESTIONS["refund"] for number in range(4)}
    async with client_of(app) as client:
        body = {"state": STATE, "questions": questions, **ISOLATED}
        failed = await asyncio.wait_for(client.post("/v1/systemone", json=body), 10)
        assert app.state.lifecycle.phase == ("dead" if fault == "dead" else "ready")
    assert failed.status_code == status
    assert failed.json()["detail"]["error_type"] == error_type
    assert engine.running == 0
    assert engine.asked == WARM_UP_REQUESTS + (1 if number == 0 else 4)
    assert len(engine.aborted) == (0 if number == 0 else 2)


async def test_scores_that_are_not_finite_fail_the_whole_request() -> None:
    engine = FakeEngine()
    async with client_of(make_app(engine)) as client:
        engine.fault = "nan"
        response = await client.post("/v1/systemone", json={"state": STATE, "questions": QUESTIONS, **ISOLATED})
    assert response.status_code == 500
    assert response.json()["detail"]["error_type"] == "engine_error"


@pytest.mark.parametrize("running", [1, 2], ids=["first", "rest"])
async def test_cancelling_aborts_every_prompt_in_flight(running: int) -> None:
    engine = FakeEngine(delay_s=0.1)
    front = Front(engine=engine, tokenizer=tiny_tokenizer(), processor=None, settings=settings(), lifecycle=Lifecycle())
    body = RequestBody(document=body_of({"state": STATE, "questions": QUESTIONS, **ISOLATED}), parts={})
    asking = asyncio.create_task(front.answer(body, RequestRecord(request_id="one"), deadline=time.monotonic() + 60))
    while engine.running != running:  # noqa: ASYNC110  (the engine is a fake; nobody signals)
        await asyncio.sleep(0.001)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await front.aclose()
    assert engine.running == 0
    assert sorted(engine.aborted) == [request.request_id for request in engine.requests[-running:]]


async def test_a_fault_names_the_id_as_sent() -> None:
    """A text without a token comes from a tokenizer that drops it, as this one does."""
    tokenizer = composing_tokenizer()
    prompts = encoder(tokenizer)
    tokenize = prompts._tokenize.__call__
    prompts._tokenize = lambda texts: tokenize(texts) | {"gone": []}  # type: ignore[assignment]
    body = {"state": "", "questions": {"refund": {"type": "noul", "instructions": "gone"}}}
    with pytest.raises(Exception, match="question 'refund': instructions have no token"):
        prompts.encode("", parse_request(body).questions, neutral_ids=True)


async def test_both_fields_stand_in_the_openapi_document() -> None:
    async with client_of(make_app(FakeEngine())) as client:
        document = (await client.get("/openapi.json")).json()
    schema = document["components"]["schemas"]["SystemOneRequest"]
    assert schema["properties"]["x_question_ids"]["enum"] == ["sent", "neutral"]
    assert schema["properties"]["x_question_ids"]["default"] == "sent"
    assert schema["properties"]["x_isolated"]["type"] == "boolean"
    assert schema["properties"]["x_isolated"]["default"] is False
    assert not {"x_question_ids", "x_isolated"} & set(schema["required"])
