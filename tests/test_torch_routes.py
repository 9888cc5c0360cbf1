"""Every route to attention in torch, one hostile operand at a time, against loops over queries.

The oracle takes for each query the keys that it may see and nothing else, so what a hidden slot
holds cannot reach a result or a gradient (semantic 17). Where its answer is not finite, no more is
asked of a route than that it is not finite either.
"""

import itertools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attn import Causal, KeyPadding, Mask, SlidingWindow  # noqa: E402
from attn.torch import (  # noqa: E402
    AdditiveAttention,
    alibi_bias,
    alibi_slopes,
    attention_weights,
    blockwise_attention,
    dense_mask,
    fused_attention,
    fused_path,
    ring_attention,
    scaled_dot_product_attention,
    softmax,
)
from attn.torch.fused import strips, unseen  # noqa: E402

B, H, HKV, L, S, D, DV = 2, 4, 2, 7, 9, 3, 2
INF, NAN = torch.inf, torch.nan
NAMES = ("query", "key", "value")


def blockwise(edge):
    return lambda *operands, **options: blockwise_attention(*operands, **options, block_size=edge)[
        0
    ]


ROUTES = {
    "plain": scaled_dot_product_attention,
    **{f"blockwise {edge}": blockwise(edge) for edge in (1, 4, 512)},
    "fused": fused_attention,
}
RNG = np.random.default_rng(17)
MASKS = {
    "none": None,
    "causal": Causal(),
    "window": SlidingWindow(2, 1),
    "padding": KeyPadding([S - 3, 4]),
    "pairs": torch.as_tensor(RNG.random((L, S)) > 0.5),
    "heads": torch.as_tensor(RNG.random((B, H, L, S)) > 0.4),
}
OPTIONS = {
    "bare": {},
    "softcap": {"softcap": 1.5},
    "sink": {"sink": torch.linspace(-1, 1, H, dtype=torch.float64)},
    "bias": {"bias": torch.linspace(-1, 1, L * S, dtype=torch.float64).reshape(L, S)},
    "removing bias": {
        "bias": torch.zeros(L, S, dtype=torch.float64).masked_fill(MASKS["pairs"], -INF)
    },
    "negative scale": {"scale": -0.7},
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    for name, value in {"ROWS": 2, "KEYS": 2, "TALLEST": 4, "CALL": 0}.items():
        monkeypatch.setattr(strips, name, value)
    monkeypatch.setattr(unseen, "TILE", 2)


def operands():
    shapes = (B, H, L, D), (B, HKV, S, D), (B, HKV, S, DV)
    return [torch.tensor(RNG.normal(size=shape)) for shape in shapes]


def oracle(query, key, value, mask=None, *, bias=None, scale=None, softcap=None, sink=None, **_):
    """Softmax attention, one query at a time, over the keys that it may see."""
    allowed = torch.ones(B, H, L, S, dtype=torch.bool)
    if mask is not None:
        laid = dense_mask(mask, L, S, q_offset=0, batch=B, heads=H)
        allowed = laid.expand(B, H, L, S).clone()
    if bias is not None:
        allowed &= ~torch.isneginf(bias)
        bias = bias.expand(B, H, L, S)
    scale = 1 / math.sqrt(D) if scale is None else scale
    rows = []
    for b, h, i in itertools.product(range(B), range(H), range(L)):
        seen = allowed[b, h, i].nonzero()[:, 0]
        scores = scale * (key[b, h // (H // HKV)][seen] @ query[b, h, i])
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        scores = scores if bias is None else scores + bias[b, h, i][seen]
        logits = scores if sink is None else torch.cat([scores, sink[h, None]])
        if len(seen):
            peak = logits.detach().max()
            weights = torch.exp(logits - (0.0 if peak == -INF else peak))
            total = weights.sum()
            weights = weights[: len(seen)] / (1.0 if total == 0 else total)
            rows.append(weights @ value[b, h // (H // HKV)][seen])
        else:
            rows.append(torch.zeros(DV, dtype=query.dtype))
    return torch.stack(rows).reshape(B, H, L, DV)


def results(function, inputs, mask, options):
    """Output and gradients of all that has one."""
    options = {
        k: x.detach().clone().requires_grad_() if isinstance(x, torch.Tensor) else x
        for k, x in options.items()
    }
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*inputs, mask, **options, q_offset=0)
    leaves = [*inputs, *(x for x in options.values() if isinstance(x, torch.Tensor))]
    cotangent = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    grads = [None] * len(leaves)
    if output.requires_grad:
        grads = torch.autograd.grad(output, leaves, cotangent, allow_unused=True)
    return [output.detach(), *(torch.zeros_like(x) if g is None else g
                               for g, x in zip(grads, leaves, strict=True))]  # fmt: skip


def assert_agree(got, expected, row):
    names = ("output", *NAMES, *("option",) * len(got))[: len(got)]
    for name, ours, theirs in zip(names, got, expected, strict=True):
        fine = theirs.isfinite()
        wrong = fine & ~((ours - theirs).abs() <= 1e-9 * (1 + theirs.abs()))
        assert not wrong.any(), f"{row}: {name} at {wrong.nonzero()[0].tolist()}"
        if name == "output":
            assert not ours[~fine].isfinite().any(), f"{row}: {name} hides what is not finite"


def spoilt(inputs, which, value, slot, feature=slice(None)):
    inputs = [x.clone() for x in inputs]
    inputs[which][:, :, slot, feature] = value
    return inputs


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("mask", MASKS)
def test_17_a_spoilt_slot_reaches_the_rows_that_see_it_and_no_others(mask, option):
    """Semantic 17: each operand x NaN and inf x each route, results and gradients."""
    inputs = operands()
    for which, value in itertools.product(range(3), (NAN, INF, -INF)):
        bad = spoilt(inputs, which, value, slot=3, feature=0)
        expected = results(oracle, bad, MASKS[mask], OPTIONS[option])
        for name, route in ROUTES.items():
            got = results(route, bad, MASKS[mask], OPTIONS[option])
            assert_agree(got, expected, f"{name}, {value} in {NAMES[which]}")


def test_17_slots_of_one_batch_row_spoil_that_row_alone():
    """Two slots, other features, other batch rows: each stays where it is."""
    inputs = operands()
    inputs[2][0, 0, 2, 1], inputs[2][1, 1, 5, 0] = NAN, INF
    for mask in MASKS.values():
        expected = results(oracle, inputs, mask, {})
        for name, route in ROUTES.items():
            assert_agree(results(route, inputs, mask, {}), expected, f"{name}, {mask}")


def test_17_hidden_weights_are_zero_in_a_spoilt_row():
    query, key, _ = operands()
    key[:, :, 3] = NAN
    for mask in (Causal(), MASKS["pairs"]):
        weights = attention_weights(query, key, mask, q_offset=0)
        allowed = dense_mask(mask, L, S, q_offset=0).expand_as(weights)
        assert (weights[~allowed] == 0).all()
        clean = ~allowed[..., 3]
        assert weights[clean].isfinite().all()


def test_17_a_ring_of_one_process_keeps_it_too():
    import torch.distributed as dist

    inputs = operands()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for which, bad in itertools.product((1, 2), (NAN, INF)):
            call = spoilt(inputs, which, bad, slot=3, feature=0)
            for edge in (1, 4, None):
                got, _ = ring_attention(*call, Causal(), q_offset=0, block_size=edge)
                assert_agree([got], [oracle(*call, Causal())], f"{edge}, {bad} in {NAMES[which]}")
    finally:
        dist.destroy_process_group()


def test_17_additive_attention_keeps_it_too():
    layer = AdditiveAttention(D, D, 4).double()
    query, key, value = (x[:, 0] for x in operands())
    clean = layer(query, key, value, Causal(), q_offset=0)
    value[:, 3] = NAN
    got = layer(query, key, value, Causal(), q_offset=0)
    torch.testing.assert_close(got[:, :3], clean[:, :3])
    assert got[:, 3:].isnan().all()


def test_17_gradients_of_gradients_stay_clean():
    query, key, value = operands()
    value[:, :, 5:] = NAN
    seen = slice(0, 5)  # the rows that do not see it
    once = []
    for function in (scaled_dot_product_attention, oracle):
        leaf = query.clone().requires_grad_()
        output = function(leaf, key, value, Causal(), q_offset=0)[:, :, seen]
        (grad,) = torch.autograd.grad(output.square().sum(), leaf, create_graph=True)
        once.append(torch.autograd.grad(grad[:, :, seen].square().sum(), leaf)[0][:, :, seen])
    torch.testing.assert_close(*once)


@pytest.mark.parametrize("option", OPTIONS)
def test_huge_numbers_in_one_operand(option):
    """Products that overflow in hidden pairs are gone; in visible ones they are not hidden."""
    inputs = operands()
    for which, name in itertools.product(range(3), MASKS):
        bad = spoilt(inputs, which, 1e300, slot=3)
        expected = results(oracle, bad, MASKS[name], OPTIONS[option])[0]
        for route, function in ROUTES.items():
            got = function(*bad, MASKS[name], **OPTIONS[option], q_offset=0)
            assert_agree([got], [expected], f"{route}, huge {NAMES[which]}, {name}")


def test_extreme_sinks_on_every_route():
    inputs = operands()
    for mask, sink in itertools.product(MASKS.values(), (1e300, -1e300, -INF)):
        options = {"sink": torch.full((H,), sink, dtype=torch.float64)}
        narrow = [x.float() for x in inputs]  # a sink beyond float32 saturates
        expected = results(oracle, inputs, mask, options)[0]
        for name, route in ROUTES.items():
            got = results(route, narrow, mask, options)
            assert all(x.isfinite().all() for x in got), (name, sink)
            torch.testing.assert_close(got[0], expected.float(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("what", ["mask", "bias"])
def test_length_1_on_each_axis(what):
    """A table that broadcasts along any of its axes says what its full form says."""
    inputs = operands()
    for axes in itertools.product((False, True), repeat=4):
        shape = [1 if one else n for one, n in zip(axes, (B, H, L, S), strict=True)]
        table = torch.as_tensor(RNG.random(shape) > 0.4)
        if what == "mask":
            mask, options = table, {}
        else:
            mask, options = None, {"bias": torch.tensor(RNG.normal(size=shape))}
            options["bias"][~table] = -INF
        expected = results(oracle, inputs, mask, options)
        for name, route in ROUTES.items():
            for rule in (mask,) if what == "mask" else (None, SlidingWindow(2, 1)):
                wanted = expected if rule is mask else results(oracle, inputs, rule, options)
                got = results(route, inputs, rule, options)
                assert_agree(got, wanted, f"{name}, {what} of shape {shape}, {rule!r}")


@pytest.mark.parametrize("mask", MASKS)
def test_18_a_learned_scale_has_its_gradient_on_every_route(mask):
    """Semantic 18: a tensor without axes, of any float dtype."""
    inputs = operands()
    for number, dtype in itertools.product((0.6, -0.4, 0.0), (torch.float64, torch.float32)):
        options = {"scale": torch.tensor(number, dtype=dtype)}
        expected = results(oracle, inputs, MASKS[mask], options)
        for name, route in ROUTES.items():
            got = results(route, inputs, MASKS[mask], options)
            assert got[-1].dtype == dtype
            for ours, theirs in zip(got, expected, strict=True):
                torch.testing.assert_close(
                    ours, theirs, atol=1e-6, rtol=1e-6, msg=f"{name} {number}"
                )
    scale = torch.tensor(0.6, requires_grad=True)
    weights = attention_weights(*inputs[:2], MASKS[mask], scale=scale, q_offset=0)
    assert torch.autograd.grad(weights[..., 0].sum(), scale)[0].isfinite()
    for wrong in (torch.ones(1), torch.tensor(1), torch.tensor(True)):
        with pytest.raises(TypeError, match="scale"):
            scaled_dot_product_attention(*inputs, MASKS[mask], scale=wrong, q_offset=0)


@pytest.mark.parametrize("option", ["bare", "sink", "bias", "softcap"])
def test_03_nothing_comes_back_through_an_empty_row(option):
    """Semantic 3: also a gradient of NaN ends there."""
    mask = torch.ones(L, S, dtype=torch.bool)
    mask[2] = False
    for name, route in ROUTES.items():
        if option == "sink" and name.startswith("blockwise"):
            continue  # its running total holds the sink: an empty row is not told from others
        inputs = [x.requires_grad_() for x in operands()]
        output = route(*inputs, mask, **OPTIONS[option], q_offset=0)
        cotangent = torch.ones_like(output)
        cotangent[:, :, 2] = NAN
        for grad in torch.autograd.grad(output, inputs, cotangent):
            assert grad.isfinite().all(), name


def test_18_slopes_are_exact_to_the_dtype():
    """Semantic 18: powers of two to a fraction, in double precision first."""
    for heads in (3, 8, 12):
        below = 2 ** (heads.bit_length() - 1)
        exact = [2 ** (-8 * (h + 1) / below) for h in range(below)]
        exact += [2 ** (-4 * (2 * h + 1) / below) for h in range(heads - below)]
        for dtype in (torch.float64, torch.float32, torch.float16):
            wide = torch.tensor(exact, dtype=torch.float64)
            assert alibi_slopes(heads, dtype=dtype).tolist() == wide.to(dtype).tolist()


def test_a_far_distance_lowers_a_score_and_removes_nothing():
    bias = alibi_bias(8, 1, 1, q_offset=10**6, dtype=torch.float16)
    assert bias.isfinite().all()
    assert (bias < -1000).all()


def test_softmax_needs_an_axis():
    with pytest.raises(ValueError, match="scores"):
        softmax(torch.tensor(1.0))


def test_no_features_beside_a_sink():
    query, key, value = torch.zeros(1, 2, 3, 0), torch.zeros(1, 2, 4, 0), torch.ones(1, 2, 4, 5)
    for route in ROUTES.values():
        torch.testing.assert_close(
            route(query, key, value, sink=torch.zeros(2)), torch.full((1, 2, 3, 5), 4 / 5)
        )


def test_tensors_are_made_on_the_device_of_the_operands():
    """Whatever the default device is: on the meta device nothing could be computed."""
    inputs = operands()
    expected = {}
    for default in ("cpu", "meta"):
        with torch.device(default):
            for (name, route), mask in itertools.product(ROUTES.items(), MASKS):
                for option in ("bare", "sink", "bias"):
                    got = route(*inputs, MASKS[mask], **OPTIONS[option], q_offset=0)
                    wanted = expected.setdefault((name, mask, option), got)
                    torch.testing.assert_close(got, wanted)


def test_offsets_of_every_integer_type_take_the_same_path():
    query, key, value = operands()
    for offset in (0, np.int64(0), np.int32(0)):
        assert fused_path(query, key, value, Causal(), q_offset=offset) == "sdpa causal"


@pytest.mark.filterwarnings("ignore")
def test_forward_derivatives_of_every_route():
    """torch's kernels have none; such calls take the plain function."""
    inputs = operands()
    tangents = [torch.ones_like(x) for x in inputs]
    for name, mask in MASKS.items():
        call = lambda *x, route, mask=mask: route(*x, mask, q_offset=0)  # noqa: E731
        _, expected = torch.func.jvp(
            lambda *x, c=call: c(*x, route=oracle), (*inputs,), (*tangents,)
        )
        for route, function in ROUTES.items():
            _, got = torch.func.jvp(
                lambda *x, c=call, f=function: c(*x, route=f), (*inputs,), (*tangents,)
            )
            torch.testing.assert_close(got, expected, msg=f"{route}, {name}")


def test_gradients_by_torch_func():
    """Inside torch.func.grad, too, the host may find nothing to look at."""
    inputs = operands()
    for mask in MASKS.values():
        loss = lambda *x, f, m=mask: f(*x, m, q_offset=0).square().sum()  # noqa: E731
        expected = torch.func.grad(lambda *x, g=loss: g(*x, f=oracle), argnums=(0, 1, 2))(*inputs)
        for name, route in ROUTES.items():
            got = torch.func.grad(lambda *x, g=loss, f=route: g(*x, f=f), argnums=(0, 1, 2))(
                *inputs
            )
            for ours, theirs in zip(got, expected, strict=True):
                torch.testing.assert_close(ours, theirs, msg=name)


@pytest.mark.filterwarnings("ignore")
def test_offsets_and_lengths_under_vmap():
    query, key, value = operands()
    offsets = torch.tensor([[0, 1], [2, -1]])
    for name, route in ROUTES.items():
        got = torch.func.vmap(lambda o, f=route: f(query, key, value, Causal(), q_offset=o))(
            offsets
        )
        alone = [route(query, key, value, Causal(), q_offset=o) for o in offsets]
        torch.testing.assert_close(got, torch.stack(alone), msg=name)


@pytest.mark.filterwarnings("ignore")
def test_one_compiled_graph_of_any_length():
    torch._dynamo.reset()
    compiled = torch.compile(fused_attention, dynamic=True, fullgraph=True, backend="aot_eager")
    for length, mask in itertools.product((5, 8), (None, Causal())):
        query, key, value = (x[:, :, :length] for x in operands())
        key, value = (x.repeat_interleave(2, dim=1) for x in (key, value))
        for keys, values in ((key, value), (key[:, ::2], value[:, ::2])):
            got = compiled(query[:, :, :length], keys, values, mask, q_offset=0)
            expected = scaled_dot_product_attention(query, keys, values, mask, q_offset=0)
            torch.testing.assert_close(got, expected)


class Window(Mask):
    """Keys 3 to 8 for rows 0 to 3 and keys 3 to 11 for the others; spans think that key 0 is seen
    by the first rows, since each half of `(k < 1) & (k > 1)` holds somewhere in keys 0 to 2."""

    reads_absolute_positions = True

    def __call__(self, b, h, q, k):
        first, last = (q < 4) & (k < 9), (q >= 4) & (k < 12)
        return ((k >= 3) & (first | last)) | ((q < 4) & (k < 1) & (k > 1))


def test_full_neighbours_that_read_other_keys_stay_apart(monkeypatch):
    """The first strip's runs begin a tile too early and are cut: 3 to 8, and the next 3 to 11."""
    monkeypatch.setattr(strips, "ROWS", 4)
    monkeypatch.setattr(strips, "KEYS", 3)
    query, key, value = (torch.randn(1, 1, n, 2) for n in (8, 12, 12))
    got = fused_attention(query, key, value, Window(), q_offset=0)
    torch.testing.assert_close(
        got, scaled_dot_product_attention(query, key, value, Window(), q_offset=0)
    )
