"""Run, normalise and check the chapters, and write their practice cells.

    python book/_tools/notebooks.py run [chapter …]         practice, execute, normalise
    python book/_tools/notebooks.py practice [chapter …]    write the generated cells
    python book/_tools/notebooks.py normalise [chapter …]   one form for every notebook
    python book/_tools/notebooks.py check [chapter …]       exit 1 if one of these would change any
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
from _tools.placing import place, practice_of  # noqa: E402

CELL_SECONDS = 120


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
    draft = path.with_suffix(".tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
    return True


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


def run(path):
    """Execute a chapter and store it; a chapter that fails keeps its old file."""
    print(f"{path.stem:32}", end="", flush=True)
    nb, start = with_practice(path), time.perf_counter()
    try:
        execute(nb, path.parent)
    except CellExecutionError as error:
        print(f"failed\n{error}")
        return False
    seconds = time.perf_counter() - start
    changed = write(path, normalise(nb))
    size = path.stat().st_size // 1024
    print(f"{seconds:6.1f} s {size:6} KB  {'changed' if changed else 'as before'}")
    return True


def update(path, new):
    """Write what `new` makes of a chapter."""
    print(f"{path.stem:32}{'changed' if write(path, new(path)) else 'as before'}")
    return True


def check(path):
    """Say whether a chapter is as `practice` and `normalise` leave it."""
    good = dumps(with_practice(path)) == path.read_text(encoding="utf-8")
    print(f"{path.stem:32}{'good' if good else 'NOT UP TO DATE: run practice and normalise'}")
    return good


ACTIONS = {
    "run": run,
    "practice": lambda path: update(path, with_practice),
    "normalise": lambda path: update(path, lambda p: normalise(read(p))),
    "check": check,
}


def main(arguments=None):
    """Do one action on the named chapters, all of them when none is named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("chapters", nargs="*", help="names such as worked-example; default: all")
    parser.add_argument("--book", type=Path, default=BOOK, help="the folder of the notebooks")
    options = parser.parse_args(arguments)
    # Sums over several threads differ in their last digits, and so would the stored outputs.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("MPLBACKEND", None)  # another backend than the kernel's own stores no pictures
    names = [Path(name).stem for name in options.chapters]
    names = names or sorted(path.stem for path in options.book.glob("*.ipynb"))
    paths = [options.book / f"{name}.ipynb" for name in names]
    start = time.perf_counter()
    bad = [path.stem for path in paths if not ACTIONS[options.action](path)]
    print(f"{len(paths)} notebooks, {time.perf_counter() - start:.1f} s"
          + (f"; not good: {', '.join(bad)}" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
