"""What `helm test` runs says yes to our server, with and without keys, and no to one that asks for none where it should."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from serving.fake_engine import FakeEngine
from tests.k8s.chart import CHART, NAME, Helm, pods
from tests.k8s.variants import VARIANTS
from tests.serving.harness import key_ring, make_app, running_server

KEY = "clef-test-key-1"


@pytest.fixture(scope="module")
def open_url() -> Iterator[str]:
    with running_server(make_app(FakeEngine())) as url:
        yield url


@pytest.fixture(scope="module")
def locked_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    keys = key_ring(tmp_path_factory.mktemp("keys") / "keys.toml", {KEY: ""})
    with running_server(make_app(FakeEngine(), keys=keys)) as url:
        yield url


def ask(url: str, *, wants_keys: bool, key: str = "") -> tuple[int, list[str]]:
    """Exit status, and the lines up to the first digit of a probability."""
    environment = {"CLEF_URL": url, "CLEF_WANTS_KEYS": str(wants_keys).lower(), "CLEF_TEST_KEY": key}
    done = subprocess.run(
        [sys.executable, str(CHART / "files" / "ask.py")], env=environment, capture_output=True, text=True
    )
    assert KEY not in done.stdout + done.stderr
    lines = done.stdout.splitlines() + done.stderr.splitlines()
    return done.returncode, [line.split(": 0.")[0] for line in lines]


def test_with_keys_and_one_to_ask_with(locked_url: str) -> None:
    assert ask(locked_url, wants_keys=True, key=f"{KEY}\n") == (
        0,
        [
            "ok     GET /v1/models: 200",
            "ok     a question without a key: 401",
            "ok     a question: 200",
            "ok     the answer",
        ],
    )


def test_with_keys_and_none_to_ask_with(locked_url: str) -> None:
    assert ask(locked_url, wants_keys=True) == (
        0,
        ["ok     GET /v1/models: 200", "ok     a question without a key: 401"],
    )


def test_without_keys(open_url: str) -> None:
    assert ask(open_url, wants_keys=False)[0] == 0


def test_a_server_that_should_ask_for_keys_and_does_not(open_url: str) -> None:
    status, lines = ask(open_url, wants_keys=True)
    assert status == 1
    assert lines[1].startswith("FAILED a question without a key: expected 401, got 200")


def test_a_key_that_is_not_known(locked_url: str) -> None:
    status, lines = ask(locked_url, wants_keys=True, key="another")
    assert status == 1
    assert lines[2].startswith("FAILED a question: expected 200, got 401")


def test_the_pod_runs_it_against_the_service(helm: Helm) -> None:
    (container,) = pods(helm.objects(VARIANTS["extras"]))[f"Pod {NAME}-test"]["spec"]["containers"]
    assert container["command"] == ["python", "-c"]
    assert container["args"][0].strip() == (CHART / "files" / "ask.py").read_text(encoding="utf-8").strip()
    assert container["env"] == [
        {"name": "CLEF_URL", "value": f"http://{NAME}:80"},
        {"name": "CLEF_WANTS_KEYS", "value": "true"},
        {"name": "CLEF_TEST_KEY", "valueFrom": {"secretKeyRef": {"name": "a-key", "key": "key"}}},
    ]
