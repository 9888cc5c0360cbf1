"""The judge of anybody's attention function: pass, or the likely bug by name and with numbers.

The function is tried on small calls (trials). Where its answer is wrong, it is compared with what
each known bug would have answered (steps, diagnoses, mask_diagnoses); what no known bug explains is
described by the law that it breaks (laws, outcomes). Imports attn.attention besides its own parts.
"""

from dataclasses import dataclass
from itertools import combinations

from attn.attention import scaled_dot_product_attention
from attn.check.diagnoses import BUGS
from attn.check.laws import unexplained
from attn.check.outcomes import (
    Failure,
    chance,
    inputs_changed,
    observe,
    same,
    too_few_digits,
    where_most,
)
from attn.check.steps import predict
from attn.check.trials import make_trials

__all__ = ["CheckReport", "Failure", "check_attention"]

CONVENTIONS = ("may attend", "is hidden")


@dataclass(frozen=True)
class CheckReport:
    """Whether a function is attention; if not, the likely bugs, the likeliest first.

    Attributes
    ----------
    passed : bool
        No trial failed.
    failures : tuple of Failure
        Each with a name, the evidence and a hint; empty when passed.
    trials : int
        How many calls were judged.
    """

    passed: bool
    failures: tuple[Failure, ...]
    trials: int = 0

    def __str__(self):
        if self.passed:
            return f"Passed: right in all {self.trials} trials."
        return "\n\n".join(str(failure) for failure in self.failures)


def check_attention(function, *, grouped=True, convention="may attend", seed=0):
    """Judge somebody's attention function, and name the likely bug.

    Right is softmax(Q Kᵀ / √D + M) V with M = 0 where a query may attend and -∞ elsewhere, and 0
    for a query that may attend to nothing.

    Parameters
    ----------
    function : callable
        `function(query, key, value, mask) -> output` on arrays of shapes (B, H, L, D),
        (B, Hkv, S, D), (B, Hkv, S, Dv), a boolean mask of four axes that broadcasts to
        (B, H, L, S), or None, and (B, H, L, Dv). For tensors, wrap it in
        attn.torch.as_numpy_function.
    grouped : bool
        Whether to try fewer key heads than query heads.
    convention : {"may attend", "is hidden"}
        What True in the mask means to the function.
    seed : int
        Of the numbers in the trials.

    Returns
    -------
    CheckReport
        `.passed`, `.failures` (each with `name`, `evidence`, `hint`); print it to read it.
        Whatever the function raises is a failure in the report.

    Raises
    ------
    TypeError, ValueError
        `function` cannot be called, or there is no such convention.

    Source: the bugs are those of published code; the book's chapter on bugs that train lists them.

    Examples
    --------
    >>> import attn
    >>> print(check_attention(attn.scaled_dot_product_attention))
    Passed: right in all 18 trials.
    >>> unscaled = lambda *call: attn.scaled_dot_product_attention(*call, scale=1.0)
    >>> print(check_attention(unscaled).failures[0].name)
    no scale
    """
    if not callable(function):
        raise TypeError(f"function: expected function(query, key, value, mask), got {function!r}")
    if convention not in CONVENTIONS:
        raise ValueError(f"convention: expected one of {CONVENTIONS}, got {convention!r}")

    def call(*operands):
        return observe(function, operands, hidden=convention == "is hidden")

    trials = make_trials(seed, grouped)
    outcomes = [call(*trial.operands) for trial in trials]
    failures = chance(trials[0], outcomes[0].output, call(*trials[0].operands).output)
    if not failures:
        rights = [scaled_dot_product_attention(*trial.operands) for trial in trials]
        failures, steps, open_ends = _explain(trials, outcomes, rights)
        failures += too_few_digits(trials, outcomes, steps)
        failures += unexplained(call, trials, outcomes, rights, open_ends)
        failures = list({failure.name: failure for failure in failures[::-1]}.values())[::-1]
    failures += inputs_changed(trials, outcomes)
    return CheckReport(not failures, tuple(failures), len(trials))


def _explain(trials, outcomes, rights):
    """Find the wrong steps whose prediction is the function's output, trial by trial.

    Steps found in one trial are kept for the next, so that several bugs come out one after another.
    """
    failures, steps, open_ends = [], {}, []
    for number, (trial, outcome) in enumerate(zip(trials, outcomes, strict=True)):
        expected = predict(*trial.operands, steps) if steps else rights[number]
        if same(outcome.output, expected):
            continue
        settled = [n for n in range(number + 1) if n not in open_ends]
        bugs = _likeliest(trials, outcomes, steps, settled, least=2 if open_ends else 1)
        if not bugs:
            open_ends.append(number)
        for bug in bugs:
            failures.append(_named(bug, trials[number], outcome.output, rights[number]))
            steps = steps | bug.steps
    predicts = _predictor(trials, outcomes, steps)
    return failures, steps, [n for n in open_ends if not predicts(n)]


def _likeliest(trials, outcomes, steps, settled, least):
    """The one bug, or else the two, that predict this trial, all before it, and most after it.

    `least` trials must be gained: beside wrong answers that nothing explains, one could be chance.
    """
    this = settled[-1]
    if outcomes[this].output is None:
        return ()
    free = [bug for bug in BUGS if not bug.steps.keys() & steps.keys()]
    singles = [(bug,) for bug in free]
    found = _explaining(singles, trials, outcomes, steps, settled, least)
    if not found and least == 1:
        pairs = _pairs(free, trials[this], steps)
        found = _explaining(pairs, trials, outcomes, steps, settled, least)
    return max(found, key=lambda pair: pair[0])[1] if found else ()  # the first of the best


def _pairs(free, trial, steps):
    """Two bugs at once, of those that change this trial, or the rows that another empties."""
    now = predict(*trial.operands, steps)
    active = [
        bug
        for bug in free
        if "peak" in bug.steps or not same(predict(*trial.operands, steps | bug.steps), now)
    ]
    return [(a, b) for a, b in combinations(active, 2) if not a.steps.keys() & b.steps.keys()]


def _explaining(hypotheses, trials, outcomes, steps, settled, least):
    """(trials predicted, bugs) for each hypothesis that predicts all of the settled trials."""
    everywhere = range(len(trials))
    before = sum(map(_predictor(trials, outcomes, steps), everywhere))
    found = []
    for bugs in hypotheses:
        changed = steps | {name: step for bug in bugs for name, step in bug.steps.items()}
        predicts = _predictor(trials, outcomes, changed)
        # The trial in question first: it refuses nearly every bug at the price of one prediction.
        if all(map(predicts, settled[::-1])):
            after = sum(map(predicts, everywhere))
            if after - before >= least:
                found.append((after, bugs))
    return found


def _predictor(trials, outcomes, steps):
    return lambda n: same(outcomes[n].output, predict(*trials[n].operands, steps))


def _named(bug, trial, output, right):
    """The failure of a bug that was recognised, with the place where it shows most."""
    where, expected, got = where_most(output, right)
    evidence = (
        f"{bug.says}. On {trial}, output{where} should be {expected:.6g} and is {got:.6g}, which "
        "is what this bug gives, there and everywhere in the trial"
    )
    return Failure(bug.name, evidence, bug.hint)
