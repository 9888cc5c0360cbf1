"""What every test shares: one thread, fixed seeds, no window, and book/ on the path."""

import os

# Before NumPy and torch load: two pytest workers with two threads each are slower than one each,
# and sums keep their order from run to run.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import importlib.util
import random
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "book"))  # the notebooks' kernels start in book/, so do the tests


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
