from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

class _Array(Protocol):
    """An array or a tensor: what is written once for both libraries takes either."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...
    def tolist(self) -> Any: ...

class _Tensor(_Array, Protocol):
    """A tensor, told from an array by what only tensors have."""

    @property
    def requires_grad(self) -> bool: ...

_Integers: TypeAlias = SupportsIndex | Sequence[int] | _Array

class Mask:
    compares_positions: ClassVar[bool]
    reads_absolute_positions: ClassVar[bool]
    looks_back: int | None
    def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any: ...
    def __and__(self, other: Mask) -> Mask: ...
    def __or__(self, other: Mask) -> Mask: ...
    def __invert__(self) -> Mask: ...
    def check(
        self,
        q_len: int,
        k_len: int,
        *,
        batch: int,
        q_offset: _Integers | None,
        read_values: bool = True,
    ) -> None: ...
    def check_fields(
        self, q_len: int, k_len: int, batch: int, q_offset: Any, read_values: bool
    ) -> None: ...

@dataclass(frozen=True, eq=False)
class And(Mask):
    left: Mask
    right: Mask
    @property
    def parts(self) -> tuple[Mask, ...]: ...

@dataclass(frozen=True, eq=False)
class Or(Mask):
    left: Mask
    right: Mask
    @property
    def parts(self) -> tuple[Mask, ...]: ...

@dataclass(frozen=True, eq=False)
class Not(Mask):
    rule: Mask
    @property
    def parts(self) -> tuple[Mask, ...]: ...

@dataclass(frozen=True, eq=False)
class Causal(Mask): ...

@dataclass(frozen=True, eq=False)
class SlidingWindow(Mask):
    left: SupportsIndex | None
    right: SupportsIndex | None = 0

@dataclass(frozen=True, eq=False)
class Dilated(Mask):
    step: SupportsIndex

@dataclass(frozen=True, eq=False)
class PrefixLM(Mask):
    length: _Integers

@dataclass(frozen=True, eq=False)
class KeyPadding(Mask):
    stop: _Integers | None = None
    start: _Integers = 0

@dataclass(frozen=True, eq=False)
class SameDocument(Mask):
    query_ids: Sequence[Any] | _Array
    key_ids: Sequence[Any] | _Array | None = None

def dense_mask(
    mask: Mask | NDArray[np.bool_],
    q_len: int,
    k_len: int,
    *,
    q_offset: _Integers | None = None,
    batch: int = 1,
    heads: int = 1,
) -> NDArray[np.bool_]: ...
def block_map(
    mask: Mask | NDArray[np.bool_],
    q_len: int,
    k_len: int,
    *,
    block_size: int | tuple[int, int],
    q_offset: _Integers | None = None,
    batch: int = 1,
    heads: int = 1,
) -> NDArray[np.int8]: ...
