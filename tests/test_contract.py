"""The contract's page and the numbers that tests cite; and the rules that no other file holds."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import Backend
from reference import normal

from attn import Causal

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "book" / "contract.md").read_text(encoding="utf-8")
RULES = {int(part.split()[0]): part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}


def cited(source):
    """The numbers that a file of tests cites, in the names and the docstrings of its tests."""
    tree, found = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
            name, text = getattr(node, "name", ""), ast.get_docstring(node) or ""
            numbers = re.findall(r"^test_(\d\d)_", name)
            for listed in re.findall(r"Semantics? (\d+(?:(?:, | and | to )\d+)*)", text):
                numbers += re.findall(r"\d+", listed)
            found.update(map(int, numbers))
    return found


FILES = sorted((ROOT / "tests").glob("test_*.py"))
CITED = {path.name: cited(path.read_text(encoding="utf-8")) for path in FILES}


def test_the_rules_are_numbered_in_order():
    assert list(RULES) == list(range(1, 20))


def test_every_number_that_a_test_cites_exists_and_every_number_is_cited():
    wrong = {name: numbers - set(RULES) for name, numbers in CITED.items() if numbers - set(RULES)}
    assert wrong == {}
    assert set(RULES) - set().union(*CITED.values()) == set()


def test_the_tests_that_a_rule_names_cite_it():
    for number, text in RULES.items():
        named = re.findall(r"`(test_\w+\.py)`", text.partition("*Tests:*")[2])
        assert named, f"rule {number} names no test"
        assert [name for name in named if number not in CITED.get(name, ())] == [], number


def test_citations_are_found_in_names_and_docstrings():
    source = 'def test_07_x():\n    """Semantics 2, 3 and 12; neither semantic 4 nor 5."""\n'
    assert cited(source) == {7, 2, 3, 12}


# --- Rules 17 to 19 -------------------------------------------------------------------------------


def routes(backend):
    """Every way to the output of one call, by name; tiles of several sizes."""
    found = {"plain": backend.attn.scaled_dot_product_attention}
    if backend.name == "torch":
        found["fused"] = backend.attn.fused_attention
    for size in (1, 2, 4, None):
        found[f"blocks of {size}"] = lambda *call, size=size, **options: (
            backend.attn.blockwise_attention(*call, block_size=size, **options)[0]
        )
    return found


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("operand", [1, 2], ids=["key", "value"])
def test_17_a_slot_reaches_the_queries_that_see_it_and_no_other(backend, operand, bad):
    """Semantic 17: slot 3 is not finite, and queries 0 to 2 may not see it."""
    arrays = [normal(i, 2, 6, 4) for i in range(3)]
    spoiled = [x.copy() for x in arrays]
    spoiled[operand][:, 3] = bad
    arrays, spoiled = ([backend.array(x) for x in some] for some in (arrays, spoiled))
    masks = {"rule": Causal(), "array": backend.attn.dense_mask(Causal(), 6, 6)}
    for name, route in routes(backend).items():
        for kind, mask in masks.items():
            with np.errstate(all="ignore"):  # what a spoiled row says, its readers may hear
                got = backend.to_numpy(route(*spoiled, mask))
            clean = backend.to_numpy(route(*arrays, mask))
            error = np.abs(got - clean)[:, :3].max()
            assert error < 1e-12, f"{name}, {kind}: {error}"
            if operand == 2:
                assert not np.isfinite(got[:, 3]).any(), f"{name}, {kind}: nobody was told"


def test_18_a_learned_scale_has_a_gradient():
    """Semantic 18: a tensor without axes, and central differences for its gradient."""
    torch = pytest.importorskip("torch")
    backend = Backend("torch")
    call = [backend.array(normal(i, 2, 5, 4)) for i in range(3)]
    for name, route in routes(backend).items():
        scale = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        output = route(*call, Causal(), scale=scale)
        torch.testing.assert_close(output.detach(), route(*call, Causal(), scale=0.3), msg=name)
        (got,) = torch.autograd.grad(output.square().sum(), scale)
        above, below = (
            route(*call, Causal(), scale=0.3 + step).square().sum() for step in (1e-6, -1e-6)
        )
        torch.testing.assert_close(got, (above - below) / 2e-6, rtol=1e-6, atol=1e-7, msg=name)


def test_18_slopes_are_exact_to_the_dtype(backend):
    """Semantic 18: 2^(−8h/12 …) to the last digits of float64, not those of float32."""
    options = {"dtype": backend.library.float64} if backend.name == "torch" else {}
    got = backend.to_numpy(backend.attn.alibi_slopes(12, **options))
    exact = [2.0 ** -(i + 1) for i in range(8)] + [2.0 ** -(i + 0.5) for i in range(4)]
    np.testing.assert_allclose(got, exact, rtol=1e-15)
    bias = backend.to_numpy(backend.attn.alibi_bias(12, 1, 8, q_offset=0, **options))
    np.testing.assert_allclose(bias[0, :, 0, 7], -7 * np.array(exact), rtol=1e-15)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 10**400},
        {"scale": -(10**400)},
        {"softcap": 10**400},
        {"q_offset": 2**63},
        {"q_offset": -(2**63) - 1},
        {"q_offset": [0, 2**63]},
    ],
    ids=["scale", "negative scale", "softcap", "offset", "negative offset", "offset of a row"],
)
def test_19_numbers_that_nothing_can_hold_are_refused_by_name(backend, options):
    """Semantic 19."""
    call = [backend.array(normal(i, 2, 1, 4, 4)) for i in range(3)]
    (name,) = options
    for route in routes(backend).values():
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            route(*call, Causal(), **{"q_offset": 0, **options})
