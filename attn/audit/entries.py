"""Which array of a tuple or a dictionary is meant, on the way in and on the way out.

Models take {"input_ids": …, "attention_mask": …} and return (output, weights) or an object with
logits. One entry is changed and one is judged; where that is a guess, it is refused or said.
"""

from collections.abc import Mapping

import numpy as np

from attn.arrays import dtype_name


def is_array(thing):
    return hasattr(thing, "dtype") and hasattr(thing, "ndim") and hasattr(thing, "shape")


def is_float(array):
    return dtype_name(array).startswith(("float", "bfloat", "complex"))


def no_masked_array(name, array):
    """A masked array hides entries, which nothing here would respect."""
    if hasattr(array, "filled"):
        raise TypeError(
            f"{name}: expected a plain array or a tensor, got a masked array, whose hidden entries "
            "would be read: fill them (.filled(…)) or write True = may attend as a boolean array"
        )


def items(thing):
    """(key, entry) pairs of a dictionary, a tuple, a list or an object with attributes; or None."""
    if isinstance(thing, Mapping):
        return list(thing.items())
    if hasattr(thing, "_fields"):
        return [(name, getattr(thing, name)) for name in thing._fields]
    if isinstance(thing, (tuple, list)):
        return list(enumerate(thing))
    if hasattr(thing, "__dict__"):
        return list(vars(thing).items())
    return None


def input_entry(x):
    """The key and the array to change; the key is None where x is the array itself."""
    if is_array(x):
        no_masked_array("x", x)
        return None, x
    if not isinstance(x, (Mapping, tuple)):
        raise TypeError(
            f"x: expected an array, a tensor, or a tuple or dictionary of them, got "
            f"{type(x).__name__}"
        )
    arrays = [(key, entry) for key, entry in items(x) if is_array(entry) and entry.ndim]
    candidates = [pair for pair in arrays if is_float(pair[1])]
    if not candidates:  # token ids; an attention mask or segment ids of 0 and 1 are none
        candidates = [pair for pair in arrays if bool((pair[1] > 1).any())]
    if len(candidates) != 1:
        found = ", ".join(f"{key!r} {tuple(entry.shape)}" for key, entry in candidates or arrays)
        raise ValueError(
            "x: expected one entry of floats, or else one of token ids, to change, got "
            f"{found or 'none'}: hand over that array, and a function that adds the others"
        )
    no_masked_array(f"x[{candidates[0][0]!r}]", candidates[0][1])
    return candidates[0]


def with_entry(x, key, array, repeat):
    """x with another array in the place of the entry; `repeat` stretches what else has a batch."""
    if key is None:
        return array
    new = {k: array if k == key else repeat(entry) for k, entry in items(x)}
    if isinstance(x, Mapping):
        return new
    return type(x)(*new.values()) if hasattr(x, "_fields") else tuple(new.values())


def output_entry(output, axes, length):
    """The key and the array to judge: the first of floats with `axes` axes, `length` outputs best.

    Attention layers return (output, weights), models a loss and caches beside their logits.
    """
    if is_array(output):
        return None, output
    arrays = [(k, entry) for k, entry in items(output) or () if is_array(entry)]
    fitting = [(k, a) for k, a in arrays if is_float(a) and a.ndim >= axes]
    if not fitting:
        raise TypeError(
            "function: expected it to return an array or a tensor, or a tuple or dictionary with "
            f"one of floats, got {type(output).__name__}"
        )
    return next((pair for pair in fitting if pair[1].shape[axes - 1] == length), fitting[0])


def described(key):
    return f"entry {key!r}" if not isinstance(key, int) else f"entry {key}"


def as_numpy(x):
    if isinstance(x, np.ndarray):
        return x
    x = x.detach().cpu()
    return (x.float() if dtype_name(x) == "bfloat16" else x).numpy()
