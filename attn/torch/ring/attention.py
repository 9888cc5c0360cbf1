"""Ring attention: one sequence over several processes, exact, with no process holding all of it.

Each process keeps its queries; blocks of keys and values travel round the ring, and what a block
contributes is merged by its log-sum-exp. Backward, the blocks travel again, and the gradients of
each follow it home.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch

from attn import arguments
from attn.torch.blockwise import EDGE, blockwise_attention
from attn.torch.masks import lay, may_read_values
from attn.torch.operands import call as checked
from attn.torch.ring.labels import LAYOUTS, label_of
from attn.torch.ring.links import agree, join
from attn.torch.ring.steps import Plan, Ring
from attn.torch.ring.tiles import sides


@dataclass
class RingTally:
    """What one process sent and computed in the calls of ring_attention that it was handed to.

    Attributes
    ----------
    sent : Counter
        Bytes handed to the next process, under "labels", "forward" and "backward".
    pairs : dict of lists of int
        Under "forward" and "backward", for each step the pairs of query and key in the tiles that
        were computed, hidden pairs of mixed tiles included; for one batch row and head.
    """

    sent: Counter = field(default_factory=Counter)
    pairs: dict = field(default_factory=lambda: {"forward": [], "backward": []})


def ring_positions(length, processes, *, layout="contiguous"):
    """Say which positions of a sequence each process of a ring holds.

    Parameters
    ----------
    length : int
        Positions in all, P·L; a multiple of P, for "zigzag" of 2·P.
    processes : int
        Their number P.
    layout : {"contiguous", "striped", "zigzag"}
        One stretch each; every P-th position; or stretches r and 2·P − 1 − r of 2·P.

    Returns
    -------
    Tensor of int64, shape (P, L)
        Row r holds the positions of process r, ascending: its part of x is x[…, row, :].

    Raises
    ------
    TypeError, ValueError
        No counts, an unknown layout, a length that does not divide.

    Source: "striped", Brandon et al. (2023); "zigzag", Grattafiori et al. (2024), section 3.3.2.

    Examples
    --------
    >>> ring_positions(8, 2, layout="striped")
    tensor([[0, 2, 4, 6],
            [1, 3, 5, 7]])
    >>> ring_positions(8, 2, layout="zigzag")
    tensor([[0, 1, 6, 7],
            [2, 3, 4, 5]])
    """
    arguments.integer("length", length, low=0)
    arguments.integer("processes", processes, low=1)
    return torch.as_tensor(positions("length", length, processes, layout))


def positions(name, length, P, layout):
    if layout not in LAYOUTS:
        raise ValueError(f"layout: expected one of {', '.join(LAYOUTS)}, got {layout!r}")
    stretches = 2 * P if layout == "zigzag" else P
    if length % stretches:
        what = "2·P" if layout == "zigzag" else "P"
        raise ValueError(
            f"{name}: expected a multiple of {what} = {stretches} positions for the layout "
            f"{layout!r}, got {length}: pad them, and hide the padding with KeyPadding(stop)"
        )
    at = np.arange(length)
    if layout == "striped":
        return at.reshape(-1, P).T.copy()
    at = at.reshape(stretches, -1)
    return at if layout == "contiguous" else np.concatenate([at[:P], at[: P - 1 : -1]], axis=1)


@arguments.explained
def ring_attention(
    query, key, value, mask=None, *, scale=None, softcap=None, q_offset=None, layout="contiguous",
    group=None, timeout=300.0, block_size=None, tally=None,
):  # fmt: skip
    """Attention of this process's queries to the keys of all processes, and its lse.

    Every process of the group makes the same call with its own part, and goes backward where the
    others do; calls that differ are refused in all of them. Process r of P holds the positions
    ring_positions(P·L, P, layout=layout)[r], and the rule speaks of those.

    Parameters
    ----------
    query : Tensor of shape (B, H, L, D)
        L of the P·L queries; also (L, D) or (H, L, D).
    key : Tensor of shape (B, Hkv, S, D)
        S of the P·S keys.
    value : Tensor of shape (B, Hkv, S, Dv)
    mask : Mask, optional
        The same rule in every process: compared by its class, its fields and the numbers in its
        arrays. An array as mask is refused: it would be P·L by P·S.
    scale, softcap, q_offset
        As in attention_weights. There is no bias and no sink.
    layout : {"contiguous", "striped", "zigzag"}
        Under a causal mask "contiguous" leaves some processes idle at most steps; the other two
        share the work evenly.
    group : torch.distributed.ProcessGroup, optional
        All processes, if none is given: gloo for tensors on CPUs, nccl for tensors on GPUs.
    timeout : float
        Seconds to wait for a neighbour at each step.
    block_size : int, optional
        Tile edge in positions. It changes rounding only.
    tally : RingTally, optional
        Counts what this process sends and computes.

    Returns
    -------
    output : Tensor of shape (B, H, L, Dv)
        Zeros for a query that sees nothing. Differentiable once.
    lse : Tensor of shape (B, H, L)
        Natural logarithm of Σ exp(score) over the visible keys of all processes; as in
        blockwise_attention.

    Raises
    ------
    TypeError, ValueError
        As blockwise_attention, for P·L queries and P·S keys; an array as mask; a length that the
        layout does not divide; calls that differ between processes in sizes, dtype, need of
        gradients, mask or any option but timeout and tally.
    RuntimeError
        There is no process group.
    ConnectionError
        A neighbour has ended, or has not answered in time.

    Source: Liu et al. (2023), section 3; "striped", Brandon et al. (2023).

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
    options = dict(bias=None, scale=scale, softcap=softcap, sink=None, q_offset=q_offset)
    check_ring_options(mask, scale, timeout, block_size, tally)
    call = checked(query, key, value, None, **options)
    size = call.size
    links = join(group, float(timeout), tally)
    edge = block_size or EDGE
    halves = 2 if layout == "zigzag" else 1
    queries, keys = (
        sides(positions(name, links.size * rows, links.size, layout), halves, edge)
        for name, rows in (("query", size.L), ("key", size.S))
    )
    check_rule(mask, size, links.size, options, query.device)
    call = call._replace(scale=float(call.scale))
    label = label_of(
        size, (query, key, value), mask, call.scale, call.softcap, q_offset, layout, edge
    )
    agree(links, label, query.device)
    if 0 in size[1:]:
        return blockwise_attention(query, key, value, scale=scale, softcap=softcap)
    laid = lay(mask, size, q_offset, query.device)
    bare = call._replace(query=None, key=None, value=None)  # the steps bring their own
    plan = Plan(links, laid, queries[links.rank], keys, bare)
    output, lse = Ring.apply(call.query, call.key, call.value, plan)
    output = output.to(query.dtype).reshape(*query.shape[:-1], size.Dv)
    return output, lse.reshape(query.shape[:-1])


def check_ring_options(mask, scale, timeout, block_size, tally):
    """Refuse what only this function could be given wrong."""
    if hasattr(mask, "dtype"):
        raise TypeError(
            "mask: expected a rule such as Causal() or None, got an array of shape "
            f"{tuple(mask.shape)}: a process holds part of the keys at a time, and only a rule "
            "answers for any of them (subclass attn.Mask for your own)"
        )
    if getattr(scale, "requires_grad", False):
        raise ValueError("scale: expected a number, a ring has no gradient for a learned one")
    arguments.number("timeout", timeout)
    if timeout is None or timeout <= 0:
        raise ValueError(f"timeout: expected a number of seconds > 0, got {timeout}")
    if block_size is not None:
        arguments.integer("block_size", block_size, low=1)
    if not isinstance(tally, RingTally | None):
        raise TypeError(f"tally: expected a RingTally or None, got {tally!r}")


def check_rule(mask, size, P, options, device):
    """A rule is laid over the whole sequence, and has to answer with booleans."""
    whole = size._replace(L=P * size.L, S=P * size.S)
    arguments.options(
        whole, mask, **options, read_values=may_read_values(device), kind=torch.Tensor
    )
    if mask is not None and 0 not in size[1:]:
        lay(mask, size, 0, device).pairs(slice(0, 1), slice(0, 1))
