"""Attention tile by tile: the same result without ever holding the L × S scores.

    For each tile of keys, with scores s_j and values v_j, one query keeps three running numbers:

        m′ = max(m, max_j s_j)                                 the peak so far
        ℓ′ = exp(m − m′) ℓ + Σ_j exp(s_j − m′)                 the total of the weights
        o′ = exp(m − m′) o + Σ_j exp(s_j − m′) v_j             the weighted sum of the values

    and in the end  output = o / ℓ,  lse = m + ln ℓ = ln Σ exp(s)  over all keys.

(Milakov & Gimelshein 2018, section 3; Rabe & Staats 2021; Dao et al. 2022, algorithm 1.) Which
tiles a query reads is decided in attn.blockwise.tiles, the threads that share the work are in
attn.blockwise.workers.
"""

from typing import NamedTuple

import numpy as np

from attn import arguments
from attn.blockwise import tiles, workers
from attn.masks.layout import cut
from attn.operands import (
    call,
    careful_product,
    empty_unseen,
    kept_pairs,
    narrowed,
    without_warnings,
    working_dtype,
)


@arguments.explained
def blockwise_attention(
    query, key, value, mask=None, *, bias=None, scale=None, softcap=None, sink=None, q_offset=None,
    block_size=None,
):  # fmt: skip
    """scaled_dot_product_attention in memory O(L · block), and the logarithm of its denominator.

    Parameters
    ----------
    query : ndarray of shape (B, H, L, D)
    key : ndarray of shape (B, Hkv, S, D)
    value : ndarray of shape (B, Hkv, S, Dv)
    mask, bias, scale, softcap, sink, q_offset
        As in attention_weights. Tiles that `mask` leaves empty are never read.
    block_size : int, optional
        Tile edge in positions; None chooses what is fast. It changes rounding only.

    Several threads share the work where threadpoolctl is installed. Meanwhile BLAS is held to one
    thread, in the other threads of the process too.

    Returns
    -------
    output : ndarray of shape (B, H, L, Dv)
        A query that may attend to nothing gets zeros.
    lse : ndarray of shape (B, H, L)
        Natural logarithm of Σ exp(score) over the visible keys (and the sink); -inf where there is
        none. float32 for half precision.

    Raises
    ------
    TypeError, ValueError
        As scaled_dot_product_attention; also a `block_size` that is no int of at least 1.

    Source: Dao et al. (2022), algorithm 1; the skipped tiles, Dong et al. (2024), section 4.

    Examples
    --------
    >>> output, lse = blockwise_attention(np.zeros((3, 2)), np.zeros((4, 2)), np.eye(4)[:, :2])
    >>> output[0], lse[0] == np.log(4)
    (array([0.25, 0.25]), np.True_)
    """
    whole = call(
        query, key, value, mask, bias=bias, scale=scale, softcap=softcap, sink=sink,
        q_offset=q_offset,
    )  # fmt: skip
    if block_size is not None:
        arguments.integer("block_size", block_size, low=1)
    size = whole.size
    output = np.empty((size.B, size.H, size.L, size.Dv), query.dtype)
    lse = np.empty((size.B, size.H, size.L), working_dtype(query.dtype))

    @without_warnings
    def attend(buffer, b, h, rows, strips):
        running = start(whole, h, rows)
        for strip in strips:
            tile = read_tile(whole, b, h, rows, strip)
            running = fold(running, tile_scores(whole, tile, buffer), tile.value, tile.keep)
        output[b, h, rows], lse[b, h, rows] = finish(running)

    edge, longest = tiles.edges(block_size)
    tasks = tiles.schedule(whole.mask, size, edge, longest)
    pairs = min(edge, size.L) * min(longest, size.S)
    workers.run(attend, tasks, lambda: np.empty(pairs, lse.dtype))
    return output.reshape(*query.shape[:-1], size.Dv), lse.reshape(query.shape[:-1])


def merge_attention(outputs, lses):
    """Join partial results of disjoint sets of keys into the result for all of them.

    lse = ln Σ_p exp(lse_p),  output = Σ_p exp(lse_p − lse) · output_p

    Parameters
    ----------
    outputs : sequence of ndarrays of shape (B, H, L, Dv)
        One for each set of keys; also one array with the parts along its first axis.
    lses : sequence of ndarrays of shape (B, H, L)
        Natural logarithms, -inf where a query sees nothing of a set. A sink belongs to one part.

    Returns
    -------
    output : ndarray of shape (B, H, L, Dv)
    lse : ndarray of shape (B, H, L)

    Raises
    ------
    TypeError, ValueError
        Not as many outputs as lses, none at all, shapes or dtypes that differ.

    Source: Dao et al. (2022), section 3.1.

    Examples
    --------
    >>> outputs = np.array([[[1.0]], [[5.0]]])
    >>> output, lse = merge_attention(outputs, np.log([[1.0], [3.0]]))
    >>> output, np.exp(lse)
    (array([[4.]]), array([4.]))
    """
    outputs, lses = list(outputs), list(lses)
    arguments.results.parts(np.ndarray, outputs, lses)
    return merged(outputs, lses)


@without_warnings
def merged(outputs, lses):
    """Each part weighted by its share of the whole denominator."""
    lse = np.stack(lses).astype(working_dtype(lses[0].dtype), copy=False)  # (parts, B, H, L)
    peak = lse.max(axis=0)
    shares = np.exp(lse - finite(peak))
    total = shares.sum(axis=0)
    total = np.where(total == 0, 1, total)
    # A part without a share is not read: its rows may hold NaN where other code leaves some.
    output = sum(
        share[..., None] * np.where(share[..., None] > 0, part, 0)
        for share, part in zip(shares / total, outputs, strict=True)
    )
    lse = peak + np.log(total)
    return output.astype(outputs[0].dtype, copy=False), lse.astype(lses[0].dtype, copy=False)


class Running(NamedTuple):
    """What a tile of queries knows after some of the keys."""

    peak: np.ndarray  # m, (rows, 1)
    total: np.ndarray  # ℓ, (rows, 1)
    output: np.ndarray  # o, (rows, Dv)


def start(call, h, rows):
    """No key yet: m = -inf, ℓ = 0. A sink is a key without a value that came before the others."""
    count, dtype = rows.stop - rows.start, working_dtype(call.query.dtype)
    peak = np.full((count, 1), -np.inf if call.sink is None else call.sink[h], dtype)
    return Running(peak, np.exp(peak - finite(peak)), np.zeros((count, call.size.Dv), dtype))


def fold(running, scores, value, keep):
    """One more tile of keys; the scores' memory is used up."""
    peak = np.maximum(running.peak, scores.max(axis=-1, keepdims=True))
    shift = finite(peak)
    rescale = np.exp(running.peak - shift)
    weights = np.exp(np.subtract(scores, shift, out=scores), out=scores)
    ones = np.ones((len(value), 1), weights.dtype)  # BLAS adds up faster than sum does
    output = weights @ value
    if keep is not None and not np.isfinite(output).all():
        output = careful_product(weights, value, keep)
    return Running(
        peak, rescale * running.total + weights @ ones, rescale * running.output + output
    )


def finish(running):
    """output = o / ℓ and lse = m + ln ℓ; where no key was seen, 0 and -inf."""
    total = np.where(running.total == 0, 1, running.total)
    return running.output / total, (running.peak + np.log(total))[:, 0]


def finite(peak):
    """The peak to subtract: 0 where no key was seen yet, since -inf − (-inf) is not a number."""
    return np.where(np.isneginf(peak), 0, peak)


class Tile(NamedTuple):
    """What one tile of queries and one strip of keys bring along, in the working dtype."""

    query: np.ndarray  # (rows, D)
    key: np.ndarray  # (keys, D)
    value: np.ndarray  # (keys, Dv)
    bias: np.ndarray | None  # (rows|1, keys|1)
    keep: np.ndarray | None  # bool, (rows|1, keys|1)


def tile_scores(call, tile, buffer):
    """scale · Q Kᵀ, capped, plus bias, -inf where the pair takes no part; written to `buffer`."""
    rows, keys = len(tile.query), len(tile.key)
    scores = buffer[: rows * keys].reshape(rows, keys)
    if abs(call.scale) <= 1:  # fewer queries than scores; more than 1 could make a query overflow
        np.matmul(call.scale * tile.query, tile.key.T, out=scores)
    else:
        np.matmul(tile.query, tile.key.T, out=scores)
        scores *= call.scale
    if call.softcap is not None:
        scores /= call.softcap
        np.multiply(call.softcap, np.tanh(scores, out=scores), out=scores)
    if tile.bias is not None:
        scores += tile.bias
    if tile.keep is not None:
        np.copyto(scores, -np.inf, where=~tile.keep)
    return scores


def read_tile(call, b, h, rows, strip):
    """Slices of the operands; a slot that the tile may not see can hold anything, even NaN."""
    wide, keys, keep = working_dtype(call.query.dtype), strip.keys, strip.keep
    kv_head = h // (call.size.H // call.size.Hkv)
    query = call.query[b, h, rows].astype(wide, copy=False)
    key = call.key[b, kv_head, keys].astype(wide, copy=False)
    value = call.value[b, kv_head, keys].astype(wide, copy=False)
    bias = None
    if call.bias is not None:
        bias = cut(call.bias, slice(b, b + 1), slice(h, h + 1), rows, keys)[0, 0]
        bias = narrowed(bias, wide)
        keep = kept_pairs(keep, bias)
    if keep is not None:
        query = empty_unseen(query, keep.any(axis=1))
        key, value = (empty_unseen(slots, keep.any(axis=0)) for slots in (key, value))
    return Tile(query, key, value, bias, keep)
