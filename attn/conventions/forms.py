"""The forms that masks come in, for arrays of both libraries: boolean, 0/1 numbers, added floats.

What the named converters of attn.conventions share.
"""

import numpy as np

from attn import arguments
from attn.arrays import dtype_name, is_tensor, library

# Codes write -1e4, -1e9, the smallest float or -inf for "hidden"; a bias that is a number is never
# that large.
HIDDEN_BELOW = -9999.0


MAY_ATTEND, IS_HIDDEN = "True = may attend", "True = hidden"


def array(name, mask):
    """An array of either library; lists of 0 and 1, as tokenizers return them, become one."""
    if isinstance(mask, (list, tuple)):
        try:
            mask = np.asarray(mask)
        except ValueError:
            raise ValueError(f"{name}: expected rows of one length, got {mask!r}") from None
    if hasattr(mask, "filled"):
        raise TypeError(f"{name}: expected a plain array, got a masked one, which hides entries")
    if not hasattr(mask, "dtype") or not hasattr(mask, "reshape"):
        raise TypeError(f"{name}: expected an array, got {mask!r}")
    return mask


def boolean(name, mask, meaning=MAY_ATTEND):
    """A boolean array, or a TypeError that says how to get one of that meaning."""
    came = f"dtype {dtype_name(mask)}" if hasattr(mask, "dtype") else repr(mask)
    if not hasattr(mask, "dtype") or dtype_name(mask) != "bool":
        means = meaning.removeprefix("True = ")
        other = "hidden" if means == "may attend" else "may attend"
        hint = f": write mask != 0 where 1 means {means}, mask == 0 where it means {other}"
        hint = hint if came.startswith(("dtype int", "dtype uint")) else ""
        raise TypeError(f"{name}: expected a boolean array, {meaning}, got {came}{hint}")
    return array(name, mask)


def zeros_and_ones(name, mask):
    """True where a boolean or 0/1 array is set; any other number is refused."""
    mask = array(name, mask)
    if dtype_name(mask) == "bool":
        return mask
    if not dtype_name(mask).startswith(("int", "uint", *arguments.FLOAT_DTYPES)):
        raise TypeError(f"{name}: expected booleans, or 0 and 1, got dtype {dtype_name(mask)}")
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
    return zeros_and_minus_infinities("bias", bias)


def zeros_and_minus_infinities(name, mask):
    """True where a float array is 0, False where it is as good as -inf; else it is no mask."""
    if not hasattr(mask, "dtype") or dtype_name(mask) not in arguments.FLOAT_DTYPES:
        came = f"dtype {dtype_name(mask)}" if hasattr(mask, "dtype") else repr(mask)
        raise TypeError(f"{name}: expected a float array that is added to the scores, got {came}")
    mask = array(name, mask)
    seen = mask == 0
    if not bool((seen | (mask <= HIDDEN_BELOW)).all()):
        raise ValueError(
            f"{name}: expected 0 (may attend) or at most {HIDDEN_BELOW:g} (hidden) everywhere, got "
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
        Of the result, a float dtype of either library or its name; float32 unless given.
    fill : float
        Written where the mask is False. -inf makes an empty row NaN in a plain softmax; a finite
        number makes it the mean of the values, and gives way to scores that are lower still.

    Returns
    -------
    array of float, same shape

    Raises
    ------
    TypeError
        The mask is not boolean, or the dtype no float dtype.

    Source: as from_additive.

    Examples
    --------
    >>> to_additive(np.array([True, False]))
    array([  0., -inf], dtype=float32)
    """
    boolean("mask", mask)
    dtype = float_dtype(dtype, mask)
    least = float(library(mask).finfo(dtype).min)
    if fill != -np.inf:
        arguments.number("fill", fill)
        if fill is None or fill < least:
            raise ValueError(f"fill: expected -inf or a number of at least {least:g}, got {fill}")
    if is_tensor(mask):
        return mask.new_zeros(mask.shape, dtype=dtype).masked_fill(~mask, fill)
    return np.where(mask, 0, fill).astype(dtype)


def float_dtype(dtype, mask):
    """A float dtype of the mask's library, by its class, its name or a dtype of either library."""
    name = "float32"
    if dtype is not None:
        name = str(dtype).removeprefix("torch.")
        if name not in arguments.FLOAT_DTYPES:  # a class, such as np.float16 or float
            try:
                name = np.dtype(dtype).name
            except TypeError:
                name = repr(dtype)
    known = getattr(library(mask), name, None) if name in arguments.FLOAT_DTYPES else None
    if known is None:
        raise TypeError(
            f"dtype: expected a float dtype of {library(mask).__name__} (of "
            f"{', '.join(arguments.FLOAT_DTYPES)}), got {dtype!r}"
        )
    return known


def float_or(kind, name, mask):
    """A mask that may come as floats to be added, or else as `kind` reads it."""
    if hasattr(mask, "dtype") and dtype_name(mask) in arguments.FLOAT_DTYPES:
        return zeros_and_minus_infinities(name, mask)
    return kind(name, mask)


def both(first, second):
    """Two masks as one, by name: (name, mask) and (name, mask), already with four axes."""
    (one_name, one), (name, other) = first, second
    if is_tensor(one) != is_tensor(other):
        raise TypeError(f"{name}: expected an array of the library of {one_name}")
    shapes = tuple(one.shape), tuple(other.shape)
    if not all(1 in (a, b) or a == b for a, b in zip(*shapes, strict=True)):
        raise ValueError(
            f"{name}: expected sizes that go with those of {one_name}: as (B, H, L, S) they are "
            f"{shapes[1]} and {shapes[0]}"
        )
    return one & other


def expand(mask, shape):
    """Broadcast without copying."""
    return mask.expand(shape) if is_tensor(mask) else np.broadcast_to(mask, shape)


def four_axes(mask):
    """(…, L, S) as (1|B, 1|H, L, S), aligned from the right."""
    return mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))


def rank(name, mask, *ranks, letters):
    mask = array(name, mask)
    if mask.ndim not in ranks:
        raise ValueError(f"{name}: expected shape {letters}, got {tuple(mask.shape)}")
    return mask


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
    arguments.integer("k_len", k_len)
    if k_len < mask.shape[-1]:
        raise ValueError(f"k_len: expected at least the mask's {mask.shape[-1]} keys, got {k_len}")
    shape = (*mask.shape[:-1], k_len)
    longer = mask.new_zeros(shape) if is_tensor(mask) else np.zeros(shape, bool)
    longer[..., : mask.shape[-1]] = mask
    return longer


def integers(mask):
    return mask.long() if is_tensor(mask) else mask.astype(np.int64)
