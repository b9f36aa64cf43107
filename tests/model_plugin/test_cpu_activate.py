"""How the CPU platform is switched on: what it leaves in an environment, and that it comes before SGLang."""

import os

import pytest

from model_plugin import cpu
from tests.model_plugin import fresh_process, inside_sglang

PATH = str(cpu.STAND_IN_PATH)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_children_inherit_the_platform(dtype: str) -> None:
    environ: dict[str, str] = {"UNRELATED": "kept"}
    cpu.activate(dtype, environ=environ)  # type: ignore[arg-type]
    assert environ == {
        "UNRELATED": "kept",
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_MAMBA_CONV_DTYPE": dtype,
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": PATH,
    }
    assert (cpu.STAND_IN_PATH / "sgl_kernel" / "__init__.py").is_file()


def test_the_stand_in_comes_first_and_once() -> None:
    environ = {"PYTHONPATH": os.pathsep.join(["/theirs", PATH, "", "/others"])}
    for _ in range(2):
        cpu.activate("float32", environ=environ)
        assert environ["PYTHONPATH"].split(os.pathsep) == [PATH, "/theirs", "/others"]


def test_the_users_thread_policy_stays() -> None:
    environ = {"OMP_WAIT_POLICY": "ACTIVE"}
    cpu.activate("float32", environ=environ)
    assert environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_a_given_environment_leaves_this_process_alone() -> None:
    before = dict(os.environ)
    cpu.activate("float32", environ={})
    assert dict(os.environ) == before


def test_once_sglang_is_imported_it_is_too_late() -> None:
    there = fresh_process.result(inside_sglang.activate_after_import, on_cpu=False)
    assert there == {
        "error": "the CPU platform must be activated before sglang is imported",
        "asked": False,
    }


def test_before_sglang_it_takes_effect_in_this_process_and_again_after() -> None:
    assert fresh_process.result(inside_sglang.activate_before_import, on_cpu=False) == {
        "is_cpu": True,
        "kernels": str(cpu.STAND_IN_PATH / "sgl_kernel" / "__init__.py"),
        "times_on_path": 1,
    }
