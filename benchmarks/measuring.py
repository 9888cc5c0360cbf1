"""How the benchmarks measure: pairs of functions in turn, memory in fresh processes.

Nothing here knows attention. Times of two functions are compared only when they were taken in
turn, in one run: a machine that slows down then slows both.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

MIB = 2**20

# OpenBLAS's threads go on spinning for some hundredths of a second after a call, and would take a
# core from the next one: measured, blockwise took 0.209 s right after the plain function, 0.186 s
# after a rest of 0.03 s, and 0.155 s after 0.1 s.
REST = 0.1  # s


def say(text):
    """Progress goes to stderr, results to stdout."""
    print(text, file=sys.stderr, flush=True)


def seconds(function, synchronize=None):
    """Wall time of one call; `synchronize` waits for a device that works on by itself."""
    start = time.perf_counter()
    function()
    if synchronize:
        synchronize()
    return time.perf_counter() - start


def in_turn(functions, rounds, synchronize=None):
    """Times of several functions, called one after the other, round by round.

    Returns a list of `rounds` times for each; one call of each before that warms up. A rest before
    each call keeps it from paying for the one before.
    """

    def rested(function):
        time.sleep(REST)
        return seconds(function, synchronize)

    for function in functions:
        rested(function)
    times = [[rested(f) for f in functions] for _ in range(rounds)]
    return [list(column) for column in zip(*times, strict=True)]


def compare(ours, reference, rounds, synchronize=None):
    """Median and quartiles of ours / reference over rounds in turn, and both medians in seconds."""
    a, b = in_turn((ours, reference), rounds, synchronize)
    ratios = [x / y for x, y in zip(a, b, strict=True)]
    low, middle, high = quartiles(ratios)
    return {
        "ratio": middle,
        "quartiles": [low, high],
        "seconds": statistics.median(a),
        "reference_seconds": statistics.median(b),
        "rounds": rounds,
    }


def quartiles(numbers):
    if len(numbers) < 2:
        return [numbers[0]] * 3
    return statistics.quantiles(numbers, n=4, method="inclusive")


def in_child(script, *arguments, timeout=900):
    """What a fresh interpreter prints, as JSON: nothing is loaded, nothing cached."""
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def import_seconds(module, after, repeats):
    """Median time of `import module` in fresh processes that have already imported `after`."""
    code = f"import {after}, time; t = time.perf_counter(); import {module}; "
    code += "print(time.perf_counter() - t)"
    times = []
    for _ in range(repeats + 1):  # the first one may still write bytecode
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        times.append(float(done.stdout))
    return statistics.median(times[1:])


def peak_memory(function):
    """Bytes that a call holds at its peak beyond what the process held before, and its result.

    Counted in resident pages, so NumPy and torch are measured alike; None where the system does
    not say (anywhere but on Linux).
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        before = _status("VmRSS")
    except OSError:
        return None, function()
    result = function()
    return _status("VmHWM") - before, result


def _status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def commit(checkout):
    """The commit of a checkout, with a + where files differ from it; None without git."""
    git = ["git", "-C", str(checkout), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
