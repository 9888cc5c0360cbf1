"""Known bugs of attention, each with the wrong formula that it computes.

A bug puts another function in place of one or two of the steps of attn.check.steps. A function
whose output *is* the prediction of a bug has that bug: no stronger evidence exists. Bugs of masks
are in attn.check.mask_diagnoses. Imports that and attn.check.steps.
"""

import numpy as np

from attn.check import mask_diagnoses
from attn.check import steps as right
from attn.check.steps import bugs


def _scale(says, scale, name="scaled by n"):
    return name, f"the scores are {says}", {"scale": scale}


def _over_root_of_size(query, key, value):
    query, key, value = right.share(query, key, value)
    return query, key, value / query.shape[-1] ** 0.5


SCALES = bugs(
    "Multiply Q Kᵀ by 1/√D, D the size of one head, before the softmax.",
    _scale("not scaled", lambda n: 1, "no scale"),
    _scale("divided by √(H·D), not by √D", lambda n: (n.H * n.D) ** -0.5, "scaled by d_model"),
    _scale("divided by D, not by √D (or twice by √D)", lambda n: 1 / n.D, "divided by D"),
    _scale("divided by √L, the number of queries", lambda n: n.L**-0.5),
    _scale("divided by √S, the number of keys", lambda n: n.S**-0.5),
    _scale("divided by L, the number of queries", lambda n: 1 / n.L),
    _scale("divided by S, the number of keys", lambda n: 1 / n.S),
    _scale("multiplied by √D, not divided", lambda n: n.D**0.5, "multiplied by √D"),
    _scale("divided by H·D", lambda n: 1 / (n.H * n.D), "scaled by d_model"),
    _scale("divided by √H", lambda n: n.H**-0.5, "scaled by the heads"),
    _scale("divided by √B", lambda n: n.B**-0.5, "scaled by the batch"),
    _scale("divided by √Dv", lambda n: n.Dv**-0.5, "scaled by the value size"),
    _scale("powers of 2, not of e", lambda n: np.log(2) * n.D**-0.5, "softmax of base 2"),
    (
        "scaled after the softmax",
        "the weights, not the scores, are divided by √D",
        {"scale": lambda n: 1, "read": _over_root_of_size},
    ),
)


def _axis(over, axis):
    name = "softmax over the wrong axis"
    return name, f"the weights sum to one over {over}, not over the keys", {"axis": axis}


def _plain_divide(exps, axis):
    return exps / exps.sum(axis, keepdims=True)


def _undivided(exps, axis):
    return exps


def _no_peak(scores, axis):
    return 0


SOFTMAXES = [
    *bugs(
        "Divide by the sum over the keys, the last axis: axis=-1, keepdims=True.",
        _axis("the queries", -2),
        _axis("the heads", 1),
        _axis("the batch", 0),
        _axis("queries and keys together", (-2, -1)),
        (
            "softmax without keepdims",
            "the sums lie along the wrong axis when they divide",
            {"divide": lambda exps, axis: exps / exps.sum(axis)},
        ),
        (
            "no softmax",
            "the scores themselves weigh the values",
            {
                "exp": lambda scores: np.where(np.isfinite(scores), scores, 0),
                "peak": _no_peak,
                "divide": _undivided,
            },
        ),
        ("weights not normalised", "exp(score) is never divided by its sum",
         {"divide": _undivided}),
        ("weights not normalised", "exp(score) is never divided by its sum",
         {"divide": _undivided, "peak": _no_peak}),
    ),
    *bugs(
        "Subtract each row's own maximum before exp: scores - scores.max(axis=-1, keepdims=True).",
        ("no maximum subtracted", "exp overflows or underflows on large scores",
         {"peak": _no_peak, "divide": _plain_divide}),
        ("no maximum subtracted", "exp overflows on large scores", {"peak": _no_peak}),
        ("one maximum for all rows", "rows far below the largest score underflow",
         {"peak": lambda scores, axis: scores.max()}),
        ("one maximum for all rows", "rows far below the largest score underflow",
         {"peak": lambda scores, axis: scores.max(), "divide": _plain_divide}),
        ("maximum over the wrong axis", "what is subtracted differs from key to key",
         {"peak": lambda scores, axis: right.peak(scores, -2)}),
    ),
]  # fmt: skip


def _merge(x):
    B, H, L, D = x.shape
    return x.swapaxes(1, 2).reshape(B, L, H * D)


def _merged_then_cut(x):
    """(L, H·D) cut into (H, L, D) by reshape alone."""
    return _merge(x).reshape(x.shape)


def _joined_then_split(x):
    """(H, L, D) joined to (L, H·D) by reshape alone, then split as it should be."""
    B, H, L, D = x.shape
    return x.reshape(B, L, H, D).swapaxes(1, 2)


def _reads(change):
    """All three operands go through `change`."""
    return {"read": lambda *operands: tuple(change(x) for x in right.share(*operands))}


def _tile(query, key, value):
    groups = (1, query.shape[1] // key.shape[1], 1, 1)
    return query, np.tile(key, groups), np.tile(value, groups)


HEADS = [
    *bugs(
        "Query head h reads key head h // (H // Hkv): np.repeat, not np.tile.",
        ("heads tiled instead of grouped", "query head h reads key head h % Hkv", {"read": _tile}),
        ("one key head for all", "every query head reads key head 0",
         {"read": lambda query, key, value: (query, key[:, :1], value[:, :1])}),
    ),
    *bugs(
        "(L, H·D) and (H, L, D) differ by a transpose; reshape alone mixes positions and heads.",
        ("heads split without the transpose", "each head gets pieces of other positions",
         _reads(_merged_then_cut)),
        ("heads split without the transpose", "positions and heads of the inputs are mixed",
         _reads(_joined_then_split)),
        ("heads merged without the transpose", "positions and heads of the output are mixed",
         {"write": _joined_then_split}),
        ("heads merged without the transpose", "each head puts out pieces of other positions",
         {"write": _merged_then_cut}),
        ("axes read as (B, L, H, D)", "heads attend to heads, not positions to positions",
         {"read": lambda *operands: tuple(x.swapaxes(1, 2) for x in operands),
          "write": lambda output: output.swapaxes(1, 2)}),
    ),
]  # fmt: skip


def _from(says, change, name="batch mixed"):
    return name, says, {"read": lambda *operands: change(*right.share(*operands))}


OPERANDS = [
    *bugs(
        "No batch row may see another: leave the batch axis to matmul.",
        _from("keys and values come from batch row 0", lambda q, k, v: (q, k[:1], v[:1])),
        _from("values come from batch row 0", lambda q, k, v: (q, k, v[:1])),
        _from("keys come from batch row 0", lambda q, k, v: (q, k[:1], v)),
        _from("queries come from batch row 0", lambda q, k, v: (0 * q + q[:1], k, v)),
        _from("values are averaged over the batch", lambda q, k, v: (q, k, v.mean(0)[None])),
        _from("values are summed over the batch", lambda q, k, v: (q, k, v.sum(0)[None])),
    ),
    *bugs(
        "Attention(Q, K, V) = softmax(Q Kᵀ / √D) V.",
        _from("the weights mix the keys", lambda q, k, v: (q, k, k), "keys averaged, not values"),
        _from("keys ask and queries answer", lambda q, k, v: (k, q, v), "query and key swapped"),
        ("weights transposed", "the columns of the weights, not the rows, mix the values",
         {"mix": lambda weights, value: weights.swapaxes(-1, -2) @ value}),
    ),
]  # fmt: skip

# In the order of likelihood: the earlier bug wins where two explain a function equally well.
BUGS = (*SCALES, *mask_diagnoses.BUGS, *SOFTMAXES, *HEADS, *OPERANDS)
