"""Practice of the chapter "Masks": place a triangle, pad on the left, convert, find the leak."""

import math

import numpy as np

import attn
from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("masks")


def require_mask(got, want, *, what, slips=()):
    """Raise Wrong unless `got` is the boolean array `want`; shapes and dtypes have reasons too."""
    require(hasattr(got, "dtype"), f"{what} should be an array, not {type(got).__name__}")
    require(got.dtype == bool,
            f"{what} has dtype {got.dtype}: a mask is boolean, True = may attend")
    require_close(got, want, what=what, slips=slips)


@practice.exercise(
    "A causal mask with an offset", marks=1, minutes=5,
    statement=r"""
    Write the causal mask of `L` queries and `S` keys as a boolean array of shape $(L, S)$, when
    `q_offset` keys come before the first query. Use NumPy alone, no loop over pairs, and no
    `attn`.
    """,
    hints=[
        r"Query $i$ sits at position $i + \texttt{q\_offset}$, key $j$ at position $j$. When may "
        r"the first see the second?",
        r"One comparison: the positions of the queries as a column, `np.arange(L)[:, None] + "
        r"q_offset`, and those of the keys as a row.",
    ],
    notes=r"`np.tri(L, S, q_offset, dtype=bool)` does it too: its third argument is the offset.")
def causal_mask(L, S, q_offset):
    """Return a boolean array of shape (L, S), True = may attend."""
    ### BEGIN SOLUTION
    q = np.arange(L)[:, None] + q_offset
    k = np.arange(S)
    return k <= q
    ### END SOLUTION


@causal_mask.check
def _(answer):
    for L, S, offset in ((3, 3, 0), (3, 7, 4), (2, 5, 0), (5, 3, -2), (1, 7, 6)):
        want = np.tri(L, S, offset, dtype=bool)
        require_mask(answer(L, S, offset), want, what=f"causal_mask({L}, {S}, {offset})", slips=[
            (~want, "it is turned round: True has to mean *may attend*"),
            (np.tri(L, S, offset - 1), "no query sees its own position: k <= q, not k < q"),
            (np.tri(L, S, offset + 1), "every query sees one position of its future"),
            (np.tri(L, S, 0), "the offset is missing: query i sits at position i + q_offset"),
            (np.tri(L, S, -offset), "the offset has the wrong sign: it moves the queries, not the "
                                    "keys"),
            (np.tri(S, L, offset), "the axes are swapped: queries are the rows, keys the columns"),
            (want[::-1], "the queries are in the wrong order"),
        ])


@causal_mask.wrong("hides every query's own position", says="k <= q, not k < q")
def _(L, S, q_offset):
    return np.arange(S) < np.arange(L)[:, None] + q_offset


@causal_mask.wrong("adds the offset to the keys", says="wrong sign")
def _(L, S, q_offset):
    return np.arange(S) + q_offset <= np.arange(L)[:, None]


@causal_mask.wrong("forgets the offset", says="the offset is missing")
def _(L, S, q_offset):
    return np.tri(L, S, dtype=bool)


@causal_mask.wrong("marks the hidden pairs", says="turned round")
def _(L, S, q_offset):
    return np.arange(S) > np.arange(L)[:, None] + q_offset


@causal_mask.wrong("returns numbers", says="a mask is boolean")
def _(L, S, q_offset):
    return np.tri(L, S, q_offset)


@practice.exercise(
    "Padding on the left", marks=2, minutes=10,
    statement=r"""
    A batch of texts to be continued is padded **on the left**, so that all of them end at the last
    position. `lengths` has shape $(B,)$; text $b$ fills the last `lengths[b]` of `n` positions.
    Write the mask that is both causal and hides the padding: boolean, of shape $(B, 1, n, n)$.
    """,
    hints=[
        r"Which positions hold tokens? With length 3 of 5: positions 2, 3 and 4, which is "
        r"$k \ge n - \text{length}$.",
        r"The padding belongs to the **keys**: shape $(B, 1, 1, n)$, which is "
        r"`[:, None, None, :]`. The triangle has shape $(n, n)$. Both have to allow the pair: `&`.",
    ],
    notes=r"""
    In attn: `attn.dense_mask(attn.Causal() & attn.KeyPadding(start=n - lengths), n, n,
    batch=len(lengths))`. The rows of the padded queries are empty. That is harmless as long as an
    empty row gives 0, and nobody reads those outputs.
    """)
def left_padded_mask(lengths, n):
    """Return a boolean array (B, 1, n, n), True = may attend."""
    ### BEGIN SOLUTION
    position = np.arange(n)
    is_token = position >= n - lengths[:, None]
    causal = position <= position[:, None]
    return causal & is_token[:, None, None, :]
    ### END SOLUTION


@left_padded_mask.check
def _(answer):
    lengths, n = np.array([3, 5, 1]), 5
    position = np.arange(n)
    causal = position <= position[:, None]
    token = (position >= n - lengths[:, None])[:, None, None]  # (B, 1, 1, n)
    first = (position < lengths[:, None])[:, None, None]
    want = causal & token
    what = f"left_padded_mask({lengths.tolist()}, {n})"
    got = answer(lengths.copy(), n)
    require(np.shape(got) != (3, n, n), f"{what} has shape (3, {n}, {n}): the axis of the heads is "
            "missing, and attn refuses three axes because they read two ways")
    require_mask(got, want, what=what, slips=[
        (causal & first, "that is padding on the right: text b fills the *last* positions"),
        (causal & token.swapaxes(2, 3), "the padding hides queries (rows) where it should hide "
                                        "keys (columns)"),
        (causal & token & token.swapaxes(2, 3),
         "the padding hides queries as well: hide keys only"),
        (causal | token, "the rules are joined by or: every token is seen from everywhere, the "
                         "future included"),
        (np.broadcast_to(token, want.shape), "the future is not hidden"),
        (np.broadcast_to(causal, want.shape), "the padding is not hidden"),
        (~want, "it is turned round: True has to mean *may attend*"),
    ])


@left_padded_mask.wrong("pads on the right", says="padding on the right")
def _(lengths, n):
    position = np.arange(n)
    return np.tri(n, dtype=bool) & (position < lengths[:, None])[:, None, None]


@left_padded_mask.wrong("hides the padded queries", says="hides queries (rows)")
def _(lengths, n):
    return np.tri(n, dtype=bool) & (np.arange(n) >= n - lengths[:, None])[:, None, :, None]


@left_padded_mask.wrong("joins the two rules by or", says="joined by or")
def _(lengths, n):
    return np.tri(n, dtype=bool) | (np.arange(n) >= n - lengths[:, None])[:, None, None]


@left_padded_mask.wrong("leaves out the axis of the heads", says="axis of the heads is missing")
def _(lengths, n):
    return np.tri(n, dtype=bool) & (np.arange(n) >= n - lengths[:, None])[:, None]


@practice.exercise(
    "From nn.MultiheadAttention to attn", marks=2, minutes=10,
    statement=r"""
    A layer was called with two boolean masks of `nn.MultiheadAttention`: `attn_mask` of shape
    $(L, S)$ and `key_padding_mask` of shape $(B, S)$. In both, `True` means *hidden*. Write the one
    mask for `attn` that says the same: `True` = may attend, shape $(B, 1, L, S)$. Do it without
    `attn.conventions`.
    """,
    hints=[
        r"A pair is visible when it is hidden by neither of the two.",
        r"Not (a or b) is (not a) and (not b): De Morgan.",
        r"`key_padding_mask[:, None, None, :]` has shape $(B, 1, 1, S)$ and fits the keys.",
    ],
    notes=r"`attn.conventions.from_torch_mha` does this, and takes float masks and masks of shape "
          r"$(B \cdot H, L, S)$ too.")
def from_multihead(attn_mask, key_padding_mask):
    """Return a boolean array (B, 1, L, S), True = may attend."""
    ### BEGIN SOLUTION
    hidden = attn_mask | key_padding_mask[:, None, None, :]
    return ~hidden
    ### END SOLUTION


@from_multihead.check
def _(answer):
    B, L, S = 2, 3, 5
    future = ~np.tri(L, S, 1, dtype=bool)
    padded = np.arange(S) >= np.array([[3], [5]])
    keys = padded[:, None, None]  # (B, 1, 1, S)
    want = ~future & ~keys
    try:
        got = answer(future.copy(), padded.copy())
    except (ValueError, IndexError) as error:
        raise Wrong("the shapes do not fit: the padding belongs to the last axis, so it needs the "
                    f"shape (B, 1, 1, S) (NumPy: {str(error).strip()})") from None
    what = f"the mask for B, L, S = {B}, {L}, {S}"
    require(np.shape(got) != (B, L, S), f"{what} has no axis for the heads: (B, 1, L, S)")
    require_mask(got, want, what=what, slips=[
        (future | keys, "nothing was inverted: True still means hidden"),
        (~(future & keys), "a pair is hidden when *either* mask hides it; this hides it when both "
                           "do"),
        (~future | keys, "the padding was not inverted"),
        (~future & keys, "the padding was not inverted"),
        (future & ~keys, "attn_mask was not inverted"),
        (np.broadcast_to(~future, want.shape), "the padding is missing"),
        (np.broadcast_to(~keys, want.shape), "attn_mask is missing"),
    ])


@from_multihead.wrong("joins the inverted masks by or", says="when *either* mask hides it")
def _(attn_mask, key_padding_mask):
    return ~attn_mask | ~key_padding_mask[:, None, None]


@from_multihead.wrong("does not invert", says="nothing was inverted")
def _(attn_mask, key_padding_mask):
    return attn_mask | key_padding_mask[:, None, None]


@from_multihead.wrong("inverts only one of the two", says="the padding was not inverted")
def _(attn_mask, key_padding_mask):
    return ~attn_mask & key_padding_mask[:, None, None]


@from_multihead.wrong("lets the padding line up with the queries", says="do not fit")
def _(attn_mask, key_padding_mask):
    return ~(attn_mask | key_padding_mask[:, None, :, None])


@practice.exercise(
    "Which of them leaks?", marks=3, minutes=20,
    statement=r"""
    Functions `attention(query, key, value)` claim to be causal: with $n$ queries and $n$ keys, of
    shapes $(n, D)$, $(n, D)$ and $(n, D_v)$ in `float64`, output $i$ may depend on the keys and
    values 0 to $i$ and on no others. You cannot look inside. Write `leaks(attention)`, which
    returns `True` if something of the future reaches an earlier output. The check hands it three
    tight functions and four leaky ones. You choose what to try.
    """,
    hints=[
        r"Change the keys and the values from position $t$ on. Which outputs must stay what they "
        r"were? Try every $t$.",
        r"Change keys **and** values: a function that hides the values may still look at the keys, "
        r"for instance in the sum that it divides by.",
        r"A finite fill leaks only where scores are lower than the fill. Let one feature be 200 in "
        r"all queries and -200 in all keys: every score sinks by $40{,}000 / \sqrt{D}$, which "
        r"a softmax does not notice.",
    ],
    notes=r"""
    `attn.find_leaks` does this for whole models and compares with the mask that was meant. A
    `False` is evidence, not proof: nothing leaked for the inputs that were tried.
    """)
def leaks(attention):
    """Return whether attention(q, k, v) lets the future in."""
    ### BEGIN SOLUTION
    rng = np.random.default_rng(0)
    n = 7
    for low in (0, 200):
        query, key, value = rng.normal(size=(3, n, 5))
        query[:, 0], key[:, 0] = low, -low
        before = attention(query, key, value)
        for t in range(1, n):
            key2, value2 = key.copy(), value.copy()
            key2[t:, 1:] += rng.normal(size=(n - t, 4))
            value2[t:] += rng.normal(size=(n - t, 5))
            after = attention(query, key2, value2)
            if not np.allclose(after[:t], before[:t]):
                return True
    return False
    ### END SOLUTION


def plain_softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def causal_box(remove=lambda scores, seen: np.where(seen, scores, -np.inf),
               drop=lambda weights, seen: weights, sees=lambda q, k: k <= q, dtype=np.float64):
    """Return a causal attention, or one with a single step exchanged."""
    def attention(query, key, value):
        query, key, value = (np.asarray(x, dtype) for x in (query, key, value))
        q, k = np.arange(len(query))[:, None], np.arange(len(key))
        weights = plain_softmax(remove(query @ key.T / math.sqrt(query.shape[1]), sees(q, k)))
        return (drop(weights, sees(q, k)) @ value).astype(np.float64)
    return attention


def row_by_row(query, key, value):
    rows = range(1, len(query) + 1)
    return np.array([attn.scaled_dot_product_attention(query[i - 1 : i], key[:i], value[:i])[0]
                     for i in rows])


TIGHT = {
    "selection before the softmax": causal_box(),
    "one row at a time, on the keys it may see": row_by_row,
    "the same in float32": causal_box(dtype=np.float32),
}
LEAKY = {
    "sees one position of its future": (causal_box(sees=lambda q, k: k <= q + 1), ""),
    "is causal from tile to tile but not within a tile":
        (causal_box(sees=lambda q, k: k // 2 <= q // 2),
         ": change the keys and values from *every* position on, not only in one place"),
    "masks after the softmax": (causal_box(remove=lambda s, seen: s, drop=lambda w, seen: w * seen),
                                ": its weights on the future are 0, but the sum that it divides by "
                                "holds the future keys. Change the keys as well"),
    "writes -10,000 for hidden": (causal_box(remove=lambda s, seen: np.where(seen, s, -1e4)),
                                  ": it leaks where scores are lower than that. Try low scores, "
                                  "see the last hint"),
}


@leaks.check
def _(answer):
    for name, function in TIGHT.items():
        said = answer(function)
        require(isinstance(said, bool | np.bool_),
                f"leaks should return True or False, not {said!r}")
        require(not said, f"your test calls a tight function leaky ({name}): outputs from t on may "
                "change, and float32 rounds. Compare the outputs before t, with np.allclose")
    for name, (function, hint) in LEAKY.items():
        require(answer(function), f"your test misses a function that {name}{hint}")


def moved(attention, places, low=0.0, keys=True, first=0):
    """Return whether outputs first to t - 1 move with positions t and later, for some place t."""
    rng = np.random.default_rng(1)
    query, key, value = rng.normal(size=(3, 5, 3))
    query[:, 0], key[:, 0] = low, -low
    before = attention(query, key, value)
    for t in places:
        key2, value2 = key.copy(), value.copy()
        key2[t:, 1:] += keys * rng.normal(size=(5 - t, 2))
        value2[t:] += rng.normal(size=(5 - t, 3))
        stop = None if first else t
        if not np.allclose(attention(query, key2, value2)[:stop], before[:stop]):
            return True
    return False


@leaks.wrong("changes values only", says="Change the keys as well")
def _(attention):
    return any(moved(attention, range(1, 5), low, keys=False) for low in (0, 200))


@leaks.wrong("tries ordinary scores only", says="Try low scores")
def _(attention):
    return moved(attention, range(1, 5))


@leaks.wrong("changes the last position only", says="not only in one place")
def _(attention):
    return any(moved(attention, [4], low) for low in (0, 200))


@leaks.wrong("compares all outputs", says="calls a tight function leaky")
def _(attention):
    return any(moved(attention, range(1, 5), low, first=1) for low in (0, 200))


practice.quiz(
    Question(r"Query 1 of the worked example has the weights 0.401, 0.401 and 0.198. Key 2 is "
             r"hidden from it. What are the weights of keys 1 and 3 now?", [
        choice("0.401 and 0.198, as before",
               reason="Then the row sums to 0.599. A mask *after* the softmax leaves that."),
        choice("0.602 and 0.399: the two share what key 2 had",
               reason="In equal parts they would. But the scores of keys 1 and 3 did not change, "
                      "so neither may their ratio."),
        choice("0.670 and 0.330", right=True,
               reason=r"The ratio $u : 1$ stays, the sum is 1: $0.401/0.599$ and $0.198/0.599$."),
        choice("0.5 and 0.5", reason="Only if their scores were equal."),
    ]),
    Question(r"A causal mask with `True` = may attend is handed to `nn.MultiheadAttention`, where "
             r"`True` means hidden. What comes out?", [
        choice("An error, because the mask has the wrong meaning",
               reason="A meaning cannot be read off a dtype. Both conventions are boolean."),
        choice("Queries attend to their future only, and the last one to nothing", right=True,
               reason="The hidden pairs are now those with $k \\le q$. Shapes and row sums look "
                      "right, except in the last row, which is empty."),
        choice("The same result, because a softmax does not care about the order of keys",
               reason="It does not care about their order; it does care about which ones are in."),
    ]),
    Question(r"A model generates: one new query, 7 keys in all (6 from before and its own). The "
             r"causal mask is laid from the upper left. How many keys does the query see?", [
        choice("1, the oldest", right=True,
               reason="Upper-left puts the query at position 0. The newest token reads nothing but "
                      "the oldest one, in every layer and at every step."),
        choice("7, all of them",
               reason="That is the lower-right alignment, `q_offset=6`, and what was meant."),
        choice("6, all but its own",
               reason="No alignment gives that: a causal query sees its own position."),
        choice("0", reason="Position 0 sees itself, so there is one."),
    ]),
    Question(r"Each of 5 layers uses `SlidingWindow(3)`. How many positions back can an input lie "
             r"and still reach the last output?", [
        choice("3", reason="That is one layer. The next one reads outputs that have read 3 "
                           "further back."),
        choice("20", reason="Each layer spans 4 positions, but one of them is the query's own, "
                            "and that is no step back."),
        choice("125", reason="Reach adds up from layer to layer; it is not multiplied."),
        choice("15", right=True, reason="Three steps back in each of five layers."),
    ]),
    Question("Texts of different lengths are padded at the end, and each token predicts the next. "
             "Which rule?", [
        choice("`Causal() & KeyPadding(lengths)`", right=True,
               reason="A pair needs leave from both: not the future, and not padding."),
        choice("`Causal() | KeyPadding(lengths)`",
               reason="One leave is enough for *or*: every real token is seen, those of the future "
                      "included."),
        choice("`~(~Causal() & ~KeyPadding(lengths))`",
               reason="By De Morgan this is *or* once more: hidden only where both would hide."),
        choice("`Causal() and KeyPadding(lengths)`",
               reason="Python's `and` asks for one truth value of a rule. It has none, and attn "
                      "raises an error."),
    ]),
)
