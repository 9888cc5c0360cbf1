"""Where a mask lets pairs through, found from coarse to fine.

A map of all tiles grows with the square of the length. Here a mask is asked about large areas
first, and only the mixed ones are cut up and asked again: what is empty or full as a whole is never
looked at in detail. Time and memory grow with the border between seen and hidden, which is as long
as the sequence, and not with its square.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from attn.masks.spans import Span

EMPTY, SOME, FULL = 0, 1, 2
SPLIT = 4  # a mixed area is cut into SPLIT x SPLIT
COARSE = 64  # areas along a side of the first map


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

    `kinds_of(rows, keys)` is asked about N spans of rows, each with its span of keys, (1, 1, 1, N),
    and answers EMPTY, SOME or FULL, (1|B, 1|H, 1, N).
    """
    counts = [-(-n // edge) for n, edge in zip(lengths, edges, strict=True)]
    side = 1
    while max(counts) > COARSE * side:
        side *= SPLIT
    corners = np.stack(np.meshgrid(*(np.arange(0, n, side) for n in counts), indexing="ij"))
    corners, found = corners.reshape(2, -1), []
    while True:
        ends = np.minimum(corners + side, np.reshape(counts, (2, 1)))  # behind the last tile
        spans = (
            Span(low[None, None, None] * edge, np.minimum(high[None, None, None] * edge, n) - 1)
            for low, high, edge, n in zip(corners, ends, edges, lengths, strict=True)
        )
        kinds = agreed(kinds_of(*spans), axis=1)[:, 0]  # (1|B, N)
        mixed = (kinds == SOME).any(axis=0) & (side > 1)
        done = ~mixed & (kinds != EMPTY).any(axis=0)
        found.append((corners[:, done], ends[:, done], kinds[:, done]))
        if not mixed.any():
            break
        side //= SPLIT
        steps = side * np.stack(np.divmod(np.arange(SPLIT**2), SPLIT))
        corners = (corners[:, mixed, None] + steps[:, None]).reshape(2, -1)
        corners = corners[:, (corners < np.reshape(counts, (2, 1))).all(axis=0)]
    batch = max(len(kinds) for *_, kinds in found)
    low, high = (np.concatenate(part, axis=1) for part in list(zip(*found, strict=True))[:2])
    kinds = [np.broadcast_to(kinds, (batch, kinds.shape[1])) for *_, kinds in found]
    return Areas(*np.stack([low, high], axis=1), np.concatenate(kinds, axis=1))


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
