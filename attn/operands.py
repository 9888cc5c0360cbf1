"""One call's operands, checked and brought to the one form that the formulas are written in.

Whatever the rank and the precision of what came in, `call` hands on four axes (B, H, L, D), and
`resolved` adds what a formula over the whole matrix needs: the working dtype, one boolean array of
the pairs that take part, and queries, keys and values whose slots without a partner are emptied.
"""

import math
from typing import NamedTuple

import numpy as np

from attn import arguments
from attn.arrays import dtype_name
from attn.masks.layout import Laid, four_axes, lay

# Overflow and NaN show in the result. A warning would also come from pairs that are removed.
without_warnings = np.errstate(over="ignore", invalid="ignore")


class Call(NamedTuple):
    """The operands of one call after the checks, as views with four axes."""

    size: arguments.Sizes
    query: np.ndarray  # (B, H, L, D)
    key: np.ndarray  # (B, Hkv, S, D)
    value: np.ndarray | None  # (B, Hkv, S, Dv)
    mask: Laid | None
    keep: np.ndarray | None  # bool, (1|B, 1|H, 1|L, 1|S); None before `resolved`, or all pairs
    bias: np.ndarray | None  # (1|B, 1|H, 1|L, 1|S)
    scale: float
    softcap: float | None
    sink: np.ndarray | None  # (H,)


def call(query, key, value, mask, *, bias, scale, softcap, sink, q_offset):
    """Refuse a bad call in the words that the whole family shares; else its operands as views."""
    operands = {"query": query, "key": key, "value": value}
    given = {name: x for name, x in operands.items() if x is not arguments.NO_VALUE}
    arguments.arrays(np.ndarray, **given)
    size = arguments.sizes(**{f"{name}_shape": x.shape for name, x in given.items()})
    arguments.options(
        size, mask, bias=bias, scale=scale, softcap=softcap, sink=sink, q_offset=q_offset,
        read_values=True, kind=np.ndarray,
    )  # fmt: skip

    scale = default_scale(size.D) if scale is None else scale
    scale, softcap = arguments.saturated(scale, softcap, dtype_name(query))

    def slots(x, heads):
        return np.asarray(x).reshape(size.B, heads, *x.shape[-2:])

    return Call(
        size,
        slots(query, size.H),
        slots(key, size.Hkv),
        None if value is arguments.NO_VALUE else slots(value, size.Hkv),
        lay(mask, size, q_offset),
        None,
        None if bias is None else four_axes(bias, size),
        scale,
        softcap,
        None if sink is None else narrowed(sink, working_dtype(query.dtype)),
    )


def resolved(call):
    """The same call in the working dtype, with its pairs written out and unseen slots emptied."""
    wide = working_dtype(call.query.dtype)
    bias = None if call.bias is None else narrowed(call.bias, wide)
    keep = kept_pairs(None if call.mask is None else call.mask.pairs(), bias)
    seeing, seen = (None, None) if keep is None else (keep.any(axis=-1), seen_keys(keep, call.size))

    def emptied(slots, which):
        return None if slots is None else empty_unseen(slots, which).astype(wide, copy=False)

    return call._replace(
        query=emptied(call.query, seeing), key=emptied(call.key, seen),
        value=emptied(call.value, seen), keep=keep, bias=bias,
    )  # fmt: skip


def prepare(*operands, **options):
    """A call with all that the formulas over the whole matrix of scores need."""
    return resolved(call(*operands, **options))


def default_scale(D):
    """1/√D; with D = 0 every dot product is an empty sum and any scale will do."""
    return 1 / math.sqrt(D) if D else 1.0


def working_dtype(dtype):
    """Half precision accumulates in float32; the wide dtypes stay themselves."""
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def narrowed(x, dtype):
    """A bias or sink in the working dtype: numbers beyond its range saturate, -inf stays -inf."""
    if x.dtype.itemsize > dtype.itemsize:
        limit = np.finfo(dtype).max / 4  # a score may be added without leaving the range
        x = np.where(np.isneginf(x), x, np.clip(x, -limit, limit))
    return np.asarray(x).astype(dtype, copy=False)


def kept_pairs(allowed, bias):
    """The pairs that take part: allowed by the mask and not removed by a bias of -inf."""
    if bias is None:
        return allowed
    finite = ~np.isneginf(bias)
    return finite if allowed is None else allowed & finite


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


def careful_product(weights, slots, keep):
    """weights @ slots, where NaN and inf of a slot reach only the rows that may see it.

    weights (…, rows, slots) are 0 where `keep`, which broadcasts to them, is false. But 0 · NaN is
    NaN, so the spoilt slots are added one by one, each to the rows that see it.
    """
    keep = np.broadcast_to(keep, weights.shape)
    weights = np.where(keep, weights, 0)
    spoilt = ~np.isfinite(slots).all(axis=-1, keepdims=True)  # (…, slots, 1)
    output = weights @ np.where(spoilt, 0, slots)
    for j in np.flatnonzero(spoilt.any(axis=tuple(range(spoilt.ndim - 2)))):
        share = weights[..., j, None] * np.where(spoilt, slots, 0)[..., j, None, :]
        output += np.where(keep[..., j, None], share, 0)
    return output
