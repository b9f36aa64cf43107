"""Says what pydantic found wrong with a request in this API's words: question, field and limit, and nothing of the input.

Knows nothing of HTTP or of the types themselves.
"""

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from model_plugin.schema_layout import QUESTION_TYPES
from serving.errors import Fault
from serving.strict_json import json_kind, shorten

MAX_REPORTED_FAULTS = 50
# Tags of the unions of media forms, which pydantic puts into its paths.
TEXT_FORM, URL_FORM, DATA_FORM, FRAMES_FORM = FORMS = ("(text)", "(url)", "(data)", "(frames)")
# The keys of the closed objects, by the field they stand in.
KEYS = {
    "questions": "type, instructions and criteria",
    "assets": "type, format, data_base64 and part",
    "images": "url and detail, or base64 and content_type",
    "videos": "url, or base64 and content_type, or frames and fps",
    "media_kwargs": "fps, num_frames and do_sample_frames",
}


def faults_of(error: ValidationError) -> list[Fault]:
    """One fault for each error, up to a bound; then one that counts the rest."""
    details = error.errors(include_url=False)
    faults = [_fault(detail) for detail in details[:MAX_REPORTED_FAULTS]]
    if len(details) > MAX_REPORTED_FAULTS:
        more = f"{len(details) - MAX_REPORTED_FAULTS} more faults are not listed"
        faults.append(Fault(loc=["body"], msg=more, type="too_many_faults"))
    return faults


def _fault(detail: ErrorDetails) -> Fault:
    """One of pydantic's errors in this API's words, without pydantic's own steps in the path."""
    path = list(detail["loc"])
    if path[0] == "questions" and len(path) > 2 and path[2] in QUESTION_TYPES:
        del path[2]  # the union's tag, which is not a key of the request
    if path[0] in ("images", "videos"):
        path = [part for part in path if part not in FORMS]
    if path[-1] == "[key]":
        path.pop()
    kind = detail["type"]
    if kind.startswith("question_tag"):
        path.append("type")
    message = _message(kind, detail, path)
    if kind == "question_tag_missing":
        kind = "missing"
    if path[0] == "questions" and len(path) > 1:
        where = f"question '{shorten(str(path[1]))}'"
        fields = ".".join(shorten(str(part)) for part in path[2:])
        message = f"{where}: {fields} {message}" if fields else f"{where} {message}"
    else:
        message = f"{'.'.join(shorten(str(part)) for part in path)} {message}"
    return Fault(
        loc=["body", *(shorten(part) if isinstance(part, str) else part for part in path)], msg=message, type=kind
    )


def _message(kind: str, detail: ErrorDetails, path: list[str | int]) -> str:
    context, value = detail.get("ctx", {}), detail["input"]
    item = {"criteria": "options", "questions": "questions", "assets": "assets"}.get(str(path[-1]), "items")
    if isinstance(value, list):
        item = "levels" if path[0] == "questions" else "items"
    match kind:
        case "missing":
            return "is required"
        case "extra_forbidden":
            keys = KEYS["images" if "frames" in path[2:-1] else str(path[0])]
            if path[0] == "questions" and len(path) > 3:
                keys = "true and false"
            return f"is not a key here; the keys are {keys}"
        case "dict_type" | "model_type":
            return f"must be an object, not {json_kind(value)}"
        case "list_type":
            return f"must be a list, not {json_kind(value)}"
        case "string_type":
            return f"must be a string, not {json_kind(value)}"
        case "bool_type":
            return f"must be true or false, not {json_kind(value)}"
        case "int_type":
            return "must be a whole number"
        case "float_type":
            return f"must be a number, not {json_kind(value)}"
        case "greater_than":
            return f"must be above {context['gt']:g}"
        case "less_than_equal":
            return f"must be at most {context['le']:g}"
        case "greater_than_equal":
            return f"must be at least {context['ge']:g}"
        case "literal_error":
            return f"must be {context['expected']}"
        case "too_long":
            return f"has {len(value)} {item}; the limit is {context['max_length']}"
        case "too_short":
            return f"has no {item}; it needs at least {context['min_length']}"
        case "string_pattern_mismatch":
            return "must be that of an image" if path[0] == "images" else "must be that of a video"
        case "string_too_long":
            return f"is longer than {context['max_length']} characters"
        case "string_too_short":
            named = ("id", "an id") if path[0] == "questions" else ("name", "a name")
            return f"has an empty {named[0]}; {named[1]} needs at least one character"
        case _:
            return detail["msg"]
