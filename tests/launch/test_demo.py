"""`clef-serve demo`: its table, its last line, and its end, against a server with a fake engine."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from launch import demo as demo_module
from launch.demo import demo, table
from launch.demo_records import RECORDS
from launch.settings import UpSettings
from serving.api_types import parse_request

RESPONSE = {
    "model": "m",
    "answers": {
        "overdue": {"type": "noul", "noul": 0.75},
        "status": {
            "type": "choice",
            "choice": "paid",
            "confidence": 0.5,
            "probabilities": {"paid": 0.75, "open": 0.25},
        },
        "tone": {
            "type": "score",
            "score": 0.4,
            "confidence": 0.2,
            "legend": {"0": "calm", "1": "angry"},
            "probabilities": {"0": 0.6, "1": 0.4},
        },
    },
    "usage": {"input_tokens": 321, "output_tokens": 0},
}


@pytest.fixture
def fake_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the fake server program where the demonstration would start `python -m launch`."""
    popen = subprocess.Popen

    def start(command: list[str], **options: object) -> "subprocess.Popen[bytes]":
        assert command[1:3] == ["-m", "launch"]
        return popen([sys.executable, "-m", "tests.launch.fake_up", *command[3:]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(demo_module.subprocess, "Popen", start)


def test_the_records_are_valid_requests_of_mixed_types() -> None:
    for record in RECORDS.values():
        assert {question.type for question in parse_request(record).questions.values()} == {"noul", "choice", "score"}


def test_the_table_shows_each_answer_on_a_line() -> None:
    assert table("invoice", RESPONSE).splitlines() == [
        "invoice (m, 321 prompt tokens)",
        "question  answer     confidence  probabilities",
        "----------------------------------------------",
        "overdue   yes                    yes 0.7500, no 0.2500",
        "status    paid       0.5000      paid 0.7500, open 0.2500",
        "tone      0.40 of 1  0.2000      calm 0.6000, angry 0.4000",
    ]


@pytest.mark.usefixtures("fake_server")
def test_it_asks_both_records_prints_them_as_json_last_and_stops_its_server(capfd: pytest.CaptureFixture[str]) -> None:
    before = psutil.Process().children(recursive=True)
    assert demo(UpSettings(device="cpu")) == 0
    lines = capfd.readouterr().out.splitlines()
    answers = json.loads(lines[-1])
    assert list(answers) == ["invoice", "alert"]
    for name, record in RECORDS.items():
        assert answers[name]["answers"].keys() == record["questions"].keys()
    assert lines[0].startswith("invoice (clef-mini, ")
    assert set(psutil.Process().children(recursive=True)) <= set(before)


@pytest.mark.usefixtures("fake_server")
def test_a_server_that_does_not_start_is_an_error(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert demo(UpSettings(device="cpu", model=str(tmp_path))) == 1
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[-1] == (
        "clef-serve: demo failed: the server ended with status 2 before it was ready; see above"
    )
