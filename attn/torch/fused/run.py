"""A plan of strips carried out: a call of the kernel for each strip, or for many that are alike.

Strips whose rule knows nothing but q - k, and that differ only in where they lie, have the same
pairs: the rule is asked once, and they are stacked as batch rows of one call.
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np
import torch

from attn.torch.fused.strips import plan_strips
from attn.torch.fused.unseen import areas_of
from attn.torch.masks import part

STACKED = 2**25  # scores of a stack at most


def attend_strips(call, attend):
    """Call attend(query, key, value, keep, bias) on every strip and lay the outputs together."""
    plan = plan_strips(functools.partial(areas_of, call), call.size)
    rows = call.size.B if len(plan) == 1 else 1
    parts = [x.split(rows) for x in (call.query, call.key, call.value)]
    shared = call.bias is None or len(call.bias) == 1
    biases = itertools.repeat(call.bias) if shared else call.bias.split(rows)
    outputs = []
    for b, (strips, bias, *operands) in enumerate(zip(plan, biases, *parts, strict=False)):
        batch = slice(b * rows, (b + 1) * rows)
        outputs.append(attend_row(strips, call.mask, batch, *operands, bias, attend))
    return joined(outputs, dim=0)


def attend_row(strips, mask, batch, query, key, value, bias, attend):
    """The strips of one batch row, or of all that share them."""
    ends = [stop for strip in strips for run in strip.runs for stop in run]
    stops = [strip.stop for strip in strips]
    queries, keys, values = Pieces(query, stops), Pieces(key, ends), Pieces(value, ends)
    biases = Pieces(bias, stops) if bias is not None and bias.shape[2] > 1 else None
    stacking = bias is None and len(strips) > len(query)
    outputs = []
    for job in jobs(strips, mask, batch, stacking and STACKED // query.shape[1]):
        rows = ((job.first, job.stop),)
        q, pattern = queries.take(rows), job.pattern
        if pattern.seen.start == pattern.seen.stop:
            outputs.append(q.new_zeros(*q.shape[:-1], value.shape[-1]))
            continue
        k, v = keys.take(job.runs), values.take(job.runs)
        if job.count > 1:
            outputs.append(attend_stack(job, q, k, v, attend))
            continue
        added = bias if biases is None else biases.take(rows)
        if added is not None:
            added = part(added, slice(None), indices(job.runs, bias.device)[pattern.seen])
            added = added.expand(-1, -1, q.shape[-2], pattern.seen.stop - pattern.seen.start)
        k, v = k[..., pattern.seen, :], v[..., pattern.seen, :]
        outputs.append(pattern.silenced(attend(q, k, v, pattern.keep, added)))
    return joined(outputs, dim=-2)


def attend_stack(job, query, key, value, attend):
    """Strips as batch rows of one call; the keys of neighbours overlap and are not copied."""
    seen, height = job.pattern.seen, (job.stop - job.first) // job.count
    outputs = []
    for b, (q, k, v) in enumerate(zip(query, key, value, strict=True)):
        q = q.unflatten(1, (job.count, height)).transpose(0, 1)  # (count, H, height, D)
        k, v = (
            x[:, seen.start :].unfold(1, seen.stop - seen.start, height)[:, : job.count]
            .mT.transpose(0, 1)
            for x in (k, v)
        )  # fmt: skip
        pattern = job.pattern.of_row(b)
        output = pattern.silenced(attend(q, k, v, pattern.keep, None))  # (count, H, height, Dv)
        outputs.append(output.transpose(0, 1).flatten(1, 2))
    return torch.stack(outputs)


class Pattern(NamedTuple):
    """Which pairs of a strip take part."""

    seen: slice  # of the keys in its runs: from the first to the last that anybody sees
    keep: torch.Tensor | None  # bool (1|B, 1|H, rows, seen keys); None = all pairs
    silent: torch.Tensor | None  # rows that see nothing, (1|B, 1|H, rows, 1); None = none

    def of_row(self, b):
        """What holds for one batch row."""
        tables = (x if x is None or len(x) == 1 else x[b : b + 1] for x in self[1:])
        return Pattern(self.seen, *tables)

    def silenced(self, output):
        """0 for rows that see nothing, and whatever comes back to them goes no further."""
        return output if self.silent is None else output.masked_fill(self.silent, 0.0)


def pattern_of(strip, mask, batch):
    """Ask the mask about a strip. Tiles are coarse: keys at both ends that nobody sees are cut."""
    width = sum(stop - first for first, stop in strip.runs)
    if strip.full or not width:
        return Pattern(slice(0, width), None, None)
    rows, keys = slice(strip.first, strip.stop), indices(strip.runs, mask.device)
    keep = mask.pairs(rows, keys, batch)
    keep = keep.expand(*keep.shape[:2], strip.stop - strip.first, width)
    pairs = keep.numpy()  # one thread: waking the others would take longer than looking
    seen = np.flatnonzero(pairs.reshape(-1, width).any(axis=0))
    seen = slice(int(seen[0]), int(seen[-1]) + 1) if len(seen) else slice(0, 0)
    if pairs[..., seen].all():
        return Pattern(seen, None, None)
    silent = ~pairs.any(axis=-1, keepdims=True)
    return Pattern(seen, keep[..., seen], torch.from_numpy(silent) if silent.any() else None)


class Job(NamedTuple):
    """One call: a strip, or a stack of `count` alike, each as far below as to the right."""

    first: int
    stop: int
    count: int
    runs: tuple
    pattern: Pattern

    @property
    def keys(self):
        """The runs of keys that are read."""
        seen, found, before = self.pattern.seen, [], 0
        for first, stop in self.runs:
            a = first + max(seen.start - before, 0)
            b = min(stop, first + seen.stop - before)
            before += stop - first
            if a < b:
                found.append((a, b))
        return found


def jobs(strips, mask, batch, most):
    """One job after the other, so that one mask at a time is written out.

    `most` is how many pairs may be stacked, 0 for no stacks.
    """
    relative = mask is None or not getattr(mask.mask, "reads_absolute_positions", True)
    job = pattern = shape = None
    for strip in strips:
        alike = relative and strip.shape == shape
        pattern, shape = pattern if alike else pattern_of(strip, mask, batch), strip.shape
        new = Job(strip.first, strip.stop, 1, strip.runs, pattern)
        if job and job.pattern.keep is None and pattern.keep is None and job.keys == new.keys:
            job = job._replace(stop=strip.stop)
        elif job and alike and pattern.keep is not None and len(strip.runs) == 1 and (
            (job.count + 1) * strip.pairs <= most
        ):  # fmt: skip
            runs = ((job.runs[0][0], strip.runs[0][1]),)
            job = job._replace(stop=strip.stop, count=job.count + 1, runs=runs)
        else:
            if job:
                yield job
            job = new
    yield job


def indices(runs, device):
    ranges = [torch.arange(first, stop, device=device) for first, stop in runs]
    return joined(ranges, dim=0)


def joined(tensors, dim):
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=dim)


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
        return joined([piece for first, stop in runs for piece in self.run(first, stop)], dim=-2)

    def run(self, first, stop):
        if self.pieces is None:
            return [self.x[..., first:stop, :]]
        return self.pieces[self.index[first] : self.index[stop]]
