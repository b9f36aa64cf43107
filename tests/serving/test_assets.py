"""Placeholders become labels wherever the API says, once, in the prompt's order; media pasted into texts are refused."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.api_types import Question
from serving.assets import MAX_ASSETS, MAX_REFERENCES, Placed, place_assets, refuse_inline_media
from serving.errors import ApiUsageError, InvalidRequestError
from tests.serving.prompts import REFUND, encode, read
from tests.serving.strategies import JSON, REQUESTS

TEXT = {"r": REFUND}
PHOTO, DOOR = "<image:0123456789abcdef0123456789abcdef>", "3f0c0e3e-6a51-4d5e-9a3e-1f6f6f9f2b11"


def questions_of(fields: dict[str, Any]) -> dict[str, Question]:
    return dict(read({"state": "s", "questions": fields}).questions)


def place(state: Any, *names: str, fields: dict[str, Any] = TEXT, first_number: int = 1) -> Placed:
    return place_assets(state, questions_of(fields), names, first_number=first_number)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (PHOTO, "<image 1>"),
        (f"{PHOTO}{PHOTO} and {PHOTO}", "<image 1><image 1> and <image 1>"),
        ({"door": PHOTO}, {"door": "<image 1>"}),
        ([1, None, True, {"a": [[f"see {PHOTO}."]]}], [1, None, True, {"a": [["see <image 1>."]]}]),
        ({PHOTO: PHOTO}, {PHOTO: "<image 1>"}),
    ],
    ids=["whole", "several times", "in an object", "nested", "not in a key"],
)
def test_a_placeholder_in_the_state_becomes_a_label(state: Any, expected: Any) -> None:
    placed = place(state, PHOTO)
    assert (placed.state, placed.names) == (expected, (PHOTO,))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"type": "noul", "instructions": "Is %s here?"}, {"type": "noul", "instructions": "Is <image 1> here?"}),
        ({"type": "noul", "criteria": {"false": "%s"}}, {"type": "noul", "criteria": {"false": "<image 1>"}}),
        (
            {"type": "choice", "criteria": {"b": "%s", "a": {"look": ["%s"]}}},
            {"type": "choice", "criteria": {"b": "<image 1>", "a": {"look": ["<image 1>"]}}},
        ),
        (
            {"type": "score", "instructions": {"ask": "%s"}, "criteria": ["x", "as %s", ["%s"]]},
            {"type": "score", "instructions": {"ask": "<image 1>"}, "criteria": ["x", "as <image 1>", ["<image 1>"]]},
        ),
    ],
    ids=["instructions", "noul", "choice", "score"],
)
def test_a_placeholder_in_a_question_becomes_a_label(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    def put(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: put(member) for key, member in value.items()}
        if isinstance(value, list):
            return [put(member) for member in value]
        return value.replace("%s", DOOR)

    sent = questions_of({"q": put(fields)})
    placed = place_assets("s", sent, [DOOR], first_number=1)
    assert placed.questions == questions_of({"q": expected})
    assert sent == questions_of({"q": put(fields)})  # what answers quote is as it was
    if fields["type"] == "choice":
        assert list(placed.questions["q"].criteria) == ["b", "a"]  # type: ignore[arg-type]


def test_the_absent_sides_of_a_noul_stay_absent() -> None:
    placed = place("s", DOOR, fields={"r": REFUND | {"criteria": {"true": DOOR}}})
    assert placed.questions["r"].criteria.as_sent() == {"true": "<image 1>"}  # type: ignore[union-attr]


def test_images_are_numbered_in_the_order_of_the_prompt_after_those_before_them() -> None:
    fields = {
        "first": {"type": "choice", "instructions": "four", "criteria": {"b": "six", "a": "five", "c": "two"}},
        "second": {"type": "score", "instructions": "seven", "criteria": ["eight", "three"]},
    }
    names = ["eight", "seven", "six", "five", "four", "three", "two", "one"]
    placed = place({"b": ["two", "one"], "a": "three"}, *names, fields=fields, first_number=3)
    assert placed.names == ("three", "two", "one", "four", "five", "six", "seven", "eight")
    assert placed.state == {"a": "<image 3>", "b": ["<image 4>", "<image 5>"]}


def test_equal_requests_with_other_placeholders_make_equal_prompts() -> None:
    def ids(name: str, other: str) -> list[int]:
        state = {"seen": f"{name} then {other}"}
        placed = place(state, other, name, fields={"r": REFUND | {"instructions": f"Is {other} a receipt?"}})
        request = {"state": placed.state, "questions": {"r": REFUND | {"instructions": "Is <image 2> a receipt?"}}}
        assert placed.questions == questions_of(request["questions"])
        return encode(request).input_ids

    assert ids(PHOTO, DOOR) == ids(str(UUID(int=1)), f"<image:{UUID(int=2).hex}>")


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        ("photo 12, photo 1", ["photo 1", "photo 12"], "<image 1>, <image 2>"),
        ("photo 12, photo 1", ["photo 12", "photo 1"], "<image 1>, <image 2>"),
        ("abcd", ["abc", "bcd"], ApiUsageError),
        ("abcd bcd", ["abc", "bcd"], "<image 1>d <image 2>"),
        ("aaa", ["aa"], "<image 1>a"),
        ("a image", ["a", "image"], "<image 1> <image 2>"),
        ("1 <image 1>", ["1", "<image 1>"], "<image 1> <image 2>"),
        ("a.c abc", ["a.c"], "<image 1> abc"),
        ("é|(", ["é", "|", "("], "<image 1><image 2><image 3>"),
    ],
)
def test_the_first_and_then_the_longest_counts_and_labels_are_not_searched(
    text: str, names: list[str], expected: Any
) -> None:
    if expected is ApiUsageError:
        with pytest.raises(ApiUsageError):
            place_assets(text, {}, names, first_number=1)
        return
    assert place(text, *names).state == expected


def replaced_slowly(text: str, names: list[str], numbers: dict[str, int]) -> str:
    """The rule, character by character."""
    out = ""
    while text:
        here = [name for name in names if text.startswith(name)]
        if here:
            longest = max(here, key=len)
            out += f"<image {numbers.setdefault(longest, len(numbers) + 1)}>"
            text = text[len(longest) :]
        else:
            out, text = out + text[0], text[1:]
    return out


@settings(max_examples=300)
@given(st.text("ab<i", max_size=40), st.lists(st.text("ab<i", min_size=1, max_size=4), unique=True, max_size=5))
def test_any_text_is_replaced_by_the_rule(text: str, names: list[str]) -> None:
    numbers: dict[str, int] = {}
    expected = replaced_slowly(text, names, numbers)
    used = [name for name in names if name in numbers]
    assert place_assets(text, {}, used, first_number=1).state == expected
    if used != names:
        with pytest.raises(ApiUsageError):
            place_assets(text, {}, names, first_number=1)


@settings(max_examples=100)
@given(REQUESTS, JSON)
def test_a_request_that_names_no_placeholder_keeps_its_prompt(request: dict[str, Any], value: Any) -> None:
    parsed = read(request)
    placed = place_assets([parsed.state, value], parsed.questions, [], first_number=1)
    assert (placed.state, placed.questions, placed.names) == ([parsed.state, value], parsed.questions, ())


@pytest.mark.parametrize(
    ("state", "fields"),
    [
        ("nothing", TEXT),
        ({DOOR: "x"}, TEXT),
        ("s", {DOOR: {"type": "noul", "instructions": "ok?"}}),
        ("s", {DOOR: {"type": "score", "criteria": ["a"]}}),
        ("s", {"t": {"type": "choice", "criteria": {DOOR: None, "b": None}}}),
    ],
    ids=["nowhere", "object key", "question id", "question id that is asked", "option"],
)
def test_an_asset_that_no_text_refers_to_is_refused(state: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(ApiUsageError) as caught:
        place(state, DOOR, fields=fields)
    assert str(caught.value) == f"no string in state, instructions or criteria refers to the asset '{DOOR}'"


def test_of_several_unused_assets_the_first_is_named_shortened_and_the_others_counted() -> None:
    with pytest.raises(ApiUsageError) as caught:
        place("only c", "a" * 100, "b" * 40, "c")
    expected = f"refers to the asset '{'a' * 80}…', nor to 1 other"
    assert str(caught.value) == f"no string in state, instructions or criteria {expected}"


def test_many_assets_and_many_references_are_refused_with_the_limit() -> None:
    names = [f"photo {number:04d}" for number in range(MAX_ASSETS + 1)]
    assert len(place(" ".join(names[1:]), *names[1:]).names) == MAX_ASSETS
    with pytest.raises(InvalidRequestError, match=f"^assets has {MAX_ASSETS + 1} items; the limit is {MAX_ASSETS}$"):
        place(" ".join(names), *names)
    assert place("x" * MAX_REFERENCES, "x").state == "<image 1>" * MAX_REFERENCES
    with pytest.raises(InvalidRequestError) as caught:
        place(["x" * MAX_REFERENCES, "x"], "x")
    message = f"assets are referred to more than {MAX_REFERENCES} times"
    assert caught.value.faults == [{"loc": ["body", "assets"], "msg": message, "type": "too_long"}]


PASTED = "data:image/png;base64,iVBORw0KGgo="
ADVICE = "media are sent in images, videos or assets"


@pytest.mark.parametrize(
    ("request_", "where", "loc"),
    [
        ({"state": PASTED}, "state", ["state"]),
        ({"state": " \n" + PASTED.upper()}, "state", ["state"]),
        ({"state": {"a": [1, {"b": PASTED}]}}, "state.a.1.b", ["state", "a", 1, "b"]),
        ({"state": "data:video/mp4; codecs=x;base64,AAAA"}, "state", ["state"]),
        ({"state": ["x", "data:audio/wav;base64,AAAA"]}, "state.1", ["state", 1]),
        (
            {"questions": {"q": REFUND | {"instructions": {"look": PASTED}}}},
            "question 'q': instructions.look",
            ["questions", "q", "instructions", "look"],
        ),
        (
            {"questions": {"q": REFUND | {"criteria": {"true": PASTED}}}},
            "question 'q': criteria.true",
            ["questions", "q", "criteria", "true"],
        ),
        (
            {"questions": {"q": {"type": "choice", "criteria": {"a": None, "b": PASTED}}}},
            "question 'q': criteria.b",
            ["questions", "q", "criteria", "b"],
        ),
        (
            {"questions": {"q": {"type": "score", "criteria": ["a", [PASTED]]}}},
            "question 'q': criteria.1.0",
            ["questions", "q", "criteria", 1, 0],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_data_url_of_a_medium_is_refused_where_it_stands(
    request_: dict[str, Any], where: str, loc: list[str | int]
) -> None:
    parsed = read({"state": "s", "questions": TEXT} | request_)
    with pytest.raises(InvalidRequestError) as caught:
        refuse_inline_media(parsed.state, parsed.questions)
    message = f"{where} is a data URL of a medium; {ADVICE}"
    assert caught.value.faults == [{"loc": ["body", *loc], "msg": message, "type": "inline_media"}]


@pytest.mark.parametrize("kind", ["image_url", "input_image", "video_url", "input_video", "audio_url", "input_audio"])
@pytest.mark.parametrize("alone", [False, True], ids=["in an array", "alone"])
def test_a_message_s_media_part_is_refused(kind: str, alone: bool) -> None:
    part = {"type": kind, kind: {"url": "https://halden-freight.example/photo.png"}}
    state = part if alone else [{"type": "text", "text": "look"}, part]
    with pytest.raises(InvalidRequestError) as caught:
        refuse_inline_media(state, {})
    where, loc = ("state", ["state"]) if alone else ("state.1", ["state", 1])
    message = f"{where} is a part of type {kind}; {ADVICE}"
    assert caught.value.faults == [{"loc": ["body", *loc], "msg": message, "type": "inline_media"}]


@pytest.mark.parametrize(
    "state",
    [
        "",
        "A data:image/png;base64,iVBO URL in the middle of a text",
        "data:image/png is how such a URL begins; base64, follows",
        "data:text/plain;base64,aGVsbG8=",
        "data:image/svg+xml,<svg/>",
        [{"type": "text", "text": "look"}, {"type": "image", "id": 3}, {"type": ["image_url"]}],
        {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "https://halden-freight.example/a"}}]}]},
        {"data:image/png;base64,iVBO": 1},
    ],
    ids=str,
)
def test_what_only_looks_like_it_is_text(state: Any) -> None:
    refuse_inline_media(state, questions_of(TEXT))


@settings(max_examples=100)
@given(REQUESTS)
def test_ordinary_requests_pass(request: dict[str, Any]) -> None:
    parsed = read(request)
    refuse_inline_media(parsed.state, parsed.questions)
