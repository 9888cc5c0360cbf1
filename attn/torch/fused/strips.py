"""Attention strip by strip: some rows of queries with just the keys that they may see.

This is how a mask saves time on a CPU: torch's kernel is called on small dense problems and never
sees the tiles that a rule leaves empty.
"""

import itertools
from typing import NamedTuple

import numpy as np
import torch

from attn.torch.fused.unseen import cut, pairs_of, tiles_of

ROWS, KEYS = 32, 32  # the grain to which rows and keys are cut: 32 rows are torch's least task
TALLEST = 128  # rows of a strip with a mask, which is written out; full strips grow without end
CALL = 8e5  # what a call of the kernel costs beside its work, in multiplications
BRIDGED = 0.75  # a range of which this share is visible is read whole, its gaps masked


class Strip(NamedTuple):
    """Rows of queries, the runs of keys that they read, and whether every pair may attend."""

    first: int
    stop: int
    runs: tuple  # of (first, stop)
    full: bool


def plan_strips(call):
    """The strips of each batch row, or one list for all rows where the mask does not tell them."""
    size, tiles = call.size, tiles_of(call, (ROWS, KEYS)).numpy()
    some, full = tiles.max(axis=1) > 0, tiles.min(axis=1) == 2  # all heads share the strips
    overhead = CALL / (size.B // len(tiles) * size.H * size.D)  # of a call, in pairs
    return [_strips(*row, size, overhead) for row in zip(some, full, strict=True)]


def _strips(some, full, size, overhead):
    """Neighbouring rows of tiles in one strip as long as that costs less than one more call."""
    complete = (full | ~some).all(axis=1) & some.any(axis=1)
    drafts = []
    for i, first in enumerate(range(0, size.L, ROWS)):
        new = _Draft(first, min(first + ROWS, size.L), some[i], bool(complete[i]))
        both = drafts[-1].joined(new) if drafts else None
        if (
            both
            and both.pairs() <= drafts[-1].pairs() + new.pairs() + overhead
            and (both.full or both.stop - both.first <= TALLEST)
        ):
            drafts[-1] = both
        else:
            drafts.append(new)
    return [draft.strip(size.S) for draft in drafts]


class _Draft(NamedTuple):
    first: int
    stop: int
    seen: np.ndarray  # bool, one for each tile of keys
    full: bool

    def pairs(self):
        return (self.stop - self.first) * int(np.count_nonzero(self.seen)) * KEYS

    def joined(self, below):
        alike = np.array_equal(self.seen, below.seen)
        full = self.full and below.full and alike
        return _Draft(self.first, below.stop, self.seen | below.seen, full)

    def strip(self, k_len):
        runs, full = _runs(self.seen, k_len), self.full
        if len(runs) > 1 and sum(b - a for a, b in runs) >= BRIDGED * (runs[-1][1] - runs[0][0]):
            runs, full = ((runs[0][0], runs[-1][1]),), False
        return Strip(self.first, self.stop, runs, full)


def _runs(some, k_len):
    """Neighbouring tiles as runs (first, stop) of keys."""
    edges = np.flatnonzero(np.diff(some, prepend=False, append=False)) * KEYS
    return tuple((int(a), min(int(b), k_len)) for a, b in edges.reshape(-1, 2))


def attend_strips(call, attend):
    """Call attend(query, key, value, keep, bias) on every strip and lay the outputs together."""
    plan, pairs = plan_strips(call), _pairs_of_strips(call)
    rows = call.size.B if len(plan) == 1 else 1
    parts = [x.split(rows) for x in (call.query, call.key, call.value)]
    shared = call.bias is None or len(call.bias) == 1
    biases = itertools.repeat(call.bias) if shared else call.bias.split(rows)
    outputs = []
    for b, (strips, bias, *operands) in enumerate(zip(plan, biases, *parts, strict=False)):
        batch = slice(b * rows, (b + 1) * rows)
        outputs.append(_attend_row(strips, *operands, bias, pairs, batch, attend))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_row(strips, query, key, value, bias, pairs, batch, attend):
    ends = [stop for strip in strips for run in strip.runs for stop in run]
    stops = [strip.stop for strip in strips]
    queries, keys, values = Pieces(query, stops), Pieces(key, ends), Pieces(value, ends)
    biases = Pieces(bias, stops) if bias is not None and bias.shape[2] > 1 else None
    outputs = []
    for job in _jobs(strips, pairs, batch, stacking=bias is None and len(strips) > len(query)):
        rows = ((job.first, job.stop),)
        q = queries.take(rows)
        if job.seen.start == job.seen.stop:
            outputs.append(q.new_zeros(*q.shape[:-1], value.shape[-1]))
            continue
        k, v = keys.take(job.runs), values.take(job.runs)
        if job.count > 1:
            outputs.append(_attend_stack(job, q, k, v, attend))
            continue
        added = bias if biases is None else biases.take(rows)
        if added is not None:
            added = cut(added, None, _indices(job.runs)[job.seen])
            added = added.expand(-1, -1, q.shape[-2], job.seen.stop - job.seen.start)
        outputs.append(attend(q, k[..., job.seen, :], v[..., job.seen, :], job.keep, added))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-2)


def _attend_stack(job, query, key, value, attend):
    """Strips as batch rows of one call; the keys of neighbours overlap and are not copied."""
    height, width = (job.stop - job.first) // job.count, job.seen.stop - job.seen.start
    outputs = []
    for b, (q, k, v) in enumerate(zip(query, key, value, strict=True)):
        q = q.unflatten(1, (job.count, height)).transpose(0, 1)  # (count, H, height, D)
        k, v = (
            x[:, job.seen.start :].unfold(1, width, height)[:, : job.count].mT.transpose(0, 1)
            for x in (k, v)
        )  # (count, Hkv, width, D)
        keep = job.keep[b : b + 1] if len(job.keep) > 1 else job.keep
        outputs.append(attend(q, k, v, keep, None).transpose(0, 1).flatten(1, 2))
    return torch.stack(outputs)


class _Job(NamedTuple):
    """One call: a strip, or a stack of `count` alike, each as far below as to the right."""

    first: int
    stop: int
    count: int
    runs: tuple
    seen: slice  # of the keys in the runs of the first
    keep: torch.Tensor | None

    def joined(self, below, stacking):
        """Both in one call, or None."""
        if self.keep is None and below.keep is None and self.keys() == below.keys():
            return self._replace(stop=below.stop)
        if stacking and below.keep is not None and below.keep is self.keep and len(self.runs) == 1:
            runs = ((self.runs[0][0], below.runs[0][1]),)
            return self._replace(stop=below.stop, count=self.count + 1, runs=runs)
        return None

    def keys(self):
        if self.seen.start == self.seen.stop:
            return ()
        if len(self.runs) > 1:
            return self.runs, self.seen.start, self.seen.stop
        return self.runs[0][0] + self.seen.start, self.runs[0][0] + self.seen.stop


def _jobs(strips, pairs, batch, stacking):
    """One job after the other, so that one mask at a time is written out."""
    job = None
    for strip in strips:
        keep, seen = pairs(strip, batch)
        new = _Job(strip.first, strip.stop, 1, strip.runs, seen, keep)
        both = job and job.joined(new, stacking)
        if job and not both:
            yield job
        job = both or new
    yield job


def _pairs_of_strips(call):
    """A function (strip, batch) -> (bool or None, slice): which pairs of the strip may attend, None
    for all, and which of its keys anybody sees.

    A rule that knows nothing but q - k says the same of neighbours that differ only in where they
    lie, and is asked once.
    """
    pairs, last = pairs_of(call), (None, None)
    absolute = getattr(call.mask, "reads_absolute_positions", True)

    def of_strip(strip, batch):
        nonlocal last
        if strip.full or not strip.runs:
            return None, slice(0, sum(b - a for a, b in strip.runs))
        shape = (batch.start, strip.stop - strip.first)
        shape += tuple((a - strip.first, b - strip.first) for a, b in strip.runs)
        if absolute or shape != last[0]:
            rows = torch.arange(strip.first, strip.stop)
            last = (shape, _trimmed(pairs(rows, _indices(strip.runs), batch)))
        return last[1]

    return of_strip


def _trimmed(keep):
    """Tiles are coarse: cut the keys before the first and behind the last that anybody sees."""
    pairs = keep.numpy()  # one thread: waking the others would take longer than looking
    seen = np.flatnonzero(pairs.reshape(-1, pairs.shape[-1]).any(axis=0))
    seen = slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, 0)
    return (None if pairs[..., seen].all() else keep[..., seen]), seen


def _indices(runs):
    ranges = [torch.arange(first, stop) for first, stop in runs]
    return ranges[0] if len(ranges) == 1 else torch.cat(ranges)


class Pieces:
    """Rows of a tensor by runs. Under autograd it is cut once, at `points`: the gradient of a slice
    is as large as the whole tensor, that of a piece only as large as the piece."""

    def __init__(self, x, points):
        self.x, self.pieces = x, None
        if x.requires_grad and torch.is_grad_enabled():
            points = sorted({0, x.shape[-2], *points})
            self.index = {point: i for i, point in enumerate(points)}
            self.pieces = x.split(np.diff(points).tolist(), dim=-2)

    def take(self, runs):
        parts = [part for first, stop in runs for part in self._run(first, stop)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)

    def _run(self, first, stop):
        if self.pieces is None:
            return [self.x[..., first:stop, :]]
        return self.pieces[self.index[first] : self.index[stop]]
