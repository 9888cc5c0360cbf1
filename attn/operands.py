"""One call's operands, checked and brought to the one form that the formulas are written in.

Whatever the rank and the precision of what came in, `prepare` hands on four axes (B, H, L, D), the
working dtype, one boolean array of pairs that take part, and keys and values whose unseen slots are
emptied. Imports attn.checks, attn.layout and attn.masks.
"""

import math
from typing import NamedTuple

import numpy as np

from attn import checks
from attn.layout import allowed_pairs
from attn.masks import Mask


class Call(NamedTuple):
    """The operands of one call after the checks: 4-D, in the working dtype, unseen slots emptied."""

    size: checks.Sizes
    query: np.ndarray  # (B, H, L, D)
    key: np.ndarray  # (B, Hkv, S, D)
    value: np.ndarray | None  # (B, Hkv, S, Dv)
    keep: np.ndarray | None  # bool, (1|B, 1|H, 1|L, 1|S)
    bias: np.ndarray | None  # (1|B, 1|H, 1|L, 1|S)
    scale: float
    softcap: float | None
    sink: np.ndarray | None  # (H,)


def check_call(query, key, value, mask, **options):
    """Refuse a bad call in the words that every function of the family shares; hand on its sizes."""
    operands = {"query": query, "key": key, "value": value}
    checks.arrays(np.ndarray, **{name: x for name, x in operands.items() if x is not None})
    size = checks.sizes(query.shape, key.shape, None if value is None else value.shape)
    checks.options(size, mask, **options, read_values=True)
    return size


def prepare(query, key, value, mask, *, bias, scale, softcap, sink, q_offset):
    """Check a call and bring its operands to the one form that the formulas below are written in."""
    options = dict(bias=bias, scale=scale, softcap=softcap, sink=sink, q_offset=q_offset)
    size = check_call(query, key, value, mask, **options)
    wide = working_dtype(query.dtype)
    bias = None if bias is None else four_axes(bias, size).astype(wide, copy=False)
    keep = kept_pairs(mask, bias, q_offset, size)
    key, value = (
        None
        if x is None
        else empty_unseen(x.reshape(size.B, size.Hkv, size.S, x.shape[-1]), keep, size)
        for x in (key, value)
    )
    return Call(
        size,
        query.reshape(size.B, size.H, size.L, size.D).astype(wide, copy=False),
        key.astype(wide, copy=False),
        None if value is None else value.astype(wide, copy=False),
        keep,
        bias,
        default_scale(size.D) if scale is None else scale,
        softcap,
        None if sink is None else sink.astype(wide, copy=False),
    )


def default_scale(D):
    """1/√D; with D = 0 every dot product is an empty sum and any scale will do."""
    return 1 / math.sqrt(D) if D else 1.0


def working_dtype(dtype):
    """Half precision accumulates in float32; the wide dtypes stay themselves."""
    return np.float32 if dtype.itemsize < 4 else dtype


def four_axes(array, size):
    """An array mask or bias as (1|B, 1|H, 1|L, 1|S); several batch axes are flattened in order."""
    array = array[(None,) * (4 - array.ndim)]
    if math.prod(array.shape[:-3]) == 1:
        return array.reshape(1, *array.shape[-3:])
    array = np.broadcast_to(array, (*size.batch, *array.shape[-3:]))
    return array.reshape(size.B, *array.shape[-3:])


def kept_pairs(mask, bias, q_offset, size):
    """The pairs that take part: allowed by the mask and not removed by a bias of -inf."""
    keep = None
    if isinstance(mask, Mask):
        keep = allowed_pairs(mask, size.L, size.S, q_offset=q_offset, batch=size.B, heads=size.H)
    elif mask is not None:
        keep = four_axes(mask, size)
    if bias is None:
        return keep
    finite = ~np.isneginf(bias)
    return finite if keep is None else keep & finite


def empty_unseen(slots, keep, size):
    """Write 0 into the keys or values that no query may see, which may hold anything, even NaN."""
    if keep is None:
        return slots
    seen = keep.any(axis=-2)  # (1|B, 1|H, 1|S)
    if seen.shape[1] > 1:
        seen = seen.reshape(len(seen), size.Hkv, size.H // size.Hkv, seen.shape[-1]).any(axis=2)
    return slots if seen.all() else np.where(seen[..., None], slots, slots.dtype.type(0))
