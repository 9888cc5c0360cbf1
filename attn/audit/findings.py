"""What is wrong with this mask, seen from the mask alone.

A mask is right or wrong only with respect to what was meant, so what is said here is of two kinds.
*Serious* is what no model in use means: a triangle that is one off, on its side or inside out, a
position in use that sees nothing, one pair that does not fit the rest. All else is a *remark*:
padding, heads that are all the same, a look ahead that may be meant. Imports
attn.conventions.forms, attn.masks, attn.audit.entries and attn.audit.patterns.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attn.audit.entries import no_masked_array
from attn.audit.patterns import by_distance, is_band, is_closed, is_grouping, is_window
from attn.conventions import forms
from attn.masks import Mask


class Finding(NamedTuple):
    """A name, a sentence with the numbers, and whether it is a mistake under every reading."""

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
        Pairs above the diagonal that may attend, likewise; 0 where L != S or `cross`.
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


def audit_mask(allowed, *, cross=False):
    """Look for mistakes in a boolean mask.

    Causal masks, windows, prefixes, documents, frames, images within a text, global tokens, trees,
    permutations and their combinations pass. So do mistakes that turn one of them into another:
    an audit is evidence against a mask, never for it.

    Parameters
    ----------
    allowed : array of bool, shape (L, S) or (…, L, S)
        True = may attend. Batch rows and heads that are the same are examined once.
    cross : bool
        Query q and key q are not one position even where L = S: two sequences, or queries that
        come after a cache. Nearly everything that is serious is about self-attention.

    Returns
    -------
    MaskAudit

    Raises
    ------
    TypeError, ValueError
        A rule (write it out with dense_mask), not boolean, a masked array, fewer than two axes.

    Source: the mistakes are those of published code; the book's chapter on masks lists them.

    Examples
    --------
    >>> print(audit_mask(np.tril(np.ones((4, 4), bool), k=-1)))
    ! empty rows: query 0 may attend to nothing, though others attend to key 0.
    ! off-by-one triangle (one short): no query sees itself: k < q instead of k <= q.
    · keys never seen: key 3, at the end, as with padding.
    >>> audit_mask(np.tril(np.ones((4, 4), bool))).passed
    True
    """
    if isinstance(allowed, Mask):
        raise TypeError(
            f"allowed: expected a boolean array, got a rule: dense_mask({allowed!r}, L, S)"
        )
    no_masked_array("allowed", allowed)
    forms.boolean("allowed", allowed)
    allowed = np.asarray(allowed.detach().cpu() if hasattr(allowed, "detach") else allowed)
    if allowed.ndim < 2 or 0 in allowed.shape:
        raise ValueError(f"allowed: expected shape (…, L, S), none of them 0, got {allowed.shape}")
    L, S = allowed.shape[-2:]
    flat, firsts = np.unique(allowed.reshape(-1, L * S), axis=0, return_index=True)
    order = np.argsort(firsts)
    masks, firsts = flat[order].reshape(-1, L, S), firsts[order]
    places = [""] * len(masks)
    if allowed.ndim > 2 and len(masks) > 1:
        indices = (np.unravel_index(first, allowed.shape[:-2]) for first in firsts)
        places = [f" (in mask{[int(i) for i in index]})" for index in indices]
    found = {}
    for mask, place in zip(masks, places, strict=True):
        for finding in _findings(mask, L == S and not cross):
            if finding.name == "hides everything" and masks.any():
                finding = finding._replace(serious=False)  # a batch row without a token
            found.setdefault(finding.name, finding._replace(text=_sentence(finding.text + place)))
    findings = [*found.values(), *_directions(masks, places, cross), *_repeated(allowed)]
    return MaskAudit(
        tuple(sorted(findings, key=lambda finding: not finding.serious)),
        float(allowed.mean()),
        int((~masks.any(axis=2)).sum()),
        int((~masks.any(axis=1)).sum()),
        int(np.triu(masks, 1).sum()) if L == S and not cross else 0,
    )


def _findings(mask, is_self):
    L, S = mask.shape
    if not mask.any():
        yield Finding("hides everything", f"no query sees any of the {_count(S, 'key')}")
        return
    yield from _empty_rows(mask, is_self)
    if mask.all():
        yield Finding("hides nothing", "every query sees every key: None does the same", False)
    elif is_self:
        yield from _self_attention(mask)
    elif L < S and np.array_equal(mask, np.tri(L, S, dtype=bool)):
        text = (
            f"it starts upper-left, so that the last query does not see keys {L} to {S - 1}; with "
            f"{_count(S - L, 'cached key')} it must end lower-right: q_offset = S - L = {S - L}"
        )
        yield Finding("upper-left triangle", text, False)
    yield from _unseen_keys(mask)


def _empty_rows(mask, is_self):
    """Padding sees nothing and is not seen. A position that others see has a query, too."""
    empty = ~mask.any(axis=1)
    if not empty.any():
        return
    text = f"{_listed('query', 'queries', np.flatnonzero(empty))} may attend to nothing"
    in_use = empty & mask.any(axis=0) if is_self else np.zeros_like(empty)
    if not in_use.any():
        whose = "its key" if empty.sum() == 1 else "their keys"
        why = f"and nobody attends to {whose}" if is_self else "which is right for padding only"
        yield Finding("empty rows", f"{text}, {why}", False)
    elif empty.sum() == in_use.sum() and mask[~empty][:, empty].all() and mask.diagonal().any():
        text += ", and every other query attends to their keys: padding on the wrong axis?"
        yield Finding("empty rows", text)
    else:
        used = _listed("key", "keys", np.flatnonzero(in_use))
        yield Finding("empty rows", f"{text}, though others attend to {used}")


def _unseen_keys(mask):
    unseen = np.flatnonzero(~mask.any(axis=0))
    if not len(unseen):
        return
    seen = np.flatnonzero(mask.any(axis=0))
    text = _listed("key", "keys", unseen)
    if seen[-1] - seen[0] + 1 == len(seen):
        sides = {"the start": seen[0] > 0, "the end": seen[-1] < mask.shape[1] - 1}
        ends = [side for side, is_unseen in sides.items() if is_unseen]
        yield Finding("keys never seen", f"{text}, at {' and '.join(ends)}, as with padding", False)
    else:
        yield Finding("keys never seen", f"{text}, some between keys that are seen", False)


def _self_attention(mask):
    """What a mask of self-attention shows, where the diagonal is each position's own pair."""
    places = np.flatnonzero(mask.any(axis=0))  # without padding, which nobody sees
    part = mask[np.ix_(places, places)]
    own, rows = part.diagonal(), part.any(axis=1)
    if not own.any():
        yield from _nobody_itself(mask[:, places], places, part)
    elif (rows & ~own).any():
        blind = places[rows & ~own]
        whose = "its own key" if len(blind) == 1 else "their own keys"
        text = f"{_listed('query', 'queries', blind)} cannot attend to {whose}"
        yield Finding("own position hidden", f"{text}, though other queries can")
    else:
        checks = (_one_long, _stray, _transposed, _future)
        yield from next(filter(None, (check(part, places) for check in checks)), ())


def _nobody_itself(rows, places, part):
    """No query sees itself: a mistake if it is a triangle, documents or a window inside out."""
    before = places < np.arange(len(rows))[:, None]
    after = places > np.arange(len(rows))[:, None]
    text = "no query sees itself"
    pairs = len(part) * (len(part) - 1) // 2
    all_before, all_after = np.tril(part).sum() == pairs, np.triu(part).sum() == pairs
    if not (rows & after).any():
        text += ": k < q instead of k <= q"
        yield Finding("off-by-one triangle (one short)", text)
    elif not (rows & before).any() or (all_after and not all_before):
        yield Finding("looks inverted", f"{text}, and every query that is left sees others: ~mask?")
    elif is_grouping(~part) or is_band(~part):
        yield Finding("looks inverted", f"{text}, but all that is far or apart: ~mask?")
    else:
        yield Finding("no query sees itself", "every query sees others only", False)


def _one_long(part, places):
    """k <= q + 1, alone or within documents."""
    future = np.triu(part, 1)
    ahead = future.diagonal(1)
    in_a_row = (ahead[1:] & ahead[:-1]).any()
    if np.triu(part, 2).any() or not in_a_row or not is_closed(np.tril(part)):
        return []
    q = int(np.flatnonzero(ahead)[0])
    text = f"query {places[q]} sees key {places[q + 1]}: every query sees one position after its"
    return [Finding("off-by-one triangle (one long)", f"{text} own, and none sees two")]


def _stray(part, places):
    """One pair or two, without which the mask would be closed."""
    n = len(part)
    most = 2
    if n < 6:
        return []
    strays, left, evidence = [], part.copy(), 0
    for _ in range(most + 1):
        seen = left.astype(np.float32)
        hidden = 1 - seen
        # Broken triples i → j → k with i, k hidden: how many begin, and how many end, with a pair.
        broken = seen * (hidden @ seen.T + seen.T @ hidden)
        total = float((seen * (hidden @ seen.T)).sum(dtype=np.float64))
        if not total:
            break
        evidence = evidence or total
        worst = np.unravel_index(broken.argmax(), broken.shape)
        if len(strays) == most or broken[worst] * (most - len(strays)) < total:
            return []
        strays.append(tuple(map(int, worst)))
        left[worst] = False
    # A bridge that is open both ways may be an edge of a graph.
    if evidence < 3 * len(strays) or not strays or any((k, q) in strays for q, k in strays):
        return []
    q, k = strays[0]
    beyond = int(np.flatnonzero(part[k] & ~part[q])[0]) if (part[k] & ~part[q]).any() else None
    text = f"query {places[q]} sees key {places[k]}"
    text += "" if beyond is None else f" but not key {places[beyond]}, which query {places[k]} sees"
    if len(strays) > 1:
        text += f"; {len(strays)} such pairs"
    if q < k and not np.triu(left, 1).any():
        return [Finding("sees the future", f"{text}; no other query sees a later key")]
    return [Finding("stray pair", f"{text}; all other pairs fit together")]


def _transposed(part, places):
    """Every pair that is seen one way only looks ahead: a mask on its side."""
    one_way = part & ~part.T
    if not one_way.any() or np.tril(one_way, -1).any():
        return []
    if not is_closed(part) and not is_window(part):
        return []  # a few random pairs, that happen to look ahead
    if by_distance(part) and np.tril(part, -1).any() and not part[0, -1]:
        return []  # a window that reaches further ahead than back
    q, k = (int(i) for i in np.argwhere(one_way)[0])
    q, k = places[q], places[k]
    text = f"query {q} sees key {k}, and query {k} does not see key {q}"
    if np.tril(part, -1).any() and by_distance(part):
        back = int(np.flatnonzero(part[-1][::-1])[-1])
        return [Finding("open to the future", (
            f"every query sees all later keys and {_count(back, 'earlier one')}: q - k <= {back} "
            "holds for every later key as well"
        ))]  # fmt: skip
    return [Finding("looks transposed", f"{text}; so it is for all pairs: mask.T?")]


def _future(part, places):
    """Remarks on what is seen ahead without a pattern that explains it."""
    upper, lower, n = np.triu(part, 1), np.tril(part, -1), len(part)
    if not upper.any() or np.array_equal(part, part.T) or is_closed(part):
        return []
    if by_distance(part):
        ahead = int(np.flatnonzero(part[0]).max())
        return [Finding("looks ahead", f"every query sees up to {ahead} after its own", False)]
    if 4 * upper.sum() < n * (n - 1) and lower.sum() > upper.sum() and not _open(part, upper):
        q, k = (int(places[i]) for i in np.argwhere(upper)[0])
        text = f"query {q} sees key {k}, the first of {int(upper.sum())} above the diagonal"
        return [Finding("sees the future", text, False)]
    return []


def _open(mask, upper):
    """Is the future seen only in keys that every query sees (global tokens)?"""
    return mask[mask.any(axis=1)][:, upper.any(axis=0)].all()


def _directions(masks, places, cross):
    """Some heads or batch rows see the future, others do not."""
    if cross or masks.shape[1] != masks.shape[2] or len(masks) < 2:
        return
    ahead = np.triu(masks, 1).any(axis=(1, 2))
    lower = np.tril(masks, -1).any(axis=(1, 2))
    if ahead.any() and (~ahead & lower).any():
        one = places[int(ahead.argmax())].strip(" ()")
        other = places[int((~ahead & lower).argmax())].strip(" ()")
        text = f"later keys are seen {one} and not {other}."
        yield Finding("not all look the same way", text, False)


def _repeated(allowed):
    """Axes that say the same thing many times."""
    for axis, name in ((-3, "heads"), (-4, "batch rows")):
        if allowed.ndim >= -axis and allowed.shape[axis] > 1:
            first = np.take(allowed, [0], axis)
            if (allowed == first).all():
                text = f"all {allowed.shape[axis]} {name} are the same: an axis of length 1 will do"
                yield Finding(f"equal {name}", text + ".", False)


def _sentence(text):
    return text if text.endswith("?") else text + "."


def _count(number, what):
    return f"{number} {what}" + ("" if number == 1 else "s")


def _listed(one, many, positions):
    """'key 3', 'keys 1, 2, 5', 'keys 0 to 7' or the first few of many."""
    positions = [int(i) for i in positions]
    if len(positions) == 1:
        return f"{one} {positions[0]}"
    if positions[-1] - positions[0] + 1 == len(positions):
        return f"{many} {positions[0]} to {positions[-1]}"
    shown = ", ".join(map(str, positions[:6]))
    return f"{many} {shown}{', …' if len(positions) > 6 else ''} ({len(positions)} in all)"
