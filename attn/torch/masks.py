"""Rules of attn.masks on tensors: dense boolean masks, and FlexAttention's lists of tiles.

The rules themselves are shared: they use operators only, so the same lines answer for tensors. The
only file that knows FlexAttention.
"""

import functools

import numpy as np
import torch

from attn.masks import Mask
from attn.masks.layout import as_numpy, block_map, check_mask
from attn.masks.rule import convert_arrays


def dense_mask(mask, q_len, k_len, *, q_offset=None, batch=1, heads=1, device=None):
    """Write a rule out as a boolean tensor.

    Parameters
    ----------
    mask : Mask or Tensor of bool
        A rule; a tensor is checked and broadcast.
    q_len, k_len : int
        Number of queries L and keys S.
    q_offset : int or Tensor of int, shape (B,), optional
        Number of keys before query 0. A rule that compares positions needs it when L != S.
    batch, heads : int
        B and H.
    device : torch.device, optional
        Where the mask is made.

    Returns
    -------
    Tensor of bool, shape (1|B, 1|H, L, S)
        True where query and key may attend; an axis that the rule ignores has length 1.

    Raises
    ------
    ValueError, TypeError
        As attn.dense_mask.

    Source: the layout of masks in FlexAttention, Dong et al. (2024), section 3.

    Examples
    --------
    >>> from attn.torch import Causal
    >>> dense_mask(Causal(), 2, 4, q_offset=2)[0, 0].int()
    tensor([[1, 1, 1, 0],
            [1, 1, 1, 1]], dtype=torch.int32)
    """
    read_values = may_read_values(device)
    check_mask(
        mask, q_len, k_len, q_offset=q_offset, batch=batch, heads=heads, read_values=read_values,
        kind=torch.Tensor,
    )  # fmt: skip
    if isinstance(mask, Mask):
        allowed = allowed_pairs(mask, q_len, k_len, q_offset, batch, heads, device)
    else:
        allowed = mask.to(device)[(None,) * (4 - mask.ndim)]
    return allowed.expand(*allowed.shape[:-2], q_len, k_len).clone()


def block_mask(mask, q_len, k_len, *, q_offset=None, batch=1, heads=1, device=None, block_size=128):
    """Hand a rule to FlexAttention: the tiles to visit, and the rule itself for the mixed ones.

    The lists of tiles come from block_map, which asks the rule about spans of positions, so no
    L · S pairs are evaluated; only an array mask is read as a whole.

    Parameters
    ----------
    mask : Mask or Tensor of bool
    q_len, k_len, q_offset, batch, heads, device
        As in dense_mask.
    block_size : int or (int, int)
        Tile edge, or (query edge, key edge), in positions; GPU kernels want multiples of 128.

    Returns
    -------
    BlockMask
        For torch.nn.attention.flex_attention, shape (1|B, 1|H, L, S). Full tiles skip the rule.

    Raises
    ------
    ValueError, TypeError
        As dense_mask; ValueError also for a block size below 1.

    Source: Dong et al. (2024), section 4.

    Examples
    --------
    >>> from attn.torch import Causal
    >>> block_mask(Causal(), 4, 4, block_size=2).to_dense()[0, 0]
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)
    """
    from torch.nn.attention.flex_attention import BlockMask

    check_mask(
        mask, q_len, k_len, q_offset=q_offset, batch=batch, heads=heads,
        read_values=may_read_values(device), kind=torch.Tensor,
    )  # fmt: skip
    edges = block_size if isinstance(block_size, tuple) else (block_size, block_size)
    tiles = tile_map(mask, q_len, k_len, q_offset, batch, heads, edges, device)
    # A tile that sticks out over the last query or key is not full: kernels mask its outside.
    if q_len % edges[0]:
        tiles[..., -1, :].clamp_(max=1)
    if k_len % edges[1]:
        tiles[..., -1].clamp_(max=1)
    some, full = _tile_lists(tiles == 1), _tile_lists(tiles == 2)
    pairs = mask_mod(mask, q_offset, device)
    return BlockMask.from_kv_blocks(
        *some, *full, BLOCK_SIZE=edges, mask_mod=pairs, seq_lengths=(q_len, k_len)
    )


def tile_map(mask, q_len, k_len, q_offset, batch, heads, edges, device):
    """block_map as a tensor (1|B, 1|H, tiles, tiles); array masks never leave their device."""
    if isinstance(mask, Mask):
        offset = as_numpy(q_offset) if hasattr(q_offset, "dtype") else q_offset
        tiles = block_map(
            mask, q_len, k_len, block_size=edges, q_offset=offset, batch=batch, heads=heads
        )
        return torch.as_tensor(tiles, device=device)
    mask = mask.to(device)[(None,) * (4 - mask.ndim)]
    mask = mask.expand(*mask.shape[:-2], q_len, k_len)
    some, full = _tiles_where(mask, edges), ~_tiles_where(~mask, edges)
    return some.to(torch.int8) + (some & full)


def _tiles_where(chosen, edges):
    """Which tiles hold a chosen pair; what sticks out over the matrix is not chosen."""
    for dim, edge in ((-1, edges[1]), (-2, edges[0])):
        missing = -chosen.shape[dim] % edge
        padding = (0, missing) if dim == -1 else (0, 0, 0, missing)
        chosen = torch.nn.functional.pad(chosen, padding).unflatten(dim, (-1, edge))
        chosen = chosen.any(dim=dim)
    return chosen


def _tile_lists(chosen):
    """For each row of tiles, how many are chosen, and their columns: those first, in order."""
    counts = chosen.sum(dim=-1, dtype=torch.int32)
    columns = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return counts, columns.to(torch.int32).contiguous()


def mask_mod(mask, q_offset, device):
    """The function of index tensors that FlexAttention compiles: the rule at query positions."""
    if not isinstance(mask, Mask):
        table = mask.to(device)[(None,) * (4 - mask.ndim)]
        return lambda b, h, q, k: entry(table, b, h, q, k)
    rule = on_device(mask, device)
    if q_offset is None:
        return lambda b, h, q, k: rule(b, h, q, k)
    start = as_tensor(q_offset, device).to(torch.int32).reshape(-1, 1, 1, 1)
    return lambda b, h, q, k: rule(b, h, q + entry(start, b, 0, 0, 0), k)


def entry(table, *index):
    """Look up (b, h, q, k) in a table whose axes of length 1 stand for every index."""
    return table[tuple(i if n > 1 else i * 0 for i, n in zip(index, table.shape, strict=True))]


def flex_attention(query, key, value, *, score_mod, block_mask, scale, with_lse):
    """FlexAttention's output and, where asked for, the log of each row's sum (natural log)."""
    from torch.nn.attention.flex_attention import AuxRequest

    aux = AuxRequest(lse=True) if with_lse else None
    result = _flex_kernel()(
        query, key, value, score_mod=score_mod, block_mask=block_mask, scale=scale,
        enable_gqa=query.shape[1] != key.shape[1], return_aux=aux,
    )  # fmt: skip
    return (result[0], result[1].lse) if with_lse else (result, None)


@functools.cache
def _flex_kernel():
    """Compiled: as it stands, torch would write out the whole matrix of scores."""
    from torch.nn.attention import flex_attention as flex

    # Each rule and length is a kernel of its own; past torch's limit of 8 it would compile no more.
    return torch.compile(flex.flex_attention, dynamic=False, recompile_limit=256)


def allowed_pairs(mask, q_len, k_len, q_offset, batch, heads, device, first_key=0):
    """A rule as a tensor in which every axis that the rule ignores has length 1."""
    start = 0 if q_offset is None else q_offset
    if not isinstance(start, int):  # an int stays one: a compiled graph then serves every offset
        start = as_tensor(start, device).to(torch.int64).reshape(-1, 1, 1, 1)
    b = torch.arange(batch, device=device)[:, None, None, None]
    h = torch.arange(heads, device=device)[None, :, None, None]
    q = start + torch.arange(q_len, device=device)[None, None, :, None]
    k = first_key + torch.arange(k_len, device=device)[None, None, None]
    return as_boolean(mask, on_device(mask, device)(b, h, q, k))


def as_boolean(mask, answer):
    """A rule's answer on four axes, refused unless it is boolean."""
    if getattr(answer, "dtype", None) is not torch.bool:
        got = getattr(answer, "dtype", type(answer).__name__)
        raise TypeError(f"mask {mask!r}: expected a boolean tensor as its answer, got {got}")
    return answer[(None,) * (4 - answer.ndim)]


def on_device(mask, device):
    """The same rule with the arrays inside it as tensors on `device`."""
    return convert_arrays(mask, lambda array: as_tensor(array, device))


def as_tensor(value, device):
    """Numbers as a tensor; an array is copied, for torch refuses negative strides."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return torch.as_tensor(np.array(value), device=device)


def may_read_values(device):
    """Values are looked at where that costs nothing: in eager code on the CPU."""
    on_cpu = torch.device(device or "cpu").type == "cpu"
    return on_cpu and not torch.compiler.is_compiling()
