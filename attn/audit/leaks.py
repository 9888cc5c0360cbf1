"""What leaks in a model: which inputs change which outputs, bit for bit, against the mask meant.

Works on anything that can be called with a sequence and returns one. Imports attn.arguments,
attn.audit.cover, attn.masks.layout, attn.audit.report, attn.masks and attn.audit.probe.
"""

import numpy as np

from attn import arguments
from attn.audit.cover import covering_sets
from attn.audit.probe import Probe, change, same_bits
from attn.audit.report import Leak, LeakReport, kind_of
from attn.masks import Mask
from attn.masks.layout import dense_mask

RANDOM = (
    "Two equal calls differ (dropout? then call .eval()): the random numbers were repeated in "
    "every call."
)
UNREPEATABLE = (
    "Two equal calls differ, and go on to when the random numbers of random, NumPy and torch are "
    "repeated: nothing can be said of leaks."
)


def influence(function, x, *, batched=None):
    """Which inputs change which outputs.

    Takes 2·L_in + 2 calls: each position is changed twice, by different amounts. A False is
    evidence, not proof: an influence smaller than rounding, or one that needs other values of x, is
    not seen. float64 sees more than float32.

    Parameters
    ----------
    function : callable
        From a sequence to a sequence, (L_in, …) -> (L_out, …) or (B, L_in, …) -> (B, L_out, …).
    x : array or tensor
        Floats, or token ids of which at least two differ. Not changed.
    batched : bool, optional
        Whether the first axis of `x` is the batch; unless given, floats of three axes and integers
        of two have one.

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
    with Probe(function, x, batched) as probe:
        base, _, unrepeatable = probe.settle()
        if unrepeatable:
            raise ValueError(f"function: expected equal outputs for equal inputs. {UNREPEATABLE}")
        seen = np.zeros((base.shape[1], probe.L), bool)
        for j in range(probe.L):
            for kind in range(probe.KINDS):
                after = probe.outputs(np.arange(probe.L) == j, kind)
                seen[:, j] |= (~same_bits(base, after)).any(axis=0)
        return seen


def find_leaks(function, x, mask, *, layers=1, batched=None):
    """Look for outputs that depend on inputs which the mask hides from them.

    Positions that a set of outputs may not see are changed together, so that L_in² pairs take few
    calls: 2 + 2·n, where n is L_in - 1 for a triangle (no method needs fewer), about ten for
    padding and documents, about six times the width for a window; one more for a batch; then about
    2·log₂ L_in to name the first leak. An output may always depend on its own position, where its
    query comes from.

    No leak found is evidence, not proof: an influence smaller than rounding, or one that needs
    other values of x, is not seen. A model that works out its mask from token ids would be
    misjudged, because padding would be replaced by tokens and tokens by padding: hand such a model
    its mask.

    Parameters
    ----------
    function, x, batched
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
    with Probe(function, x, batched) as probe:
        base, random, unrepeatable = probe.settle()
        allowed, meant = _reach(mask, base.shape[1], probe, layers)
        if unrepeatable:
            return LeakReport(False, None, (), True, (UNREPEATABLE,), probe.calls)
        notes = [RANDOM] if random else []
        blank = np.isnan(base).all(axis=-1) if base.dtype.kind in "fc" else np.zeros((1, 1), bool)
        if blank.any():
            where = np.flatnonzero(blank.any(axis=0)).tolist()
            notes.append(f"Outputs {where} are NaN, so that no change of them can be seen.")
        leaking = _sweep(probe, base, allowed)
        leak = _mixing(probe, base)
        if leaking.any():
            leak = _first(probe, base, allowed, meant, leaking)
        outputs = tuple(np.flatnonzero(leaking.any(axis=0)).tolist())
        passed = leak is None and not blank.any()
        return LeakReport(passed, leak, outputs, random, tuple(notes), probe.calls)


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
    heads = mask.shape[-3] if getattr(mask, "ndim", 0) > 2 else 1
    meant = dense_mask(mask, L_out, L_in, batch=probe.B, heads=heads).any(axis=1)
    if L_out != L_in:
        if layers > 1:
            raise ValueError(f"layers: expected 1 where {L_in} inputs give {L_out} outputs")
        return meant, meant
    allowed = one = meant | np.eye(L_in, dtype=bool)
    for _ in range(layers - 1):
        allowed = allowed.astype(np.float32) @ one.astype(np.float32) > 0
    return allowed, meant


def _sweep(probe, base, allowed):
    """Which outputs (B, L_out) depend on something hidden; every pair is looked at."""
    plans = [covering_sets(one) for one in allowed]
    leaking = np.zeros((probe.B, base.shape[1]), bool)
    for turn in range(max(map(len, plans))):
        nothing = np.zeros(probe.L, bool)
        where = np.array([plan[turn] if turn < len(plan) else nothing for plan in plans])
        blind = ~(allowed & where[:, None]).any(axis=-1)
        for kind in range(probe.KINDS):
            leaking |= blind & ~same_bits(base, probe.outputs(where, kind))
    return leaking


def _mixing(probe, base):
    """Does batch row 0 change another one?"""
    if probe.B == 1:
        return None
    where = np.zeros((probe.B, probe.L), bool)
    where[0] = True
    gap = change(base, probe.outputs(where))
    gap[0] = 0
    if not gap.any():
        return None
    output, batch = (int(i) for i in np.argwhere(gap.T)[0])
    return Leak(output, 0, batch, float(gap[batch, output]), "another batch row")


def _first(probe, base, allowed, meant, leaking):
    """Bisect for the first input that changes the first output that leaks."""
    output, batch = (int(i) for i in np.argwhere(leaking.T)[0])
    hidden = np.flatnonzero(~allowed[batch % len(allowed), output])

    def gap(positions):
        where = np.zeros((probe.B, probe.L), bool)
        where[batch, positions] = True
        return max(change(base, probe.outputs(where, kind))[batch, output]
                   for kind in range(probe.KINDS))  # fmt: skip

    low, high = 0, len(hidden)  # hidden[:low] changes nothing, hidden[:high] does
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if gap(hidden[:middle]) else (middle, high)
    first = int(hidden[low])
    kind = kind_of(meant[batch % len(meant)], output, first)
    return Leak(output, first, batch, float(gap([first]) or gap(hidden[:high])), kind)
