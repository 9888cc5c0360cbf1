"""Has this output changed, or only the rounding of its digits?

A sum in another order rounds in another way, so an output may move in its last digits when an
input changes that it does not depend on: an FFT mixes all positions, and so does a maximum that is
subtracted. What tells the two apart is a second, harmless perturbation. Move the changed inputs by
a millionth of themselves: an output that depends on them hardly moves, rounding is drawn anew and
moves as much as before. Imports nothing of attn but attn.audit.probe.
"""

import numpy as np

from attn.audit.probe import NOTHING, change_of

NUDGES = 4  # draws of rounding; the largest is taken
MARGIN = 16  # a change this many times as large as rounding is none; draws are few, tails are long
ULPS = 4  # a change by so many roundings of the largest output is never more than rounding
IDS = 32  # token ids cannot be moved by a millionth: this many roundings of the largest output


class Rounding:
    """`least`: changes up to here are put down to rounding. `ignored`: the largest of them."""

    def __init__(self, probe, base):
        self.probe, self.base, self.coarse = probe, base, None
        self.floor = self.ignored = 0.0  # the floor, what rounding was seen to do, only grows

    @property
    def least(self):
        return MARGIN * self.floor

    def size(self, before, after, change, rows=True):
        """How far each row (B, L_out) has moved, 0 where it is not in `rows` or only rounds."""
        gap = np.where(rows, change_of(before, after), 0)
        scale = self._scale(before, after)
        if self._suspicious(gap, scale).any():
            self._measure(change, scale, rows)
        self.ignored = max(self.ignored, float(gap[gap <= self.least].max(initial=0)))
        return np.where(gap > self.least, gap, 0)

    def _scale(self, *outputs):
        sizes = [np.abs(x[np.isfinite(x)]).max(initial=0) for x in outputs]
        return max(map(float, sizes))

    def _suspicious(self, gap, scale):
        """Changes that could be rounding, going by their size, and are not known to be."""
        eps = self.probe.eps
        if not eps:
            return np.zeros(gap.shape, bool)
        if self.probe.whole:
            return (gap > self.least) & (gap <= IDS * eps * scale)
        single = 2.0**-11.5  # the root of float32's eps
        between = (gap > self.least) & (gap > np.sqrt(eps) * scale) & (gap <= single * scale)
        if between.any() and eps < 1e-9 and self._is_coarse():
            return (gap > self.least) & (gap <= single * scale)
        return (gap > self.least) & (gap <= np.sqrt(eps) * scale)

    def _is_coarse(self):
        """Does a function of float64 calculate in less? Then it does not see a change of 2⁻⁴⁰."""
        if self.coarse is None:
            near = self.probe.call([self.probe.plain * (1 + 2.0**-40)])[0]
            self.coarse = not change_of(self.base, near).any()
        return self.coarse

    def _measure(self, change, scale, rows):
        probe = self.probe
        if probe.whole:
            moved = np.where(rows, change_of(self.base, probe.outputs(change)), 0)
            self._raise_floor(moved[self._suspicious(moved, scale)] / MARGIN)
            return
        self._raise_floor(np.array(ULPS * probe.eps * scale / MARGIN))
        there = probe.outputs(change)
        gap = np.where(rows, change_of(self.base, there), 0)
        nudged = (probe.outputs(change._replace(nudge=n)) for n in range(NUDGES))
        noise = np.max([change_of(there, one) for one in nudged], axis=0)
        self._raise_floor(noise[self._suspicious(gap, scale) & (gap <= MARGIN * noise)])

    def _raise_floor(self, noise):
        self.floor = max(self.floor, float(np.max(noise, initial=0)))

    def of_equal_calls(self, times=NUDGES):
        """What equal calls differ by, as where sums run in parallel; False if it is no rounding."""
        noise = np.array([change_of(self.base, self.probe.outputs(NOTHING)) for _ in range(times)])
        if noise.max() > np.sqrt(self.probe.eps) * self._scale(self.base):
            return False
        self._raise_floor(noise)
        return True
