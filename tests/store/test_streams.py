"""A stream is a file of the output when its block has ended without an error, whole and with its digest;
else nothing.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from marin_pipeline.core.artifact import CHUNK, content_digest
from marin_pipeline.core.errors import DeclarationError, InputError, StoreError
from marin_pipeline.store.manifest import Entry, Manifest, build_manifest
from marin_pipeline.store.memory_objects import MemoryObjects
from marin_pipeline.store.objects import NoAnswer, ObjectStore, ObjectWriter, Wanted, Written, open_objects
from marin_pipeline.store.streams import Streams
from tests.store.far_objects import FarObjects
from tests.stores import STORES, new_prefix


class Output:
    """One output of a store."""

    def __init__(self, objects: ObjectStore) -> None:
        self.objects = objects
        self.out = objects.folder("a/out")
        self.streams = Streams(objects, "a/out", self.out)
        self.stream: Any = self.streams.writing

    def manifest(self, adopted: dict[str, Entry] | None = None) -> Manifest:
        return build_manifest(self.objects, self.out, "a/out", adopted or {}, self.streams.finished())

    def held(self) -> list[str]:
        """What the store has."""
        return [info.path.removeprefix("a/out/") for info in self.objects.list("a/out")]

    def bytes_of(self, name: str) -> bytes:
        return b"".join(self.objects.blocks(f"a/out/{name}"))


@pytest.fixture(params=[*STORES, "far"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Output:
    """An output of each store."""
    if request.param == "far":
        return Output(FarObjects(tmp_path / "store"))
    return Output(open_objects(new_prefix(request, request.param)))


def test_what_is_streamed_is_a_file_of_the_output_beside_those_that_were_written(output: Output) -> None:
    (output.out / "deep").mkdir()
    (output.out / "deep" / "written").write_text("w")
    with output.stream("deep/streamed") as file:
        assert file.writable()
        for number in range(100_000):
            file.write(b"%d\n" % number)
        assert file.tell() == 588_890
    with output.stream("empty"):
        pass
    with output.stream("texts/ü.txt", mode="w") as file:
        file.write("grün\r\n")
    manifest = output.manifest()
    assert [entry.path for entry in manifest.entries] == ["deep/streamed", "deep/written", "empty", "texts/ü.txt"]
    assert [entry.size for entry in manifest.entries] == [588_890, 1, 0, 7]
    for entry in manifest.entries:
        (path,) = output.objects.fetch([Wanted(entry.object, entry.size, entry.sha256)])
        assert content_digest(path) == entry.sha256
    assert output.bytes_of("texts/ü.txt") == "grün\r\n".encode()
    if output.objects.in_place:
        assert (output.out / "texts" / "ü.txt").read_bytes() == "grün\r\n".encode()


def test_a_large_stream_has_the_digest_of_its_chunks(output: Output, tmp_path: Path) -> None:
    block = bytes(range(256)) * 2**12
    with output.stream("large") as file, (tmp_path / "same").open("wb") as same:
        for _ in range(CHUNK // len(block)):
            file.write(block)
            same.write(block)
        file.write(b"more")
        same.write(b"more")
    (entry,) = output.manifest().entries
    assert (entry.size, entry.sha256) == (CHUNK + 4, content_digest(tmp_path / "same"))


def test_libraries_write_to_a_stream(output: Output, tmp_path: Path) -> None:
    table = pa.table({"n": range(100_000)})
    with output.stream("table.parquet") as file:
        pq.write_table(table, file)
    with output.stream("lines.jsonl.zst") as file, zstandard.ZstdCompressor().stream_writer(file) as packed:
        for number in range(1000):
            packed.write(json.dumps({"n": number}).encode() + b"\n")
    with output.stream("text.gz") as file, gzip.open(file, "wt") as text:
        text.write("text")
    with output.stream("copied") as file:
        shutil.copyfileobj(io.BytesIO(b"x" * 3_000_000), file)
    with output.stream("tree.json", mode="w") as file:
        json.dump({"a": 1}, file)
    output.manifest()
    assert pq.read_table(io.BytesIO(output.bytes_of("table.parquet"))).equals(table)
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(output.bytes_of("lines.jsonl.zst"))) as reader:
        assert len(reader.read().splitlines()) == 1000
    assert gzip.decompress(output.bytes_of("text.gz")) == b"text"
    assert output.bytes_of("copied") == b"x" * 3_000_000
    assert output.bytes_of("tree.json") == b'{"a": 1}'


def test_a_library_may_close_the_file(output: Output) -> None:
    with output.stream("a") as file:
        file.write(b"1")
        file.close()
    assert output.bytes_of("a") == b"1"
    with pytest.raises(ValueError, match="closed"):
        file.write(b"2")


@pytest.mark.parametrize("size", [1, 5_000_000])
def test_an_error_in_the_block_leaves_nothing_and_the_name_free(output: Output, size: int) -> None:
    with pytest.raises(ZeroDivisionError), output.stream("a") as file:
        _ = 1 // (file.write(b"x" * size) - size)
    assert output.held() == []
    assert output.manifest().entries == ()
    with output.stream("a") as file:
        file.write(b"second")
    assert output.bytes_of("a") == b"second"
    assert len(output.manifest().entries) == 1


@pytest.mark.parametrize("name", ["../a", "a/../../b", "/etc/x", "", "."])
def test_a_name_that_leads_out_of_the_output_is_refused(output: Output, name: str) -> None:
    with pytest.raises(DeclarationError, match="not a path inside an output"), output.stream(name):
        pass
    assert output.held() == []


def test_other_names_that_cannot_be_are_refused(output: Output) -> None:
    with pytest.raises(InputError, match=r"'value.json' is kept for the returned value"), output.stream("./value.json"):
        pass
    with pytest.raises(DeclarationError, match="is not UTF-8"), output.stream("\udcff"):
        pass
    for name in ("a\0b", "line\nbreak", "\x7f"):
        with pytest.raises(DeclarationError, match="has a control character"), output.stream(name):
            pass
    with pytest.raises(DeclarationError, match="a name of more than 255 bytes"), output.stream("a/" + "\u00fc" * 128):
        pass
    with pytest.raises(InputError, match="its mode is 'wb', or 'w' for text, not 'r'"), output.stream("a", "r"):
        pass
    assert output.held() == []


def test_a_name_is_taken_once(output: Output) -> None:
    with output.stream("a/b") as file:
        file.write(b"1")
        with pytest.raises(InputError, match="'a/b' is streamed already"), output.stream("a//b"):
            pass
    with pytest.raises(InputError, match="'a/b' is streamed already"), output.stream("a/b"):
        pass
    (output.out / "c").write_text("")
    with pytest.raises(InputError, match="'c' was streamed, and is written"), output.stream("c"):
        pass
    assert output.bytes_of("a/b") == b"1"


@pytest.mark.parametrize("when", ["while", "after"])
def test_a_file_of_ctx_out_under_the_name_of_a_stream_is_refused(output: Output, when: str) -> None:
    def write() -> None:
        (output.out / "a").unlink(missing_ok=True)
        (output.out / "a").write_bytes(b"2")

    with pytest.raises(InputError, match=r"'a' was streamed, and is written to ctx.out too; use two names"):  # noqa: PT012
        with output.stream("a") as file:
            file.write(b"1")
            if when == "while":
                write()
        write()
        output.manifest()


def test_adopted_and_streamed_under_one_name_is_refused(output: Output) -> None:
    with output.stream("a"):
        pass
    with pytest.raises(InputError, match="'a' was written and adopted from a shard"):
        output.manifest({"a": Entry("a", "shards/a", 0, "0" * 64)})


def test_a_file_that_is_also_a_folder_is_refused(output: Output) -> None:
    with output.stream("a/b"):
        pass
    with pytest.raises(InputError, match="'a' is a file, and the folder of 'a/b'"):
        output.manifest({"a": Entry("a", "shards/a", 0, "0" * 64)})


def test_a_stream_that_is_open_when_the_step_ends_is_told(output: Output) -> None:
    block = output.stream("a")
    block.__enter__()
    with pytest.raises(InputError, match="the stream 'a' was begun and not ended"):
        output.manifest()
    block.__exit__(None, None, None)
    assert len(output.manifest().entries) == 1


def test_what_the_store_lost_or_changed_of_a_stream_fails_the_attempt(output: Output) -> None:
    with output.stream("a") as file:
        file.write(b"1")
    output.objects.delete("a/out/a")
    problem = "written to ctx.out too" if output.objects.in_place else r"a/out/a: was written, but is missing there"
    with pytest.raises((StoreError, InputError), match=problem):
        output.manifest()


class Breaking(MemoryObjects):
    """The line breaks at the third write."""

    def writer(self, path: str) -> ObjectWriter:
        inner, count = super().writer(path), 0

        class Writer(ObjectWriter):
            def _write(self, data: bytes | bytearray | memoryview) -> int:
                nonlocal count
                count += 1
                if count == 3:
                    raise NoAnswer("the store does not answer")
                return inner.write(data)

            def _close(self) -> Written:
                return inner.close()

            def _abort(self) -> None:
                inner.abort()

        return Writer()


def test_a_write_that_failed_and_was_caught_still_fails_the_stream() -> None:
    """Else the file would have a hole."""
    output = Output(Breaking(f"memory://{uuid.uuid4().hex}"))
    with pytest.raises(NoAnswer, match="does not answer"), output.stream("a") as file:  # noqa: PT012
        for number in range(6):
            with suppress(NoAnswer):
                file.write(bytes([number]) * 2_000_000)
    assert output.held() == []
    assert output.streams.finished() == {}


@pytest.mark.parametrize("when", ["before", "while"])
@pytest.mark.parametrize("above", ["d", "d/e", "."])
def test_a_link_on_the_way_of_a_stream_is_refused_and_nothing_is_left_behind_it(
    output: Output, tmp_path: Path, above: str, when: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def link() -> None:
        place = output.out / above
        if above == ".":
            place = output.out.rename(output.out.with_name("moved")).with_name("out")
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(elsewhere, target_is_directory=True)

    def write(file: Any) -> None:
        file.write(b"1")
        if when == "while":
            link()

    if when == "before":
        link()
    block = output.stream("d/e/leaked")
    with pytest.raises(InputError, match=r"is a link"), block as file:
        write(file)
    assert not [*elsewhere.iterdir()]
    assert not [name for name in output.held() if "leaked" in name]
    assert output.streams.finished() == {}
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("mode", ["wb", "w"])
@pytest.mark.parametrize("ends", ["well", "with an error"])
def test_no_part_of_a_stream_that_was_kept_can_be_written_to_after_its_block(
    output: Output, mode: str, ends: str
) -> None:
    """Else what is written would be lost without a word."""
    kept: list[Any] = []
    with suppress(ZeroDivisionError), output.stream("a", mode) as file:
        buffered = file if mode == "wb" else file.buffer
        kept += [buffered, buffered.raw]
        buffered.write(b"1")
        _ = 1 // (ends == "well")
    for each, data in ((file, b"2" if mode == "wb" else "2"), *((each, b"2") for each in kept)):
        with pytest.raises(ValueError, match="closed"):
            each.write(data)
    assert output.held() == (["a"] if ends == "well" else [])
    if ends == "well":
        assert output.bytes_of("a") == b"1"
