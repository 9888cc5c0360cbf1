"""Which inputs to change at once, so that few calls look at every pair that a mask forbids.

If the positions J change, an output that may see none of J must stay as it is: one call looks at
all pairs (such an output, a position in J). Documents, padding and windows need a handful of such
sets whatever their length; a triangle needs L - 1, and no method needs fewer: the pair (t, t + 1)
is looked at only by a set whose first position is t + 1. Imports nothing from the package.
"""

import numpy as np


def covering_sets(allowed):
    """Sets of positions that together look at every forbidden pair, as few as three ways find.

    Row by row, everything that is hidden from it; before that, as long as they look at more new
    pairs than an average row does, random sets (good for documents and padding) or combs (good for
    windows). Sets that the others make needless are dropped.

    Parameters
    ----------
    allowed : ndarray of bool, shape (L_out, L_in)

    Returns
    -------
    list of ndarray of bool, shape (L_in,)

    Source: group testing, Dorfman (1943).

    Examples
    --------
    >>> halves = np.kron(np.eye(2, dtype=bool), np.ones((50, 50), bool))
    >>> len(covering_sets(halves)), len(covering_sets(np.tril(np.ones((100, 100), bool))))
    (2, 99)
    """
    plans = (_plan(allowed, candidates) for candidates in (_random, _combs, lambda allowed: ()))
    return min(plans, key=len)


def _plan(allowed, candidates):
    # float32, because BLAS counts pairs faster than booleans are looked up
    seen, open_pairs = allowed.astype(np.float32), (~allowed).astype(np.float32)
    firsts = np.unique(allowed, axis=0, return_index=True)[1]
    left, chosen = open_pairs.sum(), []
    for positions in candidates(allowed):
        gain = _count(open_pairs, seen, positions)
        if gain * len(firsts) > left:
            chosen.append(positions)
            open_pairs[_pairs(seen, positions)] = 0
            left -= gain
    for row in firsts:
        if open_pairs[row].any():
            chosen.append(~allowed[row])
            open_pairs[_pairs(seen, chosen[-1])] = 0
    return _needed(chosen, seen)


def _blind(seen, positions):
    """The outputs that may see none of the positions."""
    return seen @ positions.astype(np.float32) == 0


def _pairs(seen, positions):
    """The pairs that a set looks at: blind outputs with its positions."""
    return np.ix_(_blind(seen, positions), positions)


def _count(pairs, seen, positions):
    """How many of the marked pairs a set looks at."""
    blind = _blind(seen, positions).astype(np.float32)
    return float(blind @ (pairs @ positions.astype(np.float32)))


def _random(allowed):
    """Random sets of every density, in which inputs that the same outputs see stand together."""
    rng = np.random.default_rng(0)
    classes = np.unique(allowed, axis=1, return_inverse=True)[1].ravel()
    number = int(classes.max()) + 1
    for halvings in range(1, 2 + int(np.log2(number))):
        for _ in range(4 * number.bit_length()):
            yield (rng.random(number) < 0.5**halvings)[classes]


def _combs(allowed):
    """Every other block of 1, 2, 4, … positions, from every start."""
    k = np.arange(allowed.shape[1])
    for width in 2 ** np.arange(int(np.log2(len(k))) + 1):
        for start in range(2 * width):
            yield (k + start) // width % 2 == 0


def _needed(chosen, seen):
    """Without the sets of which every pair is looked at by another one too."""
    looks = np.zeros(seen.shape, np.int32)
    for positions in chosen:
        looks[_pairs(seen, positions)] += 1
    kept = []
    for positions in chosen:
        if _count((looks == 1).astype(np.float32), seen, positions):
            kept.append(positions)
        else:
            looks[_pairs(seen, positions)] -= 1
    return kept
