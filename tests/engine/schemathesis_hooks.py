"""What Schemathesis is told beyond our OpenAPI document: reasons to refuse that a schema cannot state, and cases worth sending.

Loaded by Schemathesis in a process of its own; see `test_schemathesis`.
"""

import re
from typing import Any

import schemathesis
from schemathesis import Case, CheckContext, HookContext, Response

PLENTY_MS = "300000"
# Why a request that fits the schema is refused all the same: /v1/systemone's types of faults and of errors.
BEYOND_A_SCHEMA = {
    *("nothing_to_decide", "field_not_supported", "too_many_isolated", "asset_empty"),
    *("media_source", "media_format", "media_damaged", "media_remote", "media_count"),
    "int_type",  # 1.0 is a whole number to JSON Schema, and none to us
}


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    """Leave the request time for its answer, and let most of the valid ones be answered rather than refused for their media."""
    del context, kwargs
    if re.fullmatch("[0-9]{1,9}", case.headers.get("x-request-timeout-ms", "")):
        case.headers["x-request-timeout-ms"] = PLENTY_MS
    if case.headers.get("content-encoding") == "":
        del case.headers["content-encoding"]  # which says the same
    if not _is_valid(case):
        return
    case.headers.pop("content-encoding", None)  # Schemathesis does not compress what it sends
    request = case.body
    if case.media_type == "multipart/form-data" and isinstance(request, dict):
        request = request["request"]
    if isinstance(request, dict) and len(request["questions"]) % 4:
        for field in ("model", "assets", "images", "videos"):
            request.pop(field, None)


@schemathesis.check
def valid_is_answered(context: CheckContext, response: Response, case: Case) -> None:
    """A request that fits the schema is answered, or refused for a reason that no schema states."""
    del context
    if not _is_valid(case) or response.status_code in (200, 404, 413):
        return
    detail = response.json().get("detail")
    if case.path != "/v1/systemone":
        assert response.status_code in (400, 422), response.text
    elif response.status_code == 400:
        assert detail["error_type"] == "api_usage_error", response.text
    else:
        assert response.status_code == 422, response.text
        assert {fault["type"] for fault in detail} <= BEYOND_A_SCHEMA, response.text


def _is_valid(case: Case) -> bool:
    return case.meta is not None and case.meta.generation.mode.is_positive
