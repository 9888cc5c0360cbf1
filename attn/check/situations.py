"""What the calls that fail have in common, in the reader's terms.

For wrong answers that no known bug explains: the fewest circumstances that all failing calls have
and, as far as possible, no passing one. Imports nothing from the package.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np

MOST = 3  # circumstances in one description
TILES = (16, 32, 64, 128)


class Situation(NamedTuple):
    """Circumstances in words; how many calls have them, how many of these are wrong; all calls."""

    words: tuple
    have: int
    wrong: int
    calls: int

    def __str__(self):
        if not self.words:
            if self.wrong == self.calls:
                return "wrong in every call"
            return "wrong in calls of every kind"
        return f"wrong only where {' and '.join(self.words)}"

    @property
    def counts(self):
        if not self.words:
            return f"{self.wrong} of {self.calls} calls are wrong"
        others = self.calls - self.have
        wrong = "all" if self.wrong == self.have else f"{self.wrong} of the"
        return f"{wrong} {self.have} such calls are wrong and all {others} others are right"


def situation(trials, failing):
    """The simplest description of the failing trials (their numbers) among all."""
    wrong = np.isin(np.arange(len(trials)), failing)
    circumstances = [(words, np.array([test(t) for t in trials])) for words, test in CIRCUMSTANCES]
    circumstances.append(("calls of the same sizes came before", _repeated(trials)))
    # Only what all failing calls share and some call lacks can tell them apart.
    shared = [(w, has) for w, has in circumstances if has[wrong].all() and not has.all()]
    best = ((~wrong).sum(), (), np.ones(len(trials), bool))
    for size in range(1, MOST + 1):
        for chosen in combinations(shared, size):
            has = np.logical_and.reduce([has for _, has in chosen])
            right_ones = (has & ~wrong).sum()
            # One more circumstance has to exclude several calls: a single one may be chance.
            cost = right_ones + 2 * size
            if cost < best[0]:
                best = cost, tuple(words for words, _ in chosen), has
    _, words, has = best
    return Situation(words, int(has.sum()), int(wrong.sum()), len(trials))


def _repeated(trials):
    """Which trials have the shapes and dtypes of one before them."""
    shapes = [
        tuple((x.shape, x.dtype.name) for x in trial.operands if x is not None) for trial in trials
    ]
    return np.array([shape in shapes[:n] for n, shape in enumerate(shapes)])


# The letters of a trial, and its mask as (B, H, L, S)


def _letters(trial):
    (B, H, L, D), (_, Hkv, S, Dv) = trial.query.shape, trial.value.shape
    return B, H, Hkv, L, S, D, Dv


def _sizes(test):
    return lambda trial: bool(test(*_letters(trial)))


def _mask(test):
    return lambda trial: trial.mask is not None and bool(test(trial.mask, *_letters(trial)))


def _content(*words):
    return lambda trial: any(word in trial.row["content"] for word in words)


def _value(word):
    return lambda trial: trial.row["values"] == word


def _gap(mask):
    first, last = mask.argmax(-1), mask.shape[-1] - 1 - mask[..., ::-1].argmax(-1)
    return (mask.any(-1) & (mask.sum(-1) < last - first + 1)).any()


def _hidden_for_all(mask):
    return ~mask.any(-2)


CIRCUMSTANCES = (
    ("there is no mask", lambda trial: trial.mask is None),
    ("a mask is given", lambda trial: trial.mask is not None),
    ("something is hidden", _mask(lambda m, *_: not m.all())),
    ("the batch has several rows", _sizes(lambda B, H, Hkv, L, S, D, Dv: B > 1)),
    ("there are several heads", _sizes(lambda B, H, Hkv, L, S, D, Dv: H > 1)),
    ("query heads share key heads", _sizes(lambda B, H, Hkv, L, S, D, Dv: Hkv < H)),
    ("every query head has a key head of its own", _sizes(lambda B, H, Hkv, *_: Hkv == H)),
    ("there is one query", _sizes(lambda B, H, Hkv, L, S, D, Dv: L == 1)),
    ("there are several queries", _sizes(lambda B, H, Hkv, L, S, D, Dv: L > 1)),
    ("there are as many queries as keys", _sizes(lambda B, H, Hkv, L, S, D, Dv: L == S)),
    ("queries and keys differ in number", _sizes(lambda B, H, Hkv, L, S, D, Dv: L != S)),
    ("there are more queries than keys", _sizes(lambda B, H, Hkv, L, S, D, Dv: L > S)),
    ("there are more keys than queries", _sizes(lambda B, H, Hkv, L, S, D, Dv: L < S)),
    ("the input is float32", lambda trial: trial.query.dtype == np.float32),
    ("the input is float64", lambda trial: trial.query.dtype == np.float64),
    ("values are as wide as keys", _sizes(lambda B, H, Hkv, L, S, D, Dv: Dv == D)),
    ("values are not as wide as keys", _sizes(lambda B, H, Hkv, L, S, D, Dv: Dv != D)),
    ("the mask has a row for each query",
     _mask(lambda m, B, H, Hkv, L, *_: m.shape[2] > 1)),
    ("one row of the mask serves all queries",
     _mask(lambda m, B, H, Hkv, L, *_: m.shape[2] == 1 < L)),
    ("the mask differs from batch row to batch row", _mask(lambda m, B, *_: len(m) > 1)),
    ("one mask serves several batch rows", _mask(lambda m, B, *_: len(m) < B)),
    ("the mask differs from head to head", _mask(lambda m, B, H, *_: m.shape[1] > 1)),
    ("one mask serves several heads", _mask(lambda m, B, H, *_: m.shape[1] < H)),
    ("a query may attend to nothing", _mask(lambda m, *_: not m.any(-1).all())),
    ("a whole sequence is hidden",
     _mask(lambda m, *_: not m.any((-2, -1)).all())),
    ("the mask hides keys in front from all queries",
     _mask(lambda m, *_: (_hidden_for_all(m)[..., 0]).any())),
    ("the mask hides keys at the end from all queries",
     _mask(lambda m, *_: (_hidden_for_all(m)[..., -1]).any())),
    ("the mask hides some key from all queries",
     _mask(lambda m, *_: _hidden_for_all(m).any())),
    ("the mask has a row for each query and hides some key from all of them",
     _mask(lambda m, *_: m.shape[2] > 1 and _hidden_for_all(m).any())),
    ("the mask is padding in front", _content("left padding")),
    ("the mask is padding at the end", _content("right padding", "sequence")),
    ("the mask is padding with holes", _content("inner padding")),
    ("the mask is causal and padded at once", _content("causal and")),
    ("the mask is padding alone", lambda trial: trial.row["content"].endswith("padding")
     and "causal" not in trial.row["content"]),
    ("the mask is causal", _content("causal")),
    ("the mask is a window", _content("window")),
    ("the mask separates documents", _content("documents")),
    ("the visible keys of a query have gaps", _mask(lambda m, *_: _gap(m))),
    ("a query may not attend to key 0", _mask(lambda m, *_: not m[..., 0].all())),
    ("a query may not attend to the last key", _mask(lambda m, *_: not m[..., -1].all())),
    ("the mask hides nothing", _mask(lambda m, *_: m.all())),
    ("some scores are exactly 0", lambda trial: trial.row["values"] in ("one-hot", "zero queries")),
    ("all scores are 0", _value("zero queries")),
    ("all keys are equal", _value("equal keys")),
    ("scores lie near 1000 or -1000", _value("large")),
    ("scores are far below 0", _value("very low")),
    ("the numbers are small", _value("small")),
    ("the numbers are of ordinary size",
     lambda trial: trial.row["values"] not in ("large", "very low", "small")),
    *(
        (f"there are more than {T} {what}", _sizes(lambda *n, T=T, i=i: n[i] > T))
        for T in TILES for what, i in (("keys", 4), ("queries", 3))
    ),
    *(
        (f"the {what} are more than {T} and no multiple of it",
         _sizes(lambda *n, T=T, i=i: n[i] > T and n[i] % T))
        for T in TILES for what, i in (("keys", 4), ("queries", 3))
    ),
    *(
        (f"the {what} are no multiple of {T}", _sizes(lambda *n, T=T, i=i: n[i] % T))
        for T in (2, 4, 8, 16) for what, i in (("keys", 4), ("queries", 3))
    ),
    ("the head size is above 4", _sizes(lambda B, H, Hkv, L, S, D, Dv: D > 4)),
    ("the head size is odd", _sizes(lambda B, H, Hkv, L, S, D, Dv: D % 2)),
    ("there is one key", _sizes(lambda B, H, Hkv, L, S, D, Dv: S == 1)),
    ("there are several keys", _sizes(lambda B, H, Hkv, L, S, D, Dv: S > 1)),
)  # fmt: skip
