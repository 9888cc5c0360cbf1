"""Practice of the chapter "Bugs that train": two tests, code to mend, a suite to choose."""

import itertools

import numpy as np

import attn
from practice.form import Practice, Question, Wrong, choice, require

practice = Practice("bugs-that-train")

SIZE = 5


def make_layer(seed, softmax=attn.softmax, places=None, noise=0.0, shift=0.0):
    """Return a layer (B, L, E) to (B, L, E) of one head, some of whose parts may be wrong."""
    w = np.random.default_rng(seed).normal(size=(3, SIZE, SIZE)) / SIZE**0.5

    def layer(x):
        x = x + (0 if places is None else places(x))
        query, key, value = x @ w[0], x @ w[1], x @ w[2]
        weights = softmax(query @ key.swapaxes(-1, -2) / SIZE**0.5)
        return weights @ value + noise * len(x) + shift * x.mean(axis=0)

    return layer


def over_the_batch(scores):
    return attn.softmax(scores.swapaxes(0, -1)).swapaxes(0, -1)


def batch_row(x):
    return np.sin(1.0 + np.arange(len(x)))[:, None, None]


MIXED = {
    "the softmax runs over the batch": lambda: make_layer(0, softmax=over_the_batch),
    "the position is the index of the batch row": lambda: make_layer(1, places=batch_row),
    "the mean of the batch is added": lambda: make_layer(2, shift=0.1),
}
APART = {
    "nothing is wrong": lambda: make_layer(3),
    "only rounding depends on the batch": lambda: make_layer(4, noise=1e-13),
    "the position is the token's own": lambda: make_layer(
        5, places=lambda x: np.sin(np.arange(x.shape[1]))[:, None]),
}


@practice.exercise(
    "A test for the batch", marks=1, minutes=8,
    statement=r"""
    `layer` takes an array of shape $(B, L, 5)$ and returns one of the same shape. Return whether
    what happens to one sequence depends on the others in the batch, or on its place among them.
    Rounding may differ: a difference of $10^{-9}$ is none.
    """,
    hints=[
        r"What should a sequence give on its own, as a batch of one?",
        r"Draw `x` with three sequences, and compare `layer(x)[b]` with `layer(x[b:b+1])[0]` for "
        r"every `b`, by `np.allclose(…, atol=1e-9)`.",
    ],
    notes=r"""
    To shuffle the batch is not enough: a softmax over the batch commutes with every shuffle. To
    change the others and watch one is not enough either: a position that is the index of the row
    depends on nobody's content.
    """)
def mixes_the_batch(layer):
    """Return True if sequences are not treated each on its own."""
    ### BEGIN SOLUTION
    x = np.random.default_rng(0).normal(size=(3, 7, 5))
    together = layer(x)
    alone = np.concatenate([layer(x[b : b + 1]) for b in range(3)])
    return not np.allclose(together, alone, rtol=0, atol=1e-9)
    ### END SOLUTION


@mixes_the_batch.check
def _(answer):
    for why, make in (MIXED | APART).items():
        got, want = answer(make()), why in MIXED
        require(isinstance(got, bool | np.bool_), f"return True or False, not {got!r}")
        if want and not got:
            hint = {"the softmax runs over the batch":
                    "a shuffled batch gives shuffled outputs even so: run a sequence alone",
                    "the position is the index of the batch row":
                    "the contents of the others do not matter here: the place in the batch does",
                    }.get(why, "run a sequence alone, and with company")
            raise Wrong(f"your test passes a layer in which {why}; {hint}")
        require(want or not got, f"your test condemns a layer in which {why}"
                + ("; allow a tolerance" if "rounding" in why else ""))


@mixes_the_batch.wrong("shuffles the batch", says="a shuffled batch gives shuffled outputs")
def _(layer):
    x = np.random.default_rng(0).normal(size=(3, 7, 5))
    return not np.allclose(layer(x)[[1, 2, 0]], layer(x[[1, 2, 0]]), rtol=0, atol=1e-9)


@mixes_the_batch.wrong("changes the others and watches one", says="the place in the batch does")
def _(layer):
    x = np.random.default_rng(0).normal(size=(3, 7, 5))
    other = np.concatenate([x[:1], x[1:] + 1])
    return not np.allclose(layer(x)[0], layer(other)[0], rtol=0, atol=1e-9)


@mixes_the_batch.wrong("asks for equality to the last bit", says="allow a tolerance")
def _(layer):
    x = np.random.default_rng(0).normal(size=(3, 7, 5))
    return any((layer(x)[b] != layer(x[b : b + 1])[0]).any() for b in range(3))


def with_fast_path(change):
    """Return attention whose calls with one query go another way."""

    def attention(query, key, value, mask=None):
        if query.shape[2] == 1:
            return change(query, key, value, mask)
        return attn.scaled_dot_product_attention(query, key, value, mask)

    return attention


def first_mask(query, key, value, mask):
    mask = None if mask is None else np.broadcast_to(mask, (*query.shape[:3], key.shape[2]))[:1]
    return attn.scaled_dot_product_attention(query, key, value, mask)


FAST = {
    "with one query, the mask is dropped":
        lambda q, k, v, m: attn.scaled_dot_product_attention(q, k, v),
    "with one query, the scale is missing":
        lambda q, k, v, m: attn.scaled_dot_product_attention(q, k, v, m, scale=1.0),
    "with one query, all use the first sequence's mask": first_mask,
}


@practice.exercise(
    "Kill the survivor", marks=2, minutes=12,
    statement=r"""
    `attention(query, key, value, mask)` takes arrays of shapes $(B, H, L, D)$, $(B, H, S, D)$,
    $(B, H, S, D_v)$ and a boolean mask of shape $(B, 1, L, S)$, or `None`. Somebody gave the case
    $L = 1$ a path of its own. Return whether that path gives something else than the same query
    does among several.
    """,
    hints=[
        r"Call with all queries, then with one: `query[:, :, i:i+1]` and `mask[:, :, i:i+1]`.",
        r"The last row of a causal mask hides nothing, so it cannot show a mask that was dropped. "
        r"Draw random masks, a different one for each sequence.",
    ],
    notes=r"""
    A bug on a path can be seen only by a test that goes down the path with inputs on which it
    matters: one query, a mask that hides something, and two sequences whose masks differ.
    """)
def fast_path_differs(attention):
    """Return True if a query alone and among others differ."""
    ### BEGIN SOLUTION
    rng = np.random.default_rng(0)
    query = rng.normal(size=(2, 3, 4, 5))
    key, value = rng.normal(size=(2, 2, 3, 7, 5))
    mask = rng.random((2, 1, 4, 7)) < 0.5
    mask[..., 0] = True
    full = attention(query, key, value, mask)
    rows = []
    for i in range(4):
        one = slice(i, i + 1)
        q, m = query[:, :, one], mask[:, :, one]
        rows.append(attention(q, key, value, m))
    rows = np.concatenate(rows, axis=2)
    return not np.allclose(rows, full, rtol=0, atol=1e-9)
    ### END SOLUTION


@fast_path_differs.check
def _(answer):
    got = answer(attn.scaled_dot_product_attention)
    require(isinstance(got, bool | np.bool_), f"return True or False, not {got!r}")
    require(not got, "your test condemns attn's own attention: give the one query its own row of "
                     "the mask, and compare it with its own row of the output")
    hints = {"dropped": "no mask of yours hides a key from the one query (the last row of a "
                        "triangle hides nothing)",
             "scale": "compare the numbers, not the shapes",
             "first": "your sequences have the same mask, or there is one only"}
    for why, change in FAST.items():
        hint = next(text for word, text in hints.items() if word in why)
        require(answer(with_fast_path(change)), f"a bug got through: {why}; {hint}")


@fast_path_differs.wrong("decodes the last row of a triangle", says="hides nothing")
def _(attention):
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(2, 3, 7, 5)) for _ in range(3))
    mask = np.tri(7, dtype=bool)[None, None].repeat(2, axis=0)
    full = attention(query, key, value, mask)
    last = attention(query[:, :, -1:], key, value, mask[:, :, -1:])
    return not np.allclose(last, full[:, :, -1:], rtol=0, atol=1e-9)


@fast_path_differs.wrong("gives all sequences one mask", says="have the same mask")
def _(attention):
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(2, 3, n, 5)) for n in (4, 7, 7))
    mask = (np.arange(7) < 4)[None, None, None].repeat(4, axis=2).repeat(2, axis=0)
    full = attention(query, key, value, mask)
    one = attention(query[:, :, :1], key, value, mask[:, :, :1])
    return not np.allclose(one, full[:, :, :1], rtol=0, atol=1e-9)


@fast_path_differs.wrong("compares the one query with the last row", says="its own row")
def _(attention):
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(2, 3, n, 5)) for n in (4, 7, 7))
    mask = rng.random((2, 1, 4, 7)) < 0.5
    full = attention(query, key, value, mask)
    one = attention(query[:, :, :1], key, value, mask[:, :, :1])
    return not np.allclose(one, full[:, :, -1:], rtol=0, atol=1e-9)


@practice.exercise(
    "Mend it by its tests", marks=2, minutes=12,
    statement=r"""
    A student's model trains to an accuracy of 1. Its attention is

    ```python
    def mended(query, key, value, mask):
        scores = query @ key.swapaxes(-1, -2) / query.shape[2] ** 0.5
        if mask is not None:
            scores = np.where(mask, scores, -1e4)
        exps = np.exp(scores - scores.max())
        return exps / exps.sum(axis=-1, keepdims=True) @ value
    ```

    for $(B, H, L, D)$, $(B, H, S, D)$, $(B, H, S, D_v)$. Copy it, run
    `print(attn.check_attention(mended, grouped=False))`, mend what it names, and go on until it
    passes. Use NumPy alone.
    """,
    hints=[
        "There are four bugs, and one of them comes to light only when another is mended.",
        "Which size stands under the root? Which maximum is safe for a row whose scores all lie "
        "far below those of another row? What is `-inf - (-inf)`?",
        "With `-np.inf` as fill, replace the maximum of an empty row by 0, and a sum of 0 by 1.",
    ],
    notes=r"""
    The scale is that of `D`; the fill is $-\infty$; the maximum is each row's own; and a query that
    sees nothing gets zeros. No loss curve would have told.
    """)
def mended(query, key, value, mask):
    """Return softmax(Q Kᵀ / √D) V, and zeros for empty rows."""
    ### BEGIN SOLUTION
    scale = query.shape[-1] ** -0.5
    scores = scale * query @ key.swapaxes(-1, -2)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    exps = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = exps.sum(axis=-1, keepdims=True)
    return exps / np.where(total == 0, 1, total) @ value
    ### END SOLUTION


@mended.check
def _(answer):
    def quiet(*call):
        with np.errstate(all="ignore"):
            return answer(*call)

    one = np.ones((1, 1, 2, 3))
    quiet(one, one, one, None)  # an exception of the reader's own is shown as it is
    report = attn.check_attention(quiet, grouped=False)
    names = ", ".join(failure.name for failure in report.failures)
    hint = report.failures[0].hint if report.failures else ""
    require(report.passed, f"not yet. The judge says: {names}. {hint}")


@mended.wrong("mends the scale alone", says="one maximum for all rows")
def _(query, key, value, mask):
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = np.where(mask, scores, -1e4)
    exps = np.exp(scores - scores.max())
    return exps / exps.sum(axis=-1, keepdims=True) @ value


@mended.wrong("keeps the fill of -1e4", says="finite fill")
def _(query, key, value, mask):
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = np.where(mask, scores, -1e4)
    return attn.softmax(scores) @ value


@mended.wrong("fills with -∞ and leaves the empty row", says="NaN on empty rows")
def _(query, key, value, mask):
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True) @ value


@mended.wrong("mends all but the scale", says="scaled by n")
def _(query, key, value, mask):
    scale = (query.shape[-1] / query.shape[2]) ** 0.5
    return attn.scaled_dot_product_attention(query * scale, key, value, mask)


@practice.exercise(
    "The smallest suite", marks=3, minutes=15,
    statement=r"""
    `kills[i, j]` says whether test $j$ catches mutant $i$: a boolean array. Return the columns of a
    smallest set of tests that catches every mutant which any test catches, as a list of integers.
    Mutants that nothing catches are left aside. If several sets are equally small, any will do.
    """,
    hints=[
        r"Leave out the rows without a True: `kills[kills.any(axis=1)]`.",
        r"Try all sets of 0 tests, then of 1, then of 2, with `itertools.combinations`; the first "
        r"that covers is a smallest one.",
    ],
    notes=r"""
    To take the test that kills most, again and again, is quick and need not be smallest: on the
    second matrix of the check it takes three tests where two do. To find a smallest cover is
    NP-hard in general; for a dozen tests there are $2^{12}$ sets, and one tries them.
    """)
def smallest_suite(kills):
    """Return the columns of a smallest set that catches all."""
    ### BEGIN SOLUTION
    caught = kills[kills.any(axis=1)]
    tests = range(kills.shape[1])
    for size in range(len(tests) + 1):
        for suite in itertools.combinations(tests, size):
            if caught[:, list(suite)].any(axis=1).all():
                return list(suite)
    return None
    ### END SOLUTION


SUITES = [
    (np.eye(3, dtype=bool), 3),
    (np.array([[1, 1, 0], [1, 1, 0], [1, 0, 1], [1, 0, 1], [0, 1, 0], [0, 0, 1]], bool), 2),
    (np.array([[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]], bool), 1),
    (np.zeros((2, 5), bool), 0),
]


@smallest_suite.check
def _(answer):
    for number, (kills, least) in enumerate(SUITES, 1):
        got = answer(kills.copy())
        require(got is not None, f"matrix {number}: nothing was returned. Is there a mutant that "
                                 "no test catches? Leave it aside")
        got = [int(j) for j in got]
        caught = kills[kills.any(axis=1)]
        require(len(set(got)) == len(got) and all(0 <= j < kills.shape[1] for j in got),
                f"matrix {number}: {got} are not different columns")
        missed = int((~caught[:, got].any(axis=1)).sum())
        require(missed == 0, f"matrix {number}: your suite {got} misses {missed} mutants that some "
                             "test catches")
        require(len(got) <= least, f"matrix {number}: your suite has {len(got)} tests, {least} are "
                                   "enough; the test that kills most need not be in it")


@smallest_suite.wrong("takes the test that kills most, again and again", says="need not be in it")
def _(kills):
    left, suite = kills[kills.any(axis=1)], []
    while len(left):
        suite.append(int(left.sum(axis=0).argmax()))
        left = left[~left[:, suite[-1]]]
    return suite


@smallest_suite.wrong("wants to catch the survivors too", says="Leave it aside")
def _(kills):
    for size in range(kills.shape[1] + 1):
        for suite in itertools.combinations(range(kills.shape[1]), size):
            if kills[:, list(suite)].any(axis=1).all():
                return list(suite)
    return None


@smallest_suite.wrong("takes the two best tests", says="misses")
def _(kills):
    return list(np.argsort(-kills.sum(axis=0), kind="stable")[:2])


practice.quiz(
    Question("The scores are divided by √E, the model size, instead of √D. Which of these tests "
             "can see it?", [
        choice("Each row of weights sums to 1", reason="The softmax sees to that at any scale."),
        choice("Permuted keys and values change nothing", reason="True at any scale."),
        choice("A comparison with a loop over the numbers", right=True,
               reason="Only a test that knows the right constant notices a wrong one."),
        choice("A later token does not change an earlier output", reason="True at any scale."),
    ]),
    Question("A model with a leak reaches accuracy 1.00 in training and on held-out data. Why does "
             "held-out data not help?", [
        choice("The answers are fed in there too, so the leak works as well", right=True,
               reason="Both are scored with the right prefix given. Generation is where the "
                      "answers are missing."),
        choice("The model has overfitted the held-out data by way of the learning rate",
               reason="It has never seen these data."),
        choice("The held-out set is too small", reason="A leak works on any number of tokens."),
    ]),
    Question("Why do the tests use unequal sizes, such as L = 7, H = 6, D = 5?", [
        choice("Primes make the arithmetic exact", reason="Floats do not care about primes."),
        choice("They are faster than powers of two", reason="If anything they are slower."),
        choice("Larger sizes find more bugs", reason="Small ones find these just as well."),
        choice("With equal sizes swapped axes give the right shape, or even the right number",
               right=True, reason="If L = D, a division by √L is the right one."),
    ]),
    Question("A mutant survives all tests. What follows?", [
        choice("The mutant is harmless", reason="It may be harmful on inputs that no test has."),
        choice("The tests never ran it on an input where it matters, or it changes nothing",
               right=True, reason="So find such an input, which is a new test, or show that there "
                                  "is none."),
        choice("The mutant has to be deleted from the list, because it spoils the percentage",
               reason="Then the list would measure nothing."),
    ]),
    Question("In what sense does the smallest suite depend on more than the bugs?", [
        choice("It depends on the seed of the training", reason="No training is involved."),
        choice("It depends on the order of the mutants", reason="A cover has no order."),
        choice("It depends on the inputs inside the tests, such as a batch without padding",
               right=True, reason="The same loop catches many more bugs once its batch is ragged "
                                  "and its first query is not at 0."),
    ]),
)
