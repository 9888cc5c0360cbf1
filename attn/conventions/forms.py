"""The forms that masks come in, for arrays of both libraries: boolean, 0/1 numbers, added floats.

What the named converters of attn.conventions share.
"""

import numpy as np

from attn import arguments
from attn.arrays import dtype_name

# Codes write -1e4, -1e9, the smallest float or -inf for "hidden"; a bias that is a number is never
# that large.
HIDDEN_BELOW = -9999.0


def boolean(name, mask):
    """A boolean array, or a TypeError that says how to get one."""
    if not hasattr(mask, "dtype") or dtype_name(mask) != "bool":
        came = f"dtype {dtype_name(mask)}" if hasattr(mask, "dtype") else repr(mask)
        raise TypeError(f"{name}: expected a boolean array, True = may attend, got {came}")
    return mask


def zeros_and_ones(name, mask):
    """True where a boolean or 0/1 array is set; any other number is refused."""
    mask = mask if hasattr(mask, "dtype") else np.asarray(mask)
    if dtype_name(mask) == "bool":
        return mask
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError(f"{name}: expected only 0 and 1, got other numbers")
    return mask == 1


def from_additive(bias):
    """Turn a float mask that is added to the scores into a boolean one.

    Parameters
    ----------
    bias : array of float, any shape
        0 = may attend; -inf, or a finite stand-in of at most -9999, = hidden.

    Returns
    -------
    array of bool, same shape
        True = may attend.

    Raises
    ------
    TypeError
        Not a float array.
    ValueError
        It holds other numbers: then it is a bias and not a mask.

    Source: the definition of attn_mask in torch.nn.functional.scaled_dot_product_attention.

    Examples
    --------
    >>> from_additive(np.array([0.0, -np.inf, -1e9]))
    array([ True, False, False])
    """
    if not hasattr(bias, "dtype") or dtype_name(bias) not in arguments.FLOAT_DTYPES:
        raise TypeError(f"bias: expected a float array that is added to the scores, got {bias!r}")
    seen = bias == 0
    if not bool((seen | (bias <= HIDDEN_BELOW)).all()):
        raise ValueError(
            f"bias: expected 0 (may attend) or at most {HIDDEN_BELOW:g} (hidden) everywhere, got "
            "other numbers: pass it as bias=, it is not a mask"
        )
    return seen


def to_additive(mask, *, dtype=None, fill=-np.inf):
    """Turn a boolean mask into one that is added to the scores.

    Parameters
    ----------
    mask : array of bool, any shape
        True = may attend.
    dtype : dtype, optional
        Of the result; float32 unless given.
    fill : float
        Written where the mask is False. -inf makes an empty row NaN in a plain softmax; a finite
        number makes it the mean of the values, and gives way to scores that are lower still.

    Returns
    -------
    array of float, same shape

    Raises
    ------
    TypeError
        The mask is not boolean.

    Source: as from_additive.

    Examples
    --------
    >>> to_additive(np.array([True, False]))
    array([  0., -inf], dtype=float32)
    """
    boolean("mask", mask)
    if hasattr(mask, "masked_fill"):  # a tensor
        zeros = mask.float() * 0
        return (zeros if dtype is None else zeros.to(dtype)).masked_fill(~mask, fill)
    return np.where(mask, 0, fill).astype(np.float32 if dtype is None else dtype)


def float_or(kind, name, mask):
    """A mask that may come as floats to be added, or else as `kind` reads it."""
    if hasattr(mask, "dtype") and dtype_name(mask) in arguments.FLOAT_DTYPES:
        return from_additive(mask)
    return kind(name, mask)


def expand(mask, shape):
    """Broadcast without copying."""
    return mask.expand(shape) if hasattr(mask, "expand") else np.broadcast_to(mask, shape)


def four_axes(mask):
    """(…, L, S) as (1|B, 1|H, L, S), aligned from the right."""
    return mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))


def rank(name, mask, *ranks, letters):
    if mask.ndim not in ranks:
        raise ValueError(f"{name}: expected shape {letters}, got {tuple(mask.shape)}")


def one_head(mask):
    """(1|B, 1, 1|L, S) of a mask that is the same for all heads."""
    rank("mask", boolean("mask", mask), 4, letters="(1|B, 1, 1|L, S)")
    if mask.shape[1] != 1 and not bool((mask == mask[:, :1]).all()):
        raise ValueError(
            f"mask: expected one mask for all heads, got {mask.shape[1]} that are not the same"
        )
    return mask[:, :1]


def extended(mask, k_len):
    """Hidden keys appended until there are `k_len`."""
    if k_len < mask.shape[-1]:
        raise ValueError(f"k_len: expected at least the mask's {mask.shape[-1]} keys, got {k_len}")
    shape = (*mask.shape[:-1], k_len)
    longer = mask.new_zeros(shape) if hasattr(mask, "new_zeros") else np.zeros(shape, bool)
    longer[..., : mask.shape[-1]] = mask
    return longer


def integers(mask):
    return mask.long() if hasattr(mask, "long") else mask.astype(np.int64)


def smallest(mask, dtype):
    """The most negative finite number of the dtype that a float mask will have."""
    sizes = {"float16": -65504.0, "float64": float(np.finfo(np.float64).min)}
    sizes |= {"bfloat16": -3.3895313892515355e38}
    name = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    return sizes.get(name, float(np.finfo(np.float32).min))
