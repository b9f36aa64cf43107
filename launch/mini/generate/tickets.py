"""Support tickets: the team, the urgency, the mood, and facts such as a refund asked for."""

from typing import Any

from launch.mini.generate.asked import Asked, choice, record
from launch.mini.generate.draw import Draw
from launch.mini.generate.facts import FACTS
from launch.mini.generate.routing import offered
from launch.mini.generate.scales import SATISFACTION, URGENCY
from launch.mini.generate.text import filled, framed, joined
from launch.mini.generate.topics import TEAMS, UNSEEN_TEAMS

_NAMES = ("team", "queue", "department", "route_to", "assignee", "owner")
_ASKS = (
    "Which team should handle it?",
    "Which team should handle this message?",
    "Route the ticket to a team.",
    "Who should take care of it?",
    "What department is responsible?",
    "To which queue does it belong?",
    "Pick the team for this case.",
)


def ticket(draw: Draw, identity: str, *, unseen: bool) -> dict[str, Any]:
    """One ticket with 1 to 5 questions about it."""
    topics = UNSEEN_TEAMS if unseen else TEAMS
    team = draw.of(topics)
    options, answer = offered(draw, topics, team, most=40, described=1.0 if unseen else 0.7)
    asked: list[Asked] = [choice(draw, _NAMES, _ASKS, options, answer)]
    sentences = draw.sample(team.sentences, draw.between(1, 2))
    for scale in draw.sample((URGENCY, SATISFACTION), draw.number(3)):
        grade = draw.number(7)
        one = scale.ask(draw, grade)
        if one is not None:
            asked.append(one)
            sentences.append(scale.phrase(draw, grade))
    for fact in draw.sample(FACTS, draw.between(1, 3)):
        one, sentence = fact.draw(draw)
        asked.append(one)
        if sentence is not None:
            sentences.append(sentence)
    text = joined(draw, [filled(draw, sentence) for sentence in sentences], draw.number(3))
    return record(draw, identity, framed(draw, text), asked)
