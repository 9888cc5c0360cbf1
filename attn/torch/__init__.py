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
from attn.torch.additive import AdditiveAttention, additive_weights, luong_scores
from attn.torch.attention import attention_weights, scaled_dot_product_attention, softmax
from attn.torch.blockwise import blockwise_attention, merge_attention
from attn.torch.check import as_numpy_function
from attn.torch.flex import block_mask
from attn.torch.fused import fused_attention, fused_path
from attn.torch.heads import (
    MultiHeadAttention,
    merge_heads,
    multi_head_attention,
    repeat_kv,
    split_heads,
)
from attn.torch.masks import dense_mask
from attn.torch.positions import alibi_bias, alibi_slopes, rotary, sinusoidal_positions
from attn.torch.ring import RingTally, ring_attention, ring_positions

__all__ = [
    "AdditiveAttention",
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
    "RingTally",
    "SameDocument",
    "SlidingWindow",
    "additive_weights",
    "alibi_bias",
    "alibi_slopes",
    "as_numpy_function",
    "attention_weights",
    "block_map",
    "block_mask",
    "blockwise_attention",
    "dense_mask",
    "fused_attention",
    "fused_path",
    "luong_scores",
    "merge_attention",
    "merge_heads",
    "multi_head_attention",
    "repeat_kv",
    "ring_attention",
    "ring_positions",
    "rotary",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
    "softmax",
    "split_heads",
]
