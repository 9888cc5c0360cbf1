"""Laws that attention obeys, for wrong answers that no known formula explains.

Weights sum to one; values of 0 give 0; a hidden key, another batch row and another head change
nothing. A law that is broken is found by calling the function again, on parts of a trial or with
other values. It is named only if it is broken in every failing trial that is looked at and can show
it. Imports attn.check.outcomes.
"""

from typing import NamedTuple

import numpy as np

from attn.check.outcomes import same, where_most

LOOKED_AT = 8  # failing trials, the smallest first
SILENT = object()  # what a law says of a trial that cannot show it
SUMS = 1e-6  # nearer to 1 than this, a sum of weights is 1
SEEN = 1e-9  # of the values' size: what a hidden key moves by less than this is rounding


class Broken(NamedTuple):
    """A law that is broken: its name, where that shows most, how to mend it."""

    name: str
    evidence: str
    hint: str


def broken_law(call, evidence):
    """The first law that is broken in each of the smallest failing trials, or None."""
    for law in (_mixed_batch, _mixed_heads, _sees_hidden, _added, _weight_sums):
        found = []
        for n in evidence.failing[:LOOKED_AT]:
            trial, outcome = evidence.trials[n], evidence.outcomes[n]
            broken = law(call, trial, outcome, evidence.rights[n], evidence.tolerance(n))
            if broken is None:
                break
            found += [broken] * (broken is not SILENT)
        else:
            if found:
                return found[0]
    return None


def _mixed_batch(call, trial, outcome, right, tolerance):
    return _mixed(call, trial, outcome, right, tolerance, 0, "batch mixed", "batch row")


def _mixed_heads(call, trial, outcome, right, tolerance):
    if trial.key.shape[1] != trial.query.shape[1]:
        return None
    return _mixed(call, trial, outcome, right, tolerance, 1, "heads mixed", "head")


def _mixed(call, trial, outcome, right, tolerance, axis, name, what):
    """Right for each batch row alone, or for each head alone, but not for them together."""
    query, key, value, mask = trial.operands
    if query.shape[axis] == 1:
        return None
    for i in range(query.shape[axis]):
        parts = [np.take(x, [i], axis) for x in (query, key, value)]
        part_mask = mask
        if mask is not None and mask.shape[axis] > 1:
            part_mask = np.take(mask, [i], axis)
        if not same(call(*parts, part_mask).output, np.take(right, [i], axis), tolerance):
            return None
    where, expected, got = where_most(outcome.output, right)
    evidence = (
        f"each {what} alone is right; together, on {trial}, output{where} should be "
        f"{expected:.6g} and is {got:.6g}"
    )
    return Broken(name, evidence, f"No {what} may see another; sum over the keys only.")


def _sees_hidden(call, trial, outcome, right, tolerance):
    """A key that the mask hides from a query changes that query's output."""
    if trial.mask is None:
        return None
    query, key, value, mask = trial.operands
    full = np.broadcast_to(mask, (*query.shape[:3], key.shape[2]))
    hidden, asks = ~full, full.any(-1)
    keys = [k for k in range(full.shape[3]) if (hidden[..., k] & asks).any()]
    for k in keys[:: max(1, len(keys) // 8)]:
        rows = hidden[..., k] & asks
        other_key, other_value = key.copy(), value.copy()
        other_key[:, :, k], other_value[:, :, k] = key[:, :, k] + 1, value[:, :, k] - 3
        after = call(query, other_key, other_value, mask).output
        least = max(tolerance, SEEN * np.abs(value).max())
        if after is None or same(after[rows], outcome.output[rows], least):
            continue
        gap = np.where(rows[..., None], np.abs(after - outcome.output), 0)
        where = [int(i) for i in np.unravel_index(np.argmax(np.nan_to_num(gap, nan=0)), gap.shape)]
        evidence = (
            f"on {trial}, key {k} is hidden from query {where[2]} (batch row {where[0]}, head "
            f"{where[1]}), but changing it moves output{where} by {gap[tuple(where)]:.4g}"
        )
        return Broken("hidden keys leak", evidence, "Write -inf over the hidden scores, no other.")
    return None


def _added(call, trial, outcome, right, tolerance):
    """Values that are all 0 do not give 0."""
    query, key, value, mask = trial.operands
    output = call(query, key, np.zeros_like(value), mask).output
    if output is None or not np.isfinite(output).all() or np.abs(output).max() <= tolerance:
        return None
    where, _, got = where_most(output, np.zeros_like(output))
    evidence = f"on {trial}, with values that are all 0, output{where} is {got:.6g}"
    return Broken("something added to the output", evidence, "The output is weights @ value alone.")


def _weight_sums(call, trial, outcome, right, tolerance):
    """Rows of weights are not negative and sum to one."""
    B, Hkv, S, _ = trial.key.shape
    value = np.broadcast_to(np.eye(S), (B, Hkv, S, S)).astype(trial.value.dtype)
    weights = call(trial.query, trial.key, value, trial.mask).output
    if weights is None or not np.isfinite(weights).all():
        return None
    sums = weights.sum(-1)
    seen = np.broadcast_to(True if trial.mask is None else trial.mask.any(-1), sums.shape)
    if not seen.any():
        return SILENT
    if (np.abs(sums[seen] - 1) < max(SUMS, tolerance)).all():
        return None
    evidence = f"on {trial}, the weights of a query sum to {sums[seen].min():.4g} up to "
    return Broken("weights do not sum to 1", f"{evidence}{sums[seen].max():.4g}",
                  "Divide each row by its own sum over the keys.")  # fmt: skip
