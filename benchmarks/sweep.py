"""Time and memory of attention as the number of tokens grows."""

import json
import statistics
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import torch
from calls import BLOCKWISE, FUSED, PLAIN, WINDOW, available, numpy_call, synchronizer, torch_call
from measuring import in_child, in_turn, peak_memory, say

SCRIPT = Path(__file__).with_name("attention.py")


class Curve(NamedTuple):
    """One line of the figure: time and memory as n grows, up to `largest`."""

    name: str
    make: object
    largest: int
    on_gpu: bool = False


CURVES = (
    Curve("plain NumPy", numpy_call(PLAIN), 4096),
    Curve("blockwise NumPy", numpy_call(BLOCKWISE), 16384),
    Curve("plain torch", torch_call(PLAIN), 4096, True),
    Curve("fused torch", torch_call(FUSED), 16384, True),
    Curve("fused torch, window 256", torch_call(FUSED, WINDOW), 16384, True),
)
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


def sweep(device, rounds, shrink):
    """Time (median of rounds, in turn at each n) and extra peak memory of every curve."""
    curves = available(CURVES, device)
    lengths = [n // shrink for n in LENGTHS][: 3 if shrink > 1 else None]
    time = {curve.name: [None] * len(lengths) for curve in curves}
    memory = {curve.name: [None] * len(lengths) for curve in curves}
    for i, n in enumerate(lengths):
        present = [curve for curve in curves if n <= curve.largest // shrink]
        say(f"sweep, n = {n}: {', '.join(curve.name for curve in present)}")
        with torch.no_grad():
            calls = [curve.make(n, device) for curve in present]
            times = in_turn(calls, rounds, synchronizer(device))
        for curve, measured in zip(present, times, strict=True):
            time[curve.name][i] = statistics.median(measured)
            child = in_child(SCRIPT, "--child", curve.name, n, "--device", device)
            memory[curve.name][i] = child["resident"]
    return {"n": lengths, "device": device, "seconds": time, "bytes": memory}


def child(name, n, device):
    """In a fresh process: what one call needs beyond its operands and results, as JSON.

    `resident` counts pages (on a GPU: what torch's allocator gave out), so NumPy and torch compare;
    `traced` counts what Python allocated, NumPy's arrays among it, to the byte.
    """
    make = next(curve.make for curve in CURVES if curve.name == name)
    with torch.no_grad():
        make(64, device)()  # loads what the call loads
        call = make(n, device)
        held = _cuda_memory(reset=True) if device == "cuda" else None
        peak, result = peak_memory(call)
        if held is not None:
            peak = _cuda_memory() - held
        kept = sum(x.nbytes for x in (result if isinstance(result, tuple) else (result,)))
        del result
        traced = None
        if "NumPy" in name:
            tracemalloc.start()
            call()
            traced = tracemalloc.get_traced_memory()[1] - kept
    print(json.dumps({"resident": peak and max(peak - kept, 0), "traced": traced}))


def _cuda_memory(reset=False):
    torch.cuda.synchronize()
    if reset:
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return torch.cuda.max_memory_allocated()
