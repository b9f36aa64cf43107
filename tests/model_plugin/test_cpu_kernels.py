"""The CPU platform's kernels against slow, obvious mathematics: one token at a time, one sequence at a time."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model_plugin.cpu import gated_delta_net, kernels

KEY_HEADS, VALUE_HEADS, KEY_WIDTH, VALUE_WIDTH = 2, 4, 16, 8


def token_by_token(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The gated delta rule as its definition says, in FP64; also the state before every token."""
    q, k, v, g, beta, state = (x.double() for x in (q, k, v, g, beta, state))
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q = q.repeat_interleave(VALUE_HEADS // KEY_HEADS, 1) * KEY_WIDTH**-0.5
    k = k.repeat_interleave(VALUE_HEADS // KEY_HEADS, 1)
    outputs, before = [], []
    for t in range(len(q)):
        before.append(state.clone())
        state = state * g[t].exp()[:, None, None]
        delta = (v[t] - torch.einsum("hvk,hk->hv", state, k[t])) * beta[t][:, None]
        state = state + torch.einsum("hv,hk->hvk", delta, k[t])
        outputs.append(torch.einsum("hvk,hk->hv", state, q[t]))
    return torch.stack(outputs), [*before, state]


def sequences(lengths: list[int], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "q_TGK": draw(total, KEY_HEADS, KEY_WIDTH),
        "k_TGK": draw(total, KEY_HEADS, KEY_WIDTH),
        "v_THV": draw(total, VALUE_HEADS, VALUE_WIDTH),
        "log_decay_TH": -draw(total, VALUE_HEADS).exp() * 0.3,
        "beta_TH": draw(total, VALUE_HEADS).sigmoid(),
        "states_SHVK": draw(9, VALUE_HEADS, VALUE_WIDTH, KEY_WIDTH),
    }


@pytest.mark.parametrize("lengths", [[1], [63], [64], [65], [128], [200, 1, 64, 129], [5, 5, 5]], ids=str)
def test_chunked_delta_rule_equals_the_recurrence(lengths: list[int]) -> None:
    inputs = sequences(lengths, seed=len(lengths))
    rows = torch.tensor([7, 2, 5, 1][: len(lengths)])
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    pool = inputs.pop("states_SHVK")
    stored = pool.clone()
    out, before = gated_delta_net.chunk_gated_delta_rule(
        **inputs, states_SHVK=stored, state_rows_N=rows, bounds_N1=bounds
    )

    chunk = 0
    for row, start, end in zip(rows.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        expected, states = token_by_token(
            *(inputs[name][start:end] for name in ("q_TGK", "k_TGK", "v_THV", "log_decay_TH", "beta_TH")), pool[row]
        )
        torch.testing.assert_close(out[start:end].double(), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(stored[row].double(), states[-1], atol=1e-5, rtol=1e-5)
        for position in range(0, end - start, gated_delta_net.CHUNK_TOKENS):
            torch.testing.assert_close(before[chunk].double(), states[position], atol=1e-5, rtol=1e-5)
            chunk += 1
    assert chunk == len(before)
    untouched = [row for row in range(9) if row not in rows]
    assert torch.equal(stored[untouched], pool[untouched])


@pytest.mark.parametrize("cut", [1, 63, 64, 65, 100])
def test_a_sequence_cut_in_two_gives_the_same_outputs_and_state(cut: int) -> None:
    inputs = sequences([150], seed=cut)
    pool = inputs.pop("states_SHVK")
    rows = torch.tensor([3])
    whole, cut_pool = pool.clone(), pool.clone()
    out, _ = gated_delta_net.chunk_gated_delta_rule(
        **inputs, states_SHVK=whole, state_rows_N=rows, bounds_N1=torch.tensor([0, 150])
    )
    parts = []
    for start, end in ((0, cut), (cut, 150)):
        part = {name: value[start:end] for name, value in inputs.items()}
        bounds = torch.tensor([0, end - start])
        parts.append(
            gated_delta_net.chunk_gated_delta_rule(**part, states_SHVK=cut_pool, state_rows_N=rows, bounds_N1=bounds)[0]
        )
    torch.testing.assert_close(torch.cat(parts), out, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(cut_pool[3], whole[3], atol=1e-5, rtol=1e-5)


def test_no_decay_overflows_when_a_chunk_forgets_everything() -> None:
    inputs = sequences([130], seed=0)
    pool = inputs.pop("states_SHVK")
    inputs["log_decay_TH"] = torch.full_like(inputs["log_decay_TH"], -50.0)
    out, before = gated_delta_net.chunk_gated_delta_rule(
        **inputs, states_SHVK=pool, state_rows_N=torch.tensor([0]), bounds_N1=torch.tensor([0, 130])
    )
    assert out.isfinite().all()
    assert before.isfinite().all()


@pytest.mark.parametrize("lengths", [[1], [2], [3], [10], [1, 7, 2, 64]], ids=str)
@pytest.mark.parametrize("continues", [False, True])
def test_causal_convolution_equals_one_token_at_a_time(lengths: list[int], continues: bool) -> None:
    channels, taps = 6, 4
    generator = torch.Generator().manual_seed(1)
    x_DT = torch.randn(channels, sum(lengths), generator=generator)
    weight, bias = torch.randn(channels, taps, generator=generator), torch.randn(channels, generator=generator)
    pool = torch.randn(8, channels, taps - 1, generator=generator)
    rows = torch.tensor([4, 0, 6, 2][: len(lengths)])
    bounds = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    states = pool.clone()
    out = gated_delta_net.causal_conv1d(
        x_DT, weight, bias, "silu", states, torch.full((len(lengths),), continues), rows, torch.tensor(bounds)
    )
    for row, start, end in zip(rows.tolist(), bounds[:-1], bounds[1:], strict=True):
        window = pool[row].clone() if continues else torch.zeros(channels, taps - 1)
        for t in range(start, end):
            window = torch.cat([window, x_DT[:, t : t + 1]], 1)
            expected = F.silu((window * weight).sum(1) + bias)
            torch.testing.assert_close(out[:, t], expected, atol=1e-5, rtol=1e-5)
            window = window[:, 1:]
        torch.testing.assert_close(states[row], window)
    untouched = [row for row in range(8) if row not in rows]
    assert torch.equal(states[untouched], pool[untouched])


def test_gates_follow_their_definition() -> None:
    A_log, a, b, dt_bias = torch.randn(4), torch.randn(5, 4), torch.randn(5, 4), torch.randn(4)
    decay, beta = gated_delta_net.gates(A_log, a, b, dt_bias)
    torch.testing.assert_close(decay[0], -A_log.exp() * (1 + (a + dt_bias).exp()).log())
    torch.testing.assert_close(beta[0], 1 / (1 + (-b).exp()))


def test_query_and_gate_lie_side_by_side_in_each_head() -> None:
    heads, width = 2, 4
    q_gate = torch.randn(3, heads * 2 * width)
    q, k, gate = kernels.qk_gemma_rms_norm_with_gate(
        q_gate, torch.randn(3, width), torch.zeros(width), torch.zeros(width), 1e-6, width, heads
    )
    first = q_gate[0, :width]
    torch.testing.assert_close(q[0], first / first.square().mean().sqrt())
    assert torch.equal(gate[0], q_gate[0, width : 2 * width])
    assert q.shape == gate.shape == (6, width)
    assert k.shape == (3, width)


def test_another_form_of_the_gated_norm_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="gated RMS norm of Qwen3.5 only"):
        kernels.gated_rms_norm(torch.ones(2, 4), torch.ones(4), None, None, is_rms_norm=True)


@pytest.mark.parametrize(("prefix", "new"), [(0, 1), (0, 70), (1, 1), (64, 1), (200, 65), (3, 130)], ids=str)
def test_attention_after_a_prefix_equals_the_masked_product(prefix: int, new: int) -> None:
    q, k, v = torch.randn(new, 4, 8), torch.randn(prefix + new, 2, 8), torch.randn(prefix + new, 2, 8)
    mask = torch.ones(new, prefix + new, dtype=torch.bool).tril(prefix)
    scores = torch.einsum("qhp,khp->hqk", q, k.repeat_interleave(2, 1)) * 0.3
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    expected = torch.einsum("hqk,khp->qhp", weights, v.repeat_interleave(2, 1))
    torch.testing.assert_close(kernels.causal_attention_after_prefix(q, k, v, 0.3), expected, atol=1e-6, rtol=1e-5)
