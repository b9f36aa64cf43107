"""`clef-serve check` as a whole: what it looks at, what it prints, and its exit status."""

import argparse
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from benchmarks.random_release import build_random_release
from launch.check import preflight
from launch.check.gpu import NAMES, GpuFacts, GpuFactsError
from launch.check.install import Built
from launch.check.preflight import add_check_arguments, check_command, check_keys, check_port, checks, lines, ranks
from launch.check.result import failed, passed, warning
from launch.keys import append_entry, create_key
from launch.settings import UpSettings

BUILT = Built(cuda="13.0", built_for=("sm_90",))
H200 = GpuFacts(name="NVIDIA H200", driver="580.95.05", capability=(9, 0), free_mib=143_000, total_mib=143_771)
BEFORE, AFTER = (
    ["python", "sglang", "plugin", "locks"],
    ["release", "revision", "files", "configuration", "port", "keys"],
)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_release(tmp_path_factory.mktemp("preflight") / "demo")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SGLang, which takes seconds to import."""
    monkeypatch.setattr(preflight, "check_plugin", lambda device: (passed("plugin", "taken for granted"), BUILT))


@pytest.fixture
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """On a machine with these GPUs, or none and the reason."""

    def use(*found: GpuFacts, problem: str | None = None) -> None:
        def visible_gpus() -> list[GpuFacts]:
            if problem:
                raise GpuFactsError(problem)
            return list(found)

        monkeypatch.setattr(preflight, "choose_device", lambda choice: ("cuda", "as asked"))
        monkeypatch.setattr(preflight, "visible_gpus", visible_gpus)
        monkeypatch.setattr(preflight, "driver_cuda_version", lambda: (13, 0))

    return use


def settings(release: Path, **changes: Any) -> UpSettings:
    return UpSettings(**{"model": str(release), "device": "cpu", "port": 0} | changes)


def test_on_a_cpu_everything_is_looked_at_with_the_real_plugin(release: Path) -> None:
    results = checks(settings(release))
    assert [result.name for result in results] == [*BEFORE, *NAMES, *AFTER]
    assert {result.name: result.status for result in results if result.status != "ok"} == {
        **dict.fromkeys(NAMES, "not needed"),
        "keys": "not needed",
        # What is installed here besides may differ from the lock in a developer's environment.
        **({"locks": "warning"} if results[3].status == "warning" else {}),
    }


@pytest.mark.usefixtures("quick")
def test_on_gpus_they_are_looked_at_too(release: Path, on_gpus: Any) -> None:
    on_gpus(H200, H200)
    results = checks(settings(release, engine_args=("--tp", "2")))
    assert [result.name for result in results] == [*BEFORE, *NAMES, *AFTER]
    assert {result.name for result in results if not result.ok} == set()
    assert next(result.line for result in results if result.name == "gpu") == "2 x NVIDIA H200"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("profile", "used"), [("auto", "throughput"), ("none", None), ("latency", "latency")], ids=lambda value: str(value)
)
def test_the_profile_of_the_settings_is_planned(
    release: Path, on_gpus: Any, monkeypatch: pytest.MonkeyPatch, profile: Any, used: str | None
) -> None:
    on_gpus(H200)
    asked = []

    def check_memory(found: list[GpuFacts], path: Path, **options: Any) -> Any:
        asked.append((found, path, options["profile"]))
        return passed("gpu memory", "enough")

    monkeypatch.setattr(preflight, "check_memory", check_memory)
    checks(settings(release, profile=profile))
    assert asked == [([H200], release, used)]


@pytest.mark.usefixtures("quick")
def test_a_profile_on_a_cpu_fails(release: Path) -> None:
    (result,) = [result for result in checks(settings(release, profile="auto")) if not result.ok]
    assert (result.name, result.line) == ("gpu", "--profile auto is for GPUs, and the CPU would serve (as asked)")


@pytest.mark.usefixtures("quick")
def test_what_depends_on_a_failure_is_left_out(release: Path, on_gpus: Any, tmp_path: Path) -> None:
    on_gpus(problem="nvidia-smi is not installed here")
    results = checks(settings(release))
    assert [result.name for result in results] == [*BEFORE, "gpu", *AFTER]
    on_gpus(H200)
    results = checks(settings(tmp_path / "none"))
    by_name = {result.name: result.status for result in results}
    assert (by_name["release"], by_name["gpu memory"]) == ("failed", "not needed")
    assert "files" not in by_name


def test_a_gpu_that_is_asked_for_and_not_there_fails(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gpu(choice: str) -> Any:
        raise ValueError("device cuda cannot be used: no NVIDIA driver")

    monkeypatch.setattr(preflight, "choose_device", no_gpu)
    results = checks(settings(release, device="cuda"))
    assert [result.name for result in results if not result.ok] == ["gpu"]
    assert [result.name for result in results] == ["python", "sglang", "gpu", *AFTER]


@pytest.mark.usefixtures("quick")
def test_the_status_says_pass_or_fail(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_command(settings(release)) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith("0 failed, ")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert check_command(settings(release, port=port), as_json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is False
    assert [check for check in found["checks"] if not check["ok"]] == [
        {
            "name": "port",
            "status": "failed",
            "line": f"cannot listen on 127.0.0.1 port {port}: Address already in use",
            "remedy": "choose another with --port",
            "ok": False,
        }
    ]


def test_each_check_is_a_line_and_each_failure_one_more() -> None:
    results = [
        passed("port", "free"),
        warning("revision", "may move", "pin it"),
        failed("gpu memory", "too full", "tidy"),
    ]
    assert lines(results) == [
        "ok       port        free",
        "WARNING  revision    may move",
        "                     -> pin it",
        "FAILED   gpu memory  too full",
        "                     -> tidy",
        "\n1 failed, 1 warnings, 1 ok",
    ]


@pytest.mark.usefixtures("quick")
def test_a_warning_is_no_failure(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "check_locks", lambda device: warning("locks", "differ", "install"))
    assert check_command(settings(release)) == 0


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ((), 1),
        (("--tp", "2"), 2),
        (("--tp-size=4",), 4),
        (("--tensor-parallel-size", "8", "--log-level", "info"), 8),
        (("--tp", "x"), 1),
        (("--tp", "0"), 1),
    ],
)
def test_the_ranks_are_read_from_sglang_s_arguments(arguments: tuple[str, ...], count: int) -> None:
    assert ranks(arguments) == count


def test_a_port_is_free_or_chosen_later(release: Path) -> None:
    assert check_port(settings(release)).line == "127.0.0.1, a port that is free then"
    assert check_port(settings(release, host="256.0.0.1")).status == "failed"


def test_keys_are_read_where_they_are_needed(release: Path, tmp_path: Path) -> None:
    assert check_keys(settings(release)).status == "not needed"
    assert check_keys(settings(release, host="0.0.0.0", insecure=True)).status == "not needed"
    assert check_keys(settings(release, host="0.0.0.0")).status == "failed"
    file = tmp_path / "keys.toml"
    assert check_keys(settings(release, api_keys=str(file))).status == "failed"
    new = create_key(name="orders", tenant="orders")
    append_entry(file, new.entry)
    result = check_keys(settings(release, host="0.0.0.0", api_keys=str(file)))
    assert (result.status, result.line) == ("ok", f"the keys in {file} can be read")


def test_json_is_a_flag_of_its_own() -> None:
    parser = argparse.ArgumentParser()
    add_check_arguments(parser)
    assert parser.parse_args(["--json"]).json is True
