"""Requests that real clients and real servers stumbled on, with the outcome this server owes each of them.

Each id is that of a case of the project's collection; what follows a slash is a neighbour of the same kind. The tables
know no server: they can be run against the app in process or against any URL. An expected 200 means the answers that
`tests.cases.checks` derives from the request; anything else states its `detail`.
"""

from tests.cases.bodies import CONTROL_TOKENS, ENCODINGS, LENGTHS
from tests.cases.case import REFUND, STATE, Case
from tests.cases.fields import ISOLATION, MODELS, ROUNDING, UNKNOWN_FIELDS
from tests.cases.media import ASSETS, IMAGES, UNSERVED_MEDIA, VIDEOS
from tests.cases.questions import OPTION_NAMES, REQUEST_SHAPE
from tests.cases.texts import JSON, STATES

__all__ = ["CASES", "CASES_WITHOUT_VISION", "CASES_WITH_VISION", "REFUND", "STATE", "Case"]

# For any server.
CASES = (
    *REQUEST_SHAPE,
    *OPTION_NAMES,
    *STATES,
    *JSON,
    *UNKNOWN_FIELDS,
    *MODELS,
    *ROUNDING,
    *ISOLATION,
    *ENCODINGS,
    *CONTROL_TOKENS,
    *LENGTHS,
)
# For one that serves media, and for one that does not.
CASES_WITH_VISION = (*ASSETS, *IMAGES, *VIDEOS)
CASES_WITHOUT_VISION = UNSERVED_MEDIA

ALL = (*CASES, *CASES_WITH_VISION, *CASES_WITHOUT_VISION)
assert len({case.id for case in ALL}) == len(ALL)
