"""What has to be the same in every process of a ring, as whole numbers that can be sent round.

Sizes stand for themselves, names by their place in a list, numbers by their bits, and what has no
one number (a rule, an offset for each batch row) by a digest of its content.
"""

import hashlib
import struct

import numpy as np
import torch

from attn import arguments
from attn.arrays import dtype_name, is_tensor, to_numpy
from attn.masks import Mask

LAYOUTS = ("contiguous", "striped", "zigzag")


def label_of(size, operands, mask, scale, softcap, q_offset, layout, edge):
    """One call as {what: whole number of 64 bits}."""
    label = {letter: getattr(size, letter) for letter in ("B", "H", "Hkv", "L", "S", "D", "Dv")}
    label["dtype"] = arguments.FLOAT_DTYPES.index(dtype_name(operands[0]))
    label["layout"] = LAYOUTS.index(layout)
    needed = torch.is_grad_enabled() and any(x.requires_grad for x in operands)
    starts = np.broadcast_to(to_numpy(0 if q_offset is None else q_offset), (size.B,))
    return {
        **label,
        "need of gradients": int(needed),
        "scale": bits(scale),
        "softcap": bits(0 if softcap is None else softcap),  # which is > 0 where there is one
        "block_size": edge,
        "q_offset": digest(starts),
        "mask": digest(mask),
    }


def in_words(name, number):
    """What a number of a label stands for; a digest stands for itself, and says nothing."""
    if name in ("dtype", "layout"):
        return {"dtype": arguments.FLOAT_DTYPES, "layout": LAYOUTS}[name][number]
    if name == "need of gradients":
        return bool(number)
    if name == "softcap" and number == 0:
        return None
    if name in ("scale", "softcap"):
        return struct.unpack("<d", struct.pack("<q", number))[0]
    return f"one with digest {number:x}" if name in ("q_offset", "mask") else number


def bits(number):
    """The bits of a float64 as a whole number; -0.0 is 0.0."""
    return struct.unpack("<q", struct.pack("<d", number + 0.0))[0]


def digest(thing):
    """64 bits that two things share, for all that is likely, only when their content is equal."""
    found = hashlib.blake2b(content(thing), digest_size=8).digest()
    return int.from_bytes(found, "little", signed=True)


def content(thing):
    """The bytes that say what a rule does: its class, its fields, and so on inside them.

    Arrays count by shape and numbers: an int32 tensor is equal to an int64 array. Of an object that
    is nothing of the kind only the class counts, for an address would differ in every process.
    """
    if isinstance(thing, Mask):
        parts = [type(thing).__qualname__, vars(thing)]
    elif isinstance(thing, dict):
        parts = [x for item in sorted(thing.items(), key=lambda item: str(item[0])) for x in item]
    elif isinstance(thing, list | tuple):
        parts = list(thing)
    elif hasattr(thing, "dtype") and hasattr(thing, "shape"):
        return array_content(thing)
    elif isinstance(thing, str | bytes | int | float | complex | None):
        return f"{type(thing).__name__} {thing!r};".encode()
    else:
        name = getattr(thing, "__qualname__", type(thing).__qualname__)
        return f"object {name};".encode()
    return b"(" + b"".join(map(content, parts)) + b")"


def array_content(array):
    if is_tensor(array) and array.is_floating_point():
        array = array.detach().cpu().double()  # NumPy has no bfloat16
    array = to_numpy(array)
    if array.dtype.kind in "iu":
        array = array.astype(np.int64)
    return f"array {array.dtype} {array.shape} ".encode() + array.tobytes()
