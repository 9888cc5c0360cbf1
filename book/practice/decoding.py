"""Practice of the chapter "Decoding": bytes of a cache, who sees whom, one ratio, one bug."""

import numpy as np

from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("decoding")


@practice.exercise(
    "Bytes of a cache", marks=1, minutes=5,
    statement=r"""
    A model has `layers` layers with $H$ query heads and $H_{kv}$ key heads of size $D$, and values
    of the same size. How many bytes does the key–value cache take for `B` sequences of `n` tokens
    each, with `b` bytes a number? If `window` is not `None`, a ring holds that many tokens at most.
    """,
    hints=[
        "Which heads are kept: those of the queries or those of the keys?",
        "A token leaves two rows in each layer, and a ring never holds more than `window` tokens.",
    ],
    notes=r"$2\, b\, B \cdot \text{layers} \cdot H_{kv} D \cdot \min(n, \text{window})$.")
def cache_bytes(layers, H, Hkv, D, n, B, b, window=None):
    """Return the bytes of all keys and values that are held."""
    ### BEGIN SOLUTION
    held = n if window is None else min(n, window)
    return 2 * b * B * layers * Hkv * D * held
    ### END SOLUTION


@cache_bytes.check
def _(answer):
    for case in ((3, 10, 2, 7, 11, 5, 2), (3, 10, 2, 7, 11, 5, 2, 4), (3, 10, 2, 7, 11, 5, 2, 13)):
        layers, H, Hkv, D, n, B, b, *window = case
        want = cache_bytes.solution(*case)
        require_close(answer(*case), want, atol=0.5, what=f"cache_bytes{case}", slips=[
            (want * H // Hkv, "query heads are not kept: count the Hkv key heads"),
            (want / 2, "that is the keys alone: a token leaves a key and a value"),
            (want // B, "caches are not shared: each of the B sequences has its own"),
            (want // layers, "each layer has a cache of its own"),
            (want // b, "these are numbers: each takes b bytes"),
            (2 * b * B * layers * Hkv * D * n, "a ring never holds more than its window"),
            (2 * b * B * layers * Hkv * D * max([n, *window]),
             "the ring is not full yet: it holds n tokens"),
            (2 * b * B * layers * Hkv * D * (window or [n])[0],
             "the ring is not full yet: it holds n tokens"),
        ])


@cache_bytes.wrong("counts the query heads", says="query heads are not kept")
def _(layers, H, Hkv, D, n, B, b, window=None):
    return cache_bytes.solution(layers, H, H, D, n, B, b, window)


@cache_bytes.wrong("forgets the values", says="a key and a value")
def _(layers, H, Hkv, D, n, B, b, window=None):
    return cache_bytes.solution(layers, H, Hkv, D, n, B, b, window) / 2


@cache_bytes.wrong("shares one cache in the batch", says="caches are not shared")
def _(layers, H, Hkv, D, n, B, b, window=None):
    return cache_bytes.solution(layers, H, Hkv, D, n, 1, b, window)


@cache_bytes.wrong("ignores the window", says="never holds more")
def _(layers, H, Hkv, D, n, B, b, window=None):
    return cache_bytes.solution(layers, H, Hkv, D, n, B, b)


@practice.exercise(
    "Who sees whom, in a chunk", marks=2, minutes=10,
    statement=r"""
    A cache has been fed `fed` tokens. It is a ring of `capacity` slots, or a plain cache if
    `capacity` is `None`. Now `new` tokens arrive in one chunk. The keys are those held before,
    oldest first, then the new ones. The model is causal with a window: a token sees itself and
    `left` tokens before it (all of them if `left` is `None`). Return the boolean array of shape
    (new, held + new), `True` where a query sees a key.
    """,
    hints=[
        "Give every query and every key its position in the sequence, then compare positions.",
        "How many are held: `fed`, or `min(fed, capacity)`? The first new query stands right after "
        "them.",
    ],
    notes=r"""
    `np.tril` starts at the upper left corner and is right for an empty cache alone. The first new
    query stands at place `held`, which is `q_offset`; not `held - 1`, and not `fed` once a ring has
    dropped tokens.
    """)
def chunk_mask(fed, new, left=None, capacity=None):
    """Return which of the held and new keys each new query sees."""
    ### BEGIN SOLUTION
    held = fed if capacity is None else min(fed, capacity)
    query = held + np.arange(new)[:, None]
    key = np.arange(held + new)[None, :]
    seen = key <= query
    return seen if left is None else seen & (query - key <= left)
    ### END SOLUTION


def shifted(held, new, left, offset):
    """The mask with a chosen place of the first new query."""
    back = offset + np.arange(new)[:, None] - np.arange(held + new)[None, :]
    return (back >= 0) & (back <= (held + new + offset if left is None else left))


@chunk_mask.check
def _(answer):
    for fed, new, left, capacity in ((0, 5, None, None), (7, 1, None, None), (7, 3, None, None),
                                     (7, 3, 4, None), (2, 3, 4, 5), (11, 3, 4, 5)):
        held = fed if capacity is None else min(fed, capacity)
        what = f"chunk_mask({fed}, {new}, {left}, {capacity})"
        got = np.asarray(answer(fed, new, left, capacity))
        require(got.dtype == bool, f"{what}: expected booleans, came {got.dtype}")
        require(got.shape == (new, held + new), f"{what}: expected shape (new, held + new) = "
                f"({new}, {held + new}), came {got.shape}: a ring holds at most its capacity")
        slips = [
            (shifted(held, new, left, 0), "your queries start at place 0, as if nothing was held"),
            (shifted(held, new, left, held - 1), "one too few: a token sees itself, too"),
            (shifted(held, new, left, held + 1), "one too many: a query sees the token after it"),
            (shifted(held, new, left, fed), "the ring has dropped tokens: the first new query "
                                            "stands at place held, not at fed"),
            (shifted(held, new, None, held), "the window is missing: left tokens before itself"),
        ]
        if left is not None:
            slips.append((shifted(held, new, left - 1, held),
                          "the window is one short: left tokens before, and itself"))
        require_close(got.astype(int), shifted(held, new, left, held).astype(int), what=what,
                      slips=[(wrong.astype(int), text) for wrong, text in slips])


@chunk_mask.wrong("starts the queries at place 0", says="as if nothing was held")
def _(fed, new, left=None, capacity=None):
    held = fed if capacity is None else min(fed, capacity)
    return shifted(held, new, left, 0)


@chunk_mask.wrong("hides the token from itself", says="sees itself")
def _(fed, new, left=None, capacity=None):
    held = fed if capacity is None else min(fed, capacity)
    return shifted(held, new, left, held - 1)


@chunk_mask.wrong("counts the tokens that a ring dropped", says="has dropped tokens")
def _(fed, new, left=None, capacity=None):
    held = fed if capacity is None else min(fed, capacity)
    return shifted(held, new, left, fed)


@chunk_mask.wrong("counts itself among the left", says="one short")
def _(fed, new, left=None, capacity=None):
    held = fed if capacity is None else min(fed, capacity)
    return shifted(held, new, None if left is None else left - 1, held)


@practice.exercise(
    "Intensity of a decode step", marks=2, minutes=15,
    statement=r"""
    One step decodes one token for each of `B` sequences. Each has `n` keys and values in its cache.
    The model has `P` parameters in matrices and `layers` layers with $H$ query heads, $H_{kv}$ key
    heads and head size $D$; a number has `b` bytes. Count two FLOPs for each parameter and token,
    and $4 n H D$ a layer and sequence for the attention. Of the bytes count what is read:
    parameters and caches. Return FLOPs per byte.
    """,
    hints=[
        "Parameters are read once for the whole batch; which arrays are read once per sequence?",
        "Numerator: $B$ times what one sequence needs. Denominator: $bP$ and $B$ caches.",
    ],
    notes=r"""
    $$
    \frac{B\,(2P + 4 \cdot \text{layers} \cdot n H D)}
    {b\,(P + 2 B \cdot \text{layers} \cdot n H_{kv} D)}
    $$

    Without a cache ($n = 0$) it is $2B/b$. Without parameters it is $2G/b$, and $B$ cancels.
    """)
def step_intensity(B, n, P, layers, H, Hkv, D, b):
    """Return FLOPs per byte of one decode step."""
    ### BEGIN SOLUTION
    flops = B * (2 * P + 4 * layers * n * H * D)
    read = b * (P + 2 * B * layers * n * Hkv * D)
    return flops / read
    ### END SOLUTION


@step_intensity.check
def _(answer):
    for case in ((7, 0, 1009, 3, 10, 2, 5, 2), (1, 11, 0, 3, 10, 2, 5, 2),
                 (7, 11, 1009, 3, 10, 2, 5, 2)):
        B, n, P, layers, H, Hkv, D, b = case
        flops = B * (2 * P + 4 * layers * n * H * D)
        cache = 2 * layers * n * Hkv * D
        want = flops / (b * (P + B * cache))
        slips = [
            (flops / (b * B * (P + cache)), "the parameters are read once for the whole batch"),
            (flops / (b * (P + cache)) if n else want + 1, "each sequence reads its own cache"),
            (flops / (b * (P + B * cache * H / Hkv)), "the cache holds Hkv heads, not H"),
            (b * (P + B * cache) / flops, "that is bytes per FLOP: turn it over"),
            (want / B, "each of the B sequences has its FLOPs"),
            (want * b, "these are FLOPs per number: a number has b bytes"),
        ]
        require_close(answer(*case), want, what=f"step_intensity{case}", slips=slips)


@step_intensity.wrong("reads the parameters for each sequence", says="once for the whole batch")
def _(B, n, P, layers, H, Hkv, D, b):
    flops = B * (2 * P + 4 * layers * n * H * D)
    return flops / (b * B * (P + 2 * layers * n * Hkv * D))


@step_intensity.wrong("shares the cache in the batch", says="its own cache")
def _(B, n, P, layers, H, Hkv, D, b):
    flops = B * (2 * P + 4 * layers * n * H * D)
    return flops / (b * (P + 2 * layers * n * Hkv * D))


@step_intensity.wrong("reads H heads from the cache", says="Hkv heads, not H")
def _(B, n, P, layers, H, Hkv, D, b):
    return step_intensity.solution(B, n, P, layers, H, H, D, b)


@practice.exercise(
    "A test that finds the off-by-one", marks=3, minutes=20,
    statement=r"""
    `accepts(decode)` gets a function `decode(q, k, v, sizes)`. It should return causal attention of
    one head, scale $1/\sqrt{D}$, for `q` and `k` of shape $(n, D)$ and `v` of shape $(n, D_v)$,
    fed through a cache in chunks of the given `sizes`, which sum to $n$ and may hold a 0. Return
    `True` if it is right. The check hands you two right functions, one with `float32` inside, and
    seven wrong ones: among them `q_offset = 0`, `q_offset` off by one, and a cache that guesses
    its length from the slots that are not zero.
    """,
    hints=[
        "What is right is what one pass gives. Compute it without a cache, with a causal mask.",
        "One chunk hides nearly every bug. Try chunks of 1, unequal chunks, an empty chunk.",
        "Some caches are wrong only where a token's key and value are zero, where a NaN comes "
        "late, or for a long sequence. `np.allclose(got, want, atol=1e-3, equal_nan=True)`.",
    ],
    notes=r"""
    The definition is the test: any chunks, one pass. What must be varied is what a cache could
    count wrongly: chunk sizes, a zero token in the middle, a NaN token (the rows before it stay
    clean), and a length beyond the first slots.
    """)
def accepts(decode):
    """Return whether decode(q, k, v, sizes) is causal attention."""
    ### BEGIN SOLUTION
    rng = np.random.default_rng(0)
    for n, zero, bad in ((7, None, None), (7, 3, None), (7, None, 5), (40, None, None)):
        q, k, v = rng.normal(size=(3, n, 2))
        if zero is not None:
            k[zero] = v[zero] = 0
        if bad is not None:
            k[bad] = v[bad] = np.nan
        want = np.zeros((n, 2))
        for i in range(n):  # each row from its own keys: no mask needed
            scores = k[:i + 1] @ q[i] / np.sqrt(2)
            powers = np.exp(scores - scores.max())
            want[i] = powers @ v[:i + 1] / powers.sum()
        for sizes in ([n], [1] * n, [2, 0, 1, n - 3]):
            got = decode(q.copy(), k.copy(), v.copy(), list(sizes))
            if got.shape != want.shape:
                return False
            if not np.allclose(got, want, rtol=0, atol=1e-3, equal_nan=True):
                return False
    return True
    ### END SOLUTION


def cached(shift=None, *, by_zeros=False, slots=None, cleans=False, last=False, dtype=float):
    """A cached loop; with no argument a right one."""
    def decode(q, k, v, sizes):
        q, k, v = (x.astype(dtype) for x in (q, k, v))
        keys, values, rows, at = k[:0], v[:0], [], 0
        for new in sizes:
            chunk = slice(at, at + new)
            at += new
            if by_zeros:
                kept = np.any(keys != 0, axis=1)
                keys, values = keys[kept], values[kept]
            if slots is not None:
                keys, values = keys[-slots:], values[-slots:]
            keys, values = np.concatenate([keys, k[chunk]]), np.concatenate([values, v[chunk]])
            held = len(keys) - new
            start = held if shift is None else max(0, held + shift(held))
            if new == 0:
                continue
            back = start + np.arange(new)[:, None] - np.arange(len(keys))
            hidden = (back < 0) & (not last or new == 1 or at == new)
            for i in range(new):
                seen = ~hidden[i]
                scores = keys[seen] @ q[chunk][i] / np.sqrt(q.shape[1], dtype=dtype)
                value = np.nan_to_num(values[seen]) if cleans else values[seen]
                scores = np.nan_to_num(scores) if cleans else scores
                powers = np.exp(scores - scores.max())
                rows.append(powers @ value / powers.sum())
        return np.array(rows, dtype=float).reshape(len(q), v.shape[1])
    return decode


@accepts.check
def _(answer):
    with np.errstate(all="ignore"):
        for decode, what in ((cached(), "a right loop"),
                             (cached(dtype=np.float32), "a right loop with float32 inside")):
            require(bool(answer(decode)), f"{what} was rejected: NaN rows agree where both are "
                    "NaN, and float32 has seven digits")
        for decode, what, why in (
                (cached(lambda held: -held), "q_offset = 0", "use more than one chunk"),
                (cached(lambda held: -1 if held else 0), "q_offset one too small",
                 "use more than one chunk"),
                (cached(lambda held: 1 if held else 0), "q_offset one too large",
                 "with chunks of 1 the future is not there yet: use longer chunks"),
                (cached(last=True), "a loop without a mask in later chunks",
                 "with chunks of 1 the future is not there yet: use longer chunks"),
                (cached(by_zeros=True), "a length guessed from the slots that are not zero",
                 "make one token's key and value zero"),
                (cached(slots=32), "a cache that drops tokens after the 32nd",
                 "try a longer sequence"),
                (cached(cleans=True), "a loop that turns NaN into 0",
                 "a NaN token must show in the rows that see it")):
            if bool(answer(decode)):
                raise Wrong(f"{what} was accepted: {why}")


def judge(lengths, chunks, *, zero=False, nan=False, equal_nan=True, atol=1e-3):
    """A test with the given cases."""
    def accept(decode):
        rng = np.random.default_rng(1)
        for n in lengths:
            for spoil in [None] + [0.0] * zero + [np.nan] * nan:
                q, k, v = rng.normal(size=(3, n, 3))
                if spoil is not None:
                    k[n // 2] = v[n // 2] = spoil
                want = cached()(q, k, v, [n])
                for sizes in chunks(n):
                    if not np.allclose(decode(q.copy(), k.copy(), v.copy(), sizes), want,
                                       atol=atol, rtol=0, equal_nan=equal_nan):
                        return False
        return True
    return accept


@accepts.wrong("feeds everything in one chunk", says="use more than one chunk")
def _(decode):
    return judge([7, 40], lambda n: [[n]], zero=True, nan=True)(decode)


@accepts.wrong("tries chunks of one token only", says="the future is not there yet")
def _(decode):
    return judge([7, 40], lambda n: [[1] * n], zero=True, nan=True)(decode)


@accepts.wrong("never feeds a zero token", says="key and value zero")
def _(decode):
    return judge([7, 40], lambda n: [[1] * n, [2, n - 2]], nan=True)(decode)


@accepts.wrong("lets NaN differ from NaN", says="was rejected")
def _(decode):
    return judge([7, 40], lambda n: [[1] * n, [2, n - 2]], zero=True, nan=True,
                 equal_nan=False)(decode)


practice.quiz(
    Question("When is a key–value cache right?", [
        choice("When its outputs equal those of one pass, however the tokens are chunked",
               right=True, reason="That is the definition, and it is a test."),
        choice("When the generated text reads well",
               reason="A model with a mask off by one still writes sentences."),
        choice("When it holds as many keys as there are tokens",
               reason="Needed for a plain cache, but the queries can still stand at the wrong "
                      "place."),
        choice("When feeding token by token twice gives the same",
               reason="A wrong loop is just as reproducible."),
    ]),
    Question("A prompt of $n$ tokens is fed at once, or token by token with a cache. What differs "
             "most?", [
        choice("The outputs, by more than rounding",
               reason="They are the same, by the definition of a right cache."),
        choice("The FLOPs, by a factor of about n",
               reason="In the matrices they are equal. Without a cache they would differ like "
                      "that."),
        choice("The bytes that are read", right=True,
               reason="Every step reads all parameters and the cache again."),
    ]),
    Question("What is the intensity of attention in a decode step at 2 bytes a number?", [
        choice("About G, the query heads that share a key head", right=True,
               reason="$4 n H D$ FLOPs for $2 \\cdot 2 n H_{kv} D$ bytes."),
        choice("About n, the length of the cache",
               reason="FLOPs and bytes both grow with $n$; it cancels."),
        choice("About B, the batch",
               reason="That holds for the matrices. Each sequence has its own cache."),
        choice("About D, the size of a head", reason="It cancels, too."),
    ]),
    Question("Why does a larger batch help less when the context is long?", [
        choice("Long sequences do not fit into a batch",
               reason="They can, as long as memory lasts. Look at what is read."),
        choice("The parameters are shared by the batch, the caches are not", right=True,
               reason="Once the caches outweigh the parameters, bytes grow with the batch as FLOPs "
                      "do."),
        choice("The softmax has more terms", reason="It has, in each sequence alike, and they are "
                                                    "few FLOPs."),
    ]),
    Question("A window lets a token see itself and `left` tokens before it. Which is the smallest "
             "ring that serves it?", [
        choice("left + 1 tokens, since it sees that many",
               reason="It works, but the new token comes with the call; only those before it "
                      "must be held."),
        choice("2 · left tokens, for chunks",
               reason="The new tokens are appended before anything is dropped."),
        choice("left tokens", right=True,
               reason="The new token itself is appended to what is held, then the oldest goes."),
    ]),
)
