"""One call's operands, checked and brought to the one form that the formulas are written in."""

import contextlib
import math
from typing import NamedTuple

import torch

from attn import arguments
from attn.masks import Mask
from attn.torch.masks import allowed_pairs, may_read_values


class Call(NamedTuple):
    """The operands of one call after the checks: 4-D, working dtype, unseen slots emptied."""

    size: arguments.Sizes
    query: torch.Tensor  # (B, H, L, D)
    key: torch.Tensor  # (B, Hkv, S, D)
    value: torch.Tensor | None  # (B, Hkv, S, Dv)
    keep: torch.Tensor | None  # bool, (1|B, 1|H, 1|L, 1|S)
    bias: torch.Tensor | None  # (1|B, 1|H, 1|L, 1|S)
    scale: float
    softcap: float | None
    sink: torch.Tensor | None  # (H,)


def check_call(query, key, value, mask, **options):
    """Refuse a bad call in the words that the whole family shares; hand on its sizes."""
    operands = {"query": query, "key": key, "value": value}
    given = {name: x for name, x in operands.items() if x is not arguments.NO_VALUE}
    arguments.arrays(torch.Tensor, **given)
    size = arguments.sizes(**{f"{name}_shape": x.shape for name, x in given.items()})
    read_values = may_read_values(query.device)
    arguments.options(size, mask, **options, read_values=read_values, kind=torch.Tensor)
    return size


def prepare(query, key, value, mask, *, bias, scale, softcap, sink, q_offset):
    """Check a call and bring its operands to one form; every step is differentiable."""
    options = dict(bias=bias, scale=scale, softcap=softcap, sink=sink, q_offset=q_offset)
    size = check_call(query, key, value, mask, **options)
    wide = working_dtype(query.dtype)
    bias = None if bias is None else narrowed(four_axes(bias, size), wide)
    keep = kept_pairs(mask, bias, q_offset, size, query.device)

    def slots(x, heads, seen):
        return empty_unseen(x.reshape(size.B, heads, *x.shape[-2:]), seen).to(wide)

    seeing, seen = (None, None) if keep is None else (keep.any(dim=-1), seen_keys(keep, size))
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
    return torch.float32 if dtype.itemsize < 4 else dtype


def without_autocast(device):
    """A context in which tensors keep the dtype they are given."""
    if not torch.amp.is_autocast_available(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


def narrowed(x, dtype):
    """A bias or sink in the working dtype: numbers beyond its range saturate, -inf stays -inf."""
    if x.dtype.itemsize > dtype.itemsize:
        limit = torch.finfo(dtype).max / 4  # so that no difference of two scores overflows
        x = torch.where(torch.isneginf(x), x, x.clamp(-limit, limit))
    return x.to(dtype)


def four_axes(x, size):
    """A mask or bias as (1|B, 1|H, 1|L, 1|S); several batch axes are flattened in order."""
    x = x[(None,) * (4 - x.ndim)]
    rows, rest = math.prod(x.shape[:-3]), x.shape[-3:]
    if rows not in (1, size.B):  # has some of the batch axes of query only
        rows, x = size.B, x.expand(*size.batch, *rest)
    return x.reshape(rows, *rest)


def kept_pairs(mask, bias, q_offset, size, device):
    """The pairs that take part: allowed by the mask and not removed by a bias of -inf."""
    keep = None
    if isinstance(mask, Mask):
        keep = allowed_pairs(mask, size.L, size.S, q_offset, size.B, size.H, device)
    elif mask is not None:
        keep = four_axes(mask, size)
    if bias is None:
        return keep
    finite = ~torch.isneginf(bias)
    return finite if keep is None else keep & finite


def seen_keys(keep, size):
    """The key slots that at least one query may see, (1|B, 1|Hkv, 1|S)."""
    seen = keep.any(dim=-2)  # (1|B, 1|H, 1|S)
    if seen.shape[1] > 1:  # one key head serves G query heads
        seen = seen.unflatten(1, (size.Hkv, -1)).any(dim=2)
    return seen


def empty_unseen(slots, seen):
    """Write 0 into slots that take no part, which may hold anything: 0 times NaN would be NaN."""
    if seen is None:
        return slots
    return torch.where(seen[..., None], slots, slots.new_zeros(()))
