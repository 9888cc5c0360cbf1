"""attn.torch: the same names and options for tensors, differentiable, on any device and dtype.

Every file here has the name, the functions and the order of its NumPy twin and shares no arithmetic
with it, so their agreement is evidence. Rules and their algebra are the very same objects. There is
no attention_backward: autograd replaces it.
"""

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

__all__ = [
    "And",
    "Causal",
    "Dilated",
    "KeyPadding",
    "Mask",
    "MultiHeadAttention",
    "Not",
    "Or",
    "PrefixLM",
    "SameDocument",
    "SlidingWindow",
    "attention_weights",
    "block_map",
    "dense_mask",
    "merge_heads",
    "multi_head_attention",
    "repeat_kv",
    "scaled_dot_product_attention",
    "softmax",
    "split_heads",
]
