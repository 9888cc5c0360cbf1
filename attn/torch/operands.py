"""One call's operands, checked and brought to the one form that the formulas are written in.

Imports attn.checks, attn.masks and attn.torch.masks; never the NumPy twin.
"""

import contextlib
import math
from typing import NamedTuple

import torch

from attn import checks
from attn.masks import Mask
from attn.torch.masks import allowed_pairs, may_read_values


class Call(NamedTuple):
    """The operands of one call after the checks: 4-D, in the working dtype, unseen slots emptied."""

    size: checks.Sizes
    query: torch.Tensor  # (B, H, L, D)
    key: torch.Tensor  # (B, Hkv, S, D)
    value: torch.Tensor | None  # (B, Hkv, S, Dv)
    keep: torch.Tensor | None  # bool, (1|B, 1|H, 1|L, 1|S)
    bias: torch.Tensor | None  # (1|B, 1|H, 1|L, 1|S)
    scale: float
    softcap: float | None
    sink: torch.Tensor | None  # (H,)


def prepare(query, key, value, mask, *, bias, scale, softcap, sink, q_offset):
    """Check a call and bring its operands to one form; every step is differentiable."""
    operands = {"query": query, "key": key, "value": value}
    checks.arrays(torch.Tensor, **{name: x for name, x in operands.items() if x is not None})
    size = checks.sizes(query.shape, key.shape, None if value is None else value.shape)
    checks.options(
        size, mask, bias=bias, scale=scale, softcap=softcap, sink=sink, q_offset=q_offset,
        read_values=may_read_values(query.device),
    )  # fmt: skip
    wide = working_dtype(query.dtype)
    bias = None if bias is None else four_axes(bias, size).to(wide)
    keep = kept_pairs(mask, bias, q_offset, size, query.device)
    key, value = (
        None if x is None else empty_unseen(x.reshape(size.B, size.Hkv, size.S, x.shape[-1]), keep)
        for x in (key, value)
    )
    return Call(
        size,
        query.reshape(size.B, size.H, size.L, size.D).to(wide),
        key.to(wide),
        None if value is None else value.to(wide),
        keep,
        bias,
        default_scale(size.D) if scale is None else scale,
        softcap,
        None if sink is None else sink.to(wide),
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


def four_axes(x, size):
    """A mask or bias as (1|B, 1|H, 1|L, 1|S); several batch axes are flattened in order."""
    x = x[(None,) * (4 - x.ndim)]
    if math.prod(x.shape[:-3]) == 1:
        return x.reshape(1, *x.shape[-3:])
    return x.expand(*size.batch, *x.shape[-3:]).reshape(size.B, *x.shape[-3:])


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


def empty_unseen(slots, keep):
    """Write 0 into the keys or values that no query may see, which may hold anything, even NaN."""
    if keep is None:
        return slots
    seen = keep.any(dim=-2)  # (1|B, 1|H, 1|S)
    if seen.shape[1] > 1:
        seen = seen.unflatten(1, (slots.shape[1], -1)).any(dim=2)
    return torch.where(seen[..., None], slots, slots.new_zeros(()))
