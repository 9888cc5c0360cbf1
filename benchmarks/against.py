"""Two checkouts of this repository in one run: did a change make anything slower?

Each checkout has a worker, a process that imports its attn and keeps it loaded. Both do the same
call, one after the other and never at once, first one first and then the other, until the time of
that call is used up. The first row calls torch alone, in which the checkouts cannot differ: what
it shows is the noise of this run.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from calls import (
    BLOCKWISE,
    FUSED,
    PLAIN,
    WINDOW,
    available,
    documents,
    numpy_call,
    sdpa,
    synchronizer,
    torch_call,
)
from measuring import REST, commit, quartiles, say, seconds

import attn
from attn import Causal

SAMPLE = 0.02  # s: a shorter call is repeated until a clock can tell
SLOWER = 1.03  # a ratio above it is marked
FEWEST = 5  # rounds


class Call(NamedTuple):
    """One row: a call that both checkouts can do."""

    name: str
    make: object
    n: int
    on_gpu: bool = False


CALLS = (
    Call("torch alone", sdpa(), 2048, True),
    Call("plain NumPy", numpy_call(PLAIN), 2048),
    Call("plain NumPy, causal", numpy_call(PLAIN, Causal()), 2048),
    Call("blockwise NumPy", numpy_call(BLOCKWISE), 4096),
    Call("blockwise NumPy, causal", numpy_call(BLOCKWISE, Causal()), 4096),
    Call("blockwise NumPy, window 256", numpy_call(BLOCKWISE, WINDOW), 8192),
    Call("plain torch", torch_call(PLAIN), 2048, True),
    Call("blockwise torch, causal", torch_call(BLOCKWISE, Causal()), 2048, True),
    Call("fused torch", torch_call(FUSED), 4096, True),
    Call("fused torch, causal", torch_call(FUSED, Causal()), 4096, True),
    Call("fused torch, window 256", torch_call(FUSED, WINDOW), 8192, True),
    Call("fused torch, 16 documents", torch_call(FUSED, documents), 8192, True),
    # Few tokens: what a call costs before it computes anything.
    Call("plain NumPy, causal", numpy_call(PLAIN, Causal()), 16),
    Call("blockwise NumPy, causal", numpy_call(BLOCKWISE, Causal()), 16),
    Call("plain torch, causal", torch_call(PLAIN, Causal()), 16, True),
    Call("fused torch, causal", torch_call(FUSED, Causal()), 16, True),
)


def against(after, before, device, minutes, quick):
    """Ratios after / before of every call, as the dictionary that is recorded."""
    rows = available(CALLS, device)
    with Worker(after, device) as new, Worker(before, device) as old:
        print(f"after:  {after} at {commit(after)}\nbefore: {before} at {commit(before)}")
        end = time.monotonic() + 60 * minutes
        measured = []
        for done, call in enumerate(rows):
            n = max(16, call.n // 64) if quick else call.n
            share = max(0, end - time.monotonic()) / (len(rows) - done)
            say(f"{done + 1} of {len(rows)}: {call.name}, n = {n}, {share:.0f} s")
            row = {"name": call.name, "n": n} | compare(new, old, CALLS.index(call), n, share)
            print(line(row), flush=True)
            measured.append(row)
    commits = {"after": commit(after), "before": commit(before)}
    return {"against": commits, "ratios": measured}


def compare(new, old, index, n, share):
    """One call in both workers in turn, for `share` seconds, warming up included."""
    end = time.monotonic() + share
    ready = [worker.ask(prepare=[index, n]) for worker in (new, old)]
    if not math.isclose(ready[0]["sum"], ready[1]["sum"], rel_tol=1e-4):
        raise RuntimeError(
            f"{CALLS[index].name}, n = {n}: expected one result from both checkouts; "
            f"the sums of its magnitudes are {ready[0]['sum']} and {ready[1]['sum']}"
        )
    repeats = max(1, round(SAMPLE / min(one["seconds"] for one in ready)))
    times = {new: [], old: []}
    pair = [new, old]
    while len(times[old]) < FEWEST or time.monotonic() < end:
        for worker in pair:
            times[worker].append(worker.ask(run=repeats)["seconds"])
        pair.reverse()  # whoever is second also meets the caches that the first one left
    low, middle, high = quartiles([a / b for a, b in zip(times[new], times[old], strict=True)])
    return {
        "ratio": middle,
        "quartiles": [low, high],
        "seconds": quartiles(times[new])[1],
        "reference_seconds": quartiles(times[old])[1],
        "rounds": len(times[old]),
    }


def line(row):
    low, high = row["quartiles"]
    return (
        f"{row['name']:<28} n = {row['n']:<5} {row['ratio']:.3f}  (quartiles {low:.3f} to "
        f"{high:.3f}; {1e3 * row['seconds']:.3g} ms after {1e3 * row['reference_seconds']:.3g} ms; "
        f"{row['rounds']} rounds){'  SLOWER' if row['ratio'] > SLOWER else ''}"
    )


# --- A worker -------------------------------------------------------------------------------------


class Worker:
    """A process with the attn of one checkout; it answers one line of JSON with another."""

    def __init__(self, checkout, device):
        checkout = Path(checkout).resolve()
        self.process = subprocess.Popen(
            [sys.executable, __file__, device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": str(checkout)},
        )  # fmt: skip
        found = Path(self.ask()["attn"])
        if not found.is_relative_to(checkout):
            self.close()
            raise RuntimeError(f"expected the attn of {checkout}; got that of {found}")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("a worker ended; what it wrote last stands above")
        return json.loads(answer)

    def close(self):
        self.process.stdin.close()  # the end of its questions
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@torch.no_grad()
def work(device, questions, answer):
    """Answer question after question, until there are no more."""
    call = None
    for question in map(json.loads, questions):
        if "prepare" in question:
            index, n = question["prepare"]
            call = CALLS[index].make(n, device)
            result = call()
            result = result[0] if isinstance(result, tuple) else result
            total = float(abs(result).sum())  # also waits for a device
            answer({"sum": total, "seconds": clock(call, device)})
        elif "run" in question:
            answer({"seconds": clock(call, device, question["run"])})
        else:
            answer({"attn": attn.__file__})


def clock(call, device, repeats=1):
    """Seconds of one call, after a rest, as the mean of several."""
    time.sleep(REST)

    def several():
        for _ in range(repeats):
            call()

    return seconds(several, synchronizer(device)) / repeats


if __name__ == "__main__":
    work(sys.argv[1], sys.stdin, lambda found: print(json.dumps(found), flush=True))
