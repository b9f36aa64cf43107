"""SGLang server arguments as an operator writes them after `--`: which of them change a plan, and what they say.

Every argument goes to SGLang as it is; this only reads those that memory and arithmetic follow from.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

# Other spellings that SGLang's command line takes.
_ALIASES = {"--tp": "--tp-size", "--tensor-parallel-size": "--tp-size"}
_COUNTS = (
    "--tp-size",
    "--chunked-prefill-size",
    "--max-running-requests",
    "--max-mamba-cache-size",
    "--int8-mamba-ckpt-size",
    "--mamba-max-states-per-path",
    "--max-total-tokens",
    "--page-size",
    "--context-length",
)
_FRACTIONS = ("--mem-fraction-static", "--mamba-full-memory-ratio")
_CHOICES = {"--mamba-ssm-dtype": ("float32", "bfloat16")}
# Under these a plan's figures would be wrong.
_UNKNOWN_TO_PLANS = {
    "--kv-cache-dtype": "keys and values are planned in the engine's type",
    "--disable-radix-cache": "without the cache there is nothing to plan",
    "--enable-unified-memory": "Clef cannot be served with it",
    "--mamba-radix-cache-strategy": "plans are for extra_buffer",
    "--disable-overlap-schedule": "it changes how many states a request takes",
}


class UserArgumentError(ValueError):
    """An argument's value is no value of it, or a plan cannot follow it; the message names the argument."""


@dataclass(frozen=True, kw_only=True)
class UserArguments:
    """What was given. `given` holds every flag in SGLang's first spelling; numbers are None where not given."""

    tokens: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()
    counts: dict[str, int] = field(default_factory=dict)
    fractions: dict[str, float] = field(default_factory=dict)
    choices: dict[str, str] = field(default_factory=dict)

    def count(self, flag: str) -> int | None:
        return self.counts.get(flag)

    def fraction(self, flag: str) -> float | None:
        return self.fractions.get(flag)


def read_user_arguments(tokens: Sequence[str]) -> UserArguments:
    """Read them.

    Raises:
        UserArgumentError: see there.
    """
    given: set[str] = set()
    counts: dict[str, int] = {}
    fractions: dict[str, float] = {}
    choices: dict[str, str] = {}
    for position, token in enumerate(tokens):
        if not token.startswith("--"):
            continue
        flag, has_value, value = token.partition("=")
        flag = _ALIASES.get(flag, flag)
        given.add(flag)
        if not has_value:
            value = tokens[position + 1] if position + 1 < len(tokens) else ""
        if flag in _UNKNOWN_TO_PLANS:
            raise UserArgumentError(f"a plan cannot follow {flag}: {_UNKNOWN_TO_PLANS[flag]}")
        if flag in _COUNTS:
            counts[flag] = _count(flag, value)
        elif flag in _FRACTIONS:
            fractions[flag] = _fraction(flag, value)
        elif flag in _CHOICES:
            if value not in _CHOICES[flag]:
                raise UserArgumentError(f"{flag} is planned for {' and '.join(_CHOICES[flag])}, not {value!r}")
            choices[flag] = value
    return UserArguments(
        tokens=tuple(tokens), given=frozenset(given), counts=counts, fractions=fractions, choices=choices
    )


def _count(flag: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,12}", value) or int(value) < 1:
        raise UserArgumentError(f"{flag} must be a whole number of at least 1 for a plan, not {value!r}")
    return int(value)


def _fraction(flag: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    most = 1.0 if flag == "--mem-fraction-static" else 1e6
    if not 0 < number < most:
        raise UserArgumentError(f"{flag} must be a number above 0 and below {most:g}, not {value!r}")
    return number
