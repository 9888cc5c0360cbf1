"""Practice of the chapter "What it costs": count, predict, and measure without fooling oneself."""

import math

import numpy as np

from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("cost")


@practice.exercise(
    "The FLOPs of a layer with shared heads", marks=1, minutes=10,
    statement=r"""
    A layer has $H$ query heads and $H_{kv}$ heads of keys and values, each of size $D = E / H$;
    $H / H_{kv}$ query heads share one key head. Return the FLOPs of all its matrix products for
    $n$ tokens: four projections, scores, weighted sum.
    """,
    hints=[
        r"The projection of the queries and that of the output are $E \times E$. Those of keys and "
        r"values are $E \times H_{kv} D$.",
        r"Every query head still meets every key: sharing makes keys fewer, not pairs.",
    ],
    notes=r"""
    $4 n E^2 + 4 n E H_{kv} D + 4 n^2 E$. With $H_{kv} = H$ it is the count of the chapter. Sharing
    heads saves in the projections and, above all, in the cache; not one FLOP of the pairs.
    """)
def layer_flops(n, E, H, Hkv):
    """Return the FLOPs of the layer's matrix products."""
    ### BEGIN SOLUTION
    D = E // H
    projections = 2 * (2 * n * E * E) + 2 * (2 * n * E * Hkv * D)
    scores = H * (2 * n * D * n)
    weighted_sum = H * (2 * n * n * D)
    return projections + scores + weighted_sum
    ### END SOLUTION


@layer_flops.check
def _(answer):
    for n, E, H, Hkv in ((7, 30, 6, 2), (11, 30, 6, 6), (101, 28, 4, 1)):
        D = E // H
        shared, pairs = 4 * n * E * E + 4 * n * E * Hkv * D, 4 * n * n * E
        require_close(answer(n, E, H, Hkv), shared + pairs, atol=0.5,
                      what=f"layer_flops({n}, {E}, {H}, {Hkv})", slips=[
            ((shared + pairs) / 2, "these are multiply-adds: each is two FLOPs"),
            (8 * n * E * E + pairs, "keys and values are projected to Hkv heads, not to H"),
            (shared + 4 * n * n * Hkv * D, "every one of the H query heads has its own scores: the "
                                           "pairs do not become fewer with Hkv"),
            (shared + pairs / 2, "there are two products of pairs: scores and weighted sum"),
            (shared - 2 * n * E * E + pairs, "the projection of the output is missing"),
            (shared + pairs * H, "H heads of size D = E / H: the size of all heads together is E"),
            (pairs, "the four projections are missing"),
        ])


@layer_flops.wrong("counts a multiplication and its addition as one", says="multiply-adds")
def _(n, E, H, Hkv):
    return layer_flops.solution(n, E, H, Hkv) // 2


@layer_flops.wrong("projects keys and values to H heads", says="not to H")
def _(n, E, H, Hkv):
    return 8 * n * E * E + 4 * n * n * E


@layer_flops.wrong("lets sharing save scores", says="do not become fewer")
def _(n, E, H, Hkv):
    D = E // H
    return 4 * n * E * E + 4 * n * E * Hkv * D + 4 * n * n * Hkv * D


@layer_flops.wrong("forgets the weighted sum", says="two products")
def _(n, E, H, Hkv):
    return layer_flops.solution(n, E, H, Hkv) - 2 * n * n * E


@practice.exercise(
    "The bytes of a model", marks=2, minutes=10,
    statement=r"""
    For $n$ tokens, return two numbers: the bytes that the scores of **one** layer would take, and
    the bytes of the key–value cache of **all** layers. `itemsize` is the bytes of one number. With
    a `window` $W$, a token sees itself and the $W - 1$ tokens before it, and the cache keeps no
    more than $W$ tokens; the scores are still stored as a full square.
    """,
    hints=[
        r"Scores: one number for each query head and each pair.",
        r"Cache: a key and a value, for each layer, each of the $H_{kv}$ heads and each token that "
        r"is kept.",
    ],
    notes=r"""
    The scores go with $H$ and $n^2$, the cache with $H_{kv}$ and $n$. So sharing heads shrinks
    the cache and leaves the scores alone, and a window bounds the cache.
    """)
def bytes_needed(
        n, layers, H, Hkv, D, itemsize, window=None):
    """Return bytes of (scores of one layer, cache of all)."""
    ### BEGIN SOLUTION
    scores = itemsize * H * n * n
    kept = n if window is None else min(n, window)
    cache = itemsize * 2 * layers * Hkv * D * kept
    return scores, cache
    ### END SOLUTION


@bytes_needed.check
def _(answer):
    for n, layers, H, Hkv, D, itemsize, window in (
            (11, 3, 10, 5, 7, 2, None), (101, 5, 6, 2, 13, 4, None),
            (101, 5, 6, 2, 13, 4, 17), (11, 5, 6, 2, 13, 4, 17)):
        call = answer(n, layers, H, Hkv, D, itemsize, window)
        require(isinstance(call, tuple | list) and len(call) == 2,
                f"expected two numbers, scores and cache; came {call!r}")
        scores, kept = itemsize * H * n * n, min(n, window or n)
        cache = itemsize * 2 * layers * Hkv * D * kept
        require_close(call[0], scores, what="the scores", atol=0.5, slips=[
            (itemsize * Hkv * n * n, "each query head has scores of its own: H, not Hkv"),
            (scores * layers, "the scores are those of one layer"),
            (scores // itemsize, "that is how many numbers: each has itemsize bytes"),
            (itemsize * n * n, "that is one head: there are H"),
            (itemsize * H * n * n * D, "D is summed over in the dot product: one number a pair"),
            (itemsize * H * n * kept, "the full square is asked for, window or not"),
        ])
        require_close(call[1], cache, what="the cache", atol=0.5, slips=[
            (cache // 2, "a key AND a value: twice as much"),
            (cache * H // Hkv, "the cache holds Hkv heads: that is what sharing is for"),
            (cache // layers, "every layer has a cache"),
            (cache // itemsize, "that is how many numbers: each has itemsize bytes"),
            (cache // kept * n, "the cache keeps no more than the window"),
            (cache // kept * (window or n), "with fewer tokens than the window, only those are "
                                            "there to keep"),
        ])


@bytes_needed.wrong("caches keys only", says="a key AND a value")
def _(n, layers, H, Hkv, D, itemsize, window=None):
    scores, cache = bytes_needed.solution(n, layers, H, Hkv, D, itemsize, window)
    return scores, cache // 2


@bytes_needed.wrong("caches all query heads", says="holds Hkv heads")
def _(n, layers, H, Hkv, D, itemsize, window=None):
    return bytes_needed.solution(n, layers, H, H, D, itemsize, window)


@bytes_needed.wrong("forgets the layers in the cache", says="every layer")
def _(n, layers, H, Hkv, D, itemsize, window=None):
    return bytes_needed.solution(n, 1, H, Hkv, D, itemsize, window)


@bytes_needed.wrong("takes the window without looking at n", says="fewer tokens")
def _(n, layers, H, Hkv, D, itemsize, window=None):
    scores, _ = bytes_needed.solution(n, layers, H, Hkv, D, itemsize)
    return scores, itemsize * 2 * layers * Hkv * D * (window or n)


@practice.exercise(
    "From a slope to a prediction", marks=2, minutes=15,
    statement=r"""
    Somebody measured a function at several lengths. Each time is a fixed overhead plus a power of
    the length, and the overhead no longer matters at the two largest lengths. Predict the time at a
    larger $n$. You are not told the power: it may be 2, or 1, or something in between. The lengths
    come in any order. The check allows an error of 5%.
    """,
    hints=[
        r"The slope between two points is $p = \ln (t_2 / t_1) / \ln (n_2 / n_1)$. Which two are "
        r"free of the overhead?",
        r"From the largest length on: $t(n) = t_{\max} \cdot (n / n_{\max})^p$.",
    ],
    notes=r"""
    A line through all the points is a fit to the overhead as well, and predicts far too little. A
    slope holds for the range in which it was measured; before you trust a prediction far
    outside, ask what else becomes large there.
    """)
def predict_seconds(lengths, seconds, n):
    """Return the predicted time at length n."""
    ### BEGIN SOLUTION
    order = np.argsort(lengths)[-2:]
    (n1, n2), (t1, t2) = np.array(lengths)[order], np.array(seconds)[order]
    slope = math.log(t2 / t1) / math.log(n2 / n1)
    return t2 * (n / n2) ** slope
    ### END SOLUTION


def fit_all(lengths, seconds, n):
    """What a line through all points, on logarithmic axes, predicts."""
    slope, constant = np.polyfit(np.log(lengths), np.log(seconds), 1)
    return math.exp(constant) * n**slope


@predict_seconds.check
def _(answer):
    rng = np.random.default_rng(7)
    for power, largest in ((2.0, 0.7), (1.0, 1.5), (1.5, 1.1)):
        lengths = rng.permutation(2 ** np.arange(4, 13))
        seconds = 1e-3 + largest * (lengths / 4096) ** power
        for n in (16384, 65536):
            want, got = largest * (n / 4096) ** power, answer(lengths.copy(), seconds.copy(), n)
            last = seconds[lengths == 4096].item()
            ratio, times = n / 4096, np.sort(seconds)
            require_close(got / want, 1.0, atol=0.05,
                          what=f"predicted / true, for a power of {power} and n = {n}", slips=[
                (fit_all(lengths, seconds, n) / want,
                 "that line goes through all points, the overhead included: take the two largest"),
                (last * ratio**2 / want, "the power need not be 2: read the slope off the data"),
                (last * ratio / want, "that is proportional to n: read the slope off the data"),
                (np.polyval(np.polyfit(lengths, seconds, 1), n) / want,
                 "a straight line on plain axes has slope 1 for large n, whatever the data say"),
                (predict_seconds.solution(lengths[-2:], seconds[-2:], n) / want,
                 "the lengths are not sorted: the last two are not the largest two"),
                (last * ratio * math.log2(times[-1] / times[-2]) / want,
                 "the slope is an exponent: (n / largest) to the power of it, not times it"),
            ])


@predict_seconds.wrong("fits a line through all points", says="overhead included")
def _(lengths, seconds, n):
    return fit_all(lengths, seconds, n)


@predict_seconds.wrong("assumes a square", says="need not be 2")
def _(lengths, seconds, n):
    i = np.argmax(lengths)
    return seconds[i] * (n / lengths[i]) ** 2


@predict_seconds.wrong("takes the last two as they come", says="not sorted")
def _(lengths, seconds, n):
    return predict_seconds.solution(lengths[-2:], seconds[-2:], n)


@predict_seconds.wrong("multiplies by the slope", says="exponent")
def _(lengths, seconds, n):
    lengths, seconds = np.sort(lengths), np.sort(seconds)
    slope = math.log(seconds[-1] / seconds[-2]) / math.log(lengths[-1] / lengths[-2])
    return seconds[-1] * (n / lengths[-1]) * slope


@practice.exercise(
    "The bugs in a benchmark", marks=3, minutes=20,
    statement=r"""
    Somebody times a function on a GPU. `make_input()` allocates an operand, fills it and starts to
    copy it to the device; a call of `function` starts the work and returns at once; `synchronize()`
    waits until the device has done all that was started; `clock()` gives the time in seconds.

    ```python
    def seconds_per_call(function, make_input, clock, synchronize, repeats):
        start = clock()
        for _ in range(repeats):
            function(make_input())
        return (clock() - start) / repeats
    ```

    Write it right: the **median** of `repeats` calls, each timed by itself, of the function alone
    and all of its work, without what happens only the first time (compilation, lazy allocation).
    """,
    hints=[
        "Call the function once before you measure. It does not count as one of the repeats.",
        "Which line may stand between the two readings of the clock? What has the device still to "
        "do when you start the clock, and what when you stop it?",
        "`operand = make_input(); synchronize(); start = clock(); function(operand); "
        "synchronize(); clock() - start`",
    ],
    notes=r"""
    Four bugs: no warm-up; the input is made inside the measurement; nobody waits before the clock
    stops; and nobody waits before it starts, so the copy of the input would be counted. A mean, as
    in the broken version, also lets one interruption spoil everything.
    """)
def seconds_per_call(function, make_input, clock, synchronize, repeats):
    """Return the median time of one call, in seconds."""
    ### BEGIN SOLUTION
    function(make_input())
    times = []
    for _ in range(repeats):
        operand = make_input()
        synchronize()
        start = clock()
        function(operand)
        synchronize()
        times.append(clock() - start)
    return np.median(times)
    ### END SOLUTION


class Machine:
    """A simulated device with its own clock: what a benchmark on it reports is known exactly."""

    MAKE, COPY, LAUNCH, WORK, FIRST, HICCUP = 5.0, 3.0, 0.125, 2.0, 64.0, 20.0

    def __init__(self, hiccup_at):
        self.now = self.free = 0.0  # of the host; when the device has done all that was started
        self.calls, self.hiccup_at = 0, hiccup_at

    def clock(self):
        return self.now

    def synchronize(self):
        self.now = max(self.now, self.free)

    def make_input(self):
        self.now += self.MAKE
        self.free = max(self.now, self.free) + self.COPY
        return object()

    def function(self, operand):
        self.calls += 1
        # What happens only once happens on the host, before the work is started.
        self.now += self.LAUNCH + (self.FIRST if self.calls == 1 else 0)
        work = self.WORK + (self.HICCUP if self.calls == self.hiccup_at else 0)
        self.free = max(self.now, self.free) + work


def reported(benchmark, repeats, hiccup_at=0):
    """What a benchmark says about a Machine, and the machine afterwards."""
    machine = Machine(hiccup_at)
    result = benchmark(machine.function, machine.make_input, machine.clock, machine.synchronize,
                       repeats)
    return result, machine


def variant(*, warm_up=True, outside=True, before=True, after=True, middle=np.median):
    """A benchmark with one of its precautions left out."""
    def benchmark(function, make_input, clock, synchronize, repeats):
        if warm_up:
            function(make_input())
        times = []
        for _ in range(repeats):
            operand = make_input() if outside else None
            if before:
                synchronize()
            start = clock()
            function(operand if outside else make_input())
            if after:
                synchronize()
            times.append(clock() - start)
        return middle(times)
    return benchmark


def broken(function, make_input, clock, synchronize, repeats):
    """The benchmark of the exercise's text."""
    start = clock()
    for _ in range(repeats):
        function(make_input())
    return (clock() - start) / repeats


MISTAKES = (
    (broken, "that is the broken version's result: none of its bugs is mended"),
    (variant(warm_up=False), "the first call is among those measured: warm up before"),
    (variant(outside=False), "making the input is inside the measurement: make it before you "
                             "start the clock"),
    (variant(after=False), "the clock stops when the work has been started, not when it is done: "
                           "synchronize before you stop it"),
    (variant(before=False), "the device still copies the input when the clock starts: synchronize "
                            "before you start it"),
    (variant(middle=np.mean), "one interrupted call spoils the mean: take the median"),
    (variant(middle=min), "that is the smallest time; the median is asked for"),
    (variant(middle=sum), "that is the sum of the calls: the time of one is asked for"),
)


@seconds_per_call.check
def _(answer):
    for repeats, hiccup_at in ((1, 0), (5, 3), (4, 2)):
        want, _ = reported(seconds_per_call.solution, repeats, hiccup_at)
        got, machine = reported(answer, repeats, hiccup_at)
        slips = [(reported(mistake, repeats, hiccup_at)[0], says) for mistake, says in MISTAKES]
        require_close(got, want, what=f"the time on a simulated device with repeats = {repeats}",
                      slips=slips)
        if machine.calls <= repeats:
            raise Wrong(f"the function was called {machine.calls} times for repeats = {repeats}: "
                        "the warm-up comes on top")


@seconds_per_call.wrong("does not warm up", says="among those measured")
def _(function, make_input, clock, synchronize, repeats):
    return variant(warm_up=False)(function, make_input, clock, synchronize, repeats)


@seconds_per_call.wrong("makes the input while the clock runs", says="inside the measurement")
def _(function, make_input, clock, synchronize, repeats):
    return variant(outside=False)(function, make_input, clock, synchronize, repeats)


@seconds_per_call.wrong("stops the clock when the work has only been started", says="not when")
def _(function, make_input, clock, synchronize, repeats):
    return variant(after=False)(function, make_input, clock, synchronize, repeats)


@seconds_per_call.wrong("starts the clock while the input is still being copied",
                        says="still copies")
def _(function, make_input, clock, synchronize, repeats):
    return variant(before=False)(function, make_input, clock, synchronize, repeats)


@seconds_per_call.wrong("takes the mean", says="spoils the mean")
def _(function, make_input, clock, synchronize, repeats):
    return variant(middle=np.mean)(function, make_input, clock, synchronize, repeats)


practice.quiz(
    Question("A fused kernel does not store the score matrix. What happens to its time when $n$, "
             "already large, doubles?", [
        choice("It doubles, as its memory does",
               reason="The memory has slope 1. The pairs are all computed, and they are four "
                      "times as many."),
        choice("It grows fourfold, like that of the plain function", right=True,
               reason="Same FLOPs, same slope; only the height of the line differs."),
        choice("It stays the same", reason="Every pair is still computed."),
    ]),
    Question("A block has $E = 4096$ and a feed-forward part of the usual size. With 4096 tokens, "
             "which share of its FLOPs is in the pairs, without a mask?", [
        choice("One seventh", right=True,
               reason="$n / (n + 6E)$ with $n = E$. So its slope is about 1.14."),
        choice("One half", reason="That would be at $n = 6E$, 24,576 tokens."),
        choice("Nearly all, because attention is quadratic",
               reason="The square has to overtake a term with a large factor first."),
        choice("Two thirds", reason="That is at $n = 12E$."),
    ]),
    Question("`tracemalloc` reports 3 KB for a call of a PyTorch function on "
             "a long sequence. What do you conclude?", [
        choice("The function is fused and stores nothing large",
               reason="Even a fused kernel allocates its result, and that is larger than this."),
        choice("PyTorch frees its memory before the peak is read",
               reason="A peak cannot be freed: it is the most that was ever held."),
        choice("Nothing: it does not see PyTorch's allocator", right=True,
               reason="It counts what Python and NumPy allocate."),
    ]),
    Question("A kernel works on tiles of 512 × 512 and skips the empty ones. What does a causal "
             "mask save at $n = 512$?", [
        choice("Half", reason="That is the limit for large $n$."),
        choice("A quarter", reason="That would be at $n = 1024$: one of four tiles is empty."),
        choice("Nothing", right=True,
               reason="There is one tile, and it holds visible pairs."),
    ]),
    Question("Why can a boolean mask tensor be worse than no mask at all?", [
        choice("It is n² in memory, and the kernel cannot skip by it", right=True,
               reason="It takes one byte a pair, PyTorch's CPU kernel turns it into four, and all "
                      "pairs are still computed."),
        choice("Boolean indexing makes the result differ",
               reason="The result is right: hidden pairs get weight 0."),
        choice("It has to be the same for all heads",
               reason="It broadcasts, and may differ from head to head."),
    ]),
)
