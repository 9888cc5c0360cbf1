"""Blockwise attention is attention: for any mask, any option and any size of tile."""

import itertools
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_table import TABLE
from reference import attend, normal

import attn
from attn import Causal, KeyPadding, Mask, blockwise_attention, merge_attention

BLOCK_SIZES = (1, 2, 3, 5, 7, 50, None)
H, HKV, D, DV = 6, 3, 5, 7  # G = 2


def operands(L, S, batch=1, seed=0):
    shapes = (batch, H, L, D), (batch, HKV, S, D), (batch, HKV, S, DV)
    return [normal(seed + i, *shape) for i, shape in enumerate(shapes)]


def dense_lse(query, key, keep=True, bias=0.0, scale=None, softcap=None, sink=None):
    """The logarithm of each row's sum, from all scores at once and by NumPy's own logaddexp."""
    key = key[:, np.arange(query.shape[1]) * key.shape[1] // query.shape[1]]
    scores = np.einsum("bhld,bhsd->bhls", query, key)
    scores *= 1 / np.sqrt(query.shape[-1]) if scale is None else scale
    scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
    scores = np.where(keep, scores + bias, -np.inf)
    if sink is not None:
        column = np.broadcast_to(sink[:, None, None], (*scores.shape[:-1], 1))
        scores = np.concatenate([scores, column], axis=-1)
    return np.logaddexp.reduce(scores, axis=-1, initial=-np.inf)


def assert_same(got, wanted, tolerance=1e-12, name=""):
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance, err_msg=str(name))


def run(backend, arrays, mask=None, **options):
    """Call blockwise_attention of either library with NumPy arrays, and hand arrays back."""
    arrays = [backend.array(x) for x in arrays]
    mask = backend.array(mask) if isinstance(mask, np.ndarray) else mask
    arrayed = ("bias", "sink")
    options = {
        name: backend.array(x) if name in arrayed and x is not None else x
        for name, x in options.items()
    }
    return [backend.to_numpy(x) for x in backend.attn.blockwise_attention(*arrays, mask, **options)]


@pytest.mark.parametrize("block_size", [1, 2, None])
def test_literal(backend, block_size):
    arrays = [[1.0]], [[0.0], [np.log(3)]], [[4.0], [8.0]]
    arrays = [np.array(x) for x in arrays]
    output, lse = run(backend, arrays, scale=1.0, block_size=block_size)
    assert_same((output, lse), ([[0.25 * 4 + 0.75 * 8]], [np.log(4)]))


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_every_mask_in_any_tiles(backend, row):
    """Semantic 2."""
    query, key, value = operands(row.L, row.S, row.batch)
    query = query[:, : row.heads] if row.heads > 1 else query
    key, value = (x[:, :1] if row.heads > 1 else x for x in (key, value))
    wanted = attend(query, key, value, row.allowed)[0], dense_lse(query, key, row.allowed)
    for size in BLOCK_SIZES:
        for mask, q_offset in ((row.mask, row.q_offset), (row.allowed, None)):
            options = {"q_offset": q_offset, "block_size": size}
            assert_same(run(backend, (query, key, value), mask, **options), wanted, name=size)


class EveryThird(Mask):
    """A rule that reads the head and does what spans cannot."""

    def __call__(self, b, h, q, k):
        return (q * k + h + b) % 3 == 0


class EvenHeads(Mask):
    """A rule that reads nothing but the head."""

    def __call__(self, b, h, q, k):
        return h % 2 == 0


class FirstHeads(Mask):
    """A rule that spans can answer for each head."""

    def __call__(self, b, h, q, k):
        return (k <= q) & (h < 2)


@pytest.mark.parametrize(
    "rule", [EveryThird(), EvenHeads(), FirstHeads()], ids=lambda rule: type(rule).__name__
)
def test_rules_that_read_heads(backend, rule):
    query, key, value = operands(11, 13, batch=2)
    b, h, q, k = np.ogrid[:2, :H, 2:13, :13]
    keep = np.broadcast_to(rule(b, h, q, k), (2, H, 11, 13))
    wanted = attend(query, key, value, keep)[0], dense_lse(query, key, keep)
    for size in BLOCK_SIZES:
        got = run(backend, (query, key, value), rule, q_offset=2, block_size=size)
        assert_same(got, wanted, name=size)


OPTIONS = {
    "bias": {"bias": normal(5, 2, 1, 11, 13)},
    "bias of rank 2": {"bias": normal(5, 11, 1)},
    "bias that removes": {"bias": np.where(normal(6, 1, H, 11, 13) < 0.3, -np.inf, 1.0)},
    "scale": {"scale": -0.7},
    "scale 0": {"scale": 0},
    "softcap": {"softcap": 0.8},
    "sink": {"sink": normal(7, H)},
    "sink of -inf": {"sink": np.full(H, -np.inf)},
    "all": {
        "bias": np.where(normal(6, 2, 1, 11, 13) < 0.3, -np.inf, 1.0),
        "scale": 2.0,
        "softcap": 1.5,
        "sink": normal(8, H),
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(backend, name):
    query, key, value = operands(11, 13, batch=2)
    keep = np.tril(np.ones((11, 13), bool), 2)
    given = {"bias": 0.0, **OPTIONS[name]}
    wanted = attend(query, key, value, keep, **given)[0], dense_lse(query, key, keep, **given)
    for size in BLOCK_SIZES:
        options = {"q_offset": 2, "block_size": size, **OPTIONS[name]}
        assert_same(run(backend, (query, key, value), Causal(), **options), wanted, name=size)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(0, n) for n in (2, 9, 11)]),
    heads=st.sampled_from([(1, 1), (2, 1), (6, 3), (3, 3)]),
    widths=st.tuples(st.integers(1, 4), st.integers(0, 3)),
    block_size=st.one_of(st.none(), st.integers(1, 13)),
    density=st.floats(0, 1),
    size_of_scores=st.sampled_from([1.0, 1e3]),
    seed=st.integers(0, 99),
)
def test_any_shape_equals_the_plain_function(
    backend, sizes, heads, widths, block_size, density, size_of_scores, seed
):
    (B, L, S), (heads_q, heads_kv), (d, dv) = sizes, heads, widths
    query = size_of_scores * normal(seed, B, heads_q, L, d)
    key, value = normal(seed + 1, B, heads_kv, S, d), normal(seed + 2, B, heads_kv, S, dv)
    mask = np.random.default_rng(seed).random((B, heads_q, L, S)) < density
    got, _ = run(backend, (query, key, value), mask, block_size=block_size)
    assert_same([got], [attn.scaled_dot_product_attention(query, key, value, mask)], 1e-11)


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
def test_13_scores_of_any_size(backend, order):
    """Semantic 13: exp of a score of 900 overflows; only the running peak keeps it finite."""
    key = np.arange(-900.0, 901.0, 100.0)[::order, None]
    got = run(backend, (np.ones((1, 1)), key, key), scale=1.0, block_size=2)
    assert_same(got, ([[900.0]], [900.0]), 1e-9)


@pytest.mark.parametrize("block_size", [1, 4, None])
def test_rows_without_keys(backend, block_size):
    """Semantic 3."""
    query, key, value = operands(3, 5, batch=2)
    for sink in (None, normal(1, H), np.full(H, -np.inf), np.full(H, 1e300), np.full(H, -1e300)):
        output, lse = run(
            backend, (query, key, value), KeyPadding([0, 5]), sink=sink, block_size=block_size
        )
        assert (output[0] == 0).all()
        assert (lse[0] == (-np.inf if sink is None else sink[:, None])).all()
        assert np.isfinite(lse[1]).all()


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0)])
def test_nothing_at_all(backend, shape):
    B, L, S = shape
    for mask in (None, Causal(), np.ones((L, S), bool), FirstHeads()):
        output, lse = run(backend, operands(L, S, B), mask, q_offset=0)
        assert output.shape == (B, H, L, DV)
        assert lse.shape == (B, H, L)
        assert (output == 0).all()
        assert (lse == -np.inf).all()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_sink_beyond_the_dtype_saturates(backend, dtype):
    """As in the plain function: no NaN, no warning, and -inf alone takes no part."""
    arrays = [backend.array(x, dtype) for x in operands(3, 5)]
    for number in (1e300, -1e300, -np.inf):
        sink = backend.array(np.full(H, number))
        plain = backend.attn.scaled_dot_product_attention(*arrays, sink=sink)
        output, lse = backend.attn.blockwise_attention(*arrays, sink=sink, block_size=2)
        assert_same([backend.to_numpy(output)], [backend.to_numpy(plain)], 1e-3, number)
        assert np.isfinite(backend.to_numpy(lse)).all()
        assert (backend.to_numpy(output) == 0).all() == (number > 0)


def test_every_rank(backend):
    for shape in ((), (H,), (2, H), (2, 1, H)):
        query, key, value = (
            normal(0, *shape, 3, D),
            normal(1, *shape, 4, D),
            normal(2, *shape, 4, 2),
        )
        output, lse = run(backend, (query, key, value), Causal(), q_offset=1, block_size=2)
        assert lse.shape == query.shape[:-1]
        plain = attn.scaled_dot_product_attention(query, key, value, Causal(), q_offset=1)
        assert_same([output], [plain])


@pytest.mark.parametrize("block_size", [2, 3, None])
def test_slots_that_nobody_sees_may_hold_anything(backend, block_size):
    """Semantic 10."""
    clean = run(backend, operands(4, 9, batch=2), KeyPadding([7, 2]), block_size=block_size)
    removing = np.zeros((2, 1, 1, 9))
    removing[0, ..., 7:], removing[1, ..., 2:] = -np.inf, -np.inf
    for bad, spoilt in itertools.product((np.nan, np.inf, 1e300), ("key", "value", "both")):
        query, key, value = operands(4, 9, batch=2)
        for name, x in (("key", key), ("value", value)):
            if spoilt in (name, "both"):
                x[0, :, 7:], x[1, :, 2:] = bad, bad
        got = run(backend, (query, key, value), KeyPadding([7, 2]), block_size=block_size)
        assert_same(got, clean, 0, (bad, spoilt))
        got = run(backend, (query, key, value), bias=removing, block_size=block_size)
        assert_same(got, clean, 0, (bad, spoilt))


def test_empty_tiles_are_not_read(backend):
    """The last key and value are NaN, and only the last tile of queries may see them."""
    query, key, value = operands(12, 12)
    clean = run(backend, (query, key, value), Causal(), block_size=4)
    key[..., -1, :] = value[..., -1, :] = np.nan
    got = run(backend, (query, key, value), Causal(), block_size=4)
    assert_same([x[:, :, :8] for x in got], [x[:, :, :8] for x in clean], 0)
    assert np.isnan(got[0][:, :, 11]).all()


class Counted(Mask):
    """Causal, and remembers the pairs that it was asked about one by one."""

    def __init__(self):
        self.asked = []

    def __call__(self, b, h, q, k):
        if hasattr(k, "shape") and k.shape[-1] > 1:  # neither a span nor the first pair alone
            self.asked.append((int(q.min()), int(k.min()), h.shape[1]))
        return k <= q


def test_rule_is_asked_about_partial_tiles_only_and_once_for_all_heads(backend):
    rule = Counted()
    run(backend, operands(20, 20), rule, block_size=4)
    assert sorted(rule.asked) == [(i, i, H) for i in range(0, 20, 4)]  # the diagonal


def test_13_memory_does_not_grow_with_the_matrix():
    """Semantic 13: with L times the block, not with L times S."""
    n = 32768  # all scores would be 4 GiB
    x = np.random.default_rng(0).standard_normal((n, 16), dtype=np.float32)
    blockwise_attention(x[:8], x, x)
    extra = []
    for _ in range(3):  # the least of three, since all that the process allocates is counted
        tracemalloc.start()
        output, lse = blockwise_attention(x, x, x, attn.SlidingWindow(4096))
        extra.append(tracemalloc.get_traced_memory()[1] - output.nbytes - lse.nbytes)
        tracemalloc.stop()
    assert min(extra) < 8 * 2**20


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes(backend, dtype):
    """Semantic 9."""
    if backend.name == "numpy" and dtype == "bfloat16":
        pytest.skip("NumPy has no bfloat16")
    arrays = operands(23, 29)
    inputs = [backend.array(x, dtype) for x in arrays]
    exact = attn.scaled_dot_product_attention(*(backend.to_numpy(x) for x in inputs))
    output, lse = backend.attn.blockwise_attention(
        *inputs, sink=backend.array(np.full(H, -np.inf)), block_size=5
    )
    assert backend.dtype(output) == dtype
    assert backend.dtype(lse) == "float32"
    plain = backend.to_numpy(backend.attn.scaled_dot_product_attention(*inputs))
    error = np.abs(backend.to_numpy(output) - exact).max()
    assert 0 < error <= 2 * np.abs(plain - exact).max()
    wanted = dense_lse(*(backend.to_numpy(x) for x in inputs[:2]))
    np.testing.assert_allclose(backend.to_numpy(lse), wanted, atol=1e-5)


def test_inputs_stay_as_they_are_and_strides_do_not_matter(backend):
    query, key, value = operands(7, 11)
    wanted = run(backend, (query, key, value), block_size=3)
    if backend.name == "numpy":  # torch has no negative strides
        flipped = [np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1] for x in (query, key)]
        for x in (*flipped, value):
            x.flags.writeable = False
        assert_same(blockwise_attention(*flipped, value, block_size=3), wanted)
    moved = [backend.array(np.moveaxis(x, 1, 2).copy()).swapaxes(1, 2) for x in (query, key, value)]
    copies = [backend.to_numpy(x).copy() for x in moved]
    got = backend.attn.blockwise_attention(*moved, block_size=3)
    assert_same([backend.to_numpy(x) for x in got], wanted)
    assert_same([backend.to_numpy(x) for x in moved], copies, 0)


BAD_CALLS = {
    "lengths": lambda a: ((a(3, 2), a(4, 2), a(5, 2)), {}),
    "head size": lambda a: ((a(3, 2), a(4, 3), a(4, 2)), {}),
    "heads": lambda a: ((a(3, 3, 2), a(2, 4, 2), a(2, 4, 2)), {}),
    "dtypes": lambda a: ((a(3, 2, dtype="float32"), a(4, 2), a(4, 2)), {}),
    "alignment": lambda a: ((a(3, 2), a(4, 2), a(4, 2), Causal()), {}),
    "mask": lambda a: ((a(3, 2), a(4, 2), a(4, 2), a(3, 4)), {}),
    "shape of mask": lambda a: ((a(3, 2), a(4, 2), a(4, 2), a(4, 3) > 0), {}),
    "stop": lambda a: ((a(3, 2), a(4, 2), a(4, 2), KeyPadding(5)), {}),
    "bias": lambda a: ((a(3, 2), a(4, 2), a(4, 2)), {"bias": a(3, 4) + np.nan}),
    "softcap": lambda a: ((a(3, 2), a(4, 2), a(4, 2)), {"softcap": 0}),
    "scale": lambda a: ((a(3, 2), a(4, 2), a(4, 2)), {"scale": np.inf}),
    "sink": lambda a: ((a(3, 2), a(4, 2), a(4, 2)), {"sink": a(2)}),
    "offset": lambda a: ((a(3, 2), a(4, 2), a(4, 2)), {"q_offset": 1.5}),
    "a rule that counts": lambda a: ((a(3, 2), a(4, 2), a(4, 2), Ones()), {}),
}


class Ones(Mask):
    """A rule whose answers are numbers."""

    compares_positions = False

    def __call__(self, b, h, q, k):
        return (k * 0 + 1) if hasattr(k, "shape") else (k == k) | True


@pytest.mark.parametrize("name", BAD_CALLS)
def test_errors_in_the_words_of_the_plain_function(backend, name):
    arguments, options = BAD_CALLS[name](
        lambda *s, dtype="float64": backend.array(np.ones(s), dtype)
    )
    with pytest.raises((TypeError, ValueError)) as plain:
        backend.attn.scaled_dot_product_attention(*arguments, **options)
    with pytest.raises(plain.type) as blockwise:
        backend.attn.blockwise_attention(*arguments, **options)
    assert str(blockwise.value) == str(plain.value)


def test_block_size_is_a_positive_int(backend):
    x = backend.array(np.ones((3, 2)))
    for block_size, error in ((0, ValueError), (2.0, TypeError), (10**30, ValueError)):
        with pytest.raises(error, match="block_size: expected an int"):
            backend.attn.blockwise_attention(x, x, x, block_size=block_size)
    output, _ = backend.attn.blockwise_attention(x, x, x, block_size=2**62)
    assert (backend.to_numpy(output) == 1).all()


# Merging


def merge(backend, outputs, lses):
    parts = ([backend.array(x) for x in xs] for xs in (outputs, lses))
    return [backend.to_numpy(x) for x in backend.attn.merge_attention(*parts)]


def parts_of(cuts, mask, sink=None, bad=0.0):
    """The whole, and the parts for the keys between `cuts`; the sink goes to the first."""
    query, key, value = operands(11, 13, batch=2)
    whole = blockwise_attention(query, key, value, mask, sink=sink)
    parts = []
    for number, (i, j) in enumerate(pairwise(cuts)):
        output, lse = blockwise_attention(
            query, key[..., i:j, :], value[..., i:j, :], mask[..., i:j],
            sink=sink if number == 0 else None,
        )  # fmt: skip
        parts.append((np.where(np.isneginf(lse)[..., None], bad, output), lse))
    return whole, *zip(*parts, strict=True)


@pytest.mark.parametrize("sink", [None, normal(4, H)], ids=["no sink", "sink"])
@pytest.mark.parametrize("cuts", [(0, 13), (0, 5, 13), (0, 2, 2, 3, 11, 13)], ids=str)
def test_parts_make_the_whole(backend, cuts, sink):
    mask = np.random.default_rng(3).random((2, 1, 11, 13)) < 0.2
    mask[0, 0, 4] = False  # a row that is empty in every part
    whole, outputs, lses = parts_of(cuts, mask, sink)
    assert_same(merge(backend, outputs, lses), whole)


def test_merge_literal_and_stacked(backend):
    outputs, lses = np.array([[[1.0]], [[5.0]]]), np.log([[1.0], [3.0]])
    stacked = backend.attn.merge_attention(backend.array(outputs), backend.array(lses))
    assert_same([backend.to_numpy(x) for x in stacked], ([[4.0]], [np.log(4)]))
    assert_same(merge(backend, outputs[:1], lses[:1]), (outputs[0], lses[0]))


def test_order_and_grouping_of_parts_do_not_matter(backend):
    mask = np.random.default_rng(5).random((2, 1, 11, 13)) < 0.5
    whole, outputs, lses = parts_of((0, 4, 9, 13), mask)
    assert_same(merge(backend, outputs[::-1], lses[::-1]), whole)
    first = merge(backend, outputs[:2], lses[:2])
    assert_same(merge(backend, (first[0], outputs[2]), (first[1], lses[2])), whole)


def test_a_part_without_keys_is_not_read(backend):
    """Other code leaves NaN in rows that saw nothing."""
    mask = np.random.default_rng(3).random((2, 1, 11, 13)) < 0.1
    whole, outputs, lses = parts_of((0, 5, 13), mask, bad=np.nan)
    assert any(np.isnan(x).any() for x in outputs)
    assert_same(merge(backend, outputs, lses), whole)


def test_merge_of_half_precision(backend):
    outputs = [backend.array(np.full((2, 3), x), "float16") for x in (1.0, 2.0)]
    lses = [backend.array(np.zeros(2), "float32")] * 2
    output, lse = backend.attn.merge_attention(outputs, lses)
    assert (backend.dtype(output), backend.dtype(lse)) == ("float16", "float32")
    assert (backend.to_numpy(output) == 1.5).all()


def test_merge_errors(backend):
    a = backend.array(np.ones((2, 3)))
    with pytest.raises(ValueError, match="at least one of each, got 0 and 0"):
        backend.attn.merge_attention([], [])
    with pytest.raises(ValueError, match="got 2 and 1"):
        backend.attn.merge_attention([a, a], [a[:, 0]])
    with pytest.raises(ValueError, match=r"outputs\[1\] \(3,\) with lses\[1\] \(2,\)"):
        backend.attn.merge_attention([a, a[0]], [a[:, 0]] * 2)
    with pytest.raises(ValueError, match=r"outputs\[0\] \(2, 3\) with lses\[0\] \(3,\)"):
        backend.attn.merge_attention([a], [a[0]])
    with pytest.raises(TypeError, match=r"outputs\[0\]: expected"):
        backend.attn.merge_attention([1.0], [0.0])


# What only torch has


def tensors(*arrays):
    import torch

    return [torch.tensor(x, requires_grad=True) for x in arrays]


def test_gradients_of_output_and_lse_twice():
    from torch.autograd import gradcheck, gradgradcheck

    import attn.torch

    query, key, value = normal(0, 1, 2, 3, 2), normal(1, 1, 1, 5, 2), normal(2, 1, 1, 5, 3)

    def function(query, key, value, bias, sink):
        return attn.torch.blockwise_attention(
            query, key, value, Causal(), bias=bias, sink=sink, softcap=2.0, q_offset=1, block_size=2
        )

    inputs = tensors(query, key, value, normal(3, 3, 5), normal(4, 2))
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)
    assert gradgradcheck(attn.torch.merge_attention, tensors(normal(0, 3, 2, 2), normal(1, 3, 2)))


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_gradients_equal_those_of_the_plain_function(row):
    import torch

    import attn.torch

    heads = max(row.heads, 2)
    query, key = normal(0, row.batch, heads, row.L, D), normal(1, row.batch, 1, row.S, D)
    inputs = tensors(query, key, normal(2, row.batch, 1, row.S, DV))
    upstream = torch.tensor(normal(3, row.batch, heads, row.L, DV))
    options = {"q_offset": row.q_offset}
    plain = attn.torch.scaled_dot_product_attention(*inputs, row.mask, **options)
    tiled, lse = attn.torch.blockwise_attention(*inputs, row.mask, **options, block_size=2)
    wanted = torch.autograd.grad(plain, inputs, upstream)
    assert_same(torch.autograd.grad(tiled, inputs, upstream, retain_graph=True), wanted)
    # Rows that see nothing have lse = -inf and must not send NaN back.
    seen = torch.isfinite(lse)
    grads = torch.autograd.grad(lse[seen].sum(), inputs, allow_unused=True)
    assert all(torch.isfinite(grad).all() for grad in grads if grad is not None)


def test_the_gradient_of_lse_is_the_weights():
    import torch

    import attn.torch

    query, key, value = (torch.tensor(x) for x in operands(7, 11))
    bias = torch.zeros(1, H, 7, 11, dtype=torch.float64, requires_grad=True)
    options = {"bias": bias, "q_offset": 1}
    lse = attn.torch.blockwise_attention(query, key, value, Causal(), **options, block_size=3)[1]
    weights = attn.torch.attention_weights(query, key, Causal(), **options)
    assert_same(torch.autograd.grad(lse.sum(), bias), [weights.detach()])


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 0, 5), (2, 3, 0), (0, 3, 5)])
def test_empty_results_still_hang_on_the_graph(shape):
    import torch

    import attn.torch

    B, L, S = shape
    inputs = tensors(*operands(L, S, B), normal(5, 1, S), normal(6, H))
    query, key, value, bias, sink = inputs
    output, lse = attn.torch.blockwise_attention(
        query, key, value, KeyPadding(0), bias=bias, sink=sink, block_size=2
    )
    grads = torch.autograd.grad(output.sum() + lse.sum(), inputs)
    assert all((grad == 0).all() for grad in grads[:4])
    assert (grads[4] == B * L).all()  # lse is the sink


def test_nan_in_unseen_slots_reaches_no_gradient():
    import torch

    import attn.torch

    query, key, value = operands(4, 9)
    key[..., 5:, :] = value[..., 5:, :] = np.nan
    inputs = tensors(query, key, value)
    output, lse = attn.torch.blockwise_attention(*inputs, KeyPadding(5), block_size=3)
    grads = torch.autograd.grad(output.sum() + lse.sum(), inputs)
    assert all(torch.isfinite(grad).all() for grad in grads)
    assert (grads[1][..., 5:, :] == 0).all()


@pytest.mark.parametrize("mask", [None, Causal(), "array"], ids=str)
def test_compiled_equals_eager(mask):
    import torch

    import attn.torch

    inputs = [torch.tensor(x) for x in operands(5, 7)]
    mask = torch.tensor(normal(0, 5, 7) > 0) if mask == "array" else mask

    def function(query, key, value):
        return attn.torch.blockwise_attention(query, key, value, mask, q_offset=2, block_size=3)

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert_same(compiled(*inputs), function(*inputs))


def test_autocast_changes_nothing():
    import torch

    import attn.torch

    inputs = [torch.tensor(x, dtype=torch.float32) for x in operands(5, 7)]
    wanted = attn.torch.blockwise_attention(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = attn.torch.blockwise_attention(*inputs)
    assert got[0].dtype == torch.float32
    assert_same(got, wanted, 0)


def test_merge_of_arrays_leaves_them_alone():
    outputs, lses = normal(0, 2, 3, 4), normal(1, 2, 3)
    copies = outputs.copy(), lses.copy()
    merge_attention(outputs, lses)
    assert_same((outputs, lses), copies, 0)
