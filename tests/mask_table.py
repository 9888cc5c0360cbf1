"""Every mask with its picture, drawn by hand: 1 = may attend. A new rule gets a new row.

The laws of masks and the agreement of all attention functions run over this table by themselves.
Import it with `from mask_table import TABLE` and parametrise with `TABLE, ids=str`.
"""

from dataclasses import dataclass

import numpy as np

from attn import (
    Causal,
    Dilated,
    KeyPadding,
    Mask,
    PrefixLM,
    SameDocument,
    SlidingWindow,
)


@dataclass(frozen=True)
class Row:
    """One mask laid over L queries and S keys.

    `pictures` holds one drawing, or one for each batch row (batch > 1) or head (heads > 1), with a
    word for each query. Rows with batch = 1 (heads = 1) say the same for any B (any H).
    """

    name: str
    mask: Mask
    pictures: tuple
    q_offset: object = None
    batch: int = 1
    heads: int = 1

    def __str__(self):
        return self.name

    @property
    def allowed(self):
        """The pictures as a boolean array (1|B, 1|H, L, S)."""
        drawn = np.array([[list(word) for word in drawing.split()] for drawing in self.pictures])
        return (drawn == "1")[None, :] if self.heads > 1 else (drawn == "1")[:, None]

    @property
    def L(self):
        return self.allowed.shape[2]

    @property
    def S(self):
        return self.allowed.shape[3]


@dataclass(frozen=True, eq=False)
class HeadReach(Mask):
    """A rule of the user's own that reads the head: head h looks back at most h positions."""

    reads_absolute_positions = False

    def __call__(self, b, h, q, k):
        return (k <= q) & (q - k <= h)


class Near(Mask):
    """A rule of the user's own, no dataclass, with an operation that spans lack."""

    reads_absolute_positions = False

    def __call__(self, b, h, q, k):
        return abs(q - k) <= 1


def row(name, mask, *pictures, **options):
    return Row(name, mask, pictures, **options)


TABLE = (
    row("causal-lower-right", Causal(), "11100 11110 11111", q_offset=2),
    row("causal-upper-left", Causal(), "10000 11000 11100", q_offset=0),
    row("causal-square", Causal(), "100 110 111"),
    row("causal-before-the-keys", Causal(), "000 000 100 110 111", q_offset=-2),
    row(
        "causal-offset-per-row", Causal(), "10000 11000", "11110 11111",
        q_offset=np.array([0, 3]), batch=2,
    ),
    row("window-left", SlidingWindow(1), "11000 01100 00110", q_offset=1),
    row("window-both", SlidingWindow(1, 2), "0111100 0011110 0001111", q_offset=2),
    row("window-open-left", SlidingWindow(None, 1), "11000 11100 11110", q_offset=0),
    row("window-open-right", SlidingWindow(0, None), "00111 00011", q_offset=2),
    row("window-open", SlidingWindow(None, None), "11111 11111 11111", q_offset=0),
    row("window-past-the-keys", SlidingWindow(1), "001 000 000", q_offset=3),
    row("dilated", Dilated(2), "01010 10101 01010", q_offset=1),
    row("dilated-before-the-keys", Dilated(3), "00100 10010 01001", q_offset=-1),
    row("dilated-all", Dilated(1), "11111 11111", q_offset=0),
    row("prefix", PrefixLM(2), "11000 11000 11100", q_offset=0),
    row(
        "prefix-per-row", PrefixLM([0, 3]), "11000 11100", "11100 11100", q_offset=1, batch=2,
    ),
    row("padding-stop", KeyPadding(3), "11100 11100"),
    row("padding-start", KeyPadding(start=2), "00111 00111"),
    row(
        "padding-per-row", KeyPadding([5, 0, 2]),
        "11111 11111", "00000 00000", "11000 11000", batch=3,
    ),
    row(
        "padding-both-sides", KeyPadding(4, np.array([1, 3])),
        "01110 01110 01110", "00010 00010 00010", batch=2,
    ),
    row("padding-nothing", KeyPadding(), "11111 11111"),
    row("document", SameDocument([0, 0, 1, 1, 2]), "00110 00110 00001", q_offset=2),
    row("document-two-lists", SameDocument([0, 1, 2], [1, 1, 0, 3, 2]), "00100 11000 00001"),
    row(
        "document-per-row", SameDocument([[0, 0], [4, 5]], [0, 5, 4, 0, 5]),
        "10010 10010", "00100 01001", batch=2,
    ),
    row(
        "documents-causal", Causal() & SameDocument([7, 7, 3, 3, 3]),
        "10000 11000 00100 00110 00111",
    ),
    row("far-past", Causal() & ~SlidingWindow(1), "10000 11000 11100", q_offset=2),
    row("future", ~Causal(), "00011 00001 00000", q_offset=2),
    row("not-padding", ~KeyPadding(3), "00011 00011"),
    row(
        "left-padding-causal", Causal() & KeyPadding(start=[0, 2]),
        "100 110 111", "000 000 001", batch=2,
    ),
    row("first-key-and-window", KeyPadding(1) | SlidingWindow(1), "11100 10110 10011", q_offset=2),
    row("nothing", Causal() & ~Causal(), "00000 00000", q_offset=3),
    row("own-head-reach", HeadReach(), "010 001", "110 011", q_offset=1, heads=2),
    row("own-near", Near(), "11100 01110 00111", q_offset=1),
)  # fmt: skip
