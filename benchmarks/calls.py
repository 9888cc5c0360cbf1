"""What the benchmarks call: a maker takes n and a device, prepares, and hands back a call."""

import functools

import numpy as np
import torch

import attn
import attn.torch
from attn import SameDocument, SlidingWindow

H, D = 8, 64
SDPA = torch.nn.functional.scaled_dot_product_attention
PLAIN, BLOCKWISE, FUSED = "scaled_dot_product_attention", "blockwise_attention", "fused_attention"
WINDOW = SlidingWindow(255)


def documents(n):
    """16 uneven documents: their lengths are as 1 : 2 : … : 16."""
    ends = np.cumsum(np.arange(1, 17)) * n // 136
    return SameDocument(np.searchsorted(ends, np.arange(n), side="right"))


def arrays(n):
    """Query, key and value of shape (1, H, n, D), float32."""
    rng = np.random.default_rng(n)
    return [rng.standard_normal((1, H, n, D), dtype=np.float32) for _ in range(3)]


def tensors(n, device):
    return [torch.from_numpy(x).to(device) for x in arrays(n)]


def numpy_call(name, mask=None):
    def make(n, device):
        return functools.partial(getattr(attn, name), *arrays(n), mask)

    return make


def torch_call(name, mask=None):
    def make(n, device):
        rule = mask(n) if mask is documents else mask
        return functools.partial(getattr(attn.torch, name), *tensors(n, device), rule)

    return make


def sdpa(is_causal=False):
    return lambda n, device: functools.partial(SDPA, *tensors(n, device), is_causal=is_causal)


def sdpa_dense(mask):
    def make(n, device):
        rule = mask(n) if mask is documents else mask
        dense = attn.torch.dense_mask(rule, n, n, device=device)
        return functools.partial(SDPA, *tensors(n, device), attn_mask=dense)

    return make


def synchronizer(device):
    """What waits until a device has done its work; nothing on a CPU."""
    return torch.cuda.synchronize if device == "cuda" else None


def available(rows, device):
    """Rows that can be measured here: NumPy's only on the CPU."""
    return [row for row in rows if device == "cpu" or row.on_gpu]
