"""What is wrong with a call about positions, seen from shapes and plain numbers.

For both libraries.
"""

from attn.arguments import values
from attn.arrays import dtype_name

LAYOUTS = ("interleaved", "half")


def table(length, size):
    """A table of positions has whole sizes, and its features stand in pairs."""
    values.integer("length", length, low=0)
    even("size", size)


def even(name, size):
    values.integer(name, size, low=0)
    if size % 2:
        raise ValueError(
            f"{name}: expected an even number of features (they turn in pairs), got {size}"
        )


def rotary(x_shape, positions, layout, base, size):
    """Return how many leading features turn, or say what does not fit."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout: expected one of {LAYOUTS} (there is no default), got {layout!r}")
    values.number("base", base)
    if base is None or base <= 0:
        raise ValueError(f"base: expected a finite number > 0, got {base}")
    values.rank("x", x_shape, 1, "(…, L, D)")
    size = x_shape[-1] if size is None else size
    even("size", size)
    if size > x_shape[-1]:
        raise ValueError(f"size: expected at most the features of x, D = {x_shape[-1]}, got {size}")
    values.plain("positions", positions)
    name = dtype_name(positions)
    if not name.startswith(("int", "uint", "float", "bfloat")):
        raise TypeError(f"positions: expected numbers, got dtype {name}")
    broadcasts(tuple(positions.shape), tuple(x_shape[:-1]))
    return size


def broadcasts(shape, target):
    """`shape` lines up from the right with the axes of x before its features."""
    # (B, L) beside (B, H, L) would be read as (H, L), and pass unseen where B and H are equal.
    two_ways = len(shape) == 2 and shape[0] > 1 and len(target) > 2 and target[-3] > 1
    fits = all(have in (1, want) for have, want in zip(shape[::-1], target[::-1], strict=False))
    if two_ways or len(shape) > len(target) or not fits:
        raise ValueError(
            f"positions: expected a shape that broadcasts to x.shape[:-1] = {target}, such as (L,) "
            f"or (B, 1, L), got {shape}" + ("; [:, None] makes it (B, 1, L)" if two_ways else "")
        )


def alibi(num_heads, q_len, k_len, q_offset):
    """Whole sizes, and an offset that is an int or one int per batch row."""
    for name, value, low in (("num_heads", num_heads, 1), ("q_len", q_len, 0), ("k_len", k_len, 0)):
        values.integer(name, value, low=low)
    if q_offset is None:
        raise TypeError("q_offset: expected an int or one int per batch row, got None")
    given_per_row = isinstance(q_offset, (list, tuple))
    rows = len(q_offset) if given_per_row else (*getattr(q_offset, "shape", ()), 1)[0]
    values.offset(q_offset, rows)
