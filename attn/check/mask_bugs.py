"""Known bugs of masks, each with the wrong formula that it computes.

Imports attn.check.steps.
"""

import numpy as np

from attn.check.steps import bugs

# Rounded to powers of ten: a fill between two of them hides and leaks in the same trials.
FILLS = (-5.0, -20.0, -50.0, *(-(10.0**p) for p in range(2, 17)))


def _triangle(n, shift, lower_right):
    """Ones up to `shift` beside the diagonal that starts upper-left or ends lower-right."""
    return np.tril(np.ones((n.L, n.S), bool), shift + (n.S - n.L) * lower_right)


def _diagonal(n, by, lower_right):
    """The pairs that a triangle gains (by = 1) or loses (by = -1) when it is one off."""
    inner, outer = sorted((0, by))
    return _triangle(n, outer, lower_right) & ~_triangle(n, inner, lower_right)


def _where_given(change):
    return {"mask": lambda mask, n: None if mask is None else change(mask, n)}


def _shifted(mask, n, by):
    """The mask, one key to the left (by = -1) or to the right (by = 1) of where it belongs."""
    mask = np.broadcast_to(mask, (*mask.shape[:-1], n.S))
    edge = np.full_like(mask[..., :1], by > 0)
    parts = (edge, mask[..., :-1]) if by > 0 else (mask[..., 1:], edge)
    return np.concatenate(parts, axis=-1)


def _off_by_one(by):
    """All the ways to hide one key too many (by = -1) or one too few (by = 1) of a triangle."""
    name = f"off-by-one triangle ({'one long' if by > 0 else 'one short'})"
    sees = "sees one position of its future" if by > 0 else "does not see its own position"
    both = np.logical_or if by > 0 else np.logical_and
    for corner in (0, 1):
        made = _where_given(lambda mask, n, corner=corner: _triangle(n, by, corner)[None, None])
        yield name, f"a query {sees}", made
        kept = _where_given(lambda mask, n, corner=corner: both(mask, _triangle(n, by, corner)))
        yield name, f"a query {sees}", kept
        line = _where_given(
            lambda mask, n, corner=corner: mask ^ (_diagonal(n, by, corner) & (mask == (by < 0)))
        )
        yield name, f"a query {sees}", line
    yield name, "the mask is shifted by one key", _where_given(lambda m, n: _shifted(m, n, by))


def _always_causal():
    for corner in (0, 1):
        made = _where_given(lambda mask, n, corner=corner: _triangle(n, 0, corner)[None, None])
        yield "a triangle instead of the mask", "a causal mask is made, whatever mask came", made
        always = {"mask": lambda mask, n, corner=corner: _triangle(n, 0, corner)}
        yield "causal without being asked", "the future is hidden with no mask too", always
        both = {
            "mask": lambda mask, n, corner=corner: (
                _triangle(n, 0, corner) if mask is None else mask & _triangle(n, 0, corner)
            )
        }
        yield "causal without being asked", "the future is hidden with every mask and none", both


def _for_one_query(change):
    return _where_given(lambda mask, n: change(mask, n) if n.L == 1 else mask)


def _of_keys(mask):
    return mask.shape[-2] == 1


def _tiled(mask, n):
    """(B, 1, …) laid out over B·H rows as 0, 1, 0, 1, …, where 0, 0, …, 1, 1, … is meant."""
    if mask.shape[1] > 1:
        return mask
    return np.tile(mask[:, 0], (n.B * n.H // len(mask), 1, 1)).reshape(n.B, n.H, *mask.shape[2:])


TRIANGLES = bugs(
    "Query i sees keys 0 to i: k <= q, np.tril(ones) with k=0; lay a given mask on as it came.",
    *_off_by_one(-1),
    *_off_by_one(1),
    *_always_causal(),
)

READINGS = bugs(
    "True means may attend; the axes are (B, H, L, S); a mask (B, 1, 1, S) hides keys.",
    ("mask ignored", "the mask changes nothing", _where_given(lambda mask, n: None)),
    ("inverted mask", "hidden keys are seen and visible ones hidden (or the function means the "
     "opposite: convention='is hidden')", _where_given(lambda mask, n: ~mask)),
    ("padding on the wrong axis", "the padding mask hides queries, not keys",
     _where_given(lambda mask, n: mask.swapaxes(-1, -2) if _of_keys(mask) else mask)),
    ("mask transposed", "queries and keys of the mask are swapped",
     _where_given(lambda mask, n: mask.swapaxes(-1, -2))),
    ("mask ignored for one query", "with one query, as in decoding, the mask changes nothing",
     _for_one_query(lambda mask, n: None)),
    ("triangle for one query", "with one query, as in decoding, a triangle leaves it key 0 alone",
     _for_one_query(lambda mask, n: _triangle(n, 0, False)[None, None])),
    ("mask tiled over heads", "over B·H rows, the masks of the batch come as 0, 1, 0, 1, … "
     "(tile, torch's repeat), not as 0, 0, …, 1, 1, … (repeat, repeat_interleave)",
     _where_given(_tiled)),
    ("first head's mask for all", "every head uses the mask of head 0",
     _where_given(lambda mask, n: mask[:, :1])),
    ("batch mixed", "every batch row uses the mask of row 0",
     _where_given(lambda mask, n: mask[:1])),
    ("batch mixed", "every batch row uses the mask of the row before",
     _where_given(lambda mask, n: np.roll(mask, 1, 0))),
    ("heads mixed", "every head uses the mask of the head before",
     _where_given(lambda mask, n: np.roll(mask, 1, 1))),
    ("first query's mask for all", "every query uses the mask of query 0",
     _where_given(lambda mask, n: mask[:, :, :1])),
    ("last query's mask for all", "every query uses the mask of the last query",
     _where_given(lambda mask, n: mask[:, :, -1:])),
    ("masks of the heads joined", "a key is hidden where the mask of any head hides it",
     _where_given(lambda mask, n: mask.all(1, keepdims=True))),
    ("masks of the heads joined", "a key is seen where the mask of any head shows it",
     _where_given(lambda mask, n: mask.any(1, keepdims=True))),
    ("masks of the batch joined", "a key is hidden where the mask of any batch row hides it",
     _where_given(lambda mask, n: mask.all(0, keepdims=True))),
    ("masks of the batch joined", "a key is seen where the mask of any batch row shows it",
     _where_given(lambda mask, n: mask.any(0, keepdims=True))),
    ("only the first head masked", "the other heads see everything",
     _where_given(lambda mask, n: mask | (np.arange(n.H) > 0)[:, None, None])),
    ("only batch row 0 masked", "the other batch rows see everything",
     _where_given(lambda mask, n: mask | (np.arange(n.B) > 0)[:, None, None, None])),
    ("shared mask for batch row 0 only", "one mask for several batch rows is laid on the first; "
     "the others see everything",
     _where_given(lambda mask, n: mask | (len(mask) == 1)
                  & (np.arange(n.B) > 0)[:, None, None, None])),
    ("shared mask for the first head only", "one mask for several heads is laid on the first; the "
     "others see everything",
     _where_given(lambda mask, n: mask | (mask.shape[1] == 1)
                  & (np.arange(n.H) > 0)[:, None, None])),
    ("mask in reverse order", "key S - 1 - j is hidden where key j should be",
     _where_given(lambda mask, n: mask[..., ::-1])),
    ("padding read as a length", "of a padding mask only the number of keys is used, and that many "
     "are kept from the start",
     _where_given(lambda mask, n: np.arange(n.S) < mask.sum(-1, keepdims=True)
                  if _of_keys(mask) else mask)),
    ("mask read as a length", "of each row of the mask only the number of keys is used, and that "
     "many are kept from the start",
     _where_given(lambda mask, n: np.arange(n.S) < mask.sum(-1, keepdims=True))),
    ("padding read as a length", "all keys up to the last visible one are kept",
     _where_given(lambda mask, n: np.cumsum(mask[..., ::-1], -1)[..., ::-1] > 0
                  if _of_keys(mask) else mask)),
    ("mask read as a length", "all keys up to the last visible one are kept",
     _where_given(lambda mask, n: np.cumsum(mask[..., ::-1], -1)[..., ::-1] > 0)),
    ("mask cut at the first hidden key", "what comes after the first hidden key is hidden too",
     _where_given(lambda mask, n: np.cumprod(mask, -1) > 0)),
    ("padding ignored", "a mask of keys alone, (…, 1, S), changes nothing",
     _where_given(lambda mask, n: None if _of_keys(mask) and n.L > 1 else mask)),
    ("mask of pairs ignored", "a mask with a row for each query changes nothing",
     _where_given(lambda mask, n: mask if _of_keys(mask) else None)),
    ("padded queries hidden too", "with as many queries as keys, the padding mask empties queries",
     _where_given(lambda mask, n: mask & mask.swapaxes(-1, -2)
                  if _of_keys(mask) and n.L == n.S else mask)),
    ("key 0 never hidden", "every query sees key 0, whatever the mask says",
     _where_given(lambda mask, n: mask | (np.arange(n.S) == 0))),
    ("last key never hidden", "every query sees the last key, whatever the mask says",
     _where_given(lambda mask, n: mask | (np.arange(n.S) == n.S - 1))),
    ("key 0 always hidden", "no query sees key 0",
     _where_given(lambda mask, n: mask & (np.arange(n.S) > 0))),
    ("last key always hidden", "no query sees the last key",
     _where_given(lambda mask, n: mask & (np.arange(n.S) < n.S - 1))),
    ("own position never hidden", "query i sees key i, whatever the mask says",
     _where_given(lambda mask, n: mask | np.eye(n.L, n.S, dtype=bool))),
    ("own position never hidden", "query i sees key i + S - L, whatever the mask says",
     _where_given(lambda mask, n: mask | np.eye(n.L, n.S, n.S - n.L, dtype=bool))),
    ("first query sees everything", "query 0 ignores the mask",
     _where_given(lambda mask, n: mask | (np.arange(n.L) == 0)[:, None])),
    ("last query sees everything", "the last query ignores the mask",
     _where_given(lambda mask, n: mask | (np.arange(n.L) == n.L - 1)[:, None])),
)  # fmt: skip


def _unmasked(scores, keep):
    return scores


def _divided_again(weights, keep):
    return weights * keep / (weights * keep).sum(-1, keepdims=True)


def _fills():
    for fill in FILLS:
        number = f"{fill:.0e}".replace("e+0", "e").replace("e+", "e")
        says = f"to about {number}, which real scores can undercut"
        yield (
            "finite fill",
            f"hidden scores are set {says}",
            {"remove": lambda scores, keep, fill=fill: np.where(keep, scores, fill)},
        )
        yield (
            "finite fill",
            f"hidden scores are lowered {says.replace('to about', 'by about')}",
            {"remove": lambda scores, keep, fill=fill: scores + np.where(keep, 0, fill)},
        )


REMOVALS = bugs(
    "Write -inf where the mask is False, before the softmax: np.where(mask, scores, -np.inf).",
    ("mask after the softmax", "hidden weights become 0 and the others do not grow",
     {"remove": _unmasked, "drop": lambda weights, keep: weights * keep}),
    ("mask after the softmax", "weights are masked and divided again, when all may have become 0",
     {"remove": _unmasked, "drop": _divided_again}),
    ("hidden scores set to 0", "a hidden key gets exp(0), a weight like any other",
     {"remove": lambda scores, keep: scores * keep}),
    ("a score of 0 taken for hidden", "scores are multiplied by the mask, and all that is 0 then "
     "is hidden",
     {"remove": lambda scores, keep: np.where(scores * keep == 0, -np.inf, scores)}),
    ("a score of 0 taken for hidden", "scores that are 0 are hidden, with a mask or without",
     {"bend": lambda scores: np.where(scores == 0, -np.inf, scores)}),
    ("hidden scores set to the smallest", "a hidden key shares the weight of the least visible one",
     {"remove": lambda scores, keep: np.where(keep, scores, scores.min(-1, keepdims=True))}),
    ("hidden scores set to the smallest", "hidden scores are set to the smallest of all",
     {"remove": lambda scores, keep: np.where(keep, scores, scores.min())}),
    ("hidden scores set to the smallest", "hidden scores are set to the smallest of all, less 1",
     {"remove": lambda scores, keep: np.where(keep, scores, scores.min() - 1)}),
    ("hidden scores set to +inf", "the sign of the fill is wrong",
     {"remove": lambda scores, keep: np.where(keep, scores, np.inf)}),
    ("hidden scores set to a small number", "hidden scores are set to 1e-9, not to -1e9",
     {"remove": lambda scores, keep: np.where(keep, scores, 1e-9)}),
    ("hidden scores set to 1", "a hidden key gets exp(1)",
     {"remove": lambda scores, keep: np.where(keep, scores, 1)}),
    ("mask added as a number", "True adds 1 to the score, False hides nothing",
     {"remove": lambda scores, keep: scores + keep}),
    ("0 times -inf", "(1 - mask)·(-inf) is NaN where the mask is True",
     {"remove": lambda scores, keep: scores + np.where(keep, np.nan, -np.inf)}),
    ("0 times -inf", "(1 - mask)·(-inf) is NaN where the mask is True; so is an "
     "empty row",
     {"remove": lambda scores, keep: scores + np.where(keep, np.nan, -np.inf),
      "peak": lambda scores, axis: scores.max(axis, keepdims=True)}),
    *_fills(),
)  # fmt: skip


def _empty(then):
    def remove(scores, keep):
        empty = ~keep.any(axis=-1, keepdims=True)
        return np.where(keep, scores, np.where(empty, then(scores), -np.inf))

    return {"remove": remove}


EMPTY_ROWS = bugs(
    "A query that may attend to nothing gets zeros: guard the maximum and the division.",
    ("NaN on empty rows", "-inf minus -inf, or 0/0, is NaN",
     {"peak": lambda scores, axis: scores.max(axis, keepdims=True)}),
    ("mean on empty rows", "a query that may attend to nothing gets the mean of all values",
     _empty(lambda scores: 0)),
    ("empty rows see everything", "a query that may attend to nothing attends to all keys",
     _empty(lambda scores: scores)),
)  # fmt: skip

BUGS = (*EMPTY_ROWS, *READINGS, *TRIANGLES, *REMOVALS)
