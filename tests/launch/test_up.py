"""`clef-serve up` as a process, with a fake engine: how it gets ready, stops, and ends when its engine dies."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from benchmarks.random_release import build_random_release
from launch.up import prompt_limit, ready_message
from model_plugin.checkpoint import read_release
from tests.launch.running import Running, alive, running

READY = r"clef-serve is ready at (http://\S+)"
START_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_random_release(tmp_path_factory.mktemp("up") / "some-release"))


@pytest.fixture(scope="module")
def steady(release: str) -> Iterator[Running]:
    """A ready server that the tests using it leave running."""
    with running("tests.launch.fake_up", "up", "--model", release, "--device", "cpu", "--port", "0") as started:
        started.wait_for(READY, START_TIMEOUT_S)
        started.wait_for("^curl ", 5)
        yield started


@pytest.fixture
def server(release: str) -> Iterator[Running]:
    with running("tests.launch.fake_up", "up", "--model", release, "--device", "cpu", "--port", "0") as started:
        yield started


def start_faulty(release: str, fault: str) -> "Iterator[Running]":
    return running(  # type: ignore[return-value]
        "tests.launch.fake_up",
        "up",
        "--model",
        release,
        "--device",
        "cpu",
        "--port",
        "0",
        environ={"FAKE_ENGINE": fault},
    )


def test_the_printed_curl_line_works_as_it_is(steady: Running) -> None:
    command = steady.lines[-1]
    assert re.match(r"curl -s http://127\.0\.0\.1:\d+/v1/systemone ", command)
    answered = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=30, check=True)
    body = json.loads(answered.stdout)
    assert body["model"] == "some-release"
    assert set(body["answers"]) == {"page", "team"}


def test_metrics_on_a_port_of_their_own_and_json_lines(release: str) -> None:
    arguments = [
        "up",
        "--model",
        release,
        "--device",
        "cpu",
        "--port",
        "0",
        "--metrics-port",
        "0",
        "--log-format",
        "json",
    ]
    # Nobody listens there, which must disturb nothing.
    with running("tests.launch.fake_up", *arguments, "--otlp-endpoint", "http://127.0.0.1:9") as server:
        port = server.wait_for(r"metrics: port (\d+)", START_TIMEOUT_S)[1]
        url = server.wait_for(READY, START_TIMEOUT_S)[1]
        body = json.dumps({"state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}}).encode()
        request = urllib.request.Request(f"{url}/v1/systemone", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answered:
            request_id = answered.headers["x-typesafe-request-id"]
        line = json.loads(server.wait_for(r'^\{.*"message": ?"request".*$', 10)[0])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
            text = page.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/metrics", timeout=30)
        server.send(signal.SIGTERM)
        assert server.end(20) == 0, server.lines
    assert (line["request_id"], line["status"], line["route"]) == (request_id, 200, "/v1/systemone")
    assert re.search(r'clef_requests_total\{outcome="ok",route="/v1/systemone",status="200"\} 1\.0', text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--otlp-endpoint", "collector:4318"], "otlp_endpoint must begin with http:// or https://"),
        (["--api-keys", "/no/such/file"], "cannot read /no/such/file: No such file or directory"),
    ],
)
def test_what_cannot_be_had_is_said_before_the_engine_loads(release: str, arguments: list[str], message: str) -> None:
    ours = ["up", "--model", release, "--device", "cpu", "--port", "0", *arguments]
    with running("tests.launch.fake_up", *ours) as server:
        assert server.end(60) == 2
    assert message in server.lines[-1]
    assert not any("loading the engine" in line for line in server.lines)


def test_progress_says_device_checkpoint_and_loading_before_ready(steady: Running) -> None:
    text = "\n".join(steady.lines)
    assert re.search(
        r"device: cpu.*checkpoint: \S+some-release.*loading the engine.*warming up.*ready at", text, re.DOTALL
    )


@pytest.mark.parametrize("stop", ["sigterm", "ctrl_c"])
def test_a_signal_stops_it_with_status_0_and_its_children_with_it(server: Running, stop: str) -> None:
    server.wait_for(READY, START_TIMEOUT_S)
    children = server.tree()
    assert children
    if stop == "sigterm":
        server.send(signal.SIGTERM)
    else:
        server.press_ctrl_c()
    assert server.end(20) == 0, server.lines
    assert alive(children) == []
    assert server.lines[-1] == "clef-serve: stopped"


def test_a_request_in_flight_is_answered_before_sigterm_ends_the_server(release: str) -> None:
    with start_faulty(release, "slow_answers") as server:
        url = server.wait_for(READY, START_TIMEOUT_S)[1]
        answers: list[int] = []
        request = urllib.request.Request(
            f"{url}/v1/systemone",
            json.dumps({"state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}}}).encode(),
            {"content-type": "application/json"},
        )

        def ask() -> None:
            with urllib.request.urlopen(request, timeout=30) as response:
                answers.append(response.status)

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.4)  # the answer takes a second
        server.send(signal.SIGTERM)
        asking.join(20)
        assert answers == [200]
        assert server.end(20) == 0


@pytest.mark.parametrize("stop", ["sigterm", "ctrl_c"])
def test_a_signal_while_loading_stops_it_too(release: str, stop: str) -> None:
    with start_faulty(release, "slow_start") as server:
        server.wait_for("fake engine child", START_TIMEOUT_S)
        children = server.tree()
        if stop == "sigterm":
            server.send(signal.SIGTERM)
        else:
            server.press_ctrl_c()
        assert server.end(15) == 0, server.lines
        assert server.lines[-1] == "clef-serve: stopped while loading"
        assert alive(children) == []


def test_children_do_not_see_ctrl_c(steady: Running) -> None:
    (child,) = steady.engine()
    os.kill(child.pid, signal.SIGINT)
    time.sleep(0.5)
    assert alive([child]) == [child]


@pytest.mark.parametrize("fault", ["", "hang_on_close"])
def test_an_engine_that_dies_ends_the_server_within_10_seconds_and_says_so_last(release: str, fault: str) -> None:
    with start_faulty(release, fault) as server:
        server.wait_for(READY, START_TIMEOUT_S)
        (child,) = server.engine()
        died = time.monotonic()
        child.kill()
        assert server.end(12) == 1
        assert time.monotonic() - died < 10
        expected = f"clef-serve: the engine's scheduler process (pid {child.pid}) ended with exit code -9"
        assert server.lines[-1] == expected


def test_an_engine_that_does_not_start_leaves_status_1_the_reason_and_no_child(release: str) -> None:
    with start_faulty(release, "start_error") as server:
        child = int(server.wait_for(r"fake engine child (\d+)", START_TIMEOUT_S)[1])
        assert server.end(20) == 1
        assert server.lines[-1] == "clef-serve: the fake engine did not start"
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def test_a_port_in_use_is_said_at_once(release: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with running("tests.launch.fake_up", "up", "--model", release, "--device", "cpu", "--port", port) as server:
            assert server.end(30) == 2
            assert server.lines[-1].startswith(f"clef-serve: error: cannot listen on 127.0.0.1 port {port}: ")
            assert not any("loading" in line for line in server.lines)


def test_the_prompt_limit_is_the_documented_context_or_less(release: str) -> None:
    whole = read_release(release)
    assert prompt_limit(None, whole) == 65_536
    assert prompt_limit(1000, whole) == 1000
    with pytest.raises(ValueError, match="max-prompt-tokens 65537 exceeds the checkpoint's context of 65536"):
        prompt_limit(65_537, whole)


def test_the_ready_message_quotes_for_a_shell() -> None:
    message = ready_message("http://127.0.0.1:8000", "it's")
    command = message.splitlines()[-1]
    printed = subprocess.run(["/bin/sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True)
    assert json.loads(printed.stdout.splitlines()[-1])["model"] == "it's"
