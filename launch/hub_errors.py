"""What can go wrong on the Hugging Face hub, each as one line that says what to do. Knows nothing of what is fetched."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

MAKE_TOKEN = "put an access token into HF_TOKEN or run `hf auth login`"  # noqa: S105 - an advice


class CheckpointSourceError(ValueError):
    """The release asked for could not be had; the message says why and what to do."""


class HubUnavailableError(CheckpointSourceError):
    """The same, where the same command may well succeed later: network, hub, or disk space."""


@contextlib.contextmanager
def explained(repository: str, revision: str | None, cache: Path) -> Iterator[None]:
    """Whatever goes wrong in the body is raised as one line that says what to do."""
    try:
        yield
    except CheckpointSourceError:
        raise
    except Exception as err:
        known = _explanation(err, repository, revision, cache)
        if known is None:
            raise
        raise known from err


def _explanation(err: Exception, repository: str, revision: str | None, cache: Path) -> CheckpointSourceError | None:
    import httpx
    from huggingface_hub import constants, errors

    at = f"{repository} at revision {revision or 'main'}"
    if isinstance(err, errors.LocalEntryNotFoundError) and isinstance(err.__cause__, errors.HfHubHTTPError):
        err = err.__cause__  # the hub did answer
    # Order matters: a gated repository is a kind of missing one, and every answer of the hub is a kind of OSError.
    match err:
        case errors.GatedRepoError():
            return CheckpointSourceError(_gated(repository, err.response.status_code))
        case errors.RepositoryNotFoundError():
            return CheckpointSourceError(
                f"there is no repository {repository}, or it is private and your token does not open it: "
                f"check the name, or {MAKE_TOKEN}"
            )
        case errors.RevisionNotFoundError():
            return CheckpointSourceError(
                f"{repository} has no revision {revision or 'main'}; its page lists what it has"
            )
        case errors.HfHubHTTPError():
            return _answered(at, err.response.status_code, err)
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled() | errors.RevisionResolutionError():
            if constants.HF_HUB_OFFLINE:
                return CheckpointSourceError(
                    f"{at} is not whole in {cache} and HF_HUB_OFFLINE is set: unset it, download where there is a "
                    "network (clef-serve download), or give a directory as --model"
                )
            return HubUnavailableError(_unreachable(at, cache))
        case httpx.HTTPError():
            return HubUnavailableError(_unreachable(at, cache))
        case errors.HFValidationError():
            return CheckpointSourceError(f"{at}: {err}")
        case OSError() if err.errno in (errno.ENOSPC, errno.EDQUOT):
            return HubUnavailableError(no_space(cache, str(err.strerror)))
        case PermissionError() | NotADirectoryError() | OSError(errno=errno.EROFS):
            return CheckpointSourceError(
                f"{err.filename or cache} cannot be written ({err.strerror or err}); name another directory with "
                "HF_HUB_CACHE or --cache-dir"
            )
        case OSError() | RuntimeError():  # hf_xet's own errors are RuntimeErrors
            if "os error 28" in str(err):
                return HubUnavailableError(no_space(cache, "No space left on device"))
            return HubUnavailableError(f"{at} could not be downloaded: {_first_line(err)}; run it again, it goes on")
    return None


def _gated(repository: str, status: int) -> str:
    if status == 401:
        return f"{repository} is gated: accept its terms on its page, then {MAKE_TOKEN}"
    return (
        f"{repository} is gated, and the account of your access token has no access: accept its terms on its page "
        "with that account, and give the token the right to read gated repositories"
    )


def _answered(at: str, status: int, err: Exception) -> CheckpointSourceError:
    """What the hub's status means, where huggingface_hub has no error of its own for it."""
    if status == 401:
        return CheckpointSourceError(f"the hub does not accept your access token for {at}; to renew it, {MAKE_TOKEN}")
    if status == 403:
        return CheckpointSourceError(f"your access token may not read {at}: give it that right on the hub's token page")
    if status == 429:
        return HubUnavailableError(f"the hub answers {at} with 429, too many requests: wait some minutes, run it again")
    if status >= 500:
        return HubUnavailableError(f"the hub answers {at} with {status}, which is its own trouble: run it again later")
    return CheckpointSourceError(f"{at} could not be downloaded: {_first_line(err)}")


def _unreachable(at: str, cache: Path) -> str:
    return (
        f"{at} is not whole in {cache} and the hub cannot be reached, or the connection broke: check the network "
        "(HTTPS_PROXY, HF_ENDPOINT) and run it again, it goes on; or give a directory as --model"
    )


def no_space(cache: Path, why: str) -> str:
    return (
        f"no room in {cache}: {why}; make some (files named *.incomplete there are left from killed downloads), or name "
        "another directory with HF_HUB_CACHE or --cache-dir"
    )


def _first_line(err: Exception) -> str:
    return next((line.strip() for line in str(err).splitlines() if line.strip()), type(err).__name__)
