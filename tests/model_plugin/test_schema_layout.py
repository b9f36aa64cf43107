"""Packing of layouts, against SGLang's format and against each thing it must refuse."""

import dataclasses

import pytest

from model_plugin.schema_layout import PromptLayout, QuestionSpans, namespace_of, pack_layout, unpack_layout

SPANS = QuestionSpans(question_type="score", question=(2, 4), options=((5, 6), (6, 9)))
LAYOUT = PromptLayout(prompt_tokens=10, questions=(SPANS,), state_end=1)


def test_the_format_is_sglangs_followed_by_the_state_end_and_the_namespace() -> None:
    assert pack_layout(LAYOUT) == [10, 1, 2, 2, 4, 2, 5, 6, 6, 9, 1]
    salted = pack_layout(dataclasses.replace(LAYOUT, namespace=namespace_of("acme")))
    assert salted[:11] == pack_layout(LAYOUT)
    assert len(salted) == 11 + 8
    assert all(0 <= word < 2**32 for word in salted[11:])


@pytest.mark.parametrize("salt", [None, "", "acme", "globex"])
def test_packing_and_unpacking_are_inverse(salt: str | None) -> None:
    layout = dataclasses.replace(LAYOUT, namespace=namespace_of(salt))
    assert unpack_layout(pack_layout(layout)) == layout


def test_namespaces_differ_exactly_when_salts_do() -> None:
    assert namespace_of(None) == namespace_of("") == ""
    assert namespace_of("acme") == namespace_of("acme") != namespace_of("Acme")


def test_sglangs_own_layout_caches_nothing_from_the_first_question_on() -> None:
    assert unpack_layout([10, 1, 2, 2, 4, 2, 5, 6, 6, 9]).state_end == 2


def test_media_before_the_state_move_everything_after_them() -> None:
    grown = LAYOUT.expanded(13)
    assert grown.questions == (QuestionSpans(question_type="score", question=(5, 7), options=((8, 9), (9, 12))),)
    assert (grown.prompt_tokens, grown.state_end) == (13, 4)
    with pytest.raises(ValueError, match="describes 10 tokens, the prompt has 9"):
        LAYOUT.expanded(9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"questions": ()}, "at least one question"),
        (
            {"questions": (QuestionSpans(question_type="noul", question=(1, 2), options=()),)},
            "at least one option",
        ),
        ({"prompt_tokens": 8}, r"\(6, 9\) is empty, out of order or outside the prompt of 8 tokens"),
        ({"state_end": 3}, r"\(2, 4\) is empty, out of order"),
        ({"state_end": 11}, "the state ends at 11, outside the prompt of 10"),
        ({"state_end": -1}, "the state ends at -1"),
    ],
)
def test_a_layout_that_means_nothing_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(LAYOUT, **changes)


@pytest.mark.parametrize(
    "packed",
    [[], [10], [10, 0], [10, 1, 2, 2, 4], [10, 1, 7, 2, 4, 1, 5, 6], [10, 1, 2, 2, 4, 1, 5, 6, 1, 9], [10, -1]],
    ids=str,
)
def test_integers_that_describe_no_layout_are_refused(packed: list[int]) -> None:
    with pytest.raises(ValueError, match="layout"):
        unpack_layout(packed)


def test_a_namespace_that_is_not_32_bit_integers_is_refused() -> None:
    with pytest.raises(ValueError, match="32-bit"):
        unpack_layout([*pack_layout(LAYOUT), *[2**33] * 8])
