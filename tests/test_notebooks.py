"""Every chapter keeps the rules; each rule is seen red; running a chapter gives the same bytes."""

import base64
import copy
import io
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
import yaml
from _tools import notebooks, rules
from _tools.normal import dumps, normalise, small_png
from _tools.placing import COLAB, TIME, edited, place, practice_of
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image
from practice.cells import solution

BOOK = Path(__file__).parents[1] / "book"
CHAPTERS = notebooks.chapters()
NAMES = [path.stem for path in CHAPTERS]


# Every chapter

@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", CHAPTERS, ids=NAMES)
def test_chapter(path, rule):
    assert list(rule(notebooks.read(path))) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=NAMES)
def test_practice_cells_are_the_generated_ones(path):
    nb = notebooks.read(path)
    assert list(rules.practice_problems(nb, practice_of(path.stem))) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=NAMES)
def test_the_file_is_what_the_tools_write(path):
    assert path.read_text(encoding="utf-8") == dumps(notebooks.with_practice(path))


def test_every_notebook_of_the_table_of_contents_is_a_chapter():
    toc = yaml.safe_load((BOOK.parent / "_toc.yml").read_text(encoding="utf-8"))
    files = {BOOK.parent / entry["file"] for part in toc["parts"] for entry in part["chapters"]}
    stored = {file.with_suffix(".ipynb") for file in files}
    assert {path for path in stored if path.exists()} == set(CHAPTERS)


def test_no_two_figures_of_the_book_share_a_name():
    names = [name for path in CHAPTERS for name in figure_names(notebooks.read(path))]
    assert sorted(names) == sorted(set(names))


def figure_names(nb):
    return [cell.metadata["mystnb"]["figure"]["name"] for cell in nb.cells
            if "name" in cell.metadata.get("mystnb", {}).get("figure", {})]


@pytest.mark.parametrize("path", CHAPTERS, ids=NAMES)
def test_a_chapter_says_once_how_long_it_takes(path):
    assert sum(len(TIME.findall(cell.source)) for cell in notebooks.read(path).cells) == 1


# A small chapter that keeps every rule, and one broken thing at a time

FIGURE = {"image": {"alt": "Two bars, the left one twice as high as the right one."},
          "figure": {"caption": "Two weights.", "name": "fig-two-weights"}}
SECOND = {"image": {"alt": "Two bars, the right one twice as high as the left one."},
          "figure": {"caption": "The other two.", "name": "fig-other-weights"}}
TEXT = """\
# Sample chapter

**Time** 30 minutes, and 5 for the exercises.
===
## Objectives

- [ ] compute a softmax
===
<div class="predict">

**Predict.** Which one is larger?

</div>
===
## Exercises
===
[practice: softmax_row]
===
[practice: score_deviation]
===
[practice: CausalMask]
===
## Take-away

<div class="takeaway">

One. Two. Three.

</div>
===
## Quiz
===
[practice: quiz]
===
## What comes next
===
## For teachers
===
[practice: teachers]"""


def png(color=(0, 90, 156), size=(7, 5)):
    """Return a base64 PNG of one colour."""
    file = io.BytesIO()
    Image.new("RGB", size, color).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def figure_cell(settings):
    return new_code_cell("print(weights)\nplt.bar([0, 1], weights)\nplt.show()", metadata={
        "mystnb": copy.deepcopy(settings)}, outputs=[
            new_output("stream", name="stdout", text="[0.6667 0.3333]\n"),
            new_output("display_data", {"image/png": png(), "text/plain": "<Figure size 7x5>"})])


@pytest.fixture
def nb(sample):
    """Return the small chapter: cell 4 imports, cells 5 and 6 are figures."""
    cells = [new_markdown_cell(text) for text in TEXT.split("\n===\n")]
    cells[3:3] = [new_code_cell("import math\n\nfrom practice.sample_chapter import practice"),
                  figure_cell(FIGURE), figure_cell(SECOND)]
    nb = place(new_notebook(cells=cells), sample)
    for cell in nb.cells:
        if cell.cell_type == "code" and "nbval-skip" not in cell.metadata.get("tags", ()):
            cell.execution_count = 1
    return normalise(nb)


def problems(nb, practice):
    found = {rule.__name__: list(rule(nb)) for rule in rules.RULES}
    found["practice_problems"] = list(rules.practice_problems(nb, practice))
    return {name: said for name, said in found.items() if said}


def test_the_small_chapter_keeps_every_rule(nb, sample):
    assert [cell.metadata.get("practice") for cell in nb.cells[2:5]] == [None, "colab/setup", None]
    assert problems(nb, sample) == {}


def source(text, cell=4):
    return lambda nb: nb.cells[cell].update(source=text)


def added(text, cell=4):
    return lambda nb: nb.cells[cell].update(source=nb.cells[cell].source + text)


def output(kind, **what):
    return lambda nb: nb.cells[4].outputs.append(new_output(kind, **what))


def prints(text):
    return output("stream", name="stdout", text=text)


def tags(*names, reason=""):
    return lambda nb: nb.cells[4].metadata.update(tags=list(names), reason=reason)


def alt(text):
    return lambda nb: nb.cells[5].metadata.mystnb.image.update(alt=text)


def figure(**settings):
    return lambda nb: nb.cells[5].metadata.mystnb.figure.update(settings)


def without(text):
    """Return a change that drops every Markdown cell that begins with the text."""
    def drop(nb):
        kept = [cell for cell in nb.cells if not cell.source.startswith(text)]
        assert len(kept) < len(nb.cells)
        nb.cells = kept
    return drop


def swapped(nb):
    start = next(i for i, c in enumerate(nb.cells) if c.metadata.get("practice", "")[:3] == "sof")
    nb.cells[start:start + 8] = nb.cells[start + 4:start + 8] + nb.cells[start:start + 4]


def of_practice(part, change):
    def do(nb):
        change(next(cell for cell in nb.cells if cell.metadata.get("practice") == part))
    return do


BROKEN = [
    ("every_cell_was_run", lambda nb: nb.cells[4].update(execution_count=None), "never run"),
    ("no_stderr_and_no_error", output("stream", name="stderr", text="Warning: x"), "Warning: x"),
    ("no_stderr_and_no_error", output("error", ename="KeyError", evalue="x"), "KeyError"),
    ("no_trailing_semicolon", source("ax.plot(x, '#005A9C');  # a line\n"), "ends in `;`"),
    ("ids_are_unique", lambda nb: nb.cells[4].update(id=nb.cells[5].id), "id of another"),
    ("ids_are_unique", lambda nb: nb.cells[4].pop("id"), "has no id"),
    ("normal_form", lambda nb: nb.cells[4].metadata.update(iopub={"x": 1}), "normalise"),
    ("normal_form", lambda nb: nb.cells[4].update(execution_count=7), "normalise"),
    ("normal_form", lambda nb: nb.metadata.language_info.update(version="3.11.7"), "normalise"),
    ("cells_are_short", source("x = 1\n" * 26), "has 26 lines"),
    ("exemptions_have_reasons", tags("nbval-ignore-output"), "no reason"),
    ("exemptions_have_reasons", tags("nbval-skip", reason="slow"), "no reason"),
    ("exemptions_have_reasons", tags("raises-exception"), "no reason"),
    ("no_network", source("!pip install attn"), "pip"),
    ("no_network", source("%pip install attn"), "pip"),
    ("no_network", source("data = fetch('https://example.org')"), "https"),
    ("no_network", source("MNIST('.', download=True)"), "download"),
    ("outputs_are_steady", prints("<object at 0x7f12ab34cd>"), "0x7f12ab34cd"),
    ("outputs_are_steady", prints("saved to /home/me/x.png"), "/home/me/"),
    ("outputs_are_steady", prints("0.30000000000000004"), "0.30000000000000004"),
    ("outputs_are_steady", output("execute_result", data={"text/plain": "<a at 0x7f12ab34>"}),
     "0x7f12ab34"),
    ("figures_are_described", lambda nb: nb.cells[5].metadata.pop("mystnb"), "must say in words"),
    ("figures_are_described", alt("Two bars."), "must say in words"),
    ("figures_are_described", alt("../_build/jupyter_execute/0a1b2c3d4e.png"), "must say in words"),
    ("figures_are_described", alt(SECOND["image"]["alt"]), "alt text of another"),
    ("figures_are_described", figure(caption=""), "needs a caption"),
    ("figures_are_described", figure(name="weights"), "starts with fig-"),
    ("figures_are_described", figure(name="fig-other-weights"), "name of another"),
    ("figures_are_described", lambda nb: nb.cells[5].outputs.append(nb.cells[5].outputs[1]),
     "2 pictures"),
    ("figures_are_described", lambda nb: nb.cells[5].outputs.pop(1), "no picture is stored"),
    ("figures_have_a_number", lambda nb: nb.cells[5].outputs.pop(0), "neither prints nor asserts"),
    ("markdown_pictures_are_described", added("\n![flow](flow.svg)", 1), "flow.svg"),
    ("markdown_pictures_are_described", added('\n<img src="flow.svg">', 1), "<img"),
    ("tags_are_closed", added("\n</div>", 1), "unequally often"),
    ("tags_are_closed", added("\n<div class='x'>\n**not bold**\n\n</div>", 1), "blank line"),
    ("anatomy", without("# Sample"), "one title"),
    ("anatomy", added("\n# Another", 1), "one title"),
    ("anatomy", source("# Sample chapter", 0), "minutes"),
    ("anatomy", source("## Objectives", 1), "task list"),
    ("anatomy", lambda nb: nb.cells.pop(2), "predict"),
    *[("anatomy", without(f"## {title}"), "must have the sections") for title in rules.HEADINGS],
    ("anatomy", lambda nb: nb.cells.reverse(), "in this order"),
    ("practice_problems", of_practice("softmax_row/help", lambda c: c.update(source="?")),
     "not up to date"),
    ("practice_problems", of_practice("softmax_row/stub", lambda c: c.update(source="x = 1")),
     "not up to date"),
    ("practice_problems", without("# On Colab"), "not up to date"),
    ("practice_problems", without('<div class="question"'), "[practice: quiz] is not placed"),
    ("practice_problems", without('<details class="teachers"'), "teachers] is not placed"),
    ("practice_problems", swapped, "out of order"),
    ("practice_problems", source("[practice: softmx]", 2), "[practice: softmx] is not one of"),
    ("practice_problems", source("import practice"), "no code cell says"),
]


@pytest.mark.parametrize(("rule", "break_it", "says"), BROKEN,
                         ids=[f"{rule}-{i}" for i, (rule, *_) in enumerate(BROKEN)])
def test_a_rule_finds(rule, break_it, says, nb, sample):
    break_it(nb)
    found = (rules.practice_problems(nb, sample) if rule == "practice_problems"
             else getattr(rules, rule)(nb))
    assert any(says in problem for problem in found)


def test_every_rule_is_seen_red():
    assert {rule.__name__ for rule in rules.RULES} < {rule for rule, *_ in BROKEN}


@pytest.mark.parametrize(("rule", "change"), [
    ("no_stderr_and_no_error", lambda nb: (tags("raises-exception", reason="shows the error")(nb),
                                           output("error", ename="KeyError", evalue="x")(nb))),
    ("outputs_are_steady", lambda nb: (tags("nbval-ignore-output", reason="a time in ms")(nb),
                                       prints("0.30000000000000004 s")(nb))),
    ("figures_have_a_number", lambda nb: (nb.cells[5].outputs.pop(0),
                                          source("assert w[0] > w[1]\nplt.show()", 5)(nb))),
    ("no_trailing_semicolon", source("%matplotlib inline\nx = ';'  # no;")),
    ("outputs_are_steady", prints("3/4/5 tokens/s/head, 1/2/3")),
])
def test_a_rule_lets_pass(rule, change, nb, sample):
    change(nb)
    assert rule not in problems(nb, sample)


# Placing

def test_placing_twice_changes_nothing_and_keeps_outputs(nb, sample):
    check = next(c for c in nb.cells if c.metadata.get("practice") == "softmax_row/check")
    check.outputs = [new_output("stream", name="stdout", text="kept")]
    assert dumps(place(nb, sample)) == dumps(nb)


def test_a_changed_stub_loses_its_outputs_and_must_run_again(nb, sample):
    stub = next(c for c in nb.cells if c.metadata.get("practice") == "softmax_row/stub")
    stub.source += "\n# old"
    again = place(nb, sample)
    assert len(list(rules.every_cell_was_run(again))) == 1
    assert list(rules.practice_problems(again, sample)) == []


def test_the_minutes_of_the_exercises_are_their_sum(nb, sample):
    minutes = sum(exercise.minutes for exercise in sample.exercises.values())
    said = f"**Time** 30 minutes, and {minutes} for the exercises."
    assert said in nb.cells[0].source
    nb.cells[0].source = nb.cells[0].source.replace(f"and {minutes}", "and\n99")
    assert any("not up to date" in problem for problem in rules.practice_problems(nb, sample))
    assert said.replace("and ", "and\n") in place(nb, sample).cells[0].source


def test_the_colab_cell_is_harmless_elsewhere(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("ran a command"))
    exec(COLAB, {})


def test_the_colab_cell_installs_without_torch_and_moves_to_the_book(monkeypatch, tmp_path):
    commands = []
    monkeypatch.setitem(sys.modules, "google.colab", object())
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attention-book/book").mkdir(parents=True)
    exec(COLAB.replace("/content", str(tmp_path)), {})
    assert commands == [[sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
                         str(tmp_path / "attention-book")]]
    assert Path.cwd() == tmp_path / "attention-book/book"
    assert sys.path[0] == str(Path.cwd())


# The normal form

def test_normalising_twice_is_normalising_once(nb):
    messy = copy.deepcopy(nb)
    messy.metadata.update(widgets={}, kernelspec={"name": "other", "display_name": "x"})
    messy.cells[4].update(execution_count=40, id="0a1b2c3d", source="x = 1  \n\n")
    messy.cells[4].outputs = [new_output("stream", name="stdout", text=t) for t in "ab"]
    messy.cells[5].outputs[1].metadata["needs_background"] = "light"
    once = normalise(messy)
    assert dumps(normalise(once)) == dumps(once)
    assert once.cells[4].source == "x = 1"
    assert [o.text for o in once.cells[4].outputs] == ["ab"]
    assert once.cells[4].id.startswith("code-")
    assert once.metadata == nb.metadata
    assert once.cells[5].outputs == nb.cells[5].outputs
    counts = [c.execution_count for c in once.cells if c.cell_type == "code"]
    assert counts == [None, *range(1, len(counts))]


def test_a_random_id_gives_way_to_one_that_hangs_on_the_text(nb):
    for random in ("0a1b2c3d", "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"):
        ids = []
        for _ in range(2):
            twice = copy.deepcopy(nb)
            twice.cells[0].id, twice.cells[1].id = random, f"{random[:-1]}0"
            twice.cells[1].source = twice.cells[0].source
            ids.append([cell.id for cell in normalise(twice).cells[:2]])
        assert ids[0] == ids[1]
        assert ids[0][1] == f"{ids[0][0]}-2"


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_picture_shrinks_once_and_looks_the_same(mode):
    ramp = np.linspace(0, 255, 211)[None, :, None] * np.ones((157, 1, 3))
    ramp[:, :, 0] = ramp[:, ::-1, 0]  # 211 colours in a ramp, and a line in a role's colour
    ramp[80:83] = (0, 90, 156)
    rng = np.random.default_rng(0)
    pixels = np.clip(ramp + rng.normal(0, 2, ramp.shape) * (ramp != ramp[81]), 0, 255)
    if mode == "RGBA":
        pixels = np.concatenate([pixels, np.full((157, 211, 1), 255.0)], axis=2)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG", dpi=(150, 150))
    encoded = base64.b64encode(file.getvalue()).decode()
    small = small_png(encoded)
    assert len(small) < 0.7 * len(encoded)
    assert small_png(small) == small
    image = Image.open(io.BytesIO(base64.b64decode(small)))
    assert round(image.info["dpi"][0]) == 150
    difference = np.abs(np.asarray(image.convert("RGB"), float) - pixels[..., :3])
    assert difference[80:83].max() == 0
    assert difference.mean() < 3


def test_a_transparent_picture_stays_transparent():
    pixels = np.random.default_rng(0).integers(0, 256, (37, 41, 4), dtype=np.uint8)
    pixels[:19, :, 3] = 0
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    small = Image.open(io.BytesIO(base64.b64decode(small_png(
        base64.b64encode(file.getvalue()).decode()))))
    assert np.asarray(small.convert("RGBA"))[:19, :, 3].max() == 0


# Running

@pytest.fixture
def book(nb, tmp_path):
    """Return a folder with the small chapter, not yet run, and its practice."""
    shutil.copytree(BOOK / "practice", tmp_path / "practice")
    shutil.copy(Path(__file__).parent / "data/sample_chapter.py", tmp_path / "practice")
    for cell in nb.cells[4:7]:
        cell.source = cell.source.replace("plt.", "len").replace("weights", "[2, 1]")
    nb.cells[5].source, nb.cells[6].source = "print(2, flush=True)\nprint(1)", "{1: 2}"
    notebooks.write(tmp_path / "sample-chapter.ipynb", nb)
    return tmp_path


def test_run_executes_all_but_the_colab_cell_and_repeats_its_bytes(book, capsys):
    path = book / "sample-chapter.ipynb"
    assert notebooks.main(["run", "--book", str(book)]) == 0
    first = path.read_bytes()
    assert notebooks.main(["run", "sample-chapter", "--book", str(book)]) == 0
    assert path.read_bytes() == first
    assert "as before" in capsys.readouterr().out
    nb = notebooks.read(path)
    assert nb.cells[3].execution_count is None
    assert nb.cells[5].outputs[0].text == "2\n1\n"
    assert nb.cells[6].outputs[0].data["text/plain"] == "{1: 2}"
    assert list(rules.every_cell_was_run(nb)) == []
    told = next(c for c in nb.cells if c.metadata.get("practice") == "softmax_row/check")
    assert "NOT WRITTEN YET" in told.outputs[0].text
    assert notebooks.main(["check", "--book", str(book)]) == 0


def test_the_verdicts_in_a_kernel(book, sample):
    nb = notebooks.read(book / "sample-chapter.ipynb")
    cells = {cell.metadata.get("practice"): cell for cell in nb.cells}
    cells["softmax_row/stub"].source = "def softmax_row(scores):\n    x = 1\n    return scores[7]"
    cells["score_deviation/stub"].source = solution(sample.exercises["score_deviation"])
    cells["CausalMask/stub"].source = "class CausalMask:\n    def dense(self, n):\n        ..."
    notebooks.execute(nb, book)
    said = [cells[f"{name}/check"].outputs[0].text for name in sample.exercises]
    assert said == [
        "Exercise 1 · softmax_row: not yet: your code raised IndexError: list index out of range, "
        "in line 3: return scores[7]\n",
        "Exercise 2 · score_deviation: correct (2 marks)\n",
        "Exercise 3 · CausalMask: not yet: the check could not use your answer "
        "(AttributeError: 'NoneType' object has no attribute 'dtype')\n"]


def test_a_chapter_that_fails_is_named_and_keeps_its_file(book, capsys):
    path = book / "sample-chapter.ipynb"
    nb = notebooks.read(path)
    nb.cells[5].source = "1 / 0"
    notebooks.write(path, nb)
    before = path.read_bytes()
    assert notebooks.main(["run", "--book", str(book)]) == 1
    assert path.read_bytes() == before
    out = capsys.readouterr().out
    assert "ZeroDivisionError" in out
    assert "not good: sample-chapter" in out


def test_check_names_a_chapter_that_is_not_up_to_date(book, nb, capsys):
    nb.cells[4].metadata["iopub"] = {"x": 1}
    notebooks.write(book / "sample-chapter.ipynb", nb)
    assert notebooks.main(["check", "--book", str(book)]) == 1
    assert "not good: sample-chapter" in capsys.readouterr().out
    assert notebooks.main(["practice", "--book", str(book)]) == 0
    assert notebooks.main(["check", "--book", str(book)]) == 0


# A reader's answers

@pytest.fixture
def shelf(book, nb):
    """Return a folder with two chapters, the first of them not in normal form."""
    shutil.copy(book / "practice/sample_chapter.py", book / "practice/a_chapter.py")
    first = copy.deepcopy(nb)
    first.cells[4].metadata["iopub"] = {"x": 1}
    notebooks.write(book / "a-chapter.ipynb", first)
    return book


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def part_of(nb, part):
    return next(cell for cell in nb.cells if cell.metadata.get("practice") == part)


def solve(path, exercise):
    """Write a solution into a chapter as JupyterLab saves it; return the text of the cell."""
    nb = notebooks.read(path)
    cell = part_of(nb, f"{exercise.name}/stub")
    cell.source = solution(exercise)
    path.write_text(nbformat.writes(nb, version=4), encoding="utf-8")
    return cell.source


@pytest.fixture
def a_chapter(monkeypatch, sample):
    """Let the practice of both chapters be the sample's."""
    monkeypatch.setattr(notebooks, "practice_of", lambda chapter: sample)


@pytest.mark.usefixtures("a_chapter")
@pytest.mark.parametrize("action", ["practice", "run", "normalise"])
def test_answers_under_the_chapters_own_name_are_never_overwritten(action, shelf, sample, capsys):
    path = shelf / "sample-chapter.ipynb"
    text = solve(path, sample.exercises["score_deviation"])
    before = contents(shelf)
    assert notebooks.main([action, "--book", str(shelf)]) == 1
    assert contents(shelf) == before  # nor is the other chapter, which has no answers, written
    said = capsys.readouterr().err
    number = next(i for i, cell in enumerate(notebooks.read(path).cells) if cell.source == text)
    assert f"sample-chapter.ipynb, cell {number} (score_deviation/stub): {text[:12]}" in said
    assert "a-chapter.ipynb" not in said
    for advice in ("book/my-sample-chapter.ipynb", "--discard-answers sample-chapter"):
        assert advice in said


@pytest.mark.parametrize("part", ["softmax_row/task", "softmax_row/stub", "softmax_row/check",
                                  "softmax_row/help", "marks/sum", "quiz/questions",
                                  "teachers/answers", "colab/setup"])
def test_a_note_in_any_generated_cell_is_an_answer(part, nb, sample):
    nb.cells.insert(9, nbformat.from_dict({"cell_type": "markdown", "metadata": {},
                                           "source": "[practice: marks]", "id": "place-marks"}))
    nb = normalise(place(nb, sample))
    assert list(edited(nb, sample)) == []
    part_of(nb, part).source += "\nmine"
    assert [cell.metadata.practice for _, cell in edited(nb, sample)] == [part]
    assert list(edited(normalise(nb), sample)) != []  # normalising does not make it generated


def test_white_space_is_no_answer_and_a_second_copy_of_a_cell_is_seen(nb, sample):
    stub = part_of(nb, "softmax_row/stub")
    stub.source = stub.source.replace("\n", "  \n") + "\n\n"
    assert list(edited(nb, sample)) == []
    nb.cells.append(copy.deepcopy(stub))
    nb.cells[-1].source = "mine"
    assert [number for number, _ in edited(nb, sample)] == [len(nb.cells) - 1]


@pytest.mark.usefixtures("a_chapter")
def test_what_an_earlier_version_generated_gives_way(shelf, sample):
    path = shelf / "sample-chapter.ipynb"
    sample.exercises["softmax_row"].statement = "Another text."
    assert notebooks.main(["practice", "--book", str(shelf)]) == 0
    assert "Another text." in part_of(notebooks.read(path), "softmax_row/task").source


def test_a_notebook_without_digests_may_hold_only_what_is_generated_now(nb, sample):
    for cell in nb.cells:
        cell.metadata.pop("generated", None)
    assert list(edited(nb, sample)) == []
    sample.exercises["softmax_row"].statement = "Another text."
    assert [cell.metadata.practice for _, cell in edited(nb, sample)] == ["softmax_row/task"]


@pytest.mark.usefixtures("a_chapter")
def test_answers_go_only_where_they_are_named(shelf, sample, capsys):
    for name in ("a-chapter", "sample-chapter"):
        solve(shelf / f"{name}.ipynb", sample.exercises["softmax_row"])
    before = contents(shelf)
    with pytest.raises(SystemExit):
        notebooks.main(["practice", "--discard-answers", "--book", str(shelf)])
    assert "needs the names" in capsys.readouterr().err
    assert contents(shelf) == before
    where = ["--book", str(shelf)]
    assert notebooks.main(["practice", "--discard-answers", "sample-chapter", *where]) == 0
    after = contents(shelf)
    assert {name for name in before if before[name] != after[name]} == {"sample-chapter.ipynb"}
    assert list(edited(notebooks.read(shelf / "sample-chapter.ipynb"), sample)) == []


@pytest.mark.usefixtures("a_chapter")
def test_a_notebook_under_another_name_is_nobodys_business(shelf, sample, capsys):
    shutil.copy(shelf / "sample-chapter.ipynb", shelf / "my-sample-chapter.ipynb")
    solve(shelf / "my-sample-chapter.ipynb", sample.exercises["softmax_row"])
    before = contents(shelf)
    assert notebooks.main(["practice", "--book", str(shelf)]) == 0
    assert contents(shelf)["my-sample-chapter.ipynb"] == before["my-sample-chapter.ipynb"]
    with pytest.raises(SystemExit):
        notebooks.main(["practice", "my-sample-chapter", "--book", str(shelf)])
    assert "no chapter is called my-sample-chapter" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["practice", "run"])
def test_a_file_that_was_saved_meanwhile_is_kept(action, book, sample, monkeypatch, capsys):
    path, make = book / "sample-chapter.ipynb", notebooks.with_practice

    def slow(path):
        nb = make(path)
        solve(path, sample.exercises["softmax_row"])
        return nb

    monkeypatch.setitem(notebooks.ACTIONS, action, (slow, notebooks.ACTIONS[action][1]))
    assert notebooks.main([action, "--book", str(book)]) == 1
    assert "somebody saved the file meanwhile" in capsys.readouterr().out
    assert [cell.metadata.practice for _, cell in edited(notebooks.read(path), sample)] == [
        "softmax_row/stub"]


def test_a_write_that_breaks_off_leaves_the_old_file_and_no_other(book, nb, monkeypatch):
    before = contents(book)

    def full(self, text, encoding):
        with self.open("w") as file:
            file.write(text[:9])
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    nb.cells[0].source = "# Other"
    with pytest.raises(OSError, match="no space"):
        notebooks.write(book / "sample-chapter.ipynb", nb)
    assert contents(book) == before
