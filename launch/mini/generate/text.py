"""Puts sentences together to a state, as text or as JSON. Knows nothing of what they say."""

from collections.abc import Sequence
from typing import Any

from launch.mini.generate import values
from launch.mini.generate.draw import Draw
from launch.mini.generate.facts import DISTRACTORS

_TEXT_KEYS = ("message", "body", "text", "description", "content", "note")
_EXTRA_KEYS = ("from", "customer", "id", "channel", "received", "lang", "site", "reference", "tags", "contact")


def filled(draw: Draw, sentence: str) -> str:
    """The sentence with its placeholders drawn."""
    if "{" not in sentence:
        return sentence
    return sentence.format(
        person=values.person(draw),
        company=values.company(draw),
        city=values.city(draw),
        number=draw.between(100, 99999),
        later="{later}",
        part="{part}",
    )


def joined(draw: Draw, sentences: Sequence[str], distractors: int) -> str:
    """The sentences in random order among some that say nothing to the point."""
    every = draw.shuffled([*sentences, *(filled(draw, one) for one in draw.sample(DISTRACTORS, distractors))])
    ended = [one if one[-1] in ".?!" else one + draw.of((".", ".", ".", "!")) for one in every]
    text = draw.of((" ", " ", " ", "\n")).join(one[0].upper() + one[1:] for one in ended)
    return text.lower() if draw.chance(0.06) else text


def framed(draw: Draw, text: str, extra: dict[str, Any] | None = None) -> Any:
    """The text as a message: bare, below a head of mail, or as JSON with other keys around it, `extra` among them."""
    sender = values.company(draw)
    if extra is None and draw.chance(0.45):
        return text
    if extra is None and draw.chance(0.45):
        head = f"From: {values.person(draw).lower()}@{values.domain(sender)}\n"
        return (
            head
            + (
                f"Subject: {draw.of(('question', 'request', 'message', 'hello', 'our case'))}\n"
                if draw.chance(0.5)
                else ""
            )
            + text
        )
    fields: dict[str, Any] = {draw.of(_TEXT_KEYS): text, **(extra or {})}
    makers: dict[str, Any] = {
        "from": values.person(draw),
        "customer": sender,
        "id": draw.between(100, 99999),
        "channel": draw.of(("mail", "chat", "phone", "form")),
        "received": values.Day(draw.number(336)).written(2),
        "lang": "en",
        "site": values.city(draw),
        "reference": f"{draw.of('ABCKRT')}-{draw.between(100, 9999)}",
        "tags": draw.sample(("web", "old", "eu", "copy", "vip"), 2),
        "contact": {"name": values.person(draw), "city": values.city(draw)},
    }
    for key in draw.sample(_EXTRA_KEYS, draw.number(4)):
        fields.setdefault(key, makers[key])
    if draw.chance(0.15):
        return {draw.of(("ticket", "record", "case", "data")): fields}
    return fields
