"""The node tests of ONNX for Attention (93) and RotaryEmbedding (8), through NumPy and torch.

The cases are made in process by the pinned `onnx` package; nothing of them is stored here. An ONNX
node says some things otherwise: heads may be folded into the last axis, causal without a past means
upper-left, `nonpad_kv_seqlen` both pads and places the queries, a short mask blocks what it does
not cover, and window sizes count both sides with -1 for unbounded. The eight RotaryEmbedding cases
carry random numbers for cosines and sines, which are no rotations, so their models are run on true
tables and compared with `rotary`.
"""

import warnings
from functools import cache

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

import attn
from attn import Causal, KeyPadding, SlidingWindow

TOLERANCE = {"float32": 2e-6, "float16": 5e-4, "bfloat16": 5e-3}


@cache
def cases():
    """name -> (node, inputs by name, outputs by name); the package is asked once."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about casts in cases of other operators
        found = collect_testcases(None)
    return {
        case.name: case
        for case in found
        if case.name.startswith(("test_attention", "test_rotary"))
        and not case.name.endswith("_expanded")
    }


def names(start):
    return [name for name in cases() if name.startswith(start)]


def unpack(case):
    """The node's attributes, and its inputs and outputs under the names of the operator."""
    node = case.model.graph.node[0]
    inputs, outputs = case.data_sets[0]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return (
        attributes,
        dict(zip([n for n in node.input if n], inputs, strict=True)),
        dict(zip([n for n in node.output if n], outputs, strict=True)),
    )


def to_backend(x, backend):
    """An array of the case in this library; NumPy takes bfloat16 from ml_dtypes, as onnx does."""
    if x is None or backend.name == "numpy":
        return x
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.astype(np.float32)).bfloat16()
    return torch.from_numpy(x)


def heads_of(x, heads):
    """(B, L, H·D) as (B, H, L, D); four axes stay."""
    return x if x.ndim == 4 else attn.split_heads(x, heads)


def call_of(attributes, inputs):
    """Query, key, value, mask and options that say what the node says."""
    query = heads_of(inputs["Q"], attributes.get("q_num_heads"))
    key, value = (heads_of(inputs[n], attributes.get("kv_num_heads")) for n in "KV")
    past = 0
    if "past_key" in inputs:
        past = inputs["past_key"].shape[2]
        key = np.concatenate([inputs["past_key"], key], axis=2)
        value = np.concatenate([inputs["past_value"], value], axis=2)
    (B, _, L, _), S = query.shape, key.shape[2]
    rules, offset = [], past
    if "nonpad_kv_seqlen" in inputs:
        stop = inputs["nonpad_kv_seqlen"]
        rules.append(KeyPadding(stop))
        offset = stop - L
    if attributes.get("is_causal"):
        rules.append(Causal())
    sides = [attributes.get(f"{side}_window_size", -1) for side in ("left", "right")]
    if sides != [-1, -1]:
        rules.append(SlidingWindow(*(None if side < 0 else side for side in sides)))
    mask = bias = None
    for rule in rules:
        dense = attn.dense_mask(rule, L, S, q_offset=offset, batch=B)
        mask = dense if mask is None else mask & dense
    if "attn_mask" in inputs:
        given = inputs["attn_mask"]
        if given.ndim == 3:
            given = given[None]  # ONNX reads (H, L, S); attn wants it said
        short = S - given.shape[-1]
        blocked = False if given.dtype == bool else -np.inf
        given = np.pad(given, [(0, 0)] * (given.ndim - 1) + [(0, short)], constant_values=blocked)
        if given.dtype == bool:
            mask = given if mask is None else mask & given
        else:
            bias = given
    options = {"bias": bias, "scale": attributes.get("scale")}
    softcap = attributes.get("softcap", 0.0)
    return query, key, value, mask, options | {"softcap": softcap or None}


def scores(backend, query, key, value, mask=None, **options):
    """What goes into the softmax: the logarithm of what comes out, plus that of the denominator."""
    weights = backend.attn.attention_weights(query, key, mask, **options)
    _, lse = backend.attn.blockwise_attention(query, key, value, mask, **options)
    with np.errstate(divide="ignore"):
        return np.log(backend.to_numpy(weights)) + backend.to_numpy(lse)[..., None]


def stage(mode, backend, query, key, value, mask, options):
    """The node's fourth output: scores before anything, after the bias, after the cap; weights."""
    if mode == 3:
        return backend.to_numpy(backend.attn.attention_weights(query, key, mask, **options))
    keep = {0: ("scale",), 1: ("scale", "softcap"), 2: ("scale", "softcap", "bias")}[mode]
    kept = {name: options[name] for name in keep}
    return scores(backend, query, key, value, mask if mode == 2 else None, **kept)


def test_the_cases_are_all_there():
    assert (len(names("test_attention")), len(names("test_rotary"))) == (93, 8)


@pytest.mark.parametrize("name", names("test_attention"))
def test_attention(name, backend):
    """Semantics 2 and 7."""
    attributes, inputs, outputs = unpack(cases()[name])
    query, key, value, mask, options = call_of(attributes, inputs)
    tolerance = TOLERANCE[query.dtype.name]
    if "present_key" in outputs:
        np.testing.assert_array_equal(key, outputs["present_key"])
        np.testing.assert_array_equal(value, outputs["present_value"])
    query, key, value, mask, bias = (
        to_backend(x, backend) for x in (query, key, value, mask, options.pop("bias"))
    )
    options, want = options | {"bias": bias}, outputs["Y"]
    functions = [backend.attn.scaled_dot_product_attention]
    functions.append(lambda *call, **named: backend.attn.blockwise_attention(*call, **named)[0])
    if backend.name == "torch":
        functions.append(backend.attn.fused_attention)
    for function in functions:
        got = backend.to_numpy(function(query, key, value, mask, **options))
        got = attn.merge_heads(got) if want.ndim == 3 else got
        np.testing.assert_allclose(got, want.astype(np.float64), rtol=tolerance, atol=tolerance)
    if "qk_matmul_output" in outputs:
        mode = attributes.get("qk_matmul_output_mode", 0)
        got = stage(mode, backend, query, key, value, mask, options)
        want = outputs["qk_matmul_output"].astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("name", names("test_rotary"))
def test_rotary_embedding(name, backend):
    case = cases()[name]
    attributes, inputs, _ = unpack(case)
    x = inputs["input"]
    size = attributes.get("rotary_embedding_dim", 0)
    heads = heads_of(x, attributes.get("num_heads"))
    turned = size or heads.shape[-1]
    table = inputs["cos_cache"].reshape(-1, turned // 2)
    rows = len(table)
    positions = inputs.get("position_ids")
    frequencies = 10_000.0 ** (-np.arange(turned // 2) / (turned / 2))
    if positions is None:  # the tables are given for each token
        positions = np.arange(rows).reshape(inputs["cos_cache"].shape[:-1])
    angles = np.arange(rows)[:, None] * frequencies
    true = {"cos_cache": np.cos(angles), "sin_cache": np.sin(angles)}
    true = {n: t.reshape(inputs[n].shape).astype(np.float32) for n, t in true.items()}
    (want,) = ReferenceEvaluator(case.model).run(None, inputs | true)
    layout = "interleaved" if attributes.get("interleaved") else "half"
    got = backend.attn.rotary(
        to_backend(heads, backend), to_backend(positions[:, None], backend), layout=layout,
        size=size or None,
    )  # fmt: skip
    got = backend.to_numpy(got)
    got = attn.merge_heads(got) if x.ndim == 3 else got
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE["float32"])
    assert np.abs(got - x).max() > 0.1
