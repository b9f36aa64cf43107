"""One question with its right answer, and the words that any domain asks in. Knows no domain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.mini.generate.draw import Draw

_YES_TEXTS = ("yes", "it is so", "true for this record", "the record says so", "applies")
_NO_TEXTS = ("no", "it is not so", "not true for this record", "nothing says so", "does not apply")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question as a request holds it, its id, and its label as clef-finetune writes it."""

    name: str
    question: dict[str, Any]
    label: bool | str | int


def noul(draw: Draw, names: Sequence[str], instructions: Sequence[str], answer: bool) -> Asked:
    """A yes/no question; now and then with sides described otherwise than the model does by default."""
    question: dict[str, Any] = {"type": "noul", "instructions": draw.of(instructions)}
    style = draw.number(8)
    if style == 0:
        question["criteria"] = {"true": None, "false": None}
    elif style == 1:
        question["criteria"] = {"true": draw.of(_YES_TEXTS), "false": draw.of(_NO_TEXTS)}
    return Asked(name=draw.of(names), question=question, label=answer)


def choice(
    draw: Draw,
    names: Sequence[str],
    instructions: Sequence[str],
    options: Mapping[str, Any],
    answer: str,
) -> Asked:
    """One of the options, shuffled."""
    criteria = dict(draw.shuffled(options.items()))
    assert answer in criteria
    question = {"type": "choice", "instructions": draw.of(instructions), "criteria": criteria}
    return Asked(name=draw.of(names), question=question, label=answer)


def score(draw: Draw, names: Sequence[str], instructions: Sequence[str], levels: Sequence[Any], answer: int) -> Asked:
    """One of the ordered levels."""
    question = {"type": "score", "instructions": draw.of(instructions), "criteria": list(levels)}
    return Asked(name=draw.of(names), question=question, label=answer)


def record(draw: Draw, identity: str, state: Any, asked: Sequence[Asked], most: int = 5) -> dict[str, Any]:
    """The labelled record: at most `most` of the questions, in random order, under ids of which none stands twice."""
    kept: dict[str, Asked] = {}
    for one in draw.shuffled(asked):
        if len(kept) < most:
            kept.setdefault(one.name, one)
    if draw.chance(0.1):
        kept = {f"q{number}": one for number, one in enumerate(kept.values(), start=1)}
    return {
        "id": identity,
        "state": state,
        "questions": {name: one.question for name, one in kept.items()},
        "labels": {name: one.label for name, one in kept.items()},
    }


def styled(draw: Draw, name: str) -> str:
    """A name as people write option names: `Data platform`, `data_platform`, `data-platform`, `DATA PLATFORM`."""
    style = draw.number(10)
    if style < 4:
        return name
    if style < 7:
        return name.replace(" ", "_")
    if style < 8:
        return name.replace(" ", "-")
    return name.capitalize() if style < 9 else name.title()
