"""What attn.audit.leaks hands back, and what a leak is called.

Imports nothing from the package.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Leak(NamedTuple):
    """Output `output` of batch row `batch` changes by `size` when input `input` does."""

    output: int
    input: int
    batch: int
    size: float
    kind: str  # the future, padding, another document, past the window, another batch row

    def __str__(self):
        row = f" (batch row {self.batch})" if self.batch else ""
        return (
            f"output {self.output}{row} changes by {self.size:.3g} when input {self.input} "
            f"changes: it looks into {self.kind}"
        )


@dataclass(frozen=True)
class LeakReport:
    """Whether a function keeps to a mask, and what it costs to know.

    Attributes
    ----------
    passed : bool
        Every pair that the mask hides was looked at, and no output changed.
    leak : Leak or None
        The first: the lowest output position, and for it the lowest input position.
    outputs : tuple of int
        All output positions that look where they should not.
    random : bool
        Two equal calls differed, as with dropout in training mode. The random numbers were then
        repeated in every call, so that a change of the output is still due to the input.
    notes : tuple of str
        What could not be judged: outputs that are NaN, chance that cannot be repeated.
    calls : int
        How often the function was called.
    """

    passed: bool
    leak: Leak | None
    outputs: tuple[int, ...]
    random: bool
    notes: tuple[str, ...]
    calls: int

    def __str__(self):
        verdict = f"Leak: {self.leak}." if self.leak else "No leak found."
        more = [f"Outputs that leak: {_ranges(self.outputs)}."] if len(self.outputs) > 1 else []
        return "\n".join((verdict, *more, *self.notes, f"({self.calls} calls)"))


def _ranges(positions):
    """0–3, 7, 9–10"""
    breaks = np.flatnonzero(np.diff(positions) > 1) + 1
    runs = np.split(np.asarray(positions), breaks)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def kind_of(meant, output, first):
    """What a hidden input is to an output, read off the mask."""
    if not meant[:, first].any():
        return "padding"
    if meant.shape[0] == meant.shape[1]:
        document = _reachable(meant, output)
        if not document[first]:
            in_one_piece = np.ptp(np.flatnonzero(document)) + 1 == document.sum()
            return "another document" if in_one_piece else "a position that the mask hides"
    later = first - output + (meant.shape[0] - meant.shape[1])
    return "the future" if later > 0 else "the past beyond the window"


def _reachable(meant, start):
    """All positions tied to `start` by pairs that may attend, in either direction."""
    tied = meant | meant.T
    found = np.zeros(len(meant), bool)
    found[start] = True
    while True:
        more = found | tied[found].any(axis=0)
        if (more == found).all():
            return found
        found = more
