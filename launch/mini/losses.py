"""The loss of a batch of decisions, and what of it is right. Knows nothing of networks or records.

Shapes: Q questions, N the most options of one.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

LABEL_SMOOTHING = 0.02


def padded(logits: Sequence[Tensor]) -> Tensor:
    """Logits of questions with different numbers of options as `[Q, N]`, minus infinity where there is no option."""
    return torch.nn.utils.rnn.pad_sequence(list(logits), batch_first=True, padding_value=float("-inf"))


def decision_loss(logits_QN: Tensor, labels_Q: Tensor) -> Tensor:
    """Cross-entropy with smoothed labels plus the Brier score, the mean over questions.

    Source: what Cloudflare says of Clef's training. The Brier score of a question is the sum of squares over its options.
    """
    real_QN = logits_QN.isfinite()
    log_QN = logits_QN.log_softmax(-1).masked_fill(~real_QN, 0.0)
    right_Q = log_QN.gather(1, labels_Q.unsqueeze(1)).squeeze(1)
    even_Q = log_QN.sum(-1) / real_QN.sum(-1)
    entropy_Q = -(1 - LABEL_SMOOTHING) * right_Q - LABEL_SMOOTHING * even_Q
    wanted_QN = F.one_hot(labels_Q, logits_QN.shape[-1]).float()
    brier_Q = (logits_QN.softmax(-1) - wanted_QN).square().sum(-1)
    return (entropy_Q + brier_Q).mean()
