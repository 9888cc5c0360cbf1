"""What every test shares: one thread, fixed seeds, no window, both libraries, and the path."""

import os

# Before NumPy and torch load: two pytest workers with two threads each are slower than one each,
# and sums keep their order from run to run.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import importlib
import importlib.util
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "book"))  # the notebooks' kernels start in book/, so do the tests
sys.path.insert(1, str(ROOT / "tests"))  # mask_table and reference, which many tests import


@pytest.fixture(autouse=True)
def fixed_seeds():
    """Start every test from the same random state, whatever ran before it."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (libraries still draw from it)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def sample(monkeypatch):
    """Return the practice of the sample chapter, freshly loaded, so that a test may break it."""
    name = "practice.sample_chapter"
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests/data/sample_chapter.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module.practice


class Backend:
    """One of the two libraries behind one set of names, so that a test is written once."""

    def __init__(self, name):
        self.name = name
        self.attn = importlib.import_module("attn.torch" if name == "torch" else "attn")
        self.library = importlib.import_module(name)

    def __repr__(self):
        return self.name

    def array(self, values, dtype=None):
        """Numbers or an array as an array of this library; `dtype` is a name such as "float32"."""
        values = (
            values if dtype == "bfloat16" or dtype is None else np.asarray(values).astype(dtype)
        )
        if self.name == "numpy":
            return np.asarray(values)
        dtype = None if dtype is None else getattr(self.library, dtype)
        return self.library.tensor(np.array(values)).to(dtype)

    def to_numpy(self, array):
        """An array of this library as float64 (a boolean or integer one as it is)."""
        if self.name == "torch":
            array = array.detach()
            array = (array.double() if array.is_floating_point() else array).numpy()
        return array.astype(np.float64) if array.dtype.kind == "f" else array

    def dtype(self, array):
        return str(array.dtype).removeprefix("torch.")


@pytest.fixture(scope="session", params=["numpy", "torch"])
def backend(request):
    """NumPy, then torch: the test runs once with each."""
    return Backend(request.param)


def pytest_make_parametrize_id(config, val, argname):
    """An id without the address of an object: the two test processes have to agree on it."""
    text = repr(val)
    return re.sub(r" at 0x[0-9a-f]+", "", text) if " at 0x" in text else None
