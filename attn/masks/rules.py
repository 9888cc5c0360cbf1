"""The rules: who may see whom, from the position of a query and the position of a key.

A rule answers, for batch row b, head h, query position q and key position k, whether the pair may
attend: `rule(b, h, q, k) -> bool`. The same few lines of a rule run on NumPy index arrays, on torch
tensors, inside a compiled kernel and on whole spans of positions (attn.masks.spans). True always
means *may attend*. Query i sits at position i + q_offset, where q_offset counts the keys that come
before query 0.

    >>> from attn import Causal, SlidingWindow, dense_mask
    >>> dense_mask(Causal() & SlidingWindow(1), 4, 4)[0, 0].astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1]])

To add one: a frozen dataclass here, a row with its picture in tests/mask_table.py, its name in
attn/__init__.py and attn/masks/__init__.py, a cell in the atlas of the chapter on masks.
"""

from dataclasses import dataclass

import numpy as np

from attn import arguments
from attn.arrays import dtype_name, is_tensor
from attn.masks.rule import Mask
from attn.masks.spans import Span


@dataclass(frozen=True, eq=False)
class Causal(Mask):
    """Key k is visible from query q when k <= q."""

    reads_absolute_positions = False

    def __call__(self, b, h, q, k):
        return k <= q


@dataclass(frozen=True, eq=False)
class SlidingWindow(Mask):
    """At most `left` positions before the query's own and `right` after it; None is unbounded."""

    left: int | None
    right: int | None = 0
    reads_absolute_positions = False
    looks_back = property(lambda self: self.left)

    def __post_init__(self):
        for name, reach in (("left", self.left), ("right", self.right)):
            if reach is not None:
                set_int(self, name, reach, low=0)

    def __call__(self, b, h, q, k):
        if self.left is None and self.right is None:
            return k >= 0  # every key
        if self.left is None:
            return k - q <= self.right
        if self.right is None:
            return q - k <= self.left
        return (q - k <= self.left) & (k - q <= self.right)


@dataclass(frozen=True, eq=False)
class Dilated(Mask):
    """Every `step`-th position counted from the query's own, on both sides."""

    step: int
    reads_absolute_positions = False

    def __post_init__(self):
        set_int(self, "step", self.step, low=1)

    def __call__(self, b, h, q, k):
        before = q - k
        if isinstance(before, Span):
            return before.contains_multiple(self.step)
        return before % self.step == 0


@dataclass(frozen=True, eq=False)
class PrefixLM(Mask):
    """Causal, but the first `length` keys (an int or one per batch row) are open to every query."""

    length: object

    def __post_init__(self):
        set_counts(self, "length")

    def __call__(self, b, h, q, k):
        return (k <= q) | (k < row(self.length, b))

    def check_fields(self, q_len, k_len, batch, q_offset, read_values):
        check_rows(self, "length", batch)
        if extremes(self.length, read_values, default=(0, 0))[0] < 0:
            raise ValueError(f"PrefixLM: length: expected a number of keys >= 0, got {self.length}")


@dataclass(frozen=True, eq=False)
class KeyPadding(Mask):
    """Only the keys start <= k < stop hold tokens; each an int or one per batch row, None = all.

    Both lie within the S keys of a call. Only where the keys end with the last query, as a cache
    leaves them, may they lie beyond: the tokens between have yet to come.
    """

    stop: object = None
    start: object = 0
    compares_positions = False

    def __post_init__(self):
        set_counts(self, "start")
        if self.stop is not None:
            set_counts(self, "stop")

    def __call__(self, b, h, q, k):
        from_start = k >= row(self.start, b)
        return from_start if self.stop is None else from_start & (k < row(self.stop, b))

    def check_fields(self, q_len, k_len, batch, q_offset, read_values):
        for name in ("start",) if self.stop is None else ("start", "stop"):
            check_rows(self, name, batch)
            low, high = extremes(getattr(self, name), read_values, default=(0, 0))
            if low < 0 or (high > k_len and not keys_grow(q_len, k_len, q_offset, read_values)):
                raise ValueError(
                    f"KeyPadding: expected 0 <= {name} <= S = {k_len} (a number of keys), got "
                    f"{getattr(self, name)}"
                )


@dataclass(frozen=True, eq=False)
class SameDocument(Mask):
    """Query and key lie in the same document; ids by position, (length,) or (B, length)."""

    query_ids: object
    key_ids: object = None
    compares_positions = False

    def __post_init__(self):
        for name in ("query_ids", "key_ids"):
            ids = getattr(self, name)
            if ids is not None or name == "query_ids":
                ids = integer_array(f"SameDocument: {name}", ids)
                if len(ids.shape) not in (1, 2):
                    raise ValueError(
                        f"SameDocument: {name}: expected shape (length,) or (B, length), got "
                        f"{tuple(ids.shape)}"
                    )
                object.__setattr__(self, name, ids)

    def __call__(self, b, h, q, k):
        key_ids = self.query_ids if self.key_ids is None else self.key_ids
        if isinstance(q, Span):
            return id_span(self.query_ids, b, q) == id_span(key_ids, b, k)
        return at(self.query_ids, b, q) == at(key_ids, b, k)

    def check_fields(self, q_len, k_len, batch, q_offset, read_values):
        key_name = "query_ids" if self.key_ids is None else "key_ids"
        start = 0 if q_offset is None else q_offset
        first, last = extremes(start, read_values, default=(0, 0))
        for name, low, high in (("query_ids", first, last + q_len - 1), (key_name, 0, k_len - 1)):
            ids = getattr(self, name)
            if len(ids.shape) == 2 and ids.shape[0] not in (1, batch):
                raise ValueError(
                    f"SameDocument: {name}: expected B = {batch} rows, got {ids.shape[0]}"
                )
            if low <= high and (low < 0 or high >= ids.shape[-1]):
                raise ValueError(
                    f"SameDocument: {name}: expected ids for the positions {low} to {high}, "
                    f"got ids for 0 to {ids.shape[-1] - 1}"
                )


# Fields of rules: counts and ids, each an int or an integer array (a tensor stays a tensor).


def integer_array(name, value):
    """A copy: the rule is frozen, so what its caller writes later must not change it."""
    value = arguments.listed(name, value)
    if not dtype_name(value).startswith(("int", "uint")) and 0 not in value.shape:
        raise TypeError(f"{name}: expected integers, got dtype {dtype_name(value)}")
    return value.clone() if is_tensor(value) else np.array(value, np.int64)


def set_int(rule, name, value, low=None):
    arguments.integer(f"{type(rule).__name__}: {name}", value, low)
    object.__setattr__(rule, name, int(value))


def set_counts(rule, name):
    value = getattr(rule, name)
    arguments.plain(f"{type(rule).__name__}: {name}", value)
    value = value[()] if isinstance(value, np.ndarray) else value  # one number leaves its array
    if hasattr(value, "__len__"):
        value = integer_array(f"{type(rule).__name__}: {name}", value)
        object.__setattr__(rule, name, value)
    else:
        set_int(rule, name, value)


def check_rows(rule, name, batch):
    value = getattr(rule, name)
    if one_per_row(value):
        arguments.per_row(f"{type(rule).__name__}: {name}", value.shape, batch)


def extremes(value, read_values, default):
    """Smallest and largest entry; `default` where looking would cost a device its pace."""
    if isinstance(value, (int, np.integer)):
        return value, value
    if isinstance(value, (list, tuple)):
        return (min(value), max(value)) if value else default
    if not read_values or 0 in value.shape:
        return default
    try:
        return int(value.min()), int(value.max())
    except RuntimeError:  # a tensor inside torch.func.vmap has no values to look at
        return default


def keys_grow(q_len, k_len, q_offset, read_values):
    """The keys end where the queries end, as those of a cache: more of them will follow."""
    if q_offset is None:
        return False
    return extremes(q_offset, read_values, default=(0, k_len - q_len))[1] + q_len == k_len


def row(value, b):
    return value[b] if one_per_row(value) else value


def one_per_row(value):
    return not isinstance(value, int) and value.shape != ()


def at(ids, b, position):
    if len(ids.shape) == 1:
        return ids[position]
    return ids[b if ids.shape[0] > 1 else b * 0, position]


def id_span(ids, b, span):
    """The span from the smallest to the largest id inside each span of positions."""
    low, high, row = np.broadcast_arrays(span.low, span.high, b if len(ids.shape) > 1 else 0)
    ids = np.atleast_2d(ids)
    pieces = [
        ids[r % len(ids), lo : hi + 1]
        for lo, hi, r in zip(low.flat, high.flat, row.flat, strict=True)
    ]
    bounds = [(piece.min(), piece.max()) for piece in pieces]
    smallest, largest = np.array(bounds, int).reshape(-1, 2).T
    return Span(smallest.reshape(low.shape), largest.reshape(low.shape))
