"""fused_attention against the plain function on every path, and the masks that FlexAttention gets.

The FlexAttention path runs here as on a GPU but on the CPU and uncompiled, where torch writes out
all scores: rule, tile lists, softcap, bias and sink are proven, the GPU's own kernel is not.
"""

import functools
import itertools
import shutil
import warnings

import numpy as np
import pytest
import torch
from mask_table import TABLE
from reference import attend
from torch.nn.attention import flex_attention as torch_flex

from attn import Causal, Dilated, KeyPadding, Mask, PrefixLM, SameDocument, SlidingWindow
from attn.torch import (
    block_mask,
    dense_mask,
    flex,
    fused_attention,
    fused_path,
    scaled_dot_product_attention,
)
from attn.torch.fused import kernels, paths, run, strips, unseen

BARE = ("bias", "scale", "softcap", "sink", "q_offset")
B, H, HKV, L, S, D, DV = 2, 6, 3, 13, 17, 5, 7
TIGHT = dict(atol=1e-12, rtol=1e-12)
RNG = np.random.default_rng(7)
IDS = np.sort(RNG.integers(0, 4, (B, 40)), axis=-1)
MASKS = {
    "none": None,
    "causal": Causal(),
    "window": SlidingWindow(3, 1),
    "prefix": PrefixLM([5, 0]),
    "documents": SameDocument(IDS),
    "padding": KeyPadding([S, 4]),
    "dilated": Dilated(3),
    "future": ~Causal(),
    "past": Causal() & ~SlidingWindow(2),
    "first keys and window": KeyPadding(2) | SlidingWindow(2),
    "gap": KeyPadding(6) | ~KeyPadding(9),
    "array": torch.as_tensor(RNG.random((B, 1, L, S)) > 0.6),
    "array per head": torch.as_tensor(RNG.random((1, H, L, S)) > 0.9),
    "nothing": KeyPadding(0),
}
MASKS["array per head"][:, 0] = True  # tiles that are full for one head only
OPTIONS = {
    "bare": {},
    "negative scale": {"scale": -0.7},
    "no scale": {"scale": 0.0},
    "softcap": {"softcap": 1.5},
    "sink": {"sink": (H,)},
    "bias": {"bias": (L, S)},
    "key bias": {"bias": (B, 1, 1, S)},
    "all": {"softcap": 2.0, "sink": (H,), "bias": (1, H, L, S), "scale": 0.4},
}


class Reach(Mask):
    """A rule of the user's own that tells heads apart and looks at distances only."""

    reads_absolute_positions = False

    def __call__(self, b, h, q, k):
        return (k <= q) & (q - k <= 2 * h + 3)


ALIKE = {
    "window": SlidingWindow(9, 2),
    "per head": Reach(),
    "future": ~Causal() & SlidingWindow(0, 8),
    "two windows": SlidingWindow(2) | (SlidingWindow(30) & ~SlidingWindow(24)),
}


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 4 queries by 3 keys: small inputs then have many strips, with ragged ends."""
    for name, value in {"ROWS": 4, "KEYS": 3, "TALLEST": 8, "CALL": 0}.items():
        monkeypatch.setattr(strips, name, value)
    monkeypatch.setattr(unseen, "TILE", 4)


@pytest.fixture
def flex_on_cpu(monkeypatch):
    """Send every call that a GPU would give to FlexAttention there, without its compiler.

    Two names here are private to torch 2.13, which refuses the CPU and warns without a compiler:
    after a new torch look here first, and run these tests on a GPU where there is one.
    """
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *operands: None)
    monkeypatch.setattr(flex, "compiled_kernel", lambda: torch_flex.flex_attention)
    for path in ("sdpa slices", "plain slices"):
        monkeypatch.setitem(kernels.KERNELS, path, kernels.flex)


def operands(dtype=torch.float64, heads=(H, HKV), sizes=(L, S, D, DV), batch=B):
    rows, slots, width, wide = sizes
    shapes = (heads[0], rows, width), (heads[1], slots, width), (heads[1], slots, wide)
    return [torch.randn(batch, *shape, dtype=dtype, requires_grad=True) for shape in shapes]


def filled(options, dtype=torch.float64):
    """Shapes of sink and bias as random tensors; some of the bias removes its pair."""
    options = dict(options)
    for name in {"sink", "bias"} & set(options):
        numbers = torch.randn(options[name], dtype=dtype)
        if name == "bias":
            numbers[numbers > 1] = -torch.inf
        options[name] = numbers.requires_grad_()
    return options


def values_and_gradients(function, inputs, mask, options):
    """Output and the gradients of everything that has one, for the same random cotangent."""
    output = function(*inputs, mask, **options)
    leaves = [*inputs, *(x for x in options.values() if isinstance(x, torch.Tensor))]
    leaves = [x for x in leaves if x.requires_grad]
    cotangent = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).reshape(output.shape)
    return [output.detach(), *torch.autograd.grad(output, leaves, cotangent)]


def assert_same(inputs, mask, options, row="", **tolerance):
    expected = values_and_gradients(scaled_dot_product_attention, inputs, mask, options)
    got = values_and_gradients(fused_attention, inputs, mask, options)
    for name, ours, plain in zip(("output", *"qkv", "bias", "sink"), got, expected, strict=False):
        torch.testing.assert_close(
            ours, plain, **(tolerance or TIGHT), msg=f"{name} differs, {row}"
        )


def planned(call):
    """The strips of a call."""
    return strips.plan_strips(functools.partial(unseen.areas_of, call), call.size)


class TestSameNumbers:
    @pytest.mark.parametrize("name", MASKS)
    def test_output_and_gradients(self, small_tiles, name):
        # ids are looked up by position: there is none before the first
        offsets = (0, 3) if name == "documents" else (0, S - L, [-6, 9])
        for option, offset in itertools.product(OPTIONS, offsets):
            options = filled(OPTIONS[option]) | {"q_offset": offset}
            assert_same(operands(), MASKS[name], options, row=f"{option}, offset {offset}")

    @pytest.mark.parametrize("row", TABLE, ids=str)
    def test_every_rule_against_plain_loops(self, small_tiles, row):
        batch, heads = max(row.batch, 2) if row.batch == 1 else row.batch, max(row.heads, 1)
        inputs = operands(heads=(heads, heads), sizes=(row.L, row.S, D, DV), batch=batch)
        got = fused_attention(*inputs, row.mask, q_offset=row.q_offset)
        expected, _ = attend(*(x.detach().numpy() for x in inputs), row.allowed)
        np.testing.assert_allclose(got.detach(), expected, atol=1e-12)

    def test_default_tiles_over_several_strips(self):
        inputs = operands(heads=(2, 1), sizes=(331, 397, D, DV), batch=1)
        assert_same(inputs, SlidingWindow(50, 20) | KeyPadding(5), {"q_offset": 29})

    @pytest.mark.parametrize("mask", ALIKE.values(), ids=ALIKE)
    def test_strips_alike_are_stacked(self, small_tiles, monkeypatch, mask):
        """Neighbours whose rule is the same become rows of one call; a bias tells them apart."""
        monkeypatch.setattr(strips, "KEYS", 4)
        real, counts = run.attend_stack, []
        counted = lambda job, *rest: (counts.append(job.count), real(job, *rest))[1]  # noqa: E731
        monkeypatch.setattr(run, "attend_stack", counted)
        for option, batch in itertools.product(("bare", "all", "sink"), (1, 2)):
            inputs = operands(sizes=(53, 61, D, DV), batch=batch)
            options = OPTIONS[option] | ({"bias": (1, H, 53, 61)} if option == "all" else {})
            options = filled(options) | {"q_offset": 3 if batch == 1 else [3, -2]}
            counts.clear()
            assert_same(inputs, mask, options, row=f"{option}, batch {batch}")
            assert bool(counts) == (option != "all"), (option, batch)
            assert all(count > 1 for count in counts)

    def test_without_gradients(self, small_tiles):
        for mask in MASKS.values():
            with torch.no_grad():
                got = fused_attention(*operands(), mask, q_offset=0)
            assert not got.requires_grad

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("option", ["bare", "negative scale", "bias", "softcap", "sink"])
    def test_half_precision_within_twice_the_plain_error(self, dtype, option):
        """Semantic 9."""
        shapes, widths = {"bias": (131, 131), "sink": (H,)}, (16, 24)
        options = {k: shapes.get(k, v) for k, v in OPTIONS[option].items()}
        options = filled(options, torch.float32)
        rules = (None, Causal(), SlidingWindow(40), KeyPadding(90))
        for mask, Dv in itertools.product(rules, widths):
            sizes = (131, 131, 16, Dv)
            halves = [x.detach() for x in operands(dtype, sizes=sizes)]
            exact = scaled_dot_product_attention(*(x.double() for x in halves), mask, **options)
            plain, got = (
                f(*halves, mask, **options) for f in (scaled_dot_product_attention, fused_attention)
            )
            assert got.dtype == dtype
            error = [(x.double() - exact).abs().max() for x in (got, plain)]
            assert error[0] <= 2 * error[1], (mask, Dv)

    @pytest.mark.parametrize("shape", [(L, D), (3, L, D), (2, 3, 3, L, D)], ids=str)
    def test_any_rank(self, shape):
        query, key, value = (torch.randn(shape) for _ in range(3))
        for mask in (None, Causal(), SlidingWindow(2), torch.ones(L, L, dtype=torch.bool).tril()):
            expected = scaled_dot_product_attention(query, key, value, mask)
            torch.testing.assert_close(fused_attention(query, key, value, mask), expected)

    @pytest.mark.parametrize("empty", range(5))
    def test_zero_sizes(self, empty):
        batch, *sizes = (0 if i == empty else n for i, n in enumerate((B, L, S, D, DV)))
        inputs = operands(sizes=sizes, batch=batch)
        for mask in (None, Causal(), SlidingWindow(2)):
            assert_same(inputs, mask, {"q_offset": 0})

    def test_autocast_is_ignored(self):
        inputs = [x.detach().float() for x in operands()]
        for mask in (None, SlidingWindow(2)):
            with torch.autocast("cpu", torch.bfloat16):
                got = fused_attention(*inputs, mask, q_offset=0)
            expected = scaled_dot_product_attention(*inputs, mask, q_offset=0)
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)

    def test_inputs_stay_as_they_are_and_strides_do_not_matter(self):
        query, key, value = (x.detach() for x in operands(heads=(HKV, HKV)))
        odd = query.mT.contiguous().mT, key[:1].expand(B, -1, -1, -1), value[..., ::2]
        before = [x.clone() for x in odd]
        for mask in (None, Causal(), SlidingWindow(2)):
            got = fused_attention(*odd, mask, q_offset=0)
            expected = scaled_dot_product_attention(*before, mask, q_offset=0)
            torch.testing.assert_close(got, expected, **TIGHT)
        assert all(torch.equal(x, y) for x, y in zip(odd, before, strict=True))


class TestNothingThere:
    @pytest.mark.parametrize("option", ["bare", "bias", "sink", "softcap"])
    def test_all_tiles_empty_stays_on_the_graph(self, small_tiles, option):
        """Semantic 3."""
        options = filled(OPTIONS[option])
        inputs = operands()
        output, *gradients = values_and_gradients(fused_attention, inputs, KeyPadding(0), options)
        assert all(not x.any() for x in (output, *gradients))

    @pytest.mark.parametrize("name", ["window", "documents", "padding", "causal", "past", "array"])
    def test_what_nobody_sees_may_hold_anything(self, small_tiles, name):
        """Semantic 10, an operand at a time: NaN in a key would hide that one in a value passes."""
        mask = MASKS[name]
        if name == "array":
            mask = mask.clone()
            mask[..., -3:] = mask[..., 2, :] = False
        allowed = dense_mask(mask, L, S, q_offset=0, batch=B, heads=H).expand(B, H, L, S)
        seen = allowed.any(-2).unflatten(1, (HKV, -1)).any(2)
        unseen = ~allowed.any(-1), ~seen, ~seen
        assert any(where.any() for where in unseen)
        inputs = operands()
        expected = values_and_gradients(fused_attention, inputs, mask, {"q_offset": 0})
        fast = "sdpa causal" if name == "causal" else "sdpa slices"
        for garbage, which in itertools.product(
            (torch.nan, torch.inf, -torch.inf, 1e300), range(3)
        ):
            spoilt = [x.detach().clone() for x in inputs]
            spoilt[which][unseen[which]] = garbage
            spoilt = [x.requires_grad_() for x in spoilt]
            assert fused_path(*spoilt, mask, q_offset=0) == fast
            got = values_and_gradients(fused_attention, spoilt, mask, {"q_offset": 0})
            for ours, clean in zip(got, expected, strict=True):
                torch.testing.assert_close(
                    ours, clean, **TIGHT, msg=f"{garbage} in operand {which}"
                )

    @pytest.mark.parametrize(
        "mask", [None, SlidingWindow(4, 4), torch.ones(1, S, dtype=torch.bool)]
    )
    def test_what_a_bias_removes_may_hold_anything(self, small_tiles, mask):
        bias = torch.zeros(L, S)
        bias[:, 3] = bias[6] = -torch.inf
        inputs, options = operands(), {"bias": bias, "q_offset": 0}
        expected = values_and_gradients(fused_attention, inputs, mask, options)
        with torch.no_grad():
            for x, row in zip(inputs, (6, 3, 3), strict=True):
                x[..., row, :] = torch.nan
        assert fused_path(*inputs, mask, **options) == "sdpa slices"
        got = values_and_gradients(fused_attention, inputs, mask, options)
        for ours, clean in zip(got, expected, strict=True):
            torch.testing.assert_close(ours, clean, **TIGHT)

    def test_a_key_that_some_see_spoils_only_their_rows(self, small_tiles):
        query, key, value = (x.detach() for x in operands())
        key[:, :, 8] = torch.inf
        mask = SlidingWindow(1)
        got = fused_attention(query, key, value, mask, q_offset=0)
        torch.testing.assert_close(
            got, scaled_dot_product_attention(query, key, value, mask, q_offset=0), equal_nan=True
        )
        assert fused_path(query, key, value, mask, q_offset=0) == "plain slices"


class TestPath:
    def test_each_path_by_name(self):
        x, y = torch.randn(1, 2, L, D), torch.randn(1, 2, S, D)
        bias = torch.zeros(L, L)
        expected = [
            (fused_path(x, x, x), "sdpa"),
            (fused_path(x, x, x, Causal()), "sdpa causal"),
            (fused_path(x, y, y, Causal(), q_offset=0), "sdpa causal"),
            (fused_path(x, y, y, Causal(), q_offset=S - L), "sdpa slices"),
            (fused_path(x, x, x, SlidingWindow(2)), "sdpa slices"),
            (fused_path(x, x, x, torch.ones(L, L, dtype=torch.bool)), "sdpa slices"),
            (fused_path(x, x, x, bias=bias), "sdpa slices"),
            (fused_path(x, x, x, Causal(), softcap=3.0), "plain slices"),
            (fused_path(x, x, x, sink=torch.zeros(2)), "plain slices"),
            (fused_path(x[:, :, :0], x, x), "plain"),
        ]
        assert [got for got, _ in expected] == [path for _, path in expected]

    def test_the_path_named_is_the_path_run(self, monkeypatch):
        ran = []
        for path, kernel in kernels.KERNELS.items():
            logged = lambda call, path=path, kernel=kernel: (ran.append(path), kernel(call))[1]  # noqa: E731
            monkeypatch.setitem(kernels.KERNELS, path, logged)
        x = torch.randn(1, 2, L, D)
        for mask in (None, Causal(), SlidingWindow(1)):
            fused_attention(x, x, x, mask)
            fused_attention(x, x, x, mask, softcap=1.0)
        assert ran == [
            "sdpa", "plain slices", "sdpa causal", "plain slices", "sdpa slices", "plain slices",
        ]  # fmt: skip

    def test_slices_never_see_an_empty_tile(self, small_tiles):
        """Work is counted, not timed: pairs handed to the kernel against pairs of the matrix."""
        handed = []

        def count(query, key, value, keep, bias):
            handed.append((query.shape[-2], key.shape[-2], keep is None))
            return query.new_zeros(*query.shape[:-1], value.shape[-1])

        x = torch.zeros(1, 1, 24, 2)
        mask = SameDocument(np.repeat([0, 1, 2], (12, 8, 4)))
        call = paths.plan_call(x, x, x, mask, **dict.fromkeys(BARE))[1]
        run.attend_strips(call, count)
        assert handed == [(12, 12, True), (8, 8, True), (4, 4, True)]

    @pytest.mark.parametrize(("call", "rows"), [(0, 4), (2 * 12 * 2, 8), (1e9, 12)])
    def test_strips_grow_while_that_costs_less_than_a_call(
        self, small_tiles, monkeypatch, call, rows
    ):
        """A window of 3 in tiles of 4 x 3: two rows of tiles together read 12 pairs more."""
        monkeypatch.setattr(strips, "CALL", call)
        monkeypatch.setattr(strips, "TALLEST", 12)
        x = torch.zeros(1, 1, 24, 2)
        plan = paths.plan_call(x, x, x, SlidingWindow(2), **dict.fromkeys(BARE))[1]
        assert max(strip.stop - strip.first for strip in planned(plan)[0]) == rows

    def test_full_neighbours_share_one_call(self, small_tiles, monkeypatch):
        x = torch.zeros(1, 1, 24, 2)
        call = paths.plan_call(x, x, x, KeyPadding(9), **dict.fromkeys(BARE))[1]
        assert planned(call) == [[strips.Strip(0, 24, ((0, 9),), True)]]
        documents = SameDocument(np.repeat([0, 1], 12))
        call = paths.plan_call(x, x, x, documents, **dict.fromkeys(BARE))[1]
        expected = [strips.Strip(i, i + 12, ((i, i + 12),), True) for i in (0, 12)]
        assert planned(call) == [expected]
        monkeypatch.setattr(strips, "CALL", 1e9)  # one call for both documents needs the mask again
        monkeypatch.setattr(strips, "TALLEST", 24)
        assert planned(call) == [[strips.Strip(0, 24, ((0, 24),), False)]]


class TestErrors:
    @pytest.mark.parametrize(
        ("mask", "options"),
        [
            (Causal(), {}),
            (lambda b, h, q, k: k <= q, {}),
            (torch.ones(L, S), {}),
            (torch.ones(L, L, dtype=torch.bool), {}),
            (KeyPadding(S + 1), {}),
            (None, {"softcap": 0.0}),
            (None, {"scale": float("nan")}),
            (None, {"sink": torch.zeros(H + 1)}),
            (None, {"bias": torch.full((L, S), torch.nan)}),
            (None, {"bias": torch.zeros(L, S, dtype=torch.bool)}),
            (None, {"q_offset": [1, 2, 3]}),
            (np.ones((L, S), bool), {}),
        ],
    )
    def test_the_words_of_the_plain_function(self, mask, options):
        inputs = [x.detach().float() for x in operands()]
        with pytest.raises((TypeError, ValueError)) as plain:
            scaled_dot_product_attention(*inputs, mask, **options)
        for function in (fused_attention, fused_path):
            with pytest.raises(plain.type) as ours:
                function(*inputs, mask, **options)
            assert str(ours.value) == str(plain.value)

    @pytest.mark.parametrize("bad", [0, 1, 2])
    def test_operands(self, bad):
        inputs = [x.detach() for x in operands()]
        for wrong in (inputs[bad].int(), inputs[bad][..., :3, :3], inputs[bad].numpy(), None):
            broken = [*inputs[:bad], wrong, *inputs[bad + 1 :]]
            outcomes = []
            for function in (scaled_dot_product_attention, fused_attention):
                with pytest.raises((TypeError, ValueError, AttributeError)) as error:
                    function(*broken)
                outcomes.append((error.type, str(error.value)))
            assert outcomes[0] == outcomes[1]

    def test_a_rule_that_does_not_answer_with_booleans(self):
        class Number(Mask):
            def __call__(self, b, h, q, k):
                return abs(q - k)

        x = torch.randn(1, 1, L, D)
        for function in (scaled_dot_product_attention, fused_attention, fused_path):
            with pytest.raises(TypeError, match="expected a boolean tensor"):
                function(x, x, x, Number())


class TestBlockMask:
    @pytest.mark.parametrize("row", TABLE, ids=str)
    def test_lists_and_rule_agree_with_the_pictures(self, row):
        """Lists: no seen pair outside the listed tiles, no hidden pair inside a full one."""
        for edges in ((2, 3), (128, 128)):
            self.check_lists(row, edges)

    def check_lists(self, row, edges):
        block = block_mask(
            row.mask, row.L, row.S, q_offset=row.q_offset, batch=row.batch, heads=row.heads,
            block_size=edges,
        )  # fmt: skip
        allowed = np.broadcast_to(row.allowed, (row.batch, row.heads, row.L, row.S))
        assert block.shape[-2:] == (row.L, row.S)
        drawn = torch_flex.create_mask(block.mask_mod, row.batch, row.heads, row.L, row.S, "cpu")
        assert np.array_equal(drawn, allowed)
        some = listed(block.kv_num_blocks, block.kv_indices)
        full = listed(block.full_kv_num_blocks, block.full_kv_indices)
        assert not (some & full).any()
        spread = [spread_out(x, edges, (row.L, row.S)) for x in (some | full, full)]
        assert (allowed <= spread[0]).all()
        assert (spread[1] <= allowed).all()

    @pytest.mark.parametrize("mask", [Causal(), SlidingWindow(5, 2), MASKS["array per head"]])
    def test_the_same_tiles_as_torch_finds_pair_by_pair(self, mask):
        ours = block_mask(mask, L, S, q_offset=2, heads=H, block_size=(4, 3))
        theirs = torch_flex.create_block_mask(ours.mask_mod, 1, H, L, S, "cpu", BLOCK_SIZE=(4, 3))
        assert torch.equal(ours.to_dense().expand(1, H, -1, -1), theirs.to_dense())
        counts = theirs.full_kv_num_blocks
        assert torch.equal(ours.full_kv_num_blocks.expand_as(counts), counts)
        back, expected = ours.full_q_num_blocks, theirs.full_q_num_blocks
        assert torch.equal(back.expand_as(expected), expected)

    @pytest.mark.parametrize("name", [name for name in MASKS if name != "none"])
    def test_flex_gives_the_numbers_of_the_plain_function(self, flex_on_cpu, name):
        for option in OPTIONS:
            options = filled(OPTIONS[option], torch.float32) | {"q_offset": 3}
            inputs = operands(torch.float32)
            for x in (*inputs, *options.values()):
                if isinstance(x, torch.Tensor):
                    x.requires_grad_(False)
            expected = scaled_dot_product_attention(*inputs, MASKS[name], **options)
            got = fused_attention(*inputs, MASKS[name], **options)
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5, msg=option)

    @pytest.mark.parametrize("bias", [None, torch.tensor([0.0] * (S - 1) + [-torch.inf])])
    def test_flex_does_not_notice_what_nobody_sees(self, flex_on_cpu, bias):
        query, key, value = (x.detach().float() for x in operands())
        mask = KeyPadding(S - 3) if bias is None else None
        options = dict.fromkeys(BARE) | {"bias": bias}
        clean = kernels.flex(paths.checked(query, key, value, mask, **options))
        key[..., -1, :] = value[..., -1, :] = torch.nan  # on a GPU nobody looks for it beforehand
        got = kernels.flex(paths.checked(query, key, value, mask, **options))
        assert torch.equal(got, clean)

    def test_a_sink_of_minus_infinity_takes_nothing(self, flex_on_cpu):
        """Semantic 3, on the flex path: where nobody is seen lse - sink would be -inf - -inf."""
        query, key, value = operands()
        sink = torch.full((H,), -torch.inf, dtype=query.dtype)
        options = dict.fromkeys(BARE) | {"sink": sink}
        got = kernels.flex(paths.checked(query, key, value, KeyPadding([S, 0]), **options))
        assert torch.equal(got[1], torch.zeros_like(got[1]))
        bare = kernels.flex(
            paths.checked(query, key, value, KeyPadding([S, 0]), **dict.fromkeys(BARE))
        )
        torch.testing.assert_close(got, bare, **TIGHT)

    @pytest.mark.parametrize("option", ["bare", "sink", "bias", "key bias", "all"])
    def test_gradients_of_the_flex_path(self, flex_on_cpu, monkeypatch, option):
        monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
        options = filled(OPTIONS[option]) | {"q_offset": 3}
        mask = KeyPadding([S, 2]) & SlidingWindow(3)  # rows that see nothing, keys nobody sees
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that it is not compiled
            assert_same(operands(), mask, options, atol=1e-6, rtol=1e-6)

    def test_more_rules_than_torch_compiles_by_default(self, monkeypatch):
        """The ninth rule would be computed without a kernel, and nobody would be told."""
        graphs = []
        backend = lambda graph, examples: (graphs.append(1), graph.forward)[1]  # noqa: E731
        compiled = functools.partial(torch.compile, backend=backend)
        monkeypatch.setattr(torch, "compile", compiled)
        monkeypatch.setattr(flex, "compiled_kernel", flex.compiled_kernel.__wrapped__)
        kernel = flex.compiled_kernel()
        monkeypatch.setattr(flex, "compiled_kernel", lambda: kernel)
        x = torch.randn(1, 1, 20, 16)
        for reach in range(10):
            call = paths.plan_call(x, x, x, SlidingWindow(reach), **dict.fromkeys(BARE))[1]
            kernels.flex(call)
        assert len(graphs) == 10

    @pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles the kernel with g++")
    def test_a_compiled_kernel_visits_the_listed_tiles(self):
        query, key, value = (torch.randn(2, 2, 150, 16) for _ in range(3))
        mask = Causal() & SameDocument(np.sort(RNG.integers(0, 3, (2, 150)), axis=-1))
        call = paths.plan_call(query, key, value, mask, **dict.fromkeys(BARE))[1]
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the compiler's own
            got = kernels.flex(call)
        expected = scaled_dot_product_attention(query, key, value, mask)
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)

    def test_errors_are_those_of_dense_mask(self):
        for mask, options in ((Causal(), {}), (None, {}), (KeyPadding(9), {}), (torch.ones(2), {})):
            with pytest.raises((TypeError, ValueError)) as dense:
                dense_mask(mask, 3, 5, **options)
            with pytest.raises(dense.type) as ours:
                block_mask(mask, 3, 5, **options)
            assert str(ours.value) == str(dense.value)
        with pytest.raises(ValueError, match="block_size"):
            block_mask(Causal(), 3, 3, block_size=0)


def listed(counts, columns):
    """The tiles in the lists, as a boolean array."""
    tiles = np.zeros(columns.shape, bool)
    for index in np.ndindex(counts.shape):
        tiles[index][columns[index][: counts[index]]] = True
    return tiles


def spread_out(tiles, edges, shape):
    """A tile map as a map of pairs."""
    return tiles.repeat(edges[0], -2).repeat(edges[1], -1)[..., : shape[0], : shape[1]]


class TestCompile:
    @pytest.mark.parametrize("name", ["none", "causal", "window", "documents", "array"])
    def test_one_graph_and_the_same_numbers(self, name):
        compiled = torch.compile(fused_attention, backend="aot_eager", fullgraph=True)
        inputs = [x.detach() for x in operands()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's own
            got = compiled(*inputs, MASKS[name], q_offset=0)
        expected = scaled_dot_product_attention(*inputs, MASKS[name], q_offset=0)
        torch.testing.assert_close(got, expected, **TIGHT)

    @pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's kernel has no vmap
    def test_vmap(self):
        query, key, value = (torch.randn(3, 2, L, D) for _ in range(3))
        for mask in (None, Causal(), SlidingWindow(2)):
            got = torch.func.vmap(lambda *x, mask=mask: fused_attention(*x, mask))(
                query, key, value
            )
            torch.testing.assert_close(got, fused_attention(query, key, value, mask))
