"""How fast the attentions of this repository are, against each other and against torch's kernels.

    python benchmarks/attention.py            prints the ratios, and records them under the name
                                              of the machine, where the chapters find them
    python benchmarks/attention.py --quick    small sizes, nothing recorded: does it run?
    python benchmarks/attention.py --against OTHER_CHECKOUT
                                              this checkout against another one, in five minutes

Every ratio compares two functions that were called in turn in this one run. Without a GPU there
are no GPU rows; with --device cuda the torch rows are measured there, by the same code.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from against import against
from calls import (
    BLOCKWISE,
    FUSED,
    PLAIN,
    WINDOW,
    available,
    documents,
    numpy_call,
    sdpa,
    sdpa_dense,
    synchronizer,
    torch_call,
)
from machines import describe, file_name
from measuring import MIB, commit, compare, import_seconds, in_child, say
from sweep import SCRIPT, child, sweep

from attn import Causal

ROOT = Path(__file__).parents[1]


class Case(NamedTuple):
    """One ratio: ours over reference at n tokens, and the most it may be on two cores."""

    name: str
    n: int
    ours: object
    reference: object
    limit: float
    on_gpu: bool = False


CASES = (
    Case("blockwise / SDPA", 4096, numpy_call(BLOCKWISE), sdpa(), 1.3),
    Case(
        "blockwise causal / SDPA causal", 4096, numpy_call(BLOCKWISE, Causal()), sdpa(True), 1.4
    ),
    Case("blockwise / plain NumPy", 4096, numpy_call(BLOCKWISE), numpy_call(PLAIN), 0.30),
    Case(
        "blockwise causal / plain NumPy causal", 4096, numpy_call(BLOCKWISE, Causal()),
        numpy_call(PLAIN, Causal()), 0.15,
    ),
    Case(
        "fused window 256 / SDPA dense mask", 8192, torch_call(FUSED, WINDOW), sdpa_dense(WINDOW),
        0.08, True,
    ),
    Case(
        "fused 16 documents / SDPA dense mask", 8192, torch_call(FUSED, documents),
        sdpa_dense(documents), 0.15, True,
    ),
    Case("fused causal / SDPA causal", 4096, torch_call(FUSED, Causal()), sdpa(True), 1.05, True),
)  # fmt: skip


def ratios(device, rounds, shrink):
    """Measure every case; one line of the table each."""
    rows = []
    for case in available(CASES, device):
        n = case.n // shrink
        say(f"{case.name}, n = {n}, {rounds} rounds")
        calls = case.ours(n, device), case.reference(n, device)
        with torch.no_grad():
            measured = compare(*calls, rounds, synchronizer(device))
        rows.append({"name": case.name, "n": n, "device": device, "limit": case.limit, **measured})
        print(line(rows[-1]), flush=True)
    return rows


def line(row):
    low, high = row["quartiles"]
    return (
        f"{row['name']:<38} n = {row['n']:<6} {row['ratio']:.3f}  (quartiles {low:.3f} to "
        f"{high:.3f}; {row['seconds']:.4f} s against {row['reference_seconds']:.4f} s; "
        f"at most {row['limit']})"
    )


def blockwise_memory(n):
    """Bytes that blockwise needs beyond its operands and results, in a fresh process."""
    say(f"memory of blockwise at n = {n}")
    bytes_ = in_child(SCRIPT, "--child", "blockwise NumPy", n)["traced"]
    print(f"{'blockwise, extra peak memory':<38} n = {n:<6} {bytes_ / MIB:.1f} MiB  (at most 32)")
    return {"n": n, "bytes": bytes_, "limit": 32 * MIB}


def import_time(repeats):
    value = import_seconds("attn", after="numpy", repeats=repeats)
    print(f"{'import attn, after import numpy':<38} {value:.4f} s  (at most 0.03)")
    return {"seconds": value, "limit": 0.03}


def about(device, quick):
    """What was measured, and where."""
    return {
        "machine": describe(torch.cuda.get_device_name() if device == "cuda" else None),
        "commit": commit(ROOT),
        "threads": torch.get_num_threads(),
        "quick": quick,
    }


def measure(device, quick):
    """Everything, as the dictionary that is recorded."""
    shrink, rounds = (64, 2) if quick else (1, 21)  # plain NumPy varies most
    report = about(device, quick)
    report["ratios"] = ratios(device, rounds, shrink)
    if device == "cpu":
        report["memory"] = blockwise_memory(32768 // shrink)
        report["import"] = import_time(3 if quick else 9)
    report["sweep"] = sweep(device, min(rounds, 5), shrink)
    return report


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes; records nothing")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--against", type=Path, metavar="CHECKOUT", help="compare with the attn of another checkout"
    )
    parser.add_argument("--minutes", type=float, default=5, help="how long --against may take")
    parser.add_argument("--child", nargs=2, metavar=("NAME", "N"), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda: torch finds no GPU on this machine")
    if options.against and not (options.against / "attn").is_dir():
        sys.exit(f"--against: expected a checkout with attn in it; got {options.against}")
    if options.child:
        return child(options.child[0], int(options.child[1]), options.device)
    out = options.out
    if options.against:
        minutes = 0 if options.quick else options.minutes
        report = about(options.device, options.quick)
        report |= against(ROOT, options.against, options.device, minutes, options.quick)
    else:
        report = measure(options.device, options.quick)
        if not options.quick:
            out = out or ROOT / "benchmarks" / "results" / f"{file_name(report['machine'])}.json"
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")
        say(f"recorded in {out}")
    return None


if __name__ == "__main__":
    main()
