"""What becomes of requests and answers on their way through smg 1.13.0: carried, changed, refused or lost.

The last three are facts that the chart's README tells. Where a newer smg does better, these tests say so.
"""

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import zstandard

from serving.errors import OverloadedError, RateLimitedError
from serving.settings import ServingSettings
from tests.clients.hosted import RefusingEngine
from tests.k8s.chart import CHART
from tests.routing.backends import Backend, backends
from tests.routing.routers import ROUTED, Router, routing
from tests.serving.harness import SERVED_NAME, key_ring, make_app, running_server

KEY = "clef-orders-key"
ASK = CHART / "files" / "ask.py"
NOUL = {"type": "noul", "instructions": "Is it late?"}
REQUEST: dict[str, Any] = {"model": SERVED_NAME, "state": "Order 17 is late.", "questions": {"late": NOUL}}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    keys = key_ring(tmp_path_factory.mktemp("keys") / "keys.toml", {KEY: ""})
    with backends(1, keys=keys, max_prompt_tokens=12_000) as (made,):
        yield made


@pytest.fixture(scope="module")
def router(arguments: list[str], engine: Backend) -> Iterator[Router]:
    with routing(arguments, [engine.url]) as started:
        started.client.headers["authorization"] = f"Bearer {KEY}"
        yield started


def direct(engine: Backend, body: Any, **headers: str) -> httpx.Response:
    with httpx.Client(headers={"authorization": f"Bearer {KEY}", **headers}) as client:
        return client.post(f"{engine.url}/v1/systemone", json=body)


CARRIED: dict[str, dict[str, Any]] = {
    "text": {},
    "an-object-state": {"state": {"z": 1, "a": {"y": [1, 2.5, None, True], "b": "c"}, "n": -3}},
    "an-array-state": {"state": [{"b": 1, "a": 2}, "x"]},
    "characters": {"state": 'é ß 😀 \u2028 \x7f \x00 \\ / " \t\r\n <|im_end|>'},
    "numbers-of-15-digits": {"state": [0.1, 12345.6789, 1e-7, 1.5e300, 123456789012345.0, -0.0, 1e22, 100.0]},
    "integers-of-64-bits": {"state": [2**63 - 1, -(2**63), 2**64 - 1, 2**53 + 1]},
    "the-order-of-questions-and-options": {
        "questions": {
            "zeta": {"criteria": {"z": None, "a": {"y": 1, "b": 2}, "m": ["x"]}, "type": "choice"},
            "alpha": {"criteria": ["low", {"level": "high", "a": 1}, ["most"]], "type": "score", "instructions": ["i"]},
            "mid": {"type": "noul", "criteria": {"false": None, "true": "t"}},
        }
    },
    "255-options": {"questions": {"q": {"type": "choice", "criteria": {f"o{n}": None for n in range(255)}}}},
    "our-own-fields": {
        "x_isolated": True,
        "x_question_ids": "neutral",
        "cache_salt": "s",
        "questions": {"b": NOUL, "a": NOUL},
    },
    "a-state-that-is-cut": {"state": "x" * 20_000, "over_limit": "truncate"},
}


@pytest.mark.parametrize("fields", CARRIED.values(), ids=CARRIED)
def test_answers_are_those_of_the_engine(router: Router, engine: Backend, fields: dict[str, Any]) -> None:
    engine.engine.requests.clear()
    through, straight = router.ask(REQUEST | fields), direct(engine, REQUEST | fields)
    assert through.status_code == straight.status_code == 200, through.text
    assert through.content == straight.content
    asked = engine.engine.requests
    half = len(asked) // 2
    assert [request.input_ids for request in asked[:half]] == [request.input_ids for request in asked[half:]]
    for name in ("content-type", "x-truncated-tokens"):
        assert through.headers.get(name) == straight.headers.get(name)
    assert len(through.headers["x-typesafe-request-id"]) == 36


def test_every_name_of_the_model_but_none(router: Router, engine: Backend) -> None:
    names = ServingSettings(served_model_name=SERVED_NAME, max_prompt_tokens=1).accepted_names
    for name in names:
        for form in (name, f"@cf/cloudflare/{name}"):
            assert router.ask(REQUEST | {"model": form}).status_code == 200, form
    unknown, unnamed = router.ask(REQUEST | {"model": "other"}), router.ask({**REQUEST, "model": None})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    # The engine takes it.
    assert (unnamed.status_code, unnamed.json()["error"]["param"]) == (400, "model")
    assert direct(engine, {**REQUEST, "model": None}).status_code == 200


ENGINES_OWN: dict[str, tuple[Any, int]] = {
    "too-long": (REQUEST | {"state": "x" * 20_000}, 413),
    "nothing-to-decide": (REQUEST | {"questions": {"q": {"type": "noul"}}}, 422),
    "a-misspelt-key": (REQUEST | {"questions": {"q": NOUL | {"instruction": "x"}}}, 422),
    "a-field-of-another-api": (REQUEST | {"temperature": 1}, 422),
    "256-options": (
        REQUEST | {"questions": {"q": {"type": "choice", "criteria": dict.fromkeys(map(str, range(256)))}}},
        422,
    ),
}


@pytest.mark.parametrize(("body", "status"), ENGINES_OWN.values(), ids=ENGINES_OWN)
def test_refusals_pass_as_they_are(router: Router, engine: Backend, body: Any, status: int) -> None:
    engine.seen.clear()
    through = router.ask(body)
    assert len(engine.asked) == 1
    straight = direct(engine, body)
    assert through.status_code == straight.status_code == status
    assert through.content == straight.content


def test_a_missing_key_is_refused_by_the_engine(router: Router, engine: Backend) -> None:
    engine.seen.clear()
    for key in ("Bearer wrong", ""):
        refused = router.ask(REQUEST, authorization=key)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert refused.json()["detail"]["error_type"] == "authentication_error"
    assert len(engine.asked) == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [(OverloadedError("full", retry_after_ms=1700), 503), (RateLimitedError("used up", retry_after_ms=1700), 429)],
    ids=["503", "429"],
)
def test_a_refusal_for_now_costs_one_more_attempt_and_passes_as_it_is(
    arguments: list[str], error: Exception, status: int
) -> None:
    one, other = RefusingEngine(), RefusingEngine()
    with (
        running_server(make_app(one)) as url,
        running_server(make_app(other)) as other_url,
        routing(arguments, [url, other_url]) as router,
    ):
        one.refusals += [error] * 9
        other.refusals += [error] * 9
        refused = router.ask(REQUEST)
    assert (refused.status_code, refused.json()["detail"]["message"]) == (status, str(error))
    assert (refused.headers["retry-after"], refused.headers["retry-after-ms"]) == ("2", "1700")
    # One attempt on each.
    assert (len(one.refusals), len(other.refusals)) == (8, 8)


def test_where_all_engines_refuse_again_and_again_it_refuses_itself(arguments: list[str]) -> None:
    refusing = RefusingEngine()
    with running_server(make_app(refusing)) as url, routing(arguments, [url]) as router:
        refusing.refusals += [OverloadedError("full", retry_after_ms=1700)] * 30
        answers = [router.ask(REQUEST) for _ in range(12)]  # ten in a row open its circuit breaker
        left = len(refusing.refusals)
        last = router.ask(REQUEST)
    assert {answer.status_code for answer in (*answers, last)} == {503}
    assert len(refusing.refusals) == left > 0
    assert (last.json()["error"]["code"], last.headers["retry-after"]) == ("no_available_workers", "1")


LARGE = REQUEST | {"state": "x" * 2**23}


def test_bodies_up_to_the_engines_own_limit(router: Router, engine: Backend, arguments: list[str]) -> None:
    engine.seen.clear()
    assert router.ask(LARGE).status_code == 413
    assert len(engine.asked[0].body) > 2**23
    limit = ServingSettings(served_model_name=SERVED_NAME, max_prompt_tokens=1).max_wire_bytes
    assert f"--max-payload-size={limit}" in arguments
    engine.seen.clear()
    over = router.client.post("/v1/systemone", content=b" " * (limit + 1), headers={"content-type": "application/json"})
    assert (over.status_code, over.json()["error"]["code"]) == (413, "request_body_too_large")
    assert not engine.asked


def test_which_headers_pass(router: Router, engine: Backend) -> None:
    engine.seen.clear()
    sent = {
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "a=b",
        "x-request-id": "mine",
        "x-request-timeout-ms": "60000",
        "x-request-priority": "high",
        "x-typesafe-retry-count": "1",
        "x-another": "1",
    }
    answer = router.client.post("/v1/systemone", json=REQUEST, headers=sent)
    assert answer.status_code == direct(engine, REQUEST, **sent).status_code == 200
    through, straight = engine.asked
    assert {name for name in sent if name in straight.headers} == set(sent)
    assert {name for name in sent if name in through.headers} == {"traceparent", "tracestate", "x-request-id"}
    assert through.headers["authorization"] == f"Bearer {KEY}"
    # What it adds to the answer: its own id of the request, and the engine's address.
    assert (answer.headers["x-request-id"], answer.headers[ROUTED]) == ("mine", engine.url)


CHANGED: dict[str, tuple[str, Any]] = {
    "a-size-beyond-1e-22": ("3.1416e-150", 3.1415999999999997e-150),
    "more-than-15-digits": ("-420436.77081902884", -420436.7708190288),
    "more-than-64-bits": ("123456789012345678901234567890", 1.2345678901234568e29),
    "a-key-twice": ('{"a":1,"a":2}', {"a": 2}),
}


@pytest.mark.parametrize(("text", "arrived"), CHANGED.values(), ids=CHANGED)
def test_what_is_changed(router: Router, engine: Backend, text: str, arrived: Any) -> None:
    engine.seen.clear()
    body = json.dumps(REQUEST | {"state": ["HERE"]}).replace('"HERE"', text).encode()
    answer = router.client.post("/v1/systemone", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    found = json.loads(engine.asked[0].body)["state"][0]
    assert (found, type(found)) == (arrived, type(arrived))


RAW = json.dumps(REQUEST).encode()
FORM = (
    b'--b\r\ncontent-disposition: form-data; name="request"\r\ncontent-type: application/json\r\n\r\n'
    + RAW
    + b"\r\n--b--\r\n"
)
UNREAD: dict[str, tuple[bytes, dict[str, str]]] = {
    "multipart": (FORM, {"content-type": "multipart/form-data; boundary=b"}),
    "gzip": (gzip.compress(RAW), {"content-type": "application/json", "content-encoding": "gzip"}),
    "zstd": (zstandard.compress(RAW), {"content-type": "application/json", "content-encoding": "zstd"}),
    "no-content-type": (RAW, {}),
    "half-a-surrogate-pair": (
        json.dumps(REQUEST | {"questions": {"q": NOUL, "\ud800": NOUL}}).encode(),
        {"content-type": "application/json"},
    ),
}


@pytest.mark.parametrize(("body", "headers"), UNREAD.values(), ids=UNREAD)
def test_what_is_refused(router: Router, engine: Backend, body: bytes, headers: dict[str, str]) -> None:
    engine.seen.clear()
    answer = router.client.post("/v1/systemone", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"  # OpenAI's form of an error, not SystemOne's
    assert not engine.asked


def test_other_paths_do_not_lead_to_the_engine(router: Router, engine: Backend) -> None:
    engine.seen.clear()
    run = "/client/v4/accounts/a/ai/run/@cf/cloudflare/clef"
    assert router.client.post(run, json=REQUEST).status_code == 404
    for path in ("/openapi.json", "/livez", "/readyz", "/metrics", "/model_info", "/server_info", "/v1/loads"):
        assert router.client.get(path).status_code == 404, path
    models = router.client.get("/v1/models").json()
    assert [model["id"] for model in models["data"]] == [SERVED_NAME]
    assert "models" not in models  # TypeSafe's form
    polled = {"/health", "/v1/loads?include=core,disagg,queues,memory"}
    assert {seen.path for seen in engine.seen} <= polled


@pytest.mark.parametrize("key", [KEY, ""], ids=["with-a-key", "without-one"])
def test_helm_test_passes_through_it(router: Router, key: str) -> None:
    environ = {"CLEF_URL": router.url, "CLEF_WANTS_KEYS": "true", "CLEF_TEST_KEY": key}
    done = subprocess.run([sys.executable, ASK], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("ok     the answer" in done.stdout) is bool(key)
