"""Ring attention in two and four real processes against loops and autograd on one device.

The processes are started once for each size and answer all calls; the tests look at the answers.
What needs no neighbour runs in a ring of one, inside the test process.
"""

import re
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from mask_table import HeadReach
from reference import attend, normal

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import ring as benchmark  # noqa: E402
import ring_workers  # noqa: E402

from attn import Causal, Dilated, KeyPadding, PrefixLM, SameDocument, SlidingWindow  # noqa: E402
from attn.torch import (  # noqa: E402
    RingTally,
    blockwise_attention,
    dense_mask,
    ring_attention,
    ring_positions,
    scaled_dot_product_attention,
)
from attn.torch.blockwise import EDGE  # noqa: E402
from attn.torch.ring import links  # noqa: E402

B, H, HKV, D, DV = 2, 6, 2, 5, 3
NAMES = ("query", "key", "value")
LAYOUTS = ("contiguous", "striped", "zigzag")
X = torch.zeros(1, 2, 3, 4)
LABEL = 15 * 8  # bytes: fifteen whole numbers say what has to be the same in all processes


def call(L, S, mask=None, dtype="float64", H=H, Hkv=HKV, **options):
    shapes = (B, H, L, D), (B, Hkv, S, D), (B, Hkv, S, DV), (B, H, L, DV), (B, H, L, 1)
    names = (*NAMES, "grad_output", "grad_lse")
    drawn = (normal(i, *shape) for i, shape in enumerate(shapes))
    arrays = dict(zip(names, drawn, strict=True))
    return {**arrays, "mask": mask, "dtype": dtype, "options": options}


def calls(P):
    """Every option at least once, with lengths that are no square and tiles that do not divide."""
    n, ids = 6 * P, np.sort(np.random.default_rng(3).integers(0, 4, (B, 7 * P)), axis=-1)
    found = {
        "no mask": call(5 * P, 7 * P),
        "one head": call(5 * P, 5 * P, Causal(), H=1, Hkv=1),
        "all heads": call(5 * P, 5 * P, Causal(), H=3, Hkv=3, layout="striped", block_size=2),
        "offset": call(3 * P, 7 * P, Causal(), q_offset=4 * P, layout="striped", block_size=2),
        "offset a row": call(3 * P, 7 * P, Causal(), q_offset=[4 * P, -2]),
        "scale": call(5 * P, 5 * P, Causal(), scale=-0.7),
        "softcap": call(n, n, Causal(), softcap=1.5, layout="zigzag", block_size=2),
        "padding": call(5 * P, 7 * P, KeyPadding([7 * P - 3, 4], start=[0, 2])),
        "nothing": call(5 * P, 7 * P, KeyPadding(0)),
        "no queries": call(0, 7 * P),
        "no keys": call(5 * P, 0),
        "documents": call(7 * P, 7 * P, SameDocument(ids) & Causal(), layout="striped"),
        "prefix": call(n, n, PrefixLM([5, 0]), layout="zigzag", block_size=2),
        "window": call(n, n, SlidingWindow(3, 1), layout="zigzag", block_size=1),
        "dilated": call(n, n, Dilated(3), layout="striped", block_size=1),
        "per head": call(n, n, HeadReach(), layout="zigzag", block_size=2),
        "float32": call(n, n, Causal(), "float32", layout="zigzag", block_size=2),
        "float16": call(n, n, Causal(), "float16", layout="striped"),
        "bfloat16": call(n, n, Causal(), "bfloat16"),
    }
    for layout in LAYOUTS:
        found[layout] = call(n, n, Causal(), layout=layout, block_size=1)
    return found


@pytest.fixture(scope="module", params=[2, 4])
def team(request):
    """The answers of as many processes, by rank."""
    P = request.param
    found = benchmark.together(ring_workers.answers, P, calls(P), patience=120)
    for answer in found:
        if isinstance(answer, Exception):
            raise answer
    return found


def whole(parts, layout):
    """The rows of all processes in the order of their positions."""
    rows = np.concatenate(parts, axis=-2)
    places = ring_positions(rows.shape[-2], len(parts), layout=layout).flatten().numpy()
    out = np.empty_like(rows)
    out[..., places, :] = rows
    return out


def on_one_device(call, dtype=torch.float64):
    """Output by loops, lse and all gradients by autograd through the plain function."""
    inputs = [torch.tensor(call[name], dtype=dtype).requires_grad_() for name in NAMES]
    query, key, _ = inputs
    options = {k: v for k, v in call["options"].items() if k in ("scale", "softcap", "q_offset")}
    output = scaled_dot_product_attention(*inputs, call["mask"], **options)
    scores = query @ key.repeat_interleave(query.shape[1] // key.shape[1], dim=1).mT
    scores = scores * options.get("scale", D**-0.5)
    if "softcap" in options:
        scores = options["softcap"] * torch.tanh(scores / options["softcap"])
    allowed = np.True_
    if call["mask"] is not None:
        offset = options.get("q_offset")
        allowed = dense_mask(
            call["mask"],
            query.shape[2],
            key.shape[2],
            q_offset=offset,
            batch=B,
            heads=query.shape[1],
        )
        scores = scores.masked_fill(~allowed, -torch.inf)
    lse = torch.logsumexp(scores, dim=-1) if key.shape[2] else scores.sum(-1) - torch.inf
    finite = torch.where(torch.isfinite(lse), lse, 0.0)
    loss = (output * torch.tensor(call["grad_output"], dtype=dtype)).sum()
    loss = loss + (finite * torch.tensor(call["grad_lse"], dtype=dtype)[..., 0]).sum()
    grads = torch.autograd.grad(loss, inputs)
    if dtype == torch.float64:
        names = ("scale", "softcap")
        by_loops = attend(
            *(call[name] for name in NAMES), np.asarray(allowed),
            **{name: options[name] for name in names if name in options},
        )[0]  # fmt: skip
        np.testing.assert_allclose(output.detach().numpy(), by_loops, atol=1e-12, rtol=0)
    return [x.detach().double().numpy() for x in (output, lse[..., None], *grads)]


# --- Agreement ------------------------------------------------------------------------------------

TOLERANCE = {"float64": 1e-12, "float32": 1e-6}


def test_equals_one_device_forward_and_backward(team):
    P, wrong = len(team), {}
    for name, call in calls(P).items():
        layout = call["options"].get("layout", "contiguous")
        parts = zip(*(answer["calls"][name]["results"] for answer in team), strict=True)
        found = [whole(part, layout) for part in parts]
        want = on_one_device(call)
        if call["dtype"] in TOLERANCE:
            sizes = (np.abs(x[np.isfinite(x)]).max(initial=1) for x in want)
            limits = [TOLERANCE[call["dtype"]] * size for size in sizes]
        else:  # half precision: twice the error of the plain function
            plain = on_one_device(call, getattr(torch, call["dtype"]))
            limits = [2 * np.abs(x - y).max() for x, y in zip(plain, want, strict=True)]
        for what, x, y, limit in zip(("output", "lse", *NAMES), found, want, limits, strict=True):
            assert np.array_equal(np.isinf(x), np.isinf(y))
            error = np.abs(np.where(np.isinf(y), 0, x) - np.where(np.isinf(y), 0, y)).max(initial=0)
            if not error <= limit:
                wrong[name, what] = error, limit
    assert wrong == {}


def test_dtypes_stay(team):
    for answer in team:
        for dtype in ("float32", "float16", "bfloat16"):
            output, lse, *grads = answer["calls"][dtype]["dtypes"]
            assert (output, lse, *grads) == (dtype, "float32", dtype, dtype, dtype)


# --- What is sent and what is computed ------------------------------------------------------------


def test_bytes_are_those_of_the_theory(team):
    """Forward K and V make P − 1 steps; backward they do so again, and dK and dV as many."""
    P = len(team)
    for name, call in calls(P).items():
        wide = 8 if call["dtype"] == "float64" else 4  # dK and dV are summed in float32
        size = {"float64": 8, "float32": 4}.get(call["dtype"], 2)
        entries = (call["key"].size + call["value"].size) // P
        empty = 0 in (call["query"].size, call["key"].size)
        want = Counter(labels=(P - 1) * LABEL)
        if not empty:
            want["forward"] = (P - 1) * size * entries
            want["backward"] = (P - 1) * (size + wide) * entries
        for answer in team:
            answer = answer["calls"][name]
            assert answer["tally"].sent == want, name
            assert answer["wire"] == sum(want.values()), name


def test_pairs_are_the_visible_ones(team):
    """With tiles of one pair, what is computed is what the mask shows, in every layout."""
    P, rows, totals = len(team), 6, {}
    visible = dense_mask(Causal(), rows * P, rows * P)[0, 0].numpy()
    for layout in LAYOUTS:
        at = ring_positions(rows * P, P, layout=layout).numpy()
        for rank, answer in enumerate(team):
            tally = answer["calls"][layout]["tally"]
            want = [visible[np.ix_(at[rank], at[(rank - t) % P])].sum() for t in range(P)]
            assert tally.pairs["forward"] == tally.pairs["backward"] == want
        totals[layout] = [sum(a["calls"][layout]["tally"].pairs["forward"]) for a in team]
    assert totals["contiguous"] == [21 + 36 * rank for rank in range(P)]
    assert totals["striped"] == [21 * P - 6 * (P - 1 - rank) for rank in range(P)]
    assert totals["zigzag"] == [21 + 18 * (P - 1)] * P


def test_no_more_is_multiplied_than_is_counted(team):
    """torch's own counter of FLOPs sees two products for each pair that was computed."""
    for name in ("no mask", "window", "dilated", "nothing", *LAYOUTS):
        for answer in team:
            answer = answer["calls"][name]
            pairs = sum(answer["tally"].pairs["forward"])
            assert answer["flops"] == 2 * pairs * B * H * (D + DV), name


# --- Processes that do not fit together -----------------------------------------------------------


def test_calls_that_differ_are_refused_everywhere_and_the_ring_goes_on(team):
    first = team[0]["errors"]
    assert set(first) == {"length", "dtype", "layout", "gradients"}
    assert "the same L in every process, got 6 on rank 0 and 4 on rank 1" in first["length"]
    assert "the same dtype in every process, got float32 on rank 0 and float64" in first["dtype"]
    assert "the same layout in every process, got zigzag on rank 0 and striped" in first["layout"]
    assert "need of gradients in every process, got False on rank 0 and True" in first["gradients"]
    assert all(answer["errors"] == first for answer in team)


def test_every_option_that_differs_is_refused_everywhere_and_named(team):
    """A single option of rank 1 is another one; the same written in two ways is no difference."""
    options = [name for name, _, _ in ring_workers.pairs_of_options()]
    for answer in team:
        said = answer["options"]
        assert said == team[0]["options"]
        assert said[len(options) :] == [None] * len(ring_workers.pairs_that_agree())
        for name, words in zip(options, said, strict=False):
            assert words is not None, name
            assert f"expected the same {name} in every process, got " in words
            assert re.search("got .+ on rank 0 and .+ on rank 1$", words)
    assert "got 0.5 on rank 0 and 0.3 on rank 1" in said[0]
    assert "got None on rank 0 and 5.0 on rank 1" in said[2]
    assert f"got {EDGE} on rank 0 and 2 on rank 1" in said[6]


def test_a_ring_of_some_processes(team):
    x = torch.arange(6.0).reshape(1, 1, 6, 1)
    want = scaled_dot_product_attention(x, x, x, Causal()).numpy()
    for rank, answer in enumerate(team):
        if rank < len(team) - 2:
            assert f"group: rank {rank} is not a member" in answer["subgroup"]
        else:
            rows, output = answer["subgroup"]
            assert rows == 3 * (rank - len(team) + 2)
            np.testing.assert_allclose(output, want[:, :, rows : rows + 3], atol=1e-6, rtol=0)


@pytest.fixture(scope="module")
def bereaved():
    """What rank 0 and rank 2 of three saw when rank 1 hung, and when it was killed."""
    first, killed, last = benchmark.together(ring_workers.perish, 3, patience=120)
    assert killed is None
    return {0: first, 2: last}


def test_a_process_that_hangs_is_named_after_the_timeout(bereaved):
    """Two exchanges of labels, two of the forward pass: the third never comes."""
    for rank, ((message, seconds), _) in bereaved.items():
        assert message.startswith(
            f"ring_attention: rank {rank} had no answer from rank 1, a neighbour in the ring, for "
            "1 s in forward step 1 of 2 (keys and values). Read the log of rank 1 first: "
        )
        assert message.endswith("If rank 1 is only slow, raise timeout.")
        assert 0.9 < seconds < 4.5


def test_a_killed_process_is_named_at_once(bereaved):
    """The exchanges after the forward pass: keys, keys, gradients, gradients."""
    for rank, (_, (message, seconds)) in bereaved.items():
        assert f"rank {rank} lost rank 1, a neighbour in the ring, in backward step" in message
        assert "start them again" in message
        assert seconds < 10


# --- A ring of one --------------------------------------------------------------------------------


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def tensors(*shapes, dtype=torch.float64, grad=False):
    arrays = (torch.tensor(normal(i, *s), dtype=dtype) for i, s in enumerate(shapes))
    return [x.requires_grad_(grad) for x in arrays]


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_one_process_is_one_device(alone, rank):
    inputs = [
        x.reshape(x.shape[4 - rank :]) for x in tensors((1, 1, 5, 3), (1, 1, 5, 3), (1, 1, 5, 7))
    ]
    tally = RingTally()
    output, lse = ring_attention(*inputs, Causal(), tally=tally, block_size=2)
    want, want_lse = blockwise_attention(*inputs, Causal())
    torch.testing.assert_close(output, want, atol=1e-14, rtol=0)
    torch.testing.assert_close(lse, want_lse, atol=1e-14, rtol=0)
    assert tally.sent["forward"] == tally.sent["labels"] == 0


@pytest.mark.parametrize("options", [{}, {"softcap": 1.2, "scale": 0.9, "mask": Causal()}], ids=str)
def test_gradients_by_central_differences(alone, options):
    inputs = tensors((1, 2, 3, 2), (1, 1, 3, 2), (1, 1, 3, 4), grad=True)
    assert torch.autograd.gradcheck(lambda *x: ring_attention(*x, block_size=2, **options), inputs)
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(ring_attention(*inputs)[0].sum(), inputs, create_graph=True)


def test_slots_that_nobody_sees_may_hold_anything(alone):
    clean = tensors((2, 2, 5, 3), (2, 2, 5, 3), (2, 2, 5, 3), grad=True)
    spoilt = [x.detach().clone() for x in clean]
    for x in spoilt[1:]:
        x[:, :, 3:] = torch.nan
    spoilt = [x.requires_grad_() for x in spoilt]
    both = []
    for inputs in (clean, spoilt):
        output, lse = ring_attention(*inputs, KeyPadding(3), block_size=5)
        both.append([output, lse, *torch.autograd.grad(output.sum() + lse.sum(), inputs)])
    for x, y in zip(*both, strict=True):
        assert torch.equal(x, y)


def test_inputs_are_not_changed_and_strides_do_not_matter(alone):
    query, key, value = tensors((2, 5, 4, 3), (2, 5, 4, 3), (2, 5, 4, 3))
    before = [x.clone() for x in (query, key, value)]
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key, value)]
    assert torch.equal(ring_attention(*turned)[0], ring_attention(query, key, value)[0])
    assert all(torch.equal(x, y) for x, y in zip((query, key, value), before, strict=True))


def test_work_in_one_piece_names_both_neighbours(alone):
    """NCCL answers for all sends and receives at once, so nobody knows whose fault it was."""

    class Broken:
        def wait(self, timeout):
            raise RuntimeError("NCCL says")

    neighbours = links.Links(dist.group.WORLD, 0, 1, 2, 1, 9.0, None)
    transit = links.Transit(neighbours, "in forward step 1 of 2", [Broken()], [X, X], [X, X])
    with pytest.raises(ConnectionError, match=r"lost rank 1 or rank 2, a neighbour .* step 1 of 2"):
        transit.wait()


def test_a_wait_that_ends_a_little_early_has_still_timed_out(alone):
    """gloo counts whole milliseconds, rounded down: its second may be over after 0.9995 s."""

    class Rounded:
        def wait(self, limit):
            time.sleep(int(limit.total_seconds() * 1000 - 1) / 1000)
            raise RuntimeError("Timed out")

    class Closed:
        def wait(self, limit):
            raise RuntimeError("Connection closed by peer")

    neighbours = links.Links(dist.group.WORLD, 0, 1, 2, 1, 0.2, None)
    for work, said in ((Rounded(), "had no answer from rank 1 or"), (Closed(), "lost rank 1 or")):
        transit = links.Transit(neighbours, "in forward step 1 of 2", [work], [X, X], [X, X])
        with pytest.raises(ConnectionError, match=said):
            transit.wait()


def test_torchrun_understands_the_commands_of_the_script():
    """It reads the options behind the script as well, and --n would be short for several."""
    from torch.distributed.run import parse_args

    commands = re.findall(r"^ +torchrun (.*?)(?:  |$)", benchmark.__doc__, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        read = parse_args(command.split())
        assert read.training_script == "benchmarks/ring.py"
        own = benchmark.options(read.training_script_args)
        assert own.device in ("cpu", "cuda")
    assert own.length == 8192


def test_the_script_reports_a_line(alone, capsys):
    benchmark.report(benchmark.Case(8, layout="striped"), "cpu")
    line = capsys.readouterr().out
    assert line.startswith("striped    P = 1, n = 8: difference / largest entry O ")
    assert "sent 0 + 0 B; pairs of the busiest 64;" in line


# --- Positions ------------------------------------------------------------------------------------


def test_layouts_by_hand():
    def rows(layout):
        return ring_positions(12, 3, layout=layout).tolist()

    assert rows("contiguous") == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert rows("striped") == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert rows("zigzag") == [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]


@pytest.mark.parametrize("P", [1, 2, 5])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_position_is_held_once(layout, P):
    held = ring_positions(14 * P, P, layout=layout)
    assert held.shape == (P, 14)
    assert (held.diff(dim=1) > 0).all()
    assert torch.equal(held.flatten().sort().values, torch.arange(14 * P))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((10, 4), ValueError, "length: expected a multiple of P = 4 .*got 10: pad"),
        ((12, 4, "zigzag"), ValueError, "length: expected a multiple of 2·P = 8 .*got 12: pad"),
        ((12, 4, "spiral"), ValueError, "layout: expected one of .*zigzag, got 'spiral'"),
        ((12, 0), ValueError, "processes: expected an int of at least 1, got 0"),
        ((12.0, 2), TypeError, "length: expected an int, got 12.0"),
    ],
    ids=str,
)
def test_positions_that_cannot_be(arguments, error, message):
    length, processes, layout = (*arguments, "contiguous")[:3]
    with pytest.raises(error, match=message):
        ring_positions(length, processes, layout=layout)


# --- Bad calls ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((X, X[..., :2], X), {}),
        ((X, X, X[:, :, :2]), {}),
        ((X, X.double(), X), {}),
        ((X, X, X.int()), {}),
        ((X, X.numpy(), X), {}),
        ((X[:, :1], X, X), {}),
        ((X, X, X, Causal), {}),
        ((X, X, X, lambda b, h, q, k: q >= k), {}),
        ((X, X, X), {"scale": "1"}),
        ((X, X, X), {"softcap": 0.0}),
        ((X, X, X), {"block_size": 0}),
        ((X[:, :, :2], X, X, Causal()), {}),
        ((X, X, X, KeyPadding(4)), {}),
        ((X, X, X, Causal()), {"q_offset": 0.5}),
    ],
    ids=range(14),
)
def test_bad_calls_get_the_words_of_the_family(alone, arguments, options):
    said = []
    for function in (blockwise_attention, ring_attention):
        with pytest.raises((TypeError, ValueError)) as caught:
            function(*arguments, **options)
        said.append((caught.type, str(caught.value)))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mask": torch.ones(3, 3, dtype=torch.bool)}, TypeError, "mask: expected a rule .*array"),
        ({"bias": torch.zeros(3, 3)}, TypeError, "bias"),
        ({"sink": torch.zeros(2)}, TypeError, "sink"),
        ({"layout": "zigzag"}, ValueError, r"query: expected a multiple of 2·P = 2 .*got 3"),
        ({"scale": torch.ones((), requires_grad=True)}, ValueError, "scale: .*no gradient"),
        ({"layout": "ring"}, ValueError, "layout: expected one of"),
        ({"timeout": 0}, ValueError, "timeout: expected a number of seconds > 0, got 0"),
        ({"timeout": None}, ValueError, "timeout: expected a number of seconds > 0, got None"),
        ({"timeout": "1"}, TypeError, "timeout: expected a number"),
        ({"tally": {}}, TypeError, "tally: expected a RingTally or None, got {}"),
    ],
    ids=str,
)
def test_what_only_a_ring_refuses(alone, options, error, message):
    with pytest.raises(error, match=message):
        ring_attention(X, X, X, **options)


def test_a_rule_has_to_answer_with_booleans(alone):
    class Wrong(Causal):
        def __call__(self, b, h, q, k):
            return q - k

    with pytest.raises(TypeError, match="expected a boolean tensor as its answer"):
        ring_attention(X, X, X, Wrong())


def test_without_a_group_the_error_says_how_to_make_one():
    with pytest.raises(RuntimeError, match="init_process_group in every process first"):
        ring_attention(X, X, X)
