from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

class Failure(NamedTuple):
    name: str
    evidence: str
    hint: str
    known: bool = True

@dataclass(frozen=True)
class CheckReport:
    passed: bool
    failures: tuple[Failure, ...]
    trials: int = 0

def check_attention(
    function: Callable[..., Any],
    *,
    grouped: bool = True,
    convention: Literal["may attend", "is hidden"] = "may attend",
    dtype: Literal["float64", "float32"] = "float64",
    masks: bool = True,
    square: bool = False,
    multiple_of: int = 1,
    seed: int = 0,
) -> CheckReport: ...
def first_output(function: Callable[..., Any]) -> Callable[..., Any]: ...
def from_layer(make: Callable[..., Any]) -> Callable[..., Any]: ...
def merged_batch(function: Callable[..., Any]) -> Callable[..., Any]: ...
def merged_heads(
    function: Callable[..., Any], *, sequence_first: bool = False
) -> Callable[..., Any]: ...
def one_head(function: Callable[..., Any]) -> Callable[..., Any]: ...
