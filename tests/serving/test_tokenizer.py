"""Texts from outside never become added tokens, a long text's first tokens are the whole's, and odd tokenizers are refused."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from serving import tokenizer as module
from serving.tokenizer import BREAK, SAMPLE, BatchTokenizer, UnbrokenTextError
from tests.serving.harness import tiny_tokenizer
from tests.serving.prompts import TOKENIZERS, CountingTokenizer, DroppingTokenizer
from tests.serving.strategies import CONTROL_TEXT

EACH_TOKENIZER = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
EXACT_OR_NOT = pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
# What decides where words end: blanks of all kinds, letters, digits, marks that compose or join, signs, control tokens.
CROWDED = st.lists(
    st.sampled_from(
        [
            *" \n\r\t,:\"]}{[aZ09éß질か。、!.'s_-|<>🎯½\u0301\u0338\u1161\u11a8\u1100\u3099\u0e33\u200d\u2028\x85\x1c\xa0",
            *("'re", "  ", "  \n", "\n\n", "<|im_end|>", "\u212b", "word", " word"),
        ]
    ),
    max_size=40,
).map("".join)


def wrapped(backend: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@EACH_TOKENIZER
@settings(max_examples=150)
@given(text=CONTROL_TEXT)
def test_text_from_outside_never_becomes_an_added_token_and_loses_nothing(
    tokenizer: Callable[[], Any], text: str
) -> None:
    backend = tokenizer().backend_tokenizer
    [ids] = BatchTokenizer(tokenizer())([text]).values()
    assert not set(ids) & set(backend.get_added_tokens_decoder())
    composed = backend.normalizer.normalize_str(text) if backend.normalizer else text
    assert backend.decode(ids, skip_special_tokens=False) == composed


@EACH_TOKENIZER
@settings(max_examples=150)
@given(text=CROWDED.map(lambda text: text.replace("<|im_end|>", "")))
def test_ordinary_text_gets_the_tokenizer_s_own_ids(tokenizer: Callable[[], Any], text: str) -> None:
    expected = tokenizer()(text, add_special_tokens=False).input_ids
    assert BatchTokenizer(tokenizer())([text]) == {text: expected}


def test_own_texts_hold_added_tokens() -> None:
    tokenizer = BatchTokenizer(tiny_tokenizer())
    [token_id] = tokenizer.own(["<|im_end|>"])["<|im_end|>"]
    assert token_id == tiny_tokenizer().convert_tokens_to_ids("<|im_end|>")


@functools.cache
def gpt_2_like() -> PreTrainedTokenizerFast:
    """GPT-2's pre-tokenizer, which takes the last of several blanks to the next word, and merges that show where."""
    merges = [("Ġ", "Ġ"), ("Ċ", "Ċ"), ("ĠĠ", "Ċ"), ("Ġ", "Ċ"), ("Ġ", "a"), ("a", "a"), ("a", ",")]
    signs = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(merge) for merge in merges]
    backend = Tokenizer(models.BPE(vocab={sign: number for number, sign in enumerate(signs)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return wrapped(backend)


@pytest.mark.parametrize("tokenizer", [*TOKENIZERS.values(), gpt_2_like], ids=[*TOKENIZERS, "as GPT-2's"])
@EXACT_OR_NOT
@settings(max_examples=150)
@given(text=CROWDED)
def test_a_text_may_be_cut_at_every_break(tokenizer: Callable[[], Any], exact: bool, text: str) -> None:
    by = BatchTokenizer(tokenizer(), exact=exact)
    whole = by([text])[text]
    for place in BREAK.finditer(text):
        left, right = text[: place.start()], text[place.start() :]
        ids = by([left, right])
        assert ids[left] + ids[right] == whole


def test_the_sample_that_is_checked_at_the_start_has_each_kind_of_break() -> None:
    around = {SAMPLE[place.start() - 1 : place.start() + 1] for place in BREAK.finditer(SAMPLE)}
    assert around >= {"e ", "1,", 'a"', "み。", "2]", ", ", "\nN"}


@EACH_TOKENIZER
@EXACT_OR_NOT
@settings(max_examples=100)
@given(text=CROWDED, characters=st.integers(1, 20), tokens=st.integers(1, 60))
def test_the_beginning_of_a_text_is_that_of_the_whole(
    tokenizer: Callable[[], Any], exact: bool, text: str, characters: int, tokens: int
) -> None:
    by = BatchTokenizer(tokenizer(), exact=exact)
    whole = by([text])[text]
    ids = by.beginning(text, characters=characters, tokens=tokens)
    assert ids == whole[: len(ids)]
    assert len(ids) >= min(tokens, len(whole))


def test_a_long_text_is_read_in_parts_and_no_further_than_needed() -> None:
    counting = CountingTokenizer()
    by = BatchTokenizer(counting, exact=True)
    counting.backend_tokenizer.calls.clear()
    assert len(by.beginning("word " * 1000, characters=52, tokens=100)) == 109
    assert counting.backend_tokenizer.calls == [["word" + " word" * 10], [" word" * 11]]


@pytest.mark.parametrize("filler", [" ", "x", "\n", "-", "質"], ids=repr)
def test_a_text_without_a_break_is_refused_unless_its_end_is_near(monkeypatch: pytest.MonkeyPatch, filler: str) -> None:
    monkeypatch.setattr(module, "MAX_UNBROKEN_CHARACTERS", 1000)
    by = BatchTokenizer(tiny_tokenizer())
    text = filler * 1100
    assert by.beginning(text, characters=100, tokens=10**6) == by([text])[text]
    with pytest.raises(UnbrokenTextError, match="^more than 1000 characters without a blank or the end of a word$"):
        by.beginning(text + filler, characters=100, tokens=10**6)


def test_a_panic_in_the_tokenizer_is_an_ordinary_error() -> None:
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    counting = CountingTokenizer()
    by = BatchTokenizer(counting, exact=True)

    def panicking(input: list[str], *, add_special_tokens: bool) -> Any:
        raise panic("retry-limit-in-match over")

    counting.backend_tokenizer.encode_batch_fast = panicking  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the tokenizer panicked: retry-limit-in-match over"):
        by(["text"])


def test_other_base_exceptions_pass_through() -> None:
    counting = CountingTokenizer()
    by = BatchTokenizer(counting, exact=True)

    def interrupted(input: list[str], *, add_special_tokens: bool) -> Any:
        raise KeyboardInterrupt

    counting.backend_tokenizer.encode_batch_fast = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        by(["text"])


def test_a_tokenizer_without_a_fast_implementation_is_refused() -> None:
    class Slow:
        def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
            raise AssertionError("not reached")

    with pytest.raises(ValueError, match="no fast"):
        BatchTokenizer(Slow())  # type: ignore[arg-type]


def test_a_tokenizer_whose_batched_call_differs_is_refused() -> None:
    by = BatchTokenizer(DroppingTokenizer("END FIELD\n"), exact=True)
    with pytest.raises(ValueError, match="disagrees with its single call on 'END FIELD"):
        by.own(["END FIELD\n"])


def test_a_tokenizer_that_changes_ordinary_text_by_its_added_tokens_is_refused() -> None:
    backend = Tokenizer.from_str(tiny_tokenizer().backend_tokenizer.to_str())
    backend.add_tokens([AddedToken("FIELD", normalized=False)])
    by = BatchTokenizer(wrapped(backend))
    assert by(["FIELD"])["FIELD"] != by.own(["FIELD"])["FIELD"]  # an added token, and so no ordinary text
    backend.add_tokens([AddedToken("Invoice", normalized=False)])
    with pytest.raises(ValueError, match="^the tokenizer reads ordinary text differently once its added tokens"):
        BatchTokenizer(wrapped(backend))


def test_a_vocabulary_that_holds_its_added_tokens_is_refused_unless_they_are_exact() -> None:
    alphabet = {sign: number for number, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=alphabet | {"<|im_end|>": len(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(["<|im_end|>"])
    with pytest.raises(ValueError, match=r"^the tokenizer's vocabulary itself holds its added token '<\|im_end\|>'"):
        BatchTokenizer(wrapped(backend))
    assert BatchTokenizer(wrapped(backend), exact=True)(["<|im_end|>"]) == {"<|im_end|>": [len(alphabet)]}


@pytest.mark.parametrize(
    "token",
    [AddedToken("<a b>", normalized=False), AddedToken("<x>", lstrip=True), AddedToken("<x>", rstrip=True)],
    ids=["with a blank", "strips left", "strips right"],
)
def test_added_tokens_beside_which_no_cut_is_safe_are_refused_where_they_are_matched(token: AddedToken) -> None:
    backend = Tokenizer.from_str(tiny_tokenizer().backend_tokenizer.to_str())
    backend.add_tokens([token])
    BatchTokenizer(wrapped(backend))
    with pytest.raises(
        ValueError, match=f"^a text cannot be cut safely beside this tokenizer's added token '{token.content}'$"
    ):
        BatchTokenizer(wrapped(backend), exact=True)


def test_a_tokenizer_that_does_not_read_word_by_word_is_refused() -> None:
    backend = Tokenizer.from_str(tiny_tokenizer().backend_tokenizer.to_str())
    backend.normalizer = normalizers.Prepend("_")
    with pytest.raises(ValueError, match="^the tokenizer does not read a text word by word"):
        BatchTokenizer(wrapped(backend))
