"""Masks of other libraries: literals by hand, there and back, and the libraries themselves."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import bias as torch_bias

import attn
from attn import Causal, KeyPadding, SameDocument, SlidingWindow, conventions, dense_mask
from attn.heads import merge_heads, split_heads

B, H, L, S, D = 2, 3, 5, 7, 2
INF = np.inf


def random_mask(*shape, seed=0):
    """No empty row: libraries disagree on those."""
    mask = np.random.default_rng(seed).random(shape) < 0.5
    mask[..., 1] = True
    return mask


def operands(seed=1, length=L, dtype=np.float64):
    rng = np.random.default_rng(seed)
    shapes = (B, H, length, D), (B, H, S, D), (B, H, S, D)
    return [rng.normal(size=shape).astype(dtype) for shape in shapes]


MASKS = {
    "all axes": random_mask(B, H, L, S),
    "batch": random_mask(B, 1, L, S),
    "heads": random_mask(1, H, L, S),
    "pairs": random_mask(1, 1, L, S),
    "keys": random_mask(B, 1, 1, S),
}


@pytest.fixture(params=MASKS, ids=str)
def mask(request):
    return MASKS[request.param]


def same(one, two):
    """Equal as masks: booleans of the same type that broadcast to the same pairs."""
    assert one.dtype == two.dtype
    assert type(one) is type(two)
    one, two = np.asarray(one), np.asarray(two)
    assert np.array_equal(*(np.broadcast_to(x, (B, H, L, S)) for x in (one, two)))


@pytest.fixture(params=[np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def kind(request):
    return request.param


# Literals by hand


def test_torch_mha_by_hand():
    attn_mask = np.array([[False, True], [False, False]])
    padding = np.array([[False, False], [True, False]])
    mask = conventions.from_torch_mha(attn_mask, padding)
    assert mask.astype(int).tolist() == [[[[1, 0], [1, 1]]], [[[0, 0], [0, 1]]]]
    floats = conventions.from_torch_mha(np.where(attn_mask, -INF, 0), np.where(padding, -1e9, 0.0))
    assert np.array_equal(floats, mask)


def test_torch_mha_heads_are_the_fast_axis():
    attn_mask = np.zeros((B * H, L, S), bool)
    attn_mask[1 * H + 2, 0, 3] = True  # batch row 1, head 2
    mask = conventions.from_torch_mha(attn_mask, num_heads=H)
    assert np.argwhere(~mask).tolist() == [[1, 2, 0, 3]]


def test_additive_by_hand():
    bias = np.array([0.0, -0.0, -INF, -1e9, -1e4, np.finfo(np.float64).min])
    assert conventions.from_additive(bias).tolist() == [True, True, False, False, False, False]
    assert conventions.to_additive(np.array([True, False])).tolist() == [0, -INF]
    with pytest.raises(ValueError, match=r"bias: expected 0 .* or at most -9999"):
        conventions.from_additive(np.array([0.0, -3.0]))
    with pytest.raises(ValueError, match="pass it as bias="):
        conventions.from_additive(np.array([np.nan]))


def test_keras_by_hand():
    mask = conventions.from_keras(
        attention_mask=np.array([[[1, 1], [1, 1]]]),
        query_mask=np.array([[1, 0]]),
        value_mask=np.array([[True, False]]),
    )
    assert mask.astype(int).tolist() == [[[[1, 0], [0, 0]]]]


def test_hugging_face_by_hand():
    two = conventions.from_hugging_face(np.array([[0, 1, 1]]))
    assert two.astype(int).tolist() == [[[[0, 1, 1]]]]
    smallest = np.finfo(np.float32).min
    four = np.array([[[[0.0, smallest], [0.0, 0.0]]]], np.float32)
    assert conventions.from_hugging_face(four).astype(int).tolist() == [[[[1, 0], [1, 1]]]]
    assert np.array_equal(conventions.to_hugging_face_4d(np.tril(np.ones((2, 2), bool))), four)


def test_onnx_masks_may_be_too_short():
    mask = conventions.from_onnx(np.array([[0.0, -INF]]), k_len=4)
    assert mask.astype(int).tolist() == [[[[1, 0, 0, 0]]]]
    tensor = conventions.from_onnx(torch.tensor([[True, False]]), k_len=3)
    assert tensor.tolist() == [[[[True, False, False]]]]


def test_flash_lengths_by_hand():
    mask = conventions.from_flash_lengths([0, 2, 3], [0, 1, 4])
    assert mask[0, 0].astype(int).tolist() == [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 1]]
    causal = conventions.from_flash_lengths([0, 2], [0, 3], causal=True)
    assert causal[0, 0].astype(int).tolist() == [[1, 1, 0], [1, 1, 1]]  # lower-right


def test_flash_windows_by_hand():
    """Semantic 5."""
    mask = conventions.from_flash_window((0, 1), 2, 4)
    assert mask[0, 0].astype(int).tolist() == [[0, 0, 1, 1], [0, 0, 0, 1]]
    assert conventions.from_flash_window((-1, -1), 2, 3).all()


# There and back


def test_torch_sdpa_there_and_back(kind):
    for mask in MASKS.values():
        mask = kind(mask)
        same(conventions.from_torch_sdpa(conventions.to_torch_sdpa(mask)), mask)
        same(conventions.from_torch_sdpa(conventions.to_additive(mask)), mask)


def test_additive_there_and_back(kind):
    for mask in MASKS.values():
        mask = kind(mask)
        for fill in (-INF, -1e9, -1e4):
            same(conventions.from_additive(conventions.to_additive(mask, fill=fill)), mask)
        dtype = torch.float16 if isinstance(mask, torch.Tensor) else np.float16
        bias = conventions.to_additive(mask, dtype=dtype, fill=-65504.0)
        assert bias.dtype == dtype
        same(conventions.from_additive(bias), mask)


def test_torch_mha_there_and_back(kind):
    for mask in MASKS.values():
        mask = kind(mask)
        masks = conventions.to_torch_mha(mask, num_heads=H)
        same(conventions.from_torch_mha(**masks._asdict(), num_heads=H), mask)


def test_keras_there_and_back(kind):
    for name in ("batch", "pairs"):
        mask = kind(MASKS[name])
        same(conventions.from_keras(conventions.to_keras(mask)), mask)


def test_jax_and_onnx_there_and_back(kind):
    for mask in MASKS.values():
        mask = kind(mask)
        same(conventions.from_jax(conventions.to_jax(mask)), mask)
        same(conventions.from_onnx(conventions.to_onnx(mask)), mask)


def test_hugging_face_there_and_back(kind):
    for mask in MASKS.values():
        mask = kind(mask)
        same(conventions.from_hugging_face(conventions.to_hugging_face_4d(mask)), mask)
    keys = kind(MASKS["keys"])
    two = conventions.to_hugging_face_2d(keys)
    assert two.shape == (B, S)
    same(conventions.from_hugging_face(two), keys)


FLOATS = ("float16", "bfloat16", "float32", "float64")


def spellings(name):
    """A dtype as people write it: by its name, as a dtype or a class of either library."""
    found = [name, getattr(torch, name)]
    if name != "bfloat16":
        found += [np.dtype(name), getattr(np, name)]
    return [*found, float] if name == "float64" else found


def test_a_dtype_may_be_written_in_every_way(kind):
    """Semantic 1: the result is of the mask's library; hidden pairs hold its smallest number."""
    mask, library = kind(np.array([[True, False]])), np if kind is np.asarray else torch
    for name in FLOATS:
        for dtype in [*spellings(name), *([None] if name == "float32" else [])]:
            if library is np and name == "bfloat16":
                with pytest.raises(
                    TypeError, match=r"dtype: expected a float dtype of numpy .*bfl"
                ):
                    conventions.to_additive(mask, dtype=dtype)
                continue
            own = getattr(library, name)
            four = conventions.to_hugging_face_4d(mask, dtype=dtype)
            two = conventions.to_additive(mask, dtype=dtype)
            assert four.dtype == two.dtype == own, dtype
            assert four.flatten().tolist() == [0, float(library.finfo(own).min)], dtype
            assert two.flatten().tolist() == [0, -INF], dtype


def test_a_dtype_that_is_no_float_is_refused(kind):
    mask = kind(np.array([[True, False]]))
    for dtype in (int, bool, np.int32, "int64", torch.int64, "wide", "cpu", 3, ()):
        for convert in (conventions.to_additive, conventions.to_hugging_face_4d):
            with pytest.raises(TypeError, match=r"dtype: expected a float dtype of (numpy|torch) "):
                convert(mask, dtype=dtype)


def test_a_fill_has_to_fit_its_dtype(kind):
    mask = kind(np.array([[True, False]]))
    with pytest.raises(ValueError, match="fill: expected -inf or a number of at least -65504"):
        conventions.to_additive(mask, dtype="float16", fill=-1e9)
    with pytest.raises((TypeError, ValueError), match="fill: "):
        conventions.to_additive(mask, fill="-inf")


def test_flash_there_and_back():
    for starts in (([0, 2, 5], [0, 3, 7]), ([0, 5], [0, 7]), ([0, 1, 2, 5], [0, 1, 3, 7])):
        found = conventions.to_flash_lengths(conventions.from_flash_lengths(*starts))
        assert [x.tolist() for x in found] == [list(x) for x in starts]
        assert all(x.dtype == np.int32 for x in found)
    for window in ((-1, -1), (2, 0), (0, 0), (-1, 0), (1, 2), (3, -1)):
        mask = conventions.from_flash_window(window, L, S)
        again = conventions.from_flash_window(conventions.to_flash_window(mask), L, S)
        assert np.array_equal(again, mask)
        assert conventions.to_flash_window(torch.from_numpy(mask)) == conventions.to_flash_window(
            mask
        )


def test_flash_agrees_with_the_rules():
    ids = np.repeat(np.arange(3), (2, 4, 1))
    starts = [0, 2, 6, 7]
    assert np.array_equal(
        conventions.from_flash_lengths(starts, window_size=(1, -1), causal=True),
        dense_mask(SameDocument(ids) & SlidingWindow(1), 7, 7),
    )
    assert np.array_equal(
        conventions.from_flash_window((2, 1), L, S),
        dense_mask(SlidingWindow(2, 1), L, S, q_offset=S - L),
    )


# The libraries themselves


def test_torch_sdpa_itself(mask):
    query, key, value = operands()
    expected = attn.scaled_dot_product_attention(query, key, value, mask)
    tensors = [torch.from_numpy(x) for x in (query, key, value)]
    theirs = conventions.to_torch_sdpa(torch.from_numpy(mask))
    for attn_mask in (theirs, conventions.to_additive(theirs, dtype=torch.float64)):
        output = F.scaled_dot_product_attention(*tensors, attn_mask)
        np.testing.assert_allclose(output.numpy(), expected, atol=1e-12)


def identity_mha():
    layer = nn.MultiheadAttention(H * D, H, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.eye(H * D).repeat(3, 1))
        layer.out_proj.weight.copy_(torch.eye(H * D))
    return layer


def test_torch_multihead_attention_itself(mask):
    query, key, value = operands()
    expected = attn.scaled_dot_product_attention(query, key, value, mask)
    flat = [torch.from_numpy(merge_heads(x)) for x in (query, key, value)]
    masks = conventions.to_torch_mha(torch.from_numpy(mask), num_heads=H, batch=B)
    output = identity_mha()(*flat, **masks._asdict())[0].detach().numpy()
    np.testing.assert_allclose(split_heads(output, H), expected, atol=1e-12)


def test_torch_multihead_attention_takes_what_we_read_as_floats_and_padding_too():
    query, key, value = operands()
    hide, padding = ~MASKS["pairs"][0, 0], ~MASKS["keys"][:, 0, 0]
    mask = conventions.from_torch_mha(hide, padding)
    expected = attn.scaled_dot_product_attention(query, key, value, mask)
    flat = [torch.from_numpy(merge_heads(x)) for x in (query, key, value)]
    for convert in (
        torch.from_numpy,
        lambda x: conventions.to_additive(torch.from_numpy(~x)).double(),
    ):
        theirs = dict(attn_mask=convert(hide), key_padding_mask=convert(padding))
        output = identity_mha()(*flat, **theirs)[0].detach().numpy()
        np.testing.assert_allclose(split_heads(output, H), expected, atol=1e-12)


def test_torch_is_causal_lies_upper_left():
    query, key, value = operands()
    tensors = [torch.from_numpy(x) for x in (query, key, value)]
    expected = attn.scaled_dot_product_attention(query, key, value, Causal(), q_offset=0)
    output = F.scaled_dot_product_attention(*tensors, is_causal=True)
    np.testing.assert_allclose(output.numpy(), expected, atol=1e-12)
    expected = attn.scaled_dot_product_attention(query, key, value, Causal(), q_offset=S - L)
    output = F.scaled_dot_product_attention(*tensors, torch_bias.causal_lower_right(L, S))
    np.testing.assert_allclose(output.numpy(), expected, atol=1e-12)


def run_onnx(query, key, value, attn_mask=None, **attributes):
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    inputs = {"Q": query, "K": key, "V": value}
    if attn_mask is not None:
        inputs["attn_mask"] = attn_mask
    kinds = {np.dtype(bool): TensorProto.BOOL, np.dtype(np.float32): TensorProto.FLOAT}
    infos = [
        helper.make_tensor_value_info(name, kinds[x.dtype], x.shape) for name, x in inputs.items()
    ]
    output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)
    node = helper.make_node("Attention", list(inputs), ["Y"], **attributes)
    graph = helper.make_graph([node], "attention", infos, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    return ReferenceEvaluator(model).run(None, inputs)[0]


def test_onnx_itself(mask):
    pytest.importorskip("onnx", reason="onnx is not installed")
    query, key, value = operands(dtype=np.float32)
    expected = attn.scaled_dot_product_attention(query, key, value, mask)
    theirs = np.broadcast_to(conventions.to_onnx(mask), (*mask.shape[:2], L, S))
    for attn_mask in (theirs, conventions.to_additive(theirs)):
        output = run_onnx(query, key, value, np.ascontiguousarray(attn_mask))
        np.testing.assert_allclose(output, expected, atol=1e-6)


def test_onnx_pads_short_masks_and_lies_upper_left_without_a_past():
    pytest.importorskip("onnx", reason="onnx is not installed")
    query, key, value = operands(dtype=np.float32)
    short = np.ascontiguousarray(MASKS["pairs"][..., :4])
    expected = attn.scaled_dot_product_attention(
        query, key, value, conventions.from_onnx(short, k_len=S)
    )
    np.testing.assert_allclose(run_onnx(query, key, value, short), expected, atol=1e-6)
    expected = attn.scaled_dot_product_attention(query, key, value, Causal(), q_offset=0)
    np.testing.assert_allclose(run_onnx(query, key, value, is_causal=1), expected, atol=1e-6)


def test_jax_itself(mask):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    query, key, value = operands(dtype=np.float32)
    theirs = [x.swapaxes(1, 2) for x in (query, key, value)]  # (B, L, H, D)

    def close(output, expected):
        np.testing.assert_allclose(np.swapaxes(output, 1, 2), expected, atol=1e-5)

    output = jax.nn.dot_product_attention(*theirs, mask=conventions.to_jax(mask))
    close(output, attn.scaled_dot_product_attention(query, key, value, mask))
    output = jax.nn.dot_product_attention(*theirs, is_causal=True)
    close(output, attn.scaled_dot_product_attention(query, key, value, Causal(), q_offset=0))
    stops = np.array([3, 6], np.int32)
    output = jax.nn.dot_product_attention(*theirs, key_value_seq_lengths=stops)
    close(output, attn.scaled_dot_product_attention(query, key, value, KeyPadding(stop=stops)))
    output = jax.nn.dot_product_attention(*theirs, local_window_size=(2, 1))
    close(
        output,
        attn.scaled_dot_product_attention(query, key, value, SlidingWindow(2, 1), q_offset=0),
    )


def keras_layer(keras):
    layer = keras.layers.MultiHeadAttention(H, D, use_bias=False)
    layer.build((B, L, H * D), (B, S, H * D), (B, S, H * D))
    eye = np.eye(H * D)
    three = [eye.reshape(H * D, H, D)] * 3
    layer.set_weights([*three, eye.reshape(H, D, H * D)])
    return layer


@pytest.mark.parametrize("name", ["batch", "pairs"])
def test_keras_itself(name):
    keras = pytest.importorskip("keras", reason="keras is not installed")
    query, key, value = operands(dtype=np.float32)
    flat = dict(zip(("query", "key", "value"), map(merge_heads, (query, key, value)), strict=True))
    layer = keras_layer(keras)

    def close(output, mask, **options):
        expected = attn.scaled_dot_product_attention(query, key, value, mask, **options)
        output = keras.ops.convert_to_numpy(output)
        np.testing.assert_allclose(split_heads(output, H), expected, atol=1e-5)

    mask = MASKS[name]
    theirs = np.broadcast_to(conventions.to_keras(mask), (len(mask), L, S))
    close(layer(**flat, attention_mask=theirs), mask)
    close(layer(**flat, use_causal_mask=True), Causal(), q_offset=0)
    padding = MASKS["keys"][:, 0, 0]
    close(
        layer(**flat, attention_mask=theirs, value_mask=padding),
        conventions.from_keras(theirs, value_mask=padding),
    )


# What is refused


MASK = MASKS["pairs"]


REFUSED = (
    (lambda c: c.from_torch_sdpa(MASK.astype(int)), TypeError, "attn_mask: .* got dtype int64"),
    (lambda c: c.from_torch_sdpa([[True]]), TypeError, "attn_mask: expected a boolean array"),
    (lambda c: c.to_torch_sdpa(MASK.astype(float)), TypeError, "mask: expected a boolean"),
    (lambda c: c.to_additive(MASK.astype(float)), TypeError, "mask: expected a boolean"),
    (lambda c: c.from_additive(MASK), TypeError, "bias: expected a float array"),
    (lambda c: c.from_torch_mha(), ValueError, "got None for both"),
    (lambda c: c.from_torch_mha(MASK), ValueError, r"attn_mask: expected shape \(L, S\)"),
    (lambda c: c.from_torch_mha(MASK[0]), ValueError, "num_heads: expected .* B·H = 1"),
    (
        lambda c: c.from_torch_mha(MASKS["heads"][0], num_heads=2),
        ValueError,
        "num_heads: expected a number of heads that divides B·H = 3, .* got 2",
    ),
    (lambda c: c.from_torch_mha(None, MASK), ValueError, r"key_padding_mask: .* \(B, S\)"),
    (lambda c: c.to_torch_mha(MASK[0], num_heads=1), ValueError, "mask: expected shape"),
    (
        lambda c: c.to_torch_mha(MASKS["heads"], num_heads=2),
        ValueError,
        "mask: expected 1 or num_heads = 2 heads, got 3",
    ),
    (
        lambda c: c.to_torch_mha(MASKS["keys"], num_heads=2, batch=5),
        ValueError,
        "mask: expected 1 or batch = 5 batch rows, got 2",
    ),
    (lambda c: c.from_keras(), ValueError, "got None for all"),
    (lambda c: c.from_keras(MASK), ValueError, r"attention_mask: expected shape \(B, L, S\)"),
    (lambda c: c.from_keras(MASK[0] * 2), ValueError, "attention_mask: expected only 0 and 1"),
    (lambda c: c.from_keras(query_mask=MASK), ValueError, r"query_mask: .* \(B, L\)"),
    (lambda c: c.to_keras(MASKS["heads"]), ValueError, "one mask for all heads, got 3"),
    (lambda c: c.from_jax(MASK[0]), ValueError, "mask: expected shape"),
    (lambda c: c.from_onnx(MASK, k_len=3), ValueError, "k_len: expected at least the mask's 7"),
    (lambda c: c.from_hugging_face(MASK[0]), ValueError, "attention_mask: expected shape"),
    (lambda c: c.to_hugging_face_2d(MASK), ValueError, "the same keys from every query"),
    (lambda c: c.from_flash_lengths([0.0, 2]), TypeError, "cu_seqlens_q: expected integers"),
    (lambda c: c.from_flash_lengths([1, 2]), ValueError, "cu_seqlens_q: expected 0, n₁"),
    (lambda c: c.from_flash_lengths([0, 2, 1]), ValueError, "cu_seqlens_q: expected 0, n₁"),
    (
        lambda c: c.from_flash_lengths([0, 2], [0, 1, 2]),
        ValueError,
        r"N \+ 1 = 2 entries, got 3",
    ),
    (lambda c: c.from_flash_window((-2, 0), 3, 3), ValueError, "window_size: .* at least -1"),
    (lambda c: c.from_flash_window((1.0, 0), 3, 3), TypeError, "window_size: expected an int"),
    (lambda c: c.to_flash_lengths(MASK), ValueError, "mask: expected sequences"),
    (lambda c: c.to_flash_window(MASK), ValueError, "mask: expected a band"),
    (lambda c: c.to_flash_window(MASKS["heads"]), ValueError, r"mask: expected shape \(L, S\)"),
)


def test_what_does_not_fit_is_refused():
    for call, error, says in REFUSED:
        with pytest.raises(error, match=says):
            call(conventions)


def test_integers_are_refused_in_the_words_of_the_library_they_come_from():
    """True means hidden in nn.MultiheadAttention: who follows the message must not invert it."""
    numbers = np.array([[0, 0, 1]])
    says = {}
    for name in ("attn_mask", "key_padding_mask"):
        with pytest.raises(TypeError, match=f"{name}: ") as caught:
            conventions.from_torch_mha(**{name: numbers})
        says[name] = str(caught.value)
        assert "True = hidden" in says[name]
        assert "mask != 0 where 1 means hidden, mask == 0 where it means may attend" in says[name]
    for read in (conventions.from_torch_sdpa, conventions.from_onnx, conventions.from_jax):
        with pytest.raises(
            TypeError,
            match="True = may attend, got dtype int64: write mask != 0 "
            "where 1 means may attend, mask == 0 where it means hidden",
        ):
            read(numbers)


def test_floats_are_refused_by_the_name_of_their_argument():
    """Numbers that are no mask: the message names what was passed, not attn's own bias."""
    bias = np.full((1, 1, 2, 2), -3.0)
    reads = {
        "attn_mask": (conventions.from_torch_sdpa, conventions.from_onnx),
        "attention_mask": (conventions.from_hugging_face,),
    }
    reads["attn_mask"] += (lambda x: conventions.from_torch_mha(x[0, 0]),)
    reads["key_padding_mask"] = (lambda x: conventions.from_torch_mha(None, x[0, 0]),)
    for name, functions in reads.items():
        for read in functions:
            with pytest.raises(ValueError, match=f"^{name}: expected 0 .*pass it as bias="):
                read(bias)


def test_lists_are_read_where_their_numbers_can_only_mean_one_thing():
    """Tokenizers return lists of 0 and 1; a list of booleans could be either of two conventions."""
    assert conventions.from_hugging_face([[0, 1, 1]]).astype(int).tolist() == [[[[0, 1, 1]]]]
    assert conventions.from_keras(value_mask=[[1, 0]]).astype(int).tolist() == [[[[1, 0]]]]


ODD = {
    "None": None, "a number": 3, "a list": [[True]], "a ragged list": [[1, 0], [1]], "text": "mask",
    "a rule": Causal(), "0-d": np.array(True), "1-d": np.array([True, False]),
    "6-d": np.ones((1,) * 6, bool), "integers": np.array([[0, 1]]), "others": np.array([[0, 3]]),
    "floats": np.array([[0.5, 0.0]]), "NaN": np.array([[np.nan]]), "words": np.array([["a"]]),
    "objects": np.array([[None]]), "complex": np.array([[1j]]), "empty": np.ones((0, 0), bool),
    "masked": np.ma.array([[True, False]], mask=[[True, False]]), "a tensor": torch.ones(2, 3),
    "integer tensor": torch.tensor([[0, 1]]), "six": np.ones((6, 5, 7), bool), "True": True,
}  # fmt: skip
TAKEN = {
    "from_torch_sdpa": ["attn_mask"], "from_torch_mha": ["attn_mask", "key_padding_mask"],
    "from_keras": ["attention_mask", "query_mask", "value_mask", "key_mask"],
    "from_jax": ["mask"], "from_onnx": ["attn_mask"], "from_hugging_face": ["attention_mask"],
    "from_additive": ["bias"], "from_flash_lengths": ["cu_seqlens_q", "cu_seqlens_k"],
    "from_flash_window": ["window_size", "q_len", "k_len"],
    "to_torch_sdpa": ["mask"], "to_torch_mha": ["mask", "num_heads", "batch"],
    "to_keras": ["mask"], "to_jax": ["mask"], "to_onnx": ["mask"], "to_additive": ["mask"],
    "to_hugging_face_2d": ["mask"], "to_hugging_face_4d": ["mask"], "to_flash_lengths": ["mask"],
    "to_flash_window": ["mask"],
}  # fmt: skip
BESIDE = {
    "from_torch_mha": {"attn_mask": MASKS["pairs"][0, 0], "num_heads": 3},
    "from_keras": {"attention_mask": MASKS["batch"][:, 0]},
    "from_flash_lengths": {"cu_seqlens_q": [0, 1, 2]},
    "from_flash_window": {"window_size": (1, 1), "q_len": 2, "k_len": 2},
    "to_torch_mha": {"mask": MASKS["all axes"], "num_heads": H},
    "from_onnx": {"k_len": 9},
}


def test_odd_arguments_are_read_or_refused_by_name():
    """Every converter, every argument, one odd value at a time: never an error from inside."""
    assert set(TAKEN) == {x for x in conventions.__all__ if x.islower()}
    raw = []
    for name, taken in TAKEN.items():
        for argument in taken:
            for what, odd in ODD.items():
                given = {**BESIDE.get(name, {}), argument: odd}
                try:
                    getattr(conventions, name)(**given)
                except Exception as error:
                    named = str(error).startswith((*taken, "num_heads", "k_len"))
                    if not (isinstance(error, (TypeError, ValueError)) and named):
                        raw.append((name, argument, what, repr(error)))
    assert raw == []


def test_the_heads_of_a_mask_may_be_written_out():
    for_all = np.repeat(MASKS["batch"], H, axis=1)
    assert np.array_equal(conventions.to_keras(for_all), MASKS["batch"][:, 0])


def test_every_name_is_exported():
    assert attn.conventions is conventions
    for name in conventions.__all__:
        assert callable(getattr(conventions, name))
    froms = {name[5:] for name in conventions.__all__ if name.startswith("from_")}
    tos = {name[3:] for name in conventions.__all__ if name.startswith("to_")}
    assert froms - tos == {"hugging_face"}
    assert tos - froms == {"hugging_face_2d", "hugging_face_4d"}
