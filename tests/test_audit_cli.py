"""python -m attn.audit: its words and its exit status."""

import json
import subprocess
import sys

import numpy as np
import pytest

from attn.audit.__main__ import main

MODULE = """
import numpy as np
import attn

rule = attn.Causal()
batch_rule = attn.SlidingWindow(2, 1)
array = np.tri(6, dtype=bool)

class Space:
    short = np.tri(6, k=-1, dtype=bool)

def attention(x):
    return attn.scaled_dot_product_attention(x, x, x, rule)

def mean(x):
    return x - x.mean()

def broken(x):
    raise RuntimeError("broken inside")

"""

MODELS = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, causal):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.causal = nn.Embedding(7, 4), causal
    def forward(self, ids):
        x = self.table(ids)
        return x.cumsum(1) if self.causal else x + x.mean(1, keepdim=True)

causal, leaky = Model(True), Model(False)
layer = nn.Linear(4, 4)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("audit")
    (path / "mine.py").write_text(MODULE, encoding="utf-8")
    (path / "models.py").write_text(MODELS, encoding="utf-8")
    np.save(path / "good.npy", np.tri(5, dtype=bool))
    np.save(path / "bad.npy", np.tri(5, k=1, dtype=bool))
    np.save(path / "floats.npy", np.zeros((5, 5)))
    np.save(path / "x.npy", np.random.default_rng(0).normal(size=(5, 3)))
    return path


def run(folder, *words):
    command = [sys.executable, "-m", "attn.audit", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def call(folder, monkeypatch, capsys):
    """The same in this process, which need not start Python anew."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name in ("mine", "models"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def main_of(*words):
        try:
            code = main(list(words))
        except SystemExit as end:  # argparse
            code = end.code
        return code, *capsys.readouterr()

    return main_of


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("mask good.npy", 0),
        ("mask mine:Space.short", 1),
        ("leaks mine:mean --input 5x2 --mask causal --json", 1),
        ("mask mine:rule", 2),
    ],
)
def test_the_command_line(folder, call, words, status):
    assert run(folder, *words.split()) == call(*words.split())
    assert call(*words.split())[0] == status


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ("mask good.npy", 0, "Nothing to remark."),
        ("mask bad.npy", 1, "! off-by-one triangle (one long): query 0 sees key 1"),
        ("mask mine:array", 0, "Nothing to remark."),
        ("mask mine:Space.short", 1, "! off-by-one triangle (one short)"),
        ("mask mine:rule --length 6", 0, "Nothing to remark."),
        ("mask mine:rule --length 3 --keys 6 --offset 0", 0, "· upper-left triangle"),
        ("mask bad.npy --cross", 0, "Nothing to remark."),
        ("leaks mine:attention --input x.npy --mask causal", 0, "No leak found."),
        ("leaks mine:attention --input 9x4 --mask window:3", 1, "the past beyond the window"),
        ("leaks mine:attention --input 9x4 --mask window:3 --layers 3", 0, "No leak found."),
        ("leaks mine:mean --input 5x2 --mask good.npy", 1, "it looks into the future"),
        ("leaks models:causal --input 2x6 --ids 7 --mask mine:rule", 0, "No leak found."),
        ("leaks models:leaky --input 2x6 --ids 7 --mask causal", 1, "it looks into the future"),
        ("leaks models:layer --input 2x5x4 --mask prefix:2", 0, "No leak found."),
    ],
)
def test_what_is_found_is_in_the_exit_status(call, words, status, says):
    code, output, errors = call(*words.split())
    assert code == status, errors
    assert says in output
    assert errors == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "the following arguments are required"),
        ("mask", "the following arguments are required: FILE.npy|module:name"),
        ("mask none.npy", "No such file"),
        ("mask floats.npy", "expected a boolean array"),
        ("mask mine", "mine: expected FILE.npy or package.module:name"),
        ("mask nowhere:rule", "nowhere:rule: No module named 'nowhere'"),
        ("mask mine:nothing", "has no attribute 'nothing'"),
        ("mask mine:rule", "--length"),
        ("leaks mine:mean --input 5x2", "--mask"),
        ("leaks mine:mean --input 5x2 --mask window:a", "--mask window:a"),
        ("leaks mine:mean --input 5x2 --mask triangle", "triangle: expected FILE.npy"),
        ("leaks mine:broken --input 5x2 --mask causal", "broken inside"),
        ("leaks mine:array --input 5x2 --mask causal", "function: expected a callable"),
    ],
)
def test_what_cannot_be_run_says_why(call, words, says):
    code, output, errors = call(*words.split())
    assert code == 2
    assert says in errors
    assert output == ""


def test_reports_as_json(call):
    code, output, _ = call("mask", "bad.npy", "--json")
    report = json.loads(output)
    assert code == 1
    assert report["passed"] is False
    assert report["future_pairs"] == 4
    assert report["findings"][0]["name"] == "off-by-one triangle (one long)"
    code, output, _ = call("leaks", "mine:mean", "--input", "5x2", "--mask", "causal", "--json")
    report = json.loads(output)
    assert code == 1
    assert (report["leak"]["output"], report["leak"]["input"]) == (0, 1)
    assert report["leak"]["kind"] == "the future"
    assert report["calls"] > 0
    code, output, _ = call(
        "leaks", "mine:attention", "--input", "5x2", "--mask", "causal", "--json"
    )
    assert code == 0
    assert json.loads(output)["leak"] is None
