"""Practice of the chapter "The worked example": one row, one dial, two bugs, one test."""

import math

import numpy as np

import attn
from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("worked-example")


def draw(seed, *sizes):
    """Return arrays of the given sizes, the same for the same seed."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=size) for size in sizes]


def softmax(scores, axis=1):
    powers = np.exp(scores)
    return powers / powers.sum(axis=axis, keepdims=True)


@practice.exercise(
    "One row of weights", marks=1, minutes=5,
    statement=r"""
    In plain Python, without NumPy: turn one query (a list of $D$ numbers) and $S$ keys (a list of
    lists) into the $S$ weights of that query,
    $\alpha_j = e^{s_j} / \sum_m e^{s_m}$ with $s_j = q \cdot k_j / \sqrt{D}$.
    """,
    hints=[
        r"Three steps, three lists of the same length: scores, powers, weights.",
        r"$D$ is the length of the query: `math.sqrt(len(query))`.",
    ],
    notes=r"`sum(powers)` runs over the keys: every weight of the row is divided by the same sum.")
def row_of_weights(query, keys):
    """Return the list of weights that one query gives to the keys."""
    ### BEGIN SOLUTION
    scores = []
    for key in keys:
        pairs = zip(query, key, strict=True)
        product = sum(q * k for q, k in pairs)
        scores.append(product / math.sqrt(len(query)))
    powers = [math.exp(score) for score in scores]
    return [power / sum(powers) for power in powers]
    ### END SOLUTION


@row_of_weights.check
def _(answer):
    u = math.exp(1 / math.sqrt(2))
    example = answer([1.0, 0.0], [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    products = np.array([[1.0, 1.0, 0.0]])
    require_close(example, np.array([u, u, 1]) / (2 * u + 1), what="row 1 of the example",
                  slips=row_slips(products, size=2, keys=3))
    query, keys = draw(1, (3,), (5, 3))
    products = query[None] @ keys.T
    require_close(answer(query.tolist(), keys.tolist()), softmax(products / math.sqrt(3))[0],
                  what="a row with D = 3 and S = 5", slips=row_slips(products, size=3, keys=5))


def row_slips(products, size, keys):
    scores = products / math.sqrt(size)
    return [
        (softmax(products)[0], "the dot products were not divided by √D"),
        (softmax(products / size)[0], "the dot products were divided by D, not by its root"),
        (softmax(products / math.sqrt(keys))[0],
         "the dot products were divided by √S: the root is of the size of a key, D"),
        (np.exp(scores)[0], "these are the powers: divide each by their sum"),
        (scores[0], "these are the scores: exponentiate them, then divide by the sum"),
        ((scores / scores.sum())[0], "the scores were divided by their sum: exponentiate first"),
    ]


@row_of_weights.wrong("forgets the root of D", says="not divided by √D")
def _(query, keys):
    powers = [math.exp(sum(q * k for q, k in zip(query, key, strict=True))) for key in keys]
    return [power / sum(powers) for power in powers]


@row_of_weights.wrong("takes the root of the number of keys", says="divided by √S")
def _(query, keys):
    return softmax(np.array([query]) @ np.array(keys).T / math.sqrt(len(keys)))[0].tolist()


@row_of_weights.wrong("leaves the powers as they are", says="divide each by their sum")
def _(query, keys):
    return np.exp(np.array(keys) @ np.array(query) / math.sqrt(len(query))).tolist()


@practice.exercise(
    "The dial, backwards", marks=2, minutes=10,
    statement=r"""
    Key 3 of the example becomes $(t, 1)$. For which $t$ does query 1 give it the share $p$ of its
    weight? Solve on paper for $t$, then write the result as a function of $p$, for $0 < p < 1$.
    """,
    hints=[
        r"With $x = e^{t/\sqrt2}$ the weight of key 3 is $x / (2u + x)$, where $u = e^{1/\sqrt2}$.",
        r"From $x / (2u + x) = p$ follows $x = 2u\,p / (1 - p)$. Take the logarithm of both sides.",
    ],
    notes=r"""
    $t = \sqrt2 \,\ln x = 1 + \sqrt2 \,\ln \frac{2p}{1 - p}$. At $p = 1/3$ the logarithm is 0 and
    $t = 1$: all three keys match equally well.
    """)
def component_for(share):
    """Return t for which key 3, (t, 1), gets this share."""
    ### BEGIN SOLUTION
    return 1 + math.sqrt(2) * math.log(2 * share / (1 - share))
    ### END SOLUTION


@component_for.check
def _(answer):
    for share in (1 / 3, 0.5, 0.9):
        odds = math.log(share / (1 - share))
        t, want = answer(share), 1 + math.sqrt(2) * (math.log(2) + odds)
        require_close(t, want, what=f"component_for({share:.4g})", slips=[
            (1 / math.sqrt(2) + math.log(2) + odds,
             "that is the score of key 3, t/√2: multiply by √2 to get t"),
            (1 + math.log(2) + odds, "the logarithm needs the factor √2, as t/√2 = ln x"),
            (1 + math.sqrt(2) * odds,
             "keys 1 and 2 have the power u each, so the rest of the sum is 2u, not u"),
            (math.sqrt(2) * (math.log(2) + odds),
             "the powers of keys 1 and 2 are u, not 1: the factor u adds 1 to t")])
        keys = np.array([[1, 0], [1, 1], [t, 1]])
        weights = attn.attention_weights(np.array([[1.0, 0.0]]), keys)
        require_close(weights[0, 2], share, what="the weight of key 3")


@component_for.wrong("gives the score instead of the component", says="that is the score")
def _(share):
    return 1 / math.sqrt(2) + math.log(2 * share / (1 - share))


@component_for.wrong("forgets one of the two other keys", says="2u, not u")
def _(share):
    return 1 + math.sqrt(2) * math.log(share / (1 - share))


@component_for.wrong("takes the other powers to be 1", says="are u, not 1")
def _(share):
    return math.sqrt(2) * math.log(2 * share / (1 - share))


@practice.exercise(
    "Two bugs", marks=2, minutes=10,
    statement=r"""
    This function was tested with $Q = K = V = I_3$, the identity of size 3, and gave the right
    contexts. It has two bugs all the same. Find both, and write it without them.

    ```python
    def attention_broken(query, key, value):
        scores = query @ key.T / np.sqrt(len(query))
        powers = np.exp(scores)
        weights = powers / powers.sum(axis=1)
        return weights @ value
    ```
    """,
    hints=[
        r"Which of the letters $L$, $S$, $D$, $D_v$ is `len(query)`? Which one should it be?",
        r"`powers.sum(axis=1)` has shape $(L,)$. NumPy lines it up with the **last** axis of "
        r"`powers`, which has length $S$.",
    ],
    notes=r"""
    With $Q = K = I_3$ neither shows: $L = D$, so the root is right, and all three rows have the
    same sum, so it does not matter which one a number is divided by.
    """)
def attention_repaired(query, key, value):
    """Return the contexts, an array of shape (L, Dv)."""
    ### BEGIN SOLUTION
    scores = query @ key.T / np.sqrt(query.shape[1])
    powers = np.exp(scores)
    weights = powers / powers.sum(axis=1, keepdims=True)
    return weights @ value
    ### END SOLUTION


@attention_repaired.check
def _(answer):
    query, key, value = draw(3, (2, 3), (5, 3), (5, 7))
    products = query @ key.T
    try:
        contexts = answer(query, key, value)
    except ValueError as error:
        raise Wrong("with 2 queries and 5 keys the sizes do not fit, most likely in the division: "
                    "the sums need the shape (L, 1), see `keepdims` "
                    f"(NumPy: {str(error).strip()})") from None
    require_close(contexts, softmax(products / math.sqrt(3)) @ value, what="the contexts", slips=[
        (softmax(products / math.sqrt(2)) @ value, "still the root of the number of queries, √L"),
        (softmax(products / math.sqrt(5)) @ value, "that is the root of the number of keys, √S"),
        (softmax(products) @ value, "the dot products are not divided by √D at all"),
        (softmax(products / math.sqrt(3), axis=0) @ value,
         "the sum runs over the queries: a row of weights has to sum to 1")])


@attention_repaired.wrong("repairs the root only", says="see `keepdims`")
def _(query, key, value):
    powers = np.exp(query @ key.T / np.sqrt(query.shape[1]))
    return powers / powers.sum(axis=1) @ value


@attention_repaired.wrong("repairs the division only", says="number of queries")
def _(query, key, value):
    return softmax(query @ key.T / np.sqrt(len(query))) @ value


@attention_repaired.wrong("takes the number of keys for D", says="number of keys")
def _(query, key, value):
    return softmax(query @ key.T / np.sqrt(len(key))) @ value


@attention_repaired.wrong("lets the sum run over the queries", says="over the queries")
def _(query, key, value):
    return softmax(query @ key.T / np.sqrt(query.shape[1]), axis=0) @ value


@practice.exercise(
    "A test that can tell", marks=3, minutes=15,
    statement=r"""
    Write the test that the example of this page cannot be: `accepts(attention)` takes any function
    of `(query, key, value)`, two-dimensional `float64` arrays, and returns `True` if it computes
    attention and `False` if it does not. `attn.scaled_dot_product_attention` may tell you what is
    right. Your own part is the choice of what to try. The check hands it three right functions,
    one of which works in `float32` inside, and eight wrong ones.
    """,
    hints=[
        r"Choose $L$, $S$, $D$ and $D_v$ all different, and random entries: nothing is symmetric "
        r"then, and nothing is 0 or 1.",
        r"A wrong function may raise an exception: `try` … `except` … `return False`.",
        r"Compare the shapes first, then the numbers, and allow for the rounding of `float32`: "
        r"`np.allclose(got, want, atol=1e-5)`.",
    ],
    notes=r"`except Exception` is right here: whatever the function under test raises, it failed.")
def accepts(attention):
    """Return whether attention(query, key, value) is right."""
    ### BEGIN SOLUTION
    rng = np.random.default_rng(0)
    query = rng.normal(size=(2, 3))
    key, value = rng.normal(size=(5, 3)), rng.normal(size=(5, 7))
    right = attn.scaled_dot_product_attention
    want = right(query, key, value)
    try:
        got = attention(query, key, value)
    except Exception:
        return False
    if got.shape != want.shape:
        return False
    return np.allclose(got, want, atol=1e-5)
    ### END SOLUTION


def scored(rule):
    """Return a function of (query, key, value) from one that turns scores into weights."""
    return lambda q, k, v: rule(q @ k.T / math.sqrt(q.shape[1])) @ v


def in_float32(query, key, value):
    query, key, value = (x.astype(np.float32) for x in (query, key, value))
    return attn.scaled_dot_product_attention(query, key, value).astype(np.float64)


RIGHT = {
    "the plain formula": scored(softmax),
    "a softmax that subtracts the maximum first":
        scored(lambda s: softmax(s - s.max(axis=1, keepdims=True))),
    "float32 inside": in_float32,
}
MUTANTS = {
    "does not divide by √D": lambda q, k, v: softmax(q @ k.T) @ v,
    "divides by √L": lambda q, k, v: softmax(q @ k.T / math.sqrt(len(q))) @ v,
    "divides by √S": lambda q, k, v: softmax(q @ k.T / math.sqrt(len(k))) @ v,
    "takes the softmax over the queries": scored(lambda s: softmax(s, axis=0)),
    "transposes the query": lambda q, k, v: scored(softmax)(q.T, k, v),
    "transposes the contexts": lambda q, k, v: scored(softmax)(q, k, v).T,
    "does not divide by the sum": scored(np.exp),
    "picks the value of the best key": scored(lambda s: np.eye(s.shape[1])[s.argmax(axis=1)]),
}


@accepts.check
def _(answer):
    for name, function in RIGHT.items():
        said = answer(function)
        require(isinstance(said, bool | np.bool_),
                f"accepts should return True or False, not {said!r}")
        require(said, f"your test rejects a right function ({name})"
                + (": allow for its rounding" if "32" in name else ""))
    for name, function in MUTANTS.items():
        try:
            said = answer(function)
        except ValueError:
            raise Wrong(f"a function that {name} raises an exception, and your test passes it on: "
                        "catch it and return False") from None
        require(not said, f"your test accepts a function that {name}")


@accepts.wrong("looks at the shape of the result only", says="does not divide by √D")
def _(attention):
    query, key, value = draw(5, (2, 3), (5, 3), (5, 7))
    return attention(query, key, value).shape == (2, 7)


@accepts.wrong("tries the example of this page only", says="divides by √L")
def _(attention):
    query, key = np.eye(2), np.array([[1.0, 0], [1, 1], [0, 1]])
    value = np.array([[10.0, 0], [0, 5], [0, 1]])
    want = attn.scaled_dot_product_attention(query, key, value)
    return np.allclose(attention(query, key, value), want, atol=1e-5)


@accepts.wrong("tries as many keys as a key has numbers", says="divides by √S")
def _(attention):
    query, key, value = draw(5, (2, 3), (3, 3), (3, 7))
    want = attn.scaled_dot_product_attention(query, key, value)
    return np.allclose(attention(query, key, value), want, atol=1e-5)


@accepts.wrong("asks for equal bits", says="allow for its rounding")
def _(attention):
    query, key, value = draw(5, (2, 3), (5, 3), (5, 7))
    want = attn.scaled_dot_product_attention(query, key, value).round(12)
    return np.array_equal(attention(query, key, value).round(12), want)


@accepts.wrong("lets exceptions of the function through", says="catch it")
def _(attention):
    query, key, value = draw(5, (2, 3), (5, 3), (5, 7))
    got, want = attention(query, key, value), scored(softmax)(query, key, value)
    return got.shape == want.shape and np.allclose(got, want, atol=1e-5)


practice.quiz(
    Question(r"Key 2 of the example becomes $(1, -7)$ instead of $(1, 1)$. What happens to the "
             r"weights of query 1, $(1, 0)$?", [
        choice("Key 2 loses nearly all of its weight",
               reason="That happens to query 2, whose score with key 2 falls to $-7/\\sqrt2$."),
        choice("Nothing", right=True,
               reason="Query 1 reads the first component of a key, and that is still 1."),
        choice("All three change a little",
               reason="They would if the score changed; $(1, 0) \\cdot (1, -7) = 1$, as before."),
    ]),
    Question(r"Every value gets 10 added to its first component. What happens to the contexts?", [
        choice("Each gets 10 added to its first component", right=True,
               reason="The weights do not depend on the values and sum to 1: "
                      r"$\sum_j \alpha_j (v_j + b) = \sum_j \alpha_j v_j + b$."),
        choice("Each gets 10 · 0.401 added, the share of the best key",
               reason="All three values moved, so all three shares count, and they sum to 1."),
        choice("It depends on the scores",
               reason="A shift that all values share passes through any weights that sum to 1."),
    ]),
    Question(r"Over what does the softmax of attention run, for scores of shape $(L, S)$?", [
        choice("Over the queries: each column of weights sums to 1",
               reason="Then the keys would share out the queries. A query's weights would not sum "
                      "to 1, and its context would be no average."),
        choice("Over all L · S scores at once: the whole matrix sums to 1",
               reason="Then queries would compete with each other for the weight."),
        choice("Over the keys: each row of weights sums to 1", right=True,
               reason="Each query shares out a budget of 1 among the keys."),
    ]),
    Question("Which of these is a context that some query can get from the values "
             "$(10, 0)$, $(0, 5)$, $(0, 1)$?", [
        choice("(0, 0)", reason="It lies outside the triangle: the first component is 0 only on "
               "the edge between $(0, 1)$ and $(0, 5)$."),
        choice("(9, 4)", reason=r"Outside: $9/10 + 4/5 > 1$, beyond the edge from $(10, 0)$ to "
               "$(0, 5)$."),
        choice("(2, 3)", right=True,
               reason=r"Inside the triangle, with the weights $0.2$, $0.55$ and $0.25$."),
        choice("(0, 5), the second value itself",
               reason="A softmax gives every key some weight, so no corner is reached exactly."),
    ]),
    Question("Two programs print 1.9777582 and 1.977758 for the same entry, both in `float32`. "
             "What follows?", [
        choice("One of them has a bug",
               reason="A bug shows in the leading digits or with other sizes. These two differ by "
                      "one unit in the last place, as little as the order of a sum may do."),
        choice("Nothing: sums were rounded in another order", right=True,
               reason="Compare with a tolerance of a few units in the last place; use `float64` "
                      "when the question is whether two formulas are the same."),
        choice("The second is more exact, because it has fewer digits",
               reason="It prints fewer digits because fewer are enough to name that number."),
    ]),
)
