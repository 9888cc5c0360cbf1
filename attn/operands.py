"""One call's operands, checked and brought to the one form that the formulas are written in.

Whatever the rank and the precision of what came in, `prepare` hands on four axes (B, H, L, D), the
working dtype, one boolean array of pairs that take part, and keys and values whose unseen slots are
emptied.
"""

import math
from typing import NamedTuple

import numpy as np

from attn import arguments
from attn.masks import Mask
from attn.masks.layout import allowed_pairs


class Call(NamedTuple):
    """The operands of one call after the checks: 4-D, working dtype, unseen slots emptied."""

    size: arguments.Sizes
    query: np.ndarray  # (B, H, L, D)
    key: np.ndarray  # (B, Hkv, S, D)
    value: np.ndarray | None  # (B, Hkv, S, Dv)
    keep: np.ndarray | None  # bool, (1|B, 1|H, 1|L, 1|S)
    bias: np.ndarray | None  # (1|B, 1|H, 1|L, 1|S)
    scale: float
    softcap: float | None
    sink: np.ndarray | None  # (H,)


def check_call(query, key, value, mask, **options):
    """Refuse a bad call in the words that the whole family shares; hand on its sizes."""
    operands = {"query": query, "key": key, "value": value}
    given = {name: x for name, x in operands.items() if x is not arguments.NO_VALUE}
    arguments.arrays(np.ndarray, **given)
    size = arguments.sizes(**{f"{name}_shape": x.shape for name, x in given.items()})
    arguments.options(size, mask, **options, read_values=True, kind=np.ndarray)
    return size


def prepare(query, key, value, mask, *, bias, scale, softcap, sink, q_offset):
    """Check a call and bring its operands to the one form that the formulas are written in."""
    options = dict(bias=bias, scale=scale, softcap=softcap, sink=sink, q_offset=q_offset)
    size = check_call(query, key, value, mask, **options)
    wide = working_dtype(query.dtype)
    bias = None if bias is None else narrowed(four_axes(bias, size), wide)
    keep = kept_pairs(mask, bias, q_offset, size)

    def slots(x, heads, seen):
        x = np.asarray(x).reshape(size.B, heads, *x.shape[-2:])
        return empty_unseen(x, seen).astype(wide, copy=False)

    seeing, seen = (None, None) if keep is None else (keep.any(axis=-1), seen_keys(keep, size))
    return Call(
        size,
        slots(query, size.H, seeing),
        slots(key, size.Hkv, seen),
        None if value is arguments.NO_VALUE else slots(value, size.Hkv, seen),
        keep,
        bias,
        default_scale(size.D) if scale is None else float(scale),
        None if softcap is None else float(softcap),
        None if sink is None else narrowed(sink, wide),
    )


def default_scale(D):
    """1/√D; with D = 0 every dot product is an empty sum and any scale will do."""
    return 1 / math.sqrt(D) if D else 1.0


def working_dtype(dtype):
    """Half precision accumulates in float32; the wide dtypes stay themselves."""
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def narrowed(x, dtype):
    """A bias or sink in the working dtype: numbers beyond its range saturate, -inf stays -inf."""
    if x.dtype.itemsize > dtype.itemsize:
        limit = np.finfo(dtype).max / 4  # so that no difference of two scores overflows
        x = np.where(np.isneginf(x), x, np.clip(x, -limit, limit))
    return np.asarray(x).astype(dtype, copy=False)


def four_axes(array, size):
    """An array mask or bias as (1|B, 1|H, 1|L, 1|S); several batch axes are flattened in order."""
    array = np.asarray(array)[(None,) * (4 - array.ndim)]
    rows, rest = math.prod(array.shape[:-3]), array.shape[-3:]
    if rows not in (1, size.B):  # has some of the batch axes of query only
        rows, array = size.B, np.broadcast_to(array, (*size.batch, *rest))
    return array.reshape(rows, *rest)


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


def seen_keys(keep, size):
    """The key slots that at least one query may see, (1|B, 1|Hkv, 1|S)."""
    seen = keep.any(axis=-2)  # (1|B, 1|H, 1|S)
    if seen.shape[1] > 1:  # one key head serves G query heads
        seen = seen.reshape(len(seen), size.Hkv, size.H // size.Hkv, seen.shape[-1]).any(axis=2)
    return seen


def empty_unseen(slots, seen):
    """Write 0 into slots that take no part, which may hold anything: 0 times NaN would be NaN."""
    if seen is None or seen.all():
        return slots
    return np.where(seen[..., None], slots, slots.dtype.type(0))
