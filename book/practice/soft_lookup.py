"""Practice of the chapter "Soft look-up": turn the dial, keep the best, find nothing."""

import math

import numpy as np

import attn
from practice.form import Practice, Question, choice, require, require_close

practice = Practice("soft-lookup")


def book():
    """A query, seven keys of size 3 and their values of size 2: no two sizes alike."""
    rng = np.random.default_rng(11)
    return rng.standard_normal(3), rng.standard_normal((7, 3)), rng.standard_normal((7, 2))


@practice.exercise(
    "A soft look-up", marks=1, minutes=6,
    statement=r"""
    Look up one query of shape $(D,)$ among `keys` $(S, D)$ with `values` $(S, D_v)$: the weights
    are the softmax of $q \cdot k_j / \tau$, the answer is the weighted average of the values.
    """,
    hints=["`keys @ query` is the vector of all dot products.",
           "`weights @ values` sums over the keys and keeps the size of a value."],
    notes=r"A temperature divides: $\tau \to 0$ sharpens. A scale multiplies: it is $1/\tau$.")
def soft_lookup(query, keys, values, temperature):
    """Return the answer, shape (Dv,)."""
    ### BEGIN SOLUTION
    weights = attn.softmax(keys @ query / temperature)
    return weights @ values
    ### END SOLUTION


@soft_lookup.check
def _(answer):
    query, keys, values = book()
    dots = keys @ query
    for temperature in (0.3, 2.0):
        powers = np.exp(dots / temperature)
        require_close(answer(query, keys, values, temperature), powers @ values / powers.sum(),
                      what=f"soft_lookup(…, temperature={temperature})", slips=[
            (attn.softmax(dots * temperature) @ values, "a temperature divides the scores"),
            (attn.softmax(dots) @ values, "the temperature has no effect"),
            (powers @ values, "the weights do not sum to 1"),
            (values[dots.argmax()], "that is the nearest one alone: every value takes part"),
            (dots / temperature @ values, "these are scores: the softmax is missing"),
        ])


@soft_lookup.wrong("multiplies by the temperature", says="divides the scores")
def _(query, keys, values, temperature):
    return attn.softmax(keys @ query * temperature) @ values


@soft_lookup.wrong("forgets to divide by the sum", says="do not sum to 1")
def _(query, keys, values, temperature):
    return np.exp(keys @ query / temperature) @ values


@soft_lookup.wrong("takes the nearest", says="every value takes part")
def _(query, keys, values, temperature):
    return values[(keys @ query).argmax()]


@practice.exercise(
    "Only the best k", marks=2, minutes=10,
    statement=r"""
    Now only the $k$ keys with the largest scores take part, and their weights sum to 1. With
    $k = S$ it is the soft look-up, with $k = 1$ the nearest key.
    """,
    hints=[
        "`np.argsort(scores)[-k:]` are the places of the k largest scores.",
        r"Which score makes a weight exactly 0? Not 0: $e^0 = 1$.",
    ],
    notes="Choosing before the softmax keeps the sum at 1, whatever the scores are.")
def top_k_lookup(query, keys, values, k, temperature):
    """Return the answer, shape (Dv,)."""
    ### BEGIN SOLUTION
    scores = keys @ query / temperature
    best = np.argsort(scores)[-k:]
    return attn.softmax(scores[best]) @ values[best]
    ### END SOLUTION


@top_k_lookup.check
def _(answer):
    query, keys, values = book()
    scores = keys @ query / 0.8
    order = np.argsort(scores)
    for k in (1, 3, 7):
        best, rest = order[-k:], order[:-k]
        soft, zeroed = attn.softmax(scores), scores.copy()
        zeroed[rest] = 0.0
        slips = [
            (soft[best] @ values[best], "the weights of the best k sum to less than 1: choose "
                                        "before the softmax"),
            (attn.softmax(zeroed) @ values, "a score of 0 is not a weight of 0, since e⁰ = 1"),
            (attn.softmax(scores[order[:k]]) @ values[order[:k]], "these are the k smallest"),
            (values[best].mean(axis=0), "the best k do not all weigh the same"),
        ]
        want = attn.softmax(scores[best]) @ values[best]
        require_close(answer(query, keys, values, k, 0.8), want,
                      what=f"top_k_lookup(…, k={k})", slips=slips)


@top_k_lookup.wrong("drops weights after the softmax", says="less than 1")
def _(query, keys, values, k, temperature):
    weights = attn.softmax(keys @ query / temperature)
    best = np.argsort(weights)[-k:]
    return weights[best] @ values[best]


@top_k_lookup.wrong("sets the other scores to 0", says="since e⁰ = 1")
def _(query, keys, values, k, temperature):
    scores = keys @ query / temperature
    scores[np.argsort(scores)[:-k]] = 0.0
    return attn.softmax(scores) @ values


@practice.exercise(
    "Read the dial backwards", marks=2, minutes=8,
    statement=r"""
    There are two keys, and the score of the first is larger by $\Delta > 0$. At which temperature
    does the first get weight $p$, with $\frac12 < p < 1$?
    """,
    hints=[
        r"The ratio of the two weights is $e^{\Delta/\tau}$.",
        r"That ratio is also $p / (1 - p)$. Take the logarithm.",
    ],
    notes=r"$\tau = \Delta / \ln \frac{p}{1-p}$: to go from 0.9 to 0.99 halves the temperature.")
def temperature_for(gap, weight):
    """Return the temperature."""
    ### BEGIN SOLUTION
    return gap / np.log(weight / (1 - weight))
    ### END SOLUTION


@temperature_for.check
def _(answer):
    for gap, p in ((1.0, 0.9), (0.3, 0.6), (5.0, 0.999)):
        odds = p / (1 - p)
        require_close(answer(gap, p), gap / math.log(odds), what=f"temperature_for({gap}, {p})",
                      slips=[
            (math.log(odds) / gap, "that is the scale, 1/τ"),
            (gap / odds, "the ratio of the weights is an exponential: take its logarithm"),
            (-gap / math.log(p), "p alone is not the ratio: the other weight is 1 − p"),
            (-gap / math.log(odds), "a temperature is positive: turn the fraction over"),
        ])


@temperature_for.wrong("returns the scale", says="that is the scale")
def _(gap, weight):
    return math.log(weight / (1 - weight)) / gap


@temperature_for.wrong("takes the logarithm of one weight", says="1 − p")
def _(gap, weight):
    return -gap / math.log(weight)


@practice.exercise(
    "Allowed to find nothing", marks=3, minutes=12,
    statement=r"""
    Give the look-up a way to say "nothing matches": a key without a value, whose score is
    `threshold` for every query. Its weight is lost. Return the answer and the weight that was lost.
    """,
    hints=[
        r"The denominator of the softmax gets one more term, $e^{\text{threshold}/\tau}$.",
        "Append the threshold to the scores, take the softmax, and leave the last weight out.",
    ],
    notes=r"`attn` calls this a sink: `sink=np.array([threshold / temperature])`.")
def lookup_or_nothing(query, keys, values, temperature, threshold):
    """Return (answer of shape (Dv,), lost weight)."""
    ### BEGIN SOLUTION
    scores = np.append(keys @ query, threshold) / temperature
    *weights, lost = attn.softmax(scores)
    return np.array(weights) @ values, lost
    ### END SOLUTION


@lookup_or_nothing.check
def _(answer):
    query, keys, values = book()
    for threshold in (-1.0, 4.0):
        scores = np.append(keys @ query, threshold) / 0.8
        powers = np.exp(scores)
        want, lost = powers[:-1] @ values / powers.sum(), powers[-1] / powers.sum()
        found = answer(query, keys, values, 0.8, threshold)
        require(isinstance(found, tuple) and len(found) == 2,
                "return the answer and the lost weight")
        undivided = np.exp(np.append(keys @ query / 0.8, threshold))
        require_close(found[0], want, what=f"the answer for threshold {threshold}", slips=[
            (powers[:-1] @ values / powers[:-1].sum(),
             "the weights still sum to 1: nothing was lost"),
            (undivided[:-1] @ values / undivided.sum(), "the threshold is a score as well: divide "
                                                        "it by the temperature"),
        ])
        require_close(found[1], lost, what="the lost weight",
                      slips=[(1 - lost, "that is the weight that was kept")])


@lookup_or_nothing.wrong("normalises without the extra key", says="nothing was lost")
def _(query, keys, values, temperature, threshold):
    weights = attn.softmax(keys @ query / temperature)
    return weights @ values, 0.0


@lookup_or_nothing.wrong("does not divide the threshold", says="divide it by the temperature")
def _(query, keys, values, temperature, threshold):
    *weights, lost = attn.softmax(np.append(keys @ query / temperature, threshold))
    return np.array(weights) @ values, lost


practice.quiz(
    Question("What decides how much of a value goes into the answer?", [
        choice("The value itself", reason="Values are only mixed: no weight depends on them."),
        choice("How well its key matches the query", right=True,
               reason="Weights are computed from queries and keys alone."),
        choice("Its place in the dictionary, first or last",
               reason="Reorder the pairs and the answer is the same."),
    ]),
    Question("The temperature goes to 0; two keys share the largest score. The answer becomes", [
        choice("The value of whichever of the two comes first",
               reason="Nothing prefers the first: the scores tie."),
        choice("Undefined", reason="Both weights tend to one half, which is defined."),
        choice("The mean of their two values", right=True,
               reason="A tie stays a tie at every temperature."),
    ]),
    Question("Which answer can no soft look-up give?", [
        choice("One outside the hull of the values", right=True,
               reason="The weights are positive and sum to 1."),
        choice("The mean of all values", reason="A high temperature comes as close as you like."),
        choice("One that equals no stored value", reason="Nearly every answer is such a mixture."),
    ]),
    Question("Why does an exact look-up not learn by gradient descent?", [
        choice("It has no parameters that could be learned",
               reason="Its keys and values could be parameters too."),
        choice("It returns one value only, and not a mixture of several",
               reason="The number of values is not what a gradient needs."),
        choice("Its answer stands still, then jumps", right=True,
               reason="A small step of the query changes nothing, so nothing says where to go."),
    ]),
    Question("No key resembles the query at all. What does a soft look-up return?", [
        choice("An error, as a dictionary does", reason="A softmax always finds weights."),
        choice("Some average of the values, with weights that sum to 1", right=True,
               reason="It cannot say that nothing matches, unless a key has no value."),
        choice("Zero", reason="Small scores are not small weights: only differences count."),
    ]))
