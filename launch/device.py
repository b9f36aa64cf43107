"""Which device to serve on. Asks the NVIDIA driver itself, so it needs nothing installed; knows neither torch nor SGLang.

`python -m launch.device` prints `cuda` or `cpu`; the Makefile chooses a lock by it before anything is installed.
"""

import ctypes
import os
import sys
import sysconfig
from collections.abc import MutableMapping
from pathlib import Path
from typing import Literal

Device = Literal["cuda", "cpu"]
DeviceChoice = Literal["auto", "cuda", "cpu"]

DRIVER_LIBRARY = "libcuda.so.1"
# sglang-kernel 0.4.10 is compiled for compute capability 7.5 and later.
LEAST_CAPABILITY = (7, 5)
# CUdevice_attribute values of cuda.h.
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76


def cuda_problem(library: str = DRIVER_LIBRARY) -> str | None:
    """Why no NVIDIA GPU can be used here, in one phrase, or None if the first visible one can.

    Honours CUDA_VISIBLE_DEVICES, since the driver does.
    """
    try:
        driver = ctypes.CDLL(library)
        if status := driver.cuInit(0):
            return f"the NVIDIA driver reports error {status} (100: no device)"
        count, device, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        if driver.cuDeviceGetCount(ctypes.byref(count)) or count.value < 1:
            return "the NVIDIA driver shows no GPU"
        capability = []
        for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
            if driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDeviceGetAttribute(
                ctypes.byref(value), attribute, device
            ):
                return "the NVIDIA driver does not answer for the first GPU"
            capability.append(value.value)
    except OSError:
        return f"no NVIDIA driver ({library} not found)"
    except AttributeError as err:
        return f"{library} is not an NVIDIA driver ({err})"
    if tuple(capability) < LEAST_CAPABILITY:
        return f"the first GPU has compute capability {capability[0]}.{capability[1]}; at least 7.5 is needed"
    return None


def choose_device(choice: DeviceChoice) -> tuple[Device, str]:
    """The device to serve on, and why, in one phrase for the log.

    Raises:
        ValueError: CUDA was asked for and cannot be used.
    """
    if choice == "cpu":
        return "cpu", "as asked"
    problem = cuda_problem()
    if choice == "cuda":
        if problem:
            raise ValueError(f"device cuda cannot be used: {problem}")
        return "cuda", "as asked"
    return ("cpu", problem) if problem else ("cuda", "a usable GPU is present")


def use_installed_compilers(
    environ: MutableMapping[str, str] = os.environ, *, packages: Path | None = None, programs: Path | None = None
) -> None:
    """Let SGLang's processes compile kernels with the nvcc and ninja of this environment, whether or not it is activated.

    Args:
        environ: the environment to prepare. A CUDA_HOME or CUDA_PATH in it stays.
        packages: where packages are installed; `requirements/install.py` completes NVIDIA's for this.
        programs: where their programs are.
    """
    packages = packages or Path(sysconfig.get_path("purelib"))
    programs = programs or Path(sys.executable).parent
    if not environ.get("CUDA_HOME") and not environ.get("CUDA_PATH"):
        for compiler in packages.glob("nvidia/cu*/bin/nvcc"):
            environ["CUDA_HOME"] = str(compiler.parent.parent)
    if str(programs) not in environ.get("PATH", "").split(os.pathsep):
        environ["PATH"] = os.pathsep.join([str(programs), *filter(None, [environ.get("PATH")])])


if __name__ == "__main__":
    print(choose_device("auto")[0])
