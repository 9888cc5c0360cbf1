from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

class Failure(NamedTuple):
    name: str
    evidence: str
    hint: str

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
    seed: int = 0,
) -> CheckReport: ...
