"""Masks of other libraries, by name: from theirs to attn's and back.

attn's mask is boolean, True = may attend, shape (1|B, 1|H, 1|L, S). The others:

    torch SDPA              bool True = may attend, or float added    attn_mask (…, L, S)
    nn.MultiheadAttention   bool True = HIDDEN, or float added        attn_mask (L, S), (B·H, L, S),
                                                                      key_padding_mask (B, S)
    Keras                   1 = may attend                            attention_mask (B, L, S)
    JAX                     bool True = may attend                    mask (1|B, 1|H, L, S)
    ONNX Attention          bool True = may attend, or float added    attn_mask (…, L, S)
    Hugging Face            1 = token, 0 = padding                    attention_mask (B, S)
                            bool True = may attend, or float added    attention_mask (B, 1, L, S)
    flash-attention         lengths and windows, no array             cu_seqlens, (left, right)

An `is_causal` flag stands for a triangle, and libraries lay it differently when L != S: from the
upper left in torch SDPA, JAX and Keras (Causal with q_offset=0), to the lower right in
flash-attention since 2.1 (q_offset=S - L); ONNX counts the keys of past_key as q_offset.

Converters take arrays of both libraries and return the kind they got. They are in the files torch,
others (Keras, JAX, ONNX), hugging_face, flash and forms, and found here.
"""

from attn.conventions.flash import (
    from_flash_lengths,
    from_flash_window,
    to_flash_lengths,
    to_flash_window,
)
from attn.conventions.forms import from_additive, to_additive
from attn.conventions.hugging_face import from_hugging_face, to_hugging_face_2d, to_hugging_face_4d
from attn.conventions.others import from_jax, from_keras, from_onnx, to_jax, to_keras, to_onnx
from attn.conventions.torch import (
    TorchMHAMasks,
    from_torch_mha,
    from_torch_sdpa,
    to_torch_mha,
    to_torch_sdpa,
)

__all__ = [
    "TorchMHAMasks",
    "from_additive",
    "from_flash_lengths",
    "from_flash_window",
    "from_hugging_face",
    "from_jax",
    "from_keras",
    "from_onnx",
    "from_torch_mha",
    "from_torch_sdpa",
    "to_additive",
    "to_flash_lengths",
    "to_flash_window",
    "to_hugging_face_2d",
    "to_hugging_face_4d",
    "to_jax",
    "to_keras",
    "to_onnx",
    "to_torch_mha",
    "to_torch_sdpa",
]
