"""Hostile HTTP bodies for POST /v1/systemone, the same ones for the same seed; knows nothing of who reads them.

A request is built as clients build it (questions, JSON, perhaps multipart, perhaps compressed), and most are spoilt on the
way, at one to three of these layers. What a spoilt request deserves is not known, only that it is never a 5xx.
"""

import copy
import functools
import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from backports import zstd

VALID_ONE_IN = 50
MAX_BODY_BYTES = 2**18  # of all bodies made here as they are sent; a bomb's content is larger

WORDS = ["parcel", "invoice", "arrived", "broken", "late", "refund", "Norwick Tools", "order A-17", "paid"]
WORDS += ["Straße", "질문", "🎯", "café", "12.50 EUR"]
TYPES = ("application/json", "application/json; charset=utf-8", "application/vnd.example+json", None)
# Texts that JSON readers, tokenizers or shells stumble on; put anywhere inside a document.
ODD_JSON = [
    "NaN",
    "-Infinity",
    "1e400",
    "-1e-400",
    "9" * 25,
    "1" + "0" * 5000,
    "1.7976931348623157e309",
    '"\\ud800"',
    '"\\udfff\\ud800"',
    '"\\u0000"',
    '"\\x41"',
    '"<|im_end|><|image_pad|><|vision_start|>"',
    "\ufeff",
    "\x00",
    "[" * 130 + "]" * 130,
    "[" * 5000,
    "{" * 300,
    '{"a":' * 1100 + "1" + "}" * 1100,
    '{"a":1,"a":2}',
    '"questions":{}',
    "//",
    "'x'",
    ",,",
    "tru",
    "null",
    '""',
    "[]",
    "{}",
]
ODD_VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**64,
    "",
    " ",
    "x" * 5000,
    [],
    {},
    [[]],
    [None],
    {"": ""},
    {"type": "noul"},
    {"type": "box", "instructions": "where?"},
    {"true": "yes", "maybe": "no"},
    {str(number): None for number in range(300)},
    ["level"] * 300,
    "data:image/png;base64,iVBORw0KGgo=",
    "file:///etc/hostname",
    "http://[::1]:9/",
    {"url": "data:image/gif;base64,####"},
    {"type": "image", "part": "asset-0"},
    {"type": "image", "data_base64": "AAAA", "format": "png"},
]
FIELDS = ["model", "state", "questions", "assets", "images", "videos", "media_kwargs", "over_limit", "cache_salt"]
FIELDS += ["x_isolated", "x_question_ids", "temperature", "stream", "type", "instructions", "criteria", ""]
ODD_TYPES = [
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/octet-stream",
    "multipart/form-data",
    "multipart/form-data; boundary=",
    "multipart/form-data; boundary=" + "b" * 200,
    "multipart/mixed; boundary=b",
    "application/json; charset=utf-16",
    'application/json; charset="',
    "application/json;;;=;",
    "json",
    "/",
    "*/*",
    ";",
    "",
]
ODD_ENCODINGS = [
    "gzip",
    "zstd",
    "br",
    "deflate",
    "gzip, zstd",
    "zstd,gzip,identity",
    "gzip;q=0",
    "utf-8",
    "x-gzip",
    ",",
    "",
]
BOUNDARY = "b7c1e0a9d24f4a51"
ZSTD_HEAD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, kw_only=True)
class RawRequest:
    """One request. `spoilt` says by which steps; where it is empty, the answer is owed with 200."""

    headers: dict[str, str]
    body: bytes
    spoilt: tuple[str, ...]

    @property
    def is_valid(self) -> bool:
        """Whether the answer is owed."""
        return not self.spoilt


def raw_requests(seed: int) -> Iterator[RawRequest]:
    """Requests without end. Every header can be sent by any HTTP client, which is to add content-length itself."""
    rng = random.Random(seed)
    while True:
        # Each request has a generator of its own, so that one can be made again without those before it.
        yield _request(random.Random(rng.getrandbits(64)))


def _request(rng: random.Random) -> RawRequest:
    steps = [] if rng.randrange(VALID_ONE_IN) == 0 else rng.sample(SPOILERS, rng.choice([1, 1, 1, 2, 3]))
    spoilt: list[str] = []

    def spoil(layer: str, value: Any) -> Any:
        for at, step in steps:
            if at == layer:
                spoilt.append(step.__name__.removeprefix("_"))
                value = step(rng, value)
        return value

    (value,) = spoil("value", [_valid(rng)])
    text = spoil("text", json.dumps(value, ensure_ascii=rng.random() < 0.5))
    document = spoil("document", text.encode(errors="surrogatepass"))
    headers: dict[str, str] = {}
    in_parts = any(layer in ("parts", "multipart") for layer, _ in steps)
    if in_parts or rng.random() < 0.2:
        parts = spoil("parts", [_part("request", "application/json", document)])
        body = spoil("multipart", b"".join(parts) + f"--{BOUNDARY}--\r\n".encode())
        headers["content-type"] = f"multipart/form-data; boundary={BOUNDARY}"
    else:
        body = document
        content_type = rng.choice(TYPES)
        if content_type:
            headers["content-type"] = content_type
    spoils_coding = any(layer == "coded" for layer, _ in steps)
    coding = rng.choice(["gzip", "zstd"] if spoils_coding else [None, None, "gzip", "zstd"])
    if coding:
        body = zstd.compress(body) if coding == "zstd" else gzip.compress(body, 1, mtime=0)
        headers["content-encoding"] = coding
        body = spoil("coded", body)
    body = spoil("body", body)
    headers = spoil("headers", headers)
    return RawRequest(headers=headers, body=body[:MAX_BODY_BYTES], spoilt=tuple(spoilt))


def _words(rng: random.Random, most: int = 12) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))


def _valid(rng: random.Random) -> dict[str, Any]:
    questions: dict[str, Any] = {}
    for number in range(rng.randint(1, 3)):
        kind = rng.choice(["noul", "choice", "score"])
        question: dict[str, Any] = {"type": kind, "instructions": _words(rng)}
        if kind == "choice":
            question["criteria"] = {
                f"option {key}": rng.choice([None, _words(rng)]) for key in range(rng.randint(1, 4))
            }
        elif kind == "score":
            question["criteria"] = [_words(rng) for _ in range(rng.randint(1, 4))]
        questions[f"q{number}"] = question
    state = rng.choice(
        [_words(rng, 60), {"text": _words(rng), "lines": [rng.randint(0, 9**9), None, 1.5]}, [_words(rng)]]
    )
    return {"model": rng.choice(["clef", "jev-latest"]), "state": state, "questions": questions}


def _part(name: str, content_type: str, content: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\nContent-Type: {content_type}\r\n\r\n'
    return head.encode() + content + b"\r\n"


def _places(root: list[Any]) -> list[tuple[Any, Any]]:
    """Every container in a value with each of its keys, the outermost value first."""
    found: list[tuple[Any, Any]] = []
    stack: list[Any] = [root]
    while stack:
        container = stack.pop()
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, inner in items:
            found.append((container, key))
            if isinstance(inner, dict | list):
                stack.append(inner)
    return found


def _odd_value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(ODD_VALUES))


# The steps of the layer "value" take the document's value as the only member of a list.


def _replace_a_value(rng: random.Random, root: list[Any]) -> list[Any]:
    container, key = rng.choice(_places(root))
    container[key] = _odd_value(rng)
    return root


def _drop_a_value(rng: random.Random, root: list[Any]) -> list[Any]:
    places = _places(root)[1:]
    if places:
        container, key = rng.choice(places)
        del container[key]
    return root


def _add_a_field(rng: random.Random, root: list[Any]) -> list[Any]:
    objects = [container[key] for container, key in _places(root) if isinstance(container[key], dict)]
    if objects:
        rng.choice(objects)[rng.choice(FIELDS)] = _odd_value(rng)
    return root


def _nest_a_value(rng: random.Random, root: list[Any]) -> list[Any]:
    container, key = rng.choice(_places(root))
    for _ in range(rng.choice([5, 100, 124, 200, 400])):
        container[key] = [container[key]] if rng.random() < 0.5 else {"x": container[key]}
    return root


def _insert_odd_json(rng: random.Random, text: str) -> str:
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice(ODD_JSON) + text[at:]


def _swap_a_string_for_odd_json(rng: random.Random, text: str) -> str:
    quotes = [at for at, character in enumerate(text) if character == '"']
    if len(quotes) < 2:
        return rng.choice(ODD_JSON)
    first = rng.randrange(len(quotes) - 1)
    return text[: quotes[first]] + rng.choice(ODD_JSON) + text[quotes[first + 1] + 1 :]


def _repeat_a_span(rng: random.Random, text: str) -> str:
    start, end = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    return text[:end] + text[start:end] * rng.choice([1, 2, 30]) + text[end:]


def _lone_surrogate(rng: random.Random, text: str) -> str:
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice(["\ud800", "\udfff", "\\ud83d", "\\uDC00"]) + text[at:]


def _other_charset(rng: random.Random, document: bytes) -> bytes:
    text = document.decode(errors="replace")
    return text.encode(rng.choice(["utf-8-sig", "utf-16", "utf-32", "latin-1", "cp037", "utf-7"]), errors="replace")


def _flip_bytes(rng: random.Random, body: bytes) -> bytes:
    spoilt = bytearray(body)
    for _ in range(rng.choice([1, 1, 2, 10]) if spoilt else 0):
        spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
    return bytes(spoilt)


def _cut_short(rng: random.Random, body: bytes) -> bytes:
    return body[: rng.randint(0, len(body))]


def _cut_the_end(rng: random.Random, body: bytes) -> bytes:
    return body[: -rng.randint(1, 20)]


def _insert_noise(rng: random.Random, body: bytes) -> bytes:
    at = rng.choice([0, len(body), rng.randint(0, len(body))])
    return body[:at] + rng.randbytes(rng.choice([1, 4, 200])) + body[at:]


def _insert_framing(rng: random.Random, body: bytes) -> bytes:
    at = rng.randint(0, len(body))
    delimiter = f"--{BOUNDARY}".encode()
    odd = [
        b"\r\n",
        b"\n",
        b"\r",
        delimiter,
        b"\r\n" + delimiter,
        b"\r\n" + delimiter + b"--",
        delimiter + b"  \r\n",
        b":",
    ]
    return body[:at] + rng.choice(odd) * rng.choice([1, 1, 50]) + body[at:]


def _only_noise(rng: random.Random, _: bytes) -> bytes:
    return rng.randbytes(rng.choice([0, 1, 10, 1000, 100_000]))


def _twice(_: random.Random, body: bytes) -> bytes:
    return body + body


def _add_parts(rng: random.Random, parts: list[bytes]) -> list[bytes]:
    names = rng.choices(["request", "asset-0", "asset-1", "asset-2", "", "é", 'q"uote', "x" * 2000, "a\r\nB: c"], k=3)
    types = rng.choices(["image/png", "application/json", "text/plain; charset=x", "\t", "x" * 2000], k=3)
    more = [_part(name, type_, rng.randbytes(rng.randint(0, 50))) for name, type_ in zip(names, types, strict=True)]
    many = [_part(f"asset-{number}", "image/png", b"") for number in range(rng.choice([0, 0, 100]))]
    parts = [*parts, *more, *many]
    rng.shuffle(parts)
    return parts


def _no_request_part(rng: random.Random, parts: list[bytes]) -> list[bytes]:
    return rng.choice([[], [_part("Request", "application/json", b"{}")], [_part("asset-0", "image/png", b"\x89PNG")]])


def _spoil_part_headers(rng: random.Random, parts: list[bytes]) -> list[bytes]:
    odd = [
        (b"form-data", b"attachment"),
        (b"Content-Type", b"Content-Transfer-Encoding: base64\r\nContent-Type"),
        (b"application/json", b"text/html"),
        (b"application/json", b"application/json; charset=utf-16"),
        (b"\r\n", b"\n"),
        (b'; name="request"', b""),
        (b'name="request"', b"name*=utf-8''request"),
        (b'"request"', b'"request"; filename="../../etc/passwd"'),
        (b"Content-Disposition", b"Content-Disposition\x00"),
        (b"Content-Type", b"Content-Type: application/json\r\nContent-Type"),
        (b"Content-Type", b"X: " + b"y" * 9000 + b"\r\nContent-Type"),
        (b"Content-Type", b"X: 1\r\n" * 200 + b"Content-Type"),
    ]
    old, new = rng.choice(odd)
    return [part.replace(old, new, 1) for part in parts]


def _other_coding_name(rng: random.Random, headers: dict[str, str]) -> dict[str, str]:
    return {**headers, "content-encoding": rng.choice(ODD_ENCODINGS)}


def _other_type(rng: random.Random, headers: dict[str, str]) -> dict[str, str]:
    return {**headers, "content-type": rng.choice(ODD_TYPES)}


def _other_boundary(rng: random.Random, headers: dict[str, str]) -> dict[str, str]:
    return {
        **headers,
        "content-type": f"multipart/form-data; boundary={rng.choice([BOUNDARY[:-1], BOUNDARY, 'b', ':'])}",
    }


def _bomb(_: random.Random, body: bytes) -> bytes:
    """40 MiB of spaces in a few kilobytes, in the coding of the body, instead of the body."""
    if body.startswith(ZSTD_HEAD):
        block = (128 * 2**10 << 3 | 2).to_bytes(3, "little") + b" "
        return ZSTD_HEAD + b"\x00\x38" + block * 320
    return _gzip_bomb()


def _many_frames(rng: random.Random, body: bytes) -> bytes:
    empty = zstd.compress(b"") if body.startswith(ZSTD_HEAD) else gzip.compress(b"", mtime=0)
    return empty * rng.choice([1, 1, 1, 10, 10, 10, 10, 5000]) + body


def _large_window(rng: random.Random, _: bytes) -> bytes:
    return ZSTD_HEAD + bytes([rng.choice([0x00, 0x80, 0xC0]), rng.randrange(256)]) + rng.randbytes(30)


@functools.cache
def _gzip_bomb() -> bytes:
    return gzip.compress(b" " * (40 * 2**20), mtime=0)


SPOILERS: list[tuple[str, Callable[[random.Random, Any], Any]]] = [
    *(("value", step) for step in (_replace_a_value, _drop_a_value, _add_a_field, _nest_a_value)),
    *(("text", step) for step in (_insert_odd_json, _swap_a_string_for_odd_json, _repeat_a_span, _lone_surrogate)),
    *(("document", step) for step in (_other_charset, _flip_bytes, _cut_short)),
    *(("parts", step) for step in (_add_parts, _no_request_part, _spoil_part_headers)),
    *(("multipart", step) for step in (_flip_bytes, _insert_framing, _cut_the_end)),
    *(("coded", step) for step in (_flip_bytes, _cut_short, _insert_noise, _twice, _bomb, _many_frames, _large_window)),
    *(("body", step) for step in (_flip_bytes, _cut_short, _insert_noise, _only_noise)),
    *(("headers", step) for step in (_other_coding_name, _other_type, _other_boundary)),
]
