"""From a prefill batch to one logit per option: cached prefixes, prompts in chunks, and an LM head spread over ranks.

Every forward of the backbone passes here. Each token leaves a memory row; each span gathers what this forward computed of
it; a request whose last token is in the batch is scored. Nothing here knows SGLang's classes: `models/clef.py` hands over
plain tensors.

Shapes: T tokens of the batch, D hidden size, W head width, S spans.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from model_plugin.memory_pool import MemoryRows
from model_plugin.schema_head import HeadInputs, JointSchemaHead
from model_plugin.schema_layout import QUESTION_TYPES, PromptLayout

# One pass of the head reads at most this many memory rows, unless a single prompt is longer: it bounds the keys and values
# alive at a time (2 rows of `width` a token).
_ROWS_A_PASS = 65_536
# SGLang has one request in the middle of its chunks at a time; what aborted ones left behind is dropped beyond these.
_UNFINISHED_KEPT = 4


class OutputRows(Protocol):
    """Reads rows of the LM head, which may be spread over tensor-parallel ranks."""

    def local_rows(self, token_ids: Tensor) -> Tensor:
        """`[n, D]`, zeros for tokens whose row lies on another rank."""
        ...

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """The sum of every rank's values, the same on each."""
        ...


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """The part of one prompt that a batch computes.

    Attributes:
        request: an identity that no two requests in flight share.
        start: tokens of the prompt that were computed or cached before.
        length: tokens in this batch.
        layout: None for a request that asks nothing, such as a health check.
        slots: gives the KV slots of the prompt's first n tokens.
    """

    request: str
    start: int
    length: int
    layout: PromptLayout | None
    slots: Callable[[int], Tensor]

    @property
    def end(self) -> int:
        return self.start + self.length


class _SpanSums:
    """FP32 sums over a prompt's spans, all questions first, then all options, as far as they have been computed."""

    def __init__(self, layout: PromptLayout) -> None:
        spans = [question.question for question in layout.questions]
        spans += (option for question in layout.questions for option in question.options)
        self.questions = len(layout.questions)
        self.bounds_S2 = torch.tensor(spans)
        self.hidden_SD: Tensor | None = None
        self.lexical_SD: Tensor | None = None
        self.next_token = 0

    def add(self, start: int, normalized_TD: Tensor, token_ids_T: Tensor, output: OutputRows) -> None:
        """Add the tokens `[start, start + T)`.

        Spans follow each other, so the chunk's part of all of them is one gather and one reduction by length.
        """
        self.next_token = start + len(normalized_TD)
        parts_S2 = self.bounds_S2.clamp(start, self.next_token) - start
        lengths_S = parts_S2[:, 1] - parts_S2[:, 0]
        device = normalized_TD.device
        tokens = _ranges(parts_S2[:, 0], lengths_S).to(device)
        lengths = lengths_S.to(device)
        hidden_SD = torch.segment_reduce(normalized_TD[tokens].float(), "sum", lengths=lengths)
        options = int(lengths_S[: self.questions].sum())
        lexical_SD = torch.segment_reduce(
            output.local_rows(token_ids_T[tokens[options:]]).float(), "sum", lengths=lengths[self.questions :]
        )
        self.hidden_SD = hidden_SD if self.hidden_SD is None else self.hidden_SD + hidden_SD
        self.lexical_SD = lexical_SD if self.lexical_SD is None else self.lexical_SD + lexical_SD


@dataclass(frozen=True, kw_only=True)
class _Complete:
    """A prompt whose last token is in the batch."""

    index: int
    layout: PromptLayout
    sums: _SpanSums
    last_D: Tensor
    memory_TW: Tensor


class SchemaPooler(nn.Module):
    """Holds the head; `rows` is None where no prefix is cached and no prompt is cut, and the rows of the batch suffice."""

    def __init__(self, head: JointSchemaHead, output: OutputRows) -> None:
        super().__init__()
        self.head = head
        self.rows: MemoryRows | None = None
        self._output = output
        self._unfinished: OrderedDict[str, _SpanSums] = OrderedDict()

    @torch.no_grad()
    def forward(
        self, hidden_TD: Tensor, token_ids_T: Tensor, slots_T: Tensor | None, chunks: Sequence[Chunk]
    ) -> list[Tensor]:
        """Score the prompts that end in this batch.

        Args:
            hidden_TD: final hidden states of all chunks back to back.
            slots_T: the KV slot of each token; unused without a row pool.

        Returns:
            for each chunk the FP32 logits of its options in order, empty where its prompt goes on or asks nothing.
        """
        normalized_TD = self.head.hidden_norm(hidden_TD)
        memory_TW = self.head.memory_projection(normalized_TD)
        if self.rows is not None:
            assert slots_T is not None
            self.rows.write(slots_T, memory_TW)
        logits = [hidden_TD.new_empty(0, dtype=torch.float32) for _ in chunks]
        complete: list[_Complete] = []
        at = 0
        for index, chunk in enumerate(chunks):
            part = slice(at, at + chunk.length)
            at += chunk.length
            if chunk.layout is None:
                continue
            sums = self._sums_of(chunk, chunk.layout)
            if sums is None:
                continue  # no scores: the front reports that as a fault of the engine
            sums.add(chunk.start, normalized_TD[part], token_ids_T[part], self._output)
            if chunk.end < chunk.layout.prompt_tokens:
                self._keep(chunk, sums)
                continue
            memory = memory_TW[part] if self.rows is None else self.rows.read(chunk.slots(chunk.end))
            complete.append(
                _Complete(
                    index=index,
                    layout=chunk.layout,
                    sums=sums,
                    last_D=normalized_TD[at - 1],
                    memory_TW=memory,
                )
            )
        for group in _groups(complete):
            for prompt, values in zip(group, self._score(group, hidden_TD.dtype), strict=True):
                logits[prompt.index] = values
        return logits

    def _sums_of(self, chunk: Chunk, layout: PromptLayout) -> _SpanSums | None:
        """The sums this chunk continues, or new ones if no span starts before it."""
        kept = self._unfinished.pop(chunk.request, None)
        if chunk.start <= layout.questions[0].question[0]:
            return _SpanSums(layout)
        return kept if kept is not None and kept.next_token == chunk.start else None

    def _keep(self, chunk: Chunk, sums: _SpanSums) -> None:
        self._unfinished[chunk.request] = sums
        while len(self._unfinished) > _UNFINISHED_KEPT:
            self._unfinished.popitem(last=False)

    def _score(self, group: list[_Complete], dtype: torch.dtype) -> list[Tensor]:
        # Each rank has the option tokens of its own part of the vocabulary; one sum over ranks for the whole group.
        lexical = torch.cat([_present(prompt.sums.lexical_SD) for prompt in group])
        lexical = self._output.sum_over_ranks(lexical)
        hidden = [_present(prompt.sums.hidden_SD).split_with_sizes(_counts(prompt.sums)) for prompt in group]
        sizes = [prompt.sums.bounds_S2.diff().squeeze(-1).split(_counts(prompt.sums)) for prompt in group]
        device = lexical.device
        question_tokens = torch.cat([size[0] for size in sizes]).to(device).unsqueeze(-1)
        option_tokens = torch.cat([size[1] for size in sizes]).to(device).unsqueeze(-1)
        questions = [question for prompt in group for question in prompt.layout.questions]
        outputs: list[Tensor] = self.head(
            HeadInputs(
                memory_MW=torch.cat([prompt.memory_TW for prompt in group]),
                memory_lengths_R=[len(prompt.memory_TW) for prompt in group],
                last_RD=torch.stack([prompt.last_D for prompt in group]),
                question_QD=(torch.cat([part[0] for part in hidden]) / question_tokens).to(dtype),
                option_OD=(torch.cat([part[1] for part in hidden]) / option_tokens).to(dtype),
                lexical_OD=(lexical / option_tokens).to(dtype),
                question_types_Q=[QUESTION_TYPES.index(question.question_type) for question in questions],
                questions_R=[len(prompt.layout.questions) for prompt in group],
                options_Q=[len(question.options) for question in questions],
            )
        )
        return outputs


def _counts(sums: _SpanSums) -> list[int]:
    return [sums.questions, len(sums.bounds_S2) - sums.questions]


def _present(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def _ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """`[start, start + length)` of each row, back to back."""
    ends = lengths.cumsum(0)
    within = torch.arange(int(ends[-1])) - torch.repeat_interleave(ends - lengths, lengths)
    return torch.repeat_interleave(starts, lengths) + within


def _groups(complete: list[_Complete]) -> list[list[_Complete]]:
    """Consecutive prompts, as many as fit one pass of the head."""
    groups: list[list[_Complete]] = []
    rows = _ROWS_A_PASS + 1
    for prompt in complete:
        rows += len(prompt.memory_TW)
        if rows > _ROWS_A_PASS:
            groups.append([])
            rows = len(prompt.memory_TW)
        groups[-1].append(prompt)
    return groups
