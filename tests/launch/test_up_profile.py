"""`clef-serve up --profile`: from the GPU that is found to SGLang's arguments. No GPU is asked."""

from pathlib import Path

import pytest

from benchmarks.random_release import build_random_release
from launch.checkpoint_source import FoundCheckpoint
from launch.plan import gpu_detect
from launch.plan.gpu_detect import DetectedGpu, GpuDetectError
from launch.plan.plan import PlanInputs, make_plan
from launch.plan.user_arguments import read_user_arguments
from launch.up import profile_arguments

GIVEN = ("--chunked-prefill-size", "1024")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> FoundCheckpoint:
    release = build_random_release(tmp_path_factory.mktemp("profile") / "release")
    return FoundCheckpoint(path=release, name="demo", revision=None, demonstration=True)


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_detect, "detect_gpu", lambda: DetectedGpu(name="h200", count=1))


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(("asked", "name"), [("auto", "throughput"), ("latency", "latency")])
def test_a_profile_is_what_the_plan_says_and_the_user_wins(
    found: FoundCheckpoint, asked: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = make_plan(
        PlanInputs(gpu="h200", model=str(found.path), profile=name, user=read_user_arguments(GIVEN))
    ).server_arguments
    arguments = profile_arguments(asked, "cuda", found, GIVEN)  # type: ignore[arg-type]
    assert arguments == planned
    assert arguments[-2:] == list(GIVEN)
    assert arguments.count("--chunked-prefill-size") == 1
    assert "--mem-fraction-static" in arguments
    assert capsys.readouterr().err == f"clef-serve: profile: {name} on h200\n"


def test_without_a_profile_only_the_user_s_arguments_are_given(found: FoundCheckpoint) -> None:
    assert profile_arguments("none", "cuda", found, GIVEN) == list(GIVEN)


def test_a_cpu_has_no_profile(found: FoundCheckpoint) -> None:
    with pytest.raises(ValueError, match="^--profile auto is for GPUs; on a CPU leave it out$"):
        profile_arguments("auto", "cpu", found, ())


def test_a_machine_without_a_gpu_is_told(
    found: FoundCheckpoint, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GpuDetectError, match="nvidia-smi"):
        profile_arguments("auto", "cuda", found, ())
