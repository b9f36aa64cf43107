"""Teaches to find words again: options described by drawn words, states that hold some of them. It has no meaning.

What an option says and what the state says are drawn anew for each record, so nothing can be learned but comparing.
"""

from typing import Any

from launch.mini.generate.asked import Asked, choice, noul, record, styled
from launch.mini.generate.draw import Draw
from launch.mini.generate.facts import DISTRACTORS
from launch.mini.generate.text import framed, joined
from launch.mini.generate.topics import STATUSES, TEAMS, TOOLS, UNSEEN_STATUSES, UNSEEN_TEAMS, UNSEEN_TOOLS
from launch.mini.words import WORDS

_TABLES = (TEAMS, UNSEEN_TEAMS, TOOLS, UNSEEN_TOOLS, STATUSES, UNSEEN_STATUSES)
_UNSEEN = {name for table in (UNSEEN_TEAMS, UNSEEN_TOOLS, UNSEEN_STATUSES) for topic in table for name in topic.names}


_ASKS = (
    "What is the text about?",
    "Which option fits best?",
    "Choose the topic.",
    "Which one is mentioned?",
    "What does it concern?",
    "Pick the category.",
    "Which of these does the record belong to?",
    "Classify the message.",
)
_NAMES = ("topic", "category", "kind", "label", "class", "subject", "area", "match")
_FRAMES = (
    "We have a {0} and a {1}",
    "The {0} of the {1}",
    "Please look at the {0}, it has {1}",
    "It is about {0} and {1}",
    "There is {0} in the {1}",
    "{1} {0}",
    "The {1} has no {0}",
    "I ask you for the {0} {1}",
    "{0}, {1}",
    "a {0} {1} again",
)


def _vocabulary() -> tuple[str, ...]:
    """Words of descriptions, sentences and the list of common words: neither names of unseen options nor frames' words."""
    told = " ".join(
        [
            *_FRAMES,
            *_ASKS,
            *DISTRACTORS,
            "from with that this will would not and has have had was were for are but you all any",
        ]
    )
    texts = [text for table in _TABLES for topic in table for text in (*topic.descriptions, *topic.sentences)]
    words = {word.strip(".,;?{}").lower() for text in [*texts, " ".join(WORDS)] for word in text.split()}
    common = {word.strip(".,;?{}").lower() for word in told.split()}
    return tuple(sorted({word for word in words if word.isalpha() and len(word) > 2} - _UNSEEN - common))


_WORDS = _vocabulary()


def matching(draw: Draw, identity: str) -> dict[str, Any]:
    """Options of drawn words, one of which the state speaks of."""
    count = draw.between(2, 6) if draw.chance(0.8) else draw.between(7, 40)
    size = draw.between(1, 5) if count < 12 else draw.between(1, 2)
    words = draw.sample(_WORDS, count * (size + 1) + 4)
    groups = [words[index * (size + 1) : (index + 1) * (size + 1)] for index in range(count)]
    fillers = words[-4:]
    named_only = draw.chance(0.25)
    options: dict[str, str | None] = {}
    for group in groups:
        name = styled(draw, " ".join(group[: 2 if size > 1 and draw.chance(0.3) else 1]))
        options[name] = None if named_only else draw.of((" ", ", ", " and ", "; ")).join(group[1:])
    asked: list[Asked] = []
    sentences: list[str] = []
    names = list(options)
    for right in draw.sample(range(count), 1):
        held = groups[right] if named_only else groups[right][1:]
        clues = draw.sample(groups[right][:1] if named_only else held, draw.between(1, 2))
        asked.append(choice(draw, _NAMES, _ASKS, options, names[right]))
        sentences.append(_said(draw, clues, fillers))
    sentences.append(_said(draw, fillers[:1], fillers[1:]))
    for _ in range(draw.between(0, 2)):
        present = draw.chance(0.5)
        said = " ".join(sentences).lower().split()
        pool = [word for word in _WORDS if word in said] if present else [draw.of(_WORDS)]
        word = draw.of(pool)
        if (word in said) == present:
            asked.append(
                noul(
                    draw,
                    (f"has_{word}", "mentions", "contains", f"about_{word}"),
                    (
                        f"Is {word} mentioned?",
                        f"Does the text mention {word}?",
                        f"Is it about {word}?",
                        f"The text speaks of {word}.",
                    ),
                    present,
                )
            )
    text = joined(draw, sentences, draw.number(3))
    return record(draw, identity, framed(draw, text), asked)


def naming(draw: Draw, identity: str) -> dict[str, Any]:
    """The shortest drill: a few words, and which of 2 to 5 options, each one word, is among them. Training begins with it."""
    words = draw.sample(_WORDS, 9)
    names = words[: draw.between(2, 5)]
    right = names[0]
    text = " ".join(draw.shuffled([right, *words[5 : 5 + draw.between(0, 3)]]))
    if draw.chance(0.5):
        text = f"{text.capitalize()}."
    described = draw.chance(0.4)
    keys = [f"{draw.of('abcdefgh')}{index}" for index in range(len(names))] if described else names
    options: dict[str, str | None] = dict(zip(keys, names if described else [None] * len(names), strict=True))
    asked = [choice(draw, _NAMES, _ASKS, options, keys[0])]
    if draw.chance(0.5):
        present = draw.chance(0.5)
        word = right if present else names[1]
        one = noul(draw, ("mentions", "contains"), (f"Is {word} mentioned?", f"Does the text mention {word}?"), present)
        one.question["criteria"] = {"true": None, "false": None}
        asked.append(one)
    return record(draw, identity, text, asked)


def _said(draw: Draw, clues: list[str], fillers: list[str]) -> str:
    """A sentence that holds the clues, maybe inflected."""
    clues = [clue + ("s" if draw.chance(0.15) and clue[-1] not in "sy" else "") for clue in clues]
    others = draw.sample(fillers, 2)
    first, second = draw.shuffled([*clues, *others][:2])
    return draw.of(_FRAMES).format(first, second)
