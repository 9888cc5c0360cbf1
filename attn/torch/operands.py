"""One call's operands, checked and brought to the one form that the formulas are written in.

`call` checks and hands on four axes (B, H, L, D); `resolved` adds what a formula over the whole
matrix of scores needs: the working dtype, the pairs that take part, and queries, keys and values
whose slots without a partner are emptied. `tile` does the same for some rows and keys.
"""

import contextlib
import math
from typing import NamedTuple

import torch

from attn import arguments
from attn.arrays import dtype_name
from attn.torch.masks import Laid, four_axes, lay, may_read_values, part


class Call(NamedTuple):
    """The operands of one call after the checks, with four axes."""

    size: arguments.Sizes
    query: torch.Tensor  # (B, H, L, D)
    key: torch.Tensor  # (B, Hkv, S, D)
    value: torch.Tensor | None  # (B, Hkv, S, Dv)
    mask: Laid | None
    bias: torch.Tensor | None  # (1|B, 1|H, 1|L, 1|S), working dtype
    scale: float | torch.Tensor  # a learned one has no axes
    softcap: float | None
    sink: torch.Tensor | None  # (H,), working dtype
    keep: torch.Tensor | None = None  # once resolved: bool (1|B, 1|H, 1|L, 1|S), or all pairs
    careful: bool = False  # a slot that some queries see and others do not may hold NaN or inf

    @property
    def guard(self):
        """The pairs that take part, (B, H, L, S), where hidden ones have to be kept out of sums."""
        size = self.size
        if not self.careful or self.keep is None:
            return None
        return self.keep.expand(size.B, size.H, size.L, size.S)


def call(query, key, value, mask, *, bias, scale, softcap, sink, q_offset):
    """Refuse a bad call in the words that the whole family shares; else its operands."""
    operands = {"query": query, "key": key, "value": value}
    given = {name: x for name, x in operands.items() if x is not arguments.NO_VALUE}
    arguments.arrays(torch.Tensor, **given)
    size = arguments.sizes(**{f"{name}_shape": x.shape for name, x in given.items()})
    arguments.options(
        size, mask, bias=bias, scale=scale, softcap=softcap, sink=sink, q_offset=q_offset,
        read_values=may_read_values(query.device), kind=torch.Tensor,
    )  # fmt: skip
    wide = working_dtype(query.dtype)
    scale, softcap = scale_and_cap(scale, softcap, size.D, query)
    return Call(
        size,
        query.reshape(size.B, size.H, size.L, size.D),
        key.reshape(size.B, size.Hkv, size.S, size.D),
        None if size.Dv is None else value.reshape(size.B, size.Hkv, size.S, size.Dv),
        lay(mask, size, q_offset, query.device),
        None if bias is None else narrowed(four_axes(bias, size), wide),
        scale,
        softcap,
        None if sink is None else narrowed(sink, wide),
    )


def resolved(call):
    """The same call in the working dtype, with its pairs written out and unseen slots emptied."""
    return guarded(emptied(widened(call), None if call.mask is None else call.mask.pairs()))


def prepare(*operands, **options):
    """A call with all that the formulas over the whole matrix of scores need."""
    return resolved(call(*operands, **options))


def widened(call):
    """The same call in the working dtype."""
    wide = working_dtype(call.query.dtype)
    value = None if call.value is None else call.value.to(wide)
    return call._replace(query=call.query.to(wide), key=call.key.to(wide), value=value)


def tile(call, rows, keys, allowed):
    """Some rows and keys of a call; `allowed` is which pairs may attend, None for all."""
    size = call.size._replace(L=rows.stop - rows.start, S=keys.stop - keys.start)
    query, key, value = call.query[..., rows, :], call.key[..., keys, :], call.value[..., keys, :]
    bias = None if call.bias is None else part(call.bias, rows, keys)
    call = call._replace(size=size, query=query, key=key, value=value, mask=None, bias=bias)
    return emptied(call, allowed)


def emptied(call, allowed):
    """Slots that take no part hold 0: they may hold anything, and 0 times NaN would be NaN."""
    keep = kept_pairs(allowed, call.bias)
    if keep is None:
        return call
    seeing, seen = keep.any(dim=-1), grouped(keep.any(dim=-2), call.size)
    return call._replace(
        query=empty_unseen(call.query, seeing),
        key=empty_unseen(call.key, seen),
        value=None if call.value is None else empty_unseen(call.value, seen),
        keep=keep,
    )


def guarded(call):
    """The same call, careful if a slot that some queries see and others do not may hold NaN or inf.

    What is left to look at is looked at where that costs nothing; elsewhere NaN may spread.
    """
    size, keep = call.size, call.keep
    if keep is None:
        alike = call.mask is None and call.bias is None
    else:  # what nobody sees is empty by now; an infinite query times it is NaN for these two
        alike = keep.shape[2] == 1 and (keep.shape[1] == 1 or size.Hkv == size.H)
        alike = alike and call.softcap is None and not isinstance(call.scale, torch.Tensor)
    if alike or not may_read_values(call.query.device):
        return call
    return call._replace(careful=all_finite(call.query, call.key, call.value) is False)


def known_all(x):
    """Whether all are true, where a look costs nothing; else False."""
    try:
        return may_read_values(x.device) and bool(x.all())
    except RuntimeError:  # inside torch.func.vmap there are no values to look at
        return False


def all_finite(*operands):
    """Whether no operand holds NaN or inf, by one sum of each; None where values are not there."""
    try:
        sums = [x.detach().sum(dtype=working_dtype(x.dtype)) for x in operands if x is not None]
        return bool(torch.stack(sums).isfinite().all())
    except RuntimeError:  # inside torch.func.vmap there are no values to look at
        return None


def scale_and_cap(scale, softcap, D, query):
    """Both within the working dtype; a scale is 1/√D unless given, or a tensor if it is learned."""
    if scale is None:  # with D = 0 every dot product is an empty sum and any scale will do
        scale = 1 / math.sqrt(D) if D else 1.0
    if isinstance(scale, torch.Tensor):
        _, softcap = arguments.saturated(1.0, softcap, dtype_name(query))
        return narrowed(scale, working_dtype(query.dtype)), softcap
    return arguments.saturated(scale, softcap, dtype_name(query))


def working_dtype(dtype):
    """Half precision accumulates in float32; the wide dtypes stay themselves."""
    return torch.float32 if dtype.itemsize < 4 else dtype


def without_autocast(device):
    """A context in which tensors keep the dtype they are given."""
    # The meta device, which has no numbers, is none that autocast has heard of.
    if device.type == "meta" or not torch.amp.is_autocast_available(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, enabled=False)


def narrowed(x, dtype):
    """A bias or sink in the working dtype: numbers beyond its range saturate, -inf stays -inf."""
    if x.dtype.itemsize > dtype.itemsize:
        limit = torch.finfo(dtype).max / 4  # so that no difference of two scores overflows
        x = torch.where(torch.isneginf(x), x, x.clamp(-limit, limit))
    return x.to(dtype)


def kept_pairs(allowed, bias):
    """The pairs that take part: allowed by the mask and not removed by a bias of -inf."""
    if bias is None:
        return allowed
    finite = ~torch.isneginf(bias)
    return finite if allowed is None else allowed & finite


def grouped(seen, size):
    """Keys that a query head sees, (1|B, 1|H, 1|S), as those that any head of its group sees."""
    return seen if seen.shape[1] <= 1 else seen.unflatten(1, (size.Hkv, -1)).any(dim=2)


def empty_unseen(slots, seen):
    """Write 0 into slots that take no part, which may hold anything: 0 times NaN would be NaN."""
    if seen is None or known_all(seen):
        return slots
    return torch.where(seen[..., None], slots, slots.new_zeros(()))
