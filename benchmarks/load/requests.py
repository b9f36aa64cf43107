"""Turns a workload into request bodies: seeded texts, questions and images, each request marked by what it finds cached.

Knows no server and no clock. The seed decides all that is drawn; the namespace only stands at the head of each state, so
that the same load can be asked again without meeting what the first time left in a cache.
"""

import base64
import io
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import islice
from typing import Any

import orjson

from benchmarks.corpus import lines
from benchmarks.load.workloads import Images, Part, Workload

CORPUS_LINES = 4000
REMEMBERED = 64  # requests that may be repeated
MAX_POINT_BYTES = 1 << 30
TOPICS = (
    "invoice", "refund", "parcel", "courier", "warranty", "outage", "login", "contract", "renewal", "pricing",
    "discount", "shipment", "damage", "delay", "customs", "payroll", "training", "export", "backup", "latency",
    "certificate", "firewall", "printer", "licence",
)  # fmt: skip
ACTIONS = ("request", "complaint", "question", "failure", "change", "approval", "review", "cancellation", "reminder")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One body, and what of it the server has met before by construction; see `samples.KINDS`."""

    kind: str
    part: str
    body: bytes


@dataclass(frozen=True, kw_only=True)
class RequestStream:
    """Requests without end, and those to ask before the first of them.

    A server that has run for a while knows the states that are alive. `primers` ask each of them once, so that a slice begins
    in the middle of such a time and not with a rush of cold states.
    """

    primers: tuple[Request, ...]
    requests: Iterator[Request]


def request_stream(workload: Workload, *, seed: int, draw: str, namespace: str, model: str) -> RequestStream:
    """The same requests for the same seed and draw but for the namespace in the ids of their states."""
    drawn = random.Random(f"{seed}/{draw}")
    if workload.own:
        return RequestStream(primers=(), requests=_own_requests(workload, drawn, namespace, model))
    makers = [_PartMaker(part, number, drawn, namespace, model) for number, part in enumerate(workload.parts)]
    primers = tuple(request for maker in makers for request in maker.primers())
    return RequestStream(primers=primers, requests=_made_requests(makers, drawn))


def taken(stream: Iterator[Request], count: int) -> list[Request]:
    """The next `count` requests.

    Raises:
        ValueError: their bodies would take more than 1 GiB.
    """
    made: list[Request] = []
    size = 0
    for request in islice(stream, count):
        made.append(request)
        size += len(request.body)
        if size > MAX_POINT_BYTES:
            raise ValueError(
                f"{count} requests would take more than {MAX_POINT_BYTES >> 30} GiB of memory; "
                "measure for a shorter time or at a lower rate"
            )
    return made


def state_id(namespace: str, number: int) -> str:
    """An id that no other namespace or number has."""
    return blake2b(f"{namespace}/{number}".encode(), digest_size=8).hexdigest()


class _State:
    """A state that is alive: its text, and the question sets that it was asked."""

    def __init__(self, identity: str, content: Any, images: list[dict[str, str]], asks_left: int) -> None:
        self.identity, self.content, self.images, self.asks_left = identity, content, images, asks_left
        self.asked: set[int] = set()


class _PartMaker:
    """Makes the requests of one part."""

    def __init__(self, part: Part, number: int, draw: random.Random, namespace: str, model: str) -> None:
        self.part, self._draw, self._model = part, draw, model
        self._namespace, self._born, self._fresh_sets = f"{namespace}/{number}", 0, 0
        # Ages differ from the start, or all states would be replaced at once.
        self._live = [self._new(draw.randint(1, part.asks_per_state)) for _ in range(part.live_states)]

    def _new(self, asks: int) -> _State:
        part, draw = self.part, self._draw
        identity = state_id(self._namespace, self._born)
        self._born += 1
        content = _content(part, identity, draw.randint(*part.state_characters), draw)
        return _State(identity, content, [_image(part.images, identity, n) for n in range(_count(part.images))], asks)

    def primers(self) -> list[Request]:
        """One request about each state that is alive."""
        return [self._about(state) for state in self._live]

    def next(self) -> Request:
        """One request more."""
        if not self._live:
            return self._about(self._new(1))
        position = self._draw.randrange(len(self._live))
        if self._live[position].asks_left == 0:
            self._live[position] = self._new(self.part.asks_per_state)
        return self._about(self._live[position])

    def _about(self, state: _State) -> Request:
        part, draw = self.part, self._draw
        state.asks_left -= 1
        if part.question_sets:
            unasked = [number for number in range(part.question_sets) if number not in state.asked]
            chosen = draw.choice(unasked) if unasked else draw.randrange(part.question_sets)
        else:
            chosen, self._fresh_sets = self._fresh_sets, self._fresh_sets + 1
        kind = "cold" if not state.asked else "repeated" if chosen in state.asked else "prefix"
        state.asked.add(chosen)
        body: dict[str, Any] = {"model": self._model, "state": state.content, "questions": question_set(part, chosen)}
        if state.images:
            body["images"] = state.images
        return Request(kind=kind, part=part.name, body=orjson.dumps(body))


def _made_requests(makers: Sequence[_PartMaker], draw: random.Random) -> Iterator[Request]:
    weights = [maker.part.weight for maker in makers]
    earlier: list[list[bytes]] = [[] for _ in makers]
    while True:
        number = draw.choices(range(len(makers)), weights)[0]
        part, before = makers[number].part, earlier[number]
        if before and draw.random() < part.repeat_share:
            yield Request(kind="repeated", part=part.name, body=draw.choice(before))
            continue
        request = makers[number].next()
        if part.repeat_share:
            before.append(request.body)
            del before[:-REMEMBERED]
        yield request


def _own_requests(workload: Workload, draw: random.Random, namespace: str, model: str) -> Iterator[Request]:
    """Lines in a drawn order, all of them before one comes again; equal states have one id, so they stay equal."""
    states: set[bytes] = set()
    bodies: set[bytes] = set()
    while True:
        for line in draw.sample(workload.own, len(workload.own)):
            state = orjson.dumps(line["state"], option=orjson.OPT_SORT_KEYS)
            content = (
                line["state"]
                if workload.as_is
                else marked(line["state"], blake2b(namespace.encode() + b"/" + state, digest_size=8).hexdigest())
            )
            body = orjson.dumps({"model": model} | line | {"state": content})
            kind = "repeated" if body in bodies else "prefix" if state in states else "cold"
            states.add(state)
            bodies.add(body)
            yield Request(kind=kind, part="own", body=body)


def marked(state: Any, identity: str) -> Any:
    """The state with an id at its head, where a prefix begins: `!` sorts before letters and digits."""
    if isinstance(state, dict):
        return {"!id": identity} | state
    return [identity, *state] if isinstance(state, list) else f"[{identity}]\n{state}"


def question_set(part: Part, number: int) -> dict[str, Any]:
    """The questions of a set, in other words for each number."""
    questions: dict[str, dict[str, Any]] = {}
    for position, kind in enumerate(part.questions):
        topic = TOPICS[(number * 7 + position * 5) % len(TOPICS)]
        action = ACTIONS[(number + position) % len(ACTIONS)]
        name = f"{topic}_{action}_{number}_{position}"
        if kind == "noul":
            questions[name] = {"type": kind, "instructions": f"Does any record mention a {topic} {action}? ({number})"}
        elif kind == "choice":
            questions[name] = {
                "type": kind,
                "instructions": f"Which queue takes this {topic} {action}? ({number})",
                "criteria": {
                    _option(number + option): _description(number + option) if part.described else None
                    for option in range(part.options)
                },
            }
        else:
            questions[name] = {
                "type": kind,
                "instructions": f"How urgent is the {topic} {action}? ({number})",
                "criteria": [f"{topic} {action}, level {level}" for level in range(part.levels)],
            }
    return questions


def _option(number: int) -> str:
    return f"{TOPICS[number % len(TOPICS)]} {ACTIONS[number // len(TOPICS) % len(ACTIONS)]} {number}"


def _description(number: int) -> str:
    return f"everything about a {TOPICS[number % len(TOPICS)]} that no other queue takes"


@cache
def _corpus() -> Sequence[str]:
    return tuple(lines(CORPUS_LINES))


def _content(part: Part, identity: str, characters: int, draw: random.Random) -> Any:
    """About so many characters of records, the id first."""
    if part.state_form == "text":
        return "\n".join([f"Case {identity}", *_records(characters - len(identity) - 6, draw)])
    return {"!id": identity, "records": _records(characters - len(identity) - 24, draw)}


def _records(characters: int, draw: random.Random) -> list[str]:
    corpus = _corpus()
    records: list[str] = []
    while characters > 0:
        records.append(corpus[draw.randrange(len(corpus))][:characters])
        characters -= len(records[-1]) + 1
    return records


def _count(images: Images | None) -> int:
    return 0 if images is None else images.count


def _image(images: Images | None, identity: str, number: int) -> dict[str, str]:
    """A picture of random colours with a patch that is another one for each id."""
    from PIL import Image

    assert images is not None
    picture = _backdrop(images.width, images.height).copy()
    patch = random.Random(f"{identity}/{number}").randbytes(16 * 16 * 3)
    picture.paste(Image.frombytes("RGB", (16, 16), patch), (0, 0))
    file = io.BytesIO()
    picture.save(file, images.format.upper(), **({"compress_level": 1} if images.format == "png" else {}))
    return {"url": f"data:image/{images.format};base64,{base64.b64encode(file.getvalue()).decode()}"}


@cache
def _backdrop(width: int, height: int) -> Any:
    from PIL import Image

    coarse = Image.frombytes("RGB", (24, 18), random.Random("backdrop").randbytes(24 * 18 * 3))
    return coarse.resize((width, height))
