"""Declaring: what a step is, what it refuses, and what it says then."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest

from marin_pipeline import (
    Artifact,
    Context,
    Documents,
    File,
    LocalFile,
    Resources,
    Runtime,
    Secret,
    Tokens,
    absent_when,
    local_artifact,
    run,
    step,
    test_context,
)
from marin_pipeline.core.errors import DeclarationError, InputError, MarinError
from marin_pipeline.core.graph import Graph
from tests.conftest import ROOT
from tests.core.pythons import printed, python, start

test_context.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]


@dataclass(frozen=True)
class Optimizer:
    rate: float = 0.1
    schedule: Any = "cosine"
    warm: Annotated[int, absent_when(0)] = 0
    threads: Runtime[int] = 1


@dataclass(frozen=True)
class Sources:
    files: dict[str, File | LocalFile] = field(default_factory=dict[str, File | LocalFile])
    parts: tuple[Artifact[int], ...] = ()


@step
def count_words(ctx: Context, text: str) -> int:
    (ctx.out / "words.txt").write_text("\n".join(text.split()))
    return len(text.split())


@step(version=2)
def multiply(ctx: Context, count: Artifact[int], times: int = 2) -> int:
    return count.value * times


@step(version=1, id="fit/adam")
def fit(
    ctx: Context,
    optimizer: Optimizer = Optimizer(),
    seeds: list[int] = [1],  # noqa: B006
    decay: Annotated[float, absent_when(0.0)] = 0.0,
    workers: Runtime[int] = 0,
) -> None: ...


@step(version=1)
def read(ctx: Context, sources: Sources, token: Secret | None = None, blocked: LocalFile | None = None) -> Documents:
    raise NotImplementedError


@step(version=1)
def tokenize(ctx: Context, documents: Artifact[Documents]) -> Tokens:
    raise NotImplementedError


@step(version=1)
def train(ctx: Context, tokens: Artifact[Tokens]) -> None: ...


def spec(artifact: Artifact[Any]) -> dict[str, Any]:
    assert artifact.declaration is not None
    return json.loads(artifact.declaration.spec)


def test_a_call_returns_an_inert_artifact_and_runs_nothing() -> None:
    made = multiply(count=count_words(text="a b c"), times=2)
    assert isinstance(made, Artifact)
    assert spec(made) == {
        "schema": 1,
        "step": "marin_pipeline/multiply",
        "code": {"version": 2},
        "arguments": {"count": {"~artifact": count_words(text="a b c").key}, "times": 2},
    }


def test_a_step_without_a_version_follows_its_source() -> None:
    found = spec(count_words(text="a"))
    assert found["step"] == "tests/core/test_step.count_words"
    assert len(found["code"]["source"]) == 64


def test_the_function_runs_alone_in_a_unit_test(tmp_path: Path) -> None:
    ctx = test_context(tmp_path)
    assert count_words.fn(ctx, text="a b c") == 3
    assert (ctx.out / "words.txt").read_text() == "a\nb\nc"
    assert multiply.fn(ctx, count=local_artifact(tmp_path, 3), times=2) == 6


def test_positions_names_and_defaults_make_one_key() -> None:
    words = count_words("a")
    assert multiply(words).key == multiply(count=words, times=2).key == multiply(words, 2).key


def test_an_int_is_a_float_where_one_is_declared() -> None:
    assert fit(optimizer=Optimizer(rate=1)).key == fit(optimizer=Optimizer(rate=1.0)).key
    assert fit(decay=1).key == fit(decay=1.0).key


def test_runtime_and_absent_arguments_leave_the_key_alone() -> None:
    plain = fit()
    assert set(spec(plain)["arguments"]) == {"optimizer", "seeds"}
    assert set(spec(plain)["arguments"]["optimizer"]["fields"]) == {"rate", "schedule"}
    assert fit(workers=9, optimizer=Optimizer(threads=9)).key == plain.key
    assert fit(decay=0, optimizer=Optimizer(warm=0)).key == plain.key
    assert fit(decay=0.5).key != plain.key
    assert fit(optimizer=Optimizer(warm=1)).key != plain.key


def test_names_and_resources_leave_the_key_alone() -> None:
    assert fit().named("a/b").using(Resources(cpus=3)).key == fit().key


def test_later_changes_of_an_argument_do_not_move_the_key() -> None:
    seeds, files = [1, 2], dict[str, File | LocalFile]()
    fitted, documents = fit(seeds=seeds), read(sources=Sources(files))
    seeds.append(3)
    files["new"] = fitted / "a"
    assert fitted.declaration is not None
    assert fitted.declaration.arguments["seeds"] == [1, 2]
    assert fit(seeds=[1, 2]).key == fitted.key
    assert read(sources=Sources()).key == documents.key
    assert Graph([documents]).nodes[documents.key].dependencies == {}


@step
def told(ctx: Context, lists: dict[str, list[int]], rules: Optimizer, parts: set[Artifact[int]]) -> dict[str, str]:
    told = {"lists": repr(lists), "rules": repr(rules.schedule), "parts": repr(sorted(part.value for part in parts))}
    lists.clear()  # the step's own copy
    return told


def test_what_a_caller_changes_after_declaring_reaches_neither_the_key_nor_the_run(tmp_path: Path) -> None:
    lists, schedule, parts = {"b": [2], "a": [1, 1]}, [{"rate": [1]}], {count_words("a b"), count_words("a")}

    def declared() -> Artifact[Any]:
        return told(lists=lists, rules=Optimizer(schedule=schedule), parts=parts)

    made, spec_before = declared(), spec(declared())
    lists["a"].append(3)
    lists["c"] = [4]
    schedule[0]["rate"][0] = 9
    parts.clear()
    expected = {"lists": "{'a': [1, 1], 'b': [2]}", "rules": "[{'rate': [1]}]", "parts": "[1, 2]"}
    result = run(made, prefix=str(tmp_path), backend="inline")
    assert result.value == expected
    assert spec(made) == spec_before
    assert (lists["a"], declared().key == made.key) == ([1, 1, 3], False)


def test_arguments_that_were_changed_in_the_declaration_itself_are_refused_where_the_step_runs(tmp_path: Path) -> None:
    made = told(lists={"a": [1]}, rules=Optimizer(), parts=set())
    assert made.declaration is not None
    made.declaration.arguments["lists"]["a"].append(2)
    with pytest.raises(MarinError, match="is declared otherwise where it runs than where the run began"):
        run(made, prefix=str(tmp_path), backend="inline")


def test_what_is_checked_where_a_step_runs_is_what_was_checked_when_it_was_declared() -> None:
    for made in (fit(seeds=[1], optimizer=Optimizer(rate=1)), told({"a": [1]}, Optimizer(), {count_words("a")})):
        assert made.declaration is not None
        again = made.declaration.step.declare(made.declaration.arguments)
        assert again.declaration is not None
        assert again.declaration.spec == made.declaration.spec


def test_a_default_that_is_a_list_is_not_shared() -> None:
    declaration = fit().declaration
    assert declaration is not None
    declaration.arguments["seeds"].append(5)
    assert spec(fit())["arguments"]["seeds"] == [1]


def test_dependencies_are_found_inside_dicts_and_dataclasses(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("words")
    words, local = count_words(text="a"), LocalFile(tmp_path / "list.txt")
    made = read(
        sources=Sources({"wiki": words / "words.txt", "list": local}, (words,)), token=Secret("HF_TOKEN"), blocked=local
    )
    assert spec(made)["arguments"] == {
        "sources": {
            "~data": "tests/core/test_step:Sources",
            "fields": {
                "files": {"wiki": {"~artifact": words.key, "path": "words.txt"}, "list": {"~file": local.sha256}},
                "parts": [{"~artifact": words.key}],
            },
        },
        "token": {"~secret": "HF_TOKEN"},
        "blocked": {"~file": local.sha256},
    }
    assert Graph([made]).nodes[made.key].dependencies == {
        "sources.files[wiki]": words.key,
        "sources.parts[0]": words.key,
    }


def test_documents_are_refused_where_tokens_are_expected() -> None:
    documents = read(sources=Sources())
    assert tokenize(documents=documents).kind is Tokens
    with pytest.raises(DeclarationError) as caught:
        train(tokens=documents)  # pyright: ignore[reportArgumentType]
    assert "step train (test_step.py:" in str(caught.value)
    assert "tokens: expected Artifact[Tokens], got read, an artifact of Documents" in str(caught.value)


wrong: Any = multiply


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: wrong(count=1), "step multiply (test_step.py:"),
        (lambda: wrong(count=1), "count: expected Artifact[int], got 1 of type int"),
        (wrong, "missing a required argument: 'count'; it takes (count, times)"),
        (lambda: wrong(count=count_words(text="a"), tims=3), "got an unexpected keyword argument 'tims'"),
        (lambda: wrong(count=count_words), "call the step, so that it declares its artifact"),
        (
            lambda: fit(optimizer=Optimizer(schedule=lambda step: 1.0)),
            "optimizer.schedule: a lambda has no stable identity; pass a plain value",
        ),
        (lambda: fit(workers="many"), "workers: expected int, got 'many'"),  # pyright: ignore[reportArgumentType]
        (lambda: fit(optimizer=Optimizer(threads=lambda: 1)), "optimizer.threads: expected int"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_wrong_call_names_the_step_the_argument_and_the_remedy(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        call()
    assert said in str(caught.value)
    assert str(caught.value).count("test_step.py:") == 1


def test_calling_a_step_with_a_context_points_to_the_function(tmp_path: Path) -> None:
    ctx: Any = test_context(tmp_path)
    declare: Any = count_words
    for call in (lambda: declare(ctx, text="a"), lambda: declare(ctx=ctx, text="a")):
        with pytest.raises(DeclarationError, match=r"use count_words.fn\(ctx, ...\) to run the function"):
            call()


# What an edit moves

OPTIONS = """
from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    "A docstring."

    size: int = 1

    def doubled(self) -> int:
        return self.size * 2  # a comment


@dataclass(frozen=True)
class Other:
    size: int = 1
"""
STEPS = """
from typing import Any

from marin_pipeline import Context, step
from moved_helpers import near


@step
def make(ctx: Context, options: Any = None, size: int = 3) -> int:
    return near(size)


@step(version=1)
def numbered(ctx: Context, options: Any = None, size: int = 3) -> int:
    return near(size)


@step(uses=(near,))
def blind(ctx: Context, size: int = 3) -> int:
    return globals()["ne" + "ar"](size)
"""
EDITED = {
    "moved_options.py": OPTIONS,
    "moved_steps.py": STEPS,
    "moved_helpers.py": "from moved_far import far\n\n\ndef near(x):\n    return far(x)\n",
    "moved_far.py": "def far(x):\n    return x\n",
    "pyproject.toml": '[project]\nname = "moved"\n',
}


@pytest.fixture
def declared(tmp_path: Path) -> Iterator[Callable[..., tuple[str, str]]]:
    """Imports the project anew, one text replaced in one of its files; gives key and code digest of a call."""

    def declare(call: str, file: str = "", old: str = "", new: str = "") -> tuple[str, str]:
        assert old in EDITED.get(file, "")
        for name, text in EDITED.items():
            (tmp_path / name).write_text(text.replace(old, new) if name == file else text)
        for name in [name for name in sys.modules if name.startswith("moved_")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        steps, options = importlib.import_module("moved_steps"), importlib.import_module("moved_options")
        made = eval(call, {**vars(steps), **vars(options)}).declaration
        return made.key, made.code.digest

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        patch.setattr(sys, "dont_write_bytecode", True)
        yield declare
    for name in [name for name in sys.modules if name.startswith("moved_")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("call", "file", "old", "new", "moves"),
    [
        ("make()", "moved_far.py", "return x", "return -x", "code and key"),
        ("numbered()", "moved_far.py", "return x", "return -x", "code"),
        ("blind()", "moved_far.py", "return x", "return -x", "code and key"),
        ("make(Options())", "moved_options.py", "size * 2", "size * 3", "code and key"),
        ("make([{'a': (Options(),)}])", "moved_options.py", "size * 2", "size * 3", "code and key"),
        ("numbered(Options())", "moved_options.py", "size * 2", "size * 3", "code"),
        ("make()", "moved_options.py", "size * 2", "size * 3", ""),
        ("make(Options())", "moved_options.py", "# a comment", "# another", ""),
        ("make(Options())", "moved_options.py", "A docstring.", "Another.", ""),
        ("make(Options())", "moved_options.py", "\n\n\n@dataclass", "\n\n@dataclass", ""),
        ("make()", "moved_steps.py", "size: int = 3", "size: int = 4", "key"),
        ("make(size=3)", "moved_steps.py", "size: int = 3", "size: int = 4", ""),
        ("numbered()", "moved_steps.py", "size: int = 3", "size: int = 4", "key"),
        ("numbered()", "moved_steps.py", "version=1", "version=2", "key"),
        ("make()", "moved_steps.py", "options: Any = None, size", "size", "code and key"),
        ("make()", "pyproject.toml", "moved", "named_otherwise", ""),
    ],
)
def test_an_edit_moves_what_it_changes_and_nothing_else(
    declared: Callable[..., tuple[str, str]], call: str, file: str, old: str, new: str, moves: str
) -> None:
    key, code = declared(call)
    new_key, new_code = declared(call, file, old, new)
    assert (key != new_key, code != new_code) == ("key" in moves, "code" in moves)
    assert declared(call) == (key, code)


def test_a_step_with_a_version_is_named_by_its_project(declared: Callable[..., tuple[str, str]]) -> None:
    key, code = declared("numbered()")
    new_key, new_code = declared("numbered()", "pyproject.toml", "moved", "named_otherwise")
    assert (key != new_key, code == new_code) == (True, True)


# What is no step


async def waits(ctx: Context) -> int:
    return 1


def yields(ctx: Context) -> Iterator[int]:
    yield 1


def takes_more(ctx: Context, *texts: str) -> int:
    return 1


def takes_any(ctx: Context, **options: str) -> int:
    return 1


def by_position(ctx: Context, text: str, /) -> int:
    return 1


def untyped(ctx, text) -> int:
    return 1


def returns_what(ctx: Context, text: str):
    return text


def without_context(text: str) -> int:
    return 1


def context_by_name(*, ctx: Context) -> int:
    return 1


def without_parameters() -> int:
    return 1


class Holder:
    def method(self, ctx: Context) -> int:
        return 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (waits, "is no async function"),
        (yields, "returns one value and does not yield"),
        (takes_more, r"\*texts hides what the step takes; name each parameter"),
        (takes_any, r"\*\*options hides what the step takes"),
        (by_position, "'text' is passed by name; move the '/' before it"),
        (untyped, "the parameter 'text' has no annotation"),
        (returns_what, r"what it returns has no annotation; write `def returns_what\(...\) -> int:`"),
        (without_context, r"write `def without_context\(ctx: Context, ...\)`"),
        (context_by_name, "the first parameter of a step is its context"),
        (without_parameters, "the first parameter of a step is its context"),
        (lambda ctx: 1, "a lambda has no name to be found by"),
        (Holder.method, "a function at the top level of a file"),
        (Holder, "needs a plain function, got type"),
        (functools.partial(waits), "needs a plain function, got partial"),
        (3, "needs a plain function, got int 3"),
    ],
)
def test_what_could_not_be_found_called_or_keyed_is_no_step(function: Any, said: str) -> None:
    with pytest.raises(DeclarationError, match=said) as caught:
        step(function)
    assert "test_step.py:" in str(caught.value) or "@step needs" in str(caught.value)


def test_a_nested_function_is_no_step() -> None:
    with pytest.raises(DeclarationError, match="a function at the top level of a file"):

        @step
        def inner(ctx: Context) -> int:
            return 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"version": 0}, "version=0 must be an int from 1 on"),
        ({"version": True}, "version=True must be an int"),
        ({"version": "2"}, "version='2' must be an int"),
        ({"id": "other"}, "id='other' needs a version"),
        ({"version": 1, "id": "a b"}, "may hold letters, digits"),
        ({"version": 1, "id": "../up"}, "may hold letters, digits"),
        ({"exact": "exactly"}, "exact='exactly' must be one of bitwise, logical, tolerance"),
        ({"uses": (3,)}, "uses=3: name functions, classes or modules"),
        ({"uses": (len,)}, "name functions, classes or modules with source"),
    ],
)
def test_wrong_options_are_refused(options: Mapping[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        step(**options)(without_default)


def without_default(ctx: Context) -> int:
    return 1


def test_a_version_needs_a_named_project(tmp_path: Path) -> None:
    program = tmp_path / "alone.py"
    program.write_text(
        "from marin_pipeline import Context, step\n@step(version=1)\ndef f(ctx: Context) -> int: return 1\n"
    )
    with pytest.raises(
        DeclarationError, match=r"no pyproject.toml .* lies above alone.py; add one, or leave the version"
    ):
        exec(compile(program.read_text(), str(program), "exec"), {"__name__": "alone"})


def test_what_code_uses_out_of_sight_is_in_its_digest() -> None:
    plain, using = step(without_default), step(uses=(count_words, Holder, json))(without_default)
    assert plain().key != using().key


def test_exactness_may_follow_the_arguments() -> None:
    declared = step(exact=lambda arguments: "logical" if arguments else "tolerance")(without_default)().declaration
    assert declared is not None
    assert declared.exact == "tolerance"


def loud(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@step
@loud
def decorated(ctx: Context, text: str) -> int:
    return 1


def test_a_decorated_function_keeps_its_own_parameters() -> None:
    assert list(decorated.signature.parameters) == ["text"]
    assert decorated.file == Path(__file__)


ALIASES = """
from marin_pipeline import Context, step
from marin_pipeline.core.reading import decode

type Json = None | int | str | list[Json] | dict[str, Json]
type Pair = tuple[int, float]


@step(version=1)
def make(ctx: Context, x: Json, y: Pair = (1, 2)) -> Json: ...


if __name__ == "__main__":
    value = {"a": [1, {"b": None}]}
    print(make(x=value).declaration.spec.decode())
    print(decode(value, Json, "x") == value)
    try:
        make(x=[1, {"a": 2.5}])
    except TypeError as error:
        print(error)
"""


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_a_type_may_stand_inside_itself(tmp_path: Path, version: str) -> None:
    (tmp_path / "aliases.py").write_text(ALIASES)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "aliases"\n')
    out = printed(start(python(version), "aliases.py", path=(ROOT,), folder=tmp_path, seed="0")).splitlines()
    assert out[0].startswith('{"arguments":{"x":{"a":[1,{"b":null}]},"y":[1,2.0]},"code"')
    assert out[1] == "True"
    expected = "x[1][a]: expected None | int | str | list[Json] | dict[str, Json], got 2.5 of type float"
    assert out[2].endswith(expected)


def refuses(arguments: Mapping[str, Any]) -> Any:
    raise InputError("text: must not be empty; give some")


def test_an_error_of_a_chain_names_the_step() -> None:
    with pytest.raises(InputError, match=r"step without_default \(test_step.py:\d+\): text: must not be empty"):
        step(chain=refuses)(without_default)()


def test_the_strings_of_a_step_tell_what_it_is() -> None:
    assert repr(multiply) == "<step marin_pipeline/multiply>"
    assert repr(multiply(count_words("a"))).startswith("<artifact multiply ")
    assert multiply.__doc__ is None
    assert fit.id == "marin_pipeline/fit/adam"


def test_an_id_with_a_part_that_looks_like_a_key_is_refused() -> None:
    """Everything that reads a store from its listing tells keys from ids by that."""
    with pytest.raises(DeclarationError, match="whose part '0123456789abcdef' looks like the folder of a key"):
        step(version=1, id="sweeps/0123456789abcdef")(_typed)


def _typed(ctx: Context, x: int) -> int:
    return x
