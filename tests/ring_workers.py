"""What the processes of tests/test_torch_ring.py run: new interpreters import it, so it is a file.

Arrays of the whole sequence come in, each process takes its own rows, and NumPy arrays go out.
"""

import os
import signal
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from attn.torch import (
    Causal,
    Dilated,
    KeyPadding,
    Mask,
    RingTally,
    SameDocument,
    SlidingWindow,
    ring_attention,
    ring_positions,
)
from attn.torch.ring import links

REAL = dist.batch_isend_irecv


def count_bytes(monitor):
    """Add up what torch.distributed is asked to send, whatever attn says of it."""

    def counting(operations):
        monitor["wire"] += sum(o.tensor.nbytes for o in operations if o.op is dist.isend)
        return REAL(operations)

    links.dist.batch_isend_irecv = counting


def part(x, rank, processes, layout, dtype, grad=True):
    rows = ring_positions(x.shape[-2], processes, layout=layout)[rank]
    return torch.tensor(x, dtype=getattr(torch, dtype))[..., rows, :].requires_grad_(grad)


def answer(rank, processes, call, monitor):
    """Output, lse, gradients, tally, bytes seen on the wire and FLOPs of the forward pass."""
    layout = call["options"].get("layout", "contiguous")
    names = ("query", "key", "value")
    inputs = [part(call[name], rank, processes, layout, call["dtype"]) for name in names]
    cotangent = part(call["grad_output"], rank, processes, layout, call["dtype"], grad=False)
    cotangent_lse = part(call["grad_lse"], rank, processes, layout, "float64", grad=False)[..., 0]
    monitor["wire"], tally = 0, RingTally()
    with FlopCounterMode(display=False) as flops:
        output, lse = ring_attention(
            *inputs, call["mask"], tally=tally, timeout=30.0, **call["options"]
        )
    grads = torch.autograd.grad((output, lse), inputs, (cotangent, cotangent_lse.to(lse.dtype)))
    results = [x.detach() for x in (output, lse[..., None], *grads)]
    return {
        "results": [x.double().numpy() for x in results],
        "dtypes": [str(x.dtype).removeprefix("torch.") for x in results],
        "tally": tally,
        "wire": monitor["wire"],
        "flops": flops.get_total_flops(),
    }


def answers(rank, processes, calls):
    monitor = {"wire": 0}
    count_bytes(monitor)
    found = {name: answer(rank, processes, call, monitor) for name, call in calls.items()}
    return {
        "calls": found,
        "errors": refusals(rank),
        "options": differing(rank),
        "subgroup": subgroup(rank, processes),
    }


def pairs_of_options():
    """(name of what differs, what most processes pass, what rank 1 passes), each one difference."""
    ids = np.array([0, 0, 1, 1])
    far = np.repeat(ids, 30)  # positions of six processes and more
    return (
        ("scale", {}, {"scale": 0.3}),
        ("scale", {"scale": 0.5}, {"scale": 0.5 + 1e-12}),
        ("softcap", {}, {"softcap": 5.0}),
        ("softcap", {"softcap": 2}, {"softcap": 5}),
        ("q_offset", {"mask": Causal()}, {"mask": Causal(), "q_offset": 1}),
        ("q_offset", {"q_offset": [1, 1]}, {"q_offset": [1, 2]}),
        ("block_size", {}, {"block_size": 2}),
        ("mask", {}, {"mask": Causal()}),
        ("mask", {"mask": Causal()}, {"mask": SlidingWindow(None)}),
        ("mask", {"mask": SlidingWindow(1)}, {"mask": SlidingWindow(2)}),
        ("mask", {"mask": SlidingWindow(1)}, {"mask": SlidingWindow(1, 1)}),
        ("mask", {"mask": SlidingWindow(1)}, {"mask": SlidingWindow(1, None)}),
        ("mask", {"mask": KeyPadding([3, 4])}, {"mask": KeyPadding([4, 3])}),
        ("mask", {"mask": SameDocument(far)}, {"mask": SameDocument(far + (far > 0))}),
        ("mask", {"mask": SameDocument(far)}, {"mask": SameDocument(far[None])}),
        ("mask", {"mask": Causal() & Dilated(2)}, {"mask": Causal() & Dilated(3)}),
        ("mask", {"mask": Causal() & Dilated(2)}, {"mask": Causal() | Dilated(2)}),
        ("mask", {"mask": ~(Causal() & KeyPadding(3))}, {"mask": ~(Causal() & KeyPadding(4))}),
        ("mask", {"mask": Chosen({1: (2, 3)})}, {"mask": Chosen({1: (2, 4)})}),
    )


def pairs_that_agree():
    """The same call, written in two ways."""
    far = np.repeat([0, 1], 60)
    return (
        ({}, {"scale": 0.5, "timeout": 29.0, "softcap": None, "tally": RingTally()}),
        ({"scale": 0.0}, {"scale": -0.0}),
        ({"scale": 2}, {"scale": np.float64(2)}),
        ({"mask": Causal()}, {"mask": Causal(), "q_offset": 0}),
        ({"q_offset": 3}, {"q_offset": [3, 3]}),
        ({"q_offset": [3, 2]}, {"q_offset": torch.tensor([3, 2], dtype=torch.int32)}),
        ({"block_size": np.int64(2)}, {"block_size": 2}),
        ({"mask": KeyPadding(np.int64(3))}, {"mask": KeyPadding(3)}),
        ({"mask": KeyPadding([3, 4])}, {"mask": KeyPadding(torch.tensor([3, 4]))}),
        ({"mask": SameDocument(far)}, {"mask": SameDocument(torch.tensor(far).int())}),
        ({"mask": Chosen(object())}, {"mask": Chosen(object())}),
    )


@dataclass(frozen=True, eq=False)
class Chosen(Mask):
    """A rule of the user's own with a field that is neither a number nor an array."""

    field: object
    compares_positions = False

    def __call__(self, b, h, q, k):
        return k >= 0


def differing(rank):
    """What each process is told where rank 1 passes another option than the rest."""
    x, found = torch.zeros(2, 2, 6, 4), []
    for _, most, one in (*pairs_of_options(), *((None, *pair) for pair in pairs_that_agree())):
        try:
            ring_attention(x, x, x, **{"timeout": 30.0, **(one if rank == 1 else most)})
            found.append(None)
        except ValueError as error:
            found.append(str(error))
    return found


def refusals(rank):
    """What each process is told of calls that differ between them; the ring goes on afterwards."""
    x = torch.zeros(1, 2, 6, 4)
    different = {
        "length": lambda: ring_attention(*(x[:, :, : 6 - 2 * rank],) * 3, timeout=30.0),
        "dtype": lambda: ring_attention(*(x.double() if rank == 1 else x,) * 3, timeout=30.0),
        "layout": lambda: ring_attention(
            x, x, x, layout="striped" if rank == 1 else "zigzag", timeout=30.0
        ),
        "gradients": lambda: ring_attention(
            x.clone().requires_grad_(rank == 1), x, x, timeout=30.0
        ),
    }
    found = {}
    for name, call in different.items():
        try:
            call()
        except ValueError as error:
            found[name] = str(error)
    return found


def subgroup(rank, processes):
    """A ring of the last two processes; the others are not in it."""
    members = [processes - 2, processes - 1]
    group = dist.new_group(members)
    x = torch.arange(2.0 * 3).reshape(1, 1, 6, 1)
    rows = 3 * dist.get_rank(group) if rank in members else 0
    try:
        mine = x[:, :, rows : rows + 3]
        output, _ = ring_attention(mine, mine, mine, Causal(), group=group, timeout=30.0)
    except ValueError as error:
        return str(error)
    return rows, output.numpy()


def perish(rank, processes):
    """Rank 1 falls asleep in one group and is killed in another; the others say what they saw."""
    x = torch.randn(1, 2, 6, 4, requires_grad=True)
    spare = dist.new_group()
    seen = []
    for group, timeout, exchange, how in ((spare, 1.0, 3, "hangs"), (None, 20.0, 6, "killed")):
        ring_attention(x, x, x, group=group, timeout=30.0)[0].sum().backward()  # all is well
        if rank == 1:
            fail_at(exchange, how)
        begun = time.monotonic()
        try:
            ring_attention(x, x, x, group=group, timeout=timeout)[0].sum().backward()
        except ConnectionError as error:
            seen.append((str(error), time.monotonic() - begun))
    return seen


def fail_at(exchange, how):
    """Let the exchange of that number, from now on, fail."""
    count = [0]

    def failing(operations):
        count[0] += 1
        if count[0] == exchange:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(5)
        return REAL(operations)

    links.dist.batch_isend_irecv = failing
