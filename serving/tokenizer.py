"""Many texts to token ids in one call that does not hold up other threads. Knows nothing of what the texts are for."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol


class Encoding(Protocol):
    """What the Rust tokenizer returns for one text."""

    @property
    def ids(self) -> list[int]:
        """The token ids."""
        ...


class RustTokenizer(Protocol):
    """The part used here of `tokenizers.Tokenizer`, which releases the interpreter lock while it works."""

    def encode_batch_fast(self, input: list[str], *, add_special_tokens: bool) -> Sequence[Encoding]:
        """Tokenize every text, without offsets."""
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


class BatchTokenizer:
    """A Transformers fast tokenizer's Rust backend, called directly. It may be called from any thread.

    Transformers' own call costs more than the tokenization of a short text, and works one text at a time unless all are
    padded alike. The tokenizer must not be used with truncation or padding elsewhere, as those are settings of the
    shared backend.

    Raises:
        ValueError: the tokenizer has no Rust backend.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        backend: RustTokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ValueError("the release's tokenizer has no fast (Rust) implementation, which this server needs")
        # Transformers sets both before each of its own calls; a call on the backend must find them off.
        backend.no_truncation()
        backend.no_padding()
        self._tokenizer, self._backend = tokenizer, backend

    def __call__(self, texts: Iterable[str]) -> dict[str, list[int]]:
        """Each distinct text's token ids, without special tokens around it.

        Raises:
            RuntimeError: the Rust code panicked.
        """
        distinct = list(dict.fromkeys(texts))
        try:
            encodings = self._backend.encode_batch_fast(distinct, add_special_tokens=False)
        except BaseException as err:
            # A panic in Rust is no Exception, and would pass by everything that handles errors.
            if type(err).__module__ == "pyo3_runtime":
                raise RuntimeError(f"the tokenizer panicked: {err}") from err
            raise
        return {text: encoding.ids for text, encoding in zip(distinct, encodings, strict=True)}

    def checked(self, texts: Iterable[str]) -> dict[str, list[int]]:
        """The same, after comparing each text's ids with those of the tokenizer's own call.

        Raises:
            ValueError: they differ, so this tokenizer does something that the backend alone does not.
        """
        ids = self(texts)
        for text, batched in ids.items():
            if batched != list(self._tokenizer(text, add_special_tokens=False).input_ids):
                raise ValueError(f"the tokenizer's batched call disagrees with its single call on {text!r}")
        return ids
