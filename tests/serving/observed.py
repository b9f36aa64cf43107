"""An app that is counted and traced, around a fake engine, and requests whose every count is known."""

from typing import Any

from fastapi import FastAPI

from serving.app import create_app
from serving.engine import Engine
from serving.metrics import Metrics
from serving.tracing import Tracing
from tests.serving.harness import SERVED_NAME, settings, tiny_tokenizer

# Words that must be in no log line, metric or span.
SECRETS = ("Lindqvist", "refund", "Billing", "arrived", "sk-clef-secret", "account-4711")
REQUEST: dict[str, Any] = {
    "state": {"order": "A-17", "text": "The parcel of Lindqvist & Sons arrived broken."},
    "questions": {
        "refund": {"type": "noul", "instructions": "Does the customer want a refund?"},
        "team": {"type": "choice", "instructions": "Which team?", "criteria": {"Logistics": None, "Billing": "money"}},
        "urgency": {"type": "score", "criteria": ["low", "middle", {"level": "high"}]},
    },
}
# As the reference encodes it with the tiny tokenizer, a token a byte.
STATE_TOKENS = 72
SCHEMA_TOKENS = 722
RUN_PATH = "/client/v4/accounts/account-4711/ai/run/@cf/cloudflare/clef"


def observed_app(
    engine: Engine, *, metrics: Metrics | None = None, tracing: Tracing | None = None, metrics_route: bool = True
) -> FastAPI:
    return create_app(
        engine=engine,
        tokenizer=tiny_tokenizer(),
        settings=settings(),
        metrics=metrics,
        metrics_route=metrics_route,
        tracing=tracing,
    )


def new_metrics() -> Metrics:
    return Metrics(served_model_name=SERVED_NAME, revision="0123abc")
