"""Practice of the chapter "A small Transformer": count, repair, score, build and cut by hand."""

import numpy as np

from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("a-small-transformer")


@practice.exercise(
    "Count the parameters", marks=1, minutes=6,
    statement=r"""
    How many numbers does a model of this chapter learn? It has $V$ letters, vectors of size $E$,
    `layers` blocks whose MLP is `width` times as wide as the stream, and its positions are
    sinusoidal. The four projections of the attention have no bias, the two layers of the MLP have
    one each; a layer norm scales and shifts. The matrix that reads the letters off the stream is
    not shared with the embedding and has no bias.
    """,
    hints=[
        "Attention: four matrices of $E \\times E$. MLP: $E \\to$ `width` $\\cdot E \\to E$, each "
        "layer with as many biases as outputs.",
        "A layer norm learns $2E$ numbers: two norms a block, and one before the reading matrix.",
    ],
    notes=r"""
    $2VE$ for embedding and reading, $2E$ for the last norm, and for each block
    $4E^2 + 2wE^2 + wE + E + 4E$. The number of heads does not occur. The sinusoidal waves are
    computed, not learned. Two thirds of a block are in the MLP.
    """)
def count_parameters(V, E, layers, width):
    """Return the number of learned parameters, an int."""
    ### BEGIN SOLUTION
    attention = 4 * E * E
    mlp = E * width * E + width * E + width * E * E + E
    norms = 2 * 2 * E
    return V * E + layers * (attention + mlp + norms) + 2 * E + E * V
    ### END SOLUTION


@count_parameters.check
def _(answer):
    for V, E, layers, width in ((24, 32, 3, 4), (11, 7, 2, 5)):
        mlp, bias = 2 * width * E * E, width * E + E
        block = 4 * E * E + mlp + bias + 4 * E
        right = 2 * V * E + layers * block + 2 * E
        require_close(
            answer(V, E, layers, width), right, what=f"count_parameters({V}, {E}, {layers}, "
            f"{width})", atol=0.1, slips=[
                (right - V * E, "embedding and reading matrix are two matrices, V·E each"),
                (right - layers * bias, "the MLP's two layers have biases: width·E and E"),
                (right - layers * E, "the second layer of the MLP has E biases as well"),
                (right - layers * 4 * E - 2 * E, "the layer norms are missing: 2E each"),
                (right - 2 * E, "there is one more layer norm, before the reading matrix"),
                (right - layers * 2 * E - E, "a layer norm learns 2E numbers, scale and shift"),
                (right - layers * E * E, "attention has four projections: the output one too"),
                (right + layers * 4 * E, "the projections of the attention have no bias"),
                (right + 24 * E, "the sinusoidal positions are not learned"),
                (right - (layers - 1) * block, "every block has its own parameters"),
            ])


@count_parameters.wrong("shares the reading matrix with the embedding", says="two matrices")
def _(V, E, layers, width):
    return V * E + layers * (4 * E * E + 2 * width * E * E + width * E + E + 4 * E) + 2 * E


@count_parameters.wrong("leaves out the layer norms", says="layer norms are missing")
def _(V, E, layers, width):
    return 2 * V * E + layers * (4 * E * E + 2 * width * E * E + width * E + E)


@count_parameters.wrong("forgets the output projection", says="output one too")
def _(V, E, layers, width):
    return 2 * V * E + layers * (3 * E * E + 2 * width * E * E + width * E + 5 * E) + 2 * E


@practice.exercise(
    "A block that overwrites", marks=1, minutes=6,
    statement=r"""
    A colleague's pre-norm block trains, but badly, and the logit lens shows noise:

    ```python
    x = norm1(x)
    x = x + attention(x)
    return mlp(norm2(x))
    ```

    Two residual connections are broken. Which? Write the block as in this chapter. The four parts
    are functions of one array each.
    """,
    hints=[
        "After line 1 the stream is gone: what is added to in line 2 is its normalised copy.",
        "In line 3 nothing is added at all: the MLP's output replaces the stream.",
    ],
    notes=r"""
    Every step is `x + step(norm(x))`. In the broken block a gradient has to pass through `norm1`
    and through the MLP to get to the block before; with the sum there is a way along which nothing
    is multiplied.
    """)
def block(x, norm1, attention, norm2, mlp):
    """Return what a pre-norm block makes of x."""
    ### BEGIN SOLUTION
    x = x + attention(norm1(x))
    return x + mlp(norm2(x))
    ### END SOLUTION


@block.check
def _(answer):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 3)) + 1
    A, M = rng.normal(size=(2, 3, 3))
    before = x.copy()

    def n1(y):
        return (y - y.mean(-1, keepdims=True)) / y.std(-1, keepdims=True)

    def n2(y):
        return 2 * n1(y)

    def a(y):
        return y @ A

    def m(y):
        return np.tanh(y @ M)

    got = answer(x, n1, a, n2, m)
    require(np.array_equal(x, before), "x itself was changed: write x = x + …, not x += …")
    y = x + a(n1(x))
    post = n1(x + a(x))
    require_close(got, y + m(n2(y)), what="block(x, …)", slips=[
        (m(n2(n1(x) + a(n1(x)))), "this is the colleague's block"),
        (n1(x) + a(n1(x)) + m(n2(n1(x) + a(n1(x)))),
         "the attention's result is added to norm1(x): the stream itself must come through"),
        (m(n2(y)), "the second residual connection is missing: the MLP's result replaces the "
                   "stream"),
        (a(n1(x)) + m(n2(a(n1(x)))), "the first residual connection is missing"),
        (y + m(n2(x)), "the MLP reads the input of the block: it should read the stream after "
                       "the attention"),
        (n2(post + m(post)), "this is post-norm: the norms stand after the sums"),
        (y + m(n1(y)), "the second step has a norm of its own, norm2"),
        (y + m(y), "the MLP reads the stream without its norm"),
        (x + m(n2(y)), "the attention's result is lost: add the MLP's to the stream after it"),
    ])


@block.wrong("adds to the normalised stream", says="added to norm1(x)")
def _(x, norm1, attention, norm2, mlp):
    x = norm1(x)
    x = x + attention(x)
    return x + mlp(norm2(x))


@block.wrong("forgets the second residual connection", says="second residual connection")
def _(x, norm1, attention, norm2, mlp):
    return mlp(norm2(x + attention(norm1(x))))


@block.wrong("puts the norms after the sums", says="post-norm")
def _(x, norm1, attention, norm2, mlp):
    x = norm1(x + attention(x))
    return norm2(x + mlp(x))


@practice.exercise(
    "A prefix of several letters", marks=2, minutes=12,
    statement=r"""
    The prefix-matching score asks for *one* letter: it adds up the weight on the positions $j$ with
    $x_{j-1} = x_t$. Write it for the last `back` letters: position $j \le t$ counts if the letters
    at $j - 1, j - 2, \dots, j - \text{back}$ are those at $t, t - 1, \dots, t - \text{back} + 1$,
    and all of these positions exist. Take one head and one text. Average over the queries
    for which at least one position counts; return 0 if there is none.
    """,
    hints=[
        "For each `t` and each `j <= t`, compare `tokens[j - back:j]` with "
        "`tokens[t - back + 1:t + 1]`.",
        "A slice that starts below 0 counts from the end in Python. Begin with `j = back` and "
        "`t = back - 1`.",
    ],
    notes=r"""
    Try it on the copying heads of the trained models, with `back` 1 and 2, on texts in which a
    letter has two successors: they put more than half of that weight on the right one of the two.
    """)
def prefix_by_two(weights, tokens, back):
    """Return the mean weight on the positions that count.

    weights: array of shape (L, L); tokens: array of shape (L,).
    """
    ### BEGIN SOLUTION
    L, sums = len(tokens), []
    for t in range(back - 1, L):
        last = tokens[t - back + 1 : t + 1]
        hits = [j for j in range(back, t + 1) if np.array_equal(tokens[j - back : j], last)]
        if hits:
            sums.append(weights[t, hits].sum())
    return np.mean(sums) if sums else 0.0
    ### END SOLUTION


def _score(weights, tokens, back, shift=0, everyone=False, wrap=False, best=False, past=0,
           order=1):
    """Return the score with a mistake switched on."""
    L, sums = len(tokens), []
    for t in range(0 if wrap else back - 1, L):
        last = np.take(tokens, range(t - back + 1, t + 1), mode="wrap")
        hits = [j + shift for j in range(0 if wrap else back, t + 1 - past)
                if np.array_equal(np.take(tokens, range(j - back, j), mode="wrap"), last[::order])]
        take = weights[t, [j for j in hits if 0 <= j < L]]
        if len(take) or everyone:
            sums.append(take.max() if best and len(take) else take.sum())
    return np.mean(sums) if sums else 0.0


@prefix_by_two.check
def _(answer):
    rng = np.random.default_rng(3)
    texts = ([1, 2, 3, 1, 2, 4, 1, 2, 3, 2, 1], [0, 1, 0, 0, 1, 1, 0, 1, 0], [5, 5, 5, 2, 5, 5, 1],
             [3, 1, 2, 0, 1, 3])
    for text in texts:
        tokens = np.array(text)
        weights = np.tril(rng.random((len(text), len(text))))
        weights /= weights.sum(-1, keepdims=True)
        for back in (1, 2, 3):
            def score(weights=weights, tokens=tokens, back=back, **slip):
                return _score(weights, tokens, back, **slip)

            slips = [
                (score(shift=-1), "this is the weight on the earlier copy itself: the position "
                                  "after it counts"),
                (score(everyone=True), "queries without a match are in the average: leave them "
                                       "out"),
                (score(best=True), "take the sum of the weights, not the largest"),
                (score(past=1), "position j = t counts too, if the letters before it match"),
                (score(wrap=True), "a slice that starts below 0 has wrapped around to the end of "
                                   "the text"),
                (score(order=-1), "the letters are compared in reverse order"),
                (score(back=1), "only the last letter is compared: `back` letters must match"),
            ]
            got = answer(weights, tokens, back)
            require(np.ndim(got) == 0 and np.isfinite(got),
                    f"expected one finite number, also where no position counts; got {got}")
            require_close(got, score(), what=f"prefix_by_two(weights, {text}, {back})",
                          slips=slips)


@prefix_by_two.wrong("scores the earlier copy, not what follows it", says="position after it")
def _(weights, tokens, back):
    return _score(weights, tokens, back, shift=-1)


@prefix_by_two.wrong("averages over all queries", says="leave them out")
def _(weights, tokens, back):
    return _score(weights, tokens, back, everyone=True)


@prefix_by_two.wrong("compares one letter only", says="only the last letter")
def _(weights, tokens, back):
    return _score(weights, tokens, 1)


@practice.exercise(
    "The circuit by hand, and cut", marks=3, minutes=15,
    statement=r"""
    Build the two heads in NumPy, with one-hot letters $o_t \in \{0, 1\}^V$.

    *Head 1* looks exactly one step back: position $j$ gets $p_j = o_{j-1}$, and position 0 gets the
    zero vector. *Head 2*, causal, has queries $50\, o_t$, keys $p_j$ and values $o_j$; its
    scores are the dot products, without $1/\sqrt{D}$. Return its output, shape $(L, V)$.

    With `previous=False`, head 1 is removed: what it would have added is 0. **Before you write it,
    predict** what head 2 then offers for the text `dacbda`.
    """,
    hints=[
        "`scores = 50 * o @ p.T`, with `-np.inf` above the diagonal; then a softmax over each row "
        "(subtract the row's maximum first), times `o`.",
        "Without head 1 all keys are 0, so all visible scores are equal. What do they give?",
    ],
    notes=r"""
    Removed, the head does not fall silent. All its scores are equal, so its weights are even, and
    it offers the frequencies of the letters seen so far. The same happens in the complete circuit
    at a letter that is new: no key matches, all scores are 0. A softmax has no way to say
    "nothing found".
    """)
def by_hand(tokens, V, previous=True):
    """Return what head 2 offers: an array of shape (L, V)."""
    ### BEGIN SOLUTION
    o = np.eye(V)[tokens]
    p = np.zeros_like(o)
    if previous:
        p[1:] = o[:-1]
    scores = 50 * o @ p.T
    scores[~np.tri(len(o), dtype=bool)] = -np.inf
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ o
    ### END SOLUTION


def _circuit(tokens, V, previous, sharp=50.0, causal=True, removed="key", wrap=False, own=False,
             value="own", strict=False):
    """Return the output of the two heads with a mistake switched on."""
    o = np.eye(V)[np.asarray(tokens)]
    p = np.roll(o, 1, axis=0)
    if not wrap:
        p[0] = 0
    p = o if own else p
    values = {"own": o, "previous": p, "next": np.roll(o, -1, axis=0)}[value]
    if not previous:
        if removed == "value":
            values = np.zeros_like(o)
        p = {"key": np.zeros_like(o), "value": p, "copy": o}[removed]
    scores = sharp * o @ p.T
    if causal:
        scores[~np.tri(len(o), k=-int(strict), dtype=bool)] = -1e9
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ values


@by_hand.check
def _(answer):
    for text, V in (([3, 0, 2, 1, 3, 0], 5), ([1, 4, 1, 1, 2, 4, 6], 7)):
        tokens = np.array(text)
        for previous in (True, False):
            def offer(tokens=tokens, V=V, previous=previous, **slip):
                return _circuit(tokens, V, previous, **slip)

            what = f"by_hand({text}, {V}, previous={previous})"
            got = np.asarray(answer(tokens, V, previous=previous))
            require(got.shape == (len(text), V),
                    f"{what} should have shape {(len(text), V)}, not {got.shape}")
            if not np.isfinite(got).all():
                raise Wrong("the softmax gives NaN: subtract the largest score of each row first, "
                            "and let every query see at least itself")
            slips = [
                (offer(causal=False), "it sees later positions: head 2 is causal"),
                (offer(own=True), "the keys are the letters themselves: use the letters before, "
                                  "p"),
                (offer(wrap=True), "position 0 has no letter before it: p[0] is zero, np.roll "
                                   "puts the last letter there"),
                (offer(value="previous"), "the values are the letters o, not what head 1 wrote"),
                (offer(sharp=50 / np.sqrt(V)), "the scores are not divided by √D here"),
                (offer(sharp=1.0), "the factor 50 is missing: the look-up should be sharp"),
            ]
            if not previous:
                slips = [
                    (offer(removed="value"), "removed, head 1 adds 0 to the keys; head 2 goes on "
                                             "working"),
                    (offer(removed="copy"), "without head 1 the keys are 0, not the letters"),
                    (offer(previous=True), "previous=False changes nothing yet"),
                    *slips]
            require_close(got, offer(), what=what, atol=1e-6, slips=slips)


@by_hand.wrong("keys that are the letters themselves", says="letters before")
def _(tokens, V, previous=True):
    return _circuit(tokens, V, previous, own=True)


@by_hand.wrong("expects silence from a head whose keys are gone", says="goes on working")
def _(tokens, V, previous=True):
    return _circuit(tokens, V, previous, removed="value")


@by_hand.wrong("rolls the last letter to position 0", says="position 0")
def _(tokens, V, previous=True):
    return _circuit(tokens, V, previous, wrap=True)


@by_hand.wrong("forgets the causal mask", says="later positions")
def _(tokens, V, previous=True):
    return _circuit(tokens, V, previous, causal=False)


practice.quiz(
    Question("The text is `q f m s q f`. Where does an induction head look, at the last `f`?", [
        choice("At the earlier f", reason="That is the letter it looks *for*. What it needs stands "
                                          "one position later."),
        choice("At m, which came after the earlier f", right=True,
               reason="Its key says \"after f\". The value there is m, the answer."),
        choice("At q, one step back", reason="That is what a previous-token head does."),
    ]),
    Question("Why can a head of block 1 not match \"what came before position j\"?", [
        choice("Its key is made from the letter and the place at j alone", right=True,
               reason="Before any attention nothing has moved between positions. "
                      r"$x_{j-1}$ is not in the vector at $j$."),
        choice("The causal mask hides position j − 1",
               reason="Position $j - 1$ is in the past of every query that may see $j$."),
        choice("A single block has too few parameters",
               reason="More parameters in the projections change nothing: the key would still be "
                      "a function of what stands at $j$."),
    ]),
    Question("In a pre-norm block, what is the attention's result added to?", [
        choice("To the norm of the stream, so that both have the same size",
               reason="Then the stream itself would be lost: exercise 2."),
        choice("To nothing: it replaces the stream", reason="Then there is no residual "
                                                            "connection."),
        choice("To the stream as it came in, without a norm", right=True,
               reason=r"$x + A(N_1(x))$: the norm is inside the branch only."),
    ]),
    Question("A head is removed, and the loss rises by 0.01. What follows?", [
        choice("The head does nothing", reason="It may do what another head does as well. Remove "
                                               "both, or look at the cases it decides."),
        choice("The rest of the model can do without it on this test", right=True,
               reason="That is what was measured. Another head may step in, and another test may "
                      "need it."),
        choice("The head is a copy of another one",
               reason="One possibility among several: it may also be of use only in rare cases."),
    ]),
    Question("Cutting block 1 out of the *queries* of block 2 leaves the stripe; out of the "
             "*keys*, it is gone. So", [
        choice("block 1 writes what the keys of block 2 need", right=True,
               reason="The note \"after a\" must be found at $j$, the side of the keys. The query "
                      "needs the current letter only, which is in the embedding."),
        choice("the queries of block 2 are not used",
               reason="They are: the current letter comes from the embedding, which both streams "
                      "have."),
        choice("block 1 must have copied the answer into the keys",
               reason="The answer is in the values at $j$, as the letter that stands there. The "
                      "logit lens finds no answer after block 1."),
    ]),
)
