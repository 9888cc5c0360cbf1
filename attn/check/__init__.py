"""The judge of anybody's attention function: it passes, or the likely bug by name and with numbers.

The function is called on some 180 small calls, and each answer is compared with the right one. A
call is put together from levels of eight factors:

- **mask**: none; scattered; causal, aligned with the last query or with the first; padding at the
  end, in front, or as holes; causal and padded at the end or in front; a window; documents; one
  that hides nothing; a query that may attend to nothing; a sequence that is all padding;
- **axes of the mask**: all eight of (1 or B, 1 or H, 1 or L, S); where an axis is there, batch
  rows, heads or queries differ;
- **lengths**: 1 to 131 queries and keys, equal and unequal, more of either, below and above tiles
  of 16, 32, 64 and 128 that divide them or do not;
- **values**: ordinary; one-hot, so that scores are exactly 0; queries that are 0; equal keys;
  scores near 1000 and -1000; numbers of a thousandth and a millionth;
- **heads**: one, three, six on two key heads, four on one;
- **head sizes**: four pairs of D and Dv, equal and not;
- **batch**: one row or two;
- **dtype**: float64 and float32.

Every two levels that can stand together do so in some call (a covering array, attn.check.covering).
Beside these stand calls of equal sizes one after another, for what is kept between calls, and a
hidden key above scores down to -3·10¹⁶, for fills that are finite. Not tried: three levels at once
by design, lengths above 131, bfloat16 and float16, masks whose key axis has length 1, infinite
values behind the mask, gradients, speed, memory that is not contiguous.

A known bug (attn.check.bugs and its neighbours) is a wrong formula, so that its answer to every
call can be predicted. It is named only if it predicts every answer that was given, the wrong ones
and the right ones; up to three at once are sought. Where none does, the report says what the
failing calls have in common, as far as the calls tell, and shows the simplest of them.
From the command line: `python -m attn.check module:function`, with `--help`.
"""

from attn.check.adapters import first_output, from_layer, merged_batch, merged_heads, one_head
from attn.check.judge import CheckReport, check_attention
from attn.check.outcomes import Failure

__all__ = [
    "CheckReport",
    "Failure",
    "check_attention",
    "first_output",
    "from_layer",
    "merged_batch",
    "merged_heads",
    "one_head",
]
