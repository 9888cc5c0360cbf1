"""The judge: try a function on every trial, and say what is wrong with it.

In this order: does it give equal answers to equal calls; does it give answers at all (remedies);
is it right but for rounding (precision); do known bugs, up to three at once, explain every answer
(evidence, bugs, fitted); if not, which law is broken (laws), and what do the failing calls have in
common (situations). Imports attn.attention besides the files of its own room.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from attn import arguments
from attn.attention import scaled_dot_product_attention
from attn.check import outcomes as seen
from attn.check.bugs import BUGS, COMMON
from attn.check.evidence import Evidence, explain_by_one, explain_together
from attn.check.fitted import fitted_bugs
from attn.check.laws import broken_law
from attn.check.outcomes import Failure, difference, observe, same, takes_a_mask
from attn.check.precision import coarser, rounded
from attn.check.remedies import without_output
from attn.check.situations import situation
from attn.check.steps import predict, together
from attn.check.trials import Space, make_trial, make_trials

CONVENTIONS = ("may attend", "is hidden")
DTYPES = ("float64", "float32")


@dataclass(frozen=True)
class CheckReport:
    """Whether a function is attention; if not, the likely bugs, or a description of what fails.

    Attributes
    ----------
    passed : bool
        No trial failed.
    failures : tuple of Failure
        Each with a name, the evidence and a hint, and `known`: whether it is a known bug, which
        then explains all wrong answers, or else a description of them; empty when passed.
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


def check_attention(
    function,
    *,
    grouped=True,
    convention="may attend",
    dtype="float64",
    masks=True,
    square=False,
    multiple_of=1,
    seed=0,
):
    """Judge somebody's attention function: it passes, or the likely bug is named.

    Right is softmax(Q Kᵀ / √D + M) V with M = 0 where a query may attend and -∞ elsewhere, and 0
    for a query that may attend to nothing. What is tried stands in attn.check; a known bug is named
    only if it explains every wrong answer and contradicts no right one.

    Parameters
    ----------
    function : callable
        `function(query, key, value, mask) -> output` on arrays of shapes (B, H, L, D),
        (B, Hkv, S, D), (B, Hkv, S, Dv), a boolean mask or None, and (B, H, L, Dv). The mask has
        four axes; that of the keys has length S, each of the others its full length or 1. Wrap a
        function of tensors in attn.torch.as_numpy_function; functions of other shapes have
        adapters in attn.check: one_head, merged_batch, merged_heads, first_output, from_layer.
    grouped : bool
        Whether to try fewer key heads than query heads.
    convention : {"may attend", "is hidden"}
        What True in the mask means to the function.
    dtype : {"float64", "float32"}
        "float64" tries both, and 16 digits are expected where they were given; "float32" gives
        float32 alone and expects 7.
    masks : bool
        Whether to try masks. If not, the mask is None; a function of three arguments gets three.
    square : bool
        Whether to try as many queries as keys only.
    multiple_of : int
        Of what number all lengths are multiples.
    seed : int
        Of the numbers in the trials.

    Returns
    -------
    CheckReport
        `.passed`, `.failures` (each with `name`, `evidence`, `hint`, `known`); print it to read it.
        Whatever the function raises is a failure in the report, and the hint names the options
        under which the function runs, if there are any.

    Raises
    ------
    TypeError, ValueError
        `function` cannot be called; an option has a value that is not listed.

    Source: the bugs are those of published code; the book's chapter on bugs that train lists them.

    Examples
    --------
    >>> import attn
    >>> print(check_attention(attn.scaled_dot_product_attention))
    Passed: right in all 185 trials.
    >>> unscaled = lambda *call: attn.scaled_dot_product_attention(*call, scale=1.0)
    >>> print(check_attention(unscaled).failures[0].name)
    no scale
    """
    if not callable(function):
        raise TypeError(f"function: expected function(query, key, value, mask), got {function!r}")
    for name, value, known in (
        ("convention", convention, CONVENTIONS),
        ("dtype", dtype, DTYPES),
    ):
        if value not in known:
            raise ValueError(f"{name}: expected one of {known}, got {value!r}")
    arguments.integer("multiple_of", multiple_of, 1)
    arguments.integer("seed", seed, 0)
    space = Space(bool(grouped), bool(masks), bool(square), int(multiple_of), dtype)
    hidden = convention == "is hidden"
    with_mask = masks or takes_a_mask(function)

    def call(*operands):
        return observe(function, operands, hidden=hidden, with_mask=with_mask)

    evidence = _ask(call, space, int(seed))
    trials, outcomes = evidence.trials, evidence.outcomes
    failures = _by_chance(call, trials)
    if not failures and evidence.failing:
        failures = _explained(function, call, evidence, space, int(seed), hidden)
    failures += seen.inputs_changed(trials, outcomes)
    return CheckReport(not failures, tuple(failures), len(trials))


@lru_cache(maxsize=16)
def _right_answers(space, seed):
    """Worked out in float64 whatever the trial's dtype."""
    rights = []
    for trial in make_trials(space, seed):
        wide = (x.astype("float64") for x in trial.operands[:3])
        rights.append(scaled_dot_product_attention(*wide, trial.mask))
    return tuple(rights)


def _ask(call, space, seed):
    trials = make_trials(space, seed)
    outcomes = tuple(call(*trial.operands) for trial in trials)
    return Evidence(trials, outcomes, _right_answers(space, seed))


def _by_chance(call, trials):
    """Equal calls, one after the other, on the simplest trial and on one with a mask."""
    chosen = [trials[0], trials[len(trials) // 2]]
    first, again = zip(*[(call(*t.operands), call(*t.operands)) for t in chosen], strict=True)
    return seen.chance(chosen, first, again)


def _explained(function, call, evidence, space, seed, hidden):
    """Known bugs that explain every answer, or else a description."""
    silent = [n for n in evidence.failing if evidence.outcomes[n].output is None]
    if silent:
        # A wrong formula may have no answer to some calls, such as a transposed mask that fits no
        # longer; otherwise the calls without an answer have to be settled first.
        found = explain_by_one(evidence, BUGS) if len(silent) < len(evidence.trials) else ()
        if found:
            return [_named(found[0], found, evidence)]
        return [without_output(function, evidence, silent, space, seed, hidden)]
    for form, coarse in coarser(evidence):
        if coarse.right_but_for_rounding():
            failure = rounded(call, coarse, form, {})
            if failure:
                return [failure]
    fitted = fitted_bugs(call, evidence.trials)
    bugs = (*BUGS, *fitted)
    found = explain_by_one(evidence, bugs) or explain_together(evidence, (*COMMON, *fitted))
    if found:
        return [_named(bug, found, evidence) for bug in found]
    for form, coarse in coarser(evidence):
        found = explain_by_one(coarse, bugs)
        if found:
            failure = rounded(call, coarse, form, found[0].steps)
            if failure:
                return [_named(found[0], found, coarse), failure]
    return _described(call, evidence, space, seed)


def _joined(found):
    steps = {}
    for bug in found:
        steps = together(steps, bug.steps)
    return steps


def _named(bug, found, evidence):
    """The failure of a bug that was recognised, with the smallest trial that shows it."""
    others = [other for other in found if other is not bug]
    n = next(
        (
            n
            for n in evidence.failing
            if evidence.outcomes[n].output is not None
            and not evidence.fits(n, _joined(others) if others else {})
        ),
        evidence.failing[0],
    )
    trial, output = evidence.trials[n], evidence.outcomes[n].output
    company = "" if not others else f", together with '{others[0].name}'"
    said = (
        f"{bug.says}: {difference(trial, output, evidence.rights[n])}, which is what this bug "
        f"gives{company}, there and in all {len(evidence.trials)} trials"
    )
    return Failure(bug.name, said, bug.hint)


def _described(call, evidence, space, seed):
    """What the failing calls have in common, and a law that is broken in them."""
    mirrored = _ask(call, replace(space, mirrored=True), seed + 1)
    both = Evidence(
        *(getattr(evidence, name) + getattr(mirrored, name)
          for name in ("trials", "outcomes", "rights"))
    )  # fmt: skip
    where = situation(both.trials, both.failing)
    law = broken_law(call, evidence)
    trial, output, right = _smallest(call, evidence, space, seed)
    said = f"{where.counts}; {difference(trial, output, right)}"
    if law:
        said = f"{law.evidence}; {where}, {where.counts}"
        return [Failure(law.name, said, law.hint, known=False)]
    hint = "Compare with a loop over the queries, by hand, on that call."
    return [Failure(str(where), said, hint, known=False)]


def _smallest(call, evidence, space, seed):
    """A failing call, made simpler factor by factor as long as it fails."""
    n = evidence.failing[0]
    found = evidence.trials[n], evidence.outcomes[n].output, evidence.rights[n]
    row = found[0].row
    if "call" in row or row["values"] == "very low":
        return found
    for name, levels in space.factors.items():
        for level in levels[: levels.index(row[name])]:
            simpler = row | {name: level}
            if not space.allowed(simpler):
                continue
            trial = make_trial(simpler, seed)
            output = call(*trial.operands).output
            right = predict(*trial.operands, {})
            tolerance = Evidence((trial,), (), ()).tolerance(0)
            if output is not None and not same(output, right, tolerance):
                row, found = simpler, (trial, output, right)
                break
    return found
