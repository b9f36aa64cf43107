"""Where smg sends a request: by the beginning of its state, and by nothing else."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.routing.backends import Backend, backends
from tests.routing.routers import Router, place, routing
from tests.serving.harness import SERVED_NAME

ASKED = {"refund": {"type": "noul", "instructions": "Does the customer want a refund?"}}
ASKED_NEXT = {"team": {"type": "choice", "criteria": {"Logistics": None, "Billing": "payments"}}}
# smg hashes four characters for each token of --prefix-token-count, which the chart sets to 1024.
PREFIX_CHARACTERS = 4096


def question(state: Any, questions: Any = ASKED, **fields: Any) -> dict[str, Any]:
    return {"model": SERVED_NAME, "state": state, "questions": questions, **fields}


TEXTS = [f"Ticket {number}: the parcel of order {number * 7919} arrived broken. " * 5 for number in range(30)]
OBJECTS = [{"ticket": number, "text": "The parcel arrived broken.", "order": {"id": number}} for number in range(30)]


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Backend]]:
    with backends(3) as made:
        yield made


@pytest.fixture(scope="module")
def router(arguments: list[str], engines: list[Backend]) -> Iterator[Router]:
    with routing(arguments, [engine.url for engine in engines]) as started:
        yield started


@pytest.mark.parametrize("states", [TEXTS, OBJECTS], ids=["text", "objects"])
def test_equal_states_meet_on_one_engine_whatever_is_asked(
    router: Router, engines: list[Backend], states: list[Any]
) -> None:
    first = [place(router.ask(question(state)), engines) for state in states]
    other = [place(router.ask(question(state, ASKED_NEXT), authorization="Bearer a"), engines) for state in states]
    third = [place(router.ask(question(state, cache_salt="s", x_isolated=True)), engines) for state in states]
    assert first == other == third
    assert set(first) == {0, 1, 2}


def test_two_routers_agree(arguments: list[str], router: Router, engines: list[Backend]) -> None:
    # The other learns of the engines in another order, as it may from Kubernetes.
    with routing(arguments, [engine.url for engine in reversed(engines)]) as other:
        for state in TEXTS + OBJECTS:
            assert place(router.ask(question(state)), engines) == place(other.ask(question(state)), engines)


@pytest.mark.parametrize(
    ("common", "meet"), [(PREFIX_CHARACTERS - 1, False), (PREFIX_CHARACTERS, True), (3 * PREFIX_CHARACTERS, True)]
)
def test_states_meet_where_their_beginnings_are_equal(
    router: Router, engines: list[Backend], common: int, meet: bool
) -> None:
    states = ["x" * common + chr(ord("a") + number) + " and so on" for number in range(20)]
    places = {place(router.ask(question(state)), engines) for state in states}
    assert (len(places) == 1) is meet


def test_what_is_not_seen_in_a_state(router: Router, engines: list[Backend]) -> None:
    # An object is read in the order it was sent in, where a prompt sorts its keys.
    reordered = [
        place(router.ask(question(state)), engines)
        == place(router.ask(question(dict(reversed(state.items())))), engines)
        for state in OBJECTS
    ]
    assert not all(reordered)
    # Pictures: states without text all meet, whatever they show.
    pictures = {place(router.ask(question("", {name: ASKED["refund"]})), engines) for name in "abcdefghij"}
    assert len(pictures) == 1


def test_a_client_may_name_a_key_instead(router: Router, engines: list[Backend]) -> None:
    places = [place(router.ask(question("", ASKED), x_smg_routing_key=f"picture-{n}"), engines) for n in range(20)]
    assert set(places) == {0, 1, 2}
    again = [place(router.ask(question("x", ASKED), x_smg_routing_key=f"picture-{n}"), engines) for n in range(20)]
    assert again == places
