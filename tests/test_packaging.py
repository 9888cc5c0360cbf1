"""What a user installs: the wheel, its types, and the locked packages that all of this ran on."""

import ast
import importlib
import inspect
import itertools
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import is_dataclass
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def lines(name):
    """Return the requirements of a file, without comments, hashes and attn itself."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", "")
    kept = [line.partition(" --hash")[0].strip() for line in text.splitlines()]
    return [Requirement(line) for line in kept if line and not line.startswith(("#", "-e"))]


# --- The lock -------------------------------------------------------------------------------------


def locked():
    """Return the version of each package that the lock installs on this machine."""
    here = [
        line for line in lines("requirements.lock") if not line.marker or line.marker.evaluate()
    ]
    return {canonicalize_name(line.name): str(line.specifier).removeprefix("==") for line in here}


def test_every_requirement_is_locked_but_torch():
    pins = locked()
    stray = [
        str(line)
        for line in lines("requirements.txt")
        if line.name != "torch"
        and not line.specifier.contains(pins.get(canonicalize_name(line.name), "0"))
    ]
    assert stray == []
    assert "torch" not in pins  # two builds, two hashes: the Makefile installs it by itself


def test_every_locked_package_has_hashes():
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8").replace("\\\n", "")
    entries = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert [line for line in entries if not re.search(r" --hash=sha256:[0-9a-f]{64}", line)] == []


def test_what_is_installed_is_what_the_lock_says():
    assert {name: version(name) for name in locked()} == locked()


def test_the_lock_knows_what_both_builds_of_torch_need():
    known = PROJECT["tool"]["uv"]["dependency-metadata"][0]
    assert Requirement(f"torch=={known['version']}") in lines("requirements.txt")
    needs = {
        line for line in map(Requirement, requires("torch")) if "extra" not in str(line.marker)
    }
    light = {line for line in needs if not re.match("nvidia|cuda|triton", line.name)}
    assert {Requirement(line) for line in known["requires-dist"]} == light
    pins = locked()
    assert [str(need) for need in light if not need.specifier.contains(pins[need.name])] == []


def test_the_lowest_versions_are_those_of_the_package():
    project = PROJECT["project"]
    ranges = [project["dependencies"], *project["optional-dependencies"].values()]
    bounds = {}
    for line in map(Requirement, itertools.chain(*ranges)):
        (low,) = [part.version for part in line.specifier if part.operator == ">="]
        bounds[line.name] = low
    (torch,) = [line for line in lines("requirements.txt") if line.name == "torch"]
    assert torch.specifier.contains(f"{bounds.pop('torch')}.0")  # every test runs on its lowest
    lowest = {line.name: line.specifier for line in lines("requirements-lowest.txt")}
    assert lowest.keys() == bounds.keys()
    assert [name for name, low in bounds.items() if not lowest[name].contains(low)] == []


# --- The wheel ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the wheel, built from copies of the files that it is made of."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "attn", source / "attn", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "-w", out, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = out.iterdir()
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    files = zipfile.ZipFile(wheel).namelist()
    here = [path for path in (ROOT / "attn").rglob("*") if path.is_file()]
    ours = {str(path.relative_to(ROOT)) for path in here if "__pycache__" not in path.parts}
    assert {name for name in files if ".dist-info/" not in name} == ours
    assert {"attn/py.typed", "attn/__init__.pyi", "attn/plotting/attn.mplstyle"} < ours


def test_the_metadata_of_the_wheel_is_whole(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        text = archive.read(name).decode()
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    for line in (
        "Name: attn",
        "Requires-Python: >=3.11",
        "License-Expression: BSD-3-Clause",
        "Description-Content-Type: text/markdown",
        "Project-URL: Repository, ",
        "Classifier: Typing :: Typed",
        "Provides-Extra: torch",
    ):
        assert f"\n{line}" in text


# --- The types ------------------------------------------------------------------------------------

DOORS = [
    ".".join(path.relative_to(ROOT).parent.parts)
    for path in sorted((ROOT / "attn").rglob("__init__.pyi"))
]


def stub_of(module):
    path = ROOT / module.replace(".", "/") / "__init__.pyi"
    return ast.parse(path.read_text(encoding="utf-8"))


def names_in(tree):
    """Return the public names of a stub: what it defines, and what it imports `as` itself."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            found.add(node.target.id)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname for alias in node.names if alias.asname}
    return {name for name in found if not name.startswith("_")}


def written(function):
    """Return the parameters of a stub's function as (name, kind, default) without annotations."""
    kinds = inspect.Parameter
    spec = function.args
    places = [*spec.posonlyargs, *spec.args]
    defaults = [None] * (len(places) - len(spec.defaults)) + spec.defaults
    out = [
        (arg.arg, kinds.POSITIONAL_OR_KEYWORD, d) for arg, d in zip(places, defaults, strict=True)
    ]
    named = zip(spec.kwonlyargs, spec.kw_defaults, strict=True)
    return out + [(arg.arg, kinds.KEYWORD_ONLY, default) for arg, default in named]


def differs(function, thing):
    """Tell whether a function's parameters are other than the stub says; `...` is any default."""
    actual = list(inspect.signature(thing).parameters.values())
    stub = [part for part in written(function) if part[0] not in ("self", "cls")]
    actual = [part for part in actual if part.name not in ("self", "cls")]
    if [(name, kind) for name, kind, _ in stub] != [(part.name, part.kind) for part in actual]:
        return True
    for (_, _, default), part in zip(stub, actual, strict=True):
        if (default is None) != (part.default is part.empty):
            return True
        if default is not None and ast.unparse(default) not in ("...", repr(part.default)):
            return True
    return False


def problems(module):
    """Yield what a stub says otherwise than the module that it stands beside."""
    loaded = importlib.import_module(module)
    for node in stub_of(module).body:
        thing = getattr(loaded, getattr(node, "name", ""), None)
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            if differs(node, thing):
                yield f"{module}.{node.name}{inspect.signature(thing)}"
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
            fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
            own = {
                name
                for name, value in vars(thing).items()
                if not name.startswith("_") and (callable(value) or isinstance(value, property))
                if not any(name in vars(base) for base in thing.__mro__[1:])
            }
            known = {*methods, *(field.target.id for field in fields)}
            yield from (f"{module}.{node.name}.{name} is missing" for name in own - known)
            for name, method in methods.items():
                value = inspect.getattr_static(thing, name)
                if isinstance(value, property) or name == "__call__":
                    continue
                if differs(method, getattr(thing, name)):
                    yield f"{module}.{node.name}.{name}{inspect.signature(getattr(thing, name))}"
            if is_dataclass(thing):
                stated = [field.target.id for field in fields]
                if stated != list(inspect.signature(thing).parameters):
                    yield f"{module}.{node.name}: fields {stated}"


def test_every_room_with_a_public_name_has_a_stub():
    assert {"attn", "attn.torch"} < set(DOORS)
    for module in DOORS:
        assert names_in(stub_of(module)) == set(importlib.import_module(module).__all__), module


@pytest.mark.parametrize("module", DOORS)
def test_stubs_say_what_the_code_does(module):
    assert list(problems(module)) == []


def used(path):
    """Return every dotted name in a script and what it begins with; `at` is attn.torch."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    names = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    return {re.sub(r"^at\.", "attn.torch.", name) for name in names}


def test_the_scripts_use_every_public_name():
    names = used(DATA / "typed_numpy.py") | used(DATA / "typed_torch.py")
    for module, prefix in (("attn", "attn"), ("attn.torch", "attn.torch")):
        wanted = {f"{prefix}.{name}" for name in importlib.import_module(module).__all__}
        assert wanted - names == set()
    wanted = {f"conventions.{name}" for name in importlib.import_module("attn.conventions").__all__}
    assert wanted - names == set()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_scripts_run(kind, monkeypatch):
    monkeypatch.syspath_prepend(DATA)
    importlib.import_module(f"typed_{kind}").main()


# Each line is wrong, and said so before it runs.
WRONG = """\
attn.softmax([1.0, 2.0])
attn.softmax(np.array([1, 2], np.int64))
attn.softmax(logits=query)
attn.scaled_dot_product_attention(query, query)
attn.attention_weights(query, query, scale="large")
attn.attention_weights(query, query, causal=True)
attn.attention_weights(query, query, attn.Causal)
attn.attention_weights(query, query, None, query)
attn.rotary(query, np.arange(5))
attn.rotary(query, np.arange(5), layout="halves")
attn.SlidingWindow("3")
attn.Causal().stop
attn.dense_mask(attn.Causal(), 5)
attn.dense_mask(attn.Causal(), 5, 5).count
attn.KVCache(8, True)
attn.check_attention(attn.softmax, convention="hidden")
attn.audit_masks
attn.conventions.to_tensorflow
"""
START = "import numpy as np\n\nimport attn\n\nquery = np.ones((2, 4, 5, 8))\n"


@pytest.fixture(scope="module")
def user(wheel, tmp_path_factory):
    """Return a user's folder: the scripts, wrong calls, and the wheel unpacked beside them."""
    folder = tmp_path_factory.mktemp("user")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    for kind in ("numpy", "torch"):
        shutil.copy(DATA / f"typed_{kind}.py", folder)
    (folder / "wrong.py").write_text(START + WRONG)
    (folder / "pyrightconfig.json").write_text(
        '{"typeCheckingMode": "strict", "extraPaths": ["site"], "pythonVersion": "3.11"}'
    )
    return folder


def lines_found(user, command, **environment):
    """Run a type checker; return what it says of the scripts, and the wrong lines that it found."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=user, env=environment, capture_output=True, text=True
    )
    said = [line for line in done.stdout.splitlines() if re.search(r": error|- error", line)]
    wrong = {
        int(line[1]) for line in (re.search(r"wrong\.py:(\d+)", text) for text in said) if line
    }
    found = {line - START.count("\n") - 1 for line in wrong}
    return [line for line in said if "wrong.py" not in line], found, done.stdout + done.stderr


def test_mypy_accepts_the_script_and_refuses_each_wrong_line(user):
    """Of attn.torch, mypy would read all of torch: a minute. That is left to pyright."""
    scripts = ["typed_numpy.py", "wrong.py"]
    command = ["mypy", "--strict", "--cache-dir", ".cache", "--python-executable", sys.executable]
    said, found, output = lines_found(user, [*command, *scripts], MYPYPATH="site")
    assert said == []
    assert found == set(range(WRONG.count("\n"))), output


def test_pyright_accepts_the_scripts_and_refuses_each_wrong_line(user):
    scripts = ["typed_numpy.py", "typed_torch.py", "wrong.py"]
    command = ["basedpyright", "--pythonpath", sys.executable, *scripts]
    said, found, output = lines_found(user, command)
    assert said == []
    assert found == set(range(WRONG.count("\n"))), output
