"""Heads in both libraries: which columns belong to whom, against a loop over single heads."""

import inspect

import numpy as np
import pytest
from mask_table import HeadReach
from reference import attend, normal

from attn import Causal, Dilated, KeyPadding, KVCache, PrefixLM, SameDocument, SlidingWindow
from attn.arguments import ELSEWHERE

E, L, S, B = 5, 7, 11, 3


# --- split, merge, repeat -------------------------------------------------------------------------


def test_split_and_merge_by_hand(backend):
    """Head h owns columns h·D to (h+1)·D; here the number says position and column."""
    x = np.array([[0.0, 1, 2, 3, 4, 5], [10, 11, 12, 13, 14, 15]])
    heads = backend.attn.split_heads(backend.array(x), 3)
    assert backend.to_numpy(heads).tolist() == [
        [[0, 1], [10, 11]],
        [[2, 3], [12, 13]],
        [[4, 5], [14, 15]],
    ]
    assert np.array_equal(backend.to_numpy(backend.attn.merge_heads(heads)), x)


@pytest.mark.parametrize("batch", [(), (B,), (2, B)], ids=str)
def test_split_and_merge_undo_each_other(backend, batch):
    x = normal(1, *batch, L, 6)
    for heads in (1, 2, 3, 6):
        split = backend.attn.split_heads(backend.array(x), heads)
        assert split.shape == (*batch, heads, L, 6 // heads)
        for h in range(heads):
            own = x[..., h * 6 // heads : (h + 1) * 6 // heads]
            assert np.array_equal(backend.to_numpy(split)[..., h, :, :], own)
        assert np.array_equal(backend.to_numpy(backend.attn.merge_heads(split)), x)


def test_merge_of_more_positions_than_heads_is_no_plain_reshape(backend):
    x = normal(1, B, 2, L, 3)
    merged = backend.to_numpy(backend.attn.merge_heads(backend.array(x)))
    assert np.array_equal(merged, np.concatenate([x[:, 0], x[:, 1]], axis=-1))


def test_06_repeated_heads_are_neighbours(backend):
    """Semantic 6: copies stand beside each other; h // G leads back."""
    x = backend.array(np.array([[[1.0]], [[2.0]]]))
    repeated = backend.attn.repeat_kv(x, 3)
    assert backend.to_numpy(repeated).ravel().tolist() == [1, 1, 1, 2, 2, 2]
    deep = normal(2, B, 2, S, 3)
    got = backend.to_numpy(backend.attn.repeat_kv(backend.array(deep), 2))
    assert np.array_equal(got, deep[:, [0, 0, 1, 1]])


def test_06_grouped_heads_equal_repeated_ones(backend):
    query, key, value = (
        backend.array(normal(i, B, h, n, 2)) for i, h, n in ((1, 6, L), (2, 2, S), (3, 2, S))
    )
    grouped = backend.attn.scaled_dot_product_attention(query, key, value)
    repeat = backend.attn.repeat_kv
    repeated = backend.attn.scaled_dot_product_attention(query, repeat(key, 3), repeat(value, 3))
    assert np.abs(backend.to_numpy(grouped) - backend.to_numpy(repeated)).max() <= 1e-12


REFUSED = {
    "heads that do not divide": (
        lambda a, x: a.split_heads(x, 4),
        ValueError,
        "num_heads = 4, got 6",
    ),
    "no heads": (lambda a, x: a.split_heads(x, 0), ValueError, "num_heads: .*at least 1, got 0"),
    "heads as a float": (lambda a, x: a.split_heads(x, 2.0), TypeError, "num_heads: .*2.0"),
    "a vector": (lambda a, x: a.split_heads(x[0], 2), ValueError, r"x: expected shape .*\(6,\)"),
    "no heads to merge": (
        lambda a, x: a.merge_heads(x),
        ValueError,
        r"\(…, H, L, D\), got \(7, 6\)",
    ),
    "no heads to repeat": (
        lambda a, x: a.repeat_kv(x, 2),
        ValueError,
        r"Hkv, S, D\), got \(7, 6\)",
    ),
    "no groups": (lambda a, x: a.repeat_kv(x[None], 0), ValueError, "groups: .*at least 1, got 0"),
}


def test_16_splitting_refuses_by_name(backend):
    for use, error, words in REFUSED.values():
        with pytest.raises(error, match=words):
            use(backend.attn, backend.array(normal(1, L, 6)))


def test_16_splitting_takes_arrays_of_its_own_library_only(backend):
    """A list or an array of the other library would be handed back as what it came."""
    torch = pytest.importorskip("torch")
    rows = normal(1, 2, L, 6)
    foreign = torch.tensor(rows) if backend.name == "numpy" else rows
    hidden = np.ma.array(rows, mask=rows > 0)
    for name, more in (("split_heads", (2,)), ("merge_heads", ()), ("repeat_kv", (2,))):
        for x in (foreign, hidden, rows.tolist(), rows[0, 0, 0].item(), None):
            with pytest.raises(TypeError, match=r"^x: expected (numpy\.nd|torch\.T|a plain a)"):
                getattr(backend.attn, name)(x, *more)


# --- multi_head_attention -------------------------------------------------------------------------


def inputs(H=6, Hkv=3, D=2, Dv=4, context=False):
    """x, its four matrices, and a context of another length (else x itself)."""
    widths = (E, H * D), (E, Hkv * D), (E, Hkv * Dv), (H * Dv, E)
    matrices = [normal(i, *shape) for i, shape in enumerate(widths, 10)]
    return normal(1, B, L, E), matrices, normal(2, B, S, E) if context else None


def head_by_head(x, matrices, context, H, Hkv, allowed=True, bias=0.0):
    """The formula with the columns of each head cut out by hand, one head after the other."""
    w_query, w_key, w_value, w_output = matrices
    source = x if context is None else context
    D, Dv = w_query.shape[1] // H, w_output.shape[0] // H
    G = H // Hkv
    shape = (B, H, x.shape[1], source.shape[1])
    allowed, bias = np.broadcast_to(allowed, shape), np.broadcast_to(bias, shape)
    total = np.zeros((*x.shape[:2], w_output.shape[1]))
    for h in range(H):
        query = x @ w_query[:, h * D : (h + 1) * D]
        key = source @ w_key[:, h // G * D : (h // G + 1) * D]
        value = source @ w_value[:, h // G * Dv : (h // G + 1) * Dv]
        one = slice(h, h + 1)
        head, _ = attend(
            query[:, None], key[:, None], value[:, None], allowed[:, one], bias=bias[:, one]
        )
        total += head[:, 0] @ w_output[h * Dv : (h + 1) * Dv]
    return total


@pytest.mark.parametrize("context", [False, True], ids=["self", "context"])
@pytest.mark.parametrize("heads", [(1, 1), (6, 6), (6, 3), (6, 1)], ids=str)
def test_agrees_with_a_loop_over_heads(backend, heads, context):
    x, matrices, context = inputs(*heads, context=context)
    keys = L if context is None else S
    mask, bias = normal(3, B, heads[0], L, keys) > -1, normal(4, B, heads[0], L, keys)
    expected = head_by_head(x, matrices, context, *heads, mask, bias)
    got = backend.attn.multi_head_attention(
        *map(backend.array, (x, *matrices)), num_heads=heads[0], num_kv_heads=heads[1],
        context=None if context is None else backend.array(context),
        mask=backend.array(mask), bias=backend.array(bias),
    )  # fmt: skip
    assert np.abs(backend.to_numpy(got) - expected).max() <= 1e-11


def run(backend, x, matrices, **options):
    arrays = (backend.array(x), *map(backend.array, matrices))
    options = {"num_heads": 6, "num_kv_heads": 3} | options
    if isinstance(options.get("context"), np.ndarray):
        options["context"] = backend.array(options["context"])
    return backend.to_numpy(backend.attn.multi_head_attention(*arrays, **options))


def test_by_hand_with_matrices_that_pick_columns(backend):
    """Identity matrices, zero queries: each head averages its own column of what it may see."""
    x = np.array([[[0.0, 4.0], [2.0, 0.0], [4.0, 2.0]]])
    eye = np.eye(2)
    options = dict(num_heads=2, num_kv_heads=2, mask=Causal())
    got = run(backend, x, [0 * eye, eye, eye, eye], **options)
    assert got.tolist() == [[[0, 4], [1, 2], [2, 2]]]
    swap = eye[::-1]
    assert run(backend, x, [0 * eye, eye, eye, swap], **options).tolist() == [
        [[4, 0], [2, 1], [2, 2]]
    ]


@pytest.mark.parametrize(
    ("mask", "q_offset"),
    [(Causal(), None), (Causal() & KeyPadding([7, 2, 0]), None), (SlidingWindow(2, 1), None),
     (HeadReach(), None), (SameDocument([0, 0, 0, 1, 1, 1, 2]), None), (PrefixLM(3), 0)],
    ids=repr,
)  # fmt: skip
def test_a_rule_and_its_array_are_one_mask(backend, mask, q_offset):
    x, matrices, _ = inputs()
    dense = backend.attn.dense_mask(mask, L, L, q_offset=q_offset, batch=B, heads=6)
    got = run(backend, x, matrices, mask=mask, q_offset=q_offset)
    assert np.abs(got - run(backend, x, matrices, mask=dense)).max() <= 1e-12


def test_num_kv_heads_is_num_heads_unless_given(backend):
    x, matrices, _ = inputs(6, 6)
    got = run(backend, x, matrices, num_kv_heads=None)
    assert np.array_equal(got, run(backend, x, matrices, num_kv_heads=6))


def test_one_sequence_needs_no_batch_axis(backend):
    x, matrices, context = inputs(context=True)
    together = run(backend, x, matrices, context=context)
    alone = run(backend, x[1], matrices, context=context[1])
    assert np.abs(alone - together[1]).max() <= 1e-12
    deep = run(backend, x[None], matrices, context=context[None])
    assert np.abs(deep[0] - together).max() <= 1e-12


def test_the_heads_order_is_a_convention_of_the_matrices(backend):
    """Permuting whole heads in all matrices changes nothing."""
    x, (w_query, w_key, w_value, w_output), _ = inputs(6, 6)
    order = [3, 0, 5, 1, 4, 2]

    def columns(w, D):
        return w.reshape(E, 6, D)[:, order].reshape(E, 6 * D)

    moved = columns(w_query, 2), columns(w_key, 2), columns(w_value, 4)
    moved = [*moved, w_output.reshape(6, 4, E)[order].reshape(24, E)]
    before = run(backend, x, [w_query, w_key, w_value, w_output], num_kv_heads=6)
    assert np.abs(run(backend, x, moved, num_kv_heads=6) - before).max() <= 1e-12


def test_12_chunks_through_a_cache_equal_one_pass(backend):
    """Semantic 12: the cache says where the new queries sit; Causal is all that is asked for."""
    x, matrices, _ = inputs()
    for rule in (Causal(), Causal() & SlidingWindow(3)):
        whole = run(backend, x, matrices, mask=rule)
        for chunks in ((7,), (3, 4), (1,) * 7):
            cache, start, parts = KVCache(7), 0, []
            for size in chunks:
                parts.append(
                    run(backend, x[:, start : start + size], matrices, mask=rule, cache=cache)
                )
                start += size
            assert np.abs(np.concatenate(parts, axis=1) - whole).max() <= 1e-12
            assert cache.length == 7


CACHED = {
    "offset": dict(q_offset=0), "mask": dict(mask=np.ones((3, 3))),
    "stop": dict(mask=KeyPadding(-1)), "bias": dict(bias=np.ones((3, 9))),
}  # fmt: skip


class Counts(Causal):
    """A rule with a slip: it answers with whole numbers, where True and False are asked for."""

    def __call__(self, b, h, q, k):
        return q - k


class Fails(Causal):
    """A rule that raises what nobody can foresee, when it is asked about pairs."""

    def __call__(self, b, h, q, k):
        raise KeyboardInterrupt


def test_12_a_refused_call_leaves_the_cache_as_it_was(backend):
    """Semantic 12: whatever goes wrong, and wherever, the tokens are not taken in."""
    torch = pytest.importorskip("torch")
    x, matrices, context = inputs(context=True)
    array = np.ones((3, 7), bool)
    cases = CACHED | {"ints": dict(mask=Counts()), "rule": dict(mask=Fails())}
    cases["context"] = dict(context=context)
    cases["library"] = dict(mask=array if backend.name == "torch" else torch.tensor(array))
    for name, options in cases.items():
        given = {
            key: backend.array(value)
            if isinstance(value, np.ndarray) and name != "library"
            else value
            for key, value in options.items()
        }
        for fed in (0, 4):
            for ring in (False, True):
                cache = KVCache(11, ring=ring)
                if fed:
                    run(backend, x[:, :fed], matrices, mask=Causal(), cache=cache)
                before = None if cache.key is None else backend.to_numpy(cache.key)
                with pytest.raises((TypeError, ValueError, KeyboardInterrupt)):
                    run(backend, x[:, 4:], matrices, cache=cache, **given)
                assert (cache.length, cache.start) == (fed, 0), name
                after = None if cache.key is None else backend.to_numpy(cache.key)
                assert np.array_equal(before, after), name


def test_12_a_ring_that_dropped_keys_refuses_rules_on_absolute_positions(backend):
    x, matrices, _ = inputs()
    for rule in (KeyPadding(3), PrefixLM(2), ~PrefixLM(2) & Causal(), SameDocument([0] * 20)):
        cache = KVCache(3, ring=True)
        run(backend, x[:, :5], matrices, mask=Causal(), cache=cache)
        with pytest.raises(ValueError, match=r"absolute positions.*first 2 of 5"):
            run(backend, x[:, 5:], matrices, mask=rule, cache=cache)
        assert cache.length == 5
        run(backend, x[:, 5:], matrices, mask=Causal() & SlidingWindow(2), cache=cache)


class Stated(HeadReach):
    """The user's own rule, which says how far its six heads look back."""

    looks_back = 5


SERVED_EXACTLY = (
    Causal(), SlidingWindow(None), Dilated(1), ~SlidingWindow(0), Stated(),
    *(SlidingWindow(left) for left in range(6)), SlidingWindow(2, 2), SlidingWindow(3, None),
    Causal() & SlidingWindow(3), SlidingWindow(1) | SlidingWindow(4), Causal() | SlidingWindow(1),
    SlidingWindow(2) & SlidingWindow(4), (Causal() | Dilated(2)) & SlidingWindow(2),
)  # fmt: skip
# Refused although no dropped key is asked for, yet or at all: rules only say how far they may look.
SERVED_CAUTIOUSLY = (
    Dilated(3) & SlidingWindow(4), Dilated(2), Dilated(5), Dilated(2) | SlidingWindow(0), ~Causal(),
    HeadReach(),
)  # fmt: skip


def test_12_a_ring_serves_a_rule_as_long_as_no_dropped_key_is_asked_for(backend):
    """Semantic 12: laid over the whole sequence, the rule says which keys the new queries see."""
    n, x, matrices = 10, normal(1, 1, 10, E), inputs()[1]
    outcomes = set()
    for rule in (*SERVED_EXACTLY, *SERVED_CAUTIOUSLY):
        allowed = backend.attn.dense_mask(rule, n, n, heads=6)
        allowed = backend.to_numpy(allowed)[0].any(axis=0)  # by any of the heads
        for capacity in (1, 2, 3, 4, 5, 7):
            for size in (1, 2, 3):
                cache = KVCache(capacity, ring=True)
                for at in range(0, n, size):
                    asked_for = allowed[at : at + size, : cache.start].any()
                    words = f"dropped the first {cache.start} of {at} keys and holds capacity = "
                    try:
                        run(backend, x[:, at : at + size], matrices, mask=rule, cache=cache)
                        refused = False
                    except ValueError as error:
                        refused = f"{words}{capacity}" in str(error)
                    seen = (repr(rule), capacity, size, at, refused, bool(asked_for))
                    assert refused or not asked_for, seen
                    assert asked_for or not refused or rule in SERVED_CAUTIOUSLY, seen
                    outcomes.add(refused)
                    if refused:
                        assert cache.length == at
                        break
    assert outcomes == {True, False}


def test_11_inputs_are_not_changed(backend):
    x, matrices, context = inputs(context=True)
    arrays = [*map(backend.array, (x, *matrices, context))]
    if backend.name == "numpy":
        for array in arrays:
            array.flags.writeable = False
    backend.attn.multi_head_attention(*arrays[:5], num_heads=6, num_kv_heads=3, context=arrays[5])
    for array, before in zip(arrays, (x, *matrices, context), strict=True):
        assert np.array_equal(backend.to_numpy(array), before)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_09_the_dtype_of_the_inputs_comes_back(backend, dtype):
    x, matrices, _ = inputs()
    arrays = [backend.array(a / 3, dtype) for a in (x, *matrices)]
    bias = backend.array(normal(4, L, L))
    got = backend.attn.multi_head_attention(*arrays, num_heads=6, num_kv_heads=3, bias=bias)
    assert backend.dtype(got) == dtype


x0, matrices0, context0 = inputs(context=True)
WRONG = {
    "heads": (dict(num_heads=5), ValueError, "num_heads"),
    "key heads": (dict(num_kv_heads=4), ValueError, "num_heads: .*num_kv_heads = 4, got 6"),
    "no heads": (dict(num_heads=0), ValueError, "num_heads: .*at least 1"),
    "heads True": (dict(num_heads=True), TypeError, "num_heads: .*True"),
    "w_query rows": (
        dict(w_query=normal(1, E + 1, 12)),
        ValueError,
        r"w_query: .*E = 5, got \(6, 12\)",
    ),
    "w_query rank": (dict(w_query=normal(1, E, 6, 2)), ValueError, r"w_query: .*got \(5, 6, 2\)"),
    "w_query columns": (dict(w_query=normal(1, E, 13)), ValueError, "w_query: .*= 6, got 13"),
    "w_key columns": (dict(w_key=normal(1, E, 7)), ValueError, "w_key: .*= 3, got 7"),
    "w_key head size": (dict(w_key=normal(1, E, 9)), ValueError, "key: .*D = 2, got 3"),
    "w_output rows": (
        dict(w_output=normal(1, 12, E)),
        ValueError,
        r"w_output: .*H·Dv = 24, got \(12, 5\)",
    ),
    "w_output rank": (dict(w_output=normal(1, 24)), ValueError, r"w_output: .*got \(24,\)"),
    "context width": (dict(context=normal(1, B, S, E + 1)), ValueError, "w_key: .*E = 6"),
    "context batch": (dict(context=normal(1, B + 1, S, E)), ValueError, "key: .*batch axes"),
    "a vector": (dict(x=normal(1, E)), ValueError, r"x: .*\(…, L, E\), got \(5,\)"),
    "a number": (dict(x=np.array(1.0)), ValueError, r"x: .*got \(\)"),
    "context as a vector": (dict(context=normal(1, E)), ValueError, r"context: .*got \(5,\)"),
    "integers": (dict(x=np.ones((B, L, E), int)), TypeError, "x int64"),
    "mixed dtypes": (
        dict(w_key=np.ones((E, 6), np.float32)),
        TypeError,
        "x float64.*w_key float32",
    ),
    "a list": (dict(x=[[1.0]]), TypeError, "x: expected .*list"),
    "mask": (dict(mask=np.ones((L, S))), TypeError, "mask: .*float64"),
    "alignment": (dict(mask=Causal(), context=context0), ValueError, "L = 7.*S = 11"),
    "cache and offset": (
        dict(cache=KVCache(20), q_offset=1),
        ValueError,
        "cache: .*q_offset.*got 1",
    ),
    "no cache": (dict(cache=20), TypeError, "cache: expected a KVCache or None, got int"),
    "cache and context": (
        dict(cache=KVCache(20), context=context0),
        ValueError,
        "cache: .*context",
    ),
}


def test_16_multi_head_attention_refuses_by_name(backend):
    names = ("x", "w_query", "w_key", "w_value", "w_output")
    right = dict(zip(names, (x0, *matrices0), strict=True)) | {"num_heads": 6, "num_kv_heads": 3}
    for changes, error, words in WRONG.values():
        given = {
            name: backend.array(value) if isinstance(value, np.ndarray) else value
            for name, value in (right | changes).items()
        }
        arrays = [given.pop(name) for name in names]
        with pytest.raises(error, match=words):
            backend.attn.multi_head_attention(*arrays, **given)


# --- Keywords of other libraries ------------------------------------------------------------------


def explained_functions(package):
    """Each public function that takes a mask, and the layer's methods."""
    for name in package.__all__:
        thing = getattr(package, name)
        if callable(getattr(thing, "forward", None)) and name == "MultiHeadAttention":
            yield from ((f"{name}.{x}", getattr(thing, x)) for x in ("__init__", "forward"))
            yield from ((f"{name}.{x}", getattr(thing, x)) for x in ("weights", "heads"))
        elif name.endswith(("attention", "attention_weights", "attention_backward", "fused_path")):
            yield name, thing


def test_16_keywords_of_other_libraries_are_answered_with_ours(backend):
    """Each public function that attends names what to write instead, and keeps its signature."""
    found = dict(explained_functions(backend.attn))
    expected = {"attention_weights", "scaled_dot_product_attention", "blockwise_attention",
                "multi_head_attention"}  # fmt: skip
    assert expected <= set(found)
    for name in set(found) - {"check_attention", "merge_attention", "additive_attention"}:
        function = found[name]
        own = inspect.signature(function).parameters
        assert not {"kwargs", "options"} & set(own), name
        assert not set(own) & set(ELSEWHERE), name
        for keyword, instead in ELSEWHERE.items():
            with pytest.raises(TypeError) as caught:
                function(None, **{keyword: None})
            assert str(caught.value) == f"{name}: no argument {keyword}, write {instead}"
        with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
            function(*[None] * 5, nonsense=1)


def test_16_masks_of_torchs_own_kernels_get_advice_that_fits():
    torch = pytest.importorskip("torch")
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.attention.flex_attention import create_block_mask

    from attn.torch import scaled_dot_product_attention

    x = torch.ones(1, 1, 4, 4)
    with pytest.raises(TypeError, match=r"torch's CausalBias: write Causal\(\) with q_offset=0 "):
        scaled_dot_product_attention(x, x, x, causal_lower_right(4, 4))
    tiles = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 4, 4, device="cpu")
    with pytest.raises(TypeError, match="torch's BlockMask: pass the rule"):
        scaled_dot_product_attention(x, x, x, tiles)


def test_08_a_mask_of_keys_is_told_its_axes(backend):
    """Semantic 8: two axes are (L, S); where B is not L the message shows how to write (B, S)."""
    x, keys = backend.array(normal(1, B, 1, L, 2)), backend.array(np.ones((B, L), bool))
    with pytest.raises(ValueError, match=r"\(B, S\), goes in as mask\[:, None, None\]"):
        backend.attn.scaled_dot_product_attention(x, x, x, keys)
    backend.attn.scaled_dot_product_attention(x, x, x, keys[:, None, None])
