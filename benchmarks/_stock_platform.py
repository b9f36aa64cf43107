"""SGLang as it is, on a CPU: the kernels it lacks there and nothing else of ours. For comparisons only; no product uses it.

`_sides` makes SGLang load `register` as its only plugin, in each of its processes.
"""

import sys

ENTRY_POINT = "clef_benchmark_stock_cpu"


def register() -> None:
    """Put the hooks of the CPU reference platform in place.

    Raises:
        SystemExit: SGLang is another version, our product's hooks are there too, or a hook did not apply.
    """
    import sglang

    import model_plugin
    from model_plugin import sglang_hooks
    from model_plugin.cpu.hooks import CPU_HOOKS

    if sglang.__version__ not in sglang_hooks.SUPPORTED_SGLANG:
        raise SystemExit(f"the comparison knows SGLang {sglang_hooks.SUPPORTED_SGLANG}, not {sglang.__version__}")
    if model_plugin.installed() or "model_plugin.models.clef" in sys.modules:
        raise SystemExit("stock SGLang was asked for, and the clef plugin is in place")
    sglang_hooks.apply(CPU_HOOKS)
