"""The loader of labelled records: every form of a label, what is sent, and errors that name line and field."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from clef_finetune.data import iter_labelled, load_jsonl, option_ids, validate_file
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.quality.records import DataError, asked_sha256, options_of, read_records

CHOICE = {"type": "choice", "instructions": "Which team?", "criteria": {"sales": "new customers", "billing": None}}
SCORE = {"type": "score", "criteria": ["low", "middle", "high"]}
NOUL = {"type": "noul", "instructions": "Is it urgent?"}
QUESTIONS = {"team": CHOICE, "level": SCORE, "urgent": NOUL}


def record(**changes: Any) -> dict[str, Any]:
    return {"state": "The order is late.", "questions": QUESTIONS, "labels": {"team": "billing"}} | changes


def write(path: Path, *lines: Any) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text(text + "\n", encoding="utf-8")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "held-out.jsonl"


@pytest.mark.parametrize(
    ("question", "label", "index"),
    [
        pytest.param("urgent", True, 0, id="noul-true"),
        pytest.param("urgent", False, 1, id="noul-false"),
        pytest.param("urgent", "False", 1, id="noul-word-in-any-case"),
        pytest.param("team", "billing", 1, id="choice-in-the-order-sent"),
        pytest.param("level", 2, 2, id="score-level"),
        pytest.param("level", " 01 ", 1, id="score-digits"),
    ],
)
def test_a_label_is_the_index_of_its_option(file: Path, question: str, label: Any, index: int) -> None:
    (read,) = read_records(write(file, record(labels={question: label}))).records
    assert read.labels == {question: index}


def test_a_record_is_named_by_its_id_or_its_line_and_blank_lines_are_none(file: Path) -> None:
    data = read_records(write(file, record(id="case-1"), "", record(id=7), record()))
    assert [read.name for read in data.records] == ["case-1", "7", "line 4"]


def test_what_a_request_may_hold_is_sent_and_nothing_else(file: Path) -> None:
    line = record(id="a", source="archive", model="other", x_isolated=True, cache_salt=None)
    (read,) = read_records(write(file, line)).records
    assert read.body() == {"state": line["state"], "questions": QUESTIONS, "x_isolated": True}


def test_a_group_is_the_value_of_the_key(file: Path) -> None:
    data = read_records(write(file, record(split="seen"), record(split=2)), group_by="split")
    assert [read.group for read in data.records] == ["seen", "2"]


def test_images_are_files_beside_the_data_or_data_urls(file: Path) -> None:
    (file.parent / "photos").mkdir()
    (file.parent / "photos" / "a.jpg").write_bytes(b"jpeg")
    url = "data:image/png;base64,AAAA"
    (read,) = read_records(write(file, record(images=["photos/a.jpg", url]))).records
    expected = ["data:image/jpeg;base64," + base64.b64encode(b"jpeg").decode(), url]
    assert read.body()["images"] == expected


def test_a_group_by_id_is_what_stands_before_its_first_slash(file: Path) -> None:
    data = read_records(write(file, record(id="unseen/invoices/3"), record(id="plain")), group_by="id")
    assert [read.group for read in data.records] == ["unseen", "plain"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param('{"state": ', "the line is not JSON", id="no-json"),
        pytest.param('{"state": "a", "state": "b"}', "the key 'state' appears twice", id="key-twice"),
        pytest.param([1], "the line must be a JSON object, not an array", id="no-object"),
        pytest.param({"questions": QUESTIONS, "labels": {"team": "sales"}}, "state is required", id="no-state"),
        pytest.param(record(questions={}), "questions has no questions; it needs at least 1", id="no-questions"),
        pytest.param(
            record(questions={"team": {**CHOICE, "type": "pick"}}),
            "question 'team': type must be one of noul, choice, score",
            id="unknown-type",
        ),
        pytest.param(
            record(questions={"team": {"type": "choice", "criteria": {str(n): None for n in range(256)}}}),
            "question 'team': criteria has 256 options; the limit is 255",
            id="256-options",
        ),
        pytest.param(
            record(questions={"team": {"type": "choice", "criteria": {"sales": None}}}),
            "questions.team.criteria needs at least 2 options",
            id="one-option",
        ),
        pytest.param(record(labels=None), "labels must be an object with at least one label", id="no-labels"),
        pytest.param(record(labels={}), "labels must be an object with at least one label", id="empty-labels"),
        pytest.param(record(labels={"tone": 1}), "labels.tone is the label of no question", id="label-of-nothing"),
        pytest.param(
            record(labels={"team": "legal"}), "labels.team must be one of the 2 options", id="label-no-option"
        ),
        pytest.param(record(labels={"level": 3}), "labels.level must be a level from 0 to 2", id="level-too-high"),
        pytest.param(record(labels={"level": True}), "labels.level must be a level from 0 to 2", id="level-boolean"),
        pytest.param(record(labels={"level": 1.0}), "labels.level must be a level from 0 to 2", id="level-fraction"),
        pytest.param(record(labels={"level": "²"}), "labels.level must be a level from 0 to 2", id="level-superscript"),
        pytest.param(record(labels={"urgent": 1}), "labels.urgent must be true or false", id="noul-number"),
        pytest.param(record(images=["gone.png"]), "images.0: there is no file gone.png", id="no-image"),
        pytest.param(
            record(images=[{"url": "data:image/png;base64,AAAA"}]),
            "images.0 must be the path of a file",
            id="image-object",
        ),
        pytest.param(record(id=[1]), "id must be text, a number or a boolean, not an array", id="id-array"),
    ],
)
def test_a_bad_line_is_named_with_its_field(file: Path, line: Any, message: str) -> None:
    with pytest.raises(DataError) as err:
        read_records(write(file, record(), line))
    assert str(err.value).startswith(f"{file}, line 2: ")
    assert message in str(err.value)
    assert "The order is late" not in str(err.value)


def test_a_group_that_a_record_lacks_is_an_error(file: Path) -> None:
    with pytest.raises(DataError, match="line 2: split is missing"):
        read_records(write(file, record(split="seen"), record()), group_by="split")


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_records_is_an_error(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(DataError, match="holds no record"):
        read_records(file)


def test_a_file_that_is_not_there_is_an_error(file: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_records(file)


def test_a_line_separator_inside_a_text_does_not_end_the_line(file: Path) -> None:
    (read,) = read_records(write(file, json.dumps(record(state="one\u2028two"), ensure_ascii=False))).records
    assert read.request["state"] == "one\u2028two"


def test_the_digest_is_of_all_that_is_asked_and_of_the_labels(file: Path) -> None:
    def digest(**changes: Any) -> str:
        return asked_sha256(read_records(write(file, record(**changes))).records)

    assert digest() == digest(id="other", source="archive")
    assert len({digest(), digest(state="x"), digest(labels={"team": "sales"}), digest(x_isolated=True)}) == 4


words = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=6)
questions = st.one_of(
    st.just(NOUL),
    st.dictionaries(words, st.none() | words, min_size=2, max_size=6).map(
        lambda criteria: {"type": "choice", "criteria": criteria}
    ),
    st.lists(words, min_size=2, max_size=6).map(lambda criteria: {"type": "score", "criteria": criteria}),
)


@st.composite
def labelled(draw: st.DrawFn) -> dict[str, Any]:
    asked = draw(st.dictionaries(words, questions, min_size=1, max_size=4))
    labels = {}
    for question_id, question in asked.items():
        index = draw(st.integers(0, len(options_of(question)) - 1))
        forms: list[Any] = [options_of(question)[index]]
        forms += {"noul": [index == 0, forms[0].upper()], "choice": [], "score": [index]}[question["type"]]
        labels[question_id] = draw(st.sampled_from(forms))
    some = draw(st.sets(st.sampled_from(sorted(labels)), min_size=1))
    return record(questions=asked, labels={question_id: labels[question_id] for question_id in some})


@given(lines=st.lists(labelled(), min_size=1, max_size=3))
def test_clef_finetune_reads_the_same_labels_from_the_same_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]]
) -> None:
    file = write(tmp_path_factory.getbasetemp() / "both.jsonl", *lines)
    assert validate_file(file)["ok"]
    theirs = [
        {question_id: option_ids(question)[index] for question_id, question, index in iter_labelled(read)}
        for read in load_jsonl(file)
    ]
    ours = [
        {
            question_id: options_of(read.request["questions"][question_id])[index]
            for question_id, index in read.labels.items()
        }
        for read in read_records(file).records
    ]
    assert ours == theirs
