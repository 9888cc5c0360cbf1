"""Call somebody's function from sequences to sequences, with some positions of its input changed.

Shapes stay the same from call to call, so that equal rows come out equal bit for bit, and nothing
is left behind: the input, the random state and the buffers of a module are as they were. Works on
arrays and tensors by their methods; never imports torch.
"""

import sys
from typing import NamedTuple

import numpy as np

from attn.arrays import dtype_name
from attn.audit.entries import as_numpy, input_entry, is_float, output_entry, with_entry
from attn.audit.progress import Progress

# The distance from 1 to the next number: what one rounding may be wrong by.
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "complex64": 2.0**-23}
EPS |= {"float64": 2.0**-52, "complex128": 2.0**-52}


class Change(NamedTuple):
    """Which positions change, bool (B, L), and by what; `nudge` moves the change by a hair."""

    where: np.ndarray | None = None
    kind: int = 0
    nudge: int | None = None


NOTHING = Change()


class Probe:
    """A function and its input; `outputs(change)` is what comes out when positions change.

    There are KINDS = 2 perturbations, because one alone may happen to give the same output. Floats
    move by a random amount, once of the size of their spread and once ten times that. Token ids
    give way to other ids that occur in x, the only ones known to be in the vocabulary.
    """

    KINDS = 2

    def __init__(self, function, x, batched=None, progress=None, sequence_first=False):
        if not callable(function):
            raise TypeError(f"function: expected a callable on sequences, got {function!r}")
        self.key, array = input_entry(x)
        self.function, self.given, self.progress = function, x, Progress(progress)
        self.sequence_first = sequence_first  # (L, B, …): outside this class it is (B, L, …)
        self.x = array.swapaxes(0, 1) if sequence_first else array
        self.whole = not is_float(array)
        if batched is None:
            batched = array.ndim >= (2 if self.whole else 3)
        if array.ndim < 1 + batched or 0 in array.shape:
            raise ValueError(
                f"x: expected shape (L, …) or (B, L, …), none of them 0, got {tuple(array.shape)}"
            )
        self.batched = bool(batched)
        self.B = self.x.shape[0] if batched else 1
        self.L = self.x.shape[1] if batched else self.x.shape[0]
        self.plain = as_numpy(self.x)
        self.other = self._other_values()
        self.state = self.entry = self.eps = self.features = None

    @property
    def calls(self):
        return self.progress.calls

    def _other_values(self):
        """For each kind an input that differs from x everywhere, to take changes from."""
        rng = np.random.default_rng(0)
        shape, plain = self.plain.shape, self.plain
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

    def hair(self):
        """A relative change that moves the last digits of every sum, and no more."""
        return max(2.0**-20, 8 * EPS.get(dtype_name(self.x), 0))

    def changed(self, change):
        """x as an array, with the change in it."""
        if change.where is None:
            return self.plain
        new = self.other[change.kind]
        if change.nudge is not None:
            rng = np.random.default_rng(change.nudge + 1)
            new = new * (1 + self.hair() * rng.uniform(-1, 1, size=new.shape))
        rows = np.broadcast_to(change.where, (self.B, self.L))
        rows = rows if self.batched else rows[0]
        rows = rows.reshape(rows.shape + (1,) * (self.x.ndim - rows.ndim))
        return np.where(rows, new, self.plain)

    def outputs(self, change=NOTHING):
        """What comes out, as (B, L_out, F)."""
        return self.call([self.changed(change)])[0]

    def call(self, inputs):
        """What comes out for several inputs one below the other, (len(inputs), B, L_out, F)."""
        copies = len(inputs)
        plain = inputs[0] if copies == 1 else np.concatenate(inputs)
        plain = plain.swapaxes(0, 1) if self.sequence_first else plain
        given = with_entry(
            self.given, self.key, self._like(plain), lambda entry: self._repeat(entry, copies)
        )
        if self.state is not None:
            _restore(self.state)
        self.progress.call()
        output = self._rows(self.function(given), copies * self.B)
        return output.reshape(copies, self.B, *output.shape[1:])

    def _like(self, plain):
        """A new array, or a tensor of the same kind as x."""
        if isinstance(self.x, np.ndarray):
            return plain.astype(self.x.dtype)
        return sys.modules["torch"].tensor(np.ascontiguousarray(plain)).to(self.x)

    def _repeat(self, entry, copies):
        """Entries beside x have its batch axis, or none."""
        if isinstance(entry, np.ndarray):
            whole = np.array(entry)
        elif hasattr(entry, "detach"):
            whole = entry.detach().clone()
        else:
            return entry
        if copies == 1 or not whole.ndim or whole.shape[0] != self.B:
            return whole
        return np.concatenate([whole] * copies) if isinstance(whole, np.ndarray) else (
            sys.modules["torch"].cat([whole] * copies))  # fmt: skip

    def _rows(self, output, batch):
        axes = 1 + self.batched
        self.entry, output = output_entry(output, axes, self.L)
        shape = tuple(output.shape)
        if self.sequence_first and output.ndim >= 2:
            output = output.swapaxes(0, 1)
        if output.ndim < axes or (self.batched and output.shape[0] != batch):
            raise ValueError(
                "function: expected an output of shape (L_out, …), or (B, L_out, …) with B = "
                f"{batch} for a batch, got {shape} for x {tuple(self.x.shape)}"
            )
        if 0 in shape or hasattr(output, "filled"):
            came = "a masked array" if hasattr(output, "filled") else f"an empty one, {shape}"
            raise ValueError(f"function: expected an output with numbers to compare, got {came}")
        # An output of half precision is no more exact than that, whatever it is converted to.
        finest = [EPS.get(dtype_name(array), 0.0) for array in (output, self.x)]
        self.eps = max(finest) if finest[0] else 0.0
        self.features = output.ndim - axes
        output = as_numpy(output)
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
        self.progress.end()

    def settle(self):
        """Call twice; if chance plays a part, repeat its draws in every call from now on.

        Returns the output, whether two equal calls differed, and by how much they still do.
        """
        first, second = self.outputs(), self.outputs()
        if not change_of(first, second).any():
            return first, False, 0.0
        self.state = _random_state()
        first, second = self.outputs(), self.outputs()
        return first, True, float(change_of(first, second).max())


def change_of(one, two):
    """The largest difference in each row (B, L_out); inf where a number became NaN.

    0.0 and -0.0 are equal, and of NaN any is as good as another.
    """
    if one.shape != two.shape:
        raise ValueError(
            f"function: expected outputs of one shape for one shape of x, got {one.shape[:2]} and "
            f"{two.shape[:2]} (B, L_out)"
        )
    equal = (one == two) | (one != one) & (two != two)
    one, two = (x if x.dtype.kind == "c" else x.astype(float) for x in (one, two))
    with np.errstate(all="ignore"):
        gap = np.abs(one - two)
    gap = np.where(np.isnan(gap), np.inf, gap)
    return np.where(equal, 0, gap).max(axis=-1, initial=0)


def modules_in_training(function):
    """Modules in training mode that a function can be seen to call: itself, or what it closes over.

    A module is known by `training` and `eval`.
    """
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()
             if cell is not None]  # fmt: skip
    code = getattr(function, "__code__", None)
    names = code.co_names if code is not None else ()
    scope = getattr(function, "__globals__", {})
    near = [function, getattr(function, "__self__", None), getattr(function, "func", None), *cells]
    near += [*getattr(function, "args", ()), *(scope[name] for name in names if name in scope)]
    is_module = [callable(getattr(thing, "eval", None)) for thing in near]
    return [thing for thing, known in zip(near, is_module, strict=True)
            if known and getattr(thing, "training", False) is True]  # fmt: skip


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
