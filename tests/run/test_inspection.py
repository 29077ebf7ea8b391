"""`marin-pipeline show` is written for people."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from marin_pipeline import Context, LocalFile, Secret, step
from marin_pipeline.run import housekeeping, inspection
from marin_pipeline.run.table import table
from tests.run.sample_steps import Colour, add, number
from tests.run.sessions import Bench
from tests.store.far_objects import SlowObjects


@step
def takes(ctx: Context, file: LocalFile, token: Secret, files: list[LocalFile]) -> int:
    return len(files)


def test_local_files_and_secrets_are_shown_by_their_names(
    inline: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "-".join(["a value", "that nobody", "may see"]))
    (tmp_path / "list.txt").write_text("one")
    file = LocalFile(tmp_path / "list.txt")
    assert inline.run(takes(file=file, token=Secret("MY_TOKEN"), files=[file])).ok
    lines = list(inspection.show(inline.objects, takes(file=file, token=Secret("MY_TOKEN"), files=[file]).key, False))
    named = f"<local file list.txt {file.sha256[:8]}>"
    assert [line.partition("argument   ")[2] for line in lines if line.startswith("argument")] == [
        f"file = {named}",
        f"files = [{named}]",
        "token = <secret MY_TOKEN>",
    ]


@dataclass(frozen=True)
class Kept:
    """A file, as a step tells of it."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Brought:
    """What a step has brought in."""

    files: tuple[Kept, ...]
    share: float
    colour: Colour


@step
def brings(ctx: Context, count: int) -> Brought:
    return Brought(tuple(Kept(f"{number}.txt", 45_431, "0" * 64) for number in range(count)), math.nan, Colour.BLUE)


def test_a_value_is_shown_by_names_and_fields_and_files_by_path_and_size(inline: Bench) -> None:
    inline.run([brings(count=1), brings(count=5).named("more")])

    def value(count: int) -> str:
        lines = inspection.show(inline.objects, brings(count=count).key, False)
        return next(line.removeprefix("value      ") for line in lines if line.startswith("value"))

    assert value(1) == "Brought(colour=BLUE, files=1 file: 0.txt (45.4 kB), share=nan)"
    files = "5 files: 0.txt (45.4 kB), 1.txt (45.4 kB), 2.txt (45.4 kB) and 2 more"
    assert value(5) == f"Brought(colour=BLUE, files={files}, share=nan)"


def test_listing_asks_for_all_keys_at_once(inline: Bench) -> None:
    numbers = [number(value=value).named(f"number-{value}") for value in range(20)]
    assert inline.run([*numbers, *(add(numbers=[numbers[0], each]) for each in numbers)]).ok
    objects = SlowObjects(inline.prefix)
    lines = list(inspection.list_steps(objects, False))
    assert len(lines) == 40
    assert lines == list(inspection.list_steps(inline.objects, False))
    assert objects.waits < 20
    for name in ("", "number-0", number.id):
        objects.waits = 0
        assert list(table(objects, name, "", False)) == list(table(inline.objects, name, "", False))
        assert objects.waits < 20
    objects.waits = 0
    (_, *told) = housekeeping.end_output(objects, numbers[0].key, "wrong", True, False)
    assert len(told) == 20
    assert objects.waits < 20
