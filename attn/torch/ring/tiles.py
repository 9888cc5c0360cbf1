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

from attn.masks import Mask
from attn.masks.layout import as_numpy, rule_on_spans
from attn.masks.spans import Span
from attn.torch.attention import fold_groups, masked_scores
from attn.torch.blockwise import finish, fold, start
from attn.torch.masks import as_boolean, on_device
from attn.torch.operands import empty_unseen, seen_keys
from attn.torch.tiles import EMPTY, FULL, SOME


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


class Rule(NamedTuple):
    """A mask, or None, for B batch rows and H heads, with queries `offset` further on."""

    mask: Mask | None
    offset: np.ndarray  # (1|B, 1, 1, 1)
    B: int
    H: int

    def kinds(self, queries, keys):
        """EMPTY, SOME or FULL in all batch rows and heads, for each tile."""
        shape = len(queries.tiles), len(keys.tiles)
        if self.mask is None:
            return np.full(shape, FULL)
        b, h = np.arange(self.B)[:, None, None, None], np.arange(self.H)[None, :, None, None]
        truth = rule_on_spans(self.mask, b, h, queries.spans(2) + self.offset, keys.spans(3))
        seen = np.broadcast_to(truth.any.any(axis=(0, 1)), shape)
        full = np.broadcast_to(truth.all.all(axis=(0, 1)), shape) & seen
        return np.where(full, FULL, np.where(seen, SOME, EMPTY))

    def pairs(self, queries, keys, device):
        """What the mask says of these positions, bool (1|B, 1|H, rows|1, keys|1)."""
        b = torch.arange(self.B, device=device)[:, None, None, None]
        h = torch.arange(self.H, device=device)[None, :, None, None]
        q = torch.as_tensor(self.offset + queries[:, None], device=device)
        k = torch.as_tensor(keys, device=device)[None, None, None]
        return as_boolean(self.mask, on_device(self.mask, device)(b, h, q, k))


def sides(positions, stretches, edge):
    """The blocks of all processes; no tile lies across two stretches of positions."""
    length = positions.shape[1] // stretches
    tiles = [
        slice(first + a, min(first + a + edge, first + length))
        for first in range(0, stretches * length, length or 1)
        for a in range(0, length, edge)
    ]
    return [Side(row, tiles) for row in positions]


def rule_for(mask, q_offset, size):
    """A checked mask and offset as a Rule."""
    offset = as_numpy(0 if q_offset is None else q_offset).astype(np.int64).reshape(-1, 1, 1, 1)
    return Rule(mask, offset, size.B, size.H)


def visited(call, rule, queries, keys):
    """Yield rows, keys and the call of each tile that holds a visible pair."""
    kinds = rule.kinds(queries, keys)
    for i, rows in enumerate(queries.tiles):
        for j, cols in enumerate(keys.tiles):
            if kinds[i, j] != EMPTY:
                keep = None
                if kinds[i, j] == SOME:
                    places = queries.positions[rows], keys.positions[cols]
                    keep = rule.pairs(*places, call.query.device)
                yield rows, cols, read_tile(call, rows, cols, keep)


def read_tile(call, rows, cols, keep):
    """The call of one tile; a slot that the tile may not see can hold anything, even NaN."""
    size = call.size._replace(L=rows.stop - rows.start, S=cols.stop - cols.start)
    query, key, value = call.query[..., rows, :], call.key[..., cols, :], call.value[..., cols, :]
    if keep is not None:
        query, seen = empty_unseen(query, keep.any(dim=-1)), seen_keys(keep, size)
        key, value = empty_unseen(key, seen), empty_unseen(value, seen)
    return call._replace(size=size, query=query, key=key, value=value, keep=keep)


def area(rows, cols):
    return (rows.stop - rows.start) * (cols.stop - cols.start)


def attend_block(call, rule, queries, keys):
    """Output and lse of the queries over this block's keys, or None, and the pairs computed."""
    running, pairs = {}, 0
    for rows, cols, tile in visited(call, rule, queries, keys):
        before = running.get(rows.start) or start(tile)
        running[rows.start] = fold(before, masked_scores(tile), tile.value)
        pairs += area(rows, cols)
    if not running:
        return None, 0
    parts = [
        finish(running.get(rows.start) or start(call._replace(query=call.query[..., rows, :])))
        for rows in queries.tiles
    ]
    return [torch.cat(part, dim=2) for part in zip(*parts, strict=True)], pairs


def block_gradients(call, rule, queries, keys, grad_output, lse, delta):
    """This block's share of dQ, its dK and its dV, in the working dtype, and the pairs computed."""
    grads = tuple(torch.zeros_like(x) for x in (call.query, call.key, call.value))
    pairs = 0
    for rows, cols, tile in visited(call, rule, queries, keys):
        ends = (x[..., rows, :] for x in (grad_output, lse, delta))
        shares = tile_gradients(tile, *ends)
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
