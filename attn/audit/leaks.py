"""What leaks in a model: which inputs change which outputs, against the mask that was meant.

Works on anything that can be called with a sequence and returns one. Imports attn.arguments,
attn.masks and the other files of attn.audit.
"""

import numpy as np

from attn import arguments
from attn.audit.cover import covering_pools
from attn.audit.entries import described
from attn.audit.probe import EPS, Change, Probe, modules_in_training
from attn.audit.report import Leak, LeakReport, kind_of
from attn.audit.rounding import Rounding
from attn.audit.stack import Stack
from attn.masks import Mask, dense_mask

REPEATED = "the random numbers were repeated in every call."
UNREPEATABLE = (
    "Two equal calls differ, and go on to when the random numbers of random, NumPy and torch are "
    "repeated: nothing can be said of leaks."
)
SEQUENCE_FIRST = (
    "With the first two axes of x and of the output swapped nothing leaks: the function takes "
    "(L, B, …), as nn.MultiheadAttention does unless batch_first=True. Hand over "
    "lambda x: function(x.swapaxes(0, 1)).swapaxes(0, 1) if that is meant."
)


def influence(function, x, *, batched=None, progress=None):
    """Which inputs change which outputs.

    Each position is changed twice, by different amounts: 2·L_in + 2 calls, or far fewer for a batch
    whose rows do not depend on one another, where up to 64 copies go into one call. A change as
    small as rounding costs five calls more to tell whether it is rounding, and then it is none.
    A False is evidence, not proof: an influence smaller than rounding, or one that needs other
    values of x, is not seen. float64 sees more than float32.

    Parameters
    ----------
    function : callable
        From a sequence to a sequence, (L_in, …) -> (L_out, …) or (B, L_in, …) -> (B, L_out, …).
        Of a tuple, a dictionary or an object with attributes that it returns, the first entry of
        floats with L_in positions is judged.
    x : array or tensor, or a tuple or dictionary with one
        Floats, or token ids of which at least two differ. Not changed. Of a tuple or a dictionary
        the one entry of floats, or else of token ids, is changed.
    batched : bool, optional
        Whether the first axis of `x` is the batch; unless given, floats of three axes and integers
        of two have one.
    progress : callable, optional
        Called with (calls made, calls planned) before the first change and after each call. Unless
        given, a terminal that waits longer than three seconds is told, and nobody else.

    Returns
    -------
    ndarray of bool, shape (L_out, L_in)
        In any batch row.

    Raises
    ------
    TypeError, ValueError
        `x` or what `function` returns is no sequence; two equal calls differ for good.

    Source: dependency by finite change, as in the causality tests of autoregressive models.

    Examples
    --------
    >>> influence(np.cumsum, np.array([1.0, 2.0, 4.0])).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 1]])
    """
    with Probe(function, x, batched, progress) as probe:
        base, _, differ = probe.settle()
        _refuse_pooled(probe, base)
        rounding = Rounding(probe, base)
        if differ and not rounding.of_equal_calls():
            raise ValueError(f"function: expected equal outputs for equal inputs. {UNREPEATABLE}")
        stack = Stack(probe, base)
        one = np.eye(probe.L, dtype=bool)
        changes = [Change(one[j], kind) for j in range(probe.L) for kind in range(probe.KINDS)]
        stack.prepare(len(changes))
        moved = np.zeros((base.shape[1], probe.L))
        for change, before, after in stack.each(changes):
            j = change.where.argmax()
            moved[:, j] = np.maximum(moved[:, j], rounding.size(before, after, change).max(axis=0))
        return moved > rounding.least


def find_leaks(function, x, mask, *, layers=1, batched=None, progress=None):
    """Look for outputs that depend on inputs which the mask hides from them.

    Positions that a set of outputs may not see are changed together, so that L_in² pairs take few
    calls: 2 + 2·n, where n is L_in - 1 for a triangle (no method needs fewer), about ten for
    padding and documents, about six times the width for a window; one more for a batch; then about
    2·log₂ L_in to name the first leak. Up to 64 of these calls become one for a batch whose rows do
    not depend on one another, which three calls test. `progress` is told the number before they
    are made. An output may always depend on its own position, where its query comes from.

    A change that is no larger than rounding is a note and no leak. It is measured: the changed
    inputs are moved by a millionth of themselves, which draws the rounding anew and hardly moves
    what depends on them. (Token ids cannot be moved by so little. For them, rounding is 32 times
    that of the largest output.)

    No leak found is evidence, not proof: an influence smaller than rounding, or one that needs
    other values of x, is not seen. A model that works out its mask from token ids would be
    misjudged, because padding would be replaced by tokens and tokens by padding: hand such a model
    its mask.

    Parameters
    ----------
    function, x, batched, progress
        As in influence. A module is called as it is: in eval mode if you put it there.
    mask : Mask or array of bool
        What is meant, True = may attend: a rule, or shape (L_out, L_in) up to
        (B, H, L_out, L_in); a pair is hidden if all heads hide it.
    layers : int
        A stack of layers sees further than its mask: with a window of 3, two layers see 6 back.

    Returns
    -------
    LeakReport

    Raises
    ------
    TypeError, ValueError
        As influence, and for a mask that does not fit.

    Source: as influence; group testing, Dorfman (1943).

    Examples
    --------
    >>> from attn import Causal
    >>> print(find_leaks(lambda x: x - x.mean(), np.arange(5.0), Causal()))
    Leak: output 0 changes by 3.69 when input 1 changes: it looks into the future.
    Outputs that leak: 0–3.
    (16 calls)
    """
    arguments.integer("layers", layers, low=1)
    with Probe(function, x, batched, progress) as probe:
        base, random, differ = probe.settle()
        _refuse_pooled(probe, base, mask)
        allowed, meant = _reach(mask, base.shape[1], probe, layers)
        rounding, notes = Rounding(probe, base), _reading(probe)
        if differ and not rounding.of_equal_calls():
            notes = (UNREPEATABLE, *_training(function, True, None))
            return LeakReport(False, None, (), True, notes, probe.calls)
        leak, leaking = _search(probe, base, allowed, meant, rounding)
        notes += _training(function, random, leak)
        notes += [_rounding_note(rounding, differ)] if differ or rounding.ignored else []
        blank = np.isnan(base).all(axis=-1) if base.dtype.kind in "fc" else np.zeros((1, 1), bool)
        if blank.any():
            where = np.flatnonzero(blank.any(axis=0)).tolist()
            notes.append(f"Outputs {where} are NaN, so that no change of them can be seen.")
        if leak and probe.batched and _keeps_as_sequence_first(function, x, mask, layers, probe):
            notes.append(SEQUENCE_FIRST)
        outputs = tuple(np.flatnonzero(leaking.any(axis=0)).tolist())
        passed = leak is None and not blank.any()
        return LeakReport(
            passed, leak, outputs, random, tuple(notes), probe.calls, rounding.ignored
        )  # fmt: skip


def _search(probe, base, allowed, meant, rounding):
    """The first leak, or None, and which outputs (B, L_out) leak."""
    stack, changes = Stack(probe, base), _changes(probe, allowed)
    stack.prepare(len(changes) + (probe.B > 1))
    while True:
        leaking = _sweep(stack, changes, allowed, rounding)
        leak = _mixing(probe, base, rounding)
        if leaking.any():
            alone = stack.copies == 1 and probe.B == 1  # then the sweep has shown it already
            leak = _first(probe, base, allowed, meant, leaking, rounding, alone) or leak
        if leak is None and leaking.any() and stack.copies > 1:
            stack.copies = 1  # what leaks among many copies does not leak alone: one change a call
            continue
        if leak is None and leaking.any():  # pools of several batch rows changed together
            leaks = (_mixing(probe, base, rounding, row) for row in range(1, probe.B))
            leak = next((one for one in leaks if one is not None), None)
        return leak, leaking


def _reading(probe):
    """How tuples and dictionaries were read."""
    notes = []
    if probe.key is not None:
        notes.append(f"Of x, {described(probe.key)} was changed.")
    if probe.entry is not None:
        notes.append(f"Of the output, {described(probe.entry)} was judged.")
    return notes


def _training(function, random, leak):
    """What to do about dropout and batch normalisation."""
    modules = modules_in_training(function)
    named = ", ".join(f"{type(module).__name__}.eval()" for module in modules)
    notes = []
    if random:
        hint = f"in training mode: call {named}" if named else "dropout? then call .eval()"
        notes.append(f"Two equal calls differ ({hint}): {REPEATED}")
    elif named and leak is not None and _mixes_in_training(modules, leak):
        notes.append(
            "The module is in training mode, where batch normalisation mixes positions and batch "
            f"rows: call {named} to judge it as it is used."
        )
    return notes


def _mixes_in_training(modules, leak):
    parts = [part for one in modules for part in getattr(one, "modules", list)()]
    norms = any("BatchNorm" in type(part).__name__ for part in parts)
    return norms or leak.kind == "another batch row"


def _rounding_note(rounding, differ):
    if differ:
        return (
            f"Equal calls differ by up to {rounding.floor:.1g}, as where sums run in parallel: "
            f"changes up to {rounding.least:.1g} are not counted."
        )
    more = " float64 sees more." if rounding.probe.eps > EPS["float64"] else ""
    return (
        f"Hidden inputs change outputs by up to {rounding.ignored:.1g}: no more than rounding "
        f"does, so that is no leak.{more}"
    )


def _refuse_pooled(probe, base, mask=None):
    """(B, D) from (B, L, E) has no axis of positions, and D features are not D outputs."""
    L_out = base.shape[1]
    said = not isinstance(mask, Mask) and getattr(mask, "shape", (0, 0))[-2:-1] == (L_out,)
    has_features = probe.whole or probe.x.ndim > 1 + probe.batched
    if probe.features or not has_features or L_out == probe.L or said or not probe.eps:
        return
    shape = (probe.B, L_out) if probe.batched else (L_out,)
    raise ValueError(
        f"function: expected one output for each position, got {shape} for x "
        f"{tuple(probe.x.shape)}: is it pooled, with {L_out} features and no axis of positions? "
        f"Hand over the function before pooling, or give the output an axis of length 1 (and a "
        f"mask of shape (1, {probe.L}))"
    )


def _reach(mask, L_out, probe, layers):
    """What may influence what, and the mask that was meant; both (1|B, L_out, L_in)."""
    L_in, rule = probe.L, isinstance(mask, Mask)
    if rule and mask.compares_positions and L_out != L_in:
        raise ValueError(
            f"mask: {mask!r} compares positions, but {L_in} inputs give {L_out} outputs: pass "
            f"dense_mask(rule, {L_out}, {L_in}, q_offset=…)"
        )
    if not rule and hasattr(mask, "detach"):
        mask = mask.detach().cpu().numpy()
    shape = getattr(mask, "shape", ())
    if probe.batched and shape[-1:] == (probe.B,) != (L_in,):
        raise ValueError(
            f"mask: expected {L_in} inputs, since x {tuple(probe.x.shape)} is read as (B, L, …), "
            f"got a mask of {probe.B}: if x is (L, B, …), hand over x.swapaxes(0, 1) and "
            "lambda x: function(x.swapaxes(0, 1)).swapaxes(0, 1)"
        )
    heads = shape[-3] if len(shape) > 2 else 1
    meant = dense_mask(mask, L_out, L_in, batch=probe.B, heads=heads).any(axis=1)
    if L_out != L_in:
        if layers > 1:
            raise ValueError(f"layers: expected 1 where {L_in} inputs give {L_out} outputs")
        return meant, meant
    allowed = one = meant | np.eye(L_in, dtype=bool)
    for _ in range(layers - 1):
        allowed = allowed.astype(np.float32) @ one.astype(np.float32) > 0
    return allowed, meant


def _changes(probe, allowed):
    """Changes that together test every hidden pair; batch rows have pools of their own."""
    designs = [covering_pools(one) for one in allowed]
    nothing = np.zeros(probe.L, bool)
    turns = range(max(map(len, designs)))
    pools = [np.array([d[turn] if turn < len(d) else nothing for d in designs]) for turn in turns]
    return [Change(where, kind) for where in pools for kind in range(probe.KINDS)]


def _sweep(stack, changes, allowed, rounding):
    """Which outputs (B, L_out) depend on something hidden; every pair is tested."""
    moved = np.zeros(stack.base.shape[:2])
    for change, before, after in stack.each(changes):
        blind = ~(allowed & change.where[:, None]).any(axis=-1)
        # What is known to leak needs no second look, which could cost calls.
        rows = blind & (moved <= rounding.least)
        moved = np.maximum(moved, rounding.size(before, after, change, rows))
    return moved > rounding.least


def _mixing(probe, base, rounding, row=0):
    """Does a batch row change another one?"""
    if probe.B == 1:
        return None
    rows = np.arange(probe.B)[:, None] != row
    change = Change(~rows & np.ones(probe.L, bool))
    gap = rounding.size(base, probe.outputs(change), change, rows)
    if not gap.any():
        return None
    output, batch = (int(i) for i in np.argwhere(gap.T)[0])
    return Leak(output, 0, batch, float(gap[batch, output]), "another batch row")


def _first(probe, base, allowed, meant, leaking, rounding, certain):
    """Bisect for the first input that changes the first output that leaks; None if none does."""
    output, batch = (int(i) for i in np.argwhere(leaking.T)[0])
    hidden = np.flatnonzero(~allowed[batch % len(allowed), output])
    row = np.zeros(base.shape[:2], bool)
    row[batch, output] = True

    def gap(positions):
        where = np.zeros((probe.B, probe.L), bool)
        where[batch, positions] = True
        changes = [Change(where, kind) for kind in range(probe.KINDS)]
        return max(rounding.size(base, probe.outputs(change), change, row)[batch, output]
                   for change in changes)  # fmt: skip

    low, high = 0, len(hidden)  # hidden[:low] changes nothing, hidden[:high] does
    if not certain and not gap(hidden):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if gap(hidden[:middle]) else (middle, high)
    first = int(hidden[low])
    kind = kind_of(meant[batch % len(meant)], output, first)
    return Leak(output, first, batch, float(gap([first]) or gap(hidden[:high])), kind)


def _keeps_as_sequence_first(function, x, mask, layers, probe):
    """Would nothing leak if x were (L, B, …)?"""
    try:
        with Probe(function, x, True, None, sequence_first=True) as other:
            other.progress = probe.progress
            base, _, differ = other.settle()
            allowed, meant = _reach(mask, base.shape[1], other, layers)
            rounding = Rounding(other, base)
            if differ and not rounding.of_equal_calls():
                return False
            return _search(other, base, allowed, meant, rounding)[0] is None
    except (TypeError, ValueError, IndexError):
        return False
