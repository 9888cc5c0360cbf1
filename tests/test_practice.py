"""Every chapter's exercises and quiz hold; and the form that they share does what it says."""

import re
from pathlib import Path

import numpy as np
import pytest
from _tools.notebooks import read
from _tools.placing import practice_of
from _tools.rules import imports_cell
from practice.audit import audit, chapters
from practice.cells import answer_key, exercise_cells, generated, solution, stub, summary_html
from practice.form import Choice, Question, Wrong, choice, require, require_close

BOOK = Path(__file__).parents[1] / "book"
FILES = sorted(path.stem.replace("_", "-") for path in (BOOK / "practice").glob("*.py")
               if re.search(r"^practice = Practice\(", path.read_text(), re.M))
NOTEBOOKS = sorted(path.stem for path in BOOK.glob("*.ipynb"))
IMPORTS = "import math\nimport numpy as np"


# Every chapter

@pytest.mark.parametrize("chapter", sorted({*FILES, *NOTEBOOKS}))
def test_a_chapter_has_both_its_notebook_and_its_practice(chapter):
    assert chapter in FILES, f"no book/practice/{chapter.replace('-', '_')}.py"
    assert chapter in NOTEBOOKS, f"no book/{chapter}.ipynb"
    assert practice_of(chapter).chapter == chapter


@pytest.mark.parametrize("chapter", FILES)
def test_solutions_pass_and_wrong_answers_do_not(chapter, monkeypatch):
    monkeypatch.chdir(BOOK)  # as the kernel does
    path = BOOK / f"{chapter}.ipynb"
    imports = imports_cell(read(path), chapter) if path.exists() else None
    assert audit(practice_of(chapter), imports).problems == []


def test_the_command_finds_every_practice_file():
    assert sorted(chapters()) == FILES


# The audit sees what is wrong: one broken thing each, on the sample chapter

def test_the_sample_holds_and_is_counted(sample):
    found = audit(sample, IMPORTS)
    assert found.problems == []
    assert found.counts == {"exercises": 3, "marks": 6, "solutions": 3, "wrong answers": 6,
                            "questions": 5}


def always_true(practice):
    practice.exercises["softmax_row"].checker = lambda answer: None


def never_true(practice):
    practice.exercises["softmax_row"].checker = lambda answer: require(False, "no")


def swallows_the_stub(practice):
    task = practice.exercises["softmax_row"]
    checker = task.checker

    def greedy(answer):
        try:
            checker(answer)
        except NotImplementedError:
            raise Wrong("something is wrong") from None
    task.checker = greedy


def field(name, value):
    return lambda practice: setattr(practice.exercises["softmax_row"], name, value)


def one_wrong_answer(practice):
    practice.exercises["softmax_row"].wrong_answers.pop()


def other_diagnosis(practice):
    task = practice.exercises["softmax_row"]
    task.wrong("zeros", says="you forgot the exponential")(lambda scores: [0.0] * len(scores))


def right_as_wrong(practice):
    task = practice.exercises["softmax_row"]
    task.wrong("no mistake at all", says="")(task.solution)


def question(*choices):
    return lambda practice: practice.questions.__setitem__(2, Question("What?", choices))


RIGHT, FALSE, OTHER = (choice("yes", reason="so", right=True), choice("no", reason="not so"),
                       choice("maybe", reason="unclear"))
BROKEN = [
    (always_true, "was to be told 'overflow'; the check says right"),
    (always_true, "returns nothing passes"),
    (never_true, "the solution does not pass: no"),
    (swallows_the_stub, "should be unwritten; it is wrong"),
    (field("checker", None), "has no check"),
    (field("marks", 4), "marks must be"),
    (field("minutes", 0), "minutes must be"),
    (field("hints", ["one"]), "fewer than two hints"),
    (field("hints", ["one", ""]), "empty text"),
    (field("notes", "# Title"), "heading"),
    (one_wrong_answer, "fewer than two wrong answers"),
    (other_diagnosis, "'you forgot the exponential'"),
    (right_as_wrong, "the check says right"),
    (lambda practice: practice.exercises.popitem(), "fewer than three exercises"),
    (lambda practice: practice.questions.pop(), "4 questions, not five"),
    (question(FALSE, OTHER, choice("so", reason="x")), "0 choices are right"),
    (question(RIGHT, OTHER, choice("also", reason="x", right=True)), "2 choices are right"),
    (question(RIGHT, FALSE), "three to five choices"),
    (question(RIGHT, FALSE, FALSE), "two choices are the same"),
    (question(RIGHT, FALSE, choice("maybe", reason="")), "has no reason"),
    (question(RIGHT, FALSE, choice("$x$", reason="x")), "plain text"),
]


@pytest.mark.parametrize(("break_it", "says"), BROKEN, ids=[says for _, says in BROKEN])
def test_the_audit_finds(break_it, says, sample):
    break_it(sample)
    assert any(says in problem for problem in audit(sample, IMPORTS).problems)


def test_the_audit_finds_a_name_that_the_notebook_lacks(sample):
    problems = audit(sample, "import numpy as np").problems
    assert len(problems) == 2  # two solutions use math
    assert all("NameError: name 'math' is not defined" in problem for problem in problems)


def test_the_audit_finds_what_gives_the_quiz_away(sample):
    sample.questions[:] = [Question("What?", [choice("the long one", reason="x", right=True),
                                              FALSE, OTHER])] * 5
    problems = audit(sample, IMPORTS).problems
    assert any("longest in 5" in problem for problem in problems)
    assert any("always the same letter" in problem for problem in problems)


# What the reader sees

def said(sample, capsys, answer, name="softmax_row"):
    answer.__name__ = name
    sample.check(answer)
    return capsys.readouterr().out


def test_a_right_answer_is_told_its_marks(sample, capsys):
    assert said(sample, capsys, lambda s: list(np.exp(s - np.max(s)) / np.exp(s - np.max(s)).sum())
                ) == "Exercise 1 · softmax_row: correct (1 mark)\n"


def test_a_forgotten_stub_is_loud_and_no_traceback(sample, capsys):
    namespace = {}
    exec(stub(sample.exercises["softmax_row"]), namespace)
    sample.check(namespace["softmax_row"])
    assert capsys.readouterr().out == (
        "Exercise 1 · softmax_row: NOT WRITTEN YET.\n"
        "  Write your code where `raise` stands, run that cell, then this one.\n")


def test_another_not_implemented_error_is_an_error(sample, capsys):
    def answer(scores):
        raise NotImplementedError("later")
    assert "raised NotImplementedError: later" in said(sample, capsys, answer)


def test_an_exception_is_told_with_its_line(sample, capsys):
    def answer(scores):
        weights = np.zeros(2)
        return weights[len(scores)]
    text = said(sample, capsys, answer)
    assert "not yet: your code raised IndexError: index 2 is out of bounds" in text
    assert text.endswith(": return weights[len(scores)]\n")


def test_an_exception_of_a_class_is_told_with_its_line(sample, capsys):
    class Answer:
        def dense(self, length):
            return {}["mask"]
    assert 'raised KeyError: \'mask\', in line' in said(sample, capsys, Answer, "CausalMask")


def test_an_answer_that_the_check_cannot_call_is_told_so(sample, capsys):
    text = said(sample, capsys, lambda: 1)
    assert "the check could not use your answer (TypeError" in text


def test_warnings_do_not_change_a_verdict(sample, capsys):
    text = said(sample, capsys, lambda s: list(np.exp(s) / np.exp(s).sum()))
    assert text.endswith("softmax_row([1000, 1000]) at [0] is nan, expected 0.5\n")


@pytest.mark.parametrize(("answer", "came"), [(print, "print"), ([0.5], "[0.5]")])
def test_anything_else_is_told_what_to_pass(answer, came, sample, capsys):
    sample.check(answer)
    assert f"came {came}: pass the function itself" in capsys.readouterr().out


def test_marks_are_those_of_the_last_answer(sample, capsys):
    task = sample.exercises["CausalMask"]
    sample.check(task.solution)
    capsys.readouterr()
    sample.marks()
    assert capsys.readouterr().out == (
        "Marks: 3 of 6\n  Exercise 1 · softmax_row: 0 of 1\n"
        "  Exercise 2 · score_deviation: 0 of 2\n  Exercise 3 · CausalMask: 3 of 3\n")
    said(sample, capsys, type("CausalMask", (), {}), "CausalMask")
    sample.marks()
    assert capsys.readouterr().out.startswith("Marks: 0 of 6\n")


# Comparisons

@pytest.mark.parametrize(("got", "want", "says"), [
    (None, 1.0, "is None: is a `return` missing"),
    ("text", 1.0, "should be numbers, came str: 'text'"),
    ([[1.0], [2.0, 3.0]], 1.0, "should be numbers, came list"),
    ([1.0, 2.0], [1.0, 2.0, 3.0], "has shape (2,), expected (3,)"),
    ([[1.0, 2.0], [3.0, 5.0]], [[1.0, 2.0], [3.0, 4.0]], "at [1, 1] is 5, expected 4"),
    (float("nan"), 0.5, "the result is nan, expected 0.5"),
    (2.0, 0.5, "twice"),
])
def test_a_difference_is_told(got, want, says):
    with pytest.raises(Wrong, match=re.escape(says)):
        require_close(got, want, slips=[(2.0, "twice as large as it should be: twice")])


def test_equal_values_pass_in_every_form():
    torch = pytest.importorskip("torch")
    require_close([[1, 2]], np.array([[1.0, 2.0 + 1e-7]]))
    require_close(torch.tensor([1.5, 2.0], requires_grad=True).bfloat16(), [1.5, 2.0])
    require_close(np.array([float("-inf"), float("nan")]), [float("-inf"), float("nan")])


# The cells

def test_the_stub_is_the_solution_without_its_marked_part(sample):
    task = sample.exercises["CausalMask"]
    assert stub(task) == (
        'class CausalMask:\n    """A mask that hides the future."""\n\n'
        "    def dense(self, length):\n"
        '        """Return the (length, length) boolean mask."""\n'
        '        raise NotImplementedError("Exercise 3: write CausalMask here")')
    assert solution(task).endswith(
        "        positions = np.arange(length)\n        return positions[:, None] >= positions")
    assert "###" not in solution(task)


def test_hints_open_one_by_one_and_the_solution_is_folded(sample):
    text = exercise_cells(sample.exercises["softmax_row"])[3].source
    tags = re.findall(r"</?details[^>]*>|<summary>[^<]*</summary>", text)
    assert tags == [
        '<details class="hint">', "<summary>Hint 1 of 2</summary>",
        '<details class="hint">', "<summary>Hint 2 of 2</summary>", "</details>", "</details>",
        '<details class="solution">', "<summary>Solution of exercise 1</summary>", "</details>"]
    assert "e^{-m}" in text


def test_every_choice_looks_alike_until_it_is_opened(sample):
    text = generated(sample)["quiz"][0].source
    choices = re.findall(r"(<details[^>]*>)\n<summary>[A-C]\. [^\n]*</summary>\n\n(\*\*.*?\*\*)",
                         text)
    assert len(choices) == 15
    assert {opening for opening, _ in choices} == {'<details class="choice">'}
    assert [said for _, said in choices].count("**✓ Right.**") == 5
    assert [said for _, said in choices].count("**✗ Not quite.**") == 10


def test_teachers_get_the_key_and_what_each_wrong_answer_is_told(sample):
    text = generated(sample)["teachers"][0].source
    assert answer_key(sample) == ["B", "A", "B", "B", "A"]
    assert text.count("\n| ") == 1 + 6
    assert "| gives the variance | that is the variance; its square root is asked for |" in text
    assert "Quiz: 1 B, 2 A, 3 B, 4 B, 5 A." in text


def test_a_summary_is_html_safe():
    assert summary_html("a < b & `x < y`") == "a &lt; b &amp; <code>x &lt; y</code>"


def test_a_choice_is_wrong_unless_it_is_said_to_be_right():
    assert choice("a", reason="  b\n") == Choice("a", "b", False)
