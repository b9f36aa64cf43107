"""What the comparison gives SGLang's own joint schema head on a CPU."""

import torch
from torch import nn

from benchmarks._stock_platform import head_attention


def test_attention_of_several_sequences_is_that_of_each() -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 2, batch_first=True)
    queries, keys = torch.randn(5, 16), torch.randn(11, 16)
    out = head_attention(module, queries, keys, (torch.tensor([0, 2, 5]), 3), (torch.tensor([0, 7, 11]), 7))
    for rows, memory in ((slice(0, 2), slice(0, 7)), (slice(2, 5), slice(7, 11))):
        expected, _ = module(queries[None, rows], keys[None, memory], keys[None, memory])
        torch.testing.assert_close(out[rows], expected[0])


def test_without_keys_a_sequence_attends_to_itself() -> None:
    torch.manual_seed(1)
    module = nn.MultiheadAttention(16, 2, batch_first=True)
    queries = torch.randn(4, 16)
    bounds = (torch.tensor([0, 4]), 4)
    expected, _ = module(queries[None], queries[None], queries[None])
    torch.testing.assert_close(head_attention(module, queries, None, bounds, bounds), expected[0])
