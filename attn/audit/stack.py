"""Several changes in one call, where a function treats the rows of a batch alike.

Copies of the batch go in one below the other, each with a change of its own. That says the same as
one call each only if a row does not depend on the others, nor on how many there are, which is
tested first; else every change gets a call of its own. Imports attn.audit.probe and
attn.audit.rounding.
"""

import numpy as np

from attn.audit.probe import change_of

MOST_COPIES = 64
MOST_PAIRS = 2**23  # B · L² of all copies: what the scores of one head take up


class Stack:
    """`each(changes)` yields (change, before, after), one call each or some in one."""

    def __init__(self, probe, base):
        self.probe, self.base, self.copies = probe, base, 1

    def prepare(self, number):
        """Decide how many copies go into one call, for so many changes."""
        probe = self.probe
        fit = MOST_PAIRS // (probe.B * probe.L**2)
        copies = min(MOST_COPIES, number, fit)
        worth = copies > 1 and 3 + -(-number // copies) < number
        if probe.batched and worth and probe.state is None and self._alike(copies):
            self.copies = copies
        self.probe.progress.plan(-(-number // self.copies))

    def _alike(self, copies):
        """Are copies treated like the batch alone, whatever their neighbours hold?"""
        probe = self.probe
        try:
            self.before = probe.call([probe.plain] * copies)
            scale = np.abs(self.base[np.isfinite(self.base)]).max(initial=0)
            gaps = [change_of(self.base, one).max() for one in self.before]
            if max(gaps) > np.sqrt(probe.eps) * scale:
                return False
            pattern = np.random.default_rng(0).permutation(copies) % 2 == 0
            for odd in (pattern, ~pattern):
                after = probe.call([probe.other[0] if one else probe.plain for one in odd])
                if any(change_of(self.before[i], after[i]).any() for i in np.flatnonzero(~odd)):
                    return False
        except Exception:  # whatever a function says to a batch of another size, it is a no
            return False
        return True

    def each(self, changes):
        if self.copies == 1:
            for change in changes:
                yield change, self.base, self.probe.outputs(change)
            return
        for start in range(0, len(changes), self.copies):
            some = changes[start : start + self.copies]
            inputs = [self.probe.changed(change) for change in some]
            inputs += [self.probe.plain] * (self.copies - len(some))  # the shape stays
            yield from zip(some, self.before, self.probe.call(inputs), strict=False)
