"""One case of a table: a request and the outcome it should have. And the few forms that most requests of the tables have."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STATE = "Customer says the parcel arrived broken and wants money back."
REFUND = {"type": "noul", "instructions": "Does the customer want a refund?"}
JSON_TYPE = {"content-type": "application/json"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request and the outcome it should have.

    `detail` is the exact `detail` of an error, `message_pattern` a regular expression for its message where that holds
    numbers of the server's own. `why` says why an outcome was chosen where the collection leaves a choice or names
    another. `document` is the JSON in a body that is more than that. `record` is the request as the reference would be
    given it, where that is not the document: with labels for assets, and media decoded.
    """

    id: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: JSON_TYPE)
    status: int = 200
    detail: Any = None
    message_pattern: str | None = None
    why: str = ""
    document: bytes | None = None
    record: Mapping[str, Any] | None = None

    @property
    def request(self) -> dict[str, Any]:
        """The request as it was sent."""
        value = json.loads(self.body if self.document is None else self.document)
        assert isinstance(value, dict)
        return value


def body(questions: Mapping[str, Any], state: Any = STATE, **fields: Any) -> bytes:
    return json.dumps({"model": "clef-flash", "state": state, "questions": questions} | fields).encode()


def about(question: Mapping[str, Any]) -> bytes:
    return body({"t": question})


def choice(criteria: Mapping[str, Any]) -> bytes:
    return about({"type": "choice", "instructions": "Pick", "criteria": criteria})


def noul(criteria: Any) -> bytes:
    return about({"type": "noul", "instructions": "Refund?", "criteria": criteria})


def score(criteria: Any) -> bytes:
    return about({"type": "score", "instructions": "Urgency?", "criteria": criteria})


def raw_state(text: str) -> bytes:
    question = '{"r":{"type":"noul","instructions":"ok?"}}'
    return ('{"model":"clef-flash","questions":' + question + ',"state":' + text + "}").encode()


def fault(loc: list[str | int], msg: str, kind: str) -> list[dict[str, Any]]:
    return [{"loc": ["body", *loc], "msg": msg, "type": kind}]


def invalid(case_id: str, sent: bytes, loc: list[str | int], msg: str, kind: str, why: str = "") -> Case:
    return Case(id=case_id, body=sent, status=422, detail=fault(loc, msg, kind), why=why)


def usage_error(case_id: str, sent: bytes, message: str, **more: Any) -> Case:
    """One whose fields do not belong together."""
    return Case(id=case_id, body=sent, status=400, detail={"error_type": "api_usage_error", "message": message}, **more)
