"""Docstrings as documents: from pinned packages only, one document a docstring."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import inspect
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from marin_pipeline import local_artifact, test_context
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.parts import read_documents
from steps.package_docs import package_docs, pinned


def test_each_docstring_is_a_document_named_by_its_object(tmp_path: Path) -> None:
    ctx = test_context(tmp_path)
    documents = package_docs.fn(ctx, packages=pinned(["optax", "numpy/linalg"]))
    rows = {(row.source, row.source_id): row for row in read_documents(local_artifact(ctx.out, documents))}
    norm = rows["numpy", "numpy.linalg._linalg.norm"]
    assert norm.text == inspect.getdoc(np.linalg.norm)
    assert json.loads(norm.metadata) == {"kind": "function"}
    assert {source for source, _ in rows} == {"numpy", "optax"}
    assert all(name.startswith("numpy.linalg") for source, name in rows if source == "numpy")
    assert documents.documents == sum(count.documents for count in documents.counts if count.reason == "out") > 500


def test_declaring_moves_the_key_with_the_package_alone() -> None:
    packages = pinned(["optax"])
    declared = package_docs(packages=packages)
    assert package_docs(packages=pinned(["optax"])).key == declared.key
    moved = dataclasses.replace(packages[0], digest="0" * 64)
    assert package_docs(packages=(moved,)).key != declared.key


def test_a_package_that_is_not_the_pinned_one_stops_the_step(tmp_path: Path) -> None:
    (pin,) = pinned(["optax"])
    with pytest.raises(InputError, match=r"0\.0 was pinned.*pip install optax==0\.0"):
        package_docs.fn(test_context(tmp_path / "a"), packages=(dataclasses.replace(pin, version="0.0"),))
    with pytest.raises(InputError, match="lists other files"):
        package_docs.fn(test_context(tmp_path / "b"), packages=(dataclasses.replace(pin, digest="0" * 64),))
    with pytest.raises(InputError, match="no packages"):
        package_docs.fn(test_context(tmp_path / "c"), packages=())


ODD_FILES = {
    "toy/__init__.py": b'"""The toy package."""\ndef f():\n ""\ndef g():\n "a\\0b"\ndef h():\n "\\ud800"\n',
    "toy/cut.py": b"def f(:",
    "toy/latin.py": b'"""caf\xe9"""',
    "toy/none.py": b"",
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the package `toy` is installed."""
    site = tmp_path / "site"
    (site / "toy").mkdir(parents=True)
    (site / "toy-1.0.dist-info").mkdir()
    record = []
    for path, content in ODD_FILES.items():
        (site / path).write_bytes(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(content)}\n")
    (site / "toy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (site / "toy-1.0.dist-info" / "RECORD").write_text("".join(record))
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    return site


def test_what_cannot_be_a_document_is_counted_by_reason(tmp_path: Path, toy: Path) -> None:
    ctx = test_context(tmp_path / "ctx")
    documents = package_docs.fn(ctx, packages=pinned(["toy"]))
    counts = {count.reason: count.documents for count in documents.counts}
    assert counts == {
        "in": 6,
        "out": 1,
        "empty": 1,
        "nul_byte": 1,
        "lone_surrogate": 1,
        "unparsable": 1,
        "invalid_utf8": 1,
    }
    removed = [json.loads(line) for line in (ctx.out / "removed.jsonl").read_text().splitlines()]
    assert {(row["reason"], row["source_id"]) for row in removed} == {
        ("empty", "toy.f"),
        ("nul_byte", "toy.g"),
        ("lone_surrogate", "toy.h"),
        ("unparsable", "toy/cut.py"),
        ("invalid_utf8", "toy/latin.py"),
    }


def test_a_tampered_file_stops_the_step_and_is_named(tmp_path: Path, toy: Path) -> None:
    packages = pinned(["toy"])
    (toy / "toy" / "none.py").write_text("x = 1")
    with pytest.raises(InputError, match=r"toy/none\.py is not the file that its RECORD lists"):
        package_docs.fn(test_context(tmp_path / "ctx"), packages=packages)
