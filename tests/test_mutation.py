"""The script that plants faults: what it plants, and which of them it calls killed."""

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "mutation"))

from faults import code_lines, faults, sample  # noqa: E402
from run import verdict  # noqa: E402

TOY = '''"""A toy: 1 < 2."""


def above(x, low: int = 3) -> "1 + 1":
    """Tell how far x lies above low: x - low."""
    if x < low:
        raise ValueError(f"{x} < {low - 0}")
    return x - low
'''
TEST = """from toy.steps import above


def test_above():
    assert above(8, 3) == 5
    assert above(8) == 5
"""
KNOWN = """[[equivalent]]
file = "toy/steps.py"
was = "if x < low:"
becomes = "if x <= low:"
reason = "a row to be found again"
"""


def changes(source):
    return {(fault.was, fault.becomes) for fault in faults("x.py", source)}


def test_faults_of_the_toy():
    """Nothing in docstrings, annotations and messages; a default is code."""
    assert changes(TOY) == {
        ('def above(x, low: int = 3) -> "1 + 1":', f'def above(x, low: int = {n}) -> "1 + 1":')
        for n in (2, 4)
    } | {
        ("if x < low:", "if x <= low:"),
        ('raise ValueError(f"{x} < {low - 0}")', "pass"),
        ("return x - low", "return x + low"),
        ("return x - low", "return low - x"),
    }


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("x = a is not None and b", ["a is None and b", "a is not None or b"]),
        ("x = not a in (b,)", ["a in (b,)", "not a not in (b,)"]),
        ("x = (a)  @ b[1:]", ["(a)  @ b[0:]", "(a)  @ b[2:]"]),
        ("x = a[: n]", ["a[: (n) + 1]", "a[: (n) - 1]"]),
        ("x = max(a, b)", ["min(a, b)", "max(b, a)"]),
        ("x = a.any(axis=-1)", ["a.any(axis=1)", "a.any(axis=-2)", "a.any(axis=-0)", "a.any()"]),
        ("x = a.any(axis=-1)", ["a.all(axis=-1)"]),
        ("x = f(a, ä=True)", ["f(a)", "f(a, ä=False)"]),
        ("x = b if a else c", ["c if a else b"]),
        ("x = where(a, b, c)", ["where(a, c, b)"]),
        ("x = 1e38", []),
        ("x = 'ß' % a", []),
    ],
)
def test_faults_by_kind(was, becomes):
    found = changes(was + "\n")
    assert {(was, f"x = {line}") for line in becomes} <= found
    assert becomes or not found


def test_a_fault_moves_no_line_and_is_python():
    paths = sorted((ROOT / "attn").rglob("*.py"))
    sources = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
    found = {file: faults(file, source) for file, source in sources.items()}
    weights = {file: len(code_lines(sources[file])) for file, some in found.items() if some}
    drawn = sample(found, weights, 60, seed=1)
    assert len(drawn) == len({(fault.file, fault.start, fault.new) for fault in drawn}) == 60
    assert drawn == sample(found, weights, 60, seed=1) != sample(found, weights, 60, seed=2)
    for fault in drawn:
        source = sources[fault.file]
        planted = fault.planted(source)
        assert planted.count("\n") == source.count("\n"), fault
        assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(source)), fault
        first, last = fault.reach
        assert first <= fault.line <= last, fault


@pytest.mark.skipif(sys.platform == "win32", reason="the script forks")
def test_a_fault_is_killed_or_survives_and_is_not_planted_twice(tmp_path):
    for name, text in {
        "toy/__init__.py": "",
        "toy/steps.py": TOY,
        "tests/test_steps.py": TEST,
        "mutation/equivalents.toml": KNOWN,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, ROOT / "mutation" / "run.py", "--root", tmp_path]
    command += ["--package", "toy", "--load", "pytest hypothesis"]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = json.loads((tmp_path / ".mutants" / "results.json").read_text("utf-8"))["faults"]
    assert {row["becomes"]: row["outcome"] for row in rows} == {
        'def above(x, low: int = 2) -> "1 + 1":': "killed",
        'def above(x, low: int = 4) -> "1 + 1":': "killed",
        "if x <= low:": "equivalent",
        "pass": "unreached",
        "return x + low": "killed",
        "return low - x": "killed",
    }
    assert {row["by"] for row in rows} == {None, "tests/test_steps.py::test_above"}
    assert "[6/6] killed 4 · survived 1 · unreached 1" in first
    assert '    - raise ValueError(f"{x} < {low - 0}")\n    + pass\n' in first
    again = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "/6]" not in again
    assert again.splitlines()[0].split()[:3] == ["file", "planted", "killed"]
    assert (tmp_path / "toy" / "steps.py").read_text() == TOY


def test_verdicts():
    start = {"start": "tests/test_x.py::test_y"}
    assert verdict([start, {"green": True}], "ended") == ("survived", None)
    assert verdict([start, {"red": "this one"}], "ended") == ("killed", "this one")
    assert verdict([start], "late") == ("timed out", start["start"])
    assert verdict([start], "SIGSEGV")[0] == "killed"


def test_what_is_known_to_change_nothing_can_still_be_planted():
    text = (ROOT / "mutation" / "equivalents.toml").read_text("utf-8")
    for row in tomllib.loads(text)["equivalent"]:
        source = (ROOT / row["file"]).read_text("utf-8")
        found = {(fault.was, fault.becomes) for fault in faults(row["file"], source)}
        assert (row["was"], row["becomes"]) in found, row
        assert row["reason"]
