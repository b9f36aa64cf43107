"""The format of a key file: names, tenants, hashes and limits of API keys. Knows neither requests nor where files lie.

A key file is TOML. Each key has an entry, and one tenant may have several, so that a new key can be handed out before the
old one is taken back:

    [[keys]]
    name = "orders-2027"            # unique; for log lines and messages
    tenant = "orders-team"          # whose key it is
    sha256 = "4bf5..."              # 64 hexadecimal digits; unique
    requests_per_minute = 600       # optional; without it there is no such limit
    tokens_per_minute = 2_000_000   # optional; likewise
    expires = 2027-12-31T00:00:00Z  # optional

The key itself never stands there, only its SHA-256. A slow, salted hash such as Argon2 protects what people choose and
others can guess. Our keys are 256 random bits (`launch.keys`): nothing short of trying them all finds one from its hash,
and every request would pay for the slowness. NIST SP 800-63B (2017), 5.1.2.2, asks for an approved one-way function where
a look-up secret has 112 bits or more, and for salt and slowness where it has fewer.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

# Far above any real limit, far below where floating-point arithmetic on it would suffer.
MOST_PER_MINUTE = 10**12
LONGEST_SHOWN_NAME = 24

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RateLimits:
    """What a key may use in a minute; None is without limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredKey:
    """One entry. `sha256` is the key's digest, 32 bytes; `expires` is a Unix time in seconds."""

    name: str
    tenant: str
    sha256: bytes = field(repr=False)
    limits: RateLimits
    expires: float | None = None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _is_rate(value: object) -> bool:
    return type(value) is int and 1 <= value <= MOST_PER_MINUTE


def _is_moment(value: object) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


_NAME_RULE = "must be 1 to 64 letters, digits, '.', '_' or '-', the first a letter or a digit"
_RATE_RULE = f"must be a whole number from 1 to {MOST_PER_MINUTE}"
# What each field must be, and what is said otherwise; never with the value, which may be a key in the wrong place.
_FIELDS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "name": (_is_name, _NAME_RULE),
    "tenant": (_is_name, _NAME_RULE),
    "sha256": (_is_digest, "must be the SHA-256 of the key, as 64 hexadecimal digits"),
    "requests_per_minute": (_is_rate, _RATE_RULE),
    "tokens_per_minute": (_is_rate, _RATE_RULE),
    "expires": (_is_moment, "must be a date and time with its offset, such as 2027-12-31T00:00:00Z"),
}
_REQUIRED = ("name", "tenant", "sha256")


def check_field(name: str, value: object) -> None:
    """Raise ValueError, without the value, if it cannot stand in an entry's field of that name."""
    fits, rule = _FIELDS[name]
    if not fits(value):
        raise ValueError(f"{name} {rule}")


def read_keys(files: Mapping[str, bytes]) -> tuple[StoredKey, ...]:
    """The keys of all files together.

    Args:
        files: the content of each file, by the name that messages should give it.

    Raises:
        ValueError: a file cannot be read as above, two entries share a name or a hash, or there is no entry at all. The
            message names file, entry and field, and holds no value.
    """
    keys: list[StoredKey] = []
    places: dict[tuple[str, object], str] = {}
    for file, content in files.items():
        for place, key in _entries(file, content):
            for name in ("name", "sha256"):
                first = places.setdefault((name, getattr(key, name)), place)
                if first != place:
                    raise ValueError(f"{place}: {name} is the same as in {first}")
            keys.append(key)
    if not keys:
        raise ValueError(f"there is no [[keys]] entry in {', '.join(files) or 'no file'}")
    return tuple(keys)


def _entries(file: str, content: bytes) -> Iterator[tuple[str, StoredKey]]:
    """Each key of one file, after the words that say where it stands."""
    document = _toml(file, content)
    for name in document:
        if name != "keys":
            raise ValueError(f"{file}: {_shown(name)} is not known; a key file holds [[keys]] entries and nothing else")
    entries = document.get("keys", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{file}: keys must be a list of tables, each under a line [[keys]]")
    for number, entry in enumerate(entries, start=1):
        place = f"{file}: keys entry {number}"
        try:
            yield place, _stored_key(entry)
        except ValueError as err:
            raise ValueError(f"{place}: {err}") from err


def _toml(file: str, content: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(content.decode())
    except tomllib.TOMLDecodeError as err:
        # Of the parser's message only the position is kept: the rest may repeat what stands in the file.
        position = re.search(r"\(at [a-z0-9, ]+\)$", str(err))
        raise ValueError(f"{file}: not TOML {position[0] if position else ''}".rstrip()) from None
    except (ValueError, RecursionError):  # not UTF-8, a number of thousands of digits, thousands of brackets
        raise ValueError(f"{file}: not TOML") from None


def _stored_key(entry: Mapping[str, Any]) -> StoredKey:
    if "key" in entry:
        raise ValueError("key must not stand in a file; write its SHA-256 into sha256 instead")
    for name in entry:
        if name not in _FIELDS:
            raise ValueError(f"{_shown(name)} is not a field; the fields are {', '.join(_FIELDS)}")
    for name in _REQUIRED:
        if name not in entry:
            raise ValueError(f"{name} is missing")
    for name, value in entry.items():
        check_field(name, value)
    return StoredKey(
        name=entry["name"],
        tenant=entry["tenant"],
        sha256=bytes.fromhex(entry["sha256"]),
        limits=RateLimits(
            requests_per_minute=entry.get("requests_per_minute"), tokens_per_minute=entry.get("tokens_per_minute")
        ),
        expires=entry["expires"].timestamp() if "expires" in entry else None,
    )


def _shown(name: str) -> str:
    """A field's name as it may stand in a message: on one line, and not if it could be a key in the wrong place."""
    return repr(name) if len(name) <= LONGEST_SHOWN_NAME else f"a name of {len(name)} characters"
