"""Attention written in many ways: right ones in different styles, and wrong ones with their bugs.

None of them uses attn.check.steps, from which the judge predicts what known bugs compute.
"""

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import attn
import attn.torch
from attn import conventions
from attn.torch.check import as_numpy_function

RNG = np.random.default_rng(7)


# What the mutants are made of: each replaces or leaves out one of these lines.


def repeated(query, key, value):
    groups = query.shape[1] // key.shape[1]
    return np.repeat(key, groups, axis=1), np.repeat(value, groups, axis=1)


def scored(query, key):
    return query @ key.transpose(0, 1, 3, 2) / math.sqrt(query.shape[-1])


def hidden(scores, mask):
    return scores if mask is None else np.where(mask, scores, -np.inf)


def softmaxed(scores, axis=-1):
    top = np.nan_to_num(scores.max(axis=axis, keepdims=True), neginf=0, posinf=0)
    exps = np.exp(scores - top)
    total = exps.sum(axis=axis, keepdims=True)
    return np.divide(exps, total, out=np.zeros_like(exps), where=total > 0)


def attention(query, key, value, mask):
    key, value = repeated(query, key, value)
    return softmaxed(hidden(scored(query, key), mask)) @ value


# Right, in different styles.


def by_loops(query, key, value, mask):
    B, H, L, D = query.shape
    _, Hkv, S, Dv = value.shape
    mask = np.broadcast_to(True if mask is None else mask, (B, H, L, S))
    output = np.zeros((B, H, L, Dv), query.dtype)
    for b, h, i in np.ndindex(B, H, L):
        g = h // (H // Hkv)
        seen = [j for j in range(S) if mask[b, h, i, j]]
        dots = [sum(query[b, h, i, d] * key[b, g, j, d] for d in range(D)) / D**0.5 for j in seen]
        parts = [math.exp(dot - max(dots)) for dot in dots]
        for j, part in zip(seen, parts, strict=True):
            output[b, h, i] += part / sum(parts) * value[b, g, j]
    return output


def by_einsum(query, key, value, mask):
    B, H, L, D = query.shape
    Hkv = key.shape[1]
    query = query.reshape(B, Hkv, H // Hkv, L, D)
    scores = np.einsum("bngld,bnsd->bngls", query, key) / D**0.5
    if mask is not None:
        full = np.broadcast_to(mask, (B, H, L, key.shape[2]))
        scores[~full.reshape(scores.shape)] = -np.inf
    return np.einsum("bngls,bnsv->bnglv", softmaxed(scores), value).reshape(B, H, L, -1)


def by_online_softmax(query, key, value, mask, block=2):
    key, value = repeated(query, key, value)
    shape = (*query.shape[:3], key.shape[2])
    mask = np.broadcast_to(True if mask is None else mask, shape)
    top = np.full((*shape[:3], 1), -np.inf)
    total, output = np.zeros_like(top), np.zeros((*shape[:3], value.shape[-1]))
    for start in range(0, shape[3], block):
        part = slice(start, start + block)
        scores = np.where(mask[..., part], scored(query, key[:, :, part]), -np.inf)
        new_top = np.maximum(top, scores.max(-1, keepdims=True))
        safe = np.where(np.isneginf(new_top), 0, new_top)
        exps, shrink = np.exp(scores - safe), np.exp(top - safe)
        total = total * shrink + exps.sum(-1, keepdims=True)
        output = output * shrink + exps @ value[:, :, part]
        top = new_top
    return output / np.where(total == 0, 1, total)


def by_multihead_module(query, key, value, mask):
    """nn.MultiheadAttention whose projections are unit matrices; features padded to one size."""
    (B, H, L, D), (S, Dv) = query.shape, value.shape[2:]
    P = max(D, Dv)
    query, key, value = (
        F.pad(x, (0, P - x.shape[-1])).repeat_interleave(H // x.shape[1], dim=1)
        for x in (query * (P / D) ** 0.5, key, value)
    )
    layer = nn.MultiheadAttention(H * P, H, bias=False, batch_first=True, dtype=query.dtype)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.eye(H * P).repeat(3, 1))
        layer.out_proj.weight.copy_(torch.eye(H * P))
    masks = {}
    if mask is not None:  # an empty row of one head would be NaN, and the projection spreads it
        mask = mask.expand(B, H, L, S)
        shown = mask | ~mask.any(-1, keepdim=True)
        masks = conventions.to_torch_mha(shown, num_heads=H)._asdict()
    flat = (x.transpose(1, 2).flatten(2) for x in (query, key, value))
    output = layer(*flat, **masks)[0].unflatten(-1, (H, P)).transpose(1, 2)[..., :Dv]
    if mask is None:
        return output
    return torch.where(mask.any(-1, keepdim=True), output, 0)


def by_sdpa(query, key, value, mask):
    return F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)


def masked_then_divided(query, key, value, mask):
    """The maximum of the visible scores, so that masking after exp is right as well."""
    key, value = repeated(query, key, value)
    scores = scored(query, key)
    mask = np.broadcast_to(True if mask is None else mask, scores.shape)
    top = scores.max(-1, keepdims=True, where=mask, initial=-np.inf)
    exps = np.exp(np.minimum(scores - np.where(np.isneginf(top), 0, top), 0)) * mask
    total = exps.sum(-1, keepdims=True)
    return exps @ value / np.where(total == 0, 1, total)


RIGHT = {
    "attn": attn.scaled_dot_product_attention,
    "attn.torch": as_numpy_function(attn.torch.scaled_dot_product_attention),
    "loops": by_loops,
    "einsum": by_einsum,
    "online softmax": by_online_softmax,
    "SDPA": as_numpy_function(by_sdpa),
    "nn.MultiheadAttention": as_numpy_function(by_multihead_module),
    "exp, then mask": masked_then_divided,
    "plain NumPy": attention,
}


# Wrong, each under the name that the judge must give it. Several may share a name.

WRONG = []


def named(name, **options):
    def add(function):
        WRONG.append((name, function, options))
        return function

    return add


def with_scale(scale):
    def function(query, key, value, mask):
        key, value = repeated(query, key, value)
        scores = query @ key.transpose(0, 1, 3, 2) * scale(query, key, value)
        return softmaxed(hidden(scores, mask)) @ value

    function.__name__ = scale.__name__
    return function


named("no scale")(with_scale(lambda q, k, v: 1))
named("scaled by d_model")(with_scale(lambda q, k, v: (q.shape[1] * q.shape[3]) ** -0.5))
named("scaled by d_model")(with_scale(lambda q, k, v: 1 / (q.shape[1] * q.shape[3])))
named("scaled by n")(with_scale(lambda q, k, v: q.shape[2] ** -0.5))
named("scaled by n")(with_scale(lambda q, k, v: k.shape[2] ** -0.5))
named("scaled by n")(with_scale(lambda q, k, v: 1 / k.shape[2]))
named("divided by D")(with_scale(lambda q, k, v: 1 / q.shape[3]))
named("multiplied by √D")(with_scale(lambda q, k, v: q.shape[3] ** 0.5))
named("scaled by the heads")(with_scale(lambda q, k, v: q.shape[1] ** -0.5))
named("scaled by the value size")(with_scale(lambda q, k, v: v.shape[3] ** -0.5))
named("softmax of base 2")(with_scale(lambda q, k, v: math.log(2) * q.shape[3] ** -0.5))
named("another scale")(with_scale(lambda q, k, v: 0.1))


@named("scaled after the softmax")
def scaled_after(query, key, value, mask):
    key, value = repeated(query, key, value)
    scores = query @ key.transpose(0, 1, 3, 2)
    return softmaxed(hidden(scores, mask)) / query.shape[3] ** 0.5 @ value


def with_softmax(softmax):
    def function(query, key, value, mask):
        key, value = repeated(query, key, value)
        return softmax(hidden(scored(query, key), mask)) @ value

    return function


named("softmax over the wrong axis")(with_softmax(lambda s: softmaxed(s, axis=-2)))
named("softmax over the wrong axis")(with_softmax(lambda s: softmaxed(s, axis=1)))
named("softmax over the wrong axis")(with_softmax(lambda s: softmaxed(s, axis=0)))
named("softmax over the wrong axis")(with_softmax(lambda s: softmaxed(s, axis=(-2, -1))))
named("no softmax")(with_softmax(lambda s: np.where(np.isneginf(s), 0, s)))


@named("softmax without keepdims")
@with_softmax
def without_keepdims(scores):
    exps = np.exp(scores - np.nan_to_num(scores.max(-1, keepdims=True), neginf=0))
    return exps / exps.sum(-1)


@named("no maximum subtracted")
@with_softmax
def without_maximum(scores):
    exps = np.exp(scores)
    total = exps.sum(-1, keepdims=True)
    return exps / np.where(total == 0, 1, total)


@named("one maximum for all rows")
@with_softmax
def one_maximum(scores):
    exps = np.exp(scores - np.nan_to_num(scores.max(), neginf=0))
    total = exps.sum(-1, keepdims=True)
    return exps / np.where(total == 0, 1, total)


@named("weights not normalised")
@with_softmax
def not_normalised(scores):
    return np.exp(scores - np.nan_to_num(scores.max(-1, keepdims=True), neginf=0))


@named("NaN on empty rows")
@with_softmax
def unguarded(scores):
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


@named("weights do not sum to 1")
@with_softmax
def one_is_added(scores):
    return softmaxed(scores) + 0.01


def with_mask(change):
    """The scores and the mask go through `change` before the softmax."""

    def function(query, key, value, mask):
        key, value = repeated(query, key, value)
        scores = scored(query, key)
        return softmaxed(scores if mask is None else change(scores, mask)) @ value

    return function


def triangular(k, lower_right=False):
    def change(scores, mask):
        L, S = scores.shape[-2:]
        return hidden(scores, np.tril(np.ones((L, S), bool), k + (S - L) * lower_right))

    return with_mask(change)


named("inverted mask")(with_mask(lambda s, mask: hidden(s, ~mask)))
named("inverted mask", convention="is hidden")(attention)
named("mask ignored")(with_mask(lambda s, mask: s))
named("off-by-one triangle (one short)")(triangular(-1))
named("off-by-one triangle (one long)")(triangular(1))
named("off-by-one triangle (one short)")(triangular(-1, lower_right=True))
named("off-by-one triangle (one short)")(
    with_mask(lambda s, m: hidden(s, np.tril(np.broadcast_to(m, s.shape), -1)))
)
named("off-by-one triangle (one short)")(
    with_mask(lambda s, m: hidden(s, np.concatenate((m[..., 1:], 0 * m[..., :1]), -1) > 0))
)
named("off-by-one triangle (one long)")(
    with_mask(lambda s, m: hidden(s, np.concatenate((m[..., :1] >= 0, m[..., :-1]), -1) > 0))
)
named("off-by-one triangle (one short)")(
    with_mask(lambda s, m: hidden(s, m & ~np.eye(*s.shape[-2:], dtype=bool)))
)
named("off-by-one triangle (one long)")(
    with_mask(lambda s, m: hidden(s, m | np.eye(*s.shape[-2:], k=1, dtype=bool)))
)
named("a triangle instead of the mask")(triangular(0))
named("finite fill")(with_mask(lambda s, mask: np.where(mask, s, -1e9)))
named("finite fill")(with_mask(lambda s, mask: np.where(mask, s, -1e4)))
named("finite fill")(with_mask(lambda s, mask: np.where(mask, s, -5)))
named("finite fill")(with_mask(lambda s, mask: s + (1 - mask) * -1e9))
named("finite fill")(with_mask(lambda s, mask: s + (1 - mask) * -10000.0))
named("finite fill")(with_mask(lambda s, mask: np.where(mask, s, -65504.0)))
named("mean on empty rows")(with_mask(lambda s, mask: np.where(mask, s, np.finfo(s.dtype).min)))
named("empty rows see everything")(
    with_mask(lambda s, mask: np.where(mask | ~mask.any(-1, keepdims=True), s, -np.inf))
)
named("hidden scores set to 0")(with_mask(lambda s, mask: s * mask))
named("mask added as a number")(with_mask(lambda s, mask: s + mask))
named("mask transposed")(with_mask(lambda s, mask: hidden(s, mask.transpose(0, 1, 3, 2))))
named("first head's mask for all")(with_mask(lambda s, mask: hidden(s, mask[:, :1])))
named("batch mixed")(with_mask(lambda s, mask: hidden(s, mask[:1])))
named("padding on the wrong axis")(
    with_mask(lambda s, m: hidden(s, m.transpose(0, 1, 3, 2) if m.shape[2] == 1 else m))
)


@named("0 times -inf")
def zero_times_infinity(query, key, value, mask):
    key, value = repeated(query, key, value)
    scores = scored(query, key)
    if mask is not None:
        scores = scores + (1 - mask.astype(float)) * -np.inf
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True) @ value


@named("mask after the softmax")
def masked_late(query, key, value, mask):
    key, value = repeated(query, key, value)
    return softmaxed(scored(query, key)) * (1 if mask is None else mask) @ value


@named("mask after the softmax")
def masked_late_and_divided_again(query, key, value, mask):
    key, value = repeated(query, key, value)
    weights = softmaxed(scored(query, key)) * (1 if mask is None else mask)
    return weights / weights.sum(-1, keepdims=True) @ value


@named("heads tiled instead of grouped")
def tiled(query, key, value, mask):
    groups = query.shape[1] // key.shape[1]
    return attention(
        query, np.tile(key, (1, groups, 1, 1)), np.tile(value, (1, groups, 1, 1)), mask
    )


@named("heads split without the transpose")
def split_by_reshape(query, key, value, mask):
    key, value = repeated(query, key, value)
    together = [
        x.transpose(0, 2, 1, 3).reshape(len(x), x.shape[2], -1) for x in (query, key, value)
    ]
    return attention(*(x.reshape(len(x), query.shape[1], x.shape[1], -1) for x in together), mask)


@named("heads merged without the transpose")
def merged_by_reshape(query, key, value, mask):
    output = attention(query, key, value, mask)
    B, H, L, Dv = output.shape
    return output.reshape(B, L, H * Dv).reshape(B, L, H, Dv).transpose(0, 2, 1, 3)


@named("heads merged without the transpose")
def transposed_but_not_back(query, key, value, mask):
    output = attention(query, key, value, mask)
    return output.transpose(0, 2, 1, 3).reshape(output.shape)


@named("heads split without the transpose")
def joined_by_reshape(query, key, value, mask):
    key, value = repeated(query, key, value)
    B, H = query.shape[:2]
    mixed = (x.reshape(B, x.shape[2], H, -1).transpose(0, 2, 1, 3) for x in (query, key, value))
    return attention(*mixed, mask)


@named("one key head for all")
def first_key_head(query, key, value, mask):
    return attention(query, key[:, :1], value[:, :1], mask)


@named("causal without being asked")
def always_causal(query, key, value, mask):
    triangle = np.tril(np.ones((query.shape[2], key.shape[2]), bool))
    return attention(query, key, value, triangle if mask is None else triangle & mask)


@named("weights transposed")
def columns_mix(query, key, value, mask):
    key, value = repeated(query, key, value)
    weights = softmaxed(hidden(scored(query, key), mask))
    return weights.transpose(0, 1, 3, 2) @ value


@named("query and key swapped")
def keys_ask(query, key, value, mask):
    key, value = repeated(query, key, value)
    return softmaxed(hidden(scored(key, query), mask)) @ value


@named("axes read as (B, L, H, D)")
def heads_where_positions_are(query, key, value, mask):
    scores = np.einsum("blhd,bshd->bhls", query, key) / query.shape[-1] ** 0.5
    return np.einsum("bhls,bshd->blhd", softmaxed(hidden(scores, mask)), value)


@named("float32 inside float64")
def in_float32(query, key, value, mask):
    output = attention(*(x.astype(np.float32) for x in (query, key, value)), mask)
    return output.astype(query.dtype)


@named("float32 inside float64")
def weights_in_float32(query, key, value, mask):
    key, value = repeated(query, key, value)
    return softmaxed(hidden(scored(query, key), mask)).astype(np.float32) @ value


@named("half precision inside")
def in_float16(query, key, value, mask):
    key, value = repeated(query, key, value)
    weights = softmaxed(hidden(scored(query, key), mask)).astype(np.float16)
    return (weights @ value.astype(np.float16)).astype(query.dtype)


@named("half precision inside")
def scores_in_float16(query, key, value, mask):
    key, value = repeated(query, key, value)
    scores = scored(query, key).astype(np.float16).astype(query.dtype)
    return softmaxed(hidden(scores, mask)) @ value


@named("inputs changed")
def query_scaled_in_place(query, key, value, mask):
    query /= math.sqrt(query.shape[-1])
    return attention(query * math.sqrt(query.shape[-1]), key, value, mask)


@named("inputs changed")
def mask_inverted_in_place(query, key, value, mask):
    output = attention(query, key, value, mask)
    if mask is not None:
        np.logical_not(mask, out=mask)
    return output


@named("batch mixed")
def keys_of_row_0(query, key, value, mask):
    return attention(query, np.broadcast_to(key[:1], key.shape), value, mask)


@named("batch mixed")
def keys_of_the_next_row(query, key, value, mask):
    return attention(query, np.roll(key, 1, axis=0), value, mask)


@named("maximum over the wrong axis")
@with_softmax
def maximum_of_columns(scores):
    exps = np.exp(scores - np.nan_to_num(scores.max(-2, keepdims=True), neginf=0))
    total = exps.sum(-1, keepdims=True)
    return exps / np.where(total == 0, 1, total)


@named("batch mixed")
def summed_over_the_batch(query, key, value, mask):
    key, value = repeated(query, key, value)
    weights = softmaxed(hidden(scored(query, key), mask))
    return np.einsum("bhls,chsv->bhlv", weights, value)


@named("heads mixed")
def heads_averaged(query, key, value, mask):
    output = attention(query, key, value, mask)
    return np.broadcast_to(output.mean(1, keepdims=True), output.shape)


@named("keys averaged, not values")
def keys_for_values(query, key, value, mask):
    return attention(query, key, key, mask)


@named("not deterministic")
def with_dropout(query, key, value, mask):
    key, value = repeated(query, key, value)
    weights = softmaxed(hidden(scored(query, key), mask))
    return weights * (RNG.random(weights.shape) < 0.9) / 0.9 @ value


@named("not deterministic")
def with_rare_noise(query, key, value, mask):
    return attention(query, key, value, mask) + 1e-12 * RNG.random()


@named("hidden keys leak")
def hidden_values_count(query, key, value, mask):
    output = attention(query, key, value, mask)
    if mask is None:
        return output
    return output + 0.1 * repeated(query, key, value)[1].mean(2, keepdims=True)


@named("no output of shape (B, H, L, Dv)")
def weights_too(query, key, value, mask):
    return attention(query, key, value, mask), None


@named("no output of shape (B, H, L, Dv)")
def heads_merged(query, key, value, mask):
    output = attention(query, key, value, mask)
    return output.transpose(0, 2, 1, 3).reshape(len(output), output.shape[2], -1)


@named("raises an exception")
def truth_of_an_array(query, key, value, mask):
    return attention(query, key, value, mask if mask else None)


@named("raises an exception")
def without_groups(query, key, value, mask):
    return softmaxed(hidden(scored(query, key), mask)) @ value


@named("mask ignored for one query")
def decodes_without_the_mask(query, key, value, mask):
    return attention(query, key, value, None if query.shape[2] == 1 else mask)


@named("mask ignored for one query")
def decodes_without_the_mask_in_torch(query, key, value, mask):
    key, value = repeated(query, key, value)
    if query.shape[2] > 1:
        return attention(query, key, value, mask)
    tensors = [torch.from_numpy(x) for x in (query, key, value)]
    return nn.functional.scaled_dot_product_attention(*tensors).numpy()


@named("triangle for one query")
def decodes_with_is_causal(query, key, value, mask):
    key, value = repeated(query, key, value)
    if query.shape[2] > 1:
        return attention(query, key, value, mask)
    tensors = [torch.from_numpy(x) for x in (query, key, value)]
    causal = mask is not None
    return nn.functional.scaled_dot_product_attention(*tensors, is_causal=causal).numpy()


@named("mask tiled over heads")
def masks_of_the_batch_in_turn(query, key, value, mask):
    B, H = query.shape[:2]
    if mask is not None and mask.shape[:2] == (B, 1):
        rows = torch.from_numpy(np.ascontiguousarray(mask[:, 0])).repeat(H, 1, 1)
        mask = rows.reshape(B, H, *mask.shape[2:]).numpy()
    return attention(query, key, value, mask)
