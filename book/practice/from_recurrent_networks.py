"""Practice of "From recurrent networks": score, count, read a map, find a wrong shift."""

import math

import numpy as np

from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("from-recurrent-networks")


@practice.exercise(
    "An additive score by hand", marks=1, minutes=5,
    statement=r"""
    Write Bahdanau's score of one query and one key,
    $v^{\top} \tanh(W_q^{\top} q + W_k^{\top} k)$, in NumPy. The shapes are $q$: $(D_q,)$,
    $k$: $(D_k,)$, $W_q$: $(D_q, A)$, $W_k$: $(D_k, A)$ and $v$: $(A,)$. Return one number.
    """,
    hints=[
        r"Both projections have $A$ entries: `query @ w_query` and `key @ w_key`.",
        r"Add the two, then take the tanh of the sum, entry by entry; $v$ weighs the $A$ results.",
    ],
    notes=r"""
    As $|\tanh| < 1$, the score lies between $-\sum_a |v_a|$ and $\sum_a |v_a|$, whatever query and
    key are. A dot product has no such bound.
    """)
def additive_score(query, key, w_query, w_key, v):
    """Return the additive score of one query and one key."""
    ### BEGIN SOLUTION
    return v @ np.tanh(query @ w_query + key @ w_key)
    ### END SOLUTION


@additive_score.check
def _(answer):
    one = np.ones(1)
    require_close(answer(0 * one, one, np.eye(1), np.eye(1), 2 * one), 2 * math.tanh(1),
                  what="the score for q = 0, k = 1, both matrices 1 and v = 2", slips=[
        (2.0, "the tanh is missing"),
        (math.tanh(1), "v is missing: it weighs the A results of the tanh"),
        (math.tanh(2), "v stands outside the tanh"),
        (0.0, "additive: the projections of query and key are added, not multiplied"),
    ])
    rng = np.random.default_rng(0)
    for Dq, Dk, A in ((3, 5, 7), (7, 2, 3)):
        q, k, w_query, w_key, v = (rng.normal(size=n) for n in (Dq, Dk, (Dq, A), (Dk, A), A))
        a, b = q @ w_query, k @ w_key
        require_close(answer(q, k, w_query, w_key, v), v @ np.tanh(a + b),
                      what=f"the score for Dq = {Dq}, Dk = {Dk}, A = {A}", slips=[
            (v @ (np.tanh(a) + np.tanh(b)), "add first: one tanh of the sum, not a sum of two"),
            (v * np.tanh(a + b), "the score is one number: sum over the A entries"),
            (v @ np.tanh(a * b), "the projections of query and key are added, not multiplied"),
            (np.tanh(a + b).sum(), "v is missing: it weighs the A results of the tanh"),
        ])


@additive_score.wrong("forgets the tanh", says="tanh is missing")
def _(query, key, w_query, w_key, v):
    return v @ (query @ w_query + key @ w_key)


@additive_score.wrong("takes the tanh of each projection by itself", says="one tanh of the sum")
def _(query, key, w_query, w_key, v):
    return v @ (np.tanh(query @ w_query) + np.tanh(key @ w_key))


@additive_score.wrong("sums the hidden units without v", says="v is missing")
def _(query, key, w_query, w_key, v):
    return np.tanh(query @ w_query + key @ w_key).sum()


@additive_score.wrong("multiplies the projections", says="added, not multiplied")
def _(query, key, w_query, w_key, v):
    return v @ np.tanh((query @ w_query) * (key @ w_key))


@practice.exercise(
    "What a score has to learn", marks=1, minutes=5,
    statement=r"""
    How many numbers does each score learn, for queries of size $D_q$, keys of size $D_k$ and a
    hidden layer of $A$ units? The kinds are `"dot"` ($q \cdot k$, only asked where $D_q = D_k$),
    `"general"` ($q^{\top} W k$), `"concat"` ($v^{\top} \tanh(W [q; k])$) and `"additive"`
    ($v^{\top} \tanh(W_q q + W_k k)$). None has a bias.
    """,
    hints=[
        r"In $q^{\top} W k$ the matrix has a row for each entry of $q$, a column for each of $k$.",
        r"$[q; k]$ has $D_q + D_k$ entries, so concat's $W$ has $(D_q + D_k) \cdot A$; do not "
        r"forget $v$.",
    ],
    notes=r"""
    Concat and additive learn the same numbers: $W [q; k]$ is $W_q q + W_k k$ with the two matrices
    side by side. So Luong's concat *is* Bahdanau's score. On this page, with $D_q = A = 32$ and
    $D_k = 64$, general has 2048 numbers and additive 3104.
    """)
def score_parameters(kind, Dq, Dk, A):
    """Return how many learned numbers a score of this kind has."""
    ### BEGIN SOLUTION
    return {"dot": 0, "general": Dq * Dk, "concat": (Dq + Dk) * A + A,
            "additive": Dq * A + Dk * A + A}[kind]
    ### END SOLUTION


@score_parameters.check
def _(answer):
    for Dq, Dk, A in ((3, 5, 7), (32, 64, 32), (11, 2, 13)):
        both = (Dq + Dk) * A
        slips = {
            "general": [(Dq * Dk * A, "general has one matrix, (Dq, Dk); it has no hidden layer"),
                        (Dq * Dq, "W is not square: it has Dq rows and Dk columns"),
                        (Dk * Dk, "W is not square: it has Dq rows and Dk columns"),
                        (Dq + Dk, "W has a number for each pair of entries, Dq times Dk"),
                        (both + A, "that is concat's count: general has no hidden layer")],
            "concat": [(both, "the vector v has A numbers too"),
                       (both + 2 * A, "there is no bias in these scores")],
            "additive": [(both, "the vector v has A numbers too"),
                         (both + 2 * A, "there is no bias in these scores"),
                         (both + 3 * A, "there is no bias in these scores")]}
        want = {"general": Dq * Dk, "concat": both + A, "additive": both + A}
        for kind, number in want.items():
            require_close(answer(kind, Dq, Dk, A), number,
                          what=f"score_parameters({kind!r}, {Dq}, {Dk}, {A})", slips=slips[kind])
    require_close(answer("dot", 5, 5, 7), 0, what='score_parameters("dot", 5, 5, 7)', slips=[
        (25, "a plain dot product has no matrix to learn"),
        (5, "a plain dot product learns nothing"),
    ])


@score_parameters.wrong("takes the general matrix for square", says="not square")
def _(kind, Dq, Dk, A):
    return {"dot": 0, "general": Dq * Dq, "concat": (Dq + Dk) * A + A,
            "additive": (Dq + Dk) * A + A}[kind]


@score_parameters.wrong("does not count v", says="v has A numbers")
def _(kind, Dq, Dk, A):
    return {"dot": 0, "general": Dq * Dk, "concat": (Dq + Dk) * A,
            "additive": (Dq + Dk) * A}[kind]


@score_parameters.wrong("counts biases that are not there", says="no bias")
def _(kind, Dq, Dk, A):
    return {"dot": 0, "general": Dq * Dk, "concat": (Dq + Dk) * A + 2 * A,
            "additive": (Dq + Dk) * A + 3 * A}[kind]


@score_parameters.wrong("gives the dot product a matrix", says="no matrix to learn")
def _(kind, Dq, Dk, A):
    return {"dot": Dq * Dk, "general": Dq * Dk}.get(kind, (Dq + Dk) * A + A)


@practice.exercise(
    "Read an alignment map", marks=2, minutes=10,
    statement=r"""
    `weights` is the map of a model that reverses, of shape $(S, S)$: row $i$ is an output, column
    $j$ a source position. The right cells are $j = S - 1 - i$. On which of the lines
    $j = S - 1 - i + d$, for $d = -2, \dots, 2$, is the *mean* weight largest? Return $d$ and that
    mean. (Lines with $d \neq 0$ have fewer cells.)
    """,
    hints=[
        r"Turn the columns round, `weights[:, ::-1]`: then the right cells form the main diagonal.",
        r"`np.diagonal(flipped, offset)` takes a line beside it. After the flip, does a larger $j$ "
        r"lie to the left or to the right?",
    ],
    notes=r"""
    $d = 1$ is a map that is one step late: the cell at $j = S - i$ was right at step $i - 1$. A
    *sum* would favour the longest line. Before you read a map, find out which shift it has, and
    before you conclude that a model is wrong, look at what it writes.
    """)
def map_shift(weights):
    """Return (d, mean weight) for the line with the largest mean."""
    ### BEGIN SOLUTION
    flipped = weights[:, ::-1]  # a larger j now lies further to the left
    means = {d: np.diagonal(flipped, -d).mean() for d in range(-2, 3)}
    best = max(means, key=means.get)
    return best, means[best]
    ### END SOLUTION


def shifted_map(S, shift, on, right):
    """Rows that sum to 1: `on` on the shifted line, `right` on the right one, the rest spread."""
    weights = np.zeros((S, S))
    for i in range(S):
        for d, weight in ((shift, on), (0, right)):
            if 0 <= S - 1 - i + d < S:
                weights[i, S - 1 - i + d] = weight
        free = weights[i] == 0
        weights[i, free] = (1 - weights[i].sum()) / free.sum()
    return weights


@map_shift.check
def _(answer):
    # With 0.46 on S - 1 cells and 0.4 on S, the largest sum lies on the right line, not the mean.
    for S, shift, on, right in ((7, 1, 0.7, 0.2), (7, -1, 0.7, 0.2), (5, 1, 0.46, 0.4),
                                (11, 0, 0.9, 0.9), (11, 2, 0.6, 0.1), (5, -2, 0.5, 0.3)):
        weights = shifted_map(S, shift, on, right)
        got = answer(weights.copy())
        require(isinstance(got, (tuple, list)) and len(got) == 2,
                "return two values: the shift d and the mean weight on its line")
        d, mean = got
        what = f"the shift of a map with S = {S}"
        want = np.diagonal(weights[:, ::-1], -shift).mean()
        forward = {e: np.diagonal(weights, e).mean() for e in range(-2, 3)}
        slips = [(-shift, "the sign is turned round: d > 0 is to the right, at a larger j")]
        if d != shift and np.isclose(mean, want * (S - abs(shift)) / S):
            raise Wrong("divide by the number of cells on the line, S − |d|, not by S")
        if right * S > on * (S - abs(shift)) and d == 0 and shift:
            raise Wrong("compare means, not sums: the lines beside the right one have fewer cells")
        if not np.isclose(mean, want) and any(np.isclose(mean, x) for x in forward.values()):
            raise Wrong("those are lines along the main diagonal, where a copy would be: reversal "
                        "runs from the upper right to the lower left")
        require_close(d, shift, what=what, slips=slips)
        require_close(mean, want, what=f"the mean weight on the line d = {shift}", slips=[
            (want * (S - abs(shift)), "that is the sum: divide by the number of cells"),
            (want * (S - abs(shift)) / S, "divide by the number of cells on the line, S − |d|"),
        ])


@map_shift.wrong("turns the sign round", says="sign is turned round")
def _(weights):
    means = {d: np.diagonal(weights[:, ::-1], d).mean() for d in range(-2, 3)}
    best = max(means, key=means.get)
    return best, means[best]


@map_shift.wrong("compares sums instead of means", says="compare means, not sums")
def _(weights):
    lines = {d: np.diagonal(weights[:, ::-1], -d) for d in range(-2, 3)}
    best = max(lines, key=lambda d: lines[d].sum())
    return best, lines[best].mean()


@map_shift.wrong("looks along the main diagonal", says="where a copy would be")
def _(weights):
    means = {d: np.diagonal(weights, d).mean() for d in range(-2, 3)}
    best = max(means, key=means.get)
    return best, means[best]


@map_shift.wrong("returns the sum on the line", says="that is the sum")
def _(weights):
    means = {d: np.diagonal(weights[:, ::-1], -d).mean() for d in range(-2, 3)}
    best = max(means, key=means.get)
    return best, np.diagonal(weights[:, ::-1], -best).sum()


@practice.exercise(
    "Find the wrong shift", marks=3, minutes=20,
    statement=r"""
    In teacher forcing, output $i$ may depend on the target's symbols up to $i - 1$. If somebody
    shifts by the wrong amount, training shows a fine loss and the translation is rubbish, or the
    decoder never learns what it wrote last. You get a black box `logits_of(target)`: for an
    integer array of shape $(L,)$ with symbols from 0 to `symbols` − 1 it returns logits of shape
    $(L, V)$. Let $k$ be the newest target symbol that output $i$ depends on. Return the **lag**
    $i - k$: 1 if all is well, 0 if an output sees its own answer, −1 if it sees the one after, 2 if
    it does not see the last one.
    """,
    hints=[
        r"Call the box twice, with two targets that differ in one symbol, at a position $k$ in the "
        r"middle.",
        r"Which outputs change? The state carries the change on, so all later ones do. The "
        r"*first* one that changes is the one to look at.",
        r"Compare logits, not the symbols with the largest logit: those may stay the same.",
    ],
    notes=r"""
    The lag is the first output that changes, minus $k$. It is the test for leaks of
    [Masks](masks.ipynb) once more: change something, and see who notices. It needs no training and
    no look inside.
    """)
def newest_seen(logits_of, L, symbols):
    """Return i − k, k the newest target symbol that output i sees."""
    ### BEGIN SOLUTION
    target, k = np.zeros(L, dtype=int), L // 2
    other = target.copy()
    other[k] = symbols - 1
    change = np.abs(logits_of(other) - logits_of(target)).max(axis=1)
    return int(np.flatnonzero(change > 0)[0]) - k
    ### END SOLUTION


def box(lag, symbols, seed):
    """Return a recurrent decoder that reads the target `lag` steps late, and mostly writes 0."""
    rng = np.random.default_rng(seed)
    embedding, U, read_out = (rng.normal(size=n) * 0.3 for n in
                              ((symbols + 1, 5), (5, 5), (5, symbols)))

    def logits_of(target):
        target = np.asarray(target)
        L, rows, state = len(target), [], np.zeros(5)
        require(target.shape == (L,) and target.dtype.kind in "iu",
                "the box takes an array of integers of shape (L,)")
        require(((target >= 0) & (target < symbols)).all(),
                f"the box knows symbols from 0 to {symbols - 1}")
        for i in range(L):
            read = target[i - lag] if 0 <= i - lag < L else symbols  # the start symbol
            state = np.tanh(embedding[read] + state @ U)
            rows.append(state @ read_out + 5 * (np.arange(symbols) == 0))
        return np.array(rows)

    return logits_of


@newest_seen.check
def _(answer):
    lags = (1, 0, -1, 2)
    for L, symbols, seed in ((7, 3, 0), (11, 5, 1)):
        got = [answer(box(lag, symbols, seed), L, symbols) for lag in lags]
        for value in got:
            require(value is not None, "newest_seen is None: is a `return` missing?")
            require(np.ndim(value) == 0 and int(value) == value,
                    f"the lag should be one whole number, it is {value!r}")
        if got == list(lags):
            continue
        off = {int(g) - lag for g, lag in zip(got, lags, strict=True)}
        require(got != [1] * 4, "it is 1 for every box, the wrong ones too: compare the logits, "
                                "not the symbols they would write")
        require(len(set(got)) > 1, f"it is {got[0]} for every box: look at the *first* output that "
                                   "changes; the state carries the change on to all later ones")
        require(got != [-lag for lag in lags], "the sign is turned round: the lag is i − k")
        require(len(off) > 1, f"every box is off by the same {max(off)}: subtract the position k "
                              "of the symbol that you changed")
        raise Wrong(f"for boxes with the lags {list(lags)} it gives {[int(g) for g in got]}")


@newest_seen.wrong("looks at the last output that changes", says="the *first* output")
def _(logits_of, L, symbols):
    target, k = np.zeros(L, dtype=int), L // 2
    other = target.copy()
    other[k] = 1
    change = np.abs(logits_of(other) - logits_of(target)).max(axis=1)
    return int(np.flatnonzero(change > 0)[-1]) - k


@newest_seen.wrong("compares the symbols written, not the logits", says="compare the logits")
def _(logits_of, L, symbols):
    target, k = np.zeros(L, dtype=int), L // 2
    other = target.copy()
    other[k] = 1
    change = logits_of(other).argmax(axis=1) != logits_of(target).argmax(axis=1)
    return int(np.flatnonzero(change)[0]) - k if change.any() else 1


@newest_seen.wrong("does not subtract the position that was changed", says="subtract the position")
def _(logits_of, L, symbols):
    target, k = np.zeros(L, dtype=int), L // 2
    other = target.copy()
    other[k] = 1
    change = np.abs(logits_of(other) - logits_of(target)).max(axis=1)
    return int(np.flatnonzero(change > 0)[0])


@newest_seen.wrong("turns the sign round", says="sign is turned round")
def _(logits_of, L, symbols):
    target, k = np.zeros(L, dtype=int), L // 2
    other = target.copy()
    other[k] = 1
    change = np.abs(logits_of(other) - logits_of(target)).max(axis=1)
    return k - int(np.flatnonzero(change > 0)[0])


practice.quiz(
    Question("What do the gates of a GRU do for the gradient of an untrained network?", [
        choice("They keep it at full size for any number of steps",
               reason="A gate starts near one half, and half of the old state is lost at each "
                      "step: in twenty steps little is left."),
        choice("They can let it pass, once training has opened them", right=True,
               reason="With the gate's bias raised by 3 the factor per step rose to 0.95."),
        choice("Nothing: gates only matter for the forward pass",
               reason="The factor from one state to the next contains the gate itself."),
    ]),
    Question(r"In Bahdanau's attention, what is the query at step $i$?", [
        choice("The decoder's state before the step, sᵢ₋₁", right=True,
               reason="The context is an input of step $i$, so it has to be there first."),
        choice("The decoder's state after the step, sᵢ", reason="That is Luong's order."),
        choice("The annotation of the symbol that is written",
               reason="Annotations are keys and values; which of them is needed is what the query "
                      "is to find out."),
    ]),
    Question("A fixed context gets most dates right in sources of 37 characters, and half of the "
             "letters wrong in strings of ten. What does that show?", [
        choice("Its vector has no room for ten letters",
               reason="More training got more letters right with the same vector."),
        choice("Long sources are little trouble to it if they hold few things to be told apart",
               right=True, reason="The words around a date can be read and forgotten, and blanks "
                                  "between letters cost it little."),
        choice("Dates need no information from the source",
               reason="All of the date comes from there; it is only little."),
    ]),
    Question("Models with attention, trained on up to ten letters, reverse strings of 20. Where do "
             "their errors stand?", [
        choice("At the beginning, until the decoder has found its place",
               reason="The first outputs are nearly all right."),
        choice("Everywhere alike, because the weights spread over more cells",
               reason="The first outputs are nearly all right, with the same number of cells."),
        choice("In the later outputs", right=True,
               reason="The decoder loses count as it goes on. The distance is not the reason: each "
                      "annotation is one step away from every output."),
    ]),
    Question("A map shows its weight one cell beside the right one, and every output is right. "
             "What follows?", [
        choice("The map was drawn with shifted axes", reason="It may be, but here it was not: the "
               "weights are those that made the output."),
        choice("The outputs are right by chance", reason="Accuracy near 1 with ten letters is no "
               "chance."),
        choice("The letter is read off a neighbour's annotation, at least in part", right=True,
               reason="An annotation is a state that knows its surroundings. Exchanging "
                      "annotations shows it."),
        choice("Attention plays no part in the outputs", reason="Exchange the annotations that are "
               "looked at, and the outputs change."),
    ]),
)
