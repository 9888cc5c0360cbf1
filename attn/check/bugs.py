"""Known bugs of attention, each with the wrong formula that it computes.

A bug puts another function in place of one or two of the steps of attn.check.steps. A function
whose output *is* the prediction of a bug has that bug: no stronger evidence exists. Bugs of masks
are in attn.check.mask_bugs, of tiles in attn.check.tile_bugs; those with a constant that is read
off the function in attn.check.fitted. Imports the first two and attn.check.steps.
"""

import math

import numpy as np

from attn.check import mask_bugs, tile_bugs
from attn.check import steps as right
from attn.check.steps import bugs


def _scale(says, scale, name="scaled by n"):
    return name, f"the scores are {says}", {"scale": scale}


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
    _scale("powers of 2, not of e", lambda n: math.log(2) * n.D**-0.5, "softmax of base 2"),
    _scale("multiplied by -1/√D: the largest score gets the least", lambda n: -(n.D**-0.5),
           "softmax of the negative scores"),
    (
        "scaled after the softmax",
        "the weights, not the scores, are divided by √D",
        {"scale": lambda n: 1, "gain": lambda n: n.D**-0.5},
    ),
)  # fmt: skip


def _gain(says, gain):
    return "output rescaled", f"after the softmax all is {says}", {"gain": gain}


GAINS = bugs(
    "The weights of a query sum to 1: after the softmax nothing is multiplied or divided.",
    _gain("divided by √D", lambda n: n.D**-0.5),
    _gain("multiplied by √D", lambda n: n.D**0.5),
    _gain("divided by D", lambda n: 1 / n.D),
    _gain("divided by S: a mean where the sum is meant", lambda n: 1 / n.S),
    _gain("multiplied by S", lambda n: n.S),
    _gain("divided by √S", lambda n: n.S**-0.5),
    _gain("divided by L", lambda n: 1 / n.L),
    _gain("divided by H", lambda n: 1 / n.H),
    _gain("multiplied by H", lambda n: n.H),
    _gain("divided by B", lambda n: 1 / n.B),
    _gain("divided by √Dv", lambda n: n.Dv**-0.5),
)


def _axis(over, axis):
    name = "softmax over the wrong axis"
    return name, f"the weights sum to one over {over}, not over the keys", {"axis": axis}


def _plain_divide(exps, axis, rest):
    return exps / exps.sum(axis, keepdims=True)


def _undivided(exps, axis, rest):
    return exps


def _no_peak(scores, axis):
    return 0


def _one_peak(scores, axis):
    top = scores.max()
    return np.where(np.isneginf(top), 0, top)


def _twice(exps, axis, rest):
    return right.divide(np.exp(right.divide(exps, axis, rest)), axis, 0)


def _logarithm(exps, axis, rest):
    with np.errstate(divide="ignore"):
        logs = np.log(right.divide(exps, axis, rest))
    return np.where(np.isneginf(logs), 0, logs)


def _largest_only(exps, axis, rest):
    return (np.arange(exps.shape[-1]) == exps.argmax(-1)[..., None]) * (exps.max(-1) > 0)[..., None]


def _with_function(function):
    """Weights that are a function of each score alone, never divided by a sum."""
    return {"exp": function, "peak": _no_peak, "divide": _undivided}


def _sigmoid(scores):
    return 1 / (1 + np.exp(-scores))


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
            {"divide": lambda exps, axis, rest: exps / exps.sum(axis)},
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
        ("sigmoid instead of softmax", "each score has a weight of its own",
         _with_function(_sigmoid)),
        ("relu instead of softmax", "negative scores have weight 0, the others their own size",
         _with_function(lambda scores: np.maximum(scores, 0))),
        ("relu instead of exp", "scores below 0 have weight 0, the others their own size",
         {"exp": lambda scores: np.maximum(scores, 0), "peak": _no_peak}),
        ("softmax twice", "the weights are put through the softmax once more", {"divide": _twice}),
        ("log of the softmax", "the logarithms of the weights mix the values",
         {"divide": _logarithm}),
        ("largest score only", "the key of the largest score has all the weight",
         {"divide": _largest_only}),
    ),
    *bugs(
        "Divide by the sum of exp over the keys alone; a sum of 0 alone needs a guard.",
        ("1 added to the denominator", "each row is divided by its sum plus exp(0), as if there "
         "were one more key of score 0 and value 0", {"rest": lambda peak: np.exp(-peak)}),
        ("1 added to the denominator", "after the maximum was subtracted, each row is divided by "
         "its sum plus 1", {"rest": lambda peak: 1}),
    ),
    *bugs(
        "Subtract each row's own maximum before exp: scores - scores.max(axis=-1, keepdims=True).",
        ("no maximum subtracted", "exp overflows or underflows on large scores",
         {"peak": _no_peak, "divide": _plain_divide}),
        ("no maximum subtracted", "exp overflows on large scores", {"peak": _no_peak}),
        ("one maximum for all rows", "rows far below the largest score underflow",
         {"peak": _one_peak}),
        ("one maximum for all rows", "rows far below the largest score underflow",
         {"peak": lambda scores, axis: scores.max(), "divide": _plain_divide}),
        ("one maximum for all rows", "rows far below the largest score underflow",
         {"peak": _one_peak, "divide": _plain_divide}),
        ("maximum over the wrong axis", "what is subtracted differs from key to key",
         {"peak": lambda scores, axis: right.peak(scores, -2)}),
        ("one maximum for all rows", "rows far below the largest score of their head underflow",
         {"peak": lambda scores, axis: scores.max((-2, -1), keepdims=True)}),
        ("mean subtracted, not the maximum", "exp overflows where scores differ much",
         {"peak": lambda scores, axis: np.nanmean(np.where(np.isinf(scores), np.nan, scores), axis,
                                                  keepdims=True)}),
    ),
]  # fmt: skip


EPSILONS = bugs(
    "Divide by the sum itself, and guard a sum of 0: np.where(total == 0, 1, total).",
    *(
        ("epsilon in the denominator", f"each row is divided by its sum plus {epsilon:.0e}: the "
         "weights are too small by that part, and more so where the sum is small", step)
        for epsilon in (10.0**-p for p in range(3, 11))
        for step in ({"rest": lambda peak, epsilon=epsilon: epsilon},
                     {"rest": lambda peak, epsilon=epsilon: epsilon * np.exp(-peak)},
                     {"rest": lambda peak, epsilon=epsilon: epsilon, "peak": _no_peak})
    ),
)  # fmt: skip


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
        ("heads tiled instead of grouped", "the keys are repeated, the values tiled",
         {"read": lambda q, k, v: (q, right.share(q, k, v)[1], _tile(q, k, v)[2])}),
        ("heads tiled instead of grouped", "the values are repeated, the keys tiled",
         {"read": lambda q, k, v: (q, _tile(q, k, v)[1], right.share(q, k, v)[2])}),
    ),
    *bugs(
        "Head h of the output is softmax(Q_h K_hᵀ / √D) V_h, each h on its own.",
        ("heads mixed", "every head puts out the mean over the heads",
         {"write": lambda output: np.broadcast_to(output.mean(1, keepdims=True), output.shape)}),
        ("heads mixed", "the scores are summed over the heads",
         {"dot": lambda q, k: 0 * (q @ k.mT) + (q @ k.mT).sum(1, keepdims=True)}),
        ("heads mixed", "queries and keys come from head 0",
         {"read": lambda *x: (lambda q, k, v: (0 * q + q[:, :1], k[:, :1], v))(*right.share(*x))}),
        ("heads mixed", "values come from head 0",
         {"read": lambda *x: (lambda q, k, v: (q, k, v[:, :1]))(*right.share(*x))}),
        ("heads mixed", "keys come from head 0, values from their own",
         {"read": lambda *x: (lambda q, k, v: (q, k[:, :1], v))(*right.share(*x))}),
        ("heads in reverse order", "query head h reads key head H - 1 - h",
         {"read": lambda *x: (lambda q, k, v: (q, k[:, ::-1], v[:, ::-1]))(*right.share(*x))}),
        ("heads in reverse order", "head h stands where head H - 1 - h belongs",
         {"write": lambda output: output[:, ::-1]}),
        ("heads shifted by one", "query head h reads key head h - 1",
         {"read": lambda *x: (lambda q, k, v: (q, np.roll(k, 1, 1), np.roll(v, 1, 1)))(
             *right.share(*x))}),
        ("only the first head computed", "the other heads are 0",
         {"write": lambda output: output * (np.arange(output.shape[1]) == 0)[:, None, None]}),
        ("last head not computed", "the last of several heads is 0",
         {"write": lambda output: output * ((np.arange(output.shape[1]) + 1 < output.shape[1])
                                            | (output.shape[1] == 1))[:, None, None]}),
    ),
    *bugs(
        "(L, H·D) and (H, L, D) differ by a transpose; reshape alone mixes positions and heads.",
        ("heads split without the transpose", "each head gets pieces of other positions",
         _reads(_merged_then_cut)),
        (
            "heads split without the transpose",
            "each head, of the keys and of the queries, gets pieces of other positions",
            {"read": lambda *operands: right.share(*map(_merged_then_cut, operands))},
        ),
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


def _unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


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
        _from("keys come from the batch row before", lambda q, k, v: (q, np.roll(k, 1, 0), v)),
        _from("values come from the batch row before", lambda q, k, v: (q, k, np.roll(v, 1, 0))),
        _from("keys and values come from the batch row before",
              lambda q, k, v: (q, np.roll(k, 1, 0), np.roll(v, 1, 0))),
        _from("keys are averaged over the batch", lambda q, k, v: (q, k.mean(0)[None], v)),
        ("batch mixed", "every batch row gets the output of row 0",
         {"write": lambda output: np.broadcast_to(output[:1], output.shape)}),
        ("batch mixed", "every batch row gets the mean over the rows",
         {"write": lambda output: np.broadcast_to(output.mean(0), output.shape)}),
        ("batch mixed", "the scores are summed over the batch",
         {"dot": lambda q, k: 0 * (q @ k.mT) + (q @ k.mT).sum(0)}),
        ("only batch row 0 computed", "the other batch rows are 0",
         {"write": lambda output: output * (np.arange(len(output)) == 0)[:, None, None, None]}),
    ),
    *bugs(
        "Attention(Q, K, V) = softmax(Q Kᵀ / √D) V.",
        _from("the weights mix the keys", lambda q, k, v: (q, k, k), "keys averaged, not values"),
        _from("keys ask and queries answer", lambda q, k, v: (k, q, v), "query and key swapped"),
        _from("keys and values have changed places", lambda q, k, v: (q, v, k),
              "key and value swapped"),
        _from("query and value have changed places", lambda q, k, v: (v, k, q),
              "query and value swapped"),
        _from("the queries answer as well", lambda q, k, v: (q, q, v), "queries used as keys"),
        _from("the keys ask as well", lambda q, k, v: (k, k, v), "keys used as queries"),
        _from("the weights mix the queries", lambda q, k, v: (q, k, q),
              "queries averaged, not values"),
        ("weights transposed", "the columns of the weights, not the rows, mix the values",
         {"mix": lambda weights, value: weights.mT @ value}),
        ("keys reshaped, not transposed", "Q meets K.reshape(B, H, D, S), which is not Kᵀ",
         {"dot": lambda q, k: q @ k.reshape(*k.shape[:2], k.shape[3], k.shape[2])}),
        ("values reshaped", "the rows of V are mixed by a transpose and a reshape",
         {"mix": lambda weights, value: weights @ value.mT.reshape(value.shape)}),
        ("output reshaped", "the positions and the features of the output are mixed",
         {"write": lambda output: output.mT.reshape(output.shape)}),
        ("keys in reverse order", "key j is scored and value S - 1 - j is taken",
         {"mix": lambda weights, value: weights[..., ::-1] @ value}),
        ("queries in reverse order", "output i stands where output L - 1 - i belongs",
         {"write": lambda output: output[:, :, ::-1]}),
        ("output negated", "the sign of the output is wrong", {"gain": lambda n: -1}),
        _from("queries and keys are divided by their lengths",
              lambda q, k, v: (_unit(q), _unit(k), v), "queries and keys normalised"),
        _from("keys are divided by their lengths", lambda q, k, v: (q, _unit(k), v),
              "keys normalised"),
        _from("queries are divided by their lengths", lambda q, k, v: (_unit(q), k, v),
              "queries normalised"),
        ("distances instead of products", "the scores are -|q - k|² / √D",
         {"dot": lambda q, k: 2 * (q @ k.mT) - (q**2).sum(-1)[..., None]
          - (k**2).sum(-1)[..., None, :]}),
    ),
]  # fmt: skip


def _aligned(L, S):
    """How far key j lies from query i when the last query stands at the last key; and when the
    first stands at the first."""
    for start in dict.fromkeys((S - L, 0)):
        yield np.arange(S) - np.arange(L)[:, None] - start


def _sloped(lower_right, distance):
    def bend(scores):
        H, L, S = scores.shape[1:]
        far = list(_aligned(L, S))[0 if lower_right else -1]
        slopes = 2.0 ** (-8 * np.arange(1, H + 1) / H)
        return scores + (slopes[:, None, None] * distance(far)).astype(scores.dtype)

    return {"bend": bend}


def _bends():
    for most in (1, 5, 10, 20, 30, 50, 60, 80, 88, 100, 500):
        limit = f"(a limit of {most} gives the answers seen)"
        yield ("scores clipped", f"scores below or above a limit are cut to it {limit}",
               {"bend": lambda scores, most=most: np.clip(scores, -most, most)})  # fmt: skip
        yield ("scores clipped", f"scores above a limit are cut to it {limit}",
               {"bend": lambda scores, most=most: np.minimum(scores, most)})  # fmt: skip
    for corner in (True, False):
        yield ("a bias by distance inside", "ALiBi's slopes times the distance are subtracted",
               _sloped(corner, lambda far: -abs(far)))  # fmt: skip
        yield ("a bias by distance inside", "ALiBi's slopes times (key - query) are added",
               _sloped(corner, lambda far: far))  # fmt: skip
    yield ("absolute scores", "the sign of the scores is lost", {"bend": np.abs})
    yield ("squared scores", "the scores are squared", {"bend": np.square})
    yield ("scores put through relu", "scores below 0 are set to 0",
           {"bend": lambda scores: np.maximum(scores, 0)})  # fmt: skip
    yield ("scores put through tanh", "the scores are tanh(score)", {"bend": np.tanh})


BENDS = bugs("Nothing changes the scores between Q Kᵀ / √D and the mask.", *_bends())

# In the order of likelihood: the earlier bug wins where two explain a function equally well.
COMMON = (*SCALES, *mask_bugs.BUGS, *SOFTMAXES, *HEADS, *OPERANDS, *GAINS)
BUGS = (*COMMON, *EPSILONS, *BENDS, *tile_bugs.BUGS)
