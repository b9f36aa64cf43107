"""`clef-serve demo`: starts a real server as its own process, asks it the two records, prints the answers, stops it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from launch.demo_records import RECORDS
from launch.settings import UpSettings, as_arguments
from launch.up import say

READY_CHECK_INTERVAL_S = 0.2
REQUEST_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60


class DemoError(Exception):
    """The server did not start, answer or stop as it should; the message says which."""


def demo(settings: UpSettings) -> int:
    """Run the demonstration; the exit status. The last line on standard output is one JSON object."""
    url = f"http://127.0.0.1:{_free_port()}"
    command = [
        sys.executable,
        "-m",
        "launch",
        "up",
        *as_arguments(settings, host="127.0.0.1", port=url.rsplit(":")[-1]),
    ]
    # Standard output is for the answers, so the server's goes to standard error. Its own session keeps Ctrl-C for us.
    server = subprocess.Popen(command, stdout=sys.stderr, start_new_session=True)  # noqa: S603 - our own command
    try:
        _wait_until_ready(server, url)
        answers = {name: _ask(url, record) for name, record in RECORDS.items()}
        _stop(server)
    except DemoError as err:
        say(f"demo failed: {err}")
        return 1
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()
    for name, answer in answers.items():
        print(f"{table(name, answer)}\n")
    print(json.dumps(answers, ensure_ascii=False))
    return 0


def table(name: str, response: dict[str, Any]) -> str:
    """The answers of one response as lines of text: question, answer, confidence, and how the probability is spread."""
    rows = [("question", "answer", "confidence", "probabilities")]
    for question, answer in response["answers"].items():
        match answer["type"]:
            case "noul":
                yes = answer["noul"]
                rows.append((question, "yes" if yes >= 0.5 else "no", "", f"yes {yes:.4f}, no {1 - yes:.4f}"))
            case "choice":
                rows.append(
                    (question, answer["choice"], f"{answer['confidence']:.4f}", _spread(answer["probabilities"]))
                )
            case "score":
                named = {str(answer["legend"][level]): p for level, p in answer["probabilities"].items()}
                highest = len(answer["legend"]) - 1
                rows.append(
                    (question, f"{answer['score']:.2f} of {highest}", f"{answer['confidence']:.4f}", _spread(named))
                )
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    usage = response["usage"]["input_tokens"]
    title = f"{name} ({response['model']}, {usage} prompt tokens)"
    return "\n".join([title, lines[0], "-" * len(lines[0]), *lines[1:]])


def _spread(probabilities: dict[str, float]) -> str:
    return ", ".join(f"{option} {probability:.4f}" for option, probability in probabilities.items())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _wait_until_ready(server: "subprocess.Popen[bytes]", url: str) -> None:
    # No limit of our own: loading a large checkpoint takes minutes, and a server that cannot start ends by itself.
    while server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5):  # noqa: S310 - http, on the loopback
                return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(READY_CHECK_INTERVAL_S)
    raise DemoError(f"the server ended with status {server.returncode} before it was ready; see above")


def _ask(url: str, record: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(  # noqa: S310 - http, on the loopback
        f"{url}/v1/systemone", json.dumps(record).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as response:  # noqa: S310
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as err:
        raise DemoError(f"the server answered {err.code}: {err.read().decode(errors='replace')}") from err
    except OSError as err:
        raise DemoError(f"the server did not answer: {err}") from err
    return answer


def _stop(server: "subprocess.Popen[bytes]") -> None:
    server.send_signal(signal.SIGTERM)
    try:
        status = server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired as err:
        raise DemoError(f"the server did not stop within {STOP_TIMEOUT_S} s") from err
    if status != 0:
        raise DemoError(f"the server ended with status {status} when it was told to stop")
