"""Attention in both libraries: by hand, against plain loops, and by its laws."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_table import TABLE
from reference import attend, normal

from attn import Causal, Dilated, KeyPadding, PrefixLM, SameDocument, SlidingWindow, dense_mask

INF = np.inf
numpy_only = pytest.mark.parametrize("backend", ["numpy"], indirect=True)


def operands(L=5, S=7, B=3, H=6, Hkv=3, D=2, Dv=4):
    """query, key, value with four axes and unequal sizes, float64."""
    return normal(1, B, H, L, D), normal(2, B, Hkv, S, D), normal(3, B, Hkv, S, Dv)


class Calls:
    """The functions of one library, fed with and answering in NumPy arrays."""

    def __init__(self, backend, dtype=None):
        self.backend, self.dtype = backend, dtype

    def _call(self, name, *arrays, mask=None, **options):
        backend = self.backend
        arrays = [backend.array(x, self.dtype) for x in arrays]
        for option in ("bias", "sink"):
            if options.get(option) is not None:
                options[option] = backend.array(options[option])
        mask = backend.array(mask) if isinstance(mask, np.ndarray) else mask
        return backend.to_numpy(getattr(backend.attn, name)(*arrays, mask, **options))

    def weights(self, query, key, mask=None, **options):
        return self._call("attention_weights", query, key, mask=mask, **options)

    def output(self, query, key, value, mask=None, **options):
        return self._call("scaled_dot_product_attention", query, key, value, mask=mask, **options)


@pytest.fixture(scope="session")
def calls(backend):
    return Calls(backend)


def close(got, expected, tolerance=1e-12, name=None):
    assert got.shape == np.shape(expected), name
    assert np.abs(got - expected).max(initial=0) <= tolerance, name


# --- Softmax --------------------------------------------------------------------------------------


def softmax(backend, scores, dtype=None):
    return backend.to_numpy(backend.attn.softmax(backend.array(np.array(scores), dtype)))


def test_softmax_by_hand(backend):
    close(softmax(backend, [0.0, math.log(3), -INF]), [0.25, 0.75, 0])
    close(softmax(backend, [[1000.0, 1000.0], [-1000.0, -1000.0]]), [[0.5, 0.5], [0.5, 0.5]])
    close(softmax(backend, [[7.0]]), [[1]])


def test_03_softmax_of_an_empty_row_is_zero(backend):
    """Semantic 3: nothing to attend to has weight 0 everywhere, and no warning."""
    close(softmax(backend, [[-INF, -INF], [-INF, 2.0]]), [[0, 0], [0, 1]])
    assert softmax(backend, np.zeros((3, 0))).shape == (3, 0)


def test_softmax_ignores_a_shift_and_keeps_order(backend):
    scores = normal(4, 3, 5, 7)
    weights = softmax(backend, scores)
    close(weights.sum(axis=-1), np.ones((3, 5)))
    close(softmax(backend, scores + 31), weights)
    assert np.array_equal(weights.argsort(axis=-1), scores.argsort(axis=-1))
    exact = [[[math.exp(s) for s in row] for row in block] for block in scores]
    close(weights, np.array([[np.array(row) / math.fsum(row) for row in block] for block in exact]))


def test_softmax_needs_an_axis(backend):
    with pytest.raises(ValueError, match=r"scores: expected shape \(…, S\), got \(\)"):
        backend.attn.softmax(backend.array(np.array(1.0)))


def test_softmax_refuses_integers(backend):
    with pytest.raises(TypeError, match="scores int64"):
        backend.attn.softmax(backend.array(np.arange(3)))


# --- Literals -------------------------------------------------------------------------------------


def test_weights_and_output_by_hand(calls):
    """Scores ln 2, 0, 0 for query 0 (scale 1): weights 1/2, 1/4, 1/4."""
    query = np.array([[math.log(2), 0.0], [0.0, math.log(3)]])
    key = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    value = np.array([[4.0], [8.0], [12.0]])
    close(calls.weights(query, key, scale=1), [[1 / 2, 1 / 4, 1 / 4], [1 / 5, 3 / 5, 1 / 5]])
    close(calls.output(query, key, value, scale=1), [[7.0], [8.0]])


def test_07_the_default_scale_is_the_root_of_the_head_size(calls):
    """Semantic 7: 1/√D with D = 4, so the scores of the literal above come from twice the query."""
    query, key = np.array([[2 * math.log(2), 0, 0, 0]]), np.eye(4)[:3]
    close(calls.weights(query, key), [[1 / 2, 1 / 4, 1 / 4]])
    close(calls.weights(query, key, scale=1), [[4 / 6, 1 / 6, 1 / 6]])
    close(calls.weights(query, key, scale=0), [[1 / 3, 1 / 3, 1 / 3]])
    close(calls.weights(query, key, scale=-0.5), [[1 / 5, 2 / 5, 2 / 5]])


def test_07_softcap_and_sink_by_hand(calls):
    """Semantic 7: 3·tanh(s/3), and a sink that takes a part without giving a value."""
    query, key = np.array([[1.0]]), np.array([[3 * math.atanh(math.log(2) / 3)], [0.0]])
    close(calls.weights(query, key, softcap=3), [[2 / 3, 1 / 3]])
    sink = np.array([math.log(3)])
    close(calls.weights(query, key, softcap=3, sink=sink), [[2 / 6, 1 / 6]])
    value = np.array([[6.0], [12.0]])
    close(calls.output(query, key, value, softcap=3, sink=sink), [[4.0]])


def test_01_a_bias_is_added_and_minus_infinity_removes(calls):
    """Semantic 1."""
    query, key = np.zeros((1, 2)), np.zeros((3, 2))
    close(
        calls.weights(query, key, bias=np.array([[math.log(2), 0.0, 0.0]])), [[1 / 2, 1 / 4, 1 / 4]]
    )
    close(calls.weights(query, key, bias=np.array([[0.0, -INF, 0.0]])), [[1 / 2, 0, 1 / 2]])


def test_02_the_bias_comes_after_scale_and_softcap(calls):
    """Semantic 2: the bias is neither scaled nor capped; capped scores of 0 leave it alone."""
    query, key, bias = np.zeros((1, 2)), np.zeros((2, 2)), np.array([[math.log(8), 0.0]])
    close(calls.weights(query, key, bias=bias, scale=5, softcap=0.1), [[8 / 9, 1 / 9]])
    # Were the mask a number added before the cap, the cap would bring the key back.
    close(calls.weights(query, key, np.array([[False, True]]), softcap=0.1), [[0, 1]])


def test_06_neighbouring_query_heads_share_a_key_head(calls):
    """Semantic 6: head h reads key head h // G."""
    query, key, value = np.ones((1, 6, 1, 1)), np.ones((1, 2, 1, 1)), np.array([[[[5.0]], [[7.0]]]])
    assert calls.output(query, key, value).ravel().tolist() == [5, 5, 5, 7, 7, 7]


# --- Agreement with plain loops -------------------------------------------------------------------

OPTIONS = {
    "plain": {},
    "scale": {"scale": -0.7},
    "bias": {"bias": "bias"},
    "softcap": {"softcap": 0.9},
    "sink": {"sink": "sink"},
    "everything": {"bias": "bias", "scale": 1.3, "softcap": 1.7, "sink": "sink"},
}


def filled(options, L, S, H, B):
    bias = normal(5, 1, H, L, S)
    bias[..., 1, 1] = -INF
    arrays = {"bias": bias, "sink": normal(6, H)}
    return {k: arrays[v] if isinstance(v, str) else v for k, v in options.items()}


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_02_agrees_with_plain_loops(calls, row):
    """Semantics 2, 6 and 7 over every mask of the table; the rule and its array are one mask."""
    query, key, value = operands(row.L, row.S, B=row.batch, H=2 * row.heads, Hkv=row.heads)
    sizes = dict(q_offset=row.q_offset, batch=row.batch, heads=2 * row.heads)
    allowed = dense_mask(row.mask, row.L, row.S, **sizes)
    for name, options in OPTIONS.items():
        options = filled(options, row.L, row.S, 2 * row.heads, row.batch)
        output, weights = attend(query, key, value, allowed, **options)
        for mask, q_offset in ((row.mask, row.q_offset), (allowed, None)):
            given_options = {"q_offset": q_offset, **options}
            close(calls.weights(query, key, mask, **given_options), weights, name=name)
            close(calls.output(query, key, value, mask, **given_options), output, name=name)


@pytest.mark.parametrize("heads", [(1, 1), (6, 1), (6, 2), (6, 6)], ids=str)
def test_06_grouped_heads_agree_with_plain_loops(calls, heads):
    query, key, value = operands(H=heads[0], Hkv=heads[1])
    mask = normal(7, 3, heads[0], 5, 7) > 0
    output, weights = attend(query, key, value, mask)
    close(calls.weights(query, key, mask), weights)
    close(calls.output(query, key, value, mask), output)


# --- Laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_rows_sum_to_one_or_are_empty(calls, row):
    query, key, _ = operands(row.L, row.S, B=row.batch, H=6, Hkv=3)
    weights = calls.weights(query, key, row.mask, q_offset=row.q_offset)
    sizes = dict(q_offset=row.q_offset, batch=row.batch, heads=6)
    allowed = np.broadcast_to(dense_mask(row.mask, row.L, row.S, **sizes), weights.shape)
    assert (weights[~allowed] == 0).all()
    assert (weights[allowed] > 0).all()
    close(weights.sum(axis=-1), allowed.any(axis=-1))


def test_with_a_sink_rows_sum_to_less(calls):
    query, key, _ = operands()
    sink = normal(6, 6)
    total = calls.weights(query, key, sink=sink).sum(axis=-1)
    assert (total < 1).all()
    assert (total > 0).all()
    close(calls.weights(query, key, sink=np.full(6, -INF)), calls.weights(query, key))


def test_permuting_keys_with_their_values_changes_nothing(calls):
    query, key, value = operands()
    order, mask, bias = (
        np.random.default_rng(0).permutation(7),
        normal(7, 5, 7) > 0,
        normal(8, 5, 7),
    )
    before = calls.output(query, key, value, mask, bias=bias)
    permuted = key[..., order, :], value[..., order, :], mask[:, order]
    close(calls.output(query, *permuted, bias=bias[:, order]), before)


def test_permuting_queries_permutes_the_output(calls):
    query, key, value = operands()
    order = np.random.default_rng(0).permutation(5)
    close(
        calls.output(query[..., order, :], key, value),
        calls.output(query, key, value)[..., order, :],
    )


def test_04_the_future_has_no_effect(calls):
    """Semantic 4: under Causal, row t is the same to the last bit whatever comes after it."""
    query, key, value = operands(7, 7)
    before = calls.output(query, key, value, Causal())
    for t in range(7):
        later = [x.copy() for x in (query, key, value)]
        for x in later:
            x[..., t + 1 :, :] = 1e3
        got = calls.output(*later, Causal())
        assert np.array_equal(got[..., : t + 1, :], before[..., : t + 1, :])


def test_05_a_window_cuts_the_past(calls):
    """Semantic 5: keys further back than the window do not matter."""
    query, key, value = operands(7, 7)
    before = calls.output(query, key, value, SlidingWindow(2))
    key[..., :3, :], value[..., :3, :] = 50, -50
    after = calls.output(query, key, value, SlidingWindow(2))
    assert np.array_equal(after[..., 5:, :], before[..., 5:, :])
    assert not np.allclose(after[..., 4, :], before[..., 4, :])


def test_documents_do_not_see_each_other(calls):
    query, key, value = operands(7, 7)
    rule = Causal() & SameDocument([0, 0, 0, 1, 1, 2, 2])
    before = calls.output(query, key, value, rule)
    for x in (query, key, value):
        x[..., :3, :] += 3
    assert np.array_equal(calls.output(query, key, value, rule)[..., 3:, :], before[..., 3:, :])


def test_each_sequence_is_alone_in_its_batch(calls):
    query, key, value = operands(5, 5)
    rule = Causal() & KeyPadding([5, 2, 3])
    together = calls.output(query, key, value, rule)
    for b, stop in enumerate((5, 2, 3)):
        one = [x[b : b + 1] for x in (query, key, value)]
        close(calls.output(*one, Causal() & KeyPadding(stop)), together[b : b + 1])
        short = [x[b : b + 1, :, :stop] for x in (query, key, value)]  # without the padding
        close(calls.output(*short, Causal()), together[b : b + 1, :, :stop])


def test_04_offsets_per_row_equal_single_calls(calls):
    query, key, value = operands()
    offsets = np.array([2, 0, -3])
    for rule in (Causal(), SlidingWindow(1, 1), PrefixLM([1, 0, 2]), Dilated(2)):
        together = calls.output(query, key, value, rule, q_offset=offsets)
        for b in range(3):
            single = PrefixLM([1, 0, 2][b]) if isinstance(rule, PrefixLM) else rule
            one = [x[b : b + 1] for x in (query, key, value)]
            close(calls.output(*one, single, q_offset=int(offsets[b])), together[b : b + 1])


def test_04_chunks_of_queries_equal_one_call(calls):
    query, key, value = operands(7, 7)
    for rule in (Causal(), SlidingWindow(2, 1), PrefixLM(3), Dilated(2)):
        whole = calls.output(query, key, value, rule)
        for start, stop in ((0, 3), (3, 4), (4, 7)):
            part = calls.output(query[..., start:stop, :], key, value, rule, q_offset=start)
            close(part, whole[..., start:stop, :])


def test_the_output_is_linear_in_the_values(calls):
    query, key, value = operands()
    other = normal(9, *value.shape)
    both = calls.output(query, key, 2 * value + other, Causal(), q_offset=2)
    parts = (calls.output(query, key, v, Causal(), q_offset=2) for v in (value, other))
    close(both, 2 * next(parts) + next(parts))
    ones = calls.output(query, key, np.ones_like(value))
    close(ones, np.ones(ones.shape))


# --- 8: ranks and broadcasting --------------------------------------------------------------------


@pytest.mark.parametrize("batch", [None, (), (3,), (2, 3), (2, 1, 3)], ids=str)
def test_08_every_rank_says_the_same(calls, batch):
    """Semantic 8: axes before H are batch, flattened in order for rules, offsets and stops."""
    rows = math.prod(batch or ())
    query, key, value = operands(B=rows, H=1 if batch is None else 6, Hkv=1 if batch is None else 3)
    stops, offsets = (np.arange(rows) % n + 1 for n in (5, 4))
    rule = KeyPadding(stops) & Causal() | PrefixLM(stops // 3)
    options = dict(q_offset=offsets, bias=normal(5, 5, 7))
    expected = calls.output(query, key, value, rule, **options)
    shaped = [
        x[0, 0] if batch is None else x.reshape(*batch, *x.shape[1:]) for x in (query, key, value)
    ]
    got = calls.output(*shaped, rule, **options)
    assert got.shape == (*shaped[0].shape[:-1], 4)
    close(got.reshape(expected.shape), expected)
    weights = calls.weights(*shaped[:2], rule, **options)
    assert weights.shape == (*shaped[0].shape[:-1], 7)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    batch=st.lists(st.integers(1, 3), max_size=3).map(tuple),
    shape=st.lists(st.booleans(), max_size=6), seed=st.integers(0, 99),
)  # fmt: skip
def test_08_masks_align_right_with_batch_heads_queries_keys(calls, batch, shape, seed):
    """Semantic 8: whatever the rank of query; a whole batch axis may also come flattened."""
    B, full = math.prod(batch), (*batch, 6, 5, 7)
    query, key, value = operands(B=B)
    shape = tuple(n if keep else 1 for n, keep in zip(full[::-1], shape, strict=False))[::-1]
    if len(shape) == 3 and B > 1:
        shape = (1, *shape)
    mask, bias = np.asarray(np.random.default_rng(seed).random(shape) > 0.4), normal(seed, *shape)
    laid_out = [np.broadcast_to(x, full).reshape(B, 6, 5, 7) for x in (mask, bias)]
    expected = calls.output(query, key, value, laid_out[0], bias=laid_out[1])
    shaped = [x.reshape(*batch, *x.shape[1:]) for x in (query, key, value)]
    for given_mask, given_bias in ((mask, bias), laid_out):
        got = calls.output(*shaped, given_mask, bias=given_bias)
        close(got.reshape(expected.shape), expected)


def test_08_rank_3_beside_a_batch_reads_two_ways(backend):
    query, key, value = (backend.array(x) for x in operands())
    for shape in [(3, 5, 7), (6, 5, 7), (1, 5, 7)]:
        for name, array in (("mask", np.ones(shape, bool)), ("bias", np.zeros(shape))):
            with pytest.raises(
                ValueError, match=rf"{name}: .*rank-3.*\(B, H, L, S\) = \(3, 6, 5, 7\)"
            ):
                backend.attn.scaled_dot_product_attention(
                    query, key, value, **{name: backend.array(array)}
                )


def test_08_a_mask_per_head_beside_one_sequence(calls):
    query, key, value = operands(B=1)
    mask = normal(7, 6, 5, 7) > 0
    expected = attend(query, key, value, mask[None])[0]
    close(calls.output(query, key, value, mask), expected)
    close(calls.output(query[0], key[0], value[0], mask), expected[0])
    close(calls.output(query[0], key[0], value[0], mask[None]), expected[0])


# --- 3: empty rows --------------------------------------------------------------------------------

EMPTY = {
    "rule": dict(mask=Causal(), q_offset=-2),
    "array": dict(mask=np.arange(5)[:, None] > np.array([1, 1, 1, 1, 1, 1, 1])),
    "padding": dict(mask=KeyPadding([0, 3, 7])),
    "bias": dict(bias=np.where(np.arange(5)[:, None] < 2, -INF, np.zeros((5, 7)))),
    "everything": dict(mask=KeyPadding(0)),
    "disjoint": dict(mask=KeyPadding(3), bias=np.where(np.arange(7) < 3, -INF, 0.0)),
}


@pytest.mark.parametrize("options", EMPTY.values(), ids=EMPTY)
def test_03_an_empty_row_has_weights_and_output_zero(calls, options):
    """Semantic 3: no NaN, no mean of all values, no warning (warnings are errors)."""
    query, key, value = operands()
    weights = calls.weights(query, key, **options)
    output = calls.output(query, key, value, **options)
    empty = (weights == 0).all(axis=-1)
    assert empty.any()
    assert (output[empty] == 0).all()
    close(weights.sum(axis=-1), 1.0 - empty)
    with_sink = calls.output(query, key, value, sink=np.zeros(6), **options)
    assert (with_sink[empty] == 0).all()
    assert np.isfinite(with_sink).all()


# --- 10: slots that take no part may hold anything ------------------------------------------------

HIDERS = {
    "rule": dict(mask=KeyPadding([5, 3, 4]) & Causal(), q_offset=2),
    "array": dict(mask=np.arange(7) < np.array([5, 3, 4])[:, None, None, None]),
    "bias": dict(bias=np.where(np.arange(7) < np.array([5, 3, 4])[:, None, None, None], 0.5, -INF)),
    "both": dict(mask=KeyPadding(6), bias=np.where(np.arange(7) < 3, 0.0, -INF)),
    "heads": dict(
        mask=np.arange(7) < np.repeat([5, 2, 3], 2)[:, None, None] + np.zeros((3, 1, 1, 1))
    ),
}


def unseen_slots(options):
    """The slots (B, Hkv, S) of the operands above that none of a group's two query heads sees."""
    options = {"mask": True, "bias": 0.0, "q_offset": None, **options}
    mask = options["mask"]
    if not isinstance(mask, (bool, np.ndarray)):
        mask = dense_mask(mask, 5, 7, batch=3, q_offset=options["q_offset"])
    keep = np.broadcast_to(mask & (options["bias"] > -INF), (3, 6, 5, 7))
    return ~keep.reshape(3, 3, 2, 5, 7).any(axis=(2, 3))


JUNK = (np.nan, INF, -INF, 1e300)


@pytest.mark.parametrize("options", HIDERS.values(), ids=HIDERS)
def test_10_unseen_slots_may_hold_anything(calls, options):
    """Semantic 10: not even NaN in a key or a value that no query may see is noticed."""
    unseen = unseen_slots(options)
    assert unseen.any()
    options = {"softcap": 2.0, **options}
    query, key, value = operands()
    before = calls.output(query, key, value, **options), calls.weights(query, key, **options)
    for junk, spoilt in itertools.product(JUNK, ("key", "value", "both")):
        query, key, value = operands()
        if spoilt != "value":
            key[unseen] = junk
        if spoilt != "key":
            value[unseen] = junk
        after = calls.output(query, key, value, **options), calls.weights(query, key, **options)
        assert all(map(np.array_equal, after, before)), (spoilt, junk)


def test_10_queries_that_see_nothing_may_hold_anything(calls):
    mask = np.arange(5)[:, None] < np.full(7, 3)
    before = calls.output(*operands(), mask)
    for junk in JUNK:
        query, key, value = operands()
        query[..., 3:, :] = junk
        assert np.array_equal(calls.output(query, key, value, mask), before), junk


# --- 17: a slot that some queries see stays hidden from the others --------------------------------


def blockwise_of(block_size):
    def route(attn, query, key, value, mask, **options):
        output, lse = attn.blockwise_attention(
            query, key, value, mask, block_size=block_size, **options
        )
        return np.concatenate([output, lse[..., None]], axis=-1)

    return route


ROUTES = {
    "weights": lambda attn, query, key, value, mask, **options: attn.attention_weights(
        query, key, mask, **options
    ),
    "plain": lambda attn, *call, **options: attn.scaled_dot_product_attention(*call, **options),
    "tiles of 1": blockwise_of(1),
    "tiles of 3": blockwise_of(3),
    "one tile": blockwise_of(None),
}
HIDDEN_FROM_SOME = {
    "rule": dict(mask=Causal(), q_offset=1),
    "heads": dict(mask=normal(7, 3, 6, 5, 7) > 0),
    "keys alone": dict(mask=KeyPadding([7, 2, 2])),
    "bias": dict(bias=np.where(normal(8, 6, 5, 7)[None] > 0, 0.5, -INF)),
    "both": dict(
        mask=SlidingWindow(2, 1), bias=np.where(normal(8, 5, 7) > 1, -INF, 0.0), q_offset=1
    ),
}


def kept(options):
    options = {"mask": True, "bias": 0.0, "q_offset": None, **options}
    mask = options["mask"]
    if not isinstance(mask, (bool, np.ndarray)):
        mask = dense_mask(mask, 5, 7, batch=3, q_offset=options["q_offset"])
    return np.broadcast_to(mask & (options["bias"] > -INF), (3, 6, 5, 7))


@numpy_only
@pytest.mark.parametrize("extra", [{}, {"softcap": 2.0, "sink": normal(6, 6)}], ids=["", "options"])
@pytest.mark.parametrize("options", HIDDEN_FROM_SOME.values(), ids=HIDDEN_FROM_SOME)
def test_17_a_row_depends_on_what_it_may_see_and_on_nothing_else(backend, options, extra):
    """Semantic 17: one slot spoilt, in one operand at a time; rows that see it do notice."""
    keep = kept(options)
    options = {"mask": None, **options, **extra}
    for route, spoilt, junk in itertools.product(ROUTES, ("query", "key", "value"), JUNK):
        if (route, spoilt) == ("weights", "value"):
            continue
        attend_by = ROUTES[route]
        arrays = dict(zip(("query", "key", "value"), operands(), strict=True))
        clean = attend_by(backend.attn, *arrays.values(), **options)
        touched = np.zeros((3, 6, 5), bool)
        if spoilt == "query":
            arrays["query"][0, 3, 2] = junk
            touched[0, 3, 2] = keep[0, 3, 2].any()
        else:
            arrays[spoilt][0, 1, 1] = junk
            touched[0, 2:4] = keep[0, 2:4, :, 1]
        assert touched.any()
        assert not touched.all()
        got = attend_by(backend.attn, *arrays.values(), **options)
        case = route, spoilt, junk
        np.testing.assert_allclose(got[~touched], clean[~touched], rtol=0, atol=1e-12, err_msg=case)
        if "softcap" not in options or np.isnan(junk) or spoilt == "value":
            assert not np.isclose(got[touched], clean[touched]).all(axis=-1).any(), case


def test_17_infinity_in_a_value_that_earlier_rows_may_not_see(backend):
    """The size of the tile changes no more than rounding."""
    value, zeros = np.array([[1.0], [1.0], [INF]]), np.zeros((3, 1))
    arrays = [backend.array(x) for x in (zeros, zeros, value)]
    if backend.name == "numpy":
        got = backend.attn.scaled_dot_product_attention(*arrays, Causal())
        assert got.ravel().tolist() == [1, 1, INF]
    for block_size in (1,) if backend.name == "torch" else (1, 2, None):
        got = backend.attn.blockwise_attention(*arrays, Causal(), block_size=block_size)[0]
        assert backend.to_numpy(got).ravel().tolist() == [1, 1, INF]


# --- 19: numbers at the ends of their range -------------------------------------------------------

EXTREMES = {
    "sink": [np.full(6, x) for x in (-INF, -1e300, -3e38, -1e4, 1e4, 3e38, 1e300)],
    "scale": [0.0, -0.0, 1e-300, 1e-38, -1e-38, 2.0, 1e20, -1e20],
    "softcap": [1e-30, 1e-3, 1e4, 1e20, 3e38],
    "bias": [np.array([[0.0, x, 0, 0, 0, 0, 0]]) for x in (-1e300, -3e38, -1e4, 1e4, 3e38, 1e300)],
}


def plain_result(route, arrays, options, row=None):
    """What loops in float64 say; the limit of what float32 can tell from it is the tolerance."""
    allowed = dense_mask(options.pop("mask"), 5, 7, q_offset=options.pop("q_offset"))
    output, weights = attend(*arrays, allowed, **options)
    return weights if route == "weights" else output


@numpy_only
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("option", EXTREMES)
def test_19_extreme_options_on_every_path(backend, option, dtype):
    """No NaN, no warning, and the numbers of plain loops: a cap beyond all scores is no cap."""
    arrays = [x.astype(dtype) for x in operands()]
    exact = [x.astype(np.float64) for x in arrays]
    for route, extreme in itertools.product(ROUTES, EXTREMES[option]):
        options = {"mask": Causal(), "q_offset": 2, option: extreme}
        smallest = 0 if dtype == np.float64 else 2.0**-149
        if option == "scale" and 0 < abs(extreme) < smallest:
            continue  # refused, see tests/test_arguments.py
        got = ROUTES[route](backend.attn, *arrays, **options).astype(np.float64)
        got = got[..., :-1] if "tile" in route else got  # without the lse
        if dtype != np.float64 and option in ("bias", "sink"):  # beyond float32: saturated
            limit = np.finfo(np.float32).max / 4
            options[option] = np.where(
                np.isneginf(extreme), extreme, np.clip(extreme, -limit, limit)
            )
        expected = plain_result(route, exact, options)
        tolerance = {np.float16: 2e-3, np.float32: 2e-5, np.float64: 1e-12}[dtype]
        if option == "scale" and abs(extreme) > 1e10:
            tolerance = max(tolerance, 1e-9)  # one key takes all but rounding decides ties
        close(got, expected, tolerance, name=(route, extreme))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_finite_scores_far_apart_are_no_warning(backend, dtype):
    """The difference of two finite scores may overflow; its exponential is 0 all the same."""
    far = np.finfo(dtype).max
    query, key = np.ones((1, 1), dtype), np.array([[far], [-far], [far]], dtype) / 2 * dtype(1.9)
    arrays = [backend.array(x) for x in (query, key, np.array([[1.0], [5.0], [3.0]], dtype))]
    sink = backend.array(np.array([-far], dtype))
    for options in ({}, {"sink": sink}):
        options = {"scale": 1.0, **options}
        weights = backend.attn.attention_weights(*arrays[:2], **options)
        assert backend.to_numpy(weights).tolist() == [[0.5, 0, 0.5]]
        output = backend.attn.scaled_dot_product_attention(*arrays, **options)
        assert backend.to_numpy(output).tolist() == [[2.0]]
        for block_size in (1, 2, None):
            tiled = backend.attn.blockwise_attention(*arrays, block_size=block_size, **options)
            assert backend.to_numpy(tiled[0]).tolist() == [[2.0]]
    scores = backend.array(np.array([far, -far, far], dtype))
    assert backend.to_numpy(backend.attn.softmax(scores)).tolist() == [0.5, 0, 0.5]
    parts = [backend.array(np.array([[x]], dtype)) for x in (1.0, 5.0)]
    lses = [backend.array(np.array([x], dtype)) for x in (far, -far)]
    output, lse = backend.attn.merge_attention(parts, lses)
    assert (backend.to_numpy(output).item(), backend.to_numpy(lse).item()) == (1.0, far)


def test_the_scale_multiplies_the_product_on_every_path(backend):
    """Were it to meet the query first, 2 · 3e38 would leave float32."""
    arrays = [backend.array(np.array([[x]], np.float32)) for x in (3e38, 1e-38, 1.0)]
    assert backend.to_numpy(backend.attn.attention_weights(*arrays[:2], scale=2.0)) == 1
    for block_size in (1, None):
        lse = backend.attn.blockwise_attention(*arrays, scale=2.0, block_size=block_size)[1]
        assert abs(backend.to_numpy(lse).item() - 6) < 1e-5


# --- Size 1 and no axis ---------------------------------------------------------------------------


@pytest.mark.parametrize("axis", range(4), ids="BHLS")
def test_08_a_mask_or_bias_of_size_1_on_one_axis(backend, axis):
    """It says the same as its copies along that axis, on every route."""
    arrays = [backend.array(x) for x in operands()]
    full = (3, 6, 5, 7)
    shape = tuple(1 if a == axis else n for a, n in enumerate(full))
    given_arrays = {
        "mask": normal(7, *shape) > 0,
        "bias": np.where(normal(8, *shape) > 1, -INF, 0.3),
    }
    for name, array in given_arrays.items():
        results = []
        for x in (array, np.broadcast_to(array, full)):
            x = backend.array(x.copy())
            plain = backend.attn.scaled_dot_product_attention(*arrays, **{name: x})
            weights = backend.attn.attention_weights(*arrays[:2], **{name: x})
            tiled = backend.attn.blockwise_attention(*arrays, **{name: x}, block_size=2)
            results.append([backend.to_numpy(y) for y in (plain, weights, *tiled)])
        for one, other in zip(*results, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("size", ["B", "H", "L", "S", "D", "Dv"])
def test_operands_of_size_1_on_one_axis(calls, backend, size):
    sizes = dict(B=3, L=5, S=7, H=6, Hkv=3, D=2, Dv=4) | {size: 1}
    sizes["Hkv"] = 1 if size == "H" else 3
    query, key, value = operands(**sizes)
    rule, offset = Causal() & KeyPadding([1] * sizes["B"]), 2
    allowed = dense_mask(rule, sizes["L"], sizes["S"], q_offset=offset, batch=sizes["B"])
    output, weights = attend(query, key, value, allowed)
    close(calls.output(query, key, value, rule, q_offset=offset), output)
    close(calls.weights(query, key, rule, q_offset=offset), weights)
    arrays = [backend.array(x) for x in (query, key, value)]
    tiled = backend.attn.blockwise_attention(*arrays, rule, q_offset=offset, block_size=2)[0]
    close(backend.to_numpy(tiled), output)


def test_08_a_mask_and_a_bias_without_axes(calls, backend):
    query, key, value = operands()
    close(calls.output(query, key, value, np.array(True)), calls.output(query, key, value))
    close(calls.output(query, key, value, np.array(False)), np.zeros((3, 6, 5, 4)))
    close(calls.output(query, key, value, bias=np.array(3.0)), calls.output(query, key, value))
    arrays = [backend.array(x) for x in (query, key, value)]
    for options in ({"mask": np.array(False)}, {"bias": np.array(-INF)}):
        options = {name: backend.array(x) for name, x in options.items()}
        output, lse = backend.attn.blockwise_attention(*arrays, **options, block_size=2)
        assert (backend.to_numpy(output) == 0).all()
        assert np.isneginf(backend.to_numpy(lse)).all()


# --- 11: nothing is changed, strides do not matter, zero sizes ------------------------------------


def test_11_inputs_are_read_only(backend):
    """Semantic 11: arrays that cannot be written to (NumPy) or that were not (torch)."""
    arrays = [*operands(), normal(7, 5, 7) > 0, normal(8, 5, 7), normal(9, 6)]
    kept = [x.copy() for x in arrays]
    given_arrays = [backend.array(x) for x in arrays]
    if backend.name == "numpy":
        for x in given_arrays:
            x.flags.writeable = False
    query, key, value, mask, bias, sink = given_arrays
    options = dict(bias=bias, sink=sink, softcap=2.0)
    output = backend.attn.scaled_dot_product_attention(query, key, value, mask, **options)
    weights = backend.attn.attention_weights(query, key, mask, **options)
    backend.attn.softmax(query)
    for x, before in zip(given_arrays, kept, strict=True):
        assert np.array_equal(backend.to_numpy(x), before)
    results = [x.numpy() if backend.name == "torch" else x for x in (output, weights)]
    inputs = [x.numpy() if backend.name == "torch" else x for x in given_arrays]
    assert not any(np.shares_memory(r, x) for r in results for x in inputs)


def views(x):
    """The same numbers through other strides."""
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]))
    wide[..., ::2] = x
    yield wide[..., ::2]
    yield np.ascontiguousarray(x.swapaxes(-1, -3)).swapaxes(-1, -3)
    yield np.asfortranarray(x)
    yield np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1]


def test_11_strides_do_not_matter():
    calls = pytest.importorskip("attn")
    query, key, value = operands()
    bias, mask = normal(8, 3, 6, 5, 7), normal(7, 3, 6, 5, 7)
    expected = calls.scaled_dot_product_attention(query, key, value, mask > 0, bias=bias)
    for q, k, v, b, m in zip(*map(views, (query, key, value, bias, mask)), strict=True):
        close(calls.scaled_dot_product_attention(q, k, v, m > 0, bias=b), expected)
    flat = np.broadcast_to(query[:, :, :1], query.shape)  # stride 0
    got = calls.scaled_dot_product_attention(flat, key, value)
    close(got, np.broadcast_to(got[:, :, :1], got.shape), 0)


def test_11_strides_do_not_matter_in_torch():
    torch = pytest.importorskip("torch")
    from attn.torch import scaled_dot_product_attention

    query, key, value = map(torch.tensor, operands())
    expected = scaled_dot_product_attention(query, key, value).numpy()
    moved = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key, value)]
    close(scaled_dot_product_attention(*moved).numpy(), expected)
    moved = [x.mT.contiguous().mT for x in (query, key, value)]
    close(scaled_dot_product_attention(*moved).numpy(), expected)
    flat = query[:, :, :1].expand_as(query)
    got = scaled_dot_product_attention(flat, key, value).numpy()
    close(got, np.broadcast_to(got[:, :, :1], got.shape), 0)


@pytest.mark.parametrize("size", ["B", "L", "S", "D", "Dv", "H"])
def test_11_zero_sizes_are_legal(calls, size):
    """Semantic 11: no batch, no queries, no keys (an output of zeros), no features, no heads."""
    sizes = dict(B=3, L=5, S=7, H=6, Hkv=3, D=2, Dv=4) | {size: 0}
    sizes["Hkv"] = 0 if size == "H" else 3
    query, key, value = operands(**sizes)
    B, H, L, S, Dv = (sizes[name] for name in ("B", "H", "L", "S", "Dv"))
    stops = np.full(B, min(S, 3))
    for options in (
        {}, dict(mask=KeyPadding(stops)), dict(mask=Causal(), q_offset=1),
        dict(mask=np.ones((L, S), bool)), dict(mask=np.ones((B, H, L, S), bool)),
        dict(bias=np.zeros((L, 1))), dict(sink=np.zeros(H)), dict(softcap=2.0),
    ):  # fmt: skip
        output = calls.output(query, key, value, **options)
        weights = calls.weights(query, key, **options)
        assert (output.shape, weights.shape) == ((B, H, L, Dv), (B, H, L, S))
        assert size != "S" or (output == 0).all()


# --- 9: dtypes ------------------------------------------------------------------------------------

DTYPES = [("float16", 2**-10), ("bfloat16", 2**-7), ("float32", 1e-6), ("float64", 1e-12)]


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_09_a_dtype_comes_back_and_half_is_worked_out_in_single(backend, dtype, tolerance):
    """Semantic 9: the error is that of rounding once at the end, not at every step."""
    if backend.name == "numpy" and dtype == "bfloat16":
        pytest.skip("NumPy has no bfloat16")
    query, key, value = (backend.array(x, dtype) for x in operands(5, 101))
    exact = attend(*map(backend.to_numpy, (query, key, value)))
    output = backend.attn.scaled_dot_product_attention(query, key, value)
    weights = backend.attn.attention_weights(query, key)
    for got, expected in zip((output, weights), exact, strict=True):
        assert backend.dtype(got) == dtype
        error = np.abs(backend.to_numpy(got) - expected)
        assert (error <= tolerance * (np.abs(expected) / 2 + 1e-2)).all() or tolerance <= 1e-6
        assert error.max() <= max(tolerance, 1e-12)
    assert backend.dtype(backend.attn.softmax(query)) == dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_09_a_wider_bias_or_sink_promotes_nothing(backend, dtype):
    """Semantic 9; the same for NumPy scalars of scale and softcap."""
    if backend.name == "numpy" and dtype == "bfloat16":
        pytest.skip("NumPy has no bfloat16")
    query, key, value = (backend.array(x, dtype) for x in operands())
    wide = dict(
        bias=backend.array(normal(5, 5, 7)), sink=backend.array(normal(6, 6)),
        scale=np.float64(0.3), softcap=np.float64(2),
    )  # fmt: skip
    narrow = {**wide, "scale": 0.3, "softcap": 2}
    for name in ("bias", "sink"):
        narrow[name] = backend.array(backend.to_numpy(wide[name]), "float32")
    got = backend.attn.scaled_dot_product_attention(query, key, value, **wide)
    expected = backend.attn.scaled_dot_product_attention(query, key, value, **narrow)
    assert backend.dtype(got) == dtype
    assert np.array_equal(*map(backend.to_numpy, (got, expected)))
    assert backend.dtype(backend.attn.attention_weights(query, key, **wide)) == dtype


def test_09_a_wide_bias_saturates_and_only_minus_infinity_removes(backend):
    """The least float64 is a number: a row of it is no empty row, in float32 either."""
    query, key = (backend.array(x, "float32") for x in operands()[:2])
    least = np.full((5, 7), np.finfo(np.float64).min)
    least[0, 3:] = -INF
    least[1, 2] = 1e300
    weights = backend.attn.attention_weights(query, key, bias=backend.array(least))
    weights = backend.to_numpy(weights)
    close(weights.sum(axis=-1), np.ones((3, 6, 5)), 1e-6)
    assert (weights[..., 0, 3:] == 0).all()
    assert (weights[..., 1, 2] == 1).all()
    sink = np.array([1e300, -1e300, -INF, 0, 0, 0])
    weights = backend.attn.attention_weights(query, key, sink=backend.array(sink))
    close(
        backend.to_numpy(weights)[:, :3].sum(axis=-1),
        np.array([0, 1, 1])[:, None] * np.ones((3, 3, 5)),
        1e-6,
    )


def test_09_large_scores_do_not_overflow(backend):
    query, key, value = (backend.array(100 * x, "float16") for x in operands())
    output = backend.attn.scaled_dot_product_attention(query, key, value)
    exact = attend(*map(backend.to_numpy, (query, key, value)))[0]
    close(backend.to_numpy(output), exact, 0.25)  # two spacings of float16 near 300


# --- Subclasses, options given as NumPy numbers ---------------------------------------------------


def test_masked_arrays_are_refused_and_subclasses_answered_as_arrays():
    import attn

    query, key, value = operands()
    for position in range(3):
        arrays = [query, key, value]
        arrays[position] = np.ma.array(arrays[position])
        with pytest.raises(TypeError, match="MaskedArray"):
            attn.scaled_dot_product_attention(*arrays)
    with pytest.raises(TypeError, match=r"mask: .*MaskedArray"):
        attn.attention_weights(query, key, np.ma.array(np.ones((5, 7), bool)))
    flat = [x[0, 0] for x in (query, key, value)]
    got = attn.scaled_dot_product_attention(*(x.view(Named) for x in flat))
    assert type(got) is np.ndarray
    close(got, attn.scaled_dot_product_attention(*flat))


class Named(np.ndarray):
    """A subclass that behaves like its base."""


@pytest.mark.parametrize("number", [np.float64, np.float32, np.float16], ids=lambda t: t.__name__)
def test_options_may_be_numpy_numbers(calls, number):
    query, key, value = operands()
    got = calls.output(query, key, value, scale=number(0.5), softcap=number(2))
    close(got, calls.output(query, key, value, scale=0.5, softcap=2.0))
    close(
        calls.output(query, key, value, scale=np.int64(2)),
        calls.output(query, key, value, scale=2.0),
    )


def test_no_option_is_the_same_as_its_neutral_value(calls):
    query, key, value = operands()
    plain = calls.output(query, key, value)
    neutral = [
        dict(mask=np.ones((5, 7), bool)), dict(mask=KeyPadding()), dict(bias=np.zeros((5, 7))),
        dict(scale=1 / math.sqrt(2)), dict(sink=np.full(6, -INF)), dict(q_offset=3),
        dict(mask=SlidingWindow(None, None), q_offset=0), dict(softcap=1e9),
    ]  # fmt: skip
    for options in neutral:
        close(calls.output(query, key, value, **options), plain)
    for first, second in itertools.pairwise(neutral):
        close(calls.output(query, key, value, **(first | second)), plain)
