"""Drills of short texts: what one sentence is about, and which facts a few sentences state. The same tables as the domains."""

from typing import Any

from launch.mini.generate.asked import Asked, choice, record
from launch.mini.generate.draw import Draw
from launch.mini.generate.facts import FACTS
from launch.mini.generate.routing import offered
from launch.mini.generate.text import filled, joined
from launch.mini.generate.topics import STATUSES, TEAMS

_TEAM = (
    ("team", "queue", "route_to", "owner"),
    ("Which team should handle it?", "Route the message.", "Who is responsible?"),
)
_STATUS = (("status", "invoice_status"), ("What is the status of the invoice?", "Status of this invoice"))


def topic(draw: Draw, identity: str) -> dict[str, Any]:
    """One sentence about a team's work or about an invoice's status, and one choice."""
    topics, (names, asks) = draw.of(((TEAMS, _TEAM), (TEAMS, _TEAM), (STATUSES, _STATUS)))
    right = draw.of(topics)
    options, answer = offered(draw, topics, right, most=6, described=0.5)
    sentence = filled(draw, draw.of(right.sentences)).replace("{later}", "4 May").replace("{part}", "120.00 EUR")
    return record(draw, identity, joined(draw, [sentence], 0), [choice(draw, names, asks, options, answer)])


def stating(draw: Draw, identity: str) -> dict[str, Any]:
    """Two to four facts, some stated, some denied, some left out, and a question on each."""
    asked: list[Asked] = []
    sentences: list[str] = []
    for fact in draw.sample(FACTS, draw.between(2, 4)):
        one, sentence = fact.draw(draw)
        if draw.chance(0.6):
            one.question["criteria"] = {"true": None, "false": None}
        asked.append(one)
        if sentence is not None:
            sentences.append(sentence)
    return record(draw, identity, joined(draw, sentences or ["Hello"], draw.number(2)), asked)
