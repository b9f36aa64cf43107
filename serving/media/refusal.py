"""Says why a medium is refused: which one, and for a limit its name and value; never anything of its bytes.

Knows nothing of formats.
"""

from typing import Any, Literal

from serving.errors import Fault, InvalidRequestError
from serving.strict_json import shorten

# Where a medium stands in the request, as in `Fault.loc`: ("body", "images", 0).
Loc = tuple[str | int, ...]
RefusalKind = Literal[
    "media_count",
    "media_source",
    "media_remote",
    "media_format",
    "media_too_large",
    "media_too_small",
    "media_damaged",
    "media_not_served",
]


def refusal(loc: Loc, message: str, kind: RefusalKind) -> InvalidRequestError:
    """A 422 with one fault. The message goes on after the medium's place: `images.0 is empty`."""
    parts = [shorten(part) if isinstance(part, str) else part for part in loc]
    place = ".".join(str(part) for part in parts[1:])
    return InvalidRequestError([Fault(loc=parts, msg=f"{place} {message}", type=kind)])


def beyond(
    loc: Loc, what: str, limits: Any, name: str, kind: RefusalKind = "media_too_large", unit: str = ""
) -> InvalidRequestError:
    """A 422 about the limit that is the field `name` of `limits`."""
    value = getattr(limits, name)
    return refusal(loc, f"{what}; the limit {name} is {value}{unit}", kind)
