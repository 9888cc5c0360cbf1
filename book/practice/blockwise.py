"""Practice of the chapter "Blockwise attention": one step, two parts, fewer tiles, one bug."""

import math

import numpy as np

from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("blockwise")


@practice.exercise(
    "One more tile", marks=1, minutes=10,
    statement=r"""
    One query has the state $(m, \ell, o)$ of the keys so far: two floats and an array of shape
    $(D_v,)$. A tile arrives with `scores` of shape $(b,)$ and `values` of shape $(b, D_v)$. Return
    the new state. Hidden keys have the score $-\infty$; the first tiles may hold nothing else, and
    then the state stays that of no key at all, $(-\infty, 0, 0)$.
    """,
    hints=[
        r"The new peak first. Then one factor, $e^{m - m'}$, for the old total and the old output.",
        r"While $m' = -\infty$, subtract 0 in its place: $e^{-\infty - 0} = 0$ is what is wanted.",
    ],
    notes=r"""
    The factor belongs to everything that was summed under the old peak, so to $\ell$ and to $o$.
    The guard is needed only until the first visible key.
    """)
def fold_one(state, scores, values):
    """Return (peak, total, output) after one more tile."""
    ### BEGIN SOLUTION
    peak, total, output = state
    new = max(peak, scores.max())
    shift = 0.0 if np.isneginf(new) else new
    rescale = np.exp(peak - shift)
    powers = np.exp(scores - shift)
    return (new, rescale * total + powers.sum(),
            rescale * output + powers @ values)
    ### END SOLUTION


def state_of(scores, values):
    """The state of a set of keys by its definition."""
    peak = scores.max(initial=-np.inf)
    powers = np.exp(scores - (0.0 if np.isneginf(peak) else peak))
    return peak, powers.sum(), powers @ values


@fold_one.check
def _(answer):
    rng = np.random.default_rng(3)
    for first, second, what in (
            ([0.5, -1.0], [2.0, 0.0, -3.0], "a tile that raises the peak"),
            ([2.0, 0.0, -3.0], [0.5, -1.0], "a tile below the peak"),
            ([], [-np.inf, -np.inf], "a first tile without a visible key"),
            ([], [1.5, -np.inf], "the first visible key"),
            ([900.0], [1000.0, 990.0], "scores near 1000")):
        first, second = np.array(first), np.array(second)
        values = rng.normal(size=(len(first) + len(second), 2))
        old = state_of(first, values[:len(first)])
        with np.errstate(all="ignore"):
            got = answer((old[0], old[1], old[2].copy()), second.copy(), values[len(first):].copy())
        require(isinstance(got, tuple | list) and len(got) == 3,
                f"expected the three parts of a state; came {got!r}")
        peak, total, output = state_of(np.append(first, second), values)
        mine = state_of(second, values[len(first):])
        if not np.isnan(peak) and np.isnan(np.concatenate([np.ravel(x) for x in got])).any():
            raise Wrong(f"{what} gives NaN: -inf − (-inf) is not a number, so subtract 0 there")
        require(np.shape(got[2]) == (2,),
                f"the output has the shape (Dv,); yours {np.shape(got[2])}")
        require_close(got[0], peak, what=f"the peak after {what}", slips=[
            (mine[0], "that is the tile's own peak: take the larger of it and the old one"),
            (0.0, "with no visible key the peak stays -inf"),
        ])
        known = np.exp(mine[0] - peak) if np.isfinite(peak) else 1.0
        require_close(got[1], total, what=f"the total after {what}", slips=[
            (old[1] + known * mine[1], "the old total was summed under the old peak: rescale it"),
            (mine[1] * known, "the old total is lost: the state is of all keys so far"),
        ])
        require_close(got[2], output, what=f"the output after {what}", slips=[
            (old[2] + known * mine[2], "the old output was summed under the old peak: rescale it"),
            (output / max(total, 1e-300), "the output stays undivided until the last tile is in"),
        ])


@fold_one.wrong("rescales the total and forgets the output", says="the old output was summed")
def _(state, scores, values):
    peak, total, _ = fold_one.solution(state, scores, values)
    shift = 0.0 if np.isneginf(peak) else peak
    return peak, total, state[2] + np.exp(scores - shift) @ values


@fold_one.wrong("rescales nothing", says="the old total was summed")
def _(state, scores, values):
    peak = max(state[0], scores.max())
    powers = np.exp(scores - (0.0 if np.isneginf(peak) else peak))
    return peak, state[1] + powers.sum(), state[2] + powers @ values


@fold_one.wrong("has no guard for a tile without visible keys", says="is not a number")
def _(state, scores, values):
    peak = max(state[0], scores.max())
    rescale, powers = np.exp(state[0] - peak), np.exp(scores - peak)
    return peak, rescale * state[1] + powers.sum(), rescale * state[2] + powers @ values


@fold_one.wrong("divides in every step", says="undivided")
def _(state, scores, values):
    peak, total, output = fold_one.solution(state, scores, values)
    return peak, total, output / max(total, 1e-300)


@practice.exercise(
    "Two workers", marks=2, minutes=15,
    statement=r"""
    Two workers hold disjoint sets of keys. Each gives its output, shape $(L, D_v)$, and its lse,
    shape $(L,)$. Return the output and the lse for all keys. A worker may have no visible key for
    a query: its lse is $-\infty$ there, its row of the output 0. If both have none, so has the
    result. An lse can be as large as $\pm 1000$. (`np.logaddexp` is allowed.)
    """,
    hints=[
        r"The common denominator is $e^{\mathrm{lse}_1} + e^{\mathrm{lse}_2}$; its logarithm is "
        r"the new lse.",
        r"The share of a worker is $e^{\mathrm{lse}_p - \mathrm{lse}}$. It multiplies an output "
        r"that has been divided already.",
        r"Where the new lse is $-\infty$, subtract 0 in its place.",
    ],
    notes=r"""
    The shares sum to 1, so the result is a weighted average of the two outputs. How many keys a
    worker holds does not matter; what they weigh does.
    """)
def merge_two(output1, lse1, output2, lse2):
    """Return (output, lse) of both sets of keys together."""
    ### BEGIN SOLUTION
    lse = np.logaddexp(lse1, lse2)
    shift = np.where(np.isneginf(lse), 0.0, lse)
    share1 = np.exp(lse1 - shift)[:, None]
    share2 = np.exp(lse2 - shift)[:, None]
    return share1 * output1 + share2 * output2, lse
    ### END SOLUTION


@merge_two.check
def _(answer):
    rng = np.random.default_rng(5)
    o1, o2 = rng.normal(size=(2, 5, 3))
    near = rng.normal(size=(2, 5))
    empty = near.copy()
    empty[0, 1] = empty[1, 3] = -np.inf
    none = empty.copy()
    none[:, 2] = -np.inf
    for (lse1, lse2), what in ((near, "two parts"), (near + 1000, "lse near 1000"),
                               (near - 1000, "lse near -1000"),
                               (empty, "a part without a visible key"),
                               (none, "two parts without a visible key")):
        a, b = (np.where(np.isneginf(x)[:, None], 0, o) for o, x in ((o1, lse1), (o2, lse2)))
        want, want_lse = merge_two.solution(a, lse1, b, lse2)
        with np.errstate(all="ignore"):
            got = answer(a.copy(), lse1.copy(), b.copy(), lse2.copy())
        require(isinstance(got, tuple | list) and len(got) == 2,
                f"expected the output and its lse; came {got!r}")
        output, lse = (np.asarray(x, float) for x in got)
        for x, shape in ((output, (5, 3)), (lse, (5,))):
            require(x.shape == shape, f"expected the shapes (5, 3) and (5,); came {output.shape} "
                                      f"and {lse.shape}")
        if np.isnan(output).any() or np.isnan(lse).any() or np.isposinf(lse).any():
            if np.isneginf(want_lse).any():
                raise Wrong("where no worker has a visible key you get NaN: guard -inf − (-inf)")
            raise Wrong(f"{what} gives NaN or inf: exp(lse) is too large or too small for a float; "
                        "subtract a common number first")
        require_close(output, want, what=f"the output of {what}", slips=[
            ((a + b) / 2, "a plain average: each part counts by its share, exp(lse_p − lse)"),
            (a + b, "the outputs were divided by their own totals: multiply each by its share"),
            (((lse1[:, None] * a + lse2[:, None] * b) / (lse1 + lse2)[:, None])
             if np.isfinite(want_lse).all() and what == "two parts" else a + 9,
             "the shares go with exp(lse), not with lse"),
        ])
        require_close(lse, want_lse, what=f"the lse of {what}", slips=[
            (lse1 + lse2, "logarithms of sums do not add: ln(e^a + e^b) is asked for"),
            (np.maximum(lse1, lse2), "that is the larger lse: the sum of both powers is asked for"),
        ])


@merge_two.wrong("averages the outputs", says="plain average")
def _(output1, lse1, output2, lse2):
    return (output1 + output2) / 2, np.logaddexp(lse1, lse2)


@merge_two.wrong("raises e to the lse without a shift", says="too large or too small")
def _(output1, lse1, output2, lse2):
    w1, w2 = np.exp(lse1), np.exp(lse2)
    output = (w1[:, None] * output1 + w2[:, None] * output2) / (w1 + w2)[:, None]
    return output, np.log(w1 + w2)


@merge_two.wrong("forgets the query that nobody serves", says="guard")
def _(output1, lse1, output2, lse2):
    lse = np.logaddexp(lse1, lse2)
    share1, share2 = np.exp(lse1 - lse)[:, None], np.exp(lse2 - lse)[:, None]
    return share1 * output1 + share2 * output2, lse


@merge_two.wrong("adds the logarithms", says="do not add")
def _(output1, lse1, output2, lse2):
    return merge_two.solution(output1, lse1, output2, lse2)[0], lse1 + lse2


@practice.exercise(
    "Visited tiles", marks=2, minutes=15,
    statement=r"""
    A causal window: query $i$ sees the keys $i - w + 1$ to $i$, itself included, $w$ in all (fewer
    at the beginning). There are $n$ queries and $n$ keys, tiles of edge $b$, and the last tile may
    be smaller. How many tiles hold a visible pair? Build no array of $n^2$ pairs: $n$ may be a
    million.
    """,
    hints=[
        r"A tile of queries has the first position $a = i b$ and the last "
        r"$z = \min((i + 1) b, n) - 1$. Which keys are seen by at least one of them?",
        r"All from $\max(0, a - w + 1)$ to $z$. In which tile is the first of these?",
    ],
    notes=r"""
    The window of a tile is that of its first query and that of its last one together: $w + b - 1$
    keys. So a window of $w = b$ touches two tiles of a row, not one, and a window that reaches one
    key further touches no more.
    """)
def visited_tiles(n, b, w):
    """Return the number of tiles with a visible pair."""
    ### BEGIN SOLUTION
    count = 0
    for i in range(math.ceil(n / b)):
        first_key = max(0, i * b - w + 1)
        count += i - first_key // b + 1
    return count
    ### END SOLUTION


def count_by_rows(n, b, reach):
    """The count when a tile of queries visits its own tile and `reach` tiles before it."""
    return sum(min(i, reach) + 1 for i in range(math.ceil(n / b)))


@visited_tiles.check
def _(answer):
    for n, b, w in ((12, 4, 4), (12, 4, 5), (23, 5, 6), (23, 5, 7), (24, 4, 1), (101, 7, 1000),
                    (1_000_003, 1009, 4099)):
        tiles, want = math.ceil(n / b), visited_tiles.solution(n, b, w)
        require_close(answer(n, b, w), want, atol=0.5, what=f"visited_tiles({n}, {b}, {w})", slips=[
            (tiles * (tiles + 1) // 2, "that is the causal mask without its window"),
            (tiles * tiles, "that is every tile"),
            (count_by_rows(n, b, w // b),
             "how far back a tile reads is decided by its first query: that one sees back to "
             "i·b − w + 1"),
            (count_by_rows(n, b, max(0, math.ceil(w / b) - 1)),
             "the window of a tile begins at its first query, which sees further back than the "
             "last"),
            (count_by_rows(n - n % b, b, math.ceil((w - 1) / b)),
             "the last tile counts, though it is smaller"),
            (sum(i - max(0, i * b - w) // b + 1 for i in range(tiles)),
             "one key too many: query i itself is one of the w"),
        ])


@visited_tiles.wrong("rounds the window down to whole tiles", says="decided by its first query")
def _(n, b, w):
    return count_by_rows(n, b, w // b)


@visited_tiles.wrong("takes the window of the last query of a tile", says="further back")
def _(n, b, w):
    count = 0
    for i in range(math.ceil(n / b)):
        count += i - max(0, (i + 1) * b - w) // b + 1
    return count


@visited_tiles.wrong("drops the last, smaller tile", says="last tile counts")
def _(n, b, w):
    return visited_tiles.solution(n - n % b, b, w)


@visited_tiles.wrong("ignores the window", says="without its window")
def _(n, b, w):
    tiles = math.ceil(n / b)
    return tiles * (tiles + 1) // 2


@practice.exercise(
    "A test that finds the finite start", marks=3, minutes=20,
    statement=r"""
    `accepts(streaming)` gets a function `streaming(scores, values, edge)`: `scores` of shape
    $(L, S)$, with $-\infty$ where a key is hidden, `values` of shape $(S, D_v)$, both `float64`,
    read in tiles of `edge` keys. It should return the softmax of each row times the values, and 0
    for a row that sees nothing. Return `True` if it does. The check hands you three right
    functions, one of them with `float32` inside, and seven wrong ones, among them starts at 0 and
    at $-10^4$.
    """,
    hints=[
        "Softmax does not change when a whole row is shifted. By how much must you shift to get "
        "below every start that somebody may have chosen?",
        "Which order of scores never needs a rescale? Make sure that yours does. And let the first "
        "tile of one row be hidden, and all of another.",
        "Compute what is right row by row, with the finite maximum subtracted; `np.allclose(got, "
        "want, atol=1e-3)`, inside `np.errstate(all='ignore')`.",
    ],
    notes=r"""
    Ordinary scores pass every finite start: that is why such a start survives. The rows to try are
    a shift far down, a first tile without visible keys, an empty row, a peak in a late tile, a
    number of keys that the edge does not divide, and scores whose powers overflow.
    """)
def accepts(streaming):
    """Return whether streaming(scores, values, edge) is right."""
    ### BEGIN SOLUTION
    rng = np.random.default_rng(0)
    base = rng.normal(size=(3, 11)) + np.arange(11)
    values = rng.normal(size=(11, 2))
    hidden = base.copy()
    hidden[0, :5] = hidden[1] = -np.inf
    for scores in (base, base - 300, base - 20000, base + 1000, hidden):
        peak = scores.max(axis=1, keepdims=True)
        powers = np.exp(scores - np.where(np.isneginf(peak), 0, peak))
        total = powers.sum(axis=1, keepdims=True)
        want = powers @ values / np.where(total == 0, 1, total)
        with np.errstate(all="ignore"):
            got = streaming(scores.copy(), values.copy(), 3)
        if not np.allclose(got, want, atol=1e-2):
            return False
    return True
    ### END SOLUTION


def stream(begin=-np.inf, guard=True, rescale=True, whole=False, dtype=float, shift=True,
           empty=0.0):
    """A streaming softmax, right as it stands, or with one thing changed."""
    def streaming(scores, values, edge):
        scores, values = scores.astype(dtype), values.astype(dtype)
        peak = np.full((len(scores), 1), begin, dtype)
        total, output = np.zeros_like(peak), np.zeros((len(scores), values.shape[1]), dtype)
        last = len(values) - len(values) % edge if whole else len(values)
        for j in range(0, last, edge):
            tile = scores[:, j:j + edge]
            new = np.maximum(peak, tile.max(axis=1, keepdims=True)) if shift else 0 * peak
            zero = np.where(np.isneginf(new), 0, new) if guard else new
            factor = np.exp(peak - zero) if rescale and shift else 1
            powers = np.exp(tile - zero)
            total = factor * total + powers.sum(axis=1, keepdims=True)
            output = factor * output + powers @ values[j:j + edge]
            peak = new
        seen = total > 0
        return np.where(seen, output / np.where(seen, total, 1), empty)
    return streaming


def in_one_go(scores, values, edge):
    return stream()(scores, values, scores.shape[1])


def no_shift(scores, values, edge):
    powers = np.exp(scores)
    total = powers.sum(axis=1, keepdims=True)
    return np.where(total > 0, powers @ values / total, 0)


def mean_if_empty(scores, values, edge):
    output = stream()(scores, values, edge)
    output[np.isneginf(scores).all(axis=1)] = values.mean(axis=0)
    return output


RIGHT = {"the running one": stream(), "one that reads all keys at once": in_one_go,
         "one with float32 inside": stream(dtype=np.float32)}
BUGS = {"never rescales": stream(rescale=False), "starts at 0": stream(begin=0.0),
        "starts at -1e4": stream(begin=-1e4), "has no guard for -inf − (-inf)": stream(guard=False),
        "subtracts no peak": no_shift, "gives an empty row the mean of the values": mean_if_empty,
        "drops the last, smaller tile": stream(whole=True)}


@accepts.check
def _(answer):
    for name, streaming in BUGS.items():
        with np.errstate(all="ignore"):
            verdict = answer(streaming)
        require(isinstance(verdict, bool | np.bool_), f"expected True or False; came {verdict!r}")
        require(not verdict, f"a function that {name} was accepted")
    for name, streaming in RIGHT.items():
        with np.errstate(all="ignore"):
            verdict = answer(streaming)
        require(bool(verdict), f"a right function was refused: {name}")


def judge(cases, atol):
    """A test of the given scores."""
    def accepts(streaming):
        values = np.random.default_rng(1).normal(size=(cases[0].shape[1], 2))
        return all(np.allclose(streaming(s.copy(), values, 3), stream()(s, values, 11),
                               rtol=0, atol=atol)
                   for s in cases)
    return accepts


ORDINARY = np.random.default_rng(2).normal(size=(3, 11)) + np.arange(11)
HIDDEN = np.where(np.arange(11) < [[5], [11], [0]], -np.inf, ORDINARY)


@accepts.wrong("tries ordinary scores only", says="starts at 0 was accepted")
def _(streaming):
    return judge([ORDINARY], 1e-3)(streaming)


@accepts.wrong("shifts by less than the start", says="starts at -1e4 was accepted")
def _(streaming):
    return judge([ORDINARY, ORDINARY - 1000, HIDDEN], 1e-3)(streaming)


@accepts.wrong("hides no keys", says="no guard for -inf")
def _(streaming):
    return judge([ORDINARY, ORDINARY + 1000, ORDINARY - 20000], 1e-2)(streaming)


@accepts.wrong("asks float32 for the digits of float64", says="float32 inside")
def _(streaming):
    return judge([ORDINARY, ORDINARY + 1000, ORDINARY - 20000, HIDDEN], 1e-12)(streaming)


practice.quiz(
    Question("A tile arrives that raises the peak from $m$ to $m'$. What happens to $\\ell$ and "
             "$o$?", [
        choice("Both are multiplied by exp(m − m′), then the tile is added", right=True,
               reason="Both were summed under the old peak."),
        choice("Only ℓ is rescaled: o is divided in the end anyway",
               reason="The division assumes that $o$ and $\\ell$ were summed under the same peak."),
        choice("Nothing: the peak is only for the exponentials to come",
               reason="Then old and new powers would belong to different peaks."),
        choice("They are computed again from all keys so far",
               reason="That would make the work quadratic in the number of tiles. The factor "
                      "does it."),
    ]),
    Question("Why do starts at $-10^4$ pass most tests?", [
        choice("The first visible score is larger, so the start is forgotten", right=True,
               reason="From then on its factor is $e^{-10^4 - m'}$, 0 in floating point."),
        choice("The softmax does not depend on the peak",
               reason="Not in exact arithmetic. In floats a peak above all scores makes the powers "
                      "vanish."),
        choice("10⁴ is larger than any float16", reason="The largest is 65504."),
    ]),
    Question("What does the backward pass need from the forward pass, besides the operands?", [
        choice("The weights of every tile", reason="These are what we do not want to keep."),
        choice("The scores, to subtract the peaks again", reason="They are computed again, too."),
        choice("The output and the lse", right=True,
               reason="$P = e^{S - \\mathrm{lse}}$, and $\\mathrm{rowsum}(dO \\circ O)$ stands for "
                      "the sum over the keys."),
    ]),
    Question("Two workers have outputs $o_1$ and $o_2$ for the same query, and lse 3 and 3. What "
             "is the joint result?", [
        choice("(o₁ + o₂) / 2, lse 3",
               reason="The output is right. Two equal totals make a larger one: $3 + \\ln 2$."),
        choice("o₁ + o₂, lse 6", reason="Each output has been divided by its own total."),
        choice("It depends on how many keys each of them has",
               reason="The lse knows what their keys weigh; the number does not matter."),
        choice("(o₁ + o₂) / 2, lse 3 + ln 2", right=True,
               reason="Equal totals, equal shares, and twice the denominator."),
    ]),
    Question("Tiles of 64, a causal window of 64 keys, $n$ large. How many tiles does a row of "
             "tiles visit?", [
        choice("One", reason="The first query of the tile sees 63 keys of the tile before."),
        choice("Two", right=True, reason="64 + 63 keys are seen by some query, in two tiles."),
        choice("Three", reason="127 keys that end with a tile lie in two tiles."),
    ]),
)
