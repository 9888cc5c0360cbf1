"""The contract's page and the numbers that tests cite."""

import ast
import re
from pathlib import Path

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
