"""What is added to NVIDIA's packages is what a linker looks for when kernels are compiled. No package is installed here."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", ROOT / "requirements" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def toolkit_in(venv: Path, *files: str) -> Path:
    """NVIDIA's part of an environment, with these files, empty."""
    toolkit = venv / "lib" / "python3.11" / "site-packages" / "nvidia" / "cu13"
    for name in files:
        (toolkit / name).parent.mkdir(parents=True, exist_ok=True)
        (toolkit / name).write_bytes(b"")
    return toolkit


def test_libraries_get_the_names_that_linkers_look_for(install: ModuleType, tmp_path: Path) -> None:
    toolkit = toolkit_in(tmp_path, "bin/nvcc", "lib/libcudart.so.13", "lib/libcufile.so.0", "lib/libcheckpoint.so")
    for _ in range(2):  # the second time finds all of it there
        install.Environment(tmp_path).complete_cuda_toolkit()
        links = {
            str(path.relative_to(toolkit)): str(path.readlink()) for path in toolkit.rglob("*") if path.is_symlink()
        }
        assert links == {
            "lib64": "lib",
            "lib/libcudart.so": "libcudart.so.13",
            "lib/libcufile.so": "libcufile.so.0",
        }


def test_without_a_compiler_nothing_is_added(install: ModuleType, tmp_path: Path) -> None:
    """The CPU's lock has the libraries that PyTorch loads, and no nvcc."""
    toolkit = toolkit_in(tmp_path, "lib/libcudart.so.13")
    install.Environment(tmp_path).complete_cuda_toolkit()
    assert sorted(path.name for path in toolkit.rglob("*")) == ["lib", "libcudart.so.13"]


def test_a_linker_finds_the_runtime_and_the_driver(install: ModuleType, tmp_path: Path) -> None:
    """With the arguments of SGLang's and FlashInfer's builds, and a driver that has no libcuda.so, as Debian's."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not on PATH")
    toolkit = toolkit_in(tmp_path, "bin/nvcc", "lib/libcudart.so.13")
    driver = tmp_path / "driver"
    driver.mkdir()

    def build(name: Path, *arguments: str) -> None:
        command = [compiler, "-shared", "-x", "c", "/dev/null", "-o", str(name), "-Wl,--no-as-needed", *arguments]
        subprocess.run(command, check=True)

    build(toolkit / "lib" / "libcudart.so.13", "-Wl,-soname,libcudart.so.13")
    build(driver / "libcuda.so.1", "-Wl,-soname,libcuda.so.1")
    install.Environment(tmp_path).complete_cuda_toolkit()
    folders = [f"-L{toolkit}/lib64", f"-L{toolkit}/lib64/stubs", f"-L{driver}"]
    build(tmp_path / "kernel.so", *folders, "-lcudart", "-lcuda")
    kernel = (tmp_path / "kernel.so").read_bytes()
    assert b"libcudart.so.13\0" in kernel
    assert b"libcuda.so.1\0" in kernel
