"""The real smg with the arguments that the chart gives it, on ports of this machine."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.k8s.chart import Helm, pick
from tests.launch.running import free_port
from tests.routing.backends import Backend
from tests.serving.harness import SERVED_NAME

SMG = Path(sys.executable).with_name("smg")
START_S = 30
# Where the chart's waits are longer than a test should be.
SHORT_WAITS = (
    "--health-check-interval-secs=1",
    "--health-failure-threshold=1",
    "--health-success-threshold=1",
    "--cb-timeout-duration-secs=1",
)
ROUTED = "x-smg-routed-worker-id"


def chart_arguments(helm: Helm, **values: Any) -> list[str]:
    """What the chart's router is started with, for engines that serve `SERVED_NAME`."""
    objects = helm.objects(
        {"router": {"enabled": True, "image": {"tag": "1.13.0"}}, "model": {"servedName": SERVED_NAME}, **values}
    )
    (router,) = [found for found in objects if found["kind"] == "Deployment" and "-router" in found["metadata"]["name"]]
    (container,) = pick(objects, "Deployment", router["metadata"]["name"])["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["smg", "launch"]
    return [str(argument) for argument in container["args"]]


def without_discovery(arguments: Sequence[str]) -> list[str]:
    """The same without what asks Kubernetes."""
    start = arguments.index("--selector")
    end = next(place for place in range(start + 1, len(arguments)) if arguments[place].startswith("--"))
    kept = [*arguments[:start], *arguments[end:]]
    return [argument for argument in kept if not argument.startswith("--service-discovery")]


@dataclass(frozen=True, kw_only=True)
class Router:
    """A running smg."""

    url: str
    health_url: str
    metrics_url: str
    process: "subprocess.Popen[bytes]"
    client: httpx.Client

    def ask(self, body: Any, **headers: str) -> httpx.Response:
        """Send a question."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post("/v1/systemone", json=body, headers=named)

    def healthy(self) -> int:
        """How many engines it sends requests to."""
        answer = self.client.get(f"{self.health_url}/readiness").json()
        return int(answer.get("healthy_workers", 0))


@contextlib.contextmanager
def routing(
    arguments: Sequence[str], urls: Sequence[str], *more: str, ready: int | None = None, environ: Mapping[str, str] = {}
) -> Iterator[Router]:
    """Start smg, and wait until it sends requests to as many engines as there are.

    Args:
        arguments: the chart's.
        urls: of the engines, where none are discovered.
        more: arguments that win over the chart's.
        ready: how many engines to wait for; all of `urls` if None.
        environ: variables.
    """
    ports = {name: free_port() for name in ("port", "health-check-port", "prometheus-port")}
    command = [str(SMG), "launch", *arguments, *more, "--host=127.0.0.1", "--prometheus-host=127.0.0.1"]
    command += [f"--{name}={port}" for name, port in ports.items()]
    command += ["--worker-urls", *urls] if urls else []
    url, health_url, metrics_url = (f"http://127.0.0.1:{port}" for port in ports.values())
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environ}) as process,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        router = Router(url=url, health_url=health_url, metrics_url=metrics_url, process=process, client=client)
        try:
            wanted = len(urls) if ready is None else ready
            until(lambda: _answers(router) and router.healthy() >= wanted, START_S, process, log)
            yield router
        finally:
            process.kill()  # told to stop, it takes five seconds at least


def until(done: Callable[[], bool], seconds: float, process: Any = None, log: Any = None) -> None:
    """Wait for something that another process does; fail after so many seconds, or with that process' log if it ends."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            text = ""
            if log is not None:
                log.seek(0)
                text = log.read().decode(errors="replace")[-5000:]
            raise AssertionError(f"not in {seconds} s\n{text}")
        time.sleep(0.02)


def _answers(router: Router) -> bool:
    try:
        router.client.get(f"{router.health_url}/readiness")
    except httpx.TransportError:
        return False
    return True


def place(response: httpx.Response, among: Sequence[Backend]) -> int:
    """Which of them answered."""
    assert response.status_code == 200, response.text
    return [backend.url for backend in among].index(response.headers[ROUTED])
