"""Gated DeltaNet on the CPU: gates, causal convolution and the chunk-parallel delta rule, for a ragged batch.

Knows nothing of SGLang's pools beyond "a table of states and the row of each sequence". Follows the chunked form of
Yang et al., "Gated Delta Networks" (arXiv:2412.06464), section 3, with the WY representation of "Parallelizing Linear
Transformers with the Delta Rule" (arXiv:2406.06484); tests check it against a token-by-token recurrence.

Shapes: T tokens of all sequences back to back, N sequences, H value heads, G key heads (H a multiple of G), K key width,
V value width, D convolution channels, W convolution taps, C chunks of all sequences back to back, L = CHUNK_TOKENS.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

# Also SGLang's: hybrid_linear_attn_backend counts per-chunk states in chunks of 64 tokens.
CHUNK_TOKENS = 64


def gates(A_log_H: Tensor, a_TH: Tensor, b_TH: Tensor, dt_bias_H: Tensor) -> tuple[Tensor, Tensor]:
    """Log decay and write strength of every token and head, FP32, each `[1, T, H]`."""
    log_decay_TH = -A_log_H.float().exp() * F.softplus(a_TH.float() + dt_bias_H.float())
    return log_decay_TH.unsqueeze(0), b_TH.float().sigmoid().unsqueeze(0)


def causal_conv1d(
    x_DT: Tensor,
    weight_DW: Tensor,
    bias_D: Tensor | None,
    activation: str | None,
    states_SDW: Tensor,
    has_initial_state_N: Tensor,
    state_rows_N: Tensor,
    bounds_N1: Tensor,
) -> Tensor:
    """Depthwise causal convolution of each sequence, which continues from its stored last `W - 1` inputs.

    Args:
        states_SDW: every stored window, `[rows, D, W - 1]`; the rows in `state_rows_N` are replaced.
        bounds_N1: where sequences start and end in T, `[N + 1]`.

    Returns:
        `[D, T]` in the type of `x_DT`.
    """
    taps = weight_DW.shape[1]
    bounds = bounds_N1.tolist()
    windows_NDW = states_SDW[state_rows_N].to(x_DT.dtype) * has_initial_state_N.view(-1, 1, 1).to(x_DT.dtype)
    pieces = []
    for index, (start, end) in enumerate(itertools.pairwise(bounds)):
        pieces += [windows_NDW[index], x_DT[:, start:end]]
    padded_DP = torch.cat(pieces, dim=1)
    total = padded_DP.shape[1] - (taps - 1)
    out_DP = sum(padded_DP[:, tap : tap + total].float() * weight_DW[:, tap : tap + 1].float() for tap in range(taps))
    assert isinstance(out_DP, Tensor)
    if bias_D is not None:
        out_DP = out_DP + bias_D.float().unsqueeze(1)
    if activation in ("silu", "swish"):
        out_DP = F.silu(out_DP)
    # Sequence n is preceded by n + 1 windows, the first of which `out_DP` already left out.
    starts = [start + index * (taps - 1) for index, start in enumerate(bounds[:-1])]
    lengths = [end - start for start, end in itertools.pairwise(bounds)]
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    states_SDW[state_rows_N] = torch.stack([padded_DP[:, end : end + taps - 1] for end in ends]).to(states_SDW.dtype)
    out_DT = torch.cat([out_DP[:, start:end] for start, end in zip(starts, ends, strict=True)], dim=1)
    return out_DT.to(x_DT.dtype)


def chunk_gated_delta_rule(
    q_TGK: Tensor,
    k_TGK: Tensor,
    v_THV: Tensor,
    log_decay_TH: Tensor,
    beta_TH: Tensor,
    states_SHVK: Tensor,
    state_rows_N: Tensor,
    bounds_N1: Tensor,
) -> tuple[Tensor, Tensor]:
    """The delta rule over each sequence from its stored state, all chunks of all sequences at once where that is possible.

    Within a chunk everything is a batched matrix product or a triangular solve over C; only the state passes from chunk to
    chunk, in as many steps as the longest sequence has chunks. Queries and keys are L2-normalized here. FP32 inside.

    Args:
        states_SHVK: every stored state; the rows in `state_rows_N` are read first and replaced at the end.

    Returns:
        outputs `[T, H, V]` in the type of `v_THV`, and the FP32 state **before** each chunk, `[C, H, V, K]`.
    """
    heads, width = v_THV.shape[1], q_TGK.shape[2]
    bounds = bounds_N1.tolist()
    lengths = [end - start for start, end in itertools.pairwise(bounds)]
    chunk_counts = [-(-length // CHUNK_TOKENS) for length in lengths]
    first_chunks = [sum(chunk_counts[:index]) for index in range(len(chunk_counts))]
    chunks = sum(chunk_counts)

    # Where each token goes once every sequence is padded to whole chunks.
    slots_T = torch.cat(
        [torch.arange(n) + chunk * CHUNK_TOKENS for n, chunk in zip(lengths, first_chunks, strict=True)]
    )

    def chunked(values: Tensor) -> Tensor:  # [T, H, X] -> [C, H, L, X], zeros where padded
        padded = values.new_zeros((chunks * CHUNK_TOKENS, *values.shape[1:]), dtype=torch.float32)
        padded[slots_T] = values.float()
        return padded.view(chunks, CHUNK_TOKENS, heads, -1).transpose(1, 2)

    repeat = heads // q_TGK.shape[1]
    q_CHLK = chunked(_l2_normalized(q_TGK).repeat_interleave(repeat, dim=1)) * width**-0.5
    k_CHLK = chunked(_l2_normalized(k_TGK).repeat_interleave(repeat, dim=1))
    v_CHLV = chunked(v_THV)
    beta_CHL1 = chunked(beta_TH.unsqueeze(-1))
    decay_CHL = chunked(log_decay_TH.unsqueeze(-1)).squeeze(-1).cumsum(-1)  # log decay since the chunk's start

    lower_LL = torch.ones(CHUNK_TOKENS, CHUNK_TOKENS, dtype=torch.bool).tril()
    between_CHLL = decay_CHL.unsqueeze(-1) - decay_CHL.unsqueeze(-2)  # log decay from token j to token i
    between_CHLL = between_CHLL.masked_fill(~lower_LL, float("-inf")).exp()
    since_CHL1 = decay_CHL.exp().unsqueeze(-1)
    until_CHL1 = (decay_CHL[..., -1:] - decay_CHL).exp().unsqueeze(-1)
    whole_CH11 = decay_CHL[..., -1].exp()[..., None, None]

    interaction_CHLL = (beta_CHL1 * k_CHLK) @ k_CHLK.mT * between_CHLL
    # (I + strictly lower interaction) x = rhs; `unitriangular` reads the diagonal as ones.
    rhs = torch.cat([beta_CHL1 * v_CHLV, beta_CHL1 * since_CHL1 * k_CHLK], dim=-1)
    solved = torch.linalg.solve_triangular(interaction_CHLL, rhs, upper=False, unitriangular=True)
    value_CHLV, key_CHLK = solved.split([v_CHLV.shape[-1], width], dim=-1)
    # Rows that read the incoming state: first what each write must subtract, then what each query sees.
    reads_CHMK = torch.cat([key_CHLK, since_CHL1 * q_CHLK], dim=2)
    writes_CHKL = (until_CHL1 * k_CHLK).mT.contiguous()

    states_NHKV = states_SHVK[state_rows_N].float().mT.contiguous()
    before_CHKV = states_NHKV.new_empty((chunks, *states_NHKV.shape[1:]))
    written_CHLV, seen_CHLV = torch.empty_like(v_CHLV), torch.empty_like(v_CHLV)
    by_length = sorted(range(len(lengths)), key=lambda index: -chunk_counts[index])
    for step in range(max(chunk_counts, default=0)):
        active = [index for index in by_length if chunk_counts[index] > step]
        rows_n = torch.tensor(active)
        here_n = torch.tensor([first_chunks[index] + step for index in active])
        state_nHKV = states_NHKV[rows_n]
        before_CHKV[here_n] = state_nHKV
        read_nHMV = reads_CHMK[here_n] @ state_nHKV
        written_nHLV = value_CHLV[here_n] - read_nHMV[:, :, :CHUNK_TOKENS]
        written_CHLV[here_n], seen_CHLV[here_n] = written_nHLV, read_nHMV[:, :, CHUNK_TOKENS:]
        states_NHKV[rows_n] = whole_CH11[here_n] * state_nHKV + writes_CHKL[here_n] @ written_nHLV

    out_CHLV = seen_CHLV + (q_CHLK @ k_CHLK.mT * between_CHLL) @ written_CHLV
    states_SHVK[state_rows_N] = states_NHKV.mT.to(states_SHVK.dtype)
    out_THV = out_CHLV.transpose(1, 2).reshape(chunks * CHUNK_TOKENS, heads, -1)[slots_T]
    return out_THV.to(v_THV.dtype), before_CHKV.mT


def _l2_normalized(x: Tensor) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
