"""MultiHeadAttention, the layer: against torch's own, its dropout, its modes and its state."""

import copy
import functools
import io
import pickle

import numpy as np
import pytest
from reference import normal

import attn
from attn import Causal, KeyPadding, KVCache, PrefixLM, SlidingWindow

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from attn.torch import MultiHeadAttention, multi_head_attention, rotary  # noqa: E402

E, H, L, S, B = 12, 3, 5, 7, 2
HALF = functools.partial(rotary, layout="half")


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
@pytest.mark.parametrize(("ours", "given", "keys"), MASKS.values(), ids=MASKS)
def test_from_torch_agrees_with_torchs_layer(ours, given, keys, dtype, tolerance):
    """Outputs and the weights of every head; torch's masks say True = hidden."""
    for bias in (True, False):
        module = theirs(dtype, bias=bias)
        layer = MultiHeadAttention.from_torch(module)
        context = x(keys, dtype, seed=2) if keys != L else x(dtype=dtype)
        output, weights = module(
            x(dtype=dtype), context, context, average_attn_weights=False, **given
        )
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


def test_from_torch_of_a_module_that_takes_the_sequence_first_says_so():
    """torch's default takes (L, B, E): the same tensor would be read along other axes."""
    module = theirs()
    module.batch_first = False
    with pytest.warns(
        UserWarning, match=r"takes \(L, B, E\).*takes \(B, L, E\).*transpose"
    ) as told:
        layer = MultiHeadAttention.from_torch(module)
    assert told[0].filename == __file__
    given = x().transpose(0, 1)  # (L, B, E)
    output, _ = module(given, given, given)
    assert (layer(given.transpose(0, 1)) - output.transpose(0, 1)).abs().max() <= 4e-6


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


# --- Rotary ---------------------------------------------------------------------------------------

TURNS = {
    "half": (2, dict(layout="half")), "interleaved": (3, dict(layout="interleaved")),
    "grouped": (3, dict(layout="half", base=50.0)), "partial": (2, dict(layout="half", size=2)),
}  # fmt: skip
PADS = np.array([0, 2])


def turning(heads=H, num_kv_heads=None, **turn):
    turn = {"layout": "half"} | turn
    layer = MultiHeadAttention(
        E, heads, num_kv_heads, rotary=functools.partial(rotary, **turn)
    ).double()
    with torch.no_grad():  # scores of different sizes, so that a position out of place is seen
        layer.query.weight.mul_(4)
    return layer


def by_hand(layer, x, context=None, query_at=None, key_at=None, mask=None, turn=None):
    """Project, turn and attend in NumPy: output and weights."""
    arrays = {name: p.detach().numpy() for name, p in layer.named_parameters()}

    def project(part, x, heads=None):
        out = x @ arrays[f"{part}.weight"].T + arrays[f"{part}.bias"]
        return out if heads is None else attn.split_heads(out, heads)

    source = x if context is None else context
    query = attn.rotary(project("query", x, layer.num_heads), query_at, **turn)
    key = attn.rotary(project("key", source, layer.num_kv_heads), key_at, **turn)
    value = project("value", source, layer.num_kv_heads)
    weights = attn.attention_weights(query, key, mask)
    return project("output", attn.merge_heads(weights @ np.repeat(value, layer.num_heads //
                   layer.num_kv_heads, axis=1))), weights  # fmt: skip


@pytest.mark.parametrize(("heads", "turn"), TURNS.values(), ids=TURNS)
def test_rotary_in_the_layer_is_rotary_by_hand(heads, turn):
    """Positions counted, given, one row of them for each batch row, and beside a context."""
    layer = turning(6 if heads == 3 and "base" in turn else heads, 1 if "base" in turn else None,
                    **turn)  # fmt: skip
    one, other = x(dtype=torch.float64), x(S, torch.float64, seed=2)
    counted, padded = np.arange(L), np.arange(L) - PADS[:, None]
    apart = np.array([4, 2, 9, 0, 1])
    beside = dict(context=other, q_offset=S - L)
    per_row = dict(context=other, q_offset=torch.tensor([2, -1]))
    rows = (np.array([2, -1])[:, None] + counted)[:, None]
    causal = np.tril(np.ones((L, L), bool))
    cases = {
        "counted": ({}, counted, counted, None),
        "causal": (dict(mask=Causal()), counted, counted, causal),
        "given": (dict(positions=torch.tensor(apart)), apart, apart, None),
        "a list": (dict(positions=apart.tolist()), apart, apart, None),
        "rows": (dict(positions=torch.tensor(padded)), padded[:, None], padded[:, None], None),
        "heads": (dict(positions=padded[:, None]), padded[:, None], padded[:, None], None),
        "context": (beside, S - L + counted, np.arange(S), None),
        "offsets": (per_row, rows, np.arange(S), None),
        "offset": (dict(q_offset=3), 3 + counted, counted, None),
    }
    seen = []
    for name, (options, query_at, key_at, mask) in cases.items():
        source = options.get("context")
        output, weights = by_hand(
            layer, one.numpy(), None if source is None else source.numpy(), query_at, key_at, mask,
            turn,
        )  # fmt: skip
        assert np.abs(layer(one, **options).detach().numpy() - output).max() <= 1e-12, name
        got = layer.weights(one, **options).detach().numpy()
        assert np.abs(got - weights).max() <= 1e-12, name
        seen.append(weights)
    still = by_hand(layer, one.numpy(), None, 0, 0, None, turn)[1]
    moved = [np.abs(weights - still).max() for weights in (seen[0], seen[2], seen[4], seen[8])]
    assert min(moved) > 1e-3


def test_heads_are_what_the_layer_attends_with():
    for layer in (turning(6, 2), MultiHeadAttention(E, 6, 2).double()):
        one = x(dtype=torch.float64)
        query, key, value = layer.heads(one)
        assert (query.shape, key.shape) == ((B, 6, L, 2), (B, 2, L, 2))
        output = attn.torch.scaled_dot_product_attention(query, key, value, Causal())
        merged = layer.output(attn.torch.merge_heads(output))
        assert torch.equal(merged, layer(one, mask=Causal()))
        weights = attn.torch.attention_weights(query, key, Causal())
        assert torch.equal(weights, layer.weights(one, mask=Causal()))
        context = x(S, torch.float64, seed=2)
        query, key, value = layer.heads(one, context, q_offset=0)
        assert (query.shape[2], key.shape[2], value.shape[2]) == (L, S, S)


def test_only_distances_count():
    layer, one = turning(), x(dtype=torch.float64)
    here = layer.weights(one)
    for start in (1, -7, 10**6):
        there = layer.weights(one, positions=start + torch.arange(L))
        assert (there - here).abs().max() <= 1e-9
    assert (layer.weights(one, positions=2 * torch.arange(L)) - here).abs().max() > 1e-3
    without = MultiHeadAttention(E, H).double()
    without.load_state_dict(layer.state_dict())  # rotary has no weights of its own
    assert (without.weights(one) - here).abs().max() > 1e-3
    still = layer.weights(one, positions=torch.zeros(L))
    assert (without.weights(one) - still).abs().max() <= 1e-12


def test_12_turned_keys_through_a_cache_equal_one_pass():
    """Semantic 12: keys are kept turned, and counting goes on behind what a ring has dropped."""
    layer, text = turning(6, 2), x(11, torch.float64)
    padded = torch.arange(11) - torch.tensor(PADS)[:, None]
    padding = KeyPadding(start=torch.tensor(PADS))
    for rule, ring in ((Causal(), False), (SlidingWindow(3), True)):
        whole = layer(text, mask=rule)
        for chunks in ((11,), (4, 7), (1,) * 11, (3, 1, 5, 2)):
            cache, parts = KVCache(3 if ring else 11, ring=ring), []
            for part in text.split(list(chunks), dim=1):
                query, key, _ = layer.heads(part, cache=cache)
                at = cache.length + torch.arange(part.shape[1])
                assert torch.equal(query, layer.heads(part, positions=at)[0])
                parts.append(layer(part, mask=rule, cache=cache))
                assert torch.equal(cache.key[:, :, -1], key[:, :, -1])
            assert (torch.cat(parts, dim=1) - whole).abs().max() <= 1e-12
            assert cache.length == 11
    whole = layer(text, mask=Causal() & padding, positions=padded)
    cache, parts = KVCache(11), []
    for part, at in zip(text.split([4, 1, 6], 1), padded.split([4, 1, 6], 1), strict=True):
        parts.append(layer(part, mask=Causal() & padding, cache=cache, positions=at))
    assert (torch.cat(parts, dim=1) - whole).abs().max() <= 1e-12
    alone = layer(text[1:, PADS[1] :], mask=Causal())  # without its padding
    assert (whole[1:, PADS[1] :] - alone).abs().max() <= 1e-12


class Slower(nn.Module):
    """A rotary of the user's own, with a weight: how much a position counts."""

    def __init__(self):
        super().__init__()
        self.pace = nn.Parameter(torch.tensor(0.5))

    def forward(self, x, positions):
        return HALF(x, self.pace * positions)


def test_gradients_go_through_rotary():
    layer, one = turning(), x(dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x, mask=Causal()), (one,))
    layer = MultiHeadAttention(E, H, rotary=Slower())
    layer(x()).square().sum().backward()
    assert "rotary.pace" in dict(layer.named_parameters())
    assert layer.rotary.pace.grad.abs() > 1e-6


def test_rotary_compiles_with_a_cache_too():
    layer, rule = turning(), SlidingWindow(3)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    text = x(6, torch.float64)
    assert (compiled(text, mask=rule) - layer(text, mask=rule)).abs().max() <= 1e-12
    one, other = KVCache(3, ring=True), KVCache(3, ring=True)
    for part in text.split(2, dim=1):
        got = compiled(part, mask=rule, cache=one)
        assert (got - layer(part, mask=rule, cache=other)).abs().max() <= 1e-12
    assert one.length == 6


def test_rotary_copies_and_follows_autocast():
    layer = MultiHeadAttention(E, H, rotary=HALF).eval()
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x()), layer(x()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(x())
        assert {heads.dtype for heads in layer.heads(x())} == {torch.bfloat16}
    assert (output.float() - layer(x())).abs().max() <= 0.05


def test_16_positions_are_refused_by_name():
    layer, plain = turning(), MultiHeadAttention(E, H).double()
    one, context = x(dtype=torch.float64), x(S, torch.float64)
    at = torch.arange(L)
    cases = (
        (plain, dict(positions=at), ValueError, "positions: expected none, .* no rotary"),
        (layer, dict(positions=at, context=context), ValueError, "positions: .*beside a context"),
        (layer, dict(positions=at[:3]), ValueError, r"x.shape\[:-1\] = \(2, 5\), .*got \(3,\)"),
        (layer, dict(positions=torch.zeros(3, L)), ValueError, r"\(B, L\), got \(3, 5\)"),
        (layer, dict(positions=torch.zeros(B, H, L)), ValueError, r"got \(2, 3, 5\)"),
        (layer, dict(positions=torch.zeros(1, B, 1, L)), ValueError, r"got \(1, 2, 1, 5\)"),
        (layer, dict(positions=at > 1), TypeError, "positions: expected numbers, got dtype bool"),
        (layer, dict(context=context), ValueError, r"rotary compares .*L = 5 .*S = 7 .*S - L = 2"),
        (layer, dict(context=context, q_offset=1.5), TypeError, "q_offset: expected an int"),
        (layer, dict(context=context, q_offset=[1, 2, 3]), ValueError, r"q_offset: .*\(3,\)"),
    )
    for method in ("forward", "weights", "heads"):
        for module, options, error, words in cases:
            with pytest.raises(error, match=words):
                getattr(module, method)(one, **options)
    cache = KVCache(9)
    with pytest.raises(ValueError, match="positions"):
        layer(one, cache=cache, positions=at[:3])
    assert cache.length == 0


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


def test_lengths_may_be_mapped_over():
    """KeyPadding's lengths have no values under vmap, and need none."""
    layer, lengths = MultiHeadAttention(E, H).double(), torch.tensor([[5, 1], [2, 0], [3, 4]])
    inputs = x(dtype=torch.float64)
    for rule in (KeyPadding, lambda n: Causal() & KeyPadding(start=n), PrefixLM):
        both = [
            function(lambda n, rule=rule: layer(inputs, mask=rule(n)))
            for function in (torch.func.vmap, lambda f: lambda x: torch.stack([f(n) for n in x]))
        ]
        assert (both[0](lengths) - both[1](lengths)).abs().max() <= 1e-12


def test_the_layer_works_on_a_device_without_numbers():
    layer = MultiHeadAttention(E, H, rotary=HALF).to("meta")
    assert layer(x().to("meta"), mask=Causal()).shape == (B, L, E)


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
    "rotary by name": ((12, 3), dict(rotary="half"), TypeError, "rotary: .*partial.*got 'half'"),
}


def test_16_the_layer_refuses_wrong_sizes():
    for sizes, options, error, words in SIZES.values():
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


def test_16_the_layer_refuses_wrong_inputs():
    for changes, error, words in INPUTS.values():
        for method in ("forward", "weights"):
            with pytest.raises(error, match=words):
                getattr(MultiHeadAttention(E, H), method)(**{"x": x(), **changes})
