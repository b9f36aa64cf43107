"""`clef-serve verify` against a server with a fake engine, whose answers a fake reference knows exactly."""

import argparse
import base64
import hashlib
import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from launch.verify.cases import VerifyError, data_url, fixed_cases, read_records
from launch.verify.command import add_verify_arguments, summary, table, verify_command
from launch.verify.compare import MARGIN, TOLERANCES, Outcome, Verdict, compare, probabilities_of
from launch.verify.records import RECORDS, image_records
from launch.verify.reference import UnusableReferenceError, has_vision, reference_file
from serving.api_types import parse_request
from serving.fake_engine import FakeEngine
from tests import tolerances
from tests.serving.harness import make_app, running_server

REFERENCE = Path(__file__).with_name("reference_of_fakes.py")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server(make_app(FakeEngine(), max_prompt_tokens=65_536)) as started:
        yield started


@pytest.fixture
def release(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def verify(release: Path, url: str, *arguments: str, reference: Path = REFERENCE) -> tuple[int, list[str]]:
    parser = argparse.ArgumentParser()
    add_verify_arguments(parser)
    said: list[str] = []
    options = ["--url", url, "--model", str(release), "--reference", str(reference), *arguments]
    return verify_command(parser.parse_args(options), said.append), said


def last_line(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_a_server_that_says_what_the_reference_says_passes(
    release: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = verify(release, url, "--tolerance", "1e-6")
    printed = capsys.readouterr().out
    found = json.loads(printed.splitlines()[-1])
    assert status == 0
    assert found["passed"] is True
    assert 0 < found["max_abs_dp"] < 1e-6
    assert found["tolerance_that_holds"] == "FP32"
    assert list(found["max_abs_dp_by_record"]) == list(RECORDS)
    assert (found["records"], found["not_compared"], found["other_prompt_tokens"]) == (24, {}, [])
    assert [line.split()[0] for line in printed.splitlines()[2:26]] == list(RECORDS)
    assert said[-1] == "record 24 of 24: longest-text"


def test_a_difference_is_found_and_fails(
    release: Path, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHIFT", "0.01")
    status, _ = verify(release, url, "--tolerance", "1e-3", "--json")
    found = last_line(capsys)
    assert status == 1
    # A logit that is off by x moves a probability p by about p (1 - p) x, at most x / 4.
    assert 2e-3 < found["max_abs_dp"] < 2.51e-3
    assert (found["passed"], found["tolerance_that_holds"], found["disagreements"]) == (False, "BF16", [])
    assert verify(release, url, "--tolerance", "2.6e-3")[0] == 0


def test_another_top_option_is_a_disagreement(
    release: Path, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHIFT", "20")
    assert verify(release, url, "--tolerance", "1", "--json")[0] == 0
    found = last_line(capsys)
    assert "forty-options: queue" in found["disagreements"]
    assert found["tolerance_that_holds"] is None


def test_prompts_of_another_length_are_told(
    release: Path, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXTRA_TOKENS", "3")
    verify(release, url)
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1])["other_prompt_tokens"] == list(RECORDS)
    assert ", not " in lines[2]


def test_records_of_a_file_are_asked_and_one_refused_fails(
    release: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = RECORDS["mail"]["questions"]
    records = [{"id": "short", "state": "x", "questions": questions}, {"state": "y " * 40_000, "questions": questions}]
    path = tmp_path / "records.jsonl"
    path.write_text("\n\n".join(map(json.dumps, records)), encoding="utf-8")
    assert verify(release, url, "--records", str(path))[0] == 1
    printed = capsys.readouterr().out
    found = json.loads(printed.splitlines()[-1])
    assert list(found["max_abs_dp_by_record"]) == ["short"]
    assert list(found["not_compared"]) == ["line 3"]
    assert found["not_compared"]["line 3"].startswith("413: ")
    assert found["tolerance_that_holds"] is None
    assert "1 records could not be compared: line 3" in printed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "line 1: Expecting property name"),
        ("[]", "line 1: not an object"),
        ("\n" + json.dumps({"state": "x"}), "line 2: .*questions"),
        (json.dumps({**RECORDS["mail"], "videos": ["data:"]}), "line 1: videos cannot be compared; images can"),
        (json.dumps({**RECORDS["mail"], "images": ["http://x.example/a.png"]}), "line 1: images must be data URLs"),
        (json.dumps({**RECORDS["mail"], "images": ["data:image/png;base64,AAAA"]}), "line 1: cannot identify image"),
        ("\n", "holds no record"),
    ],
    ids=["not-json", "no-object", "no-questions", "video", "image-elsewhere", "no-image", "empty"],
)
def test_a_file_without_records_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(VerifyError, match=message):
        list(read_records(path))


def test_an_image_reaches_both_sides_as_the_same_pixels(tmp_path: Path) -> None:
    (_, images) = image_records()["two-images"]
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({**RECORDS["mail"], "images": [data_url(image) for image in images]}), encoding="utf-8")
    (case,) = read_records(path)
    assert [image.tobytes() for image in case.images] == [image.tobytes() for image in images]
    decoded = Image.open(BytesIO(base64.b64decode(data_url(images[0]).split(",")[1])))
    assert (decoded.size, decoded.mode) == ((320, 96), "L")


def test_images_are_asked_where_the_release_sees(release: Path) -> None:
    assert not has_vision(release)
    (release / "config.json").write_text('{"vision_config": {"depth": 1}}')
    assert has_vision(release)
    assert len(list(fixed_cases(with_images=True))) == len(RECORDS) + 2


def test_the_records_are_fixed_valid_and_of_every_kind() -> None:
    for record in RECORDS.values():
        parse_request({"model": "clef", **record})
    asked = [question for record in RECORDS.values() for question in record["questions"].values()]
    assert {question["type"] for question in asked} == {"noul", "choice", "score"}
    assert {len(question["criteria"]) for question in asked if question["type"] == "choice"} >= {1, 2, 7, 12, 20, 40}
    assert {len(question["criteria"]) for question in asked if question["type"] == "score"} >= {1, 10}
    assert {type(record["state"]) for record in RECORDS.values()} == {str, dict, list}
    # A figure of verify means these records; who changes one changes this line and says so.
    written = json.dumps(RECORDS, ensure_ascii=False).encode()
    assert hashlib.sha256(written).hexdigest() == "50ba750bacf5ea6ef7ef88e283cffc2d3ecc1767850e6760588119568972fe3f"


def test_the_tolerances_are_those_the_tests_hold_the_engine_to() -> None:
    assert [tolerance.max_dp for tolerance in TOLERANCES] == [
        tolerances.FP32,
        tolerances.FP32_TENSOR_PARALLEL,
        tolerances.BF16,
    ]
    assert TOLERANCES[-1].margin == MARGIN == tolerances.BF16_MARGIN


def outcome_of(reference: list[float], *served: list[float]) -> Outcome:
    named = [{"q": {str(n): p for n, p in enumerate(values)}} for values in (reference, *served)]
    return compare("r", named[0], named[1:])


@pytest.mark.parametrize(
    ("reference", "served", "max_dp", "same_top", "disagreements"),
    [
        ([0.6, 0.4], [0.6, 0.4], 0.0, True, ()),
        ([0.6, 0.4], [0.5, 0.5], 0.1, True, ()),
        ([0.52, 0.48], [0.49, 0.51], 0.03, False, ()),
        ([0.53, 0.47], [0.49, 0.51], 0.04, False, ("q",)),
        ([1.0], [1.0], 0.0, True, ()),
    ],
    ids=["equal", "tie", "within-the-margin", "above-the-margin", "one-option"],
)
def test_one_record_is_compared(
    reference: list[float], served: list[float], max_dp: float, same_top: bool, disagreements: tuple[str, ...]
) -> None:
    outcome = outcome_of(reference, served)
    assert outcome.max_dp == pytest.approx(max_dp)
    assert (outcome.same_top, outcome.disagreements, outcome.refused) == (same_top, disagreements, None)


def test_the_farther_of_two_answers_counts() -> None:
    assert outcome_of([0.6, 0.4], [0.6, 0.4], [0.7, 0.3]).max_dp == pytest.approx(0.1)
    assert outcome_of([0.6, 0.4], [0.7, 0.3], [0.6, 0.4]).max_dp == pytest.approx(0.1)


def test_an_answer_to_something_else_is_not_compared() -> None:
    assert compare("r", {"q": {"a": 1.0}}, [{}]).refused == "the answer is to other questions"
    assert compare("r", {"q": {"a": 1.0}}, [{"q": {"b": 1.0}}]).refused == "the answer to q has other options"
    assert outcome_of([1.0], [float("nan")]).refused == "q has a probability that is not a number"
    with pytest.raises(ValueError, match="not the answers of a SystemOne response: KeyError"):
        probabilities_of({"q": {"type": "choice"}})


@pytest.mark.parametrize(
    ("max_dp", "disagreements", "holds"),
    [
        (1e-5, (), "FP32"),
        (2e-5, (), "FP32 over two tensor-parallel ranks"),
        (6e-5, (), "BF16"),
        (9e-3, ("q",), None),
        (2e-2, (), None),
    ],
)
def test_the_closest_tolerance_that_holds_is_named(
    max_dp: float, disagreements: tuple[str, ...], holds: str | None
) -> None:
    outcome = Outcome(name="r", max_dp=max_dp, disagreements=disagreements, same_top=not disagreements)
    assert Verdict(outcomes=[outcome], tolerance=1.0).holds == holds


def test_the_table_shows_a_record_on_a_line() -> None:
    outcomes = [
        Outcome(name="mail", max_dp=2e-3, question="team", tokens=(744, 744), cached=640),
        Outcome(
            name="list",
            max_dp=0.2,
            question="top",
            same_top=False,
            disagreements=("top",),
            tokens=(90, 91),
            cached=None,
        ),
        Outcome(name="long", refused="413: too long"),
    ]
    verdict = Verdict(outcomes=outcomes, tolerance=0.01)
    assert table(verdict).splitlines() == [
        "record  prompt tokens  cached  max |dp|  same top  question",
        "-----------------------------------------------------------",
        "mail    744            640     2.00e-03  yes       team",
        "list    90, not 91             2.00e-01  NO        top",
        "long                                               413: too long",
        "",
        "max |dp| 2.00e-01, NOT within the tolerance 0.01; closer tolerances than that do not hold",
        "1 questions have another top option although the reference's is ahead by more than 0.05: list: top",
        "1 records could not be compared: long",
    ]
    assert summary(verdict, reference_dtype="float32")["not_compared"] == {"long": "413: too long"}


def test_code_of_a_release_runs_only_where_the_user_trusts_it(tmp_path: Path) -> None:
    with pytest.raises(UnusableReferenceError, match=r"has no joint_schema_model\.py; name one with --reference"):
        reference_file(tmp_path, named=None, trust_release_code=True)
    own = tmp_path / "joint_schema_model.py"
    own.write_text("raise SystemExit('it ran')")
    with pytest.raises(
        UnusableReferenceError, match="read it, then say --trust-release-code, or name a file you trust"
    ):
        reference_file(tmp_path, named=None, trust_release_code=False)
    assert reference_file(tmp_path, named=None, trust_release_code=True) == own
    assert reference_file(tmp_path, named=REFERENCE, trust_release_code=False) == REFERENCE


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1 / 0", "cannot be run: ZeroDivisionError"),
        ("x = 1", "is no reference implementation: it has no load_release_model"),
    ],
    ids=["fails", "other-code"],
)
def test_a_file_that_is_no_reference_is_refused(release: Path, url: str, content: str, message: str) -> None:
    other = release / "other.py"
    other.write_text(content)
    status, said = verify(release, url, reference=other)
    assert status == 2
    assert message in said[-1]


def test_without_a_server_there_is_nothing_to_compare(release: Path) -> None:
    status, said = verify(release, "http://127.0.0.1:1")
    assert status == 2
    assert said == [said[-1]]
    assert said[-1].startswith("error: no server answers at http://127.0.0.1:1")


@pytest.mark.parametrize("content", ["", "two keys", "clef_ü"], ids=["empty", "two", "not-ascii"])
def test_a_key_file_holds_one_key(release: Path, url: str, tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content, encoding="utf-8")
    status, said = verify(release, url, "--api-key-file", str(file))
    assert (status, len(said)) == (2, 1)
    assert content not in said[0] or not content
