"""Practice of the chapter "Across devices": who holds what, bytes, the slowest, one process."""

import inspect

import numpy as np

import attn
from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("across-devices")


@practice.exercise(
    "Who holds what", marks=1, minutes=5,
    statement=r"""
    $P$ devices stand in a ring. At step 0 each has its own block in hand. After every step each
    hands its block to the device with the next rank; the last one hands it to rank 0. Return the
    rank of the **owner** of the block that device `rank` has in hand at step `step`.
    """,
    hints=[
        "At step 1 you have what your neighbour to the left had at step 0. Which rank is that?",
        "`%` in Python gives a number from 0 to P − 1, for negative numbers too.",
    ],
    notes=r"Seen from a block: at step $t$, block $j$ is with device $(j + t) \bmod P$.")
def block_at(rank, step, P):
    """Return the owner of the block in hand."""
    ### BEGIN SOLUTION
    return (rank - step) % P
    ### END SOLUTION


@block_at.check
def _(answer):
    for rank, step, P in ((0, 0, 5), (3, 0, 5), (3, 1, 5), (1, 3, 5), (0, 6, 7), (2, 5, 7)):
        right, got = (rank - step) % P, answer(rank, step, P)
        what = f"block_at({rank}, {step}, {P})"
        if step and got == (rank + step) % P and got != right:
            raise Wrong(f"{what}: this ring turns the other way: the block comes from rank − 1")
        if got == (rank - step - 1) % P:
            raise Wrong(f"{what}: at step 0 each device has its own block, so step 0 is no "
                        "hand-over")
        require(0 <= got < P, f"{what} gives {got}: ranks go from 0 to P − 1, so wrap around")
        require_close(got, right, what=what)


@block_at.wrong("turns the ring the other way", says="the other way")
def _(rank, step, P):
    return (rank + step) % P


@block_at.wrong("counts step 0 as a hand-over", says="no hand-over")
def _(rank, step, P):
    return (rank - step - 1) % P


@block_at.wrong("does not wrap around", says="wrap around")
def _(rank, step, P):
    return rank - step


@practice.exercise(
    "Bytes of a training step", marks=2, minutes=10,
    statement=r"""
    How many bytes does **one** process send in one forward and one backward pass over one
    sequence of $n$ tokens? There are $P$ processes ($P$ divides $n$), `H` query heads and `Hkv`
    key heads, keys of size `D` and values of size `Dv`. An entry of keys and values has `size`
    bytes, an entry of their gradients `wide` bytes. What a process adds to the gradient of its own
    block never travels. Labels and handshakes do not count.
    """,
    hints=[
        "How many entries have K and V of one block together? Which of the numbers given do you "
        "not need?",
        r"Each thing that travels makes $P - 1$ hand-overs. Three things travel: keys and values "
        "forward, the same again backward, and their gradients.",
    ],
    notes=r"""
    $(P - 1) \frac{n}{P} H_{kv} (D + D_v) (2\,\text{size} + \text{wide})$. The query heads do not
    appear: queries stay at home. That is one more thing that grouped heads are good for.
    """)
def bytes_sent(n, P, H, Hkv, D, Dv, size, wide):
    """Return the bytes that one process sends, forward and backward."""
    ### BEGIN SOLUTION
    entries = n // P * Hkv * (D + Dv)
    return (P - 1) * entries * (2 * size + wide)
    ### END SOLUTION


@bytes_sent.check
def _(answer):
    for case in ((35, 5, 6, 2, 3, 7, 2, 8), (44, 4, 8, 2, 5, 3, 8, 4), (11, 1, 4, 4, 3, 5, 4, 4)):
        n, P, H, Hkv, D, Dv, size, wide = case
        block = n // P * Hkv * (D + Dv)
        right = (P - 1) * block * (2 * size + wide)
        got = answer(*case)
        slips = [
            (P * block * (2 * size + wide), "P hand-overs: the last would bring a block home that "
                                            "nobody needs there. P − 1 are enough"),
            ((P - 1) * block * 2 * size + P * block * wide,
             "the gradients make P hand-overs with you: they need P − 1, since the owner's share "
             "stays at home and the rest starts one device further"),
            ((P - 1) * block * (size + wide),
             "keys and values travel twice: the backward pass needs them again"),
            ((P - 1) * block * 3 * size, "the gradients have entries of `wide` bytes"),
            ((P - 1) * block * size, "that is the forward pass alone"),
            ((P - 1) * n * Hkv * (D + Dv) * (2 * size + wide),
             "a block has n / P positions, not n"),
            ((P - 1) * n // P * H * (D + Dv) * (2 * size + wide),
             "keys and values have Hkv heads: the query heads stay at home"),
            ((P - 1) * n // P * Hkv * 2 * D * (2 * size + wide), "values have the size Dv"),
        ]
        require_close(got, right, atol=0.5, what=f"bytes_sent{case}",
                      slips=[slip for slip in slips if slip[0] != right])


@bytes_sent.wrong("lets every block travel all the way home", says="nobody needs there")
def _(n, P, H, Hkv, D, Dv, size, wide):
    return P * (n // P) * Hkv * (D + Dv) * (2 * size + wide)


@bytes_sent.wrong("sends keys and values once only", says="travel twice")
def _(n, P, H, Hkv, D, Dv, size, wide):
    return (P - 1) * (n // P) * Hkv * (D + Dv) * (size + wide)


@bytes_sent.wrong("counts query heads", says="stay at home")
def _(n, P, H, Hkv, D, Dv, size, wide):
    return (P - 1) * (n // P) * H * (D + Dv) * (2 * size + wide)


@bytes_sent.wrong("sends gradients in the dtype of the keys", says="`wide` bytes")
def _(n, P, H, Hkv, D, Dv, size, wide):
    return (P - 1) * (n // P) * Hkv * (D + Dv) * 3 * size


@practice.exercise(
    "The slowest sets the pace", marks=2, minutes=15,
    statement=r"""
    `rows` of shape $(P, m)$ says which positions each process holds, `visible(q, k)` says of two
    arrays of positions, broadcast against each other, which pairs may attend. At step $t$ process
    $r$ computes exactly the visible pairs of its queries with the keys of process
    $(r - t) \bmod P$, one pair per tick of the clock, and the next step begins when **all** have
    finished. Return the number of ticks of all $P$ steps.
    """,
    hints=[
        "Make the matrix of pairs first, one row for each process, one column for each step.",
        "Of each column you need one number, and then their sum.",
    ],
    notes=r"""
    A sum of maxima is never below the maximum of sums. For the contiguous layout under a causal
    mask the two differ: the last process works all the time, but at step 1 to $P - 1$ so does
    *some* process with a full block, and all others wait.
    """)
def ring_time(rows, visible):
    """Return the ticks until the last process has finished the last step."""
    ### BEGIN SOLUTION
    P = len(rows)
    ticks = 0
    for step in range(P):
        ticks += max(visible(rows[r][:, None], rows[(r - step) % P]).sum()
                     for r in range(P))
    return int(ticks)
    ### END SOLUTION


def work_of(rows, visible):
    P = len(rows)
    return np.array([[np.sum(visible(rows[r][:, None], rows[(r - t) % P])) for t in range(P)]
                     for r in range(P)])


def causal(q, k):
    return k <= q


def banded(q, k):
    return (k <= q) & (q - k < 4)


@ring_time.check
def _(answer):
    uneven = np.array([[0, 3, 4, 11, 13], [1, 2, 5, 12, 14], [6, 7, 8, 9, 10]])
    layouts = {"contiguous": np.arange(15).reshape(3, 5), "striped": np.arange(15).reshape(5, 3).T,
               "uneven": uneven}
    for name, rows in layouts.items():
        for rule in (causal, banded):
            work = work_of(rows, rule)
            right, m = work.max(axis=0).sum(), rows.shape[1]
            slips = [
                (work.sum(axis=1).max(), "the busiest process over all steps: the others wait at "
                                         "every step, and it is not always for the same one"),
                (work.sum() / len(rows), "the mean: nobody would wait for anybody"),
                (work.sum(), "the sum of all work: the processes work at the same time"),
                (len(rows) * m * m, "every block in full: only visible pairs are computed"),
                (np.max(work) * len(rows), "the longest step, P times: steps differ"),
                (work_of(rows, lambda q, k, rule=rule: rule(k, q)).max(axis=0).sum(),
                 "visible is asked the wrong way round: queries come first"),
            ]
            require_close(answer(rows.copy(), rule), right, atol=0.4,
                          what=f"ring_time({name}, {rule.__name__})",
                          slips=[s for s in slips if abs(s[0] - right) > 0.5])


@ring_time.wrong("takes the busiest process of all steps together", says="not always for the same")
def _(rows, visible):
    return work_of(rows, visible).sum(axis=1).max()


@ring_time.wrong("takes the mean", says="nobody would wait")
def _(rows, visible):
    return work_of(rows, visible).sum() / len(rows)


@ring_time.wrong("computes hidden pairs, too", says="only visible pairs")
def _(rows, visible):
    return len(rows) * rows.shape[1] ** 2


@practice.exercise(
    "The program of one process", marks=3, minutes=25,
    statement=r"""
    In a real ring each process runs the same program and knows its own block only. Write that
    program as a generator. `arrived = yield key, value` hands a block to the next process and
    waits for the one that comes from the previous process. Return the output for `query`, of
    shape $(m, D_v)$, after exactly $P - 1$ hand-overs. The check runs $P$ of your generators
    side by side.
    """,
    hints=[
        "Attend to what you have in hand, then hand it on: what you have, not what you own.",
        "`attn.blockwise_attention` gives output and lse of one block, `attn.merge_attention("
        "outputs, lses)` joins them.",
        "The last block is not handed on.",
    ],
    notes=r"""
    `attn.torch.ring_attention` does the same with two differences. It starts the hand-over before
    it computes, so that the block travels meanwhile; and it waits with a time limit.
    """)
def process(query, key, value, P):
    """Yield blocks to the next process, receive from the previous one, return the output."""
    ### BEGIN SOLUTION
    outputs, lses = [], []
    for step in range(P):
        output, lse = attn.blockwise_attention(query, key, value)
        outputs.append(output)
        lses.append(lse)
        if step < P - 1:
            key, value = yield key, value
    return attn.merge_attention(outputs, lses)[0]
    ### END SOLUTION


def run_side_by_side(programs, blocks):
    """Run generators in step; return their outputs, or say what went wrong on the way."""
    P = len(programs)
    sent = [next(program, None) for program in programs] if P > 1 else [None]
    for step in range(P - 1):
        for block in sent:
            require(isinstance(block, tuple | list) and len(block) == 2,
                    f"hand-over {step + 1}: expected a pair (key, value), came {type(block)}")
            require(np.shape(block[0]) == np.shape(blocks[0][0]),
                    f"hand-over {step + 1} has {len(block[0])} keys: one block at a time travels, "
                    f"{len(blocks[0][0])} keys")
        if step and all(np.array_equal(sent[r][0], blocks[r][0]) for r in range(P)):
            raise Wrong("you hand on your own block every time: hand on the one that has arrived")
        sent = [_resume(programs[r], sent[r - 1]) for r in range(P)]
    for block in sent:
        require(not isinstance(block, tuple), f"more than {P - 1} hand-overs among {P} processes: "
                                              "the last block is not handed on")
    return sent


def _resume(program, block):
    try:
        return program.send(tuple(x.copy() for x in block))
    except StopIteration as end:
        return end.value


@process.check
def _(answer):
    rng = np.random.default_rng(5)
    for P, m in ((2, 5), (5, 3), (3, 7)):
        query, key = 2 * rng.normal(size=(2, P, m, 3))
        value = rng.normal(size=(P, m, 2))
        programs = [answer(query[r].copy(), key[r].copy(), value[r].copy(), P) for r in range(P)]
        require(inspect.isgenerator(programs[0]), "expected a generator: use yield to hand on")
        got = run_side_by_side(programs, list(zip(key, value, strict=True)))
        whole = attn.scaled_dot_product_attention(
            query.reshape(-1, 3), key.reshape(-1, 3), value.reshape(-1, 2)).reshape(P, m, 2)
        parts = np.array([[attn.scaled_dot_product_attention(q, k, v)
                           for k, v in zip(key, value, strict=True)] for q in query])
        own = parts[np.arange(P), np.arange(P)]
        for r in range(P):
            require(got[r] is not None, f"process {r} of {P} returned nothing")
            require_close(got[r], whole[r], what=f"the output of process {r} of {P}", slips=[
                (parts[r].mean(axis=0), "a plain average of the parts: merge them by their lse"),
                (parts[r].sum(axis=0), "the parts are added: merge them by their lse"),
                (own[r], "that is attention to its own block alone"),
            ])


@process.wrong("averages the parts", says="plain average")
def _(query, key, value, P):
    total = 0
    for step in range(P):
        total = total + attn.blockwise_attention(query, key, value)[0] / P
        if step < P - 1:
            key, value = yield key, value
    return total


@process.wrong("hands on its own block every time", says="own block every time")
def _(query, key, value, P):
    parts = [attn.blockwise_attention(query, key, value)]
    for _ in range(P - 1):
        arrived = yield key, value
        parts.append(attn.blockwise_attention(query, *arrived))
    return attn.merge_attention(*zip(*parts, strict=True))[0]


@process.wrong("hands the last block on as well", says="last block is not handed on")
def _(query, key, value, P):
    parts = []
    for _ in range(P):
        parts.append(attn.blockwise_attention(query, key, value))
        key, value = yield key, value
    return attn.merge_attention(*zip(*parts, strict=True))[0]


@process.wrong("gathers all blocks and hands on the pile", says="one block at a time")
def _(query, key, value, P):
    pile = (key, value)
    for _ in range(P - 1):
        arrived = yield pile
        pile = tuple(np.concatenate([mine, x[-len(query):]])
                     for mine, x in zip(pile, arrived, strict=True))
    return attn.scaled_dot_product_attention(query, *pile)


practice.quiz(
    Question("What does a process of the ring never hold?", [
        choice("A block of keys that belongs to another process",
               reason="It holds one at nearly every step: that is what travels."),
        choice("The keys of all processes at once", right=True,
               reason="Then its memory would grow with $n$ again. It meets them one after the "
                      "other."),
        choice("The lse of its own queries",
               reason="It needs them to merge, and to go backward."),
    ]),
    Question("With twice as many processes for the same $n$, how many bytes does each process "
             "send in the forward pass?", [
        choice("About half as many", reason="Each block is half as large, but makes about twice "
                                            "as many hand-overs."),
        choice("About twice as many", reason="There are twice as many hand-overs, but of blocks "
                                             "half as large."),
        choice("About as many as before", right=True,
               reason="$(P - 1) \\cdot n / P$ blocks of one token: nearly $n$ for every $P$."),
        choice("Four times as many", reason="That would be pairs of blocks. Only keys and values "
                                            "travel."),
    ]),
    Question("A causal mask halves the pairs. Why is a ring with contiguous blocks hardly faster "
             "for it?", [
        choice("At nearly every step some process has a full block, and the others wait",
               right=True,
               reason="The sum over the steps of the slowest is what counts: close to $P$ full "
                      "blocks."),
        choice("Hidden pairs have to be computed before they can be masked",
               reason="Tiles without a visible pair are skipped."),
        choice("The number of bytes stays the same",
               reason="It does, but the work is what is out of balance here."),
        choice("The first process has the most work", reason="It has the least: its queries come "
                                                             "first and see few keys."),
    ]),
    Question("Why do the gradients of a block travel at all?", [
        choice("The owner cannot compute the lse", reason="Each process has the lse of its own "
                                                          "queries, and needs no other."),
        choice("They do not: only dQ is needed", reason="The keys and values came from projections "
                                                        "whose weights are trained."),
        choice("Every process whose queries saw the block has a share of dK and dV", right=True,
               reason="The shares are added up on the way, and the sum comes home."),
    ]),
    Question("Rank 5 of 8 reports that it lost rank 4. What do you read first?", [
        choice("The log of rank 5", reason="It has told you all it knows."),
        choice("The log of rank 4", right=True,
               reason="It has ended, hangs, or lost a neighbour itself; then its log names the "
                      "next one to ask."),
        choice("The log of rank 0", reason="No process is special in a ring."),
        choice("None: raise the timeout", reason="That helps if a process is slow, not if it is "
                                                 "gone."),
    ]),
)
