"""The `@step` decorator: a typed function becomes a declaration of what it makes.

Calling a step checks the arguments, computes the key and returns an inert `Artifact`; nothing runs and nothing is
placed. The function itself stays at `.fn`.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, get_args, overload

from marin_pipeline.core import projects, source
from marin_pipeline.core.arguments import check, checked_annotations, classes_in
from marin_pipeline.core.artifact import Artifact
from marin_pipeline.core.canonical import Tree, is_leaf
from marin_pipeline.core.context import Context
from marin_pipeline.core.errors import DeclarationError, InputError
from marin_pipeline.core.hooks import ask, ask_list, checked_hook
from marin_pipeline.core.key import Chain, arguments_tree, chain_tree, key_of, spec_bytes
from marin_pipeline.core.resources import Resources
from marin_pipeline.core.visible import as_line

P = ParamSpec("P")
R = TypeVar("R")

Exactness = Literal["bitwise", "logical", "tolerance"]
"""What a second run must equal: all bytes; the logical digest that the value carries; metrics within bounds."""

_LIKE_A_KEY = re.compile(r"[0-9a-f]{16}")
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


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
        unpinned: Callable[[Mapping[str, Any]], Sequence[str]] | None = None,
        transfers: Callable[[Mapping[str, Any]], Sequence[int | None]] | None = None,
        ready: Callable[[Mapping[str, Any]], None] | None = None,
        pinning: str = "",
    ) -> None:
        _refuse_unfindable(fn)
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.file = _file_of_function(fn)
        self.version = version
        self.resources = resources or Resources()
        self.exact: Exactness | Callable[[Mapping[str, Any]], Exactness] = exact
        if not callable(exact) and exact not in get_args(Exactness):
            raise DeclarationError(f"{self.where}: exact={exact!r} must be one of {', '.join(get_args(Exactness))}")
        if callable(exact):
            checked_hook(self.where, "exact", exact)
        self.chain = checked_hook(self.where, "chain", chain)
        self.unpinned = checked_hook(self.where, "unpinned", unpinned)
        self.transfers = checked_hook(self.where, "transfers", transfers)
        self.ready = checked_hook(self.where, "ready", ready)
        self.pinning = pinning
        self.uses = tuple(self._used(use) for use in uses)
        self.signature = self._signature()
        """Parameters without the context."""
        self.id = self._identity(id)

    def _signature(self) -> inspect.Signature:
        signature = inspect.signature(self.fn)
        name = self.fn.__name__
        parameters = list(signature.parameters.values())
        if not parameters or not _is_context(parameters.pop(0)):
            raise DeclarationError(
                f"{self.where}: the first parameter of a step is its context; write `def {name}(ctx: Context, ...)`"
            )
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
                raise DeclarationError(
                    f"{self.where}: {stars}{parameter.name} hides what the step takes; name each parameter"
                )
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise DeclarationError(f"{self.where}: {parameter.name!r} is passed by name; move the '/' before it")
            if parameter.annotation is parameter.empty:
                raise DeclarationError(
                    f"{self.where}: the parameter {parameter.name!r} has no annotation; a key is typed by them, "
                    f"write `{parameter.name}: int` or whatever it is"
                )
        if signature.return_annotation is signature.empty:
            raise DeclarationError(
                f"{self.where}: what it returns has no annotation; write `def {name}(...) -> int:`, or `-> None:`"
            )
        return inspect.Signature(parameters)

    def _used(self, use: Any) -> Any:
        use = use.fn if isinstance(use, Step) else use
        if inspect.isfunction(use) or inspect.isclass(use) or inspect.ismodule(use):
            return use
        raise DeclarationError(f"{self.where}: uses={use!r}: name functions, classes or modules with source")

    @functools.cached_property
    def used_places(self) -> list[tuple[Path, str]]:
        """File and qualified name of what `uses` names."""
        return [
            (Path(inspect.getsourcefile(use) or ""), "" if isinstance(use, ModuleType) else use.__qualname__)
            for use in self.uses
        ]

    def _identity(self, given: str | None) -> str:
        id = self._id(given)
        lost = [part for part in id.split("/") if _LIKE_A_KEY.fullmatch(part)]
        if lost:
            raise DeclarationError(
                f"{self.where}: its id would be {id}, whose part {lost[0]!r} looks like the folder of a key: stores "
                "could not be read; rename it, or give the step a version and an id of its own"
            )
        return id

    def _id(self, given: str | None) -> str:
        if self.version is None:
            if given is not None:
                raise DeclarationError(
                    f"{self.where}: id={given!r} needs a version; a step without one is named by its file"
                )
            return f"{projects.module_id(self.file)}.{self.fn.__qualname__}"
        if type(self.version) is not int or self.version < 1:
            raise DeclarationError(f"{self.where}: version={self.version!r} must be an int from 1 on")
        project = projects.project_name(self.file)
        if project is None:
            raise DeclarationError(
                f"{self.where}: a step with a version is named after its project, and no pyproject.toml with a "
                f"[project] name lies above {self.file.name}; add one, or leave the version out"
            )
        name = given or self.fn.__name__
        if not _ID.fullmatch(name):
            raise DeclarationError(f"{self.where}: id={name!r} may hold letters, digits, '_', '-', '.' and '/' between")
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
        """Resolved annotations of the parameters and of the returned value, marks kept.

        Raises:
            DeclarationError: for one that names nothing, or whose marks are misplaced.
        """
        try:
            return checked_annotations(self.fn)
        except DeclarationError as error:
            raise DeclarationError(f"{self.where}: {error}") from error

    @property
    def returns(self) -> Any:
        """Annotation of the returned value."""
        return self.annotations["return"]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Artifact[R]:
        if any(hasattr(type(value), "earlier_state") for value in (*args, *kwargs.values())):  # a context
            name = self.fn.__name__
            raise DeclarationError(
                f"{self.where}: calling a step declares it and takes no context; use {name}.fn(ctx, ...) to run the "
                f"function itself, or {name}(...) without the context to declare"
            )
        return self.declare(self._bound(args, kwargs))

    @functools.cached_property
    def _parameters(self) -> tuple[list[str], list[str], dict[str, Any]]:
        """Names of all parameters, of those that can be given by place, and the defaults."""
        given = self.signature.parameters.values()
        return (
            [each.name for each in given],
            [each.name for each in given if each.kind is each.POSITIONAL_OR_KEYWORD],
            {each.name: each.default for each in given if each.default is not each.empty},
        )

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, in the order of the parameters, defaults filled in."""
        names, positional, defaults = self._parameters
        given = dict(zip(positional, args, strict=False))
        arguments = {**defaults, **given, **kwargs}
        if len(given) < len(args) or given.keys() & kwargs.keys() or arguments.keys() != set(names):
            try:
                self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise DeclarationError(f"{self.where}: {error}; it takes ({', '.join(names)})") from None
        return {name: arguments[name] for name in names}

    def declare(self, arguments: Mapping[str, Any]) -> Artifact[R]:
        """The artifact that the step makes from `arguments`, checked.

        Raises:
            DeclarationError: naming the step and the argument that does not fit its annotation or cannot be keyed.
            InputError: naming the step, when its chain or its source cannot be used.
        """
        try:
            annotations = self.annotations
            checked = {name: check(value, annotations[name], name) for name, value in arguments.items()}
            declaration = Declaration(self, checked)
        except (DeclarationError, InputError) as error:
            if str(error).startswith(self.where):
                raise
            raise type(error)(f"{self.where}: {error}") from None
        return Artifact(declaration.key, declaration=declaration, kind=self.returns)

    def __repr__(self) -> str:
        return f"<step {self.id}>"


class Declaration:
    """A step with its arguments: what the key is made of."""

    def __init__(
        self, step: Step[Any, Any], arguments: Mapping[str, Any], code: source.CodeDigest | None = None
    ) -> None:
        self.step = step
        self.arguments = arguments
        """Checked arguments by name, defaults filled in."""
        if code is not None:  # known already, and the files may have changed since
            self.__dict__["code"] = code
        self.spec = self.spec_at(None)
        """The exact bytes that the key hashes."""
        self.key = key_of(self.spec)
        self.unpinned: tuple[str, ...] = (
            tuple(map(as_line, ask_list(step.where, "unpinned", step.unpinned, arguments))) if step.unpinned else ()
        )
        """Names of what the step reads and its key does not fix, such as an address without a digest."""

    @property
    def transfers(self) -> Sequence[int | None]:
        """Bytes of each thing that the step brings in from outside; None where its arguments do not tell."""
        step = self.step
        return ask_list(step.where, "transfers", step.transfers, self.arguments) if step.transfers else ()

    @functools.cached_property
    def chain(self) -> Chain | None:
        """The chain that the state lies on, for a step that declares one."""
        return ask(self.step.where, "chain", self.step.chain, self.arguments) if self.step.chain else None

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
        exact = self.step.exact
        return ask(self.step.where, "exact", exact, self.arguments) if callable(exact) else exact


def code_of(step: Step[Any, Any], arguments: Mapping[str, Any]) -> source.CodeDigest:
    """Digest of what `step` reaches with these arguments, found from files."""
    # Plain values and artifacts, which most arguments are, have no classes to follow.
    kinds = classes_in([value for value in arguments.values() if not is_leaf(value)])
    classes = {(file, kind.__qualname__) for kind in kinds if (file := file_of(kind.__module__))}
    return function_digest(step.fn, sorted(classes), step.used_places)


def function_digest(
    fn: Callable[..., Any], classes: list[tuple[Path, str]], uses: list[tuple[Path, str]]
) -> source.CodeDigest:
    """Digest of what a module-level function reaches."""
    search = _search(tuple(sys.path), os.getcwd())
    return source.code_digest(_file_of_function(fn), fn.__qualname__, classes=classes, uses=uses, search=search)


@functools.lru_cache(maxsize=16)
def _search(entries: tuple[str, ...], here: str) -> tuple[str, ...]:
    """The import path, absolute."""
    return tuple(os.path.join(here, entry) for entry in entries)


def file_of(module: str) -> Path | None:
    """The file of a loaded module, unless it is third-party code."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file).absolute() if file and not projects.is_third_party(Path(file)) else None


@functools.lru_cache(maxsize=4096)
def _file_of_function(fn: Callable[..., Any]) -> Path:
    """The file that defines a function: below its decorators, which may come from elsewhere."""
    inner: Any = inspect.unwrap(fn)
    return Path(inspect.getsourcefile(inner) or inner.__code__.co_filename).absolute()


def _refuse_unfindable(fn: Any) -> None:
    """Raise a `DeclarationError` for what is no function that another process could find, call and wait for."""
    if not inspect.isfunction(fn):
        raise DeclarationError(f"@step needs a plain function, got {type(fn).__name__} {fn!r}; put it on a `def`")
    name = f"{fn.__qualname__} ({Path(fn.__code__.co_filename).name}:{fn.__code__.co_firstlineno})"
    if fn.__name__ == "<lambda>":
        raise DeclarationError(f"{name}: a lambda has no name to be found by; write a `def` at the top level of a file")
    if not _file_of_function(fn).is_file():
        raise DeclarationError(
            f"{name}: a step lives in a file, where other processes find it and its code can be followed; write it "
            "to a .py file and import it from there (in a notebook, %%writefile makes one)"
        )
    if "." in fn.__qualname__:
        raise DeclarationError(
            f"{name}: a step is a function at the top level of a file, where other processes find it; move it there"
        )
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        raise DeclarationError(f"{name}: a step is no async function; write `def`, and call asyncio.run inside")
    if inspect.isgeneratorfunction(fn):
        raise DeclarationError(f"{name}: a step returns one value and does not yield; write files to ctx.out")


def _is_context(parameter: inspect.Parameter) -> bool:
    """Whether a step's first parameter can take the context; its annotation may still be text."""
    if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
        return False
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return annotation is parameter.empty or name.strip("'\"").endswith("Context")


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
    unpinned: Callable[[Mapping[str, Any]], Sequence[str]] | None = None,
    transfers: Callable[[Mapping[str, Any]], Sequence[int | None]] | None = None,
    ready: Callable[[Mapping[str, Any]], None] | None = None,
    pinning: str = "",
) -> Callable[[Callable[Concatenate[Context, P], R]], Step[P, R]]: ...
def step(
    fn: Callable[Concatenate[Context, P], R] | None = None, /, **options: Any
) -> Step[P, R] | Callable[[Callable[Concatenate[Context, P], R]], Step[P, R]]:
    """Declare a step.

    Args:
        version: the author's promise: the key follows this number and the code is only recorded. Without one the key
            follows the source.
        id: name within the project, for a step with a version; by default the function's.
        exact: what a second run must equal, or a function of the arguments that says so.
        resources: what it asks of the machine.
        uses: functions, classes or modules that the code reaches in a way that its source does not show, such as a
            registry.
        chain: for a state that is reached step by step: lowers the arguments to a `Chain`.
        unpinned: for a step that reads what is outside of the graph: a function of its arguments (one mapping, by
            name) that names what of that the key does not fix, as in `lambda arguments: [arguments["url"]]`. The step
            and all that is made from it are shown as unpinned. It is asked when the step is declared, and may refuse
            the arguments with an `InputError`.
        transfers: likewise, the bytes of each thing that it brings in from outside of the store; None where its
            arguments do not tell.
        ready: says before the step is started that its inputs do not fit: a function of its arguments by name, in which
            artifacts have their values (`arguments["tokens"].value`) and no files, as in
            `lambda arguments: refuse_empty(arguments["tokens"].value)`. It is asked in the process of the run when all
            of them are committed, and not for a step that is done; it returns None, or raises an `InputError`, with
            which the step fails. It is no part of the key.
        pinning: for a step with `unpinned`: where it is said how to fix that, for the end of a run.
    """

    def declared(function: Callable[Concatenate[Context, P], R]) -> Step[P, R]:
        return Step(function, **options)

    return declared if fn is None else Step(fn)
