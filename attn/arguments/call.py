"""One call: how its operands' sizes fit, and everything of it that is not one of the operands.

For both libraries: arrays of both have `shape`, `ndim` and `dtype`, which is all that is needed.
Looking at the *values* of an array would stop a GPU or break a compiled graph, so the checks that
do (NaN in a bias, a length beyond the keys) run only where `read_values` is true.
"""

import math
from typing import NamedTuple

from attn.arguments.values import FLOAT_DTYPES, number, offset, one_library, plain
from attn.arrays import dtype_name, is_tensor

NO_VALUE = object()  # stands where attention_weights has no value; None there is a mistake
UPPER_LEFT_OR_LOWER_RIGHT = (
    "give q_offset: 0 puts query 0 beside key 0 (upper-left), S - L = {} lines up the last query "
    "with the last key (lower-right)"
)


class Sizes(NamedTuple):
    """The sizes of one call, in the letters of the legend; `batch` holds the axes before H."""

    batch: tuple
    B: int
    H: int
    Hkv: int
    L: int
    S: int
    D: int
    Dv: int | None


def is_rule(mask):
    """A rule of attn.masks; the class Causal without () is none yet.

    Told by a method that only rules have: attn.masks stands above this room, which may not import
    it. Everything behind the checks asks isinstance(mask, Mask).
    """
    return hasattr(mask, "check_fields") and not isinstance(mask, type)


def sizes(query_shape, key_shape, value_shape=None):
    """Unpack three shapes into the letters, or say which two of them disagree."""
    query_shape, key_shape = tuple(query_shape), tuple(key_shape)
    value_shape = None if value_shape is None else tuple(value_shape)

    def came():  # written out only where it is needed: a compiled graph has sizes without numbers
        value = "" if value_shape is None else f", value {value_shape}"
        return f"query {query_shape}, key {key_shape}{value}"

    if min(len(query_shape), len(key_shape)) < 2 or len(query_shape) != len(key_shape):
        raise ValueError(
            "expected query (…, H, L, D), key (…, Hkv, S, D) and value (…, Hkv, S, Dv) of one "
            f"rank, at least 2, got {came()}"
        )
    batch, (H, L, D) = query_shape[:-3], (1, *query_shape)[-3:]
    Hkv, S, key_size = (1, *key_shape)[-3:]
    if key_size != D:
        raise ValueError(
            f"key: expected the head size of query, D = {D}, got {key_size} ({came()})"
        )
    if value_shape is not None and value_shape[-2:-1] != (S,):
        raise ValueError(f"value: expected one row for each key, S = {S}, got {came()}")
    if value_shape is not None and value_shape[:-2] != key_shape[:-2]:
        raise ValueError(f"value: expected the batch and heads of key, got {came()}")
    if key_shape[:-3] != batch:
        raise ValueError(f"key: expected the batch axes of query, {batch}, got {came()}")
    if (Hkv == 0 and H > 0) or (Hkv and H % Hkv):
        raise ValueError(
            f"query: expected a number of heads that is a multiple of Hkv = {Hkv}, got H = {H} "
            f"({came()})"
        )
    Dv = None if value_shape is None else value_shape[-1]
    return Sizes(batch, math.prod(batch), H, Hkv, L, S, D, Dv)


def options(size, given, *, bias, scale, softcap, sink, q_offset, read_values, kind=None):
    """Everything of a call that is not one of the three operands; `given` is the mask.

    `kind` as in one_library.
    """
    for name, array in {"mask": given, "bias": bias, "sink": sink}.items():
        if kind is not None and hasattr(array, "dtype"):
            one_library(kind, name, array)
    number("scale", None if is_learned(scale, kind) else scale)
    number("softcap", softcap)
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap: expected a finite number > 0, or None for off, got {softcap}")
    mask(size, given, q_offset=q_offset, read_values=read_values)
    if bias is not None:
        bias_array(bias, size, read_values)
    if sink is not None:
        sink_array(sink, size, read_values)


def is_learned(scale, kind):
    """A float tensor without axes, beside tensors: a scale that may have a gradient."""
    return (
        is_tensor(scale) and isinstance(scale, kind or object) and scale.ndim == 0
        and dtype_name(scale) in FLOAT_DTYPES
    )  # fmt: skip


def mask(size, given, *, q_offset=None, read_values=True, kind=None):
    """A mask and where it lies: a rule that can be laid over these sizes, an array, or None."""
    if kind is not None and hasattr(given, "dtype"):
        one_library(kind, "mask", given)
    offset(q_offset, size.B)
    if is_rule(given):
        given.check(size.L, size.S, batch=size.B, q_offset=q_offset, read_values=read_values)
    elif given is not None:
        mask_array(given, size)


def mask_array(mask, size):
    """A boolean array, True = may attend, that broadcasts to (B, H, L, S)."""
    plain("mask", mask)
    if not hasattr(mask, "dtype"):
        foreign(mask)
        what = "a plain function" if callable(mask) else repr(mask)
        if isinstance(mask, type):
            what = f"the class {mask.__name__} (write it with parentheses)"
        raise TypeError(
            "mask: expected a rule such as Causal() (subclass attn.Mask for your own) or a boolean "
            f"array, True = may attend, got {what}"
        )
    name = dtype_name(mask)
    if name != "bool":
        foreign(mask)
        raise TypeError(
            f"mask: expected a boolean array, True = may attend, got dtype {name}. If nonzero "
            "means 'may attend', write mask != 0; numbers to be added to the scores go in as bias="
        )
    broadcasts("mask", mask, size)


def foreign(mask):
    """The masks that torch's own kernels take as objects are written as rules here."""
    instead = {
        "CausalBias": "write Causal() with q_offset=0 (upper-left) or q_offset=S - L (lower-right)",
        "BlockMask": "pass the rule that it was made of, its tiles are found from that",
    }
    name = type(mask).__name__
    if name in instead:
        raise TypeError(
            f"mask: expected a rule such as Causal() (subclass attn.Mask for your own) or a "
            f"boolean array, got torch's {name}: {instead[name]}"
        )


def bias_array(bias, size, read_values):
    """A float array that broadcasts to (B, H, L, S); -inf removes, NaN and +inf are refused."""
    if not hasattr(bias, "dtype"):
        raise TypeError(f"bias: expected a float array, got {bias!r}")
    name = dtype_name(bias)
    if name not in FLOAT_DTYPES:
        hint = "; a boolean array is a mask: pass it as mask=" if name == "bool" else ""
        raise TypeError(
            f"bias: expected a float array, added to the scores, got dtype {name}{hint}"
        )
    broadcasts("bias", bias, size)
    if read_values:
        no_nan_or_inf("bias", bias)


def sink_array(sink, size, read_values):
    """One float logit for each query head."""
    name = dtype_name(sink) if hasattr(sink, "dtype") else type(sink).__name__
    if name not in FLOAT_DTYPES:
        raise TypeError(f"sink: expected a float array of shape (H,) = ({size.H},), got {name}")
    if tuple(sink.shape) != (size.H,):
        raise ValueError(
            f"sink: expected one logit per query head, shape (H,) = ({size.H},), got shape "
            f"{tuple(sink.shape)}"
        )
    if read_values:
        no_nan_or_inf("sink", sink)


def broadcasts(name, array, size):
    """`array` lines up from the right with (B, H, L, S), and does not read two ways."""
    shape, flat = tuple(array.shape), (size.B, size.H, size.L, size.S)
    if len(shape) == 3 and size.B > 1:
        raise ValueError(
            f"{name}: a rank-3 array of shape {shape} reads two ways when B = {size.B} > 1, "
            f"expected rank 2 or 4: [:, None] makes it (B, 1, L, S), [None] makes it (1, H, L, S), "
            f"with (B, H, L, S) = {flat}"
        )
    apart = (*size.batch, *flat[1:])  # as query has them, before its batch axes are flattened
    if not (fits(shape, flat) or fits(shape, apart)):
        also = f" or to {apart}" if len(apart) > 4 else ""
        if name == "mask" and shape == (size.B, size.S):
            also += " (a mask of keys, (B, S), goes in as mask[:, None, None])"
        raise ValueError(
            f"{name}: expected a shape that broadcasts to (B, H, L, S) = {flat}{also}, got {shape}"
        )


def fits(shape, target):
    pairs = zip(shape[::-1], target[::-1], strict=False)
    return len(shape) <= len(target) and all(have in (1, want) for have, want in pairs)


def no_nan_or_inf(name, array):
    # NaN compares false with everything, so one comparison finds NaN and +inf and lets -inf pass.
    try:
        usable = bool((array < math.inf).all())
    except RuntimeError:  # a tensor inside torch.func.vmap has no values to look at
        return
    if not usable:
        raise ValueError(f"{name}: expected numbers or -inf (-inf removes), got NaN or +inf")
