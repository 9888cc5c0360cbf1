"""A process and its two neighbours in a ring: send on, receive, within a time limit, counted.

The transport is torch.distributed's: gloo between CPUs, NCCL between GPUs, by the same calls. Both
notice a process that has ended; neither says which call, which step and which neighbour, nor what
to do. (With NCCL a wait that is given a time limit holds the host until the block is there; what
was computed before it goes on meanwhile.)
"""

import time
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from attn.torch.ring.labels import in_words

ROUNDING = 0.002  # s: gloo counts whole milliseconds, rounded down, so a wait may end that early


class Links(NamedTuple):
    """Where this process stands in the ring; ranks of the group, peers by their global rank."""

    group: object
    rank: int
    size: int
    following: int
    previous: int
    timeout: float  # s
    tally: object  # ring.RingTally, or None


class Transit(NamedTuple):
    """Tensors on their way: what was sent is kept alive until it has arrived."""

    links: Links
    what: str
    works: list
    kept: list
    received: list

    def wait(self):
        """The tensors of the previous process, or an error that names who is missing."""
        begun = time.monotonic()
        for work, peers in zip(self.works, self.peers(), strict=True):
            # Sends come first: a neighbour that has ended is noticed at once on its own link, while
            # a receive may wait for one that only waits itself.
            left = max(0.001, begun + self.links.timeout - time.monotonic())
            try:
                work.wait(timedelta(seconds=left))
            except RuntimeError as error:
                late = time.monotonic() - begun >= self.links.timeout - ROUNDING
                raise broken(self.links, self.what, peers, late) from error
        return self.received

    def peers(self):
        """The neighbours behind each piece of work; NCCL makes one piece of all."""
        links, count = self.links, len(self.received)
        if len(self.works) == 2 * count:
            return [{links.following}] * count + [{links.previous}] * count
        return [{links.previous, links.following}] * len(self.works)


def join(group, timeout, tally):
    """Find the neighbours of this process in its group."""
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "ring_attention: expected a process group, got none: call "
            "torch.distributed.init_process_group in every process first (torchrun starts them)"
        )
    group = dist.group.WORLD if group is None else group
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError(f"group: rank {dist.get_rank()} is not a member, and has no place in it")
    following, previous = (dist.get_global_rank(group, (rank + i) % size) for i in (1, -1))
    return Links(group, rank, size, following, previous, timeout, tally)


def pass_on(links, tensors, phase, what):
    """Start sending to the following process, and receiving as much from the previous one."""
    kept = [x.contiguous() for x in tensors]
    received = [torch.empty_like(x) for x in kept]
    sends = [dist.P2POp(dist.isend, x, links.following, links.group) for x in kept]
    receives = [dist.P2POp(dist.irecv, x, links.previous, links.group) for x in received]
    try:
        works = dist.batch_isend_irecv(sends + receives)
    except RuntimeError as error:
        raise broken(links, what, {links.previous, links.following}, late=False) from error
    if links.tally is not None:
        links.tally.sent[phase] += sum(x.nbytes for x in kept)
    return Transit(links, what, works, kept, received)


def agree(links, label, device):
    """Send a label round the whole ring: every process sees all, and refuses a mixed call."""
    labels = [torch.tensor(list(label.values()), dtype=torch.int64, device=device)]
    for _ in range(links.size - 1):
        labels += pass_on(links, labels[-1:], "labels", "while comparing the calls").wait()
    ranks = [(links.rank - step) % links.size for step in range(links.size)]
    by_rank = dict(zip(ranks, torch.stack(labels).tolist(), strict=True))  # one look, also on a GPU
    for rank in range(1, links.size):
        for name, want, got in zip(label, by_rank[0], by_rank[rank], strict=True):
            if want != got:
                want, got = in_words(name, want), in_words(name, got)
                raise ValueError(
                    f"ring_attention: expected the same {name} in every process, got {want} on "
                    f"rank {global_rank(links, 0)} and {got} on rank {global_rank(links, rank)}"
                )


def global_rank(links, rank):
    return dist.get_global_rank(links.group, rank % links.size)


def broken(links, what, peers, late):
    """The error of a process whose neighbour is gone."""
    peer = " or ".join(f"rank {rank}" for rank in sorted(peers))
    who = f"{peer}, a neighbour in the ring,"
    lost = f"had no answer from {who} for {links.timeout:g} s" if late else f"lost {who}"
    return ConnectionError(
        f"ring_attention: rank {global_rank(links, links.rank)} {lost} {what}. Read the log of "
        f"{peer} first: it has ended, hangs, has not made the same call, or has lost a neighbour "
        "itself. This group cannot go on: end all its processes and start them again (torchrun "
        f"--max-restarts does). If {peer} is only slow, raise timeout."
    )
