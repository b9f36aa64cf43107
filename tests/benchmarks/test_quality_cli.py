"""The quality harness as a process and as a function: what it prints, writes and ends with."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality.cli import main
from serving.engine import ScoreRequest, ScoreResult
from serving.fake_engine import FakeEngine
from tests.serving.harness import SERVED_NAME, key_ring, make_app, reference_body, running_server

ROOT = Path(__file__).resolve().parents[2]
TEAMS = {"sales": "new customers", "billing": "invoices", "legal <1>": None}
QUESTIONS = {
    "team": {"type": "choice", "instructions": "Which team?", "criteria": TEAMS},
    "urgent": {"type": "noul", "instructions": "Is it urgent?"},
    "level": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "cross"]},
}
SECRET_TEXT = "zebra quarterly"
FEW = ("--drawings", "20")
# The fake engine's answers do not depend on the state, so they are those of any record.
GIVEN = reference_body({"state": "x", "questions": QUESTIONS})["answers"]


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out.splitlines()[-1])


class Mirrored(FakeEngine):
    """Another model: what the fake engine likes best, this one likes least."""

    async def score(self, request: ScoreRequest) -> ScoreResult:
        result = await super().score(request)
        return ScoreResult(
            logits=[[-logit for logit in logits] for logits in result.logits], prompt_tokens=result.prompt_tokens
        )


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server(make_app(FakeEngine(), max_prompt_tokens=4000)) as started:
        yield started


@pytest.fixture(scope="module")
def mirrored_url() -> Iterator[str]:
    with running_server(make_app(Mirrored(), max_prompt_tokens=4000)) as started:
        yield started


def process(*arguments: object, environ: dict[str, str] | None = None) -> Ended:
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.quality", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **(environ or {})},
        capture_output=True,
        text=True,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object) -> Ended:
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as err:  # argparse
            status = int(str(err.code))
        printed = capsys.readouterr()
        return Ended(status, printed.out, printed.err)

    return call


def labels(*, right: bool) -> dict[str, Any]:
    """What the fake engine answers, or something else."""
    team = GIVEN["team"]["choice"]
    urgent = GIVEN["urgent"]["noul"] >= 0.5
    level = round(GIVEN["level"]["score"])
    if right:
        return {"team": team, "urgent": urgent, "level": level}
    return {"team": next(name for name in TEAMS if name != team), "urgent": not urgent, "level": 1 - level}


def write(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def record(number: int, *, right: bool = True, words: int = 1) -> dict[str, Any]:
    return {
        "id": f"case-{number}",
        "split": "seen" if number % 2 else "unseen",
        "state": f"{number} {SECRET_TEXT} " * words,
        "questions": QUESTIONS,
        "labels": labels(right=right),
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Eight records, of which the server is right about six, on every question."""
    return write(tmp_path / "data.jsonl", [record(number, right=number >= 2) for number in range(8)])


@pytest.fixture
def data_with_a_long_record(tmp_path: Path) -> Path:
    return write(tmp_path / "long.jsonl", [record(0), record(1, words=1000), record(2)])


def test_status_0_a_table_and_one_json_object_as_the_last_line(url: str, data: Path) -> None:
    ended = process("--url", url, "--data", data, "--group-by", "split", *FEW)
    assert ended.status == 0, ended.err
    found = ended.json
    assert {
        key: found[key] for key in ("benchmark", "data", "records", "records_left_out", "comparison", "behind_baseline")
    } == {
        "benchmark": "quality",
        "data": "data.jsonl",
        "records": 8,
        "records_left_out": {},
        "comparison": None,
        "behind_baseline": None,
    }
    assert found["servers"] == [{"url": url, "model": SERVED_NAME, "answered": 8, "failures": {}}]
    assert list(found["scopes"]) == [
        *("overall", "type:choice", "type:noul", "type:score"),
        *(
            f"group:{group}{kind}"
            for group in ("seen", "unseen")
            for kind in ("", "/type:choice", "/type:noul", "/type:score")
        ),
        *("question:team", "question:urgent", "question:level"),
    ]
    scopes = found["scopes"]
    assert {name: scopes[name]["accuracy"]["value"] for name in ("overall", "type:noul", "group:seen")} == {
        "overall": 0.75,
        "type:noul": 0.75,
        "group:seen": 0.75,
    }
    assert (scopes["overall"]["records"], scopes["overall"]["decisions"]) == (8, 24)
    wrong, right = labels(right=False)["team"], labels(right=True)["team"]
    assert sorted(scopes["question:team"]["confusion"]) == sorted([[wrong, right, 2], [right, right, 6]])
    p = GIVEN["team"]["probabilities"]
    brier = [sum((p[name] - (name == label)) ** 2 for name in TEAMS) for label in (wrong, right)]
    assert scopes["type:choice"]["brier"]["value"] == pytest.approx((2 * brier[0] + 6 * brier[1]) / 8)
    assert "accuracy          0.7500 [" in ended.out
    assert "... 8 of 8 records, 0 without answer" in ended.err
    assert SECRET_TEXT not in ended.out + ended.err


def test_status_1_when_a_figure_is_behind_the_baseline(url: str, data: Path, tmp_path: Path, run: Any) -> None:
    baseline = tmp_path / "baseline.json"
    assert run("--url", url, "--data", data, "--write-baseline", baseline, *FEW).status == 0
    held = run("--url", url, "--data", data, "--baseline", baseline, *FEW)
    assert (held.status, held.json["behind_baseline"]) == (0, [])
    assert "no figure is behind the baseline" in held.out

    content = json.loads(baseline.read_text())
    content["scopes"] = {"overall": {"accuracy": 0.77, "coverage": 0.0}}
    baseline.write_text(json.dumps(content))
    ended = process("--url", url, "--data", data, "--baseline", baseline, *FEW)
    said = "accuracy is 0.7500; the baseline is 0.7700, its tolerance 0.01"
    assert (ended.status, ended.json["behind_baseline"], ended.json["exit_status"]) == (1, [said], 1)
    assert said in ended.out
    assert run("--url", url, "--data", data, "--baseline", baseline, "--tolerance", "accuracy=0.02", *FEW).status == 0


def test_status_2_when_nothing_can_be_measured(url: str, data: Path, tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.jsonl", [record(0), {**record(1), "labels": {"team": "none"}}])
    ended = process("--url", url, "--data", bad)
    message = f"... error: {bad}, line 2: labels.team must be one of the 3 options\n"
    assert (ended.status, ended.out, ended.err) == (2, "", message)


def test_status_3_when_a_record_gets_no_answer(url: str, data_with_a_long_record: Path, tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    ended = process("--url", url, "--data", data_with_a_long_record, "--write-baseline", baseline, *FEW)
    assert ended.status == 3
    (server,) = ended.json["servers"]
    assert (server["answered"], sum(server["failures"].values())) == (2, 1)
    assert ended.json["scopes"]["overall"]["accuracy"]["value"] == 1
    assert "... case-1 got no answer: 4" in ended.err
    assert SECRET_TEXT not in ended.out + ended.err
    assert not baseline.exists()


def test_what_the_server_says_is_printed_when_asked_for(url: str, data_with_a_long_record: Path, run: Any) -> None:
    arguments = ("--url", url, "--data", data_with_a_long_record, *FEW)
    assert "4000" not in run(*arguments).err
    assert "4000" in run(*arguments, "--server-messages").err


def test_when_no_record_gets_an_answer_there_are_no_figures(url: str, tmp_path: Path, run: Any) -> None:
    ended = run(
        "--url", url, "--data", write(tmp_path / "d.jsonl", [record(0, words=1000)]), "--report", tmp_path / "r.html"
    )
    assert (ended.status, ended.json["scopes"], len(ended.out.splitlines())) == (3, {}, 1)


def test_two_servers_are_compared(url: str, mirrored_url: str, data: Path, run: Any) -> None:
    ended = run("--url", url, "--data", data, "--compare", mirrored_url, *FEW)
    assert ended.status == 0
    found = ended.json["comparison"]
    assert (found["questions"], found["one_sided"], found["agreement"], len(found["flips"])) == (24, 0, 0, 24)
    differences = found["differences"]["type:noul"]
    assert differences["accuracy"]["value"] == pytest.approx(-0.5)
    yes = GIVEN["urgent"]["noul"]
    flips = [flip for flip in found["flips"] if flip["question"] == "urgent"]
    margin = pytest.approx(abs(2 * yes - 1))
    assert sorted(flips, key=lambda flip: flip["record_name"])[3] == {
        "record_name": "case-3",
        "question": "urgent",
        "left": "true" if yes >= 0.5 else "false",
        "right": "false" if yes >= 0.5 else "true",
        "left_margin": margin,
        "right_margin": margin,
    }
    assert found["max_abs_dp"] >= abs(2 * yes - 1) - 1e-12
    assert "same top option 0.0000" in ended.out


def test_a_server_agrees_with_itself(url: str, data: Path, run: Any) -> None:
    found = run("--url", url, "--data", data, "--compare", url, *FEW).json["comparison"]
    assert (found["agreement"], found["flips"], found["max_abs_dp"]) == (1, [], 0)
    assert found["differences"]["overall"]["accuracy"] == {"value": 0, "low": 0, "high": 0}


def test_the_key_of_one_server_is_not_sent_to_the_other(
    data: Path, tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYSTEMONE_API_KEY", "first-key")
    keys = key_ring(tmp_path / "keys.toml", {"first-key": ""})
    with running_server(make_app(FakeEngine(), keys=keys)) as guarded:
        ended = run("--url", guarded, "--data", data, "--compare", guarded, *FEW)
    assert ended.status == 3
    assert [server["answered"] for server in ended.json["servers"]] == [8, 0]
    assert list(ended.json["servers"][1]["failures"]) == ["401 authentication_error"]
    assert "first-key" not in ended.out + ended.err


def test_intents_become_one_question_and_out_of_scope_is_counted(url: str, tmp_path: Path, run: Any) -> None:
    rows = [[f"text {number}", ("pay", "move", "oos")[number % 3]] for number in range(6)]
    (tmp_path / "clinc.json").write_text(json.dumps({"test": rows}))
    ended = run("--url", url, "--data", tmp_path / "clinc.json", "--oos", "leave-out", *FEW)
    assert (ended.status, ended.json["records"], ended.json["records_left_out"]) == (0, 4, {"out of scope": 2})
    assert ended.json["scopes"]["question:intent"]["accuracy"]["value"] == 0.5
    assert "2 records are not asked: out of scope" in ended.err


def test_many_options_are_listed_by_what_is_confused_most(url: str, tmp_path: Path, run: Any) -> None:
    rows = "".join(f"text {number},topic_{number:02}\n" for number in range(77))
    (tmp_path / "test.csv").write_text("text,category\n" + rows)
    ended = run("--url", url, "--data", tmp_path / "test.csv", "--report", tmp_path / "r.html", *FEW)
    assert (ended.status, ended.json["scopes"]["overall"]["accuracy"]["value"]) == (0, 1 / 77)
    assert "question:category, what is confused most" in ended.out
    assert "What is confused most, question:category" in (tmp_path / "r.html").read_text()


def test_a_sample_is_drawn_by_its_seed(url: str, data: Path, run: Any) -> None:
    digests = [
        run("--url", url, "--data", data, "--sample", 3, "--seed", seed, *FEW).json["asked_sha256"]
        for seed in (1, 1, 2)
    ]
    assert digests[0] == digests[1] != digests[2]
    found = run("--url", url, "--data", data, "--sample", 3, *FEW).json
    assert (found["records"], found["records_left_out"]) == (3, {"not drawn": 5})


class Page(HTMLParser):
    """The tags of a page and what they refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data")]


def test_the_report_holds_plots_and_ids_and_fetches_nothing(
    url: str, mirrored_url: str, data_with_a_long_record: Path, tmp_path: Path, run: Any
) -> None:
    report = tmp_path / "report.html"
    arguments = ("--url", url, "--data", data_with_a_long_record, "--compare", mirrored_url, "--group-by", "split")
    run(*arguments, "--report", report, *FEW)
    text = report.read_text()
    page = Page()
    page.feed(text)
    # A reliability diagram and a coverage curve, overall and of three types, and the same of the one group that was answered.
    assert page.tags.count("svg") == 2 * (1 + 3) * 2
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert all(reference.startswith("#") for reference in page.references)
    assert "url(http" not in text
    assert "@import" not in text
    for shown in (
        "case-1",
        "Flips: 6",
        "Labels by answers, question:team",
        "legal &lt;1&gt;",
        "Records without answer",
    ):
        assert shown in text
    assert "<1>" not in text
    assert SECRET_TEXT not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--split", "test"], "--split is for .csv and .json", id="split-of-json-lines"),
        pytest.param(["--oos", "option"], "--oos is for .csv and .json", id="oos-of-json-lines"),
        pytest.param(["--compare-model", "m"], "--compare-model needs --compare", id="compare-model-alone"),
        pytest.param(["--target-precision", "0"], "must be above 0 and at most 1", id="precision-0"),
        pytest.param(["--target-precision", "99"], "must be above 0 and at most 1", id="precision-in-percent"),
        pytest.param(["--bins", "0"], "must be a whole number above 0", id="no-bins"),
        pytest.param(["--timeout-s", "inf"], "must be a number above 0", id="no-timeout"),
        pytest.param(["--tolerance", "acuracy=1"], "must be METRIC=X", id="unknown-metric"),
        pytest.param(["--tolerance", "accuracy=-1"], "must be METRIC=X", id="negative-tolerance"),
        pytest.param(["--tolerance", "accuracy"], "must be METRIC=X", id="no-tolerance"),
        pytest.param(
            ["--report", "none/r.html"], "none/r.html cannot be written: there is no such directory", id="report"
        ),
        pytest.param(["--baseline", "none.json"], "none.json cannot be read", id="no-baseline"),
        pytest.param(["--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY holds no usable key", id="no-key"),
    ],
)
def test_a_wrong_argument_ends_with_2_before_anything_is_asked(
    data: Path, run: Any, arguments: list[str], message: str
) -> None:
    ended = run("--url", "http://127.0.0.1:9", "--model", "m", "--data", data, *arguments)
    assert (ended.status, ended.out) == (2, "")
    assert message in ended.err


def test_groups_are_of_json_lines(tmp_path: Path, run: Any) -> None:
    ended = run("--url", "http://127.0.0.1:9", "--data", tmp_path / "a.csv", "--group-by", "split")
    assert ended.status == 2
    assert "--group-by is for JSON lines" in ended.err


def test_the_help_says_what_each_status_means(run: Any) -> None:
    ended = run("--help")
    assert ended.status == 0
    for status in (
        "  0  every record was answered",
        "  1  a figure is worse",
        "  2  nothing was measured",
        "  3  a record got",
    ):
        assert status in ended.out
