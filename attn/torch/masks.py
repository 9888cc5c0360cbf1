"""A mask laid over L queries and S keys, on tensors: all pairs, some of them, or tiles.

Rules are shared with NumPy: they use operators only, so the same lines answer for tensors. Whatever
is asked about some queries and some keys is asked of one object, Laid.
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from attn import arguments
from attn.arrays import to_numpy
from attn.masks import Mask
from attn.masks.areas import areas_of_map, find_areas
from attn.masks.layout import EMPTY, FULL, SOME, block_map, check_mask, rule_on_spans
from attn.masks.rule import convert_arrays
from attn.masks.spans import Span

ALL = slice(None)


def dense_mask(mask, q_len, k_len, *, q_offset=None, batch=1, heads=1, device=None):
    """Write a rule out as a boolean tensor.

    Parameters
    ----------
    mask : Mask or Tensor of bool
        A rule; a tensor is checked and broadcast.
    q_len, k_len : int
        Number of queries L and keys S.
    q_offset : int or Tensor of int, shape (B,), optional
        Number of keys before query 0. A rule that compares positions needs it when L != S.
    batch, heads : int
        B and H.
    device : torch.device, optional
        Where the mask is made.

    Returns
    -------
    Tensor of bool, shape (1|B, 1|H, L, S)
        True where query and key may attend; an axis that the rule ignores has length 1.

    Raises
    ------
    ValueError, TypeError
        As attn.dense_mask.

    Source: the layout of masks in FlexAttention, Dong et al. (2024), section 3.

    Examples
    --------
    >>> from attn.torch import Causal
    >>> dense_mask(Causal(), 2, 4, q_offset=2)[0, 0].int()
    tensor([[1, 1, 1, 0],
            [1, 1, 1, 1]], dtype=torch.int32)
    """
    sizes = dict(q_offset=q_offset, batch=batch, heads=heads)
    size = check_mask(
        mask, q_len, k_len, **sizes, read_values=may_read_values(device), kind=torch.Tensor
    )
    laid = lay(mask, size, q_offset, device)
    allowed = laid.pairs()
    return allowed.expand(*allowed.shape[:-2], q_len, k_len).clone()


def lay(mask, size, q_offset, device):
    """A mask that has passed the checks, over the queries and keys of a call; None stays None."""
    if mask is None:
        return None
    if not isinstance(mask, Mask):
        return Laid(four_axes(mask.to(device), size), None, size, 0, device)
    start = 0 if q_offset is None else q_offset
    if isinstance(start, np.integer):
        start = int(start)
    if not isinstance(start, int):  # an int stays one: a compiled graph then serves every offset
        start = as_tensor(start, device).to(torch.int64).reshape(-1, 1, 1, 1)
    rule = convert_arrays(mask, lambda array: as_tensor(array, device))
    return Laid(mask, rule, size, start, device)


class Laid(NamedTuple):
    """A mask laid over queries and keys: answers for any of them, without writing out the rest."""

    mask: Mask | torch.Tensor  # a rule as it was given, or bool (1|B, 1|H, 1|L, 1|S)
    rule: Mask | None  # the rule with its arrays on the device
    size: arguments.Sizes
    start: int | torch.Tensor  # the position of query 0, or of each batch row's, (B, 1, 1, 1)
    device: torch.device | None

    def pairs(self, rows=ALL, keys=ALL, batch=ALL):
        """Which pairs may attend, bool (1|B, 1|H, rows|1, keys|1); an ignored axis has length 1.

        `rows` and `keys` are slices, or tensors of numbers in any order; `batch` is a slice.
        """
        if self.rule is None:
            return part(self.mask, rows, keys, batch)
        size, start = self.size, self.start
        b, h, q, k = (
            x.reshape([-1 if axis == own else 1 for axis in range(4)])
            for own, x in enumerate((
                numbers(batch, size.B, self.device), numbers(ALL, size.H, self.device),
                numbers(rows, size.L, self.device), numbers(keys, size.S, self.device),
            ))
        )  # fmt: skip
        if not isinstance(start, int) and len(start) > 1:
            start = start[batch]
        try:
            answer = self.rule(b, h, start + q, k)
        except IndexError as error:
            raise IndexError(
                f"mask {self.mask!r}: expected an answer for each of L = {size.L} queries and S = "
                f"{size.S} keys, but it looks something up beyond the end of its table"
            ) from error
        return as_boolean(self.mask, answer, (b, h, q, k))

    def kinds(self, rows, keys):
        """EMPTY, SOME or FULL for spans of rows and keys on axes 2 and 3, on the host."""
        b, h = np.arange(self.size.B)[:, None, None, None], np.arange(self.size.H)[:, None, None]
        start = self.start if isinstance(self.start, int) else to_numpy(self.start)
        truth = rule_on_spans(self.mask, b, h, rows + start, keys)
        kinds = np.where(truth.any, np.where(truth.all, FULL, SOME), EMPTY).astype(np.int8)
        return np.broadcast_to(
            kinds, np.broadcast_shapes(kinds.shape, rows.low.shape, keys.low.shape)
        )

    def has_values(self):
        """Whether the host can look at it: inside torch.func a tensor may have no values."""
        pair = self.pairs(slice(0, 1), slice(0, 1))
        try:
            pair.numpy(force=True)
            if self.rule is not None:
                first = Span(*np.zeros((2, 1, 1, 1, 1), int))
                self.kinds(first, first)
        except RuntimeError:
            return False
        return True

    def areas(self, edges):
        """Where pairs may attend, as areas of tiles: the work grows with their border."""
        if self.rule is None:
            return areas_of_map(self.tiles(edges).numpy(force=True))
        self.pairs(slice(0, 1), slice(0, 1))  # spans hide an answer that is not boolean
        return find_areas(self.kinds, (self.size.L, self.size.S), edges)

    def tiles(self, edges):
        """EMPTY, SOME or FULL for every tile, int8 (1|B, 1|H, rows of tiles, tiles)."""
        size = self.size
        if self.rule is None:  # array masks never leave their device
            mask = self.mask.expand(*self.mask.shape[:-2], size.L, size.S)
            some, full = tiles_with(mask, edges), ~tiles_with(~mask, edges)
            return some.to(torch.int8) + (some & full)
        start = self.start if isinstance(self.start, int) else to_numpy(self.start).ravel()
        tiles = block_map(
            self.mask, size.L, size.S, block_size=edges, q_offset=start, batch=size.B, heads=size.H
        )
        return torch.as_tensor(tiles, device=self.device)


def tiles_with(chosen, edges):
    """Which tiles hold a chosen pair; what lies beyond the matrix is not chosen."""
    for dim, edge in ((-1, edges[1]), (-2, edges[0])):
        missing = -chosen.shape[dim] % edge
        padding = (0, missing) if dim == -1 else (0, 0, 0, missing)
        chosen = torch.nn.functional.pad(chosen, padding).unflatten(dim, (-1, edge))
        chosen = chosen.any(dim=dim)
    return chosen


def numbers(which, count, device):
    """0 … count − 1, those of a slice, or the numbers given."""
    if not isinstance(which, slice):
        return which
    first, stop = (0, count) if which == ALL else (which.start, which.stop)
    return torch.arange(first, stop, device=device)


def part(table, rows, keys, batch=ALL):
    """Some rows and keys of a table (1|B, 1|H, 1|L, 1|S), whole along axes of length 1."""
    table = table if len(table) == 1 else table[batch]
    table = table if table.shape[2] == 1 else table[:, :, rows]
    return table if table.shape[3] == 1 else table[..., keys]


def four_axes(x, size):
    """A mask or bias as (1|B, 1|H, 1|L, 1|S); several batch axes are flattened in order."""
    x = x[(None,) * (4 - x.ndim)]
    rows, rest = math.prod(x.shape[:-3]), x.shape[-3:]
    if rows not in (1, size.B):  # has some of the batch axes of query only
        rows, x = size.B, x.expand(*size.batch, *rest)
    return x.reshape(rows, *rest)


def as_boolean(mask, answer, asked):
    """A rule's answer with four axes, refused unless it is boolean and fits what was asked."""
    if getattr(answer, "dtype", None) is not torch.bool:
        got = getattr(answer, "dtype", type(answer).__name__)
        raise TypeError(f"mask {mask!r}: expected a boolean tensor as its answer, got {got}")
    four = answer[(None,) * (4 - answer.ndim)]
    shape = tuple(x.shape[axis] for axis, x in enumerate(asked))
    if four.ndim > 4 or any(have not in (1, n) for have, n in zip(four.shape, shape, strict=True)):
        raise ValueError(
            f"mask {mask!r}: expected an answer that broadcasts to the pairs it is asked about, "
            f"(B, H, L, S) = {shape}, got shape {tuple(answer.shape)}"
        )
    return four


def as_tensor(value, device):
    """Numbers as a tensor; an array is copied, for torch refuses negative strides."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return torch.as_tensor(np.array(value), device=device)


def may_read_values(device):
    """Values are looked at where that costs nothing: in eager code on the CPU."""
    on_cpu = torch.device(device or "cpu").type == "cpu"
    return on_cpu and not torch.compiler.is_compiling()
