"""The SGLang plugin: it runs inside SGLang's processes and knows nothing of HTTP or question text."""

from typing import Any

_installed = False

# Cached tokens of requests in flight: the asker puts its request id in and takes it out, the plugin fills the value.
cached_tokens: dict[str, int] = {}
# Under this name processed media bring a list of 32 bytes for each image or video, by which caches are to know it.
MEDIA_DIGESTS = "clef_media_digests"


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`; SGLang calls it once in each of its processes.

    Raises:
        SystemExit: SGLang is not a supported version, or a hook did not apply.
    """
    from model_plugin import sglang_hooks

    global _installed
    sglang_hooks.install()
    _installed = True


def installed() -> bool:
    """Whether the plugin is in place in this process."""
    return _installed


def prompt_limit(manager: Any) -> int:
    """The longest prompt, media expanded, that the engine of SGLang's tokenizer manager takes, in tokens."""
    from model_plugin import sglang_hooks

    return sglang_hooks.prompt_limit(manager)


def has_vision(model_path: str) -> bool:
    """Whether the release at this path can look at media; see `checkpoint.has_vision`."""
    from model_plugin import checkpoint

    return checkpoint.has_vision(model_path)
