"""The calls on which an attention function is tried, each small and isolating one law.

Sizes are unequal primes wherever a trial does not need them equal: square shapes hide swapped axes.
Imports nothing from the package.
"""

from typing import NamedTuple

import numpy as np

# How far below a hidden key the visible one lies, row by row, in the trial of finite fills.
LADDER = 3.0 * 10.0 ** np.arange(17)


class Trial(NamedTuple):
    """One call: a name, the three operands and a boolean mask (True = may attend) or None."""

    name: str
    query: np.ndarray  # (B, H, L, D)
    key: np.ndarray  # (B, Hkv, S, D)
    value: np.ndarray  # (B, Hkv, S, Dv)
    mask: np.ndarray | None = None  # (1|B, 1|H, 1|L, S)

    @property
    def operands(self):
        return self.query, self.key, self.value, self.mask

    def __str__(self):
        (B, H, L, D), (_, Hkv, S, Dv) = self.query.shape, self.value.shape
        mask = "no mask" if self.mask is None else f"mask {self.mask.shape}"
        return f"{self.name} (B={B}, H={H}, Hkv={Hkv}, L={L}, S={S}, D={D}, Dv={Dv}, {mask})"


def make_trials(seed, grouped):
    """All trials, the simplest first: a bug is named from the first trial that shows it."""
    rng = np.random.default_rng(seed)
    trials = [*_unmasked(rng), *_masked(rng), _large_scores(rng), _ladder(), *_empty(rng)]
    trials.append(_one_query(rng))
    if grouped:
        trials += [
            _random("shared key heads", rng, 2, 6, 2, 5, 7, 3, 2),
            _random("shared key heads and a mask per head", rng, 1, 6, 3, 5, 7, 11, 2, full=True),
        ]
    float32 = _random("float32", rng, 1, 2, 2, 5, 7, 3, 2)
    return [*trials, float32._replace(**{x: getattr(float32, x).astype(np.float32)
                                         for x in ("query", "key", "value")})]  # fmt: skip


def _random(name, rng, B, H, Hkv, L, S, D, Dv, mask=None, full=False):
    def normal(*shape):
        return 1.5 * rng.normal(size=shape)

    if full:  # every row keeps one key at least, every axis its full length
        mask = rng.random((B, H, L, S)) < 0.6
        np.put_along_axis(mask, rng.integers(S, size=(B, H, L, 1)), True, axis=-1)
    return Trial(name, normal(B, H, L, D), normal(B, Hkv, S, D), normal(B, Hkv, S, Dv), mask)


def _unmasked(rng):
    yield _random("one head", rng, 1, 1, 1, 5, 7, 3, 2)
    yield _random("one head, as many keys as queries", rng, 1, 1, 1, 5, 5, 3, 3)
    yield _random("several heads", rng, 1, 3, 3, 5, 7, 2, 4)
    yield _random("batch", rng, 2, 3, 3, 7, 11, 5, 4)
    yield _random("batch, as many keys as queries", rng, 2, 3, 3, 5, 5, 7, 4)


def _masked(rng):
    triangle = np.tril(np.ones((5, 5), bool))[None, None]
    yield _random("causal mask", rng, 1, 2, 2, 5, 5, 3, 2, triangle)
    offset = np.tril(np.ones((3, 7), bool), k=4)[None, None]
    yield _random("causal mask after four cached keys", rng, 1, 2, 2, 3, 7, 5, 2, offset)
    yield _random("a mask for each batch row and head", rng, 2, 3, 3, 5, 7, 11, 2, full=True)
    stops = np.array([3, 4])[:, None, None, None]
    for name, L, S in (("padding, as many keys as queries", 5, 5), ("padding", 3, 7)):
        yield _random(name, rng, 2, 3, 3, L, S, 11, 2, np.arange(S) < stops)


def _large_scores(rng):
    """Scores near 2000, near -2000 and both: exp of any of them leaves the range of floats."""
    query = np.array([[2.0, 0], [-2, 0], [0, 2]])[None, None]
    key = np.array([[1000.0, 500], [1001, -500], [1002, 499], [999, 3], [1000.5, 501]])[None, None]
    pad = ((0, 0),) * 3 + ((0, 2),)  # D = 4: √D = 2, so the scores are exact numbers
    return Trial("large scores", np.pad(query, pad), np.pad(2 * key, pad),
                 rng.normal(size=(1, 1, 5, 2)))  # fmt: skip


def _ladder():
    """One visible key far below one hidden key, in row r by LADDER[r]: the value 1 is right."""
    query = np.zeros((1, 1, len(LADDER), 4))
    query[..., 0] = -2 * LADDER
    key = np.eye(4)[None, None, :2]
    value = np.array([[1.0, 1.0, 1.0], [5.0, 6.0, 7.0]])[None, None]
    mask = np.array([True, False])[None, None, None]
    return Trial("a hidden key above very low scores", query, key, value, mask)


def _empty(rng):
    trial = _random("a query that may attend to nothing", rng, 1, 2, 2, 5, 7, 3, 2, full=True)
    trial.mask[:, :, 2] = False
    yield trial
    stops = np.array([4, 0])[:, None, None, None]
    yield _random("a sequence of nothing but padding", rng, 2, 2, 2, 3, 5, 7, 2,
                  np.arange(5) < stops)  # fmt: skip


def _one_query(rng):
    """A step of decoding, where code often takes a way of its own and forgets the mask there."""
    stops = np.array([4, 6])[:, None, None, None]
    return _random("one query, padded keys", rng, 2, 3, 3, 1, 7, 5, 2, np.arange(7) < stops)
