"""A chapter's practice in miniature: the pattern to copy, and what the form's own tests run on."""

import math

import numpy as np
from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("sample-chapter")


@practice.exercise(
    "Softmax of one row", marks=1, minutes=5,
    statement=r"""
    Turn scores into weights: $\alpha_j = e^{s_j} / \sum_k e^{s_k}$, in plain Python. Scores of
    1000 must work.
    """,
    hints=[
        r"Which constant may you subtract from every $s_j$ without changing any $\alpha_j$?",
        r"Subtract $m = \max_j s_j$ first; then the largest exponent is $e^0 = 1$.",
    ],
    notes=r"The factor $e^{-m}$ stands above and below the fraction bar, so it cancels.")
def softmax_row(scores):
    """Return the softmax of a list of floats."""
    ### BEGIN SOLUTION
    largest = max(scores)
    powers = [math.exp(s - largest) for s in scores]
    total = sum(powers)
    return [p / total for p in powers]
    ### END SOLUTION


@softmax_row.check
def _(answer):
    e = math.e
    require_close(answer([0.0, 1.0]), [1 / (1 + e), e / (1 + e)], what="softmax_row([0, 1])",
                  slips=[([1.0, e], "these are the exponentials: divide by their sum")])
    try:
        weights = answer([1000.0, 1000.0])
    except OverflowError:
        raise Wrong("overflow at scores of 1000: subtract the maximum first") from None
    require_close(weights, [0.5, 0.5], what="softmax_row([1000, 1000])")


@softmax_row.wrong("does not subtract the maximum", says="overflow")
def _(scores):
    powers = [math.exp(s) for s in scores]
    return [p / sum(powers) for p in powers]


@softmax_row.wrong("does not divide by the sum", says="divide by their sum")
def _(scores):
    largest = max(0.0, max(scores) - 1)
    return [math.exp(s - largest) for s in scores]


@practice.exercise(
    "The size of the scores", marks=2, minutes=10,
    statement=r"""
    For independent entries with mean 0 and variance 1, what is the standard deviation of
    $q \cdot k$, where $q, k \in \mathbb{R}^d$?
    """,
    hints=["The variance of a sum of independent terms is the sum of their variances.",
           r"Each of the $d$ terms has variance $1$, so the sum has variance $d$."])
def score_deviation(size):
    """Return the standard deviation of a dot product of two random vectors of this size."""
    ### BEGIN SOLUTION
    return math.sqrt(size)
    ### END SOLUTION


@score_deviation.check
def _(answer):
    require_close(answer(7), math.sqrt(7), what="score_deviation(7)",
                  slips=[(7, "that is the variance; its square root is asked for"),
                         (1 / math.sqrt(7), "that is the factor that undoes it")])


@score_deviation.wrong("gives the variance", says="variance")
def _(size):
    return size


@score_deviation.wrong("gives the scale 1/√d", says="undoes")
def _(size):
    return size**-0.5


@practice.exercise(
    "A causal mask", marks=3, minutes=10,
    statement="Return the boolean matrix in which `True` means that query `i` may see key `j`.",
    hints=["Query 0 may see key 0 only.", "Compare a column of positions with a row: `q >= k`."],
    notes="| row | sees |\n|---|---|\n| 0 | key 0 |\n| 1 | keys 0 and 1 |")
class CausalMask:
    """A mask that hides the future."""

    def dense(self, length):
        """Return the (length, length) boolean mask."""
        ### BEGIN SOLUTION
        positions = np.arange(length)
        return positions[:, None] >= positions
        ### END SOLUTION


@CausalMask.check
def _(answer):
    mask = answer().dense(3)
    require(mask.dtype == bool, f"the mask should be boolean, it is {mask.dtype}")
    require_close(mask, [[1, 0, 0], [1, 1, 0], [1, 1, 1]], what="CausalMask().dense(3)",
                  slips=[(np.triu(np.ones((3, 3))), "this one sees the future only")])


@CausalMask.wrong("hides the past", says="the future only")
class _:
    def dense(self, length):
        return np.triu(np.ones((length, length), dtype=bool))


@CausalMask.wrong("numbers instead of truth values", says="boolean")
class _:
    def dense(self, length):
        return np.tril(np.ones((length, length)))


practice.quiz(
    Question(r"What does the softmax of a row of $n$ equal scores give?", [
        choice("1 for each", reason="The weights sum to 1, so they cannot all be 1."),
        choice("1/n for each", right=True, reason="Equal scores, equal weights, and the sum is 1."),
        choice("It depends on the scores", reason=r"A common shift cancels: $e^{s} / (n e^{s})$."),
    ]),
    Question("Which of these changes the weights?", [
        choice("Multiplying every score by 2", right=True, reason="Ratios of weights are squared."),
        choice("Adding 2 to every score", reason="A common shift cancels in the fraction."),
        choice("Neither of the two", reason="One of them changes the ratios of the weights."),
    ]),
    Question("How many keys does query 4 see under a causal mask (positions start at 0)?", [
        choice("4", reason="It sees its own position too."),
        choice("5", right=True, reason="Positions 0 to 4 are five keys."),
        choice("All of them", reason="Keys after position 4 are hidden."),
    ]),
    Question("What is the standard deviation of q · k for d = 64?", [
        choice("64", reason="That is the variance."),
        choice("8 = √64", right=True, reason="The square root of the variance, 64."),
        choice("1 if `scale` < 1", reason="The dot product itself is not scaled."),
    ]),
    Question("Which weights can a softmax never give?", [
        choice("Exactly 0, in exact arithmetic", right=True, reason="$e^s > 0$ for real $s$."),
        choice("Two equal ones", reason="Equal scores give equal weights."),
        choice("One above 0.999 999", reason="A large enough lead of one score gives that."),
    ]),
)
