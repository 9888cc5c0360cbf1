"""Call somebody's function from sequences to sequences, with some positions of its input changed.

Shapes stay the same from call to call, so that equal rows come out equal bit for bit, and nothing
is left behind: the input, the random state and the buffers of a module are as they were. Works on
arrays and tensors by their methods; never imports torch.
"""

import sys

import numpy as np

from attn.arrays import dtype_name


class Probe:
    """A function and its input; `outputs(where, kind)` is what comes out when positions change.

    There are KINDS = 2 perturbations, because one alone may happen to give the same output. Floats
    move by a random amount, once of the size of their spread and once ten times that. Token ids
    give way to other ids that occur in x, the only ones known to be in the vocabulary.
    """

    KINDS = 2

    def __init__(self, function, x, batched=None):
        if not callable(function):
            raise TypeError(f"function: expected a callable on sequences, got {function!r}")
        if not hasattr(x, "dtype") or not hasattr(x, "ndim"):
            raise TypeError(f"x: expected an array or a tensor, got {type(x).__name__}")
        self.function, self.x, self.calls = function, x, 0
        self.whole = not dtype_name(x).startswith(("float", "bfloat", "complex"))
        if batched is None:
            batched = x.ndim >= (2 if self.whole else 3)
        if x.ndim < 1 + batched or 0 in x.shape:
            raise ValueError(
                f"x: expected shape (L, …) or (B, L, …), none of them 0, got {tuple(x.shape)}"
            )
        self.batched = bool(batched)
        self.B = x.shape[0] if batched else 1
        self.L = x.shape[1] if batched else x.shape[0]
        self.other = self._other_values()
        self.state = None

    def _other_values(self):
        """For each kind an input that differs from x everywhere, to take changes from."""
        rng = np.random.default_rng(0)
        shape = tuple(self.x.shape)
        plain = _to_numpy(self.x)
        if plain.dtype == bool:
            return [~plain] * self.KINDS
        if self.whole:
            # Only ids that occur in x: any other might lie outside the vocabulary.
            ids, which = np.unique(plain, return_inverse=True)
            if len(ids) < 2:
                raise ValueError(
                    "x: expected at least two different token ids, to put one in the place of "
                    f"another, got only {ids[0]}"
                )
            steps = (1, rng.integers(1, len(ids), size=shape))
            return [ids[(which.reshape(shape) + step) % len(ids)] for step in steps]
        finite = plain[np.isfinite(plain)]
        size = float(finite.std()) if finite.size else 0.0
        size = size or 1.0
        plain = np.where(np.isfinite(plain), plain, 0)
        return [plain + size * k * rng.normal(size=shape) for k in (1, 10)]

    def outputs(self, where=None, kind=0):
        """What comes out, as (B, L_out, F), when the positions `where`, bool (B, L), change."""
        given = self.x.copy() if isinstance(self.x, np.ndarray) else self.x.detach().clone()
        if where is not None:
            rows = np.broadcast_to(where, (self.B, self.L))
            rows = rows if self.batched else rows[0]
            rows = rows.reshape(rows.shape + (1,) * (self.x.ndim - rows.ndim))
            given[...] = _like(np.where(rows, self.other[kind], _to_numpy(self.x)), given)
        if self.state is not None:
            _restore(self.state)
        self.calls += 1
        return self._rows(self.function(given))

    def _rows(self, output):
        if not hasattr(output, "dtype") or not hasattr(output, "ndim"):
            raise TypeError(
                f"function: expected it to return one array or tensor, got {type(output).__name__}"
            )
        if output.ndim < 1 + self.batched or (self.batched and output.shape[0] != self.B):
            raise ValueError(
                "function: expected an output of shape (L_out, …), or (B, L_out, …) with B = "
                f"{self.B} for a batch, got {tuple(output.shape)} for x {tuple(self.x.shape)}"
            )
        output = _to_numpy(output)
        output = output if self.batched else output[None]
        return output.reshape(*output.shape[:2], -1)

    def __enter__(self):
        buffers = getattr(self.function, "buffers", None)
        self.buffers = [(b, b.clone()) for b in buffers()] if callable(buffers) else []
        self.before = _random_state()
        return self

    def __exit__(self, *error):
        _restore(self.before)
        for buffer, saved in self.buffers:
            buffer.copy_(saved)

    def settle(self):
        """Call twice; if chance plays a part, repeat its draws in every call from now on.

        Returns the output and whether two equal calls differed; then whether they still do.
        """
        first, second = self.outputs(), self.outputs()
        if same_bits(first, second).all():
            return first, False, False
        self.state = _random_state()
        first, second = self.outputs(), self.outputs()
        return first, True, not same_bits(first, second).all()


def same_bits(one, two):
    """Which rows (B, L_out) are equal in every bit; of NaN any is as good as another."""
    return _equal(one, two).all(axis=-1)


def change(one, two):
    """The largest difference in each row (B, L_out); inf where a number became NaN."""
    equal = _equal(one, two)
    one, two = (x if x.dtype.kind == "c" else x.astype(float) for x in (one, two))
    with np.errstate(all="ignore"):
        gap = np.abs(one - two)
    gap = np.where(np.isnan(gap), np.inf, gap)
    return np.where(equal, 0, gap).max(axis=-1, initial=0)


def _equal(one, two):
    if one.shape != two.shape:
        raise ValueError(
            f"function: expected outputs of one shape for one shape of x, got {one.shape[:2]} and "
            f"{two.shape[:2]} (B, L_out)"
        )
    equal = one == two
    if one.dtype.kind == "f":
        equal &= np.signbit(one) == np.signbit(two)  # 0.0 and -0.0
    return equal | (one != one) & (two != two)


def _to_numpy(x):
    if isinstance(x, np.ndarray):
        return x
    x = x.detach().cpu()
    return (x.float() if dtype_name(x) == "bfloat16" else x).numpy()


def _like(plain, given):
    """An array, or a tensor of the same kind as `given`."""
    if isinstance(given, np.ndarray):
        return plain.astype(given.dtype)
    return sys.modules["torch"].as_tensor(np.ascontiguousarray(plain)).to(given)


def _random_state():
    """Python's, NumPy's and torch's generators as they stand."""
    torch, python = sys.modules.get("torch"), sys.modules.get("random")
    cuda = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
    return (
        None if python is None else python.getstate(),
        np.random.get_state(),  # noqa: NPY002  (functions of others may draw from it)
        None if torch is None else torch.get_rng_state(),
        torch.cuda.get_rng_state_all() if cuda else None,
    )


def _restore(state):
    python, numpy, cpu, cuda = state
    if python is not None:
        sys.modules["random"].setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002
    if cpu is not None:
        sys.modules["torch"].set_rng_state(cpu)
    if cuda is not None:
        sys.modules["torch"].cuda.set_rng_state_all(cuda)
