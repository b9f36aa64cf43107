"""The CPU reference platform: what SGLang needs to run Qwen3.5 on a machine without a GPU, in plain PyTorch.

It proves answers and lets people without a GPU try the server; it is no claim about speed. Nothing here is imported on a
CUDA machine. Importing this module is light: `activate` must run before SGLang is first imported.
"""

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Literal

# SGLang's CPU code imports `sgl_kernel`, whose wheel needs libcuda at import. The stand-in is found first, but only by
# processes that inherit this path.
STAND_IN_PATH = Path(__file__).parent / "stand_in"


def activate(dtype: Literal["bfloat16", "float32"], *, environ: MutableMapping[str, str] = os.environ) -> None:
    """Make this process and the ones it spawns run SGLang's CPU engine.

    Args:
        dtype: what the weights and activations will be; convolution states follow it, or FP32 answers would not be FP32.
        environ: the environment to prepare.

    Raises:
        RuntimeError: SGLang is already imported, so its device choice can no longer be changed.
    """
    if environ is os.environ and "sglang" in sys.modules and environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        raise RuntimeError("the CPU platform must be activated before sglang is imported")
    environ["SGLANG_USE_CPU_ENGINE"] = "1"
    environ["SGLANG_MAMBA_CONV_DTYPE"] = dtype
    # SGLang compiles parts of its vision tower, for which PyTorch wants a C++ compiler that a laptop may not have; without one
    # the first image would end the engine.
    environ["TORCH_COMPILE_DISABLE"] = "1"
    # Threads that spin between two small operators take the cores from everything else.
    environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    path = str(STAND_IN_PATH)
    inherited = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != path]
    environ["PYTHONPATH"] = os.pathsep.join([path, *inherited])
    if environ is os.environ and path not in sys.path:
        sys.path.insert(0, path)
