"""Practice of the chapter "Is it an explanation?": free weights, two removals, rollout, a score."""

import numpy as np

from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("is-it-an-explanation")


@practice.exercise(
    "How many other maps?", marks=1, minutes=6,
    statement=r"""
    `values` holds the values of $S$ keys, shape $(S, D_v)$. In how many independent directions can
    the weights of one query move without a change of the output? The weights go on summing to 1.
    Do not assume that the values are in general position: some may be equal, or lie on a line.
    """,
    hints=[
        r"A direction $\delta$ has to satisfy $\delta V = 0$ and $\sum_j \delta_j = 0$. Write both "
        "as one equation with one matrix.",
        r"Append a column of ones to $V$. The solutions of $\delta\, [V\;\mathbf 1] = 0$ have "
        r"dimension $S - \operatorname{rank}[V\;\mathbf 1]$; `np.linalg.matrix_rank` counts.",
    ],
    notes=r"""
    For values in general position the rank is $\min(S, D_v + 1)$, so the answer is
    $S - D_v - 1$, or 0 if that is negative. Two equal values always give a direction: whatever one
    key gains, the other may lose.
    """)
def free_directions(values):
    """Return the number of directions, an int."""
    ### BEGIN SOLUTION
    ones = np.ones((len(values), 1))
    return len(values) - int(np.linalg.matrix_rank(np.hstack([values, ones])))
    ### END SOLUTION


@free_directions.check
def _(answer):
    rng = np.random.default_rng(0)
    line = np.array([[0.0, 5], [0, 1], [0, 3], [10, 0]])
    cases = {"7 random values of size 3": rng.normal(size=(7, 3)),
             "3 random values of size 5": rng.normal(size=(3, 5)),
             "four values, three of them on a line": line,
             "five equal values": np.full((5, 2), 2.0)}
    for what, values in cases.items():
        S, Dv = values.shape
        rank = np.linalg.matrix_rank
        right = S - rank(np.hstack([values, np.ones((S, 1))]))
        got = answer(values.copy())
        require_close(got, right, what=f"free_directions({what})", atol=0.1, slips=[
            (S - rank(values), "the sum of the weights must stay 1: that is one more equation"),
            (S - Dv - 1, "this assumes values in general position; count the rank, and never go "
                         "below 0"),
            (max(S - Dv - 1, 0), "this assumes values in general position: count the rank"),
            (S - Dv, "the sum of the weights must stay 1, and values may be dependent"),
            (rank(np.hstack([values, np.ones((S, 1))])), "that is the number of directions which "
                                                          "do change something"),
        ])


@free_directions.wrong("lets the weights sum to anything", says="must stay 1")
def _(values):
    return len(values) - np.linalg.matrix_rank(values)


@free_directions.wrong("counts rows and columns only", says="general position")
def _(values):
    return max(len(values) - values.shape[1] - 1, 0)


@practice.exercise(
    "As far as it goes", marks=2, minutes=10,
    statement=r"""
    Given the weights of one query and a direction that does not change the output, go along it
    as far as the weights remain weights: return $\alpha + t\,\delta$ with the largest $t \ge 0$
    for which no entry is negative. The direction sums to 0 and is not 0.
    """,
    hints=[
        r"Only entries with $\delta_j < 0$ fall. Entry $j$ is 0 at $t = \alpha_j / -\delta_j$.",
        "The first one to reach 0 stops you: the smallest of these $t$.",
    ],
    notes=r"""
    The result has a weight of exactly 0: a key that seems to play no part, in a map that gives the
    same output. Where several directions are free, "as different as possible" is a task for linear
    programming.
    """)
def push(weights, direction):
    """Return the weights at the end of the way, shape (S,)."""
    ### BEGIN SOLUTION
    falls = direction < 0
    t = (weights[falls] / -direction[falls]).min()
    return weights + t * direction
    ### END SOLUTION


@push.check
def _(answer):
    cases = (([0.335, 0.335, 0.165, 0.165], [0, 1, 1, -2.0]),
             ([0.335, 0.335, 0.165, 0.165], [0, -1, -1, 2.0]),
             ([0.1, 0.2, 0.3, 0.15, 0.25], [0.5, -0.1, -1.0, 0.3, 0.3]),
             ([0.0, 0.4, 0.6], [0.2, -0.5, 0.3]))
    for weights, direction in cases:
        a, d = np.array(weights), np.array(direction)
        falls, rises = d < 0, d > 0
        steps = a[falls] / -d[falls]
        got = answer(a.copy(), d.copy())
        clipped = np.clip(a + d, 0, None)
        slips = [
            (a + steps.max() * d, "you stopped at the last weight to reach 0; the others are "
                                  "negative by then"),
            (a + (a[rises] / d[rises]).min() * -d, "this goes against the direction"),
            (a + (a / np.where(d == 0, np.inf, np.abs(d))).max() * d,
             "weights that rise set no limit: look at those that fall"),
            (a + (a[d != 0] / np.abs(d[d != 0])).min() * d,
             "weights that rise set no limit: look at those that fall"),
            (clipped / clipped.sum(), "cutting off at 0 and rescaling leaves the direction, and "
                                      "the output changes"),
            (a + d, "one whole step is not always possible, or not the longest"),
        ]
        require_close(got, a + steps.min() * d, what=f"push({weights}, {direction})", slips=slips)


@push.wrong("takes the largest step", says="negative by then")
def _(weights, direction):
    falls = direction < 0
    return weights + (weights[falls] / -direction[falls]).max() * direction


@push.wrong("cuts off at 0 and rescales", says="output changes")
def _(weights, direction):
    moved = np.clip(weights + direction, 0, None)
    return moved / moved.sum()


@push.wrong("lets weights that rise set the limit", says="set no limit")
def _(weights, direction):
    moves = direction != 0
    return weights + (weights[moves] / np.abs(direction[moves])).min() * direction


@practice.exercise(
    "Rollout", marks=2, minutes=10,
    statement=r"""
    Write attention rollout: `maps` has shape (layers, H, L, L), the first layer first. Average the
    heads; mix each map half and half with the identity, for the residual connection; multiply.
    Row $i$ of the result tells how position $i$ of the last layer is made up of the inputs.
    """,
    hints=[
        r"One layer: $\bar A = \tfrac12 \big(\tfrac1H \sum_h A_h\big) + \tfrac12 I$.",
        r"Rows are outputs and columns inputs, so the later layer stands on the left: "
        r"$\bar A_2 \bar A_1$.",
    ],
    notes=r"""
    The rows of the result sum to 1, as every factor's do. The order matters: a product the other
    way round still has rows that sum to 1, and is wrong.
    """)
def rollout(maps):
    """Return the rollout: an array of shape (L, L)."""
    ### BEGIN SOLUTION
    eye = np.eye(maps.shape[-1])
    result = eye
    for layer in maps:
        result = (layer.mean(axis=0) + eye) / 2 @ result
    return result
    ### END SOLUTION


def _roll(maps, half=True, reverse=False, mix="mean"):
    L = maps.shape[-1]
    result = np.eye(L)
    for layer in maps:
        layer = {"mean": layer.mean(0), "sum": layer.sum(0), "max": layer.max(0)}[mix]
        step = (layer + np.eye(L)) / 2 if half else layer
        result = result @ step if reverse else step @ result
    return result


@rollout.check
def _(answer):
    rng = np.random.default_rng(1)
    for layers, H, L in ((2, 3, 5), (3, 2, 7), (1, 2, 3)):
        maps = rng.random((layers, H, L, L)) ** 3
        maps /= maps.sum(-1, keepdims=True)
        eye = np.eye(L)
        mean = maps.mean(1)
        heads = np.mean([_roll(maps[:, [h]]) for h in range(H)], axis=0)
        slips = [
            (_roll(maps, half=False), "the residual connection is missing: mix with the identity"),
            (_roll(maps, reverse=True), "the order is reversed: the later layer stands left"),
            (_roll(maps, half=False, reverse=True), "the residual connection is missing, and the "
                                                    "later layer stands on the left"),
            (_roll(maps, mix="sum"), "average the heads, do not add them"),
            (_roll(maps, mix="max"), "average the heads: the largest of them has rows that do not "
                                     "sum to 1"),
            (np.mean((mean + eye) / 2, axis=0), "layers are multiplied, not averaged"),
            (np.prod((mean + eye) / 2, axis=0), "this multiplies cell by cell: use a matrix "
                                                "product"),
            (heads, "average the heads within each layer, before you multiply"),
            ((mean[-1] + eye) / 2, "only the last layer is used"),
            (_roll(maps) * 2**layers, "mix half and half: rows should sum to 1"),
        ]
        require_close(answer(maps.copy()), _roll(maps),
                      what=f"rollout of {layers} layers, {H} heads, L = {L}", slips=slips)


@rollout.wrong("multiplies in the wrong order", says="order is reversed")
def _(maps):
    return _roll(maps, reverse=True)


@rollout.wrong("forgets the residual connection", says="residual connection is missing")
def _(maps):
    return _roll(maps, half=False)


@rollout.wrong("multiplies cell by cell", says="cell by cell")
def _(maps):
    return np.prod((maps.mean(1) + np.eye(maps.shape[-1])) / 2, axis=0)


@practice.exercise(
    "Two ways to take a token away", marks=3, minutes=15,
    statement=r"""
    One query with weights $\alpha$ over $S$ keys, their values $V$, and a readout $w$: the class
    gets $w \cdot o$ with $o = \alpha V$. For each key $j$ return by how much that number **falls**

    - if key $j$ is masked, so that the other weights grow until they sum to 1 again;
    - if value $j$ is replaced by 0, and the weights stay as they are.

    Compute both from $\alpha$, $V$ and $w$ alone, without another softmax. If a key has all the
    weight, masking it leaves nothing to see, and the output is 0.
    """,
    hints=[
        r"Masked: the output becomes $(o - \alpha_j v_j) / (1 - \alpha_j)$, because a softmax "
        "without one key is the old one, rescaled.",
        r"The fall is $w \cdot o$ minus the new number. Mind $\alpha_j = 1$, where there is no "
        "division: the fall is then $w \\cdot o$ itself.",
    ],
    notes=r"""
    Masked, the fall is $\frac{\alpha_j}{1 - \alpha_j}\, w \cdot (v_j - o)$: what counts is how far
    the value is from the average. Replaced by 0, it is $\alpha_j\, w \cdot v_j$: what counts is how
    far it is from 0, and these falls add up to $w \cdot o$. A value equal to the output, with half
    of the weight, can be masked without any effect.
    """)
def removals(weights, values, readout):
    """Return the falls for masked keys and for zeroed values."""
    ### BEGIN SOLUTION
    parts = values @ readout  # w · v_j
    total = weights @ parts
    rest = 1 - weights
    full = np.isclose(rest, 0)
    left = np.where(full, 0, (total - weights * parts) / np.where(full, 1, rest))
    return total - left, weights * parts
    ### END SOLUTION


def _falls(weights, values, readout):
    masked, zeroed = [], []
    for j in range(len(weights)):
        kept = weights.copy()
        kept[j] = 0
        gone = values.copy()
        gone[j] = 0
        all_ = weights @ values @ readout
        left = kept / kept.sum() if kept.sum() > 1e-12 else kept
        masked.append(all_ - left @ values @ readout)
        zeroed.append(all_ - weights @ gone @ readout)
    return np.array(masked), np.array(zeroed)


@removals.check
def _(answer):
    rng = np.random.default_rng(2)
    cases = [(rng.dirichlet(np.ones(S)), rng.normal(size=(S, Dv)) + 0.5, rng.normal(size=Dv))
             for S, Dv in ((5, 3), (7, 2))]
    cases.append((np.array([0, 0, 1.0]), rng.normal(size=(3, 2)), rng.normal(size=2)))
    for weights, values, readout in cases:
        got = answer(weights.copy(), values.copy(), readout.copy())
        require(isinstance(got, (tuple, list)) and len(got) == 2,
                "return two arrays: the falls for masked keys, and for zeroed values")
        parts, total = values @ readout, weights @ values @ readout
        masked, zeroed = _falls(weights, values, readout)
        name = f"weights {np.round(weights, 2).tolist()}"
        if not np.isfinite(np.asarray(got[0], dtype=float)).all():
            raise Wrong("a key with all the weight leads to a division by 0: there the output is 0")
        require_close(got[0], masked, what=f"masked, {name}", slips=[
            (zeroed, "this is the fall for zeroed values: after masking, the other weights grow"),
            (-masked, "the sign: a fall is the old number minus the new one"),
            (total - masked, "this is what is left, not the fall"),
            (weights / np.maximum(1 - weights, 1e-12) * parts,
             "the value is compared with 0: compare it with the output, v_j - o"),
            (parts - total, "the weight is missing"),
            (weights * (parts - total), "the other weights grow by 1 / (1 - α_j)"),
            (np.where(np.isclose(weights, 1), 0, masked),
             "a key with all the weight: masked, the output is 0 and all of it falls"),
        ])
        require_close(got[1], zeroed, what=f"zeroed, {name}", slips=[
            (masked, "this is the fall for masked keys: here the weights stay as they are"),
            (-zeroed, "the sign: a fall is the old number minus the new one"),
            (total - zeroed, "this is what is left, not the fall"),
            (parts, "the weight is missing"),
            (weights * np.linalg.norm(values, axis=1),
             "a norm forgets the direction: use the readout, w · v_j"),
        ])


@removals.wrong("does not let the other weights grow", says="other weights grow")
def _(weights, values, readout):
    return weights * (values @ readout), weights * (values @ readout)


@removals.wrong("compares with 0 instead of with the output", says="compare it with the output")
def _(weights, values, readout):
    parts = values @ readout
    return weights / np.maximum(1 - weights, 1e-12) * parts, weights * parts


@removals.wrong("returns what is left", says="not the fall")
def _(weights, values, readout):
    total = weights @ values @ readout
    masked, zeroed = _falls(weights, values, readout)
    return total - masked, total - zeroed


@removals.wrong("measures values by their norm", says="forgets the direction")
def _(weights, values, readout):
    return _falls(weights, values, readout)[0], weights * np.linalg.norm(values, axis=1)


practice.quiz(
    Question("Two keys have the same weight. What do they contribute to a number read off the "
             "output?", [
        choice("The same, because the weights are the same",
               reason=r"A contribution is $\alpha_j\, w \cdot v_j$. The values may differ, and so "
                      "may what the readout makes of them."),
        choice("That depends on their values and on the readout", right=True,
               reason="In the worked example one of two keys with weight 0.401 gives all of "
                      "the 4.011, the other nothing."),
        choice("The same, provided that their values are equally long",
               reason=r"Length is not direction: $w \cdot v_j$ may be positive, 0 or negative."),
    ]),
    Question("A text has 512 keys, a head has values of size 64. What does the head's output at "
             "one position tell about its weights there?", [
        choice("Nothing", reason="It rules out nearly all weights: 65 equations have to hold."),
        choice("All of them", reason="65 equations do not fix 512 unknowns."),
        choice("It leaves at least 447 directions open", right=True,
               reason="$512 - 64 - 1$, for values in general position; weights must only stay "
                      "positive."),
    ]),
    Question("Token 5 is masked, and the prediction stays. What may you write?", [
        choice("With token 5 masked, the model predicts the same", right=True,
               reason="That is what was measured. A second copy of the evidence may stand "
                      "elsewhere."),
        choice("The model does not use token 5 for this prediction",
               reason="Of two starred tokens, each can be masked without effect, and the model "
                      "uses both."),
        choice("Token 5 has no weight",
               reason="It may have half of the weight: the other half then becomes all of it."),
    ]),
    Question("A window hides a token from the reader in the last layer. Can the token be the cause "
             "of the prediction?", [
        choice("No, its weight is exactly 0, so nothing of it reaches the reader",
               reason="In *that* layer. An earlier layer may have carried its content to a "
                      "visible position."),
        choice("Yes, by way of a position that saw it earlier", right=True,
               reason="Positions of the last layer are no longer tokens: they hold what the first "
                      "layer brought them."),
        choice("Only if the mask has a bug", reason="This is how stacked windows are meant to "
                                                    "work."),
    ]),
    Question("A model with equal weights everywhere reaches the same accuracy. What follows for "
             "the map of the model that was trained freely?", [
        choice("The map is wrong", reason="It is what that model computes. It may even point at "
                                          "the cause, as on this page."),
        choice("The two models are the same",
               reason="Equal accuracy, different computation: one selects by weights, one by the "
                      "size of values."),
        choice("The task does not need a map that points at the cause", right=True,
               reason="So a map on this task cannot be believed for the accuracy's sake: it has to "
                      "be tested on the model."),
    ]),
)
