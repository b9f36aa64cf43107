"""Everything of SGLang that the plugin touches beyond its public API: the hooks, the reasons, and the guard.

The only file of `model_plugin` that names SGLang's private symbols. SGLang logs and goes on when a hook cannot be applied,
which would change answers silently; `install` therefore applies the hooks itself, checks each one and ends the process if
anything is not as expected.
"""

import inspect
import logging
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

SUPPORTED_SGLANG = ("0.5.23",)


@dataclass(frozen=True, kw_only=True)
class Hook:
    """One patched symbol of SGLang: what we expect to find, what we put there, and why no official hook serves."""

    target: str
    parameters: tuple[str, ...]
    kind: str  # BEFORE, AFTER, AROUND or REPLACE, as in sglang.srt.plugins.hook_registry
    function: Callable[..., Any]
    reason: str


class PluginError(SystemExit):
    """Ends the process: SGLang catches every Exception of a plugin, logs it and serves without the plugin."""


def install() -> None:
    """Check SGLang, put every hook this device needs in place and check that each took effect.

    Raises:
        PluginError: the installed SGLang is not supported, or a hook did not apply. Ends the process unless caught.
    """
    import sglang

    if sglang.__version__ not in SUPPORTED_SGLANG:
        raise PluginError(
            f"clef-serving: SGLang {sglang.__version__} is installed, this plugin supports {', '.join(SUPPORTED_SGLANG)}; "
            f"install a supported version (make install) or a newer clef-serving"
        )
    hooks = needed_hooks()
    apply(hooks)
    logger.info("clef-serving plugin: %d hooks in place", len(hooks))


def needed_hooks() -> tuple[Hook, ...]:
    """The hooks for the device SGLang runs on."""
    from sglang.srt.utils import is_cpu

    if not is_cpu():
        return ()
    from model_plugin.cpu.hooks import CPU_HOOKS

    return CPU_HOOKS


def apply(hooks: tuple[Hook, ...]) -> None:
    """Register and apply hooks, each against the signature it was written for.

    Raises:
        PluginError: a target is missing, has other parameters, or was not patched.
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for hook in hooks:
        check_target(hook)
        HookRegistry.register(hook.target, hook.function, HookType[hook.kind])
    originals = {hook.target: resolve(hook.target) for hook in hooks}
    HookRegistry.apply_hooks()
    for hook in hooks:
        if resolve(hook.target) is originals[hook.target]:
            raise PluginError(f"clef-serving: the hook on {hook.target} did not apply; see the log above ({hook.reason})")


def check_target(hook: Hook) -> None:
    """Raise PluginError unless the hook's target exists with the parameters it was written for."""
    try:
        target = resolve(hook.target)
    except (ImportError, AttributeError) as err:
        raise PluginError(f"clef-serving: SGLang has no {hook.target} ({err}), needed because: {hook.reason}") from err
    found = tuple(inspect.signature(target).parameters)
    if found != hook.parameters:
        raise PluginError(f"clef-serving: {hook.target} takes {found}, expected {hook.parameters}: {hook.reason}")


def resolve(target: str) -> Any:
    """The object behind a dotted name."""
    parent, _, name = target.rpartition(".")
    return getattr(pkgutil.resolve_name(parent), name)
