"""What the mask of a call says of some of its rows and keys, without writing out the rest."""

from typing import NamedTuple

import numpy as np
import torch

from attn import arguments
from attn.masks import Mask
from attn.torch.masks import as_boolean, as_tensor, on_device, tile_map
from attn.torch.operands import empty_unseen

TILE = 128  # the grain to which slots that take no part are looked for
PAIRS_AT_ONCE = 2**24  # as many pairs of a rule are written out at a time


class Operands(NamedTuple):
    """The operands of one checked call, 4-D; the mask is a rule, or bool with four axes."""

    size: arguments.Sizes
    query: torch.Tensor  # (B, H, L, D)
    key: torch.Tensor  # (B, Hkv, S, D)
    value: torch.Tensor  # (B, Hkv, S, Dv)
    mask: Mask | torch.Tensor | None
    q_offset: object
    bias: torch.Tensor | None  # (1|B, 1|H, 1|L, 1|S)
    scale: float
    softcap: float | None
    sink: torch.Tensor | None  # (H,)


def tiles_of(call, edges):
    size, device = call.size, call.query.device
    if call.mask is None:
        return torch.full((1, 1, -(-size.L // edges[0]), -(-size.S // edges[1])), 2)
    return tile_map(call.mask, size.L, size.S, call.q_offset, size.B, size.H, edges, device)


def pairs_of(call):
    """A function (rows, keys, batch) -> bool (1|B, 1|H, rows, keys): what the mask allows."""
    size, device = call.size, call.query.device
    if not isinstance(call.mask, Mask):
        return lambda rows, keys, batch: cut(call.mask[_rows(call.mask, batch)], rows, keys)
    rule = on_device(call.mask, device)
    start = as_tensor(0 if call.q_offset is None else call.q_offset, device).to(torch.int64)
    q_start = start.reshape(-1, 1, 1, 1)
    b = torch.arange(size.B, device=device)[:, None, None, None]
    h = torch.arange(size.H, device=device)[None, :, None, None]

    def pairs(rows, keys, batch):
        q = q_start[_rows(q_start, batch)] + rows[:, None]
        keep = as_boolean(call.mask, rule(b[batch], h, q, keys[None, None, None]))
        return keep.expand(*keep.shape[:-2], len(rows), len(keys))

    return pairs


def _rows(table, batch):
    return batch if len(table) > 1 else slice(None)


def cut(table, rows, keys):
    """Some rows and keys of a table (1|B, 1|H, 1|L, 1|S)."""
    if rows is not None and table.shape[2] > 1:
        table = table[:, :, rows]
    return table[..., keys] if table.shape[3] > 1 else table


def empty_unseen_slots(call):
    """Write 0 into queries that see nothing and keys that nobody sees; they may hold NaN."""
    size = call.size
    seeing, seen = taking_part(call)
    if seen.shape[1] > 1:  # one key head serves G query heads
        seen = seen.unflatten(1, (size.Hkv, -1)).any(dim=2)
    return call._replace(
        query=empty_unseen(call.query, seeing),
        key=empty_unseen(call.key, seen),
        value=empty_unseen(call.value, seen),
    )


def taking_part(call):
    """Which queries (1|B, 1|H, 1|L) and which keys (1|B, 1|H, 1|S) belong to any pair at all."""
    finite = None if call.bias is None else ~torch.isneginf(call.bias)
    if not isinstance(call.mask, Mask):
        keep = call.mask if finite is None else finite
        keep = keep if finite is None or call.mask is None else keep & call.mask
        return keep.any(dim=-1), keep.any(dim=-2)
    tiles = tiles_of(call, (TILE, TILE)).numpy(force=True)
    tiles = tiles if finite is None else np.minimum(tiles, 1)
    pairs, everyone = pairs_of(call), slice(None)

    def allowed(rows, keys):
        keep = pairs(rows, keys, everyone)
        return keep if finite is None else keep & cut(finite, rows, keys)

    def allowed_to(keys, rows):
        return allowed(rows, keys)

    size, device = call.size, call.query.device
    return (
        _reached(tiles.swapaxes(-1, -2), size.L, size.S, allowed, -1, device),
        _reached(tiles, size.S, size.L, allowed_to, -2, device),
    )


def _reached(tiles, own, others, allowed, dim, device):
    """Whoever lies in a full tile is reached; only the rest are asked pair by pair."""
    sure = np.repeat((tiles == 2).any(axis=-2), TILE, axis=-1)[..., :own]
    rest = torch.as_tensor(np.flatnonzero(~sure.all(axis=(0, 1))), device=device)
    reached, everyone = torch.as_tensor(sure, device=device), torch.arange(others, device=device)
    for asked in rest.split(max(1, PAIRS_AT_ONCE // max(others, 1))):
        answer = allowed(asked, everyone).any(dim=dim)
        rows = torch.broadcast_shapes(reached.shape[:2], answer.shape[:2])
        reached = reached.expand(*rows, own).clone()
        reached[..., asked] |= answer
    return reached
