"""Gradients written by hand: against a worked example, central differences, autograd and laws."""

import itertools

import numpy as np
import pytest
from mask_table import TABLE
from reference import normal

import attn
from attn import Causal, KeyPadding, attention_backward, softmax_backward

NAMES = ("query", "key", "value", "bias", "sink")
H, HKV, L, S, D, DV = 6, 3, 4, 7, 5, 2  # G = 2


def operands(L=L, S=S, batch=2):
    shapes = (batch, H, L, D), (batch, HKV, S, D), (batch, HKV, S, DV)
    return [normal(seed, *shape) for seed, shape in enumerate(shapes)]


def difference(function, x, step=1e-6):
    """The gradient of a number that depends on x, by central differences."""
    grad = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            ends.append(function(moved))
        grad[index] = (ends[0] - ends[1]) / (2 * step)
    return grad


def close(got, wanted, tolerance=1e-12, name=""):
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance, err_msg=name)


def test_softmax_literal():
    """p = (1/4, 3/4): dP lies 1 above its mean 1 under p at the first, 1/3 below at the second."""
    close(softmax_backward(np.array([2.0, 2 / 3]), np.array([0.25, 0.75])), [0.25, -0.25])


def test_softmax_against_its_jacobian():
    weights, grad = attn.softmax(normal(0, 3, 5)), normal(1, 3, 5)
    for p, g, got in zip(weights, grad, softmax_backward(grad, weights), strict=True):
        close(got, (np.diag(p) - np.outer(p, p)) @ g)


def test_softmax_against_differences():
    scores, upstream = normal(0, 2, 5), normal(1, 2, 5)
    wanted = difference(lambda x: (upstream * attn.softmax(x)).sum(), scores)
    close(softmax_backward(upstream, attn.softmax(scores)), wanted, 1e-9)


def test_softmax_laws():
    """Rows sum to 0; one number added to all of a row's dP changes nothing; an empty row gets 0."""
    scores, upstream = normal(0, 3, 5), normal(1, 3, 5)
    scores[1] = -np.inf
    weights = attn.softmax(scores)
    grad = softmax_backward(upstream, weights)
    close(grad.sum(axis=-1), 0)
    close(softmax_backward(upstream + 7, weights), grad)
    assert (grad[1] == 0).all()
    assert softmax_backward(upstream.astype("f2"), weights.astype("f2")).dtype == np.float16


def test_softmax_errors():
    with pytest.raises(ValueError, match=r"grad_weights: .*\(…, S\) = \(2, 3\), got \(3,\)"):
        softmax_backward(np.ones(3), np.ones((2, 3)))
    with pytest.raises(TypeError, match="one float dtype"):
        softmax_backward(np.ones(3), np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r"weights: expected shape \(…, S\), got \(\)"):
        softmax_backward(np.array(1.0), np.array(1.0))


def test_literal():
    """Scores (ln 3, 0) and (0, 0), so weights (3/4, 1/4) and (1/2, 1/2), outputs 7 and 6."""
    query, key, value = np.array([[np.log(3)], [0]]), np.array([[1.0], [0]]), np.array([[8.0], [4]])
    grad = attention_backward(np.ones((2, 1)), query, key, value, scale=1.0)
    # dP = (8, 4) twice; dS = 3/4 · (8 − 7), 1/4 · (4 − 7) and 1/2 · (8 − 6), 1/2 · (4 − 6)
    close(grad.query, [[0.75], [1.0]])
    close(grad.key, [[0.75 * np.log(3)], [-0.75 * np.log(3)]])
    close(grad.value, [[1.25], [0.75]])
    assert grad.bias is None
    assert grad.sink is None


OPTIONS = {
    "nothing": {},
    "causal": {"mask": Causal(), "q_offset": 2},
    "offset per row": {"mask": Causal(), "q_offset": np.array([-2, 3])},
    "padding": {"mask": KeyPadding([5, 0])},
    "array": {"mask": normal(9, 2, 1, L, S) > 0},
    "softcap": {"softcap": 0.7},
    "scale": {"scale": -1.3},
    "scale 0": {"scale": 0},
    "bias": {"bias": normal(3, 2, H, L, S)},
    "bias for all rows": {"bias": normal(3, H, 1, S)[None]},
    "bias of rank 2": {"bias": normal(3, L, 1)},
    "a large cap": {"softcap": 1e4},
    "a small cap": {"softcap": 1e-3},
    "a sink that takes all": {"sink": np.full(H, 1e4)},
    "a sink that takes nothing": {"sink": np.full(H, -1e4)},
    "a sink of -inf": {"sink": np.full(H, -np.inf)},
    "bias of rank 1": {"bias": normal(3, S)},
    "sink": {"sink": normal(4, H)},
    "all": {
        "mask": Causal(), "q_offset": 1, "bias": normal(3, L, S), "scale": 0.9, "softcap": 1.5,
        "sink": normal(4, H),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_against_differences(name):
    options = OPTIONS[name]
    given = dict(zip(NAMES[:3], operands(), strict=True)) | options
    upstream = normal(7, 2, H, L, DV)
    got = attention_backward(upstream, **given)
    for operand in NAMES:
        if operand not in given:
            assert getattr(got, operand) is None
            continue

        def loss(x, operand=operand):
            return (upstream * attn.scaled_dot_product_attention(**given | {operand: x})).sum()

        if np.isfinite(given[operand]).all():
            close(getattr(got, operand), difference(loss, given[operand]), 1e-8)
        else:
            close(getattr(got, operand), 0)


def autograd(upstream, given):
    """The same gradients by torch's autograd through attn.torch, which shares no arithmetic."""
    import torch

    import attn.torch

    given = {name: torch.tensor(x) if hasattr(x, "shape") else x for name, x in given.items()}
    leaves = {name: given[name].requires_grad_() for name in NAMES if name in given}
    output = attn.torch.scaled_dot_product_attention(**given)
    grads = torch.autograd.grad(output, list(leaves.values()), torch.tensor(upstream))
    return dict(zip(leaves, [grad.numpy() for grad in grads], strict=True))


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_against_autograd_for_every_mask(row):
    query, key, value = operands(row.L, row.S, row.batch)
    if row.heads > 1:
        query, key, value = query[:, : row.heads], key[:, :1], value[:, :1]
    given = {"query": query, "key": key, "value": value, "mask": row.mask}
    given |= {"q_offset": row.q_offset, "softcap": 1.1, "sink": normal(4, query.shape[1])}
    given["bias"] = np.where(normal(5, row.L, row.S) < -1, -np.inf, 0.3)
    upstream = normal(7, *query.shape[:-1], DV)
    got = attention_backward(upstream, **given)
    for name, wanted in autograd(upstream, given).items():
        close(getattr(got, name), wanted)


BIASES = {  # by the axes before H: those of a bias may be there, be 1, be flattened, or be missing
    (): [(), (1,), (7,), (1, 7), (4, 1), (4, 7)],
    (2, 3): [
        (), (1,), (1, 7), (4, 1), (3, 1, 1, 7), (1, 6, 4, 7), (6, 1, 1, 1), (6, 6, 4, 7),
        (2, 1, 1, 4, 1), (1, 3, 6, 1, 1), (2, 3, 1, 1, 1), (2, 3, 6, 4, 7), (1, 1, 1, 1, 1),
    ],
    (2, 2): [(4, 1, 1, 1), (2, 1, 1, 1), (2, 1, 1, 1, 1), (2, 2, 6, 4, 7)],
    (1, 3): [(3, 1, 1, 1), (1, 1, 1, 1)],
    (3, 1): [(3, 1, 1, 1), (3, 1, 1, 1, 7)],
}  # fmt: skip


@pytest.mark.parametrize("lead", BIASES, ids=str)
def test_any_rank(lead):
    query, key = normal(0, *lead, *((H,) if lead else ()), L, D), normal(1, *lead, 1, S, D)
    key = key if lead else key[0]
    upstream = normal(7, *query.shape[:-1], DV)
    for shape in BIASES[lead]:
        bias = np.asarray(normal(2, *shape))
        given = {"query": query, "key": key, "value": key[..., :DV].copy(), "bias": bias}
        got = attention_backward(upstream, **given)
        for name, wanted in autograd(upstream, given).items():
            assert getattr(got, name).shape == given[name].shape, (shape, name)
            close(getattr(got, name), wanted, name=(shape, name))


def test_gradient_of_scores_sums_to_zero_over_a_row():
    """A number added to all scores of a row changes nothing; the sink's share counts among them."""
    query, key, value = operands()
    upstream, bias, sink = normal(7, 2, H, L, DV), np.zeros((2, H, L, S)), normal(4, H)
    close(attention_backward(upstream, query, key, value, bias=bias).bias.sum(axis=-1), 0)
    grad = attention_backward(upstream, query, key, value, bias=bias, sink=sink)
    assert abs(grad.sink).min() > 1e-3
    close(grad.bias.sum(axis=(0, 2, 3)) + grad.sink, 0)


def test_gradient_of_a_query_is_a_covariance():
    """dq = scale · Cov(k, v · dO) under the weights: the keys that go with values worth more."""
    query, key, value = normal(0, 1, D), normal(1, S, D), normal(2, S, DV)
    upstream = normal(3, 1, DV)
    weights, worth = attn.attention_weights(query, key)[0], value @ upstream[0]
    wanted = np.cov(np.c_[worth, key].T, aweights=weights, ddof=0)[0, 1:] / np.sqrt(D)
    close(attention_backward(upstream, query, key, value).query[0], wanted)


def test_scaling_laws():
    """Scores see query and key through their product only, and values enter linearly."""
    query, key, value = operands()
    upstream = normal(7, 2, H, L, DV)
    grad = attention_backward(upstream, query, key, value)
    scaled = attention_backward(upstream, 4 * query, key / 4, value)
    close(scaled.query, grad.query / 4)
    close(scaled.key, grad.key * 4)
    close((grad.query * query).sum(), (grad.key * key).sum())
    output = attn.scaled_dot_product_attention(query, key, value)
    close((grad.value * value).sum(), (upstream * output).sum())
    close(attention_backward(-2 * upstream, query, key, value).key, -2 * grad.key)


def test_shared_heads_add_up():
    query, key, value = operands()
    upstream = normal(7, 2, H, L, DV)
    got = attention_backward(upstream, query, key, value)
    apart = attention_backward(upstream, query, np.repeat(key, 2, 1), np.repeat(value, 2, 1))
    close(got.query, apart.query)
    for name in ("key", "value"):
        copies = getattr(apart, name)
        close(getattr(got, name), copies.reshape(2, HKV, 2, *copies.shape[2:]).sum(axis=2))


def test_empty_rows_and_unseen_slots_get_zero():
    """Semantics 3 and 10."""
    for bad, spoilt in itertools.product((np.nan, np.inf), ("key", "value", "both")):
        query, key, value = operands()
        upstream = normal(7, 2, H, L, DV)
        clean = attention_backward(upstream, query, key, value, KeyPadding([5, 0]))
        for name, x in (("key", key), ("value", value)):
            if spoilt in (name, "both"):
                x[0, :, 5:], x[1] = bad, bad
        got = attention_backward(upstream, query, key, value, KeyPadding([5, 0]))
        for one, other in zip(got[:3], clean[:3], strict=True):
            close(one, other, 0)
        assert (got.query[1] == 0).all()
        assert (got.key[0, :, 5:] == 0).all()
        assert (got.value[1] == 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_03_what_comes_back_to_an_empty_row_is_not_read(bad):
    """Semantic 3: its output is 0 whatever the operands are, and so are its gradients."""
    query, key, value = operands()
    options = {"sink": normal(4, H), "bias": normal(3, 1, 1, L, S), "softcap": 2.0}
    mask = np.ones((L, S), bool)
    mask[1:3] = False
    upstream = normal(7, 2, H, L, DV)
    clean = attention_backward(upstream, query, key, value, mask, **options)
    upstream[:, :, 1:3] = bad
    got = attention_backward(upstream, query, key, value, mask, **options)
    for one, other in zip(got, clean, strict=True):
        close(one, other, 0)
    assert (got.query[:, :, 1:3] == 0).all()
    nothing = attention_backward(
        upstream, query, key[..., :0, :], value[..., :0, :], sink=options["sink"]
    )
    assert all((x == 0).all() for x in nothing if x is not None)


SPOILT = ("grad_output", "query", "key", "value")


BAD = (np.nan, np.inf, -np.inf, 1e300)
OTHERS = ({}, {"softcap": 2.0, "sink": normal(4, H)})


@pytest.mark.parametrize("spoilt", SPOILT)
def test_17_gradients_of_rows_that_may_not_see_a_slot_stay_clean(spoilt):
    """Semantic 17: NaN goes to what depends on it, through the pairs that take part, no further."""
    masks = {"array": normal(9, 2, H, L, S) > 0.6, "rule": Causal(), "bias": None}
    for name, bad, options in itertools.product(masks, BAD, OTHERS):
        given = dict(zip(SPOILT, (normal(7, 2, H, L, DV), *operands()), strict=True))
        given |= {"mask": masks[name], "q_offset": 0, "bias": normal(3, 2, H, L, S), **options}
        keep = masks["array"] if name != "rule" else np.broadcast_to(np.tri(L, S) > 0, (2, H, L, S))
        if name == "bias":
            given["bias"] = np.where(keep, given["bias"], -np.inf)
        clean = attention_backward(**given)
        rows = np.zeros((2, H, L), bool)  # the queries that the spoilt slot has to do with
        if spoilt in ("key", "value"):
            given[spoilt][0, 1, 1] = bad
            rows[0, 2:4] = keep[0, 2:4, :, 1]
        else:
            given[spoilt][0, 3, 2] = bad
            rows[0, 3, 2] = keep[0, 3, 2].any()
        slots = (keep & rows[..., None]).any(axis=2).reshape(2, HKV, 2, S).any(axis=2)
        assert rows.any()
        assert not rows.all()
        assert not slots.all()
        got = attention_backward(**given)
        touched = {"query": rows, "key": slots, "value": slots, "bias": rows[..., None] & keep}
        touched["sink"] = rows.any(axis=(0, 2))
        for operand, where in touched.items():
            if getattr(got, operand) is not None:
                one, other = (getattr(grad, operand)[~where] for grad in (got, clean))
                close(one, other, name=(name, bad, operand))
        assert not np.isnan(bad) or np.isnan(got.query[rows]).any()


@pytest.mark.parametrize("shape", [(0, L, S), (2, 0, S), (2, L, 0)])
def test_nothing_at_all(shape):
    batch, L, S = shape
    query, key, value = operands(L, S, batch)
    grad = attention_backward(
        np.ones((batch, H, L, DV)), query, key, value, bias=np.zeros((1, S)), sink=np.zeros(H)
    )
    assert [x.shape for x in grad] == [query.shape, key.shape, value.shape, (1, S), (H,)]
    assert all((x == 0).all() for x in grad)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_dtypes_and_inputs_stay(dtype):
    arrays = [x.astype(dtype) for x in (normal(7, 2, H, L, DV), *operands())]
    extra = {"bias": normal(3, L, S), "sink": normal(4, H).astype(np.float16)}
    for x in (*arrays, *extra.values()):
        x.flags.writeable = False
    got = attention_backward(*arrays, **extra)
    assert [x.dtype for x in got] == [dtype] * 3 + [np.float64, np.float16]
    exact = attention_backward(*(x.astype(np.float64) for x in arrays), **extra)
    for one, other in zip(got, exact, strict=True):
        close(one, other, 100 * np.finfo(one.dtype if one.itemsize < 8 else dtype).eps)


def test_errors():
    query, key, value = operands()
    good = np.ones((2, H, L, DV))
    with pytest.raises(ValueError, match=r"grad_output: .*= \(2, 6, 4, 2\), got \(2, 6, 4, 5\)"):
        attention_backward(query, query, key, value)
    with pytest.raises(TypeError, match=r"one float dtype.*grad_output float32, query float64"):
        attention_backward(good.astype(np.float32), query, key, value)
    with pytest.raises(TypeError, match=r"grad_output: expected numpy\.ndarray, got builtins.list"):
        attention_backward(good.tolist(), query, key, value)
    with pytest.raises(TypeError, match=r"grad_output: expected a plain array, got .*MaskedArray"):
        attention_backward(np.ma.array(good), query, key, value)
    asked = []

    class Asked(attn.Mask):
        def __call__(self, b, h, q, k):
            asked.append(k)
            return k <= q

    with pytest.raises(ValueError, match="grad_output"):
        attention_backward(query, query, key, value, Asked(), q_offset=0)
    assert asked == []  # a call that is wrong asks for no work
    for mask, options in ((Causal(), {}), (good, {}), (None, {"softcap": -1}), (None, {"bias": 3})):
        with pytest.raises((TypeError, ValueError)) as plain:
            attn.scaled_dot_product_attention(query, key, value, mask, **options)
        with pytest.raises(plain.type) as backward:
            attention_backward(good, query, key, value, mask, **options)
        assert str(backward.value) == str(plain.value)
