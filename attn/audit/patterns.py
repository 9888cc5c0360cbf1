"""What a square mask looks like: closed, a grouping, a band, a window.

Imports nothing from the package.
"""

import numpy as np


def is_closed(mask):
    """Does everyone who sees a position see what that position sees?

    Then no stack of layers sees more than one of them. Triangles, prefixes, documents, frames,
    images in a text, trees and permutations are so; windows and global tokens are not.
    """
    through = mask.astype(np.float32)  # BLAS multiplies floats only
    return not ((through @ through > 0) & ~mask).any()


def is_grouping(mask):
    """Blocks in which everyone sees everyone, in any order, and not only single positions."""
    return np.array_equal(mask, mask.T) and is_closed(mask) and bool(np.triu(mask, 1).any())


def by_distance(mask):
    """Does a pair depend on its distance alone?"""
    return bool((mask[1:, 1:] == mask[:-1, :-1]).all())


def is_band(mask):
    return by_distance(mask) and bool(mask.diagonal(1).all() or mask.diagonal(-1).all())


def is_window(part):
    """Within each document, a pair depends on its distance alone."""
    n = len(part)
    tied = part | part.T
    group = np.arange(n)
    while True:
        lowest = np.where(tied, group, n).min(axis=1)
        lowest = np.minimum(lowest, group)
        lowest = lowest[lowest]  # twice as far with every step
        if (lowest == group).all():
            break
        group = lowest
    q, k = np.nonzero(part)
    distances = np.unique(q - k)
    if len(np.unique(np.diff(distances))) > 1:
        return False  # neither a run of distances nor every d-th
    within = np.isin(np.arange(n)[:, None] - np.arange(n), distances)
    return np.array_equal(part, within & (group[:, None] == group))
