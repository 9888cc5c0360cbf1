"""Masks: each rule against its picture, their algebra, and what a rule refuses."""

import copy
import dataclasses
import functools
import itertools
import operator
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_table import TABLE, Near

import attn
from attn import (
    And,
    Causal,
    Dilated,
    KeyPadding,
    Mask,
    Not,
    Or,
    PrefixLM,
    SameDocument,
    SlidingWindow,
    block_map,
    dense_mask,
)
from attn.masks.layout import EMPTY, FULL, SOME


def laid(mask, row, **options):
    """dense_mask over the sizes of a row of the table."""
    return dense_mask(
        mask, row.L, row.S, q_offset=row.q_offset, batch=row.batch, heads=row.heads, **options
    )


# --- Literals: the pictures of the table ----------------------------------------------------------


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_01_true_means_may_attend_as_drawn(backend, row):
    """Semantic 1, and 4 to 5: where the queries sit, what each rule allows."""
    allowed = backend.attn.dense_mask(
        row.mask, row.L, row.S, q_offset=row.q_offset, batch=row.batch, heads=row.heads
    )
    assert backend.dtype(allowed) == "bool"
    assert np.array_equal(backend.to_numpy(allowed), row.allowed)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_rule_answers_single_pairs_like_the_picture(row):
    """A rule is a function of four numbers; no shape is hidden in it."""
    offsets = np.reshape(0 if row.q_offset is None else row.q_offset, -1)
    for b, h, i, j in np.ndindex(row.allowed.shape):
        pair = (np.array(x) for x in (b, h, i + offsets[b % len(offsets)], j))
        assert row.mask(*pair) == row.allowed[b, h, i, j]


def test_every_rule_has_a_row():
    rules = {name for name, x in vars(attn).items() if isinstance(x, type) and issubclass(x, Mask)}
    drawn = {type(part).__name__ for row in TABLE for part in parts(row.mask)}
    assert rules - {"Mask"} <= drawn


def parts(mask):
    yield mask
    for part in getattr(mask, "parts", ()):
        yield from parts(part)


def test_05_a_window_of_w_tokens_counts_the_querys_own():
    """Semantic 5: W tokens including self is SlidingWindow(W - 1), whatever Causal says."""
    allowed = dense_mask(SlidingWindow(3 - 1), 7, 7)[0, 0]
    assert allowed.sum(axis=-1).tolist() == [1, 2, 3, 3, 3, 3, 3]
    assert allowed.diagonal().all()
    both = dense_mask(SlidingWindow(2, 1), 7, 7)[0, 0]
    assert both.sum(axis=-1).tolist() == [2, 3, 4, 4, 4, 4, 3]


# --- The alignment of queries with keys -----------------------------------------------------------

COMPARING = [Causal(), SlidingWindow(1), PrefixLM(2), Dilated(2), ~Causal()]
COMPARING += [KeyPadding(3) & Causal(), KeyPadding(3) | ~(KeyPadding(2) & Dilated(2))]


@pytest.mark.parametrize("mask", COMPARING, ids=repr)
def test_04_alignment_must_be_said(backend, mask):
    """Semantic 4: both lengths and both spellings are in the message."""
    with pytest.raises(ValueError, match="compares positions") as error:
        backend.attn.dense_mask(mask, 3, 7)
    for words in ("L = 3", "S = 7", "0 (upper-left)", "S - L = 4", "lower-right", "q_offset"):
        assert words in str(error.value)
    assert dense_mask(mask, 5, 5).any()  # equal lengths say it themselves


@pytest.mark.parametrize("mask", [KeyPadding(3), ~KeyPadding(3), SameDocument([1] * 7)], ids=repr)
def test_04_rules_that_compare_no_positions_need_no_alignment(backend, mask):
    """Semantic 4: L != S without q_offset means 0."""
    left, right = (
        backend.to_numpy(backend.attn.dense_mask(mask, 3, 7, **options))
        for options in ({}, {"q_offset": 0})
    )
    assert np.array_equal(left, right)


def test_04_positions_move_with_the_offset():
    for mask in (Causal(), SlidingWindow(2, 1), PrefixLM(2), Dilated(3)):
        whole = dense_mask(mask, 11, 11)[0, 0]
        for start in (0, 3, 7):
            assert np.array_equal(dense_mask(mask, 4, 11, q_offset=start)[0, 0], whole[start:][:4])


@pytest.mark.parametrize("offset", [2, np.int8(2), np.uint64(2), np.array(2)], ids=repr)
def test_offsets_may_be_any_kind_of_whole_number(backend, offset):
    rule = Causal() & SameDocument(np.zeros(7, int))
    got = backend.attn.dense_mask(rule, 3, 5, q_offset=offset)
    assert np.array_equal(backend.to_numpy(got), dense_mask(Causal(), 3, 5, q_offset=2))


@pytest.mark.parametrize("make", [list, tuple, np.array, lambda n: np.array(n, np.uint32)[::1]])
def test_offsets_per_row_may_be_any_list(backend, make):
    got = backend.attn.dense_mask(Causal(), 3, 5, q_offset=make([0, 2]), batch=2)
    expected = [dense_mask(Causal(), 3, 5, q_offset=n)[0] for n in (0, 2)]
    assert np.array_equal(backend.to_numpy(got), expected)


def test_offsets_may_be_reversed_views(backend):
    offsets = np.array([2, 0])[::-1]
    offsets.flags.writeable = False
    rule = Causal() & KeyPadding(np.array([3, 5])[::-1])
    got = backend.attn.dense_mask(rule, 3, 5, q_offset=offsets, batch=2)
    expected = dense_mask(Causal() & KeyPadding([5, 3]), 3, 5, q_offset=[0, 2], batch=2)
    assert np.array_equal(backend.to_numpy(got), expected)


# --- Algebra --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_the_algebra_is_that_of_sets(row):
    """De Morgan, double negation, and a rule with its opposite, for every row of the table."""
    other = KeyPadding(2)
    a, b = laid(row.mask, row), laid(other, row)
    for rule, expected in {
        row.mask & other: a & b,
        row.mask | other: a | b,
        ~row.mask: ~a,
        ~(row.mask & other): ~a | ~b,
        ~(row.mask | other): ~a & ~b,
        ~~row.mask: a,
        row.mask & ~row.mask: np.zeros_like(a),
        row.mask | ~row.mask: np.ones_like(a),
    }.items():
        got = laid(rule, row)
        assert np.array_equal(*np.broadcast_arrays(got, expected))


def test_operators_build_the_named_classes():
    left, right = Causal(), KeyPadding(3)
    assert isinstance(left & right, And)
    assert (left & right).parts == (left, right)
    assert isinstance(left | right, Or)
    assert isinstance(~left, Not)
    assert repr(left & ~right) == "And(left=Causal(), right=Not(rule=KeyPadding(stop=3, start=0)))"


def test_combinations_inherit_what_they_read():
    for make in (lambda a, b: a & b, lambda a, b: a | b, lambda a, b: ~a & ~b):
        assert make(Causal(), KeyPadding(3)).compares_positions
        assert not make(KeyPadding(3), KeyPadding(2)).compares_positions
        assert make(Causal(), KeyPadding(3)).reads_absolute_positions
        assert not make(Causal(), SlidingWindow(2)).reads_absolute_positions


@pytest.mark.parametrize(
    "combine",
    [lambda m, a: m & a, lambda m, a: m | a, lambda m, a: a & m, lambda m, a: a | m],
    ids=["rule & array", "rule | array", "array & rule", "array | rule"],
)
def test_a_rule_and_an_array_do_not_combine(backend, combine):
    for size in (3, 0):  # NumPy asks the rule once for each element unless it is told not to
        array = backend.array(np.ones((3, size), bool))
        with pytest.raises(TypeError, match=r"dense_mask\(rule, L, S, …\) & array"):
            combine(Causal(), array)


@pytest.mark.parametrize("other", [True, None, lambda b, h, q, k: k <= q, 1, Causal])
def test_a_rule_combines_with_rules_only(other):
    for combine in (And, Or):
        with pytest.raises(TypeError, match="combine rules with rules"):
            combine(Causal(), other)
    with pytest.raises(TypeError, match="combine rules with rules"):
        Not(other)


def test_a_rule_is_no_truth_value():
    for use in (
        bool,
        lambda m: m and m,
        lambda m: m or m,
        lambda m: not m,
        lambda m: 1 if m else 0,
    ):
        with pytest.raises(TypeError, match=r"is a rule, not a truth value.*& \| ~"):
            use(Causal())


# --- Rules are frozen values ----------------------------------------------------------------------


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_rules_copy_and_pickle(row):
    for twin in (pickle.loads(pickle.dumps(row.mask)), copy.deepcopy(row.mask)):
        assert type(twin) is type(row.mask)
        assert np.array_equal(laid(twin, row), row.allowed)
    assert row.mask == row.mask  # identity: arrays inside neither compare nor hash
    assert len({row.mask, row.mask, copy.deepcopy(row.mask)}) == 2


def test_rules_are_frozen_and_can_be_replaced():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SlidingWindow(2).left = 3
    assert dataclasses.replace(SlidingWindow(2), right=1).right == 1
    with pytest.raises(ValueError, match="right"):
        dataclasses.replace(SlidingWindow(2), right=-1)


def test_11_rules_keep_no_array_of_the_caller():
    """Semantic 11: what the caller writes later does not reach into a rule, from either library."""
    torch = pytest.importorskip("torch")
    for make in (np.array, torch.tensor):
        stop, ids, length = make([2, 3]), make([0, 0, 1]), make([1, 2])
        rules = KeyPadding(stop), SameDocument(ids), KeyPadding(start=stop), PrefixLM(length)
        before = [dense_mask(rule, 3, 3, batch=2) for rule in rules]
        stop[:], ids[:], length[:] = 0, make([0, 1, 2]), 3
        for rule, expected in zip(rules, before, strict=True):
            assert np.array_equal(dense_mask(rule, 3, 3, batch=2), expected), (rule, make)


def test_counts_are_python_ints_whatever_came():
    window = SlidingWindow(np.int16(2), np.uint8(1))
    assert (type(window.left), type(window.right)) == (int, int)
    assert type(KeyPadding(np.array(3)).stop) is int
    assert type(Dilated(np.int64(2)).step) is int


# --- Both libraries share the rules ---------------------------------------------------------------


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_rules_holding_tensors_serve_both_libraries(row):
    torch = pytest.importorskip("torch")
    from attn.masks.rule import convert_arrays

    rule = convert_arrays(row.mask, torch.as_tensor)
    assert np.array_equal(laid(rule, row), row.allowed)
    sizes = dict(q_offset=row.q_offset, batch=row.batch, heads=row.heads, block_size=2)
    assert np.array_equal(
        block_map(rule, row.L, row.S, **sizes), block_map(row.mask, row.L, row.S, **sizes)
    )


class Listed(Mask):
    """A rule of the user's own with arrays in lists: key k is open to the queries of its group."""

    def __init__(self, *groups):
        self.groups = [groups[0], tuple(groups[1:])]
        self.name, self.limit = "groups", 3

    def __call__(self, b, h, q, k):
        first, others = self.groups
        return (first[k] == q) | (others[0][k] == q)


def test_arrays_in_lists_inside_a_rule_are_found(backend):
    rule = Listed(np.array([0, 1, 2]), np.array([2, 2, 2]))
    got = backend.to_numpy(backend.attn.dense_mask(rule, 3, 3))[0, 0]
    assert got.astype(int).tolist() == [[1, 0, 0], [0, 1, 0], [1, 1, 1]]
    torch = pytest.importorskip("torch")
    from attn.masks.rule import convert_arrays

    as_tensors = convert_arrays(rule, torch.as_tensor)
    assert all(torch.is_tensor(x) for x in (as_tensors.groups[0], *as_tensors.groups[1]))
    assert isinstance(rule.groups[1][0], np.ndarray)  # the rule itself stays as it was
    assert convert_arrays(as_tensors, lambda tensor: tensor) is as_tensors


def test_rules_made_of_tensors_and_odd_integers(backend):
    torch = pytest.importorskip("torch")
    for kind in (np.uint8, np.uint16, np.uint64, np.int8):
        got = backend.attn.dense_mask(KeyPadding(np.array([2, 0], kind)), 3, 5, batch=2)
        assert backend.to_numpy(got).sum(axis=-1).ravel().tolist() == [2, 2, 2, 0, 0, 0]
    got = backend.attn.dense_mask(KeyPadding(torch.tensor(2)), 3, 5)
    assert backend.to_numpy(got).sum() == 6


# --- A rule of the user's own ---------------------------------------------------------------------


class Answer(Mask):
    """Answers whatever it is told to."""

    compares_positions = False

    def __init__(self, answer):
        self.answer = answer

    def __call__(self, b, h, q, k):
        return self.answer(b, h, q, k)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda b, h, q, k: b == 1, np.repeat([False, True], 6)),
        (lambda b, h, q, k: (h == 0)[..., 0], np.ones(6)),
        (lambda b, h, q, k: (k < 1)[0, 0, 0], np.tile([True, False, False], 2)),
    ],
    ids=["batch", "head of rank 3", "keys of rank 1"],
)
def test_own_rules_may_leave_axes_out(backend, answer, expected):
    allowed = backend.attn.dense_mask(Answer(answer), 2, 3, batch=2)
    assert allowed.ndim == 4
    assert backend.to_numpy(allowed).ravel().tolist() == expected.tolist()


def test_own_rules_must_answer_with_booleans(backend):
    for answer in (lambda b, h, q, k: q - k, lambda b, h, q, k: True):
        with pytest.raises(TypeError, match=r"expected a boolean .* as its answer"):
            backend.attn.dense_mask(Answer(answer), 2, 3)
        with pytest.raises(TypeError, match=r"mask .*Answer.* boolean .* as its answer"):
            block_map(Answer(answer), 2, 3, block_size=2)
    with pytest.raises(NotImplementedError, match="__call__"):
        backend.attn.dense_mask(Mask(), 3, 3)
    with pytest.raises(NotImplementedError, match="__call__"):
        block_map(Mask(), 3, 3, block_size=2)


def asked_of(rule, L, S):
    """The functions of NumPy that ask a rule about pairs, each on L queries and S keys."""
    arrays = np.ones((2, L, 3)), np.ones((2, S, 3)), np.ones((2, S, 3))
    yield lambda: dense_mask(rule, L, S, heads=2)
    yield lambda: block_map(rule, L, S, heads=2, block_size=2)
    yield lambda: attn.attention_weights(*arrays[:2], rule)
    yield lambda: attn.scaled_dot_product_attention(*arrays, rule)
    yield lambda: attn.attention_backward(np.ones((2, L, 3)), *arrays, rule)
    yield lambda: attn.blockwise_attention(*arrays, rule, block_size=2)
    yield lambda: attn.additive_weights(
        *arrays[:2], np.ones((3, 1)), np.ones((3, 1)), np.ones(1), rule
    )


def test_a_mistake_in_a_rule_of_ones_own_is_heard_and_names_the_rule():
    """Also where spans decide about whole tiles: they must not swallow it."""
    table = np.ones((4, 4), bool)
    for answer, error, words in (
        (
            lambda b, h, q, k: np.ones((5, 5), bool),
            ValueError,
            r"mask .*Answer.*got shape \(5, 5\)",
        ),
        (lambda b, h, q, k: (k <= q)[None], ValueError, r"mask .*Answer.*broadcasts to the pairs"),
        (lambda b, h, q, k: table[:2, :2], ValueError, r"mask .*Answer.*got shape \(2, 2\)"),
        (lambda b, h, q, k: q.positions <= k, AttributeError, "positions"),
        (lambda b, h, q, k: undefined <= k, NameError, "undefined"),  # noqa: F821
    ):
        for ask in asked_of(Answer(answer), 5, 7):
            with pytest.raises(error, match=words):
                ask()
    for rule in (Answer(lambda b, h, q, k: table[q, k]), ~Answer(lambda b, h, q, k: table[q, k])):
        dense, tiles, *others = asked_of(rule, 5, 7)
        for ask in (dense, *others):
            with pytest.raises(IndexError, match=r"mask .*Answer.* L = 5 queries and S = 7 keys"):
                ask()
        assert (tiles() == SOME).all()  # asked about one pair only, and spans cannot tell


def test_own_rules_compare_positions_unless_they_say_otherwise():
    with pytest.raises(ValueError, match="compares positions"):
        dense_mask(Near(), 2, 3)


# --- dense_mask of arrays, and sizes --------------------------------------------------------------


def test_dense_mask_lays_arrays_out(backend):
    array = np.array([True, False, True])
    allowed = backend.attn.dense_mask(backend.array(array), 2, 3)
    assert backend.to_numpy(allowed).tolist() == [[[[True, False, True]] * 2]]
    assert allowed.shape == (1, 1, 2, 3)


def test_11_dense_mask_returns_memory_of_its_own(backend):
    array = backend.array(np.ones((2, 3), bool))
    allowed = backend.attn.dense_mask(array, 2, 3)
    allowed[:] = False
    assert array.all()
    allowed = backend.attn.dense_mask(KeyPadding(2), 2, 3)
    allowed[..., 0, :] = False  # rows share no memory either
    assert backend.to_numpy(allowed).sum() == 2


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0)])
def test_11_zero_sizes_are_legal(backend, sizes):
    """Semantic 11: no queries, no keys, no batch."""
    L, S = sizes
    for mask in (Causal(), KeyPadding(0), SameDocument([0] * L, [0] * S), Dilated(2)):
        allowed = backend.attn.dense_mask(mask, L, S, q_offset=0, batch=2)
        assert allowed.shape == (1, 1, L, S)
        tiles = block_map(mask, L, S, q_offset=0, batch=2, block_size=2)
        assert tiles.shape == (1, 1, -(-L // 2), -(-S // 2))
    assert backend.attn.dense_mask(KeyPadding([]), 2, 3, batch=0).shape == (0, 1, 2, 3)


def test_block_map_takes_arrays_of_any_rank(backend):
    for array in (np.array(True), np.array([True, False, True]), np.ones((1, 1), bool)):
        tiles = block_map(backend.array(array), 2, 3, block_size=2)
        assert tiles.shape == (1, 1, 1, 2)
        first = FULL if np.broadcast_to(array, (2, 3))[..., :2].all() else SOME
        assert tiles[0, 0].tolist() == [[first, FULL]]
    assert block_map(backend.array(np.array(False)), 2, 3, block_size=2).max() == EMPTY


def test_masked_arrays_and_matrices_are_no_masks():
    """An array that hides entries would hide them in silence."""
    masked = np.ma.array(np.ones((2, 3), bool), mask=[[0, 1, 0], [0, 0, 0]])
    for array in (masked, np.ones((2, 3), bool).view(np.matrix)):
        for use in (dense_mask, lambda *call: block_map(*call, block_size=1)):
            with pytest.raises(TypeError, match="mask: expected a plain array, got numpy"):
                use(array, 2, 3)
    counts = np.ma.array([1, 2], mask=[0, 1])
    for make in (
        KeyPadding, lambda x: KeyPadding(start=x), PrefixLM, SameDocument,
        lambda x: SameDocument([0], x),
    ):  # fmt: skip
        for array in (counts, np.ones((1, 2), int).view(np.matrix)):
            with pytest.raises(TypeError, match=": expected a plain array, got numpy"):
                make(array)


# --- 12: a mask may speak of keys that are yet to come --------------------------------------------


@pytest.mark.parametrize(
    "mask",
    [
        (KeyPadding(2) | SlidingWindow(3)) & Causal(), KeyPadding([5, 2, 9]) & Causal(),
        Causal() & KeyPadding(start=[0, 4, 1]), Causal() & KeyPadding([9, 3, 7], [0, 5, 1]),
    ],
    ids=repr,
)  # fmt: skip
def test_12_any_chunks_equal_one_pass_where_fewer_keys_are_held_than_the_mask_names(backend, mask):
    """Semantic 12: the first step of decoding with two attention sinks holds one key."""
    whole = dense_mask(mask, 9, 9, batch=3)
    for cuts in ((0, 1, 2, 3, 4, 9), (0, 4, 9), (0, 1, 9), (0, 9)):
        for start, stop in itertools.pairwise(cuts):
            part = backend.attn.dense_mask(mask, stop - start, stop, q_offset=start, batch=3)
            part = np.broadcast_to(backend.to_numpy(part), (3, 1, stop - start, stop))
            whole_part = np.broadcast_to(whole, (3, 1, 9, 9))[:, :, start:stop, :stop]
            assert np.array_equal(part, whole_part), (start, stop)


def test_16_a_stop_beyond_the_keys_is_an_error_where_no_more_will_come(backend):
    """Without q_offset, and where keys stand after the last query, S is all there is."""
    for options in ({}, {"q_offset": 0}, {"q_offset": 3}, {"q_offset": [0, 3], "batch": 2}):
        for mask in (KeyPadding(8), KeyPadding(start=8), KeyPadding(8) & Causal(), ~KeyPadding(8)):
            if options or not mask.compares_positions:
                with pytest.raises(ValueError, match="<= S = 7 "):
                    backend.attn.dense_mask(mask, 3, 7, **options)
    with pytest.raises(ValueError, match="0 <= stop <= S = 7"):
        backend.attn.dense_mask(KeyPadding(8), 7, 7)
    for offset in (4, np.int64(4), np.array(4)):
        allowed = backend.to_numpy(backend.attn.dense_mask(KeyPadding(8), 3, 7, q_offset=offset))
        assert allowed.all()
    for mask in (KeyPadding(-1), KeyPadding(start=-1)):
        with pytest.raises(ValueError, match="expected 0 <= "):
            backend.attn.dense_mask(mask, 3, 7, q_offset=4)


# --- Many rules, far positions --------------------------------------------------------------------


def test_a_thousand_rules_join_in_a_loop(backend):
    """Rules that nest a thousand deep are answered as one chain."""
    for join, every in ((operator.or_, np.logical_or), (operator.and_, np.logical_and)):
        rules = [~KeyPadding(3), *(KeyPadding(n % 7, n % 3) for n in range(1000)), Causal()]
        chain = functools.reduce(join, rules)
        expected = every.reduce([dense_mask(rule, 7, 7) for rule in rules])
        got = backend.to_numpy(backend.attn.dense_mask(chain, 7, 7))
        assert np.array_equal(*np.broadcast_arrays(got, expected))
        assert block_map(chain, 7, 7, block_size=3).shape == (1, 1, 3, 3)
        assert (~chain).compares_positions
        assert repr(chain).startswith(type(chain).__name__ + "(left=")
        assert chain.parts == tuple(rules)
        with pytest.raises(ValueError, match="<= S = 5"):
            dense_mask(chain, 5, 5)
    right = functools.reduce(lambda all_so_far, rule: rule & all_so_far, [KeyPadding(3)] * 1000)
    assert dense_mask(right, 7, 7).sum() == 21


def test_a_chain_keeps_apart_what_is_not_alike():
    rule = (Causal() | KeyPadding(1)) & (Dilated(2) & ~KeyPadding(1)) | SlidingWindow(0)
    assert [type(part).__name__ for part in rule.parts] == ["And", "SlidingWindow"]
    assert [type(part).__name__ for part in rule.left.parts] == ["Or", "Dilated", "Not"]
    by_hand = (dense_mask(Causal(), 5, 5) | dense_mask(KeyPadding(1), 5, 5)) & (
        dense_mask(Dilated(2), 5, 5) & ~dense_mask(KeyPadding(1), 5, 5)
    ) | dense_mask(SlidingWindow(0), 5, 5)
    assert np.array_equal(dense_mask(rule, 5, 5), by_hand)


def test_05_an_open_window_has_no_end(backend):
    """Semantic 5: None is unbounded, however far the query is from the key."""
    for far in (2**31 - 2, 2**31, 2**40):
        for mask, offset, seen in (
            (SlidingWindow(None), far, 1), (SlidingWindow(None, None), far, 1),
            (SlidingWindow(0, None), -far, 1), (SlidingWindow(None, None), -far, 1),
            (SlidingWindow(None), -far, 0), (SlidingWindow(0, None), far, 0),
        ):  # fmt: skip
            allowed = backend.attn.dense_mask(mask, 2, 3, q_offset=offset)
            assert (backend.to_numpy(allowed) == seen).all(), (mask, offset)
            tiles = block_map(mask, 2, 3, q_offset=offset, block_size=2)
            assert (tiles == (FULL if seen else EMPTY)).all(), (mask, offset)


REFUSED = {
    "no ids": (lambda: SameDocument(None), TypeError, "SameDocument: query_ids: .*integers"),
    "ragged ids": (lambda: SameDocument([[0, 1], [2]]), ValueError, "query_ids: .*one length"),
    "ragged stops": (lambda: KeyPadding([[0, 1], [2]]), ValueError, "KeyPadding: stop: .*length"),
    "a huge step": (lambda: Dilated(10**30), ValueError, "Dilated: step: .*64 bits .* 100 bits"),
    "a huge window": (lambda: SlidingWindow(10**30), ValueError, "left: .*64 bits"),
    "a huge stop": (lambda: KeyPadding(2**63), ValueError, "KeyPadding: stop: .*64 bits"),
    "huge stops": (lambda: KeyPadding([10**30]), TypeError, "KeyPadding: stop: .*integers"),
    "a huge prefix": (lambda: PrefixLM(np.uint64(2**63)), ValueError, "PrefixLM: length: .*64"),
    "negative window": (lambda: SlidingWindow(-1), ValueError, "SlidingWindow: left: .*-1"),
    "negative right": (lambda: SlidingWindow(1, -2), ValueError, "SlidingWindow: right: .*-2"),
    "window of a float": (lambda: SlidingWindow(2.0), TypeError, "SlidingWindow: left: .*2.0"),
    "window of True": (lambda: SlidingWindow(True), TypeError, "SlidingWindow: left: .*True"),
    "step of zero": (lambda: Dilated(0), ValueError, "Dilated: step: .*at least 1, got 0"),
    "stop of a float": (lambda: KeyPadding(2.5), TypeError, "KeyPadding: stop: .*2.5"),
    "stops of floats": (lambda: KeyPadding([1.0]), TypeError, "KeyPadding: stop: .*float64"),
    "no start": (lambda: KeyPadding(2, None), TypeError, "KeyPadding: start: .*None"),
    "prefix of True": (lambda: PrefixLM(True), TypeError, "PrefixLM: length: .*True"),
    "ids of floats": (lambda: SameDocument([0.5]), TypeError, "SameDocument: query_ids: .*float64"),
    "ids without an axis": (
        lambda: SameDocument(3),
        ValueError,
        "query_ids: .*shape .*length.*got",
    ),
    "ids of rank 3": (lambda: SameDocument([0], [[[0]]]), ValueError, r"key_ids: .*\(1, 1, 1\)"),
}


@pytest.mark.parametrize(("make", "error", "words"), REFUSED.values(), ids=REFUSED)
def test_16_rules_refuse_wrong_fields(make, error, words):
    with pytest.raises(error, match=words):
        make()


WRONG_SIZES = {
    "stop beyond the keys": (KeyPadding(8), {}, "0 <= stop <= S = 7 .*got 8"),
    "a negative stop": (KeyPadding([3, -1]), {"batch": 2}, "0 <= stop <= S = 7"),
    "start beyond the keys": (KeyPadding(start=9), {}, "0 <= start <= S = 7 .*got 9"),
    "stops for another batch": (
        KeyPadding([1, 2]),
        {"batch": 3},
        r"stop: .*\(3,\), got shape \(2,\)",
    ),
    "stops of one row": (KeyPadding([1]), {"batch": 3}, r"stop: .*\(3,\), got shape \(1,\)"),
    "a negative prefix": (PrefixLM(-1), {"q_offset": 0}, "PrefixLM: length: .*-1"),
    "negative prefixes": (PrefixLM([2, -1]), {"q_offset": 0, "batch": 2}, "PrefixLM: length"),
    "prefixes for another batch": (PrefixLM([1]), {"q_offset": 0, "batch": 2}, r"length: .*\(2,\)"),
    "too few ids": (SameDocument([0] * 5), {}, "query_ids: .*positions 0 to 6, got ids for 0 to 4"),
    "too few key ids": (SameDocument([0] * 9, [0] * 6), {}, "key_ids: .*0 to 6, .*0 to 5"),
    "ids before the first": (SameDocument([0] * 9), {"q_offset": -1}, "query_ids: .*-1 to 1"),
    "ids after the last": (SameDocument([0] * 9), {"q_offset": [0, 7], "batch": 2}, "0 to 9"),
    "ids for another batch": (SameDocument([[0] * 9] * 2), {"batch": 3}, "B = 3 rows, got 2"),
    "deep inside": (~(KeyPadding(1) | ~KeyPadding(8)), {}, "0 <= stop <= S = 7"),
}


@pytest.mark.parametrize(("mask", "options", "words"), WRONG_SIZES.values(), ids=WRONG_SIZES)
def test_16_rules_refuse_sizes_that_do_not_fit(backend, mask, options, words):
    with pytest.raises(ValueError, match=words):
        backend.attn.dense_mask(mask, 3, 7, **options)
    with pytest.raises(ValueError, match=words):
        block_map(mask, 3, 7, block_size=2, **options)


WRONG_CALLS = {
    "no mask": (None, {}, TypeError, "mask: .*None"),
    "a function": (lambda b, h, q, k: k <= q, {}, TypeError, "plain function"),
    "the class": (Causal, {}, TypeError, "class Causal .*parentheses"),
    "a list": ([[True]], {}, TypeError, "mask: .*True"),
    "a float length": (Causal(), {"q_len": 3.0}, TypeError, "q_len: .*3.0"),
    "a negative length": (Causal(), {"k_len": -1}, ValueError, "k_len: .*-1"),
    "a negative batch": (Causal(), {"batch": -1}, ValueError, "batch: .*-1"),
    "a float offset": (Causal(), {"q_offset": 1.0}, TypeError, "q_offset: .*1.0"),
    "offsets of rank 2": (Causal(), {"q_offset": np.zeros((1, 1), int)}, ValueError, "q_offset"),
}


@pytest.mark.parametrize(
    ("mask", "options", "error", "words"), WRONG_CALLS.values(), ids=WRONG_CALLS
)
def test_16_dense_mask_refuses(backend, mask, options, error, words):
    sizes = {"q_len": 5, "k_len": 5, **options}
    with pytest.raises(error, match=words):
        backend.attn.dense_mask(mask, **sizes)
    with pytest.raises(error, match=words):
        block_map(mask, **sizes, block_size=2)


def test_16_dense_mask_refuses_arrays_that_do_not_fit(backend):
    cases = {
        (4, 3): r"\(1, 1, 5, 3\), got \(4, 3\)",
        (2, 1, 5, 3): r"\(1, 1, 5, 3\), got \(2, 1, 5, 3\)",
        (1, 1, 1, 5, 3): r"got \(1, 1, 1, 5, 3\)",
    }
    for shape, words in cases.items():
        with pytest.raises(ValueError, match=words):
            backend.attn.dense_mask(backend.array(np.ones(shape, bool)), 5, 3)
    with pytest.raises(TypeError, match=r"mask != 0.*bias="):
        backend.attn.dense_mask(backend.array(np.ones((5, 3))), 5, 3)


# --- One law over random sizes --------------------------------------------------------------------


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    L=st.integers(0, 7), S=st.integers(0, 7), offset=st.integers(-5, 9),
    left=st.none() | st.integers(0, 5), right=st.none() | st.integers(0, 5),
)  # fmt: skip
def test_window_by_its_definition(L, S, offset, left, right):
    allowed = dense_mask(SlidingWindow(left, right), L, S, q_offset=offset)[0, 0]
    for i in range(L):
        for j in range(S):
            before = i + offset - j
            inside = (left is None or before <= left) and (right is None or -before <= right)
            assert allowed[i, j] == inside
