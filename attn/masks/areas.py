"""Where a mask lets pairs through, found from coarse to fine.

A map of all tiles grows with the square of the length. Here a mask is asked about large areas
first, and only the mixed ones are cut up and asked again: what is empty or full as a whole is never
looked at in detail. Time and memory grow with the border between seen and hidden, which is as long
as the sequence, and not with its square.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from attn.masks.layout import EMPTY, FULL, SOME
from attn.masks.spans import Span

SPLIT = 4  # a mixed area is cut into SPLIT x SPLIT
COARSE = 256  # areas along a side of the first map, at most


class Areas(NamedTuple):
    """Rectangles of tiles, none over another, that hold every pair that may attend."""

    rows: np.ndarray  # (2, N): first tile and the one behind the last
    keys: np.ndarray  # (2, N)
    kinds: np.ndarray  # (1|B, N): EMPTY, SOME or FULL, in all heads

    def segments(self, count, b=None):
        """For each of `count` rows of tiles the (first, stop, kind) that are not empty, in order.

        Those of batch row b, or what holds in all batch rows.
        """
        kinds = agreed(self.kinds, axis=0) if b is None else self.kinds[b % len(self.kinds)]
        chosen = np.flatnonzero(kinds != EMPTY)
        first, stop = self.rows[:, chosen]
        height = stop - first
        area = np.repeat(chosen, height)
        within = np.arange(len(area)) - np.repeat(np.cumsum(height) - height, height)
        row = np.repeat(first, height) + within
        order = np.lexsort((self.keys[0, area], row))
        area, row = area[order], row[order]
        ends = np.searchsorted(row, np.arange(count + 1)).tolist()
        found = list(zip(*self.keys[:, area].tolist(), kinds[area].tolist(), strict=True))
        return [found[a:b] for a, b in pairwise(ends)]


def find_areas(kinds_of, lengths, edges):
    """The areas of a mask over `lengths` = (L, S), cut into tiles of `edges`.

    `kinds_of(rows, keys)` is asked about spans of rows and of keys that broadcast to (1, 1, R, K),
    and answers EMPTY, SOME or FULL for each pair of spans, (1|B, 1|H, R, K).
    """
    counts = [-(-n // edge) for n, edge in zip(lengths, edges, strict=True)]
    side = 1
    while max(counts) > COARSE * side:
        side *= SPLIT
    # First a map of all areas, rows of them by columns; then single areas, all in one row.
    rows, keys = np.arange(0, counts[0], side)[:, None], np.arange(0, counts[1], side)[None]
    found = []
    while True:
        ends = np.minimum(rows + side, counts[0]), np.minimum(keys + side, counts[1])
        spans = (
            Span(low[None, None] * edge, np.minimum(high[None, None] * edge, n) - 1)
            for low, high, edge, n in zip((rows, keys), ends, edges, lengths, strict=True)
        )
        kinds = agreed(kinds_of(*spans), axis=1)  # (1|B, R, K)
        kinds = kinds.reshape(len(kinds), -1)
        first, stop = (
            np.stack([x.ravel() for x in np.broadcast_arrays(*pair)])
            for pair in ((rows, keys), ends)
        )
        mixed = (kinds == SOME).any(axis=0) & (side > 1)
        done = ~mixed & (kinds != EMPTY).any(axis=0)
        found.append((first[:, done], stop[:, done], kinds[:, done]))
        if not mixed.any():
            break
        side //= SPLIT
        steps = side * np.stack(np.divmod(np.arange(SPLIT**2), SPLIT))
        corners = (first[:, mixed, None] + steps[:, None]).reshape(2, -1)
        corners = corners[:, (corners < np.reshape(counts, (2, 1))).all(axis=0)]
        rows, keys = corners[:, None]
    batch = max(len(kinds) for *_, kinds in found)
    first, stop = (np.concatenate(ends, axis=1) for ends in list(zip(*found, strict=True))[:2])
    kinds = [np.broadcast_to(kinds, (batch, kinds.shape[1])) for *_, kinds in found]
    return Areas(*np.stack([first, stop], axis=1), np.concatenate(kinds, axis=1))


def areas_of_map(kinds):
    """The same from a map of all tiles, (1|B, 1|H, rows of tiles, tiles)."""
    kinds = agreed(kinds, axis=1)
    at = np.stack(np.nonzero((kinds != EMPTY).any(axis=0)))
    return Areas(*np.stack([at, at + 1], axis=1), kinds[:, *at])


def agreed(kinds, axis):
    """What holds along an axis of batch rows or heads: FULL or EMPTY in all of them, else SOME."""
    low, high = kinds.min(axis=axis), kinds.max(axis=axis)
    return np.where(low == high, low, SOME)


def whole_area(lengths, edges):
    """Everything: what no mask at all allows."""
    counts = [[[0], [-(-n // edge)]] for n, edge in zip(lengths, edges, strict=True)]
    return Areas(*np.array(counts), np.array([[FULL]]))
