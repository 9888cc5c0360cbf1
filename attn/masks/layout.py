"""A mask laid over L queries and S keys: as a full boolean array, or as a map of tiles.

Rules live in attn.masks, which hands these functions on.
"""

import numpy as np

from attn import arguments
from attn.masks.rule import Mask, convert_arrays
from attn.masks.spans import Span, Truth, as_truth


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
    allowed = allowed_pairs(mask, q_len, k_len, q_offset=q_offset, batch=batch, heads=heads)
    return np.array(np.broadcast_to(allowed, (*allowed.shape[:-2], q_len, k_len)))


def allowed_pairs(mask, q_len, k_len, *, q_offset=None, batch=1, heads=1):
    """dense_mask without the last broadcast: every axis that the mask ignores has length 1."""
    check_mask(mask, q_len, k_len, q_offset=q_offset, batch=batch, heads=heads, kind=np.ndarray)
    if not isinstance(mask, Mask):
        return np.asarray(mask)[(None,) * (4 - np.ndim(mask))]
    rule = convert_arrays(mask, as_numpy)
    return as_boolean(rule, rule(*positions(q_len, k_len, q_offset, batch, heads)))


def as_numpy(array):
    """A tensor inside a rule as an array: rules are shared by both libraries."""
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def check_mask(
    mask, q_len, k_len, *, q_offset, batch, heads, read_values=True, kind=None
):  # fmt: skip
    """The checks of dense_mask and block_map, which know sizes but no query and no key."""
    size = arguments.Sizes((batch,), batch, heads, heads, q_len, k_len, 0, 0)
    for name, count in {"q_len": q_len, "k_len": k_len, "batch": batch, "heads": heads}.items():
        arguments.integer(name, count, low=0)
    if mask is None:
        raise TypeError("mask: expected a rule or a boolean array, got None")
    arguments.options(
        size, mask, bias=None, scale=None, softcap=None, sink=None, q_offset=q_offset,
        read_values=read_values, kind=kind,
    )  # fmt: skip


def positions(q_len, k_len, q_offset, batch, heads):
    """What a rule is called with: b (B,1,1,1), h (1,H,1,1), q (1|B,1,L,1) and k (1,1,1,S)."""
    start = np.asarray(0 if q_offset is None else q_offset, np.int64).reshape(-1, 1, 1, 1)
    return (
        np.arange(batch)[:, None, None, None],
        np.arange(heads)[None, :, None, None],
        start + np.arange(q_len)[:, None],
        np.arange(k_len)[None, None, None],
    )


def as_boolean(mask, answer):
    """A rule's answer with four axes, refused unless it is boolean."""
    if getattr(answer, "dtype", None) is not np.dtype(bool):
        got = getattr(answer, "dtype", type(answer).__name__)
        raise TypeError(f"mask {mask!r}: expected a boolean array as its answer, got {got}")
    return answer[(None,) * (4 - answer.ndim)]


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
        0 none, 1 some, 2 all.

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
    check_mask(mask, q_len, k_len, q_offset=q_offset, batch=batch, heads=heads)
    b, h, q, k = positions(q_len, k_len, q_offset, batch, heads)
    q_span = Span(
        q[:, :, :: edges[0]], np.minimum(q[:, :, :: edges[0]] + edges[0] - 1, q[:, :, -1:])
    )
    k_span = Span(k[..., :: edges[1]], np.minimum(k[..., :: edges[1]] + edges[1] - 1, k_len - 1))
    if isinstance(mask, Mask):
        truth = rule_on_spans(mask, b, h, q_span, k_span)
    else:
        truth = _array_on_spans(as_numpy(mask), q_len, k_len, edges)
    tiles = (*np.shape(truth.any)[:-2], q_span.low.shape[2], k_span.low.shape[3])
    return np.array(
        np.broadcast_to(np.int8(1) * truth.any + (truth.all & truth.any), tiles), np.int8
    )


def rule_on_spans(mask, b, h, q, k):
    """Ask a rule about spans; a rule that spans cannot answer may hide pairs anywhere."""
    try:
        return as_truth(convert_arrays(mask, as_numpy)(b, h, q, k))
    except (TypeError, ValueError, IndexError, AttributeError):
        # A rule of the user's own does what spans cannot: take an absolute value, look up a table.
        everywhere = np.ones((1, 1, 1, 1), bool)
        return Truth(everywhere, ~everywhere)


def _array_on_spans(mask, q_len, k_len, edges):
    full = np.broadcast_to(mask, (*(1,) * (4 - np.ndim(mask)), *np.shape(mask)[:-2], q_len, k_len))
    ends = np.arange(0, q_len, edges[0]), np.arange(0, k_len, edges[1])

    def reduce(op):
        return op.reduceat(op.reduceat(full, ends[0], axis=-2), ends[1], axis=-1)

    return Truth(reduce(np.logical_or), reduce(np.logical_and))
