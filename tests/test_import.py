"""What an import costs and what it brings."""

import importlib
import subprocess
import sys

import pytest

import attn


def run(code, *options):
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=True
    )


@pytest.mark.parametrize(
    ("module", "kept_out"),
    [("attn", {"torch", "matplotlib", "threadpoolctl"}), ("attn.torch", {"matplotlib"})],
)
def test_import_loads_nothing_heavy(module, kept_out):
    loaded = run(f"import {module}, sys; print(*sys.modules)").stdout.split()
    assert module in loaded
    assert kept_out.isdisjoint(loaded)


def test_import_costs_less_than_half_of_numpys():
    """Counted by Python itself, in microseconds; the best of three, for other work goes on."""

    def shares():
        lines = run("import numpy, attn", "-X", "importtime").stderr.splitlines()
        for own, total, name in (
            line.removeprefix("import time:").split("|") for line in lines[1:]
        ):
            yield name.strip(), int(own), int(total)

    def ratio():
        times = {name: (own, total) for name, own, total in shares()}
        ours = sum(own for name, (own, _) in times.items() if name.split(".")[0] == "attn")
        return ours / times["numpy"][1]

    assert min(ratio() for _ in range(3)) < 0.5


def test_all_lists_every_public_name_once(backend):
    names = backend.attn.__all__
    assert names == sorted(set(names))
    for name in names:
        assert getattr(backend.attn, name).__doc__


def test_both_libraries_share_rules_and_caches():
    twin = pytest.importorskip("attn.torch")
    for name in attn.__all__:
        kind = getattr(attn, name)
        if name in ("KVCache", "block_map") or (
            isinstance(kind, type) and issubclass(kind, attn.Mask)
        ):
            assert getattr(twin, name) is kind


def test_tools_that_are_loaded_late_are_listed_whole():
    for module, names in attn._TOOLS.items():
        tool = importlib.import_module(f"attn.{module}")
        assert getattr(attn, module) is tool
        assert module in attn.__all__
        if names:  # the names of `conventions` stay in their module
            assert set(names) <= set(tool.__all__)
            assert all(getattr(attn, name) is getattr(tool, name) for name in names)
            public = {name for name in tool.__all__ if name in attn.__all__}
            assert public == set(names)
