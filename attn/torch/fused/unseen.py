"""Slots that take no part are emptied, without writing out the mask: they may hold anything."""

import torch

from attn.masks.areas import whole_area
from attn.masks.layout import FULL
from attn.torch.masks import part
from attn.torch.operands import empty_unseen, grouped, kept_pairs

TILE = 128  # the grain to which slots that take no part are looked for


def empty_unseen_slots(call):
    """Write 0 into queries that see nothing and keys that nobody sees; they may hold NaN."""
    seeing, seen = taking_part(call)
    seen = grouped(seen, call.size)
    return call._replace(
        query=empty_unseen(call.query, seeing),
        key=empty_unseen(call.key, seen),
        value=empty_unseen(call.value, seen),
    )


def taking_part(call):
    """Which queries (B, H, L) and which keys (B, H, S) belong to any pair at all."""
    size, bias = call.size, call.bias
    seeing, seen = (
        torch.zeros(size.B, size.H, n, dtype=torch.bool, device=call.query.device)
        for n in (size.L, size.S)
    )
    for i, segments in enumerate(areas_of(call, (TILE, TILE)).segments(-(-size.L // TILE))):
        rows = slice(i * TILE, min((i + 1) * TILE, size.L))
        for first, stop, kind in segments:  # a full area needs no look, unless a bias removes pairs
            keys = slice(first * TILE, min(stop * TILE, size.S))
            keep = None if kind == FULL else call.mask.pairs(rows, keys)
            keep = kept_pairs(keep, None if bias is None else part(bias, rows, keys))
            seeing[..., rows] |= True if keep is None else keep.any(dim=-1)
            seen[..., keys] |= True if keep is None else keep.any(dim=-2)
    return seeing, seen


def areas_of(call, edges):
    """Where pairs of a call may attend."""
    if call.mask is None:
        return whole_area((call.size.L, call.size.S), edges)
    return call.mask.areas(edges)
