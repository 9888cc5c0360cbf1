from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from attn import audit as audit
from attn import check as check
from attn import conventions as conventions
from attn.audit import LeakReport as LeakReport
from attn.audit import MaskAudit as MaskAudit
from attn.audit import audit_mask as audit_mask
from attn.audit import find_leaks as find_leaks
from attn.audit import influence as influence
from attn.check import CheckReport as CheckReport
from attn.check import check_attention as check_attention
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
from attn.masks import _Array, _Integers
from attn.masks import block_map as block_map
from attn.masks import dense_mask as dense_mask

# One float dtype for all operands of a call, and for its result.
_F = TypeVar("_F", bound=np.floating[Any])
_A = TypeVar("_A", bound=_Array)
_MaskLike: TypeAlias = Mask | NDArray[np.bool_] | None
_Floats: TypeAlias = NDArray[np.floating[Any]]

class _Gradients(NamedTuple):
    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any]
    bias: NDArray[Any] | None
    sink: NDArray[Any] | None

class KVCache:
    capacity: int
    ring: bool
    length: int
    def __init__(self, capacity: int, *, ring: bool = False) -> None: ...
    @property
    def start(self) -> int: ...
    @property
    def key(self) -> Any: ...
    @property
    def value(self) -> Any: ...
    def append(self, key: _A, value: _A) -> tuple[_A, _A]: ...
    def preview(self, key: _A, value: _A) -> tuple[_A, _A]: ...
    def store(self, key: _Array, value: _Array) -> None: ...
    def trim(self, n: int) -> None: ...
    def reorder(self, index: Sequence[int] | _Array) -> None: ...
    def copy(self) -> KVCache: ...
    def clear(self) -> None: ...

def softmax(scores: NDArray[_F]) -> NDArray[_F]: ...
def attention_weights(
    query: NDArray[_F],
    key: NDArray[_F],
    mask: _MaskLike = None,
    *,
    bias: _Floats | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: _Floats | None = None,
    q_offset: _Integers | None = None,
) -> NDArray[_F]: ...
def scaled_dot_product_attention(
    query: NDArray[_F],
    key: NDArray[_F],
    value: NDArray[_F],
    mask: _MaskLike = None,
    *,
    bias: _Floats | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: _Floats | None = None,
    q_offset: _Integers | None = None,
) -> NDArray[_F]: ...
def blockwise_attention(
    query: NDArray[_F],
    key: NDArray[_F],
    value: NDArray[_F],
    mask: _MaskLike = None,
    *,
    bias: _Floats | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: _Floats | None = None,
    q_offset: _Integers | None = None,
    block_size: int | None = None,
) -> tuple[NDArray[_F], NDArray[Any]]: ...
def merge_attention(
    outputs: Sequence[NDArray[_F]] | NDArray[_F], lses: Sequence[NDArray[Any]] | NDArray[Any]
) -> tuple[NDArray[_F], NDArray[Any]]: ...
def softmax_backward(grad_weights: NDArray[_F], weights: NDArray[_F]) -> NDArray[_F]: ...
def attention_backward(
    grad_output: NDArray[_F],
    query: NDArray[_F],
    key: NDArray[_F],
    value: NDArray[_F],
    mask: _MaskLike = None,
    *,
    bias: _Floats | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: _Floats | None = None,
    q_offset: _Integers | None = None,
) -> _Gradients: ...
def split_heads(x: NDArray[_F], num_heads: int) -> NDArray[_F]: ...
def merge_heads(x: NDArray[_F]) -> NDArray[_F]: ...
def repeat_kv(x: NDArray[_F], groups: int) -> NDArray[_F]: ...
def multi_head_attention(
    x: NDArray[_F],
    w_query: NDArray[_F],
    w_key: NDArray[_F],
    w_value: NDArray[_F],
    w_output: NDArray[_F],
    *,
    num_heads: int,
    num_kv_heads: int | None = None,
    context: NDArray[_F] | None = None,
    mask: _MaskLike = None,
    bias: _Floats | None = None,
    cache: KVCache | None = None,
    q_offset: _Integers | None = None,
) -> NDArray[_F]: ...
def additive_weights(
    query: NDArray[_F],
    key: NDArray[_F],
    w_query: NDArray[_F],
    w_key: NDArray[_F],
    v: NDArray[_F],
    mask: _MaskLike = None,
    *,
    q_offset: _Integers | None = None,
) -> NDArray[_F]: ...
def luong_scores(
    query: NDArray[_F],
    key: NDArray[_F],
    weight: NDArray[_F] | None = None,
    v: NDArray[_F] | None = None,
) -> NDArray[_F]: ...
def sinusoidal_positions(length: int, size: int) -> NDArray[np.float64]: ...
def rotary(
    x: NDArray[_F],
    positions: _Integers,
    *,
    layout: Literal["interleaved", "half"],
    base: float = 10000.0,
    size: int | None = None,
) -> NDArray[_F]: ...
def alibi_slopes(num_heads: int) -> NDArray[np.float64]: ...
def alibi_bias(
    num_heads: int, q_len: int, k_len: int, *, q_offset: _Integers = 0
) -> NDArray[np.float64]: ...
