"""Tiles: which stretches of keys a tile of queries reads, and which pairs of them take part.

The score matrix is cut into tiles. Those that the mask leaves empty are skipped without a look at
their pairs, those it leaves full need no mask, and neighbours of a kind are joined into one long
strip, since a few large products are faster than many small ones. Only for the tiles in between is
the mask asked about pairs, once for all heads that it treats alike. What it answers is the matter
of attn.masks.layout; here stands in which order it is asked.
"""

from typing import NamedTuple

import numpy as np

from attn.masks.layout import EMPTY, FULL

# Measured, not derived: 1 MiB of float32 scores for each thread. Four times as many were at most a
# tenth faster at 4096 positions, half as many a little slower.
QUERY_EDGE, KEY_EDGE = 256, 1024


class Strip(NamedTuple):
    """Neighbouring keys that a tile of queries reads in one step."""

    keys: slice
    keep: np.ndarray | None  # bool (1|H, rows|1, keys|1); None = every pair takes part

    def of_head(self, h):
        if self.keep is None:
            return self
        return Strip(self.keys, self.keep[h if len(self.keep) > 1 else 0])


def edges(block_size):
    """Tile edge and longest strip: both as asked for, or the tuned ones."""
    return (block_size, block_size) if block_size else (QUERY_EDGE, KEY_EDGE)


def schedule(laid, size, edge, longest):
    """Yield (b, h, rows, strips) for each tile of queries, all heads of a tile in a row.

    The last queries come first: under a causal mask they see most, and threads that end with small
    tasks end together.
    """
    kinds = tile_kinds(laid, size, edge)  # (1|B, 1|H, tiles, tiles)
    alike = kinds.shape[1] == 1
    for b in range(size.B):
        for i in reversed(range(-(-size.L // edge))):
            rows = slice(i * edge, min((i + 1) * edge, size.L))
            for heads in [range(size.H)] if alike else [[h] for h in range(size.H)]:
                first = heads[0] if heads else 0
                kind = kinds[b % len(kinds), 0 if alike else first, i % kinds.shape[2]]
                of_heads = slice(b, b + 1), slice(first, first + len(heads)), rows
                strips = [
                    Strip(keys, None if full else laid.pairs(*of_heads, keys)[0])
                    for keys, full in joined(kind, edge, longest, size.S)
                ]
                for h in heads:
                    yield b, h, rows, [strip.of_head(h - first) for strip in strips]


def tile_kinds(laid, size, edge):
    """The map of the mask's tiles; without a mask, one row of full tiles that stands for all."""
    if laid is None:
        return np.full((1, 1, 1, -(-size.S // edge)), FULL, np.int8)
    return laid.tiles((edge, edge))


def joined(kind, edge, longest, S):
    """Yield (keys, full) for runs of neighbouring tiles of one kind, up to `longest` keys each."""
    start = 0
    while start < len(kind):
        stop = start + 1
        while (
            stop < len(kind) and kind[stop] == kind[start] and (stop + 1 - start) * edge <= longest
        ):
            stop += 1
        if kind[start] != EMPTY:
            yield slice(start * edge, min(stop * edge, S)), kind[start] == FULL
        start = stop
