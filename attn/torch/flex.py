"""Masks handed to FlexAttention: its lists of tiles, its function of indices, its kernel.

The only file that knows FlexAttention.
"""

import functools

import torch

from attn import arguments
from attn.masks.layout import FULL, SOME, check_mask
from attn.torch.masks import as_tensor, lay, may_read_values


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
    edges = block_size if isinstance(block_size, tuple) else (block_size, block_size)
    sizes = dict(q_offset=q_offset, batch=batch, heads=heads)
    size = check_mask(
        mask, q_len, k_len, **sizes, read_values=may_read_values(device), kind=torch.Tensor
    )
    for edge in edges:
        arguments.integer("block_size", edge, low=1)
    return laid_block_mask(lay(mask, size, q_offset, device), edges)


def laid_block_mask(laid, edges=(128, 128)):
    """The BlockMask of a mask that is laid over its queries and keys."""
    from torch.nn.attention.flex_attention import BlockMask

    L, S, tiles = laid.size.L, laid.size.S, laid.tiles(edges)
    # A tile that extends past the last query or key is not full: kernels mask its outside.
    if L % edges[0]:
        tiles[..., -1, :].clamp_(max=SOME)
    if S % edges[1]:
        tiles[..., -1].clamp_(max=SOME)
    some, full = tile_lists(tiles == SOME), tile_lists(tiles == FULL)
    return BlockMask.from_kv_blocks(
        *some, *full, BLOCK_SIZE=edges, mask_mod=mask_mod(laid), seq_lengths=(L, S)
    )


def tile_lists(chosen):
    """For each row of tiles, how many are chosen, and their columns: those first, in order."""
    counts = chosen.sum(dim=-1, dtype=torch.int32)
    columns = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return counts, columns.to(torch.int32).contiguous()


def mask_mod(laid):
    """The function of index tensors that FlexAttention compiles: the rule at query positions."""
    rule, start = laid.rule, laid.start
    if rule is None:
        return lambda b, h, q, k: entry(laid.mask, b, h, q, k)
    if isinstance(start, int) and start == 0:
        return lambda b, h, q, k: rule(b, h, q, k)
    # A tensor, also of one number: a kernel is then not compiled anew for every offset.
    start = as_tensor(start, laid.device).to(torch.int32).reshape(-1, 1, 1, 1)
    return lambda b, h, q, k: rule(b, h, q + entry(start, b, 0, 0, 0), k)


def entry(table, *index):
    """Look up (b, h, q, k) in a table whose axes of length 1 stand for every index."""
    return table[tuple(i if n > 1 else i * 0 for i, n in zip(index, table.shape, strict=True))]


def flex_attention(query, key, value, *, score_mod, block_mask, scale, with_lse):
    """FlexAttention's output and, where asked for, the log of each row's sum (natural log)."""
    from torch.nn.attention.flex_attention import AuxRequest

    aux = AuxRequest(lse=True) if with_lse else None
    result = compiled_kernel()(
        query, key, value, score_mod=score_mod, block_mask=block_mask, scale=scale,
        enable_gqa=query.shape[1] != key.shape[1], return_aux=aux,
    )  # fmt: skip
    return (result[0], result[1].lse) if with_lse else (result, None)


@functools.cache
def compiled_kernel():
    """Compiled: as it stands, torch would write out the whole matrix of scores."""
    from torch.nn.attention import flex_attention as flex

    # Each rule and length is a kernel of its own; past torch's limit of 8 it would compile no more.
    return torch.compile(flex.flex_attention, dynamic=False, recompile_limit=256)
