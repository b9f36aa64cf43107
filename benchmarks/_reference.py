"""Scores prompts with Cloudflare's reference implementation, where the development package that carries it is installed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks._workloads import Prompt
from model_plugin.schema_layout import QUESTION_TYPES


def reference_logits(release: Path, prompts: Sequence[Prompt]) -> list[list[list[float]]] | None:
    """FP32 logits on the CPU for each prompt and question, or None without `clef-finetune`."""
    try:
        from clef_finetune.jsm import load_jsm
    except ImportError:
        return None
    reference: Any = load_jsm()
    model, processor = reference.load_release_model(release, device="cpu", dtype=torch.float32)
    answers = []
    for prompt in prompts:
        record = reference.EncodedRecord(
            input_ids=tuple(prompt.input_ids),
            questions=tuple(
                reference.EncodedQuestion(
                    question_id=str(number),
                    question_type=QUESTION_TYPES.index(question.question_type),
                    question_span=question.question,
                    option_spans=question.options,
                    option_ids=tuple(map(str, range(len(question.options)))),
                )
                for number, question in enumerate(prompt.questions)
            ),
            record_id="prompt",
        )
        batch = reference.collate_records([record], processor.tokenizer.pad_token_id, torch.device("cpu"))
        with torch.inference_mode():
            answers.append([logits.float().tolist() for logits in model(batch)[0]])
    return answers
