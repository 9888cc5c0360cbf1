"""Attention as people write it, in many styles, all right: the judge has to pass each of them.

RIGHT holds (name, function, options): with the option that fits, and no other.
"""

import math

import numpy as np
import torch
from mutants import RIGHT as OLDER
from mutants import attention, hidden, repeated, scored, softmaxed
from torch import nn
from torch.nn import functional as F

import attn
import attn.torch
from attn.check import first_output, from_layer, merged_batch, merged_heads, one_head
from attn.torch import as_numpy_function

RIGHT = [(name, function, {}) for name, function in OLDER.items()]


def style(name, **options):
    def add(function):
        RIGHT.append((name, function, options))
        return function

    return add


def in_torch(name, wrap=lambda function: function, **options):
    def add(function):
        RIGHT.append((name, wrap(as_numpy_function(function)), options))
        return function

    return add


# NumPy, with how a mask is laid on


@style("a large negative number, then zeros by hand")
def filled_with_the_minimum(query, key, value, mask):
    key, value = repeated(query, key, value)
    scores = scored(query, key)
    if mask is not None:
        scores = np.where(mask, scores, np.finfo(scores.dtype).min)
    weights = softmaxed(scores)
    return (weights if mask is None else weights * mask.any(-1, keepdims=True)) @ value


@style("an additive mask of -inf")
def with_additive_infinity(query, key, value, mask):
    key, value = repeated(query, key, value)
    added = 0 if mask is None else np.where(mask, 0, -np.inf).astype(query.dtype)
    return softmaxed(scored(query, key) + added) @ value


@style("an additive mask of the minimum, half of it")
def with_additive_minimum(query, key, value, mask):
    key, value = repeated(query, key, value)
    if mask is None:
        return softmaxed(scored(query, key)) @ value
    scores = scored(query, key) + np.where(mask, 0, np.finfo(query.dtype).min / 2)
    weights = softmaxed(np.where(mask, scores, np.finfo(query.dtype).min))
    return np.where(mask.any(-1, keepdims=True), weights, 0) @ value


@style("True hides", convention="is hidden")
def true_hides(query, key, value, mask):
    return attention(query, key, value, None if mask is None else ~mask)


@style("the query is scaled, not the scores")
def scaled_query(query, key, value, mask):
    key, value = repeated(query, key, value)
    return softmaxed(hidden((query * query.shape[-1] ** -0.5) @ key.mT, mask)) @ value


@style("query and key are each scaled by the fourth root")
def scaled_both(query, key, value, mask):
    key, value = repeated(query, key, value)
    root = query.shape[-1] ** -0.25
    return softmaxed(hidden((query * root) @ (key * root).mT, mask)) @ value


@style("log-sum-exp")
def by_logsumexp(query, key, value, mask):
    key, value = repeated(query, key, value)
    scores = hidden(scored(query, key), mask)
    total = np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    return np.exp(scores - np.where(np.isneginf(total), 0, total)) @ value


@style("powers of two")
def in_base_two(query, key, value, mask):
    key, value = repeated(query, key, value)
    scores = hidden(query @ key.mT * (query.shape[-1] ** -0.5 * math.log2(math.e)), mask)
    top = scores.max(-1, keepdims=True)
    powers = np.exp2(scores - np.where(np.isneginf(top), 0, top))
    total = powers.sum(-1, keepdims=True)
    return powers @ value / np.where(total == 0, 1, total)


@style("divided after the product")
def divided_last(query, key, value, mask):
    key, value = repeated(query, key, value)
    scores = hidden(scored(query, key), mask)
    top = scores.max(-1, keepdims=True)
    exps = np.exp(scores - np.where(np.isneginf(top), 0, top))
    return exps @ value / np.maximum(exps.sum(-1, keepdims=True), 1e-30)


@style("one row at a time")
def row_by_row(query, key, value, mask):
    B, H, L, _ = query.shape
    key, value = repeated(query, key, value)
    mask = np.broadcast_to(True if mask is None else mask, (B, H, L, key.shape[2]))
    output = np.zeros((B, H, L, value.shape[3]), value.dtype)
    for b, h, i in np.ndindex(B, H, L):
        seen = mask[b, h, i]
        if seen.any():
            scores = key[b, h, seen] @ query[b, h, i] / math.sqrt(query.shape[3])
            exps = np.exp(scores - scores.max())
            output[b, h, i] = exps @ value[b, h, seen] / exps.sum()
    return output


@style("one head at a time")
def head_by_head(query, key, value, mask):
    heads = []
    for h in range(query.shape[1]):
        g = h * key.shape[1] // query.shape[1]
        one = None if mask is None else mask[:, min(h, mask.shape[1] - 1)]
        scores = hidden(query[:, h] @ key[:, g].mT / query.shape[3] ** 0.5, one)
        heads.append(softmaxed(scores) @ value[:, g])
    return np.stack(heads, axis=1)


@style("groups on an axis of their own")
def grouped_axis(query, key, value, mask):
    (B, H, L, D), Hkv = query.shape, key.shape[1]
    query = query.reshape(B, Hkv, H // Hkv, L, D)
    scores = query @ key[:, :, None].mT / D**0.5
    if mask is not None:
        mask = np.broadcast_to(mask, (B, H, L, key.shape[2])).reshape(scores.shape)
    return (softmaxed(hidden(scores, mask)) @ value[:, :, None]).reshape(B, H, L, -1)


@style("keys with an index per query head")
def by_index(query, key, value, mask):
    g = np.arange(query.shape[1]) // (query.shape[1] // key.shape[1])
    return attention(query, key[:, g], value[:, g], mask)


@style("float64 inside, whatever came")
def in_float64(query, key, value, mask):
    output = attention(*(x.astype(np.float64) for x in (query, key, value)), mask)
    return output.astype(query.dtype)


@style("lists of lists", grouped=False, masks=False)
def by_lists(query, key, value):
    B, H, L, D = query.shape
    output = np.empty((B, H, L, value.shape[3]))
    for b, h in np.ndindex(B, H):
        rows, columns = key[b, h].tolist(), value[b, h].T
        for i, asks in enumerate(query[b, h].tolist()):
            dots = np.array(
                [
                    math.sumprod(asks, row)
                    if hasattr(math, "sumprod")
                    else sum(map(float.__mul__, asks, row))
                    for row in rows
                ]
            )
            exps = np.exp(dots / math.sqrt(D) - dots.max() / math.sqrt(D))
            output[b, h, i] = columns @ (exps / exps.sum())
    return output


# In tiles


def in_tiles(edge, query_edge=None):
    def function(query, key, value, mask):
        key, value = repeated(query, key, value)
        L, S = query.shape[2], key.shape[2]
        mask = np.broadcast_to(True if mask is None else mask, (*query.shape[:3], S))
        output = np.empty((*query.shape[:3], value.shape[3]), query.dtype)
        step = query_edge or L
        for q in range(0, L, step):
            rows = slice(q, q + step)
            top = np.full((*query[:, :, rows].shape[:3], 1), -np.inf)
            total, mixed = 0 * np.exp(top), 0
            for k in range(0, S, edge):
                part = slice(k, k + edge)
                scores = scored(query[:, :, rows], key[:, :, part])
                scores = np.where(mask[:, :, rows, part], scores, -np.inf)
                new = np.maximum(top, scores.max(-1, keepdims=True))
                safe = np.where(np.isneginf(new), 0, new)
                exps, shrink = np.exp(scores - safe), np.exp(top - safe)
                total = total * shrink + exps.sum(-1, keepdims=True)
                mixed, top = mixed * shrink + exps @ value[:, :, part], new
            output[:, :, rows] = mixed / np.where(total == 0, 1, total)
        return output

    return function


for edge, query_edge in ((16, None), (32, 16), (64, 64), (128, 32)):
    style(f"tiles of {edge} keys and {query_edge or 'all'} queries")(in_tiles(edge, query_edge))


@style("keys filled up to whole tiles and hidden")
def filled_up(query, key, value, mask, edge=16):
    S = key.shape[2]
    width = ((0, 0),) * 2 + ((0, -S % edge), (0, 0))
    key, value = np.pad(key, width), np.pad(value, width)
    mask = np.broadcast_to(True if mask is None else mask, (*query.shape[:3], S))
    return attention(query, key, value, np.pad(mask, ((0, 0),) * 3 + ((0, -S % edge),)))


@style("whole tiles only", multiple_of=16)
def whole_tiles(query, key, value, mask):
    if query.shape[2] % 16 or key.shape[2] % 16:
        raise ValueError("lengths must be multiples of 16")
    return in_tiles(16, 16)(query, key, value, mask)


@style("whole tiles of 128 only", multiple_of=128, grouped=False)
def whole_tiles_of_128(query, key, value, mask):
    assert query.shape[2] % 128 == key.shape[2] % 128 == 0
    return softmaxed(hidden(scored(query, key), mask)) @ value


@style("split over the keys, then merged")
def split_and_merged(query, key, value, mask):
    S, parts = key.shape[2], []
    mask = np.broadcast_to(True if mask is None else mask, (*query.shape[:3], S))
    key, value = repeated(query, key, value)
    for part in np.array_split(np.arange(S), 3):
        if len(part):
            scores = hidden(scored(query, key[:, :, part]), mask[..., part])
            top = np.nan_to_num(scores.max(-1, keepdims=True), neginf=-1e30)
            exps = np.exp(scores - top)
            parts.append((top, exps.sum(-1, keepdims=True), exps @ value[:, :, part]))
    top = np.max([t for t, _, _ in parts], axis=0)
    total = sum(np.exp(t - top) * s for t, s, _ in parts)
    return sum(np.exp(t - top) * o for t, _, o in parts) / np.where(total == 0, 1, total)


style("attn.blockwise_attention")(first_output(attn.blockwise_attention))
in_torch("attn.torch.fused_attention")(attn.torch.fused_attention)


# Torch


@in_torch("masked_fill, softmax, nan_to_num")
def masked_fill(query, key, value, mask):
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.nan_to_num(scores.softmax(-1)) @ value


@in_torch("baddbmm", grouped=False)
def with_baddbmm(query, key, value, mask):
    B, H, L, D = query.shape
    S = key.shape[2]
    added = torch.zeros(B, H, L, S, dtype=query.dtype)
    if mask is not None:
        added = added.masked_fill(~mask, -torch.inf)
    scores = torch.baddbmm(
        added.flatten(0, 1), query.flatten(0, 1), key.flatten(0, 1).mT, alpha=D**-0.5
    )
    weights = torch.nan_to_num(F.softmax(scores, dim=-1))
    return torch.bmm(weights, value.flatten(0, 1)).unflatten(0, (B, H))


@in_torch("einsum in torch")
def torch_einsum(query, key, value, mask):
    query = query.unflatten(1, (key.shape[1], -1))
    scores = torch.einsum("bkgid,bkjd->bkgij", query, key) / query.shape[-1] ** 0.5
    if mask is not None:
        full = mask.expand(len(query), query.shape[1] * query.shape[2], *scores.shape[3:])
        scores = scores.masked_fill(~full.reshape(scores.shape), -torch.inf)
    weights = scores.softmax(-1).nan_to_num()
    return torch.einsum("bkgij,bkjv->bkgiv", weights, value).flatten(1, 2)


@in_torch("SDPA with a float mask", grouped=False)
def sdpa_float(query, key, value, mask):
    if mask is not None:
        mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill(~mask, -torch.inf)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


@in_torch("SDPA without masks", masks=False)
def sdpa_plain(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


@in_torch("cdist-free scores by broadcasting", grouped=False)
def by_broadcasting(query, key, value, mask):
    scores = (query[:, :, :, None] * key[:, :, None]).sum(-1) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    return (scores.softmax(-1).nan_to_num()[..., None] * value[:, :, None]).sum(-2)


@in_torch("float32 only", dtype="float32")
def float32_only(query, key, value, mask):
    if query.dtype != torch.float32:
        raise TypeError(f"expected float32, got {query.dtype}")
    return masked_fill(query, key, value, mask)


@style("computes in float32 whatever comes", dtype="float32")
def computes_in_float32(query, key, value, mask):
    return attention(*(x.astype(np.float32) for x in (query, key, value)), mask)


class ScaledDotProduct(nn.Module):
    """The class of a hundred tutorials."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.1)

    def forward(self, query, key, value, mask=None):
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        if mask is not None:
            weights = weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)
        return self.dropout(weights) @ value, weights


in_torch("a module that returns its weights too", first_output, grouped=False)(
    ScaledDotProduct().eval()
)


@in_torch("torch.compile", masks=False, grouped=False, square=True)
@torch.compile(backend="eager", dynamic=True)
def compiled(query, key, value):
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


# Other shapes, through adapters


def one_matrix(query, key, value, mask=None):
    scores = query @ key.T / math.sqrt(key.shape[1])
    if mask is not None:
        scores[~mask] = -np.inf
    return softmaxed(scores) @ value


def three_axes(query, key, value, mask):
    scores = np.matmul(query, key.transpose(0, 2, 1)) / np.sqrt(query.shape[2]).astype(query.dtype)
    return softmaxed(hidden(scores, mask)) @ value


def merged(query, key, value, mask, num_heads):
    """(B, L, E) in, heads split and merged inside."""
    B, L, E = query.shape
    D = E // num_heads
    query, key, value = (
        x.reshape(B, -1, num_heads, D).transpose(0, 2, 1, 3) for x in (query, key, value)
    )
    output = softmaxed(hidden(scored(query, key), mask)) @ value
    return output.transpose(0, 2, 1, 3).reshape(B, L, E)


def sequence_first(query, key, value, mask, num_heads):
    """(L, B, E), as nn.MultiheadAttention has it by default."""
    turned = (x.swapaxes(0, 1) for x in (query, key, value))
    return merged(*turned, mask, num_heads).swapaxes(0, 1)


def heads_last(query, key, value, mask):
    """(B, L, H, D), as flash-attention and JAX have it."""
    scores = np.einsum("blhd,bshd->bhls", query, key) / query.shape[-1] ** 0.5
    return np.einsum("bhls,bshv->blhv", softmaxed(hidden(scores, mask)), value)


def output_and_weights(query, key, value, mask):
    key, value = repeated(query, key, value)
    weights = softmaxed(hidden(scored(query, key), mask))
    return weights @ value, weights


style("matrices (L, D)")(one_head(one_matrix))
style("three axes (N, L, D)")(merged_batch(three_axes))
style("merged heads (B, L, E)")(merged_heads(merged))
style("merged heads (L, B, E)")(merged_heads(sequence_first, sequence_first=True))
style("(output, weights)")(first_output(output_and_weights))
style("(B, L, H, D), turned round", grouped=False)(
    lambda q, k, v, m: heads_last(*(x.swapaxes(1, 2) for x in (q, k, v)), m).swapaxes(1, 2)
)


def numpy_layer(w_query, w_key, w_value, w_output, num_heads):
    def layer(x, mask):
        return merged(x @ w_query, x @ w_key, x @ w_value, mask, num_heads) @ w_output

    return layer


def torch_layer(w_query, w_key, w_value, w_output, num_heads):
    """nn.MultiheadAttention itself, as a layer of self-attention."""
    E = len(w_query)
    module = nn.MultiheadAttention(E, num_heads, bias=False, batch_first=True)
    module = module.to(torch.from_numpy(w_query).dtype).eval()
    with torch.no_grad():
        module.in_proj_weight.copy_(
            torch.from_numpy(np.concatenate([w_query.T, w_key.T, w_value.T]))
        )
        module.out_proj.weight.copy_(torch.from_numpy(w_output.T))

    def layer(x, mask):
        x = torch.from_numpy(np.ascontiguousarray(x))
        return module(x, x, x, need_weights=False)[0].detach().numpy()

    return layer


def attn_layer(w_query, w_key, w_value, w_output, num_heads):
    layer = attn.torch.MultiHeadAttention(len(w_query), num_heads, bias=False)
    layer = layer.to(torch.from_numpy(w_query).dtype)
    with torch.no_grad():
        for part, w in zip(
            (layer.query, layer.key, layer.value, layer.output),
            (w_query, w_key, w_value, w_output),
            strict=True,
        ):
            part.weight.copy_(torch.from_numpy(w.T.copy()))

    def forward(x, mask):
        x = torch.from_numpy(np.ascontiguousarray(x))
        mask = None if mask is None else torch.from_numpy(np.array(mask))
        return layer(x, mask=mask).detach().numpy()

    return forward


style("a layer of self-attention", square=True)(from_layer(numpy_layer))
style("nn.MultiheadAttention as a layer", square=True, masks=False)(from_layer(torch_layer))
style("attn.torch.MultiHeadAttention as a layer", square=True)(from_layer(attn_layer))
style("as many queries as keys only", square=True, grouped=False)(
    lambda q, k, v, m: (
        softmaxed(hidden((q[:, :, None] @ k[:, :, None].mT)[:, :, 0] / q.shape[-1] ** 0.5, m)) @ v
        if q.shape[2] == k.shape[2]
        else 1 / 0
    )
)


# Other libraries, where they are installed

try:
    import jax

    @style("jax.nn.dot_product_attention", dtype="float32")
    def by_jax(query, key, value, mask):
        turned = (x.swapaxes(1, 2) for x in (query, key, value))
        output = jax.nn.dot_product_attention(*turned, mask=mask).swapaxes(1, 2)
        return output if mask is None else jax.numpy.where(mask.any(-1, keepdims=True), output, 0)
except ImportError:
    pass

try:
    import keras

    @style("keras.ops", dtype="float32")
    def by_keras(query, key, value, mask):
        turned = (x.swapaxes(1, 2) for x in (query, key, value))
        output = keras.ops.dot_product_attention(*turned, mask=mask)
        output = np.asarray(output).swapaxes(1, 2)
        return output if mask is None else np.where(mask.any(-1, keepdims=True), output, 0)
except ImportError:
    pass
