"""Fetches media from the hosts that the operator allows, and reaches nothing that is not on the public internet.

Knows nothing of formats. A host is looked up once for each connection; every address it has must be public, and the
connection goes to one of those very addresses, so that a name cannot point elsewhere a moment later. Redirects are
followed here, one by one, each under the same rules. No cookies, no proxy of the environment, no compression.
"""

import asyncio
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import httpcore
import httpx

from serving.media.limits import MediaLimits
from serving.media.refusal import Loc, beyond, refusal
from serving.media.sources import MediaKind, size_limit
from serving.strict_json import shorten

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

_HOST_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")  # others in their `xn--` form
_PORTS = {"http": 80, "https": 443}
_HEADERS = [(b"user-agent", b"clef-serving"), (b"accept", b"*/*"), (b"accept-encoding", b"identity")]
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_NOT_PUBLIC_V4 = (
    ipaddress.IPv4Network("192.0.0.0/24"),  # protocol assignments; one cloud's metadata service is at 192.0.0.192
    ipaddress.IPv4Network("168.63.129.16/32"),  # another cloud's, of an otherwise public network
)
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")  # the only global unicast addresses there are
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052: an IPv4 address in the last 32 bits


@dataclass(frozen=True, kw_only=True)
class RemotePolicy:
    """From where media may be fetched, and how long that may take.

    Attributes:
        hosts: names, each also as `name:port` where the port is not 80 for http or 443 for https. Exact: no wildcards.
        timeout_s: seconds for one medium, redirects included.
        max_redirects: redirects followed for one medium.
        max_connections: media fetched at once; others wait.

    Raises:
        ValueError: a value is out of range; the message names it.
    """

    hosts: frozenset[str]
    timeout_s: float = 10.0
    max_redirects: int = 3
    max_connections: int = 8

    def __post_init__(self) -> None:
        for host in self.hosts:
            name, _, port = host.partition(":")
            port_is_good = host == name or (port.isdecimal() and 0 < int(port) < 65536)
            if not _HOST_NAME.fullmatch(name) or not port_is_good:
                raise ValueError(f"hosts must be names in lower case, alone or as name:port, not {host!r}")
        if not 0 < self.timeout_s <= 600:
            raise ValueError(f"timeout_s must be above 0 and at most 600 seconds, not {self.timeout_s!r}")
        if self.max_redirects < 0:
            raise ValueError(f"max_redirects must be at least 0, not {self.max_redirects!r}")
        if self.max_connections < 1:
            raise ValueError(f"max_connections must be at least 1, not {self.max_connections!r}")


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet, also where it is an IPv4 address in an IPv6 one."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:  # also an IPv6 address with a scope, such as fe80::1%eth0
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour
        if inner is None and parsed in _NAT64:
            inner = ipaddress.IPv4Address(int(parsed) & 0xFFFF_FFFF)
        if inner is None:
            return parsed.is_global and parsed in _PUBLIC_V6
        parsed = inner
    return parsed.is_global and not parsed.is_multicast and not any(parsed in network for network in _NOT_PUBLIC_V4)


async def resolve(host: str, port: int) -> list[str]:
    """The IP addresses of a host, as the system knows them."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class RemoteMedia:
    """Fetches media under one policy. Belongs to one event loop.

    Args:
        resolver: looks a host up.
        backend: opens connections to IP addresses.
        ssl_context: checks certificates; by default against those of SSL_CERT_FILE or SSL_CERT_DIR, or what `certifi` brings.
    """

    def __init__(
        self,
        policy: RemotePolicy,
        *,
        resolver: Resolver = resolve,
        backend: httpcore.AsyncNetworkBackend | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._pool = httpcore.AsyncConnectionPool(
            # Made once: left to httpcore, each connection would read all certificates again, on the event loop.
            ssl_context=ssl_context or httpx.create_ssl_context(),
            max_connections=policy.max_connections,
            max_keepalive_connections=0,  # every fetch looks its host up
            network_backend=_PublicNetwork(resolver, backend or httpcore.AnyIOBackend()),
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    async def fetch(self, url: str, *, kind: MediaKind, limits: MediaLimits, loc: Loc) -> bytes:
        """The bytes at an http or https address.

        Raises:
            InvalidRequestError: the address is not allowed, or does not yield the bytes of a medium in time and size.
        """
        try:
            async with asyncio.timeout(self._policy.timeout_s):
                return await self._follow(url, kind, limits, loc)
        except (TimeoutError, httpcore.TimeoutException) as err:
            message = f"was not fetched within {self._policy.timeout_s:g} seconds, the limit timeout_s of remote media"
            raise refusal(loc, message, "media_remote") from err
        except _NotPublicError as err:
            raise refusal(loc, f"is at a host with an address that is not public: {err}", "media_remote") from err
        except (OSError, UnicodeError, httpcore.NetworkError, httpcore.ProtocolError) as err:
            raise refusal(
                loc, "could not be fetched: its host cannot be reached, or breaks off", "media_remote"
            ) from err

    async def _follow(self, url: str, kind: MediaKind, limits: MediaLimits, loc: Loc) -> bytes:
        target = self._allowed(url, None, loc)
        for _ in range(self._policy.max_redirects + 1):
            answer = await self._get(target, kind, limits, loc)
            if isinstance(answer, bytes):
                return answer
            target = self._allowed(answer, target, loc)
        message = f"is redirected more often than {self._policy.max_redirects} times, the limit max_redirects"
        raise refusal(loc, message, "media_remote")

    def _allowed(self, url: str, base: httpx.URL | None, loc: Loc) -> httpx.URL:
        """The address as parsed, and meant by the one it comes from, if the policy allows it."""
        try:
            target = httpx.URL(url) if base is None else base.join(url)
            host, port = target.raw_host.decode("ascii"), target.port
        except (httpx.InvalidURL, ValueError) as err:
            raise refusal(loc, "is not a valid URL", "media_remote") from err
        step, place = ("is", "is at") if base is None else ("is redirected to", "is redirected to")
        if target.scheme not in _PORTS or not host:
            raise refusal(loc, f"{step} no http or https URL", "media_remote")
        if base is not None and base.scheme == "https" and target.scheme == "http":
            raise refusal(loc, "is redirected from https to http", "media_remote")
        if target.userinfo:
            raise refusal(loc, f"{step} a URL with a user name", "media_remote")
        listed = host if port is None or port == _PORTS[target.scheme] else f"{host}:{port}"
        if listed not in self._policy.hosts:
            message = f"{place} '{shorten(listed)}', a host from which this server may not fetch media"
            raise refusal(loc, message, "media_remote")
        return target

    async def _get(self, target: httpx.URL, kind: MediaKind, limits: MediaLimits, loc: Loc) -> bytes | str:
        """The body, or where the answer points to."""
        max_bytes: int = getattr(limits, size_limit(kind))
        too_long = beyond(loc, "is longer at its host than it may be", limits, size_limit(kind), unit=" bytes")
        seconds = dict.fromkeys(("connect", "read", "write", "pool"), self._policy.timeout_s)
        # From the parts that were checked: a second parser may see another host.
        url = httpcore.URL(scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path)
        headers = [(b"host", target.netloc), *_HEADERS]
        async with self._pool.stream("GET", url, headers=headers, extensions={"timeout": seconds}) as response:
            fields = {name.lower(): value for name, value in response.headers}
            if response.status in _REDIRECTS and b"location" in fields:
                return fields[b"location"].decode("latin-1")
            if response.status != 200:
                message = f"could not be fetched: its host answered with status {response.status}"
                raise refusal(loc, message, "media_remote")
            if fields.get(b"content-encoding", b"identity").lower() != b"identity":
                raise refusal(loc, "is sent compressed by its host, which was asked not to", "media_remote")
            length = fields.get(b"content-length", b"0")
            if length.isdigit() and int(length) > max_bytes:
                raise too_long
            body = bytearray()
            async for part in response.aiter_stream():
                if len(body) + len(part) > max_bytes:
                    raise too_long
                body += part
            return bytes(body)


class _NotPublicError(Exception):
    pass


class _PublicNetwork(httpcore.AsyncNetworkBackend):
    """Looks hosts up itself and connects to public addresses alone."""

    def __init__(self, resolver: Resolver, backend: httpcore.AsyncNetworkBackend) -> None:
        self._resolver = resolver
        self._backend = backend

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._resolver(host, port)
        # Not one but all: a name with a private address among others is a trick, or a mistake.
        if not addresses or not all(is_public(address) for address in addresses):
            raise _NotPublicError(shorten(host))
        for address in addresses[:-1]:
            try:
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._backend.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)
