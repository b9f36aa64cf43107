"""Which GPU nvidia-smi's answer stands for."""

from pathlib import Path

import pytest

from launch.plan.gpu_detect import DetectedGpu, GpuDetectError, detect_gpu

H100 = "NVIDIA H100 80GB HBM3"


def listing(*names: str) -> str:
    return "".join(f"{index}, GPU-{index}f3a-{index}, {name}\n" for index, name in enumerate(names))


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (H100, "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
    ],
)
def test_a_planned_for_gpu_is_named(name: str, short: str) -> None:
    assert detect_gpu({}, lambda: listing(name, name)) == DetectedGpu(name=short, count=2)


@pytest.mark.parametrize(
    ("visible", "short", "count"),
    [
        ("1", "h200", 1),
        ("0,2", "h100", 2),
        ("GPU-1f3a", "h200", 1),
        ("0,nonsense,1", "h100", 1),
        (" 2 , 0 ", "h100", 2),
    ],
)
def test_only_visible_gpus_count(visible: str, short: str, count: int) -> None:
    answer = listing(H100, "NVIDIA H200", H100)
    assert detect_gpu({"CUDA_VISIBLE_DEVICES": visible}, lambda: answer) == DetectedGpu(name=short, count=count)


@pytest.mark.parametrize(
    ("answer", "environ", "message"),
    [
        ("", {}, "shows no GPU"),
        (listing(H100), {"CUDA_VISIBLE_DEVICES": ""}, "shows no GPU"),
        (listing(H100), {"CUDA_VISIBLE_DEVICES": "-1"}, "shows no GPU"),
        (listing("NVIDIA H200", H100), {}, r"differ \(NVIDIA H100 80GB HBM3, NVIDIA H200\)"),
        (
            listing("NVIDIA H100 PCIe"),
            {},
            r"has a NVIDIA H100 PCIe, for which there is no profile; profiles exist for h100 \(H100",
        ),
        ("Failed to initialize NVML\n", {}, "cannot be read: 'Failed to initialize NVML'"),
    ],
)
def test_anything_else_is_refused_with_the_reason(answer: str, environ: dict[str, str], message: str) -> None:
    with pytest.raises(GpuDetectError, match=message):
        detect_gpu(environ, lambda: answer)


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program of that name, first on the path."""
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return program


def test_nvidia_smi_is_asked(nvidia_smi: Path) -> None:
    nvidia_smi.write_text('#!/bin/sh\n[ "$1" = --query-gpu=index,uuid,name ] && echo "0, GPU-1, NVIDIA B200"\n')
    nvidia_smi.chmod(0o755)
    assert detect_gpu({}) == DetectedGpu(name="b200", count=1)


def test_a_failing_nvidia_smi_is_quoted(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("#!/bin/sh\necho 'no driver here' >&2\nexit 9\n")
    nvidia_smi.chmod(0o755)
    with pytest.raises(GpuDetectError, match="failed with status 9: no driver here"):
        detect_gpu({})


def test_a_missing_nvidia_smi_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GpuDetectError, match="nvidia-smi is not installed"):
        detect_gpu({})
