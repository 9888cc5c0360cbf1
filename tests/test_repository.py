"""The repository's own rules: what may import what, what a docstring says."""

import ast
import inspect
import re
import sys
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "mutation"))

from faults import code_lines  # noqa: E402

# Who may import whom inside attn, room by room: a file is its own room, a folder is one.
GROUND = {"arguments", "arrays"}
ARROWS = {
    "arrays": set(),
    "arguments": {"arrays"},
    "masks": GROUND,
    "operands": GROUND | {"masks"},  # what the next four share before the first product
    "attention": GROUND | {"operands"},
    "backward": GROUND | {"attention", "operands"},
    "blockwise": GROUND | {"masks", "operands"},
    "additive": GROUND | {"attention", "masks", "operands"},
    "heads": GROUND | {"attention", "cache"},
    "cache": GROUND,
    "positions": GROUND,
    "conventions": GROUND | {"masks"},
    "check": GROUND | {"attention", "masks"},
    "audit": GROUND | {"conventions", "masks"},
    "palette": set(),
    "plotting": {"palette"},
    "diagrams": {"palette", "plotting"},
}
# Inside attn.torch, room by room again. Outside, its files may use what is written for both
# libraries: never attn.attention or another twin's sums, or their agreement would prove nothing.
SHARED_WITH_TORCH = GROUND | {"masks", "cache"}
TORCH_ARROWS = {
    "masks": set(),
    "flex": {"masks"},
    "operands": {"masks"},
    "selection": set(),
    "attention": {"operands", "selection"},
    "blockwise": {"attention", "masks", "operands"},
    "heads": {"attention", "masks", "operands"},
    "positions": {"masks", "operands"},
    "additive": {"attention", "masks", "operands"},
    "fused": {"attention", "flex", "masks", "operands"},
    "ring": {"attention", "blockwise", "masks", "operands"},
    "check": set(),
}

FILES = sorted((ROOT / "attn").rglob("*.py"))
NAMES = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES}


def modules_imported(tree, whole):
    """Return the modules that a file imports; those of attn as written, others by first name."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{whole}: relative import"
            if node.module in ("attn", "attn.torch"):  # from attn import arguments
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
    return found


def imports(path):
    return modules_imported(ast.parse(path.read_text(encoding="utf-8")), path.name)


def rooms(path):
    """Return the room of a file of attn and the rooms that it imports; attn.torch is torch.x."""

    def room(module):
        parts = module.removeprefix("attn.").split(".")
        return ".".join(parts[:2] if parts[0] == "torch" else parts[:1])

    inside = {module for module in imports(path) if module.startswith("attn.")}
    return room(NAMES[path]), {room(module) for module in inside} - {room(NAMES[path])}


def forbidden(path):
    """Return the rooms that a file of attn imports and that no arrow allows."""
    own, imported = rooms(path)
    if own.startswith("torch."):
        arrows = {f"torch.{room}" for room in TORCH_ARROWS[own.removeprefix("torch.")]}
        return imported - arrows - SHARED_WITH_TORCH
    return imported - ARROWS[own]


INSIDE = [path for path in FILES if path.parent.name != "attn" or path.stem != "__init__"]
INSIDE = [path for path in INSIDE if path != ROOT / "attn" / "torch" / "__init__.py"]


def test_imports_follow_the_arrows():
    wrong = {NAMES[path]: found for path in INSIDE if (found := forbidden(path))}
    assert wrong == {}


def test_no_arrow_leads_back():
    for arrows in (ARROWS, TORCH_ARROWS):
        TopologicalSorter(arrows).prepare()  # CycleError names the circle


def test_a_room_hands_on_and_defines_nothing():
    """Its reader finds each name in the file that is called after it."""
    kinds = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr)
    for path in INSIDE:
        if path.stem == "__init__":
            defined = [x for x in ast.parse(path.read_text()).body if not isinstance(x, kinds)]
            assert [ast.unparse(x) for x in defined] == [], NAMES[path]


def test_attn_knows_no_book_and_few_libraries():
    extra = {"torch": {"torch"}, "plotting": {"matplotlib"}, "diagrams": {"matplotlib"}}
    extra |= {"blockwise": {"threadpoolctl"}}
    for path in FILES:
        first = {module.split(".")[0] for module in imports(path)} - set(sys.stdlib_module_names)
        own = path.relative_to(ROOT / "attn").with_suffix("").parts[0]
        assert first <= {"attn", "numpy"} | extra.get(own, set()), NAMES[path]


def test_the_longest_files_and_functions():
    """A report without a limit: an idea decides where a file ends. Shown with `pytest -rP`."""
    files, functions = [], []
    for path in FILES:
        source = path.read_text(encoding="utf-8")
        code = code_lines(source)
        files.append((len(code), NAMES[path]))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                length = len(code & set(range(node.lineno, node.end_lineno + 1)))
                functions.append((length, f"{NAMES[path]}.{node.name}"))
    for what, found in ("files", files), ("functions", functions):
        print(f"{sum(length for length, _ in files)} lines of code; the longest {what}:")
        for length, name in sorted(found, reverse=True)[:12]:
            print(f"{length:5} {name}")
    assert code_lines('"""Doc\n\nstring."""\n# comment\n\nx = (\n    1,\n)  # 3\n') == {6, 7, 8}


# --- Docstrings -----------------------------------------------------------------------------------


def public():
    """Return (address, object) of each public function and class of attn and attn.torch."""
    found = {}
    for package in ("attn", "attn.torch"):
        module = import_module(package)
        for name in module.__all__:
            thing = getattr(module, name)
            if not inspect.ismodule(thing) and thing not in found.values():
                found[f"{package}.{name}"] = thing
    return found


def is_rule(thing):
    return inspect.isclass(thing) and issubclass(thing, import_module("attn").Mask)


def is_result(thing):
    return inspect.isclass(thing) and (
        hasattr(thing, "_fields") or hasattr(thing, "__dataclass_fields__")
    )


def missing_parts(thing):
    """Return the parts that a docstring lacks.

    A mask rule needs no more than its summary, the type of a result its attributes besides.
    """
    text = inspect.getdoc(thing) or ""
    summary = text.split("\n")[0]
    missing = [] if summary.endswith(".") else ["a summary line that ends in a full stop"]
    if is_rule(thing):
        return missing
    if is_result(thing):
        fields = getattr(thing, "_fields", None) or thing.__dataclass_fields__
        block = text.partition("Attributes\n")[2]
        return missing + [name for name in fields if not re.search(rf"^{name}\b", block, re.M)]
    source = inspect.getsource(thing)
    signature = inspect.signature(thing)
    wanted = {"Examples": True}
    wanted["Parameters"] = bool(signature.parameters)
    if inspect.isclass(thing):
        if "Attributes\n" not in text and "Parameters\n" not in text:
            missing.append("Attributes")
    else:
        wanted["Returns"] = True
    wanted["Raises"] = bool(re.search(r"\braise \w|\barguments\.", source))
    for part, needed in wanted.items():
        if needed and not re.search(rf"^{part}\n-+$", text, re.MULTILINE):
            missing.append(part)
    if not re.search(r"^Source: \S", text, re.MULTILINE):
        missing.append("Source")
    if ">>> " not in text:
        missing.append("a doctest")
    if "Parameters" not in missing:
        block = text.partition("Parameters\n")[2].partition("\n\n")[0]
        missing += [name for name in signature.parameters if not re.search(rf"\b{name}\b", block)]
    return missing


@pytest.mark.parametrize("address", public())
def test_docstrings_are_whole(address):
    assert missing_parts(public()[address]) == []


def test_every_public_name_is_in_the_api_reference():
    pages = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "book").glob("api*.md"))
    shown = set()
    for name in re.findall(r"^% module (\S+)$", pages, re.MULTILINE):
        module = import_module(name)
        own = [
            thing for thing in vars(module).values() if getattr(thing, "__module__", None) == name
        ]
        shown |= {id(thing) for thing in own}
        shown |= {id(getattr(module, thing)) for thing in getattr(module, "__all__", [])}
    assert [address for address, thing in public().items() if id(thing) not in shown] == []


# --- Tools ----------------------------------------------------------------------------------------


def test_jupyter_book_is_the_one_that_keeps_the_configuration():
    assert version("jupyter-book").split(".")[0] == "1"


def requirements(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_every_requirement_is_pinned():
    lines = requirements("requirements.txt")
    assert lines[-1] == "-e ."
    loose = [
        line
        for line in lines[:-1]
        + requirements("requirements-lab.txt")
        + requirements("requirements-uv.txt")
        if not re.fullmatch(r"[\w.-]+(==[\w.]+|~=\d+\.\d+\.\d+)", line)
    ]
    assert loose == []
    assert "torch==2.13.0" in lines


def test_the_style_sheet_of_katex_has_the_version_of_its_script():
    style = (ROOT / "book" / "_static" / "katex" / "katex.min.css").read_text(encoding="utf-8")
    assert f'content:"{import_module("sphinxcontrib.katex").katex_version}"' in style


def test_ci_runs_the_test_command_of_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^(make test)\b", readme, re.MULTILINE)[1]
    last = (ROOT / ".ci" / "run").read_text(encoding="utf-8").strip().splitlines()[-1]
    assert last == f"REQUIRE_BROWSER=1 {command}"
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert "run: bash .ci/run" in workflow


def workflow():
    text = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    return text, yaml.safe_load(text)


def test_what_is_published_is_what_was_tested():
    """One job builds, tests and hands on its pages; another deploys them and builds nothing."""
    _, parts = workflow()
    steps = parts["jobs"]["book"]["steps"]
    tested = next(i for i, step in enumerate(steps) if step.get("run") == "bash .ci/run")
    kept = next(
        i for i, step in enumerate(steps) if "upload-pages-artifact" in step.get("uses", "")
    )
    assert tested < kept
    assert "if" not in steps[kept]  # it runs only where all before it passed
    publish = parts["jobs"]["publish"]
    assert set(publish["needs"]) == parts["jobs"].keys() - {"publish"}
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == ["actions/deploy-pages"]
    assert [path.name for path in (ROOT / ".github" / "workflows").iterdir()] == ["test.yml"]


def test_actions_are_pinned_by_digest():
    text, _ = workflow()
    uses = re.findall(r"uses: (.*)", text)
    loose = [
        use for use in uses if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", use)
    ]
    assert uses
    assert loose == []
    assert len({use.partition("@")[0] for use in uses}) == len(set(uses))  # one version of each


def test_torch_has_an_index_of_its_own_and_nothing_else_has():
    _, parts = workflow()
    assert parts["env"] == {"TORCH_INDEX": "https://download.pytorch.org/whl/cpu"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (line,) = [line for line in makefile.splitlines() if "$(TORCH_INDEX)" in line]
    assert "--index-url $(TORCH_INDEX) --no-deps) $(TORCH)" in line
    assert "install --require-hashes -r requirements.lock" in makefile


def test_make_does_one_thing_at_a_time():
    assert re.search(r"^\.NOTPARALLEL:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


def test_the_address_of_the_repository_is_the_same_everywhere():
    files = ["_config.yml", "pyproject.toml", "CITATION.cff", "CONTRIBUTING.md"]
    files += [str(path.relative_to(ROOT)) for path in sorted((ROOT / "book").glob("*.ipynb"))]
    found = {
        name: set(
            re.findall(
                r"github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?[\"'\s,)@\\]",
                (ROOT / name).read_text(encoding="utf-8"),
            )
        )
        for name in files
    }
    config = re.search(
        r"url: https://github.com/(\S+)", (ROOT / "_config.yml").read_text(encoding="utf-8")
    )[1]
    own = config.split("/")[0]
    assert {
        address
        for addresses in found.values()
        for address in addresses
        if address.split("/")[0] == own
    } == {config}
