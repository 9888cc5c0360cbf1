"""What is wrong with a mask, and what leaks in a model."""

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

import attn
from attn import Causal, Dilated, KeyPadding, PrefixLM, SameDocument, SlidingWindow, dense_mask
from attn.audit.cover import covering_pools

N = 11
IDS = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
ONES = np.ones((N, N), bool)


def names(allowed):
    return [finding.name for finding in attn.audit_mask(allowed).findings]


# audit_mask


@pytest.mark.parametrize(
    "rule",
    [
        Causal(),
        SlidingWindow(2),
        SlidingWindow(2, 2),
        PrefixLM(3),
        SameDocument(IDS),
        SameDocument(IDS) & Causal(),
        Dilated(3),
        SameDocument(IDS) & KeyPadding(stop=N),
    ],
    ids=repr,
)
def test_masks_as_they_should_be_give_no_finding(rule):
    audit = attn.audit_mask(dense_mask(rule, N, N))
    assert audit.passed
    assert audit.findings == ()
    assert str(audit) == "Nothing to remark."


def test_a_literal_mask_with_its_numbers():
    mask = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]], bool)
    audit = attn.audit_mask(mask)
    assert (audit.allowed, audit.empty_rows, audit.unseen_keys, audit.future_pairs) == (
        6 / 16,
        1,
        1,
        1,
    )
    texts = {finding.name: finding.text for finding in audit.findings}
    text = "query 1 may attend to nothing, and nobody attends to its key."
    assert texts["empty rows"] == text
    assert texts["keys never seen"] == "key 1, some between keys that are seen."
    assert audit.passed  # as a token of padding between others


@pytest.mark.parametrize(
    ("mask", "expected", "says"),
    [
        (np.tril(ONES, -1), "off-by-one triangle (one short)", "no query sees itself: k < q"),
        (np.tril(ONES, 1), "off-by-one triangle (one long)", "query 0 sees key 1: every query"),
        (~np.tril(ONES), "looks inverted", "no query sees itself"),
        (~dense_mask(SameDocument(IDS), N, N), "looks inverted", "~mask?"),
        (np.tril(ONES) & (np.arange(N) != 3)[:, None], "empty rows", "query 3 may attend"),
        (np.zeros((3, 5), bool), "hides everything", "no query sees any of the 5 keys"),
    ],
)
def test_serious_mistakes_are_named(mask, expected, says):
    audit = attn.audit_mask(mask)
    found = {finding.name: finding for finding in audit.findings}
    assert found[expected].serious
    assert says in found[expected].text
    assert not audit.passed
    assert f"! {expected}: " in str(audit)


def test_the_first_pair_of_a_future_seen_by_mistake():
    mask = np.tril(ONES)
    mask[2, 5] = True
    (finding,) = attn.audit_mask(mask).findings
    assert (finding.name, finding.serious) == ("sees the future", True)
    text = "query 2 sees key 5 but not key 3, which query 5 sees; no other query sees a later key."
    assert finding.text == text
    mask[6, 8] = True
    (finding,) = attn.audit_mask(mask).findings
    assert "; 2 such pairs" in finding.text


def test_a_future_without_a_pattern_is_remarked():
    mask = np.tril(ONES)
    mask[2, 5] = mask[6, 8] = mask[4, 7] = True
    (finding,) = attn.audit_mask(mask).findings
    assert (finding.name, finding.serious) == ("sees the future", False)
    assert finding.text == "query 2 sees key 5, the first of 3 above the diagonal."


def test_a_document_that_another_one_looks_into():
    mask = dense_mask(SameDocument(IDS), N, N)
    mask[0, 0, 4, 1] = True
    assert names(mask) == ["stray pair"]
    text = "query 4 sees key 1 but not key 0, which query 1 sees; all other pairs fit together."
    assert attn.audit_mask(mask).findings[0].text == text


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (dense_mask(KeyPadding(stop=7), N, N), "keys never seen"),
        (dense_mask(KeyPadding(start=2), N, N), "keys never seen"),
        (dense_mask(Causal() & KeyPadding(stop=7), N, N), "keys never seen"),
        (ONES & (np.arange(N) != 4), "keys never seen"),
        (~np.eye(N, dtype=bool), "no query sees itself"),
        (dense_mask(SlidingWindow(3, 1), N, N), "looks ahead"),
        (ONES, "hides nothing"),
        (np.tile(np.tril(ONES), (1, 3, 1, 1)), "equal heads"),
        (np.tile(np.tril(ONES), (2, 1, 1, 1)), "equal batch rows"),
    ],
)
def test_remarks_do_not_fail(mask, expected):
    audit = attn.audit_mask(mask)
    assert audit.passed
    assert [finding.name for finding in audit.findings] == [expected]
    assert f"· {expected}: " in str(audit)


def test_the_triangle_of_a_cache_that_is_not_full():
    audit = attn.audit_mask(np.tril(np.ones((3, 5), bool)))
    found = {finding.name: finding for finding in audit.findings}
    assert audit.passed
    assert "q_offset = S - L = 2" in found["upper-left triangle"].text


def test_padding_sees_nothing_and_is_not_seen():
    audit = attn.audit_mask(np.tril(ONES) & (np.arange(N) >= 3))
    assert audit.passed
    assert audit.findings[0].text.startswith("queries 0 to 2 may attend to nothing, and nobody")


def test_an_empty_row_of_a_batch_is_no_mistake():
    mask = np.stack([np.tril(ONES), np.zeros_like(ONES)])[:, None]
    found = {finding.name: finding for finding in attn.audit_mask(mask).findings}
    assert not found["hides everything"].serious
    assert "(in mask[1, 0])" in found["hides everything"].text


def test_the_batch_row_and_head_of_a_finding():
    mask = np.tile(np.tril(ONES), (2, 3, 1, 1))
    mask[1, 2, 4] = False
    (finding,) = attn.audit_mask(mask).findings
    assert finding.text == (
        "query 4 may attend to nothing, though others attend to key 4 (in mask[1, 2])."
    )


def test_long_lists_are_cut_short():
    mask = ONES & (np.arange(N) % 2 == 0)[:, None]
    text = attn.audit_mask(mask).findings[0].text
    assert text == (
        "queries 1, 3, 5, 7, 9 (5 in all) may attend to nothing, and every other query attends to "
        "their keys: padding on the wrong axis?"
    )
    many = np.ones((40, 3), bool) & (np.arange(40) % 2 == 0)[:, None]
    assert "queries 1, 3, 5, 7, 9, 11, … (20 in all)" in attn.audit_mask(many).findings[0].text


def test_tensors_are_read_and_left_alone():
    mask = torch.ones(3, 4, dtype=torch.bool).tril(-1)
    assert attn.audit_mask(mask).empty_rows == 1
    assert mask.sum() == 3


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        (Causal(), TypeError, r"allowed: expected a boolean array, got a rule: dense_mask\(Causal"),
        (np.ones((2, 2)), TypeError, "allowed: expected a boolean array, .* got dtype float64"),
        (np.ones(3, bool), ValueError, r"allowed: expected shape \(…, L, S\)"),
        (np.ones((0, 3), bool), ValueError, "none of them 0"),
    ],
)
def test_what_is_no_mask_is_refused(bad, error, says):
    with pytest.raises(error, match=says):
        attn.audit_mask(bad)


# covering pools


@pytest.mark.parametrize(
    ("rule", "most"),
    [
        (Causal(), 46),
        (SameDocument(np.arange(47) // 6), 10),
        (SlidingWindow(3, 3), 25),
        (KeyPadding(stop=30), 13),
        (Dilated(3), 5),
        (Causal() & SameDocument(np.arange(47) // 6), 35),
    ],
    ids=repr,
)
def test_pools_test_every_forbidden_pair_and_no_other(rule, most):
    allowed = dense_mask(rule, 47, 47)[0, 0] | np.eye(47, dtype=bool)
    tested = np.zeros_like(allowed)
    pools = covering_pools(allowed)
    for pool in pools:
        blind = ~(allowed & pool).any(axis=1)
        tested |= blind[:, None] & pool
    assert np.array_equal(tested, ~allowed)
    assert len(pools) <= most


@pytest.mark.parametrize("seed", range(3))
def test_pools_for_random_masks(seed):
    allowed = np.random.default_rng(seed).random((13, 17)) < 0.4
    tested = np.zeros_like(allowed)
    for pool in covering_pools(allowed):
        tested |= ~(allowed & pool).any(axis=1)[:, None] & pool
    assert np.array_equal(tested, ~allowed)


def test_no_pools_where_nothing_is_forbidden():
    assert covering_pools(ONES) == []


# influence and find_leaks


def masked(mask):
    def function(x):
        return attn.scaled_dot_product_attention(x, x, x, mask)

    return function


X = np.random.default_rng(3).normal(size=(N, 3))


@pytest.mark.parametrize(
    "rule", [Causal(), SlidingWindow(2, 1), SameDocument(IDS), PrefixLM(4), Dilated(3)], ids=repr
)
def test_influence_of_attention_is_its_mask(rule):
    seen = attn.influence(masked(rule), X)
    assert np.array_equal(seen, dense_mask(rule, N, N)[0, 0])


def test_influence_by_hand():
    # Output i is x[i] + x[0], and there is one output fewer.
    seen = attn.influence(lambda x: x[:-1] + x[0], np.array([1.0, 2.0, 5.0]))
    assert seen.tolist() == [[True, False, False], [True, True, False]]


def test_influence_takes_two_calls_a_position():
    calls = []
    attn.influence(lambda x: calls.append(x) or x, X)
    assert len(calls) == 2 * N + 2


CASES = [
    # what the model does, what was meant, the first leak: output, input, kind
    (Causal() | SlidingWindow(0, 1), Causal(), 0, 1, "the future"),
    (KeyPadding(stop=N - 1), KeyPadding(stop=N - 2), 0, N - 2, "padding"),
    (Causal(), SameDocument(IDS) & Causal(), 3, 0, "another document"),
    (SlidingWindow(4), SlidingWindow(3), 4, 0, "the past beyond the window"),
    (Causal(), Dilated(3), 1, 0, "a position that the mask hides"),
    (PrefixLM(5), Causal(), 0, 1, "the future"),
]


@pytest.mark.parametrize(("does", "meant", "output", "first", "kind"), CASES)
def test_the_first_leak_is_named(does, meant, output, first, kind):
    report = attn.find_leaks(masked(does), X, meant)
    assert not report.passed
    assert (report.leak.output, report.leak.input, report.leak.kind) == (output, first, kind)
    hidden = ~dense_mask(meant, N, N)[0, 0] & ~np.eye(N, dtype=bool)
    leaking = np.flatnonzero((dense_mask(does, N, N)[0, 0] & hidden).any(axis=1))
    assert report.outputs == tuple(leaking)
    assert f"output {output} changes by" in str(report)
    assert kind in str(report)


@pytest.mark.parametrize("meant", [case[1] for case in CASES], ids=repr)
def test_a_model_that_keeps_to_its_mask_passes(meant):
    report = attn.find_leaks(masked(meant), X, meant)
    assert report.passed, str(report)
    assert report.leak is None
    assert report.outputs == ()
    assert str(report) == f"No leak found.\n({report.calls} calls)"


def test_one_leaking_pair_among_all_is_found():
    """A single position of a long sequence, with a weight of a millionth."""
    x = np.random.default_rng(0).normal(size=(53, 2))

    def function(x):
        output = masked(Causal())(x)
        output[31] += 1e-6 * x[40]
        return output

    leak = attn.find_leaks(function, x, Causal()).leak
    assert (leak.output, leak.input) == (31, 40)
    assert 1e-7 < leak.size < 1e-4


def test_the_size_of_a_leak():
    """x[3] moves by at most a few tens; the output by half of it."""
    moved = []

    def function(x):
        moved.append(abs(x[3] - 3.0))
        return np.cumsum(x) + np.where(np.arange(5) == 1, x[3] / 2, 0)

    leak = attn.find_leaks(function, np.arange(5.0), Causal()).leak
    assert (leak.output, leak.input) == (1, 3)
    assert leak.size == pytest.approx(max(moved) / 2)


def test_far_fewer_calls_than_pairs():
    n = 127
    x = np.random.default_rng(0).normal(size=(n, 2))
    ids = np.arange(n) // 16
    calls = {}
    for rule in (Causal(), SameDocument(ids), SlidingWindow(5, 5), KeyPadding(stop=100)):
        counted = []
        function = masked(rule)
        report = attn.find_leaks(lambda x, f=function, c=counted: c.append(1) or f(x), x, rule)
        assert report.passed
        assert report.calls == len(counted)
        calls[type(rule).__name__] = report.calls
    assert calls["Causal"] == 2 + 2 * (n - 1)
    assert calls["SameDocument"] <= 20
    assert calls["KeyPadding"] <= 40
    assert calls["SlidingWindow"] <= 80


def encoder(dropout=0.0):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 3, 16, dropout=dropout, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def test_a_whole_transformer_encoder():
    model, n = encoder().eval(), 13
    x = torch.randn(2, n, 12)
    mask = nn.Transformer.generate_square_subsequent_mask(n)
    assert attn.find_leaks(lambda x: model(x, mask=mask), x, Causal()).passed
    leak = attn.find_leaks(model, x, Causal()).leak
    assert (leak.output, leak.input, leak.kind) == (0, 1, "the future")
    lengths = torch.tensor([7, 11])
    padding = torch.arange(n) >= lengths[:, None]
    padded = lambda x: model(x, src_key_padding_mask=padding)  # noqa: E731
    assert attn.find_leaks(padded, x, KeyPadding(stop=lengths)).passed
    leak = attn.find_leaks(padded, x, KeyPadding(stop=lengths - 1)).leak
    assert (leak.output, leak.input, leak.kind) == (0, 6, "padding")
    assert np.array_equal(
        attn.influence(lambda x: model(x, mask=mask), x), np.tril(np.ones((n, n)))
    )


def test_two_layers_with_a_window_see_twice_as_far():
    def function(x):
        for _ in range(2):
            x = masked(SlidingWindow(2))(x)
        return x

    assert attn.find_leaks(function, X, SlidingWindow(2), layers=2).passed
    leak = attn.find_leaks(function, X, SlidingWindow(2)).leak
    assert (leak.output, leak.input, leak.kind) == (3, 0, "the past beyond the window")


def test_token_ids_are_replaced_by_ids_that_occur():
    ids = torch.tensor([[3, 8, 8, 5, 3, 8, 9]])
    table = nn.Embedding(10, 4)
    seen = set()

    def function(ids):
        seen.update(ids.flatten().tolist())
        return table(ids).cumsum(dim=1)

    assert attn.find_leaks(function, ids, Causal()).passed
    assert seen == {3, 5, 8, 9}
    seen = attn.influence(lambda ids: table(ids).flip(1).cumsum(1).flip(1), ids)
    assert np.array_equal(seen, np.triu(np.ones((7, 7), bool)))
    with pytest.raises(ValueError, match="x: expected at least two different token ids"):
        attn.influence(function, torch.zeros(1, 3, dtype=torch.long))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "bool", "uint8"])
def test_every_dtype_of_input(dtype):
    x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]).to(getattr(torch, dtype))
    x = x[None] if dtype == "uint8" else x
    options = {"batched": dtype == "uint8"}
    axis = -2
    seen = attn.influence(lambda x: x.cumsum(axis), x, **options)
    assert np.array_equal(seen, np.tril(np.ones((4, 4), bool)))
    assert attn.influence(lambda x: x.flip(axis), x, **options).tolist() == np.eye(4)[::-1].tolist()


def test_dropout_is_noticed_and_not_taken_for_a_leak():
    model, n = encoder(dropout=0.3).train(), 7
    x = torch.randn(1, n, 12)
    mask = nn.Transformer.generate_square_subsequent_mask(n)
    report = attn.find_leaks(lambda x: model(x, mask=mask), x, Causal())
    assert report.passed
    assert report.random
    assert "Two equal calls differ" in str(report)
    leaky = attn.find_leaks(model, x, Causal())
    assert leaky.random
    assert (leaky.leak.output, leaky.leak.input) == (0, 1)
    seen = attn.influence(lambda x: model(x, mask=mask), x)
    assert np.array_equal(seen, np.tril(np.ones((n, n))))


def test_chance_that_cannot_be_repeated_is_said_and_not_judged():
    rng = np.random.default_rng(0)
    report = attn.find_leaks(lambda x: x + rng.normal(), X, Causal())
    assert not report.passed
    assert report.random
    assert report.leak is None
    assert "nothing can be said of leaks" in str(report)
    assert str(report).startswith("No verdict.")
    with pytest.raises(ValueError, match="function: expected equal outputs for equal inputs"):
        attn.influence(lambda x: x + rng.normal(), X)


def test_nothing_is_left_behind():
    """Input, mode, buffers and all random states are as they were."""
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Dropout(0.2)).train()
    x = torch.randn(3, 5, 4)
    saved, buffers = x.clone(), [b.clone() for b in model.buffers()]
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002

    def function(x):
        np.random.normal()  # noqa: NPY002
        random.random()
        return model(x).mul_(2)

    function.buffers = model.buffers
    attn.find_leaks(function, x, Causal())
    attn.influence(function, x)
    assert torch.equal(x, saved)
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), buffers, strict=True))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), states[1], strict=True))  # noqa: NPY002
    assert random.getstate() == states[2]


def test_a_function_that_changes_its_input_changes_a_copy():
    x = X.copy()

    def function(x):
        x += 1
        return masked(Causal())(x)

    assert attn.find_leaks(function, x, Causal()).passed
    assert np.array_equal(x, X)


def test_one_batch_row_that_changes_another():
    x = np.random.default_rng(0).normal(size=(3, 5, 2))
    report = attn.find_leaks(lambda x: masked(Causal())(x[:, None])[:, 0], x, Causal())
    assert report.passed
    report = attn.find_leaks(lambda x: np.cumsum(x - x.mean(0), axis=1), x, Causal())
    assert report.leak.kind == "another batch row"
    assert not report.passed


def test_masks_that_differ_from_row_to_row():
    x = np.random.default_rng(0).normal(size=(2, 7, 3))
    stops = np.array([3, 5])

    def function(x):
        return attn.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None],
                                                 KeyPadding(stop=stops))[:, 0]  # fmt: skip

    assert attn.find_leaks(function, x, KeyPadding(stop=stops)).passed
    leak = attn.find_leaks(function, x, KeyPadding(stop=[3, 4])).leak
    assert (leak.output, leak.input, leak.batch, leak.kind) == (0, 4, 1, "padding")
    assert "(batch row 1)" in str(leak)


def test_outputs_that_are_nan_cannot_be_judged():
    def function(x):
        output = masked(Causal())(x)
        output[4] = np.nan
        return output

    report = attn.find_leaks(function, X, Causal())
    assert report.leak is None
    assert not report.passed
    assert "Outputs [4] are NaN" in str(report)
    assert str(report).startswith("No verdict.")
    assert "No leak found" not in str(report)


def test_nan_in_some_feature_is_no_change():
    def function(x):
        output = masked(Causal())(x)
        output[:, 0] = np.nan
        return output

    assert attn.find_leaks(function, X, Causal()).passed


def test_a_leak_that_turns_numbers_into_nan_is_infinite():
    def function(x):
        output = np.cumsum(x)
        output[0] = output[0] if x[3] == 3 else np.nan
        return output

    leak = attn.find_leaks(function, np.arange(5.0), Causal()).leak
    assert (leak.output, leak.input, leak.size) == (0, 3, math.inf)


def test_array_masks_and_the_heads_that_may_see():
    mask = np.stack((np.eye(N, dtype=bool), np.tril(ONES)))[None]
    assert attn.find_leaks(masked(Causal()), X, mask).passed
    assert attn.find_leaks(masked(Causal()), X, torch.from_numpy(np.tril(ONES))).passed


def test_outputs_of_another_length_need_a_mask_written_out():
    def last_two(x):
        return masked(Causal())(x)[-2:]

    mask = dense_mask(Causal(), 2, N, q_offset=N - 2)
    assert attn.find_leaks(last_two, X, mask).passed
    with pytest.raises(ValueError, match=rf"mask: .* but {N} inputs give 2 outputs"):
        attn.find_leaks(last_two, X, Causal())
    with pytest.raises(ValueError, match="layers: expected 1"):
        attn.find_leaks(last_two, X, mask, layers=2)


@pytest.mark.parametrize(
    ("function", "x", "error", "says"),
    [
        (3, X, TypeError, "function: expected a callable"),
        (abs, [1.0, 2.0], TypeError, "x: expected an array, .* got list"),
        (abs, np.float64(1), ValueError, r"x: expected shape \(L, …\) or \(B, L, …\)"),
        (abs, np.zeros((0, 3)), ValueError, "none of them 0"),
        (lambda x: ("x", 3), X, TypeError, "return an array or a tensor, .* got tuple"),
        (lambda x: None, X, TypeError, "return an array or a tensor, .* got NoneType"),
        (lambda x: x[:0], X, ValueError, r"with numbers to compare, got an empty one, \(0, 3\)"),
        (lambda x: x[:, :0], X, ValueError, "with numbers to compare"),
        (np.ma.masked_array, X, ValueError, "with numbers to compare, got a masked array"),
        (abs, np.ma.masked_array(X, X > 1), TypeError, "x: expected a plain array .* masked array"),
        (lambda x: x.sum(), X, ValueError, r"function: expected an output of shape \(L_out, …\)"),
        (lambda x: x[: 1 + int(x[0, 0] == X[0, 0])], X, ValueError, "outputs of one shape"),
    ],
)
def test_what_is_no_function_of_sequences_is_refused(function, x, error, says):
    with pytest.raises(error, match=says):
        attn.influence(function, x)


def test_layers_and_mask_are_checked():
    with pytest.raises(ValueError, match="layers: expected an int of at least 1, got 0"):
        attn.find_leaks(abs, X, Causal(), layers=0)
    with pytest.raises(TypeError, match="mask: expected a rule or a boolean array"):
        attn.find_leaks(abs, X, None)
