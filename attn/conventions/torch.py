"""torch's masks: those of scaled_dot_product_attention, and of nn.MultiheadAttention, the opposite.

Part of attn.conventions.
"""

from typing import Any, NamedTuple

from attn import arguments
from attn.conventions import forms


def from_torch_sdpa(attn_mask):
    """Read the attn_mask of torch's scaled_dot_product_attention.

    Parameters
    ----------
    attn_mask : array of bool or float, shape (…, L, S)
        True = may attend; or float and added to the scores.

    Returns
    -------
    array of bool, shape (1|B, 1|H, L, S)

    Raises
    ------
    TypeError, ValueError
        Neither boolean nor float; a float mask with numbers other than 0 and "minus infinity".

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html

    Examples
    --------
    >>> import numpy as np
    >>> from_torch_sdpa(np.array([[0.0, -np.inf], [0.0, 0.0]]))[0, 0].astype(int)
    array([[1, 0],
           [1, 1]])
    """
    return forms.four_axes(forms.float_or(forms.boolean, "attn_mask", attn_mask))


def to_torch_sdpa(mask):
    """Write a mask for torch's scaled_dot_product_attention: it is the same.

    Parameters
    ----------
    mask : array of bool, shape (…, L, S)

    Returns
    -------
    array of bool, shape (1|B, 1|H, L, S)

    Raises
    ------
    TypeError
        The mask is not boolean.

    Source: as from_torch_sdpa.

    Examples
    --------
    >>> import numpy as np
    >>> to_torch_sdpa(np.array([[True, False]])).shape
    (1, 1, 1, 2)
    """
    return forms.four_axes(forms.boolean("mask", mask))


class TorchMHAMasks(NamedTuple):
    """The two masks of nn.MultiheadAttention, True = hidden: `layer(…, **masks._asdict())`."""

    attn_mask: Any  # (L, S) or (B·H, L, S), or None
    key_padding_mask: Any  # (B, S), or None


def from_torch_mha(attn_mask=None, key_padding_mask=None, num_heads=None):
    """Read the masks of nn.MultiheadAttention, which mean the opposite: True = hidden.

    Parameters
    ----------
    attn_mask : array of bool or float, shape (L, S) or (B·H, L, S), optional
        True = hidden; or float and added to the scores.
    key_padding_mask : array of bool or float, shape (B, S) or (S,), optional
        True = padding; or float and added.
    num_heads : int, optional
        H, needed for an attn_mask of three axes.

    Returns
    -------
    array of bool, shape (1|B, 1|H, 1|L, S)
        True = may attend.

    Raises
    ------
    TypeError, ValueError
        Neither mask given, other dtypes or shapes, three axes without `num_heads`.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html

    Examples
    --------
    >>> import numpy as np
    >>> from_torch_mha(key_padding_mask=np.array([[False, True]])).astype(int)
    array([[[[1, 0]]]])
    """
    if attn_mask is None and key_padding_mask is None:
        raise ValueError("attn_mask, key_padding_mask: expected one of them, got None for both")
    if num_heads is not None:
        arguments.integer("num_heads", num_heads, low=1)
    parts = []
    if attn_mask is not None:
        forms.rank("attn_mask", attn_mask, 2, 3, letters="(L, S) or (B·H, L, S)")
        seen = forms.float_or(_hidden, "attn_mask", attn_mask)
        if seen.ndim == 3:
            if num_heads is None or seen.shape[0] % num_heads:
                raise ValueError(
                    f"num_heads: expected a number of heads that divides B·H = {seen.shape[0]}, "
                    f"the first axis of attn_mask, got {num_heads}"
                )
            seen = seen.reshape(-1, num_heads, *seen.shape[1:])
        parts.append(("attn_mask", forms.four_axes(seen)))
    if key_padding_mask is not None:
        forms.rank("key_padding_mask", key_padding_mask, 1, 2, letters="(B, S) or (S,)")
        seen = forms.float_or(_hidden, "key_padding_mask", key_padding_mask)
        parts.append(("key_padding_mask", seen[(None,) * (2 - seen.ndim)][:, None, None]))
    return parts[0][1] if len(parts) == 1 else forms.both(*parts)


def _hidden(name, mask):
    return ~forms.boolean(name, mask, forms.IS_HIDDEN)


def to_torch_mha(mask, *, num_heads, batch=None):
    """Write a mask for nn.MultiheadAttention, True = hidden.

    A mask of keys alone becomes the key_padding_mask, any other the attn_mask. The layer gives NaN
    for a query that may attend to nothing.

    Parameters
    ----------
    mask : array of bool, shape (1|B, 1|H, 1|L, S)
        L written out unless the mask is the same for all queries.
    num_heads : int
        H of the layer.
    batch : int, optional
        B of the call, for a mask that leaves it open and differs from head to head.

    Returns
    -------
    TorchMHAMasks
        attn_mask (L, S), or (B·H, L, S) when batch rows or heads differ; key_padding_mask (B, S).

    Raises
    ------
    TypeError, ValueError
        Not boolean, not four axes, another number of heads or batch rows.

    Source: as from_torch_mha.

    Examples
    --------
    >>> import numpy as np
    >>> to_torch_mha(np.array([[True, False]])[:, None, None], num_heads=3)
    TorchMHAMasks(attn_mask=None, key_padding_mask=array([[False,  True]]))
    """
    forms.rank("mask", forms.boolean("mask", mask), 4, letters="(1|B, 1|H, 1|L, S)")
    arguments.integer("num_heads", num_heads, low=1)
    if batch is not None:
        arguments.integer("batch", batch, low=0)
    B, H, L, S = mask.shape
    if H not in (1, num_heads):
        raise ValueError(f"mask: expected 1 or num_heads = {num_heads} heads, got {H}")
    if batch is not None and B not in (1, batch):
        raise ValueError(f"mask: expected 1 or batch = {batch} batch rows, got {B}")
    if H == L == 1:
        keys = ~mask[:, 0, 0]
        return TorchMHAMasks(None, forms.expand(keys, (B if batch is None else batch, S)))
    if B == H == 1:
        return TorchMHAMasks(~mask[0, 0], None)
    B = B if batch is None else batch
    return TorchMHAMasks(~forms.expand(mask, (B, num_heads, L, S)).reshape(-1, L, S), None)
