"""A covering array: few rows, in which every pair of levels of two factors occurs.

Most faults need no more than two circumstances at once: a mask *and* a batch, a short tail *and* a
tile. To try all combinations of f factors takes the product of their numbers of levels; to try all
pairs takes little more than the product of the two largest. Imports nothing from the package.

    >>> rows = covering_array({"mask": ("none", "causal"), "batch": (1, 2), "heads": (1, 3)})
    >>> for row in rows:
    ...     print(*row.values())
    none 1 1
    none 2 3
    causal 1 3
    causal 2 1

Source: the method of adding the row that covers most new pairs, AETG: Cohen, Dalal, Fredman &
Patton (1997), IEEE Transactions on Software Engineering 23 (7).
"""

from itertools import combinations


def covering_array(factors, allowed=lambda row: True):
    """Rows that contain every pair of levels which an allowed row can contain.

    Parameters
    ----------
    factors : dict of str to tuple
        The levels of each factor, the simplest first.
    allowed : callable
        Takes a row, a dict of some or all factors, and says whether it may be completed. What it
        refuses for some factors it must refuse for more.

    Returns
    -------
    list of dict
        The first row holds the simplest levels that go together; the same input gives the same
        rows.
    """
    todo = {
        ((f, a), (g, b)): None  # a dict keeps its order, a set does not
        for f, g in combinations(factors, 2)
        for a in factors[f]
        for b in factors[g]
    }
    rows = [_completed({}, factors, allowed, {}, 0)]
    while todo:
        for pair in _pairs(rows[-1], factors):
            todo.pop(pair, None)
        while todo:
            pair = next(iter(todo))
            row = _completed(dict(pair), factors, allowed, todo, len(rows))
            if row is not None:
                rows.append(row)
                break
            del todo[pair]  # no allowed row has these two levels
    return rows


def _pairs(row, factors):
    return combinations([(name, row[name]) for name in factors], 2)


def _completed(row, factors, allowed, todo, turn):
    """The row with a level for every factor, or None: the level with most new pairs comes first."""
    if not allowed(row):
        return None
    name = next((name for name in factors if name not in row), None)
    if name is None:
        return row
    order = {other: place for place, other in enumerate(factors)}

    def gain(level):
        new = (name, level)
        return sum(
            ((new, old) if order[name] < order[old[0]] else (old, new)) in todo
            for old in row.items()
        )

    levels = factors[name]
    start = turn % len(levels)  # levels that gain equally take turns
    for level in sorted(levels[start:] + levels[:start], key=gain, reverse=True):
        completed = _completed(row | {name: level}, factors, allowed, todo, turn)
        if completed is not None:
            return completed
    return None
