"""Asks a running server every record, a bounded number at once. Knows HTTP and keys; knows nothing of what answers are worth.

A request that is refused for now (429, 503) or whose connection breaks is sent again, when the server says so. A record that
gets no answer is counted and the others go on. What a server says in words may quote the request, so it is kept apart.
"""

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from benchmarks.quality.decisions import AnswerError, Decision, decisions_of
from benchmarks.quality.records import Record

# The hosted form and others may take a while for a long state; a server that is only slow should not fail.
DEFAULT_TIMEOUT_S = 600
DEFAULT_ATTEMPTS = 8
MOST_WAIT_S = 300  # asked to wait longer than that, a record counts as not answered
_FIRST_WAIT_S, _MOST_OWN_WAIT_S = 0.5, 30.0
_AGAIN = (429, 503)


class ServerError(Exception):
    """No server answers there, or it does not say which model it serves; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """Where to ask. The key stays out of every representation of this."""

    url: str
    model: str
    key: "Key | None" = None


class Key:
    """A key as it is sent; shown nowhere."""

    def __init__(self, text: str) -> None:
        self._text = text

    @classmethod
    def from_environment(cls, variable: str, *, required: bool) -> "Key | None":
        """The key that the variable holds, without white space around it.

        Raises:
            ServerError: it holds what no header can, or nothing although it is required.
        """
        text = os.environ.get(variable, "").strip()
        if not text and not required:
            return None
        if not text or not text.isascii() or not text.isprintable():
            raise ServerError(f"the environment variable {variable} holds no usable key")
        return cls(text)

    def headers(self) -> dict[str, str]:
        """What a request carries."""
        return {"authorization": f"Bearer {self._text}"}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A record without answer. `reason` quotes nothing of it; `words` are the server's, which may."""

    record_name: str
    reason: str
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The decisions of each answered record, in the order of the records, and who got none."""

    decisions: Sequence[Decision]
    failures: Sequence[Failure]
    answered: int

    @property
    def by_reason(self) -> dict[str, int]:
        """How many failures have each reason."""
        return dict(Counter(failure.reason for failure in self.failures).most_common())


def find_server(url: str, *, model: str | None = None, key: Key | None = None) -> Server:
    """The server at an address, with the first model it lists if none is named.

    Raises:
        ServerError: the address is none, holds a password, nobody answers there, or no model is listed.
    """
    return asyncio.run(_find(url.rstrip("/"), model, key))


def ask(
    records: Sequence[Record],
    server: Server,
    *,
    concurrency: int = 8,
    attempts: int = DEFAULT_ATTEMPTS,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    extra: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda done, failed: None,
) -> Asked:
    """Ask all records.

    Args:
        concurrency: most requests at once.
        attempts: most times one request is sent.
        timeout_s: for one attempt.
        extra: fields for every body, such as a `cache_salt`.
        progress: called after each record with how many are done, and how many of those failed.
    """
    return asyncio.run(_ask_all(records, server, concurrency, attempts, timeout_s, extra or {}, progress))


def wait_s(headers: Mapping[str, str], attempt: int, *, now_s: float) -> float:
    """Seconds until the next attempt: what the answer's headers ask for, else twice as long each time.

    Args:
        headers: of the response, by lower-case name.
        attempt: how many were made, from 1.
        now_s: since 1970, for a `retry-after` that is a date.
    """
    own = min(_MOST_OWN_WAIT_S, _FIRST_WAIT_S * 2.0 ** (attempt - 1))
    asked: float
    try:
        if "retry-after-ms" in headers:
            asked = float(headers["retry-after-ms"]) / 1000
        elif (after := headers.get("retry-after", "")).strip().isdecimal():
            asked = float(after)
        elif after:
            asked = parsedate_to_datetime(after).timestamp() - now_s
        else:
            return own
    except ValueError:
        return own
    return max(0.0, asked)


async def _find(url: str, model: str | None, key: Key | None) -> Server:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ServerError("the address is not one of HTTP, such as http://127.0.0.1:8000")
    if "@" in parts.netloc or parts.query:
        raise ServerError("an address must hold no password and no query; keys come from the environment")
    if model is not None:
        return Server(url=url, model=model, key=key)
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
            session.get(f"{url}/v1/models", headers=_headers(key), allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise ServerError(f"{url}/v1/models answers {response.status}; name the model with --model")
            listed = await response.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError) as err:
        raise ServerError(f"no server answers at {url}: {type(err).__name__}") from err
    except ValueError as err:
        raise ServerError(f"{url}/v1/models is not JSON; name the model with --model") from err
    try:  # OpenAI's shape, then TypeSafe's
        name = listed["data"][0]["id"] if "data" in listed else listed["models"][0]["name"]
    except (LookupError, TypeError) as err:
        raise ServerError(f"{url}/v1/models lists no model; name it with --model") from err
    return Server(url=url, model=str(name), key=key)


async def _ask_all(
    records: Sequence[Record],
    server: Server,
    concurrency: int,
    attempts: int,
    timeout_s: float,
    extra: Mapping[str, Any],
    progress: Callable[[int, int], None],
) -> Asked:
    outcomes: dict[int, list[Decision] | Failure] = {}
    positions = count()
    failed = 0

    async def worker(session: aiohttp.ClientSession) -> None:
        nonlocal failed
        while (position := next(positions)) < len(records):
            outcome = await _ask(session, server, records[position], position, attempts, extra)
            outcomes[position] = outcome
            failed += isinstance(outcome, Failure)
            progress(len(outcomes), failed)

    connector, timeout = aiohttp.TCPConnector(limit=concurrency), aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=_headers(server.key)) as session:
        await asyncio.gather(*(worker(session) for _ in range(concurrency)))
    in_order = [outcomes[position] for position in range(len(records))]
    failures = [outcome for outcome in in_order if isinstance(outcome, Failure)]
    return Asked(
        decisions=[decision for outcome in in_order if isinstance(outcome, list) for decision in outcome],
        failures=failures,
        answered=len(records) - len(failures),
    )


async def _ask(
    session: aiohttp.ClientSession,
    server: Server,
    record: Record,
    position: int,
    attempts: int,
    extra: Mapping[str, Any],
) -> list[Decision] | Failure:
    def failure(reason: str, words: str = "") -> Failure:
        return Failure(record_name=record.name, reason=reason, words=words)

    try:
        body = {"model": server.model, **await asyncio.to_thread(record.body), **extra}
    except OSError as err:
        return failure(f"an image cannot be read: {err.strerror}")
    for attempt in count(1):
        try:
            async with session.post(f"{server.url}/v1/systemone", json=body, allow_redirects=False) as response:
                status, headers = response.status, {name.lower(): value for name, value in response.headers.items()}
                answered = await response.json(content_type=None)
        except aiohttp.ClientConnectorError as err:
            return failure(f"no connection: {type(err).__name__}")
        except TimeoutError:
            return failure("no answer in time")
        except ValueError:
            status, answered = (status, None)
        except aiohttp.ClientError as err:
            if attempt == attempts:
                return failure(f"the connection broke: {type(err).__name__}")
            await asyncio.sleep(wait_s({}, attempt, now_s=time.time()))
            continue
        if status == 200:
            try:
                return decisions_of(record, position, answered)
            except AnswerError as err:
                return failure(str(err))
        reason, words = _refusal(status, answered)
        wait = wait_s(headers, attempt, now_s=time.time())
        if status not in _AGAIN or attempt == attempts:
            return failure(reason, words)
        if wait > MOST_WAIT_S:
            return failure(f"{reason}, and to come back in {wait:.0f} s", words)
        await asyncio.sleep(wait)
    raise AssertionError("count never ends")


def _headers(key: Key | None) -> dict[str, str]:
    return {} if key is None else key.headers()


def _refusal(status: int, body: Any) -> tuple[str, str]:
    """The status with the error's type, as far as that is a word of the server's own, and its message."""
    detail = body.get("detail") if isinstance(body, dict) else None
    first = detail[0] if isinstance(detail, list) and detail else detail
    if not isinstance(first, dict):
        return str(status), ""
    kind = str(first.get("error_type") or first.get("type") or "")
    named = f" {kind}" if re.fullmatch(r"[A-Za-z0-9_.]{1,64}", kind) else ""
    return f"{status}{named}", str(first.get("message") or first.get("msg") or "")
