"""Packages as a source: pinned by RECORD, read by parsing, believed only with the recorded bytes."""

from __future__ import annotations

import base64
import hashlib
import sys
from pathlib import Path

import pytest

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.docstrings import Docstring, Unparsable, docstrings, module_name
from marin_pipeline.data.packages import chunks, installed, pinned, pinned_files, read_source

FILES = {
    "toy/__init__.py": '"""The toy package."""\n',
    "toy/core.py": '"""Core."""\n\ndef f():\n    """Do f."""\n',
    "toy/deep/more.py": "x = 1\n",
    "toy/tests/test_core.py": '"""A test."""\n',
    "toy/_vendor/other.py": '"""Vendored."""\n',
    "toy/data.txt": "no source",
}


def _install(site: Path, files: dict[str, str], version: str = "1.0") -> None:
    """Lay files out as pip does, with a RECORD."""
    lines = []
    for path, content in files.items():
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(content)}\n")
    info = site / f"toy-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: toy\nVersion: {version}\n")
    (info / "RECORD").write_text("".join([*lines, f"{info.name}/RECORD,,\n"]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    _install(tmp_path, FILES)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_a_pin_lists_source_without_tests_and_vendored_code(site: Path) -> None:
    pin, files = installed("toy")
    assert (pin.name, pin.version) == ("toy", "1.0")
    assert [file.path for file in files] == ["toy/__init__.py", "toy/core.py", "toy/deep/more.py"]
    assert [file.path for file in installed("toy/deep")[1]] == ["toy/deep/more.py"]


def test_a_pin_moves_with_the_selected_files_alone(site: Path) -> None:
    before = pinned(["toy", "toy/deep"])
    _install(site, {**FILES, "toy/tests/test_core.py": "changed", "toy/data.txt": "changed"})
    assert pinned(["toy/deep", "toy", "toy"]) == before
    _install(site, {**FILES, "toy/core.py": "changed"})
    after = pinned(["toy", "toy/deep"])
    assert (after[0] != before[0], after[1] == before[1]) == (True, True)


def test_another_version_or_content_than_pinned_is_refused_with_the_remedy(site: Path) -> None:
    (pin,) = pinned(["toy"])
    _install(site, {**FILES, "toy/core.py": "changed"})
    with pytest.raises(InputError, match=r"'toy' 1\.0.*reinstall it"):
        pinned_files(pin)
    (site / "toy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 2.0\n")
    with pytest.raises(InputError, match=r"version 2\.0 is installed, 1\.0 was pinned.*toy==1\.0"):
        pinned_files(pin)


def test_a_changed_or_missing_file_is_named(site: Path) -> None:
    _, files = installed("toy")
    core = next(file for file in files if file.path == "toy/core.py")
    assert read_source(site, "toy", core) == FILES["toy/core.py"].encode()
    (site / core.path).write_text('"""Changed."""')
    with pytest.raises(InputError, match=r"toy/core\.py is not the file"):
        read_source(site, "toy", core)
    (site / core.path).unlink()
    with pytest.raises(InputError, match=r"toy/core\.py cannot be read"):
        read_source(site, "toy", core)


def test_what_is_not_installed_or_has_no_record_is_refused(site: Path) -> None:
    with pytest.raises(InputError, match="pip install no-such-package"):
        pinned(["no-such-package"])
    with pytest.raises(InputError, match="no Python files below toy/none/"):
        pinned(["toy/none"])
    (site / "toy-1.0.dist-info" / "RECORD").unlink()
    with pytest.raises(InputError, match="no RECORD"):
        pinned(["toy"])


def test_chunks_are_cut_by_size_alone_and_keep_all_files() -> None:
    _, files = installed("numpy")
    found = chunks("numpy", files)
    assert [file for chunk in found for file in chunk.files] == list(files)
    assert 1 < len(found) < 20
    assert chunks("numpy", ()) == []


SOURCE = b'''"""Module."""
import absent_module

if True:
    class A:
        """Class A.

            Indented.
        More.
        """

        def method(self):
            """Method."""
            def inner():
                "Inner."
else:
    async def b():
        r"""\\d"""

def empty():
    """"""

def none():
    1
'''


def test_docstrings_are_found_at_any_depth_without_importing() -> None:
    assert docstrings(SOURCE, "m") == [
        Docstring("m", "module", "Module."),
        Docstring("m.A", "class", "Class A.\n\n    Indented.\nMore."),
        Docstring("m.A.method", "function", "Method."),
        Docstring("m.A.method.inner", "function", "Inner."),
        Docstring("m.b", "function", "\\d"),
        Docstring("m.empty", "function", ""),
    ]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b"def f(:\n", "unparsable"),
        (b'"""a\xff"""', "invalid_utf8"),
        (b"x = 1\0", "unparsable"),
        (b"(" * 5000 + b")" * 5000, "unparsable"),
        (b"print 'two'\n", "unparsable"),
    ],
)
def test_source_that_cannot_be_parsed_says_why(source: bytes, reason: str) -> None:
    found = docstrings(source, "m")
    assert isinstance(found, Unparsable)
    assert found.reason == reason


@pytest.mark.parametrize("source", [b"", b"\n", b"# -*- coding: latin-1 -*-\n'''caf\xe9'''", b'"""\\ud800 and \\0"""'])
def test_odd_source_is_read(source: bytes) -> None:
    assert isinstance(docstrings(source, "m"), list)


@pytest.mark.parametrize(
    ("path", "module"), [("a/b.py", "a.b"), ("a/__init__.py", "a"), ("a.py", "a"), ("a/b/__init__.py", "a.b")]
)
def test_the_module_of_a_file(path: str, module: str) -> None:
    assert module_name(path) == module
