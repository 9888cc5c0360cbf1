"""Spans and block maps: what a rule says of a tile is never wrong, and exact where it can be."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_table import TABLE

from attn import (
    Causal,
    Dilated,
    KeyPadding,
    Mask,
    PrefixLM,
    SameDocument,
    SlidingWindow,
    block_map,
    dense_mask,
)
from attn.masks.spans import Span, Truth, as_truth


def counted(allowed, edges):
    """The block map by counting: 0 none, 1 some, 2 all pairs of each tile."""
    B, H, L, S = allowed.shape
    tiles = np.zeros((B, H, -(-L // edges[0]), -(-S // edges[1])), np.int8)
    for b, h, i, j in np.ndindex(tiles.shape):
        tile = allowed[b, h, i * edges[0] :, j * edges[1] :][: edges[0], : edges[1]]
        tiles[b, h, i, j] = 2 if tile.all() else 1 if tile.any() else 0
    return tiles


def never_wrong(claimed, true):
    """0 means empty and 2 means full; 1 may be said of either."""
    claimed, true = np.broadcast_arrays(claimed, true)
    return np.array_equal(claimed[claimed != 1], true[claimed != 1])


EDGES = [1, 2, 3, 7, (2, 3), (3, 1)]


# --- Block maps -----------------------------------------------------------------------------------


def test_block_map_by_hand():
    """Seven queries from position 2 on, nine keys, tiles of 3 by 2, window of 2."""
    rule = SlidingWindow(2, 0)  # query q sees q - 2, q - 1, q
    assert block_map(rule, 7, 9, block_size=(3, 2), q_offset=2)[0, 0].tolist() == [
        [1, 1, 1, 0, 0],  # queries 2 3 4 see keys 0 … 4
        [0, 1, 1, 1, 0],  # queries 5 6 7 see keys 3 … 7
        [0, 0, 0, 2, 2],  # query 8 sees keys 6 7 8
    ]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_block_map_is_never_wrong(row):
    sizes = dict(q_offset=row.q_offset, batch=row.batch, heads=row.heads)
    for edges in EDGES:
        tiles = block_map(row.mask, row.L, row.S, block_size=edges, **sizes)
        both = edges if isinstance(edges, tuple) else (edges, edges)
        assert tiles.dtype == np.int8
        assert never_wrong(tiles, counted(row.allowed, both)), edges
        array = block_map(row.allowed, row.L, row.S, block_size=both, **sizes)
        assert np.array_equal(array, counted(row.allowed, both)), edges


EXACT = [Causal(), SlidingWindow(2), SlidingWindow(0, 3), SlidingWindow(None, 1)]
EXACT += [SlidingWindow(1, None), SlidingWindow(None, None), Dilated(1), Dilated(2), Dilated(5)]
EXACT += [PrefixLM(0), PrefixLM(3), PrefixLM(20), PrefixLM([0, 4, 9])]
EXACT += [KeyPadding(), KeyPadding(0), KeyPadding(5), KeyPadding(start=3), KeyPadding(7, 2)]
EXACT += [KeyPadding([0, 3, 11]), KeyPadding([4, 5, 11], [0, 3, 10])]
EXACT += [~rule for rule in EXACT]


@pytest.mark.parametrize("rule", EXACT, ids=repr)
def test_block_map_is_exact_for_the_rules_of_positions(rule):
    for offset in (0, 5, -4, np.array([0, -3, 8])):
        for edges in [(1, 1), (2, 3), (3, 2), (7, 7), (5, 1)]:
            tiles = block_map(rule, 7, 11, block_size=edges, q_offset=offset, batch=3)
            true = counted(dense_mask(rule, 7, 11, q_offset=offset, batch=3), edges)
            assert np.array_equal(*np.broadcast_arrays(tiles, true)), (offset, edges)


def test_block_map_is_exact_for_documents_in_a_row():
    ids = np.repeat([0, 1, 2, 3], [2, 5, 1, 3])
    for edges in [(2, 2), (3, 4)]:
        tiles = block_map(SameDocument(ids), 11, 11, block_size=edges)
        assert np.array_equal(tiles, counted(dense_mask(SameDocument(ids), 11, 11), edges))


def test_block_map_finds_the_empty_tiles_without_the_pairs():
    """A map of a million by a million positions: the pairs would take a terabyte."""
    n, edge = 10**6, 10**4
    tiles = block_map(Causal() & SlidingWindow(edge), n, n, block_size=edge)[0, 0]
    assert np.count_nonzero(tiles) <= 3 * n // edge
    assert np.count_nonzero(np.triu(tiles, 1)) == 0


def rules(length):
    count = st.integers(0, length)
    ids = st.lists(st.integers(0, 3), min_size=length + 12, max_size=length + 12)
    leaf = st.one_of(
        st.just(Causal()),
        st.builds(SlidingWindow, st.none() | st.integers(0, 4), st.none() | st.integers(0, 4)),
        st.builds(Dilated, st.integers(1, 4)),
        st.builds(PrefixLM, count),
        st.builds(KeyPadding, count, count),
        st.builds(KeyPadding, st.lists(count, min_size=2, max_size=2)),
        st.builds(SameDocument, ids, ids),
        st.builds(SameDocument, st.lists(ids, min_size=2, max_size=2)),
    )

    def combined(rule):
        pair = st.tuples(rule, rule)
        return pair.map(lambda p: p[0] & p[1]) | pair.map(lambda p: p[0] | p[1]) | rule.map(invert)

    return st.recursive(leaf, combined, max_leaves=6)


def invert(rule):
    return ~rule


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    rule=rules(11), L=st.integers(0, 7), edges=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    offset=st.integers(0, 9) | st.lists(st.integers(0, 9), min_size=2, max_size=2),
)  # fmt: skip
def test_block_map_is_never_wrong_for_any_algebra(rule, L, edges, offset):
    tiles = block_map(rule, L, 11, block_size=edges, q_offset=offset, batch=2)
    assert never_wrong(tiles, counted(dense_mask(rule, L, 11, q_offset=offset, batch=2), edges))


# --- Rules of the user's own ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Own(Mask):
    """A rule that is one expression."""

    rule: object

    def __call__(self, b, h, q, k):
        return self.rule(b, h, q, k)


TABLE_OF_PAIRS = np.tri(40, dtype=bool)
CONSERVATIVE = {
    "absolute value": lambda b, h, q, k: abs(q - k) <= 2,
    "remainder": lambda b, h, q, k: (q + k) % 3 == 0,
    "method": lambda b, h, q, k: (q - k).clip(0) <= 2,
    "np.abs": lambda b, h, q, k: np.abs(q - k) <= 2,
    "np.where": lambda b, h, q, k: np.where(k <= q, q - k <= 3, False),
    "np.logical_and": lambda b, h, q, k: np.logical_and(k <= q, q - k <= 3),
    "np.isin": lambda b, h, q, k: np.isin(k, [0, 5]) | (q == k),
    "look-up": lambda b, h, q, k: TABLE_OF_PAIRS[q, k],
    "product": lambda b, h, q, k: q * k < 20,
}
KNOWN = {
    "blocks": lambda b, h, q, k: q // 3 == k // 3,
    "turned blocks": lambda b, h, q, k: q // -3 <= k // -3,
    "shifted": lambda b, h, q, k: (k + 1 <= q) | (2 >= k),  # noqa: SIM300
    "either but not both": lambda b, h, q, k: (k <= q) ^ (k < 3),
    "alike": lambda b, h, q, k: (k <= q) == (k < 3),
    "different": lambda b, h, q, k: (k <= q) != (k < 3),
    "unequal": lambda b, h, q, k: q != k,
    "from the left": lambda b, h, q, k: (5 - k >= 0) & (1 + q > k),
    "heads": lambda b, h, q, k: (h == 1) & (k <= q),
    "only heads": lambda b, h, q, k: h == 1,
    "rows": lambda b, h, q, k: (b == 0) | (k < 4),
}


@pytest.mark.parametrize(
    "rule", [*CONSERVATIVE.values(), *KNOWN.values()], ids=[*CONSERVATIVE, *KNOWN]
)
def test_block_map_is_never_wrong_for_own_rules(rule):
    for edges in [(1, 1), (2, 3), (3, 2)]:
        for offset in (0, 4):
            sizes = dict(q_offset=offset, batch=2, heads=3)
            tiles = block_map(Own(rule), 7, 11, block_size=edges, **sizes)
            true = counted(dense_mask(Own(rule), 7, 11, **sizes), edges)
            assert never_wrong(tiles, true)


@pytest.mark.parametrize("rule", KNOWN.values(), ids=KNOWN)
def test_block_map_sees_through_rules_of_known_operations(rule):
    tiles = block_map(Own(rule), 7, 11, block_size=1, q_offset=4, batch=2, heads=3)
    allowed = dense_mask(Own(rule), 7, 11, q_offset=4, batch=2, heads=3)
    assert np.array_equal(tiles, 2 * allowed)  # tiles of one pair are full or empty


def test_a_rule_that_spans_cannot_answer_may_hide_pairs_anywhere():
    assert (block_map(Own(CONSERVATIVE["look-up"]), 7, 7, block_size=2) == 1).all()


# --- Spans themselves -----------------------------------------------------------------------------

bounds = st.tuples(st.integers(-6, 6), st.integers(0, 5)).map(lambda t: (t[0], t[0] + t[1]))
COMPARISONS = ["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"]


def values(span):
    return np.arange(span.low, span.high + 1)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(left=bounds, right=bounds | st.integers(-6, 6), shift=st.integers(-4, 4))
def test_comparisons_of_spans_by_listing_the_pairs(left, right, shift):
    left = Span(*map(np.asarray, left)) + shift
    listed = (
        values(Span(*map(np.asarray, right))) if isinstance(right, tuple) else np.array([right])
    )
    right = Span(*map(np.asarray, right)) if isinstance(right, tuple) else right
    for comparison in COMPARISONS:
        truth = getattr(left, comparison)(right)
        pairs = getattr(values(left)[:, None], comparison)(listed)
        assert (truth.any, truth.all) == (pairs.any(), pairs.all())


@settings(deadline=None, derandomize=True, max_examples=100)
@given(left=bounds, right=bounds, step=st.integers(1, 4), sign=st.sampled_from([1, -1]))
def test_arithmetic_of_spans_by_listing_the_pairs(left, right, step, sign):
    left, right = (Span(*map(np.asarray, pair)) for pair in (left, right))
    for got, listed in [
        (left + right, values(left)[:, None] + values(right)),
        (left - right, values(left)[:, None] - values(right)),
        (3 - left, 3 - values(left)),
        (left // (sign * step), values(left) // (sign * step)),
    ]:
        assert (got.low, got.high) == (listed.min(), listed.max())
    multiple = left.contains_multiple(step)
    divides = values(left) % step == 0
    assert (multiple.any, multiple.all) == (divides.any(), divides.all())


def test_truths_combine():
    empty, some, full = (Truth(np.array(a), np.array(b)) for a, b in [(0, 0), (1, 0), (1, 1)])

    def pair(truth):
        return bool(truth.any), bool(truth.all)

    for truth, opposite in ((empty, full), (some, some), (full, empty)):
        flipped = Truth(truth.any.astype(bool), truth.all.astype(bool))
        assert pair(~flipped) == pair(opposite)
        assert pair(flipped & as_truth(True)) == pair(truth)
        assert pair(flipped & as_truth(False)) == pair(empty)
        assert pair(np.array(True) | flipped) == pair(full)


@pytest.mark.parametrize("use", [bool, np.asarray, lambda x: np.where(x, 1, 0), lambda x: x and x])
def test_spans_and_truths_are_no_numbers(use):
    span = Span(np.array(1), np.array(3))
    for x in (span, span < 2):
        with pytest.raises(TypeError, match="stands for many pairs"):
            use(x)


def test_what_is_not_boolean_is_no_answer():
    with pytest.raises(TypeError, match="boolean"):
        as_truth(np.array([1, 0]))


def test_16_block_map_refuses_a_wrong_block_size():
    for block_size in (0, -1, 2.0, True, (2, 0), (1, 2, 3), (2,), None, 10**30, (1, 2**63)):
        error = TypeError if block_size in (2.0, None) or block_size is True else ValueError
        with pytest.raises(error, match="block_size"):
            block_map(Causal(), 5, 5, block_size=block_size)


def test_a_block_beyond_all_positions_is_one_tile():
    for edge in (5, 10**6, 2**62, 2**63 - 1):
        for offset, kind in ((0, 1), (4, 2), (-9, 0), (2**62, 2)):
            assert block_map(Causal(), 5, 5, block_size=edge, q_offset=offset).tolist() == [
                [[[kind]]]
            ]
