"""Rules of attn.masks on tensors: the dense boolean mask on any device.

The rules themselves are shared: they use operators only, so the same lines answer for tensors.
"""

import numpy as np
import torch

from attn.algebra import convert_arrays
from attn.layout import check_mask
from attn.masks import Mask


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
    read_values = may_read_values(device)
    check_mask(
        mask, q_len, k_len, q_offset=q_offset, batch=batch, heads=heads, read_values=read_values,
        kind=torch.Tensor,
    )  # fmt: skip
    if isinstance(mask, Mask):
        allowed = allowed_pairs(mask, q_len, k_len, q_offset, batch, heads, device)
    else:
        allowed = mask.to(device)[(None,) * (4 - mask.ndim)]
    return allowed.expand(*allowed.shape[:-2], q_len, k_len).clone()


def allowed_pairs(mask, q_len, k_len, q_offset, batch, heads, device, first_key=0):
    """A rule as a tensor in which every axis that the rule ignores has length 1."""
    start = as_tensor(0 if q_offset is None else q_offset, device).to(torch.int64)
    b = torch.arange(batch, device=device)[:, None, None, None]
    h = torch.arange(heads, device=device)[None, :, None, None]
    q = start.reshape(-1, 1, 1, 1) + torch.arange(q_len, device=device)[:, None]
    k = first_key + torch.arange(k_len, device=device)[None, None, None]
    allowed = on_device(mask, device)(b, h, q, k)
    if getattr(allowed, "dtype", None) is not torch.bool:
        got = getattr(allowed, "dtype", type(allowed).__name__)
        raise TypeError(f"mask {mask!r}: expected a boolean tensor as its answer, got {got}")
    return allowed[(None,) * (4 - allowed.ndim)]


def on_device(mask, device):
    """The same rule with the arrays inside it as tensors on `device`."""
    return convert_arrays(mask, lambda array: as_tensor(array, device))


def as_tensor(value, device):
    """Numbers as a tensor; an array is copied, for torch refuses negative strides."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return torch.as_tensor(np.array(value), device=device)


def may_read_values(device):
    """Values are looked at where that costs nothing: in eager code on the CPU."""
    on_cpu = torch.device(device or "cpu").type == "cpu"
    return on_cpu and not torch.compiler.is_compiling()
