"""attn: attention in NumPy, small enough to read, with a torch twin in attn.torch.

The map, in reading order
    attention   softmax, the weights, scaled dot-product attention
    backward    the same, differentiated by hand
    masks       who may see whom, as rules that combine with & | ~
    heads       several attentions side by side, and what they may share
    blockwise   the same result without the L × S matrix, tile by tile
    positions   how order gets in: waves, rotations, distances
    additive    the scores of recurrent translators, where attention began
    cache       what to keep, so that each new token costs one row
    conventions the masks of other libraries, from theirs to ours and back
    check       the judge of anybody's attention function
    audit       what is wrong with this mask, and what leaks in this model

The legend of letters, one meaning everywhere
    B batch · H query heads · Hkv key/value heads · G = H // Hkv query heads per key head
    L query length · S key length · D head size (d_k) · Dv value size (d_v) · E model size

Axes stand in the order (B, H, L, D). `mask` is boolean, True = may attend; `bias` is float and
added. `import attn` loads NumPy and nothing heavier; for tensors write `import attn.torch`, for
figures `from attn import plotting`.
"""

import importlib

from attn.additive import additive_weights, luong_scores
from attn.attention import attention_weights, scaled_dot_product_attention, softmax
from attn.backward import attention_backward, softmax_backward
from attn.blockwise import blockwise_attention, merge_attention
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
    "CheckReport",
    "Dilated",
    "KVCache",
    "KeyPadding",
    "LeakReport",
    "Mask",
    "MaskAudit",
    "Not",
    "Or",
    "PrefixLM",
    "SameDocument",
    "SlidingWindow",
    "additive_weights",
    "alibi_bias",
    "alibi_slopes",
    "attention_backward",
    "attention_weights",
    "audit",
    "audit_mask",
    "block_map",
    "blockwise_attention",
    "check",
    "check_attention",
    "conventions",
    "dense_mask",
    "find_leaks",
    "influence",
    "luong_scores",
    "merge_attention",
    "merge_heads",
    "multi_head_attention",
    "repeat_kv",
    "rotary",
    "scaled_dot_product_attention",
    "sinusoidal_positions",
    "softmax",
    "softmax_backward",
    "split_heads",
]

# Tools beside the spine are loaded when first asked for, so that `import attn` stays quick.
_TOOLS = {
    "audit": ("LeakReport", "MaskAudit", "audit_mask", "find_leaks", "influence"),
    "check": ("CheckReport", "check_attention"),
    "conventions": (),
}


def __getattr__(name):
    for module, names in _TOOLS.items():
        if name in (module, *names):
            loaded = importlib.import_module(f"attn.{module}")
            return loaded if name == module else getattr(loaded, name)
    raise AttributeError(f"module 'attn' has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
