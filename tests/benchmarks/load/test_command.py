"""The program itself against a stub in a process of its own: what it prints, what it ends with. No time is held to anything."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from benchmarks.load.__main__ import main
from benchmarks.load.arguments import parse
from benchmarks.load.client import Client, Target, key_from
from benchmarks.load.self_check import stub

QUICK = ["--duration", "2", "--warmup", "0.2", "--quiet", "--max-lag-ms", "100000"]
KEY = "key-that-nobody-may-see"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with stub([1.0]) as running:
        yield running


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Exit status, everything printed, and the JSON object in the last line."""
    status = main(list(arguments))
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    return status, printed.out + printed.err, json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}


@pytest.mark.parametrize(("slo", "status"), [("p99<60s,errors<1%", 0), ("p50<1us", 1)])
def test_a_rate_is_held_to_an_slo(url: str, capsys: pytest.CaptureFixture[str], slo: str, status: int) -> None:
    arguments = ["--url", url, "--workload", "hot-path", "--rate", "20", "--slo", slo, "--timeout", "60", *QUICK]
    ended, printed, report = run(capsys, *arguments)
    assert ended == report["exit_status"] == status
    (side,) = report["sides"]
    (point,) = side["points"]
    assert (side["url"], side["path"], side["model"]) == (url, "/v1/systemone", "stub")
    assert point["offered_rps"] == 20
    assert point["requests"] == sum(point["outcomes"].values()) > 0
    assert point["latency"]["all"]["requests"] == point["latency"]["cold"]["requests"] == point["requests"]
    assert point["cache"]["cold"]["unexpected"] == 0
    assert set(report["versions"]) == {"python", "clef_serving", "aiohttp", "numpy", "scipy"}
    assert f"result: {'met' if status == 0 else 'not met'}" in printed


def test_a_rate_is_found_reported_and_compared(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--url", f"{url}/", "--workload", "hot-path", "--find-rate", "--slo", "p90<60s", "--timeout", "60"]
    bounds = ["--start-rate", "20", "--max-rate", "40", "--at-least", "40"]
    files = ["--report", str(tmp_path / "r.html"), "--json", str(tmp_path / "a.json")]
    status, printed, report = run(capsys, *arguments, *bounds, *files, *QUICK)
    assert status == 0
    assert report["sides"][0]["rate_at_slo"] == {"rate_rps": 40, "rate_rps_interval": [40, None]}
    assert [point["offered_rps"] for point in report["sides"][0]["points"]] == [20, 40]
    assert "highest rate with p90<60s: 40/s" in printed

    page = (tmp_path / "r.html").read_text()
    assert page.count("<svg") == page.count("</svg>") == 2
    assert not re.search(r"""(src|href)=["']https?:""", page)
    assert "<script" not in page

    status, printed, compared = run(capsys, "compare", str(tmp_path / "a.json"), str(tmp_path / "a.json"))
    assert status == 0
    assert {ratio["value"] for ratio in compared["ratios"]} == {1}
    assert {ratio["name"] for ratio in compared["ratios"]} >= {"rate at SLO", "20/s all p50", "40/s cold p99"}
    assert "differs" not in printed

    slow = json.loads((tmp_path / "a.json").read_text())
    for point in slow["sides"][0]["points"]:
        for latency in filter(None, point["latency"].values()):
            latency |= {"p50_ms": 1e6, "p50_ms_interval": [9e5, 2e6]}
    (tmp_path / "b.json").write_text(f"a table\n{json.dumps(slow)}\n")
    status, _, compared = run(
        capsys, "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--max-slowdown", "1.1"
    )
    assert status == 1
    assert compared["slower"] == ["20/s all p50", "20/s cold p50", "40/s all p50", "40/s cold p50"]


def test_two_servers_are_measured_in_one_run(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--url", url, "--compare", url, "--workload", "agents", "--rate", "30", "--slices", "2"]
    arguments += ["--timeout", "60", *QUICK]
    status, printed, report = run(capsys, *arguments)
    assert (status, report["result"]) == (0, "measured")
    assert [side["name"] for side in report["sides"]] == ["A", "B"]
    requests = [side["points"][0]["requests"] for side in report["sides"]]
    assert requests[0] == requests[1]
    assert report["comparison"]["ratio"] == "B over A"
    assert report["comparison"]["latency"][0]["all_p50_ratio"][1] > 0
    assert "prefix requests were not cached as their kind should be" in printed  # the stub says so of all


def test_clients_of_a_closed_loop(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, report = run(
        capsys, "--url", url, "--workload", "hot-path", "--concurrency", "2,4", "--timeout", "60", *QUICK
    )
    assert status == 0
    assert [point["clients"] for point in report["sides"][0]["points"]] == [2, 4]
    assert all(point["generator"]["connections_opened"] <= 8 for point in report["sides"][0]["points"])


def test_a_generator_beyond_its_bound_ends_with_3(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--url",
        url,
        "--workload",
        "hot-path",
        "--rate",
        "50",
        "--duration",
        "1",
        "--quiet",
        "--max-lag-ms",
        "0",
    ]
    status, printed, report = run(capsys, *arguments)
    assert (status, report["result"]) == (3, "generator-limited")
    assert "THE GENERATOR WAS LATE" in printed


def test_a_server_that_is_not_there_ends_with_4(capsys: pytest.CaptureFixture[str]) -> None:
    status, printed, report = run(
        capsys, "--url", "http://127.0.0.1:9", "--workload", "hot-path", "--rate", "5", *QUICK
    )
    assert (status, report) == (4, {})
    assert "server A did not answer the first request (connection)" in printed


def test_a_run_that_its_bounds_cut_short_ends_with_4(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--url", url, "--workload", "hot-path", "--rate", "20,20,20", "--max-requests", "80", *QUICK]
    status, printed, report = run(capsys, *arguments)
    assert (status, report["bound_reached"]) == (4, "max_requests is 80")
    assert len(report["sides"][0]["points"]) == 1
    assert "ended early: max_requests is 80" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "5", "--slo", "fast"], "'fast' is no SLO"),
        (["--find-rate"], "--find-rate needs --slo"),
        (["--rate", "0"], "above 0"),
        (["--rate", "5", "--workload", "nothing"], "no workload"),
        (["--rate", "5", "--url", "ftp://host"], "http"),
        (["--rate", "5", "--url", "http://user:pass@host"], "environment variable"),
        (["--rate", "5", "--key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY holds no key"),
        (["--rate", "5", "--at-least", "3"], "--at-least needs --find-rate"),
        (["--rate", "5", "--duration", "0"], "duration_s"),
        (["--find-rate", "--slo", "p99<1s", "--start-rate", "9", "--max-rate", "3"], "first"),
    ],
)
def test_a_wrong_command_line_ends_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    given = ["--url", "http://127.0.0.1:9", "--workload", "hot-path", *arguments]
    status, printed, _ = run(capsys, *given)
    assert status == 2
    assert message in printed
    assert "user:pass" not in printed


def test_help_tells_of_every_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert re.findall(r"^  ([0-4])  ", printed, re.MULTILINE) == ["0", "1", "2", "3", "4"]


def test_runs_differ_in_their_ids_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--url", "http://host", "--workload", "hot-path", "--rate", "5"]
    assert parse(given).settings.run_id != parse(given).settings.run_id
    assert parse([*given, "--run-id", "x"]).settings.run_id == "x"


class Keeper:
    """A server that asks for a key and keeps what it was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str | None, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.sent.append((request.path, request.headers.get("authorization"), (await request.json())["model"]))
        if request.path == "/elsewhere":
            raise web.HTTPTemporaryRedirect("/v1/systemone")
        usage = {"input_tokens": 5, "x_cached_tokens": 2}
        return web.json_response({"success": True, "result": {"answers": {}, "usage": usage}})

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"models": [{"name": "listed"}]})


@pytest.fixture
def keeper() -> Iterator[tuple[Keeper, str]]:
    kept = Keeper()
    loop = asyncio.new_event_loop()
    started: list[str] = []
    ready = threading.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_post("/{path:.*}", kept.answer)
        app.router.add_get("/base/v1/models", kept.models)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        started.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()

    thread = threading.Thread(target=lambda: (loop.run_until_complete(serve()), loop.run_forever()))
    thread.start()
    assert ready.wait(30)
    yield kept, started[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def test_the_key_is_sent_and_never_shown(
    keeper: tuple[Keeper, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, base = keeper
    monkeypatch.setenv("A_KEY", KEY)
    arguments = ["--url", f"{base}/base", "--path", "/ai/run", "--key-env", "A_KEY", "--workload", "hot-path"]
    status, printed, report = run(capsys, *arguments, "--rate", "10", "--report", str(tmp_path / "r.html"), *QUICK)
    assert status == 0
    assert {(path, key, model) for path, key, model in kept.sent} == {("/base/ai/run", f"Bearer {KEY}", "listed")}
    assert KEY not in printed + (tmp_path / "r.html").read_text() + repr(parse([*arguments, "--rate", "1"]))
    assert report["sides"][0]["points"][0]["cache"]["cold"]["cached_token_share"] == 0.4  # as Cloudflare's form has it


def test_redirects_are_not_followed(keeper: tuple[Keeper, str]) -> None:
    kept, base = keeper

    async def ask() -> str:
        async with Client(Target(url=base, path="/elsewhere", key=KEY), name="A") as client:
            return (await client.ask(b'{"model": "m"}')).outcome

    assert asyncio.run(ask()) == "status 307"
    assert [path for path, _, _ in kept.sent] == ["/elsewhere"]


def test_keys_come_from_the_environment_alone() -> None:
    assert key_from("K", {"K": " secret\n"}) == "secret"
    assert key_from(None, {}) is None
    with pytest.raises(ValueError, match="K holds no key"):
        key_from("K", {"K": ""})
