"""Where generated cells stand in a notebook: an author writes `[practice: name]`, once.

A generated cell carries the digest of the text that was written into it. Whoever edits the text
leaves the digest as it was, so what a reader wrote is told from what an earlier version generated.
"""

import copy
import importlib
import re

from _tools.normal import digest
from nbformat.v4 import new_code_cell
from practice.cells import generated

# What a chapter says at its top; the second number is the sum of its exercises.
TIME = re.compile(r"(\*\*Time\*\*\s+\d+\s+minutes,\s+and\s+)\d+(\s+for\s+the\s+exercises)")
PLACE = re.compile(r"\s*\[practice: ([\w-]+)\]\s*")

REPOSITORY = "https://github.com/attention-book/attention-book"
COLAB = f"""\
# On Colab only: fetch the book, install attn beside Colab's own torch, and start in book/.
import os
import subprocess
import sys

if "google.colab" in sys.modules:
    book = "{REPOSITORY}"
    home = "/content/attention-book"
    if not os.path.isdir(home):
        subprocess.run(["git", "clone", "--depth=1", book, home], check=True)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", home]
    subprocess.run(install, check=True)
    os.chdir(f"{{home}}/book")
    sys.path.insert(0, os.getcwd())"""
COLAB_METADATA = {
    "practice": "colab/setup",
    "tags": ["nbval-skip", "remove-cell", "skip-execution"],
    "reason": "sets up Colab; there is nothing to do elsewhere",
}


def practice_of(chapter):
    """Return the Practice of a chapter, from practice/<chapter_with_underscores>.py."""
    return importlib.import_module(f"practice.{chapter.replace('-', '_')}").practice


def group_of(cell):
    """Return the name in a cell's `[practice: name]`, or of the group it was generated for."""
    place = PLACE.fullmatch(cell.source) if cell.cell_type == "markdown" else None
    return place[1] if place else cell.metadata.get("practice", "").partition("/")[0]


def edited(nb, practice):
    """Yield (number, cell) of the generated cells that hold what nobody generated: answers."""
    wanted = {cell.metadata.generated for cell in place(nb, practice).cells
              if "practice" in cell.metadata}
    for number, cell in enumerate(nb.cells):
        known = wanted | {cell.metadata.get("generated")}
        if "practice" in cell.metadata and digest(cell.source) not in known:
            yield number, cell


def place(nb, practice):
    """Return the notebook with every generated cell as the chapter's practice has it now.

    So are the minutes of its exercises, in the sentence that says how long the chapter takes.
    A code cell that did not change keeps its outputs; one that did has to be run again.
    """
    nb, groups = copy.deepcopy(nb), generated(practice)
    old = {cell.metadata.practice: cell for cell in nb.cells if "practice" in cell.metadata}
    cells, placed = [], {"", "colab"}
    for cell in nb.cells:
        group = group_of(cell)
        if group == "":
            cells.append(cell)
        elif group not in placed:
            if group not in groups:
                raise ValueError(f"[practice: {group}] is not one of {', '.join(groups)}")
            placed.add(group)
            cells += [_with_outputs(new, old) for new in groups[group]]
    nb.cells = cells
    _place_colab(nb, old)
    minutes = sum(exercise.minutes for exercise in practice.exercises.values())
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = TIME.sub(rf"\g<1>{minutes}\g<2>", cell.source)
    return nb


def _place_colab(nb, old):
    """Put the Colab cell before the first code cell."""
    cell = new_code_cell(COLAB, id="colab-setup", metadata=COLAB_METADATA)
    first = next((i for i, c in enumerate(nb.cells) if c.cell_type == "code"), len(nb.cells))
    nb.cells.insert(first, _with_outputs(cell, old))


def _with_outputs(new, old):
    new.metadata.generated = digest(new.source)
    before = old.get(new.metadata.practice)
    if new.cell_type == "code" and before is not None and before.source == new.source:
        new.outputs, new.execution_count = before.outputs, before.execution_count
    return new
