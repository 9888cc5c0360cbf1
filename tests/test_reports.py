"""156 public bug reports of attention implementations, none of which may be ours.

Every line runs through NumPy and torch, and where it is a call of attention through the plain, the
blockwise and (torch) the fused function. A line that is made for torch alone says so.
"""

import shutil
import tracemalloc
import warnings

import numpy as np
import pytest
import torch
from conftest import Backend
from reports import LINES, array, operands, options, rule_of, strided

import attn
import attn.torch
from attn import Causal, KVCache

KINDS = {"values": [], "error": [], "property": []}
for _line in LINES:
    KINDS[_line["expect"]["type"]].append(_line)
ATTENTION = [line for line in LINES if line["inputs"]["op"] in ("attention", "blockwise")]
VALUES = [line for line in KINDS["values"] if line in ATTENTION]


def by_id(line):
    return line["id"] if isinstance(line, dict) else None


def only_torch(line, backend):
    inputs = line["inputs"]
    if backend.name == "numpy" and inputs.get("backend") == "torch":
        pytest.skip("the report is about torch")


def close(got, line, name="out"):
    want = array(line["expect"][name])
    got = np.asarray(got)
    assert got.shape == want.shape
    expect = line["expect"]
    np.testing.assert_allclose(got, want, rtol=expect.get("rtol", 0), atol=expect["atol"])
    for wrong in expect.get("wrong", ()) if name == "out" else ():
        values = array(wrong["out"] if isinstance(wrong, dict) else wrong)
        assert values.shape != got.shape or not np.allclose(got, values, rtol=1e-6, atol=1e-9)


def routes(line, backend):
    """Each function of the family that can run a line: name -> output."""
    inputs = line["inputs"]
    query, key, value = operands(inputs, backend)
    mask, named = options(inputs, backend, (query.shape, key.shape))
    module = backend.attn
    yield "plain", module.scaled_dot_product_attention(query, key, value, mask, **named)
    for block in inputs.get("blocks", (1, 2, None)):
        tiled = module.blockwise_attention(query, key, value, mask, **named, block_size=block)
        yield f"blockwise {block}", tiled[0]
    if backend.name == "torch":
        yield "fused", module.fused_attention(query, key, value, mask, **named)


def test_every_report_is_here():
    assert len(LINES) == len({line["id"] for line in LINES}) == 156


@pytest.mark.parametrize("line", VALUES, ids=by_id)
def test_values(line, backend):
    only_torch(line, backend)
    for _, output in routes(line, backend):
        close(backend.to_numpy(output), line)
        assert backend.dtype(output) == line["expect"].get("out_dtype", backend.dtype(output))


@pytest.mark.parametrize("line", [v for v in VALUES if "weights" in v["expect"]], ids=by_id)
def test_weights(line, backend):
    query, key, _ = operands(line["inputs"], backend)
    mask, named = options(line["inputs"], backend, (query.shape, key.shape))
    weights = backend.attn.attention_weights(query, key, mask, **named)
    close(backend.to_numpy(weights), line, "weights")


@pytest.mark.parametrize("line", [v for v in VALUES if "lse" in v["expect"]], ids=by_id)
def test_log_sum_exp(line, backend):
    query, key, value = operands(line["inputs"], backend)
    mask, named = options(line["inputs"], backend, (query.shape, key.shape))
    for block in (1, 2, None):
        _, lse = backend.attn.blockwise_attention(
            query, key, value, mask, **named, block_size=block
        )
        close(backend.to_numpy(lse), line, "lse")


@pytest.mark.parametrize("line", [v for v in VALUES if "grad_q" in v["expect"]], ids=by_id)
def test_gradients_by_hand(line):
    numpy = Backend("numpy")
    query, key, value = operands(line["inputs"], numpy)
    mask, named = options(line["inputs"], numpy, (query.shape, key.shape))
    cotangent = array(line["inputs"]["cotangent"])
    grads = attn.attention_backward(cotangent, query, key, value, mask, **named)
    for name in ("query", "key", "value", "bias"):
        if f"grad_{name[0]}" in line["expect"] and name != "bias":
            close(getattr(grads, name), line, f"grad_{name[0]}")
    if "grad_bias" in line["expect"]:
        close(grads.bias, line, "grad_bias")


@pytest.mark.parametrize("function", ["plain", "blockwise", "fused"])
@pytest.mark.parametrize("line", [v for v in VALUES if "grad_q" in v["expect"]], ids=by_id)
def test_gradients_in_torch(line, function):
    back = Backend("torch")
    leaves = [x.requires_grad_() for x in operands(line["inputs"], back)]
    mask, named = options(line["inputs"], back, (leaves[0].shape, leaves[1].shape))
    if "bias" in named:
        named["bias"].requires_grad_()
    call = {
        "plain": attn.torch.scaled_dot_product_attention,
        "blockwise": lambda *a, **k: attn.torch.blockwise_attention(*a, **k, block_size=2)[0],
        "fused": attn.torch.fused_attention,
    }[function]
    call(*leaves, mask, **named).backward(torch.tensor(array(line["inputs"]["cotangent"])))
    for name, leaf in zip("qkv", leaves, strict=True):
        close(leaf.grad.numpy(), line, f"grad_{name}")
    if "grad_bias" in line["expect"]:
        close(named["bias"].grad.numpy(), line, "grad_bias")


# --- Calls that must be refused -------------------------------------------------------------------


def refused_call(inputs, backend):
    if inputs["op"] == "mha_init":
        return attn.torch.MultiHeadAttention(inputs["embed_dim"], inputs["num_heads"])
    if inputs["op"] == "kv_cache":
        cache = KVCache(inputs["capacity"], ring=inputs.get("ring", False))
        if "reorder_after" in inputs:
            token = backend.array(np.zeros((2, 1, 1, 1)), "float64")
            cache.append(token, token)
            return cache.reorder(inputs["reorder_after"][1])
        tokens = backend.array(np.ones((1, 1, inputs["append"], 2)), "float64")
        cache.append(tokens, tokens)
        return cache.trim(inputs["trim_to"])
    query, key, value = (
        backend.array(array(inputs[name]), dtype)
        for name, dtype in zip(
            "qkv", inputs.get("dtypes_qkv", [inputs.get("dtype", "float64")] * 3), strict=True
        )
    )
    mask, named = options(inputs, backend, (query.shape, key.shape))
    for name, dtype in (("keep_float", "float64"), ("keep_int", "int64")):
        if name in inputs:
            mask = backend.array(array(inputs[name]), dtype)
    return backend.attn.scaled_dot_product_attention(query, key, value, mask, **named)


@pytest.mark.parametrize("line", KINDS["error"], ids=by_id)
def test_errors(line, backend):
    classes = tuple({"ValueError": ValueError, "TypeError": TypeError, "IndexError": IndexError}[c]
                    for c in line["expect"]["classes"])  # fmt: skip
    with pytest.raises(classes) as caught:
        refused_call(line["inputs"], backend)
    for word in line["expect"]["mentions"]:
        assert word in str(caught.value)


# --- Values of the other operations ---------------------------------------------------------------


def feed(inputs, backend, cache=None):
    """Feed a line's tokens through a cache, chunk by chunk; return the outputs and the cache."""
    query, key, value = operands(inputs, backend)
    length = key.shape[-2]
    cache = cache or KVCache(inputs.get("capacity", length), ring=inputs.get("ring", False))
    outputs, start = [], 0
    for chunk in inputs["chunks"]:
        new = slice(start, start + chunk)
        keys, values = cache.append(key[..., new, :], value[..., new, :])
        outputs.append(
            backend.attn.scaled_dot_product_attention(
                query[..., new, :], keys, values, rule_of(inputs), scale=inputs.get("scale"),
                q_offset=keys.shape[-2] - chunk,
            )
        )  # fmt: skip
        start += chunk
    return np.concatenate([backend.to_numpy(x) for x in outputs], axis=-2), cache


def other_values(line, backend):
    inputs, module = line["inputs"], backend.attn
    if inputs["op"] == "kv_cache":
        return feed(inputs, backend)[0]
    if inputs["op"] == "merge":
        parts = [[backend.array(array(p[n]), "float64") for p in inputs["parts"]]
                 for n in ("out", "lse")]  # fmt: skip
        output, lse = module.merge_attention(*parts)
        close(backend.to_numpy(lse), line, "lse")
        return backend.to_numpy(output)
    if inputs["op"] == "alibi_slopes":
        return backend.to_numpy(module.alibi_slopes(inputs["num_heads"]))
    x = backend.array(array(inputs["x"]), "float64")
    if inputs["op"] == "rope":
        turned = module.rotary(
            x, backend.array(inputs["positions"]), layout=inputs["layout"], base=inputs["base"]
        )
        return backend.to_numpy(turned)
    weights = [backend.array(array(inputs[name]), "float64") for name in ("wq", "wk", "wv", "wo")]
    heads = {name: inputs[name] for name in ("num_heads", "num_kv_heads")}
    mask = rule_of(inputs)
    if "weights" in line["expect"]:
        query, key = (module.split_heads(x @ w, n)
                      for w, n in zip(weights, heads.values(), strict=False))  # fmt: skip
        close(backend.to_numpy(module.attention_weights(query, key, mask)), line, "weights")
    return backend.to_numpy(module.multi_head_attention(x, *weights, **heads, mask=mask))


@pytest.mark.parametrize("line", [v for v in KINDS["values"] if v not in VALUES], ids=by_id)
def test_other_values(line, backend):
    got = other_values(line, backend)
    if line["inputs"]["op"] == "alibi_slopes":  # made with dtype float32 in torch, by default
        np.testing.assert_allclose(got, array(line["expect"]["out"]), rtol=1e-6)
    else:
        close(got, line)


# --- Behaviour ------------------------------------------------------------------------------------


def run(inputs, backend, **changed):
    """A line's call of attention, with some of its operands replaced."""
    query, key, value = operands(inputs, backend)
    mask, named = options(inputs, backend, (query.shape, key.shape))
    call = {"query": query, "key": key, "value": value, "mask": mask} | named | changed
    function = call.pop("function", backend.attn.scaled_dot_product_attention)
    return backend.to_numpy(function(**call))


def shape_only(line, backend):
    inputs = line["inputs"]
    if inputs["op"] == "mha":
        layer = attn.torch.MultiHeadAttention(inputs["embed_dim"], inputs["num_heads"])
        x = torch.tensor(array(inputs["x"]), dtype=torch.float32)
        got = layer(x, mask=rule_of(inputs)).shape
    else:
        got = run(inputs, backend).shape
    assert list(got) == line["expect"]["shape"]


def chunked_equals_full(line, backend):
    output, cache = feed(line["inputs"], backend)
    close(output, line)
    assert cache.length == line["expect"].get("length", sum(line["inputs"]["chunks"]))
    full = backend.attn.scaled_dot_product_attention(
        *operands(line["inputs"], backend), Causal(), scale=line["inputs"].get("scale")
    )
    np.testing.assert_allclose(output, backend.to_numpy(full), rtol=0, atol=1e-12)


def strided_equals_contiguous(line, backend):
    inputs, views = line["inputs"], {}
    for long, short in (("query", "q"), ("key", "k"), ("value", "v")):
        values = array(inputs[short])
        if "view" in inputs[short]:
            values = strided(values, inputs[short]["view"])
            assert not values.flags.c_contiguous
        views[long] = values if backend.name == "numpy" else torch.from_numpy(values)
    got = run(inputs, backend, **views)
    np.testing.assert_allclose(got, run(inputs, backend), rtol=0, atol=line["expect"]["atol"])


def eval_ignores_dropout(line, backend):
    inputs = line["inputs"]
    layers = []
    for dropout in (inputs["dropout"], 0.0):
        torch.manual_seed(3)
        layers.append(attn.torch.MultiHeadAttention(
            inputs["embed_dim"], inputs["num_heads"], dropout=dropout).eval())  # fmt: skip
    x = torch.tensor(array(inputs["x"]), dtype=torch.float32)
    first, again, plain = (layer(x, mask=rule_of(inputs)) for layer in (layers[0], *layers))
    assert torch.equal(first, again)
    assert torch.equal(first, plain)


def dtype_preserved(line, backend):
    for dtype in line["inputs"]["dtypes"]:
        if dtype == "bfloat16" and backend.name == "numpy":
            continue  # NumPy has no bfloat16
        inputs = line["inputs"] | {"dtype": dtype}
        for _, output in routes({"inputs": inputs}, backend):
            assert backend.dtype(output) == dtype


def autocast_close_to_float64(line, backend):
    inputs = line["inputs"]
    torch.manual_seed(0)
    layer = attn.torch.MultiHeadAttention(inputs["embed_dim"], inputs["num_heads"])
    x, bias = (torch.tensor(array(inputs[n]), dtype=torch.float32) for n in ("x", "bias"))
    with torch.autocast("cpu", torch.bfloat16):
        got = layer(x, bias=bias)
    want = layer.double()(x.double(), bias=bias.double())
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), want, rtol=0, atol=line["expect"]["atol"])


def unequal_lengths_need_alignment(line, backend):
    with pytest.raises(ValueError, match=r"L = 3 .*S = 5 .*q_offset") as caught:
        run(line["inputs"], backend)
    assert "upper-left" in str(caught.value)
    for offset, name in ((0, "upper_left"), (2, "lower_right")):
        got = run(line["inputs"], backend, q_offset=offset)
        np.testing.assert_allclose(got, line["expect"][name], rtol=1e-12)


def full_mask_changes_nothing(line, backend):
    got = run(line["inputs"], backend)
    close(got, line)
    alone = {name: x for name, x in line["inputs"].items() if name != "keep"}
    np.testing.assert_array_equal(got, run(alone, backend))


def gradgradcheck(line, backend):
    leaves = [x.requires_grad_() for x in operands(line["inputs"], backend)]

    def call(*leaves):
        return attn.torch.scaled_dot_product_attention(*leaves, Causal())

    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


def no_dropout_without_training(line, backend):
    """The functions have no dropout at all; two calls agree and so does the layer in eval mode."""
    first, again = (run(line["inputs"], backend) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    with pytest.raises(TypeError, match="dropout"):
        run(line["inputs"], backend, dropout_p=0.5)


def dropout_is_inverted_on_weights(line, backend):
    """Through the layer, where dropout lives: identity projections make its output the weights."""
    inputs = line["inputs"]
    p, seeds = inputs["dropout_p"], 2000
    layer = attn.torch.MultiHeadAttention(5, 1, dropout=p, bias=False).double().train()
    query, key = (torch.tensor(array(inputs[n])) for n in "qk")
    weights = attn.torch.attention_weights(query, key)
    with torch.no_grad():
        for linear in (layer.query, layer.key, layer.value, layer.output):
            linear.weight.copy_(torch.eye(5))
    x = torch.zeros(5, 5, dtype=torch.float64)
    x[:3, :2] = query * (5 / 2) ** 0.5  # undoes the layer's own 1/√5
    total = torch.zeros(3, 5, dtype=torch.float64)
    for seed in range(seeds):
        torch.manual_seed(seed)
        options = dict.fromkeys(("bias", "scale", "softcap", "sink", "q_offset"))
        dropped = attn.torch.attention.attend(
            query, key, torch.eye(5, dtype=torch.float64), None, options, dropout=p
        )
        kept = dropped != 0
        torch.testing.assert_close(dropped[kept], (weights / (1 - p))[kept])
        total += dropped
    assert (total / seeds - weights).abs().max() < line["expect"]["mean_atol"]
    torch.manual_seed(0)
    assert not torch.equal(layer(x), layer.eval()(x))


def cache_fork_independent(line, backend):
    query, key, value = operands(line["inputs"], backend)
    cache = KVCache(4)
    cache.append(key[..., :1, :], value[..., :1, :])
    fork = cache.copy()
    before = backend.to_numpy(fork.key).copy()
    cache.append(key[..., 1:, :], value[..., 1:, :])
    assert (fork.length, cache.length) == (1, 2)
    np.testing.assert_array_equal(backend.to_numpy(fork.key), before)
    key[...], value[...] = 99.0, 99.0  # the cache kept copies
    np.testing.assert_array_equal(backend.to_numpy(fork.key), before)
    keys, values = fork.append(query[..., 1:, :], query[..., 1:, :])
    backend.attn.scaled_dot_product_attention(query[..., 1:, :], keys, values, Causal(), q_offset=1)
    np.testing.assert_array_equal(backend.to_numpy(query), array(line["inputs"]["q"]))


def no_future_leak(line, backend):
    inputs = line["inputs"]
    before = run(inputs, backend)
    for t in range(before.shape[-2] - 1):
        _, key, value = operands(inputs, backend)
        key[..., t + 1 :, :] *= 1e3
        value[..., t + 1 :, :] *= 1e3
        after = run(inputs, backend, key=key, value=value)
        np.testing.assert_array_equal(after[..., : t + 1, :], before[..., : t + 1, :])
        assert (after[..., t + 1 :, :] != before[..., t + 1 :, :]).any()


def rank3_mask_not_batch(line, backend):
    keep = backend.array(array(line["inputs"]["keep_rank3"]))
    with pytest.raises(ValueError, match=r"\(B, 1, L, S\)"):
        run(line["inputs"], backend, mask=keep)
    got = run(line["inputs"], backend, mask=keep[None])
    np.testing.assert_allclose(got, line["expect"]["per_head"], rtol=1e-12)


def peak_memory_below(line, backend):
    inputs = line["inputs"]
    L, d, fill = inputs["L"], inputs["d"], inputs["fill"]
    steps = np.arange(L * d)
    query, key, value = (np.sin(a * steps).reshape(L, d).astype(inputs["dtype"]) for a in fill)
    tracemalloc.start()
    try:
        output, _ = attn.blockwise_attention(
            query, key, value, Causal(), block_size=inputs["block"]
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < line["expect"]["mb"] * 2**20
    rows = line["expect"]["sample_rows"]
    wide = [x.astype(np.float64) for x in (query, key, value)]
    for row in rows:
        want = attn.scaled_dot_product_attention(wide[0][[row]], *wide[1:], Causal(), q_offset=row)
        np.testing.assert_allclose(output[[row]], want, rtol=0, atol=1e-5)


def masked_slots_inert(line, backend):
    for replacement in line["expect"]["replacements"]:
        junk = float(replacement)
        for changed in ("key", "value", "both"):
            _, key, value = operands(line["inputs"], backend)
            for name, x in (("key", key), ("value", value)):
                if changed in (name, "both"):
                    x[line["inputs"]["slots"]] = junk
            close(run(line["inputs"], backend, key=key, value=value), line)


def equals(line, backend):
    for _, output in routes(line, backend):
        close(backend.to_numpy(output), line)


def document_isolation(line, backend):
    inputs, change = line["inputs"], line["expect"]["change_doc"]
    here = np.array(inputs["k_docs"][0]) == change
    before = run(inputs, backend)
    _, key, value = operands(inputs, backend)
    key[..., here, :] += 3.0
    value[..., here, :] -= 5.0
    after = run(inputs, backend, key=key, value=value)
    np.testing.assert_array_equal(after[..., ~here, :], before[..., ~here, :])
    assert (after[..., here, :] != before[..., here, :]).any()


def batch_invariance(line, backend):
    inputs, atol = line["inputs"], line["expect"]["atol"]
    query, key, value = operands(inputs, backend)
    S, lengths = key.shape[-2], inputs["kv_lengths"]
    sides = {
        "right": attn.KeyPadding(lengths),
        "left": attn.KeyPadding(start=[S - n for n in lengths]),
    }
    attention = backend.attn.scaled_dot_product_attention
    for side, padding in sides.items():
        together = backend.to_numpy(attention(query, key, value, Causal() & padding))
        for row, n in enumerate(lengths):
            own = slice(0, n) if side == "right" else slice(S - n, S)
            alone = attention(*(x[row : row + 1, :, own] for x in (query, key, value)), Causal())
            np.testing.assert_allclose(
                together[row : row + 1, :, own], backend.to_numpy(alone), rtol=0, atol=atol
            )


def rope_relative_only(line, backend):
    x, y = (backend.array(array(line["inputs"][n]), "float64") for n in "xy")
    for layout in line["expect"]["layouts"]:
        dots = []
        for pair in line["inputs"]["pairs"]:
            turned = [
                backend.to_numpy(backend.attn.rotary(z, backend.array([p]), layout=layout))
                for z, p in zip((x, y), pair, strict=True)
            ]
            dots.append((turned[0] * turned[1]).sum())
        np.testing.assert_allclose(dots, dots[0], rtol=0, atol=line["expect"]["atol"])
        assert abs(dots[0] - (backend.to_numpy(x) * backend.to_numpy(y)).sum()) > 1e-3


def rope_cache_equals_full(line, backend):
    inputs = line["inputs"]
    x = backend.array(array(inputs["x"]), "float64")
    rotary, attention = backend.attn.rotary, backend.attn.scaled_dot_product_attention
    places = backend.array(np.arange(x.shape[-2]))
    turned = rotary(x, places, layout=inputs["layout"], base=inputs["base"])
    full = backend.to_numpy(attention(turned, turned, x, Causal()))
    cache, parts = KVCache(x.shape[-2]), []
    for chunk in inputs["chunks"]:
        new = slice(cache.length, cache.length + chunk)
        step = rotary(x[..., new, :], places[new], layout=inputs["layout"], base=inputs["base"])
        keys, values = cache.append(step, x[..., new, :])
        parts.append(backend.to_numpy(attention(step, keys, values, Causal(), q_offset=new.start)))
    got = np.concatenate(parts, axis=-2)
    np.testing.assert_allclose(got, full, rtol=0, atol=line["expect"]["atol"])


def close_to_float64(line, backend):
    inputs = line["inputs"]
    x = backend.array(array(inputs["x"]), inputs["dtype"])
    turned = backend.attn.rotary(
        x, backend.array(inputs["positions"]), layout=inputs["layout"], base=inputs["base"]
    )
    assert backend.dtype(turned) == inputs["dtype"]
    close(backend.to_numpy(turned), line, "out64")


def compile_equals_eager(line, backend):
    """The default backend, forward and backward: generated C++ where there is a compiler."""
    import torch._inductor.config as inductor

    torch._dynamo.reset()
    here = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    generated = torch.compile(
        attn.torch.scaled_dot_product_attention, fullgraph=True,
        backend="inductor" if here else "aot_eager",
    )  # fmt: skip
    results = []
    with warnings.catch_warnings(), inductor.patch(compile_threads=1):
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, while it writes code
        for function in (attn.torch.scaled_dot_product_attention, generated):
            leaves = [x.requires_grad_() for x in operands(line["inputs"], backend)]
            output = function(*leaves, Causal())
            output.sum().backward()
            results.append([output.detach(), *(x.grad for x in leaves)])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=0, atol=line["expect"]["atol"])


def weights_rows_sum_to_one(line, backend):
    """Weights are asked for from the layer in training mode, with dropout on."""
    inputs = line["inputs"]
    layer = attn.torch.MultiHeadAttention(6, 2, dropout=inputs["dropout_p"]).double().train()
    weights = layer.weights(torch.tensor(np.sin(np.arange(60.0)).reshape(2, 5, 6)))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 5, dtype=torch.float64),
                               rtol=0, atol=line["expect"]["atol"])  # fmt: skip
    query, key, _ = operands(inputs, backend)
    sums = backend.to_numpy(backend.attn.attention_weights(query, key)).sum(axis=-1)
    np.testing.assert_allclose(sums, 1, rtol=0, atol=line["expect"]["atol"])


@pytest.mark.parametrize("line", KINDS["property"], ids=by_id)
def test_behaviour(line, backend):
    only_torch(line, backend)
    globals()[line["expect"]["name"]](line, backend)
