"""Attention of one process's queries to a block of keys that visits it, forward and backward.

The rows of a block sit at positions that need not follow each other, so tiles are told apart by
the positions in them: a rule is asked about spans on the host, and tiles without a visible pair are
not computed. Forward they fold as in attn.torch.blockwise; backward the weights come back from the
log-sum-exp:

    P = exp(S − lse)     dV = Pᵀ dO     dP = dO Vᵀ     dS = P ∘ (dP − Δ)
    Δ = rowsum(dO ∘ O) − dlse           dQ = scale · dS K          dK = scale · dSᵀ Q

(Dao et al. 2022, algorithm 4, with Δ for the lse as well.)
"""

from typing import NamedTuple

import numpy as np
import torch

from attn.masks.areas import agreed
from attn.masks.layout import EMPTY, FULL, SOME
from attn.masks.spans import Span
from attn.torch.attention import fold_groups, masked_scores
from attn.torch.blockwise import finish, fold, start
from attn.torch.operands import tile


class Side(NamedTuple):
    """The rows of one block: where they sit, ascending, and the tiles that they are cut into."""

    positions: np.ndarray
    tiles: list  # of slices of rows

    def spans(self, axis):
        """First and last position of each tile, laid along an axis of (B, H, L, S)."""
        ends = [self.positions[[rows.start, rows.stop - 1]] for rows in self.tiles]
        low, high = np.expand_dims(
            np.reshape(ends, (-1, 2)).T, [a for a in range(1, 5) if a != axis + 1]
        )
        return Span(low, high)


def sides(positions, stretches, edge):
    """The blocks of all processes; no tile lies across two stretches of positions."""
    length = positions.shape[1] // stretches
    tiles = [
        slice(first + a, min(first + a + edge, first + length))
        for first in range(0, stretches * length, length or 1)
        for a in range(0, length, edge)
    ]
    return [Side(row, tiles) for row in positions]


def visited(call, queries, keys):
    """Yield rows, keys and the call of each tile that holds a visible pair."""
    kinds = np.full((len(queries.tiles), len(keys.tiles)), FULL)
    if call.mask is not None:
        kinds = agreed(agreed(call.mask.kinds(queries.spans(2), keys.spans(3)), axis=0), axis=0)
    for i, j in np.argwhere(kinds != EMPTY).tolist():
        rows, cols, allowed = queries.tiles[i], keys.tiles[j], None
        if kinds[i, j] == SOME:
            places = queries.positions[rows], keys.positions[cols]
            device = call.query.device
            allowed = call.mask.pairs(*(torch.as_tensor(x, device=device) for x in places))
        yield rows, cols, tile(call, rows, cols, allowed)


def area(rows, cols):
    return (rows.stop - rows.start) * (cols.stop - cols.start)


def attend_block(call, queries, keys):
    """Output and lse of the queries over this block's keys, or None, and the pairs computed."""
    running, pairs = {}, 0
    for rows, cols, part in visited(call, queries, keys):
        running[rows.start] = fold(running.get(rows.start) or start(part), part)
        pairs += area(rows, cols)
    if not running:
        return None, 0
    parts = [
        finish(running.get(rows.start) or start(call._replace(query=call.query[..., rows, :])))
        for rows in queries.tiles
    ]
    return [torch.cat(part, dim=2) for part in zip(*parts, strict=True)], pairs


def block_gradients(call, queries, keys, grad_output, lse, delta):
    """This block's share of dQ, its dK and its dV, in the working dtype, and the pairs computed."""
    grads = tuple(torch.zeros_like(x) for x in (call.query, call.key, call.value))
    pairs = 0
    for rows, cols, part in visited(call, queries, keys):
        ends = (x[..., rows, :] for x in (grad_output, lse, delta))
        shares = tile_gradients(part, *ends)
        for grad, share, where in zip(grads, shares, (rows, cols, cols), strict=True):
            grad[..., where, :] += share
        pairs += area(rows, cols)
    return grads, pairs


def tile_gradients(tile, grad_output, lse, delta):
    """dQ, dK and dV of one tile; grad_output (B, H, rows, Dv), lse and delta (B, H, rows, 1)."""
    Hkv = tile.size.Hkv
    scores = masked_scores(tile._replace(keep=None))  # finite, so that 0 times them is 0
    weights = torch.exp(scores - lse)  # inf where lse is -inf: such a row has hidden pairs only
    if tile.keep is not None:
        weights = weights.masked_fill(~tile.keep, 0.0)
    grad_rows = fold_groups(grad_output, Hkv)  # (B, Hkv, G·rows, Dv)
    grad_value = fold_groups(weights, Hkv).mT @ grad_rows
    grad_weights = (grad_rows @ tile.value.mT).reshape(weights.shape)
    grad_scores = weights * (grad_weights - delta)
    if tile.softcap is not None:
        grad_scores = grad_scores * (1 - (scores / tile.softcap) ** 2)
    rows = tile.scale * fold_groups(grad_scores, Hkv)
    grad_query = (rows @ tile.key).reshape(tile.query.shape)
    return grad_query, rows.mT @ fold_groups(tile.query, Hkv), grad_value
