"""The calls on which an attention function is tried: designed, not collected.

A call is described by eight factors (FACTORS): each has a few levels, from the simplest to those at
which public code went wrong. Every pair of levels that can stand together occurs in some trial
(attn.check.covering), so a fault that shows under any two circumstances is met; one that needs
three may be missed. A few calls stand beside the array, for faults that need a call of their own.
Imports attn.check.covering.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

import numpy as np

from attn.check.covering import covering_array

FACTORS = {
    # Padding lies at the end, in front, or as holes; two queries cannot be told apart by it.
    "content": (
        "none", "scattered", "causal", "right padding", "left padding", "inner padding",
        "causal and right padding", "causal and left padding", "window", "documents",
        "upper-left causal", "full", "empty query", "empty sequence",
    ),
    # L queries and S keys, below and above tiles of 16 to 128, which divide them or do not.
    "lengths": (
        (5, 7), (7, 7), (7, 3), (3, 1), (1, 7), (1, 131), (5, 131), (131, 5), (19, 37), (32, 64),
        (67, 70), (129, 131),
    ),
    # Which axes of the mask have their full length; the others have length 1. Keys always have it.
    "axes": ("none", "BHLS", "BLS", "LS", "BS", "S", "HLS", "HS", "BHS"),
    "values": ("ordinary", "one-hot", "zero queries", "equal keys", "large", "small"),
    "heads": ((1, 1), (3, 3), (6, 2), (4, 1)),  # H and Hkv
    "sizes": ((3, 2), (4, 4), (2, 5), (16, 11)),  # D and Dv
    "batch": (1, 2),
    "dtype": ("float64", "float32"),
}  # fmt: skip
FOR_ALL_QUERIES = {"right padding", "left padding", "inner padding", "full", "empty sequence"}
MOST_PAIRS = 40_000  # B·H·L·S of one call: what keeps the whole below a second

# How far below a hidden key the visible one lies, row by row, in the trial of finite fills.
LADDER = 3.0 * 10.0 ** np.arange(17)


@dataclass(frozen=True)
class Space:
    """What the function is asked to do: the options of check_attention that shape the trials."""

    grouped: bool = True
    masks: bool = True
    square: bool = False
    multiple_of: int = 1
    dtype: str = "float64"
    mirrored: bool = False  # other combinations of the same levels

    @property
    def factors(self):
        kept = dict(FACTORS)
        kept["lengths"] = tuple(dict.fromkeys(map(self.fit, FACTORS["lengths"])))
        if not self.grouped:
            kept["heads"] = tuple(h for h in FACTORS["heads"] if h[0] == h[1])
        if not self.masks:
            kept["content"] = kept["axes"] = ("none",)
        if self.dtype == "float32":
            kept["dtype"] = ("float32",)
        return dict(reversed(kept.items())) if self.mirrored else kept

    def fit(self, lengths):
        """The nearest lengths above that the function takes; unequal ones stay unequal."""
        if self.square:
            lengths = (max(lengths),) * 2
        n = self.multiple_of
        L, S = (-(-x // n) * n for x in lengths)
        if n > 1 and L == S and lengths[0] != lengths[1]:
            L, S = (L + n, S) if lengths[0] > lengths[1] else (L, S + n)
        return L, S

    def allowed(self, row):
        """Whether the levels chosen so far go together."""
        content, axes = row.get("content"), row.get("axes")
        if content and axes and (content == "none") != (axes == "none"):
            return False
        if content and axes and "L" not in axes and content not in {*FOR_ALL_QUERIES, "none"}:
            return False
        most = max(MOST_PAIRS, 36 * self.multiple_of**2)
        (L, S), (H, _) = row.get("lengths", (1, 1)), row.get("heads", (1, 1))
        return row.get("batch", 1) * H * L * S <= most


class Trial(NamedTuple):
    """One call: its levels, the three operands and a boolean mask (True = may attend) or None."""

    row: dict
    query: np.ndarray  # (B, H, L, D)
    key: np.ndarray  # (B, Hkv, S, D)
    value: np.ndarray  # (B, Hkv, S, Dv)
    mask: np.ndarray | None  # (1|B, 1|H, 1|L, S)
    unit: float  # how far a rounding of relative size 1 may move an output

    @property
    def operands(self):
        return self.query, self.key, self.value, self.mask

    def __str__(self):
        (B, H, L, D), (_, Hkv, S, Dv) = self.query.shape, self.value.shape
        said = [f"{self.row['content']} mask" * (self.mask is not None) or "no mask"]
        if self.row["values"] != "ordinary":
            said.append(f"{self.row['values']} scores".replace("queries scores", "queries"))
        said += [name for name in ("float32",) if self.query.dtype == name]
        said += [self.row["call"]] if "call" in self.row else []
        mask = "no mask" if self.mask is None else f"mask {self.mask.shape}"
        sizes = f"B={B}, H={H}, Hkv={Hkv}, L={L}, S={S}, D={D}, Dv={Dv}, {mask}"
        return f"{', '.join(said)} ({sizes})".replace("keys scores", "keys")


@lru_cache(maxsize=32)
def make_trials(space, seed):
    """All trials, the simplest first: a bug is shown at the first trial that has it."""
    rows = covering_array(space.factors, space.allowed)
    trials = [make_trial(row, seed) for row in sorted(rows, key=lambda row: _rank(row, space))]
    trials += [_again(space, seed, turn) for turn in range(1, 4)]
    if space.masks:
        trials.append(_ladder(space))
    return tuple(trials)


def _rank(row, space):
    """How far a row is from the simplest call: factors that depart, then size, then levels."""
    factors = space.factors
    levels = [factors[name].index(row[name]) for name in factors]
    L, S = row["lengths"]
    return sum(map(bool, levels)), row["batch"] * row["heads"][0] * L * S, levels


def make_trial(row, seed):
    """The call of a row of levels."""
    rng = np.random.default_rng([seed, crc32(repr(sorted(row.items())).encode())])
    (H, Hkv), (L, S), (D, Dv) = row["heads"], row["lengths"], row["sizes"]
    B = row["batch"]
    operands = _operands(row["values"], rng, (B, H, L, D), (B, Hkv, S, D), (B, Hkv, S, Dv))
    mask = None
    if row["content"] != "none":
        mask = _content(row["content"], rng, B, H, L, S)
        for axis, letter in enumerate("BHL"):
            if letter not in row["axes"]:
                mask = mask[(slice(None),) * axis + (slice(0, 1),)]
    return _trial(row, operands, mask)


def _trial(row, operands, mask):
    query, key, value = (x.astype(row["dtype"]) for x in operands)
    # Rounding acts on scores and on values.
    unit = (1 + min(largest_score(query, key), 2000.0)) * float(np.abs(value).max())
    return Trial(row, query, key, value, mask, unit)


def largest_score(query, key):
    """No score is larger."""
    longest = [float(np.linalg.norm(x, axis=-1).max()) for x in (query, key)]
    return longest[0] * longest[1] / query.shape[-1] ** 0.5


# The operands


def _operands(kind, rng, query_shape, key_shape, value_shape):
    query, key, value = (
        1.5 * rng.normal(size=shape) for shape in (query_shape, key_shape, value_shape)
    )
    if kind == "one-hot":  # a score is exactly 0 where the two ones lie apart, 4/√D elsewhere
        D = query_shape[-1]
        query = 2 * np.eye(D)[rng.integers(D, size=query_shape[:-1])]
        key = 2 * np.eye(D)[rng.integers(D, size=key_shape[:-1])]
        value = np.round(2 * value)
    elif kind == "zero queries":
        query = np.zeros(query_shape)
    elif kind == "equal keys":
        key = np.broadcast_to(key[:, :, :1], key_shape).copy()
    elif kind == "large":  # a row's scores are about 1000, or -1000, or both: exp leaves the range
        far = 1000 * query_shape[-1] ** 0.5
        query[..., :2] = np.resize([[1, 0], [-1, 0], [0, 1]], (query_shape[2], 2))
        key[..., 0], key[..., 1] = far, np.resize([far, -far], key_shape[2])
    elif kind == "small":
        query, key, value = 1e-3 * query, 1e-3 * key, 1e-6 * value
    return query, key, value


# The masks, each of them (B, H, L, S) and different for every batch row and head


def _content(kind, rng, B, H, L, S):
    queries, keys = np.arange(L)[:, None] + S - L, np.arange(S)  # the last query at the last key
    every = np.ones((B, H, L, S), bool)
    # How many keys a sequence keeps: at least one, not all, and not as many as its neighbour.
    turn = rng.integers(S) + np.arange(B * H).reshape(B, H, 1, 1) * (S // 2 + 1)
    kept = 1 + turn % max(1, S - 1)
    right, left = every & (keys < kept), every & (keys >= S - kept)
    if kind == "inner padding":
        mask = rng.random((B, H, 1, S)) < 0.7
        hole = rng.integers(1, max(2, S - 1), size=(B, H, 1, 1))
        return every & (mask & (keys != hole) | (keys == 0) | (keys == S - 1))
    if kind in ("scattered", "empty query"):
        mask = rng.random((B, H, L, S)) < 0.6
        np.put_along_axis(mask, rng.integers(S, size=(B, H, L, 1)), True, axis=-1)
        if kind == "empty query":
            np.put_along_axis(mask, rng.integers(L, size=(B, H, 1, 1)), False, axis=2)
        return mask
    if kind == "documents":
        cuts = 1 + turn % max(1, S // 2)  # the first token of the second document
        return every & ((queries >= cuts) == (keys >= cuts))
    if kind == "empty sequence":
        right[0] = False
        return right
    return (
        every
        & {
            "causal": lambda: keys <= queries,
            "upper-left causal": lambda: keys <= np.arange(L)[:, None],
            "right padding": lambda: right,
            "left padding": lambda: left,
            "causal and right padding": lambda: (keys <= queries) & right,
            "causal and left padding": lambda: (keys <= queries) & left,
            "window": lambda: (queries - keys <= 2) & (keys - queries <= 1),
            "full": lambda: every,
        }[kind]()
    )


# The calls beside the array


def _again(space, seed, turn):
    """Calls of one size, one after another, each with other numbers and another mask."""
    row = {name: levels[0] for name, levels in space.factors.items()}
    if space.masks:
        row |= {"content": "scattered", "axes": "BHLS"}
    row |= {"batch": 2, "sizes": (4, 4)}
    return make_trial(row | {"call": f"call {turn} of the same sizes"}, seed)


def _ladder(space):
    """One visible key far below the hidden ones, in row r by LADDER[r]: the value 1 is right."""
    L, S = space.fit((len(LADDER), 2))
    depth = np.resize(LADDER, L)
    query, key = np.zeros((1, 1, L, 4)), np.zeros((1, 1, S, 4))
    query[..., 0], key[..., 0, 0] = -2 * depth, 1
    value = np.broadcast_to([5.0, 6, 7, 8], (1, 1, S, 4)).copy()
    value[:, :, 0] = 1
    row = {name: levels[0] for name, levels in space.factors.items()}
    row |= {"content": "right padding", "axes": "S", "values": "very low", "lengths": (L, S)}
    return _trial(row, (query, key, value), (np.arange(S) == 0)[None, None, None])
