"""The digest of a step's code: what moves it, what does not, and that it is the same everywhere."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_pipeline.core import source
from marin_pipeline.core.errors import InputError
from marin_pipeline.core.source import (
    CodeDigest,
    code_digest,
    is_third_party,
    module_id,
    normalized,
    project_name,
    project_root,
    unchanging,
)
from tests.core.costs import calls
from tests.core.pythons import VERSIONS, python

Others = Sequence[tuple[Path, str]]

STEP = '''\
"""Steps of an experiment."""

from __future__ import annotations

from dataclasses import dataclass

import marin_pipeline
from marin_pipeline import Context, step
from words import counting, unused


SEPARATOR = " "
TABLE = {"a": 1}
TABLE["b"] = 2
COUNTS = []


@dataclass(frozen=True)
class Base:
    """A base."""

    scale: int = 1


class Options(Base):
    def scaled(self, value: int) -> int:
        return value * self.scale


def traced(fn):
    return fn


@traced
def split(text: str) -> list[str]:
    """Words."""
    return text.split(SEPARATOR)


@step(version=1)
def count_words(ctx: Context, text: str = "a b", options: Options = Options(), *, times: int = (2)) -> int:
    """Count."""
    from words.late import adjusted

    # A comment.
    message = f"{len(text)!r:>{times}} words # not a comment"
    block = """
    first

    # second
    """
    print(message, block, TABLE)
    return adjusted(options.scaled(counting.count(split(text))))


def unrelated(x):
    return unused.nothing(x)


if __name__ == "__main__":
    count_words(text="x")
'''

PROJECT = {
    "pyproject.toml": '[project]\nname = "word-count"\n',
    "experiments/hello.py": STEP,
    "src/words/__init__.py": "from . import shared\n",
    "src/words/shared.py": "UNIT = 1\n",
    "src/words/counting.py": "from words.deep.inner import total\n\n\ndef count(items):\n    return total(items)\n",
    "src/words/deep/inner.py": "from .. import cycle\n\n\ndef total(items):\n    return len(items) * cycle.ONE\n",
    "src/words/cycle.py": "from words import counting\n\nONE = 1\n",
    "src/words/late.py": "import json\nimport numpy\n\n\ndef adjusted(x):\n    return x\n",
    "src/words/unused.py": "def nothing(x):\n    return x\n",
    ".venv/pyvenv.cfg": "",
    ".venv/lib/python3.12/site-packages/numpy.py": "VERSION = 1\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path, PROJECT)
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def digest(project: Path, classes: Others = (), uses: Others = ()) -> CodeDigest:
    return code_digest(project / "experiments/hello.py", "count_words", classes=classes, uses=uses)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) >= 1, f"{old!r} is not in {file.name}"
    file.write_text(text.replace(old, new, 1))


def edited(project: Path, name: str, old: str, new: str) -> list[str]:
    """Names of the pieces that an edit changes; the digest changes exactly when a piece does."""
    before = digest(project)
    edit(project / name, old, new)
    after = digest(project)
    names = sorted({piece.name for piece in set(before.pieces) ^ set(after.pieces)})
    assert (before.digest == after.digest) == (not names)
    return names


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# A comment.", "# Another."),
        ("    # A comment.\n", ""),
        ('"""Count."""', '"""Count, said\n\n    otherwise."""'),
        ('    """Count."""\n', ""),
        ('    """A base."""\n', ""),
        ('"""Steps of an experiment."""', '"""Other steps."""'),
        ("    return adjusted(", "\n\n    return adjusted("),
        ("times: int = (2)", "times: int = (  # why )\n    3 + 1)"),
        ("times: int = (2)", "times: int"),
        ('text: str = "a b"', "text: str = SEPARATOR"),
        ("options: Options = Options()", "options: Options = Options(scale=unrelated(2))"),
        ("@step(version=1)", "@step(version=2, uses=[unrelated])"),
        ("@step(version=1)", "@step"),
        ("@step(version=1)", "@marin_pipeline.step(version=1)"),
        ("unused.nothing(x)", "unused.nothing(x + 1)"),
        ("import counting, unused", "import counting, unused, more"),
        ('count_words(text="x")', 'count_words(text="y")'),
        ("if __name__", "counting_words = unused\n\n\nif __name__"),
    ],
)
def test_edits_that_change_nothing_leave_the_digest(project: Path, old: str, new: str) -> None:
    assert edited(project, "experiments/hello.py", old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "piece"),
    [
        ("len(text)!r", "len(text)!s", "count_words"),
        ("words # not a comment", "words # no comment", "count_words"),
        ("    first\n\n", "    first\n", "count_words"),
        ("    # second", "    # third", "count_words"),
        ("text: str =", "text: bytes =", "count_words"),
        ("text.split(", "text.rsplit(", "split"),
        ("value * self.scale", "value + self.scale", "Options"),
        ("scale: int = 1", "scale: int = 2", "Base"),
        ('SEPARATOR = " "', 'SEPARATOR = "  "', "SEPARATOR"),
        ('TABLE["b"] = 2', 'TABLE["b"] = 3', "TABLE"),
        ("COUNTS = []", "TABLE.update(c=3)", "TABLE"),
        ("    return fn\n", "    return fn  or None\n", "traced"),
        ("from words import counting", "from words import counting as counting", None),
        ("from words import counting", "from words import cycle as counting", "counting"),
    ],
)
def test_edits_of_what_the_step_reaches_by_name_change_that_piece(
    project: Path, old: str, new: str, piece: str | None
) -> None:
    changed = edited(project, "experiments/hello.py", old, new)
    names = [name for name in changed if name.startswith("experiments/hello:") and "order" not in name]
    assert names == ([f"experiments/hello:{piece}"] if piece else [])


@pytest.mark.parametrize(
    ("file", "old", "new", "piece"),
    [
        ("src/words/counting.py", "total(items)\n", "total(items) + 0\n", "src/words/counting"),
        ("src/words/deep/inner.py", "len(items)", "sum(items)", "src/words/deep/inner"),
        ("src/words/cycle.py", "ONE = 1", "ONE = 2", "src/words/cycle"),
        ("src/words/shared.py", "UNIT = 1", "UNIT = 2", "src/words/shared"),
        ("src/words/late.py", "return x", "return -x", "src/words/late"),
    ],
)
def test_edits_in_modules_that_the_step_imports_change_that_module(
    project: Path, file: str, old: str, new: str, piece: str
) -> None:
    assert edited(project, file, old, new) == [piece]


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("src/words/unused.py", "return x", "return -x"),
        (".venv/lib/python3.12/site-packages/numpy.py", "1", "2"),
        ("src/words/late.py", "import numpy", "import numpy\nif TYPE_CHECKING:\n    import words.unused"),
        ("src/words/late.py", "\n\ndef", "\n# said\n\ndef"),
        (
            "src/words/late.py",
            "    return x\n",
            "    return x\n\n\nif __name__ == '__main__':\n    import words.unused\n",
        ),
        ("pyproject.toml", "word-count", "other"),
    ],
)
def test_edits_of_what_the_step_does_not_import_leave_the_digest(project: Path, file: str, old: str, new: str) -> None:
    assert edited(project, file, old, new) == []


def test_the_pieces_name_all_that_is_reached(project: Path) -> None:
    names = [piece.name for piece in digest(project).pieces]
    own = [
        "Base",
        "Context",
        "Options",
        "SEPARATOR",
        "TABLE",
        "count_words",
        "counting",
        "dataclass",
        "split",
        "traced",
    ]
    assert names == [
        "experiments/hello: order of statements",
        *(f"experiments/hello:{name}" for name in own),
        "src/words",
        "src/words/counting",
        "src/words/cycle",
        "src/words/deep/inner",
        "src/words/late",
        "src/words/shared",
    ]


def test_a_module_that_appears_is_seen(project: Path) -> None:
    edit(project / "src/words/late.py", "import json", "import tables")
    before = digest(project)
    write(project, {"experiments/tables.py": "SIZE = 1\n"})
    after = digest(project)
    assert {piece.name for piece in set(after.pieces) - set(before.pieces)} == {"experiments/tables"}
    write(project, {"experiments/tables.py": "SIZE = 2\n"})
    assert digest(project).digest != after.digest


def test_inside_a_block_that_says_so_files_are_looked_at_once(project: Path) -> None:
    with unchanging():
        before = digest(project)
        edit(project / "src/words/late.py", "return x", "return -x")
        with unchanging():
            assert digest(project) == before
        assert digest(project) == before
    assert digest(project) != before


def test_of_modules_of_one_name_all_count_in_the_order_of_the_search(tmp_path: Path) -> None:
    user = {"pyproject.toml": "", "a.py": "from helper import g\n" + USE, "helper.py": ONE}
    write(tmp_path / "project", user)
    write(tmp_path / "one", {"helper.py": "def g(): return 5\n"})
    write(tmp_path / "same", {"helper.py": ONE})
    write(tmp_path / "other", {"helper.py": "def g(): return 3\n", "pyproject.toml": ""})

    def of(*search: str, home: Path = tmp_path) -> str:
        return code_digest(home / "project/a.py", "f", search=[home / folder for folder in search]).digest

    alone, both = of(), of("other", "one")
    assert of("project", "nowhere") == of("same") == alone
    assert of("same", "one") != of("one")
    assert len({alone, both, of("one", "other"), of("one"), of("other")}) == 5
    shutil.copytree(tmp_path, tmp_path / "z/elsewhere")
    assert of("other", "one", home=tmp_path / "z/elsewhere") == both
    edit(tmp_path / "other/helper.py", "3", "4")
    assert of() == alone
    assert of("other", "one") != both


def test_a_folder_that_the_program_searches_counts_beside_its_own(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "from helper import g\n" + USE, "helper.py": ONE, "lib/helper.py": ONE})
    found = code_digest(tmp_path / "a.py", "f", search=[tmp_path / "lib"])
    assert [piece.name for piece in found.pieces] == ["a:f", "a:g", "helper", "lib/helper"]


def test_what_lies_beside_a_link_and_beside_its_file_counts(tmp_path: Path) -> None:
    write(tmp_path, {"real/a.py": "from helper import g\n" + USE, "real/helper.py": ONE, "links/helper.py": ONE})
    (tmp_path / "links/a.py").symlink_to(tmp_path / "real/a.py")
    found = {code_digest(tmp_path / "links/a.py", "f").digest}
    for folder in ("real", "links"):
        edit(tmp_path / folder / "helper.py", "1", "2")
        found.add(code_digest(tmp_path / "links/a.py", "f").digest)
    assert len(found) == 3


def test_a_tree_of_links_has_the_digest_of_the_tree_that_it_shows(tmp_path: Path) -> None:
    write(tmp_path, {"real/a.py": "from helper import g\n" + USE, "real/helper.py": ONE, "links/pyproject.toml": ""})
    for name in ("a.py", "helper.py"):
        (tmp_path / "links" / name).symlink_to(tmp_path / "real" / name)
    places = [code_digest(tmp_path / folder / "a.py", "f").digest for folder in ("real", "links")]
    assert places[0] == places[1]


def test_the_order_of_statements_counts_and_that_of_functions_does_not(tmp_path: Path) -> None:
    file = tmp_path / "order.py"

    def of(*statements: str) -> str:
        file.write_text("\n".join(statements))
        return code_digest(file, "f").digest

    f, g = "def f():\n    return g(), B", "def g():\n    return A"
    assert of("A = [1]", "B = list(A)", "A += [2]", f, g) != of("A = [1]", "A += [2]", "B = list(A)", f, g)
    assert of("A = [1]", "B = list(A)", f, g) == of(g, "A = [1]", f, "B = list(A)")


@pytest.mark.parametrize(
    ("source", "reached"),
    [
        ("def f(x: 'list[A]'): pass", "A"),
        ("def f(x: Literal['A']): pass", ""),
        ("def f(A): return A", ""),
        ("def f():\n    A = 1\n    return lambda: A", ""),
        ("def f():\n    def inner(B):\n        return B\n    return B", "B"),
        ("def f():\n    global A\n    A = 1", "A"),
        ("def f(x): return [A for A in x]", ""),
        ("def f(): return [A for A in A]", "A"),
        ("def f(x): return [(A := y) for y in x], A", ""),
        ("def f():\n    class C:\n        A = 1\n        def g(self): return A", "A"),
        ("def f():\n    try: pass\n    except ValueError as A: return A", ""),
        ("def f(x):\n    match x:\n        case {'a': A, **B}: return A, B", ""),
        ("def f(x=lambda: A): pass", "A"),
        ("try:\n    f = B\nexcept NameError:\n    f = A", "AB"),
        ("for f in range(3):\n    pass\nf.x = A", "A"),
        ("def f(): return D\nwith open(A) as D: pass", "A"),
        ("def f(): return D\nD = {}\nfor k in A: D[k] = 1", "A"),
        ("def f(): return D\nD = {}\nD.x.y(A)", "A"),
        ("def f(): return D\nD = {}\nprint(D, A)", ""),
        ("if TYPE_CHECKING:\n    A = B\ndef f(x: A): pass", "A"),
        ("def f(): return D\n[D := x for x in A]", "A"),
    ],
)
def test_names_are_resolved_by_the_scopes_of_python(tmp_path: Path, source: str, reached: str) -> None:
    file = tmp_path / "scopes.py"
    file.write_text(f"from typing import Literal\nA = 1\nB = 2\n{source}\n")
    pieces = {piece.name.rpartition(":")[2] for piece in code_digest(file, "f").pieces}
    assert {"A", "B"} & pieces == set(reached)


def test_a_star_import_always_counts(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "from b import *\n\n\ndef f():\n    return SIZE\n", "b.py": "SIZE = 1\n"})
    assert [piece.name for piece in code_digest(tmp_path / "a.py", "f").pieces] == ["a:*", "a:f", "b"]


USE = "\n\ndef f(ctx):\n    return g()\n"
FALLBACK = "try:\n    from fast import g\nexcept ImportError:\n    from slow import g\n"
BY_VERSION = "import sys\nif sys.version_info >= (3, 12):\n    from fast import g\nelse:\n    from slow import g\n"
FOR_CHECKERS = (
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fast import g\nelse:\n    from slow import g\n"
)
LATE = "def g():\n    try:\n        import fast\n    except ImportError:\n        pass\n"
ONE = "def g(): return 1\n"
EITHER = {"fast.py": ONE, "slow.py": ONE}
PACKAGE = {"p/__init__.py": "ONE = 1\n", "p/q/__init__.py": "ONE = 1\n", "p/q/r.py": ONE}


@pytest.mark.parametrize(
    ("files", "edited_file"),
    [
        ({"a.py": FALLBACK + USE, **EITHER}, "fast.py"),
        ({"a.py": FALLBACK + USE, **EITHER}, "slow.py"),
        ({"a.py": BY_VERSION + USE, **EITHER}, "fast.py"),
        ({"a.py": BY_VERSION + USE, **EITHER}, "slow.py"),
        ({"a.py": FOR_CHECKERS + USE, **EITHER}, "slow.py"),
        ({"a.py": "from b import g\n" + USE, "b.py": FALLBACK, **EITHER}, "slow.py"),
        ({"a.py": LATE + USE, **EITHER}, "fast.py"),
        ({"a.py": "from p.q.r import g\n" + USE, **PACKAGE}, "p/__init__.py"),
        ({"a.py": "from p.q.r import g\n" + USE, **PACKAGE}, "p/q/__init__.py"),
        ({"a.py": "import p.q.r\n\n\ndef f(ctx):\n    return p.q.r.g()\n", **PACKAGE}, "p/q/r.py"),
        ({"a.py": "from p import g\n" + USE, "p/__init__.py": "from p.q import g\n", "p/q.py": ONE}, "p/q.py"),
        ({"a.py": "from b import *\n" + USE, "b.py": "from c import *\n", "c.py": ONE}, "c.py"),
        ({"a.py": "from b import g\n" + USE, "b.py": "from c import *\n", "c.py": ONE}, "c.py"),
        ({"a.py": "from d import loud\n\n\n@loud\ndef f(ctx): pass\n", "d.py": "def loud(fn): 1\n"}, "d.py"),
        ({"a.py": "TIMES = 1\n\n\n@loud(TIMES)\ndef f(ctx): pass\n"}, "a.py"),
        ({"a.py": "class C:\n    size = 1\n\n\ndef f(ctx):\n    return C.size\n"}, "a.py"),
        ({"a.py": "class C: pass\n\n\nC.size = 1\n\n\ndef f(ctx):\n    return C.size\n"}, "a.py"),
        ({"a.py": "class M(type):\n    x = 1\n\n\nclass C(metaclass=M): pass\n\n\ndef f(ctx): C.x\n"}, "a.py"),
        ({"a.py": "from __future__ import annotations\nclass C:\n    x = 1\ndef f(ctx, c: C | None): pass\n"}, "a.py"),
        ({"a.py": "class C:\n    def m(self): return 1\n\n\ndef f(ctx, c: 'list[C] | None'): pass\n"}, "a.py"),
        ({"a.py": "import b\n\nb.SIZE = 1\n\n\ndef f(ctx):\n    return b.SIZE\n", "b.py": "SIZE = 0\n"}, "a.py"),
        ({"a.py": "A, (B, *C) = 1, (2, 3)\n\n\ndef f(ctx):\n    return B\n"}, "a.py"),
        ({"a.py": "if True:\n    def g(): return 0\nelse:\n    def g(): return 1\n" + USE}, "a.py"),
    ],
)
def test_whatever_way_code_is_reached_an_edit_of_it_moves_the_digest(
    tmp_path: Path, files: dict[str, str], edited_file: str
) -> None:
    write(tmp_path, {"pyproject.toml": "", **files})
    before = code_digest(tmp_path / "a.py", "f").digest
    with (tmp_path / edited_file).open("a") as file:
        file.write("\n# said\n")
    assert code_digest(tmp_path / "a.py", "f").digest == before
    edit(tmp_path / edited_file, "1", "2")
    assert code_digest(tmp_path / "a.py", "f").digest != before


T = "T = {}\n"


@pytest.mark.parametrize(
    "statement",
    [
        "_ = T.pop(1, 0)",
        "x = T.setdefault('a', 1)",
        "if T.append(1): pass",
        "assert not T.append(1)",
        "T or T.append(1)",
        "[T.append(i) for i in (1,)]",
        "x = sorted((0,), key=lambda i: T.setdefault(i, 1))",
        "x = (T or T).append(1)",
        "x = T.get('k').add(1)",
        "print(T.pop(1))",
        "for T['k'] in (1,): pass",
        "with open('1') as T['k']: pass",
        "(p, (T['k'], q)) = 0, (1, 2)",
        "class K: T['a'] = 1",
        "class K:\n    x = T.setdefault('a', 1)",
        "def other(x=T.setdefault('a', 1)): pass",
        "@T.register(1)\ndef other(): pass",
        "while T.pop(1): pass",
        "TYPE_CHECKING = True\nif TYPE_CHECKING: T = 1",
        "import typing\ntyping.TYPE_CHECKING = True\nif typing.TYPE_CHECKING: T = 1",
        "from mine import TYPE_CHECKING\nif TYPE_CHECKING: T = 1",
    ],
)
def test_whatever_way_a_statement_changes_what_is_reached_an_edit_of_it_moves_the_digest(
    tmp_path: Path, statement: str
) -> None:
    file = tmp_path / "a.py"
    file.write_text(f"{T}{statement}\n\n\ndef f(ctx):\n    return T\n")
    before = code_digest(file, "f").digest
    edit(file, "1", "2")
    assert code_digest(file, "f").digest != before


@pytest.mark.parametrize(
    "statement",
    [
        "x = json.loads('1')",
        "import c.b\nx = c.b.f(1)",
        "x = f(1).named('f')",
        "@step(version=1)\ndef other(ctx, a=T.get(1)): pass",
        "def other(ctx): T.pop(1)",
        "def other(ctx, a: T.get(1)): pass",
        "TYPE_CHECKING = False\nif TYPE_CHECKING: T = 1",
        "def named(fn): fn.__name__ = 'x'\nif __name__ == '__main__': T = 1",
    ],
)
def test_statements_that_change_nothing_reached_are_left_out(tmp_path: Path, statement: str) -> None:
    file = tmp_path / "a.py"
    file.write_text(f"import json\nfrom marin_pipeline import step\n{T}{statement}\n\n\ndef f(ctx): json, T, c\n")
    before = code_digest(file, "f").digest
    edit(file, "1", "2")
    assert code_digest(file, "f").digest == before


def test_a_renamed_module_is_another_one(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": "", "a.py": "from b import g\n" + USE, "b.py": ONE})
    before = code_digest(tmp_path / "a.py", "f")
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    assert "b" not in [piece.name for piece in code_digest(tmp_path / "a.py", "f").pieces]
    edit(tmp_path / "a.py", "from b", "from c")
    (tmp_path / "a.py").rename(tmp_path / "other.py")
    after = code_digest(tmp_path / "other.py", "f")
    assert [piece.name for piece in after.pieces] == ["other:f", "other:g", "c"]
    assert (after.pieces[0].digest, after.pieces[2].digest) == (before.pieces[0].digest, before.pieces[2].digest)
    assert after.digest != before.digest


def test_the_default_of_a_helper_is_code(project: Path) -> None:
    assert edited(project, "experiments/hello.py", "def split(text: str)", "def split(text: str = '')") == [
        "experiments/hello:split"
    ]


def test_classes_of_arguments_and_declared_uses_count(project: Path) -> None:
    own = digest(project, classes=[(project / "experiments/hello.py", "Options")], uses=[])
    assert own == digest(project)
    other = digest(project, uses=[(project / "experiments/hello.py", "unrelated")])
    assert {piece.name for piece in set(other.pieces) - set(own.pieces)} == {
        "experiments/hello:unrelated",
        "experiments/hello:unused",
        "src/words/unused",
    }
    module = digest(project, classes=[(project / "src/words/unused.py", "Anything.Inner")])
    assert {piece.name for piece in set(module.pieces) - set(own.pieces)} == {"src/words/unused"}
    library = digest(project, classes=[(Path(json.__file__), "JSONDecoder"), (Path(pytest.__file__), "")])
    assert library == own


def test_no_path_of_this_machine_is_in_the_digest(project: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved" / "deeper"
    write(moved, PROJECT)
    assert digest(moved) == digest(project)


def test_line_endings_and_encoding_do_not_count(project: Path) -> None:
    before = digest(project)
    for file in project.rglob("*.py"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert digest(project) == before
    (project / "src/words/shared.py").write_bytes(b"\xef\xbb\xbfUNIT = 1\r\n")
    assert digest(project) == before


def test_a_file_without_a_project_is_named_by_its_own_folder(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "def f(): pass\n", "pkg/__init__.py": ""})
    assert module_id(tmp_path / "a.py") == "a"
    assert project_root(tmp_path / "a.py") == tmp_path
    assert project_name(tmp_path / "a.py") is None


def test_files_are_named_by_their_project(project: Path) -> None:
    assert module_id(project / "experiments/hello.py") == "experiments/hello"
    assert module_id(project / "src/words/__init__.py") == "src/words"
    assert project_root(project / "src/words/late.py") == project
    assert project_name(project / "src/words/late.py") == "word_count"
    (project / "pyproject.toml").write_text("[tool.x]\n")
    assert project_name(project / "src/words/late.py") is None
    (project / "pyproject.toml").write_text("[project\n")
    with pytest.raises(InputError, match=r"pyproject\.toml: cannot be read .*line 1"):
        project_name(project / "src/words/late.py")


def test_third_party_code_is_told_by_where_it_lies(project: Path) -> None:
    assert is_third_party(Path(json.__file__))
    assert is_third_party(Path(pytest.__file__))
    assert is_third_party(project / ".venv/lib/python3.12/site-packages/numpy.py")
    assert is_third_party(project / ".venv/bin/tool.py")
    assert not is_third_party(project / "experiments/hello.py")


@pytest.mark.parametrize("helper", ["helper.py", "lib/helper.py", "words/helper.py"])
def test_a_project_may_be_a_virtual_environment(tmp_path: Path, helper: str) -> None:
    module = helper.removesuffix(".py").replace("/", ".")
    write(tmp_path, {"pyvenv.cfg": "", "a.py": f"from {module} import g\n{USE}", helper: ONE})
    assert not is_third_party(tmp_path / helper)
    assert is_third_party(tmp_path / "lib/python3.12/site-packages/g.py")
    before = code_digest(tmp_path / "a.py", "f").digest
    edit(tmp_path / helper, "1", "2")
    assert code_digest(tmp_path / "a.py", "f").digest != before


@pytest.mark.parametrize(
    ("source", "qualname", "message"),
    [
        ("x = (", "f", r"a\.py, line 1: Python 3\.\d+ cannot parse this file .*; correct that line"),
        (
            "\n\ndef g():\n    def f(): pass\n",
            "g.<locals>.f",
            r"a\.py, line 4: g\.<locals>\.f is not defined at the top",
        ),
        ("if __name__ == '__main__':\n    def f(): pass\n", "f", r"a\.py, line 2: f is not .*; move f there"),
        ("x = 1\n", "f", r"a\.py: f is not defined at the top level"),
        ("\n# \xe9\n", "f", r"a\.py, line \d: .*utf-8"),
    ],
)
def test_errors_name_file_and_line_and_remedy(tmp_path: Path, source: str, qualname: str, message: str) -> None:
    (tmp_path / "a.py").write_bytes(source.encode("latin-1"))
    with pytest.raises(InputError, match=message):
        code_digest(tmp_path / "a.py", qualname)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a\.py: the source cannot be read \(No such file"):
        code_digest(tmp_path / "a.py", "f")


# Normalized text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1  # one\n\n\ny = '#'\n", "x = 1\ny = '#'"),
        ('"""Doc."""\n\nx = """a\n\n  # b  \n"""  # c\n', 'x = """a\n\n  # b  \n"""'),
        ("def f():\n    'doc'\n    return 1\n", "def f():\n    return 1"),
        ("class C:\n    a: int\n    '''A field.'''\n", "class C:\n    a: int"),
        ("x = f'{a['b']}' # c\n" if sys.version_info >= (3, 12) else "x = f'{a[0]}' # c\n", None),
        ("x = f'{a:{b}}' f\"{{#}}{'#'}\"  # c\n", "x = f'{a:{b}}' f\"{{#}}{'#'}\""),
        ("x = rf'\\{a}' R'\\\\' \"'\", b'#'  # c\n", None),
        ("x = 1 + \\\n    2 # c\n", "x = 1 + \\\n    2"),
        ("x = 1 \\\n\n+y\n", "x = 1 \\\n\n+y"),
        ("x = y if'#'else'f'  # c\n", "x = y if'#'else'f'"),
        ("from marin_pipeline import step as s\n@s(version=1)\ndef f(): pass\n", None),
        ("@step\ndef f(): pass\n", "@step\ndef f(): pass"),
        ("\N{GREEK SMALL LETTER ALPHA} = '\N{BULLET}' # \N{BULLET}\n", "\N{GREEK SMALL LETTER ALPHA} = '\N{BULLET}'"),
    ],
)
def test_text_is_normalized_by_position(text: str, expected: str | None) -> None:
    kept = {
        "x = f'": text.rsplit(" #", 1)[0],
        "x = rf": text.rsplit("  #", 1)[0],
        "from m": "from marin_pipeline import step as s\ndef f(): pass",
    }
    assert normalized(text) == (expected or kept[text[:6]])


LINES = STEP.split("\n")
INSIDE_A_STRING = range(LINES.index('    block = """') + 1, LINES.index('    """') + 1)
BETWEEN = [line for line in range(len(LINES) + 1) if line not in INSIDE_A_STRING]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(BETWEEN), st.sampled_from(["", "   ", "#", '    # it\'s """ here', "# f'{", "\t# \\", "\f"])
        ),
        max_size=12,
    )
)
def test_inserted_comments_and_blank_lines_never_move_the_digest(
    project: Path, insertions: list[tuple[int, str]]
) -> None:
    write(project, PROJECT)
    before = digest(project)
    lines: list[str] = list(LINES)
    for line, text in sorted(insertions, reverse=True):
        lines.insert(line, text)
    (project / "experiments/hello.py").write_text("\n".join(lines))
    assert digest(project) == before
    assert normalized("\n".join(lines)) == normalized(STEP)


# The same everywhere

GOLDEN = {
    "plain": (
        "LIMIT = 3\n\n\ndef f(x: int) -> int:\n    '''Doc.'''\n    return min(x, LIMIT)  # why\n",
        "f638aad535c232824918d6251e9b878bb63357db17a85985ddd732eb113fabc8",
    ),
    "formatted": (
        "W = 7\n\n\ndef f(x):\n"
        "    s = f\"{x!r:>{W}} {'q'} {{#}} \\N{BULLET}\" rf'\\{x}' # c\n"
        "    return f'''{\n    x}\n\n# kept'''\n",
        "42408fafbcc373abe2d6a6f6541567ce639dcc8476037455814853900f61d76c",
    ),
    "declared": (
        "from marin_pipeline import step\n\n\nclass A:\n    x: int = 1\n    'A field.'\n\n\n@step(version=2)\n"
        "async def f(ctx, a: 'A' = A(), *, b=(1), **c) -> None:\n    await a\n",
        "57e2323fc8820467ea4b1301ebd3128b17b69409dcec6328be1e035ba69f8100",
    ),
}


def digests_elsewhere(distribution: Path, files: list[Path], python: str = sys.executable, seed: int = 0) -> list[str]:
    """Digests of `f` in the files, by another process that takes the package from `distribution`."""
    program = (
        "import sys, json; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from marin_pipeline.core.source import code_digest\n"
        "print(json.dumps([code_digest(Path(file), 'f').digest for file in sys.argv[2:]]))\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, "-c", program, str(distribution), *map(str, files)]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


@pytest.fixture
def distribution(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a distribution: the real core, and a step with a module of data."""

    def make(name: str) -> Path:
        folder = tmp_path / name
        package = Path(__file__).parents[2] / "marin_pipeline"
        shutil.copytree(package / "core", folder / "marin_pipeline/core", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(package / "__init__.py", folder / "marin_pipeline/__init__.py")
        write(
            folder,
            {
                "marin_pipeline/data/__init__.py": "",
                "marin_pipeline/data/clean.py": "from marin_pipeline.core.errors import InputError\nSIZE = 1\n",
                "marin_pipeline/store/__init__.py": "",
                "marin_pipeline/run/shards.py": "SIZE = 1\n",
                "marin_pipeline/cli.py": "SIZE = 1\n",
                "marin_pipeline/tool.py": "SIZE = 1\n",
                "marin_pipeline/lab/site.py": "SIZE = 1\n",
                "steps/__init__.py": "",
                "marin_pipeline/data/schema.py": "Documents = int\n",
                "steps/clean.py": "from marin_pipeline import Context, Documents, cli, step, tool\n"
                "import marin_pipeline.lab.site\nimport marin_pipeline.run.shards\n\n\n"
                "@step(version=1)\ndef f(ctx: Context, n: int = 1) -> int:\n"
                "    from marin_pipeline import store\n    from marin_pipeline.data.clean import SIZE\n\n"
                "    return SIZE, store, cli, tool, marin_pipeline.run, Documents\n",
            },
        )
        return folder

    return make


@pytest.mark.parametrize("version", VERSIONS)
def test_golden_digests_hold_on_every_python_and_hash_seed(tmp_path: Path, version: str) -> None:
    write(tmp_path, {f"{name}.py": source for name, (source, _) in GOLDEN.items()})
    files = [tmp_path / f"{name}.py" for name in GOLDEN]
    for seed in (0, 1, 2):
        found = digests_elsewhere(Path(__file__).parents[2], files, python(version), seed)
        assert found == [golden for _, golden in GOLDEN.values()]


def test_the_digest_is_over_the_names_and_digests_of_the_pieces(tmp_path: Path) -> None:
    write(tmp_path, {"plain.py": GOLDEN["plain"][0]})

    def sha256(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    limit, f = sha256("LIMIT = 3"), sha256("def f(x: int) -> int:\n    return min(x, LIMIT)")
    expected = sha256(f"marin_pipeline code 1\nplain:LIMIT {limit}\nplain:f {f}")
    assert code_digest(tmp_path / "plain.py", "f").digest == expected == GOLDEN["plain"][1]


def test_a_checkout_and_a_wheel_give_one_digest(distribution: Callable[[str], Path]) -> None:
    checkout, wheel = distribution("checkout"), distribution("env/lib/site-packages")
    (checkout / "pyproject.toml").write_text('[project]\nname = "marin_pipeline"\n')
    user = "from steps.clean import f as clean\n\n\ndef f(ctx):\n    return clean.fn(ctx)\n"
    found: dict[str, list[str]] = {}
    for place in (checkout, wheel):
        write(place.parent, {"project/pyproject.toml": "", "project/a.py": user})
        found[place.name] = digests_elsewhere(place, [place / "steps/clean.py", place.parent / "project/a.py"])
    assert found["checkout"] == found["site-packages"]


def test_the_engine_is_left_out_and_data_is_not(distribution: Callable[[str], Path]) -> None:
    folder = distribution("checkout")
    files = [folder / "steps/clean.py"]
    before = digests_elsewhere(folder, files)
    for name in ("__init__", "core/errors", "core/step", "store/__init__", "run/shards", "lab/site", "cli", "tool"):
        with (folder / f"marin_pipeline/{name}.py").open("a") as file:
            file.write("\nEDITED = 1\n")
    assert digests_elsewhere(folder, files) == before
    edit(folder / "marin_pipeline/data/clean.py", "SIZE = 1", "SIZE = 2")
    cleaned = digests_elsewhere(folder, files)
    edit(folder / "marin_pipeline/data/schema.py", "int", "str")
    assert len({*before, *cleaned, *digests_elsewhere(folder, files)}) == 3


def test_many_steps_of_one_file_read_each_file_once_and_cost_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"part{number}" for number in range(60)]
    write(tmp_path, {"pyproject.toml": "", "helpers/__init__.py": "".join(f"from . import {name}\n" for name in names)})
    module = "import json\n\n\n" + "\n\n".join(f'def f{number}(x):\n    "Doc."\n    return x' for number in range(40))
    write(tmp_path, {f"helpers/{name}.py": module for name in names})
    steps = "".join(f"def s{number}(ctx):\n    return helpers.part1.f1({number})\n\n\n" for number in range(1000))
    write(tmp_path, {"steps_of.py": f"import helpers\n\n\n{steps}"})
    time.sleep(0.06)  # until the times of the files prove that they have not changed
    read: list[str] = []
    read_source = source.read_source
    monkeypatch.setattr(source, "read_source", lambda path: read.append(path.name) or read_source(path))

    def digests(first: int, last: int) -> set[str]:
        return {code_digest(tmp_path / "steps_of.py", f"s{number}").digest for number in range(first, last)}

    assert len(code_digest(tmp_path / "steps_of.py", "s0").pieces) == 63
    few = calls(lambda: digests(1, 100)) / 99
    many = calls(lambda: digests(100, 1000)) / 900
    assert many < 1.1 * few
    assert len(digests(0, 1000)) == 1000
    assert sorted(read) == sorted(["steps_of.py", "__init__.py", *(f"{name}.py" for name in names)])
