"""One value of a call: a whole number, a plain number, an offset, an array of the right library.

For both libraries.
"""

import functools
import math
import sys

import numpy as np

from attn.arrays import dtype_name

FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64")
# The smallest normal and the largest number of the two dtypes that calls are worked out in.
RANGES = {
    "float32": (2.0**-126, (2 - 2**-23) * 2.0**127),
    "float64": (sys.float_info.min, sys.float_info.max),
}
# Positions further out could leave int64 as soon as two of them are subtracted.
FURTHEST = 2**62


# What other libraries call it, and what to write here instead.
ELSEWHERE = {
    "attn_mask": "mask= (True = may attend), or bias= for floats; "
    "attn.conventions.from_torch_mha reads nn.MultiheadAttention's, where True = hidden",
    "key_padding_mask": "mask=KeyPadding(lengths), or "
    "mask=attn.conventions.from_torch_mha(key_padding_mask=…), for there True = hidden",
    "attention_mask": "mask=, read by attn.conventions.from_hugging_face or from_keras",
    "attn_bias": "bias=",
    "is_causal": "mask=Causal(), with q_offset=0 (upper-left) or S - L (lower-right) where L != S",
    "window_size": "mask=SlidingWindow(left, right)",
    "block_mask": "mask= the rule itself",
    "score_mod": "bias=, softcap= or a rule as mask=",
    "softmax_scale": "scale=",
    "dropout_p": "attn.torch.MultiHeadAttention(…, dropout=…), the only place with dropout",
    "enable_gqa": "nothing: key and value with fewer heads say so by their shapes",
    "need_weights": "attention_weights(…), or the method weights of the layer",
    "average_attn_weights": "attention_weights(…).mean(1): weights are returned per head",
    "batch_first": "nothing: inputs are (B, L, E), so x.transpose(0, 1) of (L, B, E)",
    "past_key_value": "cache=KVCache(capacity)",
    "position_ids": "positions=",
}
ELSEWHERE["causal"] = ELSEWHERE["use_causal_mask"] = ELSEWHERE["is_causal"]


def explained(function):
    """The same function; a keyword of another library gets an error that says what to write."""

    @functools.wraps(function)
    def with_own_words(*args, **options):
        for name in options:
            if name in ELSEWHERE:
                raise TypeError(
                    f"{function.__qualname__}: no argument {name}, write {ELSEWHERE[name]}"
                )
        return function(*args, **options)

    return with_own_words


def integer(name, value, low=None):
    """`value` is a whole number, at least `low`; True and 3.0 are not whole numbers here."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: expected an int, got {value!r} ({type(value).__name__})")
    if not -(2**63) <= value < 2**63:
        bits = int(value).bit_length()
        raise ValueError(f"{name}: expected an int that 64 bits can hold, got one of {bits} bits")
    if low is not None and value < low:
        raise ValueError(f"{name}: expected an int of at least {low}, got {value}")


def number(name, value):
    """A finite Python or NumPy number, or None."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}: expected a number or None, got {value!r}")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        bits = value.bit_length()
        raise ValueError(f"{name}: expected a number that float64 can hold, got one of {bits} bits")
    if not -math.inf < value < math.inf:
        raise ValueError(f"{name}: expected a finite number, got {value}")
    if abs(float(value)) > sys.float_info.max:  # a longdouble
        raise ValueError(f"{name}: expected a number that float64 can hold, got {value}")


def saturated(scale, softcap, dtype):
    """Scale and softcap within the dtype that a call with operands of `dtype` is worked out in.

    Rounded to infinity or to 0 they would give NaN; a cap beyond every score is none.
    """
    smallest, largest = RANGES["float64" if dtype == "float64" else "float32"]
    scale = max(-largest, min(float(scale), largest))
    if softcap is None or float(softcap) > largest:
        return scale, None
    return scale, max(smallest, float(softcap))


def rank(name, shape, least, letters):
    if len(shape) < least:
        raise ValueError(f"{name}: expected shape {letters}, got {tuple(shape)}")


def plain(name, array):
    """No masked array, which hides entries, and no matrix, which multiplies by its own rules."""
    if hasattr(array, "filled") or hasattr(array, "A1"):
        what = f"{type(array).__module__}.{type(array).__name__}"
        raise TypeError(f"{name}: expected a plain array, got {what}")


def listed(name, value):
    """Numbers in a list as an array; an array or a tensor as it is."""
    plain(name, value)
    if hasattr(value, "dtype"):
        return value
    try:
        return np.asarray(value)
    except ValueError:
        raise ValueError(f"{name}: expected rows of one length, got {value!r}") from None


def one_library(kind, name, array):
    """An array or a tensor, whichever `kind` is."""
    plain(name, array)
    if not isinstance(array, kind):
        raise TypeError(
            f"{name}: expected {kind.__module__}.{kind.__name__}, got "
            f"{type(array).__module__}.{type(array).__name__} (attn takes NumPy arrays, "
            "attn.torch takes tensors; they are never mixed)"
        )


def arrays(kind, **named):
    """All given arrays belong to one library and share one float dtype."""
    for name, array in named.items():
        one_library(kind, name, array)
    dtypes = {name: dtype_name(array) for name, array in named.items()}
    listed = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
    if not all(dtype in FLOAT_DTYPES for dtype in dtypes.values()):
        raise TypeError(f"expected float arrays ({', '.join(FLOAT_DTYPES)}), got {listed}")
    if len(set(dtypes.values())) > 1:
        raise TypeError(f"expected one float dtype for all inputs, got {listed}")


def offset(q_offset, batch):
    """None, an int, or one int for each of the B batch rows."""
    if q_offset is None:
        return
    if isinstance(q_offset, (list, tuple)):
        for start in q_offset:
            within_reach(start)
        per_row("q_offset", (len(q_offset),), batch)
    elif isinstance(q_offset, (int, np.integer)) or not hasattr(q_offset, "shape"):
        within_reach(q_offset)
    elif not dtype_name(q_offset).startswith(("int", "uint")):
        raise TypeError(f"q_offset: expected integers, got dtype {dtype_name(q_offset)}")
    else:
        plain("q_offset", q_offset)
        if q_offset.shape != ():
            per_row("q_offset", q_offset.shape, batch)
        if isinstance(q_offset, np.ndarray) and q_offset.size:  # a tensor is not read here
            within_reach(q_offset.min())
            within_reach(q_offset.max())


def within_reach(start):
    """Positions counted from here, and their differences, stay within int64."""
    integer("q_offset", start)
    if not -FURTHEST <= start <= FURTHEST:
        raise ValueError(f"q_offset: expected a position between -2**62 and 2**62, got {start}")


def per_row(name, shape, batch):
    """One entry for each flattened batch row."""
    if tuple(shape) != (batch,):
        raise ValueError(
            f"{name}: expected an int or one int per batch row, shape (B,) = ({batch},), got shape "
            f"{tuple(shape)}"
        )
