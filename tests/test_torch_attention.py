"""What only torch can show: its own SDPA as a reference, gradients, autocast, compiled graphs."""

import shutil
import warnings

import numpy as np
import pytest
from mask_table import TABLE, HeadReach
from reference import normal

import attn
from attn import Causal, KeyPadding, PrefixLM, SameDocument, SlidingWindow

torch = pytest.importorskip("torch")

from attn.torch import attention_weights, dense_mask, scaled_dot_product_attention  # noqa: E402

INF = torch.inf
NAMES = ("query", "key", "value")


def operands(L=5, S=7, B=3, H=6, Hkv=3, D=2, Dv=4, grad=False, dtype=torch.float64):
    shapes = (B, H, L, D), (B, Hkv, S, D), (B, Hkv, S, Dv)
    arrays = (torch.tensor(normal(i, *shape), dtype=dtype) for i, shape in enumerate(shapes, 1))
    return [x.requires_grad_(grad) for x in arrays]


def tensor(seed, *shape, grad=False):
    return torch.tensor(normal(seed, *shape)).requires_grad_(grad)


# --- Agreement with torch's own function ----------------------------------------------------------


def torch_sdpa(query, key, value, allowed, bias, scale):
    """torch's function with everything in one dense float mask; it knows no softcap and no sink."""
    dense = torch.zeros(allowed.shape, dtype=query.dtype).masked_fill(~allowed, -INF)
    dense = dense if bias is None else dense + bias
    dense = dense.expand(query.shape[0], query.shape[1], -1, -1)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=dense, scale=scale, enable_gqa=True
        )


@pytest.mark.parametrize("heads", [(1, 1), (6, 6), (6, 2), (6, 1)], ids=str)
@pytest.mark.parametrize("row", TABLE, ids=str)
def test_02_agrees_with_torchs_function(row, heads):
    """Semantics 2, 3, 6 and 7: outputs and gradients, over table × heads × bias × scale."""
    for has_bias in (False, True):
        for scale in (None, 0.7, -1.5, 0.0):
            query, key, value = operands(
                row.L, row.S, B=max(row.batch, 2) if row.batch == 1 else row.batch,
                H=heads[0], Hkv=heads[1], grad=True,
            )  # fmt: skip
            bias = tensor(5, 1, heads[0], row.L, row.S, grad=True) if has_bias else None
            sizes = dict(q_offset=row.q_offset, batch=len(query), heads=heads[0])
            allowed = dense_mask(row.mask, row.L, row.S, **sizes)
            options = dict(bias=bias, scale=scale)
            ours = scaled_dot_product_attention(
                query, key, value, row.mask, q_offset=row.q_offset, **options
            )
            theirs = torch_sdpa(query, key, value, allowed, **options)
            assert (ours - theirs).abs().max() <= 1e-12
            inputs = [x for x in (query, key, value, bias) if x is not None]
            cotangent = tensor(6, *ours.shape)
            pairs = zip(
                torch.autograd.grad(ours, inputs, cotangent),
                torch.autograd.grad(theirs, inputs, cotangent),
                strict=True,
            )
            for got, expected in pairs:
                assert (got - expected.nan_to_num()).abs().max() <= 1e-12


def test_agrees_with_the_numpy_twin_on_everything_at_once():
    rule, options = (
        Causal() & KeyPadding([7, 4, 0]),
        dict(softcap=1.5, scale=0.8, q_offset=[2, 0, -1]),
    )
    arrays = [x.numpy() for x in operands()]
    bias, sink = normal(5, 6, 5, 7)[None], normal(6, 6)
    ours = attn.scaled_dot_product_attention(*arrays, rule, bias=bias, sink=sink, **options)
    theirs = scaled_dot_product_attention(
        *map(torch.tensor, arrays),
        rule,
        bias=torch.tensor(bias),
        sink=torch.tensor(sink),
        **options,
    )
    assert np.abs(ours - theirs.numpy()).max() <= 1e-12


# --- Gradients ------------------------------------------------------------------------------------

GRADED = {
    "plain": {},
    "rule": dict(mask=Causal(), q_offset=1),
    "empty rows": dict(mask=Causal() & KeyPadding([3, 0]), q_offset=-1),
    "softcap": dict(softcap=1.3, scale=1.7),
    "sink": dict(mask=KeyPadding([3, 0]), sink="sink"),
    "bias": dict(bias="bias"),
    "everything": dict(mask=SlidingWindow(1), q_offset=1, softcap=1.3, bias="bias", sink="sink"),
}


def graded(options):
    """A function of tensors that require gradients, and those tensors."""
    inputs = operands(3, 5, B=2, H=4, Hkv=2, Dv=3, grad=True)
    names = [name for name in ("bias", "sink") if isinstance(options.get(name), str)]
    extra = {"bias": tensor(5, 1, 4, 3, 5, grad=True), "sink": tensor(6, 4, grad=True)}

    def function(query, key, value, *rest):
        given = {**options, **dict(zip(names, rest, strict=True))}
        return scaled_dot_product_attention(query, key, value, **given)

    return function, inputs + [extra[name] for name in names]


@pytest.mark.parametrize("options", GRADED.values(), ids=GRADED)
def test_gradients_agree_with_differences_once_and_twice(options):
    function, inputs = graded(options)
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize(
    "options",
    [
        dict(mask=Causal(), q_offset=-9),
        dict(mask=KeyPadding(0)),
        dict(bias=torch.full((5, 7), -INF)),
    ],
    ids=["rule", "padding", "bias"],
)
def test_03_empty_rows_have_gradient_zero_and_stay_on_the_graph(options):
    """Semantic 3: even where no pair is left, the result hangs on its inputs."""
    inputs = operands(grad=True)
    bias = options.get("bias")
    bias = None if bias is None else bias.double().requires_grad_()
    sink = tensor(6, 6, grad=True)
    output = scaled_dot_product_attention(*inputs, sink=sink, **(options | {"bias": bias}))
    assert (output == 0).all()
    wanted = [*inputs, sink] + ([] if bias is None else [bias])
    for grad in torch.autograd.grad(output.sum(), wanted):
        assert (grad == 0).all()


def test_03_an_empty_row_does_not_spoil_the_others():
    inputs = operands(grad=True)
    mask = torch.ones(5, 7, dtype=bool)
    mask[2] = False
    kept = [0, 1, 3, 4]
    output = scaled_dot_product_attention(*inputs, mask)
    whole = torch.autograd.grad(output.square().sum(), inputs)
    query, key, value = inputs
    output = scaled_dot_product_attention(query[:, :, kept], key, value)
    for got, expected in zip(
        whole, torch.autograd.grad(output.square().sum(), inputs), strict=True
    ):
        assert (got - expected).abs().max() <= 1e-12


SEEN = torch.arange(7) < torch.tensor([5, 3, 4])[:, None, None, None]
HIDERS = {
    "rule": dict(mask=KeyPadding([5, 3, 4])),
    "array": dict(mask=SEEN),
    "bias": dict(bias=torch.zeros(SEEN.shape).masked_fill(~SEEN, -INF)),
}


@pytest.mark.parametrize("junk", [torch.nan, INF, -INF], ids=str)
@pytest.mark.parametrize("options", HIDERS.values(), ids=HIDERS)
def test_10_gradients_do_not_notice_unseen_slots(options, junk):
    """Semantic 10: the gradient of every input stays what it is without the junk."""

    def run(filling):
        inputs = operands()
        hidden = ~SEEN[:, :, 0, :, None]  # (B, 1, S, 1)
        inputs[1:] = [x.masked_fill(hidden, filling) for x in inputs[1:]]
        inputs = [x.requires_grad_() for x in inputs]
        bias = options.get("bias")
        bias = None if bias is None else bias.double().requires_grad_()
        output = scaled_dot_product_attention(*inputs, **(options | {"bias": bias}))
        wanted = inputs + ([] if bias is None else [bias])
        return output, *torch.autograd.grad(output.square().sum(), wanted)

    for got, expected in zip(run(junk), run(0.0), strict=True):
        assert torch.equal(got, expected)


def test_10_gradients_do_not_notice_queries_that_see_nothing():
    query, key, value = operands()
    mask = torch.arange(5)[:, None] < 3
    query[:, :, 3:] = torch.nan
    inputs = [x.requires_grad_() for x in (query, key, value)]
    output = scaled_dot_product_attention(*inputs, mask)
    for grad in torch.autograd.grad(output.square().sum(), inputs):
        assert grad.isfinite().all()


def test_the_weights_are_differentiable():
    inputs = operands(3, 5, B=2, H=4, Hkv=2, grad=True)[:2]
    assert torch.autograd.gradcheck(
        lambda q, k: attention_weights(q, k, KeyPadding([3, 0])), inputs
    )
    assert torch.autograd.gradcheck(lambda q: attn.torch.softmax(q), inputs[:1])


def test_a_narrow_call_gives_a_wide_bias_its_gradient():
    inputs = operands(dtype=torch.float32)
    bias, sink = tensor(5, 5, 7, grad=True), tensor(6, 6, grad=True)
    output = scaled_dot_product_attention(*inputs, bias=bias, sink=sink)
    for x, grad in zip((bias, sink), torch.autograd.grad(output.sum(), (bias, sink)), strict=True):
        assert grad.dtype == x.dtype
        assert grad.shape == x.shape
        assert grad.abs().max() > 0


def test_11_inputs_on_the_graph_are_not_changed():
    inputs = operands(grad=True)
    versions = [x._version for x in inputs]
    scaled_dot_product_attention(*inputs, KeyPadding(3)).sum().backward()
    assert [x._version for x in inputs] == versions


# --- torch.func -----------------------------------------------------------------------------------


def test_functions_work_under_vmap_and_grad():
    """A bias cannot be looked at inside vmap; the call goes through all the same."""
    query, key, value = operands()
    biases = tensor(5, 4, 5, 7)

    def loss(bias):
        return (
            scaled_dot_product_attention(query, key, value, KeyPadding(3), bias=bias).square().sum()
        )

    together = torch.func.vmap(torch.func.grad(loss))(biases)
    alone = torch.stack([torch.func.grad(loss)(bias) for bias in biases])
    assert (together - alone).abs().max() <= 1e-12
    mapped = torch.func.vmap(scaled_dot_product_attention)(query, key, value)
    assert (mapped - scaled_dot_product_attention(query, key, value)).abs().max() <= 1e-12


# --- 9: autocast, and values that cannot be looked at ---------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_09_functions_ignore_autocast(dtype):
    """Semantic 9: they compute in the dtype they are given."""
    inputs = operands(dtype=dtype)
    options = dict(mask=Causal(), q_offset=2, softcap=2.0)
    outside = [scaled_dot_product_attention(*inputs, **options), attention_weights(*inputs[:2])]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = [scaled_dot_product_attention(*inputs, **options), attention_weights(*inputs[:2])]
    for got, expected in zip(inside, outside, strict=True):
        assert got.dtype == dtype
        assert torch.equal(got, expected)


def test_09_projections_as_a_function_ignore_autocast_too():
    x, eye = torch.randn(2, 5, 6), torch.randn(6, 6)
    run = lambda: attn.torch.multi_head_attention(x, eye, eye, eye, eye, num_heads=3)  # noqa: E731
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = run()
    assert torch.equal(inside, run())


def test_16_values_are_not_read_where_that_costs_a_device_its_pace():
    """Semantic 16: on the meta device there are no values at all, so any look would fail."""
    query, key, value = (x.to("meta") for x in operands(dtype=torch.float32))
    bias, sink = torch.zeros(5, 7, device="meta"), torch.zeros(6, device="meta")
    for mask in (
        None,
        Causal() & KeyPadding([9, 1, 2]),
        SameDocument([[0] * 7] * 3),
        torch.ones(5, 7),
    ):
        mask = mask.to("meta") > 0 if isinstance(mask, torch.Tensor) else mask
        options = dict(bias=bias, sink=sink, q_offset=torch.tensor([2, 2, 1]))
        output = scaled_dot_product_attention(query, key, value, mask, **options)
        assert output.shape == (3, 6, 5, 4)
    with pytest.raises(ValueError, match="head size"):
        scaled_dot_product_attention(query, key[..., :1], value)


# --- Compiled graphs ------------------------------------------------------------------------------


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, **{"backend": "aot_eager", **options})


def check_compiled(row, function, grad):
    inputs = operands(row.L, row.S, B=row.batch, H=2 * row.heads, Hkv=row.heads, grad=grad)
    offset = row.q_offset
    # A NumPy array beside a graph of tensors cannot be traced; ints, lists and tensors can.
    offset = offset.tolist() if isinstance(offset, np.ndarray) else offset
    got = function(*inputs, row.mask, q_offset=offset)
    expected = scaled_dot_product_attention(*inputs, row.mask, q_offset=offset)
    assert (got - expected).abs().max() <= 1e-12
    if not grad:
        return
    grads = (torch.autograd.grad(x.square().sum(), inputs) for x in (got, expected))
    for ours, theirs in zip(*grads, strict=True):
        assert (ours - theirs).abs().max() <= 1e-12


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_a_compiled_graph_equals_eager(row):
    """With gradients where rows differ: the graph of the others is a part of theirs."""
    check_compiled(row, compiled(scaled_dot_product_attention), grad=row.batch > 1)


def test_a_compiled_graph_takes_every_option():
    options = dict(bias=tensor(5, 5, 7), sink=tensor(6, 6), softcap=1.5, q_offset=[2, 0, -1])
    function = compiled(scaled_dot_product_attention)
    array = torch.ones(5, 7, dtype=torch.bool)
    # A changed number must not break the graph either: torch makes it a variable.
    for mask, scale in ((PrefixLM([1, 0, 3]), None), (array, 0.5), (array, 0.25)):
        got = function(*operands(), mask, scale=scale, **options)
        expected = scaled_dot_product_attention(*operands(), mask, scale=scale, **options)
        assert (got - expected).abs().max() <= 1e-12
    weights = compiled(attention_weights)(*operands()[:2], HeadReach(), **options)
    expected = attention_weights(*operands()[:2], HeadReach(), **options)
    assert (weights - expected).abs().max() <= 1e-12


def test_one_compiled_graph_serves_all_lengths():
    graphs = []

    def eager(graph, _):
        graphs.append(graph)
        return graph.forward

    rule = Causal() & KeyPadding(3)
    function = compiled(scaled_dot_product_attention, dynamic=True, backend=eager)
    for L, S in (
        (5, 13),
        (7, 9),
        (17, 11),
    ):  # S - L = 8 first: torch ties sizes that are equal then
        inputs = operands(L, S)
        got = function(*inputs, rule, q_offset=S - L)
        expected = scaled_dot_product_attention(*inputs, rule, q_offset=S - L)
        assert (got - expected).abs().max() <= 1e-12
    assert len(graphs) == 1


def test_a_compiled_graph_still_refuses_wrong_shapes():
    query, key, value = operands()
    with pytest.raises(Exception, match="head size of query"):
        compiled(scaled_dot_product_attention)(query, key[..., :1], value)


@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler")
def test_inductor_equals_eager(tmp_path, monkeypatch):
    """Once with generated C++ code: what `torch.compile(function)` does by itself."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    import torch._inductor.config as inductor

    monkeypatch.setattr(inductor, "compile_threads", 1)  # no pool of processes for one graph
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, while it writes code
        function = compiled(scaled_dot_product_attention, backend="inductor")
        row = next(row for row in TABLE if row.name == "documents-causal")
        check_compiled(row, function, grad=False)  # the C++ compiler is slow
