"""Asking a server: what is sent, what is sent again and when, and what a failure says."""

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.quality.asking import Asked, Failure, Key, Server, ServerError, ask, find_server, wait_s
from benchmarks.quality.records import Record
from serving.fake_engine import FakeEngine
from tests.serving.harness import SERVED_NAME, make_app, reference_body, running_server

QUESTIONS = {
    "urgent": {"type": "noul", "instructions": "Is it urgent?"},
    "team": {"type": "choice", "criteria": {"sales": None, "billing": None}},
    "level": {"type": "score", "criteria": ["low", "middle", "high"]},
}
ANSWERS = {
    "urgent": {"type": "noul", "noul": 0.25},
    "team": {"type": "choice", "choice": "sales", "confidence": 0, "probabilities": {"billing": 0.2, "sales": 0.6}},
    "level": {"type": "score", "score": 1, "confidence": 0, "probabilities": {"0": 0.25, "1": 0.5, "2": 0.25}},
}
RECORDS = [
    Record(
        name=f"r{number}", request={"state": f"case {number}", "questions": QUESTIONS}, labels={"urgent": 1}, group="g"
    )
    for number in range(3)
]
AGAIN = {"retry-after-ms": "1"}


@dataclass
class Reply:
    status: int = 200
    body: Any = field(default_factory=lambda: {"model": "m", "answers": ANSWERS})
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Scripted:
    """A server that answers what it was told to, then well, and keeps what it was asked."""

    url: str = ""
    replies: list[Reply | None] = field(default_factory=list)
    models: Reply = field(default_factory=lambda: Reply(body={"data": [{"id": "m"}]}))
    asked: list[tuple[dict[str, str], Any]] = field(default_factory=list)

    def ask(self, records: Sequence[Record] = RECORDS[:1], **options: Any) -> Asked:
        return ask(records, Server(url=self.url, model="m"), concurrency=1, **options)


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with scripted_server() as server:
        yield server


@contextlib.contextmanager
def scripted_server() -> Iterator[Scripted]:
    script = Scripted()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            script.asked.append(({name.lower(): value for name, value in self.headers.items()}, None))
            self._send(script.models)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            script.asked.append(({name.lower(): value for name, value in self.headers.items()}, body))
            reply = script.replies.pop(0) if script.replies else Reply()
            if reply is None:  # the connection breaks
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True
            else:
                self._send(reply)

        def _send(self, reply: Reply) -> None:
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {**reply.headers, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_request_is_the_record_with_the_model_and_what_is_added(scripted: Scripted) -> None:
    scripted.ask(extra={"cache_salt": "run 1"})
    ((headers, body),) = scripted.asked
    assert body == {"model": "m", "state": "case 0", "questions": QUESTIONS, "cache_salt": "run 1"}
    assert "authorization" not in headers


def test_answers_become_decisions_with_labels_in_the_order_of_the_questions(scripted: Scripted) -> None:
    decisions = scripted.ask().decisions
    assert [(one.question, one.options, one.probabilities, one.label, one.answer) for one in decisions] == [
        ("urgent", ("true", "false"), (0.25, 0.75), 1, "false"),
        ("team", ("sales", "billing"), (pytest.approx(0.75), pytest.approx(0.25)), None, "sales"),
        ("level", ("0", "1", "2"), (0.25, 0.5, 0.25), None, "1"),
    ]
    assert {(one.record, one.record_name, one.group) for one in decisions} == {(0, "r0", "g")}


def test_a_real_front_gives_the_probabilities_of_the_reference() -> None:
    with running_server(make_app(FakeEngine())) as url:
        asked = ask(RECORDS, find_server(url), concurrency=3)
    assert (asked.answered, asked.failures) == (3, [])
    for one in asked.decisions:
        answer = reference_body(RECORDS[one.record].request)["answers"][one.question]
        expected = [answer["noul"], 1 - answer["noul"]] if "noul" in answer else list(answer["probabilities"].values())
        assert one.probabilities == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("status", [429, 503])
def test_who_is_refused_for_now_is_asked_again(scripted: Scripted, status: int) -> None:
    scripted.replies = [Reply(status=status, headers=AGAIN)] * 2
    assert (scripted.ask().answered, len(scripted.asked)) == (1, 3)


def test_a_connection_that_breaks_is_tried_again(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.quality.asking._FIRST_WAIT_S", 0.001)
    scripted.replies = [None]
    assert (scripted.ask().answered, len(scripted.asked)) == (1, 2)


OVERLOADED = {"detail": {"error_type": "overloaded", "message": "the queue is full"}}
INVALID = {"detail": [{"loc": ["body", "state"], "msg": "state 'case 0' is wrong", "type": "value_error"}]}
ODD_TYPE = {"detail": {"error_type": "your state 'case 0' is wrong"}}


@pytest.mark.parametrize(
    ("reply", "options", "failure"),
    [
        pytest.param(
            Reply(status=503, body=OVERLOADED, headers=AGAIN),
            {"attempts": 1},
            ("503 overloaded", "the queue is full"),
            id="refused-to-the-end",
        ),
        pytest.param(
            Reply(status=429, body=OVERLOADED, headers={"retry-after": "86400"}),
            {},
            ("429 overloaded, and to come back in 86400 s", "the queue is full"),
            id="come-back-tomorrow",
        ),
        pytest.param(Reply(status=422, body=INVALID), {}, ("422 value_error", "state 'case 0' is wrong"), id="invalid"),
        pytest.param(Reply(status=500, body=b"oops case 0"), {}, ("500", ""), id="no-json"),
        pytest.param(Reply(status=400, body=ODD_TYPE), {}, ("400", ""), id="a-type-that-is-no-word"),
        pytest.param(Reply(status=307, headers={"location": "/v2"}), {}, ("307", ""), id="redirect"),
        pytest.param(Reply(body=b"case 0"), {}, ("the response has no answers", ""), id="answer-no-json"),
        pytest.param(Reply(body={"answers": {}}), {}, ("question urgent has no answer", ""), id="no-answer"),
        pytest.param(
            Reply(body={"answers": ANSWERS | {"urgent": {"type": "noul"}}}),
            {},
            ("the answer to urgent is not one to a noul question", ""),
            id="noul-without-probability",
        ),
        pytest.param(
            Reply(body={"answers": ANSWERS | {"team": ANSWERS["level"]}}),
            {},
            ("the answer to team is not one to a choice question", ""),
            id="other-type",
        ),
        pytest.param(
            Reply(body={"answers": ANSWERS | {"team": {"type": "choice", "probabilities": {"sales": 1, "legal": 0}}}}),
            {},
            ("the answer to team is not one to a choice question", ""),
            id="other-options",
        ),
        pytest.param(
            Reply(body={"answers": ANSWERS | {"urgent": {"type": "noul", "noul": 1.5}}}),
            {},
            ("the probabilities of urgent are not a distribution", ""),
            id="above-1",
        ),
        pytest.param(
            Reply(body={"answers": ANSWERS | {"urgent": {"type": "noul", "noul": float("nan")}}}),
            {},
            ("the probabilities of urgent are not a distribution", ""),
            id="nan",
        ),
        pytest.param(None, {"attempts": 1}, ("the connection broke: ServerDisconnectedError", ""), id="broken"),
    ],
)
def test_a_failure_is_counted_and_the_others_go_on(
    scripted: Scripted, reply: Reply | None, options: dict[str, Any], failure: tuple[str, str]
) -> None:
    scripted.replies = [reply]
    steps: list[tuple[int, int]] = []
    asked = scripted.ask(RECORDS, progress=lambda done, failed: steps.append((done, failed)), **options)
    reason, words = failure
    assert asked.failures == [Failure(record_name="r0", reason=reason, words=words)]
    assert asked.by_reason == {reason: 1}
    assert asked.answered == 2
    assert {one.record for one in asked.decisions} == {1, 2}
    assert steps == [(1, 1), (2, 1), (3, 1)]
    assert "case 0" not in reason


def test_no_more_are_asked_at_once_than_wanted() -> None:
    most = 0

    class Counting(FakeEngine):
        async def score(self, request: Any) -> Any:
            nonlocal most
            most = max(most, self.running + 1)
            return await super().score(request)

    engine = Counting(delay_s=0.01)
    with running_server(make_app(engine)) as url:
        ask(RECORDS * 4, find_server(url), concurrency=2)
    assert most == 2


def test_an_image_that_went_away_is_a_failure_of_its_record(scripted: Scripted, tmp_path: Any) -> None:
    record = Record(name="r", request=RECORDS[0].request, labels={}, images=[tmp_path / "gone.png"])
    assert scripted.ask([record]).by_reason == {"an image cannot be read: No such file or directory": 1}


def test_without_a_server_every_record_fails_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    asked = ask(RECORDS, Server(url=url, model="m"))
    assert asked.by_reason == {"no connection: ClientConnectorError": 3}
    with pytest.raises(ServerError, match="no server answers at"):
        find_server(url)


@pytest.mark.parametrize(
    ("headers", "attempt", "seconds"),
    [
        pytest.param({"retry-after-ms": "250", "retry-after": "1"}, 1, 0.25, id="milliseconds-first"),
        pytest.param({"retry-after": "7"}, 1, 7, id="seconds"),
        pytest.param({"retry-after": "Mon, 30 Nov 2026 12:00:30 GMT"}, 1, 30, id="date"),
        pytest.param({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT"}, 1, 0, id="date-that-passed"),
        pytest.param({"retry-after": "soon"}, 3, 2, id="unreadable"),
        pytest.param({}, 1, 0.5, id="first"),
        pytest.param({}, 4, 4, id="fourth"),
        pytest.param({}, 99, 30, id="bounded"),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], attempt: int, seconds: float) -> None:
    assert wait_s(headers, attempt, now_s=1796040000) == seconds


@pytest.mark.parametrize("listed", [{"data": [{"id": "m-1"}]}, {"models": [{"name": "m-1"}]}])
def test_the_model_is_the_first_that_the_server_lists(scripted: Scripted, listed: Any) -> None:
    scripted.models = Reply(body=listed)
    assert find_server(scripted.url + "/") == Server(url=scripted.url, model="m-1")


def test_a_real_front_lists_its_model() -> None:
    with running_server(make_app(FakeEngine())) as url:
        assert find_server(url).model == SERVED_NAME


def test_a_named_model_is_not_looked_up(scripted: Scripted) -> None:
    assert find_server(scripted.url, model="mine").model == "mine"
    assert scripted.asked == []


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (Reply(status=404), "/v1/models answers 404; name the model with --model"),
        (Reply(body=b"<html>"), "/v1/models is not JSON"),
        (Reply(body={"data": []}), "/v1/models lists no model"),
        (Reply(body=[1]), "/v1/models lists no model"),
    ],
    ids=["404", "no-json", "none", "list"],
)
def test_a_server_that_lists_no_model_is_an_error(scripted: Scripted, models: Reply, message: str) -> None:
    scripted.models = models
    with pytest.raises(ServerError, match=message):
        find_server(scripted.url)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://", "http://127.0.0.1:port", ""])
def test_an_address_that_is_none_is_an_error(url: str) -> None:
    with pytest.raises(ServerError, match="the address is not one of HTTP"):
        find_server(url, model="m")


@pytest.mark.parametrize("url", ["http://me:s3cret@127.0.0.1:8000", "http://127.0.0.1:8000?key=s3cret"])
def test_an_address_holds_no_secret(url: str) -> None:
    with pytest.raises(ServerError) as err:
        find_server(url, model="m")
    assert "s3cret" not in str(err.value)


def test_a_key_comes_from_the_environment_and_is_shown_nowhere(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", " s3cret\n")
    server = find_server(scripted.url, key=Key.from_environment("MY_KEY", required=True))
    ask(RECORDS[:1], server)
    assert [headers["authorization"] for headers, _ in scripted.asked] == ["Bearer s3cret"] * 2
    assert "s3cret" not in f"{server} {server.key}"


def test_a_key_that_no_header_can_hold_is_an_error_that_does_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Key.from_environment("NO_SUCH_KEY", required=False) is None
    with pytest.raises(ServerError, match="NO_SUCH_KEY holds no usable key"):
        Key.from_environment("NO_SUCH_KEY", required=True)
    monkeypatch.setenv("MY_KEY", "s3\ncret")
    with pytest.raises(ServerError, match="the environment variable MY_KEY holds no usable key$"):
        Key.from_environment("MY_KEY", required=False)
