"""MultiHeadAttention, the layer: against torch's own, its dropout, its modes and its state."""

import copy
import io
import pickle

import numpy as np
import pytest
from reference import normal

from attn import Causal, KeyPadding, KVCache, SlidingWindow

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from attn.torch import MultiHeadAttention, multi_head_attention  # noqa: E402

E, H, L, S, B = 12, 3, 5, 7, 2


def x(length=L, dtype=torch.float32, seed=1):
    return torch.tensor(normal(seed, B, length, E), dtype=dtype)


def theirs(dtype=torch.float32, **options):
    """torch's layer with biases that are not zero, as they are at first."""
    module = nn.MultiheadAttention(E, H, batch_first=True, dtype=dtype, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.tensor(normal(parameter.numel(), *parameter.shape)) / 2)
    return module.eval()


# --- from_torch -----------------------------------------------------------------------------------

STOPS = (7, 4)
MASKS = {
    "no mask": ({}, {}, L),
    "causal": (dict(mask=Causal()), dict(attn_mask=~torch.tril(torch.ones(L, L)).bool()), L),
    "padding": (
        dict(mask=KeyPadding(STOPS)),
        dict(key_padding_mask=torch.arange(S) >= torch.tensor(STOPS)[:, None]),
        S,
    ),
}


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=str
)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(("ours", "given", "keys"), MASKS.values(), ids=MASKS)
def test_from_torch_agrees_with_torchs_layer(ours, given, keys, bias, dtype, tolerance):
    """Outputs and the weights of every head; torch's masks say True = hidden."""
    module = theirs(dtype, bias=bias)
    layer = MultiHeadAttention.from_torch(module)
    context = x(keys, dtype, seed=2) if keys != L else x(dtype=dtype)
    output, weights = module(x(dtype=dtype), context, context, average_attn_weights=False, **given)
    assert (layer(x(dtype=dtype), context, **ours) - output).abs().max() <= tolerance * 4
    got = layer.weights(x(dtype=dtype), context, **ours)
    assert got.shape == (B, H, L, keys)
    assert (got - weights).abs().max() <= tolerance


def test_from_torch_carries_dropout_mode_dtype_and_bias():
    for training in (True, False):
        for bias in (True, False):
            module = theirs(torch.float64, dropout=0.25, bias=bias).train(training)
            layer = MultiHeadAttention.from_torch(module)
            assert layer.dropout == 0.25
            assert all(part.training is training for part in layer.modules())
            assert {p.dtype for p in layer.parameters()} == {torch.float64}
            assert (layer.query.bias is not None) is bias
    assert MultiHeadAttention.from_torch(theirs().to("meta")).query.weight.device.type == "meta"


def test_from_torch_copies():
    module = theirs()
    layer = MultiHeadAttention.from_torch(module)
    before = layer(x())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert torch.equal(layer(x()), before)


@pytest.mark.parametrize(
    ("option", "value"), [("kdim", 5), ("vdim", 7), ("add_bias_kv", True), ("add_zero_attn", True)]
)
def test_from_torch_refuses_what_the_layer_does_not_have(option, value):
    with pytest.raises(ValueError, match=f"uses .*{option}"):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(E, H, **{option: value}))


def test_from_torch_refuses_other_modules():
    with pytest.raises(TypeError, match=r"expected an nn\.MultiheadAttention, got .*Linear"):
        MultiHeadAttention.from_torch(nn.Linear(2, 2))


# --- The layer is the function --------------------------------------------------------------------


@pytest.mark.parametrize("heads", [(1, None), (3, None), (6, 2), (6, 1)], ids=str)
def test_the_layer_is_the_function_with_weights_of_its_own(heads):
    layer = MultiHeadAttention(E, *heads, bias=False).double()
    matrices = [part.weight.T for part in (layer.query, layer.key, layer.value, layer.output)]
    options = dict(mask=KeyPadding([7, 0]), bias=torch.tensor(normal(3, L, S)))
    context = x(S, torch.float64, seed=2)
    expected = multi_head_attention(
        x(dtype=torch.float64), *matrices, num_heads=heads[0], num_kv_heads=heads[1],
        context=context, **options,
    )  # fmt: skip
    got = layer(x(dtype=torch.float64), context, **options)
    assert (got - expected).abs().max() <= 1e-12
    assert layer.key.out_features == E // heads[0] * (heads[1] or heads[0])


def test_without_a_bias_argument_the_projections_have_one():
    assert MultiHeadAttention(E, H).output.bias is not None
    assert [*MultiHeadAttention(E, H, bias=False).state_dict()] == [
        "query.weight", "key.weight", "value.weight", "output.weight",
    ]  # fmt: skip


def test_15_weights_are_per_head_and_before_dropout():
    """Semantic 15: the same in training with dropout as in eval mode; rows sum to 1."""
    layer = MultiHeadAttention(E, H, dropout=0.5).train()
    weights = layer.weights(x(), mask=Causal())
    assert weights.shape == (B, H, L, L)
    assert (weights.sum(dim=-1) - 1).abs().max() <= 1e-6
    assert torch.equal(weights, layer.eval().weights(x(), mask=Causal()))


def test_12_chunks_through_a_cache_equal_one_pass():
    layer = MultiHeadAttention(E, 6, 2).double()
    whole = layer(x(dtype=torch.float64), mask=Causal())
    cache = KVCache(L)
    parts = [
        layer(part, mask=Causal(), cache=cache) for part in x(dtype=torch.float64).split(2, dim=1)
    ]
    assert (torch.cat(parts, dim=1) - whole).abs().max() <= 1e-12
    for options in (dict(q_offset=0), dict(context=x(S, torch.float64))):
        with pytest.raises(ValueError, match="cache: "):
            layer(x(1, torch.float64), cache=cache, **options)
    assert cache.length == L


# --- Dropout --------------------------------------------------------------------------------------


def shown_weights(layer, seed):
    """The weights after dropout of a layer whose values are one-hot and whose output is plain."""
    torch.manual_seed(seed)
    return layer(x(), torch.eye(E)[None].expand(B, E, E))


def transparent(dropout):
    layer = MultiHeadAttention(E, 1, dropout=dropout, bias=False)
    with torch.no_grad():
        for part in (layer.value, layer.output):
            part.weight.copy_(torch.eye(E))
    return layer


@pytest.mark.parametrize("p", [0.25, 0.7])
def test_15_dropout_is_inverted_on_the_weights(p):
    """Semantic 15: each weight is 0 or w/(1 − p), and over many seeds the mean is w."""
    layer = transparent(p).train()
    weights = layer.weights(x(), torch.eye(E)[None].expand(B, E, E))[:, 0].detach()
    total, dropped, seeds = torch.zeros_like(weights), 0, 400
    for seed in range(seeds):
        shown = shown_weights(layer, seed).detach()
        kept = shown != 0
        assert (shown - weights / (1 - p))[kept].abs().max() <= 1e-6
        total += shown
        dropped += (~kept).double().mean().item()
    assert abs(dropped / seeds - p) <= 0.01
    spread = weights.max() * (p / (1 - p) / seeds) ** 0.5
    assert (total / seeds - weights).abs().max() <= 4.5 * spread


def test_15_no_dropout_outside_training():
    """Semantic 15: train, eval and no_grad agree when it is 0; in eval it never acts."""
    layer = transparent(0.5)
    plain = transparent(0.0)
    plain.load_state_dict(layer.state_dict())
    expected = shown_weights(plain.eval(), 0)
    assert torch.equal(shown_weights(layer.eval(), 0), expected)
    assert torch.equal(shown_weights(plain.train(), 0), expected)
    assert not torch.equal(shown_weights(layer.train(), 0), expected)
    with torch.no_grad():
        assert torch.equal(shown_weights(plain.eval(), 0), expected)
    with torch.inference_mode():
        assert torch.equal(shown_weights(plain, 0), expected)


def test_15_dropout_acts_on_weights_and_not_on_features():
    """Semantic 15: features of a head that are alike stay alike; those of the output would not."""
    layer = MultiHeadAttention(E, H, dropout=0.5, bias=False).train()
    with torch.no_grad():
        layer.value.weight.copy_(layer.value.weight[:1].expand(E, E))
        layer.output.weight.copy_(torch.eye(E))
    heads = layer(x()).unflatten(-1, (H, E // H))
    assert (heads - heads[..., :1]).abs().max() <= 1e-6
    assert (heads[:, :, 0] - heads[:, :, 1]).abs().max() > 1e-2  # each head draws its own


def test_15_dropout_is_drawn_anew_and_repeats_with_the_seed():
    layer = transparent(0.5).train()
    assert torch.equal(shown_weights(layer, 3), shown_weights(layer, 3))
    assert not torch.equal(shown_weights(layer, 3), shown_weights(layer, 4))


def test_15_dropout_of_everything_gives_the_outputs_bias():
    layer = MultiHeadAttention(E, H, dropout=1.0).train()
    output = layer(x())
    assert torch.equal(output, layer.output.bias.expand_as(output))
    output.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_15_empty_rows_under_dropout_stay_empty():
    layer = MultiHeadAttention(E, H, dropout=0.5).train()
    output = layer(x(), mask=KeyPadding(0))
    assert torch.equal(output, layer.output.bias.expand_as(output))


# --- State, copies, transforms --------------------------------------------------------------------


def test_state_goes_round_through_a_file():
    layer, other = MultiHeadAttention(E, 6, 2), MultiHeadAttention(E, 6, 2)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x()), layer(x()))


def test_layers_copy_and_pickle():
    layer = MultiHeadAttention(E, 6, 2, dropout=0.1).eval()
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x()), layer(x()))
        assert (twin.dropout, twin.training, twin.num_kv_heads) == (0.1, False, 2)


def test_the_layer_works_under_torch_func():
    layer = MultiHeadAttention(E, H).double()
    inputs, parameters = x(dtype=torch.float64), dict(layer.named_parameters())

    def loss(parameters, one):
        out = torch.func.functional_call(layer, parameters, (one[None],), {"mask": Causal()})
        return out.square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, inputs)
    layer(inputs, mask=Causal()).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert (each[name].sum(dim=0) - parameter.grad).abs().max() <= 1e-10


def test_the_layer_compiles():
    layer = MultiHeadAttention(E, 6, 2)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    mask = Causal() & SlidingWindow(2)
    assert (compiled(x(), mask=mask) - layer(x(), mask=mask)).abs().max() <= 1e-6


def test_gradients_reach_every_parameter():
    layer = MultiHeadAttention(E, 6, 2)
    layer(x(), mask=Causal()).square().sum().backward()
    for name, parameter in layer.named_parameters():
        if name != "key.bias":  # it shifts all scores of a query alike, which the softmax ignores
            assert parameter.grad.abs().max() > 1e-6, name
    assert layer.key.bias.grad.abs().max() <= 1e-4


# --- 9: dtypes ------------------------------------------------------------------------------------


def test_09_projections_follow_autocast():
    """Semantic 9: the layer's linear maps do, the attention between them takes what comes."""
    layer = MultiHeadAttention(E, H)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, weights = layer(x()), layer.weights(x())
        assert layer(x().bfloat16()).dtype == torch.bfloat16
    assert (output.dtype, weights.dtype) == (torch.bfloat16, torch.bfloat16)
    assert (output.float() - layer(x())).abs().max() <= 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_09_layers_work_in_their_own_dtype(dtype):
    layer = MultiHeadAttention(E, H).to(dtype)
    bias = torch.tensor(normal(3, L, L))
    assert layer(x(dtype=dtype), bias=bias).dtype == dtype


# --- 16: refusals ---------------------------------------------------------------------------------

SIZES = {
    "embed_dim": ((13, 3), {}, ValueError, "embed_dim: .*num_heads = 3, got 13"),
    "key heads": ((12, 6, 4), {}, ValueError, "num_heads: .*num_kv_heads = 4, got 6"),
    "more key heads": ((12, 3, 6), {}, ValueError, "num_heads: .*num_kv_heads = 6, got 3"),
    "no heads": ((12, 0), {}, ValueError, "num_heads: .*at least 1, got 0"),
    "no features": ((0, 1), {}, ValueError, "embed_dim: .*at least 1, got 0"),
    "float heads": ((12, 3.0), {}, TypeError, "num_heads: .*3.0"),
    "dropout above 1": ((12, 3), dict(dropout=1.5), ValueError, "dropout: .*1.5"),
    "dropout below 0": ((12, 3), dict(dropout=-0.1), ValueError, "dropout: .*-0.1"),
    "dropout NaN": ((12, 3), dict(dropout=np.nan), ValueError, "dropout: .*nan"),
    "no dropout": ((12, 3), dict(dropout=None), ValueError, "dropout: .*None"),
    "dropout True": ((12, 3), dict(dropout=True), TypeError, "dropout: .*True"),
}


@pytest.mark.parametrize(("sizes", "options", "error", "words"), SIZES.values(), ids=SIZES)
def test_16_the_layer_refuses_wrong_sizes(sizes, options, error, words):
    with pytest.raises(error, match=words):
        MultiHeadAttention(*sizes, **options)


INPUTS = {
    "features": (dict(x=torch.ones(B, L, 11)), ValueError, r"x: .*E = 12, got \(2, 5, 11\)"),
    "a vector": (dict(x=torch.ones(E)), ValueError, r"x: .*got \(12,\)"),
    "context features": (dict(context=torch.ones(B, S, 11)), ValueError, "context: .*E = 12"),
    "context batch": (dict(context=torch.ones(B + 1, S, E)), ValueError, "key: .*batch axes"),
    "dtype": (dict(x=torch.ones(B, L, E).double()), TypeError, "x float64, .*layer float32"),
    "integers": (dict(x=torch.ones(B, L, E, dtype=torch.int64)), TypeError, "x int64"),
    "context dtype": (dict(context=torch.ones(B, S, E).half()), TypeError, "context float16"),
    "an array": (dict(x=np.ones((B, L, E), np.float32)), TypeError, "x: expected torch.Tensor"),
    "mask": (dict(mask=torch.ones(L, L)), TypeError, "mask: .*float32"),
    "mask library": (dict(mask=np.ones((L, L), bool)), TypeError, "mask: .*never mixed"),
    "alignment": (dict(context=torch.ones(B, S, E), mask=Causal()), ValueError, "L = 5.*S = 7"),
}


@pytest.mark.parametrize("method", ["forward", "weights"])
@pytest.mark.parametrize(("changes", "error", "words"), INPUTS.values(), ids=INPUTS)
def test_16_the_layer_refuses_wrong_inputs(method, changes, error, words):
    options = {"x": x(), **changes}
    with pytest.raises(error, match=words):
        getattr(MultiHeadAttention(E, H), method)(**options)
