"""The server as it starts by default, in FP32: answers equal the reference's, cold and cached, alone and together."""

import dataclasses
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jevcompat.runner
import pytest
from typesafe_sdk import AsyncTypeSafeClient, Choice, Noul, Score, TypeSafeClient, TypeSafeUnprocessableEntityError

from tests import tolerances
from tests.cases.checks import check_outcome
from tests.cases.table import CASES, CASES_WITH_VISION, Case
from tests.engine.records import RECORDS, REFUND, TEAM, URGENCY, questions, text
from tests.engine.served import GRID, Served, cached, distance, probabilities, serving

pytestmark = pytest.mark.engine
NUM_009 = next(case for case in CASES if case.id == "num-009")


@pytest.fixture(scope="module")
def served(release: Callable[[int], Path]) -> Iterator[Served]:
    with serving(release(0)) as served:
        yield served


def test_answers_depend_on_the_state_and_the_questions_far_more_than_the_tolerance(served: Served) -> None:
    """Otherwise the comparisons below would show nothing."""
    ask = served.reference.probabilities
    state = text(0, 500)
    base = ask({"state": state, "questions": {"u": URGENCY}})
    one_word = ask({"state": state[:200] + "Q" + state[201:], "questions": {"u": URGENCY}})
    other_question = ask({"state": state, "questions": {"u": {**URGENCY, "instructions": "How urgent!"}}})
    assert distance(base, one_word) > 10 * tolerances.FP32
    assert distance(base, other_question) > 10 * tolerances.FP32


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_answered_as_by_the_reference_and_again_from_the_cache(served: Served, name: str) -> None:
    record, salt = RECORDS[name], f"parity of {name}"
    expected = served.reference.probabilities(record)
    cold, again = (served.ask(record, cache_salt=salt) for _ in range(2))
    assert distance(probabilities(cold), expected) <= tolerances.FP32
    assert distance(probabilities(again), expected) <= tolerances.FP32
    assert cold["usage"]["input_tokens"] == len(served.reference.encode(record).input_ids)
    assert cached(cold) == 0
    assert cached(again) == served.reference.state_end(record) // GRID * GRID


def test_other_questions_about_a_known_state_compute_only_themselves(served: Served) -> None:
    state = {"ticket": text(1, 1480)}
    for seed in range(5):
        record = {"state": state, "questions": questions(seed)}
        answered = served.ask(record)
        assert distance(probabilities(answered), served.reference.probabilities(record)) <= tolerances.FP32
        assert cached(answered) == (served.reference.state_end(record) // GRID * GRID if seed else cached(answered))
        remainder = served.reference.state_end(record) % GRID
        computed = answered["usage"]["input_tokens"] - cached(answered)
        schema_and_suffix = answered["usage"]["input_tokens"] - served.reference.state_end(record)
        if seed:
            assert computed == schema_and_suffix + remainder


@pytest.mark.parametrize("tokens", [63, 64, 65, 127, 128, 129, 1023, 1024, 1025])
def test_a_hit_equals_a_miss_at_states_that_end_around_the_grid(served: Served, tokens: int) -> None:
    prefix = served.reference.state_end({"state": "", "questions": {"r": REFUND}})
    record = {"state": text(tokens, max(0, tokens - prefix)), "questions": {"u": URGENCY, "t": TEAM}}
    assert served.reference.state_end(record) == max(tokens, prefix)
    expected = served.reference.probabilities(record)
    salt = f"edge {tokens}"
    answers = [served.ask(record, cache_salt=salt) for _ in range(3)]
    assert [cached(answered) for answered in answers] == [0] + 2 * [max(tokens, prefix) // GRID * GRID]
    for answered in answers:
        assert distance(probabilities(answered), expected) <= tolerances.FP32


def test_a_state_that_begins_like_a_known_one_shares_what_is_equal(served: Served) -> None:
    """A partial hit: the common part reaches as far as a kept state of the known one."""
    beginning = text(2, 1000)
    salt = "partial"
    served.ask({"state": beginning, "questions": {"r": REFUND}}, cache_salt=salt)
    record = {"state": beginning + text(3, 700), "questions": {"u": URGENCY}}
    answered = served.ask(record, cache_salt=salt)
    assert 0 < cached(answered) <= served.reference.state_end({**record, "state": beginning})
    assert distance(probabilities(answered), served.reference.probabilities(record)) <= tolerances.FP32


def test_a_key_that_changes_with_every_request_ends_the_shared_prefix_where_it_stands(served: Served) -> None:
    """State keys are sorted, so what varies should sort last."""

    def second(name: str) -> int:
        states = [{name: f"req-{number}", "document": text(4, 900)} for number in range(2)]
        _, other = (served.ask({"state": state, "questions": {"r": REFUND}}, cache_salt=name) for state in states)
        return cached(other)

    assert second("_id") == 0 or second("_id") < 2 * GRID
    assert second("z_id") >= 900


def test_equal_states_under_different_salts_share_nothing(served: Served) -> None:
    record = {"state": text(5, 600), "questions": {"r": REFUND}}
    assert cached(served.ask(record, cache_salt="acme")) == 0
    assert cached(served.ask(record, cache_salt="globex")) == 0
    assert cached(served.ask(record)) <= 2 * GRID  # no more than the system text that every prompt begins with
    for salt in ("acme", "globex", None):
        assert cached(served.ask(record, cache_salt=salt)) >= 600


def test_hits_misses_and_partial_hits_together_equal_the_reference_in_any_order(served: Served) -> None:
    known = text(6, 700)
    served.ask({"state": known, "questions": {"r": REFUND}})
    records = [
        {"state": known, "questions": {"u": URGENCY}},
        {"state": known + text(7, 300), "questions": {"t": TEAM}},
        {"state": text(8, 1300), "questions": {"r": REFUND, "u": URGENCY}},
        RECORDS["many-options"],
        {"state": known[:333] + text(9, 100), "questions": {"r": REFUND}},
        RECORDS["structured"],
        {"state": known, "questions": questions(10)},
        {"state": "", "questions": questions(11)},
    ]
    expected = [served.reference.probabilities(record) for record in records]
    for shuffle in range(3):
        order = list(range(len(records)))
        random.Random(shuffle).shuffle(order)
        answers = served.ask_together([records[index] for index in order])
        for index, answered in zip(order, answers, strict=True):
            assert distance(probabilities(answered), expected[index]) <= tolerances.FP32


def test_requests_about_one_new_state_that_come_together_compute_it_once(served: Served) -> None:
    state = text(70, 2000)
    records = [{"state": state, "questions": questions(70 + number)} for number in range(8)]
    answers = served.ask_together(records)
    for record, answered in zip(records, answers, strict=True):
        assert distance(probabilities(answered), served.reference.probabilities(record)) <= tolerances.FP32
    reusable = served.reference.state_end(records[0]) // GRID * GRID
    hits = [cached(answered) == reusable for answered in answers]
    assert sorted(hits) == [False] + 7 * [True]


def test_16_clients_with_255_options_are_answered_as_one_would_be(served: Served) -> None:
    record = RECORDS["many-options"]
    expected = served.reference.probabilities(record)
    for answered in served.ask_together([record] * 16):
        assert distance(probabilities(answered), expected) <= tolerances.FP32


def test_the_longest_prompt_is_answered_and_one_token_more_is_refused(served: Served) -> None:
    question = {"r": REFUND}
    fixed = len(served.reference.encode({"state": "", "questions": question}).input_ids)
    longest = {"state": text(12, 65_536 - fixed), "questions": question}
    answered = served.ask(longest)
    assert answered["usage"]["input_tokens"] == 65_536
    assert distance(probabilities(answered), served.reference.probabilities(longest)) <= tolerances.FP32
    refused = served.post({**longest, "state": longest["state"] + "x"})
    assert refused.status_code == 413
    assert "65537 tokens and the limit is 65536" in refused.json()["detail"]["message"]


def test_short_prompts_do_not_wait_for_a_long_one_to_end(served: Served) -> None:
    long = {"state": text(13, 60_000), "questions": {"r": REFUND}}
    finished: list[str] = []

    def ask(name: str, record: dict[str, Any]) -> None:
        served.ask(record)
        finished.append(name)

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, "long", long)]
        for number in range(3):
            asked.append(pool.submit(ask, "short", {"state": text(14 + number, 200), "questions": {"r": REFUND}}))
        for future in asked:
            future.result()
    assert finished.index("long") >= 2  # a client may be told late, on a busy machine


def test_clients_that_leave_harm_nobody(served: Served) -> None:
    record = {"state": text(20, 900), "questions": {"u": URGENCY}}
    expected = served.reference.probabilities(record)
    for round_number in range(3):
        with httpx.Client(base_url=served.url) as client:
            for number in range(20):
                body = {"state": text(1000 + 20 * round_number + number, 3000), "questions": questions(number)}
                with pytest.raises(httpx.TimeoutException):
                    client.post("/v1/systemone", json=body, timeout=0.02)
        assert distance(probabilities(served.ask(record)), expected) <= tolerances.FP32


def test_num_008_a_neutral_id_changes_nothing(served: Served) -> None:
    state, fields = NUM_009.request["state"], {"x_question_ids": "neutral", "cache_salt": "num-008"}
    expected = served.reference.probabilities({"state": state, "questions": {"q1": REFUND}})
    for name in ("refund", "q1"):
        answered = probabilities(served.ask({"state": state, "questions": {name: REFUND}}, **fields))
        assert distance({"q1": answered[name]}, expected) <= tolerances.FP32
    as_sent = probabilities(served.ask({"state": state, "questions": {"refund": REFUND}}))
    assert distance({"q1": as_sent["refund"]}, expected) > tolerances.FP32


def test_num_009_other_questions_move_an_answer_unless_it_is_isolated(served: Served) -> None:
    state, asked = NUM_009.request["state"], NUM_009.request["questions"]
    others = asked | {f"u{number}": {**URGENCY, "instructions": text(number, 40)} for number in range(8)}
    assert len(others) == 11
    alone = {
        name: served.reference.probabilities({"state": state, "questions": {name: question}})[name]
        for name, question in others.items()
    }
    isolated = served.ask({"state": state, "questions": others}, x_isolated=True, cache_salt="num-009")
    assert distance(probabilities(isolated), alone) <= tolerances.FP32
    together = probabilities(served.ask({"state": state, "questions": others}))
    assert distance({name: together[name] for name in asked}, {name: alone[name] for name in asked}) > tolerances.FP32
    # The first leaves the state to the ten others.
    record = {"state": state, "questions": {"refund": REFUND}}
    assert cached(isolated) == 10 * (served.reference.state_end(record) // GRID * GRID) > 0


# shape-021 asks for a refusal that names the limit; with 65,536 tokens its 100,000 characters are refused here too.
@pytest.mark.parametrize("case", [*CASES, *CASES_WITH_VISION], ids=lambda case: case.id)
def test_cases_on_the_real_engine(served: Served, case: Case) -> None:
    response = served.client.request("POST", "/v1/systemone", content=case.body, headers=case.headers)
    served_name = served.client.get("/v1/models").json()["data"][0]["id"]
    if case.message_pattern is not None and "16384" in case.message_pattern:
        case = dataclasses.replace(case, message_pattern=case.message_pattern.replace("16384", "65536"))
    check_outcome(case, response, served_name=served_name)


def test_jevcompat_finds_nothing_to_complain_about(served: Served) -> None:
    report = jevcompat.runner.run(served.url, timeout=120)
    assert {result.id: result.findings for result in report.results if result.findings} == {}
    assert report.verdict == "conformant"
    # Keys come later; everything else is exercised.
    untested = {result.id for result in report.results if result.status == "skip"}
    assert untested == {"auth.bearer", "auth.missing", "auth.invalid"}


def test_the_official_client_reads_every_answer(served: Served) -> None:
    asked = {
        "refund": Noul(instructions=REFUND["instructions"]),
        "team": Choice(instructions=TEAM["instructions"], criteria=TEAM["criteria"]),
        "urgency": Score(instructions=URGENCY["instructions"], criteria=URGENCY["criteria"]),
    }
    record = {"state": "The parcel is late.", "questions": {"refund": REFUND, "team": TEAM, "urgency": URGENCY}}
    expected = served.reference.probabilities(record)
    with TypeSafeClient(api_key="none", base_url=served.url) as client:
        answered = client.system_one(state=record["state"], questions=asked)
        assert abs(answered.nouls["refund"].noul - expected["refund"]["true"]) <= tolerances.FP32
        assert abs(answered.choices["team"].probabilities["billing"] - expected["team"]["billing"]) <= tolerances.FP32
        assert abs(answered.scores["urgency"].probabilities[2] - expected["urgency"]["2"]) <= tolerances.FP32
        with pytest.raises(TypeSafeUnprocessableEntityError, match="t.criteria: .*255"):
            client.system_one(
                state="x", questions={"t": Choice(criteria={f"o{number}": None for number in range(256)})}
            )


@pytest.mark.asyncio
async def test_the_official_asynchronous_client_reads_an_answer(served: Served) -> None:
    async with AsyncTypeSafeClient(api_key="none", base_url=served.url) as client:
        answered = await client.system_one(state="Late.", questions={"r": Noul(instructions="Late?")})
        assert 0 <= answered.nouls["r"].noul <= 1
        with pytest.raises(TypeSafeUnprocessableEntityError, match="s.criteria: .*10"):
            await client.system_one(state="x", questions={"s": Score(criteria=[f"level {n}" for n in range(11)])})
