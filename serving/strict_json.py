"""Reads a request body as JSON that means one thing only, or says where it does not. Knows nothing of requests.

The standard library's parser keeps every digit of an integer, but by default it also takes NaN and Infinity, turns
1e400 into infinity, keeps the last of two equal keys and lets lone surrogates through. All of those are refused here:
answering from a document that was altered on the way in is worse than refusing it.
"""

import json
import math
import sys
from typing import Any, NoReturn

from serving.errors import Fault, InvalidRequestError

MAX_SHOWN_CHARACTERS = 80


def shorten(text: str) -> str:
    """The text as it may be repeated in an error message or a log line: bounded, and valid as UTF-8."""
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + "…"


def json_kind(value: Any) -> str:
    """What a parsed JSON value is called in JSON."""
    names = {
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        dict: "an object",
        list: "an array",
    }
    return names.get(type(value), "null")


class _RepeatedKeys(dict[str, Any]):
    """An object whose text held a key twice. Found again by the walk, which knows the path to it."""

    repeated: str


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    marked = _RepeatedKeys(value)
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            marked.repeated = key
            break
        seen.add(key)
    return marked


def _finite(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise ValueError(f"the number {shorten(literal)} is beyond the range of a double")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _fault(loc: list[str | int], message: str, kind: str = "json_invalid") -> InvalidRequestError:
    shown = [shorten(part) if isinstance(part, str) else part for part in loc]
    return InvalidRequestError([Fault(loc=["body", *shown], msg=message, type=kind)])


def parse(body: bytes, *, max_depth: int) -> Any:
    """The value that a JSON text in UTF-8 stands for.

    Raises:
        InvalidRequestError: the bytes are not UTF-8 or not JSON, start with a byte order mark, hold NaN, Infinity, a
            number beyond a double, an integer beyond Python's digit limit, a key twice in one object or a lone
            surrogate, or nest deeper than `max_depth`.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as err:
        raise _fault([err.start], f"the body is not UTF-8: byte {err.start} {err.reason}") from err
    if not text.strip():
        raise _fault([0], "the body is empty; it must be a JSON object")
    if text.startswith("\ufeff"):
        raise _fault([0], "the body starts with a byte order mark, which JSON does not allow")
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_no_constant)
    except json.JSONDecodeError as err:
        raise _fault([err.pos], f"the body is not JSON: {err.msg} at character {err.pos}") from err
    except RecursionError as err:
        raise _too_deep(max_depth) from err
    except ValueError as err:
        message = str(err)
        if "integer string conversion" in message:  # CPython's guard against quadratic time; its text names its API
            message = f"an integer has more than {sys.get_int_max_str_digits()} digits"
        raise _fault([], f"the body is not JSON this server reads: {message}") from err
    # The body is valid UTF-8, so a lone surrogate can only have come from an escape; few bodies hold one that could.
    escapes = "\\ud" in text or "\\uD" in text
    _walk(value, max_depth=max_depth, check_text=escapes)
    return value


def _too_deep(max_depth: int) -> InvalidRequestError:
    # No path: whether the parser or the walk notices first depends on the Python version.
    return _fault([], f"the body nests deeper than {max_depth} levels of objects and arrays", "nesting_too_deep")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _walk(root: Any, *, max_depth: int, check_text: bool) -> None:
    """Refuse repeated keys, too deep nesting and, if asked, lone surrogates. Iterative: depth cannot hurt it."""
    # A path is a linked list from the inside out: cheap to extend, and read only when something is wrong.
    stack: list[tuple[Any, int, Any]] = [(root, 1, None)]
    while stack:
        value, depth, path = stack.pop()
        if isinstance(value, str):
            if check_text and not _is_unicode(value):
                raise _fault(_unlink(path), "the text holds a lone surrogate, which is not Unicode", "string_unicode")
            continue
        if depth > max_depth:
            raise _too_deep(max_depth)
        if isinstance(value, dict):
            if isinstance(value, _RepeatedKeys):
                raise _fault(
                    [*_unlink(path), value.repeated],
                    f"the key '{shorten(value.repeated)}' appears twice in one object",
                    "repeated_key",
                )
            if check_text:
                for key in value:
                    if not _is_unicode(key):
                        raise _fault(
                            [*_unlink(path), key],
                            f"the key '{shorten(key)}' holds a lone surrogate, which is not Unicode",
                            "string_unicode",
                        )
            members = value.items()
        elif isinstance(value, list):
            members = enumerate(value)  # type: ignore[assignment]
        else:
            continue
        wanted = (dict, list, str) if check_text else (dict, list)
        stack.extend((member, depth + 1, (path, key)) for key, member in members if isinstance(member, wanted))


def _unlink(path: Any) -> list[str | int]:
    parts: list[str | int] = []
    while path is not None:
        path, part = path
        parts.append(part)
    return parts[::-1]
