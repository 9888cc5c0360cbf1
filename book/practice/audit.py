"""Does a chapter's practice hold? Each solution and each wrong answer runs against its check."""

import importlib
import pkgutil
from collections import Counter
from dataclasses import dataclass, field

import practice as package
from practice.cells import answer_key, solution, source, stub
from practice.form import Practice


@dataclass
class Audit:
    """What was run, and what is wrong."""

    counts: Counter = field(default_factory=Counter)
    problems: list = field(default_factory=list)

    def expect(self, condition, problem):
        """Note the problem unless the condition holds."""
        if not condition:
            self.problems.append(problem)


def chapters():
    """Return every Practice of this package, by the name of its chapter."""
    modules = [importlib.import_module(f"practice.{info.name}")
               for info in pkgutil.iter_modules(package.__path__) if info.name != "__main__"]
    return {name_of(module): module.practice for module in modules
            if isinstance(getattr(module, "practice", None), Practice)}


def name_of(module):
    """Return the chapter of a module: practice.worked_example is worked-example."""
    return module.__name__.rpartition(".")[2].replace("_", "-")


def audit(practice, imports=None):
    """Audit one chapter; `imports` is the source of its notebook's imports cell, if there is one.

    With `imports`, stub and solution also run as the notebook has them: from their text alone, in
    a namespace that holds only what that cell defines.
    """
    found = Audit()
    found.expect(len(practice.exercises) >= 3, "fewer than three exercises")
    for task in practice.exercises.values():
        _audit_text(found, task)
        _audit_answers(found, task)
        if imports is not None:
            _audit_as_cells(found, task, imports)
    _audit_quiz(found, practice)
    return found


def _audit_text(found, task):
    found.counts["exercises"] += 1
    found.counts["marks"] += task.marks
    say = f"exercise {task.number} ({task.name}): "
    found.expect(task.marks in (1, 2, 3), say + "marks must be 1, 2 or 3")
    found.expect(1 <= task.minutes <= 60, say + "minutes must be 1 to 60")
    found.expect(len(task.hints) >= 2, say + "fewer than two hints")
    found.expect(task.title and task.statement and all(task.hints), say + "empty text")
    found.expect(stub(task) + "\n" != source(task), say + "no part is marked as the solution")
    found.expect(task.solution.__doc__, say + "the function has no docstring")
    for text in (task.statement, *task.hints, task.notes):
        found.expect(not any(line.startswith("#") for line in text.splitlines()),
                     say + "a heading in its text would break the chapter's outline")


def _audit_answers(found, task):
    say = f"exercise {task.number} ({task.name}): "
    if task.checker is None:
        found.problems.append(say + "has no check")
        return
    verdict = task.judge(task.solution)
    found.expect(verdict.kind == "right", say + f"the solution does not pass: {verdict.text}")
    found.counts["solutions"] += verdict.kind == "right"
    found.expect(len(task.wrong_answers) >= 2, say + "fewer than two wrong answers")
    for wrong in task.wrong_answers:
        verdict = task.judge(wrong.function)
        rejected = verdict.kind in ("wrong", "error") and wrong.says in verdict.text
        found.expect(rejected, say + f"wrong answer {wrong.label!r} was to be told "
                     f"{wrong.says!r}; the check says {verdict.kind}: {verdict.text}")
        found.counts["wrong answers"] += rejected
    for nothing in (lambda *args, **kwargs: None, lambda: None):
        found.expect(task.judge(nothing).kind in ("wrong", "error"),
                     say + "a function that returns nothing passes its check")


def _audit_as_cells(found, task, imports):
    say = f"exercise {task.number} ({task.name}): "
    for text, wanted in ((stub(task), "unwritten"), (solution(task), "right")):
        namespace = {"__name__": "notebook"}
        exec(imports, namespace)
        exec(text, namespace)
        verdict = task.judge(namespace[task.name])
        found.expect(verdict.kind == wanted, say + f"in the notebook it should be {wanted}; "
                     f"it is {verdict.kind}: {verdict.text}")


def _audit_quiz(found, practice):
    questions = practice.questions
    found.expect(len(questions) == 5, f"the quiz has {len(questions)} questions, not five")
    longest = 0
    for number, question in enumerate(questions, 1):
        found.counts["questions"] += 1
        say, right = f"question {number}: ", [c for c in question.choices if c.right]
        found.expect(3 <= len(question.choices) <= 5, say + "three to five choices, please")
        found.expect(len(right) == 1, say + f"{len(right)} choices are right, not one")
        found.expect(all(c.reason for c in question.choices), say + "a choice has no reason")
        texts = [c.text for c in question.choices]
        found.expect(len(set(texts)) == len(texts), say + "two choices are the same")
        found.expect(not any("$" in t or "\n" in t for t in texts),
                     say + "a choice is one line of plain text (√, ≤, `code`), without $maths$")
        longest += all(len(right[0].text) > len(c.text) for c in question.choices
                       if not c.right) if right else 0
    found.expect(longest <= 3, f"the right choice is the longest in {longest} of the questions")
    found.expect(len(set(answer_key(practice))) > 1, "the right choice is always the same letter")
