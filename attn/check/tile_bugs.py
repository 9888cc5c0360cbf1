"""Known bugs of attention in tiles, each with the wrong formula that it computes.

Tiles of the usual sizes are tried. A bug of one tile size that is not among them is described, not
named. Imports attn.check.steps.
"""

import numpy as np

from attn.check.steps import bugs, divide

TILES = (2, 4, 8, 16, 32, 64, 128)


def _blocks(T, shrink_output=True, shrink_sum=True):
    """The online softmax over tiles of T keys, with a rescaling left out."""

    def blocks(scores, value):
        top = np.full((*scores.shape[:-1], 1), -np.inf, scores.dtype)
        total, output = np.zeros_like(top), 0
        for start in range(0, scores.shape[-1], T):
            part = scores[..., start : start + T]
            new = np.maximum(top, part.max(-1, keepdims=True))
            safe = np.where(np.isneginf(new), 0, new)
            exps, shrink = np.exp(part - safe), np.exp(top - safe)
            total = total * (shrink if shrink_sum else 1) + exps.sum(-1, keepdims=True)
            output = (
                output * (shrink if shrink_output else 1) + exps @ value[..., start : start + T, :]
            )
            top = new
        return output / np.where(total == 0, 1, total)

    return {"blocks": blocks}


def _each_alone(T):
    """Each tile with a softmax of its own, the outputs added or averaged."""

    def blocks(scores, value, mean):
        parts = []
        for start in range(0, scores.shape[-1], T):
            part = scores[..., start : start + T]
            top = part.max(-1, keepdims=True)
            exps = np.exp(part - np.where(np.isneginf(top), 0, top))
            parts.append(divide(exps, -1, 0) @ value[..., start : start + T, :])
        return sum(parts) / (len(parts) if mean else 1)

    yield {"blocks": lambda scores, value: blocks(scores, value, False)}
    yield {"blocks": lambda scores, value: blocks(scores, value, True)}


def _hidden_keys(hidden):
    """The mask, or none, with some keys hidden as well: hidden(S) is an array of (S,)."""

    def mask(mask, n):
        extra = ~hidden(n.S)
        if extra.all():
            return mask
        return extra[None, None, None] if mask is None else mask & extra

    return {"mask": mask}


def _seen_keys(seen):
    return {"mask": lambda mask, n: None if mask is None else mask | seen(n.S)}


def _zero_keys(T):
    """Keys are filled up to whole tiles with zeros, and these are counted."""

    def read(query, key, value):
        groups = query.shape[1] // key.shape[1]
        width = ((0, 0), (0, 0), (0, -key.shape[2] % T), (0, 0))
        key, value = (np.repeat(np.pad(x, width), groups, axis=1) for x in (key, value))
        return query, key, value

    def mask(mask, n):
        if mask is None:
            return None
        mask = np.broadcast_to(mask, (*mask.shape[:-1], n.S))
        return np.pad(mask, ((0, 0),) * 3 + ((0, -n.S % T),), constant_values=True)

    yield {"read": read, "mask": mask}
    yield {"read": read, "mask": lambda given, n: None if given is None else np.pad(
        mask(given, n)[..., : n.S], ((0, 0),) * 3 + ((0, -n.S % T),))}  # fmt: skip


def _short_queries(T):
    """The last queries, those of a tile that is not full, are left 0."""

    def write(output):
        L = output.shape[2]
        whole = L // T * T if L > T else L
        return output * (np.arange(L) < whole)[:, None]

    return {"write": write}


def _of(T):
    yield ("output not rescaled between tiles", f"with tiles of {T} keys, the running output keeps "
           "its old scale when the maximum grows",
           _blocks(T, shrink_output=False))  # fmt: skip
    yield ("sum not rescaled between tiles", f"with tiles of {T} keys, the running sum keeps "
           "its old scale when the maximum grows", _blocks(T, shrink_sum=False))  # fmt: skip
    yield ("nothing rescaled between tiles", f"with tiles of {T} keys, running sum and output keep "
           "their old scale when the maximum grows", _blocks(T, False, False))  # fmt: skip
    added, averaged = _each_alone(T)
    yield "a softmax for each tile", f"the outputs of tiles of {T} keys are added", added
    yield "a softmax for each tile", f"the outputs of tiles of {T} keys are averaged", averaged
    for name, says, of in (
        ("last tile left out", f"keys after the last whole tile of {T} are never seen",
         lambda S: np.arange(S) >= (S // T * T if S > T else S)),
        ("keys beyond the limit ignored", f"keys from {T} on are never seen",
         lambda S: np.arange(S) >= T),
        ("keys before the limit ignored", f"only the last {T} keys are seen",
         lambda S: np.arange(S) < S - T),
        ("first tile left out", f"the first {T} keys are not seen where there are more",
         lambda S: (np.arange(S) < T) & (S > T)),
    ):  # fmt: skip
        yield name, says, _hidden_keys(of)
    for name, says, of in (
        ("last tile not masked", f"a last tile of fewer than {T} keys ignores the mask",
         lambda S: (np.arange(S) >= S // T * T) & (S > T)),
        ("first tile only masked", f"keys from {T} on ignore the mask",
         lambda S: np.arange(S) >= T),
        ("last tile not masked", f"the last tile of {T} keys, full or not, ignores the mask",
         lambda S: (np.arange(S) >= (S - 1) // T * T) & (S > T)),
    ):  # fmt: skip
        yield name, says, _seen_keys(of)
    seen, unseen = _zero_keys(T)
    yield ("keys of zeros counted", f"keys are filled up to tiles of {T} with zeros, which have "
           "weights", seen)  # fmt: skip
    yield ("keys of zeros counted", f"keys are filled up to tiles of {T} with zeros, which have "
           "weights without a mask", unseen)  # fmt: skip
    yield (
        "last queries left out",
        f"queries after the last whole tile of {T} are 0",
        _short_queries(T),
    )


BUGS = bugs(
    "Compare with one tile as long as the sequence; look at the loop's bounds and what it carries.",
    *(row for T in TILES for row in _of(T)),
)
