"""Interval arithmetic for mask rules: what a rule says of a whole tile at once.

A tile is a span of query positions by a span of key positions. A rule written with `+ - // < <= >
>= ==` and `& | ~` runs unchanged on spans and answers with two booleans: may *any* pair of the tile
attend, may *all* of them? So the tiles that hold no pair are found without looking at the L · S
pairs one by one. The answer is never wrong but may be cautious: `any` may be true of an empty tile,
`all` false of a full one, never the other way round.
"""

from dataclasses import dataclass

import numpy as np


def refuse(self, *args, **kwargs):
    # Else np.where(truth, …), `if`, `and` and np.asarray would take the object for a plain True.
    raise TypeError(
        f"{type(self).__name__} stands for many pairs: it is no array and no truth value"
    )


@dataclass(frozen=True, eq=False)
class Truth:
    """Answers for every tile: `any` (at least one pair may attend) and `all` (every pair)."""

    any: np.ndarray
    all: np.ndarray
    __array_ufunc__ = None  # an array on the left of & or | asks this class

    def __and__(self, other):
        other = as_truth(other)
        return Truth(self.any & other.any, self.all & other.all)

    def __or__(self, other):
        other = as_truth(other)
        return Truth(self.any | other.any, self.all | other.all)

    def __invert__(self):
        return Truth(np.logical_not(self.all), np.logical_not(self.any))

    def __xor__(self, other):
        other = as_truth(other)
        return (self & ~other) | (~self & other)

    def __eq__(self, other):
        return ~(self ^ other)

    __rand__, __ror__, __rxor__, __ne__ = __and__, __or__, __xor__, __xor__
    __hash__ = None
    __bool__ = __array__ = refuse


def as_truth(answer):
    """A comparison that read no position (of heads, of batch rows) holds for the whole tile."""
    if isinstance(answer, Truth):
        return answer
    answer = np.asarray(answer)
    if answer.dtype != bool:
        raise TypeError(f"expected a boolean answer, got dtype {answer.dtype}")
    return Truth(answer, answer)


@dataclass(frozen=True, eq=False)
class Span:
    """All integers from `low` to `high`, both included; arrays of bounds stand for many spans."""

    low: np.ndarray
    high: np.ndarray
    __array_ufunc__ = None

    def __add__(self, other):
        other = as_span(other)
        return Span(self.low + other.low, self.high + other.high)

    def __sub__(self, other):
        other = as_span(other)
        return Span(self.low - other.high, self.high - other.low)

    def __rsub__(self, other):
        return as_span(other) - self

    def __floordiv__(self, step):
        ends = self.low // step, self.high // step
        return Span(np.minimum(*ends), np.maximum(*ends))  # a negative step turns them round

    # Each comparison of a with b is a statement about the span of differences a - b.
    def __lt__(self, other):
        gap = self - other
        return Truth(gap.low < 0, gap.high < 0)

    def __le__(self, other):
        gap = self - other
        return Truth(gap.low <= 0, gap.high <= 0)

    def __gt__(self, other):
        gap = self - other
        return Truth(gap.high > 0, gap.low > 0)

    def __ge__(self, other):
        gap = self - other
        return Truth(gap.high >= 0, gap.low >= 0)

    def __eq__(self, other):
        gap = self - other
        return Truth((gap.low <= 0) & (gap.high >= 0), (gap.low == 0) & (gap.high == 0))

    def __ne__(self, other):
        return ~(self == other)

    __radd__ = __add__
    __hash__ = None
    __bool__ = __array__ = refuse

    def contains_multiple(self, step):
        """Does the span hold a multiple of `step`; does it hold nothing else?"""
        some = self.high // step * step >= self.low
        return Truth(some, some & ((self.low == self.high) | (step == 1)))


def as_span(value):
    return value if isinstance(value, Span) else Span(value, value)
