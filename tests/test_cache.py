"""The cache: fed in any pieces it gives what one pass gives, and it remembers nothing wrong."""

import copy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attn
import attn.torch
from attn import Causal, KeyPadding, KVCache, SlidingWindow

TWINS = {
    "numpy": SimpleNamespace(name="numpy", attn=attn, give=np.array, take=np.asarray),
    "torch": SimpleNamespace(
        name="torch", attn=attn.torch, give=lambda x: torch.tensor(np.asarray(x)),
        take=lambda x: x.detach().numpy(),
    ),
}  # fmt: skip
BOTH = pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def tokens(twin, *positions, lead=(1, 1)):
    """Keys (…, L, 1) that hold their position and values (…, L, 2) that hold its double."""
    line = np.array(positions, float)[:, None]
    key, value = line * np.ones((*lead, 1, 1)), 2 * line * np.ones((*lead, 1, 2))
    return twin.give(key), twin.give(value)


def held(keys):
    """The positions that keys made by `tokens` hold."""
    return np.asarray(keys.detach() if hasattr(keys, "detach") else keys)[0, 0, :, 0].tolist()


# --- Literals -------------------------------------------------------------------------------------


@BOTH
def test_a_plain_cache_step_by_step(twin):
    cache = KVCache(5)
    assert (cache.length, cache.start, cache.key, cache.value) == (0, 0, None, None)
    keys, values = cache.append(*tokens(twin, 0, 1, 2))
    assert held(keys) == [0, 1, 2]
    keys, values = cache.append(*tokens(twin, 3))
    assert held(keys) == [0, 1, 2, 3]
    assert twin.take(values).tolist() == [[[[0, 0], [2, 2], [4, 4], [6, 6]]]]
    assert (cache.length, cache.start, held(cache.key)) == (4, 0, [0, 1, 2, 3])
    assert twin.take(cache.value).tolist() == twin.take(values).tolist()
    assert repr(cache) == "KVCache(5, ring=False): tokens 0 to 3"


@BOTH
def test_a_ring_returns_first_and_drops_afterwards(twin):
    cache = KVCache(3, ring=True)
    assert held(cache.append(*tokens(twin, 0, 1))[0]) == [0, 1]
    assert held(cache.append(*tokens(twin, 2, 3))[0]) == [0, 1, 2, 3]
    assert (cache.length, cache.start, held(cache.key)) == (4, 1, [1, 2, 3])
    assert held(cache.append(*tokens(twin, 4, 5, 6, 7, 8))[0]) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (cache.length, cache.start, held(cache.key)) == (9, 6, [6, 7, 8])
    assert held(cache.append(*tokens(twin, 9))[0]) == [6, 7, 8, 9]
    assert held(cache.append(*tokens(twin))[0]) == [7, 8, 9]
    assert repr(cache) == "KVCache(3, ring=True): tokens 7 to 9"


@BOTH
@pytest.mark.parametrize("ring", [False, True])
def test_running_averages(twin, ring):
    """Zero keys make attention an average of the values seen: of all, or of the last four."""
    cache, zero, outputs = KVCache(4 if ring else 6, ring=ring), twin.give(np.zeros((1, 1))), []
    for value in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        keys, values = cache.append(zero, twin.give([[value]]))
        mask = Causal() & SlidingWindow(3) if ring else Causal()
        at = len(keys) - 1
        output = twin.attn.scaled_dot_product_attention(zero, keys, values, mask, q_offset=at)
        outputs.append(output.item())
    expected = [1, 1.5, 7 / 3, 3.75] + ([7.5, 15] if ring else [6.2, 10.5])
    assert np.abs(np.array(outputs) - expected).max() < 1e-12


# --- Any chunking equals one pass -----------------------------------------------------------------

chunk_lists = st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(sum)


@BOTH
@given(chunks=chunk_lists, heads=st.sampled_from([(2, 2), (6, 2), (3, 1)]), spare=st.integers(0, 3))
def test_any_chunks_equal_one_pass(twin, chunks, heads, spare):
    """Semantic 12."""
    (H, Hkv), L = heads, sum(chunks)
    query, key = numbers(2, H, L, 3), numbers(2, Hkv, L, 3, seed=1)
    value = numbers(2, Hkv, L, 5, seed=2)
    whole = attn.scaled_dot_product_attention(query, key, value, Causal())
    cache, pieces, at = KVCache(L + spare), [], 0
    for size in chunks:
        q, k, v = (twin.give(x[:, :, at : at + size]) for x in (query, key, value))
        keys, values = cache.append(k, v)
        assert keys.shape[-2] - size == at
        pieces.append(
            twin.take(
                twin.attn.scaled_dot_product_attention(q, keys, values, Causal(), q_offset=at)
            )
        )
        at += size
        assert (cache.length, cache.start) == (at, 0)
    assert np.abs(np.concatenate(pieces, axis=-2) - whole).max() < 1e-12


@BOTH
@given(chunks=chunk_lists, capacity=st.integers(1, 9), short=st.integers(0, 9))
def test_any_chunks_through_a_ring_equal_one_windowed_pass(twin, chunks, capacity, short):
    """A ring of C slots is enough for every window of at most C tokens before the query."""
    L, mask = sum(chunks), Causal() & SlidingWindow(max(0, capacity - short))
    x, weights = numbers(2, L, 6), [numbers(6, n, seed=n) for n in (12, 4, 6)]
    w_output = numbers(18, 5, seed=3)
    options = dict(num_heads=6, num_kv_heads=2, mask=mask)
    whole = attn.multi_head_attention(x, *weights, w_output, **options)
    cache, pieces, at = KVCache(capacity, ring=True), [], 0
    arguments = [twin.give(w) for w in (*weights, w_output)]
    for size in chunks:
        chunk = twin.give(x[:, at : at + size])
        pieces.append(twin.attn.multi_head_attention(chunk, *arguments, cache=cache, **options))
        at += size
    assert np.abs(np.concatenate([twin.take(p) for p in pieces], axis=1) - whole).max() < 1e-12
    assert (cache.length, cache.start) == (L, max(0, L - capacity))


@settings(max_examples=30)
@given(chunks=chunk_lists)
def test_the_layer_with_a_cache_equals_the_layer_without(chunks):
    L = sum(chunks)
    layer = attn.torch.MultiHeadAttention(12, 6, 2).double()
    x = torch.tensor(numbers(2, L, 12))
    whole, cache, pieces = layer(x, mask=Causal()), KVCache(L), []
    for chunk in x.split(chunks, dim=1):
        pieces.append(layer(chunk, mask=Causal(), cache=cache))
    assert (torch.cat(pieces, dim=1) - whole).abs().max() < 1e-12


def test_turned_keys_in_a_cache_equal_the_full_pass():
    x, chunks, at = numbers(1, 2, 6, 4), [3, 1, 1, 1], 0
    turn = lambda x, p: attn.rotary(x, p, layout="interleaved")  # noqa: E731
    turned = turn(x, np.arange(6))
    whole = attn.scaled_dot_product_attention(turned, turned, x, Causal())
    cache, pieces = KVCache(6), []
    for size in chunks:
        chunk = x[:, :, at : at + size]
        fresh = turn(chunk, cache.length + np.arange(size))
        keys, values = cache.append(fresh, chunk)
        pieces.append(attn.scaled_dot_product_attention(fresh, keys, values, Causal(), q_offset=at))
        at += size
    assert np.abs(np.concatenate(pieces, axis=2) - whole).max() < 1e-12


# --- Against a list -------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.sampled_from(["append", "append", "append", "trim", "copy", "clear"]),
              st.integers(0, 9)),
    max_size=12,
)  # fmt: skip


@BOTH
@settings(max_examples=200)
@given(steps=steps, capacity=st.integers(1, 7), ring=st.booleans())
def test_the_cache_does_what_a_list_does(twin, steps, capacity, ring):
    """A list of all tokens, and a slice of its end, are the whole specification."""
    cache, fed, forks = KVCache(capacity, ring=ring), [], []
    for step, n in steps:
        window = fed[max(0, len(fed) - capacity) :]
        if step == "append":
            new = [len(fed) + i for i in range(n)]
            if not ring and len(fed) + n > capacity:
                with pytest.raises(ValueError, match=f"{capacity}.*{len(fed)}.*{n}"):
                    cache.append(*tokens(twin, *new))
            else:
                assert held(cache.append(*tokens(twin, *new))[0]) == window + new
                fed = fed + new
        elif step == "trim":
            gone = n > len(fed) or (len(fed) > capacity and 0 < n < len(fed))
            if gone:
                with pytest.raises(ValueError, match=rf"trim.*{n}.*capacity = {capacity}"):
                    cache.trim(n)
            else:
                cache.trim(n)
                fed = fed[:n]
        elif step == "copy":
            forks.append((cache, fed))
            cache = cache.copy()
        else:
            cache.clear()
            fed = []
            assert cache.key is None
        for one, all_fed in [*forks, (cache, fed)]:
            assert one.length == len(all_fed)
            assert one.start == max(0, len(all_fed) - capacity)
            if one.key is not None:
                assert held(one.key) == all_fed[one.start :]
                assert (twin.take(one.value) == 2 * twin.take(one.key)).all()


# --- Nothing is shared ----------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("ring", [False, True])
def test_nothing_is_kept_by_reference(twin, ring):
    """Semantics 11 and 12."""
    cache = KVCache(4, ring=ring)
    given_arrays = tokens(twin, 0, 1, 2)
    first = cache.append(*given_arrays)
    for array in (*given_arrays, *first, cache.key, cache.value):
        array[:] = 99.0
    second = cache.append(*tokens(twin, 3))
    assert held(second[0]) == [0, 1, 2, 3]
    assert (twin.take(second[1]) == 2 * twin.take(second[0])).all()
    if ring:
        cache.append(*tokens(twin, 4, 5, 6))
        assert held(second[0]) == [0, 1, 2, 3]  # what was returned stays, whatever comes later


@BOTH
@pytest.mark.parametrize("fork", [KVCache.copy, copy.deepcopy])
def test_a_copy_goes_its_own_way(twin, fork):
    """Semantic 12."""
    cache = KVCache(3, ring=True)
    cache.append(*tokens(twin, 0, 1))
    other = fork(cache)
    cache.append(*tokens(twin, 10, 11))
    assert held(other.append(*tokens(twin, 20, 21))[0]) == [0, 1, 20, 21]
    assert held(cache.key) == [1, 10, 11]
    other.clear()
    assert held(cache.key) == [1, 10, 11]
    assert KVCache(2).copy().key is None


def test_stored_tensors_are_detached_and_gradients_reach_the_new_tokens():
    w = torch.tensor(numbers(3, 3), requires_grad=True)
    x, cache, outputs = torch.tensor(numbers(1, 1, 5, 3)), KVCache(5), []
    for chunk in x.split([2, 2, 1], dim=2):
        keys, values = cache.append(chunk @ w, chunk)
        assert not cache.key.requires_grad
        outputs.append(attn.torch.scaled_dot_product_attention(chunk, keys, values))
    for output in outputs:  # each chunk alone, after later appends
        output.sum().backward()
    fresh = torch.tensor(numbers(3, 3), requires_grad=True)
    keys = torch.cat([(x[:, :, :2] @ fresh).detach(), x[:, :, 2:4] @ fresh], dim=2)
    output = attn.torch.scaled_dot_product_attention(x[:, :, 2:4], keys, x[:, :, :4])
    assert torch.equal(output, outputs[1])
    (second,) = torch.autograd.grad(output.sum(), fresh)
    (again,) = torch.autograd.grad(
        attn.torch.scaled_dot_product_attention(
            x[:, :, :2], x[:, :, :2] @ fresh, x[:, :, :2]
        ).sum(),
        fresh,
    )
    keys = torch.cat([(x[:, :, :4] @ fresh).detach(), x[:, :, 4:] @ fresh], dim=2)
    (third,) = torch.autograd.grad(
        attn.torch.scaled_dot_product_attention(x[:, :, 4:], keys, x).sum(), fresh
    )
    assert (w.grad - (again + second + third)).abs().max() < 1e-12


def test_a_cache_filled_in_inference_mode_can_be_used_after_it():
    twin = TWINS["torch"]
    with torch.inference_mode():
        cache = KVCache(4)
        cache.append(*tokens(twin, 0, 1))
        cache.reorder([0, 0])
        twins = cache.copy()
    for one in (cache, twins):
        assert held(one.append(*tokens(twin, 2, lead=(2, 1)))[0]) == [0, 1, 2]


def test_appending_compiles_without_a_break():
    def step(cache, x):
        keys, values = cache.append(x, x)
        offset = keys.shape[-2] - x.shape[-2]
        return attn.torch.scaled_dot_product_attention(x, keys, values, Causal(), q_offset=offset)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    one, other = KVCache(5, ring=True), KVCache(5, ring=True)
    for i in range(3):
        x = torch.tensor(numbers(1, 2, 2, 3, seed=i))
        assert torch.allclose(compiled(one, x), step(other, x))
    assert (one.length, one.start) == (6, 1)


def test_numpy_caches_do_not_load_torch():
    code = (
        "import numpy as np, sys; from attn import KVCache; c = KVCache(2);"
        "c.append(np.ones((1, 3)), np.ones((1, 3))); c.copy(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@BOTH
@pytest.mark.parametrize("ring", [False, True])
def test_append_is_preview_and_then_store(twin, ring):
    """With the attention between the two, an error in it leaves the cache as it was."""
    whole, halves = KVCache(4, ring=ring), KVCache(4, ring=ring)
    for new in ((0, 1), (2,), (), (3,), *(((4, 5), (6, 7, 8, 9, 10)) if ring else ())):
        given_arrays = tokens(twin, *new)
        before = halves.length, halves.start
        seen = halves.preview(*given_arrays)
        assert (halves.length, halves.start) == before
        assert halves.store(*given_arrays) is None
        for one, other in zip(seen, whole.append(*given_arrays), strict=True):
            assert np.array_equal(twin.take(one), twin.take(other))
            one[:] = 99.0  # neither what was passed in nor what is held
        assert held(given_arrays[0]) == list(new)
        assert held(halves.key) == held(whole.key)
        assert (halves.length, halves.start) == (whole.length, whole.start)
    if not ring:
        for method in (halves.preview, halves.store):
            with pytest.raises(ValueError, match=r"= 4 .*4 held \+ 1 new"):
                method(*tokens(twin, 4))
            assert held(halves.key) == [0, 1, 2, 3]


# --- Reorder --------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "index", [[2, 0, 0], (2, 0, 0), np.array([2, 0, 0]), torch.tensor([2, 0, 0]), range(2, -1, -1)]
)
def test_reorder(twin, index):
    cache = KVCache(4, ring=True)
    lead = np.arange(3.0)[:, None, None, None]
    for step in range(3):
        key, value = lead + 10 * step + np.zeros((3, 2, 2, 1)), lead + np.zeros((3, 2, 2, 3))
        cache.append(twin.give(key), twin.give(value))
    cache.reorder(index)
    rows = [int(i) for i in index]
    keys, _ = cache.append(twin.give(np.zeros((3, 2, 1, 1))), twin.give(np.zeros((3, 2, 1, 3))))
    for row, source in enumerate(rows):
        expected = [10 + source] * 2 + [20 + source] * 2 + [0]
        assert twin.take(keys)[row, 1, :, 0].tolist() == expected


@BOTH
def test_reorder_may_change_the_number_of_rows(twin):
    cache = KVCache(3)
    cache.append(*tokens(twin, 0, 1))
    cache.reorder([0, 0, 0])
    assert tuple(cache.key.shape) == (3, 1, 2, 1)
    assert tuple(cache.value.shape) == (3, 1, 2, 2)
    cache.reorder(1)
    assert tuple(cache.key.shape) == (1, 1, 2, 1)
    cache.reorder([])
    assert tuple(cache.key.shape) == (0, 1, 2, 1)


@BOTH
@pytest.mark.parametrize(
    ("index", "error", "said"),
    [
        ([0, 2], IndexError, r"B - 1 = 1.*\[0, 2\]"),
        ([-1, 0], IndexError, "-1"),
        (np.array([5]), IndexError, "5"),
        ([0.0, 1.0], TypeError, "reorder"),
        ([True, False], TypeError, "reorder"),
        (torch.tensor([0.0]), TypeError, "reorder"),
    ],
)
def test_reorder_refuses_and_changes_nothing(twin, index, error, said):
    cache = KVCache(3)
    cache.append(*tokens(twin, 0, 1, lead=(2, 1)))
    with pytest.raises(error, match=said):
        cache.reorder(index)
    assert tuple(cache.key.shape) == (2, 1, 2, 1)


def test_reorder_needs_a_batch_axis():
    cache = KVCache(3)
    with pytest.raises(ValueError, match="nothing"):
        cache.reorder([0])
    cache.append(np.ones((2, 1, 3)), np.ones((2, 1, 3)))
    with pytest.raises(ValueError, match=r"\(2, 1, 3\)"):
        cache.reorder([0, 1])


# --- Ranks, sizes and refusals --------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3), (0, 3)])
def test_ranks_and_empty_batches(twin, lead):
    cache = KVCache(4, ring=True)
    for L in (0, 3, 2):
        shapes = (*lead, L, 5), (*lead, L, 7)
        keys, values = cache.append(*(twin.give(np.ones(shape)) for shape in shapes))
    assert tuple(keys.shape) == (*lead, 5, 5)
    assert tuple(values.shape) == (*lead, 5, 7)
    assert tuple(cache.key.shape) == (*lead, 4, 5)


@BOTH
def test_unwritten_slots_and_strides_do_not_matter(twin):
    cache = KVCache(1000)
    x = twin.give(numbers(1, 2, 4, 3)) if twin.name == "torch" else numbers(1, 2, 4, 3)[:, :, ::-1]
    x = x.swapaxes(-1, -2)[..., :3, :]
    keys, _ = cache.append(x, x)
    assert (twin.take(keys) == twin.take(x)).all()
    assert keys.shape[-2] == 3


MISFITS = [
    (np.ones((2, 1, 1, 3)), np.ones((2, 1, 2, 4)), ValueError, r"\(2, 1, 1, 3\).*\(2, 1, 2, 4\)"),
    (np.ones((2, 1, 1, 3)), np.ones((1, 1, 1, 4)), ValueError, r"\(2, 1, 1, 3\).*\(1, 1, 1, 4\)"),
    (np.ones((3, 1, 1, 3)), np.ones((3, 1, 1, 4)), ValueError, r"key.*\(2, 1, L, 3\).*\(3, 1, 1"),
    (np.ones((2, 2, 1, 3)), np.ones((2, 2, 1, 4)), ValueError, r"key.*\(2, 1, L, 3\).*\(2, 2, 1"),
    (np.ones((2, 1, 1, 5)), np.ones((2, 1, 1, 4)), ValueError, r"key.*L, 3\).*1, 5\)"),
    (np.ones((2, 1, 1, 3)), np.ones((2, 1, 1, 3)), ValueError, r"value.*L, 4\).*1, 3\)"),
    (np.ones((1, 1, 3)), np.ones((1, 1, 4)), ValueError, r"\(2, 1, L, 3\).*\(1, 1, 3\)"),
    (np.ones(3), np.ones(4), ValueError, "key: expected shape"),
    (np.ones((2, 1, 1, 3), np.float32), np.ones((2, 1, 1, 4), np.float32), TypeError,
     "float64.*float32"),
    (np.ones((2, 1, 1, 3)), np.ones((2, 1, 1, 4), np.float32), TypeError, "float64.*float32"),
    (np.ones((2, 1, 1, 3), int), np.ones((2, 1, 1, 4), int), TypeError, "int64"),
    (np.ones((2, 1, 4, 3)), np.ones((2, 1, 4, 4)), ValueError, r"= 5 .*2 held \+ 4 new = 6"),
]  # fmt: skip


@BOTH
@pytest.mark.parametrize(("key", "value", "error", "said"), MISFITS)
def test_a_refused_append_changes_nothing(twin, key, value, error, said):
    cache = KVCache(5)
    first = twin.give(numbers(2, 1, 2, 3)), twin.give(numbers(2, 1, 2, 4))
    cache.append(*first)
    with pytest.raises(error, match=said):
        cache.append(twin.give(key), twin.give(value))
    assert (cache.length, cache.start) == (2, 0)
    keys, values = cache.append(*first)
    assert np.array_equal(twin.take(keys), np.concatenate([twin.take(first[0])] * 2, axis=-2))
    assert np.array_equal(twin.take(values), np.concatenate([twin.take(first[1])] * 2, axis=-2))


def test_libraries_and_devices_are_never_mixed():
    ours, theirs = np.ones((1, 3)), torch.ones(1, 3, dtype=torch.float64)
    for pair in ((ours, theirs), (theirs, ours), ([[1.0]], [[1.0]])):
        with pytest.raises(TypeError, match="never mixed"):
            KVCache(2).append(*pair)
    for first, second in ((ours, theirs), (theirs, ours)):
        cache = KVCache(2)
        cache.append(first, first)
        with pytest.raises(TypeError, match="never mixed"):
            cache.append(second, second)
        assert cache.length == 1
    with pytest.raises(ValueError, match=r"cpu.*meta"):
        KVCache(2).append(theirs, theirs.to("meta"))
    cache = KVCache(2)
    cache.append(theirs, theirs)
    with pytest.raises(ValueError, match=r"cpu.*meta"):
        cache.append(theirs.to("meta"), theirs.to("meta"))


def test_after_clear_anything_may_come():
    cache = KVCache(2)
    cache.append(np.ones((2, 1, 2, 3)), np.ones((2, 1, 2, 3)))
    cache.clear()
    keys, _ = cache.append(torch.zeros(1, 4), torch.zeros(1, 5))
    assert torch.equal(keys, torch.zeros(1, 4))


@pytest.mark.parametrize(
    ("capacity", "error"), [(0, ValueError), (-1, ValueError), (2.0, TypeError), (None, TypeError)]
)
def test_capacity_is_checked(capacity, error):
    with pytest.raises(error, match="capacity"):
        KVCache(capacity)


@pytest.mark.parametrize(("n", "error"), [(-1, ValueError), (1.0, TypeError), (True, TypeError)])
def test_trim_is_checked(n, error):
    with pytest.raises(error, match="trim"):
        KVCache(2).trim(n)


@BOTH
def test_a_bad_call_is_refused_before_anything_is_appended(twin):
    x, eye = twin.give(numbers(2, 3, 4)), twin.give(np.eye(4))
    cache, options = KVCache(4, ring=True), dict(num_heads=2)

    def step(x, **more):
        return twin.attn.multi_head_attention(x, eye, eye, eye, eye, **options, **more)

    step(x, cache=cache, mask=Causal())
    bad = twin.give(np.ones((5, 5), bool))
    for more in (dict(mask=bad), dict(context=x), dict(q_offset=3), dict(bias=x), dict(mask="no")):
        with pytest.raises((ValueError, TypeError)):
            step(x, cache=cache, **more)
        assert cache.length == 3
    step(x, cache=cache, mask=Causal())
    assert cache.start == 2
    with pytest.raises(ValueError, match="absolute"):
        step(x, cache=cache, mask=KeyPadding(2))
    assert cache.length == 6
