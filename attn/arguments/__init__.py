"""What is wrong with a call, seen from shapes, dtypes and plain numbers.

Every public function asks here first, so that NumPy and torch, the plain and the blockwise
version, refuse the same call in the same words: the argument, what was expected in the legend's
letters and in numbers, and what came.

    values      one value: integer, number, rank, offset, one library, arrays
    call        one call: its sizes, its mask, bias, sink and options
    heads       heads, projections and caches
    positions   tables, rotations, ALiBi
    additive    the scores of recurrent translators
    results     partial results and gradients

May import attn.arrays, and no other part of the package.
"""

from attn.arguments import additive, heads, positions, results
from attn.arguments.call import (
    NO_VALUE,
    UPPER_LEFT_OR_LOWER_RIGHT,
    Sizes,
    is_rule,
    mask,
    options,
    sizes,
)
from attn.arguments.values import (
    ELSEWHERE,
    FLOAT_DTYPES,
    arrays,
    explained,
    integer,
    listed,
    number,
    offset,
    one_library,
    per_row,
    plain,
    rank,
    saturated,
)

__all__ = [
    "ELSEWHERE",
    "FLOAT_DTYPES",
    "NO_VALUE",
    "UPPER_LEFT_OR_LOWER_RIGHT",
    "Sizes",
    "additive",
    "arrays",
    "explained",
    "heads",
    "integer",
    "is_rule",
    "listed",
    "mask",
    "number",
    "offset",
    "one_library",
    "options",
    "per_row",
    "plain",
    "positions",
    "rank",
    "results",
    "saturated",
    "sizes",
]
