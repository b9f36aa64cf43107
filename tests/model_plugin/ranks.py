"""An LM head spread over tensor-parallel ranks that are threads; runs in a process of its own, see `fresh_process`."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from model_plugin.pooler import Chunk, SchemaPooler
from tests.model_plugin.reference_head import VOCABULARY, Heads, distance, random_heads, random_prompts

_SGLANGS_PADDING = 64


class AllReduce:
    """Sums over the ranks, each of which calls it with its own values."""

    def __init__(self, size: int) -> None:
        self.sums = 0
        self._values: list[Tensor] = []
        self._total = torch.zeros(())
        self._barrier = threading.Barrier(size, action=self._add_up, timeout=60)

    def _add_up(self) -> None:
        self._total, self._values = torch.stack(self._values).sum(0), []
        self.sums += 1

    def __call__(self, values: Tensor) -> Tensor:
        self._values.append(values)
        self._barrier.wait()
        return self._total


def shard_of(heads: Heads, rank: int, size: int) -> SimpleNamespace:
    """What a rank's LM head is to `VocabParallelRows`, laid out by SGLang's own rule.

    Padding is zeros in SGLang; here it is large, so that whoever reads it is far off.
    """
    from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding, pad_vocab_size

    padding = _SGLANGS_PADDING
    if pad_vocab_size(VOCABULARY, padding) % size:
        padding *= size
    padded = pad_vocab_size(VOCABULARY, padding)
    indices = VocabParallelEmbedding._get_indices(padded, padded, VOCABULARY, VOCABULARY, rank, size)
    weight = torch.full((padded // size, heads.config.hidden_size), 1e6)
    weight[: indices.num_org_elements] = heads.output_VD[indices.org_vocab_start_index : indices.org_vocab_end_index]
    return SimpleNamespace(weight=weight, shard_indices=indices, tp_size=size)


def scores_over_ranks(size: int) -> dict[str, Any]:
    """Which tokens each rank has, and how far the answers of each are from the reference's."""
    from model_plugin.models import clef

    heads = random_heads()
    prompts = random_prompts(heads, 4)
    chunks = [
        Chunk(request=str(index), start=0, length=len(prompt), layout=prompt.layout, slots=torch.arange)
        for index, prompt in enumerate(prompts)
    ]
    rows = [clef.VocabParallelRows(shard_of(heads, rank, size)) for rank in range(size)]
    all_reduce = clef.tensor_model_parallel_all_reduce = AllReduce(size)

    def largest_distance(rank: int) -> float:
        logits = SchemaPooler(heads.ours, rows[rank])(
            torch.cat([prompt.hidden_TD for prompt in prompts]),
            torch.cat([prompt.token_ids_T for prompt in prompts]),
            None,
            chunks,
        )
        return max(
            distance(prompt.layout, got, heads.expected(prompt)) for prompt, got in zip(prompts, logits, strict=True)
        )

    with ThreadPoolExecutor(size) as threads:
        distances = list(threads.map(largest_distance, range(size)))
    parts = [rank.local_rows(torch.arange(VOCABULARY)) for rank in rows]
    return {
        "tokens_per_rank": [int(part.any(-1).sum()) for part in parts],
        "every_row_once": torch.equal(torch.stack(parts).sum(0), heads.output_VD),
        "sums_over_ranks": all_reduce.sums,
        "distances": distances,
    }


def scores_over_each(sizes: list[int]) -> dict[int, dict[str, Any]]:
    """The same for several numbers of ranks."""
    return {size: scores_over_ranks(size) for size in sizes}
