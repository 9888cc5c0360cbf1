"""The one form of a chapter's exercises and quiz.

A chapter's practice is one file, `practice/<chapter>.py`. The notebook's cells (`cells.py`), the
verdict that the reader gets and the audit of both (`audit.py`) all come from it, so task, stub,
solution and answer key cannot drift apart. This file runs in every reader's kernel and needs no
more than NumPy.
"""

import inspect
import linecache
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from practice.compare import Wrong, require, require_close

__all__ = ["Choice", "Exercise", "Practice", "Question", "Verdict", "Wrong", "WrongAnswer",
           "choice", "require", "require_close"]


@dataclass(frozen=True)
class Choice:
    """One choice of a question, with the reason why it is right or wrong."""

    text: str
    reason: str
    right: bool


def choice(text, *, reason, right=False):
    """Return a choice: one line of plain text (√, ≤, `code`), and a reason in Markdown."""
    return Choice(text, inspect.cleandoc(reason), right)


@dataclass(frozen=True)
class Question:
    """A quiz question (Markdown) and its choices, exactly one of them right."""

    text: str
    choices: Sequence[Choice]


@dataclass(frozen=True)
class Verdict:
    """What a check found: kind is "right", "wrong", "error" or "unwritten"."""

    kind: str
    text: str


@dataclass(frozen=True)
class WrongAnswer:
    """A plausible mistake: the check must reject it with a diagnosis that contains `says`."""

    label: str
    says: str
    function: Callable


@dataclass
class Exercise:
    """One task: its text, its solution, its check, and the mistakes that the check must tell."""

    solution: Callable
    number: int
    title: str
    marks: int
    minutes: int
    statement: str
    hints: Sequence[str]
    notes: str
    checker: Callable | None = None
    wrong_answers: list[WrongAnswer] = field(default_factory=list)

    def __call__(self, *args, **kwargs):
        """Call the solution, so that checks may use it."""
        return self.solution(*args, **kwargs)

    @property
    def name(self):
        return self.solution.__name__

    @property
    def todo(self):
        """The message of the stub's NotImplementedError."""
        return f"Exercise {self.number}: write {self.name} here"

    def check(self, checker):
        """Decorate the function that takes the reader's answer and raises Wrong."""
        self.checker = checker
        return checker

    def wrong(self, label, *, says):
        """Decorate a plausible wrong answer; its diagnosis must contain `says`."""
        def add(function):
            self.wrong_answers.append(WrongAnswer(label, says, function))
            return function
        return add

    def judge(self, answer):
        """Return the Verdict on an answer: the reader's, the solution, or a wrong one."""
        try:
            with warnings.catch_warnings():
                # A verdict does not hang on whether warnings are shown, ignored or errors.
                warnings.simplefilter("ignore")
                self.checker(answer)
        except Wrong as wrong:
            return Verdict("wrong", str(wrong))
        except Exception as error:
            if isinstance(error, NotImplementedError) and str(error) == self.todo:
                return Verdict("unwritten", "\n  Write your code where `raise` stands, "
                               "run that cell, then this one.")
            return Verdict("error", _explain(error, answer))
        return Verdict("right", "1 mark" if self.marks == 1 else f"{self.marks} marks")


class Practice:
    """The exercises and the quiz of one chapter, and the reader's marks so far."""

    def __init__(self, chapter):
        self.chapter = chapter
        self.exercises = {}
        self.questions = []
        self.earned = {}

    def exercise(self, title, *, marks, minutes, statement, hints, notes=""):
        """Decorate a solution; the part between BEGIN and END SOLUTION is the reader's to write."""
        def add(solution):
            task = Exercise(solution, len(self.exercises) + 1, title, marks, minutes,
                            inspect.cleandoc(statement), [inspect.cleandoc(h) for h in hints],
                            inspect.cleandoc(notes))
            self.exercises[task.name] = task
            return task
        return add

    def quiz(self, *questions):
        """Set the questions of the chapter's quiz."""
        self.questions = list(questions)

    def check(self, answer):
        """Print the verdict on the reader's function of an exercise's name."""
        name = getattr(answer, "__name__", None)
        if name not in self.exercises:
            print(f"practice.check takes one of {', '.join(self.exercises)}; "
                  f"came {name or repr(answer)}: pass the function itself, under its own name")
            return
        task = self.exercises[name]
        verdict = task.judge(answer)
        self.earned[name] = task.marks if verdict.kind == "right" else 0
        print(f"Exercise {task.number} · {name}: {_SAY[verdict.kind].format(verdict.text)}")

    def marks(self):
        """Print the marks earned so far, exercise by exercise."""
        total = sum(task.marks for task in self.exercises.values())
        print(f"Marks: {sum(self.earned.values())} of {total}")
        for name, task in self.exercises.items():
            print(f"  Exercise {task.number} · {name}: {self.earned.get(name, 0)} of {task.marks}")


_SAY = {"right": "correct ({})", "wrong": "not yet: {}", "error": "not yet: {}",
        "unwritten": "NOT WRITTEN YET.{}"}


def _explain(error, answer):
    """Say what an exception was and in which line of the reader's code it came up."""
    what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    parts = (answer, *getattr(answer, "__dict__", {}).values())  # a class has its code in methods
    code = [getattr(part, "__code__", None) for part in parts]
    files = {part.co_filename for part in code if part}
    # The first two frames are judge and the checker; a checker may share a file with the answer.
    frames = [f for f in traceback.extract_tb(error.__traceback__)[2:] if f.filename in files]
    if not frames:
        return f"the check could not use your answer ({what})"
    line = linecache.getline(frames[-1].filename, frames[-1].lineno).strip()
    return f"your code raised {what}, in line {frames[-1].lineno}: {line}"
