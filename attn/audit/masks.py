"""What is wrong with this mask, seen from the mask alone.

A mask is right or wrong only with respect to what was meant, so what is said here is of two kinds:
serious findings (a query that sees nothing, a triangle that is one off) and mere remarks (padding
at the end, heads that are all the same). Imports attn.conventions.forms and attn.masks.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attn.conventions import forms
from attn.masks import Mask


class Finding(NamedTuple):
    """A name, a sentence with the numbers, and whether it is likely to be a mistake."""

    name: str
    text: str
    serious: bool = True

    def __str__(self):
        return f"{'!' if self.serious else '·'} {self.name}: {self.text}"


@dataclass(frozen=True)
class MaskAudit:
    """What was found in a mask.

    Attributes
    ----------
    findings : tuple of Finding
        The serious ones first.
    passed : bool
        None is serious.
    allowed : float
        Share of the pairs that may attend.
    empty_rows : int
        Queries that may attend to nothing, over all batch rows and heads that differ.
    unseen_keys : int
        Keys that no query may attend to, likewise.
    future_pairs : int
        Pairs above the diagonal that may attend, likewise; 0 where L != S.
    """

    findings: tuple[Finding, ...]
    allowed: float
    empty_rows: int
    unseen_keys: int
    future_pairs: int

    @property
    def passed(self):
        return not any(finding.serious for finding in self.findings)

    def __str__(self):
        return "\n".join(map(str, self.findings)) or "Nothing to remark."


def audit_mask(allowed):
    """Look for what is usually a mistake in a boolean mask.

    Parameters
    ----------
    allowed : array of bool, shape (L, S) or (…, L, S)
        True = may attend. Batch rows and heads that are the same are looked at once.

    Returns
    -------
    MaskAudit

    Raises
    ------
    TypeError, ValueError
        A rule (write it out with dense_mask), not boolean, fewer than two axes.

    Source: the mistakes are those of published code; the book's chapter on masks lists them.

    Examples
    --------
    >>> print(audit_mask(np.tril(np.ones((4, 4), bool), k=-1)))
    ! empty rows: query 0 may attend to nothing.
    ! off-by-one triangle (one short): no query sees itself: k < q instead of k <= q.
    · keys never seen: key 3, at the end, as with padding.
    >>> audit_mask(np.tril(np.ones((4, 4), bool))).passed
    True
    """
    if isinstance(allowed, Mask):
        raise TypeError(
            f"allowed: expected a boolean array, got a rule: dense_mask({allowed!r}, L, S)"
        )
    forms.boolean("allowed", allowed)
    allowed = np.asarray(allowed.detach().cpu() if hasattr(allowed, "detach") else allowed)
    if allowed.ndim < 2 or 0 in allowed.shape:
        raise ValueError(f"allowed: expected shape (…, L, S), none of them 0, got {allowed.shape}")
    L, S = allowed.shape[-2:]
    flat, firsts = np.unique(allowed.reshape(-1, L * S), axis=0, return_index=True)
    found = {}
    for first, one in sorted(zip(firsts, flat.reshape(-1, L, S), strict=True), key=lambda x: x[0]):
        place = ""
        if allowed.ndim > 2 and len(flat) > 1:
            index = [int(i) for i in np.unravel_index(first, allowed.shape[:-2])]
            place = f" (in mask{index})"
        for finding in _findings(one):
            found.setdefault(finding.name, finding._replace(text=finding.text + place + "."))
    masks = flat.reshape(-1, L, S)
    findings = [*found.values(), *_repeated(allowed)]
    return MaskAudit(
        tuple(sorted(findings, key=lambda finding: not finding.serious)),
        float(allowed.mean()),
        int((~masks.any(axis=2)).sum()),
        int((~masks.any(axis=1)).sum()),
        int(np.triu(masks, 1).sum()) if L == S else 0,
    )


def _findings(mask):
    yield from _empty_rows(mask)
    L, S = mask.shape
    if mask.all():
        yield Finding("hides nothing", "every query sees every key: None does the same", False)
    elif L == S:
        yield from _square(mask)
    elif np.array_equal(mask, np.tril(np.ones((L, S), bool))) and L < S:
        text = (
            f"it starts upper-left, so that the last query does not see keys {L} to {S - 1}; with "
            f"cached keys it must end lower-right: q_offset = S - L = {S - L}"
        )
        yield Finding("upper-left triangle", text)
    yield from _unseen_keys(mask)


def _empty_rows(mask):
    empty = np.flatnonzero(~mask.any(axis=1))
    if len(empty):
        yield Finding("empty rows", f"{_listed('query', 'queries', empty)} may attend to nothing")


def _unseen_keys(mask):
    unseen = np.flatnonzero(~mask.any(axis=0))
    if not len(unseen):
        return
    seen = np.flatnonzero(mask.any(axis=0))
    text = _listed("key", "keys", unseen)
    if not len(seen):
        yield Finding("keys never seen", f"{text}: the mask hides everything")
    elif seen[-1] - seen[0] + 1 == len(seen):
        sides = {"the start": seen[0] > 0, "the end": seen[-1] < mask.shape[1] - 1}
        ends = [side for side, is_unseen in sides.items() if is_unseen]
        yield Finding("keys never seen", f"{text}, at {' and '.join(ends)}, as with padding", False)
    else:
        yield Finding("keys never seen", f"{text}, some between keys that are seen")


def _square(mask):
    """What a mask of self-attention shows, where the diagonal is each position's own pair."""
    n = len(mask)
    lower, upper = np.tril(mask, -1), np.triu(mask, 1)
    own = mask.diagonal()
    if n > 1 and not own.any() and mask.any():
        if not upper.any():
            text = "no query sees itself: k < q instead of k <= q"
            yield Finding("off-by-one triangle (one short)", text)
        else:
            text = "no query sees itself, and every query that is left sees others: ~mask?"
            yield Finding("looks inverted", text)
        return
    broken = [*_documents(mask)]
    yield from broken
    if broken or not upper.any() or np.array_equal(mask, mask.T):
        return
    q, k = (int(i) for i in np.argwhere(upper)[0])
    pair = f"query {q} sees key {k}"
    seen = mask.any(axis=0)
    if np.array_equal(mask[:, seen], np.tril(np.ones((n, n), bool), 1)[:, seen]):
        text = f"{pair}: every query sees one position after its own, and none sees two"
        yield Finding("off-by-one triangle (one long)", text)
    elif all(len(set(mask.diagonal(d))) == 1 for d in range(1 - n, n)):
        ahead = int(np.flatnonzero(mask[0]).max())
        yield Finding("looks ahead", f"every query sees up to {ahead} after its own", False)
    elif 4 * upper.sum() < n * (n - 1) and lower.sum() > upper.sum() and not _open(mask, upper):
        text = f"{pair}, the first of {int(upper.sum())} above the diagonal"
        yield Finding("sees the future", text)


def _open(mask, upper):
    """Is the future seen only in keys that every query sees (a prefix, padding)?"""
    return mask[mask.any(axis=1)][:, upper.any(axis=0)].all()


def _documents(mask):
    """Rows that break a pattern of documents: blocks in which everyone sees everyone."""
    places = np.flatnonzero(mask.any(axis=0))  # padding is no document
    mask = mask[np.ix_(places, places)]
    if not mask.any(axis=1).all():
        return
    starts, ends = mask.argmax(axis=1), mask.shape[1] - mask[:, ::-1].argmax(axis=1)
    k = np.arange(len(mask))
    runs = (ends - starts == mask.sum(axis=1)) & (starts <= k) & (k < ends)
    # A row fits when everyone in its run has the same run.
    fits = np.array([
        runs[i] and (starts[s:e] == s).all() and (ends[s:e] == e).all()
        for i, (s, e) in enumerate(zip(starts, ends, strict=True))
    ])  # fmt: skip
    blocks = len(np.unique(starts[fits]))
    if fits.all() or not blocks or 2 * fits.sum() < len(mask) or np.triu(mask, 1).sum() == 0:
        return
    odd = places[~fits]
    one_way = np.argwhere(mask & ~mask.T)
    if len(one_way):
        q, k = (int(places[i]) for i in one_way[0])
        text = (
            f"query {q} sees key {k}, but query {k} does not see key {q}; "
            f"{_listed('row', 'rows', odd)} break the blocks"
        )
        yield Finding("asymmetric document blocks", text)


def _repeated(allowed):
    """Axes that say the same thing many times."""
    for axis, name in ((-3, "heads"), (-4, "batch rows")):
        if allowed.ndim >= -axis and allowed.shape[axis] > 1:
            first = np.take(allowed, [0], axis)
            if (allowed == first).all():
                text = f"all {allowed.shape[axis]} {name} are the same: length 1 says so too"
                yield Finding(f"equal {name}", text + ".", False)


def _listed(one, many, positions):
    """'key 3', 'keys 1, 2, 5', 'keys 0 to 7' or the first few of many."""
    positions = [int(i) for i in positions]
    if len(positions) == 1:
        return f"{one} {positions[0]}"
    if positions[-1] - positions[0] + 1 == len(positions):
        return f"{many} {positions[0]} to {positions[-1]}"
    shown = ", ".join(map(str, positions[:6]))
    return f"{many} {shown}{', …' if len(positions) > 6 else ''} ({len(positions)} in all)"
