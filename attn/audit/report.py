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
        source = f"input {self.input}"
        if self.kind == "another batch row":
            source = "another batch row"
        return (
            f"output {self.output}{row} changes by {self.size:.3g} when {source} changes: it looks "
            f"into {self.kind}"
        )


@dataclass(frozen=True)
class LeakReport:
    """Whether a function keeps to a mask, and what it costs to know.

    Attributes
    ----------
    passed : bool
        Every pair that the mask hides was tested, and no output changed by more than rounding.
    leak : Leak or None
        The first: the lowest output position, and for it the lowest input position.
    outputs : tuple of int
        All output positions that look where they should not.
    random : bool
        Two equal calls differed, as with dropout in training mode. The random numbers were then
        repeated in every call, so that a change of the output is still due to the input.
    notes : tuple of str
        What could not be judged (outputs that are NaN, randomness that cannot be repeated), what
        was put down to rounding, how the arrays were read.
    calls : int
        Number of calls of the function.
    rounding : float
        The largest change that was put down to rounding and not counted; 0 if there was none.
    """

    passed: bool
    leak: Leak | None
    outputs: tuple[int, ...]
    random: bool
    notes: tuple[str, ...]
    calls: int
    rounding: float = 0.0

    def __str__(self):
        verdict = "No leak found." if self.passed else "No verdict."
        verdict = f"Leak: {self.leak}." if self.leak else verdict
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
    if later > 0:
        return "the future"
    if _is_window(meant):
        return "the past beyond the window"
    return "an earlier position that the mask hides"


def _is_window(meant):
    """Does what is visible begin one position later with every query, once it has begun to move?"""
    visible = meant[meant.any(axis=1)]
    starts = visible.argmax(axis=1)
    moving = starts[starts > 0]
    return len(moving) > 0 and bool((np.diff(moving) <= 1).all() and (np.diff(moving) >= 0).all())


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
