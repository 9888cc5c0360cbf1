"""The judge is judged: right functions of every style pass, each wrong one is named."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from mutants import RIGHT, WRONG, attention, hidden, repeated, scored, softmaxed
from torch.nn import functional as F

import attn
import attn.torch
from attn.check.diagnoses import BUGS
from attn.check.outcomes import same
from attn.check.steps import predict
from attn.check.trials import make_trials

SEEDS = (0, 1, 12345)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("style", RIGHT)
def test_right_implementations_of_every_style_pass(style, seed):
    report = attn.check_attention(RIGHT[style], seed=seed)
    assert report.passed, str(report)
    assert report.failures == ()
    assert str(report) == f"Passed: right in all {report.trials} trials."


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "function", "options"), WRONG, ids=[f"{n}-{w[0]}" for n, w in enumerate(WRONG)]
)
def test_each_mutant_is_rejected_under_its_own_name(name, function, options, seed):
    report = attn.check_attention(function, seed=seed, **options)
    assert not report.passed
    assert report.failures[0].name == name, str(report)
    assert f"Likely bug: {name}" in str(report)
    assert all(failure.evidence and failure.hint for failure in report.failures)


def test_there_are_enough_mutants_of_enough_kinds():
    assert len(WRONG) >= 24
    assert len({name for name, _, _ in WRONG}) >= 24
    assert len(RIGHT) >= 5


def _many_bugs(query, key, value, mask):
    key, value = repeated(query, key, value)
    scores = query @ key.swapaxes(-1, -2)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    exps = np.exp(scores)
    return exps / exps.sum(-1, keepdims=True) @ value


def _short_triangle_with_nan(query, key, value, mask):
    key, value = repeated(query, key, value)
    scores = query @ key.swapaxes(-1, -2) / (query.shape[1] * query.shape[3]) ** 0.5
    if mask is not None:
        scores = np.where(np.tril(np.broadcast_to(mask, scores.shape), -1), scores, -np.inf)
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True) @ value


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (_many_bugs, {"no scale", "no maximum subtracted"}),
        (
            _short_triangle_with_nan,
            {"scaled by d_model", "off-by-one triangle (one short)", "NaN on empty rows"},
        ),
    ],
)
def test_several_bugs_at_once_are_all_named(function, names):
    found = [failure.name for failure in attn.check_attention(function).failures]
    assert names <= set(found), found


def test_two_bugs_in_the_very_first_trial_are_told_apart():
    def function(query, key, value, mask):
        key, value = repeated(query, key, value)
        scores = hidden(query @ key.swapaxes(-1, -2), mask)
        return softmaxed(scores, axis=-2) @ value

    found = [failure.name for failure in attn.check_attention(function).failures]
    assert found == ["no scale", "softmax over the wrong axis"]


def test_evidence_holds_expected_and_got_and_where():
    failure = attn.check_attention(WRONG[0][1]).failures[0]
    trial = make_trials(0, True)[0]
    expected = attn.scaled_dot_product_attention(*trial.operands)
    got = WRONG[0][1](*trial.operands)
    where = np.unravel_index(np.argmax(abs(got - expected)), got.shape)
    assert f"output{[int(i) for i in where]}" in failure.evidence
    assert f"should be {expected[where]:.6g} and is {got[where]:.6g}" in failure.evidence
    assert str(trial) in failure.evidence
    assert "1/√D" in failure.hint


def test_the_other_convention_is_a_keyword():
    def hides(query, key, value, mask):
        return attention(query, key, value, None if mask is None else ~mask)

    assert attn.check_attention(hides, convention="is hidden").passed
    assert attn.check_attention(hides).failures[0].name == "inverted mask"


def test_shared_key_heads_are_a_keyword():
    def plain(query, key, value, mask):
        return softmaxed(hidden(scored(query, key), mask)) @ value

    assert attn.check_attention(plain, grouped=False).passed
    failure = attn.check_attention(plain).failures[0]
    assert "grouped=False" in failure.hint
    assert "ValueError" in failure.evidence


def test_torch_functions_need_an_adapter():
    wrap = attn.torch.as_numpy_function
    assert attn.check_attention(wrap(F.scaled_dot_product_attention), grouped=False).passed
    assert attn.check_attention(wrap(attn.torch.scaled_dot_product_attention)).passed

    def in_place(query, key, value, mask):
        return F.scaled_dot_product_attention(query.mul_(1), key, value.neg_().neg_().add_(1), mask)

    names = [f.name for f in attn.check_attention(wrap(in_place), grouped=False).failures]
    assert "inputs changed" in names
    with pytest.raises(TypeError, match="function: expected a callable on tensors"):
        wrap(3)


def test_a_fused_kernel_with_the_mask_of_the_other_convention_is_caught():
    """The mask of nn.MultiheadAttention, True = hidden, handed to SDPA, where True = attend."""

    def fast_path(query, key, value, mask):
        hide = None if mask is None else ~mask
        return F.scaled_dot_product_attention(query, key, value, hide, enable_gqa=True)

    report = attn.check_attention(attn.torch.as_numpy_function(fast_path))
    assert report.failures[0].name == "inverted mask"


def test_gradients_asked_for_do_not_matter():
    weight = torch.ones((), dtype=torch.float64, requires_grad=True)

    def learned(query, key, value, mask):
        return F.scaled_dot_product_attention(query, key, value, mask) * weight.to(query.dtype)

    assert attn.check_attention(attn.torch.as_numpy_function(learned), grouped=False).passed


def test_what_the_function_raises_is_a_failure_and_not_an_error():
    def unfinished(query, key, value, mask):
        raise NotImplementedError("write me")

    report = attn.check_attention(unfinished)
    assert [failure.name for failure in report.failures] == ["raises an exception"]
    assert "NotImplementedError: write me" in report.failures[0].evidence
    assert attn.check_attention(lambda: 0).failures[0].name == "raises an exception"
    assert (
        attn.check_attention(lambda q, k, v, m: "0")
        .failures[0]
        .evidence.endswith("returns str, not an array of shape (B, H, L, Dv) = (1, 1, 5, 2)")
    )


def test_warnings_of_the_function_are_its_own_business():
    def warns(query, key, value, mask):
        warnings.warn("deprecated", DeprecationWarning, stacklevel=1)
        return attention(query, key, value, mask)

    assert attn.check_attention(warns).passed


def test_float32_in_is_judged_as_float32():
    def narrow_where_it_was_narrow(query, key, value, mask):
        return attention(query, key, value, mask).astype(query.dtype)

    assert attn.check_attention(narrow_where_it_was_narrow).passed


@pytest.mark.parametrize("bad", [3, None, "attention"])
def test_what_cannot_be_called_is_an_error(bad):
    with pytest.raises(TypeError, match=r"function: expected function\(query, key, value, mask\)"):
        attn.check_attention(bad)


def test_tools_load_when_first_asked_for():
    code = (
        "import attn, sys;"
        "tools = {f'attn.{x}' for x in ('audit', 'check', 'conventions')};"
        "assert not tools & set(sys.modules);"
        "assert {'check_attention', 'conventions', 'find_leaks', 'Causal'} <= set(dir(attn));"
        "assert attn.check_attention is attn.check.check_attention;"
        "assert attn.influence is attn.audit.leaks.influence;"
        "assert attn.audit_mask is attn.audit.audit_mask;"
        "assert attn.conventions.to_jax; from attn import *; assert tools <= set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="module 'attn' has no attribute 'check_attentions'"):
        attn.check_attentions  # noqa: B018


def test_unknown_convention_is_an_error():
    with pytest.raises(ValueError, match=r"convention: expected one of .* got 'True hides'"):
        attn.check_attention(attention, convention="True hides")


def test_the_same_seed_gives_the_same_report():
    first, second = (attn.check_attention(WRONG[3][1], seed=4) for _ in range(2))
    assert first == second
    assert first != attn.check_attention(WRONG[3][1], seed=5)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_steps_unchanged_are_attention(seed):
    """Predictions of bugs are worth something only if no bug is predicted rightly too."""
    for trial in make_trials(seed, grouped=True):
        expected = attn.scaled_dot_product_attention(*trial.operands)
        assert same(predict(*trial.operands, {}), expected, 1e-6), trial


@pytest.mark.parametrize("seed", SEEDS)
def test_every_known_bug_shows_in_some_trial(seed):
    """A bug that no trial tells from the right answer could not be found."""
    trials = make_trials(seed, grouped=True)
    rights = [attn.scaled_dot_product_attention(*trial.operands) for trial in trials]
    for bug in BUGS:
        predictions = [predict(*trial.operands, bug.steps) for trial in trials]
        told = [not same(p, r) for p, r in zip(predictions, rights, strict=True) if p is not None]
        assert any(told), bug.name


def test_bugs_of_different_names_are_told_apart():
    trials = make_trials(0, grouped=True)
    predictions = [[predict(*trial.operands, bug.steps) for trial in trials] for bug in BUGS]
    for i, bug in enumerate(BUGS):
        for j, other in enumerate(BUGS[:i]):
            if bug.name != other.name:
                pairs = zip(predictions[i], predictions[j], strict=True)
                assert not all(same(a, b) for a, b in pairs), (bug.name, other.name)
