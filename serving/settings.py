"""What an operator may choose about the front, checked when it is built.

Reads no environment and no command line: the launcher resolves those and passes values. Each field's metadata holds
`help` text with its unit, which the command line prints as it is.
"""

from dataclasses import dataclass, field
from datetime import date
from typing import Literal, get_args

from serving.media.limits import MediaLimits

ConfidenceRule = Literal["typesafe", "reference"]
OverLimit = Literal["refuse", "truncate"]

# What Cloudflare's own names of its models begin with.
CLOUDFLARE_PREFIX = "@cf/cloudflare/"
LEAST_NESTING = 4  # body, questions, question, criteria
# Writing JSON recurses: Python's own writer to its recursion limit of 1000 frames, pydantic's to 255 levels.
MOST_NESTING = 200
DEFAULT_MAX_QUESTIONS = 1024
DEFAULT_MAX_OPTIONS = 16_384
# A release does not state its date.
UNKNOWN_DATE = date(1970, 1, 1)


def _help(text: str) -> dict[str, str]:
    return {"help": text}


@dataclass(frozen=True, kw_only=True)
class AdmissionLimits:
    """Bounds of what is in the engine and of what waits for it. One request may always run, whatever its size."""

    max_running_requests: int
    max_running_tokens: int
    max_waiting_requests: int
    max_waiting_tokens: int


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
    over_limit: OverLimit = field(
        default="refuse",
        metadata=_help(
            "what becomes of a prompt over the limit where the request does not say: refuse (413) or truncate (the "
            "state's end is cut, and the response says by how many tokens)"
        ),
    )
    exact_control_tokens: bool = field(
        default=False,
        metadata=_help(
            "let the text of a control token (<|im_end|>) in a request become that token, as the reference does; "
            "otherwise it stays text"
        ),
    )
    max_wire_bytes: int = field(
        default=64 * 2**20, metadata=_help("largest request body as it is sent, in bytes; a larger one gets 413")
    )
    max_body_bytes: int = field(
        default=64 * 2**20, metadata=_help("largest request body once decompressed, in bytes; a larger one gets 413")
    )
    max_bodies_memory: int = field(
        default=2**30,
        metadata=_help("most bytes of request bodies, decompressed, held at one time; what exceeds it gets 503"),
    )
    max_nesting_depth: int = field(
        default=128, metadata=_help("deepest nesting of objects and arrays in a request body, in levels")
    )
    max_questions: int = field(default=DEFAULT_MAX_QUESTIONS, metadata=_help("most questions in a request"))
    max_options: int = field(
        default=DEFAULT_MAX_OPTIONS, metadata=_help("most options and levels of a request's questions together")
    )
    # Enough that the engine, whose batches are smaller, never waits for the front.
    max_running_requests: int = field(
        default=256, metadata=_help("most requests handed to the engine at one time; others wait in order of priority")
    )
    max_running_tokens: int = field(
        default=2_000_000,
        metadata=_help("most prompt tokens handed to the engine at one time; one request always goes"),
    )
    max_waiting_requests: int = field(
        default=1024, metadata=_help("most requests that wait for the engine; further ones get 503")
    )
    max_waiting_tokens: int = field(
        default=8_000_000, metadata=_help("most prompt tokens that wait for the engine; further ones get 503")
    )
    request_timeout_ms: int = field(
        default=300_000,
        metadata=_help(
            "longest time a request may take, its body's arrival included, in milliseconds; later it gets 503. A request "
            "may ask for less (x-request-timeout-ms)"
        ),
    )
    schema_cache_entries: int = field(
        default=1024, metadata=_help("encoded question sets kept, in entries; 0 keeps none")
    )
    schema_cache_tokens: int = field(
        default=4_000_000, metadata=_help("encoded question sets kept, in tokens (about 36 bytes each)")
    )
    tokenizer_threads: int = field(default=2, metadata=_help("threads that parse and tokenize requests"))
    media_threads: int = field(default=2, metadata=_help("threads that decode and process images and videos"))
    max_media_memory: int = field(
        default=4 * 2**30, metadata=_help("most memory for media being decoded and processed at one time, in bytes")
    )
    media_hosts: tuple[str, ...] = field(
        default=(),
        metadata=_help("hosts that media may be fetched from, as host or host:port; without any, URLs are refused"),
    )
    media_timeout_ms: int = field(
        default=5000, metadata=_help("longest time to fetch a medium from its host, in milliseconds")
    )
    media: MediaLimits = field(default_factory=MediaLimits, metadata=_help("limits of the media of one request"))
    apply_exif_orientation: bool = field(
        default=False,
        metadata=_help("turn photos as their EXIF orientation says; the reference reads them as they are stored"),
    )
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
        for name, choices in (("confidence", get_args(ConfidenceRule)), ("over_limit", get_args(OverLimit))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        for name, least, most in (
            ("max_prompt_tokens", 1, None),
            ("max_wire_bytes", 1, None),
            ("max_body_bytes", 1, None),
            ("max_bodies_memory", 1, None),
            ("max_nesting_depth", LEAST_NESTING, MOST_NESTING),
            ("max_questions", 1, None),
            ("max_options", 1, None),
            ("max_running_requests", 1, None),
            ("max_running_tokens", 1, None),
            ("max_waiting_requests", 0, None),
            ("max_waiting_tokens", 0, None),
            ("request_timeout_ms", 1, None),
            ("schema_cache_entries", 0, None),
            ("schema_cache_tokens", 0, None),
            ("tokenizer_threads", 1, None),
            ("media_threads", 1, None),
            ("max_media_memory", 1, None),
            ("media_timeout_ms", 1, None),
        ):
            value = getattr(self, name)
            if type(value) is not int or value < least or (most is not None and value > most):
                span = f"at least {least}" if most is None else f"{least} to {most}"
                raise ValueError(f"{name} must be a whole number, {span}, not {value!r}")
        for name, one_name, one in (
            ("max_media_memory", "max_decoded_bytes", self.media.max_decoded_bytes),
            ("max_bodies_memory", "max_body_bytes", self.max_body_bytes),
        ):
            if getattr(self, name) < one:
                raise ValueError(f"{name} must be at least {one_name} ({one}), not {getattr(self, name)}")

    @property
    def admission(self) -> AdmissionLimits:
        """What may run and wait."""
        return AdmissionLimits(
            max_running_requests=self.max_running_requests,
            max_running_tokens=self.max_running_tokens,
            max_waiting_requests=self.max_waiting_requests,
            max_waiting_tokens=self.max_waiting_tokens,
        )

    @property
    def accepted_names(self) -> tuple[str, ...]:
        """Every name a request's `model` may hold, the served name first, none twice."""
        return tuple(
            dict.fromkeys((self.served_model_name, self.served_model_name.rsplit("/", 1)[-1], *self.model_aliases))
        )
