"""Practice of "Reading real code": unpack, probe, attend ragged rows, test, read a checkpoint."""

import numpy as np
import torch
from torch import nn

import attn
from practice.form import Practice, Question, Wrong, choice, require, require_close

practice = Practice("reading-real-code")


def draw(seed, *sizes):
    """Return arrays of the given sizes, the same for the same seed."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=size) for size in sizes]


@practice.exercise(
    "Two ways to pack", marks=1, minutes=8,
    statement=r"""
    `qkv`, of shape $(B, L, 3HD)$, is what one projection gives for queries, keys and values. Its
    columns lie in the order `"3hd"` (all queries, all keys, all values) or `"h3d"` (the three of
    head 0, the three of head 1, …). Return query, key and value, each of shape $(B, H, L, D)$.
    """,
    hints=[
        r"The order is the shape to read the last axis as: $(3, H, D)$ or $(H, 3, D)$.",
        r"Reshape to five axes, move the axis of length 3 to the front with `np.moveaxis`, and "
        r"then the heads before the length: `swapaxes(2, 3)` of what is $(3, B, L, H, D)$.",
    ],
    notes=r"""
    A reshape only says where the borders are; the two axis moves do the work. With $H = 3$ even the
    five axes of both orders have the same shape.
    """)
def from_packed(qkv, num_heads, order):
    """Return query, key, value, each (B, H, L, D)."""
    ### BEGIN SOLUTION
    B, L, width = qkv.shape
    D = width // (3 * num_heads)
    if order == "3hd":
        parts = np.moveaxis(qkv.reshape(B, L, 3, num_heads, D), 2, 0)
    else:
        parts = np.moveaxis(qkv.reshape(B, L, num_heads, 3, D), 3, 0)
    query, key, value = parts.swapaxes(2, 3)
    return query, key, value
    ### END SOLUTION


def pack(parts, order):
    """Pack (3, B, H, L, D) into (B, L, 3·H·D)."""
    axes = (1, 3, 0, 2, 4) if order == "3hd" else (1, 3, 2, 0, 4)
    _, B, _, L, _ = parts.shape
    return parts.transpose(axes).reshape(B, L, -1)


@from_packed.check
def _(answer):
    for order in ("3hd", "h3d"):
        parts, = draw(0, (3, 2, 5, 7, 4))  # (3, B, H, L, D)
        try:
            got = answer(pack(parts, order), 5, order)
        except ValueError as error:
            raise Wrong(f"order {order!r}: {error}; the axes should be B, L, then 3, H and D in "
                        "their order") from None
        require(isinstance(got, tuple | list | np.ndarray) and len(got) == 3,
                "return three arrays: query, key, value")
        other = "h3d" if order == "3hd" else "3hd"
        swapped = np.moveaxis(pack(parts, order).reshape(
            (2, 7, 5, 3, 4) if order == "3hd" else (2, 7, 3, 5, 4)), 3 if order == "3hd" else 2, 0)
        swapped = swapped.swapaxes(2, 3)
        bare = pack(parts, order).reshape(2, 7, 3, 20)
        for name, one, want, mixed, column in zip(
                ("query", "key", "value"), got, parts, swapped, np.moveaxis(bare, 2, 0),
                strict=True):
            require_close(one, want, what=f"{name} of order {order!r}", slips=[
                (mixed, f"order {order!r} was read as {other!r}"),
                (want.swapaxes(1, 2), "the heads have to come before the length: (B, H, L, D)"),
                (column.reshape(2, 5, 7, 4),
                 "a reshape to (B, H, L, D) moves nothing: swap the axes of length and heads")])


@from_packed.wrong("takes one order for both", says="was read as")
def _(qkv, num_heads, order):
    B, L, _ = qkv.shape
    parts = np.moveaxis(qkv.reshape(B, L, 3, num_heads, -1), 2, 0)
    return tuple(parts.swapaxes(2, 3))


@from_packed.wrong("leaves the length before the heads", says="before the length")
def _(qkv, num_heads, order):
    B, L, width = qkv.shape
    D = width // (3 * num_heads)
    if order == "3hd":
        return tuple(np.moveaxis(qkv.reshape(B, L, 3, num_heads, D), 2, 0))
    return tuple(np.moveaxis(qkv.reshape(B, L, num_heads, 3, D), 3, 0))


@from_packed.wrong("reshapes where axes have to be swapped", says="moves nothing")
def _(qkv, num_heads, order):
    B, L, _ = qkv.shape
    if order == "3hd":
        parts = np.split(qkv, 3, axis=-1)
    else:
        parts = np.moveaxis(qkv.reshape(B, L, num_heads, 3, -1), 3, 0).reshape(3, B, L, -1)
    return tuple(part.reshape(B, num_heads, L, -1) for part in parts)


def in_layout(axis, mask=None):
    """Return attention whose arrays have the keys on this axis of the first three."""

    def attention(query, key, value):
        moved = [np.moveaxis(x, axis, 2) for x in (query, key, value)]
        return np.moveaxis(attn.scaled_dot_product_attention(*moved, mask), 2, axis)

    return attention


BOXES = [
    (axis, name, in_layout(axis, mask))
    for axis in (2, 1, 0) for name, mask in {
        "no mask": None, "a causal mask": attn.Causal(), "a mask of the future": ~attn.Causal(),
    }.items()
]


@practice.exercise(
    "Which axis?", marks=2, minutes=12,
    statement=r"""
    `attention(query, key, value)` takes three arrays of one `shape` with four axes, the last of
    which is $D$, and returns an array of that shape. One of the other three axes is the one on
    which the keys lie; the other two are batch and heads, in some order. There is no
    documentation. It may have a causal mask inside, or another one. Return the number of the axis:
    0, 1 or 2.
    """,
    hints=[
        "Two places that differ in batch row or head never hear of each other. Two that differ in "
        "position do.",
        "For each axis: change the *values* in one slice along it, and see whether the output "
        "changes in any *other* slice. A mask may hide a slice from all others, so try each.",
    ],
    notes=r"""
    Batch and heads cannot be told apart from here, because attention treats them alike. What parts
    them is the code around it, which mixes heads and never mixes sequences.
    """)
def key_axis(attention, shape):
    """Return the number of the axis on which the keys lie."""
    ### BEGIN SOLUTION
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(3, *shape))
    before = attention(query, key, value)
    for axis in range(3):
        for j in range(shape[axis]):
            place = (slice(None),) * axis + (j,)
            other = value.copy()
            other[place] += 1
            change = attention(query, key, other) - before
            change[place] = 0
            if np.abs(change).max() > 1e-9:
                return axis
    return None
    ### END SOLUTION


@key_axis.check
def _(answer):
    for axis, name, attention in BOXES:
        got = answer(attention, (3, 5, 2, 4))
        require(got in (0, 1, 2), f"return 0, 1 or 2; came {got!r}")
        hint = ("which slices change besides the one that you changed?" if name == "no mask" else
                "with a mask, one slice may be hidden from all others: change each in turn")
        require(got == axis, f"keys on axis {axis}, {name}: your answer is {got}; {hint}")


@key_axis.wrong("asks whether anything changes", says="besides the one that you changed")
def _(attention, shape):
    query, key, value = np.random.default_rng(0).normal(size=(3, *shape))
    before = attention(query, key, value)
    for axis in range(3):
        other = value.copy()
        other[(slice(None),) * axis + (0,)] += 1
        if np.abs(attention(query, key, other) - before).max() > 1e-9:
            return axis
    return 2


@key_axis.wrong("changes the last slice only", says="change each in turn")
def _(attention, shape):
    query, key, value = np.random.default_rng(0).normal(size=(3, *shape))
    before = attention(query, key, value)
    for axis in range(3):
        place = (slice(None),) * axis + (-1,)
        other = value.copy()
        other[place] += 1
        change = attention(query, key, other) - before
        change[place] = 0
        if np.abs(change).max() > 1e-9:
            return axis
    return 0


@key_axis.wrong("takes the longest axis for the length", says="which slices change")
def _(attention, shape):
    return int(np.argmax(shape[:3]))


def ragged(query, key, value, starts_q, starts_k, corner="lower", own=True):
    """Return causal attention of ragged sequences, with some of its parts wrong."""
    output = np.zeros((*query.shape[:2], value.shape[2]))
    for q, q_end, k, k_end in zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False):
        k = k if own else 0
        parts = [x.swapaxes(0, 1) for x in (query[q:q_end], key[k:k_end], value[k:k_end])]
        offset = (k_end - k) - (q_end - q) if corner == "lower" else 0
        mask = None if corner is None else attn.Causal()
        output[q:q_end] = attn.scaled_dot_product_attention(
            *parts, mask, q_offset=offset).swapaxes(0, 1)
    return output


@practice.exercise(
    "Ragged rows", marks=2, minutes=15,
    statement=r"""
    The queries of several sequences lie in one array, one sequence after the other,
    $(T_q, H, D)$; keys and values likewise, $(T_k, H, D)$. Sequence $n$ has the queries from
    `starts_q[n]` up to `starts_q[n + 1]`, and the keys from `starts_k[n]` up to
    `starts_k[n + 1]`. Each sequence attends to itself, causally, and **its last query sees its
    last key**. Return the outputs, $(T_q, H, D)$. You may use `attn` for a single sequence.
    """,
    hints=[
        "Loop over the sequences: number n has the rows `starts_q[n]` to `starts_q[n + 1]`. What "
        "`attn` wants is (H, L, D).",
        "`attn.Causal()` goes with `q_offset=…`: the offset counts the keys before query 0, which "
        "is $S - L$ at the lower right corner.",
    ],
    notes=r"""
    This is what flash-attention's `flash_attn_varlen_func` computes with `causal=True`. Its
    kernel does not loop in Python, and it never sees a padded slot.
    """)
def attend_ragged(query, key, value, starts_q, starts_k):
    """Return the outputs of all sequences, (T_q, H, D)."""
    ### BEGIN SOLUTION
    output = np.zeros_like(query)
    for n in range(len(starts_q) - 1):
        rows = slice(starts_q[n], starts_q[n + 1])
        keys = slice(starts_k[n], starts_k[n + 1])
        parts = (x.swapaxes(0, 1)  # (H, L, D)
                 for x in (query[rows], key[keys], value[keys]))
        L, S = np.diff(starts_q)[n], np.diff(starts_k)[n]
        heads = attn.scaled_dot_product_attention(
            *parts, attn.Causal(), q_offset=int(S - L))
        output[rows] = heads.swapaxes(0, 1)
    return output
    ### END SOLUTION


@attend_ragged.check
def _(answer):
    for seed, starts_q, starts_k in ((0, [0, 2, 5], [0, 2, 5]), (1, [0, 2, 3, 7], [0, 5, 8, 12])):
        query, key, value = draw(seed, (starts_q[-1], 3, 2), (starts_k[-1], 3, 2),
                                 (starts_k[-1], 3, 2))
        call = query, key, value, np.array(starts_q), np.array(starts_k)
        got = answer(*(x.copy() for x in call))
        sideways = [attn.scaled_dot_product_attention(
            query[q:e], key[k:f][-(e - q):], value[k:f][-(e - q):])
            for q, e, k, f in zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False)]
        require_close(got, ragged(*call), what=f"attend_ragged with starts {starts_q}, {starts_k}",
                      slips=[
            (ragged(*call, corner="upper"), "the first query saw the first key only: align the "
             "last query with the last key, q_offset = S − L"),
            (ragged(*call, own=False), "a sequence saw those before it: cut its own keys out"),
            (ragged(*call, corner=None), "nothing is causal: later keys are visible"),
            (np.concatenate(sideways), "the heads were taken for the positions: attn wants "
             "(H, L, D), so swap the first two axes there and back")])


@attend_ragged.wrong("lets the first query see the first key only", says="align the last query")
def _(query, key, value, starts_q, starts_k):
    return ragged(query, key, value, starts_q, starts_k, corner="upper")


@attend_ragged.wrong("lets a sequence see those before it", says="cut its own keys out")
def _(query, key, value, starts_q, starts_k):
    return ragged(query, key, value, starts_q, starts_k, own=False)


@attend_ragged.wrong("forgets the mask", says="nothing is causal")
def _(query, key, value, starts_q, starts_k):
    return ragged(query, key, value, starts_q, starts_k, corner=None)


@attend_ragged.wrong("attends over the heads", says="taken for the positions")
def _(query, key, value, starts_q, starts_k):
    output = np.zeros_like(query)
    for q, q_end, k, k_end in zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False):
        n = q_end - q
        output[q:q_end] = attn.scaled_dot_product_attention(
            query[q:q_end], key[k:k_end][-n:], value[k:k_end][-n:])
    return output


class Local(nn.Module):
    """Local self-attention by nn.MultiheadAttention, called in some way, right or wrong."""

    def __init__(self, hidden, *, call=None, training=None, inference=None):
        super().__init__()
        torch.manual_seed(5)
        self.mha = nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
        self.hidden = hidden
        self.call = {"need_weights": False, **(call or {})}
        self.masks = {True: training, False: inference}

    def forward(self, x):
        L = x.shape[1]
        mask = self.masks[self.training]
        mask = self.hidden if mask is None else mask
        return self.mha(x, x, x, attn_mask=mask[:L, :L], **self.call)[0]


def hide(rule):
    return torch.from_numpy(~attn.dense_mask(rule, 11, 11)[0, 0])


MEANT = attn.Causal() & attn.SlidingWindow(3)
FAITHFUL = {
    "nothing is wrong": lambda: Local(hide(MEANT)),
    "the weights are computed": lambda: Local(hide(MEANT), call={"need_weights": True}),
}
UNFAITHFUL = {
    "the hint replaces the window in training":
        lambda: Local(hide(MEANT), call={"is_causal": True}),
    "inference sees one position too far back":
        lambda: Local(hide(MEANT), inference=hide(attn.SlidingWindow(4))),
    "the window is one too narrow": lambda: Local(hide(attn.SlidingWindow(2))),
    "inference sees itself only": lambda: Local(
        hide(MEANT), inference=hide(attn.SlidingWindow(0))),
    "the next position is visible": lambda: Local(hide(attn.SlidingWindow(3, 1))),
}


@practice.exercise(
    "The test that was missing", marks=2, minutes=15,
    statement=r"""
    `layer` is an `nn.Module` that maps $(B, L, 4)$ to the same shape, and `x` is such a tensor.
    `mask` is the rule that it is meant to keep. Return whether it does, in **both directions**
    (nothing hidden comes through, and everything visible does) and in **both modes**: in training,
    and under `eval()` with `torch.no_grad()`. Leave the layer in the mode in which you found it.
    """,
    hints=[
        "`attn.influence(function, x)` says which inputs change which outputs. With what is it to "
        "be compared? `attn.dense_mask(mask, L, L)[0, 0]`.",
        "Twice: after `layer.train()`, and after `layer.eval()` inside `with torch.no_grad():`. "
        "Note `layer.training` first and hand it to `layer.train(…)` in the end.",
    ],
    notes=r"""
    An influence may be too small to see, so a `False` of the second direction needs a look; with
    random numbers in `float64` and short sequences it does not happen. An output always depends on
    its own position where a residual connection is added, whatever the mask says.
    """)
def keeps_to_mask(layer, x, mask):
    """Return whether the layer lets through what the mask allows."""
    ### BEGIN SOLUTION
    before, L = layer.training, x.shape[1]
    meant = attn.dense_mask(mask, L, L)[0, 0]
    trained = attn.influence(layer.train(), x)
    layer.eval()
    with torch.no_grad():
        evaluated = attn.influence(layer, x)
    layer.train(before)
    return bool((trained == meant).all() and (evaluated == meant).all())
    ### END SOLUTION


HINTS = {
    "the hint replaces the window in training": "run it in training mode too",
    "inference sees one position too far back": "run it under eval() and no_grad() too",
    "the window is one too narrow": "what is visible has to come through as well",
    "inference sees itself only": "run it under eval() and no_grad() too, in both directions",
    "the next position is visible": "which inputs change which outputs?",
}


@keeps_to_mask.check
def _(answer):
    x = torch.from_numpy(draw(4, (2, 7, 4))[0])
    for why, make in (UNFAITHFUL | FAITHFUL).items():
        for mode in (True, False):
            layer = make().train(mode)
            got = answer(layer, x.clone(), MEANT)
            require(isinstance(got, bool | np.bool_), f"return True or False, not {got!r}")
            if why in UNFAITHFUL:
                require(not got, f"your test passes a layer in which {why}: {HINTS.get(why)}")
            require(got or why in UNFAITHFUL, f"your test condemns a layer in which {why}")
            require(layer.training == mode, "the layer came back in another mode: note "
                    "layer.training first, and restore it")


@keeps_to_mask.wrong("tests in inference only", says="run it in training mode too")
def _(layer, x, mask):
    before, L = layer.training, x.shape[1]
    layer.eval()
    with torch.no_grad():
        seen = attn.influence(layer, x)
    layer.train(before)
    return bool((seen == attn.dense_mask(mask, L, L)[0, 0]).all())


@keeps_to_mask.wrong("tests in training only", says="under eval() and no_grad() too")
def _(layer, x, mask):
    before, L = layer.training, x.shape[1]
    seen = attn.influence(layer.train(), x)
    layer.train(before)
    return bool((seen == attn.dense_mask(mask, L, L)[0, 0]).all())


@keeps_to_mask.wrong("looks for leaks and not for losses", says="has to come through as well")
def _(layer, x, mask):
    before, reports = layer.training, []
    reports.append(attn.find_leaks(layer.train(), x, mask).passed)
    layer.eval()
    with torch.no_grad():
        reports.append(attn.find_leaks(layer, x, mask).passed)
    layer.train(before)
    return all(reports)


@keeps_to_mask.wrong("looks into the future only", says="training mode too")
def _(layer, x, mask):
    return attn.find_leaks(layer, x, attn.Causal()).passed


@keeps_to_mask.wrong("leaves the layer in eval mode", says="in another mode")
def _(layer, x, mask):
    L = x.shape[1]
    meant = attn.dense_mask(mask, L, L)[0, 0]
    trained = attn.influence(layer.train(), x)
    with torch.no_grad():
        evaluated = attn.influence(layer.eval(), x)
    return bool((trained == meant).all() and (evaluated == meant).all())


def checkpoint(seed, num_heads, order, causal, E=12):
    """Return w_packed, w_output, an input and what the layer made of it."""
    *parts, w_output, x = draw(seed, *[(E, E)] * 4, (2, 5, E))
    w = np.stack(parts, axis=1).reshape(E, 3, num_heads, -1)
    w = w if order == "3hd" else w.swapaxes(1, 2)
    w_packed, w_output = w.reshape(E, 3 * E) / E**0.5, w_output / E**0.5
    return w_packed, w_output, x, run_packed(w_packed, w_output, x, num_heads, order, causal)


def run_packed(w_packed, w_output, x, num_heads, order, causal):
    parts = from_packed(x @ w_packed, num_heads, order)
    heads = attn.scaled_dot_product_attention(*parts, attn.Causal() if causal else None)
    return attn.merge_heads(heads) @ w_output


@practice.exercise(
    "A checkpoint without its code", marks=3, minutes=15,
    statement=r"""
    Somebody hands you two matrices and an example: `w_packed` $(E, 3E)$ and `w_output` $(E, E)$,
    inputs on their left, an input `x` $(B, L, E)$ and its output `y`. The layer is self-attention
    without biases, positions or padding, with $c = 1/\sqrt{D}$. How many heads, at least two?
    Packed as `"3hd"` or as `"h3d"`? Causal or not? Return `(num_heads, order, causal)`.
    """,
    hints=[
        "Every divisor of $E$ has fitting shapes, so try them all: heads, orders, both masks. "
        "`attn.split_heads` and exercise 1 give query, key and value.",
        "Compare with **all** of `y`. The last position sees everything in either case, and the "
        "first position of a causal layer sees itself only, whatever the heads.",
    ],
    notes=r"""
    Numbers from outside decide what no shape and no law could. With one head both orders are the
    same, which is why at least two were promised.
    """)
def decipher(w_packed, w_output, x, y):
    """Return (num_heads, order, causal)."""
    ### BEGIN SOLUTION
    B, L, E = x.shape
    for H in (n for n in range(2, E + 1) if E % n == 0):
        for order, axis in (("3hd", 2), ("h3d", 3)):
            axes = (3, H) if order == "3hd" else (H, 3)
            parts = (x @ w_packed).reshape(B, L, *axes, E // H)
            parts = np.moveaxis(parts, axis, 0).swapaxes(2, 3)
            for causal in (True, False):
                mask = attn.Causal() if causal else None
                heads = attn.scaled_dot_product_attention(*parts, mask)
                output = attn.merge_heads(heads) @ w_output
                if np.allclose(output, y, rtol=0, atol=1e-9):
                    return H, order, causal
    return None
    ### END SOLUTION


@decipher.check
def _(answer):
    for seed, want in enumerate([(3, "3hd", True), (4, "3hd", False), (2, "h3d", True),
                                 (6, "h3d", False), (12, "h3d", True)]):
        got = answer(*checkpoint(seed, *want))
        require(isinstance(got, tuple | list) and len(got) == 3,
                f"a layer with {want}: return (num_heads, order, causal), not {got!r}")
        for i, hint in ((2, "try both masks, and compare with all of y: the last position sees "
                            "everything, causal or not"),
                        (1, "both orders have the same shape: try both against y"),
                        (0, "every divisor of E has fitting shapes; and the first position of a "
                            "causal layer sees itself only, so it cannot tell the heads")):
            require(got[i] == want[i], f"a layer with {want} was read as {tuple(got)}: {hint}")


def search(w_packed, w_output, x, y, where=slice(None), orders=("3hd", "h3d"),
           masks=(True, False)):
    """Return the first guess that gives y at these positions."""
    E = x.shape[-1]
    for num_heads in (n for n in range(2, E + 1) if E % n == 0):
        for order in orders:
            for causal in masks:
                guess = run_packed(w_packed, w_output, x, num_heads, order, causal)
                if np.allclose(guess[:, where], y[:, where], rtol=0, atol=1e-9):
                    return num_heads, order, causal
    return 2, orders[0], masks[0]


@decipher.wrong("compares the last position only", says="the last position sees everything")
def _(w_packed, w_output, x, y):
    return search(w_packed, w_output, x, y, where=slice(-1, None))


@decipher.wrong("compares the first position only", says="cannot tell the heads")
def _(w_packed, w_output, x, y):
    return search(w_packed, w_output, x, y, where=slice(0, 1))


@decipher.wrong("takes every layer for causal", says="try both masks")
def _(w_packed, w_output, x, y):
    return search(w_packed, w_output, x, y, masks=(True,))


@decipher.wrong("takes one order of packing for granted", says="try both against y")
def _(w_packed, w_output, x, y):
    return search(w_packed, w_output, x, y, orders=("3hd",))


@decipher.wrong("takes the shapes for evidence", says="every divisor of E")
def _(w_packed, w_output, x, y):
    return 2, "3hd", True


practice.quiz(
    Question("Arrays of shape $(B, L, H, D)$ go to a function that reads $(B, H, L, D)$. "
             "What comes out?", [
        choice("An error, because the axes do not fit",
               reason="They fit: all three arrays have the same shape, whatever the axes are "
                      "called."),
        choice("Each token attends to its own heads, and never to another token", right=True,
               reason="The axis of the heads stands where the positions are expected. The "
                      "influence of tokens on tokens is the identity."),
        choice("The right output, with two axes swapped",
               reason="The softmax runs over heads and not over positions, so the numbers are "
                      "others."),
        choice("NaN", reason="Every row has something to attend to."),
    ]),
    Question("A checkpoint holds one matrix of shape $(3E, E)$ for queries, keys and values. What "
             "tells whether it is packed as (3, H, D) or as (H, 3, D)?", [
        choice("Its shape", reason="Both have this shape."),
        choice("Whether a model with it trains",
               reason="With either reading the layer is a proper attention, and it trains."),
        choice("The code it was trained with, or outputs known from there", right=True,
               reason="Only numbers from outside tell. That is why a port is compared with the "
                      "original."),
        choice("A causality test",
               reason="Both readings are causal: positions are not mixed by either."),
    ]),
    Question("`layer.eval()`, then `layer(x, x, x, is_causal=True)` under `torch.no_grad()`, with "
             "an `nn.MultiheadAttention` of four heads, batch first. What is masked?", [
        choice("The future", reason="The flag is a hint about a mask that was not given."),
        choice("Nothing", right=True,
               reason="The fast path does not read the flag. In training the same call is an "
                      "error."),
        choice("It raises, since `attn_mask` is missing",
               reason="In training it does; in inference the check is not reached."),
    ]),
    Question("Which of these may change the *output* of `nn.MultiheadAttention`?", [
        choice("`need_weights`, when a row is empty or a hint is given", right=True,
               reason="It chooses the code path: NaN or 0 for an empty row, and whether the hint "
                      "replaces the mask."),
        choice("`average_attn_weights`", reason="It changes only what is returned besides."),
        choice("`batch_first`, for an input of two axes",
               reason="The documentation says that it is ignored there, and it is."),
        choice("None of them",
               reason="One of them only says what to return, and changes what is computed."),
    ]),
    Question("A test of a layer with a window of 4 changes all inputs from position 9 on and finds "
             "that outputs 0 to 8 stay the same. What has it shown?", [
        choice("That the layer keeps to its mask",
               reason="The mask also hides what is more than four positions back."),
        choice("That the future does not leak, on the path that was run", right=True,
               reason="Nothing about the past beyond the window, nothing about what should come "
                      "through, and nothing about the other mode."),
        choice("Nothing, because a change of an output may be too small to be seen",
               reason="With random numbers in `float64` a leak is seen bit for bit."),
    ]))
