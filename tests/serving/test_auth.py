"""Who may call: how a key is read from its header, how the keys are looked up, and how they change under a running server."""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.auth import ANONYMOUS, MAX_KEY_CHARACTERS, POLL_INTERVAL_S, Caller, KeyRing
from serving.errors import AuthenticationError, error_response
from serving.key_file import RateLimits

KEYS = {name: f"clef_{name.ljust(43, 'x')}" for name in ("orders", "orders-new", "billing")}
UNKNOWN = "clef_" + "u" * 43
# 2100-01-01 and one second before it.
EXPIRY_TEXT, EXPIRY = "2100-01-01T00:00:00Z", 4102444800


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def entry(name: str, *more: str) -> str:
    tenant = name.split("-")[0]
    lines = ["[[keys]]", f'name = "{name}"', f'tenant = "{tenant}"', f'sha256 = "{sha256(KEYS[name])}"', *more]
    return "\n".join(lines) + "\n"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys.toml"
    file.write_text(
        entry("orders", "requests_per_minute = 600", "tokens_per_minute = 2000000")
        + entry("orders-new")
        + entry("billing", f"expires = {EXPIRY_TEXT}")
    )
    return file


@pytest.fixture
def ring(key_file: Path) -> KeyRing:
    return KeyRing(key_file)


def known(ring: KeyRing) -> list[str]:
    """The names among KEYS whose key lets one in."""
    names = []
    for name, key in KEYS.items():
        try:
            names.append(ring.identify(f"Bearer {key}").key_name)
        except AuthenticationError:
            continue
        assert names[-1] == name
    return names


def refusal(ring: KeyRing, header: str | None) -> str:
    with pytest.raises(AuthenticationError) as caught:
        ring.identify(header)
    return str(caught.value)


def test_a_key_names_its_caller(ring: KeyRing) -> None:
    limits = RateLimits(requests_per_minute=600, tokens_per_minute=2_000_000)
    assert ring.identify(f"Bearer {KEYS['orders']}") == Caller(key_name="orders", tenant="orders", limits=limits)
    assert ring.identify(f"Bearer {KEYS['orders-new']}") == Caller(
        key_name="orders-new", tenant="orders", limits=RateLimits()
    )
    assert known(ring) == ["orders", "orders-new", "billing"]


def test_nobody_has_no_limits() -> None:
    assert (ANONYMOUS.key_name, ANONYMOUS.tenant, ANONYMOUS.limits) == (None, None, RateLimits())


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEARER"])
@pytest.mark.parametrize("spaces", [1, 3])
def test_the_scheme_is_read_in_any_case_with_any_spaces_after_it(ring: KeyRing, scheme: str, spaces: int) -> None:
    assert ring.identify(scheme + " " * spaces + KEYS["orders"]).key_name == "orders"


USAGE = "send `authorization: Bearer KEY`"
SCHEME = f"the authorization scheme must be Bearer; {USAGE}"
CHARACTERS = "the API key holds a space or another character that no key has"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        pytest.param(None, f"no API key was sent; {USAGE}", id="missing"),
        pytest.param("", f"no API key was sent; {USAGE}", id="empty header"),
        pytest.param("Bearer", f"the API key is empty; {USAGE}", id="scheme alone"),
        pytest.param("Bearer   ", f"the API key is empty; {USAGE}", id="spaces for a key"),
        pytest.param(KEYS["orders"], SCHEME, id="key alone"),
        pytest.param(f"Basic {KEYS['orders']}", SCHEME, id="other scheme"),
        pytest.param(f"Bearer:{KEYS['orders']}", SCHEME, id="colon"),
        pytest.param(f"Bearer\t{KEYS['orders']}", SCHEME, id="tab"),
        pytest.param(f" Bearer {KEYS['orders']}", SCHEME, id="space before"),
        pytest.param(f"Bearer {KEYS['orders']} ", CHARACTERS, id="space after"),
        pytest.param(f"Bearer {KEYS['orders']}\n", CHARACTERS, id="line end after"),
        pytest.param("Bearer with some spaces", CHARACTERS, id="spaces within"),
        pytest.param(f"Bearer {KEYS['orders']}, Bearer {KEYS['billing']}", CHARACTERS, id="two"),
        pytest.param(f'Bearer "{KEYS["orders"]}"', CHARACTERS, id="quoted"),
        pytest.param(f"Bearer {KEYS['orders']}é", CHARACTERS, id="Latin-1"),
        pytest.param(f"Bearer {KEYS['orders'].replace('e', 'е')}", CHARACTERS, id="Cyrillic look-alike"),  # noqa: RUF001
        pytest.param("Bearer \ud800", CHARACTERS, id="lone surrogate"),
        pytest.param("Bearer " + "a" * 513, "the API key has 513 characters; the limit is 512", id="overlong"),
        pytest.param("Bearer " + "a" * 512, "the API key is not known here", id="as long as may be"),
        pytest.param(f"Bearer {UNKNOWN}", "the API key is not known here", id="unknown"),
        pytest.param(f"Bearer {KEYS['orders'][:-1]}", "the API key is not known here", id="one character short"),
        pytest.param(f"Bearer {KEYS['orders']}x", "the API key is not known here", id="one character more"),
        pytest.param(f"Bearer {sha256(KEYS['orders'])}", "the API key is not known here", id="hash for a key"),
    ],
)
def test_what_is_refused_is_told_why(ring: KeyRing, header: str | None, message: str) -> None:
    assert refusal(ring, header) == message
    assert MAX_KEY_CHARACTERS == 512


@given(
    st.text()
    | st.binary().map(lambda raw: raw.decode("latin-1"))
    | st.builds("{}{}{}".format, st.sampled_from(["Bearer", "bearer", "Basic"]), st.text(" \t"), st.text())
    | st.from_regex(r"[Bb]earer +[A-Za-z0-9._~+/-]+=*", fullmatch=True)
)
def test_any_other_header_is_an_authentication_error(tmp_path_factory: pytest.TempPathFactory, header: str) -> None:
    file = tmp_path_factory.getbasetemp() / "one.toml"
    file.write_text(entry("orders"))
    with pytest.raises(AuthenticationError):
        KeyRing(file).identify(header)


def test_every_key_is_compared_in_constant_time(ring: KeyRing, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare_digest = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare_digest(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    stored = [bytes.fromhex(sha256(KEYS[name])) for name in ("orders", "orders-new", "billing")]
    for header in (KEYS["orders"], KEYS["billing"]):
        compared.clear()
        ring.identify(f"Bearer {header}")
        assert compared == [(digest, bytes.fromhex(sha256(header))) for digest in stored]
    compared.clear()
    refusal(ring, f"Bearer {UNKNOWN}")
    assert compared == [(digest, bytes.fromhex(sha256(UNKNOWN))) for digest in stored]


def test_a_key_is_good_until_it_expires(ring: KeyRing, monkeypatch: pytest.MonkeyPatch) -> None:
    header = f"Bearer {KEYS['billing']}"
    monkeypatch.setattr("time.time", lambda: EXPIRY - 0.001)
    assert ring.identify(header).key_name == "billing"
    monkeypatch.setattr("time.time", lambda: float(EXPIRY))
    assert refusal(ring, header) == "the API key 'billing' has expired"
    assert ring.identify(f"Bearer {KEYS['orders']}").key_name == "orders"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "cannot read {path}: No such file or directory"),
        (lambda path: path.mkdir(), "there is no key file in {path}"),
        (lambda path: (path / "inner").mkdir(parents=True), "cannot read {path}/inner: Is a directory"),
        (lambda path: path.write_text("[[keys]]"), "{path}: keys entry 1: name is missing"),
    ],
    ids=["nothing", "empty directory", "directory within", "wrong file"],
)
def test_a_ring_without_good_keys_is_not_made(tmp_path: Path, make: Callable[[Path], None], message: str) -> None:
    path = tmp_path / "keys"
    make(path)
    with pytest.raises(ValueError, match="keys") as caught:
        KeyRing(path)
    assert str(caught.value) == message.format(path=path)


def test_a_directory_is_read_without_what_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "orders.toml").write_text(entry("orders"))
    (tmp_path / "billing").write_text(entry("billing"))
    (tmp_path / ".orders.toml.swp").write_text(entry("orders-new"))
    assert known(KeyRing(tmp_path)) == ["orders", "billing"]


class Mount:
    """A secret volume as kubelet writes one (AtomicWriter in kubernetes/kubernetes, pkg/volume/util/atomic_writer.go).

    Files stand in a directory of their own for each generation; `..data` links to the newest and is replaced by a rename;
    the names one sees are links through `..data`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0

    def write(self, **files: str) -> None:
        old = self.path / f"..generation_{self.generation}"
        self.generation += 1
        new = self.path / f"..generation_{self.generation}"
        new.mkdir()
        for name, text in files.items():
            (new / name).write_text(text)
        (self.path / "..data_tmp").symlink_to(new.name)
        (self.path / "..data_tmp").rename(self.path / "..data")
        for name in files:
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(f"..data/{name}")
        for link in self.path.iterdir():
            if not link.name.startswith("..") and link.name not in files:
                link.unlink()
        if old.exists():
            for file in old.iterdir():
                file.unlink()
            old.rmdir()


def look_twice(ring: KeyRing) -> None:
    ring.reload_if_changed()
    ring.reload_if_changed()


def test_a_mounted_secret_changes_under_the_server(tmp_path: Path) -> None:
    mount = Mount(tmp_path)
    mount.write(first=entry("orders"))
    ring = KeyRing(tmp_path)
    assert known(ring) == ["orders"]

    mount.write(first=entry("orders") + entry("orders-new"))  # a new key beside the old one
    look_twice(ring)
    assert known(ring) == ["orders", "orders-new"]

    mount.write(first=entry("orders-new"), second=entry("billing"))  # the old one is taken back
    look_twice(ring)
    assert known(ring) == ["orders-new", "billing"]

    mount.write(second=entry("billing"))
    look_twice(ring)
    assert known(ring) == ["billing"]


def test_a_link_to_the_file_itself_may_move(tmp_path: Path) -> None:
    mount = Mount(tmp_path)
    mount.write(keys=entry("orders"))
    ring = KeyRing(tmp_path / "keys")
    mount.write(keys=entry("billing"))
    look_twice(ring)
    assert known(ring) == ["billing"]


def test_a_change_counts_when_two_looks_agree(key_file: Path) -> None:
    ring = KeyRing(key_file)
    key_file.write_text(entry("orders"))  # half of what is being written
    ring.reload_if_changed()
    assert known(ring) == ["orders", "orders-new", "billing"]
    key_file.write_text(entry("orders") + entry("billing"))
    ring.reload_if_changed()
    assert known(ring) == ["orders", "orders-new", "billing"]
    ring.reload_if_changed()
    assert known(ring) == ["orders", "billing"]


def test_limits_change_with_the_file(key_file: Path, ring: KeyRing) -> None:
    key_file.write_text(entry("orders", "requests_per_minute = 7"))
    look_twice(ring)
    assert ring.identify(f"Bearer {KEYS['orders']}").limits == RateLimits(requests_per_minute=7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.write_text(f"key = '{UNKNOWN}'\n[[["), "{file}: not TOML (at line 2, column 3)"),
        (lambda file: file.write_text(""), "there is no [[keys]] entry in {file}"),
        (lambda file: file.unlink(), "cannot read {file}: No such file or directory"),
    ],
    ids=["broken", "empty", "gone"],
)
def test_what_cannot_be_used_is_logged_once_and_changes_nothing(
    key_file: Path, ring: KeyRing, caplog: pytest.LogCaptureFixture, change: Callable[[Path], None], message: str
) -> None:
    change(key_file)
    look_twice(ring)
    look_twice(ring)
    assert known(ring) == ["orders", "orders-new", "billing"]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "the API keys stay as they were: " + message.format(file=key_file))
    ]
    with caplog.at_level(logging.INFO, "clef_serving.auth"):
        key_file.write_text(entry("billing"))
        look_twice(ring)
    assert known(ring) == ["billing"]
    assert caplog.records[-1].getMessage() == f"1 API keys of 1 tenants from {key_file}"


@pytest.mark.asyncio
async def test_watching_takes_a_change_up(key_file: Path, ring: KeyRing, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def no_pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    # For that module alone: another test's server may be running in this process, and it sleeps too.
    monkeypatch.setattr("serving.auth.asyncio", SimpleNamespace(sleep=no_pause, to_thread=asyncio.to_thread))
    watching = asyncio.create_task(ring.watch())
    for content, expected in (("broken", ["orders", "orders-new", "billing"]), (entry("billing"), ["billing"])):
        await asyncio.to_thread(key_file.write_text, content)
        looks = len(pauses) + 4
        while len(pauses) < looks:
            await sleep(0)
        assert known(ring) == expected
    assert set(pauses) == {POLL_INTERVAL_S}
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


def test_a_file_anyone_may_write_is_warned_of(key_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    key_file.chmod(0o644)
    KeyRing(key_file)
    assert caplog.records == []
    key_file.chmod(0o666)
    assert known(KeyRing(key_file)) == ["orders", "orders-new", "billing"]
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"anyone on this machine may write {key_file}, and so let anyone in")
    ]


def test_no_key_no_hash_and_no_header_is_ever_written_down(key_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    messages = []
    ring = KeyRing(key_file)
    secret = {*KEYS.values(), *map(sha256, KEYS.values()), UNKNOWN, sha256(UNKNOWN)}
    for key in secret:
        for header in (key, f"Bearer {key}", f"Basic {key}", f"Bearer {key} {key}", f"Bearer {key * 12}"):
            try:
                messages.append(repr(ring.identify(header)))
            except AuthenticationError as err:
                messages += [str(err), error_response(err).body.decode()]
        for text in (
            f'[[keys]]\nname = "{key}" \ntenant = "{key}"\nsha256 = "{key}"\nkey = "{key}"',
            f'[[keys]]\n{key} = "{key}"',
            f'{key} = "{key}"\n{key} = 2',
            f"[{key}]\n[{key}]",
            f"{key}",
            "[[keys]]\n" + entry("orders").replace(sha256(KEYS["orders"]), key) * 2,
        ):
            key_file.write_text(text)
            look_twice(ring)
            with pytest.raises(ValueError, match="keys") as caught:
                KeyRing(key_file)
            messages.append(str(caught.value))
    written = "\n".join([*messages, *(record.getMessage() for record in caplog.records), repr(vars(ring)["_keys"])])
    assert len(caplog.records) >= 6
    for text in secret:
        assert text not in written
        assert text[5:25] not in written
