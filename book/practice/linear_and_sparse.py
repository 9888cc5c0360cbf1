"""Practice of the chapter "Linear and sparse": a state's size, one step, a reach, and chunks."""

import tracemalloc

import numpy as np

from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("linear-and-sparse")


@practice.exercise(
    "When the cache outgrows the state", marks=1, minutes=5,
    statement=r"""
    One head, keys of size $D$, values of size $D_v$. A key–value cache keeps a key and a value for
    each token. Linear attention with $F$ features keeps $\mathbf S$ and $\mathbf z$ instead. From
    how many tokens on does the cache hold **more** numbers? Return the smallest such $n$.
    """,
    hints=[
        r"$\mathbf S$ has the shape $(F, D_v)$. Which shape has $\mathbf z$?",
        "You look for the smallest n with n (D + Dv) > F Dv + F. If the division leaves no rest, "
        "the two are equal at that n, and equal is not more.",
    ],
    notes=r"""
    $n = \lfloor F (D_v + 1) / (D + D_v) \rfloor + 1$. For $F = D = D_v = 64$ that is 33 tokens:
    half the head size, and then one.
    """)
def break_even(F, D, Dv):
    """Return the first n at which the cache is the larger one."""
    ### BEGIN SOLUTION
    return F * (Dv + 1) // (D + Dv) + 1
    ### END SOLUTION


@break_even.check
def _(answer):
    for F, D, Dv in ((7, 5, 3), (8, 5, 3), (64, 64, 64), (13, 11, 2)):
        state, row = F * (Dv + 1), D + Dv
        require_close(answer(F, D, Dv), state // row + 1, what=f"break_even({F}, {D}, {Dv})",
                      slips=[
            (-(-state // row), "at that n the two are equal: more was asked for"),
            (F * Dv // row + 1, "the state has a second part: z, with F numbers"),
            (state // D + 1, "a cache keeps a value for each key, too"),
            (state / row, "tokens are counted in whole numbers: return the smallest one"),
        ])


@break_even.wrong("takes equal for more", says="more was asked for")
def _(F, D, Dv):
    return -(-F * (Dv + 1) // (D + Dv))


@break_even.wrong("forgets the sum of the features", says="a second part: z")
def _(F, D, Dv):
    return F * Dv // (D + Dv) + 1


@break_even.wrong("keeps the keys alone", says="a value for each key")
def _(F, D, Dv):
    return F * (Dv + 1) // D + 1


@practice.exercise(
    "One token", marks=2, minutes=10,
    statement=r"""
    Write one step of causal linear attention. `q` and `k` are features already, of shape (F,) and
    not negative; `v` has the shape (Dv,). `state` and `total` come from the tokens before. A token
    sees itself. Return the output, the new state and the new total.
    """,
    hints=[
        "What is added to the state is an outer product; its shape is that of the state, (F, Dv).",
        "The output is an average of values: divide by the sum of the similarities, q · total.",
        "Which comes first, writing or reading, if the token sees itself?",
    ],
    notes=r"""
    Write, then read: $\mathbf S \leftarrow \mathbf S + k v^\top$, $\mathbf z \leftarrow \mathbf z +
    k$, output $= \mathbf S^\top q / (q \cdot \mathbf z)$. Reading first gives a model in which no
    token sees itself, and $0/0$ at the first one.
    """)
def linear_step(state, total, q, k, v):
    """Return (output, new state, new total) of one token."""
    ### BEGIN SOLUTION
    state = state + np.outer(k, v)
    total = total + k
    return q @ state / (q @ total), state, total
    ### END SOLUTION


@linear_step.check
def _(answer):
    rng = np.random.default_rng(11)
    q, k = rng.uniform(0.1, 2, size=(2, 5, 3))  # (5, F)
    v = rng.normal(size=(5, 7))
    state, total = np.zeros((3, 7)), np.zeros(3)
    for t in range(5):
        got = answer(state.copy(), total.copy(), q[t].copy(), k[t].copy(), v[t].copy())
        require(isinstance(got, tuple) and len(got) == 3,
                "return three things: the output, the new state, the new total")
        seen = q[t] @ k[: t + 1].T
        before = q[t] @ k[:t].T
        want = seen @ v[: t + 1] / seen.sum()
        new = state + np.outer(k[t], v[t]), total + k[t]
        require_close(got[0], want, what=f"the output of token {t}", slips=[
            (seen @ v[: t + 1], "that is a sum: an average is divided by q · total"),
            (seen @ v[: t + 1] / new[1].sum(), "divide by the sum of the similarities, q · total, "
                                               "not by the sum of the features"),
            (seen @ v[: t + 1] / (t + 1), "divide by q · total, not by the number of tokens"),
            (before @ v[:t] / before.sum() if t else np.full(7, np.nan),
             "you read before you write: the token does not see itself"),
        ])
        require_close(got[1], new[0], what=f"the state after token {t}",
                      slips=[(state, "the state did not change: return the new one")])
        require_close(got[2], new[1], what=f"the total after token {t}",
                      slips=[(total, "the total did not change: return the new one")])
        state, total = new


@linear_step.wrong("reads before writing", says="read before you write")
def _(state, total, q, k, v):
    return q @ state / (q @ total), state + np.outer(k, v), total + k


@linear_step.wrong("leaves the division out", says="that is a sum")
def _(state, total, q, k, v):
    state = state + np.outer(k, v)
    return q @ state, state, total + k


@linear_step.wrong("divides by the sum of the features", says="not by the sum of the features")
def _(state, total, q, k, v):
    state, total = state + np.outer(k, v), total + k
    return q @ state / total.sum(), state, total


@linear_step.wrong("returns the old state", says="state did not change")
def _(state, total, q, k, v):
    output, _, _ = linear_step.solution(state, total, q, k, v)
    return output, state, total


@practice.exercise(
    "How many layers", marks=2, minutes=15,
    statement=r"""
    Given a boolean mask of shape (n, n), `True` where query $i$ sees key $j$: after how many layers
    may **every** output depend on **every** input? Each layer carries its input past the attention
    (a residual connection). Return `None` if no number of layers is enough.
    """,
    hints=[
        "Start from the identity: after no layer, an output depends on its own input.",
        "One layer more: what was reached stays, and what a visible key has reached is added. For "
        "boolean arrays `mask @ reached` is the product with *or* for plus.",
        "If a layer adds nothing, none of those that follow will.",
    ],
    notes=r"""
    The residual connection matters where a mask hides the diagonal: without it two groups that see
    only each other would swap what they know in every layer and never hold both.
    """)
def layers_to_connect(mask):
    """Return the layers until all may depend on all, or None."""
    ### BEGIN SOLUTION
    reached, layers = np.eye(len(mask), dtype=bool), 0
    while not reached.all():
        grown = reached | (mask @ reached)
        if (grown == reached).all():
            return None
        reached, layers = grown, layers + 1
    return layers
    ### END SOLUTION


@layers_to_connect.check
def _(answer):
    place = np.arange(13)
    apart = np.abs(place[:, None] - place)
    hub = (place[:, None] == 5) | (place == 5)
    groups = (place[:, None] < 6) != (place < 6)  # each group sees the other one alone
    ring = (place[:, None] - place) % 13 == 1
    cases = {
        "a window of 2 on both sides": (apart <= 2, 6, "count the layers: with a window of 2 "
                                        "the 12 steps from end to end take 6"),
        "one global token": ((apart <= 1) | hub, 2, "over a global token it takes 2 layers"),
        "everybody sees everybody": (apart >= 0, 1, "one layer is enough here"),
        "two groups that see only each other": (groups, 2, "the input is carried past each layer "
                                                "(the residual): what was reached stays"),
        "a ring": (ring, 12, "on a ring of 13, with one step a layer, it takes 12 layers"),
        "every fourth position": (apart % 4 == 0, None, "parts that never see each other: the "
                                  "answer is None"),
        "a causal mask": (place <= place[:, None], None, "no layer shows the future: the answer is "
                          "None"),
    }
    for name, (mask, want, advice) in cases.items():
        got = answer(mask.copy())
        require(got == want and (got is None) == (want is None),
                f"{name}: got {got}, expected {want}; {advice}")


@layers_to_connect.wrong("forgets the residual connection", says="carried past each layer")
def _(mask):
    reached = mask
    for layers in range(1, len(mask) + 1):
        if reached.all():
            return layers
        reached = reached @ mask
    return None


@layers_to_connect.wrong("counts from one", says="count the layers")
def _(mask):
    layers = layers_to_connect.solution(mask)
    return None if layers is None else layers + 1


@layers_to_connect.wrong("takes the end of the loop for an answer", says="never see each other")
def _(mask):
    layers = layers_to_connect.solution(mask)
    return len(mask) if layers is None else layers


@practice.exercise(
    "In chunks", marks=3, minutes=20,
    statement=r"""
    The parallel form needs an $n \times n$ matrix, the recurrent one $n$ steps. Do both: cut the
    tokens into chunks of `size` (the last may be shorter). Within a chunk use the parallel form,
    with its mask; for all chunks before, use the state. `Q` and `K` are features already, of shape
    (n, F); `V` has the shape (n, Dv). Return the causal outputs, for any `size`.
    """,
    hints=[
        "A query's numerator has two parts: `Q_c @ state` for the chunks before, and "
        "`np.tril(Q_c @ K_c.T) @ V_c` for its own.",
        "The denominator has the same two parts, with z in place of the state and a sum of the row "
        "in place of the product with the values.",
        "Add the chunk to the state after its queries have read it.",
    ],
    notes=r"""
    With `size = n` this is the parallel form, with `size = 1` the recurrent one. In between, $n
    \cdot \text{size}$ pairs are computed, and each step is a matrix product. This is how linear
    attention is trained.
    """)
def in_chunks(Q, K, V, size):
    """Return the causal outputs, chunk by chunk."""
    ### BEGIN SOLUTION
    state, total = np.zeros((K.shape[1], V.shape[1])), np.zeros(K.shape[1])
    outputs = []
    for start in range(0, len(Q), size):
        q, k, v = (x[start : start + size] for x in (Q, K, V))
        pairs = np.tril(q @ k.T)
        sums = q @ total + pairs.sum(axis=1)
        outputs.append((q @ state + pairs @ v) / sums[:, None])
        state, total = state + k.T @ v, total + k.sum(axis=0)
    return np.concatenate(outputs)
    ### END SOLUTION


def averages(pairs, V):
    """Weighted averages of the values; a row without weight is NaN."""
    with np.errstate(invalid="ignore"):
        return pairs @ V / pairs.sum(axis=1, keepdims=True)


@in_chunks.check
def _(answer):
    rng = np.random.default_rng(12)
    n = 13
    Q, K = rng.uniform(0.1, 2, size=(2, n, 3))
    V = rng.normal(size=(n, 5))
    pairs, place = Q @ K.T, np.arange(n)
    causal = place[:, None] >= place
    for size in (1, 3, 5, 13, 20):
        chunk = place // size
        same, earlier = chunk[:, None] == chunk, chunk[:, None] > chunk
        got = np.asarray(answer(Q.copy(), K.copy(), V.copy(), size))
        require(got.shape == (n, 5), f"size = {size}: expected shape (n, Dv) = (13, 5), came "
                f"{got.shape}: the last chunk may be shorter")
        require_close(got, averages(pairs * causal, V), what=f"in_chunks(…, size={size})", slips=[
            (averages(pairs * (same | earlier), V),
             "inside a chunk a token sees the tokens after it: mask there, too"),
            (averages(pairs * (same & causal), V), "each chunk starts anew: read the state"),
            (averages(pairs * (1.0 * (same & causal) + same + earlier), V),
             "the chunk is counted twice: read the state before you add the chunk to it"),
            (averages(pairs * earlier, V), "the chunk's own pairs are missing"),
        ])
    n = 1009
    Q, K, V = rng.uniform(0.1, 2, size=(3, n, 3))
    tracemalloc.start()
    try:
        answer(Q, K, V, 16)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > 0.5 * 8 * n * n:
        raise Wrong(f"right, but with n = {n} it holds {peak / 2**20:.0f} MiB at once: an n × n "
                    "matrix is formed, and chunks are there to avoid it")


@in_chunks.wrong("leaves the mask out inside a chunk", says="mask there, too")
def _(Q, K, V, size):
    place = np.arange(len(Q)) // size
    return averages((Q @ K.T) * (place[:, None] >= place), V)


@in_chunks.wrong("starts every chunk anew", says="starts anew")
def _(Q, K, V, size):
    return np.concatenate([in_chunks.solution(*(x[i : i + size] for x in (Q, K, V)), size)
                           for i in range(0, len(Q), size)])


@in_chunks.wrong("adds the chunk to the state before reading it", says="counted twice")
def _(Q, K, V, size):
    state, total, outputs = 0, 0, []
    for start in range(0, len(Q), size):
        q, k, v = (x[start : start + size] for x in (Q, K, V))
        state, total = state + k.T @ v, total + k.sum(axis=0)
        pairs = np.tril(q @ k.T)
        sums = q @ total + pairs.sum(axis=1)
        outputs.append((q @ state + pairs @ v) / sums[:, None])
    return np.concatenate(outputs)


@in_chunks.wrong("drops the last chunk if it is short", says="the last chunk may be shorter")
def _(Q, K, V, size):
    whole = len(Q) // size * size
    return in_chunks.solution(Q[:whole], K[:whole], V[:whole], size) if whole else Q[:0]


@in_chunks.wrong("forms the whole matrix", says="an n × n matrix")
def _(Q, K, V, size):
    return averages(np.tril(Q @ K.T), V)


practice.quiz(
    Question("Without a mask, what takes linear attention from $n^2$ to $n$?", [
        choice("The feature map, because it is cheaper than an exponential",
               reason="With the pairs first it stays at $n^2$, whatever the feature map costs."),
        choice("The order of the multiplications", right=True,
               reason=r"$\phi(Q)\,(\phi(K)^\top V)$ in place of $(\phi(Q)\,\phi(K)^\top)\,V$. The "
                      "feature map makes it possible, because nothing stands between the two "
                      "products."),
        choice("The state, which is smaller than the cache",
               reason="That is about memory in decoding, and follows from the order."),
    ]),
    Question("Pairs with random keys are added to a linear state. What does the squared error of a "
             "recalled value do when the number of pairs doubles?", [
        choice("It doubles", right=True, reason="It is $(n - 1) / D$ of the value's square."),
        choice("It stays small until n = D and then jumps",
               reason="That is the best possible state, solved for; a sum has noise from the "
                      "second pair on."),
        choice("It quadruples", reason="The contributions are independent, so squares add up."),
    ]),
    Question("Random keys, head size 64. Why does the map elu + 1 hold fewer pairs than no map at "
             "all?", [
        choice("It has fewer features", reason="It has as many: 64."),
        choice("It rounds small similarities to 0", reason="It makes none of them 0."),
        choice("All pairs get a large similarity to every query, so all of them vote", right=True,
               reason="The common part hardly differs between the pair that is meant and the "
                      "others, and it grows with their number."),
    ]),
    Question("257 positions, a causal window of 8, and position 0 is visible to all. How many "
             "layers does it take from position 100 to position 256?", [
        choice("20, as many as without it", right=True,
               reason="156 positions at 8 a layer. Position 0 is seen by all and sees nobody but "
                      "itself, so nothing passes through it."),
        choice("2, over position 0", reason="Under a causal mask position 0 has not seen 100."),
        choice("1, since a global token sees all", reason="Not under a causal mask."),
    ]),
    Question("A mask reaches every pair within two layers. What follows?", [
        choice("A model with two layers can recall any stored pair",
               reason="What passes through a global token has to fit into its vector, chosen "
                      "before the question is known."),
        choice("It computes the same as full attention", reason="Even one layer does not."),
        choice("Every output may depend on every input", right=True,
               reason="That is all that a product of 0/1 masks says."),
    ]),
)
