"""flash-attention's masks, which are no arrays: cumulative lengths and windows.

Part of attn.conventions.
"""

import numpy as np

from attn import arguments
from attn.arrays import to_numpy
from attn.conventions import forms


def from_flash_lengths(cu_seqlens_q, cu_seqlens_k=None, *, window_size=(-1, -1), causal=False):
    """Write out what flash_attn_varlen_func shows to whom in a packed row of sequences.

    Parameters
    ----------
    cu_seqlens_q : array of int, shape (N + 1,)
        Where each of N sequences of queries starts, then the total: 0, n₁, n₁ + n₂, …
    cu_seqlens_k : array of int, shape (N + 1,), optional
        The same for keys; `cu_seqlens_q` unless given.
    window_size, causal
        As in from_flash_window, within each sequence.

    Returns
    -------
    ndarray of bool, shape (1, 1, L, S)
        L and S are the totals.

    Raises
    ------
    TypeError, ValueError
        Not integers, not starting at 0, falling, or N differs.

    Source: https://github.com/Dao-AILab/flash-attention, flash_attn_interface.py,
    flash_attn_varlen_func.

    Examples
    --------
    >>> from_flash_lengths([0, 1, 3])[0, 0].astype(int)
    array([[1, 0, 0],
           [0, 1, 1],
           [0, 1, 1]])
    """
    window_size = _window(window_size)
    starts_q = _starts("cu_seqlens_q", cu_seqlens_q)
    starts_k = starts_q if cu_seqlens_k is None else _starts("cu_seqlens_k", cu_seqlens_k)
    if len(starts_q) != len(starts_k):
        raise ValueError(
            f"cu_seqlens_k: expected N + 1 = {len(starts_q)} entries, got {len(starts_k)}"
        )
    mask = np.zeros((1, 1, starts_q[-1], starts_k[-1]), bool)
    for q, q_end, k, k_end in zip(starts_q, starts_q[1:], starts_k, starts_k[1:], strict=False):
        mask[:, :, q:q_end, k:k_end] = from_flash_window(
            window_size, int(q_end - q), int(k_end - k), causal=causal
        )
    return mask


def _starts(name, values):
    try:
        values = to_numpy(values)
    except ValueError:
        raise ValueError(f"{name}: expected integers of shape (N + 1,), got {values!r}") from None
    if values.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got dtype {values.dtype}")
    values = values.astype(np.int64)  # unsigned ones would never fall
    if values.ndim != 1 or not len(values) or values[0] != 0 or (np.diff(values) < 0).any():
        raise ValueError(f"{name}: expected 0, n₁, n₁ + n₂, … of shape (N + 1,), got {values}")
    return values


def to_flash_lengths(mask):
    """Read the lengths of sequences off a mask in which each sees itself whole and no other.

    Parameters
    ----------
    mask : array of bool, shape (L, S), or four axes of which the first two are 1

    Returns
    -------
    tuple of ndarray of int32, each of shape (N + 1,)
        cu_seqlens_q and cu_seqlens_k.

    Raises
    ------
    TypeError, ValueError
        Not boolean, several batch rows or heads, or not such blocks along the diagonal.

    Source: as from_flash_lengths.

    Examples
    --------
    >>> to_flash_lengths(np.array([[1, 0, 0], [0, 1, 1]], bool))
    (array([0, 1, 2], dtype=int32), array([0, 1, 3], dtype=int32))
    """
    mask = _two_axes(mask)
    cuts = [np.flatnonzero((x[1:] != x[:-1]).any(axis=1)) + 1 for x in (mask, mask.T)]
    starts = tuple(
        np.array([0, *cut, n], np.int32) for cut, n in zip(cuts, mask.shape, strict=True)
    )
    if len(starts[0]) != len(starts[1]) or not np.array_equal(
        from_flash_lengths(*starts)[0, 0], mask
    ):
        raise ValueError("mask: expected sequences that each see themselves whole and no other")
    return starts


def from_flash_window(window_size, q_len, k_len, *, causal=False):
    """Write out flash-attention's window, which lies along the diagonal that ends lower-right.

    Query i sees the keys from i + S − L − left to i + S − L + right.

    Parameters
    ----------
    window_size : (int, int)
        Left and right; -1 = unbounded.
    q_len, k_len : int
        L and S.
    causal : bool
        Makes right 0.

    Returns
    -------
    ndarray of bool, shape (1, 1, L, S)

    Raises
    ------
    TypeError, ValueError
        Not integers, or below -1.

    Source: as from_flash_lengths; the lower-right corner, its changelog, version 2.1.

    Examples
    --------
    >>> from_flash_window((1, 0), 2, 4)[0, 0].astype(int)
    array([[0, 1, 1, 0],
           [0, 0, 1, 1]])
    """
    left, right = _window(window_size)
    for name, length in (("q_len", q_len), ("k_len", k_len)):
        arguments.integer(name, length, low=0)
    right = 0 if causal else right
    ahead = np.arange(k_len) - (np.arange(q_len)[:, None] + k_len - q_len)  # (L, S)
    mask = np.ones((q_len, k_len), bool)
    if left >= 0:
        mask &= ahead >= -left
    if right >= 0:
        mask &= ahead <= right
    return mask[None, None]


def _window(window_size):
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise TypeError(
            f"window_size: expected (left, right), two ints, got {window_size!r}"
        ) from None
    for reach in (left, right):
        arguments.integer("window_size", reach, low=-1)
    return left, right


def to_flash_window(mask):
    """Read flash-attention's window off a mask that is a band along the lower-right diagonal.

    Parameters
    ----------
    mask : array of bool, shape (L, S), or four axes of which the first two are 1

    Returns
    -------
    (int, int)
        Left and right; -1 where nothing is hidden on that side.

    Raises
    ------
    TypeError, ValueError
        Not boolean, several batch rows or heads, or not such a band.

    Source: as from_flash_window.

    Examples
    --------
    >>> to_flash_window(np.tril(np.ones((3, 3), bool)))
    (-1, 0)
    """
    mask = _two_axes(mask)
    L, S = mask.shape
    ahead = np.arange(S) - (np.arange(L)[:, None] + S - L)
    left, right = (max(int((side * ahead)[mask].max(initial=0)), 0) for side in (-1, 1))
    left = -1 if mask[ahead < 0].all() else left
    right = -1 if mask[ahead > 0].all() else right
    if not np.array_equal(from_flash_window((left, right), L, S)[0, 0], mask):
        raise ValueError("mask: expected a band along the diagonal that ends in the lower right")
    return left, right


def _two_axes(mask):
    mask = to_numpy(forms.boolean("mask", mask))
    if mask.ndim not in (2, 4) or (mask.ndim == 4 and mask.shape[:2] != (1, 1)):
        raise ValueError(f"mask: expected shape (L, S) or (1, 1, L, S), got {mask.shape}")
    return mask.reshape(mask.shape[-2:])
