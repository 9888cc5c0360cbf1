"""The page "Judge your own code": every command on it is run, and prints what the page shows."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from attn import check

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "book" / "judge-your-own-code.md").read_text(encoding="utf-8")
COMMANDS = dict(re.findall(r"^```console\n\$ ([^\n]*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("reader")
    source = re.search(r"^```python\n(import numpy.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
    (path / "mine.py").write_text(source, encoding="utf-8")
    return path


def test_the_page_shows_each_tool_at_work():
    assert len(COMMANDS) >= 5
    for tool in ("attn.check mine", "attn.audit mask", "attn.audit leaks"):
        assert any(tool in command for command in COMMANDS), tool


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_what_the_page_shows(command, folder):
    python, *words = shlex.split(command)
    assert python == "python"
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout == COMMANDS[command]
    assert done.returncode == 1  # something was found


def test_the_options_and_adapters_of_the_table_exist():
    table = PAGE.partition("| Your function | Say |")[2].partition("\n\n")[0]
    done = subprocess.run(
        [sys.executable, "-m", "attn.check", "--help"], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    options = set(re.findall(r"`(--[\w-]+)", table))
    assert len(options) >= 8
    assert {option for option in options if option not in done.stdout} == set()
    adapters = set(re.findall(r"--adapter (\w+)", table))
    assert adapters == {name for name in check.__all__ if name.islower()} - {
        "check_attention",
        "from_layer",
    }


def test_the_actions_of_the_example_are_those_that_run_here():
    """So that the bot that raises one reminds of the other."""
    ours = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    shown = re.findall(r"uses: (\S+@\w{40})", PAGE)
    assert shown
    assert [action for action in shown if action not in ours] == []
