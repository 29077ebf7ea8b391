"""Keys and bytes do not see where a store lies: one experiment, in a folder, in memory and in both clouds."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Artifact, Context, File, LocalFile, step
from marin_pipeline.run.driver import RunResult, Session
from marin_pipeline.run.options import Options
from marin_pipeline.store.objects import ObjectStore, open_objects
from marin_pipeline.store.pages import read_manifest
from tests.run.sample_steps import add, first_line, increment, joined, number, resumable, squares, times, words
from tests.store.test_copying import findings
from tests.stores import STORES, new_prefix


@step
def streamed(ctx: Context, lines: int) -> int:
    """Writes a file straight to the store, and one beside it."""
    with ctx.stream("parts/large.txt") as stream:
        for index in range(lines):
            stream.write(f"line {index}\n".encode())
    (ctx.out / "small.txt").write_text("small")
    return lines


@step
def last_line(ctx: Context, file: File) -> str:
    with file.open("rb") as opened:
        opened.seek(-20, 2)
        return opened.read().decode().split("\n")[-2]


def experiment(given: Path) -> list[Artifact[Any]]:
    """Values, files, a local file, shards, parts, a stream that is read by ranges, and an equal result."""
    counted: Artifact[Any] = words(text="to be or not to be")
    large: Artifact[Any] = streamed(lines=200_000)
    total: Artifact[Any] = add(numbers=[times(count=counted, factor=2), number(value=5)])
    return [
        total.named("total"),
        first_line(file=LocalFile(given)),
        first_line(file=counted / "words.txt").named("first_word"),
        joined(squares=squares(numbers=[2, 3, 4])),
        resumable(parts=3),
        last_line(file=large / "parts/large.txt"),
        increment(before=total).named("more"),
        increment(before=number(value=17)).named("as_much"),
    ]


@dataclass(frozen=True)
class Made:
    """What a run made, by key."""

    outputs: dict[str, str]
    manifests: dict[str, list[tuple[str, int, str]]]
    """Without where the bytes lie, and what the store says of them."""


def ran(prefix: str, given: Path, **options: Any) -> tuple[RunResult, ObjectStore]:
    options = {"prefix": prefix, "backend": "inline", **options}
    session = Session.open(experiment(given), Options(**options), "tests/placement")
    result = session.run()
    assert result.ok, result.failures
    return result, session.objects


def made(result: RunResult) -> Made:
    outputs: dict[str, str] = {}
    manifests: dict[str, list[tuple[str, int, str]]] = {}
    for key, node in result.graph.nodes.items():
        output = result.output(node)
        assert output is not None
        outputs[key] = output.digest
        manifest = read_manifest(output.objects, node.id, key, output.commit)
        manifests[key] = [(entry.path, entry.size, entry.sha256) for entry in manifest.entries]
    return Made(outputs, manifests)


@pytest.fixture(autouse=True)
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where each step that runs leaves a file."""
    folder = tmp_path / "counts"
    folder.mkdir()
    monkeypatch.setenv("MARIN_TEST_COUNTS", str(folder))
    return folder


@pytest.fixture
def given(tmp_path: Path) -> Path:
    (tmp_path / "given.txt").write_text("a given line\nand another\n")
    return tmp_path / "given.txt"


@pytest.fixture
def prefixes(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """One of each kind; both servers can be reached at the same time."""
    return {kind: new_prefix(request, kind) for kind in STORES} | {"file": f"file://{tmp_path}/by-url"}


def test_one_experiment_has_equal_keys_digests_and_manifests_wherever_its_store_lies(
    prefixes: dict[str, str], given: Path
) -> None:
    found = {kind: made(ran(prefix, given)[0]) for kind, prefix in prefixes.items()}
    assert len(found["local"].outputs) >= 12
    for kind, each in found.items():
        assert each == found["local"], kind
    for prefix in prefixes.values():
        assert findings(open_objects(prefix)) == []


def test_a_prefix_of_another_length_or_with_odd_letters_changes_nothing(tmp_path: Path, given: Path) -> None:
    first, _ = ran(str(tmp_path / "a"), given)
    second, _ = ran(str(tmp_path / "a long name with spaces" / "é" / uuid.uuid4().hex), given)
    assert made(first) == made(second)


@pytest.mark.parametrize("own", STORES)
@pytest.mark.parametrize("theirs", STORES)
def test_each_store_can_be_the_substitute_of_each(
    request: pytest.FixtureRequest, given: Path, counts: Path, own: str, theirs: str
) -> None:
    source, target = new_prefix(request, theirs), new_prefix(request, own)
    first, _ = ran(source, given)
    for file in counts.iterdir():
        file.unlink()
    second, objects = ran(target, given, substitutes=[source])
    assert list(counts.iterdir()) == []
    assert made(second).outputs == made(first).outputs
    assert findings(objects) == []
    settled = {name: second.settled[node.key] for node in second.graph.nodes.values() for name in node.names}
    assert settled["total"].fetched
    assert settled["words"].left is not None
