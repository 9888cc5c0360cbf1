"""Attention tile by tile on tensors: the running peak, total and output of attn.blockwise.

    m′ = max(m, max_j s_j)      ℓ′ = exp(m − m′) ℓ + Σ_j exp(s_j − m′)
    o′ = exp(m − m′) o + Σ_j exp(s_j − m′) v_j          output = o / ℓ,  lse = m + ln ℓ

(Milakov & Gimelshein 2018, section 3; Dao et al. 2022, algorithm 1.) Every step is one that
autograd knows, so gradients of any order follow; for them the weights of all tiles are kept, as the
plain function keeps its matrix. The peak only shifts: the result does not depend on it, so it is
detached.
"""

from typing import NamedTuple

import torch

from attn import arguments
from attn.torch.attention import masked_scores, weighted_average
from attn.torch.operands import (
    Call,
    check_call,
    default_scale,
    empty_unseen,
    four_axes,
    narrowed,
    seen_keys,
    without_autocast,
    working_dtype,
)
from attn.torch.tiles import EMPTY, FULL, cut, kept, tile_kinds

EDGE = 512  # a tile of all heads together keeps a matrix product busy


@arguments.explained
def blockwise_attention(
    query, key, value, mask=None, *, bias=None, scale=None, softcap=None, sink=None, q_offset=None,
    block_size=None,
):  # fmt: skip
    """scaled_dot_product_attention tile by tile, and the logarithm of its denominator.

    Parameters
    ----------
    query : Tensor of shape (B, H, L, D)
    key : Tensor of shape (B, Hkv, S, D)
    value : Tensor of shape (B, Hkv, S, Dv)
    mask, bias, scale, softcap, sink, q_offset
        As in attention_weights.
    block_size : int, optional
        Tile edge in positions. It changes rounding only.

    Returns
    -------
    output : Tensor of shape (B, H, L, Dv)
        A query that may attend to nothing gets zeros.
    lse : Tensor of shape (B, H, L)
        Natural logarithm of Σ exp(score) over the visible keys (and the sink); -inf where there is
        none. float32 for half precision; differentiable.

    Raises
    ------
    TypeError, ValueError
        As attn.blockwise_attention.

    Source: Dao et al. (2022), algorithm 1.

    Examples
    --------
    >>> output, lse = blockwise_attention(torch.zeros(3, 2), torch.zeros(4, 2), torch.eye(4)[:, :2])
    >>> output[0], lse[0].exp()
    (tensor([0.2500, 0.2500]), tensor(4.))
    """
    options = {"bias": bias, "scale": scale, "softcap": softcap, "sink": sink, "q_offset": q_offset}
    size = check_call(query, key, value, mask, **options)
    if block_size is not None:
        arguments.integer("block_size", block_size, low=1)
    with without_autocast(query.device):
        call = four_dimensional(size, query, key, value, bias, scale, softcap, sink)
        mask = four_axes(mask, size) if isinstance(mask, torch.Tensor) else mask
        parts = zip(*each_tile_of_queries(call, mask, q_offset, block_size or EDGE), strict=True)
        output, lse = (torch.cat(part, dim=2) for part in parts)
    return (
        output.to(query.dtype).reshape(*query.shape[:-1], size.Dv),
        lse.reshape(query.shape[:-1]),
    )


def merge_attention(outputs, lses):
    """Join partial results of disjoint sets of keys into the result for all of them.

    lse = ln Σ_p exp(lse_p),  output = Σ_p exp(lse_p − lse) · output_p

    Parameters
    ----------
    outputs : sequence of Tensors of shape (B, H, L, Dv)
        One for each set of keys; also one tensor with the parts along its first axis.
    lses : sequence of Tensors of shape (B, H, L)
        Natural logarithms, -inf where a query sees nothing of a set. A sink belongs to one part.

    Returns
    -------
    output : Tensor of shape (B, H, L, Dv)
    lse : Tensor of shape (B, H, L)

    Raises
    ------
    TypeError, ValueError
        Not as many outputs as lses, none at all, shapes or dtypes that differ.

    Source: Dao et al. (2022), section 3.1.

    Examples
    --------
    >>> outputs = torch.tensor([[[1.0]], [[5.0]]])
    >>> output, lse = merge_attention(outputs, torch.tensor([[1.0], [3.0]]).log())
    >>> output, lse.exp()
    (tensor([[4.]]), tensor([4.]))
    """
    outputs, lses = list(outputs), list(lses)
    arguments.results.parts(torch.Tensor, outputs, lses)
    lse = torch.stack(lses).to(working_dtype(lses[0].dtype))  # (parts, B, H, L)
    peak = lse.detach().amax(dim=0)
    shares = torch.exp(lse - finite(peak))
    total = shares.sum(dim=0)
    total = torch.where(total == 0, 1.0, total)
    shares = (shares / total)[..., None]
    # A part without a share is not read: its rows may hold NaN where other code leaves some.
    output = (shares * torch.where(shares > 0, torch.stack(outputs), 0.0)).sum(dim=0)
    return output.to(outputs[0].dtype), (peak + total.log()).to(lses[0].dtype)


class Running(NamedTuple):
    """What a tile of queries knows after some of the keys."""

    peak: torch.Tensor  # m, (B, H, rows, 1), detached
    total: torch.Tensor  # ℓ, (B, H, rows, 1)
    output: torch.Tensor  # o, (B, H, rows, Dv)


def start(call):
    """No key yet: m = -inf, ℓ = 0. A sink is a key without a value that came before the others."""
    rows = call.query[..., :1]
    # A sum over nothing is 0 and hangs on the graph, also where no tile is ever read.
    operands = [x for x in (call.key, call.value, call.bias) if x is not None]
    nothing = call.query[..., :0].sum(-1, keepdim=True) + sum(x[..., :0].sum() for x in operands)
    if call.sink is None:
        peak, total = torch.full_like(nothing, -torch.inf).detach(), nothing
    else:
        sink = call.sink[:, None, None].expand_as(rows) + nothing
        peak = sink.detach()
        total = torch.exp(sink - finite(peak))
    return Running(peak, total, nothing.expand(*nothing.shape[:-1], call.size.Dv))


def fold(running, scores, value):
    """One more tile of keys."""
    peak = torch.maximum(running.peak, scores.detach().amax(dim=-1, keepdim=True))
    shift = finite(peak)
    rescale = torch.exp(running.peak - shift)
    weights = torch.exp(scores - shift)
    total = rescale * running.total + weights.sum(dim=-1, keepdim=True)
    return Running(peak, total, rescale * running.output + weighted_average(weights, value))


def finish(running):
    """output = o / ℓ and lse = m + ln ℓ; where no key was seen, 0 and -inf."""
    total = torch.where(running.total == 0, 1.0, running.total)
    return running.output / total, (running.peak + total.log())[..., 0]


def finite(peak):
    """The peak to subtract: 0 where no key was seen yet, since -inf − (-inf) is not a number."""
    return torch.where(torch.isneginf(peak), 0.0, peak)


def each_tile_of_queries(call, mask, q_offset, edge):
    """Yield (output, lse) for each tile of queries; without queries, for one that has no rows."""
    kinds = tile_kinds(mask, q_offset, call.size, edge, call.query.device)
    for i, first in enumerate(range(0, max(call.size.L, 1), edge)):
        rows = slice(first, min(first + edge, call.size.L))
        running = start(call._replace(query=call.query[..., rows, :]))
        for j, kind in enumerate(kinds[i % len(kinds)]):
            if kind != EMPTY:
                keys = slice(j * edge, min((j + 1) * edge, call.size.S))
                tile = read_tile(call, None if kind == FULL else mask, q_offset, rows, keys)
                running = fold(running, masked_scores(tile), tile.value)
        yield finish(running)


def read_tile(call, mask, q_offset, rows, keys):
    """The call of one tile; a slot that the tile may not see can hold anything, even NaN."""
    size = call.size._replace(L=rows.stop - rows.start, S=keys.stop - keys.start)
    query, key, value = call.query[..., rows, :], call.key[..., keys, :], call.value[..., keys, :]
    bias = None if call.bias is None else narrowed(cut(call.bias, rows, keys), query.dtype)
    keep = None if bias is None else ~torch.isneginf(bias)
    if mask is not None:
        allowed = kept(mask, q_offset, size, rows, keys, query.device)
        keep = allowed if keep is None else keep & allowed
    if keep is not None:
        query = empty_unseen(query, keep.any(dim=-1))
        seen = seen_keys(keep, size)
        key, value = empty_unseen(key, seen), empty_unseen(value, seen)
    return call._replace(size=size, query=query, key=key, value=value, bias=bias, keep=keep)


def four_dimensional(size, query, key, value, bias, scale, softcap, sink):
    """The operands with the axes (B, H, L, D), in the working dtype."""
    wide = working_dtype(query.dtype)
    return Call(
        size,
        query.reshape(size.B, size.H, size.L, size.D).to(wide),
        key.reshape(size.B, size.Hkv, size.S, size.D).to(wide),
        value.reshape(size.B, size.Hkv, size.S, size.Dv).to(wide),
        None,  # the pairs that take part are found tile by tile
        None if bias is None else four_axes(bias, size),
        default_scale(size.D) if scale is None else float(scale),
        None if softcap is None else float(softcap),
        None if sink is None else narrowed(sink, wide),
    )
