"""The strict JSON reader agrees with the standard library on what it accepts, and refuses what would alter a document."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import InvalidRequestError
from serving.strict_json import MAX_SHOWN_CHARACTERS, parse, shorten
from tests.serving.strategies import JSON

DEPTH = 128


@given(JSON, st.booleans())
def test_reads_what_was_written(value: Any, escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    # repr tells 1 from 1.0 and from True, and 0.0 from -0.0
    assert repr(parse(text.encode(), max_depth=DEPTH)) == repr(value)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        value = parse(body, max_depth=DEPTH)
    except InvalidRequestError as err:
        faults = err.faults
    else:
        assert value == json.loads(body.decode())
        return
    assert len(faults) == 1
    assert faults[0]["loc"][0] == "body"


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", "[[]]", '[{"a":[{}]}]', "[" * 128 + "]" * 128, '{"a":[' * 64 + "]}" * 64],
    ids=lambda text: text[:12],
)
def test_depth_limit_is_exact(text: str) -> None:
    levels = text.count("[") + text.count("{")
    parse(text.encode(), max_depth=levels)
    with pytest.raises(InvalidRequestError, match=f"nests deeper than {levels - 1} levels"):
        parse(text.encode(), max_depth=levels - 1)


def test_width_is_not_depth() -> None:
    text = "[" + ",".join(["[]"] * 10_000) + "]"
    assert len(parse(text.encode(), max_depth=2)) == 10_000


@pytest.mark.parametrize("literal", ["1e308", "-1.7976931348623157e308", "5e-324", "1e-400", "-0.0", "0.1e1"])
def test_numbers_within_a_double_are_kept(literal: str) -> None:
    value = parse(literal.encode(), max_depth=DEPTH)
    assert math.isfinite(value)
    assert repr(value) == repr(json.loads(literal))


def test_a_long_key_is_not_echoed_whole() -> None:
    key = "k" * 10_000
    with pytest.raises(InvalidRequestError) as caught:
        parse(f'{{"{key}":1,"{key}":2}}'.encode(), max_depth=DEPTH)
    assert len(json.dumps(caught.value.faults)) < 500


@given(st.text(alphabet=st.characters()))
def test_shortened_text_is_bounded_and_utf8(text: str) -> None:
    assert len(shorten(text).encode()) <= 4 * (MAX_SHOWN_CHARACTERS + 1)
