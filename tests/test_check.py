"""The judge is judged: right functions of every style pass, each wrong one is named."""

import json
import os
import subprocess
import sys
import warnings
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch
from mutants import RIGHT, WRONG, attention, hidden, repeated, scored, softmaxed
from torch.nn import functional as F

import attn
import attn.torch
from attn.check.bugs import BENDS, BUGS, COMMON
from attn.check.outcomes import same
from attn.check.situations import situation
from attn.check.steps import predict
from attn.check.trials import Space, make_trials

ROOT = Path(__file__).parents[1]
SEEDS = (0, 1, 12345)
SMALL = 2_000  # numbers in the product of a trial's query and its keys


def rejected_under_its_name(name, function, options, seed):
    report = attn.check_attention(function, seed=seed, **options)
    assert not report.passed
    assert report.failures[0].name == name, str(report)
    assert f": {name}\n" in str(report)
    assert all(failure.evidence and failure.hint for failure in report.failures)


@pytest.mark.parametrize("seed", SEEDS[1:])
@pytest.mark.parametrize("style", ["einsum", "SDPA", "exp, then mask", "plain NumPy"])
def test_right_implementations_pass_whatever_the_numbers(style, seed):
    report = attn.check_attention(RIGHT[style], seed=seed)
    assert report.passed, str(report)
    assert report.failures == ()
    assert str(report) == f"Passed: right in all {report.trials} trials."


@pytest.mark.parametrize("seed", SEEDS[1:])
@pytest.mark.parametrize(
    ("name", "function", "options"),
    WRONG[::9],
    ids=[f"{n}-{w[0]}" for n, w in enumerate(WRONG[::9])],
)
def test_names_do_not_depend_on_the_numbers(name, function, options, seed):
    rejected_under_its_name(name, function, options, seed)


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
    assert sorted(found) == ["no scale", "softmax over the wrong axis"]


def test_evidence_holds_expected_and_got_and_where():
    failure = attn.check_attention(WRONG[0][1]).failures[0]
    trial = make_trials(Space(), 0)[0]
    expected = attn.scaled_dot_product_attention(*trial.operands)
    got = WRONG[0][1](*trial.operands)
    where = np.unravel_index(np.argmax(abs(got - expected)), got.shape)
    assert failure.known
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
    text = attn.check_attention(lambda q, k, v, m: "0").failures[0].evidence
    assert "returns str, not an array of shape (B, H, L, Dv) = (1, 1, 5, 2)" in text


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


def unknown(field, value, says):
    with pytest.raises((TypeError, ValueError), match=says):
        attn.check_attention(attention, **{field: value})


def test_options_of_other_values_are_errors():
    unknown("dtype", "float16", r"dtype: expected one of \('float64', 'float32'\), got 'float16'")
    unknown("multiple_of", 0, "multiple_of: expected an int of at least 1, got 0")
    unknown("multiple_of", 2.0, "multiple_of: expected an int, got 2.0")
    unknown("seed", None, "seed: expected an int, got None")


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_the_steps_unchanged_are_attention(seed):
    """Predictions of bugs are worth something only if no bug is predicted rightly too."""
    for trial in make_trials(Space(), seed):
        expected = attn.scaled_dot_product_attention(*trial.operands)
        tolerance = 64 * np.finfo(trial.query.dtype).eps * trial.unit
        assert same(predict(*trial.operands, {}), expected, tolerance), trial


def test_every_known_bug_shows_in_some_trial():
    """A bug that no trial tells from the right answer could not be found."""
    trials = make_trials(Space(), 0)
    rights = [attn.scaled_dot_product_attention(*trial.operands) for trial in trials]
    for bug in BUGS:
        told = (
            not same(predict(*trial.operands, bug.steps), right, 1e-11 if wide else 1e-2)
            for trial, right in zip(trials, rights, strict=True)
            for wide in [trial.query.dtype == np.float64]
        )
        assert any(told), bug.says


def test_bugs_of_different_names_are_told_apart():
    trials = [t for t in make_trials(Space(), 0) if t.query.size * t.key.shape[2] < SMALL]
    trials.append(make_trials(Space(), 0)[-1])
    bugs = (*COMMON, *BENDS)
    predictions = [[predict(*trial.operands, bug.steps) for trial in trials] for bug in bugs]
    for i, bug in enumerate(bugs):
        for j, other in enumerate(bugs[:i]):
            if bug.name != other.name:
                pairs = zip(predictions[i], predictions[j], strict=True)
                assert not all(same(a, b, 1e-9) for a, b in pairs), (bug.name, other.name)


# Laws and situations


def shaky(by):
    """Weights that sum to a little more than one, as no known bug makes them."""

    def function(query, key, value, mask):
        extra = by * repeated(query, key, value)[1].sum(2, keepdims=True)
        return attention(query, key, value, mask) + extra * np.cos(query[..., :1])

    return function


def test_sums_of_weights_are_told_apart_from_rounding():
    failure = attn.check_attention(shaky(1e-4)).failures[0]
    assert failure.name == "weights do not sum to 1"
    assert not failure.known
    assert attn.check_attention(shaky(1e-8)).failures[0].name != "weights do not sum to 1"
    assert attn.check_attention(shaky(1e-16)).passed


def test_a_situation_is_told_by_what_failing_calls_share():
    trials = make_trials(Space(), 0)
    failing = [n for n, t in enumerate(trials) if t.key.shape[2] > 64 and t.query.shape[0] > 1]
    found = situation(trials, failing)
    assert str(found) == (
        "wrong only where the batch has several rows and there are more than 64 keys"
    )
    assert found.have == found.wrong == len(failing)
    assert found.counts.startswith(f"all {len(failing)} such calls are wrong")
    assert str(situation(trials, range(len(trials)))) == "wrong in every call"


def test_a_name_must_hold_in_every_call():
    """One scale for short queries, another for long ones: neither is the whole truth."""

    def function(query, key, value, mask):
        scale = 1.0 if query.shape[2] < 20 else 0.1
        return attn.scaled_dot_product_attention(query, key, value, mask, scale=scale)

    failures = attn.check_attention(function).failures
    assert not any(failure.known for failure in failures)


def test_hints_are_tried_before_they_are_given():
    def picky(query, key, value, mask):
        assert query.shape[2] == key.shape[2]
        assert query.shape[1] == key.shape[1]
        return attention(query, key, value, mask)

    hint = attn.check_attention(picky).failures[0].hint
    assert "say grouped=False, square=True: then every call runs" in hint
    assert attn.check_attention(picky, grouped=False, square=True).passed


# The trials


@pytest.mark.parametrize(
    "space",
    [Space(), Space(grouped=False), Space(masks=False), Space(square=True), Space(multiple_of=16),
     Space(dtype="float32"), Space(square=True, multiple_of=128, grouped=False),
     Space(mirrored=True)],
    ids=lambda space: str(space).partition("(")[2],
)  # fmt: skip
def test_every_pair_of_levels_that_can_stand_together_does(space):
    factors = space.factors
    held = {
        pair
        for trial in make_trials(space, 0)
        for pair in combinations(
            sorted((name, level) for name, level in trial.row.items() if name in factors), 2
        )
    }
    joint = [name for name in factors if name in ("content", "lengths", "axes", "heads", "batch")]
    free = [name for name in factors if name not in joint]
    possible = set()
    for levels in product(*(factors[name] for name in joint)):
        row = dict(zip(joint, levels, strict=True))
        if space.allowed(row):
            singles = [*row.items(), *((name, level) for name in free for level in factors[name])]
            pairs = combinations(sorted(singles), 2)
            possible |= {pair for pair in pairs if pair[0][0] != pair[1][0]}
    assert possible <= held, sorted(map(str, possible - held))[:5]
    assert len(possible) > 100


def test_options_narrow_the_trials():
    def trials(**options):
        return make_trials(Space(**options), 0)

    assert all(t.mask is None for t in trials(masks=False))
    assert all(t.query.shape[2] == t.key.shape[2] for t in trials(square=True))
    assert all(t.query.shape[1] == t.key.shape[1] for t in trials(grouped=False))
    assert all(t.query.dtype == t.value.dtype == np.float32 for t in trials(dtype="float32"))
    assert all(not (t.query.shape[2] % 16 or t.key.shape[2] % 16) for t in trials(multiple_of=16))
    lengths = {t.query.shape[2:3] + t.key.shape[2:3] for t in trials(multiple_of=16)}
    assert any(L != S for L, S in lengths)


def test_masks_are_what_their_names_say():
    for trial in make_trials(Space(), 0):
        content, mask = trial.row["content"], trial.mask
        if content == "none":
            assert mask is None
            continue
        assert mask.dtype == bool
        L, S = trial.query.shape[2], trial.key.shape[2]
        assert [letter for letter, size in zip("BHLS", mask.shape, strict=True) if size > 1] == [
            letter
            for letter, size in zip("BHLS", (*trial.query.shape[:3], S), strict=True)
            if letter in trial.row["axes"] and size > 1
        ]
        if content in ("empty query", "empty sequence"):
            assert not mask.any(-1).all(), trial
        elif "causal" not in content and content != "window":
            assert mask.any(-1).all(), trial
        if "causal" in content and content != "upper-left causal":
            assert not (mask & ~np.tril(np.ones((L, S), bool), S - L)).any()
        if content == "left padding" and S > 1:
            assert mask[..., -1].all()
            assert not mask[..., 0].any()
        if content == "right padding" and S > 1:
            assert mask[..., 0].all()
            assert not mask[..., -1].any()
        if content == "inner padding" and S > 2:
            assert mask[..., [0, -1]].all()
            assert not mask.all(-1).any()


# The command


def command(*arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "attn.check", *arguments],
        cwd=cwd,
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def module(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import attn\n"
        "right = attn.scaled_dot_product_attention\n"
        "number = 3\n"
        "def unscaled(q, k, v, m):\n    return right(q, k, v, m, scale=1.0)\n"
        "def plain(q, k, v):\n"
        "    assert q.shape[1:3] == k.shape[1:3]\n    assert q.dtype == 'float32'\n"
        "    assert not q.shape[2] % 16\n    return right(q, k, v)\n"
        "def tensors(q, k, v, m):\n"
        "    import torch\n"
        "    return torch.nn.functional.scaled_dot_product_attention(q, k, v, m)\n"
    )
    (tmp_path / "broken.py").write_text("import no_such_thing\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["mine:right"], 0, "Passed: right in all"),
        (["mine:unscaled", "--json"], 1, '"name": "no scale"'),
        (["mine:plain", "--no-masks", "--no-grouped", "--square", "--dtype", "float32",
          "--multiple-of", "16", "--seed", "5"], 0, "Passed"),
        (["mine:right", "--convention", "is hidden"], 1, "inverted mask"),
        (["mine:tensors", "--torch", "--no-grouped"], 0, "Passed"),
        (["mine:no_such"], 2, "module 'mine' has no 'no_such'"),
        (["mine:number"], 2, "mine:number cannot be called: it is of type int"),
        (["nowhere:right"], 2, "there is no module 'nowhere'"),
        (["broken:right"], 2, "module 'broken' needs 'no_such_thing', which is missing"),
        (["mine"], 2, "expected module:function, got 'mine'"),
        (["mine:right", "--multiple-of", "0"], 2, "expected a whole number of at least 1, got 0"),
    ],
)  # fmt: skip
def test_the_command_line(arguments, status, says, module):
    code, out, err = command(*arguments, cwd=module)
    assert code == status, out + err
    assert says in (err if status == 2 else out)
    assert "Traceback" not in err
    if "--json" in arguments:
        report = json.loads(out)
        assert report["passed"] is False
        assert report["failures"][0].keys() == {"name", "evidence", "hint", "known"}
