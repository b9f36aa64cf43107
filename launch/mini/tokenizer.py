"""Learns a small vocabulary for Qwen3.5's byte-level tokenizer. Knows nothing of what the text is for."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MEDIA_TOKENS = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
}
# Rows of the vocabulary that hold the special tokens, and spare ones, like Qwen's own padded vocabulary.
SPARE_ROWS = 64


def learn_tokenizer(texts: Iterable[str], *, vocabulary_size: int, context_tokens: int) -> "PreTrainedTokenizerBase":
    """Qwen3.5's tokenizer, its normalizer and pre-tokenizer included, around a vocabulary learned from the texts.

    Args:
        vocabulary_size: rows of the embedding, `SPARE_ROWS` of which are not learned; a multiple of 64, as a
            vocabulary-parallel LM head wants.
    """
    from tokenizers import AddedToken, pre_tokenizers, trainers
    from transformers import Qwen3_5Tokenizer

    learner = Qwen3_5Tokenizer().backend_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size - SPARE_ROWS,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
    )
    learner.train_from_iterator(texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    tokenizer = Qwen3_5Tokenizer(
        vocab=learned["vocab"],
        merges=[tuple(merge) for merge in learned["merges"]],
        eos_token="<|im_end|>",  # noqa: S106 - a token of text
        pad_token="<|endoftext|>",  # noqa: S106
        extra_special_tokens=MEDIA_TOKENS,
        model_max_length=context_tokens,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]}, replace_extra_special_tokens=False)
    # Qwen adds these without marking them special: they survive a decode that skips special tokens.
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("<think>", "</think>")])
    assert len(tokenizer) <= vocabulary_size, len(tokenizer)
    return tokenizer
