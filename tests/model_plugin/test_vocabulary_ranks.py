"""Option tokens from an LM head whose vocabulary lies on several ranks, each shard padded as SGLang pads it."""

from typing import Any

import pytest

from tests import tolerances
from tests.model_plugin import fresh_process, ranks

# 100 tokens pad to 128 rows, and on 3 ranks to 192, of which the last rank holds nothing but padding.
TOKENS_PER_RANK = {1: [100], 2: [64, 36], 3: [64, 36, 0]}


@pytest.fixture(scope="module")
def answers() -> Any:
    return fresh_process.result(ranks.scores_over_each, list(TOKENS_PER_RANK))


@pytest.mark.parametrize("size", TOKENS_PER_RANK)
def test_every_row_is_on_one_rank(size: int, answers: Any) -> None:
    assert answers[str(size)]["tokens_per_rank"] == TOKENS_PER_RANK[size]
    assert answers[str(size)]["every_row_once"]


@pytest.mark.parametrize("size", TOKENS_PER_RANK)
def test_every_rank_gives_the_references_answer(size: int, answers: Any) -> None:
    distances = answers[str(size)]["distances"]
    assert len(distances) == size
    assert max(distances) <= (tolerances.FP32 if size == 1 else tolerances.FP32_TENSOR_PARALLEL)


@pytest.mark.parametrize("size", TOKENS_PER_RANK)
def test_a_pass_of_the_head_sums_over_ranks_once(size: int, answers: Any) -> None:
    assert answers[str(size)]["sums_over_ranks"] == (0 if size == 1 else 1)
