"""Masks: who may see whom, as rules about positions, with their algebra.

    rule        what every rule is, and how rules combine: & both, | either, ~ the opposite
    rules       the rules: Causal, SlidingWindow, Dilated, PrefixLM, KeyPadding, SameDocument
    spans       what a rule says of a whole tile at once
    layout      a mask laid over L queries and S keys
    areas       where it lets pairs through, found from coarse to fine

May import attn.arrays and attn.arguments.
"""

from attn.masks.layout import block_map, dense_mask
from attn.masks.rule import And, Mask, Not, Or
from attn.masks.rules import (
    Causal,
    Dilated,
    KeyPadding,
    PrefixLM,
    SameDocument,
    SlidingWindow,
)

__all__ = [
    "And",
    "Causal",
    "Dilated",
    "KeyPadding",
    "Mask",
    "Not",
    "Or",
    "PrefixLM",
    "SameDocument",
    "SlidingWindow",
    "block_map",
    "dense_mask",
]
