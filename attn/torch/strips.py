"""Attention strip by strip: some rows of queries with just the keys that they may see.

This is how a mask saves time on a CPU: torch's kernel is called on small dense problems and never
sees the tiles that a rule leaves empty. Imports attn.checks, attn.masks, attn.torch.masks and
attn.torch.operands.
"""

import itertools
from typing import NamedTuple

import numpy as np
import torch

from attn import checks
from attn.masks import Mask
from attn.torch.masks import as_boolean, as_tensor, on_device, tile_map
from attn.torch.operands import empty_unseen

ROWS, KEYS = 128, 32  # tile edges: rows that share one call, and the grain to which keys are cut
BRIDGED = 0.75  # a range of which this share is visible is read whole, its gaps masked
PAIRS_AT_ONCE = 2**24  # as many pairs of a rule are written out at a time


class Operands(NamedTuple):
    """The operands of one checked call, 4-D; the mask is a rule, or bool with four axes."""

    size: checks.Sizes
    query: torch.Tensor  # (B, H, L, D)
    key: torch.Tensor  # (B, Hkv, S, D)
    value: torch.Tensor  # (B, Hkv, S, Dv)
    mask: Mask | torch.Tensor | None
    q_offset: object
    bias: torch.Tensor | None  # (1|B, 1|H, 1|L, 1|S)
    scale: float
    softcap: float | None
    sink: torch.Tensor | None  # (H,)


class Strip(NamedTuple):
    """Rows of queries, the runs of keys that they read, and whether every pair may attend."""

    first: int
    stop: int
    runs: tuple  # of (first, stop)
    full: bool


def plan_strips(call):
    """The strips of each batch row, or one list for all rows where the mask does not tell them."""
    tiles = _tiles(call, (ROWS, KEYS)).numpy()
    some, full = tiles.max(axis=1) > 0, tiles.min(axis=1) == 2  # all heads share the strips
    return [_strips(*row, call.size) for row in zip(some, full, strict=True)]


def _tiles(call, edges):
    size, device = call.size, call.query.device
    if call.mask is None:
        return torch.full((1, 1, -(-size.L // edges[0]), -(-size.S // edges[1])), 2)
    return tile_map(call.mask, size.L, size.S, call.q_offset, size.B, size.H, edges, device)


def _strips(some, full, size):
    strips = []
    for i, first in enumerate(range(0, size.L, ROWS)):
        stop, runs = min(first + ROWS, size.L), _runs(some[i], size.S)
        complete = bool(runs and full[i][some[i]].all())
        if sum(b - a for a, b in runs) >= BRIDGED * (runs[-1][1] - runs[0][0] if runs else 1):
            complete = complete and len(runs) == 1
            runs = ((runs[0][0], runs[-1][1]),)
        if strips and complete and strips[-1].full and strips[-1].runs == runs:
            strips[-1] = strips[-1]._replace(stop=stop)
        else:
            strips.append(Strip(first, stop, runs, complete))
    return strips


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
    for strip in strips:
        rows = ((strip.first, strip.stop),)
        q = queries.take(rows)
        if not strip.runs:
            outputs.append(q.new_zeros(*q.shape[:-1], value.shape[-1]))
            continue
        keep = None if strip.full else pairs(strip, batch)
        added = bias if biases is None else biases.take(rows)
        if added is not None:
            added = _cut(added, None, _indices(strip.runs))
            added = added.expand(-1, -1, strip.stop - strip.first, -1)
        outputs.append(attend(q, keys.take(strip.runs), values.take(strip.runs), keep, added))
    return torch.cat(outputs, dim=-2)


def _pairs_of_strips(call):
    """A function (strip, batch) -> bool: the rule on a strip. A rule that knows nothing but q - k
    says the same of neighbours that differ only in where they lie, and is asked once."""
    pairs = pairs_of(call)
    if getattr(call.mask, "reads_absolute_positions", True):
        return lambda strip, batch: pairs(*_positions(strip), batch)
    last = (None, None)

    def once(strip, batch):
        nonlocal last
        shape = (batch.start, strip.stop - strip.first)
        shape += tuple((a - strip.first, b - strip.first) for a, b in strip.runs)
        if shape != last[0]:
            last = (shape, pairs(*_positions(strip), batch))
        return last[1]

    return once


def _positions(strip):
    return torch.arange(strip.first, strip.stop), _indices(strip.runs)


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


def pairs_of(call):
    """A function (rows, keys, batch) -> bool (1|B, 1|H, rows, keys): what the mask allows."""
    size, device = call.size, call.query.device
    if not isinstance(call.mask, Mask):
        return lambda rows, keys, batch: _cut(call.mask[_rows(call.mask, batch)], rows, keys)
    rule = on_device(call.mask, device)
    start = as_tensor(0 if call.q_offset is None else call.q_offset, device).to(torch.int64)
    q_start = start.reshape(-1, 1, 1, 1)
    b = torch.arange(size.B, device=device)[:, None, None, None]
    h = torch.arange(size.H, device=device)[None, :, None, None]

    def pairs(rows, keys, batch):
        q = q_start[_rows(q_start, batch)] + rows[:, None]
        keep = as_boolean(call.mask, rule(b[batch], h, q, keys[None, None, None]))
        return keep.expand(*keep.shape[:-2], len(rows), len(keys))

    return pairs


def _rows(table, batch):
    return batch if len(table) > 1 else slice(None)


def _cut(table, rows, keys):
    """Some rows and keys of a table (1|B, 1|H, 1|L, 1|S)."""
    if rows is not None and table.shape[2] > 1:
        table = table[:, :, rows]
    return table[..., keys] if table.shape[3] > 1 else table


def empty_unseen_slots(call):
    """Write 0 into queries that see nothing and keys that nobody sees; they may hold NaN."""
    size = call.size
    seeing, seen = taking_part(call)
    if seen.shape[1] > 1:  # one key head serves G query heads
        seen = seen.unflatten(1, (size.Hkv, -1)).any(dim=2)
    return call._replace(
        query=empty_unseen(call.query, seeing),
        key=empty_unseen(call.key, seen),
        value=empty_unseen(call.value, seen),
    )


def taking_part(call):
    """Which queries (1|B, 1|H, 1|L) and which keys (1|B, 1|H, 1|S) belong to any pair at all."""
    finite = None if call.bias is None else ~torch.isneginf(call.bias)
    if not isinstance(call.mask, Mask):
        keep = call.mask if finite is None else finite
        keep = keep if finite is None or call.mask is None else keep & call.mask
        return keep.any(dim=-1), keep.any(dim=-2)
    tiles = _tiles(call, (ROWS, ROWS)).numpy(force=True)
    tiles = tiles if finite is None else np.minimum(tiles, 1)
    pairs, everyone = pairs_of(call), slice(None)

    def allowed(rows, keys):
        keep = pairs(rows, keys, everyone)
        return keep if finite is None else keep & _cut(finite, rows, keys)

    def allowed_to(keys, rows):
        return allowed(rows, keys)

    size, device = call.size, call.query.device
    return (
        _reached(tiles.swapaxes(-1, -2), size.L, size.S, allowed, -1, device),
        _reached(tiles, size.S, size.L, allowed_to, -2, device),
    )


def _reached(tiles, own, others, allowed, dim, device):
    """Whoever lies in a full tile is reached; only the rest are asked pair by pair."""
    sure = np.repeat((tiles == 2).any(axis=-2), ROWS, axis=-1)[..., :own]
    rest = torch.as_tensor(np.flatnonzero(~sure.all(axis=(0, 1))), device=device)
    reached, everyone = torch.as_tensor(sure, device=device), torch.arange(others, device=device)
    for asked in rest.split(max(1, PAIRS_AT_ONCE // max(others, 1))):
        answer = allowed(asked, everyone).any(dim=dim)
        rows = torch.broadcast_shapes(reached.shape[:2], answer.shape[:2])
        reached = reached.expand(*rows, own).clone()
        reached[..., asked] |= answer
    return reached
