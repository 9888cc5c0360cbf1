"""What holds for arrays of NumPy and of torch alike, without importing torch.

A tensor can only exist where torch has been imported already, so it is looked up there.
"""

import sys

import numpy as np

# NumPy works a name out anew each time, which takes longer than a check may.
NAMES = {np.dtype(name): name for name in ("float16", "float32", "float64", "bool", "int64")}


def is_tensor(x):
    """A tensor of torch; False, at no cost, where torch was never imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def library(x):
    """The library that an array belongs to: numpy, or torch for a tensor."""
    return sys.modules["torch"] if is_tensor(x) else np


def to_numpy(x):
    """Anything that holds numbers as an array; a tensor leaves its device and its graph."""
    return x.detach().cpu().numpy() if is_tensor(x) else np.asarray(x)


def dtype_name(array):
    """The name of a dtype, the same for both libraries: "float32", "bfloat16", "bool"."""
    dtype = array.dtype
    if isinstance(dtype, np.dtype):
        return NAMES.get(dtype) or str(dtype)
    return str(dtype).removeprefix("torch.")
