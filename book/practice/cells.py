"""A chapter's practice as notebook cells: Markdown and HTML that read alike in JupyterLab, Colab
and the book. Nothing here is needed in a reader's kernel."""

import ast
import html
import inspect
import re

from nbformat.v4 import new_code_cell, new_markdown_cell

SOLUTION = re.compile(r"^( *)### BEGIN SOLUTION\n.*?^ *### END SOLUTION *\n", re.M | re.S)
MARKER = re.compile(r"^ *### (BEGIN|END) SOLUTION *\n", re.M)


def source(exercise):
    """Return the code below the decorators, markers included."""
    text = inspect.getsource(exercise.solution)
    first = ast.parse(text).body[0].lineno  # the line of `def` or `class`
    return "\n".join(text.splitlines()[first - 1:]) + "\n"


def stub(exercise):
    """Return what the reader starts from: each marked part gives way to a loud error."""
    raise_line = rf'\1raise NotImplementedError("{exercise.todo}")\n'
    return SOLUTION.sub(raise_line, source(exercise)).rstrip()


def solution(exercise):
    """Return the whole solution without the markers."""
    return MARKER.sub("", source(exercise)).rstrip()


def exercise_cells(exercise):
    """Return the four cells of an exercise: task, stub, check, help."""
    return [
        _cell(new_markdown_cell, exercise.name, "task", _task(exercise)),
        _cell(new_code_cell, exercise.name, "stub", stub(exercise)),
        _cell(new_code_cell, exercise.name, "check", f"practice.check({exercise.name})"),
        _cell(new_markdown_cell, exercise.name, "help", _help(exercise)),
    ]


def generated(practice):
    """Return every group of generated cells by its name in `[practice: name]`."""
    groups = {name: exercise_cells(task) for name, task in practice.exercises.items()}
    groups["marks"] = [_cell(new_code_cell, "marks", "sum", "practice.marks()")]
    groups["quiz"] = [_cell(new_markdown_cell, "quiz", "questions", _quiz(practice.questions))]
    groups["teachers"] = [_cell(new_markdown_cell, "teachers", "answers", _teachers(practice))]
    return groups


def fold(css_class, summary, body):
    """Return a <details>; its body is Markdown, so blank lines keep it apart from the tags."""
    return (f'<details class="{css_class}">\n<summary>{summary}</summary>\n\n'
            f"{body.strip()}\n\n</details>")


def _cell(new, group, part, text):
    cell_id = f"practice-{group}-{part}".replace("_", "-")[:64]
    return new(text, id=cell_id, metadata={"practice": f"{group}/{part}"})


def _task(exercise):
    return (f"### Exercise {exercise.number} · {exercise.title}\n\n"
            f"*{_marks(exercise)}*\n\n{exercise.statement}")


def _marks(exercise):
    marks = "1 mark" if exercise.marks == 1 else f"{exercise.marks} marks"
    return f"{marks} · {exercise.minutes} minutes"


def _help(exercise):
    """Fold the hints one inside the other, so that they open one by one, then the solution."""
    hints, total = "", len(exercise.hints)
    for number in range(total, 0, -1):
        body = f"{exercise.hints[number - 1]}\n\n{hints}"
        hints = fold("hint", f"Hint {number} of {total}", body)
    code = f"```python\n{solution(exercise)}\n```\n\n{exercise.notes}"
    return f"{hints}\n\n{fold('solution', f'Solution of exercise {exercise.number}', code)}"


def _quiz(questions):
    return "\n\n".join(_question(n, question) for n, question in enumerate(questions, 1))


def _question(number, question):
    choices = [fold("choice", f"{letter}. {summary_html(choice.text)}",
                    f"**{'✓ Right.' if choice.right else '✗ Not quite.'}** {choice.reason}")
               for letter, choice in zip("ABCDEFGH", question.choices, strict=False)]
    body = "\n\n".join([f"**Question {number}.** {question.text}", *choices])
    return (f'<div class="question" role="group" aria-label="Question {number}">\n\n'
            f"{body}\n\n</div>")


def summary_html(text):
    """Escape plain text for a <summary>, where Markdown is not read; backticks become <code>."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


def _teachers(practice):
    """Fold the answer key and what each common wrong answer is told, found by running it."""
    rows = ["| exercise | common wrong answer | what the check says |", "|---|---|---|"]
    for task in practice.exercises.values():
        for i, wrong in enumerate(task.wrong_answers):
            worth = f"{task.number} · {_marks(task)}" if i == 0 else str(task.number)
            cells = [worth, wrong.label, task.judge(wrong.function).text]
            rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    key = ", ".join(f"{n} {letter}" for n, letter in enumerate(answer_key(practice), 1))
    return fold("teachers", "Common wrong answers, and the answers of the quiz",
                "\n".join(rows) + f"\n\nQuiz: {key}.")


def answer_key(practice):
    """Return the letter of each question's right choice."""
    return ["".join(letter for letter, choice in zip("ABCDEFGH", question.choices, strict=False)
                    if choice.right) for question in practice.questions]
