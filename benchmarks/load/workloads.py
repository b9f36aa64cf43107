"""What a load asks, as data: reads the TOML files in `workloads/` and lines of JSON. Makes no request.

A workload is parts with weights. A part says how long a state is, how many states are asked in turn, which questions, how
many options, which images. `workloads/README.md` lists the keys.
"""

import json
import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

FOLDER = Path(__file__).parent / "workloads"
CHARACTERS_PER_TOKEN = 4  # of English, roughly
QuestionType = Literal["noul", "choice", "score"]
StateForm = Literal["text", "json"]
ImageFormat = Literal["png", "jpeg"]
MAX_OPTIONS, MAX_LEVELS = 255, 10


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images of random colours, each different: how many in a request, their size in pixels, their format."""

    count: int = 1
    width: int = 640
    height: int = 480
    format: ImageFormat = "jpeg"

    def __post_init__(self) -> None:
        _check(1 <= self.count <= 32, "images.count", "1 to 32", self.count)
        _check(min(self.width, self.height) >= 16, "images.width and height", "at least 16", (self.width, self.height))
        _check(self.format in get_args(ImageFormat), "images.format", "png or jpeg", self.format)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Requests of one kind.

    Attributes:
        weight: how often beside the other parts.
        state_characters: shortest and longest state.
        live_states: so many states are asked in turn; 0: every request brings a new one.
        asks_per_state: a live state is replaced by a new one after so many requests.
        question_sets: so many different sets of questions; 0: every request has its own.
        questions: the types of a set's questions, in order.
        options: of a choice, which `described` gives a line each; `levels`: of a score.
        repeat_share: this share of requests repeats an earlier one, to the byte.
    """

    name: str
    weight: float = 1.0
    state_characters: tuple[int, int] = (400, 800)
    state_form: StateForm = "text"
    live_states: int = 0
    asks_per_state: int = 16
    question_sets: int = 1
    questions: tuple[QuestionType, ...] = ("noul", "choice", "score")
    options: int = 4
    described: bool = False
    levels: int = 4
    repeat_share: float = 0.0
    images: Images | None = None

    def __post_init__(self) -> None:
        shortest, longest = self.state_characters
        _check(self.weight > 0, "weight", "above 0", self.weight)
        _check(64 <= shortest <= longest, "state_characters", "at least 64, shortest first", self.state_characters)
        _check(self.state_form in get_args(StateForm), "state_form", "text or json", self.state_form)
        _check(
            self.live_states >= 0 and self.asks_per_state >= 1, "live_states, asks_per_state", "0 and 1 or more", None
        )
        _check(self.question_sets >= 0, "question_sets", "0 or more", self.question_sets)
        _check(
            bool(self.questions) and set(self.questions) <= set(get_args(QuestionType)),
            "questions",
            "a list of noul, choice, score",
            self.questions,
        )
        _check(1 <= self.options <= MAX_OPTIONS, "options", f"1 to {MAX_OPTIONS}", self.options)
        _check(1 <= self.levels <= MAX_LEVELS, "levels", f"1 to {MAX_LEVELS}", self.levels)
        _check(0 <= self.repeat_share < 1, "repeat_share", "from 0 to below 1", self.repeat_share)

    @property
    def kinds(self) -> set[str]:
        """The kinds of request it makes; see `samples.KINDS`."""
        again = self.live_states > 0 and self.asks_per_state > 1
        kinds = {"cold"}
        if again and self.question_sets != 1:
            kinds.add("prefix")
        if self.repeat_share or (again and 0 < self.question_sets < self.asks_per_state):
            kinds.add("repeated")
        return kinds


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Parts, or requests of your own: bodies as they stood in the file, of which `as_is` keeps the states as they are."""

    name: str
    description: str = ""
    parts: tuple[Part, ...] = ()
    own: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    as_is: bool = False

    @property
    def kinds(self) -> set[str]:
        """The kinds of request it makes; of your own lines any."""
        return {"cold", "prefix", "repeated"} if self.own else set().union(*(part.kinds for part in self.parts))


def names() -> list[str]:
    """The workloads that come with the harness."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_workload(name: str, *, as_is: bool = False) -> Workload:
    """A workload by its name, or from a TOML or JSONL file.

    Raises:
        ValueError: there is none, or it is wrong; the message names the file and the key.
    """
    path = FOLDER / f"{name}.toml" if name in names() else Path(name)
    if path.suffix not in (".toml", ".jsonl"):
        raise ValueError(f"{name!r} is no workload: one of {', '.join(names())}, or a .toml or .jsonl file")
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            return Workload(name=path.name, own=_own(text), as_is=as_is)
        document = tomllib.loads(text)
        description = str(document.pop("description", ""))
        return Workload(name=path.stem, description=description, parts=_parts(document, path))
    except (OSError, ValueError, TypeError) as err:
        raise ValueError(f"{path}: {err}") from err


def _parts(document: dict[str, Any], path: Path) -> tuple[Part, ...]:
    listed = document.pop("part", None)
    if document or not isinstance(listed, list) or not listed:
        raise ValueError(f"expected description and [[part]] tables, not {', '.join(document) or 'nothing'}")
    parts: list[Part] = []
    for number, values in enumerate(listed):
        included = values.pop("include", None)
        if included is None:
            parts.append(_part(values, f"{path.stem}-{number}"))
            continue
        weight = values.pop("weight", 1.0)
        _check(not values, "include", "alone or with weight", values)
        other = read_workload(included)
        total = sum(part.weight for part in other.parts)
        parts += [replace(part, weight=part.weight / total * weight) for part in other.parts]
    return tuple(parts)


def _part(values: dict[str, Any], name: str) -> Part:
    unknown = set(values) - {each.name for each in fields(Part)} - {"state_tokens"}
    _check(not unknown, "part", "known keys", ", ".join(sorted(unknown)))
    if "state_tokens" in values:
        _check("state_characters" not in values, "state_tokens", "not beside state_characters", None)
        lengths = values.pop("state_tokens")
        values["state_characters"] = [each * CHARACTERS_PER_TOKEN for each in _pair(lengths)]
    if "state_characters" in values:
        values["state_characters"] = _pair(values["state_characters"])
    if "questions" in values:
        values["questions"] = tuple(values["questions"])
    if "images" in values:
        values["images"] = Images(**values["images"])
    return Part(**{"name": name} | values)


def _pair(value: Any) -> tuple[int, int]:
    pair = [value, value] if isinstance(value, int) else value
    if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(each, int) for each in pair)):
        raise ValueError(f"a length is an integer, or a list of the shortest and the longest, not {value!r}")
    return pair[0], pair[1]


def _own(text: str) -> tuple[dict[str, Any], ...]:
    requests = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            request = json.loads(line)
        except json.JSONDecodeError as err:
            raise ValueError(f"line {number} is no JSON: {err.msg}") from err
        if not isinstance(request, dict) or not {"state", "questions"} <= request.keys():
            raise ValueError(f"line {number} is no request: an object with state and questions")
        if not isinstance(request["state"], str | dict | list):
            raise ValueError(f"line {number}: state is a text, an object or a list")
        requests.append(request)
    if not requests:
        raise ValueError("holds no request")
    return tuple(requests)


def _check(right: bool, key: str, expected: str, value: Any) -> None:
    if not right:
        raise ValueError(f"{key} must be {expected}" + ("" if value is None else f", not {value}"))
