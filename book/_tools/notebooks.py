"""Run, normalise and check the chapters, and write their practice cells.

    python book/_tools/notebooks.py run [chapter …]         practice, execute, normalise
    python book/_tools/notebooks.py practice [chapter …]    write the generated cells
    python book/_tools/notebooks.py normalise [chapter …]   one form for every notebook
    python book/_tools/notebooks.py check [chapter …]       exit 1 if one of these would change any

A chapter whose generated cells were edited holds somebody's answers: then no file is written,
unless --discard-answers gives up those of the chapters that are named.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

BOOK = Path(__file__).parents[1]
sys.path.insert(0, str(BOOK))

from _tools.normal import dumps, normalise  # noqa: E402
from _tools.placing import edited, place, practice_of  # noqa: E402

CELL_SECONDS = 120
COMMAND = "book/_tools/notebooks.py"


class ThisPython(AsyncKernelManager):
    """A kernel of the Python that runs this file, whatever kernels the user has installed."""

    @property
    def kernel_spec(self):
        """The command that starts the kernel."""
        argv = [sys.executable, "-m", "ipykernel_launcher", "--log-level=ERROR",
                "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


def read(path):
    """Return the notebook of a file."""
    return nbformat.read(path, as_version=4)


def write(path, nb):
    """Replace a file at once, or not at all; return whether its text changed."""
    text = dumps(nb)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return True


def chapters(book=BOOK):
    """Return the notebooks that have a practice file; any other is a reader's own."""
    return [path for path in sorted(book.glob("*.ipynb"))
            if (book / "practice" / f"{path.stem.replace('-', '_')}.py").exists()]


def answers(path):
    """Return a line for each generated cell of a chapter that holds what nobody generated."""
    return [f"  {path.name}, cell {number} ({cell.metadata.practice}): "
            f"{cell.source.strip().partition(chr(10))[0][:60]}"
            for number, cell in edited(read(path), practice_of(path.stem))]


def refusal(found):
    """Say what would be lost, and how to keep it or to give it up."""
    names = [path.stem for path, lines in found.items() if lines]
    lines = "\n".join(line for lines in found.values() for line in lines)
    copy = f"book/my-{names[0]}.ipynb"
    return (f"These cells are generated, and were edited. Nothing was written.\n{lines}\n"
            f"To keep what they hold, save the notebook under another name, such as {copy}:\n"
            "it runs there as well, and nothing here touches it. Then put the cells back with\n"
            f"  .venv/bin/python {COMMAND} practice --discard-answers {' '.join(names)}\n"
            "To change an exercise, edit its file in book/practice.")


def with_practice(path):
    """Return a chapter's notebook with its generated cells up to date, in normal form."""
    return normalise(place(read(path), practice_of(path.stem)))


def execute(nb, folder):
    """Run every cell in a fresh kernel that starts in the folder; leave the outputs in nb."""
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(nb, kernel_manager_class=ThisPython, timeout=CELL_SECONDS,
                   resources={"metadata": {"path": str(folder)}}).execute()
    return nb


def store(path, nb, before):
    """Write a chapter, unless its file is no longer what was read; return what happened, and ok."""
    if path.read_bytes() != before:
        return "not stored: somebody saved the file meanwhile", False
    return "changed" if write(path, nb) else "as before", True


def run(path, nb, before):
    """Execute a chapter and store it; a chapter that fails keeps its old file."""
    print(f"{path.stem:32}", end="", flush=True)
    start = time.perf_counter()
    try:
        execute(nb, path.parent)
    except CellExecutionError as error:
        print(f"failed\n{error}")
        return False
    seconds = time.perf_counter() - start
    said, ok = store(path, normalise(nb), before)
    print(f"{seconds:6.1f} s {path.stat().st_size // 1024:6} KB  {said}")
    return ok


def update(path, nb, before):
    """Store a chapter."""
    said, ok = store(path, nb, before)
    print(f"{path.stem:32}{said}")
    return ok


def check(path, nb, before):
    """Say whether a chapter is as `practice` and `normalise` leave it."""
    good = dumps(nb).encode() == before
    print(f"{path.stem:32}{'good' if good else 'NOT UP TO DATE: run practice and normalise'}")
    return good


# What each action makes of a chapter's file, and what it does with that.
ACTIONS = {
    "run": (with_practice, run),
    "practice": (with_practice, update),
    "normalise": (lambda path: normalise(read(path)), update),
    "check": (with_practice, check),
}


def main(arguments=None):
    """Do one action on the named chapters, all of them when none is named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("chapters", nargs="*", help="names such as worked-example; default: all")
    parser.add_argument("--book", type=Path, default=BOOK, help="the folder of the notebooks")
    parser.add_argument("--discard-answers", action="store_true",
                        help="replace generated cells that were edited, in the chapters named")
    options = parser.parse_intermixed_args(arguments)
    # Sums over several threads differ in their last digits, and so would the stored outputs.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("MPLBACKEND", None)  # another backend than the kernel's own stores no pictures
    paths = {path.stem: path for path in chapters(options.book)}
    names = [Path(name).stem for name in options.chapters]
    if unknown := [name for name in names if name not in paths]:
        parser.error(f"no chapter is called {', '.join(unknown)}; there are {', '.join(paths)}")
    if options.discard_answers and not names:
        parser.error("--discard-answers needs the names of the chapters whose answers may go")
    paths = [paths[name] for name in names] if names else list(paths.values())
    if options.action != "check" and not options.discard_answers:
        found = {path: answers(path) for path in paths}
        if any(found.values()):
            print(refusal(found), file=sys.stderr)
            return 1
    make, finish = ACTIONS[options.action]
    start = time.perf_counter()
    made = [(path, path.read_bytes(), make(path)) for path in paths]  # all, before one is written
    bad = [path.stem for path, before, nb in made if not finish(path, nb, before)]
    print(f"{len(paths)} notebooks, {time.perf_counter() - start:.1f} s"
          + (f"; not good: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
