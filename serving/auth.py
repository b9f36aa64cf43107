"""Who is calling: turns an Authorization header into a caller. Knows neither routes nor what a caller's limits do."""

import asyncio
import hashlib
import hmac
import logging
import re
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from serving.errors import AuthenticationError
from serving.key_file import RateLimits, StoredKey, read_keys

logger = logging.getLogger("clef_serving.auth")

POLL_INTERVAL_S = 1.0
MAX_KEY_CHARACTERS = 512
# What a Bearer token may consist of, RFC 6750, 2.1.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")

_USAGE = "send `authorization: Bearer KEY`"


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Whose request it is; without key and tenant where the server asks for no key."""

    key_name: str | None
    tenant: str | None
    limits: RateLimits


ANONYMOUS = Caller(key_name=None, tenant=None, limits=RateLimits())


class KeyRing:
    """The keys this server knows, from a key file or from a directory of them, such as a mounted Kubernetes secret.

    Of a directory every entry is read, links followed, except those whose name begins with a dot, as kubelet's own
    `..data` does. The format is `serving.key_file`'s.

    Raises:
        ValueError: nothing can be read there, or what is there is wrong; see `read_keys`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: tuple[StoredKey, ...] = ()
        # What is there: contents by file, or why it cannot be read. As last seen, and as last put to use or refused.
        self._seen = self._handled = self._look()
        self._adopt(self._seen)

    def identify(self, authorization: str | None) -> Caller:
        """The caller that an Authorization header names.

        The scheme is `Bearer` in any case, then one space or more (RFC 9110, 11.4), then the key. The digest of the key is
        compared with all digests, to the last, each in constant time: how long it takes says nothing about any of them.

        Raises:
            AuthenticationError: it names none, and how so. The message holds nothing of the header.
        """
        if not authorization:
            raise AuthenticationError(f"no API key was sent; {_USAGE}")
        scheme, _, key = authorization.partition(" ")
        key = key.lstrip(" ")
        if scheme.lower() != "bearer":
            raise AuthenticationError(f"the authorization scheme must be Bearer; {_USAGE}")
        if not key:
            raise AuthenticationError(f"the API key is empty; {_USAGE}")
        if len(key) > MAX_KEY_CHARACTERS:
            raise AuthenticationError(f"the API key has {len(key)} characters; the limit is {MAX_KEY_CHARACTERS}")
        if not _TOKEN.fullmatch(key):
            raise AuthenticationError("the API key holds a space or another character that no key has")
        digest = hashlib.sha256(key.encode()).digest()
        found = [stored for stored in self._keys if hmac.compare_digest(stored.sha256, digest)]
        if not found:
            raise AuthenticationError("the API key is not known here")
        (stored,) = found  # no two entries share a hash
        if stored.expires is not None and stored.expires <= time.time():
            raise AuthenticationError(f"the API key '{stored.name}' has expired")
        return Caller(key_name=stored.name, tenant=stored.tenant, limits=stored.limits)

    async def watch(self) -> None:
        """Put changed keys to use, without end: about two seconds after they are written."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            await asyncio.to_thread(self.reload_if_changed)

    def reload_if_changed(self) -> None:
        """One look at the files. A change counts once two looks in a row have found it, as one may find a file half written.

        What cannot be put to use is logged once, and the keys stay as they were.
        """
        before, self._seen = self._seen, self._look()
        if self._seen != before or self._seen == self._handled:
            return
        self._handled = self._seen
        try:
            self._adopt(self._seen)
        except ValueError as err:
            logger.error("the API keys stay as they were: %s", err)

    def _look(self) -> dict[str, bytes] | str:
        """Contents by file, or why they cannot be read. Contents, since times and inodes may stay when a link moves."""
        try:
            if not self._path.is_dir():
                return {str(self._path): self._path.read_bytes()}
            files = sorted(entry for entry in self._path.iterdir() if not entry.name.startswith("."))
            return {str(file): file.read_bytes() for file in files}
        except OSError as err:
            return f"cannot read {err.filename or self._path}: {err.strerror}"

    def _adopt(self, seen: dict[str, bytes] | str) -> None:
        if isinstance(seen, str):
            raise ValueError(seen)
        if not seen:
            raise ValueError(f"there is no key file in {self._path}")
        self._keys = read_keys(seen)
        logger.info(
            "%d API keys of %d tenants from %s", len(self._keys), len({k.tenant for k in self._keys}), self._path
        )
        for file in seen:
            if _anyone_may_write(Path(file)):
                logger.warning("anyone on this machine may write %s, and so let anyone in", file)


def _anyone_may_write(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & stat.S_IWOTH)
    except OSError:  # it went away since it was read, which the next look will find
        return False
