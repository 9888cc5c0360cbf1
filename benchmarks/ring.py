"""Ring attention on several processes: is it equal to one device, what does it send, how long?

    torchrun --nproc-per-node 4 benchmarks/ring.py                                (CPUs)
    torchrun --nproc-per-node 8 benchmarks/ring.py --device cuda --length 8192    (GPUs)

On several machines torchrun takes --nnodes, --node-rank, --master-addr and --master-port as well.
Rank 0 prints one line for each layout. Nothing but the name of the transport differs: gloo between
CPUs, nccl between GPUs.

`together` starts processes without torchrun, from a notebook or a test. They begin as new
interpreters, which import what they are to run: hence a file, not a cell.
"""

import argparse
import multiprocessing
import os
import pickle
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from attn.torch import (
    Causal,
    Mask,
    RingTally,
    ring_attention,
    ring_positions,
    scaled_dot_product_attention,
)


class Case(NamedTuple):
    """One call on n positions, its operands drawn from a seed, the same in every process."""

    n: int
    mask: Mask | None = Causal()
    layout: str = "contiguous"
    dtype: str = "float32"
    B: int = 1
    H: int = 4
    Hkv: int = 2
    D: int = 16
    Dv: int = 16
    options: dict = {}  # noqa: RUF012  (handed on as keywords, never changed)


def operands(case, device="cpu"):
    """Query, key, value and a gradient of the output, for the whole sequence."""
    random = torch.Generator().manual_seed(0)
    shapes = (case.H, case.D), (case.Hkv, case.D), (case.Hkv, case.Dv), (case.H, case.Dv)
    drawn = (
        torch.randn(case.B, heads, case.n, size, generator=random, dtype=torch.float64)
        for heads, size in shapes
    )
    return [x.to(device, getattr(torch, case.dtype)) for x in drawn]


def one_device(case, device="cpu"):
    """Output and gradients without a ring, all positions at once."""
    *inputs, grad_output = operands(case, device)
    inputs = [x.requires_grad_() for x in inputs]
    options = {k: v for k, v in case.options.items() if k in ("scale", "softcap", "q_offset")}
    output = scaled_dot_product_attention(*inputs, case.mask, **options)
    return [output.detach(), *torch.autograd.grad(output, inputs, grad_output)]


def in_ring(rank, processes, case, device="cpu"):
    """One process's part of output and gradients, and its tally."""
    held = ring_positions(case.n, processes, layout=case.layout)
    mine, whole = held[rank].to(device), operands(case, device)
    *inputs, grad_output = (x[..., mine, :] for x in whole)
    inputs = [x.requires_grad_() for x in inputs]
    tally = RingTally()
    options = dict(layout=case.layout, tally=tally, timeout=60.0)
    options |= case.options
    output, _ = ring_attention(*inputs, case.mask, **options)
    grads = torch.autograd.grad(output, inputs, grad_output)
    return [output.detach(), *grads], tally


def several(rank, processes, cases):
    """in_ring for one case after the other: processes are slow to start."""
    return [in_ring(rank, processes, case) for case in cases]


def whole(parts, case):
    """The parts of all processes in the order of their positions."""
    places = ring_positions(case.n, len(parts), layout=case.layout).flatten()
    joined = (torch.cat(part, dim=-2) for part in zip(*parts, strict=True))
    return [torch.empty_like(x).index_copy_(-2, places.to(x.device), x) for x in joined]


def lose_one(rank, processes, case, lost, timeout):
    """Call once in peace; then one process is killed and the others call again."""
    in_ring(rank, processes, case)
    time.sleep(0.3)  # its last bytes arrive
    if rank == lost:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        in_ring(rank, processes, case._replace(options={**case.options, "timeout": timeout}))
    except ConnectionError as error:
        seconds = time.monotonic() - begun
        time.sleep(2)  # stay a while, so that nobody takes the messenger for the dead
        return str(error), seconds
    raise AssertionError(f"rank {rank} did not notice")


def speeds(rank, processes, device="cpu", rounds=5):
    """Bytes a second to the next process while all send, and operations a second in products."""
    sent, received = torch.zeros(2, 2**22, device=device)  # 16 MiB each
    square = torch.randn(1024, 1024, device=device)
    following, previous = (rank + 1) % processes, (rank - 1) % processes
    seconds = {"send": [], "multiply": []}
    for _ in range(rounds + 1):  # one round warms up
        dist.barrier()
        begun = time.perf_counter()
        operations = (
            dist.P2POp(dist.isend, sent, following),
            dist.P2POp(dist.irecv, received, previous),
        )
        for work in dist.batch_isend_irecv(list(operations)):
            work.wait()
        float(received[-1])  # waits for the device, too
        seconds["send"].append(time.perf_counter() - begun)
        begun = time.perf_counter()
        float((square @ square)[-1, -1])
        seconds["multiply"].append(time.perf_counter() - begun)
    send, multiply = (statistics.median(x[1:]) for x in seconds.values())
    return sent.nbytes / send, 2 * 1024**3 / multiply


# --- Starting processes ---------------------------------------------------------------------------


def together(work, processes, *arguments, patience=300.0):
    """Call work(rank, processes, *arguments) in that many new processes that form a gloo group.

    Returns a list of their answers by rank: what work returned, the exception that it raised, or
    None from a process that was killed. `work` has to stand in a file that can be imported.
    """
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        team = [
            spawn.Process(target=_member, args=(rank, processes, folder, work, arguments))
            for rank in range(processes)
        ]
        for process in team:
            process.start()
        end = time.monotonic() + patience
        for process in team:
            process.join(max(0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        return [_answer(rank, process, Path(folder)) for rank, process in enumerate(team)]


def _member(rank, processes, folder, work, arguments):
    """Join the group, work, and leave the answer in a file."""
    log = os.open(f"{folder}/{rank}.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    # All on this machine: no name of a host has to be looked up, no firewall asked.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    store = dist.FileStore(f"{folder}/store", processes)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=processes)
    try:
        answer = work(rank, processes, *arguments)
    except Exception as error:  # handed to whoever started the team
        answer = error
    Path(folder, f"{rank}.answer").write_bytes(pickle.dumps(answer))
    dist.destroy_process_group()


def _answer(rank, process, folder):
    path = folder / f"{rank}.answer"
    if path.exists():
        return pickle.loads(path.read_bytes())
    if process.exitcode < 0:
        return None
    raise RuntimeError(
        f"rank {rank} ended without an answer; its log says\n"
        + (folder / f"{rank}.log").read_text()
    )


# --- With torchrun --------------------------------------------------------------------------------


def options(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--length", type=int, default=1024, help="positions in all")
    parser.add_argument("--dtype", default="float32")
    return parser.parse_args(arguments)


def main():
    chosen = options()
    device = chosen.device
    if device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if chosen.device == "cuda" else "gloo")
    sent, computed = speeds(dist.get_rank(), dist.get_world_size(), device)
    if dist.get_rank() == 0:
        rates = f"B = {sent:.2e} bytes/s, F = {computed:.2e} FLOP/s in float32"
        print(f"{rates}, F/B = {computed / sent:.0f} FLOP/byte")
    for layout in ("contiguous", "striped", "zigzag"):
        report(Case(chosen.length, layout=layout, dtype=chosen.dtype), device)
    dist.destroy_process_group()


def report(case, device):
    """Compare with one device, take the time of a second call, and let rank 0 print a line."""
    rank, processes = dist.get_rank(), dist.get_world_size()
    mine = ring_positions(case.n, processes, layout=case.layout)[rank].to(device)
    parts, tally = in_ring(rank, processes, case, device)
    differences = [
        (part - x[..., mine, :]).abs().max() / x.abs().max()
        for part, x in zip(parts, one_device(case, device), strict=True)
    ]
    begun = time.perf_counter()
    float(in_ring(rank, processes, case, device)[0][0].sum())  # waits for the device
    seconds = time.perf_counter() - begun
    pairs = float(sum(tally.pairs["forward"]))
    worst = torch.tensor([*differences, seconds, pairs], dtype=torch.float64).to(device)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    if rank == 0:
        *differences, seconds, pairs = worst.tolist()
        print(
            f"{case.layout:10} P = {processes}, n = {case.n}: difference / largest entry "
            + ", ".join(f"{name} {x:.1e}" for name, x in zip("OQKV", differences, strict=True))
            + f"; sent {tally.sent['forward']} + {tally.sent['backward']} B"
            + f"; pairs of the busiest {pairs:.0f}; {seconds:.3f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
