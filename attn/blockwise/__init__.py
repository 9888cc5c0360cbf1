"""Attention tile by tile: the same result without ever holding the L × S scores.

    online      the formula: a running peak, total and output over tiles of keys
    tiles       which keys a tile of queries reads, and which pairs of them take part
    workers     threads that share the tiles

May import attn.arguments, attn.masks and attn.operands.
"""

from attn.blockwise.online import blockwise_attention, merge_attention

__all__ = ["blockwise_attention", "merge_attention"]
