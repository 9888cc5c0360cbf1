"""Known bugs with a constant of their own, which is read off the function.

The weights of a call are what the function gives for values that are the rows of a unit matrix. A
constant that they suggest is only a guess: like every known bug, it counts if its prediction is the
answer in all calls. Imports attn.check.steps.
"""

import numpy as np

from attn.check.steps import bugs, share

# Nearer to the right constant than this, it is the right one.
SAME = 1e-6


def fitted_bugs(call, trials):
    """Bugs whose constants are those that the weights of a few calls without a mask suggest."""
    found = []
    plain = [t for t in trials if t.mask is None and t.row["values"] == "ordinary"]
    for trial in plain[:4]:
        D = trial.query.shape[3]
        weights = _weights(call, trial)
        if weights is None or not (weights > 0).all():
            continue
        query, key, _ = share(*trial.operands[:3])
        found += _scales(np.log(weights), query @ key.mT, D)
        found += _capped(np.log(weights), query @ key.mT / D**0.5)
        found += _denominators(weights, query @ key.mT / D**0.5)
        found += _gains(weights)
    return found


def _weights(call, trial):
    B, Hkv, S, _ = trial.key.shape
    value = np.broadcast_to(np.eye(S), (B, Hkv, S, S)).astype(trial.value.dtype)
    return call(trial.query, trial.key, value, trial.mask).output


def _round(number):
    return float(f"{number:.14g}")


def _scales(logs, dots, D):
    """The logarithms of the weights differ as the scores do: their ratio to Q Kᵀ is the scale."""
    logs, dots = (x - x.mean(-1, keepdims=True) for x in (logs, dots))
    scale = float((logs * dots).sum() / (dots * dots).sum()) if dots.any() else 0
    right = D**-0.5
    if abs(scale / right - 1) < SAME or not np.allclose(logs, scale * dots, atol=1e-6):
        return []
    c, t = _round(scale), _round(scale / right)
    return bugs(
        "Multiply Q Kᵀ by 1/√D, D the size of one head.",
        ("another scale", f"the scores are Q Kᵀ times {c:.4g}, whatever D is",
         {"scale": lambda n: c}),
        ("another scale", f"the scores are Q Kᵀ times {t:.4g}/√D, where 1/√D is right",
         {"scale": lambda n: t * n.D**-0.5}),
    )  # fmt: skip


def _capped(logs, scores):
    """c·tanh(score/c): the c that the largest difference of two scores in a row suggests."""
    seen = (logs.max(-1) - logs.min(-1)).ravel()
    high, low = scores.max(-1).ravel(), scores.min(-1).ravel()
    row = int(np.argmax(np.where((high > 0) & (low < 0), high - low, -1)))
    if high[row] < 0 or low[row] > 0 or seen[row] >= (high - low)[row] * (1 - SAME):
        return []
    least, most = 1e-3, 1e6
    for _ in range(200):  # the difference grows with c: halve the interval
        c = (least * most) ** 0.5
        if c * (np.tanh(high[row] / c) - np.tanh(low[row] / c)) < seen[row]:
            least = c
        else:
            most = c
    c = _round(least)
    return bugs(
        "Nothing changes the scores between Q Kᵀ / √D and the mask.",
        ("scores capped", f"the scores are {c:.4g}·tanh(score/{c:.4g})",
         {"bend": lambda scores: c * np.tanh(scores / c)}),
    )  # fmt: skip


def _denominators(weights, scores):
    """Rows that sum to less than one: what else stands in the denominator, if always the same."""
    peak = scores.max(-1, keepdims=True)
    total = np.exp(scores - peak).sum(-1, keepdims=True)
    rest = total / weights.sum(-1, keepdims=True) - total
    hint = "Divide by the sum of exp over the keys and by nothing else."
    found = []
    for says, seen, make in (
        ("after the maximum was subtracted, ", rest, lambda c: lambda peak: c),
        ("", rest * np.exp(peak), lambda c: lambda peak: c * np.exp(-peak)),
    ):
        c = _round(np.median(seen))
        if c > 1e-13 and np.allclose(seen, c, rtol=1e-3):
            small = c < 1e-2
            name = "epsilon in the denominator" if small else "a sink in the denominator"
            row = (name, f"{says}each row is divided by its sum plus {c:.4g}", {"rest": make(c)})
            found += bugs(hint, row)
    return found


def _gains(weights):
    """Rows that all sum to the same number, but not to one."""
    sums = weights.sum(-1)
    c = _round(np.median(sums))
    if abs(c - 1) < SAME or not np.allclose(sums, c, rtol=1e-6):
        return []
    return bugs(
        "The weights of a query sum to 1: after the softmax nothing is multiplied or divided.",
        ("output rescaled", f"after the softmax all is multiplied by {c:.4g}",
         {"gain": lambda n: c}),
    )  # fmt: skip
