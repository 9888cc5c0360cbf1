"""Which inputs to change at once, so that few calls test every pair that a mask forbids.

A *pool* is a set of positions that change together. An output that may see none of them must stay
as it is, so one call tests all pairs (such an output, a position of the pool). Documents, padding
and windows need a handful of pools whatever their length; a triangle needs L - 1, and no method
needs fewer: the pair (t, t + 1) is tested only by a pool whose first position is t + 1. Imports
nothing from the package.
"""

import numpy as np


def covering_pools(allowed):
    """Pools that together test every forbidden pair, as few as three ways of choosing find.

    Row by row, everything that is hidden from it; before that, as long as they test more new pairs
    than an average row does, random pools (good for documents and padding) or combs (good for
    windows). Pools that the others make needless are dropped.

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
    >>> len(covering_pools(halves)), len(covering_pools(np.tril(np.ones((100, 100), bool))))
    (2, 99)
    """
    rows = np.unique(allowed, axis=0)
    rows = rows[np.argsort(rows.sum(axis=1), kind="stable")]
    if (rows[:-1] <= rows[1:]).all():
        # Each row sees what the one before it sees, and more: a pool a row, and no two in one.
        return [~row for row in rows if not row.all()]
    designs = (_design(allowed, candidates) for candidates in (_random, _combs, lambda allowed: ()))
    return min(designs, key=len)


def _design(allowed, candidates):
    # float32, because BLAS counts pairs faster than booleans are looked up
    visible, untested = allowed.astype(np.float32), (~allowed).astype(np.float32)
    distinct_rows = np.unique(allowed, axis=0, return_index=True)[1]
    left, pools = untested.sum(), []
    for pool in candidates(allowed):
        new = _count(untested, visible, pool)
        if new * len(distinct_rows) > left:
            pools.append(pool)
            untested[_tested(visible, pool)] = 0
            left -= new
    for row in distinct_rows:
        if untested[row].any():
            pools.append(~allowed[row])
            untested[_tested(visible, pools[-1])] = 0
    return _needed(pools, visible)


def _blind(visible, pool):
    """The outputs that may see no position of the pool."""
    return visible @ pool.astype(np.float32) == 0


def _tested(visible, pool):
    """The pairs that a pool tests: blind outputs with its positions."""
    return np.ix_(_blind(visible, pool), pool)


def _count(pairs, visible, pool):
    """How many of the marked pairs a pool tests."""
    blind = _blind(visible, pool).astype(np.float32)
    return float(blind @ (pairs @ pool.astype(np.float32)))


def _random(allowed):
    """Candidates: random pools of every density, where inputs that look alike go together."""
    rng = np.random.default_rng(0)
    classes = np.unique(allowed, axis=1, return_inverse=True)[1].ravel()
    number = int(classes.max()) + 1
    for halvings in range(1, 2 + int(np.log2(number))):
        for _ in range(4 * number.bit_length()):
            yield (rng.random(number) < 0.5**halvings)[classes]


def _combs(allowed):
    """Candidates: every other block of 1, 2, 4, … positions, from every start."""
    k = np.arange(allowed.shape[1])
    for width in 2 ** np.arange(int(np.log2(len(k))) + 1):
        for start in range(2 * width):
            yield (k + start) // width % 2 == 0


def _needed(pools, visible):
    """Without the pools of which another one tests every pair too."""
    times = np.zeros(visible.shape, np.int32)
    for pool in pools:
        times[_tested(visible, pool)] += 1
    kept = []
    for pool in pools:
        if _count((times == 1).astype(np.float32), visible, pool):
            kept.append(pool)
        else:
            times[_tested(visible, pool)] -= 1
    return kept
