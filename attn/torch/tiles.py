"""Tiles on tensors: which of them a mask leaves empty or full, and the pairs of those in between.

The host answers for rules and for tensors on the CPU, where a look costs nothing; elsewhere, and in
a compiled graph, every tile is looked at.
"""

import numpy as np
import torch

from attn.masks import Mask
from attn.masks.layout import block_map
from attn.torch.masks import allowed_pairs, as_tensor, may_read_values

EMPTY, SOME, FULL = 0, 1, 2


def tile_kinds(mask, q_offset, size, edge, device):
    """EMPTY, SOME or FULL in all batch rows and heads, for each tile; one row may stand for all.

    Lists, since a compiled graph would turn an array into a tensor that it cannot branch on.
    """
    columns = -(-size.S // edge)
    some = [[SOME] * columns]
    if mask is None:
        return [[FULL] * columns]
    if not may_read_values(device) or 0 in (size.B, size.H, size.L, size.S):
        return some
    if isinstance(mask, Mask):  # a wrong rule is refused even where every tile is full or empty
        allowed_pairs(mask, 1, 1, q_offset, size.B, size.H, device)
    try:
        kinds = block_map(
            mask, size.L, size.S, block_size=edge, q_offset=q_offset, batch=size.B, heads=size.H
        )
    except RuntimeError:  # inside torch.func.vmap a tensor has no values to look at
        return some
    full, empty = (kinds == FULL).all(axis=(0, 1)), (kinds == EMPTY).all(axis=(0, 1))
    return np.where(full, FULL, np.where(empty, EMPTY, SOME)).tolist()


def kept(mask, q_offset, size, rows, keys, device):
    """The pairs of one tile that the mask allows, (1|B, 1|H, rows|1, keys|1)."""
    if not isinstance(mask, Mask):
        return cut(mask, rows, keys)
    offset = as_tensor(0 if q_offset is None else q_offset, device).to(torch.int64) + rows.start
    count = rows.stop - rows.start, keys.stop - keys.start
    return allowed_pairs(mask, *count, offset, size.B, size.H, device, keys.start)


def cut(x, rows, keys):
    """x[…, rows, keys], but whole along axes of length 1, which broadcast."""
    x = x if x.shape[-2] == 1 else x[..., rows, :]
    return x if x.shape[-1] == 1 else x[..., keys]
