"""Answers that are right but for rounding, and how rounding is told from other small errors.

Rounding is noise: move every input by about one step of the coarser format, and the error becomes
another one of the same size. An error with a cause of its own, such as a capped score or a small
number in the denominator, stays what it was. Imports attn.check.outcomes, attn.check.steps and
attn.check.trials.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attn.check.outcomes import Failure, same, where_most
from attn.check.steps import predict
from attn.check.trials import largest_score

# Of the error itself: what it must change by to be called noise.
NOISE = 0.5
# Beyond what half precision holds, any answer may come.
LARGEST_HALF = 6e4


class Format(NamedTuple):
    """A format of numbers: how it is called, one step relative to 1, and what is granted to it."""

    name: str
    step: float
    eps: float


# A long way in few bits is granted fewer roundings, or everything would pass as rounded.
FORMATS = (
    Format("float32 inside float64", 2.0**-23, 2.0**-23),
    Format("half precision inside", 2.0**-10, 2.0**-13),
    Format("half precision inside", 2.0**-7, 2.0**-10),
)


def coarser(evidence):
    """(format, evidence judged by it) for every format coarser than the trials' own."""
    own = min(float(np.finfo(trial.query.dtype).eps) for trial in evidence.trials)
    for form in FORMATS:
        if form.step > own:
            trials = [n for n, t in enumerate(evidence.trials) if _holds(form, t)]
            yield (
                form,
                replace(
                    evidence,
                    eps=form.eps,
                    **{
                        name: tuple(getattr(evidence, name)[n] for n in trials)
                        for name in ("trials", "outcomes", "rights")
                    },
                ),
            )


def _holds(form, trial):
    half = form.name.startswith("half")
    root = trial.query.shape[3] ** 0.5
    return (
        not half
        or max(largest_score(trial.query, trial.key) * root, np.abs(trial.value).max())
        < LARGEST_HALF
    )


def rounded(call, evidence, form, steps):
    """The failure of a function that is right, with these steps, up to noise; or None."""
    worst = None
    for n, (trial, outcome) in enumerate(zip(evidence.trials, evidence.outcomes, strict=True)):
        if trial.row["values"] != "ordinary" or trial.query.dtype.name == form.name[:7]:
            continue
        expected = evidence.rights[n] if not steps else predict(*trial.operands, steps)
        if outcome.output is None or expected is None:
            continue
        fine = replace(evidence, eps=0.0)
        if same(outcome.output, expected, fine.tolerance(n)):
            continue
        where, right, got = where_most(outcome.output, expected)
        if worst is None or not abs(got - right) <= worst[0]:
            worst = abs(got - right), trial, outcome.output, expected
    if worst is None or not _is_noise(call, worst[1], worst[2] - worst[3], form, steps):
        return None
    _, trial, output, expected = worst
    where, right, got = where_most(output, expected)
    evidence = (
        f"on {trial}, given in {trial.query.dtype}, output{where} should be {right:.15g} and is "
        f"{got:.15g}: off by {abs(got - right):.1e}, where {trial.query.dtype} has about "
        f"{np.finfo(trial.query.dtype).eps:.0e}; the error is rounding, for it changes when the "
        f"inputs move by a rounding (the output is {output.dtype})"
    )
    hint = "Compute in the dtype of the inputs; make no array of fewer digits on the way."
    if form.name.startswith("float32"):
        hint += " If float32 is all that the function is for, say dtype='float32'."
    return Failure(form.name, evidence, hint)


def _is_noise(call, trial, error, form, steps):
    """Whether the error becomes another when every input moves by about a step of the format."""
    rng = np.random.default_rng(0)

    def moved(x):
        by = form.step * rng.uniform(0.5, 1.5, x.shape) * rng.choice([-1, 1], x.shape)
        return (x * (1 + by)).astype(x.dtype)

    changes = []
    for _ in range(3):
        operands = (*(moved(x) for x in trial.operands[:3]), trial.mask)
        output, expected = call(*operands).output, predict(*operands, steps)
        if output is None or expected is None:
            return False
        changes.append(np.sqrt(np.nanmean((output - expected - error) ** 2)))
    return bool(np.median(changes) > NOISE * np.sqrt(np.nanmean(error**2)))
