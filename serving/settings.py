"""What an operator may choose about the front, checked when it is built.

Reads no environment and no command line: the launcher resolves those and passes values. Each field's metadata holds
`help` text with its unit, which the command line prints as it is.
"""

from dataclasses import dataclass, field
from datetime import date
from typing import Literal, get_args

ConfidenceRule = Literal["typesafe", "reference"]

LEAST_NESTING = 4  # body, questions, question, criteria
# Writing JSON recurses: Python's own writer to its recursion limit of 1000 frames, pydantic's to 255 levels.
MOST_NESTING = 200
# A release does not state its date.
UNKNOWN_DATE = date(1970, 1, 1)


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True, kw_only=True)
class ServingSettings:
    """Settings of the front.

    Raises:
        ValueError: a value is out of range; the message names the setting and the value.
    """

    served_model_name: str = field(metadata=_help("name in responses and in /v1/models"))
    max_prompt_tokens: int = field(metadata=_help("longest prompt answered, in tokens; a longer one gets 413"))
    model_aliases: tuple[str, ...] = field(
        default=("jev-latest", "clef", "clef-flash"),
        metadata=_help("further names `model` may hold; the last part of the served name is always accepted"),
    )
    confidence: ConfidenceRule = field(
        default="typesafe",
        metadata=_help(
            "what `confidence` means: typesafe (0 is an even spread, 1 certainty) or reference (the top probability)"
        ),
    )
    max_body_bytes: int = field(
        default=32 * 2**20, metadata=_help("largest request body, in bytes; a larger one gets 413")
    )
    max_nesting_depth: int = field(
        default=128, metadata=_help("deepest nesting of objects and arrays in a request body, in levels")
    )
    schema_cache_entries: int = field(
        default=1024, metadata=_help("encoded question sets kept, in entries; 0 keeps none")
    )
    schema_cache_tokens: int = field(
        default=4_000_000, metadata=_help("encoded question sets kept, in tokens (about 36 bytes each)")
    )
    tokenizer_threads: int = field(default=2, metadata=_help("threads that parse and tokenize requests"))
    release_date: date = field(
        default=UNKNOWN_DATE,
        metadata=_help("day the model was released (YYYY-MM-DD), for /v1/models; 1970-01-01 means unknown"),
    )
    model_revision: str | None = field(default=None, metadata=_help("revision of the checkpoint, for /v1/models"))

    def __post_init__(self) -> None:
        if not self.served_model_name:
            raise ValueError("served_model_name must not be empty")
        if any(not alias for alias in self.model_aliases):
            raise ValueError("model_aliases must not hold an empty name")
        if self.confidence not in get_args(ConfidenceRule):
            raise ValueError(
                f"confidence must be one of {', '.join(get_args(ConfidenceRule))}, not {self.confidence!r}"
            )
        for name, least, most in (
            ("max_prompt_tokens", 1, None),
            ("max_body_bytes", 1, None),
            ("max_nesting_depth", LEAST_NESTING, MOST_NESTING),
            ("schema_cache_entries", 0, None),
            ("schema_cache_tokens", 0, None),
            ("tokenizer_threads", 1, None),
        ):
            value = getattr(self, name)
            if type(value) is not int or value < least or (most is not None and value > most):
                span = f"at least {least}" if most is None else f"{least} to {most}"
                raise ValueError(f"{name} must be a whole number, {span}, not {value!r}")

    @property
    def accepted_names(self) -> tuple[str, ...]:
        """Every name a request's `model` may hold, the served name first, none twice."""
        return tuple(
            dict.fromkeys((self.served_model_name, self.served_model_name.rsplit("/", 1)[-1], *self.model_aliases))
        )
