"""Positions: waves, rotations and distances, the same in both libraries."""

import cmath
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attn
import attn.torch
from attn import Causal, KeyPadding, scaled_dot_product_attention

LAYOUTS = ["interleaved", "half"]


@pytest.fixture(params=["numpy", "torch"])
def twin(request):
    """One library: its functions, and how a NumPy array gets in and out."""
    if request.param == "numpy":
        return SimpleNamespace(name="numpy", attn=attn, give=np.asarray, take=np.asarray, wide={})
    return SimpleNamespace(
        name="torch", attn=attn.torch, give=lambda x: torch.tensor(np.asarray(x)),
        take=lambda x: x.detach().numpy(), wide={"dtype": torch.float64},
    )  # fmt: skip


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# --- Waves ----------------------------------------------------------------------------------------


def test_sinusoidal_literal(twin):
    table = twin.take(twin.attn.sinusoidal_positions(2, 4, **twin.wide))
    by_hand = [[0, 1, 0, 1], [0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004]]
    assert table.shape == (2, 4)
    assert np.abs(table - by_hand).max() < 1e-10


def test_sinusoidal_equals_the_formula_read_entry_by_entry(twin):
    L, E = 11, 6
    table = twin.take(twin.attn.sinusoidal_positions(L, E, **twin.wide))
    for p in range(L):
        for i in range(E // 2):
            angle = p / 10000 ** (2 * i / E)
            assert abs(table[p, 2 * i] - math.sin(angle)) < 1e-12
            assert abs(table[p, 2 * i + 1] - math.cos(angle)) < 1e-12


def test_a_shift_of_all_positions_is_one_linear_map(twin):
    """Section 3.5 of the paper: PE(p + k) is a linear function of PE(p)."""
    table = twin.take(twin.attn.sinusoidal_positions(29, 6, **twin.wide))
    shift, _, rank, _ = np.linalg.lstsq(table[:20], table[7:27])
    assert rank == 6
    assert np.abs(table[2:22] @ shift - table[9:29]).max() < 1e-9


@pytest.mark.parametrize(("length", "size", "said"), [(3, 7, "7"), (-1, 4, "-1"), (3, -2, "-2")])
def test_sinusoidal_refuses(twin, length, size, said):
    with pytest.raises(ValueError, match=said):
        twin.attn.sinusoidal_positions(length, size)


def test_tables_of_torch_have_the_default_dtype_unless_one_is_given():
    assert attn.torch.sinusoidal_positions(3, 4).dtype == torch.float32
    assert attn.torch.alibi_slopes(3).dtype == torch.float32
    assert attn.torch.alibi_bias(3, 2, 2).dtype == torch.float32
    assert attn.torch.sinusoidal_positions(3, 4, dtype=torch.float16).dtype == torch.float16
    assert attn.torch.alibi_bias(3, 2, 2, device="meta").device.type == "meta"
    assert attn.torch.alibi_slopes(3, device="meta").device.type == "meta"
    assert attn.torch.sinusoidal_positions(3, 4, device="meta").device.type == "meta"


# --- Rotations ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "turned"), [("interleaved", [-1, -2, -4, 3]), ("half", [-1, -4, -3, 2])]
)
def test_rotary_literal(twin, layout, turned):
    """Base 4 gives frequencies 1 and 1/2: at position π the pairs turn by a half and a quarter."""
    x = twin.give(np.array([[1.0, 2, 3, 4]]))
    output = twin.take(twin.attn.rotary(x, [math.pi], layout=layout, base=4.0))
    assert np.abs(output - [turned]).max() < 1e-12


def complex_rotation(x, positions, layout, base=10000.0):
    """Each pair as a complex number times exp(i·angle), in loops: shares nothing with attn."""
    output = np.empty_like(x)
    D = x.shape[-1]
    for at in np.ndindex(x.shape[:-1]):
        p = np.broadcast_to(positions, x.shape[:-1])[at]
        for i in range(D // 2):
            a, b = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + D // 2)
            turned = complex(x[at][a], x[at][b]) * cmath.exp(1j * p * base ** (-2 * i / D))
            output[at][a], output[at][b] = turned.real, turned.imag
    return output


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotary_equals_multiplication_of_complex_numbers(twin, layout):
    x, positions = numbers(2, 3, 5, 6), np.array([0, 1, 7, 40, 1857])
    output = twin.take(twin.attn.rotary(twin.give(x), positions, layout=layout, base=500.0))
    assert np.abs(output - complex_rotation(x, positions, layout, 500.0)).max() < 1e-12


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [None, 4])
def test_rotary_equals_onnx(twin, layout, size):
    reference = pytest.importorskip("onnx.reference")
    from onnx import TensorProto, helper

    x, positions = numbers(2, 3, 5, 6), np.array([[0, 0, 1, 2, 3], [4, 5, 6, 7, 8]])
    turning = 6 if size is None else size
    angles = np.arange(9)[:, None] * 10000.0 ** (-np.arange(0, turning, 2) / turning)
    node = helper.make_node(
        "RotaryEmbedding", ["x", "cos", "sin", "positions"], ["y"],
        interleaved=int(layout == "interleaved"), rotary_embedding_dim=0 if size is None else size,
    )  # fmt: skip
    given = {"x": x, "cos": np.cos(angles), "sin": np.sin(angles), "positions": positions}
    kinds = {"positions": TensorProto.INT64}
    graph = helper.make_graph(
        [node], "rotary",
        [helper.make_tensor_value_info(n, kinds.get(n, TensorProto.DOUBLE), a.shape)
         for n, a in given.items()],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, x.shape)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    (expected,) = reference.ReferenceEvaluator(model).run(None, given)
    output = twin.attn.rotary(twin.give(x), positions[:, None], layout=layout, size=size)
    assert np.abs(twin.take(output) - expected).max() < 1e-12


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    query_at=st.integers(0, 5000), distance=st.integers(-300, 300), shift=st.integers(-5000, 5000)
)
def test_14_scores_know_the_distance_only(layout, query_at, distance, shift):
    x, y = numbers(1, 6), numbers(1, 6, seed=1)
    for turn in (attn.rotary, lambda *a, **k: attn.torch.rotary(torch.tensor(a[0]), a[1], **k)):
        score, shifted = (
            float((turn(x, [p], layout=layout) * turn(y, [p + distance], layout=layout)).sum())
            for p in (query_at, query_at + shift)
        )
        assert abs(score - shifted) < 1e-10
    apart = (attn.rotary(x, [0], layout=layout) * attn.rotary(y, [1], layout=layout)).sum()
    beside = (x * y).sum()
    assert abs(apart - beside) > 1e-3  # the distance does matter


@pytest.mark.parametrize("layout", LAYOUTS)
def test_turning_twice_adds_the_angles_and_keeps_lengths(twin, layout):
    x = twin.give(numbers(3, 4, seed=2))
    turn = lambda x, p: twin.attn.rotary(x, p, layout=layout)  # noqa: E731
    assert np.abs(twin.take(turn(turn(x, 5), 6)) - twin.take(turn(x, 11))).max() < 1e-12
    assert np.array_equal(twin.take(turn(x, 0)), twin.take(x))
    lengths = np.linalg.norm(twin.take(turn(x, 9)), axis=-1)
    assert np.abs(lengths - np.linalg.norm(twin.take(x), axis=-1)).max() < 1e-12


def test_layouts_differ_by_a_permutation_of_the_features(twin):
    x = numbers(5, 6)
    order = [0, 2, 4, 1, 3, 5]  # position in "half" of each feature of "interleaved"
    half = twin.attn.rotary(twin.give(x[:, order]), np.arange(5), layout="half")
    interleaved = twin.attn.rotary(twin.give(x), np.arange(5), layout="interleaved")
    assert np.abs(twin.take(half) - twin.take(interleaved)[:, order]).max() < 1e-15
    other = twin.attn.rotary(twin.give(x), np.arange(5), layout="half")
    assert np.abs(twin.take(other) - twin.take(interleaved)).max() > 0.1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_14_only_the_leading_features_turn(twin, layout):
    x = twin.give(numbers(5, 7))
    output = twin.attn.rotary(x, np.arange(5), layout=layout, size=4)
    alone = twin.attn.rotary(x[:, :4], np.arange(5), layout=layout)
    assert np.array_equal(twin.take(output)[:, :4], twin.take(alone))
    assert np.array_equal(twin.take(output)[:, 4:], twin.take(x)[:, 4:])
    nothing = twin.attn.rotary(x, np.arange(5), layout=layout, size=0)
    assert np.array_equal(twin.take(nothing), twin.take(x))
    nothing[0, 0] = 99.0
    assert twin.take(x)[0, 0] != 99.0


def test_14_positions_broadcast(twin):
    x = twin.give(numbers(2, 3, 5, 4))
    turn = lambda p: twin.take(twin.attn.rotary(x, p, layout="half"))  # noqa: E731
    line = np.arange(5) + 3
    assert np.array_equal(turn(line), turn(twin.give(line)))
    assert np.array_equal(turn(line), turn(np.broadcast_to(line, (2, 3, 5))))
    assert np.array_equal(turn(line), turn(line.tolist()))
    assert np.array_equal(turn(line), turn(line[::-1].copy()[::-1]))
    rows = np.stack([line, line - 3])[:, None]
    assert np.array_equal(turn(rows)[1], turn(line - 3)[1])
    assert np.array_equal(turn(rows)[0], turn(line)[0])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once(layout, dtype):
    x = torch.tensor(numbers(13, 8)).to(getattr(torch, dtype))
    positions = np.arange(13) * 1330
    exact = attn.rotary(x.double().numpy(), positions, layout=layout)
    output = attn.torch.rotary(x, positions, layout=layout)
    assert output.dtype == x.dtype
    nearest = torch.tensor(exact).to(x.dtype).double()
    # One rounding: as near as the dtype can be, but for ties that float32 products blur.
    error, least = (torch.abs(y - torch.tensor(exact)) for y in (output.double(), nearest))
    assert (error <= least + 1e-6).all()
    if dtype == "float16":
        ours = attn.rotary(x.numpy(), positions, layout=layout)
        assert ours.dtype == np.float16
        assert np.array_equal(ours, exact.astype(np.float16))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_large_positions_keep_their_angles(layout):
    x = numbers(1, 8)
    exact = complex_rotation(x, 1_000_003, layout)
    assert np.abs(attn.rotary(x, 1_000_003, layout=layout) - exact).max() < 1e-9
    single = torch.tensor(x, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        output = attn.torch.rotary(single, 1_000_003, layout=layout)
    assert output.dtype == torch.float32
    assert np.abs(output.numpy() - exact).max() < 1e-6


REFUSED = [
    (dict(layout="half", size=3), ValueError, "size: .*even.*3"),
    (dict(layout="half", size=8), ValueError, "size: .*6.*8"),
    (dict(layout="half", size=2.0), TypeError, "size"),
    (dict(layout="neox"), ValueError, "layout: .*interleaved.*half.*neox"),
    (dict(layout=None), ValueError, "layout"),
    (dict(), TypeError, "layout"),
    (dict(layout="half", base=0.0), ValueError, "base"),
    (dict(layout="half", base=None), ValueError, "base"),
    (dict(layout="half", positions=np.arange(4)), ValueError, r"positions: .*\(2, 2, 5\).*\(4,\)"),
    (dict(layout="half", positions=np.zeros((2, 5), int)), ValueError, r"positions: .*\[:, None\]"),
    (dict(layout="half", positions=np.zeros((7, 2, 2, 5))), ValueError, "positions"),
    (dict(layout="half", positions=np.arange(5) > 2), TypeError, "positions: .*bool"),
    (dict(layout="half", base=10**400), ValueError, "base: .*float64 can hold"),
    (dict(layout="half", size=10**30), ValueError, "size: .*64 bits"),
]
REFUSED_BY_NUMPY = [  # torch makes a tensor of them first
    (dict(layout="half", positions=np.ma.array(np.arange(5))), TypeError, "positions: .*Masked"),
    (
        dict(layout="half", positions=np.ones((1, 5)).view(np.matrix)),
        TypeError,
        "positions: .*plain",
    ),
    (
        dict(layout="half", positions=[[1], [2, 3]]),
        ValueError,
        r"positions: .*one length.*\[2, 3\]",
    ),
    (dict(layout="half", positions=[10**30] * 5), TypeError, "positions: expected numbers"),
    (dict(layout="half", positions=["a"] * 5), TypeError, "positions: expected numbers"),
]


def test_rotary_refuses(twin):
    cases = REFUSED + (REFUSED_BY_NUMPY if twin.name == "numpy" else [])
    for options, error, said in cases:
        options = dict(options)
        positions = options.pop("positions", np.arange(5))
        with pytest.raises(error, match=said):
            twin.attn.rotary(twin.give(numbers(2, 2, 5, 6)), positions, **options)


def test_numpy_rotary_refuses_matrices_and_masked_arrays():
    for x in (np.ma.array(np.ones((5, 6))), np.ones((5, 6)).view(np.matrix)):
        with pytest.raises(TypeError, match="x: expected a plain array, got numpy"):
            attn.rotary(x, np.arange(5), layout="half")


def test_rotary_refuses_odd_features_integers_and_the_other_library(twin):
    with pytest.raises(ValueError, match=r"even.*7"):
        twin.attn.rotary(twin.give(numbers(5, 7)), np.arange(5), layout="half")
    with pytest.raises(TypeError, match="int64"):
        twin.attn.rotary(twin.give(np.ones((5, 6), np.int64)), np.arange(5), layout="half")
    other = torch.ones(5, 6) if twin.name == "numpy" else np.ones((5, 6))
    with pytest.raises(TypeError, match="never mixed"):
        twin.attn.rotary(other, np.arange(5), layout="half")


def test_nothing_passed_in_is_changed_and_strides_do_not_matter(twin):
    x, positions = numbers(5, 3, 6), np.arange(3)
    before = x.copy()
    flipped = x[::-1] if twin.name == "numpy" else torch.tensor(x).flip(0).transpose(0, 1).mT.mT
    expected = twin.attn.rotary(twin.give(x.copy()), positions, layout="half")
    if twin.name == "numpy":
        assert np.array_equal(twin.attn.rotary(flipped, positions, layout="half"), expected[::-1])
    else:
        turned = twin.attn.rotary(flipped.transpose(0, 1), positions, layout="half")
        assert torch.equal(turned, expected.flip(0))
    assert np.array_equal(x, before)
    assert np.array_equal(positions, np.arange(3))
    for shape in ((0, 3, 6), (5, 0, 6), (5, 3, 0)):
        empty = twin.attn.rotary(twin.give(np.ones(shape)), np.arange(shape[1]), layout="half")
        assert tuple(empty.shape) == shape


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rotary_has_both_derivatives(layout):
    x = torch.tensor(numbers(2, 3, 6), requires_grad=True)
    positions = torch.tensor([0.5, 1.0, 7.25], dtype=torch.float64, requires_grad=True)
    turn = lambda x, p: attn.torch.rotary(x, p, layout=layout, size=4)  # noqa: E731
    assert torch.autograd.gradcheck(turn, (x, positions))
    assert torch.autograd.gradgradcheck(turn, (x, positions))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_without_a_break(layout):
    def step(x, positions):
        turned = attn.torch.rotary(x, positions, layout=layout, size=4)
        bias = attn.torch.alibi_bias(x.shape[0], x.shape[1], x.shape[1], q_offset=0)
        return turned + attn.torch.sinusoidal_positions(x.shape[1], x.shape[2]), bias

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for L in (5, 7):
        x, positions = torch.tensor(numbers(3, L, 6)).float(), torch.arange(L)
        for got, expected in zip(compiled(x, positions), step(x, positions), strict=True):
            assert torch.allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_left_padding_is_invisible_when_positions_start_after_it(twin, layout):
    """A row padded by two equals the row alone, whatever the pads hold."""
    x, pads = numbers(1, 2, 7, 6), 2
    x[:, :, :pads] = 9.0
    positions = np.arange(7) - pads
    turned = twin.attn.rotary(twin.give(x), positions[None, None], layout=layout)
    alone = twin.attn.rotary(twin.give(x[:, :, pads:]), np.arange(5), layout=layout)
    rule = Causal() & KeyPadding(start=pads)
    padded = twin.attn.scaled_dot_product_attention(turned, turned, twin.give(x), rule)
    single = twin.attn.scaled_dot_product_attention(
        alone, alone, twin.give(x[:, :, pads:]), Causal()
    )
    assert np.abs(twin.take(padded)[:, :, pads:] - twin.take(single)).max() < 1e-12


# --- Distances ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (12, [2**-i for i in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_alibi_slopes_literal(twin, heads, slopes):
    got = twin.take(twin.attn.alibi_slopes(heads, **twin.wide))
    assert np.allclose(got, slopes, rtol=1e-15, atol=0)


def test_alibi_slopes_are_different_prices_below_one(twin):
    for heads in range(1, 70):
        slopes = twin.take(twin.attn.alibi_slopes(heads, **twin.wide))
        assert slopes.shape == (heads,)
        assert len(set(slopes.tolist())) == heads
        assert (slopes > 0).all()
        assert (slopes < 1).all()


def test_alibi_bias_literal(twin):
    bias = twin.take(twin.attn.alibi_bias(2, 2, 4, q_offset=[2, 0], **twin.wide))
    distance = np.array([[[2, 1, 0, 1], [3, 2, 1, 0]], [[0, 1, 2, 3], [1, 0, 1, 2]]])
    assert bias.shape == (2, 2, 2, 4)
    assert np.array_equal(bias[:, 0], -distance / 16)
    assert np.array_equal(bias[:, 1], -distance / 256)
    assert not np.signbit(bias[bias == 0]).any()
    same = twin.attn.alibi_bias(2, 2, 4, q_offset=twin.give([2, 0]), **twin.wide)
    assert np.array_equal(twin.take(same), bias)
    assert tuple(twin.attn.alibi_bias(3, 0, 5).shape) == (1, 3, 0, 5)


def test_18_numpy_alibi_is_exact_whatever_kind_of_integer_the_offset_is():
    """Semantic 18: unsigned offsets beside signed positions would be counted in floats."""
    for kind in (np.uint8, np.uint64, np.int16, np.int64):
        assert np.array_equal(
            attn.alibi_bias(2, 3, 5, q_offset=kind(4)), attn.alibi_bias(2, 3, 5, q_offset=4)
        )
    far = attn.alibi_bias(1, 1, 2, q_offset=np.array([2**53 + 2], np.uint64)) * 2.0**8
    assert far.ravel().tolist() == [-(2.0**53 + 2), -(2.0**53)]


def test_alibi_row_of_a_chunk_is_the_row_of_the_whole(twin):
    whole = twin.take(twin.attn.alibi_bias(5, 11, 11, **twin.wide))
    for offset in range(11):
        row = twin.take(twin.attn.alibi_bias(5, 1, 11, q_offset=offset, **twin.wide))
        assert np.array_equal(row[:, :, 0], whole[:, :, offset])


def test_alibi_in_a_decode_step(twin):
    """One query at position 3 of 4: the nearer the key, the more of its value."""
    query, key = np.zeros((1, 8, 1, 2)), np.zeros((1, 8, 4, 2))
    value = np.broadcast_to([[1.0], [2], [4], [8]], (1, 8, 4, 1)).copy()
    bias = twin.attn.alibi_bias(8, 1, 4, q_offset=3, **twin.wide)
    output = twin.attn.scaled_dot_product_attention(*map(twin.give, (query, key, value)), bias=bias)
    weights = np.exp([-1.5, -1.0, -0.5, 0.0])  # slope 1/2
    assert abs(twin.take(output)[0, 0, 0, 0] - weights @ value[0, 0, :, 0] / weights.sum()) < 1e-12
    assert (np.diff(twin.take(output)[0, :, 0, 0]) < 0).all()  # the dearest head looks nearest


@pytest.mark.parametrize(
    ("args", "offset", "error", "said"),
    [
        ((0, 2, 2), 0, ValueError, "num_heads.*0"),
        ((2.0, 2, 2), 0, TypeError, "num_heads"),
        ((2, -1, 2), 0, ValueError, "q_len.*-1"),
        ((2, 2, -3), 0, ValueError, "k_len.*-3"),
        ((2, 2, 2), None, TypeError, "q_offset"),
        ((2, 2, 2), 1.5, TypeError, "q_offset"),
        ((2, 2, 2), [0.5, 1.0], TypeError, "q_offset"),
        ((2, 2, 2), np.zeros((2, 1), int), ValueError, "q_offset"),
        ((2, 2, 2), 2**63, ValueError, "q_offset: .*64 bits"),
        ((2, 2, 2), np.array([0, 2**63], np.uint64), ValueError, "q_offset: .*64 bits"),
        ((2, 2, 2), np.ma.array([0, 1]), TypeError, "q_offset: .*MaskedArray"),
        ((2, 10**30, 2), 0, ValueError, "q_len: .*64 bits"),
    ],
)
def test_alibi_refuses(twin, args, offset, error, said):
    with pytest.raises(error, match=said):
        twin.attn.alibi_bias(*args, q_offset=offset)


def test_float32_twins_agree():
    x = numbers(2, 3, 5, 6).astype(np.float32)
    for layout in LAYOUTS:
        ours = attn.rotary(x, np.arange(5), layout=layout)
        theirs = attn.torch.rotary(torch.tensor(x), np.arange(5), layout=layout)
        assert ours.dtype == np.float32
        assert np.abs(ours - theirs.numpy()).max() < 1e-6
    assert scaled_dot_product_attention(ours, ours, ours).dtype == np.float32
