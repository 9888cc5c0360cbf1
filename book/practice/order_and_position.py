"""Practice of the chapter "Order and position": turn, slope, number, reorder, test."""

import math

import numpy as np

import attn
from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("order-and-position")


@practice.exercise(
    "Turn one pair", marks=1, minutes=5,
    statement=r"""
    RoPE turns a pair of features $(a, b)$ at position $p$ anticlockwise by $p\,\omega$ radians.
    Write it for one pair, without complex numbers and without `attn`.
    """,
    hints=[r"The point $(1, 0)$, turned by the angle $\alpha$, is $(\cos \alpha, \sin \alpha)$.",
           r"The point $(0, 1)$ becomes $(-\sin \alpha, \cos \alpha)$, and a rotation is linear."],
    notes=r"""
    $(a, b) = a\,(1, 0) + b\,(0, 1)$, so the turned pair is
    $a\,(\cos \alpha, \sin \alpha) + b\,(-\sin \alpha, \cos \alpha)$.
    """)
def rotate_pair(pair, position, speed):
    """Return the turned pair, as an array of shape (2,)."""
    ### BEGIN SOLUTION
    a, b = pair
    angle = position * speed  # radians
    c, s = math.cos(angle), math.sin(angle)
    return np.array([c * a - s * b, s * a + c * b])
    ### END SOLUTION


@rotate_pair.check
def _(answer):
    for (a, b), position, speed in (((1.0, 0.0), 3, 0.5), ((2.0, -1.0), 7, 0.1)):
        def turned(angle, a=a, b=b):
            z = complex(a, b) * complex(math.cos(angle), math.sin(angle))
            return [z.real, z.imag]

        angle = position * speed
        got = answer((a, b), position, speed)
        require(np.shape(got) == (2,), f"the turned pair should have shape (2,), not "
                f"{np.shape(got)}")
        require_close(
            got, turned(angle), what=f"rotate_pair({(a, b)}, {position}, {speed})", slips=[
                (turned(-angle), "it turns clockwise: one of the two sines has the wrong sign"),
                (turned(speed), "the position is not used: the angle is position times speed"),
                (turned(math.radians(angle)), "the angle is already in radians"),
                (turned(position / speed), "the angle is position times speed, not divided by it"),
                (turned(angle)[::-1], "the two components are swapped"),
            ])


@rotate_pair.wrong("turns the other way", says="clockwise")
def _(pair, position, speed):
    c, s = math.cos(position * speed), math.sin(position * speed)
    return np.array([c * pair[0] + s * pair[1], c * pair[1] - s * pair[0]])


@rotate_pair.wrong("converts from degrees", says="already in radians")
def _(pair, position, speed):
    angle = math.radians(position * speed)
    c, s = math.cos(angle), math.sin(angle)
    return np.array([c * pair[0] - s * pair[1], s * pair[0] + c * pair[1]])


@rotate_pair.wrong("turns by the speed alone", says="the position is not used")
def _(pair, position, speed):
    c, s = math.cos(speed), math.sin(speed)
    return np.array([c * pair[0] - s * pair[1], s * pair[0] + c * pair[1]])


@practice.exercise(
    "Slopes", marks=2, minutes=10,
    statement=r"""
    Write the bias of ALiBi for `H` heads, a power of two, when the `L` queries are the *last* `L`
    of `S` positions, as they are with a cache: an array of shape $(H, L, S)$ that holds
    $-m_h\,|i - j|$, where $i$ and $j$ are the *positions* of query and key and
    $m_h = 2^{-8h/H}$ for $h = 1, \dots, H$. Without `attn`.
    """,
    hints=["At which position does the first query sit? `S - L` keys come before it.",
           "`np.arange(S - L, S)[:, None] - np.arange(S)` has the shape (L, S).",
           "The slopes need two more axes: `slopes[:, None, None]`."],
    notes=r"In attn: `attn.alibi_bias(H, L, S, q_offset=S - L)[0]`.")
def alibi(H, L, S):
    """Return an array of shape (H, L, S)."""
    ### BEGIN SOLUTION
    slopes = 2.0 ** (-8 * np.arange(1, H + 1) / H)
    distance = np.abs(np.arange(S - L, S)[:, None] - np.arange(S))
    return -slopes[:, None, None] * distance
    ### END SOLUTION


def sloped(slopes, away):
    """Return minus slope times distance, (H, L, S)."""
    return -np.multiply.outer(slopes, away)


@alibi.check
def _(answer):
    for H, L, S in ((4, 3, 7), (2, 5, 5), (8, 1, 3)):
        h = np.arange(1, H + 1)
        slopes = 2.0 ** (-8 * h / H)
        away = np.arange(S - L, S)[:, None] - np.arange(S)
        want = sloped(slopes, np.abs(away))
        got = answer(H, L, S)
        what = f"alibi({H}, {L}, {S})"
        require(np.shape(got) == (H, L, S),
                f"{what} should have shape {(H, L, S)}, it has {np.shape(got)}")
        require_close(got, want, what=what, slips=[
            (-want, "it rewards the distance: the bias is never positive"),
            (sloped(2.0 ** (-8 * (h - 1) / H), np.abs(away)),
             "the slopes begin with 1: count the heads from 1, not from 0"),
            (sloped(slopes, np.abs(away - (S - L))),
             "the queries sit at the end: query 0 is at position S - L"),
            (sloped(2.0**-h, np.abs(away)),
             "these are the slopes of eight heads: the exponent is 8h / H"),
            (want[::-1], "the slopes are in the wrong order: head 1 is steepest"),
            (sloped(slopes, away), "later keys are rewarded: take the absolute value"),
        ])


@alibi.wrong("counts the heads from 0", says="the slopes begin with 1")
def _(H, L, S):
    slopes = 2.0 ** (-8 * np.arange(H) / H)
    return -np.multiply.outer(slopes, np.abs(np.arange(S - L, S)[:, None] - np.arange(S)))


@alibi.wrong("puts the first query at position 0", says="the queries sit at the end")
def _(H, L, S):
    slopes = 2.0 ** (-8 * np.arange(1, H + 1) / H)
    return -np.multiply.outer(slopes, np.abs(np.arange(L)[:, None] - np.arange(S)))


@alibi.wrong("adds the distance", says="rewards the distance")
def _(H, L, S):
    return -attn.alibi_bias(H, L, S, q_offset=S - L)[0]


@alibi.wrong("halves from head to head, whatever H is", says="the exponent is 8h / H")
def _(H, L, S):
    slopes = 2.0 ** -np.arange(1, H + 1)
    return -np.multiply.outer(slopes, np.abs(np.arange(S - L, S)[:, None] - np.arange(S)))


@practice.exercise(
    "Repair the padded batch", marks=2, minutes=10,
    statement=r"""
    This line numbers the tokens by their slots, which is wrong as soon as a row is padded on the
    left: `positions = np.arange(L)`. Write the right one. `is_token` is an integer array of ones
    and zeros, $(B, L)$. The first token of each row has position 0, the next one 1, wherever the
    padding stands. The result has the shape $(B, 1, L)$ that `attn.rotary` takes. Tables are read
    at the positions of padding too, so these must not be negative.
    """,
    hints=["The position of a token is the number of tokens before it, in its own row.",
           "`np.cumsum(..., axis=1)` counts along the row, the token itself included.",
           "`np.maximum(..., 0)` for the padding at the front, `[:, None]` for the heads."],
    notes="Code that takes a batch padded on either side uses this line: it asks where the tokens "
          "are, not where the padding should be.")
def positions_from_mask(is_token):
    """Return an integer array of shape (B, 1, L)."""
    ### BEGIN SOLUTION
    count = np.cumsum(is_token, axis=1)  # so far, this one too
    return np.maximum(count - 1, 0)[:, None]
    ### END SOLUTION


@positions_from_mask.check
def _(answer):
    rows = np.array([[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0, 0]])
    B, L = rows.shape
    got = np.asarray(answer(rows.copy()))
    require(got.shape != (B, L), f"the shape is ({B}, {L}): an axis for the heads is missing")
    require(got.shape == (B, 1, L), f"the shape should be {(B, 1, L)}, it is {got.shape}")
    require(np.issubdtype(got.dtype, np.integer), f"positions are integers, not {got.dtype}")
    got, token = got[:, 0], rows.astype(bool)
    count = rows.cumsum(axis=1)

    def is_slip(slip):
        return np.array_equal(got[token], np.broadcast_to(slip, rows.shape)[token])

    right = count - 1
    require(not is_slip(np.arange(L)), "these are the slots: a row padded on the left starts too "
            "late")
    require(not is_slip(count), "every position is one too high: a token does not count itself")
    require(not is_slip(rows.cumsum(axis=0) - 1) and not is_slip(rows.cumsum(axis=0)),
            "this counts along the batch: the position would depend on the other rows")
    require(not is_slip(rows[:, ::-1].cumsum(axis=1)[:, ::-1] - 1), "this counts from the end")
    start = L - rows.sum(axis=1, keepdims=True)
    require(not is_slip(np.maximum(np.arange(L) - start, 0)),
            "right for padding on the left, wrong for row 2, which is padded on both sides: count "
            "the tokens, not the padding")
    require(is_slip(right), f"expected {right[0][token[0]].tolist()} for the tokens of row 0, got "
            f"{got[0][token[0]].tolist()}")
    require(got.min() >= 0, "padding at the front gets -1: a table would be read from its end")


@positions_from_mask.wrong("numbers the slots", says="these are the slots")
def _(is_token):
    B, L = is_token.shape
    return np.broadcast_to(np.arange(L), (B, 1, L))


@positions_from_mask.wrong("starts at 1", says="one too high")
def _(is_token):
    return np.cumsum(is_token, axis=1)[:, None]


@positions_from_mask.wrong("counts along the batch", says="along the batch")
def _(is_token):
    return np.maximum(np.cumsum(is_token, axis=0) - 1, 0)[:, None]


@positions_from_mask.wrong("subtracts the length of the padding", says="padded on both sides")
def _(is_token):
    L = is_token.shape[1]
    start = L - is_token.sum(axis=1, keepdims=True)
    return np.maximum(np.arange(L) - start, 0)[:, None]


@positions_from_mask.wrong("leaves -1 in the padding", says="a table would be read from its end")
def _(is_token):
    return (np.cumsum(is_token, axis=1) - 1)[:, None]


@practice.exercise(
    "Convert a checkpoint", marks=2, minutes=10,
    statement=r"""
    The projections of queries and keys of a model with `H` heads were trained with *interleaved*
    RoPE. Your code turns *halves*. Write `to_half(weight, H)`, which reorders a projection, an
    array of shape $(E, H \cdot D)$ used as `x @ weight`, so that the scores stay what they were.
    """,
    hints=["The features of a head are columns of the weight. Which columns should stand in the "
           "first half?",
           r"In the first half the first members of all pairs, 0, 2, 4, …; then the second ones. "
           r"That is $\pi$ of this page.",
           r"Every head has its own block of $D$ columns: "
           r"`weight.reshape(E, H, D)[:, :, pi].reshape(E, -1)`."],
    notes="Values and the output projection stay as they are: nothing turns them. With "
          "`nn.Linear`, whose weight has the shape (H·D, E), the rows are reordered instead, and "
          "the bias with them.")
def to_half(weight, H):
    """Return the weight, with its columns reordered."""
    ### BEGIN SOLUTION
    E, D = weight.shape[0], weight.shape[1] // H
    pi = [*range(0, D, 2), *range(1, D, 2)]
    return weight.reshape(E, H, D)[:, :, pi].reshape(E, H * D)
    ### END SOLUTION


@to_half.check
def _(answer):
    E, H, D = 5, 3, 6
    rng = np.random.default_rng(1)
    weight = rng.normal(size=(E, H * D))
    got = np.asarray(answer(weight.copy(), H))
    require(got.shape == (E, H * D), f"the shape should stay {(E, H * D)}, it is {got.shape}")
    heads = weight.reshape(E, H, D)
    pi, across = [0, 2, 4, 1, 3, 5], [*range(0, H * D, 2), *range(1, H * D, 2)]
    require_close(got, heads[:, :, pi].reshape(E, -1), what="to_half(weight, 3) with D = 6", slips=[
        (weight, "nothing has been reordered"),
        (weight[:, across],
         "the reordering runs across the heads: each head has its own D columns"),
        (heads[:, :, np.argsort(pi)].reshape(E, -1),
         "this is the way back, from halves to interleaved"),
        (heads[:, :, [0, 3, 1, 4, 2, 5]].reshape(E, -1),
         "this is the way back, from halves to interleaved"),
        (weight.reshape(E, D, H)[:, pi].reshape(E, -1),
         "the heads are the outer axis: reshape to (E, H, D)"),
    ])


@to_half.wrong("reorders across the heads", says="across the heads")
def _(weight, H):
    return np.concatenate([weight[:, 0::2], weight[:, 1::2]], axis=1)


@to_half.wrong("goes the other way", says="the way back")
def _(weight, H):
    E, D = len(weight), weight.shape[1] // H
    return weight.reshape(E, H, 2, D // 2).swapaxes(2, 3).reshape(E, -1)


@to_half.wrong("takes the heads for the inner axis", says="the heads are the outer axis")
def _(weight, H):
    E, D = len(weight), weight.shape[1] // H
    pi = [*range(0, D, 2), *range(1, D, 2)]
    return weight.reshape(E, D, H)[:, pi].reshape(E, -1)


@practice.exercise(
    "The position that was a batch index", marks=3, minutes=15,
    statement=r"""
    Several repositories had a line like `x = x + table[: x.shape[0]]`, with $x$ of shape
    $(B, L, E)$ and a table that broadcasts ([one report, since
    repaired](https://github.com/cmu-l3/anlp-fall2025-code/issues/1)). Axis 0 is the batch: all
    tokens of a text get one vector, and training does not complain. Write the test that finds it.
    Functions `add(x)` claim to add to each token the vector of its position. Write
    `places_tokens(add)`, which returns `True` if they do: another vector at each position, the same
    in every text of the batch, and the same whatever the length of the text. The check hands it
    three right functions and five wrong ones.
    """,
    hints=[r"What does `add` give for $x = 0$? Use a batch of at least two texts.",
           "Two positions of one text must differ; two texts must agree at the same position.",
           "Add to a text of 7 tokens and to its first 4: the first 4 results must agree."],
    notes=r"""
    Three properties, none implied by the others. With $B = 1$, or with $B = L$ and the wrong table,
    half of the mistakes look right: test with $B \ne L$, both above 1.
    """)
def places_tokens(add):
    """Return whether add(x) gives each token its own vector."""
    ### BEGIN SOLUTION
    added = add(np.zeros((3, 7, 4)))  # what is added, on its own
    shorter = add(np.zeros((3, 4, 4)))
    first = added[0]
    differ = all(np.abs(first[i] - first[j]).max() > 1e-6
                 for i in range(7) for j in range(i))
    same_in_batch = np.allclose(added, first)
    same_when_shorter = np.allclose(shorter, added[:, :4])
    return bool(differ and same_in_batch and same_when_shorter)
    ### END SOLUTION


TABLE = np.random.default_rng(2).normal(size=(400, 1, 4))


def row(x, index):
    """Add rows of the table, picked by an array that broadcasts to (B, L)."""
    return x + TABLE[np.broadcast_to(index, x.shape[:2]), 0]


def slot(x):
    """Return the position of each token, as (1, L)."""
    return np.arange(x.shape[1])[None]


RIGHT = {
    "sinusoidal positions": lambda x: x + attn.sinusoidal_positions(x.shape[1], x.shape[2]),
    "a learned table": lambda x: row(x, slot(x)),
    "a learned table in float32": lambda x: row(x, slot(x)).astype(np.float32),
}
BUGGY = {
    "takes the batch index for the position":
        (lambda x: x + TABLE[: x.shape[0]], ": compare two positions of one text"),
    "gives all tokens the vector of the length":
        (lambda x: row(x, x.shape[1]), ": compare two positions of one text"),
    "counts on from one text to the next":
        (lambda x: row(x, slot(x) + x.shape[1] * np.arange(len(x))[:, None]),
         ": compare two texts of one batch"),
    "counts from the end": (lambda x: row(x, slot(x)[:, ::-1]),
                            ": compare a text with a shorter one"),
    "stretches the positions to the length":
        (lambda x: x + np.sin(slot(x)[..., None] / x.shape[1] * np.arange(1, x.shape[2] + 1)),
         ": compare a text with a shorter one"),
}


@places_tokens.check
def _(answer):
    for name, function in RIGHT.items():
        said = answer(function)
        require(isinstance(said, bool | np.bool_),
                f"places_tokens should return True or False, not {said!r}")
        require(said, f"your test refuses a right function ({name}). Floats round: compare with "
                "np.allclose")
    for name, (function, hint) in BUGGY.items():
        if answer(function):
            raise Wrong(f"your test misses a function that {name}{hint}")


@places_tokens.wrong("looks at the shape only", says="takes the batch index")
def _(add):
    return add(np.zeros((3, 7, 4))).shape == (3, 7, 4)


@places_tokens.wrong("tests a batch of one text", says="from one text to the next")
def _(add):
    added, shorter = add(np.zeros((1, 7, 4)))[0], add(np.zeros((1, 4, 4)))[0]
    return bool(np.ptp(added, axis=0).min() > 0 and np.allclose(added[:4], shorter))


@places_tokens.wrong("tests one length", says="counts from the end")
def _(add):
    added = add(np.zeros((3, 7, 4)))
    return bool(np.ptp(added[0], axis=0).min() > 0 and np.allclose(added, added[0]))


@places_tokens.wrong("asks for equal floats", says="refuses a right function")
def _(add):
    x = np.random.default_rng(0).normal(size=(3, 7, 4))
    added = add(x) - x
    return bool((added == added[0]).all())


practice.quiz(
    Question("An encoder layer without mask and without positions gets the words of a sentence in "
             "reverse. What does it return?", [
        choice("The same rows, in reverse", right=True,
               reason="It is permutation equivariant: $f(PX) = P f(X)$."),
        choice("The same rows, in the same order",
               reason="That would be *invariance*. The rows move with their words."),
        choice("Other rows, since each word now has other neighbours",
               reason="A softmax does not know who stands beside whom."),
    ]),
    Question("A causal model has no positional encoding. From which layer on can its last token "
             "depend on the order of the others?", [
        choice("From none", reason="The causal mask gives each token another set to look at."),
        choice("From the first", reason="Its last token sees all the others, and sums over a set."),
        choice("From the second", right=True,
               reason="After the first, each token carries what came before *it*."),
    ]),
    Question("All positions of a text are raised by 7. Which scheme changes the weights?", [
        choice("RoPE", reason="Queries and keys turn alike, and their difference stays."),
        choice("Sinusoidal", right=True,
               reason="The vectors added to the tokens change, and the projections do not know "
                      "that a shift is a rotation."),
        choice("ALiBi", reason="It reads the distance only."),
        choice("None of the three", reason="One of them adds absolute positions to the input."),
    ]),
    Question("A checkpoint with interleaved RoPE runs in code for halves, unconverted. What tells "
             "you?", [
        choice("The shapes do not fit", reason="They do: the layouts differ in the order only."),
        choice("Scores change when all positions are shifted by 100",
               reason="They do not: it is a right RoPE, for other weights."),
        choice("The outputs differ from the original's, from the second token on", right=True,
               reason="At position 0 nothing is turned. Compare with a known output, past it."),
    ]),
    Question("Models trained on 16 tokens are tested on 48. What did this page find?", [
        choice("Relative schemes keep everything, absolute ones nothing",
               reason="RoPE lost *three back*; sinusoidal positions kept the *fourth token*."),
        choice("ALiBi kept what it had, and had no exact distance", right=True,
               reason="Flat accuracy in all tasks, and a blur where exactly three back was asked."),
        choice("Sinusoidal positions work, since the formula has no end",
               reason="The formula has none. The projections were fitted to 16 places."),
    ]),
)
