"""A tokenizer for the reference with which it encodes a request as we do by default: control tokens in it stay text."""

import functools
import json
from types import SimpleNamespace
from typing import Any

from tokenizers import Tokenizer

from serving.prompt_text import PREFIX, SUFFIX


class WithoutControlTokens:
    """A tokenizer that reads control tokens only in the prompt's own two texts that hold some, and else their text.

    Built another way than ours: from the tokenizer's file with its added tokens struck out.
    """

    def __init__(self, tokenizer: Any) -> None:
        serialized = json.loads(tokenizer.backend_tokenizer.to_str())
        self._tokenizer = tokenizer
        self._plain = Tokenizer.from_str(json.dumps(serialized | {"added_tokens": []}))

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
        if text in (PREFIX, SUFFIX):
            return self._tokenizer(text, add_special_tokens=add_special_tokens)
        return SimpleNamespace(input_ids=self._plain.encode(text, add_special_tokens=add_special_tokens).ids)


without_control_tokens = functools.cache(WithoutControlTokens)
