"""A server for the hosted service's own clients: our app on loopback, with an engine that can be made to refuse."""

from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from serving.engine import ScoreRequest, ScoreResult
from serving.errors import RequestError
from serving.fake_engine import FakeEngine
from serving.workers_ai import RUN_PATH, workers_ai_router
from tests.serving.harness import make_app, settings

ACCOUNT = "0123456789abcdef0123456789abcdef"
NAMES = {"served_model_name": "Cloudflare/clef-flash"}
MAX_PROMPT_TOKENS = 2_000


@dataclass(kw_only=True)
class RefusingEngine(FakeEngine):
    """Raises what stands in `refusals`, first to last, then answers. The front's own refusals take the same way out."""

    refusals: list[Exception] = field(default_factory=list)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """See `serving.engine.Engine`."""
        if self.refusals:
            self.requests.append(request)
            raise self.refusals.pop(0)
        return await super().score(request)


def hosted_app(engine: FakeEngine, **changes: Any) -> FastAPI:
    """The app, with Cloudflare's form of the API."""
    app = make_app(engine, **changes)
    routes = {route.path: route for route in app.routes if isinstance(route, APIRoute)}
    if RUN_PATH not in routes:
        router = workers_ai_router(
            answer=routes["/v1/systemone"].endpoint,
            on_error=app.exception_handlers[RequestError],
            model_names=settings(**changes).accepted_names,
        )
        app.include_router(router)
    return app
