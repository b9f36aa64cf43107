"""Many texts to token ids in one call that does not hold up other threads. Knows nothing of what the texts are for.

A tokenizer's *added tokens* (`<|im_end|>`, `<|image_pad|>`, `<think>`, special or not) are looked for in the text before
the model of the vocabulary sees it. A text from outside must not become one of them, so there are two tokenizers here
that share one vocabulary: the release's own, and a plain one without added tokens, to which `<|im_end|>` is ordinary text.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import tokenizers

# A place at which a text may be cut in two without changing a token: the tokens of both parts, one after the other, are
# those of the whole. It holds for Qwen's pre-tokenizer and GPT-2's: neither ever puts the two characters around such a
# place into one word, neither looks back over it, both look ahead only from white space to the next character, which the
# left part never needs, and NFC composes nothing across it.
#
# It is before a sign after a Latin, Japanese, Chinese or Korean letter or a digit, before a blank after anything else than
# white space, or after a single newline.
_LETTERS = r"0-9A-Za-z\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fa5\uac00-\ud7a3"
_SIGNS = r"\n,:\"\]}\u3001\u3002\uff0c"
BREAK = re.compile(rf"(?<=[{_LETTERS}])(?=[{_SIGNS}])|(?<=\S)(?= )|(?<=\S\n)(?=\S)")
_BREAKING = re.compile(rf"[\s{_SIGNS}]")
# Ordinary text has a break every few characters. Without a bound a run of millions of blanks, or of one letter, would be
# tokenized as one word, which takes gigabytes or makes the tokenizer's regular expression engine panic.
MAX_UNBROKEN_CHARACTERS = 2**18
# Ordinary text of several kinds, with breaks of each kind and an accent to compose.
SAMPLE = 'Invoice 2041, cafe\u0301:\n  {"a":[1,22],"état":"질문 🎯"}\n\nIt\'s\ttrue… 支払い済み。\nNo  more.\n'


class Encoding(Protocol):
    """What the Rust tokenizer returns for one text."""

    @property
    def ids(self) -> list[int]:
        """The token ids."""
        ...


class RustTokenizer(Protocol):
    """The part used here of `tokenizers.Tokenizer`, which releases the interpreter lock while it works."""

    model: Any
    normalizer: Any
    pre_tokenizer: Any

    def encode_batch_fast(self, input: list[str], *, add_special_tokens: bool) -> Sequence[Encoding]:
        """Tokenize every text, without offsets."""
        ...

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        """The added tokens by id."""
        ...

    def no_truncation(self) -> None:
        """Switch truncation off."""
        ...

    def no_padding(self) -> None:
        """Switch padding off."""
        ...


class Tokenizer(Protocol):
    """The part used here of a Transformers fast tokenizer."""

    @property
    def backend_tokenizer(self) -> Any:
        """The `RustTokenizer` behind it."""
        ...

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
        """Tokenize one text; the result has `input_ids`."""
        ...


class UnbrokenTextError(ValueError):
    """A long text that cannot be tokenized in parts, for want of a place to cut it."""


class BatchTokenizer:
    """A Transformers fast tokenizer's Rust backend, called directly. It may be called from any thread.

    Transformers' own call costs more than the tokenization of a short text, and works one text at a time unless all are
    padded alike. The tokenizer must not be used with truncation or padding elsewhere, as those are settings of the
    shared backend.

    Args:
        tokenizer: the release's.
        exact: let texts from outside become added tokens, as the tokenizer itself does.

    Raises:
        ValueError: the tokenizer has no Rust backend, or does something that this class could not do without it.
    """

    def __init__(self, tokenizer: Tokenizer, *, exact: bool = False) -> None:
        backend: RustTokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError("the release's tokenizer has no fast (Rust) implementation, which this server needs")
        # Transformers sets both before each of its own calls; a call on the backend must find them off.
        backend.no_truncation()
        backend.no_padding()
        self._tokenizer, self._backend = tokenizer, backend
        added = backend.get_added_tokens_decoder()
        self._added_ids = frozenset(added)
        if exact:
            self._outside = backend
            for token in added.values():
                if token.lstrip or token.rstrip or _BREAKING.search(token.content):
                    raise ValueError(
                        f"a text cannot be cut safely beside this tokenizer's added token {token.content!r}"
                    )
        else:
            self._outside = _plain(backend)
            for token_id, token in added.items():
                if self._outside.id_to_token(token_id) is not None:
                    raise ValueError(
                        f"the tokenizer's vocabulary itself holds its added token {token.content!r}, so text from outside "
                        "cannot be kept from becoming it; exact control tokens can be served"
                    )
        self._check_sample()

    def __call__(self, texts: Iterable[str]) -> dict[str, list[int]]:
        """Each distinct text's token ids, without special tokens around it. No added token is among them unless `exact`.

        Raises:
            RuntimeError: the Rust code panicked.
        """
        return _encode(self._outside, texts)

    def own(self, texts: Iterable[str]) -> dict[str, list[int]]:
        """The same for this program's own texts, in which added tokens mean what they are.

        Raises:
            ValueError: the ids differ from those of the tokenizer's own call, so it does something that the backend alone
                does not; or, for a text without added tokens, from those that a text from outside would get.
        """
        ids = _encode(self._backend, texts)
        outside = self(ids)
        for text, batched in ids.items():
            if batched != self._alone(text):
                raise ValueError(f"the tokenizer's batched call disagrees with its single call on {text!r}")
            if self._added_ids.isdisjoint(batched) and outside[text] != batched:
                raise ValueError(f"the tokenizer reads {text!r} differently once its added tokens are left out")
        return ids

    def beginning(self, text: str, *, characters: int, tokens: int) -> list[int]:
        """The first ids of a long text's, exactly as they are in the whole: at least `tokens`, unless it has fewer.

        It is read in parts of `characters` and a few more, each cut at a `BREAK`, and no further than needed.

        Raises:
            UnbrokenTextError: no such place is near the end of a part.
            RuntimeError: the Rust code panicked.
        """
        ids: list[int] = []
        start = 0
        while start < len(text) and len(ids) < tokens:
            end = _break_after(text, start + characters)
            part = text[start:end]
            ids += self([part])[part]
            start = end
        return ids

    def _alone(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False).input_ids)

    def _check_sample(self) -> None:
        """Raises ValueError unless ordinary text is read as by the tokenizer itself, whole and cut at every break."""
        whole = self([SAMPLE])[SAMPLE]
        if whole != self._alone(SAMPLE):
            raise ValueError("the tokenizer reads ordinary text differently once its added tokens are left out")
        for place in BREAK.finditer(SAMPLE):
            left, right = SAMPLE[: place.start()], SAMPLE[place.start() :]
            ids = self([left, right])
            if ids[left] + ids[right] != whole:
                raise ValueError(f"the tokenizer does not read a text word by word: not at {left[-1:] + right[:1]!r}")


def _plain(backend: RustTokenizer) -> tokenizers.Tokenizer:
    """The same tokenizer without added tokens. It shares the vocabulary: nothing is copied."""
    plain = tokenizers.Tokenizer(backend.model)
    plain.normalizer = backend.normalizer
    plain.pre_tokenizer = backend.pre_tokenizer
    return plain


def _encode(backend: RustTokenizer | tokenizers.Tokenizer, texts: Iterable[str]) -> dict[str, list[int]]:
    distinct = list(dict.fromkeys(texts))
    try:
        encodings = backend.encode_batch_fast(distinct, add_special_tokens=False)
    except BaseException as err:
        # A panic in Rust is no Exception, and would pass by everything that handles errors.
        if type(err).__module__ == "pyo3_runtime":
            raise RuntimeError(f"the tokenizer panicked: {err}") from err
        raise
    return {text: encoding.ids for text, encoding in zip(distinct, encodings, strict=True)}


def _break_after(text: str, position: int) -> int:
    """The first place from `position` on where the text may be cut, at latest its end."""
    if position >= len(text):
        return len(text)
    limit = position + MAX_UNBROKEN_CHARACTERS
    found = BREAK.search(text, position, limit)
    if found:
        return found.start()
    if limit >= len(text):
        return len(text)
    raise UnbrokenTextError(f"more than {MAX_UNBROKEN_CHARACTERS} characters without a blank or the end of a word")
