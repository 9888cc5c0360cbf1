"""Practice of the chapter "Kernel regression": estimate, do not peek, say it as attention."""

import numpy as np

import attn
from practice.form import Practice, Question, choice, require, require_close

practice = Practice("kernel-regression")


def sample(n=11):
    """Unequally spaced inputs and answers of the checks."""
    x = np.linspace(0.0, 3.0, n) ** 1.3
    return x, np.sin(2 * x) + 0.3 * np.cos(7 * x)


@practice.exercise(
    "The estimate", marks=1, minutes=7,
    statement=r"""
    Write the Nadaraya–Watson estimate with the Gaussian kernel of width $h$: `new` holds the
    inputs of shape $(L,)$ at which the answer is wanted, `x` and `y` the $S$ examples. Widths as
    small as $0.01$ must work.
    """,
    hints=[
        r"The scores are $-(q_i - x_j)^2 / (2h^2)$: a column minus a row.",
        "`attn.softmax` normalises each row and does not underflow to 0/0.",
    ],
    notes=r"Far from every example all kernels underflow to 0; the softmax compares them first.")
def estimate(new, x, y, width):
    """Return the estimates, shape (L,)."""
    ### BEGIN SOLUTION
    scores = -((new[:, None] - x) ** 2) / (2 * width**2)
    return attn.softmax(scores) @ y
    ### END SOLUTION


@estimate.check
def _(answer):
    (x, y), new = sample(), np.array([0.1, 1.7, 2.2, 5.0, 9.0])
    square, gap = (new[:, None] - x) ** 2, np.abs(new[:, None] - x)
    for width in (0.4, 1.5):
        kernel = np.exp(-square / (2 * width**2))
        with np.errstate(all="ignore"):
            want = attn.softmax(-square / (2 * width**2)) @ y
            slips = [
                (kernel @ y, "the weights do not sum to 1: divide by the sum of the kernel"),
                (attn.softmax(-square / (2 * width)) @ y, "the width enters as its square, h²"),
                (attn.softmax(-square / width**2) @ y, "a factor 2 is missing: 2h²"),
                (attn.softmax(-gap / width) @ y, "the distance enters as its square"),
                (attn.softmax(-square / (2 * width**2)).mean() * y.sum() * np.ones(5),
                 "every example has the same weight"),
                (kernel / kernel.sum(axis=0) @ y, "each row has to sum to 1, not each column"),
            ]
        require_close(answer(new, x, y, width), want, what=f"estimate(…, width={width})",
                      slips=slips)
    with np.errstate(all="ignore"):
        far = answer(np.array([9.0]), x, y, 0.01)
    require(np.isfinite(far).all(), "0/0 far from the examples: compare scores before the "
                                    "exponential, as a softmax does")
    require_close(far, y[-1:], what="estimate([9.0], …, width=0.01)")


@estimate.wrong("does not divide by the sum", says="sum to 1")
def _(new, x, y, width):
    return np.exp(-((new[:, None] - x) ** 2) / (2 * width**2)) @ y


@estimate.wrong("divides by h instead of h²", says="square")
def _(new, x, y, width):
    return attn.softmax(-((new[:, None] - x) ** 2) / (2 * width)) @ y


@estimate.wrong("normalises over the queries", says="not each column")
def _(new, x, y, width):
    kernel = np.exp(-((new[:, None] - x) ** 2) / (2 * width**2))
    return kernel / kernel.sum(axis=0) @ y


@estimate.wrong("takes exponentials that underflow", says="0/0")
def _(new, x, y, width):
    kernel = np.exp(-((new[:, None] - x) ** 2) / (2 * width**2))
    return (kernel / kernel.sum(axis=1, keepdims=True)) @ y


@practice.exercise(
    "The score of a width", marks=2, minutes=10,
    statement=r"""
    Return the mean squared leave-one-out error of a width: every example is estimated from all the
    others and compared with its own answer.
    """,
    hints=[
        "Query i may attend to every example but i. Which boolean matrix says that?",
        r"`~np.eye(n, dtype=bool)` as the mask, and $-\infty$ where it is False, before the "
        "softmax.",
    ],
    notes=r"""
    Without refitting: $\hat y_{-i} = (\hat y_i - \alpha_{ii} y_i) / (1 - \alpha_{ii})$, because
    taking one example out rescales the remaining weights by one common factor.
    """)
def leave_one_out(x, y, width):
    """Return the mean squared error of estimates that do not see their own answer."""
    ### BEGIN SOLUTION
    scores = -((x[:, None] - x) ** 2) / (2 * width**2)
    scores = np.where(np.eye(len(x), dtype=bool), -np.inf, scores)
    return np.mean((attn.softmax(scores) @ y - y) ** 2)
    ### END SOLUTION


@leave_one_out.check
def _(answer):
    x, y = sample()
    for width in (0.2, 0.7):
        scores = -((x[:, None] - x) ** 2) / (2 * width**2)
        weights = attn.softmax(scores)
        hidden = np.where(np.eye(len(x), dtype=bool), 0.0, weights)
        others = hidden / hidden.sum(axis=1, keepdims=True)
        error = others @ y - y
        require_close(answer(x, y, width), np.mean(error**2), what=f"leave_one_out(x, y, {width})",
                      slips=[
            (np.mean((weights @ y - y) ** 2), "every estimate has seen its own answer"),
            (np.mean((hidden @ y - y) ** 2),
             "the remaining weights do not sum to 1 any more: hide the score, not the weight"),
            (np.sum(error**2), "that is the sum: divide by the number of examples"),
            (np.sqrt(np.mean(error**2)), "that is the root of it"),
        ])


@leave_one_out.wrong("lets each example see itself", says="seen its own answer")
def _(x, y, width):
    return np.mean((attn.softmax(-((x[:, None] - x) ** 2) / (2 * width**2)) @ y - y) ** 2)


@leave_one_out.wrong("removes the weight after the softmax", says="hide the score")
def _(x, y, width):
    weights = attn.softmax(-((x[:, None] - x) ** 2) / (2 * width**2))
    np.fill_diagonal(weights, 0.0)
    return np.mean((weights @ y - y) ** 2)


@practice.exercise(
    "The same thing, said as attention", marks=3, minutes=15,
    statement=r"""
    The inputs are vectors, `x` of shape $(S, D)$. Return `scale` and `bias` so that
    `attn.scaled_dot_product_attention(new, x, y[:, None], scale=scale, bias=bias)` is the
    Nadaraya–Watson estimate of width $h$, for every `new` of shape $(L, D)$.
    """,
    hints=[
        r"Multiply out $-\lVert q - k_j \rVert^2 / (2h^2)$. Which of the three terms does not "
        r"depend on $j$, and what does the softmax do to it?",
        r"$q \cdot k_j / h^2$ is the scaled dot product; $-\lVert k_j \rVert^2 / (2h^2)$ is one "
        "number for each key: an array that broadcasts along the queries.",
    ],
    notes=r"$\lVert q \rVert^2$ is common to a row, so it cancels. On unit keys the bias does too.")
def as_attention(x, width):
    """Return (scale, bias); bias broadcasts to (L, S)."""
    ### BEGIN SOLUTION
    scale = 1 / width**2
    return scale, -0.5 * scale * (x**2).sum(axis=1)[None, :]
    ### END SOLUTION


@as_attention.check
def _(answer):
    rng = np.random.default_rng(5)
    x, new = rng.standard_normal((13, 3)), rng.standard_normal((7, 3))
    y, width = x[:, 0] - x[:, 2] ** 2, 0.7
    norm = (x**2).sum(axis=1)

    def attend(scale, bias):
        return attn.scaled_dot_product_attention(new, x, y[:, None], scale=scale, bias=bias)[:, 0]

    half = norm[None] / (2 * width**2)
    found = answer(x, width)
    require(isinstance(found, tuple) and len(found) == 2, "return two things: scale, bias")
    require(found[1] is not None and np.ndim(found[1]) > 0,
            "without a bias long keys get more weight: the term −‖k‖²/(2h²) is missing")
    scale, bias = found
    square = ((new[:, None] - x) ** 2).sum(axis=-1)
    want = attn.softmax(-square / (2 * width**2)) @ y
    require_close(attend(scale, np.asarray(bias, float)), want, what="the estimate", slips=[
        (attend(1 / width**2, half), "the bias has the wrong sign: long keys are further away"),
        (attend(1 / width**2, -2 * half), "half of ‖k‖²/h² is enough: compare the cross term"),
        (attend(1 / (2 * width**2), -half),
         "the cross term is 2 q·k: the 2 cancels the one in 2h²"),
        (attend(1 / width**2, 0 * half), "the term −‖k‖²/(2h²) is missing"),
        (attend(1 / 3**0.5, -half), "the scale has to be 1/h², not 1/√D"),
    ])


@as_attention.wrong("forgets the length of the keys", says="is missing")
def _(x, width):
    return 1 / width**2, np.zeros((1, len(x)))


@as_attention.wrong("adds the length of the keys", says="wrong sign")
def _(x, width):
    return 1 / width**2, (x**2).sum(axis=1)[None] / (2 * width**2)


@as_attention.wrong("keeps the 2 of 2h² in the scale", says="the 2 cancels")
def _(x, width):
    return 1 / (2 * width**2), -(x**2).sum(axis=1)[None] / (2 * width**2)


practice.quiz(
    Question("In Nadaraya–Watson regression, what plays the part of the query?", [
        choice("The answers `y` of the examples", reason="These are mixed: they are the values."),
        choice("The inputs `x` of the examples", reason="They are compared with: the keys."),
        choice("The new input", right=True, reason="It asks; the examples answer."),
    ]),
    Question("The width goes to 0. What does the estimate at a new input become?", [
        choice("The answer of the nearest example", right=True,
               reason="The softmax becomes an argmax over the distances."),
        choice("The mean of all answers", reason=r"That is the other end, $h \to \infty$."),
        choice("Zero, since every kernel value underflows",
               reason="The weights are ratios: the softmax compares scores first."),
    ]),
    Question("Why may ‖q‖² be dropped from the score?", [
        choice("It is small", reason="It can be as large as you like."),
        choice("It is the same for every key of the row", right=True,
               reason="A number added to a whole row cancels in the softmax."),
        choice("Queries have length 1", reason="Nothing here normalises the queries."),
    ]),
    Question("Each example is estimated with its own answer among the values. What happens to the "
             "error as the width shrinks?", [
        choice("It goes to 0, whatever the data", right=True,
               reason="Every example attends to itself alone. New data are another matter."),
        choice("It grows, because the estimate becomes rough",
               reason="On new inputs it does. On inputs whose answer is in the mixture it cannot."),
        choice("It has a minimum at the best width",
               reason="The leave-one-out error has one. This one falls all the way."),
    ]),
    Question("How large can an estimate be?", [
        choice("As large as the slope at the border allows",
               reason="There is no slope in a weighted average: it cannot leave the values."),
        choice("At most the sum of the answers", reason="The weights sum to 1: no sum comes out."),
        choice("At most the largest answer among the examples", right=True,
               reason="A weighted average stays in the hull of its values."),
    ]))
