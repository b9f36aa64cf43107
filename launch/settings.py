"""What an operator may choose on `clef-serve up`: from the command line, else CLEF_* environment, else the default.

One table, from which the parser, the help text and the checks follow: our own settings, then every setting of the front,
with the help text that stands there. Knows nothing of what the values will be used for.
"""

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import date
from typing import Any, Literal, get_args, get_origin

from launch.device import DeviceChoice
from serving.media.limits import MediaLimits
from serving.request_log import LogFormat
from serving.settings import ServingSettings

Dtype = Literal["bfloat16", "float32"]
# The files of `profiles/`, and two ways to name none of them.
ProfileChoice = Literal["none", "auto", "throughput", "latency", "long-context"]
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


def _flag(value: str) -> bool:
    if value not in ("true", "false"):
        raise ValueError(f"must be true or false, not {value!r}")
    return value == "true"


def _number(value: str) -> float:
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", value):
        raise ValueError(f"must be a number, not {value!r}")
    return float(value)


def _list(value: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in value.split(","))))


def _day(value: str) -> date:
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise ValueError(f"must be a day as YYYY-MM-DD, not {value!r}") from None


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, kw_only=True)
class _Flag:
    """One setting as the command line knows it. `unset` says what is in force where it is not given."""

    name: str
    parse: Parser
    metavar: str
    help: str
    unset: str


def _setting(default: Any, parse: Parser, metavar: str, help_text: str, unset: str = "") -> Any:
    """`unset` says what a default of None means."""
    return field(
        default=default,
        metadata={"parse": parse, "metavar": metavar, "help": help_text, "unset": unset or _as_text(default)},
    )


@dataclass(frozen=True, kw_only=True)
class UpSettings:
    """Everything `clef-serve up` can be told. Each field is also a flag and a CLEF_* variable."""

    model: str | None = _setting(
        None,
        _text,
        "PATH|REPO",
        "Clef release to serve: a directory, or a Hugging Face repository such as Cloudflare/clef-flash",
        "on a CPU clef-mini, the demonstration release",
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
    profile: ProfileChoice = _setting(
        "none",
        _one_of(get_args(ProfileChoice)),
        "|".join(get_args(ProfileChoice)),
        "engine settings for the GPU that is found here, as clef-serve plan explains them; auto is throughput",
        "none: SGLang chooses",
    )
    host: str = _setting("127.0.0.1", _text, "H", "address to listen on")
    insecure: bool = _setting(
        False, _flag, "true|false", "listen on other addresses than this machine's own without asking for API keys"
    )
    api_keys: str | None = _setting(
        None,
        _text,
        "PATH",
        "file of API keys, or a directory of such files, read again when it changes (see clef-serve keys)",
        "none, which only a server on this machine's own addresses may do without",
    )
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
    metrics_port: int | None = _setting(
        None,
        _whole_number(0, 65535),
        "P",
        "TCP port of the metrics page, on the same address, without keys; 0 picks a free one",
        "none: /metrics on the server's own port",
    )
    log_format: LogFormat = _setting(
        "console", _one_of(get_args(LogFormat)), "|".join(get_args(LogFormat)), "form of log lines"
    )
    otlp_endpoint: str | None = _setting(
        None,
        _text,
        "URL",
        "OTLP/HTTP collector for traces, such as http://127.0.0.1:4318; the standard OTEL_* variables count too",
        "none: no traces",
    )
    # Settings of the front by name, those that were given, and `media`.
    front: Mapping[str, Any] = field(default_factory=lambda: {"media": MediaLimits()})
    engine_args: tuple[str, ...] = ()


# What the launcher itself knows, rather than the operator.
_NOT_ASKED = {"served_model_name", "max_prompt_tokens", "model_revision", "media"}
_PARSERS: dict[Any, tuple[Parser, str]] = {
    bool: (_flag, "true|false"),
    int: (_whole_number(0), "N"),
    float: (_number, "X"),
    tuple: (_list, "A,B"),
    date: (_day, "YYYY-MM-DD"),
}


def _front_flag(entry: "Field[Any]") -> _Flag:
    kind = get_origin(entry.type) or entry.type
    choices = get_args(entry.type)
    parse, metavar = (_one_of(choices), "|".join(choices)) if kind is Literal else _PARSERS[kind]
    unset = _as_text(entry.default) or "none"
    return _Flag(name=entry.name, parse=parse, metavar=metavar, help=entry.metadata["help"], unset=unset)


_OWN = tuple(_Flag(name=entry.name, **entry.metadata) for entry in fields(UpSettings) if "parse" in entry.metadata)
_FRONT = tuple(_front_flag(entry) for entry in fields(ServingSettings) if entry.name not in _NOT_ASKED)
_MEDIA = tuple(_front_flag(entry) for entry in fields(MediaLimits))


def flag(name: str) -> str:
    """`max_prompt_tokens` -> `--max-prompt-tokens`."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """`max_prompt_tokens` -> `CLEF_MAX_PROMPT_TOKENS`."""
    return "CLEF_" + name.upper()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare every setting. Values stay text here, so that flags and environment pass the same checks in `resolve`."""
    front, media = map(parser.add_argument_group, ("the HTTP front", "images and videos"))
    for group, flags in ((parser, _OWN), (front, _FRONT), (media, _MEDIA)):
        for entry in flags:
            alone: dict[str, Any] = {"nargs": "?", "const": "true"} if entry.parse is _flag else {}
            group.add_argument(
                flag(entry.name),
                metavar=entry.metavar,
                help=f"{entry.help} [{variable(entry.name)}; default: {entry.unset}]".replace("%", "%%"),
                **alone,
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
    own, front, media = (_values(flags, given, environ) for flags in (_OWN, _FRONT, _MEDIA))
    try:
        front["media"] = MediaLimits(**media)
        ServingSettings(served_model_name="checked", max_prompt_tokens=1, **front)
    except ValueError as err:
        name, _, rest = str(err).partition(" ")
        raise ValueError(f"{flag(name)} {rest}") from err
    return UpSettings(**own, front=front, engine_args=engine_args)


def _values(flags: tuple[_Flag, ...], given: Mapping[str, str | None], environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for entry in flags:
        text, origin = given.get(entry.name), flag(entry.name)
        if text is None:
            text, origin = environ.get(variable(entry.name)) or None, variable(entry.name)
        if text is None:
            continue
        if not text:
            raise ValueError(f"{origin} must not be empty")
        try:
            values[entry.name] = entry.parse(text)
        except ValueError as err:
            raise ValueError(f"{origin} {err}") from err
    return values


def as_arguments(settings: UpSettings, **changed: str) -> list[str]:
    """The command line for these settings, whatever the environment holds; `changed` are flags to set otherwise."""
    front = dict(settings.front)
    media = front.pop("media", None)
    values = {entry.name: getattr(settings, entry.name) for entry in _OWN} | front
    values |= {entry.name: getattr(media, entry.name) for entry in _MEDIA if media is not None}
    values |= changed
    arguments = []
    for name, value in values.items():
        if value is not None:
            arguments += [flag(name), _as_text(value)]
    return [*arguments, *(("--", *settings.engine_args) if settings.engine_args else ())]
