"""The key/value cache: what a model keeps so that each new token costs one row of attention.

Written once for both libraries: it holds NumPy arrays or tensors, whichever it is fed, and never
imports torch. Token t of the sequence lives in slot t % capacity; a plain cache stops when its
slots are full, a ring goes round and forgets the oldest. The length is counted, never guessed from
what the slots hold.

Slots are allocated once, at the first append: memory is known before a long run, not in its middle,
and writing costs O(new). What is handed out is a fresh array, never a view of the slots: a caller
who writes into it must not change the past, and autograd refuses to go back through a view that a
later append has written to. Copying it costs what attention pays anyway to read it.
"""

import sys
from contextlib import nullcontext
from copy import deepcopy

import numpy as np

from attn import arguments
from attn.arrays import dtype_name


class KVCache:
    """Keys and values of the tokens so far, for attention that goes on token by token.

    Parameters
    ----------
    capacity : int
        How many tokens are held at most.
    ring : bool
        Forget the oldest tokens instead of refusing new ones: for rules that look back at most
        `capacity` positions, such as SlidingWindow(left) with left <= capacity. Once tokens are
        dropped, multi_head_attention and the layer refuse any other rule.

    Attributes
    ----------
    length : int
        Tokens fed so far, dropped ones included.
    start : int
        Position of the oldest token held: max(0, length − capacity).
    key, value : array of shape (B, Hkv, length − start, D) and (…, Dv)
        Copies of what is held, oldest first, detached from autograd; None before the first append.

    Raises
    ------
    ValueError, TypeError
        `capacity` is below 1 or not an int.

    Source: Shazeer (2019), section 2.4, incremental decoding; the ring is the rolling buffer of
    Jiang et al. (2023), section 2.

    Examples
    --------
    >>> cache = KVCache(4)
    >>> keys, values = cache.append(np.zeros((3, 2)), np.zeros((3, 5)))
    >>> keys, values = cache.append(np.ones((1, 2)), np.ones((1, 5)))
    >>> keys.shape, values.shape, cache
    ((4, 2), (4, 5), KVCache(4, ring=False): tokens 0 to 3)
    """

    def __init__(self, capacity, *, ring=False):
        arguments.integer("capacity", capacity, low=1)
        self.capacity, self.ring = capacity, ring
        self.clear()

    def __repr__(self):
        held = f"tokens {self.start} to {self.length - 1}" if self.length else "empty"
        return f"KVCache({self.capacity}, ring={self.ring}): {held}"

    @property
    def start(self):
        return max(0, self.length - self.capacity)

    @property
    def key(self):
        return None if self._key is None else self._with_held(self._key)

    @property
    def value(self):
        return None if self._value is None else self._with_held(self._value)

    def append(self, key, value):
        """Take in the keys and values of new tokens and return all that these tokens may see.

        Parameters
        ----------
        key : array of shape (B, Hkv, L, D)
            Also (L, D) or (Hkv, L, D). L may be 0, and in a ring larger than the capacity.
        value : array of shape (B, Hkv, L, Dv)

        Returns
        -------
        keys, values : arrays of shape (B, Hkv, S, D) and (B, Hkv, S, Dv)
            The tokens held before, then the new ones; a ring drops only afterwards. The first new
            query sits at q_offset = S − L. Gradients reach the new tokens, not the held ones.

        Raises
        ------
        ValueError
            Past the capacity of a plain cache; shapes or devices unlike those held. Nothing has
            been changed then.
        TypeError
            Dtypes or libraries that differ, or integers.
        """
        seen = self.preview(key, value)
        self._store(key, value)
        return seen

    def preview(self, key, value):
        """What append would return, or raise, without taking the tokens in.

        With `store` after the attention, an error in between leaves the cache as it was.
        """
        self._check(key, value)
        return self._with_held(self._key, key), self._with_held(self._value, value)

    def store(self, key, value):
        """Take in the keys and values of new tokens, as append does, and return nothing."""
        self._check(key, value)
        self._store(key, value)

    def trim(self, n):
        """Go back to the state after `n` tokens, to try another continuation.

        Raises ValueError where that state is gone: n above length, or tokens that a ring dropped.
        """
        arguments.integer("trim: n", n)
        if not 0 <= n <= self.length:
            raise ValueError(
                f"trim: expected n from 0 to length = {self.length}, got {n} (capacity = "
                f"{self.capacity})"
            )
        if self.start and 0 < n < self.length:
            raise ValueError(
                f"trim: the state after {n} of {self.length} tokens is gone, a ring of capacity = "
                f"{self.capacity} has dropped the tokens before position {self.start}"
            )
        self.length = n

    def reorder(self, index):
        """Let batch row i go on from row index[i], as beam search does; rows may repeat.

        Raises IndexError for a row that does not exist, TypeError for anything but integers, and
        ValueError where there is no batch axis.
        """
        index = index.tolist() if hasattr(index, "tolist") else index
        rows = [index] if isinstance(index, int) else list(index)
        for row in rows:
            arguments.integer("reorder: index", row)
        if self._key is None or self._key.ndim != 4:
            held = "nothing" if self._key is None else tuple(self.key.shape)
            raise ValueError(f"reorder: expected keys held, of shape (B, Hkv, S, D), got {held}")
        B = self._key.shape[0]
        if not all(0 <= row < B for row in rows):
            raise IndexError(f"reorder: expected rows from 0 to B - 1 = {B - 1}, got {rows}")
        with _lasting(self._key):
            self._key, self._value = self._key[rows], self._value[rows]

    def copy(self):
        """An independent cache in the same state: what one is fed, the other never sees."""
        with _lasting(self._key):
            return deepcopy(self)

    def clear(self):
        """Forget everything, shapes and dtype included."""
        self.length = 0
        self._key = self._value = None

    def _store(self, key, value):
        if self._key is None:
            self._key, self._value = self._slots_for(key), self._slots_for(value)
        self._write(self._key, key)
        self._write(self._value, value)
        self.length += key.shape[-2]

    def _check(self, key, value):
        """All that can be wrong with an append is found before anything is changed."""
        given = key if self._key is None else self._key
        torch = sys.modules.get("torch")
        is_tensor = torch is not None and isinstance(given, torch.Tensor)
        arguments.arrays(torch.Tensor if is_tensor else np.ndarray, key=key, value=value)
        for name, array in (("key", key), ("value", value)):
            arguments.rank(name, array.shape, 2, "(B, Hkv, L, D), (Hkv, L, D) or (L, D)")
        if key.shape[:-1] != value.shape[:-1]:
            raise ValueError(
                "value: expected the batch, the heads and the length of key, got key "
                f"{tuple(key.shape)} and value {tuple(value.shape)}"
            )
        if key.device != value.device:
            raise ValueError(f"value: expected the device of key, {key.device}, got {value.device}")
        if self._key is not None:
            _like_held("key", key, self._key)
            _like_held("value", value, self._value)
        new = key.shape[-2]
        if not self.ring and self.length + new > self.capacity:
            raise ValueError(
                f"append: expected at most capacity = {self.capacity} tokens, got {self.length} "
                f"held + {new} new = {self.length + new} (ring=True forgets the oldest instead)"
            )

    def _slots_for(self, array):
        """Empty slots of the kind of `array`."""
        shape = (*array.shape[:-2], self.capacity, array.shape[-1])
        with _lasting(array):
            return _library(array).empty(shape, dtype=array.dtype, device=array.device)

    def _with_held(self, slots, *new):
        """A fresh array of the tokens held, oldest first, followed by the new ones."""
        parts = () if slots is None else self._parts(self.start, self.length)
        arrays = [*(slots[..., part, :] for part in parts), *new]
        return _library(arrays[0]).concatenate(arrays, -2)

    def _write(self, slots, new):
        """Put the new tokens, or the last of them that fit, where their positions belong."""
        new = new.detach() if hasattr(new, "detach") else new
        L = new.shape[-2]
        first = max(0, L - self.capacity)
        head, tail = self._parts(self.length + first, self.length + L)
        split = first + head.stop - head.start
        slots[..., head, :] = new[..., first:split, :]
        slots[..., tail, :] = new[..., split:, :]

    def _parts(self, start, stop):
        """The slots of positions start … stop − 1: up to the end, then on from slot 0."""
        first = start % self.capacity
        room = min(stop - start, self.capacity - first)
        return slice(first, first + room), slice(0, stop - start - room)


def _library(array):
    return np if isinstance(array, np.ndarray) else sys.modules["torch"]


def _lasting(array):
    """A context in which new tensors are ordinary: one made under inference_mode stays locked."""
    return _library(array).inference_mode(False) if hasattr(array, "detach") else nullcontext()


def _like_held(name, array, slots):
    """What is appended has the dtype, the device and, but for the length, the shape of the rest."""
    if array.dtype != slots.dtype:
        held, came = dtype_name(slots), dtype_name(array)
        raise TypeError(f"{name}: expected the cache's dtype, {held}, got {came}")
    if array.device != slots.device:
        raise ValueError(f"{name}: expected the cache's device, {slots.device}, got {array.device}")
    kept, came = (*slots.shape[:-2], slots.shape[-1]), (*array.shape[:-2], array.shape[-1])
    if tuple(kept) != tuple(came):
        expected = ", ".join(str(size) for size in (*slots.shape[:-2], "L", slots.shape[-1]))
        raise ValueError(
            f"{name}: expected the cache's shape but for the length, ({expected}), got "
            f"{tuple(array.shape)}"
        )
