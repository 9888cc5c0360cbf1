from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attn.masks import Mask, _Array

class _Leak(NamedTuple):
    output: int
    input: int
    batch: int
    size: float
    kind: str

class _Finding(NamedTuple):
    name: str
    text: str
    serious: bool = True

@dataclass(frozen=True)
class LeakReport:
    passed: bool
    leak: _Leak | None
    outputs: tuple[int, ...]
    random: bool
    notes: tuple[str, ...]
    calls: int
    rounding: float = 0.0

@dataclass(frozen=True)
class MaskAudit:
    findings: tuple[_Finding, ...]
    allowed: float
    empty_rows: int
    unseen_keys: int
    future_pairs: int
    @property
    def passed(self) -> bool: ...

def audit_mask(allowed: _Array, *, cross: bool = False) -> MaskAudit: ...
def influence(
    function: Callable[[Any], Any],
    x: Any,
    *,
    batched: bool | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> NDArray[np.bool_]: ...
def find_leaks(
    function: Callable[[Any], Any],
    x: Any,
    mask: Mask | _Array,
    *,
    layers: int = 1,
    batched: bool | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> LeakReport: ...
