"""`python -m practice`, in book/: audit every chapter's exercises and quiz, print the counts."""

import sys
from collections import Counter

from practice.audit import audit, chapters


def main():
    """Print one line a chapter and the sum; return the exit status."""
    total, problems = Counter(), 0
    for name, practice in chapters().items():
        found = audit(practice)
        print(f"{name}: {line(found.counts)}")
        for problem in found.problems:
            print(f"  {problem}")
        total, problems = total + found.counts, problems + len(found.problems)
    print(f"all: {line(total)}; {problems} problems")
    return 1 if problems else 0


def line(counts):
    """Return the counts in words."""
    return (f"{counts['exercises']} exercises ({counts['marks']} marks), "
            f"{counts['solutions']} solutions pass, "
            f"{counts['wrong answers']} wrong answers rejected, {counts['questions']} questions")


sys.exit(main())
