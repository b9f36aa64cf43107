"""The choice of a device, against a fake NVIDIA driver."""

import sys
from pathlib import Path
from typing import Any

import pytest

from launch import device


class FakeDriver:
    """The driver calls that are made, for one GPU of a given compute capability."""

    def __init__(self, *, status: int = 0, count: int = 1, capability: tuple[int, int] = (9, 0)) -> None:
        self._status, self._count, self._capability = status, count, capability

    def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's name
        assert flags == 0
        return self._status

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self._count
        return 0

    def cuDeviceGet(self, handle: Any, ordinal: int) -> int:  # noqa: N802
        assert ordinal == 0
        handle._obj.value = 0
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, handle: Any) -> int:  # noqa: N802
        value._obj.value = self._capability[{75: 0, 76: 1}[attribute]]
        return 0


def use(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> None:
    monkeypatch.setattr(device.ctypes, "CDLL", lambda name: driver)


@pytest.mark.parametrize("capability", [(7, 5), (9, 0), (10, 0)])
def test_a_gpu_that_is_new_enough_is_chosen(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    use(monkeypatch, FakeDriver(capability=capability))
    assert device.choose_device("auto")[0] == "cuda"
    assert device.choose_device("cuda") == ("cuda", "as asked")
    assert device.choose_device("cpu") == ("cpu", "as asked")


@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        (FakeDriver(status=100), "error 100"),
        (FakeDriver(count=0), "shows no GPU"),
        (FakeDriver(capability=(7, 0)), "compute capability 7.0; at least 7.5"),
    ],
    ids=["no device", "none visible", "too old"],
)
def test_without_a_usable_gpu_auto_is_the_cpu_and_cuda_an_error(
    monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, problem: str
) -> None:
    use(monkeypatch, driver)
    chosen, why = device.choose_device("auto")
    assert chosen == "cpu"
    assert problem in why
    with pytest.raises(ValueError, match=f"device cuda cannot be used: .*{problem}"):
        device.choose_device("cuda")


def test_no_driver_and_a_library_that_is_not_a_driver_are_told_apart() -> None:
    assert device.cuda_problem("libno-such-driver.so") == "no NVIDIA driver (libno-such-driver.so not found)"
    assert "libc.so.6 is not an NVIDIA driver" in (device.cuda_problem("libc.so.6") or "")


def toolkit_in(packages: Path) -> str:
    compiler = packages / "nvidia" / "cu13" / "bin" / "nvcc"
    compiler.parent.mkdir(parents=True)
    compiler.touch()
    return str(packages / "nvidia" / "cu13")


@pytest.mark.parametrize("given", [{}, {"CUDA_HOME": ""}], ids=["unset", "empty"])
def test_kernels_are_compiled_with_what_is_installed(tmp_path: Path, given: dict[str, str]) -> None:
    environ = {"PATH": "/usr/bin"} | given
    toolkit = toolkit_in(tmp_path)
    for _ in range(2):
        device.use_installed_compilers(environ, packages=tmp_path, programs=tmp_path / "bin")
        assert environ == {"PATH": f"{tmp_path}/bin:/usr/bin", "CUDA_HOME": toolkit}


@pytest.mark.parametrize("name", ["CUDA_HOME", "CUDA_PATH"])
def test_a_toolkit_that_an_operator_named_stays(tmp_path: Path, name: str) -> None:
    environ = {name: "/opt/cuda"}
    toolkit_in(tmp_path)
    device.use_installed_compilers(environ, packages=tmp_path, programs=tmp_path / "bin")
    assert environ == {name: "/opt/cuda", "PATH": f"{tmp_path}/bin"}


def test_without_an_installed_toolkit_none_is_named(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    device.use_installed_compilers(environ, packages=tmp_path)
    assert environ == {"PATH": str(Path(sys.executable).parent)}
