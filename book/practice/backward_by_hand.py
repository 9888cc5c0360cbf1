"""Practice of the chapter on the gradient of attention."""

import numpy as np

import attn
from practice.form import Practice, Question, choice, require, require_close

practice = Practice("backward-by-hand")


@practice.exercise(
    "Backward through one softmax", marks=1, minutes=8,
    statement=r"""
    Given one row of weights $p = \operatorname{softmax}(s)$ and the gradient $g$ that arrives at
    them, return the gradient with respect to the scores $s$. Do not build an $S \times S$ matrix.
    """,
    hints=[
        r"The Jacobian is $\operatorname{diag}(p) - p\,p^{\top}$. What does each part do to $g$?",
        r"$\operatorname{diag}(p)\, g$ is `p * g`, and $p\,p^{\top} g$ is $p$ times a number.",
    ],
    notes=r"$p_j (g_j - \bar g)$ with the mean $\bar g$ under the weights. The result sums to 0.")
def softmax_row_backward(grad_weights, weights):
    """Return the gradient (S,) of the scores, from the gradient (S,) of the weights."""
    ### BEGIN SOLUTION
    mean = (weights * grad_weights).sum()
    return weights * (grad_weights - mean)
    ### END SOLUTION


@softmax_row_backward.check
def _(answer):
    for grad, weights, what in (
            (np.array([10.0, 0.0, 0.0]), np.array([0.4, 0.4, 0.2]), "row 1 of the example"),
            (np.array([0.5, -1.0, 2.0, 0.3, 1.1]), np.array([0.1, 0.2, 0.4, 0.25, 0.05]),
             "a row of five")):
        right = weights * (grad - weights @ grad)
        require_close(answer(grad.copy(), weights.copy()), right, what=what, slips=[
            (weights * grad, "the scores compete: subtract the mean of g before you multiply"),
            (weights * (grad - grad.mean()), "the mean is one under the weights: each entry of g "
                                             "counts as much as its weight"),
            (grad - weights @ grad, "the factor p in front is missing"),
            (weights * (1 - weights) * grad, "that is the diagonal of the Jacobian alone: a score "
                                             "moves the other weights too"),
        ])


@softmax_row_backward.wrong("subtracts no mean", says="scores compete")
def _(grad_weights, weights):
    return weights * grad_weights


@softmax_row_backward.wrong("takes the plain mean", says="under the weights")
def _(grad_weights, weights):
    return weights * (grad_weights - grad_weights.mean())


@softmax_row_backward.wrong("keeps the diagonal of the Jacobian alone", says="diagonal")
def _(grad_weights, weights):
    return weights * (1 - weights) * grad_weights


@practice.exercise(
    "The values' gradient when heads share them", marks=2, minutes=12,
    statement=r"""
    In grouped-query attention $H$ query heads share $H_{kv}$ heads of values: heads $0$ to $G - 1$
    use value head 0, the next $G$ use value head 1, and so on, with $G = H / H_{kv}$. Given the
    weights $(H, L, S)$ and the gradient of the output $(H, L, D_v)$, return the gradient of the
    values, $(H_{kv}, S, D_v)$.
    """,
    hints=[
        r"For one head it is $P^{\top} dO$. `weights.swapaxes(-1, -2)` transposes each head.",
        "A number that is used in several places gets the gradients of all of them: what is the "
        "operation?",
        "Reshape the first axis to (Hkv, G), then sum over the axis of G.",
    ],
    notes="Copying on the way forward is adding on the way back. A mean would be too small by G.")
def shared_value_gradient(weights, grad_output, num_kv_heads):
    """Return the gradient (Hkv, S, Dv) of the values."""
    ### BEGIN SOLUTION
    each = weights.swapaxes(-1, -2) @ grad_output  # (H, S, Dv)
    groups = each.reshape(num_kv_heads, -1, *each.shape[1:])  # (Hkv, G, S, Dv)
    return groups.sum(axis=1)
    ### END SOLUTION


@shared_value_gradient.check
def _(answer):
    rng = np.random.default_rng(5)
    for H, Hkv in ((3, 3), (6, 2)):
        weights = attn.softmax(rng.normal(size=(H, 5, 7)))
        grad = rng.normal(size=(H, 5, 3))
        each = weights.swapaxes(-1, -2) @ grad
        groups = each.reshape(Hkv, H // Hkv, 7, 3)
        turned = each.reshape(H // Hkv, Hkv, 7, 3)
        require_close(answer(weights.copy(), grad.copy(), Hkv), groups.sum(axis=1),
                      what=f"the gradient for H = {H}, Hkv = {Hkv}", slips=[
            (groups.mean(axis=1), "a value that serves G heads gets the sum of their gradients, "
                                  "not the mean"),
            (turned.sum(axis=0), "neighbouring heads share a value head: head h uses h // G, "
                                 "not h % Hkv"),
            (groups[:, 0], "only the first head of each group came back"),
            (each, "one gradient a query head: the heads of a group have to be joined"),
        ])


@shared_value_gradient.wrong("takes the mean over the group", says="not the mean")
def _(weights, grad_output, num_kv_heads):
    each = weights.swapaxes(-1, -2) @ grad_output
    return each.reshape(num_kv_heads, -1, *each.shape[1:]).mean(axis=1)


@shared_value_gradient.wrong("groups heads that are not neighbours", says="h // G")
def _(weights, grad_output, num_kv_heads):
    each = weights.swapaxes(-1, -2) @ grad_output
    return each.reshape(-1, num_kv_heads, *each.shape[1:]).sum(axis=0)


@shared_value_gradient.wrong("does not join the heads of a group", says="have to be joined")
def _(weights, grad_output, num_kv_heads):
    return weights.swapaxes(-1, -2) @ grad_output


@practice.exercise(
    "Repair a backward pass", marks=2, minutes=12,
    statement=r"""
    This was written for self-attention, where $L = S$, and it runs. It holds three mistakes.

    ```python
    weights = attn.softmax(scale * query @ key.T)
    grad_weights = grad_output @ value.T
    mean = (weights * grad_weights).sum(axis=0, keepdims=True)
    grad_scores = weights * (grad_weights - mean)
    grad_query = grad_scores @ key
    grad_key = scale * grad_scores @ query
    grad_value = weights.T @ grad_output
    ```

    Return the right three gradients. They have to be right for $L \ne S$ too.
    """,
    hints=[
        "Write the shape behind each line, with different letters for L and S. Which line does "
        "not fit?",
        "Over which axis does the softmax run? What of the scale, which stood in front of the "
        "product forward?",
    ],
    notes="The transpose shows once L and S differ. The other two never show in a shape.")
def repaired_backward(grad_output, query, key, value, scale):
    """Return the gradients (grad_query, grad_key, grad_value)."""
    ### BEGIN SOLUTION
    weights = attn.softmax(scale * query @ key.T)  # (L, S)
    grad_weights = grad_output @ value.T
    mean = (weights * grad_weights).sum(axis=1, keepdims=True)
    grad_scores = weights * (grad_weights - mean)
    grad_query = scale * grad_scores @ key
    grad_key = scale * grad_scores.T @ query
    grad_value = weights.T @ grad_output
    return grad_query, grad_key, grad_value
    ### END SOLUTION


def variants(grad, query, key, value, scale):
    """What known mistakes give for each gradient, with their diagnoses."""
    weights = attn.softmax(scale * query @ key.T)
    products = weights * (grad @ value.T)
    columns = weights * (grad @ value.T - products.sum(axis=0, keepdims=True))
    scores = products - weights * products.sum(axis=1, keepdims=True)
    axis = "the mean runs over the keys of one query: axis 1, as the softmax does"
    bare = "the scale is missing: it stood in front of the product forward"
    slips = {
        "grad_query": [(scores @ key, bare), (scale * columns @ key, axis),
                       (columns @ key, axis)],
        "grad_key": [(scores.T @ query, bare), (scale * columns.T @ query, axis)],
        "grad_value": [],
    }
    if len(query) == len(key):
        slips["grad_key"] += [(scale * scores @ query, "grad_key sums over the queries: the "
                                                       "gradient of the scores must be transposed"),
                              (scale * columns @ query, axis)]
        slips["grad_value"] += [(weights @ grad, "the weights must be transposed")]
    return slips


@repaired_backward.check
def _(answer):
    rng = np.random.default_rng(6)
    for L, S in ((5, 5), (3, 7)):  # the square case first: there the mistakes run
        query, key = rng.normal(size=(L, 2)), rng.normal(size=(S, 2))
        value, grad = rng.normal(size=(S, 3)), rng.normal(size=(L, 3))
        got = answer(grad.copy(), query.copy(), key.copy(), value.copy(), 0.6)
        require(isinstance(got, tuple | list) and len(got) == 3,
                "return three gradients: grad_query, grad_key, grad_value")
        right = attn.attention_backward(grad, query, key, value, scale=0.6)
        slips = variants(grad, query, key, value, 0.6)
        for name, mine, theirs in zip(slips, got, right[:3], strict=True):
            require_close(mine, theirs, what=f"{name} at L = {L}, S = {S}", slips=slips[name])


@repaired_backward.wrong("leaves the mean over the queries", says="axis 1")
def _(grad_output, query, key, value, scale):
    weights = attn.softmax(scale * query @ key.T)
    grad_weights = grad_output @ value.T
    scores = weights * (grad_weights - (weights * grad_weights).sum(axis=0, keepdims=True))
    return scale * scores @ key, scale * scores.T @ query, weights.T @ grad_output


@repaired_backward.wrong("leaves the scale out of the query's gradient", says="scale is missing")
def _(grad_output, query, key, value, scale):
    right = attn.attention_backward(grad_output, query, key, value, scale=scale)
    return right.query / scale, right.key, right.value


@repaired_backward.wrong("does not transpose", says="must be transposed")
def _(grad_output, query, key, value, scale):
    weights = attn.softmax(scale * query @ key.T)
    scores = attn.softmax_backward(grad_output @ value.T, weights)
    return scale * scores @ key, scale * scores @ query, weights.T @ grad_output


@practice.exercise(
    "A gradient check as a test", marks=3, minutes=20,
    statement=r"""
    Write the test. `backward(grad_output, query, key, value)` is somebody's backward pass of
    `attn.scaled_dot_product_attention(query, key, value)`, for matrices, and returns three
    gradients. Return `True` if all three agree with central differences, `False` if not. Choose
    inputs, step and tolerance. A relative error of $10^{-4}$ in one gradient has to be found; one
    of $10^{-9}$ has to be let through.
    """,
    hints=[
        r"The loss is `(grad_output * output).sum()`, for a `grad_output` that you draw at random: "
        "with ones, a mistake that ignores it cannot show.",
        r"For `place` in `np.ndindex(x.shape)`: move `x[place]` by $\pm h$, take the loss twice, "
        r"put the old number back. Work in `float64` with $h$ near $10^{-5}$.",
        "Compare each of the three gradients with `np.allclose(…, rtol=1e-6, atol=1e-7)`.",
    ],
    notes="Sizes that are unequal and random inputs cost nothing, and see what round ones hide.")
def passes_gradient_check(backward):
    """Return whether a backward pass agrees with central differences."""
    ### BEGIN SOLUTION
    rng = np.random.default_rng(0)
    grad = rng.normal(size=(3, 5))
    operands = [rng.normal(size=shape) for shape in ((3, 2), (7, 2), (7, 5))]
    step = 1e-5
    for x, found in zip(operands, backward(grad, *operands), strict=True):
        slopes = np.zeros_like(x)
        for place in np.ndindex(x.shape):
            old = x[place]
            for sign in (1, -1):
                x[place] = old + sign * step
                output = attn.scaled_dot_product_attention(*operands)
                slopes[place] += sign * (grad * output).sum() / (2 * step)
            x[place] = old
        if not np.allclose(found, slopes, rtol=1e-6, atol=1e-7):
            return False
    return True
    ### END SOLUTION


def spoilt(place=None, factor=1.0, grad_matters=True):
    """Return a backward pass with one gradient stretched, or one that takes dO for ones."""
    def backward(grad_output, query, key, value):
        grad = grad_output if grad_matters else np.ones_like(grad_output)
        found = list(attn.attention_backward(grad, query, key, value)[:3])
        if place is not None:
            found[place] = found[place] * factor
        return tuple(found)
    return backward


def without_mean(grad_output, query, key, value):
    """Return gradients whose softmax forgot to subtract the mean."""
    scale = query.shape[-1] ** -0.5
    weights = attn.softmax(scale * query @ key.T)
    scores = weights * (grad_output @ value.T)
    return scale * scores @ key, scale * scores.T @ query, weights.T @ grad_output


@passes_gradient_check.check
def _(answer):
    for backward in (spoilt(), spoilt(0, 1 + 1e-9)):
        require(bool(answer(backward)),
                "your test refuses a right backward pass: the step is too small or too large, or "
                "the tolerance is tighter than differences can be")
    require(not answer(without_mean), "your test lets a softmax without its mean through")
    require(not answer(spoilt(grad_matters=False)),
            "a backward pass that ignores grad_output gets through: do not test with ones")
    for place, name in enumerate(("query", "key", "value")):
        require(not answer(spoilt(place, 2.0)),
                f"the gradient of the {name} may be twice too large and your test is green: "
                "compare all three")
        require(not answer(spoilt(place, 1 + 1e-4)),
                f"an error of 1e-4 in the gradient of the {name} gets through: the tolerance is "
                "too loose")


def checker(step=1e-5, rtol=1e-6, atol=1e-7, ones=False, looks_at=3):
    """Return a gradient check with its choices spelt out; the wrong answers choose badly."""
    def passes(backward):
        rng = np.random.default_rng(1)
        grad = np.ones((3, 5)) if ones else rng.normal(size=(3, 5))
        operands = [rng.normal(size=shape) for shape in ((3, 2), (7, 2), (7, 5))]
        found = backward(grad, *operands)
        for x, mine in list(zip(operands, found, strict=True))[:looks_at]:
            slopes = np.zeros_like(x)
            for place in np.ndindex(x.shape):
                old = x[place]
                for sign in (1, -1):
                    x[place] = old + sign * step
                    output = attn.scaled_dot_product_attention(*operands)
                    slopes[place] += sign * (grad * output).sum() / (2 * step)
                x[place] = old
            if not np.allclose(mine, slopes, rtol=rtol, atol=atol):
                return False
        return True
    return passes


@passes_gradient_check.wrong("takes a step of 1e-13", says="step is too small")
def _(backward):
    return checker(step=1e-13)(backward)


@passes_gradient_check.wrong("tests with a grad_output of ones", says="do not test with ones")
def _(backward):
    return checker(ones=True)(backward)


@passes_gradient_check.wrong("looks at the query alone", says="compare all three")
def _(backward):
    return checker(looks_at=1)(backward)


@passes_gradient_check.wrong("allows an error of one percent", says="too loose")
def _(backward):
    return checker(rtol=1e-2, atol=1e-3)(backward)


practice.quiz(
    Question(r"One row of weights is $(0.5, 0.5, 0)$ and its $dP$ is $(2, 0, 9)$. What is $dS$?", [
        choice("(0.5, −0.5, 0)", right=True,
               reason=r"The mean is 1, so $dS = (0.5 \cdot 1,\ 0.5 \cdot (-1),\ 0 \cdot 8)$."),
        choice("(1, 0, 0)", reason="That is $P \\circ dP$: the mean, 1, has not been subtracted."),
        choice("(0.5, −0.5, 8)", reason="A weight of 0 passes nothing on, however large its $dP$ "
                                        "is."),
    ]),
    Question("What does FlashAttention save for its backward pass, beside Q, K and V?", [
        choice("The weights P in half precision",
               reason="That would still be $L \\times S$ numbers. They are computed again."),
        choice("The largest score of each row alone",
               reason="The maximum without the sum is not enough to compute a weight again."),
        choice("O and one lse a query", right=True,
               reason="The lse gives any weight again, and "
                      "$\\operatorname{rowsum}(dO \\circ O)$ gives the mean."),
    ]),
    Question("All values that a query gives weight to are equal. What is the gradient of the "
             "query?", [
        choice("The mean key, times the scale",
               reason="The mean key drops out: a covariance is taken around the mean."),
        choice("0", right=True,
               reason="A covariance with a constant is 0: whichever of them it looks at, the "
                      "context is the same."),
        choice("It depends on the keys", reason="The keys vary, but a covariance needs both to."),
    ]),
    Question("A central difference in `float64` has a relative error of 1e-6 at h = 1e-2. At "
             "h = 1e-3 it is most likely", [
        choice("1e-7", reason="That would be slope 1, a one-sided difference."),
        choice("1e-5", reason="Slope −1 is rounding; at such steps truncation rules."),
        choice("1e-8", right=True, reason="Truncation goes like $h^2$, and rounding, about "
                                          "$10^{-16} / 10^{-3}$, is far below."),
    ]),
    Question("The scale is missing from dQ and the loss falls all the same. Why?", [
        choice("The optimiser notices and corrects the factor",
               reason="No optimiser knows the right gradient."),
        choice("The direction of dQ is right, and only its length is wrong", right=True,
               reason="A step in that direction still goes downhill. A difference check sees the "
                      "factor at once."),
        choice("dQ does not matter for the loss",
               reason="It does: the query projection learns from it alone."),
    ]),
)
