"""The plan: strips, each some rows of queries with just the keys that they may see.

This is how a mask saves time on a CPU: torch's kernel is called on small dense problems and never
sees the tiles that a rule leaves empty. A plan is made of whole numbers; attn.torch.fused.run
carries it out.
"""

from typing import NamedTuple

from attn.masks.layout import FULL

ROWS, KEYS = 32, 32  # the grain to which rows and keys are cut: 32 rows are torch's least task
TALLEST = 128  # rows of a strip with a mask, which is written out; full strips grow without end
CALL = 8e5  # what a call of the kernel costs beside its work, in multiplications
BRIDGED = 0.75  # a range of which this share is visible is read whole, its gaps masked


class Strip(NamedTuple):
    """Rows of queries, the runs of keys that they read, and whether every pair may attend."""

    first: int
    stop: int
    runs: tuple  # of (first, stop), in order, with gaps between them
    full: bool

    @property
    def pairs(self):
        return (self.stop - self.first) * sum(stop - first for first, stop in self.runs)

    @property
    def shape(self):
        """The same for strips that differ only in where they lie."""
        runs = ((first - self.first, stop - self.first) for first, stop in self.runs)
        return self.stop - self.first, *runs

    def joined(self, below):
        """Both as one strip, which reads what either of them reads."""
        full = self.full and below.full and self.runs == below.runs
        return Strip(self.first, below.stop, united(self.runs + below.runs), full)

    def bridged(self):
        """Read as one run where the gaps are small: fewer copies, and their pairs are masked."""
        runs = self.runs
        if len(runs) > 1 and sum(b - a for a, b in runs) >= BRIDGED * (runs[-1][1] - runs[0][0]):
            return self._replace(runs=((runs[0][0], runs[-1][1]),), full=False)
        return self


def plan_strips(areas_at, size):
    """The strips of each batch row, or one list for all rows where the mask does not tell them.

    `areas_at(edges)` says where pairs may attend (attn.masks.areas.Areas). Heads share the strips.
    """
    areas, count = areas_at((ROWS, KEYS)), -(-size.L // ROWS)
    overhead = CALL / (size.B // len(areas.kinds) * size.H * size.D)  # of a call, in pairs
    return [strips_of(areas.segments(count, b), size, overhead) for b in range(len(areas.kinds))]


def strips_of(rows_of_tiles, size, overhead):
    """Neighbouring rows of tiles in one strip as long as that costs less than one more call.

    >>> from attn.arguments import Sizes
    >>> from attn.masks.layout import SOME
    >>> size = Sizes((1,), 1, 1, 1, 64, 96, 8, 8)
    >>> rows_of_tiles = [[(0, 2, FULL)], [(1, 2, FULL), (2, 3, SOME)]]  # two rows, three columns
    >>> strips_of(rows_of_tiles, size, overhead=0)
    [Strip(first=0, stop=32, runs=((0, 64),), full=True),
     Strip(first=32, stop=64, runs=((32, 96),), full=False)]
    >>> strips_of(rows_of_tiles, size, overhead=2048)
    [Strip(first=0, stop=64, runs=((0, 96),), full=False)]
    """
    strips = []
    for i, segments in enumerate(rows_of_tiles):
        runs = united((a * KEYS, min(b * KEYS, size.S)) for a, b, _ in segments)
        full = bool(segments) and all(kind == FULL for *_, kind in segments)
        new = Strip(i * ROWS, min((i + 1) * ROWS, size.L), runs, full)
        both = strips[-1].joined(new) if strips else None
        if (
            both
            and both.pairs <= strips[-1].pairs + new.pairs + overhead
            and (both.full or both.stop - both.first <= TALLEST)
        ):
            strips[-1] = both
        else:
            strips.append(new)
    return [strip.bridged() for strip in strips]


def united(runs):
    """Runs that touch or overlap as one, in order."""
    merged = []
    for first, stop in sorted(runs):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        else:
            merged.append((first, stop))
    return tuple(merged)
