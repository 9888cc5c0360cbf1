"""What a call to somebody's function gave, and what it did besides.

Imports nothing from the package.
"""

import inspect
import textwrap
import warnings
from typing import NamedTuple

import numpy as np

# How many roundings, each of the size of the dtype's eps, a right answer may be off by.
ROUNDINGS = 64


class Failure(NamedTuple):
    """What is wrong: its name, the numbers that speak for it, and what to do.

    `known` says whether the name is that of a known bug, which then explains every call that
    failed; else the name describes the calls that fail.
    """

    name: str
    evidence: str
    hint: str
    known: bool = True

    def __str__(self):
        lines = (f"Evidence: {self.evidence}.", f"What to do: {self.hint}")
        wrapped = (textwrap.fill(line, 96, subsequent_indent="    ") for line in lines)
        title = f"{'Likely bug' if self.known else 'Not a bug known by name'}: {self.name}"
        return "\n  ".join((title, *wrapped))


class Outcome(NamedTuple):
    """What one call gave: an output, or else a problem in words; and what it did to its inputs."""

    output: np.ndarray | None
    problem: str
    changed: str


def takes_a_mask(function):
    """Whether a function can be called with four arguments; a signature that is hidden may be."""
    try:
        inspect.signature(function).bind(*range(4))
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def observe(function, operands, *, hidden=False, with_mask=True):
    """Call a function on copies; whatever goes wrong is its outcome, not an error here."""
    query, key, value, mask = operands
    given = [np.array(x) for x in (query, key, value)]
    given.append(None if mask is None else np.array(~mask if hidden else mask))
    copies = [None if x is None else x.copy() for x in given]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            output, problem = function(*copies[: 4 if with_mask else 3]), ""
            output = _as_array(output)
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


def _as_array(output):
    """The arrays of other libraries turn themselves into NumPy's; what is no array stays."""
    is_array = hasattr(output, "__array__") and not isinstance(output, np.ndarray | np.generic)
    return np.asarray(output) if is_array else output


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


def same(got, expected, tolerance):
    """Equal up to rounding; a call that fails is the same as a formula that cannot be."""
    if got is None or expected is None:
        return got is expected
    if got.shape != expected.shape:
        return False
    with np.errstate(all="ignore"):
        gap = np.abs(got - expected)
        if not gap.size or gap.max() <= tolerance:
            return True
        # Two infinities, or two NaN, are the same, and their difference is NaN.
        odd = np.isnan(gap)
        alike = (got[odd] == expected[odd]) | (np.isnan(got[odd]) & np.isnan(expected[odd]))
        return bool(alike.all() and (gap[~odd] <= tolerance).all())


def where_most(got, expected):
    """The entry that differs most (NaN before all else), as [b, h, q, d], with both values."""
    with np.errstate(all="ignore"):
        gap = np.abs(np.where(np.isfinite(got), got - expected, np.inf))
    where = tuple(int(i) for i in np.unravel_index(np.argmax(gap), gap.shape))
    return list(where), expected[where], got[where]


def difference(trial, output, right):
    """Where the answer to a trial is most wrong, in words."""
    where, expected, got = where_most(output, right)
    digits = ".6g"
    if f"{expected:.6g}" == f"{got:.6g}":
        digits = ".15g"
    return f"on {trial}, output{where} should be {expected:{digits}} and is {got:{digits}}"


def inputs_changed(trials, outcomes):
    """The first trial in which the function wrote into what it was given."""
    for trial, outcome in zip(trials, outcomes, strict=True):
        if outcome.changed:
            evidence = f"on {trial}, {outcome.changed.removesuffix('; ')}"
            hint = "Write scores = scores + … instead of scores += …, or copy first."
            return [Failure("inputs changed", evidence, hint)]
    return []


def chance(trials, first, again):
    """Two equal calls that differ: nothing else can be said of the function then."""
    for trial, one, two in zip(trials, first, again, strict=True):
        if one.output is None or two.output is None:
            continue
        if not np.array_equal(one.output, two.output, equal_nan=True):
            where, a, b = where_most(two.output, one.output)
            evidence = f"two equal calls give {a:.6g} and {b:.6g} at output{where} on {trial}"
            hint = "Switch dropout off, model.eval(), and ask again."
            return [Failure("not deterministic", evidence, hint)]
    return []
