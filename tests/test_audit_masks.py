"""audit_mask over masks that are in use, which must pass, and slips of the hand, which must not."""

import numpy as np
import pytest
from mask_table import TABLE
from published_masks import PUBLISHED, causal, grid, runs, same

import attn
from attn import conventions

LENGTHS = (12, 13, 17, 24, 31, 40)
N = 12
Q, K = grid(N)
TRIL = causal(N)
IDS = runs(N, 3, 5, 4)
SAME = same(IDS)
FRAME = np.arange(N) // 3
NEXT_IDS = np.append(IDS[1:], IDS[-1])


def serious(allowed, **options):
    return [f.name for f in attn.audit_mask(allowed, **options).findings if f.serious]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_masks_pass(name):
    build, source = PUBLISHED[name]
    assert source
    for n in LENGTHS:
        audit = attn.audit_mask(build(n))
        assert audit.passed, f"n = {n}: {audit}"


def test_there_are_many_published_masks_and_they_differ():
    masks = {build(24).tobytes() for build, _ in PUBLISHED.values()}
    assert len(masks) >= 60


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_masks_of_the_table_pass_unless_they_hide_everything(row):
    # Queries that start elsewhere are other positions than the keys, also where L = S.
    elsewhere = row.q_offset is not None and np.any(np.asarray(row.q_offset) != 0)
    expected = [] if row.allowed.any() else ["hides everything"]
    assert serious(row.allowed, cross=bool(elsewhere)) == expected


THERE_AND_BACK = {
    "torch_sdpa": lambda mask: conventions.from_torch_sdpa(conventions.to_torch_sdpa(mask)),
    "keras": lambda mask: conventions.from_keras(conventions.to_keras(mask)),
    "jax": lambda mask: conventions.from_jax(conventions.to_jax(mask)),
    "onnx": lambda mask: conventions.from_onnx(conventions.to_onnx(mask)),
    "hugging_face": lambda mask: conventions.from_hugging_face(
        conventions.to_hugging_face_4d(mask)),
    "torch_mha": lambda mask: conventions.from_torch_mha(
        *conventions.to_torch_mha(mask, num_heads=mask.shape[1], batch=mask.shape[0])[:2],
        num_heads=mask.shape[1]),
}  # fmt: skip


@pytest.mark.parametrize("library", THERE_AND_BACK)
def test_masks_from_other_libraries_pass(library):
    tried = 0
    for name, (build, _) in PUBLISHED.items():
        mask = build(13)
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        try:
            came = THERE_AND_BACK[library](mask)
        except ValueError:  # this library has no such mask, one for each head say
            continue
        tried += 1
        assert serious(np.asarray(came)) == [], name
    assert tried > 50


def test_lengths_and_windows_of_flash_attention_pass():
    lengths = np.array([0, 3, 8, 12])
    for options in ({}, {"causal": True}, {"window_size": (2, 0)}, {"window_size": (2, 1)}):
        rule = conventions.from_flash_lengths(lengths, **options)
        rule = rule[0] if isinstance(rule, tuple) else rule
        assert serious(attn.dense_mask(rule, 12, 12)) == []
    padding = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    mask = conventions.from_hugging_face(padding)
    mask = attn.dense_mask(mask, 5, 5, batch=2)
    assert serious(mask) == []
    assert serious(mask & causal(5)) == []


@pytest.mark.parametrize("length", range(1, 9))
def test_prefixes_of_any_length_pass(length):
    assert attn.audit_mask(attn.dense_mask(attn.PrefixLM(length), 9, 9)).passed


def test_cross_attention_of_equal_lengths_has_no_diagonal():
    wait = Q + 3 > K
    chunks = (K <= Q // 2 * 2) & (K >= Q // 2 * 2 - 2)
    shifted = K < Q // 3 + 1
    for mask in (wait, chunks, shifted, TRIL.T, np.tril(TRIL, -1) | (K == 0)):
        assert serious(mask, cross=True) == []
    assert serious(np.zeros((3, 3), bool), cross=True) == ["hides everything"]


def with_pairs(mask, *pairs, value=True):
    mask = mask.copy()
    for q, k in pairs:
        mask[q, k] = value
    return mask


ONE_SHORT, ONE_LONG = "off-by-one triangle (one short)", "off-by-one triangle (one long)"
IMAGE = np.where((np.arange(N) >= 4) & (np.arange(N) < 9), 0, np.arange(N) + 1)
SLIPS = {
    # what was written, for what was meant: (mask, the finding)
    "k < q": (K < Q, ONE_SHORT),
    "k <= q + 1": (K <= Q + 1, ONE_LONG),
    "k >= q": (K >= Q, "looks transposed"),
    "True = hidden, causal": (K > Q, "looks inverted"),
    "-inf as bool": (np.where(TRIL, 0, -np.inf).astype(bool), "looks inverted"),
    "True = hidden, documents": (~SAME, "looks inverted"),
    "True = hidden, packed and causal": (~(SAME & TRIL), "looks inverted"),
    "True = hidden, window": (~(abs(Q - K) <= 2), "looks inverted"),
    "True = hidden, causal window": (~(TRIL & (Q - K <= 2)), "looks inverted"),
    "True = hidden, prefix": (~(TRIL | (K < 7)), "looks inverted"),
    "True = hidden, frames": (~(K // 3 <= Q // 3), "looks inverted"),
    "one long within documents": (SAME & (K <= Q + 1), ONE_LONG),
    "one long, padded in front": ((K <= Q + 1) & (K >= 3), ONE_LONG),
    "one long, padded at the end": ((K <= Q + 1) & (K < 9), ONE_LONG),
    "one short within documents": (SAME & (K < Q), ONE_SHORT),
    "one short, padded in front": ((K < Q) & (K >= 3), ONE_SHORT),
    "window without the query itself": ((K < Q) & (Q - K <= 3), ONE_SHORT),
    "frames before its own only": (K // 3 < Q // 3, ONE_SHORT),
    "q - k > w for q - k < w": (TRIL & (Q - K > 3), ONE_SHORT),
    "q - k < w without k <= q": (Q - K < 3, "open to the future"),
    "causal window on its side": (((Q - K <= 3) & TRIL).T, "looks transposed"),
    "packed and causal on its side": ((SAME & TRIL).T, "looks transposed"),
    "prefix on its side": ((TRIL | (K < 5)).T, "looks transposed"),
    "frames on their side": (K // 3 >= Q // 3, "looks transposed"),
    "images in a text on their side": ((TRIL | same(IMAGE)).T, "looks transposed"),
    "padding on the wrong axis": (np.ones_like(TRIL) & (Q < 8), "empty rows"),
    "front padding on the wrong axis": (TRIL & (Q >= 3), "empty rows"),
    "chunk of the query one late": ((Q + 1) // 3 == K // 3, "own position hidden"),
    "ids of the keys moved by one": ((IDS[:, None] == NEXT_IDS) & TRIL, "own position hidden"),
    "ids of the queries moved by one": (NEXT_IDS[:, None] == IDS, "own position hidden"),
    "lengths of a batch read as rows": (
        np.random.default_rng(0).integers(1, N, size=N)[:, None] > K, "own position hidden"),
    "exclusive or of triangle and image": (TRIL ^ (same(IMAGE) & (IMAGE == 0)),
                                           "own position hidden"),
    "triangle from right to left": (TRIL[:, ::-1], "own position hidden"),
    "one query without itself": (with_pairs(TRIL, (7, 7), value=False), "own position hidden"),
    "one pair in the future": (with_pairs(TRIL, (2, 6)), "sees the future"),
    "one pair into another document": (with_pairs(SAME, (4, 1)), "stray pair"),
    "one pair into an earlier text": (with_pairs(SAME & TRIL, (8, 2)), "stray pair"),
    "one pair beyond a frame": (with_pairs(K // 3 <= Q // 3, (1, 10)), "stray pair"),
    "one pair beside a tree": (with_pairs(PUBLISHED["SpecInfer"][0](N), (2, 3)), "sees the future"),
    "everything": (np.zeros((N, N), bool), "hides everything"),
    "an empty row in the middle": (TRIL & (Q != 5), "empty rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", SLIPS)
def test_slips_of_the_hand_are_found(name):
    mask, finding = SLIPS[name]
    assert finding in serious(mask)
    # and in one head, or one row of a batch, among others that are right
    many = np.stack([np.stack([TRIL, TRIL]), np.stack([TRIL, mask])])
    if finding != "hides everything":
        assert "(in mask[1, 1])" in str(attn.audit_mask(many))
        assert finding in serious(many)


def test_what_was_meant_passes():
    """The slips are slips: their right twins are no findings."""
    for mask in (TRIL, SAME, SAME & TRIL, TRIL & (Q - K < 3), TRIL | (K < 5), K // 3 <= Q // 3,
                 TRIL | same(IMAGE), np.ones_like(TRIL) & (K < 8), TRIL & (K >= 3),
                 FRAME[:, None] == FRAME):  # fmt: skip
        assert serious(mask) == []


def test_two_texts_that_see_each_other_are_no_slip():
    """A bridge in both directions is an edge of a graph, as far as a mask can tell."""
    blocks = same(np.arange(16) // 4)
    assert attn.audit_mask(with_pairs(blocks, (0, 7), (7, 0))).findings == ()
    assert serious(with_pairs(blocks, (0, 7))) == ["stray pair"]


def test_little_evidence_is_none():
    """Two sinks' worth of a short window: a pair less would make it closed, and so would chance."""
    q, k = grid(6)
    assert attn.audit_mask((k <= q) & ((k < 1) | (q - k < 2))).passed
    assert serious(with_pairs(causal(12), (2, 6))) == ["sees the future"]


def test_a_list_of_positions_that_does_not_start_at_0():
    mask = np.ones((5, 5), bool) & ~np.isin(np.arange(5), [1, 2, 3])
    (finding,) = attn.audit_mask(mask).findings
    assert finding.text == "keys 1 to 3, some between keys that are seen."


def test_how_far_a_window_looks_ahead():
    (finding,) = attn.audit_mask(attn.dense_mask(attn.SlidingWindow(3, 2), 9, 9)).findings
    assert finding.text == "every query sees up to 2 after its own."


def test_heads_that_look_in_different_directions_are_remarked():
    mask = np.stack([TRIL, np.ones_like(TRIL)])[:, None]
    found = {f.name: f.text for f in attn.audit_mask(mask).findings}
    text = "later keys are seen in mask[1, 0] and not in mask[0, 0]."
    assert found["not all look the same way"] == text


def test_masked_arrays_are_refused():
    with pytest.raises(TypeError, match=r"allowed: expected a plain array .* got a masked array"):
        attn.audit_mask(np.ma.masked_array(TRIL, mask=~TRIL))
