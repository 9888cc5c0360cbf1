"""A mask laid over L queries and S keys: as a full boolean array, or as a map of tiles.

Whatever is asked about some queries and some keys (all of them, one tile, every tile at once) is
asked of one object, Laid. Rules live in attn.masks.rules.
"""

import math
from typing import NamedTuple

import numpy as np

from attn import arguments
from attn.arrays import to_numpy
from attn.masks.rule import Mask, convert_arrays
from attn.masks.spans import Span, Truth, as_truth

EMPTY, SOME, FULL = 0, 1, 2  # what block_map says of a tile
ALL = slice(None)


def dense_mask(mask, q_len, k_len, *, q_offset=None, batch=1, heads=1):
    """Write a rule out as a boolean array.

    Parameters
    ----------
    mask : Mask or ndarray of bool
        A rule; an array is checked and broadcast.
    q_len, k_len : int
        Number of queries L and keys S.
    q_offset : int or ndarray of int, shape (B,), optional
        Number of keys before query 0. A rule that compares positions needs it when L != S.
    batch, heads : int
        B and H.

    Returns
    -------
    ndarray of bool, shape (1|B, 1|H, L, S)
        True where query and key may attend; an axis that the rule ignores has length 1.

    Raises
    ------
    ValueError
        The rule cannot be laid over these sizes: alignment not said, lengths or ids do not fit.
    TypeError
        `mask` is a plain function, or an array that is not boolean.

    Source: the layout of masks in FlexAttention, Dong et al. (2024), section 3.

    Examples
    --------
    >>> from attn import Causal
    >>> dense_mask(Causal(), 2, 4, q_offset=2)[0, 0].astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """
    sizes = dict(q_offset=q_offset, batch=batch, heads=heads)
    allowed = lay(mask, check_mask(mask, q_len, k_len, **sizes, kind=np.ndarray), q_offset).pairs()
    return np.array(np.broadcast_to(allowed, (*allowed.shape[:-2], q_len, k_len)))


def block_map(mask, q_len, k_len, *, block_size, q_offset=None, batch=1, heads=1):
    """Say for each tile of the score matrix whether no, some or all of its pairs may attend.

    A rule is asked about spans of positions, never about single pairs, so the cost is that of the
    map and not of the matrix. The answer is exact for rules on positions, and for others on the
    safe side: a tile called 0 is empty and one called 2 is full.

    Parameters
    ----------
    mask : Mask or ndarray of bool
    q_len, k_len : int
        Number of queries L and keys S.
    block_size : int or (int, int)
        Tile edge in positions, or (query edge, key edge); the last tile may be smaller.
    q_offset, batch, heads
        As in dense_mask.

    Returns
    -------
    ndarray of int8, shape (1|B, 1|H, ceil(L / edge), ceil(S / edge))
        0 none (EMPTY), 1 some (SOME), 2 all (FULL).

    Raises
    ------
    ValueError, TypeError
        As dense_mask; ValueError also for a block size below 1.

    Source: FlexAttention's BlockMask, Dong et al. (2024), section 4.

    Examples
    --------
    >>> from attn import Causal
    >>> block_map(Causal(), 6, 6, block_size=2)[0, 0]
    array([[1, 0, 0],
           [2, 1, 0],
           [2, 2, 1]], dtype=int8)
    """
    edges = block_size if isinstance(block_size, tuple) else (block_size, block_size)
    if len(edges) != 2:
        raise ValueError(f"block_size: expected an int or (query edge, key edge), got {block_size}")
    for edge in edges:
        arguments.integer("block_size", edge, low=1)
    size = check_mask(mask, q_len, k_len, q_offset=q_offset, batch=batch, heads=heads)
    return lay(mask, size, q_offset).tiles(edges)


def check_mask(mask, q_len, k_len, *, q_offset, batch, heads, read_values=True, kind=None):
    """The checks of dense_mask and block_map, which know sizes but no query and no key."""
    for name, count in {"q_len": q_len, "k_len": k_len, "batch": batch, "heads": heads}.items():
        arguments.integer(name, count, low=0)
    if mask is None:
        raise TypeError("mask: expected a rule or a boolean array, got None")
    size = arguments.Sizes((batch,), batch, heads, heads, q_len, k_len, 0, 0)
    arguments.mask(size, mask, q_offset=q_offset, read_values=read_values, kind=kind)
    return size


def lay(mask, size, q_offset):
    """A mask that has passed the checks, over the queries and keys of a call; None stays None."""
    if mask is None:
        return None
    start = to_numpy(0 if q_offset is None else q_offset).astype(np.int64).reshape(-1, 1, 1, 1)
    if isinstance(mask, Mask):
        return Laid(convert_arrays(mask, to_numpy), size, start)
    return Laid(four_axes(to_numpy(mask), size), size, start)


class Laid(NamedTuple):
    """A mask laid over queries and keys: answers for any of them, without writing out the rest."""

    mask: Mask | np.ndarray  # with arrays of NumPy inside; an array has four axes
    size: arguments.Sizes
    start: np.ndarray  # the position of query 0, (1|B, 1, 1, 1)

    def pairs(self, b=ALL, h=ALL, rows=ALL, keys=ALL):
        """Which pairs of these slices may attend; an axis that the mask ignores has length 1."""
        if not isinstance(self.mask, Mask):
            return cut(self.mask, b, h, rows, keys)
        size = self.size
        axes = zip((size.B, size.H, size.L, size.S), (b, h, rows, keys), strict=True)
        chosen = [range(n)[which] for n, which in axes]
        at_b, at_h, at_q, at_k = (np.arange(r.start, r.stop) for r in chosen)
        answer = self.ask(
            at_b[:, None, None, None], at_h[None, :, None, None],
            cut(self.start, b) + at_q[:, None], at_k[None, None, None],
        )  # fmt: skip
        return as_boolean(self.mask, answer, tuple(map(len, chosen)))

    def ask(self, b, h, q, k):
        """The rule's answer; an error on the way to it names the rule."""
        try:
            return self.mask(b, h, q, k)
        except IndexError as error:
            raise IndexError(
                f"mask {self.mask!r}: expected an answer for each of L = {self.size.L} queries and "
                f"S = {self.size.S} keys, but it looks something up beyond the end of its table"
            ) from error

    def tiles(self, edges):
        """EMPTY, SOME or FULL for each tile, int8 (1|B, 1|H, ceil(L / edge), ceil(S / edge))."""
        size = self.size
        rows = np.arange(0, size.L, edges[0])
        keys = np.arange(0, size.S, edges[1])[None, None, None]
        if isinstance(self.mask, Mask):
            self.pairs(rows=slice(1), keys=slice(1))  # a wrong answer is heard; spans hide it
            low = self.start + rows[:, None]
            last = self.start + np.minimum(rows + (edges[0] - 1), size.L - 1)[:, None]
            q, k = Span(low, last), Span(keys, np.minimum(keys + (edges[1] - 1), size.S - 1))
            b, h = np.arange(size.B)[:, None, None, None], np.arange(size.H)[None, :, None, None]
            truth = rule_on_spans(self.mask, b, h, q, k)
        else:
            truth = array_on_spans(self.mask, size, rows, keys.ravel())
        kinds = np.int8(SOME) * truth.any + (truth.any & truth.all)
        kinds = kinds[(None,) * (4 - kinds.ndim)]
        return np.array(np.broadcast_to(kinds, (*kinds.shape[:-2], rows.size, keys.size)), np.int8)


def rule_on_spans(mask, b, h, q, k):
    """Ask a rule about spans; a rule that spans cannot answer may hide pairs anywhere."""
    try:
        return as_truth(convert_arrays(mask, to_numpy)(b, h, q, k))
    except (TypeError, ValueError, IndexError, AttributeError):
        # A rule of the user's own does what spans cannot: take an absolute value, look up a table.
        everywhere = np.ones((1, 1, 1, 1), bool)
        return Truth(everywhere, ~everywhere)


def array_on_spans(mask, size, rows, keys):
    """Whether any and whether all pairs of the tiles that begin at these rows and keys attend."""
    full = np.broadcast_to(mask, (*mask.shape[:2], size.L, size.S))

    def reduce(op):
        return op.reduceat(op.reduceat(full, rows, axis=-2), keys, axis=-1)

    return Truth(reduce(np.logical_or), reduce(np.logical_and))


def as_boolean(mask, answer, shape):
    """A rule's answer with four axes, refused unless it is boolean and fits what was asked."""
    if getattr(answer, "dtype", None) is not np.dtype(bool):
        got = getattr(answer, "dtype", type(answer).__name__)
        raise TypeError(f"mask {mask!r}: expected a boolean array as its answer, got {got}")
    answer = np.asarray(answer)
    four = (1,) * (4 - answer.ndim) + answer.shape
    if len(four) > 4 or any(have not in (1, n) for have, n in zip(four, shape, strict=True)):
        raise ValueError(
            f"mask {mask!r}: expected an answer that broadcasts to the pairs it is asked about, "
            f"(B, H, L, S) = {shape}, got shape {answer.shape}"
        )
    return answer.reshape(four)


def cut(array, *slices):
    """array[slices], but whole along axes of length 1, which broadcast."""
    return array[tuple(ALL if n == 1 else s for s, n in zip(slices, array.shape, strict=False))]


def four_axes(array, size):
    """An array mask or bias as (1|B, 1|H, 1|L, 1|S); several batch axes are flattened in order."""
    array = np.asarray(array)[(None,) * (4 - array.ndim)]
    rows, rest = math.prod(array.shape[:-3]), array.shape[-3:]
    if rows not in (1, size.B):  # has some of the batch axes of query only
        rows, array = size.B, np.broadcast_to(array, (*size.batch, *rest))
    return array.reshape(rows, *rest)
