"""Puts the plugin into SGLang as each of its processes does, and prints what PyTorch was built for, as one JSON object.

A program of its own, `python -m launch.check.plugin_probe cpu|cuda`, since SGLang is heavy, and stays patched.
Ends with status 1 and the plugin's own words where a hook does not apply.
"""

import json
import sys


def main(device: str) -> None:
    """Register, and print."""
    if device == "cpu":
        from model_plugin.cpu import activate

        activate("bfloat16")
    import model_plugin

    model_plugin.register()
    import torch

    # `get_arch_list` is the same, but empty where there is no GPU.
    built_for = str(torch._C._cuda_getArchFlags() or "").split()
    print(json.dumps({"cuda": torch.version.cuda, "built_for": built_for}))


if __name__ == "__main__":
    main(sys.argv[1])
