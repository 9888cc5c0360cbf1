"""Additive and Luong scores: literals, loops, laws, and the layer."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import attn
import attn.torch
from attn import Causal, KeyPadding, SlidingWindow, dense_mask
from attn.torch import AdditiveAttention


@pytest.fixture(params=["numpy", "torch"])
def twin(request):
    """One library: its functions, and how a NumPy array gets in and out."""
    if request.param == "numpy":
        return SimpleNamespace(name="numpy", attn=attn, give=np.asarray, take=np.asarray)
    return SimpleNamespace(
        name="torch", attn=attn.torch, give=lambda x: torch.tensor(np.asarray(x)),
        take=lambda x: x.detach().numpy(),
    )  # fmt: skip


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def operands(*lead, L=5, S=7, Dq=3, Dk=2, A=11):
    return (
        numbers(*lead, L, Dq), numbers(*lead, S, Dk, seed=1), numbers(Dq, A, seed=2),
        numbers(Dk, A, seed=3), numbers(A, seed=4),
    )  # fmt: skip


def weights_in_loops(query, key, w_query, w_key, v, keep):
    """The formula, one number at a time: query (L, Dq), key (S, Dk), keep (L, S)."""
    weights = np.zeros((len(query), len(key)))
    for i, q in enumerate(query):
        scores = {}
        for j, k in enumerate(key):
            if keep[i, j]:
                hidden = [
                    math.tanh(sum(q * w_query[:, a]) + sum(k * w_key[:, a])) for a in range(len(v))
                ]
                scores[j] = sum(x * y for x, y in zip(v, hidden, strict=True))
        total = sum(math.exp(score) for score in scores.values())
        for j, score in scores.items():
            weights[i, j] = math.exp(score) / total
    return weights


# --- Additive -------------------------------------------------------------------------------------


def test_additive_literal(twin):
    """tanh(±ln 2) = ±0.6: three keys at −ln 2, 0 and ln 2 seen from 0, with v = ln 2 / 0.6."""
    query, key = np.zeros((1, 1)), np.log([[0.5], [1.0], [2.0]])
    v = np.array([math.log(2) / 0.6])
    weights = twin.attn.additive_weights(*map(twin.give, (query, key, np.eye(1), np.eye(1), v)))
    assert np.abs(twin.take(weights) - np.array([[1, 2, 4]]) / 7).max() < 1e-15


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_additive_equals_loops(twin, lead):
    given = operands(*lead)
    keep = np.tril(np.ones((5, 7), bool), 1)
    keep[2] = False
    weights = twin.take(twin.attn.additive_weights(*map(twin.give, given), twin.give(keep)))
    assert weights.shape == (*lead, 5, 7)
    for at in np.ndindex(lead):
        expected = weights_in_loops(given[0][at], given[1][at], *given[2:], keep)
        assert np.abs(weights[at] - expected).max() < 1e-12


def test_additive_masks_are_rules_or_arrays_of_any_rank(twin):
    given = tuple(map(twin.give, operands(2)))
    stops = KeyPadding([3, 6])
    by_rule = twin.take(twin.attn.additive_weights(*given, stops))
    keep = np.arange(7) < np.array([3, 6])[:, None, None]
    for mask in (keep, np.broadcast_to(keep, (2, 5, 7)), keep[:, None],
                 dense_mask(stops, 5, 7, batch=2)):  # fmt: skip
        got = twin.take(twin.attn.additive_weights(*given, twin.give(mask)))
        assert np.array_equal(got, by_rule)
    assert (by_rule[0, :, 3:] == 0).all()
    assert (by_rule[1, :, 3:6] > 0).all()
    window = Causal() & SlidingWindow(2)
    late = twin.take(twin.attn.additive_weights(*given, window, q_offset=2))
    assert ((late[0] > 0) == dense_mask(window, 5, 7, q_offset=2)[0, 0]).all()


def test_additive_rows_sum_to_one_or_zero_and_keys_may_be_permuted(twin):
    query, key, *weights = operands(2)
    keep = np.ones((5, 7), bool)
    keep[3], keep[1, :4] = False, False
    run = lambda key, keep: twin.take(  # noqa: E731
        twin.attn.additive_weights(*map(twin.give, (query, key, *weights, keep)))
    )
    once = run(key, keep)
    assert np.abs(once.sum(axis=-1) - [1, 1, 1, 0, 1]).max() < 1e-12
    order = numbers(7, seed=5).argsort()
    assert np.abs(run(key[:, order], keep[:, order]) - once[..., order]).max() < 1e-12


def test_slots_that_take_no_part_may_hold_anything(twin):
    mask = Causal() & KeyPadding(start=1)
    given = map(twin.give, operands(2))
    clean = twin.take(twin.attn.additive_weights(*given, mask, q_offset=0))
    assert (clean[:, 0] == 0).all()
    for spoilt in ("query", "key", "both"):
        query, key, *weights = operands(2)
        if spoilt != "query":
            key[:, 0], key[:, 5:] = np.nan, np.inf
        if spoilt != "key":
            query[:, 0] = np.nan
        given = map(twin.give, (query, key, *weights))
        dirty = twin.take(twin.attn.additive_weights(*given, mask, q_offset=0))
        assert np.array_equal(dirty, clean), spoilt


def test_17_a_row_depends_on_what_it_may_see_alone(twin):
    """One slot spoilt, in one operand at a time: rows that may not see it stay as they are."""
    keep = np.tri(5, 7, 1, dtype=bool)
    for bad, spoilt in itertools.product((np.nan, np.inf, 1e300), ("query", "key")):
        query, key, *weights = operands(2)
        clean = twin.attn.additive_weights(*map(twin.give, (query, key, *weights, keep)))
        touched = np.zeros((2, 5), bool)
        if spoilt == "query":
            query[1, 2], touched[1, 2] = bad, True
        else:
            key[1, 3], touched[1] = bad, keep[:, 3]
        dirty = twin.attn.additive_weights(*map(twin.give, (query, key, *weights, keep)))
        dirty, clean = twin.take(dirty), twin.take(clean)
        assert np.array_equal(dirty[~touched], clean[~touched]), (bad, spoilt)
        assert not (dirty[touched] == clean[touched]).all(axis=-1).any(), (bad, spoilt)


@pytest.mark.parametrize("shape", [(0, 5, 7), (2, 0, 7), (2, 5, 0)])
def test_empty_sizes(twin, shape):
    B, L, S = shape
    given = map(twin.give, operands(B, L=L, S=S))
    assert tuple(twin.attn.additive_weights(*given, KeyPadding(S)).shape) == shape
    scores = twin.attn.luong_scores(*map(twin.give, operands(B, L=L, S=S, Dk=3)[:2]))
    assert tuple(scores.shape) == shape


def test_half_precision_is_worked_out_in_float32(twin):
    given = [x.astype(np.float16) for x in operands(2)]
    half = twin.attn.additive_weights(*map(twin.give, given))
    exact = attn.additive_weights(*(x.astype(np.float64) for x in given))
    assert twin.take(half).dtype == np.float16
    assert np.abs(twin.take(half) - exact).max() < 2.0**-11
    scores = twin.attn.luong_scores(*map(twin.give, (given[0], given[1], given[2][:, :2])))
    assert twin.take(scores).dtype == np.float16


REFUSED = [
    ({"key": numbers(3, 7, 2)}, ValueError, r"\(2, 5, 3\).*\(3, 7, 2\)"),
    ({"key": numbers(2)}, ValueError, r"\(B, S, Dk\)"),
    ({"w_query": numbers(2, 11)}, ValueError, r"w_query: .*\(3, 11\).*\(2, 11\)"),
    ({"w_key": numbers(2, 10)}, ValueError, r"w_key: .*\(2, 11\).*\(2, 10\)"),
    ({"v": numbers(11, 1)}, ValueError, r"v: .*\(A,\).*\(11, 1\)"),
    ({"v": numbers(11).astype(np.float32)}, TypeError, "v float32"),
    ({"query": np.ones((2, 5, 3), int)}, TypeError, "query int64"),
    ({"mask": np.ones((2, 4, 7), bool)}, ValueError, r"mask: .*\(2, 1, 5, 7\).*\(2, 1, 4, 7\)"),
    ({"mask": np.ones((5, 7))}, TypeError, "mask: .*boolean.*float64"),
    ({"mask": Causal()}, ValueError, "L = 5.*S = 7"),
    ({"mask": KeyPadding(8)}, ValueError, "S = 7.*8"),
    ({"mask": lambda b, h, q, k: k <= q}, TypeError, "mask: .*function"),
    ({"mask": Causal(), "q_offset": 2**63}, ValueError, "q_offset: .*64 bits"),
    ({"query": np.ma.array(numbers(2, 5, 3))}, TypeError, "query: expected a plain array"),
    ({"mask": np.ma.array(np.ones((5, 7), bool))}, TypeError, "mask: expected a plain array"),
]


@pytest.mark.parametrize(("changed", "error", "said"), REFUSED)
def test_additive_refuses(twin, changed, error, said):
    names = ("query", "key", "w_query", "w_key", "v")
    given = dict(zip(names, operands(2), strict=True)) | changed
    given = {n: twin.give(x) if type(x) is np.ndarray else x for n, x in given.items()}
    with pytest.raises(error, match=said):
        twin.attn.additive_weights(**given)


def test_libraries_are_never_mixed(twin):
    given = list(operands(2))
    given[3] = torch.tensor(given[3])
    with pytest.raises(TypeError, match="never mixed"):
        twin.attn.additive_weights(*given)
    with pytest.raises(TypeError, match="never mixed"):
        twin.attn.luong_scores(given[0], torch.tensor(given[0]))


# --- Luong ----------------------------------------------------------------------------------------


def test_luong_literals(twin):
    query, key = twin.give([[1.0, 2]]), twin.give([[3.0, 0], [0, 1], [1, 1]])
    assert twin.take(twin.attn.luong_scores(query, key)).tolist() == [[3, 2, 3]]
    weight = twin.give([[0.0, 1], [0, 0]])  # the query's first feature meets the key's second
    assert twin.take(twin.attn.luong_scores(query, key, weight)).tolist() == [[0, 1, 1]]
    weight = twin.give(np.log([[2.0], [1], [1], [3]]))  # ln 2 · q1 + ln 3 · k2
    scores = twin.take(twin.attn.luong_scores(query, key, weight, twin.give([10.0])))
    tanh_of_logarithms = [(4 - 1) / (4 + 1), (36 - 1) / (36 + 1), (36 - 1) / (36 + 1)]
    assert np.abs(scores - 10 * np.array([tanh_of_logarithms])).max() < 1e-14


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_luong_equals_einsum(twin, lead):
    query, key = numbers(*lead, 5, 3), numbers(*lead, 7, 2, seed=1)
    weight = numbers(3, 2, seed=2)
    got = twin.take(twin.attn.luong_scores(*map(twin.give, (query, key, weight))))
    assert got.shape == (*lead, 5, 7)
    assert np.abs(got - np.einsum("...ld,de,...se->...ls", query, weight, key)).max() < 1e-12
    other = numbers(*lead, 7, 3, seed=4)
    got = twin.take(twin.attn.luong_scores(twin.give(query), twin.give(other)))
    assert np.abs(got - np.einsum("...ld,...sd->...ls", query, other)).max() < 1e-12
    weight, v = numbers(5, 11, seed=5), numbers(11, seed=6)
    got = twin.take(twin.attn.luong_scores(*map(twin.give, (query, key, weight, v))))
    both = [np.broadcast_to(x, (*lead, 5, 7, x.shape[-1]))
            for x in (query[..., :, None, :], key[..., None, :, :])]  # fmt: skip
    joined = np.concatenate(both, axis=-1)
    expected = np.einsum("...a,a->...", np.tanh(np.einsum("...d,da->...a", joined, weight)), v)
    assert np.abs(got - expected).max() < 1e-12


def test_concat_is_the_additive_score_with_the_matrices_stacked(twin):
    query, key, w_query, w_key, v = map(twin.give, operands(2))
    weight = twin.give(np.concatenate([twin.take(w_query), twin.take(w_key)]))
    scores = twin.attn.luong_scores(query, key, weight, v)
    weights = twin.attn.additive_weights(query, key, w_query, w_key, v)
    assert np.abs(twin.take(twin.attn.softmax(scores)) - twin.take(weights)).max() < 1e-12


def test_general_with_the_identity_is_dot_and_dot_is_unscaled_attention(twin):
    query, key = twin.give(numbers(2, 5, 3)), twin.give(numbers(2, 7, 3, seed=1))
    dot = twin.take(twin.attn.luong_scores(query, key))
    general = twin.take(twin.attn.luong_scores(query, key, twin.give(np.eye(3))))
    assert np.abs(dot - general).max() < 1e-15
    weights = twin.attn.attention_weights(query, key, scale=1.0)
    assert np.abs(twin.take(twin.attn.softmax(twin.give(dot))) - twin.take(weights)).max() < 1e-12


@pytest.mark.parametrize(
    ("weight", "v", "said"),
    [
        (None, None, "Dq = 3.*Dk = 2"),
        (numbers(2, 3), None, r"weight: .*\(3, 2\).*\(2, 3\)"),
        (numbers(5, 11), numbers(7), r"weight: .*\(5, 7\).*\(5, 11\)"),
        (numbers(5, 11), numbers(11, 1), r"v: .*\(11, 1\)"),
        (None, numbers(7), "v: expected a weight"),
    ],
)
def test_luong_refuses(twin, weight, v, said):
    given = [None if x is None else twin.give(x) for x in (weight, v)]
    with pytest.raises(ValueError, match=said):
        twin.attn.luong_scores(twin.give(numbers(2, 5, 3)), twin.give(numbers(2, 7, 2)), *given)


# --- The layer ------------------------------------------------------------------------------------


def layer_and_inputs(*lead):
    layer = AdditiveAttention(3, 2, 11).double()
    query, key = operands(*lead)[:2]
    return layer, torch.tensor(query), torch.tensor(key), torch.tensor(numbers(*lead, 7, 4, seed=9))


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_the_layer_equals_the_function_of_numpy(lead):
    layer, query, key, value = layer_and_inputs(*lead)
    mask = KeyPadding(4)
    tensors = (query, key, layer.query.weight.T, layer.key.weight.T, layer.v)
    weights = attn.additive_weights(*(x.detach().numpy() for x in tensors), mask)
    assert np.abs(layer.weights(query, key, mask).detach().numpy() - weights).max() < 1e-12
    output = layer(query, key, value, mask)
    assert output.shape == (*lead, 5, 4)
    assert np.abs(output.detach().numpy() - weights @ value.numpy()).max() < 1e-12


def test_the_layer_ignores_what_no_query_sees_and_answers_zero_to_empty_rows():
    layer, query, key, value = layer_and_inputs(2)
    keep = torch.ones(5, 7, dtype=torch.bool)
    keep[:, 3], keep[2] = False, False
    clean = layer(query, key, value, keep)
    assert (clean[:, 2] == 0).all()
    for x in (key, value):
        x[:, 3] = torch.nan
    query[:, 2] = torch.nan
    dirty = layer(query, key, value, keep)
    assert torch.equal(dirty, clean)
    dirty.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
    assert all((p.grad != 0).any() for p in layer.parameters())


def test_functions_and_layer_have_both_derivatives():
    given = [torch.tensor(x, requires_grad=True) for x in operands(1, L=2, S=3, A=2)]
    mask = Causal()
    run = lambda *x: attn.torch.additive_weights(*x, mask, q_offset=0)  # noqa: E731
    assert torch.autograd.gradcheck(run, given)
    assert torch.autograd.gradgradcheck(run, given)
    weight = torch.tensor(numbers(5, 2), requires_grad=True)
    luong = (given[0], given[1], weight, given[4])
    assert torch.autograd.gradcheck(attn.torch.luong_scores, luong)
    assert torch.autograd.gradgradcheck(attn.torch.luong_scores, luong)


def test_functions_ignore_autocast_and_the_layer_accepts_it():
    given = [torch.tensor(x, dtype=torch.float32) for x in operands(2)]
    layer = AdditiveAttention(3, 2, 11)
    value = torch.ones(2, 7, 4)
    alone = attn.torch.additive_weights(*given)
    dot = attn.torch.luong_scores(given[0], given[0])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attn.torch.additive_weights(*given), alone)
        assert torch.equal(attn.torch.luong_scores(given[0], given[0]), dot)
        output = layer(given[0].bfloat16(), given[1], value)
    assert output.dtype == torch.float32
    assert (output - 1).abs().max() < 1e-6  # an average of ones


def test_compiled_without_a_break():
    layer = AdditiveAttention(3, 2, 11)

    def step(query, key, value):
        return layer(query, key, value, Causal(), q_offset=1)

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for L, S in ((5, 7), (3, 11)):
        query, key = torch.randn(2, L, 3), torch.randn(2, S, 2)
        value = torch.randn(2, S, 4)
        expected = step(query, key, value)
        assert torch.allclose(compiled(query, key, value), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("sizes", "error"),
    [((0, 2, 3), ValueError), ((3, 2.0, 3), TypeError), ((3, 2, -1), ValueError)],
)
def test_the_layer_checks_its_sizes(sizes, error):
    with pytest.raises(error, match="size"):
        AdditiveAttention(*sizes)


def test_the_layer_refuses_inputs_of_another_size():
    layer, query, key, value = layer_and_inputs(2)
    with pytest.raises(ValueError, match=r"query: .*3.*\(2, 5, 2\)"):
        layer(query[..., :2], key, value)
    with pytest.raises(ValueError, match=r"key: .*2.*\(2, 7, 1\)"):
        layer.weights(query, key[..., :1])
    with pytest.raises(ValueError, match=r"value: .*S = 7, got 6"):
        layer(query, key, value[:, :6])
