"""Attention as a row of steps, any of which can be replaced by a wrong one.

A known bug is one or two steps replaced (attn.check.diagnoses), so its output can be predicted for
any call, and two bugs in different steps can be had at once. The right answer that the judge
compares with is attn.attention's, which shares no code with these steps. Imports nothing from attn.
"""

from typing import NamedTuple

import numpy as np


class Bug(NamedTuple):
    """A name, what the code does instead of the formula, how to mend it, the steps replaced."""

    name: str
    says: str
    hint: str
    steps: dict


def bugs(hint, *rows):
    """Rows of (name, what the code does, steps) that are mended in the same way."""
    return [Bug(name, says, hint, steps) for name, says, steps in rows]


class Shape(NamedTuple):
    """The letters of a call, as a scale or a mask sees them."""

    B: int
    H: int
    L: int
    S: int
    D: int
    Dv: int


def predict(query, key, value, mask, steps):
    """Attention with some steps replaced; None where the wrong formula gives no such output."""
    step = RIGHT | steps
    size = Shape(*query.shape[:3], key.shape[2], query.shape[3], value.shape[3])
    with np.errstate(all="ignore"):
        try:
            query, key, value = step["read"](query, key, value)
            scores = step["scale"](size) * (query @ key.swapaxes(-1, -2))
            keep = step["mask"](mask, size)
            given = keep is not None
            keep = np.broadcast_to(keep if given else True, scores.shape)
            scores = step["remove"](scores, keep) if given else scores
            exps = step["exp"](scores - step["peak"](scores, step["axis"]))
            weights = step["drop"](step["divide"](exps, step["axis"]), keep)
            output = step["write"](step["mix"](weights, value))
        except ValueError:
            return None
    return output if output.shape == (size.B, size.H, size.L, size.Dv) else None


def share(query, key, value):
    groups = query.shape[1] // key.shape[1]
    return query, np.repeat(key, groups, axis=1), np.repeat(value, groups, axis=1)


def peak(scores, axis):
    top = scores.max(axis, keepdims=True)
    return np.where(np.isneginf(top), 0, top)


def divide(exps, axis):
    total = exps.sum(axis, keepdims=True)
    return exps / np.where(total == 0, 1, total)


RIGHT = {
    "read": share,
    "scale": lambda n: n.D**-0.5,
    "mask": lambda mask, n: mask,
    "remove": lambda scores, keep: np.where(keep, scores, -np.inf),
    "axis": -1,
    "peak": peak,
    "exp": np.exp,
    "divide": divide,
    "drop": lambda weights, keep: weights,
    "mix": lambda weights, value: weights @ value,
    "write": lambda output: output,
}
