"""Ring attention: one sequence over several processes, exact, with no process holding all of it.

Each process keeps its queries; blocks of keys and values travel round the ring, and what each block
contributes is merged by its log-sum-exp. Backward, the blocks travel again and their gradients with
them. Imports attn.checks, attn.masks and the torch files blockwise, masks, operands, ring_links and
ring_tiles.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from attn import checks
from attn.masks import Mask
from attn.torch.blockwise import EDGE, blockwise_attention, merge_attention
from attn.torch.masks import allowed_pairs, may_read_values
from attn.torch.operands import check_call, default_scale, without_autocast, working_dtype
from attn.torch.ring_links import Links, RingTally, agree, join, pass_on
from attn.torch.ring_tiles import Rule, Side, attend_block, block_call, block_gradients, rule_for

LAYOUTS = ("contiguous", "striped", "zigzag")


def ring_attention(
    query, key, value, mask=None, *, scale=None, softcap=None, q_offset=None, layout="contiguous",
    group=None, timeout=300.0, block_size=None, tally=None,
):  # fmt: skip
    """Attention of this process's queries to the keys of all processes, and its log denominator.

    Every process of the group calls it, with as many rows as the others, and goes backward if the
    others do. Process r of P holds the positions ring_positions(P·L, P, layout=layout)[r]; a rule
    speaks of those. An array of rows that do not divide evenly is padded, the padding hidden with
    KeyPadding.

    Parameters
    ----------
    query : Tensor of shape (B, H, L, D)
        This process's part, L of the P·L queries; also (L, D) or (H, L, D).
    key : Tensor of shape (B, Hkv, S, D)
    value : Tensor of shape (B, Hkv, S, Dv)
        This process's part, S of the P·S keys.
    mask : Mask, optional
        The same rule in every process. No array: each would need rows and columns of its own.
    scale, softcap, q_offset
        As in attention_weights. There is no bias and no sink.
    layout : {"contiguous", "striped", "zigzag"}
        Who holds which positions. Under a causal mask "contiguous" leaves the first process with
        little to do; the others share the work evenly, at every step.
    group : torch.distributed.ProcessGroup, optional
        All processes if not given. gloo for tensors on CPUs, nccl for tensors on GPUs.
    timeout : float
        Seconds to wait for a neighbour at each step.
    block_size : int, optional
        Tile edge in positions. It changes rounding only.
    tally : RingTally, optional
        Counts what this process sends and computes.

    Returns
    -------
    output : Tensor of shape (B, H, L, Dv)
        For this process's queries. Differentiable once; zeros where a query sees nothing.
    lse : Tensor of shape (B, H, L)
        Natural logarithm of Σ exp(score) over the visible keys of all processes; differentiable.

    Raises
    ------
    TypeError, ValueError
        As blockwise_attention, for lengths P·L and P·S; an array mask; calls that differ.
    RuntimeError
        There is no process group.
    ConnectionError
        A neighbour has ended, or did not answer in time.

    Source: Liu et al. (2023), algorithm 1; Brandon et al. (2023), section 3, for "striped".

    Examples
    --------
    One process is a ring of its own.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> output, lse = ring_attention(torch.zeros(3, 2), torch.zeros(4, 2), torch.eye(4)[:, :2])
    >>> output[0], lse[0].exp()
    (tensor([0.2500, 0.2500]), tensor(4.))
    >>> dist.destroy_process_group()
    """
    edge = EDGE if block_size is None else block_size
    tally = check_own_options(mask, timeout, edge, tally)
    options = dict(bias=None, scale=scale, softcap=softcap, sink=None, q_offset=q_offset)
    size = check_call(query, key, value, None, **options)
    links = join(group, timeout, tally)
    sides = [Sides.of(name, rows, links, layout, edge) for name, rows in (("query", size.L), ("key", size.S))]
    check_rule(mask, size, links.size, options, query.device)
    label = label_of(query, key, value, size, layout)
    agree(links, label, query.device)
    if 0 in size[1:]:
        return blockwise_attention(query, key, value, scale=scale, softcap=softcap)
    ...
