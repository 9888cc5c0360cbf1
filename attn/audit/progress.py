"""How far the calls are, for whoever waits.

Nothing is printed into a notebook or a file: unless a callable is given, only a terminal that has
waited some seconds is told, on stderr.
"""

import sys
import time

PATIENCE = 3  # seconds without a word


class Progress:
    """Counts calls; `plan(more)` says how many will follow, before they are made.

    `report(done, planned)` is called then and after each call. What is planned may shrink or grow:
    a leak costs a few more calls to name, and copies that go into one call save many.
    """

    def __init__(self, report=None):
        if report is not None and not callable(report):
            raise TypeError(f"progress: expected a callable (done, planned), got {report!r}")
        self.calls = self.planned = 0
        self.start, self.shown = time.monotonic(), False
        self.report = report or (self._terminal if sys.stderr.isatty() else None)

    def plan(self, more):
        self.planned = self.calls + more
        self._tell()

    def call(self):
        self.calls += 1
        self.planned = max(self.planned, self.calls)
        if self.planned > self.calls:
            self._tell()

    def end(self):
        self.planned = self.calls
        self._tell()
        if self.shown:
            print(file=sys.stderr)

    def _tell(self):
        if self.report is not None and self.planned:
            self.report(self.calls, self.planned)

    def _terminal(self, done, planned):
        passed = time.monotonic() - self.start
        if self.shown or (done and passed * planned / done > PATIENCE):
            left = passed * (planned - done) / done
            print(f"\r{done} of {planned} calls, about {left:.0f} s left ", end="",
                  file=sys.stderr, flush=True)  # fmt: skip
            self.shown = True
