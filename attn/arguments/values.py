"""One value of a call: a whole number, a plain number, an offset, an array of the right library.

For both libraries.
"""

import math

import numpy as np

from attn.arrays import dtype_name

FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64")


def integer(name, value, low=None):
    """`value` is a whole number, at least `low`; True and 3.0 are not whole numbers here."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: expected an int, got {value!r} ({type(value).__name__})")
    if low is not None and value < low:
        raise ValueError(f"{name}: expected an int of at least {low}, got {value}")


def number(name, value):
    """A finite Python or NumPy number, or None."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}: expected a number or None, got {value!r}")
    if not -math.inf < value < math.inf:
        raise ValueError(f"{name}: expected a finite number, got {value}")


def rank(name, shape, least, letters):
    if len(shape) < least:
        raise ValueError(f"{name}: expected shape {letters}, got {tuple(shape)}")


def one_library(kind, name, array):
    """An array or a tensor, whichever `kind` is; a masked array hides entries, so it is refused."""
    if not isinstance(array, kind) or hasattr(array, "filled"):
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
    if isinstance(q_offset, (list, tuple)):
        for number in q_offset:
            integer("q_offset", number)
        per_row("q_offset", (len(q_offset),), batch)
    elif q_offset is None or isinstance(q_offset, int) or not hasattr(q_offset, "shape"):
        integer("q_offset", 0 if q_offset is None else q_offset)
    elif not dtype_name(q_offset).startswith(("int", "uint")):
        raise TypeError(f"q_offset: expected integers, got dtype {dtype_name(q_offset)}")
    elif q_offset.shape != ():
        per_row("q_offset", q_offset.shape, batch)


def per_row(name, shape, batch):
    """One entry for each flattened batch row."""
    if tuple(shape) != (batch,):
        raise ValueError(
            f"{name}: expected an int or one int per batch row, shape (B,) = ({batch},), got shape "
            f"{tuple(shape)}"
        )
