"""Tiles: which stretches of keys a tile of queries reads, and which pairs of them take part.

The score matrix is cut into tiles. Those that the mask leaves empty are skipped without a look at
their pairs, those it leaves full need no mask, and neighbours of a kind are joined into one long
strip, since a few large products are faster than many small ones. Only for the tiles in between is
the rule evaluated, once for all heads that it treats alike.
"""

from typing import NamedTuple

import numpy as np

from attn.masks.layout import as_boolean, as_numpy, block_map, positions
from attn.masks.rule import Mask, convert_arrays
from attn.operands import four_axes

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


def plain(mask, size):
    """A rule with NumPy arrays inside, or an array with four axes."""
    if mask is None:
        return None
    return convert_arrays(mask, as_numpy) if isinstance(mask, Mask) else four_axes(mask, size)


def schedule(mask, q_offset, size, edge, longest):
    """Yield (b, h, rows, strips) for each tile of queries, all heads of a tile in a row.

    The last queries come first: under a causal mask they see most, and threads that end with small
    tasks end together.
    """
    kinds = tile_kinds(mask, q_offset, size, edge)  # (1|B, 1|H, tiles, tiles)
    alike = kinds.shape[1] == 1
    for b in range(size.B):
        for i in reversed(range(-(-size.L // edge))):
            rows = slice(i * edge, min((i + 1) * edge, size.L))
            for heads in [range(size.H)] if alike else [[h] for h in range(size.H)]:
                kind = kinds[b % len(kinds), 0 if alike else heads[0], i % kinds.shape[2]]
                strips = [
                    Strip(keys, None if full else kept(mask, q_offset, size, b, heads, rows, keys))
                    for keys, full in joined(kind, edge, longest, size.S)
                ]
                for h in heads:
                    yield b, h, rows, [strip.of_head(h - heads[0]) for strip in strips]


def tile_kinds(mask, q_offset, size, edge):
    """block_map of the call; without a mask, one row of full tiles that stands for all."""
    if mask is None:
        return np.full((1, 1, 1, -(-size.S // edge)), 2, np.int8)
    if isinstance(mask, Mask):  # spans do not show whether its answers are boolean; one pair does
        pair = positions(min(size.L, 1), min(size.S, 1), q_offset, size.B, size.H)
        as_boolean(mask, mask(*pair))
    return block_map(
        mask, size.L, size.S, block_size=edge, q_offset=q_offset, batch=size.B, heads=size.H
    )


def joined(kind, edge, longest, S):
    """Yield (keys, full) for runs of neighbouring tiles of one kind, up to `longest` keys each."""
    start = 0
    while start < len(kind):
        stop = start + 1
        while (
            stop < len(kind) and kind[stop] == kind[start] and (stop + 1 - start) * edge <= longest
        ):
            stop += 1
        if kind[start] > 0:
            yield slice(start * edge, min(stop * edge, S)), kind[start] == 2
        start = stop


def kept(mask, q_offset, size, b, heads, rows, keys):
    """The pairs of one strip that the mask allows, (1|H, rows|1, keys|1)."""
    if not isinstance(mask, Mask):
        return cut(mask, slice(b, b + 1), slice(heads[0], heads[-1] + 1), rows, keys)[0]
    offsets = np.asarray(0 if q_offset is None else q_offset, np.int64).reshape(-1)
    query_positions = offsets[b % len(offsets)] + np.arange(rows.start, rows.stop)
    key_positions = np.arange(keys.start, keys.stop)
    answer = mask(
        np.full((1, 1, 1, 1), b), np.reshape(heads, (1, -1, 1, 1)),
        query_positions[None, None, :, None], key_positions[None, None, None],
    )  # fmt: skip
    return as_boolean(mask, answer)[0]


def cut(array, *slices):
    """array[slices], but whole along axes of length 1, which broadcast."""
    return array[
        tuple(slice(None) if n == 1 else s for s, n in zip(slices, array.shape, strict=True))
    ]
