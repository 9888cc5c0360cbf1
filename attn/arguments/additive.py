"""What is wrong with additive scores and Luong's, seen from shapes alone; for both libraries.

These functions come from recurrent translators and have no heads: rank 3 is (B, L, D) here, not (H,
L, D).
"""

import math

from attn.arguments import call


def sizes(query_shape, key_shape, value_shape=None):
    """The sizes of a call in the letters, H = 1 for ranks 2 and 3; D is the size of the keys."""
    shapes = {"query": tuple(query_shape), "key": tuple(key_shape)}
    if value_shape is not None:
        shapes["value"] = tuple(value_shape)
    if min(map(len, shapes.values())) < 2:
        raise ValueError(
            f"expected query (B, L, Dq), key (B, S, Dk) and value (B, S, Dv), got {listed(shapes)}"
        )
    if len({shape[:-2] for shape in shapes.values()}) > 1:
        raise ValueError(f"key, value: expected the batch axes of query, got {listed(shapes)}")
    if value_shape is not None and value_shape[-2] != key_shape[-2]:
        raise ValueError(
            f"value: expected one row for each key, S = {key_shape[-2]}, got {value_shape[-2]} "
            f"({listed(shapes)})"
        )
    lead = query_shape[:-2]
    batch, H = (tuple(lead), 1) if len(lead) < 2 else (tuple(lead[:-1]), lead[-1])
    L, (S, D) = query_shape[-2], key_shape[-2:]
    Dv = None if value_shape is None else value_shape[-1]
    return call.Sizes(batch, math.prod(batch), H, H, L, S, D, Dv)


def mask(mask, size, rank, q_offset, kind, read_values):
    """Check a mask; an array (B, L, S) beside queries (B, L, Dq) is given its head axis."""
    if rank == 3 and getattr(mask, "ndim", 0) == 3:
        mask = mask[:, None]
    call.mask(size, mask, q_offset=q_offset, read_values=read_values, kind=kind)
    return mask


def weights(query_shape, key_shape, w_query, w_key, v):
    """Both projections lead into the A features that v weighs."""
    if len(v) != 1:
        raise ValueError(f"v: expected shape (A,), got {tuple(v)}")
    A = v[0]
    matrix("w_query", w_query, (query_shape[-1], A), "(Dq, A)")
    matrix("w_key", w_key, (key_shape[-1], A), "(Dk, A)")


def luong(query_shape, key_shape, weight=None, v=None):
    """No weight: dot; a weight: general; a weight and v: concat."""
    Dq, Dk = query_shape[-1], key_shape[-1]
    if v is not None and weight is None:
        raise ValueError("v: expected a weight of shape (Dq + Dk, A) beside it, got none")
    if v is not None and len(v) != 1:
        raise ValueError(f"v: expected shape (A,), got {tuple(v)}")
    if v is not None:
        matrix("weight", weight, (Dq + Dk, v[0]), "(Dq + Dk, A)")
    elif weight is not None:
        matrix("weight", weight, (Dq, Dk), "(Dq, Dk)")
    elif Dq != Dk:
        raise ValueError(
            f"key: expected the size of query, Dq = {Dq}, got Dk = {Dk} (without a weight the "
            "score is their dot product)"
        )


def listed(shapes):
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def matrix(name, shape, expected, letters):
    if tuple(shape) != expected:
        raise ValueError(f"{name}: expected shape {letters} = {expected}, got {tuple(shape)}")
