"""The top-level statements of a module: which names each one binds or changes, and which it reads.

A name counts as read unless it is surely local to a function. So a step may be found to reach more than it does, never
less, save what the text does not show (`getattr`, registries), which a step declares with `uses`.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from marin_pipeline.core.imports import Import, imports_in
from marin_pipeline.core.source_text import (
    FunctionNode,
    SourceText,
    Span,
    dotted,
    is_bare_string,
    nested_statements,
)

_EXECUTED = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Statement:
    """A top-level statement; an import of several names is one for each."""

    name: str
    """The names that it binds, or changes as a target or by a call that is all of a statement; else `gives`."""
    digest: str
    """sha256 of its normalized text."""
    gives: frozenset[str]
    """Names that it binds or may change: whoever reads one of them reaches the statement."""
    reads: frozenset[str] = frozenset()
    """Names that it reads."""
    imports: tuple[Import, ...] = ()
    """Imports that it makes, those inside functions included."""
    ordered: bool = False
    """Whether its effect depends on its place among others: all but functions and imports."""


class NameTable:
    """The statements of a module, by the names that lead to them."""

    def __init__(self, text: SourceText) -> None:
        self._text = text
        self.statements: list[Statement] = []
        self._steps: dict[tuple[int, str], Statement] = {}
        self._by_name: dict[str, list[int]] = {}
        self._always: list[int] = []
        self._imported, self._modules = _imported_names(text.tree)
        for node in text.tree.body:
            for statement in self._statements(node):
                self._add(node, statement)

    def defines(self, name: str) -> bool:
        """Whether a function, class or value of this name is bound at the top level."""
        return name in self._by_name

    def line_of_nested(self, name: str) -> int | None:
        """Line of a function or class of this name that is not at the top level."""
        definitions = (node for node in self._text.statements if isinstance(node, FunctionNode | ast.ClassDef))
        return next((node.lineno for node in definitions if node.name == name), None)

    def reached(self, step: str | None, others: Iterable[str] = ()) -> list[Statement]:
        """Statements that a step and other definitions reach by name, themselves included, in the file's order.

        Of the function `step`, when it is declared as one, defaults and step decorator are left out.
        """
        found: dict[int, Statement] = {}
        names = [*([step] if step else ()), *others]
        waiting = [index for name in names for index in self._by_name[name]] + self._always
        while waiting:
            index = waiting.pop()
            if index not in found:
                found[index] = self._steps.get((index, step or ""), self.statements[index])
                waiting += (other for name in found[index].reads for other in self._by_name.get(name, ()))
        return [found[index] for index in sorted(found)]

    def _add(self, node: ast.stmt, statement: Statement) -> None:
        index = len(self.statements)
        self.statements.append(statement)
        for name in statement.gives:
            self._by_name.setdefault(name, []).append(index)
        if statement.name == "*":
            self._always.append(index)
        steps: dict[str, list[FunctionNode]] = {}
        for inner in nested_statements([node], into_definitions=False):
            if isinstance(inner, FunctionNode) and self._text.step_decorators(inner):
                steps.setdefault(inner.name, []).append(inner)
        for name, functions in steps.items():
            self._steps[index, name] = self._statement(node, functions)

    def _statements(self, node: ast.stmt) -> Iterator[Statement]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _one_import_each(node)
        elif not is_bare_string(node) and not self._text.is_idle(node):
            statement = self._statement(node)
            if statement.gives:
                yield statement

    def _statement(self, node: ast.stmt, steps: Collection[FunctionNode] = ()) -> Statement:
        """The statement; of the functions `steps`, defaults and step decorators are left out."""
        blank: list[Span] = []
        skipped: list[ast.expr] = []
        for function in steps:
            blank += self._text.default_spans(function)
            skipped += self._text.step_decorators(function)
            skipped += [default for default in (*function.args.defaults, *function.args.kw_defaults) if default]
        names = _Names(skipped)
        names.visit(node)
        named = names.bound | _changed(node)
        gives = frozenset(named | self._changed_within(node))
        inner = nested_statements([node])
        return Statement(
            name=", ".join(sorted(named or gives)),
            digest=self._text.digest(*self._text.span(node), blank=blank),
            gives=gives,
            reads=frozenset(names.read),
            imports=tuple(imports_in(inner)),
            ordered=not isinstance(node, _EXECUTED),
        )

    def _changed_within(self, node: ast.stmt) -> set[str]:
        """Names that a statement assigns into or calls a method of, anywhere in what importing the module runs.

        A function of an imported module (`re.compile(...)`) is no method that changes it.
        """
        changed: set[str] = set()
        for inner in self._run_on_import(node):
            if isinstance(inner, ast.Attribute | ast.Subscript) and not isinstance(inner.ctx, ast.Load):
                changed |= _roots(inner)
            elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                changed |= set() if dotted(inner.func.value) in self._modules else _roots(inner.func)
            elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                decorators = [each.func if isinstance(each, ast.Call) else each for each in inner.decorator_list]
                for decorator in decorators:
                    if isinstance(decorator, ast.Attribute):
                        changed |= _roots(decorator) - self._imported
        return changed

    def _run_on_import(self, node: ast.AST) -> Iterator[ast.AST]:
        """A statement and what is in it, without annotations, the bodies of functions, and the defaults of steps."""
        waiting = [node]
        while waiting:
            inner = waiting.pop()
            yield inner
            if isinstance(inner, FunctionNode):
                if not self._text.step_decorators(inner):
                    waiting += [*inner.args.defaults, *(default for default in inner.args.kw_defaults if default)]
            elif isinstance(inner, ast.ClassDef):
                waiting += [*inner.bases, *inner.keywords, *inner.body]
            elif isinstance(inner, ast.AnnAssign):
                waiting += [inner.target, *([inner.value] if inner.value else [])]
            else:
                waiting += ast.iter_child_nodes(inner)


def _imported_names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Names that a module binds by imports alone, and dotted names by which it knows modules."""
    imported: set[str] = set()
    modules: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = [alias.asname] if alias.asname else alias.name.split(".")
                modules |= {".".join(parts[: length + 1]) for length in range(len(parts))}
        elif isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name for alias in node.names}
    imported |= {name.split(".")[0] for name in modules}
    others = _Names()
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            others.visit(node)
    bound = others.bound
    return imported - bound, {name for name in modules if name.split(".")[0] not in bound}


def _one_import_each(node: ast.Import | ast.ImportFrom) -> Iterator[Statement]:
    """One statement for each name, so that importing one more name changes only what uses it."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            found, text = Import(alias.name), f"import {alias.name}"
            name = alias.asname or alias.name.split(".")[0]
        elif node.module == "__future__":
            continue
        else:
            found = Import(node.module or "", (alias.name,), node.level)
            text = f"from {'.' * node.level}{found.module} import {alias.name}"
            name = alias.asname or alias.name
        digest = hashlib.sha256(f"{text} as {name}".encode()).hexdigest()
        yield Statement(name, digest, frozenset({name}), imports=(found,))


def _changed(node: ast.stmt) -> set[str]:
    """Names whose objects a statement changes in place: `NAME[...] = `, `NAME.x = `, `NAME += `, `NAME.method(...)`."""
    changed: set[str | None] = set()
    for inner in nested_statements([node], into_definitions=False):
        targets: list[ast.expr] = []
        if isinstance(inner, ast.Assign | ast.Delete):
            targets = list(inner.targets)
        elif isinstance(inner, ast.AugAssign | ast.AnnAssign):
            targets = [inner.target]
        elif isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call):
            targets = [] if isinstance(inner.value.func, ast.Name) else [inner.value.func]
        for target in targets:
            elements = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
            changed |= {_root_name(element) for element in elements}
    return {name for name in changed if name}


def _root_name(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _roots(node: ast.expr) -> set[str]:
    """Names whose objects an expression may be, or be a part of; what a call gives is a new thing."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred | ast.NamedExpr):
        return _roots(node.value)
    either: list[ast.expr] = []
    if isinstance(node, ast.BoolOp):
        either = node.values
    elif isinstance(node, ast.IfExp):
        either = [node.body, node.orelse]
    return {name for each in either for name in _roots(each)}


class _Names(ast.NodeVisitor):
    """Names that one scope binds, and names that it or a scope inside it reads from outside."""

    def __init__(self, skipped: Iterable[ast.AST] = ()) -> None:
        self.read: set[str] = set()
        self.bound: set[str] = set()
        self._not_ours: set[str] = set()
        """Names declared global or nonlocal."""
        self._walrus: set[str] = set()
        """Names bound by `:=`, which a comprehension binds around itself."""
        self._skipped = set(skipped)

    def visit(self, node: ast.AST) -> None:
        if node not in self._skipped:
            super().visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        (self.read if isinstance(node.ctx, ast.Load) else self.bound).add(node.id)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._walrus.add(node.target.id)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self._not_ours.update(node.names)
        self.read.update(node.names)

    visit_Nonlocal = visit_Global

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.bound.add(node.name)
        self._visit_all(node.decorator_list)
        self._visit_all(getattr(node, "type_params", ()))
        self._annotation(node.returns)
        self._function(node.args, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node.args, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bound.add(node.name)
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords, *getattr(node, "type_params", ())])
        # Methods do not see what the body binds, and the body may read it from outside before: nothing is subtracted.
        self.read |= self._inside(node.body).read

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)
        elements = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        first, *others = node.generators
        inside = self._inside([first.target, *first.ifs, *others, *elements])
        self.read |= inside.read - inside.bound
        self.bound |= inside._walrus
        self._walrus |= inside._walrus

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        self._annotation(node.annotation)
        if node.value:
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if name := _root_name(node.target):
            self.read.add(name)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.bound.update(alias.asname or alias.name.split(".")[0] for alias in node.names)

    visit_ImportFrom = visit_Import

    def visit_ExceptHandler(self, node: ast.ExceptHandler | ast.MatchAs | ast.MatchStar) -> None:
        if node.name:
            self.bound.add(node.name)
        self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = visit_ExceptHandler

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self.bound.add(node.rest)
        self.generic_visit(node)

    def _function(self, arguments: ast.arguments, body: list[ast.stmt] | list[ast.expr]) -> None:
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        parameters += [parameter for parameter in (arguments.vararg, arguments.kwarg) if parameter]
        self._visit_all([*arguments.defaults, *(default for default in arguments.kw_defaults if default)])
        for parameter in parameters:
            self._annotation(parameter.annotation)
        inside = self._inside(body)
        local = (inside.bound | {parameter.arg for parameter in parameters}) - inside._not_ours
        self.read |= inside.read - local

    def _inside(self, nodes: Iterable[ast.AST]) -> _Names:
        inside = _Names(self._skipped)
        inside._visit_all(nodes)
        return inside

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _annotation(self, node: ast.expr | None) -> None:
        """Reads an annotation, also one that is written as a string."""
        if node is None:
            return
        self.visit(node)
        for text in _strings_of_type(node):
            try:
                self.visit(ast.parse(text, mode="eval"))
            except SyntaxError:
                continue  # a description in `Annotated`, not a type


def _strings_of_type(annotation: ast.AST) -> Iterator[str]:
    """Strings in an annotation that may be types: not the values of a `Literal`."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield annotation.value
    elif not (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value).endswith("Literal")):
        for child in ast.iter_child_nodes(annotation):
            yield from _strings_of_type(child)
