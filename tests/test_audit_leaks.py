"""find_leaks and influence on other people's code: rounding, layouts, modules, ids, batches."""

import io
import sys

import numpy as np
import pytest
import torch
from torch import nn

import attn
from attn import Causal, KeyPadding, SlidingWindow
from attn.audit import progress, stack

N = 13


def sample(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


# Rounding


def convolution(x, ahead=0.0):
    """A right causal convolution by FFT, over the last axis but one; `ahead` of the last input."""
    n = x.shape[-2]
    kernel = np.random.default_rng(1).normal(size=n).astype(x.dtype)
    spectrum = np.fft.rfft(x, 2 * n, axis=-2) * np.fft.rfft(kernel, 2 * n)[:, None]
    output = np.fft.irfft(spectrum, 2 * n, axis=-2)[..., :n, :].astype(x.dtype)
    output[..., 0, :] += ahead * x[..., -1, :]
    return output


def greatest_of_all(x):
    """Causal attention that subtracts the maximum of all scores, the hidden ones included."""
    scores = x @ x.T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True)) * np.tri(len(x))
    return weights / weights.sum(axis=1, keepdims=True) @ x


def difference_of_sums(x):
    """A window of 4 as the difference of two prefix sums."""
    sums = np.concatenate([np.zeros_like(x[:1]), np.cumsum(x, axis=0)])
    end = np.arange(len(x)) + 1
    return sums[end] - sums[np.maximum(end - 4, 0)]


def single_inside(x):
    return convolution(x.astype(np.float32)).astype(x.dtype)


ROUNDING = [
    (convolution, Causal()),
    (greatest_of_all, Causal()),
    (difference_of_sums, SlidingWindow(3)),
    (single_inside, Causal()),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("function", "mask"), ROUNDING)
def test_rounding_is_a_note_and_no_leak(function, mask, dtype):
    noted = 0
    for seed in range(6):
        for n in (2, 5, 29):
            report = attn.find_leaks(function, 0.5 * sample(n, 3, seed=seed, dtype=dtype), mask)
            assert report.passed, f"seed {seed}, n = {n}: {report}"
            noted += "no more than rounding does" in str(report)
            assert bool(report.rounding) == ("rounding does" in str(report))
    assert noted > 3


@pytest.mark.parametrize("ahead", [1e-7, 1e-9, 1e-3])
def test_a_small_look_ahead_is_a_leak_beside_rounding(ahead):
    for seed in range(6):
        x = sample(N, 3, seed=seed)
        report = attn.find_leaks(lambda x: convolution(x, ahead), x, Causal())
        assert (report.leak.output, report.leak.input) == (0, N - 1)
        assert ahead / 10 < report.leak.size < 100 * ahead
        assert report.outputs == (0,)


def test_a_look_ahead_in_single_precision():
    x = sample(N, 3, dtype=np.float32)
    report = attn.find_leaks(lambda x: convolution(x, 1e-3), x, Causal())
    assert (report.leak.output, report.leak.input) == (0, N - 1)


def test_a_batch_and_its_rounding():
    report = attn.find_leaks(convolution, sample(3, N, 2), Causal())
    assert report.passed
    assert 0 < report.rounding < 1e-12
    report = attn.find_leaks(lambda x: convolution(x, 1e-7), sample(3, N, 2), Causal())
    assert (report.leak.output, report.leak.input, report.outputs) == (0, N - 1, (0,))


def test_influence_without_rounding():
    assert np.array_equal(attn.influence(convolution, sample(N, 2)), np.tri(N))
    seen = attn.influence(lambda x: convolution(x, 1e-7), sample(N, 2))
    expected = np.tri(N, dtype=bool)
    expected[0, -1] = True
    assert np.array_equal(seen, expected)


def test_token_ids_and_rounding():
    table = sample(7, 4)
    ids = np.random.default_rng(0).integers(0, 7, size=(2, N))
    assert attn.find_leaks(lambda ids: convolution(table[ids]), ids, Causal()).passed
    report = attn.find_leaks(lambda ids: convolution(table[ids], 1e-7), ids, Causal())
    assert (report.leak.output, report.leak.input) == (0, N - 1)


def test_calls_that_differ_by_rounding_are_judged():
    rng = np.random.default_rng(0)

    def parallel(x):  # as where sums run in another order each time
        return np.cumsum(x, axis=0) + 1e-15 * rng.normal(size=x.shape)

    report = attn.find_leaks(parallel, sample(N, 2), Causal())
    assert report.passed
    assert "Equal calls differ by up to" in str(report)
    report = attn.find_leaks(lambda x: parallel(x) + x[-1] * 1e-6, sample(N, 2), Causal())
    assert (report.leak.output, report.leak.input) == (0, N - 1)
    assert np.array_equal(attn.influence(parallel, sample(N, 2)), np.tri(N))


def test_signs_of_zero_are_no_leak():
    report = attn.find_leaks(lambda x: np.cumsum(x, axis=0) * 0 + x[::-1] * 0, sample(N, 2),
                             Causal())  # fmt: skip
    assert report.passed
    assert report.rounding == 0


# Layouts


def sequence_first():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2).double().eval()

    def function(x):
        hidden = ~torch.ones(len(x), len(x), dtype=torch.bool).tril()
        return layer(x, x, x, attn_mask=hidden, need_weights=False)[0]

    return function


def test_a_layer_that_takes_sequences_first_is_recognised():
    x = torch.from_numpy(sample(7, 3, 8))
    function = sequence_first()
    report = attn.find_leaks(function, x, Causal())
    assert report.leak.kind == "another batch row"
    assert "when another batch row changes" in str(report)
    assert "(L, B, …)" in str(report)
    turned = lambda x: function(x.swapaxes(0, 1)).swapaxes(0, 1)  # noqa: E731
    assert attn.find_leaks(turned, x.swapaxes(0, 1), Causal()).passed
    with pytest.raises(ValueError, match=r"mask: expected 3 inputs, .* \(B, L, …\), got .* of 7"):
        attn.find_leaks(function, x, np.tri(7, dtype=bool))


def test_a_layer_that_leaks_both_ways_is_not_excused():
    function = sequence_first()
    report = attn.find_leaks(lambda x: function(x) + x.mean(dim=(0, 1)), torch.from_numpy(
        sample(7, 3, 8)), Causal())  # fmt: skip
    assert not report.passed
    assert "(L, B, …)" not in str(report)


def test_a_pooled_output_is_no_sequence():
    x = sample(2, 5, 3)
    with pytest.raises(ValueError, match=r"got \(2, 3\) for x \(2, 5, 3\): is it pooled"):
        attn.find_leaks(lambda x: x.mean(axis=1), x, Causal())
    with pytest.raises(ValueError, match="is it pooled, with 3 features"):
        attn.influence(lambda x: x.mean(axis=0), x[0])
    with pytest.raises(ValueError, match=r"mask of shape \(1, 5\)"):
        attn.influence(lambda x: x.mean(axis=1), x)
    mask = np.array([[True, True, True, False, False]])
    pooled = lambda x: x[:, :3].mean(axis=1)[:, None]  # noqa: E731
    assert attn.find_leaks(pooled, x, mask).passed
    assert not attn.find_leaks(lambda x: x.mean(axis=1)[:, None], x, mask).passed
    scores = lambda x: np.cumsum(x.sum(axis=2), axis=1)  # noqa: E731  one number a position
    assert attn.find_leaks(scores, x, Causal()).passed


def test_packed_texts_are_no_window():
    """Four queries of twenty keys: documents that begin where they begin."""
    keys = np.arange(20)
    meant = keys // 5 == np.arange(4)[:, None]
    sums = lambda x: np.cumsum(x, axis=0)[4::5]  # noqa: E731
    leak = attn.find_leaks(sums, sample(20, 2), meant).leak
    assert leak.kind == "an earlier position that the mask hides"
    window = (keys <= np.arange(16)[:, None] + 4) & (keys >= np.arange(16)[:, None])
    leak = attn.find_leaks(lambda x: np.cumsum(x, axis=0)[4:], sample(20, 2), window).leak
    assert leak.kind == "the past beyond the window"


# Modules, tuples and dictionaries


class Dropping(nn.Module):
    def __init__(self, norm=False):
        super().__init__()
        self.drop = nn.Dropout(0.0 if norm else 0.3)
        self.norm = nn.BatchNorm1d(4) if norm else None

    def forward(self, x):
        x = self.drop(x).cumsum(1)
        return self.norm(x.swapaxes(1, 2)).swapaxes(1, 2) if self.norm else x


def test_training_mode_is_told():
    x = torch.from_numpy(sample(2, 5, 4))
    module = Dropping()
    for function in (module, lambda x: module(x), module.forward):
        report = attn.find_leaks(function, x, Causal())
        assert report.passed
        assert "in training mode: call Dropping.eval()" in str(report)
    assert "training" not in str(attn.find_leaks(module.eval(), x, Causal()))
    norm = Dropping(norm=True).double()
    report = attn.find_leaks(norm, x, Causal())
    assert not report.passed
    assert "batch normalisation mixes positions" in str(report)
    assert "call Dropping.eval()" in str(report)
    assert attn.find_leaks(norm.eval(), x, Causal()).passed
    leaky = attn.find_leaks(lambda x: x.flip(1), x, Causal())
    assert "training" not in str(leaky)


def test_the_judged_entry_of_a_tuple_or_a_dictionary():
    x = sample(2, 5, 3)

    class Result:
        def __init__(self, logits):
            self.loss, self.logits = logits.sum(), logits

    def weights(x):
        return np.broadcast_to(np.tri(5), (2, 5, 5)).copy()

    for name, function in {
        "entry 0": lambda x: (np.cumsum(x, axis=1), weights(x)),
        "entry 1": lambda x: [None, np.cumsum(x, axis=1)],
        "entry 2": lambda x: (x.mean(), x[:, :2], np.cumsum(x, axis=1)),
        "entry 'last'": lambda x: {"loss": x.sum(), "last": np.cumsum(x, axis=1)},
        "entry 'logits'": lambda x: Result(np.cumsum(x, axis=1)),
    }.items():
        report = attn.find_leaks(function, x, Causal())
        assert report.passed
        assert f"Of the output, {name} was judged." in str(report)
        assert not attn.find_leaks(function, x, SlidingWindow(1)).passed


def test_the_changed_entry_of_a_tuple_or_a_dictionary():
    ids = torch.tensor([[3, 4, 5, 3, 6]] * 2)
    padding = torch.tensor([[1, 1, 1, 1, 0]] * 2)
    torch.manual_seed(0)
    table = nn.Embedding(7, 4)
    given = []

    def model(batch):
        given.append(batch)
        x = table(batch["input_ids"]) * batch["attention_mask"][..., None]
        return {"logits": x.cumsum(1)}

    inputs = {"input_ids": ids, "attention_mask": padding, "use_cache": False}
    report = attn.find_leaks(model, inputs, Causal())
    assert report.passed
    assert "Of x, entry 'input_ids' was changed." in str(report)
    assert all(torch.equal(b["attention_mask"][:2], padding) for b in given)
    assert report.calls == len(given) <= 2 + 3 + 1 + 1  # copies, and their padding came along
    assert attn.find_leaks(model, inputs, KeyPadding(4)).passed
    report = attn.find_leaks(model, inputs, KeyPadding(3))
    assert (report.leak.input, report.leak.kind) == (3, "padding")

    pair = lambda both: np.cumsum(both[0], axis=0) * both[1]  # noqa: E731
    assert attn.find_leaks(pair, (sample(N, 2), 3), Causal()).passed
    with pytest.raises(ValueError, match=r"one entry of floats, .* got 0 \(13, 2\), 1 \(13, 1\)"):
        attn.find_leaks(pair, (sample(N, 2), sample(N, 1)), Causal())
    with pytest.raises(ValueError, match="got none"):
        attn.find_leaks(pair, (3, 4), Causal())


# Several changes in one call


def attention(mask):
    def function(x):
        x = x[:, None]
        return attn.scaled_dot_product_attention(x, x, x, mask)[:, 0]

    return function


def counted(function):
    sizes = []

    def counting(x):
        sizes.append(len(x))
        return function(x)

    return counting, sizes


def test_many_changes_go_into_one_call():
    function, sizes = counted(lambda x: np.cumsum(np.cumsum(x, axis=1), axis=1))
    report = attn.find_leaks(function, sample(1, 1024, 1), Causal())
    assert report.passed
    assert report.calls == len(sizes) <= 300  # 2,048 with a call for each
    function, sizes = counted(attention(Causal()))
    assert attn.find_leaks(function, sample(2, 40, 3), Causal()).passed
    assert len(sizes) <= 2 + 3 + 2 + 1
    assert max(sizes) == 2 * 64
    function, sizes = counted(attention(Causal()))
    assert np.array_equal(attn.influence(function, sample(2, 40, 3)), np.tri(40))
    assert len(sizes) <= 2 + 3 + 2 + 1


@pytest.mark.parametrize("copies", [1, 64])
def test_the_same_verdict_with_one_change_a_call(copies, monkeypatch):
    monkeypatch.setattr(stack, "MOST_COPIES", copies)
    x = sample(2, 23, 3)
    cases = [
        (attention(Causal()), Causal(), None),
        (attention(SlidingWindow(4)), SlidingWindow(3), (4, 0)),
        (attention(Causal() | SlidingWindow(0, 1)), Causal(), (0, 1)),
        (lambda x: np.cumsum(x, axis=1) - x.mean(axis=0), Causal(), (0, 0)),
        (lambda x: np.cumsum(x, axis=1) + (np.arange(23) == 7)[:, None] * x[:, 20:21] * 1e-9,
         Causal(), (7, 20)),
    ]  # fmt: skip
    for function, mask, leak in cases:
        function, sizes = counted(function)
        report = attn.find_leaks(function, x, mask)
        assert (report.leak and report.leak[:2]) == leak
        assert (max(sizes) > 2) == (copies > 1)


def test_functions_that_do_not_treat_rows_alike_get_one_change_a_call():
    def fixed(x):
        if len(x) != 1:
            raise RuntimeError("made for one row")
        return np.cumsum(x, axis=1)

    def neighbours(x):
        return np.cumsum(x, axis=1) + 1e-3 * (np.roll(x, 1, axis=0) if len(x) > 1 else 0)

    def unlike_the_neighbour(x):  # nothing, as long as all rows are equal
        return np.cumsum(x, axis=1) + (np.roll(x, 1, axis=0) - x)[:, ::-1]

    def first_row(x):
        return np.cumsum(x, axis=1) + (x[:1] - x[0]) + 1e-3 * (x[:1].sum() if len(x) > 1 else 0)

    for function in (fixed, neighbours, unlike_the_neighbour, first_row):
        function, sizes = counted(function)
        report = attn.find_leaks(function, sample(1, 17, 2), Causal())
        assert report.passed, str(report)
        assert sizes.count(1) == 2 + 2 * 16


def test_what_only_a_batch_of_one_leaks_is_found():
    def forgets(x):  # the mask, for a single row
        return attention(Causal() if len(x) > 1 else None)(x)

    leak = attn.find_leaks(forgets, sample(1, 17, 2), Causal()).leak
    assert (leak.output, leak.input) == (0, 1)


def test_what_leaks_in_a_larger_batch_only_is_not_held_against_the_call_asked_for():
    def late(x):  # equal rows, until one of them is changed
        output = np.cumsum(x, axis=1)
        if len(x) > 1 and not np.array_equal(x[0, 1:], x[1, 1:]) and x[0, 0] == x[1, 0]:
            output[:, 0] += 1e-3 * x[:, -1]
        return output

    function, sizes = counted(late)
    report = attn.find_leaks(function, sample(1, 17, 1), Causal())
    assert report.passed, str(report)
    assert report.outputs == ()
    assert max(sizes) > 1
    assert sizes.count(1) > 2 + 2 * 16  # again, one change a call


def test_a_leak_between_other_rows_than_the_first():
    def third_into_second(x):
        output = np.cumsum(x, axis=1)
        output[1] += 0.5 * x[2, ::-1]
        return output

    report = attn.find_leaks(third_into_second, sample(3, 5, 2), Causal())
    assert report.leak.kind == "another batch row"
    assert (report.leak.output, report.leak.batch) == (0, 1)


# Progress


def test_the_cost_is_told_before_it_is_paid():
    told, made = [], []

    def function(x):
        made.append(1)
        return np.cumsum(x, axis=0)

    report = attn.find_leaks(
        function, sample(N, 1), Causal(), progress=lambda done, all_of: told.append((done, all_of))
    )  # fmt: skip
    assert told[0] == (2, report.calls)
    assert told[-1] == (report.calls, report.calls)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len(made) == report.calls
    attn.influence(function, sample(N, 1), progress=lambda done, planned: told.append(planned))
    assert told[-1] == 2 + 2 * N
    with pytest.raises(TypeError, match="progress: expected a callable"):
        attn.find_leaks(function, sample(N, 1), Causal(), progress=3)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_only_a_terminal_that_waits_is_told(monkeypatch, capsys):
    def run():
        attn.find_leaks(lambda x: np.cumsum(x, axis=0), sample(N, 1), Causal())

    monkeypatch.setattr(progress, "PATIENCE", 0)
    run()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "PATIENCE", 60)
    run()
    assert sys.stderr.getvalue() == ""
    monkeypatch.setattr(progress, "PATIENCE", 0)
    run()
    assert f"\r2 of {2 * N} calls, about 0 s left" in sys.stderr.getvalue()
    assert sys.stderr.getvalue().endswith("\n")
