"""Our OpenAPI 3.1 document: FastAPI's account of the routes, and what their handlers read and send past FastAPI.

Knows what is on the wire, nothing of how it comes about. `serving/openapi.json` is the document as committed; to write it
again: `python -m tests.serving.test_openapi > serving/openapi.json`.
"""

from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from serving.api_types import ErrorBody, SystemOneRequest
from serving.errors import HTTP_ERROR_TYPES, INTERNAL, OUTCOMES, ClientClosedError, InvalidRequestError
from serving.request_body import MULTIPART, REQUEST_PART
from serving.request_frame import REQUEST_ID_HEADER
from serving.worker_endpoints import Loads, ModelInfo, ServerInfo

DESCRIPTION = """A Clef decision model answers typed questions about a state: `noul` (yes or no), `choice` and `score`.

Every response is JSON and carries `x-typesafe-request-id`. A path or a method that is not described here is answered with
404 or 405 and an `ErrorBody`; `/metrics`, where the operator shows it here, is a page for Prometheus."""
KEY = "key"

# The routes that answer questions, which share body, headers and keys.
ASKED = ("/v1/systemone", "/client/v4/accounts/{account_id}/ai/run/{model_name}")

PARAMETERS: dict[str, Any] = {
    "content-encoding": {
        "description": "How the body is compressed. Several codings one upon the other are not read.",
        "schema": {"type": "string", "enum": ["gzip", "x-gzip", "zstd", "identity"]},
    },
    "x-request-timeout-ms": {
        "description": "When the answer is of no more use, in milliseconds from now: later there is 503 instead. The "
        "server has a limit of its own, which this cannot exceed.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    },
    "x-request-priority": {
        "description": "Who goes first where requests wait for the model.",
        "schema": {"type": "string", "enum": ["low", "normal", "high"], "default": "normal"},
    },
}

_DURATION = {"type": "integer", "minimum": 0}
HEADERS: dict[str, Any] = {
    REQUEST_ID_HEADER: {
        "description": "The id of this request in the server's log.",
        "required": True,
        "schema": {"type": "string", "format": "uuid"},
    },
    "x-truncated-tokens": {
        "description": "How many tokens were cut from the state's end; absent where none were.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "retry-after": {"description": "When to try again, in seconds.", "required": True, "schema": _DURATION},
    "retry-after-ms": {
        "description": "The same in milliseconds, exactly.",
        "required": True,
        "schema": _DURATION,
    },
    "www-authenticate": {
        "description": "The scheme of the key that was missing or not known.",
        "required": True,
        "schema": {"type": "string", "const": "Bearer"},
    },
    "accept-encoding": {
        "description": "The codings that are read here, where it was the content-encoding that is not.",
        "schema": {"type": "string"},
    },
}
HEADERS_OF: dict[str, tuple[str, ...]] = {
    "200": ("x-truncated-tokens",),
    "401": ("www-authenticate",),
    "415": ("accept-encoding",),
    "429": ("retry-after", "retry-after-ms"),
    "503": ("retry-after", "retry-after-ms"),
}

_IMAGE = (
    "a data URL, base64, an http(s) URL where the server allows its host, SGLang's object or Cloudflare's. PNG, JPEG, WebP "
    "or a GIF of one frame; the bytes decide"
)
FIELDS: dict[str, str] = {
    "model": "A name that `GET /v1/models` lists; `@cf/cloudflare/` may stand before it.",
    "state": "What the questions are about. Objects and arrays are read as JSON with sorted keys.",
    "questions": "By ids of your choice, under which the answers come.",
    "cache_salt": "Requests share the computation of equal states only under equal salts.",
    "x_question_ids": "Whether the model reads the ids, or `q1`, `q2`, ... in their place.",
    "x_isolated": "Whether each question is asked in a prompt of its own; at most 128 then.",
    "assets": "Images by a name that strings of state, instructions or criteria hold; there the model reads `<image N>`. "
    "Each must be referred to.",
    "images": f"Read before the state. Each is {_IMAGE}.",
    "videos": "Read after the images. Each is a file, MP4 or WebM, as a data URL, base64, an http(s) URL where the server "
    f"allows its host, or an object that holds one; or a list of frames with their rate, each {_IMAGE}.",
    "media_kwargs": "How videos are sampled.",
    "over_limit": "What becomes of a prompt over the limit: 413, or the state's end is cut; null is the server's choice.",
}
EXAMPLE = {
    "model": "clef",
    "state": "From: accounts@halden-freight.example\nReminder: invoice INV-2041 of 3 March is still unpaid.",
    "questions": {
        "overdue": {"type": "noul", "instructions": "Is the payment overdue?"},
        "status": {"type": "choice", "criteria": {"paid": None, "unpaid": "no payment has been received"}},
        "tone": {"type": "score", "instructions": "How firm?", "criteria": ["friendly", "firm", "threatening"]},
    },
}
# Fields of these have defaults for whoever builds them in Python; on the wire every one is always there.
ANSWERED = ("NoulAnswer", "ChoiceAnswer", "ScoreAnswer", "Usage")
# A 422 has a list of faults instead, and a client that left receives nothing.
ERROR_TYPES = sorted(
    {
        *(made.error_type for error, made in OUTCOMES.items() if error not in (InvalidRequestError, ClientClosedError)),
        *(INTERNAL.error_type, *HTTP_ERROR_TYPES.values()),
    }
)


class NamedModel(BaseModel):
    """A name that `model` may hold, in TypeSafe's form."""

    name: str
    description: str
    release_date: str


class ListedModel(BaseModel):
    """The same in OpenAI's form. `revision` is there where it is known."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    revision: str | None = None


class ModelList(BaseModel):
    """All names of the one model that is served, in both forms."""

    models: list[NamedModel]
    object: Literal["list"]
    data: list[ListedModel]


class Status(BaseModel):
    """What a probe is told."""

    status: Literal["alive", "ready"]


# What GET routes answer, by path and status.
PLAIN: dict[str, dict[str, tuple[type[BaseModel], str]]] = {
    "/v1/models": {"200": (ModelList, "The names of the model")},
    "/livez": {"200": (Status, "Alive"), "503": (ErrorBody, "The engine is gone for good")},
    "/readyz": {
        "200": (Status, "Ready"),
        "503": (ErrorBody, "Starting, shutting down, or the engine is gone for good"),
    },
    "/health": {
        "200": (Status, "Ready"),
        "503": (ErrorBody, "Starting, shutting down, or the engine is gone for good"),
    },
    "/model_info": {"200": (ModelInfo, "The model, as SGLang's server tells a router")},
    "/server_info": {"200": (ServerInfo, "Limits, as SGLang's server tells a router")},
    "/v1/loads": {"200": (Loads, "What runs and what waits, as SGLang's server tells a router")},
}


def document(app: FastAPI) -> dict[str, Any]:
    """The document of an app, made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=DESCRIPTION,
            routes=app.routes,
            license_info={"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        )
        made["components"] |= {
            "parameters": {name: {"name": name, "in": "header"} | text for name, text in PARAMETERS.items()},
            "headers": HEADERS,
            "securitySchemes": {
                KEY: {"type": "http", "scheme": "bearer", "description": "Needed where the operator has set keys."}
            },
        }
        _describe_asked(made["paths"])
        _describe_plain(made["paths"])
        _describe_schemas(made["components"]["schemas"])
        app.openapi_schema = made
    return app.openapi_schema


def _describe_asked(paths: dict[str, Any]) -> None:
    for path in ASKED:
        paths[path]["parameters"] = [_named("parameters", name) for name in PARAMETERS]
        paths[path]["post"] |= {"requestBody": _body(), "security": [{KEY: []}, {}]}
        for status, response in paths[path]["post"]["responses"].items():
            response["headers"] = _headers(*HEADERS_OF.get(status, ()))


def _describe_plain(paths: dict[str, Any]) -> None:
    for path, responses in PLAIN.items():
        for status, (model, text) in responses.items():
            paths[path]["get"]["responses"][status] = {
                "description": text,
                "content": {"application/json": {"schema": _named("schemas", model.__name__)}},
                "headers": _headers() if status == "200" else _headers(*HEADERS_OF[status]),
            }


def _describe_schemas(schemas: dict[str, Any]) -> None:
    models: list[type[BaseModel]] = [SystemOneRequest]
    models += [model for responses in PLAIN.values() for model, _ in responses.values()]
    for model in models:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
    for field, text in FIELDS.items():
        schemas["SystemOneRequest"]["properties"][field]["description"] = text
    for name in ANSWERED:
        properties = schemas[name]["properties"]
        schemas[name]["required"] = list(properties)
        for described in properties.values():
            described.pop("default", None)
    schemas["ErrorDetail"]["properties"]["error_type"]["enum"] = ERROR_TYPES


def _body() -> dict[str, Any]:
    request = _named("schemas", "SystemOneRequest")
    file = {"type": "string", "contentMediaType": "application/octet-stream"}
    form = {
        "type": "object",
        "properties": {REQUEST_PART: request},
        "required": [REQUEST_PART],
        "additionalProperties": file,
        "propertyNames": {"minLength": 1},
    }
    return {
        "description": "JSON in UTF-8, also as `application/*+json` or without a content-type. In a multipart body every part "
        f"beside `{REQUEST_PART}` is the image of the one asset whose `part` names it.",
        "required": True,
        "content": {
            "application/json": {"schema": request, "example": EXAMPLE},
            MULTIPART: {"schema": form, "encoding": {REQUEST_PART: {"contentType": "application/json"}}},
        },
    }


def _headers(*names: str) -> dict[str, Any]:
    return {name: _named("headers", name) for name in (REQUEST_ID_HEADER, *names)}


def _named(kind: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}
