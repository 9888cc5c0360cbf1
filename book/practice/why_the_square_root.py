"""Practice of the chapter "Why the square root?": set the dial, read it, see through it."""

import math

import numpy as np

import attn
from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("why-the-square-root")


@practice.exercise(
    "The scale for other entries", marks=1, minutes=5,
    statement=r"""
    The entries of $q$ and $k$ are independent with mean 0, but their standard deviations are
    $\sigma_q$ and $\sigma_k$ instead of 1. By which factor do you multiply $q \cdot k$, so that
    the score has variance 1?
    """,
    hints=[
        r"What is the variance of one product $q_i k_i$? For mean 0 it is "
        r"$\mathbb{E}[q_i^2]\,\mathbb{E}[k_i^2]$.",
        r"The dot product has variance $D\,\sigma_q^2\,\sigma_k^2$. Which factor $c$ gives "
        r"$c^2 D\,\sigma_q^2\,\sigma_k^2 = 1$?",
    ],
    notes=r"""
    $c = 1 / (\sigma_q\,\sigma_k \sqrt{D})$. With $\sigma_q = \sigma_k = 1$ it is the usual one;
    with $\sigma_q = 1/\sqrt{D}$ it is 1, which is how some models do without a scale.
    """)
def scale_for(size, query_deviation, key_deviation):
    """Return the factor that gives scores of variance 1."""
    ### BEGIN SOLUTION
    return 1 / (query_deviation * key_deviation * math.sqrt(size))
    ### END SOLUTION


@scale_for.check
def _(answer):
    for size, a, b in ((7, 2.0, 0.3), (13, 3.0, 0.2), (64, 1, 1), (64, 0.125, 1)):
        both, root = a * b, math.sqrt(size)
        require_close(answer(size, a, b), 1 / (both * root), what=f"scale_for({size}, {a}, {b})",
                      slips=[
            (1 / root, "the deviations of the entries are missing: they multiply the score too"),
            (1 / (both * size), "D stands under a root: the variance grows like D, the deviation "
                                "like √D"),
            (1 / (both**2 * size), "that divides by the variance: divide by its root"),
            (1 / (a**2 * b**2 * root), "σ² is the variance of an entry: take its deviation, σ"),
            (both * root, "that is the deviation itself: the factor has to undo it"),
            (both / root, "the deviations belong below the fraction bar, beside √D"),
        ])


@scale_for.wrong("keeps 1/√D whatever the entries are", says="are missing")
def _(size, query_deviation, key_deviation):
    return size**-0.5


@scale_for.wrong("divides by the variance of the score", says="divides by the variance")
def _(size, query_deviation, key_deviation):
    return 1 / (size * query_deviation**2 * key_deviation**2)


@scale_for.wrong("multiplies by the deviations", says="below the fraction bar")
def _(size, query_deviation, key_deviation):
    return query_deviation * key_deviation / math.sqrt(size)


@practice.exercise(
    "A gradient through the softmax", marks=2, minutes=10,
    statement=r"""
    Backpropagation multiplies the Jacobian by a vector: $J g = (\operatorname{diag}(\alpha) -
    \alpha \alpha^{\top})\, g$. Write it for many rows at once, without ever building a matrix of
    size $S \times S$. Both arguments have shape $(\dots, S)$.
    """,
    hints=[
        r"Multiply out: $\operatorname{diag}(\alpha)\, g$ is an elementwise product, and "
        r"$\alpha \alpha^{\top} g = \alpha\, (\alpha \cdot g)$ is $\alpha$ times a number.",
        r"One number for each row: `(weights * grad).sum(axis=-1, keepdims=True)`.",
    ],
    notes=r"""
    $J g = \alpha \odot (g - \alpha \cdot g)$: each entry is compared with the average that the
    weights themselves give, and the result sums to 0. This is all that a backward pass needs, and
    it is what `attn.softmax_backward` computes.
    """)
def gradient_through(weights, grad):
    """Return J g for every row, with the shape of grad."""
    ### BEGIN SOLUTION
    average = (weights * grad).sum(axis=-1, keepdims=True)
    return weights * (grad - average)
    ### END SOLUTION


@gradient_through.check
def _(answer):
    rng = np.random.default_rng(5)
    for shape in ((7,), (3, 5), (2, 3, 5)):
        weights, grad = attn.softmax(rng.normal(size=shape)), rng.normal(size=shape)
        rows = zip(weights.reshape(-1, shape[-1]), grad.reshape(-1, shape[-1]), strict=True)
        want = [(np.diag(w) - np.outer(w, w)) @ g for w, g in rows]
        total = (weights * grad).sum()
        try:
            got = answer(weights.copy(), grad.copy())
        except ValueError as error:
            raise Wrong(f"for arrays of shape {shape} the sizes do not fit, most likely because "
                        f"the average lost its axis: `keepdims=True` (NumPy: {error})") from None
        require_close(got, np.reshape(want, shape), what=f"the result for shape {shape}", slips=[
            (weights * grad, "the second term, α (α · g), is missing"),
            (weights * (1 - weights) * grad,
             "that is the diagonal of J only: every weight also answers for the other scores"),
            (weights * (grad - grad.mean(axis=-1, keepdims=True)),
             "the average of g has to be the weighted one, α · g"),
            (weights * (grad - total), "α · g was summed over all rows: one number for each row"),
        ])


@gradient_through.wrong("takes the diagonal of J only", says="diagonal of J only")
def _(weights, grad):
    return weights * (1 - weights) * grad


@gradient_through.wrong("forgets the second term", says="is missing")
def _(weights, grad):
    return weights * grad


@gradient_through.wrong("sums over all rows", says="over all rows")
def _(weights, grad):
    return weights * (grad - (weights * grad).sum())


@gradient_through.wrong("lets the average lose its axis", says="keepdims")
def _(weights, grad):
    return weights * (grad - (weights * grad).sum(axis=-1))


@practice.exercise(
    "Read the dial of a black box", marks=2, minutes=15,
    statement=r"""
    Somebody hands you `attention(query, key, value)`, for arrays of shapes $(L, D)$, $(S, D)$ and
    $(S, D_v)$. It is softmax attention, but you do not know its scale. Find the scale: return the
    factor $c$ in $\operatorname{softmax}(c\, Q K^{\top})\, V$ for queries of the given size. You
    choose the inputs. Remember what a scale could depend on.
    """,
    hints=[
        r"With the identity as value, the output *is* the row of weights.",
        r"With two keys, $\ln (\alpha_1 / \alpha_2) = c\,(q \cdot k_1 - q \cdot k_2)$.",
        r"Keep $q \cdot k_1 - q \cdot k_2$ small, 1 for example: with a difference of 1000, one "
        r"weight is 0 and its logarithm is lost.",
    ],
    notes=r"""
    One query and two keys are enough. The dot products have to be moderate: where the softmax is
    saturated, all scales give the same weights. To find out *where* a wrong scale comes from,
    repeat with another $D$, another $L$ and another $S$.
    """)
def measured_scale(attention, size):
    """Return the scale of a function attention(query, key, value) for queries of this size."""
    ### BEGIN SOLUTION
    query, key = np.zeros((1, size)), np.zeros((2, size))
    query[0, 0] = key[0, 0] = 1.0  # the dot products are 1 and 0
    weights = attention(query, key, np.eye(2))[0]
    return np.log(weights[0] / weights[1])
    ### END SOLUTION


def with_scale(scale):
    """Return softmax attention whose scale is a function of the size D."""
    return lambda q, k, v: attn.scaled_dot_product_attention(q, k, v, scale=scale(q.shape[-1]))


BOXES = {
    "none": lambda D: 1.0,
    "1/D": lambda D: 1 / D,
    "1/√D": lambda D: D**-0.5,
    "√D": lambda D: D**0.5,
    "1/√(8D)": lambda D: (8 * D) ** -0.5,
}


@measured_scale.check
def _(answer):
    for name, scale in BOXES.items():
        for size in (5, 64):
            got, want = answer(with_scale(scale), size), scale(size)
            require(np.isfinite(np.asarray(got, dtype=float)).all(),
                    "the result is not finite: one of the weights is 0. Take dot products that "
                    "differ by about 1, so that the softmax is not saturated")
            require_close(got, want, what=f"the scale of a box with scale {name}, D = {size}",
                          slips=[
                (1 / want, "that is the temperature: the scale is 1 over it"),
                (size**-0.5, "that is 1/√D, whatever the box does: measure, do not assume"),
                (want * size, "divide by the difference of the two dot products"),
                (1 / (1 + math.exp(-want)), "that is the weight: the score is in its logarithm"),
                (-want, "the sign is turned round: the first weight belongs above the second"),
                (-math.log1p(math.exp(-want)),
                 "the logarithm of one weight still has the sum in it: subtract that of another"),
            ])


@measured_scale.wrong("assumes 1/√D without looking", says="do not assume")
def _(attention, size):
    return size**-0.5


@measured_scale.wrong("takes the logarithm of a single weight", says="still has the sum")
def _(attention, size):
    query, key = np.zeros((1, size)), np.zeros((2, size))
    query[0, 0] = key[0, 0] = 1.0
    return np.log(attention(query, key, np.eye(2))[0, 0])


@measured_scale.wrong("forgets how large the dot product is", says="divide by the difference")
def _(attention, size):
    query, key = np.ones((1, size)), np.stack([np.ones(size), np.zeros(size)])
    weights = attention(query, key, np.eye(2))[0]
    return np.log(weights[0] / weights[1])


@measured_scale.wrong("saturates the softmax", says="not saturated")
def _(attention, size):
    query, key = np.full((1, size), 1000.0), np.stack([np.ones(size), np.zeros(size)])
    weights = attention(query, key, np.eye(2))[0]
    with np.errstate(divide="ignore"):
        return np.log(weights[0] / weights[1]) / (1000.0 * size)


@practice.exercise(
    "Turn the dial to a given entropy", marks=3, minutes=20,
    statement=r"""
    Given the raw dot products of one query, with different values, find the scale $c > 0$ at which
    $\operatorname{softmax}(c\, s)$ has a given entropy, in nats, between 0 and $\ln S$. The entropy
    falls as $c$ grows, so bisection works. The check allows an error of one in a million in $c$.
    """,
    hints=[
        r"Begin with a $c$ that is certainly too small, such as 0, where the entropy is $\ln S$, "
        r"and double an upper end until the entropy there is below the target.",
        r"Too much entropy at the middle: the scale has to grow, so the middle becomes the lower "
        r"end.",
        r"The entropy is $-\sum_j \alpha_j \ln \alpha_j$, with the natural logarithm and "
        r"$0 \ln 0 = 0$.",
    ],
    notes=r"""
    A shift of all dot products changes nothing and a stretch of them by $t$ changes $c$ to
    $c / t$: the dial undoes any stretch. Holding the entropy fixed, not the variance, is another
    way to choose a temperature.
    """)
def scale_for_entropy(dots, target):
    """Return the scale c at which softmax(c · dots) has the entropy `target`, in nats."""
    ### BEGIN SOLUTION
    def entropy(scale):
        weights = attn.softmax(scale * dots)
        weights = weights[weights > 0]
        return -(weights * np.log(weights)).sum()

    low, high = 0.0, 1.0
    while entropy(high) > target:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if entropy(middle) > target else (low, middle)
    return high
    ### END SOLUTION


def entropy_of(scores):
    weights = attn.softmax(scores)
    weights = weights[weights > 0]
    return float(-(weights * np.log(weights)).sum())


@scale_for_entropy.check
def _(answer):
    rng = np.random.default_rng(7)
    cases = [(rng.normal(size=11), 0.7), (rng.normal(size=13) * 30 + 100, 0.02),
             (rng.normal(size=7) * 0.01, 40.0)]
    for dots, scale in cases:
        got = answer(dots.copy(), entropy_of(scale * dots))
        what = f"the scale for {len(dots)} dot products"
        require(np.ndim(got) == 0 and isinstance(got, float | np.floating),
                f"{what} should be one number, it is {got!r}")
        require(math.isfinite(got) and got > 0, f"{what} should be positive, it is {got:.4g}")
        require_close(got, scale, what=what, atol=1e-6 * scale, slips=[
            (1 / scale, "that is the temperature: the scale is 1 over it"),
            (in_bits(dots, scale), "the entropy is to be in nats: the natural logarithm"),
            (1.0, "the scale stays at 1: the upper end has to move until it is far enough"),
            (0.0, "the bisection ran to 0: when the entropy is too large, the scale must grow"),
        ])


def in_bits(dots, scale):
    """The scale found by somebody who takes the target for bits."""
    return scale_for_entropy.solution(dots, entropy_of(scale * dots) * math.log(2))


@scale_for_entropy.wrong("gives the temperature", says="temperature")
def _(dots, target):
    return 1 / scale_for_entropy.solution(dots, target)


@scale_for_entropy.wrong("measures the entropy in bits", says="natural logarithm")
def _(dots, target):
    return scale_for_entropy.solution(dots, target * math.log(2))


@scale_for_entropy.wrong("bisects the wrong way", says="ran to 0")
def _(dots, target):
    low, high = 0.0, 1.0
    while entropy_of(high * dots) > target:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if entropy_of(middle * dots) > target else (middle, high)
    return high


@scale_for_entropy.wrong("never moves the upper end", says="stays at 1")
def _(dots, target):
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if entropy_of(middle * dots) > target else (low, middle)
    return high


practice.quiz(
    Question(r"The entries of $q$ and $k$ are independent with mean 0 and variance 1, and "
             r"$D = 256$. What is a typical size of $q \cdot k$?", [
        choice("1, whatever D is", reason=r"That is the size after division by $\sqrt{D}$."),
        choice("16", right=True,
               reason="The variances of the 256 products add up to 256; its root is 16."),
        choice("256", reason="That is the variance. It would be the size if all products had the "
                             "same sign, as for $q = k$."),
    ]),
    Question("Raw scores, 64 keys, D grows from 64 to 1024. What happens to the gradients that "
             "get through the softmax?", [
        choice("All of them shrink by about the same factor",
               reason="The middle one shrinks by a factor of several hundred, the mean by about "
                      "three: they do not move together."),
        choice("None shrinks, because the maximum is subtracted",
               reason="Subtracting the maximum does not change the weights, and so no gradient."),
        choice("Most vanish, a few near ties stay large, and the mean falls like 1/√D", right=True,
               reason="The share of queries with two close winners falls like $1/\\sqrt{D}$; those "
                      "queries keep a norm of about one half."),
    ]),
    Question("A layer is trained from the start with `scale = 1/√E`, E the model size. Which test "
             "can see that?", [
        choice("A comparison with numbers worked out by hand or by a loop", right=True,
               reason="Only a test with an absolute number in it can pin a constant."),
        choice("Permuting keys and values together",
               reason="That holds at every temperature."),
        choice("Checking that each row of weights sums to 1",
               reason="The softmax divides by the sum, whatever the scale is."),
        choice("The training loss, which cannot go down",
               reason="It can: the projections learn to make up for a constant factor."),
    ]),
    Question(r"Scores are computed in `float16`. What protects `exp` from overflow?", [
        choice("Subtracting the largest score of the row", right=True,
               reason="Then no exponent is above 0, and no power above 1."),
        choice("Dividing by √D, which keeps the scores small",
               reason="It makes large scores rarer; trained queries and keys can still give scores "
                      "above 11.09."),
        choice("The division by the sum afterwards",
               reason="It comes too late: infinity over infinity is NaN."),
    ]),
    Question(r"During training a query has become aligned with its key, "
             r"$q \cdot k \approx \rho D$. Which scale keeps this score the same as $D$ grows?", [
        choice("1/√D", reason=r"Then the score grows like $\rho\sqrt{D}$."),
        choice("1/D", right=True, reason=r"$\rho D / D = \rho$. This is the scale of muP; at the "
                                         "start of training it leaves the scores near 0."),
        choice("1", reason=r"Then the score grows like $\rho D$."),
    ]),
)
