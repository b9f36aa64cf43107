"""What is said of an installation that is not the one this package was tested with."""

import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from launch.check import install as module
from launch.check.install import Built, check_locks, check_plugin, check_python, check_sglang


def versions(monkeypatch: pytest.MonkeyPatch, **installed: str) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(module.metadata, "version", version)


def test_this_python_passes_and_another_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_python().status == "ok"
    monkeypatch.setattr(module.platform, "system", lambda: "Darwin")
    result = check_python()
    assert result.status == "failed"
    assert " on Darwin " in result.line


def test_the_sglang_this_package_asks_for_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_sglang().line == "SGLang 0.5.23"
    versions(monkeypatch, sglang="0.5.24")
    result = check_sglang()
    assert (result.status, result.line) == ("failed", "SGLang 0.5.24 is installed, and sglang==0.5.23 is needed")
    versions(monkeypatch)
    assert check_sglang().line.startswith("sglang is not installed in ")


def ends_with(monkeypatch: pytest.MonkeyPatch, status: int, out: str = "", err: str = "") -> list[list[str]]:
    asked: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, status, out, err)

    monkeypatch.setattr(module.subprocess, "run", run)
    return asked


def test_the_plugin_is_tried_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ends_with(monkeypatch, 0, 'a line of SGLang\n{"cuda": "13.0", "built_for": ["sm_90"]}\n')
    result, built = check_plugin("cuda", {})
    assert (result.status, built) == ("ok", Built(cuda="13.0", built_for=("sm_90",)))
    assert asked[0][1:] == ["-m", "launch.check.plugin_probe", "cuda"]


def test_a_hook_that_does_not_apply_is_told_in_the_plugin_s_words(monkeypatch: pytest.MonkeyPatch) -> None:
    ends_with(
        monkeypatch, 1, err="Traceback ...\nclef-serving: SGLang has no sglang.srt.x (why), needed because: y\nbye\n"
    )
    result, built = check_plugin("cpu", {})
    assert (result.status, built) == ("failed", None)
    assert result.line == "SGLang has no sglang.srt.x (why), needed because: y"
    assert result.remedy.endswith("-m launch.check.plugin_probe cpu")


def test_a_process_that_dies_is_told_by_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ends_with(monkeypatch, 1, err="Traceback ...\nImportError: libcuda.so.1: cannot open\n")
    assert check_plugin("cuda", {})[0].line == "ImportError: libcuda.so.1: cannot open"
    ends_with(monkeypatch, -9)
    assert check_plugin("cuda", {})[0].line == "ended with status -9"


def test_a_plugin_that_sglang_would_not_load_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ends_with(monkeypatch, 0)
    result, _ = check_plugin("cpu", {"SGLANG_PLUGINS": "other, third"})
    assert (result.status, result.line) == ("failed", "SGLANG_PLUGINS names other, third and not clef")
    monkeypatch.setattr(module.metadata, "entry_points", lambda **selected: ())
    assert "is missing" in check_plugin("cpu", {})[0].line
    assert asked == []


LOCK = """# a lock
alpha==1.0 ; sys_platform == 'linux' \\
    --hash=sha256:00
    # via beta
beta==2.0+cpu \\
    --hash=sha256:11
gamma-ray==3
delta==4
elsewhere==5 ; sys_platform == 'win32'
"""


def test_the_lock_is_compared_with_what_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check_locks("cpu", tmp_path).status == "not needed"
    (tmp_path / "cpu.txt").write_text(LOCK)
    installed = {"alpha": "1.0", "beta": "2.0+cpu", "gamma-ray": "3", "delta": "4"}
    versions(monkeypatch, **installed)
    assert check_locks("cpu", tmp_path).line == "4 packages, all as cpu.txt pins them"
    versions(monkeypatch, alpha="1.0", beta="2.1")
    result = check_locks("cpu", tmp_path)
    assert (result.status, result.ok, result.remedy) == ("warning", True, "install again with: make install DEVICE=cpu")
    assert result.line == (
        "3 of 4 packages differ from cpu.txt: beta 2.1, not 2.0+cpu; gamma-ray missing, not 3; delta missing, not 4"
    )
