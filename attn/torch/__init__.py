"""attn.torch: the same names and options for tensors, differentiable, on any device and dtype.

Every file here has the name, the functions and the order of its NumPy twin and shares no arithmetic
with it, so their agreement is evidence. Rules and their algebra are the very same objects. There is
no attention_backward: autograd replaces it.
"""

from attn.cache import KVCache
from attn.masks import (
    And,
    Causal,
    Dilated,
    KeyPadding,
    Mask,
    Not,
    Or,
    PrefixLM,
    SameDocument,
    SlidingWindow,
    block_map,
)
from attn.torch.attention import attention_weights, scaled_dot_product_attention, softmax
from attn.torch.heads import (
    MultiHeadAttention,
    merge_heads,
    multi_head_attention,
    repeat_kv,
    split_heads,
)
from attn.torch.masks import dense_mask
from attn.torch.positions import alibi_bias, alibi_slopes, rotary, sinusoidal_positions

__all__ = [
    "And",
    "Causal",
    "Dilated",
    "KVCache",
    "KeyPadding",
    "Mask",
    "MultiHeadAttention",
    "Not",
    "Or",
    "PrefixLM",
    "SameDocument",
    "SlidingWindow",
    "alibi_bias",
    "alibi_slopes",
    "attention_weights",
    "block_map",
    "dense_mask",
    "merge_heads",
    "multi_head_attention",
    "repeat_kv",
    "rotary",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
    "softmax",
    "split_heads",
]
