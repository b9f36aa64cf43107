"""Fetching reaches allowed hosts at public addresses and nothing else, whatever names, redirects and answers say.

Real servers on the loopback interface stand behind addresses of the public internet: the backend that the fetcher is given
connects to them, and writes down to which address it was asked to.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpcore
import pytest

from serving.media.limits import MediaLimits
from serving.media.remote import RemoteMedia, RemotePolicy, is_public, resolve
from tests.serving.media_samples import LOC, refused

PUBLIC = "93.184.215.14"
PUBLIC_6 = "2606:2800:21f:cb07:6820:80da:af6b:8b2c"
LIMITS = MediaLimits(max_image_bytes=1000)


def answer(body: bytes = b"", status: str = "200 OK", length: bool = True, **headers: str) -> bytes:
    fields = {**({"Content-Length": str(len(body))} if length else {}), "Connection": "close"}
    fields.update({name.replace("_", "-"): value for name, value in headers.items()})
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


class Site:
    """A server: `pages` by path, and the requests it has seen as (host, path)."""

    def __init__(self, pages: dict[str, bytes]) -> None:
        self.pages = pages
        self.seen: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.port = 0
        # Requests that are answered together: the first waits for as many.
        self.held_until = 1
        self.most_at_once = 0
        self._now = 0
        self._enough = asyncio.Event()

    @contextlib.asynccontextmanager
    async def serving(self, context: ssl.SSLContext | None = None) -> AsyncIterator["Site"]:
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0, ssl=context)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            path = head[0].split(" ")[1]
            self.seen.append((fields["host"], path))
            self.headers.append(fields)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            if self._now == self.held_until:
                self._enough.set()
            await self._enough.wait()
            writer.write(self.pages[path])
            await writer.drain()
            self._now -= 1
            if path == "/stuck":
                await reader.read()  # until the client leaves
            writer.close()


class Network(httpcore.AsyncNetworkBackend):
    """The internet of a test: connects every address to one site, and fails for those in `dead`."""

    def __init__(self, site: Site, dead: Sequence[str] = ()) -> None:
        self.asked: list[tuple[str, int]] = []
        self._site = site
        self._dead = dead
        self._real = httpcore.AnyIOBackend()

    async def connect_tcp(self, host: str, port: int, *rest: Any, **named: Any) -> httpcore.AsyncNetworkStream:
        self.asked.append((host, port))
        if host in self._dead:
            raise httpcore.ConnectError("nobody there")
        return await self._real.connect_tcp("127.0.0.1", self._site.port, *rest, **named)


class Names:
    """A resolver: for each name the addresses that it gives the first time, the second time, and so on."""

    def __init__(self, **names: list[list[str]]) -> None:
        self._names = {name.replace("_", "."): answers for name, answers in names.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self._names[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]


@contextlib.asynccontextmanager
async def fetcher(
    site: Site,
    names: Names | None = None,
    *,
    network: Network | None = None,
    hosts: Sequence[str] = ("media.example",),
    ssl_context: ssl.SSLContext | None = None,
    **policy: Any,
) -> AsyncIterator[RemoteMedia]:
    remote = RemoteMedia(
        RemotePolicy(hosts=frozenset(hosts), **policy),
        resolver=names or Names(media_example=[[PUBLIC]], other_example=[[PUBLIC]]),
        backend=network or Network(site),
        ssl_context=ssl_context,
    )
    try:
        yield remote
    finally:
        await remote.aclose()


async def fetch(remote: RemoteMedia, url: str) -> bytes:
    return await remote.fetch(url, kind="image", limits=LIMITS, loc=LOC)


@pytest.mark.asyncio
async def test_fetches_from_an_allowed_host_at_the_very_address_that_was_checked() -> None:
    async with Site({"/a.png?x=1": answer(b"bytes")}).serving() as site:
        names, network = Names(media_example=[[PUBLIC], ["127.0.0.1"]]), Network(site)
        async with fetcher(site, names, network=network) as remote:
            assert await fetch(remote, "http://MEDIA.example/a.png?x=1#part") == b"bytes"
        assert site.seen == [("media.example", "/a.png?x=1")]
        # One look-up: a second would have led home.
        assert (names.asked, network.asked) == (["media.example"], [(PUBLIC, 80)])


@pytest.mark.asyncio
async def test_the_request_tells_little_and_asks_for_no_compression() -> None:
    async with Site({"/": answer(b"x", Set_Cookie="a=b")}).serving() as site, fetcher(site) as remote:
        for _ in range(2):
            await fetch(remote, "http://media.example/")
        assert (
            site.headers
            == [
                {
                    "host": "media.example",
                    "user-agent": "clef-serving",
                    "accept": "*/*",
                    "accept-encoding": "identity",
                }
            ]
            * 2
        )


@pytest.mark.asyncio
async def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with Site({"/": answer(b"x")}).serving() as site, fetcher(site) as remote:
        assert await fetch(remote, "http://media.example/") == b"x"


NOT_PUBLIC = [
    *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "100.100.100.200"),
    *("169.254.169.254", "168.63.129.16", "192.0.0.192", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1"),
    *("255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "::ffff:0:127.0.0.1"),
    *("2002:7f00:1::", "2002:a9fe:a9fe::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808"),
    *("2001::1", "2001:db8::1", "100::1", "5f00::1", "localhost", ""),
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [PUBLIC, "8.8.8.8", PUBLIC_6, "2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::"],
)
def test_public(address: str) -> None:
    assert is_public(address)


HIDDEN = "images.0 is at a host with an address that is not public: media.example"


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.1.2.3", "::1", "::ffff:10.1.2.3", "fe80::1%1"])
@pytest.mark.parametrize("among", [[], [PUBLIC], [PUBLIC, PUBLIC_6]], ids=["alone", "after one", "after two"])
@pytest.mark.asyncio
async def test_no_connection_if_any_address_is_not_public(address: str, among: list[str]) -> None:
    async with Site({}).serving() as site:
        network = Network(site)
        async with fetcher(site, Names(media_example=[[*among, address]]), network=network) as remote:
            with refused(HIDDEN, "media_remote"):
                await fetch(remote, "http://media.example/latest/meta-data/")
        assert (network.asked, site.seen) == ([], [])


@pytest.mark.asyncio
async def test_a_name_that_moves_home_is_refused_at_the_redirect() -> None:
    pages = {"/": answer(status="302 Found", Location="/again")}
    async with Site(pages).serving() as site:
        async with fetcher(site, Names(media_example=[[PUBLIC], ["127.0.0.1"]])) as remote:
            with refused(HIDDEN, "media_remote"):
                await fetch(remote, "http://media.example/")
        assert site.seen == [("media.example", "/")]


@pytest.mark.asyncio
async def test_this_machine_is_refused_with_the_systems_own_names() -> None:
    async with Site({"/": answer(b"secret")}).serving() as site:
        host = f"localhost:{site.port}"
        remote = RemoteMedia(RemotePolicy(hosts=frozenset({host, f"127.0.0.1:{site.port}"})))
        for name in ("localhost", "127.0.0.1"):
            with refused(f"images.0 is at a host with an address that is not public: {name}", "media_remote"):
                await fetch(remote, f"http://{name}:{site.port}/")
        await remote.aclose()
        assert site.seen == []
    assert "127.0.0.1" in await resolve("localhost", 80)


FORBIDDEN = "images.0 is at '{}', a host from which this server may not fetch media"
ADDRESSES: dict[str, tuple[str, str]] = {
    "another host": ("http://evil.example/", FORBIDDEN.format("evil.example")),
    "a host below": ("http://a.media.example/", FORBIDDEN.format("a.media.example")),
    "a host that ends alike": ("http://evilmedia.example/", FORBIDDEN.format("evilmedia.example")),
    "another port": ("http://media.example:8080/", FORBIDDEN.format("media.example:8080")),
    "the other scheme's port": ("http://media.example:443/", FORBIDDEN.format("media.example:443")),
    "an address": ("http://169.254.169.254/latest/meta-data/", FORBIDDEN.format("169.254.169.254")),
    "an address as a number": ("http://2130706433/", FORBIDDEN.format("2130706433")),
    "an IPv6 address": ("http://[::1]/", FORBIDDEN.format("::1")),
    "a final dot": ("http://media.example./", FORBIDDEN.format("media.example.")),
    "a user name": ("http://media.example@evil.example/", "images.0 is a URL with a user name"),
    "a user name at the allowed host": ("http://me:secret@media.example/", "images.0 is a URL with a user name"),
    "a backslash": ("http://media.example\\@evil.example/", "images.0 is a URL with a user name"),
    "no host": ("http:///a.png", "images.0 is no http or https URL"),
    "a line break": ("http://media.example/\r\nX: y", "images.0 is not a valid URL"),
    "a bad port": ("http://media.example:abc/", "images.0 is not a valid URL"),
    "no end": ("http://media.example/" + "a" * 70000, "images.0 is not a valid URL"),
    "file": ("file:///etc/hostname", "images.0 is no http or https URL"),
}


@pytest.mark.parametrize(("url", "message"), ADDRESSES.values(), ids=ADDRESSES)
@pytest.mark.asyncio
async def test_an_address_that_is_not_allowed_is_not_looked_up(url: str, message: str) -> None:
    names = Names()
    async with Site({}).serving() as site, fetcher(site, names) as remote:
        with refused(message, "media_remote"):
            await fetch(remote, url)
    assert names.asked == []


@pytest.mark.asyncio
async def test_a_port_is_allowed_with_its_host() -> None:
    async with Site({"/": answer(b"x")}).serving() as site:
        network = Network(site)
        async with fetcher(site, network=network, hosts=["media.example:8080"]) as remote:
            assert await fetch(remote, "http://media.example:8080/") == b"x"
            with refused(FORBIDDEN.format("media.example"), "media_remote"):
                await fetch(remote, "http://media.example/")
        assert (network.asked, site.seen) == ([(PUBLIC, 8080)], [("media.example:8080", "/")])


@pytest.mark.asyncio
async def test_redirects_are_followed_to_allowed_hosts() -> None:
    pages = {
        "/1": answer(status="301 Moved", Location="2?a=b"),
        "/2?a=b": answer(status="307 Temporary", Location="http://other.example/3"),
        "/3": answer(b"there"),
    }
    async with Site(pages).serving() as site:
        async with fetcher(site, hosts=["media.example", "other.example"]) as remote:
            assert await fetch(remote, "http://media.example/1") == b"there"
        assert site.seen == [("media.example", "/1"), ("media.example", "/2?a=b"), ("other.example", "/3")]


REDIRECTS: dict[str, tuple[str, str]] = {
    "another host": ("http://evil.example/", FORBIDDEN.format("evil.example")),
    "this machine": ("http://127.0.0.1/", FORBIDDEN.format("127.0.0.1")),
    "metadata": ("//169.254.169.254/latest", FORBIDDEN.format("169.254.169.254")),
    "a file": ("file:///etc/hostname", "images.0 is redirected to no http or https URL"),
    "a data URL": ("data:image/png;base64,AAAA", "images.0 is redirected to no http or https URL"),
    "a user name": ("http://a@media.example/", "images.0 is redirected to a URL with a user name"),
    "nonsense": ("http://media.example:port/", "images.0 is not a valid URL"),
}


@pytest.mark.parametrize(("location", "message"), REDIRECTS.values(), ids=REDIRECTS)
@pytest.mark.asyncio
async def test_a_redirect_elsewhere_is_refused(location: str, message: str) -> None:
    message = message.replace("images.0 is at '", "images.0 is redirected to '")
    async with Site({"/": answer(status="302 Found", Location=location)}).serving() as site, fetcher(site) as remote:
        with refused(message, "media_remote"):
            await fetch(remote, "http://media.example/")
        assert len(site.seen) == 1


@pytest.mark.asyncio
async def test_redirects_are_counted() -> None:
    pages = {f"/{i}": answer(status="302 Found", Location=f"/{i + 1}") for i in range(9)} | {"/9": answer(b"x")}
    async with Site(pages).serving() as site, fetcher(site, max_redirects=2) as remote:
        assert await fetch(remote, "http://media.example/7") == b"x"
        with refused("images.0 is redirected more often than 2 times, the limit max_redirects", "media_remote"):
            await fetch(remote, "http://media.example/6")


def without_certificates(side: int) -> ssl.SSLContext:
    """TLS that needs none, so that the test needs none: only a client that asks for it accepts that."""
    context = ssl.SSLContext(side)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("aNULL:@SECLEVEL=0")
    return context


@pytest.mark.asyncio
async def test_a_redirect_from_https_to_http_is_refused() -> None:
    pages = {"/": answer(status="302 Found", Location="http://media.example/"), "/a": answer(b"x")}
    async with Site(pages).serving(without_certificates(ssl.PROTOCOL_TLS_SERVER)) as site:
        network = Network(site)
        context = without_certificates(ssl.PROTOCOL_TLS_CLIENT)
        async with fetcher(site, network=network, ssl_context=context) as remote:
            assert await fetch(remote, "https://media.example/a") == b"x"
            with refused("images.0 is redirected from https to http", "media_remote"):
                await fetch(remote, "https://media.example/")
        assert network.asked == [(PUBLIC, 443)] * 2


UNREACHABLE = "images.0 could not be fetched: its host cannot be reached, or breaks off"


@pytest.mark.asyncio
async def test_a_host_without_a_certificate_is_refused() -> None:
    async with (
        Site({"/": answer(b"x")}).serving(without_certificates(ssl.PROTOCOL_TLS_SERVER)) as site,
        fetcher(site) as remote,
    ):
        with refused(UNREACHABLE, "media_remote"):
            await fetch(remote, "https://media.example/")
        assert site.seen == []


TOO_LONG = ("images.0 is longer at its host than it may be; the limit max_image_bytes is 1000 bytes", "media_too_large")
CHUNKS = b"".join(b"1f4\r\n" + b"x" * 500 + b"\r\n" for _ in range(3)) + b"0\r\n\r\n"
ANSWERS: dict[str, tuple[bytes, str, str]] = {
    "a length over the limit": (answer(b"", length=False, Content_Length="1001"), *TOO_LONG),
    "bytes over the limit, without a length": (answer(b"x" * 1001, length=False), *TOO_LONG),
    "chunks over the limit": (answer(CHUNKS, length=False, Transfer_Encoding="chunked"), *TOO_LONG),
    "less than it said": (answer(b"x", length=False, Content_Length="10"), UNREACHABLE, "media_remote"),
    "compressed": (
        answer(b"x", Content_Encoding="gzip"),
        "images.0 is sent compressed by its host, which was asked not to",
        "media_remote",
    ),
    "not found": (
        answer(b"no", status="404 Not Found"),
        "images.0 could not be fetched: its host answered with status 404",
        "media_remote",
    ),
    "a redirect to nowhere": (
        answer(status="302 Found"),
        "images.0 could not be fetched: its host answered with status 302",
        "media_remote",
    ),
    "no http": (b"hello\r\n\r\n", UNREACHABLE, "media_remote"),
    "nothing": (b"", UNREACHABLE, "media_remote"),
    "headers without end": (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 50_000, UNREACHABLE, "media_remote"),
}


@pytest.mark.parametrize(("page", "message", "kind"), ANSWERS.values(), ids=ANSWERS)
@pytest.mark.asyncio
async def test_answers_that_are_refused(page: bytes, message: str, kind: str) -> None:
    async with Site({"/": page}).serving() as site, fetcher(site) as remote:
        with refused(message, kind):
            await fetch(remote, "http://media.example/")


@pytest.mark.parametrize("page", [answer(b"x" * 1000), answer(b"x" * 1000, length=False)], ids=["length", "no length"])
@pytest.mark.asyncio
async def test_the_limit_on_bytes_is_exact(page: bytes) -> None:
    async with Site({"/": page}).serving() as site, fetcher(site) as remote:
        assert await fetch(remote, "http://media.example/") == b"x" * 1000


@pytest.mark.asyncio
async def test_a_host_that_is_stuck_is_given_up() -> None:
    page = answer(b"", length=False, Content_Length="10")
    message = "images.0 was not fetched within 0.2 seconds, the limit timeout_s of remote media"
    async with Site({"/stuck": page}).serving() as site, fetcher(site, timeout_s=0.2) as remote:
        with refused(message, "media_remote"):
            await fetch(remote, "http://media.example/stuck")


@pytest.mark.asyncio
async def test_a_look_up_that_is_stuck_is_given_up() -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    remote = RemoteMedia(RemotePolicy(hosts=frozenset({"media.example"}), timeout_s=0.1), resolver=never)
    with refused("images.0 was not fetched within 0.1 seconds, the limit timeout_s of remote media", "media_remote"):
        await fetch(remote, "http://media.example/")


@pytest.mark.asyncio
async def test_the_next_address_is_tried() -> None:
    async with Site({"/": answer(b"x")}).serving() as site:
        network = Network(site, dead=[PUBLIC_6])
        async with fetcher(site, Names(media_example=[[PUBLIC_6, PUBLIC]]), network=network) as remote:
            assert await fetch(remote, "http://media.example/") == b"x"
        assert network.asked == [(PUBLIC_6, 80), (PUBLIC, 80)]


@pytest.mark.asyncio
async def test_an_unknown_name_and_a_dead_host_are_refused() -> None:
    async def unknown(host: str, port: int) -> list[str]:
        raise OSError("name or service not known")

    async with Site({}).serving() as site:
        network = Network(site, dead=[PUBLIC])
        for resolver in (unknown, Names(media_example=[[PUBLIC]])):
            async with fetcher(site, resolver, network=network) as remote:  # type: ignore[arg-type]
                with refused(UNREACHABLE, "media_remote"):
                    await fetch(remote, "http://media.example/")


@pytest.mark.asyncio
async def test_only_so_many_are_fetched_at_once() -> None:
    async with Site({f"/{number}": answer(b"x") for number in range(12)}).serving() as site:
        site.held_until = 2
        async with fetcher(site, max_connections=2) as remote:
            every = (fetch(remote, f"http://media.example/{number}") for number in range(12))
            assert await asyncio.gather(*every) == [b"x"] * 12
        assert site.most_at_once == 2


BAD_POLICIES: dict[str, dict[str, Any]] = {
    "a wildcard": {"hosts": frozenset({"*.example.com"})},
    "capitals": {"hosts": frozenset({"Example.com"})},
    "a URL": {"hosts": frozenset({"http://example.com"})},
    "a bad port": {"hosts": frozenset({"example.com:99999"})},
    "a port that is a word": {"hosts": frozenset({"example.com:http"})},
    "no name": {"hosts": frozenset({""})},
    "no time": {"hosts": frozenset(), "timeout_s": 0},
    "too few redirects": {"hosts": frozenset(), "max_redirects": -1},
    "no connections": {"hosts": frozenset(), "max_connections": 0},
}


@pytest.mark.parametrize("values", BAD_POLICIES.values(), ids=BAD_POLICIES)
def test_a_policy_is_checked_when_built(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        RemotePolicy(**values)
