"""attn: attention in NumPy, small enough to read, with a torch twin in attn.torch.

The map, in reading order
    attention   softmax, the weights, scaled dot-product attention
    masks       who may see whom, as rules that combine with & | ~
    heads       several attentions side by side, and what they may share
    positions   how order gets in: waves, rotations, distances
    cache       what to keep, so that each new token costs one row

The legend of letters, one meaning everywhere
    B batch · H query heads · Hkv key/value heads · G = H // Hkv query heads per key head
    L query length · S key length · D head size (d_k) · Dv value size (d_v) · E model size

Axes stand in the order (B, H, L, D). `mask` is boolean, True = may attend; `bias` is float and
added. `import attn` loads NumPy and nothing heavier; for tensors write `import attn.torch`, for
figures `from attn import plotting`.
"""

from attn.attention import attention_weights, scaled_dot_product_attention, softmax
from attn.cache import KVCache
from attn.heads import merge_heads, multi_head_attention, repeat_kv, split_heads
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
    dense_mask,
)
from attn.positions import alibi_bias, alibi_slopes, rotary, sinusoidal_positions

__all__ = [
    "And",
    "Causal",
    "Dilated",
    "KVCache",
    "KeyPadding",
    "Mask",
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
