"""What every chapter must keep to. A rule takes a notebook and yields what is wrong with it.

Each rule is seen red in tests/test_notebooks.py, on a small notebook with one broken thing.
"""

import ast
import contextlib
import io
import re
import tokenize

from _tools.normal import dumps, normalise
from _tools.placing import place

EXEMPT = ("nbval-skip", "nbval-ignore-output", "raises-exception", "skip-execution")
LONGEST = 25
HEADINGS = ("Objectives", "Exercises", "Take-away", "Quiz", "What comes next", "For teachers")
NETWORK = re.compile(r"https?://|^\s*[!%]\s*(pip|conda|wget|curl|git)\b|\burlopen\b|"
                     r"\bimport requests\b|\bdownload=True", re.M)
MACHINE = re.compile(r"0x[0-9a-f]{6,}|(?<![\w.:/])/(\w[\w.-]*/){2,}|\b[A-Z]:\\\w")
RAW_FLOAT = re.compile(r"\d\.\d{9,}")


def tagged(cell, *names):
    """Tell whether a cell carries one of the tags."""
    return any(name in cell.metadata.get("tags", ()) for name in names)


def code(nb):
    """Yield (what to call it, cell) for every code cell."""
    for i, cell in enumerate(nb.cells):
        if cell.cell_type == "code":
            yield f"cell {i} ({cell.source.partition(chr(10))[0][:40]!r})", cell


def every_cell_was_run(nb):
    for where, cell in code(nb):
        if cell.execution_count is None and not tagged(cell, "nbval-skip"):
            yield f"{where} was never run: execution_count is null"


def no_stderr_and_no_error(nb):
    for where, cell in code(nb):
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stderr":
                yield f"{where} stores stderr: {output.text[:60]!r}"
            if output.output_type == "error" and not tagged(cell, "raises-exception"):
                yield f"{where} stores an error: {output.ename}"


def no_trailing_semicolon(nb):
    for where, cell in code(nb):
        if _last_token(cell.source) == ";":
            yield f"{where} ends in `;`, which nbval does not honour: assign to _ instead"


def ids_are_unique(nb):
    seen = set()
    for i, cell in enumerate(nb.cells):
        if not cell.get("id"):
            yield f"cell {i} has no id"
        elif cell.id in seen:
            yield f"cell {i} has the id of another: {cell.id}"
        seen.add(cell.get("id"))


def normal_form(nb):
    if dumps(normalise(nb)) != dumps(nb):
        yield "is not in normal form: run `notebooks.py normalise`"


def cells_are_short(nb):
    for where, cell in code(nb):
        lines = len(cell.source.splitlines())
        if lines > LONGEST:
            yield f"{where} has {lines} lines; at most {LONGEST}, better 15"


def exemptions_have_reasons(nb):
    for where, cell in code(nb):
        if tagged(cell, *EXEMPT) and len(cell.metadata.get("reason", "")) < 15:
            yield f"{where} is exempt by a tag and has no reason in its metadata"


def no_network(nb):
    for where, cell in code(nb):
        found = NETWORK.search(cell.source)
        if found and cell.metadata.get("practice") != "colab/setup":
            yield f"{where} reaches for the network: {found[0]!r}"


def outputs_are_steady(nb):
    for where, cell in code(nb):
        for text in _texts(cell):
            found = MACHINE.search(text) or RAW_FLOAT.search(text)
            if found and not tagged(cell, "nbval-ignore-output"):
                yield f"{where} stores what differs between machines: {found[0]!r}"


def figures_are_described(nb):
    alts, names = set(), set()
    for where, cell in code(nb):
        pictures = sum(any(kind.startswith("image/") for kind in output.get("data", {}))
                       for output in cell.outputs)
        if pictures == 0:
            if re.search(r"\bplt\.show\(", cell.source):
                yield f"{where} shows a figure, but no picture is stored: run it again"
            continue
        if pictures > 1:
            yield f"{where} shows {pictures} pictures: one a cell, each with its own alt text"
        settings = cell.metadata.get("mystnb", {})
        alt = settings.get("image", {}).get("alt", "")
        figure = settings.get("figure", {})
        if len(alt) < 30 or re.search(r"\.(png|svg|jpe?g)\b", alt):
            yield f"{where}: mystnb.image.alt must say in words what the picture shows: {alt!r}"
        if alt in alts:
            yield f"{where} has the alt text of another picture"
        if not figure.get("caption") or not figure.get("name", "").startswith("fig-"):
            yield f"{where}: mystnb.figure needs a caption and a name that starts with fig-"
        if figure.get("name") in names:
            yield f"{where} has the name of another figure: {figure.get('name')}"
        alts.add(alt)
        names.add(figure.get("name"))


def figures_have_a_number(nb):
    """A picture is never compared, so a number that is must stand beside it."""
    for where, cell in code(nb):
        if any("image" in kind for output in cell.outputs for kind in output.get("data", {})):
            # "<Figure size 640x480 …>" is the name of an object: its digits are no result
            printed = any(re.search(r"\d", t) for t in _texts(cell) if not t.startswith("<"))
            if not printed and not _asserts(cell.source):
                yield f"{where} shows a picture and neither prints nor asserts a number"


def markdown_pictures_are_described(nb):
    for i, cell in enumerate(nb.cells):
        if cell.cell_type == "markdown":
            for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", cell.source):
                if len(alt) < 30:
                    yield f"cell {i}: the picture {target} needs an alt text, has {alt!r}"
            for tag in re.findall(r"<img\b[^>]*>", cell.source):
                if not re.search(r'\balt="[^"]{30,}"', tag):
                    yield f"cell {i}: {tag[:40]} needs an alt text"


def tags_are_closed(nb):
    for i, cell in enumerate(nb.cells):
        if cell.cell_type == "markdown":
            for tag in ("details", "div"):
                opened = len(re.findall(rf"<{tag}\b", cell.source))
                if opened != cell.source.count(f"</{tag}>"):
                    yield f"cell {i} opens and closes <{tag}> unequally often"
                if re.search(rf"^ {{0,3}}</?{tag}\b[^>]*>\n(?!\s*\n|<summary>|</|<{tag}|$)",
                             cell.source, re.M):
                    yield f"cell {i}: a blank line must follow <{tag}>, or Markdown stays raw"


def anatomy(nb):
    """The parts that every chapter has, in this order."""
    titles = [title for level, title in headings(nb) if level == 1]
    if len(titles) != 1 or not nb.cells[0].source.startswith("# "):
        yield f"must begin with its one title (`# …`); has {titles}"
    found = [title for level, title in headings(nb) if level == 2 and title in HEADINGS]
    if found != list(HEADINGS):
        yield f"must have the sections {', '.join(HEADINGS)} in this order; has {found}"
    prose = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    if "minutes" not in "\n".join(cell.source for cell in nb.cells[:4]):
        yield "must say near its top how many minutes it takes"
    if not re.search(r"^- \[ \] ", prose, re.M):
        yield "must have its objectives as a task list (`- [ ] …`)"
    for part in ("predict", "takeaway"):
        if f'<div class="{part}">' not in prose:
            yield f'has no <div class="{part}">'


def headings(nb):
    """Return (level, text) of every Markdown heading, fences left out."""
    prose = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    prose = re.sub(r"^(`{3,}|~{3,}).*?^\1", "", prose, flags=re.M | re.S)
    return [(len(marks), text.strip())
            for marks, text in re.findall(r"^(#{1,6}) (.+)$", prose, re.M)]


def practice_problems(nb, practice):
    """Yield where the notebook's generated cells differ from what the practice file says."""
    try:
        wanted = place(nb, practice)
    except ValueError as error:
        yield str(error)
        return
    if dumps(wanted) != dumps(nb):
        yield "its practice cells are not up to date: run `notebooks.py practice`"
    placed = list(dict.fromkeys(cell.metadata["practice"].partition("/")[0]
                                for cell in nb.cells if cell.metadata.get("practice")))
    for group in (*practice.exercises, "quiz", "teachers"):
        if group not in placed:
            yield f"[practice: {group}] is not placed"
    if imports_cell(nb, practice.chapter) is None:
        yield "no code cell says `from practice.<chapter> import practice`"
    order = [name for name in placed if name in practice.exercises]
    if order != [name for name in practice.exercises if name in order]:
        yield f"its exercises are out of order: {order}"


def imports_cell(nb, chapter):
    """Return the source of the cell that imports the chapter's practice, or None."""
    line = f"from practice.{chapter.replace('-', '_')} import practice"
    return next((c.source for _, c in code(nb) if line in c.source.splitlines()), None)


def _texts(cell):
    for output in cell.outputs:
        if output.output_type == "stream":
            yield output.text
        yield output.get("data", {}).get("text/plain", "")


def _last_token(source):
    """Return the last token that is neither a comment nor white space."""
    last, silent = "", (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
    with contextlib.suppress(tokenize.TokenError, SyntaxError):  # a magic: the tokens before it
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            last = last if token.type in silent else token.string
    return last


def _asserts(source):
    try:
        return any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(source)))
    except SyntaxError:  # a magic: then no number was asserted
        return False


RULES = [every_cell_was_run, no_stderr_and_no_error, no_trailing_semicolon, ids_are_unique,
         normal_form, cells_are_short, exemptions_have_reasons, no_network, outputs_are_steady,
         figures_are_described, figures_have_a_number, markdown_pictures_are_described,
         tags_are_closed, anatomy]
