"""What a router asks of the servers behind it: is one well, what does it serve, how busy is it. Knows no request.

Paths, fields and types are those of SGLang 0.5.23's own server (`entrypoints/http_server.py`, `v1_loads.py` and
`managers/load_snapshot.py`), as far as they mean something here, so that a router made for it reads them: smg 1.13.0 asks
`/health` again and again, the next two once, `/v1/loads` every 10 seconds, all without a key. None of it is a secret, and a
path on this machine or a server argument is in none of it.
"""

import time
from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from serving.admission import Admission
from serving.errors import json_bytes
from serving.lifecycle import Lifecycle
from serving.settings import ServingSettings


class ModelInfo(BaseModel):
    """The model. In place of paths there is its name; `weight_version` is its revision where that is known."""

    model_path: str
    tokenizer_path: str
    served_model_name: str
    is_generation: Literal[False]
    has_image_understanding: bool
    has_audio_understanding: Literal[False]
    weight_version: str | None = None


class ServerInfo(BaseModel):
    """How much is taken at one time. Lengths are in tokens."""

    model_path: str
    served_model_name: str
    is_embedding: Literal[True]
    context_length: int
    max_running_requests: int


class Load(BaseModel):
    """What is here now. Running is what was handed to the engine, waiting what is not yet; tokens are of prompts.

    How many of the waiting tokens are cached is not known before they are computed: `num_waiting_uncached_tokens` counts
    all. `token_usage` is the share that running requests take of what may run.
    """

    timestamp: float
    dp_rank: Literal[0]
    num_running_reqs: int
    num_waiting_reqs: int
    num_waiting_uncached_tokens: int
    num_used_tokens: int
    num_total_tokens: int
    max_total_num_tokens: int
    max_running_requests: int
    token_usage: float


class Loads(BaseModel):
    """The load of the one engine behind this server."""

    timestamp: str
    loads: list[Load]


def worker_router(
    *, settings: ServingSettings, lifecycle: Lifecycle, admission: Admission, sees_images: bool
) -> APIRouter:
    """The four routes.

    Args:
        settings: names and limits.
        lifecycle: /health is 200 while it is ready, and 503 before, while draining and after.
        admission: whose numbers /v1/loads gives.
        sees_images: whether images are answered.
    """
    router = APIRouter()
    name = settings.served_model_name
    model = ModelInfo(
        model_path=name,
        tokenizer_path=name,
        served_model_name=name,
        is_generation=False,
        has_image_understanding=sees_images,
        has_audio_understanding=False,
        weight_version=settings.model_revision,
    )
    server = ServerInfo(
        model_path=name,
        served_model_name=name,
        is_embedding=True,
        context_length=settings.max_prompt_tokens,
        max_running_requests=settings.max_running_requests,
    )

    @router.get("/health", response_class=Response)
    async def health() -> Response:
        """Tell a router whether to send requests here."""
        lifecycle.require_ready()
        return _json({"status": "ready"})

    @router.get("/model_info", response_class=Response)
    async def model_info() -> Response:
        """Tell a router what is served."""
        return _json(model.model_dump(exclude_none=True))

    @router.get("/server_info", response_class=Response)
    async def server_info() -> Response:
        """Tell a router how much is taken."""
        return _json(server.model_dump())

    @router.get("/v1/loads", response_class=Response)
    async def loads() -> Response:
        """Tell a router how busy this server is."""
        now = time.time()
        return _json(
            Loads(
                timestamp=datetime.fromtimestamp(now, UTC).isoformat(), loads=[_load(admission, settings, now)]
            ).model_dump()
        )

    return router


def _load(admission: Admission, settings: ServingSettings, now: float) -> Load:
    running, waiting = admission.running_tokens, admission.waiting_tokens
    return Load(
        timestamp=now,
        dp_rank=0,
        num_running_reqs=admission.running_requests,
        num_waiting_reqs=admission.waiting_requests,
        num_waiting_uncached_tokens=waiting,
        num_used_tokens=running,
        num_total_tokens=running + waiting,
        max_total_num_tokens=settings.max_running_tokens,
        max_running_requests=settings.max_running_requests,
        token_usage=min(1.0, running / settings.max_running_tokens),  # one request runs whatever its size
    )


def _json(value: dict[str, Any]) -> Response:
    return Response(json_bytes(value), media_type="application/json")
