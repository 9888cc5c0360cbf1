"""The table of the teacher's guide, made from the practice files while the book builds.

A line ``% course table`` becomes one row for each chapter of _toc.yml that has exercises: how many,
their marks and minutes, and the libraries that its notebook imports. So the guide cannot drift from
the chapters.
"""

import json
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
HEAD = "| Chapter | Reading | Exercises | Marks | Practice | Needs |\n|---|---|---|---|---|---|\n"


def chapters():
    """Return (name, notebook) of every chapter, in the book's order."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = [Path(entry["file"]) for part in toc["parts"] for entry in part["chapters"]]
    paths = [ROOT / file.with_suffix(".ipynb") for file in files]
    return [(path.stem, json.loads(path.read_text("utf-8"))) for path in paths if path.exists()]


def row(name, notebook, practice):
    """Return a chapter's line of the table."""
    text = {"markdown": "", "code": ""}
    for cell in notebook["cells"]:
        text[cell["cell_type"]] += "".join(cell["source"]) + "\n"
    title = re.search(r"^# (.+)$", text["markdown"], re.MULTILINE)[1]
    reading = re.search(r"\*\*Time\*\*\s+(?:about\s+)?(\d+)\s+minutes", text["markdown"])[1]
    tasks = practice.exercises.values()
    marks, minutes = sum(t.marks for t in tasks), sum(t.minutes for t in tasks)
    needs = "torch" if re.search(r"^import (torch|attn\.torch)$", text["code"], re.M) else "NumPy"
    return (
        f"| [{title}]({name}.ipynb) | {reading} min | {len(tasks)} | {marks} | {minutes} min "
        f"| {needs} |"
    )


def course_table():
    """Return the table of all chapters, with a last line that adds up."""
    if str(ROOT / "book") not in sys.path:
        sys.path.insert(0, str(ROOT / "book"))
    from practice.audit import chapters as practices

    known = practices()
    rows = [row(name, notebook, known[name]) for name, notebook in chapters() if name in known]
    tasks = [task for practice in known.values() for task in practice.exercises.values()]
    total = (
        f"| **all {len(rows)}** | | **{len(tasks)}** | **{sum(t.marks for t in tasks)}** "
        f"| **{sum(t.minutes for t in tasks)} min** | |"
    )
    return HEAD + "\n".join([*rows, total])


def expand(app, docname, source):
    """Put the table where a page asks for it."""
    if re.search(r"^% course table$", source[0], re.MULTILINE):
        source[0] = re.sub(
            r"^% course table$", lambda _: course_table(), source[0], flags=re.MULTILINE
        )


def setup(app):
    app.connect("source-read", expand)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
