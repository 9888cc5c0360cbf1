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
from attn.masks.layout import FULL, SOME
from attn.torch.attention import masked_scores, weighted_average
from attn.torch.masks import may_read_values
from attn.torch.operands import call as checked
from attn.torch.operands import guarded, tile, widened, without_autocast, working_dtype

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
    options = dict(bias=bias, scale=scale, softcap=softcap, sink=sink, q_offset=q_offset)
    call = checked(query, key, value, mask, **options)
    if block_size is not None:
        arguments.integer("block_size", block_size, low=1)
    with without_autocast(query.device):
        parts = zip(*each_tile_of_queries(guarded(widened(call)), block_size or EDGE), strict=True)
        output, lse = (torch.cat(part, dim=2) for part in parts)
    return (
        output.to(query.dtype).reshape(*query.shape[:-1], call.size.Dv),
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
    # A sum over nothing is 0 and stays on the graph, also where no tile is ever read.
    operands = [x for x in (call.key, call.value, call.bias) if x is not None]
    nothing = call.query[..., :0].sum(-1, keepdim=True) + sum(x[..., :0].sum() for x in operands)
    if call.sink is None:
        peak, total = torch.full_like(nothing, -torch.inf).detach(), nothing
    else:
        sink = call.sink[:, None, None] + nothing
        peak = sink.detach()
        total = torch.exp(sink - finite(peak))
    return Running(peak, total, nothing.expand(*nothing.shape[:-1], call.size.Dv))


def fold(running, tile):
    """One more tile of keys."""
    scores = masked_scores(tile)
    peak = torch.maximum(running.peak, scores.detach().amax(dim=-1, keepdim=True))
    shift = finite(peak)
    rescale = torch.exp(running.peak - shift)
    weights = torch.exp(scores - shift)
    total = rescale * running.total + weights.sum(dim=-1, keepdim=True)
    output = rescale * running.output + weighted_average(weights, tile.value, tile.guard)
    return Running(peak, total, output)


def finish(running):
    """output = o / ℓ and lse = m + ln ℓ; where no key was seen, 0 and -inf."""
    empty = running.total == 0
    total = running.total.masked_fill(empty, 1.0)
    output = (running.output / total).masked_fill(empty, 0.0)  # nothing goes back through it
    return output, (running.peak + total.log())[..., 0]


def finite(peak):
    """The peak to subtract: 0 where no key was seen yet, since -inf − (-inf) is not a number."""
    return torch.where(torch.isneginf(peak), 0.0, peak)


def each_tile_of_queries(call, edge):
    """Yield (output, lse) for each tile of queries; without queries, for one that has no rows."""
    segments = segments_of(call, edge)
    for i, first in enumerate(range(0, max(call.size.L, 1), edge)):
        rows = slice(first, min(first + edge, call.size.L))
        running = start(call._replace(query=call.query[..., rows, :]))
        for begin, end, kind in segments[i % len(segments)]:
            for j in range(begin, end):
                keys = slice(j * edge, min((j + 1) * edge, call.size.S))
                allowed = None if kind == FULL else call.mask.pairs(rows, keys)
                running = fold(running, tile(call, rows, keys, allowed))
        yield finish(running)


def segments_of(call, edge):
    """The tiles of each row of tiles that hold a pair in any batch row, as (first, stop, kind).

    The host answers for rules and for tensors on the CPU, where a look costs nothing; elsewhere,
    and in a compiled graph, every tile is looked at. One row may stand for all.
    """
    size, columns = call.size, -(-call.size.S // edge)
    if call.mask is None:
        return [[(0, columns, FULL)]]
    full = 0 not in (size.B, size.H, size.L, size.S)
    if full and may_read_values(call.query.device) and call.mask.has_values():
        return call.mask.areas((edge, edge)).segments(-(-size.L // edge))
    return [[(0, columns, SOME)]]
