"""Practice of the chapter "Empty rows and leaks": a bet, a safe softmax, two detectors of leaks."""

import math

import numpy as np
import torch

import attn
from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("empty-rows-and-leaks")

PADDING, LENGTH, SIZE = 2, 13, 6
DOCUMENT = (np.arange(LENGTH) >= 7).astype(int)  # the padding in front belongs to the first
RULE = attn.Causal() & attn.SameDocument(DOCUMENT) & attn.KeyPadding(start=PADDING)


def make_box(seed, plant="nothing"):
    """Return a layer that should keep to RULE, with nothing or one leak planted in it."""
    w = np.random.default_rng(seed).normal(size=(3, SIZE, SIZE)) / math.sqrt(SIZE)
    q, k = np.arange(LENGTH)[:, None], np.arange(LENGTH)
    causal, real = k <= q, k >= PADDING
    same = DOCUMENT[:, None] == DOCUMENT
    seen = {"future": (k <= q + 1) & same & real,
            "padding": causal & same,
            "document": causal & real}.get(plant, causal & same & real)
    axis = 0 if plant == "everything" else -1

    def box(x):
        y = x + attn.scaled_dot_product_attention(*(x @ w), seen)
        y = y - y.mean(axis=axis, keepdims=True)
        return np.tanh(y / (y.std(axis=axis, keepdims=True) + 1e-5))

    return box


def black_boxes():
    """Return the five boxes of the chapter. Their order is not told here in plain words."""
    plants = ("document", "everything", "nothing", "future", "padding")
    return {name: make_box(seed, plant)
            for seed, (name, plant) in enumerate(zip("ABCDE", plants, strict=True))}


@practice.exercise(
    "How lucky would an honest model be?", marks=1, minutes=6,
    statement=r"""
    `losses` holds the losses of single tokens in nats, measured on fresh tokens drawn evenly and
    independently from `V`. Return an upper bound on the probability that a model which cannot see
    the answers reaches a loss as low as that: $1 / W_n$, where $W_n$ is the capital, and never more
    than 1.
    """,
    hints=[
        r"One token multiplies the capital by $V p$, and the loss is $-\ln p$. What is $\ln W_n$?",
        r"$\ln W_n = n \ln V - \sum_t \text{loss}_t$: a sum, not a mean. Then `math.exp` of minus "
        r"that, capped at 1.",
    ],
    notes=r"""
    Take the minimum before the exponential: for a model that does worse than $\ln V$ the
    exponential of a large number would overflow.
    """)
def luck(losses, V):
    """Return the bound, a float between 0 and 1."""
    ### BEGIN SOLUTION
    capital = len(losses) * math.log(V) - float(np.sum(losses))  # its logarithm
    return math.exp(min(0.0, -capital))
    ### END SOLUTION


@luck.check
def _(answer):
    rng = np.random.default_rng(3)
    below = math.log(11) - 0.02 + 0.001 * rng.normal(size=97)
    gain = 97 * math.log(11) - below.sum()
    require_close(answer(below.copy(), 11), math.exp(-gain), what="97 losses, 0.02 below ln 11",
                  slips=[
        (math.exp(-gain / 97), "that is the bound for one token: add the losses up, no mean"),
        (math.exp(gain), "that is the capital: the probability is one over it"),
        (1.0, "the sign is turned: a loss below ln V is a gain"),
        (math.exp(-(97 * math.log2(11) - below.sum())), "the losses are in nats: ln V, not log₂ V"),
        (math.exp(-(math.log(11) - below.sum())), "every token has its ln V: n of them")])
    got = answer(np.full(1009, math.log(7) + 1.3), 7)
    require(got <= 1, f"for losses above ln V the bound is {got:.3g}: a probability is at most 1")
    require_close(got, 1.0, what="losses above ln V")


@luck.wrong("takes the mean of the losses", says="no mean")
def _(losses, V):
    return math.exp(min(0.0, -(math.log(V) - float(np.mean(losses)))))


@luck.wrong("returns the capital", says="one over it")
def _(losses, V):
    return math.exp(len(losses) * math.log(V) - float(np.sum(losses)))


@luck.wrong("forgets the cap", says="at most 1")
def _(losses, V):
    return float(np.exp(np.sum(losses) - len(losses) * math.log(V)))


@practice.exercise(
    "A softmax that survives", marks=2, minutes=12,
    statement=r"""
    The scores come with the mask already added: hidden ones are $-\infty$. Write a softmax over the
    last axis in PyTorch in which a row of nothing but $-\infty$ gives zeros, and **all gradients
    stay finite**. You may use `torch.softmax`. The scores that came in are not changed.
    """,
    hints=[
        "Repairing the result is too late for the gradient. What must the softmax never be given?",
        "Find the empty rows with `torch.isneginf(scores).all(dim=-1, keepdim=True)`. Fill them "
        "with 0 *before* the softmax, and set their weights to 0 *after* it.",
    ],
    notes=r"""
    Both fills are needed: the first for the gradient, the second for the value. Going back, the
    second hands 0 to the row, and a softmax of zeros turns that into 0 instead of NaN.
    """)
def safe_softmax(scores):
    """Return the weights, a tensor of the shape of scores."""
    ### BEGIN SOLUTION
    empty = torch.isneginf(scores).all(dim=-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0), dim=-1)
    return weights.masked_fill(empty, 0)
    ### END SOLUTION


@safe_softmax.check
def _(answer):
    rng = np.random.default_rng(5)
    given = 3 * rng.normal(size=(3, 5, 7))
    given[2] += 1000  # a large shift, as from large inputs
    seen = rng.random((3, 5, 7)) < 0.5
    seen[..., 3] = True
    seen[0, 0], seen[1, 3] = False, False
    given[~seen] = -np.inf
    scores, empty = torch.tensor(given, requires_grad=True), ~seen.any(axis=-1)
    kept = scores * 1
    got = answer(kept)
    require(torch.equal(kept.detach(), torch.from_numpy(given)),
            "the scores that came in were changed: masked_fill, not masked_fill_")
    require(isinstance(got, torch.Tensor) and got.shape == scores.shape,
            f"expected a tensor of shape {tuple(scores.shape)}")
    values = got.detach().numpy()
    require(not np.isnan(values[empty]).any(), "an empty row gives NaN")
    require(not values[empty].any(),
            f"an empty row gives {values[empty][0, 0]:.3f}, not 0: it looks at hidden keys")
    top = np.where(empty, 0, given.max(axis=-1))[..., None]
    total = np.exp(given - top).sum(axis=-1, keepdims=True)
    require_close(values, np.exp(given - top) / np.where(total == 0, 1, total),
                  what="the weights of 15 rows, two of them empty")
    (got * torch.from_numpy(rng.normal(size=given.shape))).sum().backward()
    require(scores.grad is not None, "no gradient reaches the scores")
    bad = torch.isnan(scores.grad).any(dim=-1).sum().item()
    require(bad == 0, f"the weights are right, but the gradient of {bad} rows is NaN: the repair "
                      "comes after the softmax, which still sees an empty row")
    require(scores.grad[torch.from_numpy(~empty)].any(),
            "the gradient of the other rows is 0: something was cut off the graph")


@safe_softmax.wrong("turns NaN into 0 after the softmax", says="the repair comes after the softmax")
def _(scores):
    return torch.softmax(scores, dim=-1).nan_to_num()


@safe_softmax.wrong("selects 0 for empty rows after the softmax", says="still sees an empty row")
def _(scores):
    empty = torch.isneginf(scores).all(dim=-1, keepdim=True)
    return torch.where(empty, 0.0, torch.softmax(scores, dim=-1))


@safe_softmax.wrong("puts −10⁹ in place of −∞", says="it looks at hidden keys")
def _(scores):
    return torch.softmax(scores.clamp(min=-1e9), dim=-1)


@safe_softmax.wrong("overwrites the caller's scores", says="not masked_fill_")
def _(scores):
    empty = torch.isneginf(scores).all(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill_(empty, 0), dim=-1).masked_fill(empty, 0)


@practice.exercise(
    "A detector of your own", marks=2, minutes=12,
    statement=r"""
    Return a boolean array of shape $(L, L)$: entry $(i, j)$ is `True` if output $i$ changes when
    input $j$ changes although `allowed[i, j]` is `False` and $i \ne j$. `function` maps an array
    $(L, E)$ to an array $(L, \dots)$ and gives the same output for the same input. Change one
    position at a time, by a number of ordinary size, and leave `x` as it was. Leaks may be tiny.
    """,
    hints=[
        "Call the function once for the base. For each $j$ copy `x`, add 1 to row `j`, call again.",
        "An output that hears nothing of input $j$ is equal **in every bit**: compare with `!=` "
        "over all axes but the first. At the end take away what is allowed, and the diagonal.",
    ],
    notes=r"""
    A function without chance gives equal bits for equal inputs, so no tolerance is needed. `attn`'s
    version changes many positions at once where the mask allows it, and repeats the random numbers.
    """)
def leaking_pairs(function, x, allowed):
    """Return which hidden inputs change which outputs, a bool array of shape (L, L)."""
    ### BEGIN SOLUTION
    L, base = len(x), function(x.copy())
    changed = np.zeros((L, L), dtype=bool)
    for j in range(L):
        other = x.copy()
        other[j] += 1
        changed[:, j] = (function(other) != base).reshape(L, -1).any(axis=1)
    return changed & ~allowed & ~np.eye(L, dtype=bool)
    ### END SOLUTION


@leaking_pairs.check
def _(answer):
    L = 11
    x = np.random.default_rng(8).normal(size=(L, 3))
    before = x.copy()
    q, k = np.arange(L)[:, None], np.arange(L)
    causal = k <= q
    allowed = causal & ~np.eye(L, dtype=bool)  # the own position is not in the mask here

    def leaky(x, size=1.0):
        return causal @ x + size * np.where((q == 2) & (k == 7), 1.0, 0.0) @ np.sin(x)

    for size, name in ((1.0, "a leak from 7 into 2"), (1e-11, "a leak from 7 into 2 of size 1e-11"),
                       (0.0, "no leak")):
        got = np.asarray(answer(lambda x, size=size: leaky(x, size), x, allowed))
        require(np.array_equal(x, before), "x was changed: work on a copy for every position")
        require(got.shape == (L, L), f"expected shape {(L, L)}, got {got.shape}")
        want = np.zeros((L, L), bool)
        want[2, 7] = size > 0
        if not np.array_equal(got, want):
            require(not np.array_equal(got, want.T) or not size,
                    "rows and columns are swapped: [i, j] is output i and input j")
            require(not np.diagonal(got).any(),
                    "an output may always depend on its own position: leave the diagonal out")
            require(got[2, 7] or not size, f"{name} is not found: compare bits, no tolerance")
            raise Wrong(f"{name}: expected {want.sum()} pairs, got {got.sum()}")
    got = np.asarray(answer(lambda x: x[:, :2] + (x[:, 2:] * 0 + 1) * x[-1:, 2:], x, allowed))
    require(got[:-1, -1].all(), "a function whose outputs have two columns: all of them count")


@leaking_pairs.wrong("compares with a tolerance", says="no tolerance")
def _(function, x, allowed):
    L, base = len(x), function(x)
    changed = np.zeros((L, L), dtype=bool)
    for j in range(L):
        other = x.copy()
        other[j] += 1
        changed[:, j] = ~np.isclose(function(other), base).all(axis=1)
    return changed & ~allowed & ~np.eye(L, dtype=bool)


@leaking_pairs.wrong("changes the caller's array", says="work on a copy")
def _(function, x, allowed):
    L, base = len(x), function(x)
    changed = np.zeros((L, L), dtype=bool)
    for j in range(L):
        x[j] += 1
        changed[:, j] = (function(x) != base).any(axis=1)
    return changed & ~allowed & ~np.eye(L, dtype=bool)


@leaking_pairs.wrong("counts the own position as a leak", says="its own position")
def _(function, x, allowed):
    L, base = len(x), function(x)
    changed = np.zeros((L, L), dtype=bool)
    for j in range(L):
        other = x.copy()
        other[j] += 1
        changed[:, j] = (function(other) != base).any(axis=1)
    return changed & ~allowed


@leaking_pairs.wrong("puts inputs in the rows", says="rows and columns are swapped")
def _(function, x, allowed):
    L, base = len(x), function(x)
    changed = np.zeros((L, L), dtype=bool)
    for j in range(L):
        other = x.copy()
        other[j] += 1
        changed[:, j] = (function(other) != base).any(axis=1)
    return (changed & ~allowed & ~np.eye(L, dtype=bool)).T


@practice.exercise(
    "Name the leak", marks=3, minutes=20,
    statement=r"""
    Write the verdict on a black box. Given the box, an input `x` and `allowed`, the boolean mask
    that was meant, return one word: `"nothing"`, `"everything"` (every hidden pair leaks),
    `"future"`, `"padding"` (a column of `allowed` without any `True`) or `"document"` (the rest).
    If it leaks in several ways, the first of these words that fits. An output may depend on its own
    position. `attn.influence(box, x)` is yours to use.
    """,
    hints=[
        "`strange = attn.influence(box, x) & ~allowed`, without the diagonal. How do you recognise "
        '"nothing" and "everything"?',
        "`np.triu(strange, 1)` is what comes from the future; a padding column has "
        "`~allowed.any(axis=0)`.",
    ],
    notes=r"""
    `find_leaks` needs fewer calls and names the *first* leak, at the lowest output. That says where
    to look, not what the bug is: a normalisation over time shows up there as "padding" or "the
    future", whichever comes first. The whole matrix tells them apart.
    """)
def verdict(box, x, allowed):
    """Return nothing, everything, future, padding or document."""
    ### BEGIN SOLUTION
    hidden = ~allowed & ~np.eye(len(allowed), dtype=bool)
    strange = attn.influence(box, x) & hidden
    if not strange.any():
        return "nothing"
    if (strange == hidden).all():
        return "everything"
    if np.triu(strange, 1).any():
        return "future"
    return "padding" if strange[:, ~allowed.any(axis=0)].any() else "document"
    ### END SOLUTION


@verdict.check
def _(answer):
    x = np.random.default_rng(13).normal(size=(LENGTH, SIZE))
    allowed = attn.dense_mask(RULE, LENGTH, LENGTH)[0, 0]
    says = {
        "nothing": "a box without a leak gets the verdict {got!r}: an output may depend on itself",
        "everything": "a normalisation over time changes every output and gets the verdict {got!r}:"
                      " look at all pairs, not at the first",
        "future": "a mask one too long gets the verdict {got!r}",
        "padding": "a box that reads the padding in front gets the verdict {got!r}",
        "document": "a box that reads the document before gets the verdict {got!r}"}
    for seed, plant in enumerate(("future", "document", "padding", "nothing", "everything"), 20):
        got = answer(make_box(seed, plant), x.copy(), allowed.copy())
        require(got == plant, says[plant].format(got=got))


@verdict.wrong("takes the first leak for the whole", says="gets the verdict 'document'")
def _(box, x, allowed):
    report = attn.find_leaks(box, x, allowed)
    kinds = {"the future": "future", "padding": "padding", "another document": "document"}
    return "nothing" if report.passed else kinds.get(report.leak.kind, "everything")


@verdict.wrong("tests the future only", says="document before gets the verdict 'nothing'")
def _(box, x, allowed):
    return "future" if np.triu(attn.influence(box, x), 1).any() else "nothing"


@verdict.wrong("counts the own position", says="an output may depend on itself")
def _(box, x, allowed):
    strange = attn.influence(box, x) & ~allowed
    if np.triu(strange, 1).all():
        return "everything"
    if np.triu(strange, 1).any():
        return "future"
    between = strange[7:, 2:7].any()
    if between:
        return "document"
    return "padding" if strange.any() else "nothing"


practice.quiz(
    Question("A query may attend to no key. Which output keeps hidden values hidden **and** is "
             "linear in the values?", [
        choice("The mean of all values", reason="It changes when a hidden value changes."),
        choice("NaN", reason="It is not a number, so nothing is linear here; and it spreads."),
        choice("0", right=True, reason="Independent of the values means constant, and linear means "
                                       "that the constant is 0."),
        choice("The value at the query's own position", reason="That key is hidden as well."),
    ]),
    Question("The loss is taken over real tokens only, and it is finite. One padded query had an "
             "empty row, and its softmax gave NaN. What about the gradients?", [
        choice("They are finite: the NaN never reached the loss",
               reason="Backwards its row is multiplied by 0, and 0 times NaN is NaN."),
        choice("The gradients of the weight matrices are NaN", right=True,
               reason="Each is a sum over all positions, and one term is 0 times NaN."),
        choice("Only the gradient of the padded position is NaN",
               reason="The matrices are shared: their gradients sum over all positions."),
    ]),
    Question("A model reads 100,000 fresh random tokens of 50 kinds. Its mean loss is "
             "ln 50 − 0.01. What follows?", [
        choice("It has memorised its training data",
               reason="Fresh tokens were in no training data."),
        choice("Nothing: a hundredth of a nat is noise",
               reason="An honest model gains 1000 nats with probability below $e^{-1000}$."),
        choice("It generalises well", reason="There is nothing to generalise: tokens are random."),
        choice("It sees something of the answers", right=True,
               reason="The capital is $e^{1000}$, in a fair game."),
    ]),
    Question("Packed documents are not separated: tokens see earlier documents. Which check finds "
             "it?", [
        choice("`find_leaks` with `Causal() & SameDocument(…)`", right=True,
               reason="It compares with the mask that was meant."),
        choice("`find_leaks` with `Causal()`", reason="Earlier documents are past: it passes."),
        choice("The loss on random tokens",
               reason="Earlier random tokens say nothing about the next one."),
    ]),
    Question("`find_leaks` found nothing. What do you know?", [
        choice("That the function keeps to the mask, whatever the input",
               reason="It may look elsewhere for other values of x."),
        choice("That its mask is right", reason="Only that it keeps to the mask you handed over."),
        choice("That no change at this x got through, beyond rounding", right=True,
               reason="Evidence, for this x: strong, and not a proof."),
    ]))
