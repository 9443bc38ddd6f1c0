"""Small faults to plant in a module: a changed operator, number, condition, argument, slice or statement.

Left out is what no test should notice: docstrings, annotations, decorators, texts of errors and of the log,
imports for the type checker, ``__repr__``, and options that change no result.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"), ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"), ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
    ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
OPPOSITES = {
    "min": "max",
    "minimum": "maximum",
    "amin": "amax",
    "floor": "ceil",
    "any": "all",
    "argmin": "argmax",
}
OPPOSITES |= {new: old for old, new in OPPOSITES.items()}
WRAPPERS = {"abs", "reversed", "round", "set", "sorted"}  # f(x) becomes x
IDLE = {"buffering", "copy", "daemon", "device", "encoding", "errors", "flush", "indent", "maxsize", "name",
        "newline", "non_blocking", "stacklevel", "strict", "timeout"}  # fmt: skip
IDLE_CONSTANT = re.compile("BUFFER|CACHE|CHUNK|POLL|TIMEOUT|^__")  # sizes and waits that change no result
NO_RESULT = re.compile(r"_?log(ger)?\.\w+|warnings\.warn|cast|TypeVar|.*(Error|Warning)", re.IGNORECASE)
NO_NUMBER = re.compile(r"""['"\[]|f['"]|(None|int|str|float)$|[\w.]*\b[A-Z][a-z]\w*$""")
TINY = 1e-6  # a smaller number guards against rounding

# operator, first and last part, new text or a swap between the parts
Change = tuple[str, ast.AST, ast.AST, str | tuple[str, str]]


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes ``start`` to ``end`` of ``file`` become ``new``."""

    file: str
    line: int
    statement: int  # the first line of the statement; 0 outside of functions
    operator: str
    start: int
    end: int
    new: str
    name: str  # of file, function and change, not of the line: it survives edits elsewhere

    def apply(self, source: bytes) -> bytes:
        """The source of the file with the change."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def is_another_program(self, source: bytes) -> bool:
        """The changed source is Python, and differs in more than its spelling."""
        try:
            return ast.dump(ast.parse(self.apply(source))) != ast.dump(ast.parse(source))
        except SyntaxError:
            return False


def changes(node: ast.AST) -> Iterator[Change]:
    """The changes that fit a node."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            for before, op, after in zip([left, *others], ops, others, strict=False):
                yield "comparison", before, after, SWAPS[type(op)]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS:
            if not any(NO_NUMBER.match(ast.unparse(side)) for side in (left, right)):
                yield "arithmetic", left, right, SWAPS[type(op)]
        case ast.BoolOp(op=op, values=values):
            for before, after in pairwise(values):
                yield "boolean", before, after, SWAPS[type(op)]
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield "arithmetic", node, node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield "constant", node, node, str(not value)
        case ast.Constant(value=int(value)):
            yield "constant", node, node, str(value + 1 if value <= 16 else 2 * value)
        case ast.Constant(value=float(value)) if not 0 < value < TINY:
            yield "constant", node, node, repr(2 * value or 1.0)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "negated condition", test, test, f"(not ({ast.unparse(test)}))"
            if not isinstance(node, ast.While):
                yield "dropped condition", test, test, "True"
        case ast.comprehension(ifs=[test, *_]):
            yield "dropped condition", test, test, "True"
        case ast.Slice():
            for bound in filter(None, (node.lower, node.upper)):
                yield "slice", bound, bound, ""
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Break() | ast.Continue():
            yield "dropped statement", node, node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "dropped statement", node, node, "pass"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            if name in OPPOSITES:
                yield (
                    "min and max",
                    node.func,
                    node.func,
                    ast.unparse(node.func)[: -len(name)] + OPPOSITES[name],
                )
            if name in WRAPPERS and len(node.args) == 1:
                yield "dropped call", node, node, f"({ast.unparse(node.args[0])})"
            for keyword in node.keywords:
                if keyword.arg and keyword.arg not in IDLE:
                    yield "dropped argument", keyword, keyword, "**{}"


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that may be changed."""
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns", "decorator_list", "exc", "cause"):
            nodes = value if isinstance(value, list) else [value]
            yield from (each for each in nodes if isinstance(each, ast.AST) and not is_left_out(each))


def is_left_out(node: ast.AST) -> bool:
    """Nothing in this part of a module is changed."""
    match node:
        case (
            ast.FunctionDef(name="__repr__")
            | ast.Assert()
            | ast.JoinedStr()
            | ast.Import()
            | ast.ImportFrom()
        ):
            return True
        case ast.If(test=test):
            return ast.unparse(test) in ("TYPE_CHECKING", "__name__ == '__main__'")
        case ast.Call(func=func) | ast.Expr(value=ast.Call(func=func)):
            return NO_RESULT.fullmatch(ast.unparse(func)) is not None
        case ast.keyword(arg=name):
            return name in IDLE
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return IDLE_CONSTANT.search(name) is not None
    return False


def mutants(file: str, source: bytes) -> list[Mutant]:
    """All changes of a module."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []
    seen: Counter[str] = Counter()

    def visit(node: ast.AST, place: str, statement: int, inside: bool) -> None:
        statement = node.lineno if inside and isinstance(node, ast.stmt) else statement
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for operator, first, last, new in changes(node):
            start = starts[first.lineno - 1] + first.col_offset
            end = starts[last.end_lineno - 1] + last.end_col_offset
            whole = source[start:end].decode()
            if isinstance(new, tuple):  # what lies between the two parts
                start = starts[first.end_lineno - 1] + first.end_col_offset
                end = starts[last.lineno - 1] + last.col_offset
                new = source[start:end].decode().replace(*new, 1)
            change = f"{file}\0{place}\0{operator}\0{whole}\0{new}"
            seen[change] += 1
            name = hashlib.sha256(f"{change}\0{seen[change]}".encode()).hexdigest()[:16]
            line = source.count(b"\n", 0, start) + 1
            found.append(Mutant(file, line, statement, operator, start, end, new, name))
        for each in parts(node):
            visit(each, f"{place}.{each.name}" if hasattr(each, "name") else place, statement, inside)

    visit(ast.parse(source), "", 0, False)
    return found
