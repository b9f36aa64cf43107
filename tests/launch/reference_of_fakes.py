"""A reference implementation that says what `serving.fake_engine` says, for tests of `clef-serve verify`.

It encodes as Cloudflare's does. Environment variables spoil it: SHIFT is added to the logit of the last option of each
question, and EXTRA_TOKENS lengthens its prompts.
"""

import os
from types import SimpleNamespace
from typing import Any

import torch
from clef_finetune import tiny
from clef_finetune.jsm import load_jsm

from serving.fake_engine import fake_logit

_JSM = load_jsm()


def encode_record(tokenizer: Any, record: dict[str, Any], max_length: int, processor: Any) -> Any:
    encoded = _JSM.encode_record(tokenizer, record, max_length=max_length)
    extra = int(os.environ.get("EXTRA_TOKENS", "0"))
    return SimpleNamespace(input_ids=encoded.input_ids + (0,) * extra, questions=encoded.questions)


def collate_records(records: list[Any], pad_token_id: int, device: torch.device) -> list[Any]:
    return records


def load_release_model(release: Any, device: str, dtype: torch.dtype) -> tuple[Any, Any]:
    return _model, SimpleNamespace(tokenizer=tiny._tokenizer(512))


def _model(records: list[Any]) -> list[list[torch.Tensor]]:
    return [[_logits(record.input_ids, question) for question in record.questions] for record in records]


def _logits(ids: tuple[int, ...], question: Any) -> torch.Tensor:
    asked = ids[slice(*question.question_span)]
    logits = torch.tensor([fake_logit(asked, ids[slice(*span)]) for span in question.option_spans], dtype=torch.float64)
    logits[-1] += float(os.environ.get("SHIFT", "0"))
    return logits
