"""`clef-serve keys create`: makes an API key and its entry for a key file. Knows nothing of a running server."""

import argparse
import hashlib
import os
import secrets
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from serving.key_file import check_field, read_keys

CREATE_HELP = """\
Make an API key. It is shown this once, as the only line on standard output; the key file holds its SHA-256 alone.
A running server takes a changed key file up within seconds.
"""

KEY_PREFIX = "clef_"  # tells people, and scanners for leaked secrets, what it is
KEY_BYTES = 32


@dataclass(frozen=True, kw_only=True)
class NewKey:
    """A key, `clef_` and 43 URL-safe characters, and the entry that lets it in, as TOML."""

    key: str = field(repr=False)
    entry: str


def create_key(
    *, name: str, tenant: str, requests_per_minute: int | None = None, tokens_per_minute: int | None = None
) -> NewKey:
    """A new random key of 256 bits.

    Raises:
        ValueError: a value cannot stand in a key file; the message names the field.
    """
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    values: dict[str, str | int | None] = {
        "name": name,
        "tenant": tenant,
        "sha256": hashlib.sha256(key.encode()).hexdigest(),
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
    }
    lines = ["[[keys]]"]
    for field_name, value in values.items():
        if value is not None:
            check_field(field_name, value)
            # A checked text holds nothing that TOML would have us escape.
            lines.append(f'{field_name} = "{value}"' if isinstance(value, str) else f"{field_name} = {value}")
    return NewKey(key=key, entry="\n".join(lines) + "\n")


def append_entry(file: Path, entry: str) -> None:
    """Append an entry to a key file, which is made if need be, for its owner alone. The file is replaced in one step.

    A file that was there keeps owner and mode, so that whoever could read it still can.

    Raises:
        ValueError: the file would not be a valid key file then, or cannot be read or written; it stays as it was.
    """
    target = file.resolve()  # so that a link stays one
    try:
        found = target.stat() if target.exists() else None
        before = b"" if found is None else target.read_bytes()
        gap = b"" if not before else b"\n" if before.endswith(b"\n") else b"\n\n"
        after = before + gap + entry.encode()
        read_keys({str(file): after})
        # Made with mode 0600; hidden, so that a server that reads the directory leaves it out.
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".", delete=False) as written:
            try:
                written.write(after)
                written.flush()
                if found is not None:
                    os.fchown(written.fileno(), found.st_uid, found.st_gid)
                    os.fchmod(written.fileno(), found.st_mode & 0o777)
                os.fsync(written.fileno())
                Path(written.name).replace(target)
            except BaseException:
                Path(written.name).unlink()
                raise
    except OSError as err:
        raise ValueError(f"cannot write {file}: {err.strerror}") from err


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare what `keys create` takes, for `keys_create`."""
    parser.add_argument("--name", required=True, metavar="N", help="name of the key, in the server's log and messages")
    parser.add_argument("--tenant", required=True, metavar="T", help="whose key it is; a tenant may have several")
    parser.add_argument(
        "--requests-per-minute", type=int, metavar="N", help="most requests a minute [default: no such limit]"
    )
    parser.add_argument(
        "--tokens-per-minute", type=int, metavar="N", help="most prompt tokens a minute [default: no such limit]"
    )
    parser.add_argument(
        "--file", type=Path, metavar="PATH", help="key file to append the entry to [default: show it on standard error]"
    )


def keys_create(options: argparse.Namespace) -> None:
    """Make a key and show it, this once, as the only line on standard output.

    Raises:
        ValueError: see `create_key` and `append_entry`. No key is shown then.
    """
    new = create_key(
        name=options.name,
        tenant=options.tenant,
        requests_per_minute=options.requests_per_minute,
        tokens_per_minute=options.tokens_per_minute,
    )
    if options.file is None:
        print(f"Append this to the server's key file:\n\n{new.entry}", file=sys.stderr, flush=True)
    else:
        append_entry(options.file, new.entry)
        print(f"{options.file} has a new entry, {options.name}. Its key:", file=sys.stderr, flush=True)
    print(new.key)
