"""The `@step` decorator: a typed function becomes a declaration of what it makes.

Calling a step without a context checks the arguments, computes the key and returns an inert `Artifact`; nothing runs and nothing is
placed. The function itself stays at `.fn`.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from marin_pipeline.core import projects, source
from marin_pipeline.core.arguments import check, classes_in
from marin_pipeline.core.artifact import Artifact
from marin_pipeline.core.canonical import Tree, annotations_of
from marin_pipeline.core.context import Context
from marin_pipeline.core.errors import DeclarationError
from marin_pipeline.core.key import Chain, arguments_tree, chain_tree, key_of, spec_bytes
from marin_pipeline.core.resources import Resources

P = ParamSpec("P")
R = TypeVar("R")

Exactness = Literal["bitwise", "logical", "tolerance"]
"""What a second run must equal: all bytes; the logical digest that the value carries; metrics within bounds."""

_ID = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")


class Step(Generic[P, R]):
    """A declared step. Calling it returns an artifact; `.fn` is the plain function."""

    def __init__(
        self,
        fn: Callable[Concatenate[Context, P], R],
        *,
        version: int | None = None,
        id: str | None = None,
        exact: Exactness | Callable[[Mapping[str, Any]], Exactness] = "bitwise",
        resources: Resources | None = None,
        uses: tuple[Any, ...] = (),
        chain: Callable[[Mapping[str, Any]], Chain] | None = None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.version = version
        self.resources = resources or Resources()
        self.exact = exact
        self.chain = chain
        self.uses = uses
        if not inspect.isfunction(fn):
            raise DeclarationError(f"@step needs a plain function, got {fn!r}")
        if "<locals>" in fn.__qualname__ or "." in fn.__qualname__:
            raise DeclarationError(
                f"{fn.__qualname__}: a step is a function at the top level of a file, so that other processes can find it; move it there"
            )
        self.file = Path(inspect.getsourcefile(fn) or fn.__code__.co_filename).absolute()
        parameters = list(inspect.signature(fn).parameters.values())
        if not parameters or parameters[0].kind not in (parameters[0].POSITIONAL_ONLY, parameters[0].POSITIONAL_OR_KEYWORD):
            raise DeclarationError(f"{self.where}: the first parameter of a step is its context; write `def {fn.__name__}(ctx: Context, ...)`")
        for parameter in parameters[1:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise DeclarationError(f"{self.where}: *{parameter.name} hides what the step takes; name each parameter")
            if parameter.annotation is parameter.empty:
                raise DeclarationError(f"{self.where}: the parameter {parameter.name!r} has no annotation; a key is typed by them")
        self.signature = inspect.Signature(parameters[1:])
        self.id = self._identity(id)

    def _identity(self, given: str | None) -> str:
        if self.version is None:
            if given is not None:
                raise DeclarationError(f"{self.where}: id={given!r} needs a version; a step without one is named by its file")
            return f"{projects.module_id(self.file)}.{self.fn.__qualname__}"
        if isinstance(self.version, bool) or not isinstance(self.version, int) or self.version < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DeclarationError(f"{self.where}: version={self.version!r} must be an int from 1 on")
        project = projects.project_name(self.file)
        if project is None:
            raise DeclarationError(
                f"{self.where}: a step with a version is named after its project, and no pyproject.toml with a [project] name lies above "
                f"{self.file.name}; add one, or leave the version out"
            )
        name = given or self.fn.__name__
        if not _ID.fullmatch(name):
            raise DeclarationError(f"{self.where}: id={name!r} may hold letters, digits, '_', '-', '.' and '/'")
        return f"{project}/{name}"

    @property
    def name(self) -> str:
        """Name on screen when the artifact has not been given one."""
        return self.fn.__name__.lower()

    @property
    def where(self) -> str:
        """The step for error messages: its name, file and line."""
        return f"step {self.fn.__name__} ({self.file.name}:{self.fn.__code__.co_firstlineno})"

    @functools.cached_property
    def annotations(self) -> Mapping[str, Any]:
        """Resolved annotations of the parameters and of the returned value, marks kept."""
        return annotations_of(self.fn)

    @property
    def returns(self) -> Any:
        """Annotation of the returned value."""
        return self.annotations.get("return", Any)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Artifact[R]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            expected = ", ".join(self.signature.parameters)
            raise DeclarationError(f"{self.where}: {error}; it takes ({expected})") from None
        bound.apply_defaults()
        return self.declare(bound.arguments)

    def declare(self, arguments: Mapping[str, Any]) -> Artifact[R]:
        """The artifact that the step makes from `arguments`, checked.

        Raises:
            DeclarationError: naming the step and the argument that does not fit its annotation or cannot be keyed.
        """
        try:
            checked = {name: check(value, self.annotations.get(name, Any), name) for name, value in arguments.items()}
            declaration = Declaration(self, checked)
            return Artifact(declaration.key, declaration=declaration, kind=self.returns)
        except DeclarationError as error:
            if str(error).startswith(self.where):
                raise
            raise DeclarationError(f"{self.where}: {error}") from error

    def __repr__(self) -> str:
        return f"<step {self.id}>"


class Declaration:
    """A step with its arguments: what the key is made of."""

    def __init__(self, step: Step[Any, Any], arguments: Mapping[str, Any]) -> None:
        self.step = step
        self.arguments = arguments
        """Checked arguments by name, defaults filled in."""
        self.spec = self.spec_at(None)
        """The exact bytes that the key hashes."""
        self.key = key_of(self.spec)

    @functools.cached_property
    def chain(self) -> Chain | None:
        """The chain that the state lies on, for a step that declares one."""
        return self.step.chain(self.arguments) if self.step.chain else None

    @functools.cached_property
    def code(self) -> source.CodeDigest:
        """Digest of the code that the step reaches, the classes of its argument values included."""
        return code_of(self.step, self.arguments)

    def spec_at(self, step: int | None) -> bytes:
        """The spec; of a chain, that of the state at `step` (by default the one that is asked for)."""
        code: Tree = {"source": self.code.digest} if self.step.version is None else {"version": self.step.version}
        if self.chain is None:
            tree = arguments_tree(self.arguments, self.step.annotations)
        else:
            tree = chain_tree(self.chain, self.chain.step if step is None else step)
        return spec_bytes(self.step.id, code, tree)

    @property
    def exact(self) -> Exactness:
        """What a second run must equal."""
        return self.step.exact(self.arguments) if callable(self.step.exact) else self.step.exact


def code_of(step: Step[Any, Any], arguments: Mapping[str, Any]) -> source.CodeDigest:
    """Digest of what `step` reaches with these arguments, found from files."""
    classes = {(file, kind.__qualname__) for kind in classes_in(list(arguments.values())) if (file := file_of(kind.__module__))}
    uses = [(Path(inspect.getsourcefile(use) or ""), "" if isinstance(use, ModuleType) else use.__qualname__) for use in step.uses]
    return function_digest(step.fn, sorted(classes), uses)


def function_digest(fn: Callable[..., Any], classes: list[tuple[Path, str]], uses: list[tuple[Path, str]]) -> source.CodeDigest:
    """Digest of what a module-level function reaches."""
    file = Path(inspect.getsourcefile(fn) or fn.__code__.co_filename).absolute()
    search = tuple(Path(entry or ".").absolute() for entry in sys.path)
    return source.code_digest(file, fn.__qualname__, classes=classes, uses=uses, search=search)


def file_of(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).absolute() if file and not projects.is_third_party(Path(file)) else None


@overload
def step(fn: Callable[Concatenate[Context, P], R], /) -> Step[P, R]: ...
@overload
def step(
    *,
    version: int | None = None,
    id: str | None = None,
    exact: Exactness | Callable[[Mapping[str, Any]], Exactness] = "bitwise",
    resources: Resources | None = None,
    uses: tuple[Any, ...] = (),
    chain: Callable[[Mapping[str, Any]], Chain] | None = None,
) -> Callable[[Callable[Concatenate[Context, P], R]], Step[P, R]]: ...
def step(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a step.

    Args:
        version: the author's promise: the key follows this number and the code is only recorded. Without one the key follows the source.
        id: name within the project, for a step with a version; by default the function's.
        exact: what a second run must equal, or a function of the arguments that says so.
        resources: what it asks of the machine.
        uses: functions, classes or modules that the code reaches in a way that cannot be seen in the source, such as a registry.
        chain: for a state that is reached step by step: lowers the arguments to a `Chain`.
    """
    if fn is not None:
        return Step(fn)
    return lambda function: Step(function, **options)
