"""Puts a request's assets in their place: each placeholder in its texts becomes the label of an image.

Knows nothing of images, tokens or HTTP. Clef reads all images before the state, so where a text refers to one the model
reads `<image N>`, N its number in the prompt from 1. Placeholders are as a rule random, new with every request; labels
are not, so that equal states and questions stay equal, and what is cached of them is found again.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from serving.api_types import ChoiceQuestion, NoulCriteria, NoulQuestion, Question, ScoreQuestion
from serving.errors import ApiUsageError, Fault, InvalidRequestError
from serving.strict_json import shorten

MAX_ASSETS = 256
# A placeholder may be one letter, and its label is nine: without a bound the request would grow to many times its size.
MAX_REFERENCES = 10_000

# A medium inside a text, which the model would read letter by letter.
_DATA_URL = re.compile(r"\s*data:(?:image|video|audio)/[^,]{0,200};base64,", re.IGNORECASE)
# Parts of a chat message that carry a medium, as several other APIs call them; text and objects of other types are state.
MEDIA_PARTS = frozenset({"image_url", "input_image", "video_url", "input_video", "audio_url", "input_audio"})
_SEND_APART = "media are sent in images, videos or assets"


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """State and questions with labels for placeholders; `names` are the placeholders in the order of their images."""

    state: Any
    questions: dict[str, Question]
    names: tuple[str, ...]


def place_assets(state: Any, questions: Mapping[str, Question], names: Collection[str], *, first_number: int) -> Placed:
    """Replace every placeholder in the state and in the questions' instructions and criteria by its image's label.

    Keys are not searched: option names, question ids, keys of objects. Images are numbered in the order in which the
    prompt first refers to them, where the keys of an object are sorted; so another order of the keys changes nothing.
    Of placeholders that overlap the first counts, of those that begin together the longest; labels are not searched again.

    Args:
        state: text, an object or an array.
        questions: by their ids. They are left as they are; answers quote levels as they were sent.
        names: the placeholders, none of them empty.
        first_number: the label's number of the first of these images, 1 if there are no others before them.

    Raises:
        ApiUsageError: no text refers to one of the assets.
        InvalidRequestError: too many assets or references.
    """
    if len(names) > MAX_ASSETS:
        raise _refused(["assets"], f"assets has {len(names)} items; the limit is {MAX_ASSETS}", "too_long")
    placing = _Placing(names, first_number)
    placed = Placed(
        state=placing.content(state),
        questions={question_id: placing.question(question) for question_id, question in questions.items()},
        names=tuple(placing.labels),
    )
    unused = [name for name in names if name not in placing.labels]
    if unused:
        others = len(unused) - 1
        more = f", nor to {others} other{'s' if others > 1 else ''}" if others else ""
        raise ApiUsageError(
            f"no string in state, instructions or criteria refers to the asset '{shorten(unused[0])}'{more}"
        )
    return placed


class _Placing:
    """One request's assets and the labels given to them so far."""

    def __init__(self, names: Collection[str], first_number: int) -> None:
        self._names = tuple(names)
        self._shortest = min(map(len, names), default=0)
        self._first_number = first_number
        self._references = 0
        self.labels: dict[str, str] = {}

    def question(self, question: Question) -> Question:
        """The same question with labels in its texts, which are visited in the order of the prompt."""
        changed: dict[str, Any] = {"instructions": self.content(question.instructions)}
        match question:
            case NoulQuestion():
                if question.criteria is not None:
                    sides = {side: self.content(text) for side, text in question.criteria.as_sent().items()}
                    changed["criteria"] = question.criteria.model_copy(update=sides)
            case ChoiceQuestion():
                placed = self.content(question.criteria)
                changed["criteria"] = {name: placed[name] for name in question.criteria}
            case ScoreQuestion():
                changed["criteria"] = self.content(question.criteria)
        return question.model_copy(update=changed)

    def content(self, content: Any) -> Any:
        """The same JSON value with labels in its strings. Recursive: the nesting of a body is bounded."""
        if isinstance(content, str):
            return self._text(content)
        if isinstance(content, dict):
            return {key: self.content(content[key]) for key in sorted(content)}
        if isinstance(content, list):
            return [self.content(member) for member in content]
        return content

    def _text(self, text: str) -> str:
        if len(text) < self._shortest:
            return text
        # Where each name occurs next. One regular expression of all names would be slower by far on texts made to
        # defeat it, 64 names of 500 equal letters, and hold the interpreter lock all the while; each search here is linear.
        upcoming = [(start, -len(name), name) for name in self._names if (start := text.find(name)) >= 0]
        heapify(upcoming)
        pieces, end = [], 0
        while upcoming:
            start, negative_length, name = heappop(upcoming)
            if start >= end:
                pieces += [text[end:start], self._label(name)]
                end = start - negative_length
            following = text.find(name, end)
            if following >= 0:
                heappush(upcoming, (following, negative_length, name))
        return "".join([*pieces, text[end:]])

    def _label(self, name: str) -> str:
        self._references += 1
        if self._references > MAX_REFERENCES:
            raise _refused(["assets"], f"assets are referred to more than {MAX_REFERENCES} times", "too_long")
        return self.labels.setdefault(name, f"<image {self._first_number + len(self.labels)}>")


def refuse_inline_media(state: Any, questions: Mapping[str, Question]) -> None:
    """Refuse media pasted into the texts: megabytes of base64 that the model would read as letters.

    Raises:
        InvalidRequestError: a string in state, instructions or criteria is a base64 data URL of an image, video or audio;
            or the state, or an element of it, is a part of a chat message that carries a medium.
    """
    _refuse_media_part(state, ["state"])
    for index, element in enumerate(state if isinstance(state, list) else []):
        _refuse_media_part(element, ["state", index])
    for loc, content in _contents(state, questions):
        _refuse_data_urls(content, loc)


def _refuse_media_part(value: Any, loc: list[str | int]) -> None:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in MEDIA_PARTS:
        raise _refused(loc, f"{_named(loc)} is a part of type {kind}; {_SEND_APART}", "inline_media")


def _contents(state: Any, questions: Mapping[str, Question]) -> Iterator[tuple[list[str | int], Any]]:
    """Everything that is written into the prompt, with its path."""
    yield ["state"], state
    for question_id, question in questions.items():
        yield ["questions", question_id, "instructions"], question.instructions
        criteria = question.criteria
        yield (
            ["questions", question_id, "criteria"],
            criteria.as_sent() if isinstance(criteria, NoulCriteria) else criteria,
        )


def _refuse_data_urls(content: Any, loc: list[str | int]) -> None:
    # A path is a linked list from the inside out: cheap to extend, and read only when something is wrong.
    stack: list[tuple[Any, Any]] = [(content, None)]
    while stack:
        value, path = stack.pop()
        if isinstance(value, str):
            if _DATA_URL.match(value):
                inner: list[str | int] = []
                while path is not None:
                    path, step = path
                    inner.append(step)
                full = [*loc, *reversed(inner)]
                raise _refused(full, f"{_named(full)} is a data URL of a medium; {_SEND_APART}", "inline_media")
        elif isinstance(value, dict):
            stack.extend((member, (path, key)) for key, member in value.items())
        elif isinstance(value, list):
            stack.extend((member, (path, index)) for index, member in enumerate(value))


def _named(loc: list[str | int]) -> str:
    """A path in a message's words, as `serving.faults` names one."""
    if loc[0] != "questions":
        return ".".join(shorten(str(step)) for step in loc)
    return f"question '{shorten(str(loc[1]))}': " + ".".join(shorten(str(step)) for step in loc[2:])


def _refused(loc: list[str | int], message: str, kind: str) -> InvalidRequestError:
    shown = [shorten(step) if isinstance(step, str) else step for step in loc]
    return InvalidRequestError([Fault(loc=["body", *shown], msg=message, type=kind)])
