"""Attention as a row of steps, any of which can be replaced by a wrong one.

A known bug is one or two steps replaced (attn.check.bugs), so its output can be predicted for any
call, and two bugs in different steps can be had at once. The right answer that the judge compares
with is attn.attention's, which shares no code with these steps. Imports nothing from attn.
"""

import warnings
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
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            query, key, value = step["read"](query, key, value)
            scores = step["scale"](size) * step["dot"](query, key)
            scores = step["bend"](scores)
            keep = step["mask"](mask, size)
            given = keep is not None
            keep = np.broadcast_to(keep if given else True, scores.shape)
            scores = step["remove"](scores, keep) if given else scores
            if "blocks" in step:
                output = step["blocks"](scores, value)
            else:
                peak = step["peak"](scores, step["axis"])
                exps = step["exp"](scores - peak)
                weights = step["divide"](exps, step["axis"], step["rest"](peak))
                weights = step["drop"](weights, keep)
                output = step["mix"](weights, value)
            output = step["write"](output * step["gain"](size))
        except (ValueError, IndexError):
            return None
    return output if output.shape == (size.B, size.H, size.L, size.Dv) else None


def together(first, second):
    """The steps of two bugs at once, or None where they cannot be had together."""
    shared = first.keys() & second.keys()
    if not shared <= {"mask", "gain"}:
        return None
    both = first | second
    if "mask" in shared:
        one, two = first["mask"], second["mask"]
        both["mask"] = lambda mask, n: two(one(mask, n), n)
    if "gain" in shared:
        both["gain"] = lambda n: first["gain"](n) * second["gain"](n)
    return both


def share(query, key, value):
    groups = query.shape[1] // key.shape[1]
    return query, np.repeat(key, groups, axis=1), np.repeat(value, groups, axis=1)


def peak(scores, axis):
    top = scores.max(axis, keepdims=True)
    return np.where(np.isneginf(top), 0, top)


def divide(exps, axis, rest):
    total = exps.sum(axis, keepdims=True) + rest
    return exps / np.where(total == 0, 1, total)


RIGHT = {
    "read": share,
    "scale": lambda n: n.D**-0.5,
    "dot": lambda query, key: query @ key.swapaxes(-1, -2),
    "bend": lambda scores: scores,  # a function of the scaled scores
    "mask": lambda mask, n: mask,
    "remove": lambda scores, keep: np.where(keep, scores, -np.inf),
    "axis": -1,
    "peak": peak,
    "exp": np.exp,
    "rest": lambda peak: 0,  # what else stands in the denominator
    "divide": divide,
    "drop": lambda weights, keep: weights,
    "mix": lambda weights, value: weights @ value,
    "gain": lambda n: 1,  # a factor of the output
    "write": lambda output: output,
}
