"""What the tests ask of the installed SGLang; each function runs in a process of its own, see `fresh_process`.

Imports nothing of the CPU platform, for some of these processes show that nobody does.
"""

import os
import pkgutil
import sys
from array import array
from types import SimpleNamespace
from typing import Any

import model_plugin
from model_plugin import sglang_hooks
from model_plugin.checkpoint import ARCHITECTURE
from model_plugin.schema_layout import PromptLayout, QuestionSpans, pack_layout
from model_plugin.sglang_hooks import CALLED, REFUSED_ARGUMENTS, Hook, PluginError, check_target


def load_plugins() -> str:
    """What SGLang does first in each of its processes."""
    from sglang.srt.plugins import load_plugins as load

    load()
    return "went on"


def load_plugins_into_sglang(version: str) -> str:
    """As if another version of SGLang were installed."""
    import sglang

    sglang.__version__ = version
    return load_plugins()


def load_plugins_without(target: str) -> str:
    """As if SGLang had dropped a symbol."""
    parent, _, name = target.rpartition(".")
    sglang_hooks.register_model()
    delattr(pkgutil.resolve_name(parent), name)
    return load_plugins()


def load_plugins_where_the_model_cannot_be_imported() -> str:
    """As if one of our own modules were broken."""
    sys.modules["model_plugin.schema_head"] = None  # type: ignore[assignment]
    return load_plugins()


def findings() -> dict[str, Any]:
    """What is wrong with each symbol; then what is in place, and what runs, once SGLang has loaded its plugins."""
    from model_plugin.cpu.hooks import CPU_HOOKS

    sglang_hooks.register_model()  # first, or a look at the registry would import SGLang's 200 models
    hooks = (*sglang_hooks.HOOKS, *CPU_HOOKS)
    faults = {}
    for symbol in (*CALLED, *hooks):
        try:
            check_target(symbol)
        except PluginError as err:
            faults[symbol.target] = str(err)
    load_plugins()
    return {
        "faults": faults,
        "in_place": [hook.target for hook in hooks if _is_in_place(hook)],
        "failing_hook": _apply_a_hook_that_fails(),
        "prefixes": _longest_prefixes(),
        "aborted_layout": _layout_of_an_aborted_request(),
        "state_end": _state_end_on_sglangs_own_route(),
        "argument_defaults": _argument_defaults(),
        **what_is_loaded(),
    }


def what_is_loaded() -> dict[str, Any]:
    """After SGLang has loaded its plugins: which model, how many hooks, and what of the CPU platform."""
    load_plugins()
    return {
        "installed": model_plugin.installed(),
        "hooks": len(sglang_hooks.needed_hooks()),
        "served": _served_module(ARCHITECTURE),
        "cpu_modules": [
            name for name in sys.modules if name.startswith("model_plugin.cpu") or name.split(".")[0] == "sgl_kernel"
        ],
        "stand_in_on_path": any("stand_in" in entry for entry in sys.path),
    }


def served_modules(registry_first: bool, *architectures: str) -> list[str]:
    """Where the classes behind architectures' names come from, also if the registry was there before the plugin."""
    if registry_first:
        import sglang.srt.models.registry  # noqa: F401
    load_plugins()
    return [_served_module(name) for name in architectures]


def _served_module(architecture: str) -> str:
    from sglang.srt.models.registry import ModelRegistry

    module: str = ModelRegistry.resolve_model_cls([architecture])[0].__module__
    return module


def _is_in_place(hook: Hook) -> bool:
    """Whether the target is wrapped, and nothing but the hook's function is registered on it."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    registered = [function for _, function, _ in HookRegistry._hooks[hook.target]]
    return registered == [hook.function] and hasattr(sglang_hooks.resolve(hook.target), "__wrapped__")


def _apply_a_hook_that_fails() -> str:
    """SGLang's registry logs that it cannot set an attribute of a built-in type, and goes on."""
    example = Hook(
        target="builtins.str.upper", parameters=("self",), kind="AFTER", function=lambda *_: None, reason="an example"
    )
    try:
        sglang_hooks.apply((example,))
    except PluginError as err:
        return str(err)
    return "no error"


def _request(**fields: Any) -> Any:
    """SGLang's own request of 100 tokens, whose state ends at 70."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    question = QuestionSpans(question_type="noul", question=(75, 80), options=((81, 83), (84, 86)))
    packed = pack_layout(PromptLayout(prompt_tokens=100, questions=(question,), state_end=70))
    return Req("request", "", array("q", range(100)), SamplingParams(), **{"decision_layout": packed, **fields})


def _longest_prefixes() -> list[int]:
    """How much of a prompt the cache may serve: with a layout, without one, and when so little was ever computed."""
    asks, does_not_ask = _request(), _request(decision_layout=None)
    for request in (asks, does_not_ask):
        sglang_hooks.adopt_layout(None, request)
    return [
        asks._compute_max_prefix_len(100),
        does_not_ask._compute_max_prefix_len(100),
        asks._compute_max_prefix_len(50),
    ]


def _layout_of_an_aborted_request() -> Any:
    """What is left of the layout of a request that SGLang's scheduler refuses, for its media say, before it is queued."""
    from sglang.srt.managers import schedule_batch

    schedule_batch.get_parallel = lambda: SimpleNamespace(tp_rank=1)
    request = _request()
    request.set_finish_with_abort("no such image")
    sglang_hooks.adopt_layout(None, request)
    return request.decision_layout


class _Characters:
    """A tokenizer with one token for each character."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(character) for character in text]


def _state_end_on_sglangs_own_route() -> list[str]:
    """The text before the state's end, and after it, as SGLang's `/v1/systemone` encodes a request."""
    from sglang.srt.entrypoints.systemone import joint_schema
    from sglang.srt.entrypoints.systemone.protocol import SystemOneRequest

    request = SystemOneRequest.model_validate(
        {
            "model": "clef",
            "state": "the state",
            "questions": {
                "one": {"type": "noul", "instructions": "?"},
                "two": {"type": "score", "criteria": ["a", "b"]},
            },
        }
    )
    ids, packed = joint_schema.encode_joint_schema(_Characters(), request, max_length=4096, image_token_counts=[])
    text, end = "".join(map(chr, ids)), packed[-1]
    return [text[:end], text[end:]]


def _argument_defaults() -> dict[str, Any]:
    """SGLang's default of each argument that can be refused, by its flag; no entry where there is no such flag."""
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    arguments = ServerArgs(model_path="none")
    flags = {name: f"--{name.replace('_', '-')}" for name in REFUSED_ARGUMENTS}
    return {flag: getattr(arguments, name) for name, flag in flags.items() if flag in parser._option_string_actions}


def activate_after_import() -> dict[str, Any]:
    """The CPU platform comes too late."""
    import sglang  # noqa: F401

    from model_plugin import cpu

    try:
        cpu.activate("float32")
    except RuntimeError as err:
        return {"error": str(err), "asked": "SGLANG_USE_CPU_ENGINE" in os.environ}
    return {"error": None}


def activate_before_import() -> dict[str, Any]:
    """The CPU platform comes in time, and once more."""
    from model_plugin import cpu

    cpu.activate("float32")
    import sgl_kernel
    from sglang.srt.utils import is_cpu

    cpu.activate("float32")
    return {
        "is_cpu": is_cpu(),
        "kernels": sgl_kernel.__file__,
        "times_on_path": sys.path.count(str(cpu.STAND_IN_PATH)),
    }
