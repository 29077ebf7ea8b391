"""Small steps that the tests of the engine run. They count their runs in the folder `$MARIN_TEST_COUNTS`, outside of
every key.
"""

from __future__ import annotations

import enum
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from marin_pipeline import Artifact, Context, File, LocalFile, Runtime, ShardContext, step
from marin_pipeline.core.errors import InputError


def counted(name: str) -> None:
    """Note that `name` ran."""
    folder = os.environ.get("MARIN_TEST_COUNTS")
    if folder:
        (Path(folder) / f"{name}.{uuid.uuid4().hex}").touch()


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Count:
    words: int
    longest: str
    colours: tuple[Colour, ...] = ()


@step
def words(ctx: Context, text: str, loud: Runtime[bool] = False) -> Count:
    """Writes its words, one a line."""
    counted("words")
    found = text.split()
    (ctx.out / "words.txt").write_text("\n".join(found))
    (ctx.out / "deep").mkdir()
    (ctx.out / "deep" / "length").write_text(str(len(text)))
    (ctx.records / "when").write_text(uuid.uuid4().hex)
    print("counting" if loud else "count", flush=True)
    return Count(len(found), max(found, key=len, default=""), (Colour.BLUE,))


@step
def times(ctx: Context, count: Artifact[Count], factor: int = 1) -> int:
    counted("times")
    assert count.value.colours == (Colour.BLUE,)
    assert count.files == ["deep/length", "words.txt"]
    assert (count / "deep").path.is_dir()
    return count.value.words * factor


@step
def first_line(ctx: Context, file: File | LocalFile) -> str:
    counted("first_line")
    return file.read_text().partition("\n")[0]


@step
def size(ctx: Context, file: File) -> int:
    return file.size


@step
def sizes(ctx: Context, files: dict[str, File | LocalFile]) -> int:
    return sum(file.size for file in files.values())


@step
def add(ctx: Context, numbers: list[Artifact[int]]) -> int:
    counted("add")
    return sum(number.value for number in numbers)


@step
def number(ctx: Context, value: int) -> int:
    counted("number")
    return value


@step
def increment(ctx: Context, before: Artifact[int]) -> int:
    return before.value + 1


@step
def fails(ctx: Context, word: str, after: Artifact[int] | None = None) -> int:
    counted("fails")
    raise ValueError(f"the word was {word}")


@step
def refuses(ctx: Context, said: str, removed: bool = False) -> int:
    """Fails with an error whose message says it all; before that it prints, or removes its log."""
    print(said, end="", flush=True)
    if removed:
        (ctx.out.parent / "log" / "log.txt").unlink()
    raise InputError("2 of 3 rows cannot be read")


@step
def random_bytes(ctx: Context, seed: int) -> str:
    """Not deterministic, to see what notices."""
    counted("random_bytes")
    return uuid.uuid4().hex


@step
def echo(ctx: Context, text: Artifact[str]) -> str:
    counted("echo")
    return text.value


def square(shard: ShardContext, item: int, offset: int = 0) -> int:
    counted("square")
    if item == 13:
        raise ValueError("thirteen is unlucky")
    (shard.out / "square.txt").write_text(str(item * item))
    shard.log(f"squared {item}")
    return item * item + offset


@step
def squares(ctx: Context, numbers: list[int], offset: int = 0) -> list[int]:
    """Maps over numbers and adopts what the shards wrote."""
    counted("squares")
    results = ctx.map(square, numbers, offset=offset)
    for index, result in enumerate(results):
        ctx.adopt(result, "square.txt", f"squares/{index}.txt")
    ctx.progress(len(numbers), len(numbers), loss=float("nan"))
    return [result.value for result in results]


def doubled(shard: ShardContext, item: tuple[File, int]) -> str:
    counted("doubled")
    file, times = item
    (shard.out / "doubled.txt").write_text(file.read_text() * times)
    return file.read_text()


@step
def nested(ctx: Context, squares: Artifact[list[int]], numbers: list[int]) -> list[str]:
    """Maps over files: of a dependency, and of shards of a map before."""
    counted("nested")
    given = [(squares / "squares" / "0.txt", 2)]
    made = [(result / "square.txt", 3) for result in ctx.map(square, numbers)]
    return [(result / "doubled.txt").read_text() for result in ctx.map(doubled, [*given, *made])]


@step
def joined(ctx: Context, squares: Artifact[list[int]]) -> str:
    counted("joined")
    by_folder = sorted((squares / "squares").path.iterdir())
    assert [file.read_text() for file in by_folder] == [(squares / name).read_text() for name in squares.files]
    return " ".join((squares / name).read_text() for name in squares.files)


@step
def resumable(ctx: Context, parts: int) -> list[str]:
    """Makes parts; stops for good after one more while `$MARIN_TEST_COUNTS/break` is there."""
    counted("resumable")
    for index in range(parts):
        name = f"part-{index}"
        if name not in ctx.work.items():
            with ctx.work.writing(name) as folder:
                counted(f"made-{name}")
                (folder / "data.txt").write_text(f"part {index}")
            if (Path(os.environ["MARIN_TEST_COUNTS"]) / "break").exists():
                raise RuntimeError(f"broken after {name}")
    found = [(ctx.work.open(name) / "data.txt").read_text() for name in ctx.work.items()]
    (ctx.out / "all.txt").write_text("\n".join(found))
    return found


def streamed_part(shard: ShardContext, item: int) -> int:
    with shard.stream("part.bin") as file:
        return file.write(bytes([item]) * item)


@step
def streaming(ctx: Context, numbers: list[int], broken: bool = False) -> list[int]:
    """Streams text and what its shards streamed."""
    results = ctx.map(streamed_part, numbers)
    for number, result in zip(numbers, results, strict=True):
        ctx.adopt(result, "part.bin", f"parts/{number}.bin")
    with ctx.stream("all.txt", mode="w") as text:
        for result in results:
            text.write(f"{(result / 'part.bin').size}\n")
        if broken:
            raise ValueError("broken while it was streamed")
    return [result.value for result in results]


@step
def streams_read(ctx: Context, streams: Artifact[list[int]]) -> list[str]:
    with (streams / "all.txt").open("r") as file:
        return [*file, *(f"{name} {(streams / name).size}" for name in streams.files)]
