"""Wrong attention beyond tests/mutants.py: public reports, tutorials, slips of the hand.

WRONG holds (title, function, options, expected): the name that the judge has to give, if it is one
of a known bug, or a phrase that its description has to contain. None of the functions uses the
steps of attn.check.
"""

import math

import numpy as np
import torch
from mutants import WRONG as OLDER
from mutants import attention, hidden, repeated, scored, softmaxed
from torch.nn import functional as F

import attn
from attn.check import from_layer, merged_heads, one_head
from attn.torch import as_numpy_function

R = attn.scaled_dot_product_attention
# The description is true, and is what can be said: what is added is no formula of a known bug.
DESCRIBED = {"hidden keys leak": "weights do not sum to 1"}

WRONG = [
    (f"mutant {n}", function, options, DESCRIBED.get(name, name))
    for n, (name, function, options) in enumerate(OLDER)
]


def wrong(expected, title=None, **options):
    def add(function):
        WRONG.append((title or function.__name__, function, options, expected))
        return function

    return add


def mask_of(expected, title, **options):
    """The right function, with another mask: change(mask, query, key)."""

    def add(change):
        def function(query, key, value, mask):
            return R(query, key, value, None if mask is None else change(mask, query, key))

        WRONG.append((title, function, options, expected))
        return change

    return add


def scores_of(expected, title, **options):
    """The scores are changed before the mask."""

    def add(change):
        def function(query, key, value, mask):
            key, value = repeated(query, key, value)
            return softmaxed(hidden(change(scored(query, key)), mask)) @ value

        WRONG.append((title, function, options, expected))
        return change

    return add


def removal(expected, title, **options):
    """The scores and the mask, before a guarded softmax."""

    def add(change):
        def function(query, key, value, mask):
            key, value = repeated(query, key, value)
            scores = scored(query, key)
            return softmaxed(scores if mask is None else change(scores, mask)) @ value

        WRONG.append((title, function, options, expected))
        return change

    return add


# Batches and masks


@wrong("shared mask for batch row 0 only")
def rows0(q, k, v, m):
    if m is not None and len(m) == 1 and len(q) > 1:
        m = np.concatenate([m | False] + [np.ones_like(m)] * (len(q) - 1))
    return R(q, k, v, m)


mask_of("padding read as a length", "padding as lengths")(
    lambda m, q, k: m if m.shape[2] != 1 else np.arange(k.shape[2]) < m.sum(-1, keepdims=True)
)
mask_of("mask read as a length", "any mask as lengths")(
    lambda m, q, k: np.arange(k.shape[2]) < m.sum(-1, keepdims=True)
)
mask_of("padding read as a length", "up to the last visible key")(
    lambda m, q, k: (
        m
        if m.shape[2] != 1
        else np.arange(k.shape[2]) <= np.where(m, np.arange(k.shape[2]), -1).max(-1, keepdims=True)
    )
)
mask_of("mask cut at the first hidden key", "argmin as length")(
    lambda m, q, k: np.arange(k.shape[2]) < np.where(m.all(-1), k.shape[2], m.argmin(-1))[..., None]
)
mask_of("only batch row 0 masked", "other rows free")(
    lambda m, q, k: m | (np.arange(len(q)) > 0)[:, None, None, None]
)
mask_of("only the first head masked", "other heads free")(
    lambda m, q, k: m | (np.arange(q.shape[1]) > 0)[:, None, None]
)
mask_of("masks of the heads joined", "any head hides")(lambda m, q, k: m.all(1, keepdims=True))
mask_of("masks of the batch joined", "any row shows")(lambda m, q, k: m.any(0, keepdims=True))
mask_of("first query's mask for all", "row 0 of the mask")(lambda m, q, k: m[:, :, :1])
mask_of("last query's mask for all", "last row of the mask")(lambda m, q, k: m[:, :, -1:])
mask_of("mask in reverse order", "flipped padding")(lambda m, q, k: m[..., ::-1])
mask_of("padding ignored", "masks of keys are dropped")(
    lambda m, q, k: None if m.shape[2] == 1 < q.shape[2] else m
)
mask_of("mask of pairs ignored", "masks of pairs are dropped")(
    lambda m, q, k: m if m.shape[2] == 1 else None
)
mask_of("padded queries hidden too", "square padding")(
    lambda m, q, k: m & m.mT if m.shape[2] == 1 and q.shape[2] == k.shape[2] else m
)
mask_of("key 0 never hidden", "a sink that nobody asked for")(
    lambda m, q, k: m | (np.arange(k.shape[2]) == 0)
)
mask_of("own position never hidden", "the diagonal is always there")(
    lambda m, q, k: m | np.eye(q.shape[2], k.shape[2], k.shape[2] - q.shape[2], dtype=bool)
)
mask_of("last query sees everything", "the last row is free")(
    lambda m, q, k: m | (np.arange(q.shape[2]) == q.shape[2] - 1)[:, None]
)
mask_of("last key always hidden", "the last key is lost")(
    lambda m, q, k: m & (np.arange(k.shape[2]) < k.shape[2] - 1)
)
mask_of("padding with holes", "padding is sorted")(
    lambda m, q, k: (
        np.sort(m, -1)[..., ::-1] if m.shape[2] == 1 and m[..., 0].all() and m[..., -1].all() else m
    )
)
mask_of(
    "left padding",
    "padding in front is turned round",
)(lambda m, q, k: m[..., ::-1] if m.shape[2] == 1 < q.shape[2] and not m[..., 0].any() else m)
mask_of("batch mixed", "mask of the next row")(lambda m, q, k: np.roll(m, 1, 0))
mask_of("one mask serves several heads", "shared masks hide nothing from heads after the first")(
    lambda m, q, k: m | (m.shape[1] == 1) & (np.arange(q.shape[1]) > 1)[:, None, None]
)
mask_of("causal", "queries of documents")(
    lambda m, q, k: (
        m | np.eye(q.shape[2], k.shape[2], dtype=bool)
        if (m[..., 0, :] == (np.arange(k.shape[2]) <= k.shape[2] - q.shape[2])).all()
        and q.shape[2] != k.shape[2]
        else m
    )
)


# Tiles


def tiled(T, **fault):
    def function(q, k, v, m):
        k, v = repeated(q, k, v)
        s = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
        s = s if m is None else np.where(m, s, -np.inf)
        top = np.full((*s.shape[:-1], 1), -np.inf)
        total = 0 * np.exp(top)
        o = total
        for j in range(0, s.shape[-1], T):
            part = s[..., j : j + T]
            if fault.get("drops") and part.shape[-1] < T and j:
                break
            new = np.maximum(top, part.max(-1, keepdims=True))
            safe = np.where(np.isneginf(new), 0, new)
            e, shrink = np.exp(part - safe), np.exp(top - safe)
            total = total * (1 if fault.get("sum") else shrink) + e.sum(-1, keepdims=True)
            o = o * (1 if fault.get("output") else shrink) + e @ v[..., j : j + T, :]
            top = new
        return o / np.where(total == 0, 1, total)

    return function


for T in (16, 32, 128):
    wrong("output not rescaled between tiles", f"tiles of {T}, output")(tiled(T, output=True))
wrong("sum not rescaled between tiles", "tiles of 64, sum")(tiled(64, sum=True))
wrong("nothing rescaled between tiles", "tiles of 16, both")(tiled(16, sum=True, output=True))
wrong("last tile left out", "tiles of 64, tail")(tiled(64, drops=True))
wrong("more than 16 keys", "tiles of 24")(tiled(24, output=True))


@wrong("last tile not masked")
def tail_without_mask(q, k, v, m, T=32):
    S = k.shape[2]
    if m is not None and S > T and S % T:
        m = m | (np.arange(S) >= S // T * T)
    return R(q, k, v, m)


@wrong("first tile only masked")
def first_tile_masked(q, k, v, m):
    return R(q, k, v, m if m is None else m | (np.arange(k.shape[2]) >= 16))


@wrong("keys beyond the limit ignored")
def a_limit_of_64_keys(q, k, v, m):
    return R(q, k[:, :, :64], v[:, :, :64], m if m is None else m[..., :64])


@wrong("keys before the limit ignored")
def window_of_128(q, k, v, m):
    return R(q, k[:, :, -128:], v[:, :, -128:], m if m is None else m[..., -128:])


@wrong("keys of zeros counted")
def zeros_counted(q, k, v, m, T=16):
    width = ((0, 0), (0, 0), (0, -k.shape[2] % T), (0, 0))
    if m is not None:
        m = np.pad(m, ((0, 0),) * 3 + ((0, -k.shape[2] % T),))
    return R(q, np.pad(k, width), np.pad(v, width), m)


@wrong("last queries left out")
def query_tail(q, k, v, m, T=32):
    out = R(q, k, v, m)
    if q.shape[2] > T:
        out[:, :, q.shape[2] // T * T :] = 0
    return out


@wrong("a softmax for each tile")
def tiles_averaged(q, k, v, m, T=16):
    parts = [
        R(q, k[:, :, j : j + T], v[:, :, j : j + T], m if m is None else m[..., j : j + T])
        for j in range(0, k.shape[2], T)
    ]
    return sum(parts) / len(parts)


@wrong("more than 128 queries")
def long_queries_wrap(q, k, v, m):
    out = R(q, k, v, m)
    out[:, :, 128:] = out[:, :, :1] if q.shape[2] > 128 else 0
    return out


# Scores of 0


@removal("a score of 0 taken for hidden", "zero is hidden")
def zero_is_hidden(s, m):
    s = s * m
    return np.where(s == 0, -np.inf, s)


scores_of("a score of 0 taken for hidden", "zero is hidden, always")(
    lambda s: np.where(s == 0, -np.inf, s)
)


# After the softmax


@wrong("1 added to the denominator")
def sink_of_zero(q, k, v, m):
    return R(q, k, v, m, sink=np.zeros(q.shape[1], q.dtype))


@wrong("a sink in the denominator")
def sink_of_half(q, k, v, m):
    return R(q, k, v, m, sink=np.full(q.shape[1], 0.5, q.dtype))


@wrong("1 added to the denominator")
def one_after_the_maximum(q, k, v, m):
    k, v = repeated(q, k, v)
    s = hidden(scored(q, k), m)
    e = np.exp(s - np.nan_to_num(s.max(-1, keepdims=True), neginf=0))
    return e / (e.sum(-1, keepdims=True) + 1) @ v


for title, gain in {
    "dropout's factor": lambda q, k: 1 / 0.9,
    "mean over the keys": lambda q, k: 1 / k.shape[2],
    "scaled again": lambda q, k: q.shape[3] ** -0.5,
    "times the heads": lambda q, k: q.shape[1],
    "negated": lambda q, k: -1,
}.items():
    wrong("output negated" if title == "negated" else "output rescaled", title)(
        lambda q, k, v, m, gain=gain: R(q, k, v, m) * gain(q, k)
    )


@wrong("something added to the output")
def residual(q, k, v, m):
    return R(q, k, v, m) + q[..., :1]


@wrong("values are as wide as keys")
def residual_where_it_fits(q, k, v, m):
    out = R(q, k, v, m)
    return out + q if q.shape == out.shape else out


# Nearly right

for cap in (20, 30, 50):
    scores_of("scores capped", f"softcap {cap}")(lambda s, cap=cap: cap * np.tanh(s / cap))
scores_of("scores clipped", "clip 10")(lambda s: np.clip(s, -10, 10))
scores_of("scores clipped", "clip 88")(lambda s: np.minimum(s, 88))
scores_of("scores capped", "softcap 37")(lambda s: 37 * np.tanh(s / 37))
scores_of("absolute scores", "abs")(np.abs)
scores_of("scores put through relu", "relu before softmax")(lambda s: np.maximum(s, 0))


@wrong("a bias by distance inside")
def alibi_inside(q, k, v, m):
    L, S, H = q.shape[2], k.shape[2], q.shape[1]
    far = abs(np.arange(S) - np.arange(L)[:, None] - (S - L))
    bias = -(2.0 ** (-8 / H * np.arange(1, H + 1)))[:, None, None] * far
    return R(q, k, v, m, bias=bias[None].astype(q.dtype))


removal("hidden scores set to the smallest", "leaks the smallest")(
    lambda s, m: np.where(m, s, s.min())
)
removal("hidden scores set to the smallest", "leaks the smallest of the row")(
    lambda s, m: np.where(m, s, s.min(-1, keepdims=True))
)
removal("hidden scores set to +inf", "+inf")(lambda s, m: np.where(m, s, np.inf))
removal("hidden scores set to a small number", "1e-9 for -1e9")(lambda s, m: np.where(m, s, 1e-9))
removal("hidden scores set to 1", "filled with 1")(lambda s, m: np.where(m, s, 1))
removal("finite fill", "-1e30 and -1e12 of float16 fame")(lambda s, m: np.where(m, s, -1e12))
removal("finite fill", "-100")(lambda s, m: np.where(m, s, -100))
removal("finite fill", "added -1e5")(lambda s, m: s + (~m) * -1e5)


@wrong("half precision inside")
def bfloat16_inside(q, k, v, m):
    q, k, v = (torch.from_numpy(x).bfloat16() for x in (q, k, v))
    m = None if m is None else torch.from_numpy(m)
    return F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True).double().numpy()


@wrong("float32 inside float64")
def scores_in_float32(q, k, v, m):
    k, v = repeated(q, k, v)
    s = (q.astype("float32") @ k.mT.astype("float32") / np.float32(q.shape[-1] ** 0.5)).astype(
        q.dtype
    )
    return softmaxed(hidden(s, m)) @ v


# A reshape for a transpose


@wrong("keys reshaped, not transposed")
def keys_reshaped(q, k, v, m):
    k, v = repeated(q, k, v)
    s = q @ k.reshape(*k.shape[:2], k.shape[3], k.shape[2]) / q.shape[-1] ** 0.5
    return softmaxed(hidden(s, m)) @ v


# Epsilon


def with_epsilon(epsilon, after=True):
    def function(q, k, v, m):
        k, v = repeated(q, k, v)
        s = hidden(scored(q, k), m)
        e = np.exp(s - (np.nan_to_num(s.max(-1, keepdims=True), neginf=0) if after else 0))
        return e / (e.sum(-1, keepdims=True) + epsilon) @ v

    return function


for epsilon in (1e-5, 1e-6, 1e-8, 1e-9, 3e-7):
    wrong("epsilon in the denominator", f"epsilon {epsilon}")(with_epsilon(epsilon))

# What cannot be called


@wrong("dtype='float32'")
def refuses_float64(q, k, v, m):
    if q.dtype != np.float32:
        raise TypeError("expected float32")
    return R(q, k, v, m)


@wrong("square=True")
def needs_a_square(q, k, v, m):
    if q.shape[2] != k.shape[2]:
        raise ValueError("one length, please")
    return R(q, k, v, m)


@wrong("multiple_of=16")
def needs_whole_tiles(q, k, v, m):
    if q.shape[2] % 16 or k.shape[2] % 16:
        raise ValueError("length must be a multiple of 16")
    return R(q, k, v, m)


@wrong("masks=False")
def takes_no_mask(q, k, v):
    return R(q, k, v)


@wrong("masks=False, grouped=False, square=True")
def takes_little(q, k, v):
    return softmaxed(np.stack([scored(q, k)])[0] + 0 * np.eye(q.shape[2])) @ v


wrong("attn.check.one_head", "matrices")(lambda q, k, v, m: (lambda L, D: R(q, k, v, m))(*q.shape))
wrong("attn.check.merged_batch", "three axes")(
    lambda q, k, v, m: (
        lambda N, L, D: R(q[:, None], k[:, None], v[:, None], None if m is None else m[:, None])[
            :, 0
        ]
    )(*q.shape)
)
wrong("attn.check.first_output", "output and weights")(lambda q, k, v, m: (R(q, k, v, m), None))
wrong("as_numpy_function", "tensors wanted")(
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m)
)


# The softmax


def mixed(weights_of):
    def function(q, k, v, m):
        k, v = repeated(q, k, v)
        return weights_of(hidden(scored(q, k), m)) @ v

    return function


wrong("sigmoid instead of softmax", "sigmoid")(mixed(lambda s: 1 / (1 + np.exp(-s))))
wrong("softmax twice", "twice")(mixed(lambda s: softmaxed(softmaxed(s))))
wrong("several keys", "argmax")(
    mixed(lambda s: (np.arange(s.shape[-1]) == s.argmax(-1)[..., None]) & np.isfinite(s))
)
wrong("relu instead of softmax", "relu attention")(mixed(lambda s: np.maximum(s, 0)))
wrong("softmax of the negative scores", "negative scores")(lambda q, k, v, m: R(-q, k, v, m))
wrong("another scale", "temperature 2")(lambda q, k, v, m: R(q / 2, k, v, m))
wrong("divided by D", "scaled twice")(lambda q, k, v, m: R(q * q.shape[3] ** -0.5, k, v, m))
wrong("mean subtracted, not the maximum", "mean subtracted")(
    mixed(
        lambda s: (lambda e: e / e.sum(-1, keepdims=True))(
            np.exp(s - np.nanmean(np.where(np.isinf(s), np.nan, s), -1, keepdims=True))
        )
    )
)


# Operands and heads

wrong("queries and keys normalised", "cosine attention")(
    lambda q, k, v, m: R(
        q / np.linalg.norm(q, axis=-1, keepdims=True),
        k / np.linalg.norm(k, axis=-1, keepdims=True),
        v,
        m,
    )
)
wrong("queries used as keys", "q for k", grouped=False)(
    lambda q, k, v, m: R(q, q, v, m) if q.shape == k.shape else R(q, k[:, :, :0], v, m)
)
wrong("output reshaped", "output turned")(
    lambda q, k, v, m: (lambda o: o.mT.reshape(o.shape))(R(q, k, v, m))
)
wrong("heads in reverse order", "heads reversed")(lambda q, k, v, m: R(q, k, v, m)[:, ::-1])
wrong("heads shifted by one", "key heads rolled", grouped=False)(
    lambda q, k, v, m: R(q, np.roll(k, 1, 1), np.roll(v, 1, 1), m)
)
wrong("heads mixed", "scores summed over heads", grouped=False)(
    lambda q, k, v, m: (
        softmaxed(hidden(scored(q, k).sum(1, keepdims=True) + 0 * scored(q, k), m)) @ v
    )
)
wrong("only the first head computed", "one head computed")(
    lambda q, k, v, m: R(q, k, v, m) * (np.arange(q.shape[1]) == 0)[:, None, None]
)
wrong("only batch row 0 computed", "first row only")(
    lambda q, k, v, m: R(q, k, v, m) * (np.arange(len(q)) == 0)[:, None, None, None]
)
wrong("batch mixed", "row 0 for all")(
    lambda q, k, v, m: np.broadcast_to(R(q, k, v, m)[:1], (len(q), *R(q, k, v, m).shape[1:]))
)
wrong("heads tiled instead of grouped", "values tiled")(
    lambda q, k, v, m: R(
        q, *(repeated(q, k, v)[0], np.tile(v, (1, q.shape[1] // v.shape[1], 1, 1))), m
    )
)
wrong("queries in reverse order", "flipped")(lambda q, k, v, m: R(q, k, v, m)[:, :, ::-1])
wrong("keys in reverse order", "values flipped")(
    lambda q, k, v, m: R(q, k, v[:, :, ::-1], m) if m is None else mixed_reverse(q, k, v, m)
)


def mixed_reverse(q, k, v, m):
    k, v = repeated(q, k, v)
    return softmaxed(hidden(scored(q, k), m)) @ v[:, :, ::-1]


# Two at once


@wrong({"no scale", "hidden scores set to 0"})
def no_scale_and_leak(q, k, v, m):
    k, v = repeated(q, k, v)
    return softmaxed((q @ k.mT) * (1 if m is None else m)) @ v


@wrong({"finite fill", "scaled by d_model"})
def finite_and_scaled_by_model(q, k, v, m):
    k, v = repeated(q, k, v)
    s = q @ k.mT / (q.shape[1] * q.shape[3]) ** 0.5
    return softmaxed(s if m is None else np.where(m, s, -1e4)) @ v


@wrong({"heads tiled instead of grouped", "inverted mask"})
def tiled_and_inverted(q, k, v, m):
    g = (1, q.shape[1] // k.shape[1], 1, 1)
    return R(q, np.tile(k, g), np.tile(v, g), None if m is None else ~m)


@wrong({"no scale", "float32 inside float64"})
def unscaled_in_float32(q, k, v, m):
    q, k, v = (x.astype("float32") for x in (q, k, v))
    return R(q, k, v, m, scale=1.0)


# State

STORE = {}


@wrong("calls of the same sizes came before")
def caches_the_mask_by_size(q, k, v, m):
    if m is not None:
        m = STORE.setdefault((q.shape, k.shape, v.shape, m.shape, m.dtype, q.dtype), m)
    return R(q, k, v, m)


COUNT = []


@wrong("not deterministic")
def counts_its_calls(q, k, v, m):
    COUNT.append(1)
    return R(q, k, v, m) * (1 + 1e-6 * len(COUNT))


@wrong("inputs changed")
def scores_into_the_key(q, k, v, m):
    k *= 1.0001
    return R(q, k / 1.0001, v, m)


# Situations

wrong("the input is float32", "float32 overflows")(
    lambda q, k, v, m: R(q, k, v, m) if q.dtype == np.float64 else R(q, k, v, m) + 0.01
)
wrong("there is one query", "decoding doubles")(
    lambda q, k, v, m: R(q, k, v, m) * (1 + 0.5 * np.sin(v.sum()) ** 2 * (q.shape[2] == 1))
)
wrong("more queries than keys", "long queries")(
    lambda q, k, v, m: R(q, k, v, m) + (q.shape[2] > k.shape[2]) * 0.1
)
wrong("query heads share key heads", "groups and noise")(
    lambda q, k, v, m: R(q, k, v, m) + (q.shape[1] > k.shape[1]) * 0.1
)
wrong("all keys are equal", "equal keys")(
    lambda q, k, v, m: R(q, k, v, m) + (k.shape[2] > 1 and (k == k[:, :, :1]).all()) * 0.1
)
wrong("scores lie near 1000", "large")(
    lambda q, k, v, m: R(q, k, v, m) + 0.1 * (abs(k).max() > 500) * (abs(q).max() < 100)
)
wrong("hides some key from all of them", "padding or causal")(
    lambda q, k, v, m: R(
        q, k, v, m if m is None or not _causal_and_padded(m, q, k) else m | ~m.any(2, keepdims=True)
    )
)


def _causal_and_padded(m, q, k):
    L, S = q.shape[2], k.shape[2]
    causal = np.tril(np.ones((L, S), bool), S - L)
    return (m.shape[2] > 1 and not (m & ~causal).any() and not (m == causal).all()
            and not m.any(2).all())  # fmt: skip


# Through adapters

wrong("no scale", "one head, unscaled")(
    one_head(lambda q, k, v, m: softmaxed(hidden(q @ k.T, m)) @ v)
)
wrong("another scale", "a layer, unscaled", square=True)(
    from_layer(
        lambda wq, wk, wv, wo, H: (
            lambda x, m: (
                lambda q, k, v: (
                    (softmaxed(hidden(q @ k.mT, m)) @ v).swapaxes(1, 2).reshape(x.shape) @ wo
                )
            )(*((x @ w).reshape(*x.shape[:2], H, -1).swapaxes(1, 2) for w in (wq, wk, wv)))
        )
    )
)
wrong("heads split without the transpose", "merged heads, split by reshape")(
    merged_heads(
        lambda q, k, v, m, H: (lambda out: out.swapaxes(1, 2).reshape(len(q), q.shape[1], -1))(
            attention(*(x.reshape(len(x), H, x.shape[1], -1) for x in (q, k, v)), m)
        )
    )
)
wrong("NaN on empty rows", "SDPA's composite in torch")(
    as_numpy_function(
        lambda q, k, v, m: (
            lambda s: s.softmax(-1) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        )(
            (
                q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / math.sqrt(q.shape[3])
            ).masked_fill(torch.tensor(False) if m is None else ~m, -torch.inf)
        )
    )
)
