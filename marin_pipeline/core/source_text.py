"""Source text as a code digest sees it: comments, docstrings, blank lines and trailing space removed by position.

Positions come from the syntax tree and from a scanner of comments and strings, not from `tokenize`, whose tokens of
f-strings changed in Python 3.12: the text is equal on every Python that can parse the file. What a string holds, an
f-string's fields included, is never touched.
"""

from __future__ import annotations

import ast
import bisect
import functools
import hashlib
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from importlib.util import decode_source
from pathlib import Path
from typing import TypeGuard

from marin_pipeline.core.errors import InputError

Span = tuple[int, int]
"""Start and end, in bytes of the utf-8 text."""
Edit = tuple[int, int, bytes]
"""A span and what replaces it."""
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

_BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")
"""Fields of a statement that hold statements."""


def normalized(text: str, spans_to_blank: Iterable[Span] = ()) -> str:
    """The text of a module without comments, docstrings, step decorators, blank lines and what never runs on import.

    Args:
        text: a whole module.
        spans_to_blank: further spans to remove, in bytes of the utf-8 text.

    Raises:
        InputError: when the text cannot be parsed.
    """
    return SourceText(text, "<text>").normalized(blank=spans_to_blank).decode()


def read_source(path: Path) -> bytes:
    """The bytes of a file.

    Raises:
        InputError: when it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"{path}: the source cannot be read ({reason}), so the code has no digest; keep it in a readable .py file"
        ) from error


class SourceText:
    """A parsed module, and what of it counts as code.

    Raises:
        InputError: when the text cannot be parsed; the message names `name` and the line.
    """

    def __init__(self, text: str, name: str) -> None:
        self.data = text.replace("\r\n", "\n").replace("\r", "\n").encode()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # an invalid escape is told when the file is imported
                self.tree = ast.parse(self.data.decode(), name)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            version = ".".join(map(str, sys.version_info[:2]))
            reason = getattr(error, "msg", None) or str(error)
            raise InputError(
                f"{name}, line {line}: Python {version} cannot parse this file ({reason}); correct that line"
            ) from error
        self.statements = list(nested_statements(self.tree.body))
        """Every statement, at any depth; also `except` and `case` clauses."""
        self._line_starts = [0, *(match.end() for match in re.finditer(rb"\n", self.data))]
        removed = ((start, end, b"") for start, end in self._not_code())
        self._edits = sorted([*removed, *_lexical_edits(self.data)], key=_outermost_first)

    @classmethod
    def decoded(cls, data: bytes, path: Path) -> SourceText:
        """The module that the bytes of a file hold, decoded as Python decodes it."""
        try:
            return cls(decode_source(data), str(path))
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise InputError(f"{path}, line {line}: the file is not {error.encoding} text; save it as utf-8") from error
        except SyntaxError as error:
            raise InputError(
                f"{path}, line 1: {error}; declare an encoding that Python knows, or save as utf-8"
            ) from error

    def normalized(self, start: int = 0, end: int | None = None, blank: Iterable[Span] = ()) -> bytes:
        """The code between two positions, normalized; `blank` are further spans to remove."""
        end = len(self.data) if end is None else end
        first = bisect.bisect_left(self._edits, start, key=lambda edit: edit[0])
        last = bisect.bisect_left(self._edits, end, key=lambda edit: edit[0])
        edits = self._edits[first:last]
        if extra := [(left, right, b"") for left, right in blank]:
            edits = sorted([*extra, *edits], key=_outermost_first)
        parts: list[bytes] = []
        position = start
        for left, right, replacement in edits:
            if left >= position:
                parts += self.data[position:left], replacement
                position = right
        parts.append(self.data[position:end])
        lines = (line.rstrip() for line in b"".join(parts).split(b"\n"))
        return b"\n".join(line for line in lines if line).replace(b"\0", b"\n")

    def digest(self, start: int = 0, end: int | None = None, blank: Iterable[Span] = ()) -> str:
        """sha256 of the normalized code between two positions, 64 hex digits."""
        return hashlib.sha256(self.normalized(start, end, blank)).hexdigest()

    def span(self, node: ast.stmt) -> Span:
        """Where a statement lies, its decorators included."""
        start, end = self._bounds(node)
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        return (self._decorator(decorators[0])[0] if decorators else start), end

    def default_spans(self, function: FunctionNode) -> list[Span]:
        """The default values of a function's parameters, with their `=`."""
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs = [
            *zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        return [self._default(parameter, default) for parameter, default in pairs if default]

    def step_decorators(self, node: ast.AST) -> list[ast.expr]:
        """The decorators of a definition that declare it to be a step."""
        return [decorator for decorator in getattr(node, "decorator_list", ()) if self._declares_step(decorator)]

    def _default(self, parameter: ast.arg, default: ast.expr) -> Span:
        start = self._bounds(parameter)[1]
        first, end = self._bounds(default)
        # The tree leaves out the parentheses around an expression.
        opened = re.sub(rb"#[^\n]*", b"", self.data[start:first]).count(b"(")
        closing = re.compile(rb"(?:(?:\s|\\\n|#[^\n]*)*\)){%d}" % opened).match(self.data, end)
        return start, closing.end() if closing else end

    def imported_statements(self) -> Iterator[ast.AST]:
        """Statements, at any depth, that count when the module is imported."""
        return nested_statements(node for node in self.tree.body if not self.is_idle(node))

    def is_idle(self, node: ast.AST) -> bool:
        """Whether importing never runs a statement: `if TYPE_CHECKING` or `if __name__ == "__main__"`, without an else.

        It runs where the module gives these names a meaning of its own, as `TYPE_CHECKING = True` does.
        """
        return _looks_idle(node) and self._rebound.isdisjoint(
            part.id if isinstance(part, ast.Name) else part.attr
            for part in ast.walk(node.test)
            if isinstance(part, ast.Name | ast.Attribute)
        )

    @functools.cached_property
    def _rebound(self) -> frozenset[str]:
        return _rebound(self.tree)

    def _not_code(self) -> Iterator[Span]:
        yield from (self._bounds(node) for node in self.tree.body if self.is_idle(node))
        for node in self.statements:
            if is_bare_string(node):
                yield self._bounds(node)
            for decorator in self.step_decorators(node):
                yield self._decorator(decorator)

    @functools.cached_property
    def _step_names(self) -> frozenset[str]:
        """Dotted names that mean the step decorator in this file, by its imports from marin_pipeline."""
        names: set[str] = set()
        for node in self.statements:
            if isinstance(node, ast.Import):
                modules = {alias.asname or alias.name for alias in node.names if _is_marin(alias.name)}
                names |= {f"{module}.step" for module in modules}
            elif isinstance(node, ast.ImportFrom) and not node.level and _is_marin(node.module or ""):
                names |= {alias.asname or "step" for alias in node.names if alias.name in ("step", "*")}
        return frozenset(names)

    def _declares_step(self, decorator: ast.expr) -> bool:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        return dotted(called) in self._step_names

    def _decorator(self, decorator: ast.expr) -> Span:
        start, end = self._bounds(decorator)
        return self.data.rindex(b"@", 0, start), end

    def _bounds(self, node: ast.stmt | ast.expr | ast.arg) -> Span:
        start = self._line_starts[node.lineno - 1] + node.col_offset
        return start, self._line_starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)


def nested_statements(body: Iterable[ast.AST], into_definitions: bool = True) -> Iterator[ast.AST]:
    """Statements at any depth, in order, with `except` and `case` clauses; expressions are not looked into.

    Args:
        body: where to begin.
        into_definitions: whether the bodies of functions and classes count.
    """
    waiting = list(body)[::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if not into_definitions and isinstance(node, FunctionNode | ast.ClassDef):
            continue
        waiting += reversed([child for field in _BLOCKS for child in getattr(node, field, ())])


def is_bare_string(node: ast.AST) -> TypeGuard[ast.Expr]:
    """Whether a statement is nothing but a string: a docstring, or the description of a field."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _looks_idle(node: ast.AST) -> TypeGuard[ast.If]:
    if not isinstance(node, ast.If) or node.orelse:
        return False
    if not isinstance(node.test, ast.Compare):
        return dotted(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    sides = (node.test.left, *node.test.comparators)
    names = [side.id for side in sides if isinstance(side, ast.Name)]
    values = [side.value for side in sides if isinstance(side, ast.Constant)]
    return names == ["__name__"] and values == ["__main__"] and isinstance(node.test.ops[0], ast.Eq)


_IDLE_NAMES = frozenset({"TYPE_CHECKING", "typing", "__name__"})


def _rebound(tree: ast.Module) -> frozenset[str]:
    """Names of `_IDLE_NAMES` to which a module gives a meaning of its own, other than `TYPE_CHECKING = False`."""
    rebound: set[str] = set()
    harmless: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is False:
            harmless |= {id(target) for target in node.targets}
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in harmless:
            rebound.add(node.id)
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            rebound |= {node.attr} - {"__name__"}  # that of a function, as decorators set it
        elif isinstance(node, ast.Import):
            rebound |= {alias.asname for alias in node.names if alias.asname and alias.name != alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module not in ("typing", "typing_extensions"):
            rebound |= {alias.asname or alias.name for alias in node.names}
    return _IDLE_NAMES & rebound


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` as a string; None or a string with None in it for what is no dotted name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def _is_marin(module: str) -> bool:
    return module.split(".")[0] == "marin_pipeline"


def _outermost_first(edit: Edit) -> tuple[int, int]:
    """Order of edits: of those that overlap the outermost counts, of equal ones the first."""
    return edit[0], -edit[1]


# The scanner

_MARK = re.compile(rb"[#\"'\\]")
_COMMENT = re.compile(rb"#[^\n]*")
_FORMATTED = re.compile(rb"(?<!\w)(?:[fF][rR]?|[rR][fF])\Z")
_STRING_END = {
    b'"': re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL),
    b"'": re.compile(rb"[^'\\]*(?:\\.[^'\\]*)*'", re.DOTALL),
    b'"""': re.compile(rb'[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""', re.DOTALL),
    b"'''": re.compile(rb"[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''", re.DOTALL),
}
# A backslash does not escape a brace: in f"\{x}" a field begins.
_IN_LITERAL = {quote: re.compile(rb"\\[^{]|\{\{|\{|" + quote, re.DOTALL) for quote in _STRING_END}
_IN_FIELD = re.compile(rb"[#\"'\[\](){}:]")
_IN_FORMAT = re.compile(rb"[{}]")


def _lexical_edits(data: bytes) -> Iterator[Edit]:
    """Comments, to be removed, and newlines that end no line of code, to be kept as NUL, which no source can hold."""
    position = 0
    while mark := _MARK.search(data, position):
        start = mark.start()
        if mark[0] == b"#":
            position = _match(_COMMENT, data, start)
            yield start, position, b""
        elif mark[0] == b"\\":
            position = start + 2
            if data[start:position] == b"\\\n":
                yield start, position, b"\\\0"
        else:
            position = _string_end(data, start)
            if (string := data[start:position]).count(b"\n"):
                yield start, position, string.replace(b"\n", b"\0")


def _string_end(data: bytes, start: int) -> int:
    """Where the string ends whose first quote is at `start`."""
    quote = data[start : start + 3]
    if quote not in _STRING_END:
        quote = data[start : start + 1]
    position = start + len(quote)
    if not _FORMATTED.search(data[max(0, start - 3) : start]):
        return _match(_STRING_END[quote], data, position)
    while (token := _find(_IN_LITERAL[quote], data, position))[0] != quote:
        position = _field_end(data, token.end()) if token[0] == b"{" else token.end()
    return token.end()


def _field_end(data: bytes, position: int) -> int:
    """Where the replacement field of an f-string ends whose expression begins at `position`."""
    depth = 0
    while True:
        token = _find(_IN_FIELD, data, position)
        position = token.end()
        if token[0] in b"\"'":
            position = _string_end(data, token.start())
        elif token[0] == b"#":
            position = _match(_COMMENT, data, token.start())
        elif token[0] in b"[({":
            depth += 1
        elif token[0] in b"])}" and depth:
            depth -= 1
        elif token[0] == b"}":
            return position
        elif token[0] == b":" and not depth:
            while (token := _find(_IN_FORMAT, data, position))[0] == b"{":
                position = _field_end(data, token.end())
            return token.end()


def _match(pattern: re.Pattern[bytes], data: bytes, position: int) -> int:
    return _found(pattern.match(data, position), data, position).end()


def _find(pattern: re.Pattern[bytes], data: bytes, position: int) -> re.Match[bytes]:
    return _found(pattern.search(data, position), data, position)


def _found(match: re.Match[bytes] | None, data: bytes, position: int) -> re.Match[bytes]:
    if match is None:
        line = data.count(b"\n", 0, position) + 1
        raise InputError(f"line {line}: the string that begins here has no end; write it in a simpler way")
    return match
