"""`clef-serve keys create`: the key, its entry, and the file the entry goes to."""

import argparse
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launch import keys
from launch.keys import append_entry, create_key, keys_create
from serving.auth import KeyRing
from serving.key_file import RateLimits, read_keys


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    keys.add_flags(parser)
    return parser.parse_args(arguments)


def test_a_key_is_256_random_bits() -> None:
    made = {create_key(name="orders", tenant="orders-team").key for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch(r"clef_[A-Za-z0-9_-]{43}", key) for key in made)


def test_the_entry_is_that_of_the_key() -> None:
    new = create_key(name="orders", tenant="orders-team", requests_per_minute=600, tokens_per_minute=2_000_000)
    digest = hashlib.sha256(new.key.encode()).hexdigest()
    assert new.entry == (
        f'[[keys]]\nname = "orders"\ntenant = "orders-team"\nsha256 = "{digest}"\n'
        "requests_per_minute = 600\ntokens_per_minute = 2000000\n"
    )
    (key,) = read_keys({"keys": new.entry.encode()})
    assert (key.name, key.tenant, key.sha256.hex()) == ("orders", "orders-team", digest)
    assert key.limits == RateLimits(requests_per_minute=600, tokens_per_minute=2_000_000)


def test_the_key_is_not_in_its_representation() -> None:
    new = create_key(name="orders", tenant="orders-team")
    assert new.key not in repr(new)
    assert new.key not in new.entry


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": 'a"\n'}, "name"),
        ({"tenant": ""}, "tenant"),
        ({"requests_per_minute": 0}, "requests_per_minute"),
        ({"tokens_per_minute": -1}, "tokens_per_minute"),
    ],
)
def test_what_cannot_stand_in_a_file_is_refused(wrong: dict[str, str | int], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be "):
        create_key(**{"name": "orders", "tenant": "orders-team", **wrong})  # type: ignore[arg-type]


def test_a_key_shown_once_lets_its_holder_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.toml"
    for name in ("orders", "billing"):
        keys_create(options("--name", name, "--tenant", "halden", "--requests-per-minute", "60", "--file", str(file)))
        shown = capsys.readouterr()
        assert re.fullmatch(r"clef_[A-Za-z0-9_-]{43}\n", shown.out)
        assert shown.err == f"{file} has a new entry, {name}. Its key:\n"
        caller = KeyRing(file).identify(f"Bearer {shown.out.strip()}")
        assert (caller.key_name, caller.tenant) == (name, "halden")
        assert caller.limits == RateLimits(requests_per_minute=60)
        assert shown.out.strip() not in file.read_text()


def test_without_a_file_the_entry_is_shown_beside_the_key(capsys: pytest.CaptureFixture[str]) -> None:
    keys_create(options("--name", "orders", "--tenant", "orders-team"))
    shown = capsys.readouterr()
    key = shown.out.removesuffix("\n")
    digest = hashlib.sha256(key.encode()).hexdigest()
    assert shown.err == (
        f'Append this to the server\'s key file:\n\n[[keys]]\nname = "orders"\ntenant = "orders-team"\nsha256 = "{digest}"\n\n'
    )


@pytest.mark.parametrize(
    ("before", "gap"),
    [("# ours\n", "\n"), ("# ours", "\n\n"), ("", "")],
    ids=["line", "line without end", "empty"],
)
def test_what_the_file_held_stays(tmp_path: Path, before: str, gap: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(before)
    entry = create_key(name="orders", tenant="orders-team").entry
    append_entry(file, entry)
    assert file.read_text() == before + gap + entry


def test_a_new_file_is_for_its_owner_alone_and_an_old_one_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    append_entry(file, create_key(name="orders", tenant="orders-team").entry)
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    append_entry(file, create_key(name="billing", tenant="billing").entry)
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_an_old_file_keeps_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    append_entry(file, create_key(name="orders", tenant="orders-team").entry)
    os.chown(file, 4711, 4712)
    append_entry(file, create_key(name="billing", tenant="billing").entry)
    assert (file.stat().st_uid, file.stat().st_gid, file.stat().st_mode & 0o777) == (4711, 4712, 0o600)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "keys.toml"
    link.symlink_to(real)
    append_entry(link, create_key(name="orders", tenant="orders-team").entry)
    assert link.is_symlink()
    assert [key.name for key in read_keys({"real": real.read_bytes()})] == ["orders"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda file: append_entry(file, create_key(name="orders", tenant="orders-team").entry),
            "{file}: keys entry 2: name is the same as in {file}: keys entry 1",
        ),
        (lambda file: file.write_text("[["), "{file}: not TOML (at line 1, column 3)"),
        (lambda file: file.mkdir(), "cannot write {file}: Is a directory"),
    ],
    ids=["same name", "broken file", "directory"],
)
def test_a_file_that_cannot_take_the_entry_stays_and_no_key_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None], message: str
) -> None:
    file = tmp_path / "keys.toml"
    make(file)
    before = file.read_bytes() if file.is_file() else None
    with pytest.raises(ValueError, match="keys.toml") as caught:
        keys_create(options("--name", "orders", "--tenant", "orders-team", "--file", str(file)))
    assert str(caught.value) == message.format(file=file)
    assert (file.read_bytes() if file.is_file() else None) == before
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == [file]


def test_a_failed_replacement_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys.toml"
    file.write_text("# ours\n")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ValueError, match="^cannot write .*: No space left on device$"):
        append_entry(file, create_key(name="orders", tenant="orders-team").entry)
    assert file.read_text() == "# ours\n"
    assert list(tmp_path.iterdir()) == [file]


def test_a_key_needs_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from launch.keys import create_key\n"
        "create_key(name='orders', tenant='orders-team')\n"
        "heavy = {'torch', 'transformers', 'sglang', 'fastapi', 'pydantic', 'limits'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
