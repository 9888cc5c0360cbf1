"""Laws that attention obeys, for wrong answers that no known formula explains.

Weights sum to one; a hidden key, another batch row and another head change nothing. A law that is
broken is found by calling the function again, on parts of a trial or with other values. Imports
attn.check.outcomes.
"""

import numpy as np

from attn.check.outcomes import TOLERANCE, Failure, same, where_most

# Rounding to float16 or bfloat16 on the way moves numbers near 1 by less than this.
HALF_PRECISION = 1e-2


def unexplained(call, trials, outcomes, rights, numbers):
    """One failure for each law broken in the trials that no known bug explains."""
    failures = {}
    # The first trials have scores of ordinary size: what is nearly right there was rounded.
    nearly = [_nearly(trials[n], outcomes[n].output, rights[n]) for n in numbers[:1]]
    if any(nearly):
        return nearly
    for n in numbers:
        failure = _law(call, trials[n], outcomes[n], rights[n])
        failures.setdefault(failure.name, failure)
    if len(failures) > 1:
        failures.pop("wrong numbers", None)
    return list(failures.values())


def _law(call, trial, outcome, right):
    if outcome.output is None:
        raises = outcome.problem.startswith("raises")
        name = "raises an exception" if raises else "no output of shape (B, H, L, Dv)"
        return Failure(name, f"on {trial}, it {outcome.problem}", _problem_hint(trial))
    for law in (_mixed, _sees_hidden, _other_scale, _weight_sums):
        failure = law(call, trial, outcome, right)
        if failure:
            return failure
    where, expected, got = where_most(outcome.output, right)
    evidence = f"on {trial}, output{where} should be {expected:.6g} and is {got:.6g}"
    return Failure("wrong numbers", evidence, "Compare with a loop over the queries, by hand.")


def _nearly(trial, output, right):
    """Right to two digits: numbers were rounded on the way."""
    if output is None:
        return None
    where, expected, got = where_most(output, right)
    if not abs(got - expected) < HALF_PRECISION * max(1, abs(expected)):
        return None
    evidence = f"on {trial}, output{where} should be {expected:.6g} and is {got:.6g}, nearly right"
    return Failure("half precision inside", evidence, "Compute in the dtype of the inputs.")


def _problem_hint(trial):
    B, H, L, _ = trial.query.shape
    hint = f"The output has shape (B, H, L, Dv) = {(B, H, L, trial.value.shape[3])}."
    if trial.key.shape[1] != H:
        return f"{hint} If shared key heads are not meant to work, say grouped=False."
    if trial.mask is not None:
        return f"{hint} The mask has four axes, each of full length or 1."
    return hint


def _mixed(call, trial, outcome, right):
    """Right for each batch row alone, or for each head alone, but not for them together."""
    query, key, value, mask = trial.operands
    heads = key.shape[1] == query.shape[1]
    for axis, name, what in ((0, "batch mixed", "batch row"), (1, "heads mixed", "head")):
        size = query.shape[axis]
        if size == 1 or (axis == 1 and not heads):
            continue
        alone = []
        for i in range(size):
            parts = [np.take(x, [i], axis) for x in (query, key, value)]
            part_mask = mask
            if mask is not None and mask.shape[axis] > 1:
                part_mask = np.take(mask, [i], axis)
            alone.append(call(*parts, part_mask).output)
        if all(same(one, np.take(right, [i], axis)) for i, one in enumerate(alone)):
            where, expected, got = where_most(outcome.output, right)
            evidence = (
                f"each {what} alone is right; together, on {trial}, output{where} should be "
                f"{expected:.6g} and is {got:.6g}"
            )
            return Failure(name, evidence, f"No {what} may see another; sum over the keys only.")
    return None


def _sees_hidden(call, trial, outcome, right):
    """A key that the mask hides from a query changes that query's output."""
    if trial.mask is None:
        return None
    query, key, value, mask = trial.operands
    shape = (*query.shape[:3], key.shape[2])
    hidden = ~np.broadcast_to(mask, shape)
    changed_key, changed_value = key + 1, value - 3
    for k in range(shape[3]):
        rows = hidden[..., k] & np.broadcast_to(mask, shape).any(-1)
        other_key, other_value = key.copy(), value.copy()
        other_key[:, :, k], other_value[:, :, k] = changed_key[:, :, k], changed_value[:, :, k]
        after = call(query, other_key, other_value, mask).output
        if after is None or not rows.any() or same(after[rows], outcome.output[rows]):
            continue
        gap = np.where(rows[..., None], np.abs(after - outcome.output), 0)
        where = [int(i) for i in np.unravel_index(np.nanargmax(gap), gap.shape)]
        evidence = (
            f"on {trial}, key {k} is hidden from query {where[2]} (batch row {where[0]}, head "
            f"{where[1]}), but changing it moves output{where} by {gap[tuple(where)]:.4g}"
        )
        return Failure("hidden keys leak", evidence, "Write -inf over the hidden scores, no other.")
    return None


def _weights(call, trial):
    """The weights, read off with values that are the rows of a unit matrix."""
    B, Hkv, S, _ = trial.key.shape
    value = np.broadcast_to(np.eye(S), (B, Hkv, S, S)).astype(trial.value.dtype)
    return call(trial.query, trial.key, value, trial.mask).output


def _other_scale(call, trial, outcome, right):
    """The logarithms of the weights are the scores times some other constant."""
    weights = _weights(call, trial)
    groups = trial.query.shape[1] // trial.key.shape[1]
    dots = trial.query @ np.repeat(trial.key, groups, 1).swapaxes(-1, -2)
    if trial.mask is not None or weights is None or not (weights > 0).all():
        return None
    logs = np.log(weights) - np.log(weights).mean(-1, keepdims=True)
    dots = dots - dots.mean(-1, keepdims=True)
    scale = float((logs * dots).sum() / (dots * dots).sum())
    if not np.allclose(logs, scale * dots, atol=1e-3 * np.abs(logs).max()):
        return None
    want = trial.query.shape[3] ** -0.5
    evidence = f"on {trial}, the scores are Q Kᵀ times {scale:.4g}, where 1/√D is {want:.4g}"
    return Failure("another scale", evidence, "Multiply Q Kᵀ by 1/√D, D the size of one head.")


def _weight_sums(call, trial, outcome, right):
    """Rows of weights are not negative and sum to one."""
    weights = _weights(call, trial)
    if weights is None or not np.isfinite(weights).all():
        return None
    sums = weights.sum(-1)
    seen = np.broadcast_to(True if trial.mask is None else trial.mask.any(-1), sums.shape)
    if (np.abs(sums[seen] - 1) < TOLERANCE).all():
        return None
    evidence = f"on {trial}, the weights of a query sum to {sums[seen].min():.4g} up to "
    return Failure("weights do not sum to 1", f"{evidence}{sums[seen].max():.4g}",
                   "Divide each row by its own sum over the keys.")  # fmt: skip
