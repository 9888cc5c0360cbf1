"""Faults that could be planted in a file: each changes one span of its text, and no line moves.

Only code is changed: not docstrings, annotations, the text of errors, imports. Imports nothing from
the package; `faults` finds all, `sample` draws some of each kind and file by a seed.
"""

import ast
import io
import random
import re
import tokenize
from typing import NamedTuple

SWAPS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
PAIRS = {"min": "max", "minimum": "maximum", "amin": "amax", "any": "all"}
PAIRS |= {second: first for first, second in PAIRS.items()}
LAYOUT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENDMARKER,
}  # fmt: skip
AXES = ("axis", "dim", "axes", "dims")
COMMUTE = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)  # swapped sides change nothing


class Fault(NamedTuple):
    """One change of one file: bytes `start` to `end` of its source become `new`."""

    file: str  # from the root of the repository, with slashes
    line: int
    kind: str
    start: int
    end: int
    new: str
    was: str  # the lines that change, each without its indentation
    becomes: str
    reach: tuple  # first and last line of the statement: a test that ran one of them met the fault
    on_import: bool  # the statement runs when the module is loaded, not when a function is called

    def planted(self, source):
        """The source with this fault in it."""
        data = source.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


def faults(file, source):
    """Return every fault that can be planted, in the order of the text."""
    return sorted(Finder(file, source).found, key=lambda fault: (fault.start, fault.end, fault.new))


def sample(found, weights, count, seed):
    """Draw `count` faults: from each file in proportion to its weight, from each kind in turn."""
    shares = {file: count * weight / sum(weights.values()) for file, weight in weights.items()}
    quota = {file: int(share) for file, share in shares.items()}
    by_remainder = sorted(shares, key=lambda file: (quota[file] - shares[file], file))
    for file in by_remainder[: count - sum(quota.values())]:
        quota[file] += 1
    drawn = []
    for file in sorted(weights):
        draw = random.Random(f"{seed} {file}")
        kinds = {}
        for fault in found[file]:
            kinds.setdefault(fault.kind, []).append(fault)
        for faults_of_kind in kinds.values():
            draw.shuffle(faults_of_kind)
        mine = []
        while len(mine) < quota[file] and kinds:
            for kind in draw.sample(sorted(kinds), len(kinds)):
                mine.append(kinds[kind].pop())
                if not kinds[kind]:
                    del kinds[kind]
        drawn += sorted(mine[: quota[file]])
    return drawn


def code_lines(source):
    """The numbers of the lines that hold code: no comments, blanks and docstrings."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in docstrings(ast.parse(source)):
        lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return lines


def docstrings(tree):
    """The statements that are a docstring."""
    homes = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, homes) and ast.get_docstring(node, clean=False) is not None:
            yield node.body[0]


class Finder(ast.NodeVisitor):
    """Walks a file and writes down what could be changed in it."""

    def __init__(self, file, source):
        self.file, self.source = file, source.encode()
        self.starts = [0]
        for line in self.source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found, self.functions, self.statement, self.axis = [], 0, None, False
        tree = ast.parse(source)
        self.skipped = {id(node) for node in docstrings(tree)}
        self.visit(tree)

    # --- Places in the text -----------------------------------------------------------------------

    def begin(self, node):
        return self.starts[node.lineno - 1] + node.col_offset

    def close(self, node):
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node):
        return self.source[self.begin(node) : self.close(node)].decode()

    def between(self, left, right, words):
        """Where the operator stands between two nodes, whatever brackets and comments are there."""
        start, end = self.close(left), self.begin(right)
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.source[start:end])
        match = re.search(rb"\s+".join(re.escape(word).encode() for word in words.split()), gap)
        return start + match.start(), start + match.end()

    def add(self, kind, start, end, new):
        """Write down a fault; lines that the old text had and the new one lacks stay as breaks."""
        new += "\n" * (self.source[start:end].count(b"\n") - new.count("\n"))
        first = self.source.rfind(b"\n", 0, start) + 1
        last = self.source.find(b"\n", end)
        edited = self.source[first:start] + new.encode() + self.source[end:last]
        was, becomes = (
            "\n".join(line.strip() for line in lines.decode().splitlines())
            for lines in (self.source[first:last], edited)
        )
        line = self.source.count(b"\n", 0, start) + 1
        where, on_import = self.statement
        self.found.append(
            Fault(self.file, line, kind, start, end, new, was, becomes, where, on_import)
        )

    def swap(self, kind, first, second):
        """Two stretches of text change places."""
        if self.text(first) == self.text(second):
            return
        middle = self.source[self.close(first) : self.begin(second)].decode()
        new = self.text(second) + middle + self.text(first)
        self.add(kind, self.begin(first), self.close(second), new)

    def operator(self, kind, left, operator, right, suffix=""):
        old, new = SWAPS[type(operator)]
        start, end = self.between(left, right, old + suffix)
        self.add(kind, start, end, new + suffix)

    # --- What is walked ---------------------------------------------------------------------------

    def visit(self, node):
        if id(node) in self.skipped:
            return
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            outer, self.statement = self.statement, None
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            self.statement = (first, max(last, node.lineno)), self.functions == 0
            super().visit(node)
            self.statement = outer
        else:
            super().visit(node)

    def visit_FunctionDef(self, node):
        for part in [*node.decorator_list, node.args]:
            self.visit(part)
        self.functions += 1
        for part in node.body:
            self.visit(part)
        self.functions -= 1

    def visit_arg(self, node):
        """An annotation is no code."""

    def visit_AnnAssign(self, node):
        if node.value is not None:
            self.visit(node.value)

    def visit_Import(self, node):
        """Nothing to change."""

    visit_ImportFrom = visit_JoinedStr = visit_Import

    # --- Kinds ------------------------------------------------------------------------------------

    def visit_Raise(self, node):
        self.add("guard removed", self.begin(node), self.close(node), "pass")

    def visit_Expr(self, node):
        if isinstance(node.value, ast.Call):
            self.add("call removed", self.begin(node), self.close(node), "pass")
        self.generic_visit(node)

    def visit_Compare(self, node):
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            self.operator("comparison", left, operator, right)
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.operator("and, or", left, node.op, right)
        self.generic_visit(node)

    def visit_BinOp(self, node):
        text = (ast.JoinedStr, ast.Constant)
        words = [isinstance(x, text) and not is_number(x) for x in (node.left, node.right)]
        if type(node.op) in SWAPS and not any(words):
            self.operator("arithmetic", node.left, node.op, node.right)
        self.generic_visit(node)

    def visit_AugAssign(self, node):
        if type(node.op) in SWAPS:
            self.operator("arithmetic", node.target, node.op, node.value, suffix="=")
        self.generic_visit(node)

    def visit_UnaryOp(self, node):
        word = {ast.Not: rb"not *", ast.USub: rb"-", ast.Invert: rb"~"}.get(type(node.op))
        if word:
            start = self.begin(node)
            end = re.compile(word).match(self.source, start).end()
            self.add("sign or not removed", start, end, "")
        self.generic_visit(node)

    def visit_Constant(self, node):
        start, end, value = self.begin(node), self.close(node), node.value
        if isinstance(value, bool):
            self.add("True, False", start, end, str(not value))
        elif is_number(node):
            for other in {value + 1, value - 1} - {value}:  # 1e38 + 1 is 1e38
                self.add("axis" if self.axis else "constant", start, end, repr(other))

    def visit_IfExp(self, node):
        self.swap("swapped", node.body, node.orelse)
        self.generic_visit(node)

    def visit_Return(self, node):
        value = node.value
        if isinstance(value, ast.Tuple) and len(value.elts) > 1:
            self.swap("swapped", *value.elts[:2])
        if isinstance(value, ast.BinOp) and not isinstance(value.op, COMMUTE):
            self.swap("swapped", value.left, value.right)
        self.generic_visit(node)

    def visit_Slice(self, node):
        for edge in (node.lower, node.upper):
            if edge is not None and not is_number(edge):
                for change in ("+ 1", "- 1"):
                    new = f"({self.text(edge)}) {change}"
                    self.add("slice end", self.begin(edge), self.close(edge), new)
        self.generic_visit(node)

    def visit_Call(self, node):
        function = node.func
        name = getattr(function, "id", getattr(function, "attr", None))
        if name in PAIRS:
            end = self.close(function)
            self.add("min, max, any, all", end - len(name), end, PAIRS[name])
        if name in ("min", "max", "minimum", "maximum") and len(node.args) == 2:
            self.swap("swapped", *node.args)
        if name == "where" and len(node.args) == 3:
            self.swap("swapped", *node.args[1:])
        for keyword in node.keywords:
            if keyword.arg is not None:
                self.dropped(keyword)
        self.visit(function)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            self.axis = keyword.arg in AXES
            self.visit(keyword.value)
            self.axis = False

    def dropped(self, keyword):
        """A keyword argument goes, and the comma after it or before it."""
        start, end = self.begin(keyword), self.close(keyword)
        after = re.match(rb"\s*,[ ]*", self.source[end:])
        before = re.search(rb",\s*$", self.source[:start])
        if after:
            end += after.end()
        elif before:
            start = before.start()
        self.add("argument dropped", start, end, "")


def is_number(node):
    """A number as it stands in the text, with or without a minus."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    value = getattr(node, "value", None)
    return isinstance(node, ast.Constant) and type(value) in (int, float)
