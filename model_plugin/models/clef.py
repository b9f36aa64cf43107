"""SGLang's Qwen3.5 with our joint schema head; for a checkpoint without one it is SGLang's class, unchanged.

The only place where SGLang's forward batch and our pooler meet.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from safetensors.torch import load_file
from sglang.srt.distributed import tensor_model_parallel_all_reduce
from sglang.srt.layers.pooler import EmbeddingPoolerOutput
from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding
from sglang.srt.models import qwen3_5
from torch import Tensor, nn

from model_plugin import sglang_hooks
from model_plugin.checkpoint import HEAD_WEIGHTS_FILE, HeadConfig
from model_plugin.memory_pool import MemoryRows
from model_plugin.pooler import Chunk, SchemaPooler
from model_plugin.schema_head import JointSchemaHead


class VocabParallelRows:
    """Rows of an LM head whose vocabulary is split over tensor-parallel ranks, padding included."""

    def __init__(self, lm_head: VocabParallelEmbedding) -> None:
        self._lm_head = lm_head

    def local_rows(self, token_ids: Tensor) -> Tensor:
        """`[n, D]`; zeros for tokens of another rank, so that summing over ranks gives every row once."""
        shard = self._lm_head.shard_indices
        local = token_ids - shard.org_vocab_start_index
        here: Tensor = (token_ids >= shard.org_vocab_start_index) & (token_ids < shard.org_vocab_end_index)
        rows: Tensor = self._lm_head.weight[local.masked_fill(~here, 0)]
        return rows * here.unsqueeze(-1)

    def sum_over_ranks(self, values: Tensor) -> Tensor:
        """The sum over tensor-parallel ranks, on each."""
        if self._lm_head.tp_size == 1:
            return values
        summed: Tensor = tensor_model_parallel_all_reduce(values)
        return summed


class ClefPooler(nn.Module):
    """What SGLang's model calls in place of a pooler: turns a forward batch into chunks."""

    def __init__(self, config: HeadConfig, lm_head: VocabParallelEmbedding) -> None:
        super().__init__()
        self.schema = SchemaPooler(JointSchemaHead(config), VocabParallelRows(lm_head))
        self._slot_table: Tensor | None = None

    def use_pools(self, rows: MemoryRows, slot_table: Tensor) -> None:
        """Take the row pool, and SGLang's table of the KV slots of each request, `[requests, tokens]`."""
        self.schema.rows, self._slot_table = rows, slot_table

    def forward(self, hidden_states: Tensor, forward_batch: Any) -> EmbeddingPoolerOutput:
        """FP32 logits for each request of the batch; see `SchemaPooler.forward`."""
        layouts = forward_batch.decision_layouts or [None] * forward_batch.batch_size
        lengths = forward_batch.extend_seq_lens_cpu
        if lengths is None:  # an idle batch
            return EmbeddingPoolerOutput(embeddings=[hidden_states.new_empty(0)] * forward_batch.batch_size)
        starts = forward_batch.extend_prefix_lens_cpu or [0] * len(lengths)

        def slots_of(row: int) -> Callable[[int], Tensor]:
            def slots(tokens: int) -> Tensor:
                assert self._slot_table is not None
                return self._slot_table[forward_batch.req_pool_indices[row], :tokens]

            return slots

        chunks = [
            Chunk(request=request, start=int(start), length=int(length), layout=layout, slots=slots_of(row))
            for row, (request, start, length, layout) in enumerate(
                zip(forward_batch.rids, starts, lengths, layouts, strict=True)
            )
        ]
        tokens = sum(chunk.length for chunk in chunks)
        logits = self.schema(
            hidden_states[:tokens], forward_batch.input_ids[:tokens], forward_batch.out_cache_loc[:tokens], chunks
        )
        return EmbeddingPoolerOutput(embeddings=logits)


class Qwen3_5ForConditionalGeneration(qwen3_5.Qwen3_5ForConditionalGeneration):  # type: ignore[misc]
    """Keeps SGLang's name, on which its hybrid-cache, media and graph rules depend."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        head_config = sglang_hooks.served_head_config()
        if head_config is not None:
            self.pooler = ClefPooler(HeadConfig.from_mapping(head_config), self.lm_head)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load the backbone as SGLang does, then the head, which must match its configuration exactly.

        Raises:
            RuntimeError: a tensor of the head is missing, left over or of another shape.
        """
        if not isinstance(self.pooler, ClefPooler):
            return set(super().load_weights(weights))
        head = self.pooler.schema.head
        # A release without an index makes SGLang read every safetensors file, the head's among them.
        head_names = {name for name, _ in head.named_parameters()}
        loaded = set(super().load_weights((name, weight) for name, weight in weights if name not in head_names))
        head.load_state_dict(load_file(sglang_hooks.served_file(HEAD_WEIGHTS_FILE)), strict=True)
        return loaded | {f"pooler.schema.head.{name}" for name in head_names}

    @property
    def memory_row_dtype(self) -> torch.dtype:
        """The type of the rows that the head keeps for every token."""
        dtype: torch.dtype = self.pooler.schema.head.memory_projection.weight.dtype
        return dtype


EntryClass = Qwen3_5ForConditionalGeneration
