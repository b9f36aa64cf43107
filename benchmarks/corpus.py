"""Generates operational English for load and the random release's tokenizer: tickets, invoices, alerts, JSON. Invented names.

Deterministic: the same lines on every machine and Python version.
"""

import json
import random
from collections.abc import Iterator, Sequence

from launch.mini.words import WORDS

# random.Random's random() is the same sequence on every Python version; choices below draw on nothing else.
SEED = 20260117

_COMPANIES = (
    "Norwick Tools",
    "Halden Freight",
    "Blue Quarry Foods",
    "Orsa Textiles",
    "Pinefield Dental",
    "Marlow & Finch",
    "Kestrel Robotics",
    "Tidewater Ceramics",
    "Vanta Optics",
    "Greyline Logistics",
    "Solvang Energy",
    "Ibex Travel",
)
_PEOPLE = (
    "Ana",
    "Bela",
    "Chidi",
    "Dara",
    "Emre",
    "Farah",
    "Goran",
    "Hana",
    "Ines",
    "Jonas",
    "Kaya",
    "Lior",
    "Mina",
    "Noor",
)
_TEAMS = (
    "billing",
    "payments",
    "support",
    "security",
    "logistics",
    "platform",
    "database",
    "network",
    "sales",
    "legal",
)
_SERVICES = (
    "checkout",
    "search",
    "ledger",
    "gateway",
    "scheduler",
    "mailer",
    "inventory",
    "session store",
    "image resizer",
)
_PRODUCTS = (
    "torque wrench",
    "pallet jack",
    "olive oil",
    "wool blanket",
    "dental mirror",
    "servo motor",
    "glaze",
    "lens kit",
)
_VERBS = (
    "opened",
    "closed",
    "escalated",
    "assigned",
    "reviewed",
    "rejected",
    "approved",
    "archived",
    "reopened",
    "merged",
)
_FEELINGS = ("calm", "annoyed", "angry", "worried", "satisfied", "confused", "polite", "urgent", "neutral", "grateful")
_STATUSES = ("paid", "unpaid", "overdue", "disputed", "refunded", "cancelled", "pending", "partially paid", "draft")
_UNITS = ("percent", "seconds", "minutes", "hours", "days", "requests per second", "megabytes", "gigabytes", "euros")
_LEVELS = ("info", "warning", "error", "critical", "debug", "notice")


def lines(count: int) -> Iterator[str]:
    """`count` lines of text."""
    draw = _Draw()
    makers = (_ticket, _invoice, _alert, _question, _options, _json_record, _mail, _log_line, _prose, _prose)
    for index in range(count):
        yield makers[index % len(makers)](draw)


class _Draw:
    def __init__(self) -> None:
        self._random = random.Random(SEED)

    def of(self, values: Sequence[str]) -> str:
        return values[int(self._random.random() * len(values))]

    def number(self, limit: int) -> int:
        return int(self._random.random() * limit)


def _ticket(draw: _Draw) -> str:
    return (
        f"Ticket {draw.number(90000)}: {draw.of(_PEOPLE)} from {draw.of(_COMPANIES)} reports that the {draw.of(_SERVICES)} service "
        f"has been failing for {draw.number(60)} {draw.of(_UNITS)}. The customer sounds {draw.of(_FEELINGS)} and asks whether the "
        f"{draw.of(_TEAMS)} team can help with a refund for the {draw.of(_PRODUCTS)}."
    )


def _invoice(draw: _Draw) -> str:
    return (
        f"Invoice INV-{draw.number(9000) + 1000} from {draw.of(_COMPANIES)} to {draw.of(_COMPANIES)}, issued 2026-{draw.number(12) + 1:02}-"
        f"{draw.number(28) + 1:02}, due in {draw.number(90)} days. {draw.number(40) + 1} x {draw.of(_PRODUCTS)} at {draw.number(900)}."
        f"{draw.number(100):02} EUR. Total {draw.number(20000)}.{draw.number(100):02} EUR. Status: {draw.of(_STATUSES)}. "
        f"A reminder was sent; no payment has been received."
    )


def _alert(draw: _Draw) -> str:
    return (
        f"[{draw.of(_LEVELS)}] host db-{draw.number(40):02}.example.net: disk /var is {draw.number(100)} percent full, growing by "
        f"{draw.number(50)} gigabytes per hour; replication lag {draw.number(600)} seconds; on call: {draw.of(_PEOPLE)} ({draw.of(_TEAMS)})."
    )


def _question(draw: _Draw) -> str:
    return (
        f"Is this message about {draw.of(_TEAMS)}? Which team should handle the request? How urgent is it for {draw.of(_COMPANIES)}? "
        f"Does the customer ask for a refund? Should someone be paged tonight? Rate the severity from {draw.number(4)} to {draw.number(6) + 4}."
    )


def _options(draw: _Draw) -> str:
    return (
        f"Tickets routed to queue {draw.number(256)}: messages {draw.of(_VERBS)} by the {draw.of(_TEAMS)} team that concern the "
        f"{draw.of(_SERVICES)}; use this option when the record is {draw.of(_STATUSES)} and nothing else applies."
    )


def _json_record(draw: _Draw) -> str:
    record = {
        "id": draw.number(100000),
        "company": draw.of(_COMPANIES),
        "team": draw.of(_TEAMS),
        "status": draw.of(_STATUSES),
        "amount": draw.number(100000) / 100,
        "tags": [draw.of(_LEVELS), draw.of(_VERBS)],
        "open": draw.number(2) == 1,
        "notes": None,
    }
    return json.dumps(record, indent=2 if draw.number(2) else None)


def _mail(draw: _Draw) -> str:
    return (
        f"Dear {draw.of(_PEOPLE)}, thank you for your message. We have {draw.of(_VERBS)} your order of {draw.number(30)} {draw.of(_PRODUCTS)}s "
        f"and it will be delivered within {draw.number(14)} days. Kind regards, {draw.of(_PEOPLE)}, {draw.of(_TEAMS)} team, {draw.of(_COMPANIES)}"
    )


def _log_line(draw: _Draw) -> str:
    return (
        f"2026-{draw.number(12) + 1:02}-{draw.number(28) + 1:02}T{draw.number(24):02}:{draw.number(60):02}:{draw.number(60):02}Z {draw.of(_LEVELS)} "
        f"{draw.of(_SERVICES)} request_id={draw.number(2**31):08x} status={200 + draw.number(300)} latency_ms={draw.number(5000)} {draw.of(_VERBS)}"
    )


def _prose(draw: _Draw) -> str:
    words = [draw.of(WORDS) for _ in range(40)]
    endings = [draw.of(("", "", "", "s", "ed", "ing", ",", ".", "ly", "er")) for _ in words]
    return " ".join(word + ending for word, ending in zip(words, endings, strict=True)).capitalize()
