"""Downloads from a hub on the loopback: what is fetched, what is not fetched twice, and what is said when it fails."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, file_download

from launch import hub as hub_module
from launch.checkpoint_source import add_download_arguments, download_command, find_checkpoint
from launch.hub import Snapshot, fetch, find_in_cache
from launch.hub_errors import CheckpointSourceError, HubUnavailableError
from tests.launch.fake_hub import COMMIT, GOOD_TOKEN, REPOSITORY, FakeHub
from tests.launch.running import ROOT, running

OTHER_COMMIT = "f" * 40
WEIGHTS = bytes(range(256)) * 400
FILES = {
    "config.json": b"{}",
    "joint_head_config.json": b"{ }",
    "joint_head.safetensors": b"head",
    "model-00001-of-00002.safetensors": WEIGHTS,
    "model-00002-of-00002.safetensors": WEIGHTS[::-1],
    "merges.txt": b"a b",
    "chat_template.jinja": b"{{ x }}",
    "joint_schema_model.py": b"pass",
}
NOT_SERVED = {
    "README.md": b"card",
    "pytorch_model.bin": b"pickle",
    "original/config.json": b"[]",
    "model.gguf": b"other",
}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub-cache"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Callable[..., None]:
    """Point huggingface_hub, which has read its environment, at a hub."""

    def use(url: str, *, offline: bool = False, token: str | None = None) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)  # between attempts
        monkeypatch.setenv("HF_TOKEN", token or "")

    return use


@pytest.fixture
def hub(use: Callable[..., None]) -> Iterator[FakeHub]:
    with FakeHub(files=FILES | NOT_SERVED).running() as started:
        use(started.url)
        yield started


def get(revision: str | None = None, **changes: Any) -> Snapshot:
    return fetch(REPOSITORY, **{"revision": revision, "say": lambda line: None} | changes)


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_branch_is_resolved_to_a_commit_and_what_serving_reads_is_fetched(hub: FakeHub, cache: Path) -> None:
    said: list[str] = []
    snapshot = get(say=said.append)
    assert snapshot == Snapshot(path=cache.resolve() / f"models--nordwind--clef-tiny/snapshots/{COMMIT}", commit=COMMIT)
    assert contents(snapshot.path) == FILES
    assert said == [
        f"{REPOSITORY} at revision main is commit {COMMIT}",
        f"fetching 8 files, 204.8 KB, into {cache} (0 B are here already)",
    ]


def test_a_whole_release_is_not_asked_for_again(hub: FakeHub) -> None:
    first = get()
    hub.requests.clear()
    assert get(COMMIT) == first
    assert hub.requests == []
    assert get() == first
    assert [path for _, path, _ in hub.requests] == [f"/api/models/{REPOSITORY}"]


def test_another_cache_directory_is_used(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    assert get(cache_dir=tmp_path / "other").path.is_relative_to(tmp_path / "other")
    assert not cache.exists()


def test_a_broken_connection_goes_on_at_the_byte_where_it_broke(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)  # what is written at once
    hub.cuts["model-00001-of-00002.safetensors"] = [1000, 500]
    assert contents(get().path) == FILES
    assert hub.ranges("model-00001-of-00002.safetensors") == [None, "bytes=1000-", "bytes=1500-"]


def test_after_a_failed_download_only_what_is_missing_is_fetched(hub: FakeHub, cache: Path) -> None:
    broken = "model-00002-of-00002.safetensors"
    hub.cuts[broken] = [0] * 6
    with pytest.raises(HubUnavailableError, match="or the connection broke: .* it goes on"):
        get()
    assert list(cache.rglob("*.incomplete")) == []
    with pytest.raises(
        CheckpointSourceError, match=f"not whole in {cache}; fetch it with: clef-serve download --model"
    ):
        find_in_cache(REPOSITORY, revision="main")
    before, said = set(hub.fetched()) - {broken}, []
    hub.requests.clear()
    assert contents(get(say=said.append).path) == FILES
    assert broken in hub.fetched()
    assert before.isdisjoint(hub.fetched())
    here = sum(len(FILES[name]) for name in before)
    assert said[1].endswith(
        f"({here / 1000:.1f} KB are here already)" if here >= 1000 else f"({here} B are here already)"
    )


def test_progress_is_shown_as_lines_where_there_is_no_terminal(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "LINE_INTERVAL_S", 0)
    said: list[str] = []
    get(say=said.append)
    assert any(line.startswith("fetched 204.8 KB of 204.8 KB, ") and line.endswith(" a second") for line in said[2:])


NOT_FOUND = "there is no repository nordwind/clef-tiny, or it is private .*HF_TOKEN"


@pytest.mark.parametrize(
    ("refuse", "kind", "message"),
    [
        ((401, "RepoNotFound"), CheckpointSourceError, NOT_FOUND),
        ((404, "RepoNotFound"), CheckpointSourceError, NOT_FOUND),
        ((401, "GatedRepo"), CheckpointSourceError, "is gated: accept its terms on its page, then put an access token"),
        ((403, "GatedRepo"), CheckpointSourceError, "is gated, and the account of your access token has no access"),
        ((403, None), CheckpointSourceError, "your access token may not read nordwind/clef-tiny at revision main"),
        ((429, None), HubUnavailableError, "with 429, too many requests: wait some minutes"),
        ((503, None), HubUnavailableError, "is not whole in .* and the hub cannot be reached"),
    ],
    ids=lambda value: "-".join(str(part) for part in value if part) if isinstance(value, tuple) else None,
)
def test_what_the_hub_refuses_is_explained_in_one_line(
    hub: FakeHub, refuse: tuple[int, str | None], kind: type[Exception], message: str
) -> None:
    hub.refuse = refuse
    with pytest.raises(CheckpointSourceError, match=message) as caught:
        get()
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_hub_that_fails_at_the_files_is_explained(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    download = huggingface_hub.snapshot_download

    def fail_from_here(*arguments: Any, **options: Any) -> str:
        hub.refuse = (500, None)
        return download(*arguments, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail_from_here)
    with pytest.raises(HubUnavailableError, match="with 500, which is its own trouble: run it again later"):
        get()


def test_a_gated_repository_opens_with_the_right_token_alone(hub: FakeHub, use: Callable[..., None]) -> None:
    hub.gated = True
    with pytest.raises(CheckpointSourceError, match="is gated: accept its terms on its page"):
        get()
    use(hub.url, token="hf_of_someone_else")
    with pytest.raises(CheckpointSourceError, match="the account of your access token has no access") as caught:
        get()
    assert "hf_of_someone_else" not in str(caught.value)
    use(hub.url, token=GOOD_TOKEN)
    assert contents(get().path) == FILES


@pytest.mark.parametrize("revision", ["v9", OTHER_COMMIT], ids=["tag", "commit"])
def test_an_unknown_revision_is_named(hub: FakeHub, revision: str) -> None:
    with pytest.raises(CheckpointSourceError, match=f"^{REPOSITORY} has no revision {revision}; its page lists"):
        get(revision)


def test_a_repository_that_is_no_clef_release_is_refused_before_anything_is_fetched(hub: FakeHub) -> None:
    for name in ("joint_head_config.json", "joint_head.safetensors"):
        del hub.files[name]
    with pytest.raises(
        CheckpointSourceError,
        match=r"is not a Clef release: it has no joint_head_config\.json, joint_head\.safetensors;",
    ):
        get()
    assert hub.fetched() == []


def test_too_little_room_is_said_before_anything_is_fetched(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 204_000

    monkeypatch.setattr(hub_module.shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(
        HubUnavailableError, match=r"^no room in .*: 204\.8 KB are needed, 204\.0 KB are free; make some"
    ):
        get()
    assert hub.fetched() == []


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), HubUnavailableError, "^no room in .*: No space left on"),
        (RuntimeError("IO error: No space left on device (os error 28)"), HubUnavailableError, "^no room in .*"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/srv/x"),
            CheckpointSourceError,
            "^/srv/x cannot be written",
        ),
        (OSError(errno.EROFS, "Read-only file system", "/srv/x"), CheckpointSourceError, "^/srv/x cannot be written"),
        (
            RuntimeError("CAS: request failed\ndetails"),
            HubUnavailableError,
            "downloaded: CAS: request failed; run it again",
        ),
    ],
    ids=["full", "full-in-xet", "not-permitted", "read-only", "xet"],
)
def test_what_goes_wrong_on_this_machine_is_explained(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], message: str
) -> None:
    def snapshot_download(*arguments: Any, **options: Any) -> str:
        if options.get("local_files_only"):
            raise FileNotFoundError
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointSourceError, match=message) as caught:
        get()
    assert type(caught.value) is kind


def test_offline_what_the_cache_holds_is_found_and_nothing_is_asked(hub: FakeHub, use: Callable[..., None]) -> None:
    snapshot = get()
    hub.requests.clear()
    use(hub.url, offline=True)
    for revision in (None, "main", COMMIT):
        assert get(revision) == snapshot == find_in_cache(REPOSITORY, revision=revision)
    with pytest.raises(
        CheckpointSourceError, match="HF_HUB_OFFLINE is set: unset it, download where there is a network"
    ):
        get("v9")
    next(snapshot.path.glob("model-00002*")).unlink()
    with pytest.raises(CheckpointSourceError, match="at revision main is not whole in .* and HF_HUB_OFFLINE is set"):
        get()
    assert hub.requests == []


def test_without_a_network_a_pinned_or_known_release_is_served_from_the_cache(
    hub: FakeHub, use: Callable[..., None]
) -> None:
    snapshot = get()
    use("http://127.0.0.1:1")  # nobody listens there
    assert get(COMMIT) == snapshot
    assert get() == snapshot
    with pytest.raises(HubUnavailableError, match="the hub cannot be reached.*HTTPS_PROXY"):
        get(OTHER_COMMIT)


def test_a_repository_is_served_at_the_commit_it_was_downloaded_at(hub: FakeHub) -> None:
    found = find_checkpoint(REPOSITORY, revision="main", device="cpu", say=lambda line: None)
    assert (found.path.name, found.name, found.revision) == (COMMIT, REPOSITORY, COMMIT)


def command(*arguments: str) -> tuple[int, list[str]]:
    import argparse

    parser = argparse.ArgumentParser()
    add_download_arguments(parser)
    said: list[str] = []
    return download_command(parser.parse_args(arguments), said.append), said


def test_the_command_prints_where_the_release_lies(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = command("--model", REPOSITORY)
    path = find_in_cache(REPOSITORY, revision=None).path
    assert (status, capsys.readouterr().out) == (0, f"{path}\n")
    assert said[-1] == f"to serve exactly this from now on, pin it: --revision {COMMIT}"
    status, said = command("--model", REPOSITORY, "--revision", COMMIT, "--json")
    assert status == 0
    assert json.loads(capsys.readouterr().out) == {"repository": REPOSITORY, "revision": COMMIT, "path": str(path)}
    assert said == [f"{REPOSITORY} at revision {COMMIT} is commit {COMMIT}"]


@pytest.mark.parametrize(
    ("refuse", "model", "status"),
    [((503, None), REPOSITORY, 1), ((401, "GatedRepo"), REPOSITORY, 2), (None, "clef", 2)],
    ids=["later-perhaps", "never", "no-repository-name"],
)
def test_the_status_tells_whether_to_try_again(
    hub: FakeHub, capsys: pytest.CaptureFixture[str], refuse: tuple[int, str | None] | None, model: str, status: int
) -> None:
    hub.refuse = refuse
    ended, said = command("--model", model)
    assert (ended, capsys.readouterr().out) == (status, "")
    assert said[-1].startswith("error: ")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_stopped_download_ends_at_once_without_litter_and_the_next_goes_on(
    hub: FakeHub, cache: Path, signum: signal.Signals
) -> None:
    held = "model-00002-of-00002.safetensors"
    hub.held[held] = 100
    environ = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache)}
    with running("tests.launch.download_program", "--model", REPOSITORY, environ=environ) as started:
        assert hub.holding.wait(60)
        while len(set(hub.fetched())) < len(FILES) or len(list(cache.rglob("snapshots/*/*"))) < len(FILES) - 1:
            assert started.process.poll() is None
        started.send(signum)
        assert started.end(20) == 128 + signum
    assert started.lines[-1].endswith("what was finished stays, and the same command goes on from there")
    assert list(cache.rglob("*.incomplete")) == []
    hub.release.set()
    hub.requests.clear()
    assert contents(get().path) == FILES
    assert hub.fetched() == [held]


def test_the_program_reads_the_environment_of_huggingface_hub(hub: FakeHub, cache: Path) -> None:
    environ = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    arguments = [sys.executable, "-m", "tests.launch.download_program", "--model", REPOSITORY]
    ended = subprocess.run(arguments, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, hub.requests) == (2, "", [])
    assert "HF_HUB_OFFLINE is set" in ended.stderr
