"""Areas from coarse to fine, and the mask laid over tensors that is asked for them."""

import itertools

import numpy as np
import pytest
from mask_table import TABLE

torch = pytest.importorskip("torch")

from attn import Causal, KeyPadding, SameDocument, SlidingWindow, arguments  # noqa: E402
from attn.masks import areas  # noqa: E402
from attn.masks.layout import EMPTY, FULL, SOME  # noqa: E402
from attn.torch.masks import Laid, lay  # noqa: E402


def sizes(L, S, B=1, H=1):
    return arguments.Sizes((B,), B, H, H, L, S, 0, 0)


def laid(row, as_tensor=False):
    mask = torch.as_tensor(row.allowed) if as_tensor else row.mask
    return lay(mask, sizes(row.L, row.S, row.batch, row.heads), row.q_offset, torch.device("cpu"))


def painted(found, counts, b=None):
    """The areas as a map of tiles; none is painted twice."""
    tiles = np.zeros(counts, int)
    for i, segments in enumerate(found.segments(counts[0], b)):
        stops = [0, *(x for first, stop, _ in segments for x in (first, stop)), counts[1]]
        assert stops == sorted(stops)
        for first, stop, kind in segments:
            assert (tiles[i, first:stop] == EMPTY).all()
            tiles[i, first:stop] = kind
    return tiles


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_areas_are_the_map_of_tiles(monkeypatch, row):
    """Whatever the first map's grain: each batch row, and what holds in all of them."""
    for coarse, edges in itertools.product((1, 2, 64), ((1, 1), (2, 3), (50, 50))):
        monkeypatch.setattr(areas, "COARSE", coarse)
        for as_tensor in (False, True):
            mask = laid(row, as_tensor)
            tiles = mask.tiles(edges).numpy()
            tiles = areas.agreed(np.broadcast_to(tiles, (row.batch, *tiles.shape[1:])), axis=1)
            found = mask.areas(edges)
            for b, expected in enumerate(tiles):
                assert (painted(found, expected.shape, b) == expected).all(), (coarse, edges, b)
            everywhere = areas.agreed(tiles, axis=0)
            assert (painted(found, everywhere.shape) == everywhere).all(), (coarse, edges)


def test_a_rule_that_spans_cannot_answer_may_hide_pairs_anywhere():
    class Near(Causal):
        def __call__(self, b, h, q, k):
            return abs(q - k) <= 1

    found = lay(Near(), sizes(9, 9), None, torch.device("cpu")).areas((2, 2))
    assert (painted(found, (5, 5)) == SOME).all()


@pytest.mark.parametrize(
    "rule_at",
    [
        lambda n: SlidingWindow(255),
        lambda n: Causal(),
        lambda n: SameDocument(np.arange(n) // 1000),
        lambda n: SlidingWindow(100) | KeyPadding(4),
    ],
)
def test_questions_grow_with_the_length_and_not_with_its_square(monkeypatch, rule_at):
    """Spans are counted, not seconds: 16 times the length, at most 20 times the spans."""
    asked = []
    real = Laid.kinds
    counted = lambda self, q, k: (  # noqa: E731
        asked.append(np.broadcast(q.low, k.low).size),
        real(self, q, k),
    )[1]
    monkeypatch.setattr(Laid, "kinds", counted)
    spans = []
    for n in (2**14, 2**18):
        asked.clear()
        lay(rule_at(n), sizes(n, n), None, torch.device("cpu")).areas((32, 32))
        spans.append(sum(asked))
    assert spans[1] <= 20 * spans[0]
    assert spans[1] < 40 * 2**18 / 32  # a map of all tiles has 8192 for each row of tiles


def test_whole_area_is_full():
    found = areas.whole_area((5, 7), (2, 3))
    assert (painted(found, (3, 3)) == FULL).all()


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_pairs_of_any_rows_and_keys_agree_with_the_pictures(row):
    picture = np.broadcast_to(row.allowed, (row.batch, row.heads, row.L, row.S))
    rows, keys = torch.arange(row.L).flip(0), torch.arange(0, row.S, 2)
    for as_tensor in (False, True):
        mask = laid(row, as_tensor)
        assert np.array_equal(np.broadcast_to(mask.pairs(), picture.shape), picture)
        expected = picture[:, :, rows][..., keys]
        assert np.array_equal(np.broadcast_to(mask.pairs(rows, keys), expected.shape), expected)
        for b in range(row.batch):
            some = mask.pairs(slice(1, 2), slice(0, 3), slice(b, b + 1))
            expected = picture[b : b + 1, :, 1:2, :3]
            assert np.array_equal(np.broadcast_to(some, expected.shape), expected)


def test_an_answer_of_another_shape_or_dtype_is_refused():
    class Wrong(Causal):
        def __call__(self, b, h, q, k):
            return (k <= q)[..., :2]

    with pytest.raises(ValueError, match=r"\(1, 1, 3, 5\), got shape \(1, 1, 3, 2\)"):
        lay(Wrong(), sizes(3, 5), 0, torch.device("cpu")).pairs()
    Wrong.__call__ = lambda self, b, h, q, k: q - k
    with pytest.raises(TypeError, match="boolean"):
        lay(Wrong(), sizes(3, 5), 0, torch.device("cpu")).areas((2, 2))
