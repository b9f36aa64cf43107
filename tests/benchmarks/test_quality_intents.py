"""Files in the shapes of BANKING77 and CLINC150, as choice questions."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality.intents import OUT_OF_SCOPE_MEANS, read_intents
from benchmarks.quality.records import DataError


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def to(name: str, content: Any) -> Path:
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return tmp_path / name

    return to


CLINC = {
    "train": [["book a table", "reserve"], ["what is 2 + 2", "calculate"]],
    "test": [["a table for two", "reserve"], ["convert 3 miles", "convert"]],
    "oos_test": [["who won the race", "oos"]],
}


def test_banking77_becomes_one_choice_of_all_categories(write: Any) -> None:
    text = 'text,category\n"My card, the new one, is late",card_arrival\nTop up failed?,top_up_failed\n'
    data = read_intents(write("test.csv", text), instructions="Which topic?")
    question = {
        "type": "choice",
        "instructions": "Which topic?",
        "criteria": {"card_arrival": None, "top_up_failed": None},
    }
    assert [(read.name, read.request, read.labels) for read in data.records] == [
        ("line 2", {"state": "My card, the new one, is late", "questions": {"category": question}}, {"category": 0}),
        ("line 3", {"state": "Top up failed?", "questions": {"category": question}}, {"category": 1}),
    ]


@pytest.mark.parametrize("number", [77, 150, 255])
def test_as_many_intents_as_a_choice_may_have_options(write: Any, number: int) -> None:
    rows = "".join(f"text {n},intent_{n}\n" for n in range(number))
    data = read_intents(write("many.csv", "text,intent\n" + rows))
    assert {len(read.request["questions"]["intent"]["criteria"]) for read in data.records} == {number}


def test_more_are_refused_with_the_limit(write: Any) -> None:
    rows = "".join(f"text {n},intent_{n}\n" for n in range(256))
    with pytest.raises(DataError, match="has 256 intents; a choice has at most 255 options"):
        read_intents(write("many.csv", "text,intent\n" + rows))


def test_clinc150_asks_its_test_splits_with_the_intents_of_all(write: Any) -> None:
    data = read_intents(write("data_full.json", CLINC))
    assert [(read.name, read.request["state"], read.labels) for read in data.records] == [
        ("test[0]", "a table for two", {"intent": 3}),
        ("test[1]", "convert 3 miles", {"intent": 1}),
        ("oos_test[0]", "who won the race", {"intent": 2}),
    ]
    assert data.records[0].request["questions"]["intent"]["criteria"] == {
        "calculate": None,
        "convert": None,
        "oos": OUT_OF_SCOPE_MEANS,
        "reserve": None,
    }
    assert data.left_out == {}


def test_out_of_scope_can_be_left_out_and_is_counted(write: Any) -> None:
    data = read_intents(write("data_full.json", CLINC), oos="leave-out")
    assert [read.name for read in data.records] == ["test[0]", "test[1]"]
    assert list(data.records[0].request["questions"]["intent"]["criteria"]) == ["calculate", "convert", "reserve"]
    assert data.left_out == {"out of scope": 1}


def test_a_split_can_be_named(write: Any) -> None:
    file = write("data_full.json", CLINC)
    assert [read.name for read in read_intents(file, splits=["train"]).records] == ["train[0]", "train[1]"]
    with pytest.raises(DataError, match="has no split dev; it has oos_test, test, train"):
        read_intents(file, splits=["dev"])
    with pytest.raises(DataError, match="is a CSV file and has no splits"):
        read_intents(write("a.csv", "text,intent\na,b\n"), splits=["test"])


@pytest.mark.parametrize(
    ("described", "criteria"),
    [
        pytest.param(
            {"late": "the card is late", "lost": None, "spare": None},
            {"late": "the card is late", "lost": None, "spare": None},
            id="object",
        ),
        pytest.param(["spare", "lost", "late"], {"late": None, "lost": None, "spare": None}, id="list"),
    ],
)
def test_described_intents_are_the_options(write: Any, described: Any, criteria: dict[str, Any]) -> None:
    file = write("test.csv", "text,category\na,late\nb,lost\n")
    data = read_intents(file, descriptions=write("described.json", described))
    assert data.records[1].request["questions"]["category"]["criteria"] == criteria
    assert data.records[1].labels == {"category": 1}


def test_an_intent_that_is_not_described_is_an_error(write: Any) -> None:
    file = write("test.csv", "text,category\na,late\nb,lost\n")
    with pytest.raises(DataError, match=r"test\.csv, line 3: the intent is not among those of .*described\.json"):
        read_intents(file, descriptions=write("described.json", ["late", "spare"]))


def test_descriptions_need_not_name_out_of_scope(write: Any) -> None:
    described = write("described.json", {"calculate": None, "convert": "of units", "reserve": None})
    data = read_intents(write("data.json", CLINC), descriptions=described)
    assert data.records[0].request["questions"]["intent"]["criteria"]["oos"] == OUT_OF_SCOPE_MEANS
    assert data.records[0].request["questions"]["intent"]["criteria"]["convert"] == "of units"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("a.csv", "text,topic\na,b\n", "line 1: the columns must be text and one of", id="column"),
        pytest.param("a.csv", "text,category,intent\na,b,c\n", "line 1: the columns must be", id="both-columns"),
        pytest.param("a.csv", "", "line 1: the columns must be", id="empty"),
        pytest.param("a.csv", "text,intent\n", "has 0 intents", id="header-alone"),
        pytest.param("a.csv", "text,intent\na,b\nc,\n", "line 3: intent is missing", id="no-intent"),
        pytest.param("a.csv", "text,intent\na,b\nc\n", "line 3: intent is missing", id="short-row"),
        pytest.param("a.csv", "text,intent\n,b\n", "line 2: text is missing", id="no-text"),
        pytest.param("a.csv", "text,intent\na,b,c\n", "line 2: more fields than columns", id="long-row"),
        pytest.param("a.csv", 'text,intent\n"a"b,c\n', "line 2: ',' expected after", id="quote"),
        pytest.param("a.csv", 'text,intent\n"a,b\n', "line 2: unexpected end of data", id="open-quote"),
        pytest.param("a.csv", "text,intent\na,b\n", "has 1 intents; a choice needs at least 2", id="one-intent"),
        pytest.param("a.json", "{", "is not JSON", id="no-json"),
        pytest.param("a.json", [], "must be an object of splits", id="json-list"),
        pytest.param("a.json", {"test": [["a", "b"], ["c"]]}, r"test\[1\]: must be \[text, intent\]", id="json-row"),
        pytest.param("a.json", {"test": [["a", 3]]}, r"test\[0\]: must be \[text, intent\]", id="json-number"),
        pytest.param("a.json", {"val": [["a", "b"], ["c", "d"]]}, "holds no text to ask", id="no-test-split"),
    ],
)
def test_a_bad_file_is_an_error_that_says_where(write: Any, name: str, content: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_intents(write(name, content))


def test_bytes_that_are_not_utf8_are_an_error_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text,intent\na,b\n\xff,c\n")
    with pytest.raises(DataError, match="line 3: not UTF-8"):
        read_intents(tmp_path / "a.csv")
