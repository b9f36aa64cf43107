"""What an operator may choose on `clef-serve up`: from the command line, else CLEF_* environment, else the default.

One table, from which the parser, the help text and the checks follow. Knows nothing of what the values will be used for.
"""

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, cast, get_args

from launch.device import DeviceChoice
from serving.settings import ConfidenceRule

Dtype = Literal["bfloat16", "float32"]
DtypeChoice = Literal["auto", "bfloat16", "float32"]
# A parser takes what the user typed and raises ValueError with what is wrong with it.
Parser = Callable[[str], Any]


def _text(value: str) -> str:
    return value


def _one_of(choices: tuple[str, ...]) -> Parser:
    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, not {value!r}")
        return value

    return parse


def _whole_number(least: int, most: int | None = None) -> Parser:
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(value: str) -> int:
        # int() would also take "1_000" and " 8 ", which are slips on a command line.
        if not re.fullmatch(r"[0-9]{1,12}", value) or not least <= int(value) <= (most or int(value)):
            raise ValueError(f"must be a whole number {bounds}, not {value!r}")
        return int(value)

    return parse


def _setting(default: Any, parse: Parser, metavar: str, help_text: str, unset: str = "") -> Any:
    """`unset` says what a default of None means."""
    return field(
        default=default,
        metadata={"parse": parse, "metavar": metavar, "help": help_text, "unset": unset or str(default)},
    )


@dataclass(frozen=True, kw_only=True)
class UpSettings:
    """Everything `clef-serve up` can be told. Each field is also a flag and a CLEF_* variable."""

    model: str | None = _setting(
        None,
        _text,
        "PATH|REPO",
        "Clef release to serve: a directory, or a Hugging Face repository such as Cloudflare/clef-flash",
        "on a CPU a demonstration checkpoint with random weights, built on first use",
    )
    revision: str | None = _setting(
        None, _text, "R", "branch, tag or commit of a Hugging Face repository", "its main branch"
    )
    device: DeviceChoice = _setting("auto", _one_of(get_args(DeviceChoice)), "auto|cuda|cpu", "device to compute on")
    dtype: DtypeChoice = _setting(
        "auto",
        _one_of(get_args(DtypeChoice)),
        "auto|bfloat16|float32",
        "type of weights and activations; auto is bfloat16",
    )
    host: str = _setting("127.0.0.1", _text, "H", "address to listen on")
    port: int = _setting(8000, _whole_number(0, 65535), "P", "TCP port to listen on; 0 picks a free one")
    served_model_name: str | None = _setting(
        None, _text, "N", "model name in responses and in /v1/models", "the repository's or directory's name"
    )
    max_prompt_tokens: int | None = _setting(
        None,
        _whole_number(1),
        "N",
        "longest prompt answered, in tokens; a longer one gets 413",
        "65536, or the checkpoint's context if that is shorter",
    )
    confidence: ConfidenceRule = _setting(
        "typesafe",
        _one_of(get_args(ConfidenceRule)),
        "typesafe|reference",
        "meaning of `confidence`: typesafe (0 for an even spread, 1 for certainty) or reference (the top probability)",
    )
    engine_args: tuple[str, ...] = ()


# The fields that are flags, in the order of the help text.
_SETTINGS = tuple(entry for entry in fields(UpSettings) if "parse" in entry.metadata)


def flag(name: str) -> str:
    """`max_prompt_tokens` -> `--max-prompt-tokens`."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """`max_prompt_tokens` -> `CLEF_MAX_PROMPT_TOKENS`."""
    return "CLEF_" + name.upper()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare every setting. Values stay text here, so that flags and environment pass the same checks in `resolve`."""
    for entry in _SETTINGS:
        parser.add_argument(
            flag(entry.name),
            metavar=entry.metadata["metavar"],
            help=f"{entry.metadata['help']} [{variable(entry.name)}; default: {entry.metadata['unset']}]",
        )


def resolve(
    given: Mapping[str, str | None], environ: Mapping[str, str], engine_args: tuple[str, ...] = ()
) -> UpSettings:
    """Settings from flags, then environment, then default. An empty variable counts as unset.

    Args:
        given: parsed flags by field name; None for a flag that was not given.
        environ: where CLEF_* variables are looked up.
        engine_args: further SGLang server arguments, as they are.

    Raises:
        ValueError: a value is out of range; the message names the flag or variable it came from.
    """
    values: dict[str, Any] = {}
    for entry in _SETTINGS:
        text, origin = given.get(entry.name), flag(entry.name)
        if text is None:
            text, origin = environ.get(variable(entry.name)) or None, variable(entry.name)
        if text is None:
            assert entry.default is not MISSING
            continue
        if not text:
            raise ValueError(f"{origin} must not be empty")
        try:
            values[entry.name] = cast(Parser, entry.metadata["parse"])(text)
        except ValueError as err:
            raise ValueError(f"{origin} {err}") from err
    return UpSettings(**values, engine_args=engine_args)


def as_arguments(settings: UpSettings, **changed: str) -> list[str]:
    """The command line for these settings, whatever the environment holds; `changed` are flags to set otherwise."""
    arguments = []
    for entry in _SETTINGS:
        value = changed.get(entry.name, getattr(settings, entry.name))
        if value is not None:
            arguments += [flag(entry.name), str(value)]
    return [*arguments, *(("--", *settings.engine_args) if settings.engine_args else ())]
