"""Cloudflare's own form of the API: Workers AI's path and its envelope around the very answers of /v1/systemone.

Knows nothing of what a request means or how it is answered: it wraps the bytes of one response into another.

What the hosted service and its clients do was read from Cloudflare's model schema (`src/content/workers-ai-models/clef.json`
and `src/content/docs/workers-ai/platform/errors.mdx` in cloudflare/cloudflare-docs), the PyPI packages `cloudflare`,
`clef-evals` and `clef-rag`, and the answers recorded in juspay/neurolink's guide `cloudflare-clef.md` (October 2026).
"""

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field

from serving.api_types import SystemOneResponse
from serving.engine import EngineError
from serving.errors import Fault, RequestError, UnknownModelError, json_bytes
from serving.request_log import log_failure
from serving.settings import CLOUDFLARE_PREFIX
from serving.strict_json import shorten

RUN_PATH = "/client/v4/accounts/{account_id}/ai/run/{model_name:path}"

# Cloudflare's number for each of our error types. Clients decide by the HTTP status; some take 3036 and 4006, a used-up
# allowance, for final even with 429, so nothing that is to be tried again may carry those.
REFUSED_BY_MODEL = 5012  # also the hosted service's number for "Clef inference failed"
BAD_INPUT = 5006
BAD_BODY = 6003
OUT_OF_CAPACITY = 3040
CODES: Mapping[str, int] = {
    "validation_error": REFUSED_BY_MODEL,
    "malformed_body": BAD_BODY,
    "api_usage_error": BAD_INPUT,
    "unsupported_media_type": BAD_BODY,
    "authentication_error": 10000,
    "model_not_found_error": 3042,
    "body_too_large": 3006,
    "prompt_too_long": 5021,
    "rate_limit_error": OUT_OF_CAPACITY,
    "overloaded": OUT_OF_CAPACITY,
    "not_serving": OUT_OF_CAPACITY,
    "engine_dead": OUT_OF_CAPACITY,
    "request_timeout": 3007,
    "body_timeout": 3007,
    "client_closed": 3008,
    "engine_error": REFUSED_BY_MODEL,
    "internal_error": REFUSED_BY_MODEL,
}


class ErrorSource(BaseModel):
    """Where in the body: a JSON pointer (RFC 6901)."""

    pointer: str


class RunError(BaseModel):
    """One thing wrong, in Cloudflare's numbers. `source` is there where one field is at fault."""

    code: int
    message: str
    source: ErrorSource | None = None


class RunAnswer(BaseModel):
    """Cloudflare's envelope around an answer."""

    result: SystemOneResponse
    success: Literal[True]
    errors: list[RunError] = Field(max_length=0)
    messages: list[RunError] = Field(max_length=0)


class RunFailure(BaseModel):
    """Cloudflare's envelope around an error."""

    result: None
    success: Literal[False]
    errors: list[RunError] = Field(min_length=1)
    messages: list[RunError] = Field(max_length=0)


FAILURES = {
    400: "The body cannot be unpacked, or its fields do not belong together",
    401: "No key, or not a known one",
    404: "Unknown model",
    408: "The body did not arrive in time",
    413: "Body or prompt over the limit",
    415: "A media type or content encoding that is not read here",
    422: "Not a valid request",
    429: "The key has used up its rate",
    500: "Engine failure",
    503: "Overloaded, too late, shutting down, or the engine is gone",
}


def workers_ai_router(
    *,
    answer: Callable[[Request], Awaitable[Response]],
    on_error: Callable[[Request, Exception], Response],
    model_names: Collection[str],
) -> APIRouter:
    """The route of Workers AI's REST API for the model served here.

    The body is that of /v1/systemone. One model is served, under all of `model_names`: a path that names another is refused,
    and so is a body that does, by `answer`; a body without `model` is answered, as the hosted service does.

    Args:
        answer: the handler of POST /v1/systemone, authentication included.
        on_error: what the app answers to an error, in the form of /v1/systemone.
        model_names: what may follow `@cf/cloudflare/` in the path.
    """
    router = APIRouter()
    served = frozenset(CLOUDFLARE_PREFIX + name for name in model_names)
    body = {"application/json": {"schema": {"$ref": "#/components/schemas/SystemOneRequest"}}}

    @router.post(
        RUN_PATH,
        response_class=Response,
        responses={
            200: {"model": RunAnswer, "description": "One answer for each question"},
            **{status: {"model": RunFailure, "description": text} for status, text in FAILURES.items()},
        },
        openapi_extra={"requestBody": {"required": True, "content": body}},
    )
    async def run(
        request: Request,
        account_id: Annotated[str, Path(description="Any; this server has no accounts.")],
        model_name: Annotated[str, Path(description=f"A name of the served model after {CLOUDFLARE_PREFIX}.")],
    ) -> Response:
        """Answer every question about the state, in the form of Cloudflare's Workers AI."""
        try:
            if model_name not in served:
                raise UnknownModelError(
                    f"no model '{shorten(model_name)}' is served here; GET /v1/models lists what may follow {CLOUDFLARE_PREFIX}"
                )
            answered = await answer(request)
        except (RequestError, EngineError) as err:
            answered = on_error(request, err)
        except Exception as err:  # noqa: BLE001 - whoever is further out knows nothing of Cloudflare's form
            log_failure(request.state.record, err)
            answered = on_error(request, err)
        return enveloped(answered)

    return router


def enveloped(response: Response) -> Response:
    """The same status and headers around Cloudflare's envelope of a /v1/systemone body, whose numbers keep every digit."""
    body = bytes(response.body)
    if response.status_code == 200:
        wrapped = b'{"result":' + body + b',"success":true,"errors":[],"messages":[]}'
    else:
        errors = _errors(json.loads(body)["detail"])
        wrapped = json_bytes({"result": None, "success": False, "errors": errors, "messages": []})
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return Response(wrapped, status_code=response.status_code, headers=headers)


def _errors(detail: Any) -> list[dict[str, Any]]:
    if isinstance(detail, dict):
        return [{"code": CODES[detail["error_type"]], "message": detail["message"]}]
    return [
        {"code": CODES["validation_error"], "message": fault["msg"], **_source(fault)}  # one for each fault
        for fault in detail
    ]


def _source(fault: Fault) -> dict[str, Any]:
    """Where the fault stands. The body as a whole, and a character of a text that is not JSON, have no pointer."""
    place, *path = fault["loc"]
    if place != "body" or not path or not isinstance(path[0], str):
        return {}
    pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
    return {"source": {"pointer": pointer}}
