"""A user's script that says what it gets from every public name of attn; read by type checkers."""

from dataclasses import dataclass
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import attn
from attn import conventions

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Even(attn.Mask):
    """A rule of the user's own."""

    step: int = 2

    def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return k % self.step == 0


def main() -> None:
    """Call everything once."""
    rng = np.random.default_rng(0)
    query: Floats = rng.normal(size=(2, 4, 5, 8))
    key: Floats = rng.normal(size=(2, 2, 5, 8))
    value: Floats = rng.normal(size=(2, 2, 5, 3))

    rule = attn.Causal() & (attn.SlidingWindow(3) | ~attn.Dilated(2)) & Even()
    rule = rule | attn.PrefixLM(2) | attn.PrefixLM(np.array([1, 2])) | attn.KeyPadding([3, 5])
    rule = rule & attn.SameDocument(np.array([0, 0, 1, 1, 1]))
    rule = attn.And(attn.Or(rule, attn.Causal()), attn.Not(attn.KeyPadding(start=1)))
    assert_type(rule, attn.And)
    dense = attn.dense_mask(rule, 5, 5, batch=2)
    assert_type(dense, Bools)
    assert_type(attn.block_map(rule, 5, 5, block_size=(2, 3), batch=2), NDArray[np.int8])

    weights = attn.attention_weights(query, key, rule, scale=0.3, softcap=20.0, q_offset=0)
    assert_type(weights, Floats)
    assert_type(attn.softmax(weights), Floats)
    assert_type(attn.softmax(weights.astype(np.float32)), NDArray[np.float32])
    output = attn.scaled_dot_product_attention(
        query, key, value, dense, bias=np.zeros((5, 5)), sink=np.zeros(4), q_offset=[0, 0]
    )
    assert_type(output, Floats)
    tiled, lse = attn.blockwise_attention(query, key, value, attn.Causal(), block_size=2)
    assert_type(tiled, Floats)
    merged, _ = attn.merge_attention([tiled, tiled], [lse, lse])
    assert_type(merged, Floats)
    gradients = attn.attention_backward(np.ones_like(output), query, key, value, attn.Causal())
    assert gradients.query.shape == query.shape
    assert gradients.bias is None
    assert_type(attn.softmax_backward(weights, weights), Floats)

    x: Floats = rng.normal(size=(2, 5, 8))
    square: Floats = rng.normal(size=(8, 8))
    heads = attn.split_heads(x, 2)
    assert_type(attn.merge_heads(attn.repeat_kv(heads, 2)), Floats)
    cache = attn.KVCache(8, ring=True)
    new = attn.multi_head_attention(x, square, square, square, square, num_heads=2, cache=cache)
    assert_type(new, Floats)
    assert_type(cache.length + cache.start + cache.capacity, int)
    cache.reorder([1, 0])
    assert_type(cache.copy().append(heads, heads), tuple[Floats, Floats])
    cache.clear()

    assert_type(attn.sinusoidal_positions(5, 8), Floats)
    assert_type(attn.rotary(query, np.arange(5), layout="half", size=4), Floats)
    assert_type(attn.alibi_slopes(4), Floats)
    assert_type(attn.alibi_bias(4, 5, 5, q_offset=2), Floats)
    assert_type(attn.luong_scores(x, x, square), Floats)
    assert_type(attn.additive_weights(x, x, square, square, np.ones(8), dense[:, 0]), Floats)

    report = attn.check_attention(attn.scaled_dot_product_attention)
    assert isinstance(report, attn.CheckReport)
    assert report.passed, [failure.name for failure in report.failures]
    audit = attn.audit_mask(dense)
    assert isinstance(audit, attn.MaskAudit)
    assert_type([finding.serious for finding in audit.findings], list[bool])
    leaks = attn.find_leaks(lambda x: np.cumsum(x, axis=0), x[0], attn.Causal())
    assert isinstance(leaks, attn.LeakReport)
    assert leaks.leak is None
    assert_type(attn.influence(lambda x: x, x[0]), Bools)
    assert attn.audit.audit_mask is attn.audit_mask
    assert attn.check.check_attention is attn.check_attention
    assert attn.conventions is conventions

    causal = attn.dense_mask(attn.Causal(), 5, 5)
    assert_type(conventions.from_torch_sdpa(conventions.to_torch_sdpa(causal)), Bools)
    assert_type(conventions.from_jax(conventions.to_jax(causal)), Bools)
    assert_type(conventions.from_keras(conventions.to_keras(causal)), Bools)
    assert_type(conventions.from_onnx(conventions.to_onnx(causal), k_len=5), Bools)
    assert_type(conventions.from_hugging_face(np.ones((2, 5), int)), Bools)
    padded = attn.dense_mask(attn.KeyPadding(np.array([3, 5])), 5, 5, batch=2)
    assert_type(conventions.to_hugging_face_2d(padded), NDArray[np.int64])
    assert conventions.to_hugging_face_4d(causal, dtype="float32").shape == (1, 1, 5, 5)
    assert_type(conventions.from_additive(conventions.to_additive(causal)), Bools)
    split = conventions.to_torch_mha(causal, num_heads=2)
    assert isinstance(split, conventions.TorchMHAMasks)
    assert_type(conventions.from_torch_mha(split.attn_mask), Bools)
    assert_type(conventions.to_flash_window(causal), tuple[int, int])
    assert_type(conventions.from_flash_window((-1, 0), 5, 5), Bools)
    lengths = conventions.to_flash_lengths(
        attn.dense_mask(attn.SameDocument([0, 0, 1, 1, 1]), 5, 5)
    )
    assert_type(conventions.from_flash_lengths(*lengths), Bools)
