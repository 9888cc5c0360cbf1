"""Attention in plain Python loops, one number at a time: what both libraries are compared with.

Nothing here comes from attn, NumPy does no arithmetic (it only holds the numbers), and sums are
exact (math.fsum), so agreement to 1e-12 says that the formula is right and not merely shared.
"""

import math

import numpy as np


def normal(seed, *shape):
    """Return the numbers that a test calls random: the same in every run."""
    return np.random.default_rng(seed).normal(size=shape)


def attend(query, key, value, allowed=True, *, bias=0.0, scale=None, softcap=None, sink=None):
    """Return output (B, H, L, Dv) and weights (B, H, L, S); all inputs have four axes.

    `allowed` and `bias` broadcast to (B, H, L, S); -inf in the bias removes the pair.
    """
    B, H, L, D = query.shape
    Hkv, S = key.shape[1:3]
    allowed, bias = (np.broadcast_to(x, (B, H, L, S)) for x in (allowed, bias))
    output, weights = np.zeros((B, H, L, value.shape[-1])), np.zeros((B, H, L, S))
    for b, h, i in np.ndindex(B, H, L):
        group = h // (H // Hkv)
        scores = {}
        for j in range(S):
            if not allowed[b, h, i, j] or bias[b, h, i, j] == -math.inf:
                continue
            dot = math.fsum(float(query[b, h, i, d]) * float(key[b, group, j, d]) for d in range(D))
            score = dot * (1 / math.sqrt(D) if scale is None else scale)
            if softcap is not None:
                score = softcap * math.tanh(score / softcap)
            scores[j] = score + float(bias[b, h, i, j])
        logits = [*scores.values()] + ([] if sink is None else [float(sink[h])])
        peak = max(logits, default=0.0)
        total = math.fsum(math.exp(logit - peak) for logit in logits)
        for j, score in scores.items():
            weights[b, h, i, j] = math.exp(score - peak) / total
        for d in range(value.shape[-1]):
            output[b, h, i, d] = math.fsum(
                weights[b, h, i, j] * float(value[b, group, j, d]) for j in scores
            )
    return output, weights
