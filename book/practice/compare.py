"""What a check says to the reader: comparisons that end in a diagnosis, not in a traceback."""

import numpy as np


class Wrong(Exception):
    """The reader's answer is wrong; the message says what is likely the reason."""


def require(condition, diagnosis):
    """Raise Wrong with the diagnosis unless the condition holds."""
    if not condition:
        raise Wrong(diagnosis)


def require_close(got, want, *, what="the result", slips=(), atol=1e-6):
    """Raise Wrong unless two arrays agree, with the most telling reason there is.

    Parameters
    ----------
    got, want : array_like, Tensor or number
        The reader's value and the right one.
    what : str
        Names the value in the message, such as "softmax_row([1, 2])".
    slips : sequence of (value, diagnosis)
        What known mistakes give: a result equal to one of them gets its diagnosis.
    atol : float
        Largest absolute difference that counts as equal.

    Raises
    ------
    Wrong
        If the values differ by more than `atol`.

    Examples
    --------
    >>> require_close([0.5, 0.5], [0.5, 0.5])
    >>> require_close([1.0, 1.0], [0.5, 0.5], slips=[([1.0, 1.0], "you forgot to divide")])
    Traceback (most recent call last):
    practice.compare.Wrong: you forgot to divide
    """
    got, want = _array(got, what), _array(want, "the expected value")
    if _equal(got, want, atol):
        return
    for value, diagnosis in slips:
        if _equal(got, _array(value, diagnosis), atol):
            raise Wrong(diagnosis)
    if got.shape != want.shape:
        raise Wrong(f"{what} has shape {got.shape}, expected {want.shape}")
    place = tuple(int(i) for i in np.argwhere(~np.isclose(got, want, rtol=0, atol=atol))[0])
    where = f" at {list(place)}" if place else ""
    raise Wrong(f"{what}{where} is {got[place]:.4g}, expected {want[place]:.4g}")


def _equal(got, want, atol):
    return got.shape == want.shape and np.allclose(got, want, rtol=0, atol=atol, equal_nan=True)


def _array(value, what):
    if value is None:
        raise Wrong(f"{what} is None: is a `return` missing?")
    if hasattr(value, "detach"):  # a tensor, of any dtype, on any device
        value = value.detach().cpu().double()
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise Wrong(f"{what} should be numbers, came {type(value).__name__}: {value!r}") from None
