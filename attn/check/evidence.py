"""Which known bugs, alone or together, would have given the answers that were seen.

Imports attn.check.outcomes and attn.check.steps.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from attn.check.outcomes import ROUNDINGS, same
from attn.check.steps import predict, together

# Predictions of wrong formulas may be worse conditioned than the right one.
SLACK = 16
FLOAT64 = float(np.finfo(np.float64).eps)
MOST_BUGS = 3  # at once
BEAM = 6
ACTIVE = 60  # the likeliest bugs that change one trial, of which all pairs are tried
SAMPLED = 4_000  # products of numbers in the largest trial of the sample


@dataclass(frozen=True)
class Evidence:
    """Trials, what a function answered to them, what is right, and how exact it is held to be.

    `eps` is the relative size of a rounding; that of a trial's dtype is the least.
    """

    trials: tuple
    outcomes: tuple
    rights: tuple
    eps: float = FLOAT64

    def tolerance(self, n):
        trial = self.trials[n]
        return ROUNDINGS * max(self.eps, float(np.finfo(trial.query.dtype).eps)) * trial.unit

    @cached_property
    def failing(self):
        """The numbers of the trials whose answer is wrong, the simplest trials first."""
        return tuple(
            n
            for n, outcome in enumerate(self.outcomes)
            if not same(outcome.output, self.rights[n], self.tolerance(n))
        )

    @cached_property
    def passing(self):
        return tuple(sorted(set(range(len(self.trials))) - set(self.failing)))

    def fits(self, n, steps):
        """Whether the answer to trial n is that of attention with these steps replaced."""
        expected = predict(*self.trials[n].operands, steps)
        tolerance = SLACK * self.tolerance(n)
        if expected is not None and expected.size:
            finite = np.abs(np.where(np.isfinite(expected), expected, 0)).max()
            tolerance *= max(1, finite / max(np.abs(self.trials[n].value).max(), 1e-300))
        return same(self.outcomes[n].output, expected, tolerance)

    def explained_by(self, steps):
        """Every wrong answer is predicted, and no right answer is predicted to be wrong."""
        return all(self.fits(n, steps) for n in self.order)

    @cached_property
    def order(self):
        """Wrong answers first: they refuse most explanations."""
        return (*self.failing, *self.passing)

    def right_but_for_rounding(self):
        return all(self.fits(n, {}) for n in range(len(self.trials)))

    def count(self, steps):
        """How many of a few small trials, of every kind, are predicted."""
        return sum(self.fits(n, steps) for n in self.sample)

    @cached_property
    def sample(self):
        """The simplest failing and passing trials that show each level of each factor."""
        chosen = dict.fromkeys(self.failing[:1])
        for numbers, most in ((self.failing, 10), (self.passing, 16)):
            seen = set()
            for n in numbers:
                if len(chosen) == most:
                    break
                query, key = self.trials[n].query, self.trials[n].key
                new = {*self.trials[n].row.items()} - seen
                if new and query.size * key.shape[2] < SAMPLED:
                    chosen[n] = None
                    seen |= new
        return tuple(chosen)


def explain_by_one(evidence, bugs):
    """The first bug that explains all by itself, in a tuple; else nothing."""
    for bug in bugs:  # most are refused by the first trial
        if evidence.explained_by(bug.steps):
            return (bug,)
    return ()


def explain_together(evidence, bugs):
    """Two or three bugs that explain the evidence at once; else nothing."""
    beam = [((bug,), bug.steps) for bug in bugs]
    for size in range(1, MOST_BUGS + 1):
        counted = [(evidence.count(steps), found, steps) for found, steps in beam]
        counted.sort(key=lambda row: -row[0])  # a stable sort: the likelier first among equals
        for count, found, steps in counted:
            if count < len(evidence.sample):
                break
            if evidence.explained_by(steps):
                return found
        if size < MOST_BUGS:
            beam = _one_more(counted, bugs, evidence)
        if size == 1:
            beam += _pairs(bugs, evidence)
    return ()


def _one_more(counted, bugs, evidence):
    """The best sets of bugs with one bug more that explains a trial which they do not."""
    beam = []
    for _, found, steps in counted[:BEAM]:
        tried = (*evidence.sample, *evidence.order)
        open_end = next(n for n in tried if not evidence.fits(n, steps))
        for bug in bugs:
            both = together(steps, bug.steps)
            if both is not None and bug not in found and evidence.fits(open_end, both):
                beam.append(((*found, bug), both))
    return beam


def _pairs(bugs, evidence):
    """All pairs that explain the smallest wrong answer, which each of them alone does not."""
    first = evidence.sample[0]
    operands, right = evidence.trials[first].operands, evidence.rights[first]
    active = [
        bug
        for bug in bugs
        if not same(predict(*operands, bug.steps), right, evidence.tolerance(first))
    ]
    beam = []
    for one, two in combinations(active[:ACTIVE], 2):
        both = together(one.steps, two.steps)
        if both is not None and evidence.fits(first, both):
            beam.append(((one, two), both))
    return beam
