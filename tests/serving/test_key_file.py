"""What a key file may hold, and what is said about one that does not: file, entry and field, never a value."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.key_file import RateLimits, StoredKey, read_keys

HASH = "0123456789abcdef" * 4
OTHER_HASH = "f" * 64
SECRET = "clef_vN3wq0s8kXJ2mYt7bRfLhCzUe5oGdAiP1xS6WnK4E9M"


def entry(**fields: object) -> str:
    """An entry of that key, with fields given as TOML; None leaves one out."""
    values = {"name": '"orders"', "tenant": '"orders-team"', "sha256": f'"{HASH}"', **fields}
    return "[[keys]]\n" + "".join(f"{name} = {value}\n" for name, value in values.items() if value is not None)


def read(*texts: str) -> tuple[StoredKey, ...]:
    return read_keys({f"{letter}.toml": text.encode() for letter, text in zip("abc", texts, strict=False)})


def test_an_entry_with_every_field() -> None:
    (key,) = read(entry(requests_per_minute="600", tokens_per_minute="2_000_000", expires="2027-12-31T01:00:00+01:00"))
    assert key == StoredKey(
        name="orders",
        tenant="orders-team",
        sha256=bytes.fromhex(HASH),
        limits=RateLimits(requests_per_minute=600, tokens_per_minute=2_000_000),
        expires=datetime(2027, 12, 31, tzinfo=UTC).timestamp(),
    )


def test_what_is_optional_is_none() -> None:
    (key,) = read(entry())
    assert key.limits == RateLimits(requests_per_minute=None, tokens_per_minute=None)
    assert key.expires is None


def test_several_keys_of_one_tenant_in_several_files() -> None:
    new = entry(name='"orders-new"', sha256=f'"{OTHER_HASH}"')
    third = entry(name='"billing"', tenant='"billing"', sha256=f'"{"e" * 64}"')
    assert [(key.name, key.tenant) for key in read(entry() + new, third)] == [
        ("orders", "orders-team"),
        ("orders-new", "orders-team"),
        ("billing", "billing"),
    ]


NAME_RULE = "must be 1 to 64 letters, digits, '.', '_' or '-', the first a letter or a digit"
RATE_RULE = "must be a whole number from 1 to 1000000000000"
HASH_RULE = "must be the SHA-256 of the key, as 64 hexadecimal digits"
MOMENT_RULE = "must be a date and time with its offset, such as 2027-12-31T00:00:00Z"
FIELDS = "name, tenant, sha256, requests_per_minute, tokens_per_minute, expires"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("name", None, "name is missing"),
        ("tenant", None, "tenant is missing"),
        ("sha256", None, "sha256 is missing"),
        ("name", '""', f"name {NAME_RULE}"),
        ("name", "7", f"name {NAME_RULE}"),
        ("name", '"two\\nlines"', f"name {NAME_RULE}"),
        ("name", f'"{"n" * 65}"', f"name {NAME_RULE}"),
        ("tenant", '"-orders"', f"tenant {NAME_RULE}"),
        ("sha256", f'"{SECRET}"', f"sha256 {HASH_RULE}"),
        ("sha256", f'"{HASH[:-2]}g0"', f"sha256 {HASH_RULE}"),
        ("sha256", f'"{HASH[:-2]}  "', f"sha256 {HASH_RULE}"),
        ("sha256", f'"{HASH}00"', f"sha256 {HASH_RULE}"),
        ("requests_per_minute", "0", f"requests_per_minute {RATE_RULE}"),
        ("requests_per_minute", "true", f"requests_per_minute {RATE_RULE}"),
        ("requests_per_minute", "1.0", f"requests_per_minute {RATE_RULE}"),
        ("tokens_per_minute", "-1", f"tokens_per_minute {RATE_RULE}"),
        ("tokens_per_minute", "1000000000001", f"tokens_per_minute {RATE_RULE}"),
        ("tokens_per_minute", '"many"', f"tokens_per_minute {RATE_RULE}"),
        ("expires", "2027-12-31T00:00:00", f"expires {MOMENT_RULE}"),
        ("expires", "2027-12-31", f"expires {MOMENT_RULE}"),
        ("expires", '"2027-12-31T00:00:00Z"', f"expires {MOMENT_RULE}"),
        ("key", f'"{SECRET}"', "key must not stand in a file; write its SHA-256 into sha256 instead"),
        ("request_per_minute", "5", f"'request_per_minute' is not a field; the fields are {FIELDS}"),
        ('"two\\nlines"', "5", f"'two\\nlines' is not a field; the fields are {FIELDS}"),
        (SECRET, '"orders"', f"a name of 48 characters is not a field; the fields are {FIELDS}"),
    ],
)
def test_a_wrong_entry_is_named_by_file_number_and_field(field: str, value: str | None, message: str) -> None:
    second = {"name": '"second"', "sha256": f'"{OTHER_HASH}"', field: value}
    with pytest.raises(ValueError, match="a.toml") as caught:
        read(entry() + entry(**second))
    assert str(caught.value) == f"a.toml: keys entry 2: {message}"


@pytest.mark.parametrize("same", ["name", "sha256"])
def test_two_entries_with_one_name_or_hash(same: str) -> None:
    fields = {"name": '"second"', "sha256": f'"{OTHER_HASH}"'}
    second = entry(**{field: value for field, value in fields.items() if field != same})
    with pytest.raises(ValueError, match="same") as caught:
        read(entry() + second)
    assert str(caught.value) == f"a.toml: keys entry 2: {same} is the same as in a.toml: keys entry 1"
    with pytest.raises(ValueError, match="same") as caught:
        read(entry(), second)
    assert str(caught.value) == f"b.toml: keys entry 1: {same} is the same as in a.toml: keys entry 1"


def test_hashes_are_the_same_in_either_case() -> None:
    with pytest.raises(ValueError, match="sha256 is the same as in"):
        read(entry(), entry(name='"second"', sha256=f'"{HASH.upper()}"'))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "there is no [[keys]] entry in a.toml"),
        (b"keys = []\n", "there is no [[keys]] entry in a.toml"),
        (b"[[key]]\n", "a.toml: 'key' is not known; a key file holds [[keys]] entries and nothing else"),
        (b"[keys]\n", "a.toml: keys must be a list of tables, each under a line [[keys]]"),
        (b'keys = ["x"]\n', "a.toml: keys must be a list of tables, each under a line [[keys]]"),
        (
            f'{SECRET} = "orders"'.encode(),
            "a.toml: a name of 48 characters is not known; a key file holds [[keys]] entries and nothing else",
        ),
        (SECRET.encode(), "a.toml: not TOML (at end of document)"),
        (f"\n[[keys]]\n{SECRET} = 1\n{SECRET} = 2\n".encode(), "a.toml: not TOML (at line 4, column 53)"),
        (b"# \xff", "a.toml: not TOML"),
        (b"n = " + b"9" * 5000, "a.toml: not TOML"),
        (b"n = " + b"[" * 5000, "a.toml: not TOML"),
    ],
    ids=[
        "empty",
        "none",
        "other table",
        "no list",
        "no tables",
        "by key",
        "a key",
        "twice",
        "not UTF-8",
        "digits",
        "brackets",
    ],
)
def test_a_file_that_is_no_key_file(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match="a.toml") as caught:
        read_keys({"a.toml": content})
    assert str(caught.value) == message


@given(st.binary() | st.text().map(str.encode))
def test_any_other_content_is_a_value_error_in_one_line(content: bytes) -> None:
    with pytest.raises(ValueError, match="a.toml") as caught:
        read_keys({"a.toml": content})
    assert "\n" not in str(caught.value)


def test_the_hash_is_in_no_representation() -> None:
    (key,) = read(entry())
    assert str(key.sha256) not in repr(key)
    assert HASH not in repr(key)
