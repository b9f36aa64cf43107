"""Asks one SystemOne server over HTTP. Knows the published request's reply, nothing of workloads or time.

The key comes from an environment variable, is sent to the server's own address alone (redirects are not followed), and
stands in no message.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import orjson

from benchmarks.load.samples import ANSWERED

DEFAULT_PATH = "/v1/systemone"
DEFAULT_MODEL = "clef"
LIST_TIMEOUT_S = 10


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server: its base URL, the path that is asked, and the key, which is never printed.

    Raises:
        ValueError: the URL is not one of http or https, or holds a user, a password or a query.
    """

    url: str
    path: str = DEFAULT_PATH
    model: str | None = None
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("a URL must be like http://127.0.0.1:8000 or https://host/base")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(
                "a URL holds no user, password, query or fragment; a key comes from an environment variable"
            )
        if not self.path.startswith("/"):
            raise ValueError(f"a path starts with /, not {self.path!r}")

    @property
    def base(self) -> str:
        """The URL without a slash at its end."""
        return self.url.rstrip("/")


def key_from(variable: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The key in that environment variable.

    Raises:
        ValueError: it is named and not set.
    """
    if variable is None:
        return None
    key = environ.get(variable, "").strip()
    if not key:
        raise ValueError(f"the environment variable {variable} holds no key")
    return key


@dataclass(frozen=True, kw_only=True, slots=True)
class HttpReply:
    """A response, or none."""

    outcome: str
    body: bytes = b""

    def usage(self) -> dict[str, int]:
        """Tokens by name, as far as the server tells; Cloudflare's form has them under `result`."""
        try:
            document = orjson.loads(self.body)
            usage = document.get("result", document).get("usage") or {}
            return {name: value for name, value in usage.items() if isinstance(value, int)}
        except (orjson.JSONDecodeError, AttributeError):
            return {}


class Client:
    """One server. Connections are kept and reused; as many are opened as there are requests in flight."""

    def __init__(self, target: Target, *, name: str) -> None:
        self.target, self.name = target, name
        self.model_asked = target.model or DEFAULT_MODEL
        self.connections_opened = 0
        self.server: str | None = None
        headers = {"content-type": "application/json"}
        if target.key is not None:
            headers["authorization"] = f"Bearer {target.key}"
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(self._opened)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            timeout=aiohttp.ClientTimeout(total=None),  # the sender has the timeouts, from when a request was due
            headers=headers,
            trace_configs=[trace],
        )

    async def _opened(self, *_: Any) -> None:
        self.connections_opened += 1

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ask(self, body: bytes) -> HttpReply:
        """Send a body and read the whole response."""
        url = f"{self.target.base}{self.target.path}"
        try:
            async with self._session.post(url, data=body, allow_redirects=False) as response:
                read = await response.read()
                self.server = response.headers.get("server", self.server)
        except (aiohttp.ClientError, OSError):
            return HttpReply(outcome="connection")
        if response.status != 200:
            return HttpReply(outcome=f"status {response.status}")
        return HttpReply(outcome=ANSWERED if b'"answers"' in read else "unreadable", body=read)

    async def prepare(self) -> None:
        """Find out which model to ask: the target's, else the first that `/v1/models` lists, else `clef`."""
        if self.target.model is None:
            self.model_asked = await self._first_model() or DEFAULT_MODEL

    async def _first_model(self) -> str | None:
        try:
            async with self._session.get(
                f"{self.target.base}/v1/models",
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=LIST_TIMEOUT_S),
            ) as response:
                listed = orjson.loads(await response.read()) if response.status == 200 else {}
        except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError):
            return None
        entries = listed.get("data") or listed.get("models") or [] if isinstance(listed, dict) else []
        names = [entry.get("id") or entry.get("name") if isinstance(entry, dict) else entry for entry in entries]
        return next((name for name in names if isinstance(name, str)), None)
