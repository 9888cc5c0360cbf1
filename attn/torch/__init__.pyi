from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from attn import KVCache as KVCache
from attn.masks import And as And
from attn.masks import Causal as Causal
from attn.masks import Dilated as Dilated
from attn.masks import KeyPadding as KeyPadding
from attn.masks import Mask as Mask
from attn.masks import Not as Not
from attn.masks import Or as Or
from attn.masks import PrefixLM as PrefixLM
from attn.masks import SameDocument as SameDocument
from attn.masks import SlidingWindow as SlidingWindow
from attn.masks import _Integers
from attn.masks import block_map as block_map

_MaskLike: TypeAlias = Mask | Tensor | None
_Device: TypeAlias = torch.device | str | int | None
_Layout: TypeAlias = Literal["contiguous", "striped", "zigzag"]

def softmax(scores: Tensor) -> Tensor: ...
def attention_weights(
    query: Tensor,
    key: Tensor,
    mask: _MaskLike = None,
    *,
    bias: Tensor | None = None,
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    q_offset: _Integers | None = None,
) -> Tensor: ...
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: _MaskLike = None,
    *,
    bias: Tensor | None = None,
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    q_offset: _Integers | None = None,
) -> Tensor: ...
def blockwise_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: _MaskLike = None,
    *,
    bias: Tensor | None = None,
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    q_offset: _Integers | None = None,
    block_size: int | None = None,
) -> tuple[Tensor, Tensor]: ...
def merge_attention(
    outputs: Sequence[Tensor] | Tensor, lses: Sequence[Tensor] | Tensor
) -> tuple[Tensor, Tensor]: ...
def split_heads(x: Tensor, num_heads: int) -> Tensor: ...
def merge_heads(x: Tensor) -> Tensor: ...
def repeat_kv(x: Tensor, groups: int) -> Tensor: ...
def multi_head_attention(
    x: Tensor,
    w_query: Tensor,
    w_key: Tensor,
    w_value: Tensor,
    w_output: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    context: Tensor | None = None,
    mask: _MaskLike = None,
    bias: Tensor | None = None,
    cache: KVCache | None = None,
    q_offset: _Integers | None = None,
) -> Tensor: ...
def additive_weights(
    query: Tensor,
    key: Tensor,
    w_query: Tensor,
    w_key: Tensor,
    v: Tensor,
    mask: _MaskLike = None,
    *,
    q_offset: _Integers | None = None,
) -> Tensor: ...
def luong_scores(
    query: Tensor,
    key: Tensor,
    weight: Tensor | None = None,
    v: Tensor | None = None,
) -> Tensor: ...
def rotary(
    x: Tensor,
    positions: _Integers,
    *,
    layout: Literal["interleaved", "half"],
    base: float = 10000.0,
    size: int | None = None,
) -> Tensor: ...
def alibi_slopes(
    num_heads: int, *, device: _Device = None, dtype: torch.dtype | None = None
) -> Tensor: ...
def alibi_bias(
    num_heads: int,
    q_len: int,
    k_len: int,
    *,
    q_offset: _Integers = 0,
    device: _Device = None,
    dtype: torch.dtype | None = None,
) -> Tensor: ...
def sinusoidal_positions(
    length: int, size: int, *, device: _Device = None, dtype: torch.dtype | None = None
) -> Tensor: ...
def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: _MaskLike = None,
    *,
    bias: Tensor | None = None,
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    q_offset: _Integers | None = None,
) -> Tensor: ...
def fused_path(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: _MaskLike = None,
    *,
    bias: Tensor | None = None,
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    q_offset: _Integers | None = None,
) -> str: ...
def dense_mask(
    mask: Mask | Tensor,
    q_len: int,
    k_len: int,
    *,
    q_offset: _Integers | None = None,
    batch: int = 1,
    heads: int = 1,
    device: _Device = None,
) -> Tensor: ...
def block_mask(
    mask: Mask | Tensor,
    q_len: int,
    k_len: int,
    *,
    q_offset: _Integers | None = None,
    batch: int = 1,
    heads: int = 1,
    device: _Device = None,
    block_size: int | tuple[int, int] = 128,
) -> BlockMask: ...
def as_numpy_function(function: Callable[..., Any]) -> Callable[..., Any]: ...
def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    q_offset: _Integers | None = None,
    layout: _Layout = "contiguous",
    group: torch.distributed.ProcessGroup | None = None,
    timeout: float = 300.0,
    block_size: int | None = None,
    tally: RingTally | None = None,
) -> tuple[Tensor, Tensor]: ...
def ring_positions(length: int, processes: int, *, layout: _Layout = "contiguous") -> Tensor: ...

@dataclass
class RingTally:
    sent: Counter[str] = field(default_factory=Counter)
    pairs: dict[str, list[int]] = field(default_factory=dict)

class AdditiveAttention(nn.Module):
    query: nn.Linear
    key: nn.Linear
    v: nn.Parameter
    def __init__(self, query_size: int, key_size: int, hidden_size: int) -> None: ...
    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: _MaskLike = None,
        *,
        q_offset: _Integers | None = None,
    ) -> Tensor: ...
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: _MaskLike = None,
        *,
        q_offset: _Integers | None = None,
    ) -> Tensor: ...
    def weights(
        self,
        query: Tensor,
        key: Tensor,
        mask: _MaskLike = None,
        *,
        q_offset: _Integers | None = None,
    ) -> Tensor: ...

class MultiHeadAttention(nn.Module):
    num_heads: int
    num_kv_heads: int
    dropout: float
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    rotary: Callable[[Tensor, Tensor], Tensor] | None
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        rotary: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None: ...
    def __call__(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: _MaskLike = None,
        bias: Tensor | None = None,
        cache: KVCache | None = None,
        q_offset: _Integers | None = None,
        positions: _Integers | None = None,
    ) -> Tensor: ...
    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: _MaskLike = None,
        bias: Tensor | None = None,
        cache: KVCache | None = None,
        q_offset: _Integers | None = None,
        positions: _Integers | None = None,
    ) -> Tensor: ...
    def weights(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: _MaskLike = None,
        bias: Tensor | None = None,
        q_offset: _Integers | None = None,
        positions: _Integers | None = None,
    ) -> Tensor: ...
    def heads(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        q_offset: _Integers | None = None,
        positions: _Integers | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> MultiHeadAttention: ...
