"""A process and its two neighbours in a ring: send on, receive, within a time limit, counted.

The transport is torch.distributed's: gloo between CPUs, NCCL between GPUs, by the same calls. Both
notice a process that has ended; neither says which call, which step and which neighbour, nor what
to do. Imports nothing from the package.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist


@dataclass
class RingTally:
    """What one process sent and computed in the calls that it was handed to.

    Attributes
    ----------
    sent : Counter
        Bytes handed to the next process, under "labels", "forward" and "backward".
    pairs : dict of lists
        Under "forward" and "backward" one number for each step: the pairs (query, key) in the tiles
        that were computed, for one batch row and head. Hidden pairs of mixed tiles are among them.
    """

    sent: Counter = field(default_factory=Counter)
    pairs: dict = field(default_factory=lambda: {"forward": [], "backward": []})


class Links(NamedTuple):
    """Where this process stands in the ring; ranks of the group, peers by their global rank."""

    group: object
    rank: int
    size: int
    following: int
    previous: int
    timeout: float  # s
    tally: RingTally


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
        for work, peer in zip(self.works, self.peers(), strict=True):
            # Sends come first: a neighbour that has ended is noticed at once on its own link, while
            # a receive may wait for one that only waits itself.
            left = max(0.001, begun + self.links.timeout - time.monotonic())
            try:
                work.wait(timedelta(seconds=left))
            except RuntimeError as error:
                late = time.monotonic() - begun >= self.links.timeout
                raise broken(self.links, self.what, peer, late) from error
        return self.received

    def peers(self):
        """The neighbour behind each piece of work; NCCL makes one piece of all."""
        links, count = self.links, len(self.received)
        if len(self.works) == 2 * count:
            return [links.following] * count + [links.previous] * count
        return [links.previous] * len(self.works)


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
    following = dist.get_global_rank(group, (rank + 1) % size)
    previous = dist.get_global_rank(group, (rank - 1) % size)
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
        raise broken(links, what, links.following, late=False) from error
    links.tally.sent[phase] += sum(x.nbytes for x in kept)
    return Transit(links, what, works, kept, received)


def agree(links, label, device):
    """Send a label round the whole ring: every process sees all, and refuses a mixed call."""
    own = torch.tensor(list(label.values()), dtype=torch.int64, device=device)
    labels = [own]
    for _ in range(links.size - 1):
        labels += pass_on(links, labels[-1:], "labels", "the label of the call").wait()
    labels = torch.stack(labels).tolist()  # one look, also on a GPU
    ranks = [dist.get_global_rank(links.group, (links.rank - i) % links.size) for i in range(links.size)]
    first, *others = sorted(zip(ranks, labels, strict=True))
    for rank, values in others:
        for name, want, got in zip(label, first[1], values, strict=True):
            if want != got:
                raise ValueError(
                    "ring_attention: expected the same call in every process, got "
                    f"{name} = {want} on rank {first[0]} and {name} = {got} on rank {rank}"
                )


def broken(links, what, peer, late):
    """The error of a process whose neighbour is gone."""
    me = dist.get_global_rank(links.group, links.rank)
    lost = f"no answer from rank {peer} for {links.timeout:g} s" if late else f"lost rank {peer}"
    return ConnectionError(
        f"ring_attention: rank {me}: {lost}, at {what} (previous rank {links.previous}, next rank "
        f"{links.following}). Rank {peer} has ended or hangs, made no such call (each process makes "
        "the same calls forward and backward), or lost a neighbour itself: read its log first. "
        "This group of processes cannot go on: end them all and start them again, as torchrun "
        "--max-restarts does. For a process that is only slow, raise timeout."
    )
