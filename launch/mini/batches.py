"""Labelled records as prompts with the right option of each question, in batches of about equal length.

Knows nothing of networks. A pool of records is made, sorted by length and cut, so that little is padded; a pool's number
decides it wholly, so that a training that was ended goes on with the batch that would have come next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launch.mini import generate
from launch.mini.generate.draw import Draw
from launch.mini.network import Prompt
from serving.api_types import parse_request
from serving.prompt import PromptEncoder
from serving.tokenizer import Tokenizer

_POOL_RECORDS = 256


@dataclass(frozen=True, kw_only=True)
class Example:
    """A prompt; of each question the type and, in scoring order, the index of the right option."""

    identity: str
    prompt: Prompt
    types: tuple[str, ...]
    labels: tuple[int, ...]


class RecordEncoder:
    """Encodes records as the server encodes requests."""

    def __init__(self, tokenizer: Tokenizer, max_prompt_tokens: int) -> None:
        self._encoder = PromptEncoder(
            tokenizer=tokenizer, max_prompt_tokens=max_prompt_tokens, cache_entries=1, cache_tokens=0
        )

    def encode(self, record: Mapping[str, Any]) -> Example:
        """One record whose questions all have labels, as clef-finetune writes them."""
        request = parse_request({"state": record["state"], "questions": record["questions"]})
        encoded = self._encoder.encode(request.state, request.questions)
        labels = record["labels"]
        written = [
            str(labels[name]).lower() if isinstance(labels[name], bool) else str(labels[name])
            for name in request.questions
        ]
        return Example(
            identity=str(record.get("id", "")),
            prompt=Prompt(input_ids=encoded.input_ids, questions=encoded.questions),
            types=tuple(question.type for question in request.questions.values()),
            labels=tuple(names.index(label) for names, label in zip(encoded.option_names, written, strict=True)),
        )


def pool_batches(encoder: RecordEncoder, pool: int, tokens: int) -> list[list[Example]]:
    """A pool's batches in random order, each of at most `tokens` tokens once it is padded."""
    examples = [encoder.encode(one) for one in generate.records("train", _POOL_RECORDS, pool * _POOL_RECORDS)]
    return Draw(f"{generate.SEED}/pool/{pool}").shuffled(by_length(examples, tokens))


def by_length(examples: Sequence[Example], tokens: int) -> list[list[Example]]:
    """The examples from short to long, cut into batches of at most `tokens` padded tokens, or of one example."""
    batches: list[list[Example]] = []
    for example in sorted(examples, key=lambda one: len(one.prompt.input_ids)):
        if not batches or (len(batches[-1]) + 1) * len(example.prompt.input_ids) > tokens:
            batches.append([])
        batches[-1].append(example)
    return batches
