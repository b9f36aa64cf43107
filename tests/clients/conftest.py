"""One server for all clients, and what they all ask of it."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.clients.hosted import MAX_PROMPT_TOKENS, NAMES, RefusingEngine
from tests.serving.harness import make_app, reference_body, running_server

TICKET = {"order": 41, "text": "Norwick Tools: 3 of 14 pallets never arrived. Please refund them."}
QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Does the customer want a refund?"},
    "team": {
        "type": "choice",
        "instructions": "Which team?",
        "criteria": {"logistics": None, "billing": "money", "sales": "new orders"},
    },
    "urgency": {"type": "score", "instructions": "How urgent is it?", "criteria": ["low", "medium", "high"]},
}


@pytest.fixture(scope="session")
def _server() -> Iterator[SimpleNamespace]:
    engine = RefusingEngine()
    with running_server(make_app(engine, max_prompt_tokens=MAX_PROMPT_TOKENS, **NAMES)) as url:
        yield SimpleNamespace(url=url, base_url=f"{url}/client/v4", engine=engine)


@pytest.fixture
def server(_server: SimpleNamespace) -> SimpleNamespace:
    """`url`; `base_url`, what the clients call by this name; `engine`, which has no requests and refuses none."""
    _server.engine.requests.clear()
    _server.engine.refusals.clear()
    return _server


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    """What a client is to read out of the answer to `QUESTIONS` about `TICKET`."""
    return reference_body({"state": TICKET, "questions": QUESTIONS}) | {"model": NAMES["served_model_name"]}
