"""Practice of the chapter "Across modalities": shapes, a score, a shuffle, two masks."""

import numpy as np

from practice.form import Practice, Question, choice, require, require_close

practice = Practice("across-modalities")


def draw_maps(seed, B=3, L=5, S=7):
    """Return weights (B, L, S) and right cells (B, L), -1 where a word asks for nothing."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(S, 0.3), size=(B, L))
    right = rng.integers(S, size=(B, L))
    right[0, 1:], right[1, ::2] = -1, -1  # captions ask for 1, 2 and 5 cells
    return weights, right


def require_bool(got, shape, what):
    """Require a boolean array of this shape."""
    got = np.asarray(got)
    require(got.dtype == bool, f"{what} should be boolean, True = may attend; came {got.dtype}")
    require(got.shape == shape, f"{what} has shape {got.shape}, expected {shape}")
    return got


@practice.exercise(
    "Shapes across", marks=1, minutes=5,
    statement=r"""
    A layer with $H$ heads attends from words $(B, L, E)$ to cells $(B, S, E)$, and heads have size
    $E / H$. Return the shapes of query, key, value, weights and of the layer's output, each as a
    tuple.
    """,
    hints=[
        "Which of the two inputs does each of the three projections read?",
        "Rows of the weights are queries, columns are keys; the output has a row for each word.",
    ],
    notes="The layer's output has the shape of the words, so it can be added to them.")
def cross_shapes(B, H, L, S, E):
    """Return five tuples: query, key, value, weights, output."""
    ### BEGIN SOLUTION
    D = E // H
    query, key = (B, H, L, D), (B, H, S, D)
    return query, key, key, (B, H, L, S), (B, L, E)
    ### END SOLUTION


@cross_shapes.check
def _(answer):
    for B, H, L, S, E in ((2, 3, 5, 7, 33), (1, 2, 11, 3, 26)):
        D, call = E // H, f"cross_shapes({B}, {H}, {L}, {S}, {E})"
        got = answer(B, H, L, S, E)
        require(isinstance(got, tuple) and len(got) == 5, f"{call} should return five tuples")
        query, key, value, weights, output = (tuple(shape) for shape in got)
        require(query != (B, H, S, D), "queries come from the words: there are L of them")
        require((B, H, L, D) not in (key, value), "keys and values come from the cells: S of them")
        require(weights != (B, H, S, L), "a row of the weights belongs to a query: (…, L, S)")
        require(weights not in ((B, H, L, L), (B, H, S, S)),
                "that is self-attention: here each word has a weight for each cell")
        require(output != (B, S, E), "the output has a row for each word, not for each cell")
        require_close(query, (B, H, L, D), what=f"the query of {call}")
        require_close(key, (B, H, S, D), what=f"the key of {call}")
        require_close(value, (B, H, S, D), what=f"the value of {call}")
        require_close(weights, (B, H, L, S), what=f"the weights of {call}")
        require_close(output, (B, L, E), what=f"the output of {call}")


@cross_shapes.wrong("takes keys and values from the words", says="come from the cells")
def _(B, H, L, S, E):
    D = E // H
    return (B, H, L, D), (B, H, L, D), (B, H, L, D), (B, H, L, L), (B, L, E)


@cross_shapes.wrong("turns the table of weights", says="belongs to a query")
def _(B, H, L, S, E):
    D = E // H
    return (B, H, L, D), (B, H, S, D), (B, H, S, D), (B, H, S, L), (B, L, E)


@cross_shapes.wrong("gives the output a row for each cell", says="a row for each word")
def _(B, H, L, S, E):
    D = E // H
    return (B, H, L, D), (B, H, S, D), (B, H, S, D), (B, H, L, S), (B, S, E)


@practice.exercise(
    "Score a map", marks=2, minutes=8,
    statement=r"""
    `weights` has shape $(B, L, S)$, and `right` $(B, L)$ holds the right cell of each word, or −1
    where a word asks for nothing. Return the mean share of the weight on the right cell, and how
    often the largest weight points at it, both over all words that ask.
    """,
    hints=[
        "First choose the rows that ask: `asks = right >= 0`. What does NumPy make of index −1?",
        "`weights[asks]` is a table (n, S), `right[asks]` has n cells; index with both, or compare "
        "with `argmax(axis=1)`.",
    ],
    notes="Captions that ask more often count more: the mean is over words, not over captions.")
def score_map(weights, right):
    """Return (share, pointing), two numbers."""
    ### BEGIN SOLUTION
    asks = right >= 0
    rows, cells = weights[asks], right[asks]
    share = rows[np.arange(len(rows)), cells].mean()
    pointing = (rows.argmax(axis=1) == cells).mean()
    return share, pointing
    ### END SOLUTION


@score_map.check
def _(answer):
    for seed in (1, 2):
        weights, right = draw_maps(seed)
        weights[2, 3] = np.eye(7)[right[2, 3]]  # one word that points well
        asks = right >= 0
        picked = np.take_along_axis(weights, right[..., None], axis=2)[..., 0]
        points = weights.argmax(axis=2) == right
        got = answer(weights, right)
        require(isinstance(got, tuple) and len(got) == 2, "return two numbers: share and pointing")
        mean_of_means = np.mean([picked[b][asks[b]].mean() for b in range(3)])
        slips = [
            (picked.mean(), "words that ask for nothing were counted: index −1 is the last cell, "
                            "not none"),
            (np.where(asks, picked, 0).mean(), "words that ask for nothing were counted as 0"),
            (mean_of_means, "the mean is over words, not over captions first"),
            (picked[asks].sum(), "that is the sum over the words, not the mean"),
            (weights[asks].max(axis=1).mean(), "that is the largest weight, on whatever cell"),
        ]
        require_close(got[0], picked[asks].mean(), what="the share", slips=slips)
        require_close(got[1], points[asks].mean(), what="pointing", slips=[
            (points.mean(), "words that ask for nothing were counted as misses"),
            ((picked[asks] > 0.5).mean(), "the largest weight may be below one half"),
        ])


@score_map.wrong("counts the words that ask for nothing", says="index −1 is the last cell")
def _(weights, right):
    picked = np.take_along_axis(weights, right[..., None], axis=2)[..., 0]
    return picked.mean(), (weights.argmax(axis=2) == right)[right >= 0].mean()


@score_map.wrong("takes the mean within each caption first", says="not over captions first")
def _(weights, right):
    asks = right >= 0
    picked = np.take_along_axis(weights, right[..., None], axis=2)[..., 0]
    share = np.mean([picked[b][asks[b]].mean() for b in range(len(right))])
    return share, (weights.argmax(axis=2) == right)[asks].mean()


@score_map.wrong("takes the largest weight for the right one", says="on whatever cell")
def _(weights, right):
    asks = right >= 0
    return weights[asks].max(axis=1).mean(), (weights.argmax(axis=2) == right)[asks].mean()


@score_map.wrong("counts the others as misses", says="counted as misses")
def _(weights, right):
    asks = right >= 0
    picked = np.take_along_axis(weights, right[..., None], axis=2)[..., 0]
    return picked[asks].mean(), (weights.argmax(axis=2) == right).mean()


@practice.exercise(
    "Back to the whole picture", marks=2, minutes=8,
    statement=r"""
    A picture was cut up: its new cell $j$ is the old cell `order[j]`. A model looked at the new one
    and gave `weights` $(L, S)$ on its cells. Return the same weights laid out on the cells of the
    old picture, so that they can be drawn over it.
    """,
    hints=[
        "Column $j$ has to end up in column `order[j]`.",
        "Write into an empty array: `old[:, order] = weights`. Or: which permutation undoes "
        "`order`?",
    ],
    notes="`weights[:, order]` reads where it should write. For a swap of two cells both agree, so "
          "test with a permutation that is not its own inverse.")
def unshuffle(weights, order):
    """Return the weights on the old cells, shape (L, S)."""
    ### BEGIN SOLUTION
    old = np.empty_like(weights)
    old[:, order] = weights
    return old
    ### END SOLUTION


@unshuffle.check
def _(answer):
    for seed in (4, 5):
        weights = draw_maps(seed)[0][0]
        order = np.roll(np.arange(7), 2 + seed)
        order[[0, 3]] = order[[3, 0]]
        want = weights[:, np.argsort(order)]
        require_close(answer(weights.copy(), order.copy()), want, what="the weights", slips=[
            (weights[:, order], "that shuffles a second time: use the inverse of order"),
            (weights, "nothing was moved"),
            (np.sort(weights), "that sorts the weights; the cells have to be put back"),
        ])


@unshuffle.wrong("applies the order once more", says="shuffles a second time")
def _(weights, order):
    return weights[:, order]


@unshuffle.wrong("leaves the columns where they are", says="nothing was moved")
def _(weights, order):
    return weights


@practice.exercise(
    "Hide all that saw it", marks=2, minutes=10,
    statement=r"""
    Cells lie in a grid of `height` × `width`, counted row by row, and each cell's vector has seen a
    window of 3 × 3 cells around it. Return a boolean mask for a layer with any number of heads,
    True = may attend, that hides from each word every cell whose window holds its right cell.
    `right` $(B, L)$ holds −1 for words that ask for nothing; they see every cell.
    """,
    hints=[
        "Cell $c$ stands in row `c // width` and column `c % width`. When does its window hold the "
        "right cell?",
        "It is far away if the rows *or* the columns differ by more than 1. Far cells may be seen.",
        "A mask broadcasts to (B, H, L, S). Which axis is missing, and where?",
    ],
    notes="Hiding one key is not enough where windows overlap: all nine vectors know the object. "
          "On the page, where windows hold two cells, two keys had to be hidden.")
def hide_window(right, height, width):
    """Return the mask, shape (B, 1, L, height * width)."""
    ### BEGIN SOLUTION
    cells, cell = np.arange(height * width), right[..., None]
    far = ((abs(cells // width - cell // width) > 1)
           | (abs(cells % width - cell % width) > 1))
    return (far | (cell < 0))[:, None]
    ### END SOLUTION


@hide_window.check
def _(answer):
    right, height, width = draw_maps(3, S=15)[1], 3, 5
    near, cross = np.zeros((2, 3, 5, 15), bool)
    for b, t in zip(*np.nonzero(right >= 0), strict=True):
        y, x = divmod(int(right[b, t]), width)
        for i in range(max(y - 1, 0), min(y + 2, height)):
            for j in range(max(x - 1, 0), min(x + 2, width)):
                near[b, t, width * i + j] = True
                cross[b, t, width * i + j] = y == i or x == j
    got = answer(right, height, width)
    require(np.shape(got) != (3, 5, 15),
            "that is (B, L, S): without an axis for the heads, B would be taken for H")
    got = require_bool(got, (3, 1, 5, 15), "the mask")[:, 0]
    require(not np.array_equal(got, near), "True means may attend: this mask shows the window and "
                                           "hides the rest")
    require(got[right == -1].all(), "a word that asks for nothing (−1) sees every cell")
    require(not np.array_equal(got, np.arange(15) != right[..., None]),
            "only the right cell is hidden: its neighbours' windows hold the object too")
    require(not np.array_equal(got, ~cross), "the corners are missing: a window has nine cells")
    other_end = (abs(np.arange(15) % width - right[..., None] % width) == width - 1)
    require(got[other_end & (right[..., None] >= 0)].all(),
            "the end of one row and the start of the next are no neighbours")
    require_close(got, ~near, what="the mask")


@hide_window.wrong("hides the right cell only", says="hold the object too")
def _(right, height, width):
    return (np.arange(height * width) != right[..., None])[:, None]


@hide_window.wrong("counts on from row to row", says="are no neighbours")
def _(right, height, width):
    mask = np.ones((*right.shape, height * width), bool)
    for b, t in np.argwhere(right >= 0):
        for step in (-width, 0, width):
            for cell in right[b, t] + step + np.array([-1, 0, 1]):
                if 0 <= cell < height * width:
                    mask[b, t, cell] = False
    return mask[:, None]


@hide_window.wrong("takes −1 for a place", says="sees every cell")
def _(right, height, width):
    cells, cell = np.arange(height * width), right[..., None]
    return ((abs(cells // width - cell // width) > 1)
            | (abs(cells % width - cell % width) > 1))[:, None]


@hide_window.wrong("takes True for hidden", says="True means may attend")
def _(right, height, width):
    cells, cell = np.arange(height * width), right[..., None]
    far = (abs(cells // width - cell // width) > 1) | (abs(cells % width - cell % width) > 1)
    return ~(far | (cell < 0))[:, None]


@hide_window.wrong("hides a cross instead of a square", says="the corners are missing")
def _(right, height, width):
    cells, cell = np.arange(height * width), right[..., None]
    far = abs(cells // width - cell // width) + abs(cells % width - cell % width) > 1
    return (far | (cell < 0))[:, None]


@hide_window.wrong("forgets the axis of the heads", says="an axis for the heads")
def _(right, height, width):
    cells, cell = np.arange(height * width), right[..., None]
    far = (abs(cells // width - cell // width) > 1) | (abs(cells % width - cell % width) > 1)
    return far | (cell < 0)


@practice.exercise(
    "The last picture before", marks=3, minutes=12,
    statement=r"""
    A text with pictures in it is a list such as `["<image>", "a", "dog", "<image>", "a", "cat"]`,
    and each picture has `cells` cells. The keys are the cells of all pictures, in order. Return the
    cross-attention mask, True = may attend: a word sees the cells of the last picture before it,
    and no other; so does the mark `<image>` itself, which sees its own picture. Words before the
    first picture see nothing.
    """,
    hints=[
        'How many pictures have come so far, at each position? `np.cumsum` of "is a picture".',
        "Picture $p$, counted from 1, owns the keys $(p - 1)\\cdot$ cells to $p \\cdot$ cells. "
        "`np.repeat` gives each key its picture; compare.",
    ],
    notes="The words of Flamingo follow this rule. It is `attn.SameDocument(so_far, owner)` of the "
          "chapter on masks. Rows that see nothing get zeros from `attn`, and the word keeps what "
          "it had.")
def last_picture(text, cells):
    """Return the mask, bool of shape (L, S), S = cells · pictures."""
    ### BEGIN SOLUTION
    is_picture = np.array([word == "<image>" for word in text])
    so_far = np.cumsum(is_picture)  # (L,)
    owner = np.repeat(np.arange(1, is_picture.sum() + 1), cells)  # (S,)
    return so_far[:, None] == owner
    ### END SOLUTION


@last_picture.check
def _(answer):
    text = ["so", "look", "<image>", "a", "dog", "<image>", "<image>", "two", "cats", "!"]
    for cells in (3, 2):
        so_far = np.array([0, 0, 1, 1, 1, 2, 3, 3, 3, 3])
        owner = np.repeat([1, 2, 3], cells)
        want = so_far[:, None] == owner
        got = require_bool(answer(list(text), cells), want.shape, f"the mask for {cells} cells")
        require(not np.array_equal(got, (so_far[:, None] >= owner)),
                "a word sees the last picture before it, not all that came before")
        require(not np.array_equal(got, (so_far + 1)[:, None] == owner),
                "that is the next picture: the one before the word was asked for")
        late = so_far - np.array([word == "<image>" for word in text])
        require(not np.array_equal(got, late[:, None] == owner),
                "the mark <image> sees its own picture")
        first = np.maximum(so_far, 1)[:, None] == owner
        require(not np.array_equal(got, first), "words before the first picture see nothing")
        require_close(got, want, what="the mask")


@last_picture.wrong("lets words see all pictures so far", says="not all that came before")
def _(text, cells):
    is_picture = np.array([word == "<image>" for word in text])
    return np.cumsum(is_picture)[:, None] >= np.repeat(np.arange(1, is_picture.sum() + 1), cells)


@last_picture.wrong("shows the first picture to the words before it", says="see nothing")
def _(text, cells):
    is_picture = np.array([word == "<image>" for word in text])
    so_far = np.maximum(np.cumsum(is_picture), 1)
    return so_far[:, None] == np.repeat(np.arange(1, is_picture.sum() + 1), cells)


@last_picture.wrong("counts pictures from 0 on one side only", says="the next picture")
def _(text, cells):
    is_picture = np.array([word == "<image>" for word in text])
    return np.cumsum(is_picture)[:, None] == np.repeat(np.arange(is_picture.sum()), cells)


practice.quiz(
    Question("Words attend to image cells. Which mask does the padding need?", [
        choice("One on the padded words, the queries",
               reason="Rows do not meet: a padded word disturbs nobody."),
        choice("One on the padded cells, the keys", right=True,
               reason="A padded key takes its share of every softmax."),
        choice("A causal one, so that words see no later cells",
               reason="Words and cells have no order in common."),
    ]),
    Question("A model has a row of weights for each word. In our captions the row of *and*", [
        choice("Means as much as the row of a blank",
               reason="No loss and no answer depends on it."),
        choice("Is spread evenly, since “and” names nothing",
               reason="Nothing made it even; far more than a sixteenth lay on one cell."),
        choice("May be definite and still mean nothing", right=True,
               reason="A softmax has to put its weight somewhere, and nobody reads this row."),
    ]),
    Question("The picture is cut up and glued. With place vectors, the question *the ? at c2*", [
        choice("Looks at c2 and names what lies there now", right=True,
               reason="The place part of the key belongs to the place, not to the piece."),
        choice("Follows the piece that came from c2",
               reason="That is what a look-up by content does: *the ? disc*."),
        choice("Looks nowhere, because the picture is not from the training set",
               reason="A softmax always looks somewhere, and c2 is where it always was."),
    ]),
    Question("Hiding the key of a cell changes nothing; emptying the cell in the picture ruins the "
             "answer. What follows?", [
        choice("The mask was not applied",
               reason="It may well have been: the two are different cuts."),
        choice("The cell does not matter", reason="Without its pixels the answer is lost."),
        choice("Its content reached the answer through the vectors of other cells", right=True,
               reason="Windows overlap: what the cell shows was read elsewhere."),
    ]),
    Question("Two models have the same accuracy, and their maps differ. Which one is wrong?", [
        choice("The one whose map is not on the right cell",
               reason="Both may read the same pixels, through different vectors."),
        choice("Neither need be", right=True,
               reason="A map shows which vectors were read, not which pixels. To learn which "
                      "pixels count, change the picture."),
        choice("Both, since a right model has one map only",
               reason="The loss on the answer can be met in several ways."),
    ]))
