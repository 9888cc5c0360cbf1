"""What a call to somebody's function gave, and what it did besides.

Imports attn.check.steps.
"""

import textwrap
import warnings
from typing import NamedTuple

import numpy as np

from attn.check.steps import predict

# Wide enough for functions that work in float32, narrow enough to tell the known bugs apart.
TOLERANCE = 1e-4
FLOAT64_TOLERANCE = 1e-9
HALF_PRECISION_FROM = 1e-5


class Failure(NamedTuple):
    """A likely bug: its name, the numbers that speak for it, and what to do."""

    name: str
    evidence: str
    hint: str

    def __str__(self):
        lines = (f"Evidence: {self.evidence}.", f"What to do: {self.hint}")
        wrapped = (textwrap.fill(line, 96, subsequent_indent="    ") for line in lines)
        return "\n  ".join((f"Likely bug: {self.name}", *wrapped))


class Outcome(NamedTuple):
    """What one call gave: an output, or else a problem in words; and what it did to its inputs."""

    output: np.ndarray | None
    problem: str
    changed: str


def observe(function, operands, hidden=False):
    """Call a function on copies; whatever goes wrong is its outcome, not an error here."""
    query, key, value, mask = operands
    given = [np.array(x) for x in (query, key, value)]
    given.append(None if mask is None else np.array(~mask if hidden else mask))
    copies = [None if x is None else x.copy() for x in given]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            output, problem = function(*copies), ""
        except Exception as error:
            output, problem = None, f"{type(error).__name__}: {error}"
    changed = "".join(
        _difference(name, before, after)
        for name, before, after in zip(
            ("query", "key", "value", "mask"), given, copies, strict=True
        )
        if before is not None and not np.array_equal(before, after, equal_nan=True)
    )
    if problem:
        return Outcome(None, f"raises {problem}", changed)
    problem = _unlike(output, (*query.shape[:3], value.shape[3]))
    return Outcome(None if problem else np.array(output), problem, changed)


def _difference(name, before, after):
    if before.shape != after.shape:
        return f"{name} had shape {before.shape} and has {after.shape} after the call; "
    where = tuple(int(i) for i in np.argwhere(before != after)[0])
    return f"{name}{list(where)} was {before[where]:.6g} and is {after[where]:.6g} after the call; "


def _unlike(output, shape):
    """Why this is not an output, or nothing."""
    want = f"an array of shape (B, H, L, Dv) = {shape}"
    if not isinstance(output, np.ndarray):
        return f"returns {type(output).__name__}, not {want}"
    if output.shape != shape:
        return f"returns an array of shape {output.shape}, not {want}"
    if output.dtype.kind != "f":
        return f"returns an array of dtype {output.dtype}, not of floats"
    return ""


def same(got, expected, tolerance=TOLERANCE):
    """Equal up to float32 rounding; a call that fails is the same as a formula that cannot be."""
    if got is None or expected is None:
        return got is expected
    if got.shape != expected.shape:
        return False
    return np.allclose(got, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def where_most(got, expected):
    """The entry that differs most (NaN before all else), as [b, h, q, d], with both values."""
    gap = np.abs(np.where(np.isfinite(got), got - expected, np.inf))
    where = tuple(int(i) for i in np.unravel_index(np.argmax(gap), gap.shape))
    return list(where), expected[where], got[where]


def inputs_changed(trials, outcomes):
    """The first trial in which the function wrote into what it was given."""
    for trial, outcome in zip(trials, outcomes, strict=True):
        if outcome.changed:
            evidence = f"on {trial}, {outcome.changed.removesuffix('; ')}"
            hint = "Write scores = scores + … instead of scores += …, or copy first."
            return [Failure("inputs changed", evidence, hint)]
    return []


def chance(trial, first, again):
    """Two equal calls that differ: nothing else can be said of the function then."""
    if first is None or again is None or np.array_equal(first, again, equal_nan=True):
        return []
    where, one, two = where_most(again, first)
    evidence = f"two equal calls give {one:.6g} and {two:.6g} at output{where} on {trial}"
    return [
        Failure("not deterministic", evidence, "Switch dropout off, model.eval(), and ask again.")
    ]


def too_few_digits(trials, outcomes, steps):
    """A function that is right to seven digits of float64's sixteen."""
    worst, found = FLOAT64_TOLERANCE, None
    for trial, outcome in zip(trials, outcomes, strict=True):
        if outcome.output is None or trial.query.dtype != np.float64 or trial.mask is not None:
            continue
        expected = predict(*trial.operands, steps)
        if same(outcome.output, expected):
            where, right, got = where_most(outcome.output, expected)
            if abs(got - right) > worst * max(1, abs(right)):
                worst, found = abs(got - right), (trial, where, right, got, outcome.output.dtype)
    if found is None:
        return []
    trial, where, right, got, dtype = found
    evidence = (
        f"on {trial}, given in float64, output{where} should be {right:.15g} and is {got:.15g}: "
        f"off by {worst:.1e}, where float64 has about 1e-15 (the output is {dtype})"
    )
    name = "float32 inside float64" if worst < HALF_PRECISION_FROM else "half precision inside"
    hint = "Compute in the dtype of the inputs; make no array of fewer digits on the way."
    return [Failure(name, evidence, hint)]
