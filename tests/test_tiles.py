"""Tiles: what is skipped, what is joined, which pairs of a strip take part."""

import itertools

import numpy as np
import pytest
from mask_table import TABLE

from attn import Causal, SlidingWindow, arguments
from attn.blockwise import tiles
from attn.masks.layout import lay


def schedule(mask, q_offset, L, S, edge, longest, B=1, H=1):
    size = arguments.Sizes((B,), B, H, H, L, S, 0, 0)
    return tiles.schedule(lay(mask, size, q_offset), size, edge, longest)


def stretches(kinds, edge, longest, S):
    strips = tiles.joined(np.array(kinds), edge, longest, S)
    return [(keys.start, keys.stop, bool(full)) for keys, full in strips]


def test_neighbours_of_a_kind_are_joined_up_to_the_longest():
    got = stretches([2, 2, 2, 1, 1, 0, 2], edge=4, longest=8, S=26)
    assert got == [(0, 8, True), (8, 12, True), (12, 20, False), (24, 26, True)]
    assert stretches([0, 0], 4, 8, 8) == []
    assert stretches([], 4, 8, 0) == []
    assert stretches([2, 2], 4, 4, 7) == [(0, 4, True), (4, 7, True)]


def test_causal_schedule_by_hand():
    plan = list(schedule(Causal(), None, 6, 6, edge=2, longest=4))
    got = [(rows.start, [(s.keys.start, s.keys.stop, s.keep is None) for s in strips])
           for _, _, rows, strips in plan]  # fmt: skip
    assert got == [
        (4, [(0, 4, True), (4, 6, False)]),
        (2, [(0, 2, True), (2, 4, False)]),
        (0, [(0, 2, False)]),
    ]
    assert plan[0][3][1].keep.tolist() == [[True, False], [True, True]]


def test_a_narrow_window_reads_few_keys():
    """A window of 256 in 8192 positions sees 2 of 32 tiles in a row, so 3 % of the pairs."""
    plan = schedule(SlidingWindow(255), None, 8192, 8192, *tiles.edges(None))
    read = sum(s.keys.stop - s.keys.start for *_, strips in plan for s in strips)
    assert read == 63 * tiles.QUERY_EDGE


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_schedule_holds_every_pair_once(row):
    for mask, edge in itertools.product((row.mask, row.allowed), (1, 2, 3, 50)):
        got = np.zeros((row.batch, row.heads, row.L, row.S), int)
        sizes = row.L, row.S, edge, 2 * edge, row.batch, row.heads
        for b, h, rows, strips in schedule(mask, row.q_offset, *sizes):
            for strip in strips:
                got[b, h, rows, strip.keys] += 1 if strip.keep is None else strip.keep
        assert (got == row.allowed).all(), (edge, type(mask))


def test_without_heads_or_queries_there_is_nothing_to_read():
    for sizes in (dict(H=0), dict(B=0), dict(L=0)):
        options = {"L": 3, "S": 5, "edge": 2, "longest": 4, **sizes}
        assert list(schedule(Causal(), 0, **options)) == []
        assert list(schedule(None, 0, **options)) == []
