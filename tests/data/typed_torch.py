"""A user's script that says what it gets from every public name of attn.torch."""

from typing import assert_type

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

import attn
import attn.torch as at
from attn import conventions


def main() -> None:
    """Call everything once."""
    query, key, value = torch.rand(2, 4, 5, 8), torch.rand(2, 2, 5, 8), torch.rand(2, 2, 5, 3)
    rule = at.Causal() & (at.SlidingWindow(3) | ~at.Dilated(2)) | at.PrefixLM(torch.tensor([1, 2]))
    rule = (
        rule
        & at.Not(at.KeyPadding(1, 2))
        & at.Or(at.SameDocument(torch.zeros(5, dtype=torch.int64)), at.Causal())
    )
    assert_type(at.And(rule, at.Causal()), attn.And)
    assert isinstance(rule, at.Mask)
    dense = at.dense_mask(at.Causal(), 5, 5, device="cpu")
    assert_type(dense, Tensor)
    assert_type(at.block_mask(at.Causal(), 5, 5), BlockMask)
    assert at.block_map(at.Causal(), 5, 5, block_size=2).shape == (1, 1, 3, 3)

    weights = at.attention_weights(query, key, at.Causal(), scale=0.3, softcap=20.0, q_offset=0)
    assert_type(at.softmax(weights), Tensor)
    output = at.scaled_dot_product_attention(
        query,
        key,
        value,
        dense,
        bias=torch.zeros(5, 5),
        sink=torch.zeros(4),
        q_offset=torch.tensor(0),
    )
    assert_type(output, Tensor)
    assert_type(at.fused_attention(query, key, value, at.Causal()), Tensor)
    assert_type(at.fused_path(query, key, value, at.Causal()), str)
    tiled, lse = at.blockwise_attention(query, key, value, at.Causal(), block_size=2)
    assert_type(at.merge_attention([tiled, tiled], [lse, lse]), tuple[Tensor, Tensor])

    x, square = torch.rand(2, 5, 8), torch.rand(8, 8)
    heads = at.split_heads(x, 2)
    assert_type(at.merge_heads(at.repeat_kv(heads, 2)), Tensor)
    cache = at.KVCache(8, ring=True)
    new = at.multi_head_attention(x, square, square, square, square, num_heads=2, cache=cache)
    assert_type(new, Tensor)
    assert_type(cache.copy().append(heads, heads), tuple[Tensor, Tensor])
    layer = at.MultiHeadAttention(8, 4, 2, dropout=0.1)
    assert_type(layer(x, mask=at.Causal(), cache=at.KVCache(8)), Tensor)
    assert_type(layer.weights(x), Tensor)
    theirs = torch.nn.MultiheadAttention(8, 4, batch_first=True)
    assert_type(at.MultiHeadAttention.from_torch(theirs), at.MultiHeadAttention)
    additive = at.AdditiveAttention(8, 8, 16)
    assert_type(additive(x, x, x, at.Causal()), Tensor)
    assert_type(additive.weights(x, x), Tensor)
    assert_type(at.luong_scores(x, x, square), Tensor)
    assert_type(at.additive_weights(x, x, square, square, torch.ones(8), at.Causal()), Tensor)
    assert_type(at.sinusoidal_positions(5, 8, dtype=torch.float64), Tensor)
    assert_type(at.rotary(query, torch.arange(5), layout="half", size=4), Tensor)
    assert_type(at.alibi_bias(4, 5, 5, device="cpu") + at.alibi_slopes(4)[:, None, None], Tensor)

    report = attn.check_attention(at.as_numpy_function(at.scaled_dot_product_attention))
    assert report.passed, report
    assert_type(conventions.from_torch_sdpa(conventions.to_torch_sdpa(dense)), Tensor)
    assert_type(attn.find_leaks(layer, x, np.ones((5, 5), bool)).passed, bool)


def in_a_ring(query: Tensor, key: Tensor, value: Tensor, tally: at.RingTally) -> Tensor:
    """Runs where processes are: only read here."""
    rows = at.ring_positions(20, 4, layout="zigzag")
    assert_type(rows, Tensor)
    output, lse = at.ring_attention(query, key, value, at.Causal(), layout="zigzag", tally=tally)
    assert_type(lse, Tensor)
    return output
