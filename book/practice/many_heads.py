"""Practice of the chapter "Many heads": bytes, two products, groups, three bugs, one function."""

import math

import numpy as np

import attn
from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("many-heads")


def draw(seed, *sizes):
    """Return arrays of the given sizes, the same for the same seed."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=size) for size in sizes]


@practice.exercise(
    "How many tokens fit?", marks=1, minutes=5,
    statement=r"""
    A device has `memory` bytes left for keys and values. The model has `layers` layers with
    `heads` query heads each, every `group` query heads share one key head, heads have `size`
    numbers, and a number has `bits` bits. It writes `batch` texts at the same time, all of the
    same length. Return the largest length, a whole number of tokens.
    """,
    hints=[
        r"How many bytes does one token of one text take? There are a key and a value for each "
        r"layer and each *key* head, and $H_{kv} = H / G$.",
        r"Then divide: `memory // bytes_of_a_token`, where a token comes `batch` times.",
    ],
    notes=r"""
    All products are whole numbers, so `//` rounds down without any rounding error. A byte has 8
    bits.
    """)
def tokens_that_fit(memory, batch, layers, heads, group, size, bits):
    """Return how many tokens each text may have, an int."""
    ### BEGIN SOLUTION
    numbers = 2 * layers * (heads // group) * size  # key and value
    return 8 * memory // (batch * numbers * bits)
    ### END SOLUTION


@tokens_that_fit.check
def _(answer):
    for memory, batch, layers, heads, group, size, bits in (
            (40 * 2**30, 1, 32, 64, 4, 128, 16), (10**9 + 7, 3, 11, 10, 5, 7, 8)):
        def fit(factor, layers=layers, pairs=heads // group, size=size, bits=bits, batch=batch,
                memory=memory):
            return memory * 8 // (factor * batch * layers * pairs * size * bits)

        call = (f"tokens_that_fit({memory}, {batch}, {layers}, {heads}, {group}, {size}, {bits})")
        got = answer(memory, batch, layers, heads, group, size, bits)
        require_close(got, fit(2), what=call, atol=0.1, slips=[
            (fit(1), "each token has a key and a value: the factor 2 is missing"),
            (fit(2, pairs=heads), "only the key heads are kept: there are heads // group of them"),
            (fit(2, pairs=group), "group is the number of query heads that share a key head; "
                                  "there are heads // group key heads"),
            (fit(2, bits=8 * bits), "bits were counted as bytes: a byte has 8 bits"),
            (fit(2, layers=1), "each layer has a cache of its own"),
            (fit(2, batch=1), "each text of the batch has a cache of its own"),
            (-(-memory * 8 // (2 * batch * layers * (heads // group) * size * bits)),
             "that many do not fit: round down, not up")])
        require(float(got).is_integer(), f"{call} is {got}: a whole number of tokens was asked for")


@tokens_that_fit.wrong("counts keys and forgets the values", says="factor 2 is missing")
def _(memory, batch, layers, heads, group, size, bits):
    return 8 * memory // (batch * layers * (heads // group) * size * bits)


@tokens_that_fit.wrong("keeps a key for every query head", says="only the key heads are kept")
def _(memory, batch, layers, heads, group, size, bits):
    return 8 * memory // (2 * batch * layers * heads * size * bits)


@tokens_that_fit.wrong("takes the size of a group for the number of groups", says="that share")
def _(memory, batch, layers, heads, group, size, bits):
    return 8 * memory // (2 * batch * layers * group * size * bits)


@tokens_that_fit.wrong("counts bits as bytes", says="a byte has 8 bits")
def _(memory, batch, layers, heads, group, size, bits):
    return memory // (2 * batch * layers * (heads // group) * size * bits)


@practice.exercise(
    "A head is two matrices", marks=2, minutes=10,
    statement=r"""
    Return the two products $W_h^Q W_h^{K\top}$ (who looks at whom) and $W_h^V W_h^O$ (what is
    carried over) of head $h$, counted from 0. All four given matrices are $E \times E$, and inputs
    stand on their left. With them and without the four, the term of the head in the sum is
    `softmax(x @ who @ x.T / √D) @ x @ what`.
    """,
    hints=[
        r"Head $h$ owns the columns $hD$ to $(h+1)D$ of $W^Q$, $W^K$ and $W^V$. What does it own "
        r"of $W^O$, which multiplies the heads' outputs from the right?",
        r"Rows of $W^O$. Then `who` is (E, D) times (D, E), and so is `what`.",
    ],
    notes=r"""
    Both products have rank $D$ at most, and nothing else of a head can be seen from outside.
    """)
def two_products(w_query, w_key, w_value, w_output, num_heads, h):
    """Return who and what, two arrays of shape (E, E)."""
    ### BEGIN SOLUTION
    D = len(w_query) // num_heads
    own = slice(h * D, (h + 1) * D)
    who = w_query[:, own] @ w_key[:, own].T
    what = w_value[:, own] @ w_output[own]
    return who, what
    ### END SOLUTION


@two_products.check
def _(answer):
    E, H = 15, 3
    *matrices, x = draw(7, *[(E, E)] * 4, (7, E))
    w_query, w_key, w_value, w_output = matrices
    for h in (2, 0):
        try:
            who, what = answer(*matrices, H, h)
        except ValueError as error:
            raise Wrong("the sizes do not fit: columns of the first three matrices and rows of "
                        f"w_output belong to a head (NumPy: {str(error).strip()})") from None
        own, comb = slice(5 * h, 5 * h + 5), slice(h, None, H)
        require_close(who, w_query[:, own] @ w_key[:, own].T, what=f"who, for head {h}", slips=[
            (w_key[:, own] @ w_query[:, own].T,
             "who is transposed: the query comes first, as rows of scores are queries"),
            (w_query[:, own].T @ w_key[:, own],
             "that is D × D: multiply (E, D) by (D, E), the transpose stands on the key"),
            (w_query[own] @ w_key[own].T,
             "a head owns columns of w_query and w_key, not rows: inputs stand on the left"),
            (w_query[own].T @ w_key[own],
             "a head owns columns of w_query and w_key, not rows: inputs stand on the left"),
            (w_query[:, comb] @ w_key[:, comb].T,
             "a head owns neighbouring columns, h·D to (h + 1)·D, not every H-th"),
            (w_query[:, own] @ w_key[:, own].T / math.sqrt(5),
             "who is the product alone; the root of D is divided by later")])
        require_close(what, w_value[:, own] @ w_output[own], what=f"what, for head {h}", slips=[
            (w_value[:, own] @ w_output[:, own].T,
             "w_output is cut by rows: its rows h·D to (h + 1)·D, no transpose"),
            (w_value[:, comb] @ w_output[comb],
             "a head owns neighbouring columns, h·D to (h + 1)·D, not every H-th")])
    terms = [attn.softmax(x @ who @ x.T / math.sqrt(5)) @ x @ what
             for who, what in (answer(*matrices, H, h) for h in range(H))]
    layer = attn.multi_head_attention(x, *matrices, num_heads=H)
    require_close(sum(terms), layer, what="the sum of the terms of all heads")


@two_products.wrong("cuts W^O by columns", says="cut by rows")
def _(w_query, w_key, w_value, w_output, num_heads, h):
    D = len(w_query) // num_heads
    own = slice(h * D, (h + 1) * D)
    return w_query[:, own] @ w_key[:, own].T, w_value[:, own] @ w_output[:, own].T


@two_products.wrong("takes every H-th column", says="not every H-th")
def _(w_query, w_key, w_value, w_output, num_heads, h):
    own = slice(h, None, num_heads)
    return w_query[:, own] @ w_key[:, own].T, w_value[:, own] @ w_output[own]


@two_products.wrong("puts the key first", says="who is transposed")
def _(w_query, w_key, w_value, w_output, num_heads, h):
    D = len(w_query) // num_heads
    own = slice(h * D, (h + 1) * D)
    return w_key[:, own] @ w_query[:, own].T, w_value[:, own] @ w_output[own]


@practice.exercise(
    "Groups without copies", marks=2, minutes=10,
    statement=r"""
    Write grouped attention in NumPy for `query` of shape $(H, L, D)$, `key` of shape
    $(H_{kv}, S, D)$ and `value` of shape $(H_{kv}, S, D_v)$, without repeating a key. Give the
    queries one more axis instead, $(H_{kv}, G, L, D)$, and let broadcasting do the rest.
    `attn.softmax` runs over the last axis.
    """,
    hints=[
        r"`query.reshape(Hkv, G, L, D)` puts query heads $0 \dots G-1$ into the first group. For "
        r"the keys, `key[:, None]` has shape $(H_{kv}, 1, S, D)$.",
        r"`np.swapaxes(key[:, None], -1, -2)` has shape $(H_{kv}, 1, D, S)$, and `@` lines it up "
        r"with all $G$ queries. At the end reshape to $(H, L, D_v)$.",
    ],
    notes=r"""
    The reshape of the queries moves nothing, because neighbours share a key head. With tiled
    heads it would have to be $(G, H_{kv}, L, D)$ and a swap.
    """)
def grouped_attention(query, key, value):
    """Return the outputs of all heads, an array of shape (H, L, Dv)."""
    ### BEGIN SOLUTION
    H, L, D = query.shape
    Hkv, _, Dv = value.shape
    grouped = query.reshape(Hkv, H // Hkv, L, D)
    keys = np.swapaxes(key[:, None], -1, -2)  # (Hkv, 1, D, S)
    weights = attn.softmax(grouped @ keys / np.sqrt(D))
    return (weights @ value[:, None]).reshape(H, L, Dv)
    ### END SOLUTION


@grouped_attention.check
def _(answer):
    query, key, value = draw(11, (6, 7, 5), (2, 11, 5), (2, 11, 3))
    try:
        got = answer(query, key, value)
    except ValueError as error:
        raise Wrong("the shapes do not fit, with 6 query heads, 2 key heads, L = 7, S = 11, D = 5 "
                    f"and Dv = 3 (NumPy: {str(error).strip()})") from None

    def copied(index, scale=5):
        scores = query @ np.swapaxes(key[index], -1, -2) / math.sqrt(scale)
        return attn.softmax(scores) @ value[index]

    mean = query.reshape(2, 3, 7, 5).mean(axis=1)
    pooled = np.repeat(attn.scaled_dot_product_attention(mean, key, value), 3, axis=0)
    want, tiled = copied([0, 0, 0, 1, 1, 1]), copied([0, 1, 0, 1, 0, 1])
    require_close(got, want, what="the outputs", slips=[
        (tiled, "the heads are tiled, 0 1 0 1 0 1: neighbours share a key head, so Hkv comes first "
                "in the reshape, then G"),
        (want[[0, 3, 1, 4, 2, 5]], "the outputs are in another order of heads than the queries"),
        (pooled, "the queries of a group were averaged: each keeps its own, only keys and values "
                 "are shared"),
        (copied([0, 0, 0, 1, 1, 1], scale=1), "the scores are not divided by √D"),
        (copied([0, 0, 0, 1, 1, 1], scale=15), "the scores are divided by √(G·D), not by √D"),
        (want.reshape(2, 3, 7, 3), "that is (Hkv, G, L, Dv): reshape to (H, L, Dv) at the end")])


@grouped_attention.wrong("tiles the heads", says="the heads are tiled")
def _(query, key, value):
    index = np.arange(len(query)) % len(key)
    return attn.scaled_dot_product_attention(query, key[index], value[index])


@grouped_attention.wrong("averages the queries of a group", says="were averaged")
def _(query, key, value):
    H, L, D = query.shape
    mean = query.reshape(len(key), -1, L, D).mean(axis=1)
    groups = H // len(key)
    return np.repeat(attn.scaled_dot_product_attention(mean, key, value), groups, axis=0)


@grouped_attention.wrong("leaves the groups in the shape", says="reshape to (H, L, Dv)")
def _(query, key, value):
    _, L, D = query.shape
    grouped = query.reshape(len(key), -1, L, D)
    weights = attn.softmax(grouped @ np.swapaxes(key[:, None], -1, -2) / np.sqrt(D))
    return weights @ value[:, None]


@practice.exercise(
    "Three bugs", marks=2, minutes=10,
    statement=r"""
    This layer was tested with one head, and with one token, and both results were right. It has
    three bugs all the same. Write it without them.

    ```python
    def layer_broken(x, w_query, w_key, w_value, w_output, num_heads):
        L, E = x.shape
        query, key, value = (
            (x @ w).reshape(num_heads, L, E // num_heads)
            for w in (w_query, w_key, w_value))
        scores = query @ key.swapaxes(1, 2) / np.sqrt(E)
        mixed = attn.softmax(scores) @ value
        return mixed.reshape(L, E) @ w_output
    ```
    """,
    hints=[
        r"Which size do queries and keys have in the dot product? With one head it is $E$.",
        r"Between cutting the features, $(L, H, D)$, and attending, $(H, L, D)$, two axes change "
        r"places. And back again before the merge.",
    ],
    notes=r"""
    With one head, $\sqrt{E} = \sqrt{D}$ and there is nothing to swap. With one token the softmax
    is 1 whatever the score, and a swap with an axis of length 1 moves nothing.
    """)
def layer_repaired(x, w_query, w_key, w_value, w_output, num_heads):
    """Return the output of the layer, an array of shape (L, E)."""
    ### BEGIN SOLUTION
    L, E = x.shape
    D = E // num_heads
    query, key, value = (
        (x @ w).reshape(L, num_heads, D).swapaxes(0, 1)
        for w in (w_query, w_key, w_value))
    scores = query @ key.swapaxes(1, 2) / np.sqrt(D)
    mixed = attn.softmax(scores) @ value
    return mixed.swapaxes(0, 1).reshape(L, E) @ w_output
    ### END SOLUTION


def layer_with(split, merge, root, x, matrices, num_heads):
    """Return what a layer gives whose split and merge swap the axes or not."""
    L, E = x.shape
    D = E // num_heads
    shape = (L, num_heads, D) if split else (num_heads, L, D)
    parts = [(x @ w).reshape(shape) for w in matrices[:3]]
    query, key, value = (p.swapaxes(0, 1) for p in parts) if split else parts
    mixed = attn.softmax(query @ key.swapaxes(1, 2) / math.sqrt(root)) @ value
    return (mixed.swapaxes(0, 1) if merge else mixed).reshape(L, E) @ matrices[3]


@layer_repaired.check
def _(answer):
    x, *matrices = draw(13, (7, 15), *[(15, 15)] * 4)
    matrices = [w / 4 for w in matrices]
    try:
        got = answer(x, *matrices, 3)
    except ValueError as error:
        raise Wrong("with L = 7, E = 15 and 3 heads the shapes do not fit "
                    f"(NumPy: {str(error).strip()})") from None
    slips = []
    for root, scale in ((5, ""), (15, "the root is still of E, not of D; and "), (3, ""), (1, "")):
        slips += [
            (layer_with(True, False, root, x, matrices, 3),
             scale + "the merge lacks its swap: (H, L, D) goes to (L, H, D) before the reshape"),
            (layer_with(False, True, root, x, matrices, 3),
             scale + "the split lacks its swap: cut to (L, H, D) first, then swap to (H, L, D)"),
            (layer_with(False, False, root, x, matrices, 3),
             scale + "split and merge both lack their swap: a head is a stretch of the sequence")]
    slips += [
        (layer_with(True, True, 15, x, matrices, 3),
         "the root is still of E: queries and keys have size D = E / H"),
        (layer_with(True, True, 3, x, matrices, 3), "the root is of the number of heads, not of D"),
        (layer_with(True, True, 1, x, matrices, 3), "the scores are not divided by √D any more")]
    require_close(got, layer_with(True, True, 5, x, matrices, 3), what="the output", slips=slips)


@layer_repaired.wrong("repairs the root only", says="both lack their swap")
def _(x, *matrices_and_heads):
    *matrices, num_heads = matrices_and_heads
    return layer_with(False, False, x.shape[1] // num_heads, x, matrices, num_heads)


@layer_repaired.wrong("repairs the split and the root", says="the merge lacks its swap")
def _(x, *matrices_and_heads):
    *matrices, num_heads = matrices_and_heads
    return layer_with(True, False, x.shape[1] // num_heads, x, matrices, num_heads)


@layer_repaired.wrong("repairs both swaps and leaves the root", says="the root is still of E")
def _(x, *matrices_and_heads):
    *matrices, num_heads = matrices_and_heads
    return layer_with(True, True, x.shape[1], x, matrices, num_heads)


@layer_repaired.wrong("repairs the merge and the root", says="the split lacks its swap")
def _(x, *matrices_and_heads):
    *matrices, num_heads = matrices_and_heads
    return layer_with(False, True, x.shape[1] // num_heads, x, matrices, num_heads)


@practice.exercise(
    "The same head?", marks=3, minutes=15,
    statement=r"""
    Two heads are given by their query and key matrices, those of the first of shape $(E, D_1)$,
    those of the second of shape $(E, D_2)$. The sizes may differ, and each head divides by the
    root of its own. Return `True` if the two give the same weights for **every** input, up to
    rounding, and `False` if not. The matrices of equal heads may look nothing alike.
    """,
    hints=[
        r"The score of positions $i$ and $j$ is $x_i\, W^Q W^{K\top} x_j^\top / \sqrt{D}$. When is "
        r"that the same for all $x_i$ and $x_j$?",
        r"Equal weights also allow scores that differ by a constant for each row. Put $x_j = 0$ "
        r"among the inputs: its score is 0 in both heads, so the constant is 0.",
        r"Compare `w_query @ w_key.T / √D`, two $E \times E$ matrices, with `np.allclose`.",
    ],
    notes=r"""
    It is the product that counts. For equal sizes, $W^Q R$ and $W^K R^{-\top}$ give the same
    product for every invertible $R$.
    """)
def same_head(w_query, w_key, other_query, other_key):
    """Return whether two heads give the same weights, a bool."""
    ### BEGIN SOLUTION
    scale = np.sqrt(w_query.shape[1])
    other_scale = np.sqrt(other_query.shape[1])
    who = w_query @ w_key.T / scale
    other_who = other_query @ other_key.T / other_scale
    return np.allclose(who, other_who, atol=1e-9)
    ### END SOLUTION


def head_pairs():
    """Yield (what it is, two heads, whether they are the same)."""
    q, k, r, other, p = draw(17, (11, 5), (11, 5), (5, 5), (11, 5), (11, 3))
    wide = (7 / 5) ** 0.25  # 7 columns divide by √7: each factor makes up for half of it
    pad = np.zeros((11, 2))
    turn = np.linalg.qr(r)[0]
    yield "the head itself", (q, k, q.copy(), k.copy()), True
    yield "the head in another basis (a rotation)", (q, k, q @ turn, k @ turn), True
    yield ("the head in another basis (any invertible R)",
           (q, k, q @ r, k @ np.linalg.inv(r).T), True)
    yield "the head with doubled queries and halved keys", (q, k, 2 * q, k / 2), True
    yield ("the head with two columns of zeros, made up for the larger root",
           (q, k, np.hstack([wide * q, pad]), np.hstack([wide * k, pad])), True)
    yield ("the head with two columns of zeros, but a larger root",
           (q, k, np.hstack([q, pad]), np.hstack([k, pad])), False)
    yield "a head with other keys", (q, k, q, other), False
    yield "a head that swaps queries and keys", (q, k, k, q), False
    yield "a head of another size", (q, k, p, p), False
    yield "a head with other signs of the queries", (q, k, -q, k), False
    yield "a head whose keys are 1% longer", (q, k, q, 1.01 * k), False
    # Q₁ᵀK₁ = Q₂ᵀK₂, a 5 × 5 matrix, though the heads differ
    basis = np.linalg.qr(draw(19, (11, 11))[0])[0]
    yield "the head, made for rotated inputs", (q, k, basis @ q, basis @ k), False


@same_head.check
def _(answer):
    for name, head_pair, same in head_pairs():
        try:
            said = answer(*head_pair)
        except ValueError as error:
            raise Wrong(f"it fails on {name}: the sizes of the two heads may differ, so nothing of "
                        f"shape (E, D) can be compared (NumPy: {str(error).strip()})") from None
        require(isinstance(said, bool | np.bool_),
                f"same_head should return True or False, not {said!r}")
        sizes = "; the scores of each are divided by the root of its own size"
        require(bool(said) == same, f"your answer is {said} for {name}"
                + (sizes if "root" in name else ""))


@same_head.wrong("compares the matrices themselves", says="in another basis")
def _(w_query, w_key, other_query, other_key):
    return (np.array_equal(w_query, other_query) and np.array_equal(w_key, other_key))


@same_head.wrong("forgets the roots", says="root of its own size")
def _(w_query, w_key, other_query, other_key):
    return np.allclose(w_query @ w_key.T, other_query @ other_key.T)


@same_head.wrong("multiplies in the wrong order, D × D", says="in another basis")
def _(w_query, w_key, other_query, other_key):
    a, b = w_query.T @ w_key, other_query.T @ other_key
    return a.shape == b.shape and np.allclose(a, b)


@same_head.wrong("compares the singular values of the products", says="swaps queries and keys")
def _(w_query, w_key, other_query, other_key):
    a = np.linalg.svd(w_query @ w_key.T / np.sqrt(w_query.shape[1]), compute_uv=False)
    b = np.linalg.svd(other_query @ other_key.T / np.sqrt(other_query.shape[1]), compute_uv=False)
    return np.allclose(a, b)


practice.quiz(
    Question(r"A layer of size $E = 512$ goes from 8 heads of 64 to 16 heads of 32. What happens "
             r"to the number of its parameters?", [
        choice("It doubles, as the heads do",
               reason="Each head has half as many columns in each matrix."),
        choice("It stays the same", right=True,
               reason=r"Four $512 \times 512$ matrices, cut into narrower strips."),
        choice("It halves, as the size of a head does",
               reason="There are twice as many heads of that size."),
        choice("It depends on the length of the sequence",
               reason="No matrix of the layer has an axis of length $L$. The number of weights "
                      "depends on it."),
    ]),
    Question(r"A layer reshapes $(B, L, E)$ to $(B, H, L, D)$ at once, and back at once. Which "
             r"test sees it?", [
        choice("A merge after a split gives back the input",
               reason="It does: the two mistakes undo each other."),
        choice("With a causal mask, no output depends on a later input",
               reason="It holds: the pieces of tokens stand in the order of the sequence, so the "
                      "triangle hides what is later."),
        choice("Without a mask, permuted inputs give permuted outputs", right=True,
               reason="Attention does not know the order of its keys. A layer whose heads are "
                      "stretches of the sequence does."),
        choice("No batch row depends on another",
               reason="It holds: every number stays within its batch row."),
    ]),
    Question("The mean over 8 heads shows equal weight on two keys. What follows for a single "
             "head?", [
        choice("Nothing: some heads may look at one key, some at the other", right=True,
               reason="As on the ring, where each of two heads looked at one neighbour."),
        choice("Each head gives the two keys equal weight",
               reason="Many sets of weights have the same mean."),
        choice("At least one head gives the two keys equal weight",
               reason="On the ring none did."),
    ]),
    Question(r"A model with 32 query heads goes from 32 key heads to 8. What becomes four times "
             r"smaller?", [
        choice("The number of weights, L × S for each head",
               reason="Each of the 32 query heads still has weights of its own."),
        choice("The multiplications in the scores",
               reason="Each query head still takes its dot product with every key."),
        choice("The parameters of the layer",
               reason=r"From $4E^2$ to $2.5E^2$: queries and output stay as they are."),
        choice("The bytes of the keys and values kept", right=True,
               reason=r"They are proportional to $H_{kv}$."),
    ]),
    Question(r"A head has size $D = 1$ and 100 different keys. How many of the keys can be the "
             r"best one for some query?", [
        choice("1", reason="A negative query turns the order of the keys around."),
        choice("2", right=True,
               reason=r"The score is $q\,k_j$: for $q > 0$ the largest key wins, for $q < 0$ the "
                      r"smallest, for $q = 0$ all tie."),
        choice("100", reason="With $D = 2$ that is possible, with keys on a circle."),
    ]),
)
