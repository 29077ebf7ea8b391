"""What a step may leave as its output: the rest is refused by name, with what to do, and nothing is committed."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Context, Runtime, step
from marin_pipeline.core.errors import MarinError
from marin_pipeline.run.adoption import Content
from marin_pipeline.store.manifest import build_manifest
from tests.run.sessions import Bench, failure, step_folder
from tests.store.far_objects import FarObjects

LINKS = {
    "file": "fine",
    "folder": "sub",
    "dangling": "nowhere",
    "loop": "odd",
    "outside": "/etc/hostname",
    "up": "../..",
}


def make(out: Path, kind: str) -> None:
    """Write something odd below a folder."""
    (out / "fine").write_text("fine")
    (out / "sub").mkdir()
    target = out / "sub" / "odd"
    if kind in LINKS:
        target.symlink_to(LINKS[kind])
    elif kind == "fifo":
        os.mkfifo(target)
    elif kind == "socket":
        here = os.getcwd()
        os.chdir(target.parent)  # the name of a socket is short
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("odd")
        os.chdir(here)
    elif kind == "device":
        os.mknod(target, 0o600 | 0o020000, os.makedev(1, 3))
    elif kind == "bytes":
        Path(os.fsdecode(os.fsencode(out) + b"/\xff")).write_text("")
    else:
        (out / kind).write_text("")


@step
def odd(ctx: Context, kind: str, where: str) -> int:
    if where == "stream":
        with ctx.stream(kind) as file:
            file.write(b"")
    elif where == "adopt":
        (result,) = ctx.map(one_file, [1])
        ctx.adopt(result, "a", kind)
    elif where == "out":
        make(ctx.out, kind)
    elif where == "records":
        make(ctx.records, kind)
    else:
        with ctx.work.writing("part") as folder:
            make(folder, kind)
    return 1


def one_file(shard: Any, item: int) -> int:
    (shard.out / "a").write_text("")
    return item


REFUSED = {
    **dict.fromkeys(LINKS, "the output 'sub/odd' is a link; write the content itself"),
    **dict.fromkeys(
        ("fifo", "socket", "device"), "the output 'sub/odd' is not a regular file; write the content itself"
    ),
    "bytes": "has a name that is not UTF-8; rename it",
    "line\nbreak": r"the output 'line\nbreak' has a control character in its name, such as a line break; rename it",
    "\x1b[31m": r"the output '\x1b[31m' has a control character",
    "\x7f": "has a control character",
}


@pytest.mark.parametrize("where", ["out", "records", "part"])
@pytest.mark.parametrize("kind", REFUSED, ids=ascii)
def test_what_is_no_file_or_has_no_good_name_is_refused(kind: str, where: str, inline: Bench) -> None:
    target = odd(kind=kind, where=where)
    result = inline.run(target)
    if kind == "device" and "PermissionError" in failure(result):
        pytest.skip("devices cannot be made here")
    expected = REFUSED[kind]
    assert (expected.replace("the output", "the record") if where == "records" else expected) in failure(result)
    assert not (step_folder(inline, target) / "commits").exists()


@pytest.mark.parametrize("where", ["stream", "adopt"])
@pytest.mark.parametrize(
    "name", ["../a", "a/../../b", "/etc/x", "", ".", "..", "a\0b", "a\nb", "\udcff", "x" * 256, "value.json"], ids=ascii
)
def test_a_name_that_no_output_can_have_is_refused(name: str, where: str, inline: Bench) -> None:
    if not name and where == "adopt":
        return  # then the file keeps its own name
    target = odd(kind=name, where=where) if "\udcff" not in name else odd(kind="a\0", where=where)
    result = inline.run(target)
    assert not result.ok
    assert not (step_folder(inline, target) / "commits").exists()
    assert not (inline.prefix.parent / "a").exists()


@pytest.mark.parametrize("where", ["out", "stream", "adopt"])
@pytest.mark.parametrize(
    "name", ["a\\b", "..a", "a..", "...", "-rf", "a b ", "\u00fc", "u\u0308", "x" * 255, "C:", "~"]
)
def test_names_that_are_only_unusual_are_kept(name: str, where: str, inline: Bench) -> None:
    result = inline.run(odd(kind=name, where=where))
    assert result.ok, failure(result)
    (artifact,) = result.artifacts.values()
    assert name in artifact.files
    assert (artifact / name).read_text() == ""


@pytest.mark.parametrize("where", ["stream", "adopt"])
@pytest.mark.parametrize("name", ["a//b", "./a/b", "a/b/", "a/./b"])
def test_a_path_is_brought_to_its_shortest_form_as_pathlib_does(name: str, where: str, inline: Bench) -> None:
    (artifact,) = inline.run(odd(kind=name, where=where)).artifacts.values()
    assert artifact.files == ["a/b"]


@pytest.mark.parametrize("kind", REFUSED, ids=ascii)
def test_what_is_adopted_from_a_folder_is_held_to_the_same(kind: str, tmp_path: Path) -> None:
    try:
        make(tmp_path, kind)
    except PermissionError:
        pytest.skip("devices cannot be made here")
    with pytest.raises(MarinError) as caught:
        Content.of(tmp_path, "name", "null")
    assert REFUSED[kind] in str(caught.value)


def test_a_single_file_that_is_adopted_needs_a_good_name_too(tmp_path: Path) -> None:
    (tmp_path / "a\nb").write_text("")
    with pytest.raises(MarinError, match="has a control character in its name"):
        Content.of(tmp_path / "a\nb", "name", "null")
    (tmp_path / "link").symlink_to("a\nb")
    with pytest.raises(MarinError, match="is a link; give what it points to"):
        Content.of(tmp_path / "link", "name", "null")


def test_names_that_differ_in_case_or_unicode_form_only_are_two(inline: Bench) -> None:
    (artifact,) = inline.run(alike()).artifacts.values()
    assert sorted((artifact / name).read_text() for name in artifact.files) == sorted(ALIKE)


ALIKE = ("readme", "README", "\u00fc", "u\u0308")


@step
def alike(ctx: Context) -> int:
    for name in ALIKE:
        (ctx.out / name).write_text(name)
    return 1


@pytest.mark.parametrize("too_long", [False, True])
def test_a_name_that_is_too_long_for_a_bucket_is_refused_before_anything_is_uploaded(
    too_long: bool, tmp_path: Path
) -> None:
    objects = FarObjects(tmp_path / "far")
    folder, path = objects.folder("steps/out"), "steps/out"
    above = objects.url.partition("://")[2].partition("/")[2].strip("/")
    left = 1024 - len(f"{above}/{path}/".encode()) + too_long
    name = "/".join(["x" * 100] * (left // 101) + ["y" * (left % 101)])
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("")
    (folder / "first").write_text("")
    if too_long:
        with pytest.raises(MarinError, match=r"y' has a name that is 1 bytes too long to lie in .*; choose a shorter"):
            build_manifest(objects, folder, path, {})
        assert objects.calls == []
        with pytest.raises(MarinError, match="more than 1024 bytes"):
            objects.writer(f"{path}/{name}")
    else:
        assert len(build_manifest(objects, folder, path, {}).entries) == 2


def streamed_through_a_link(shard: Any, item: int, elsewhere: str) -> int:
    (shard.out / "d").symlink_to(elsewhere)
    with shard.stream("d/leaked") as file:
        file.write(b"1")
    return item


@step
def writes_through_links(ctx: Context, how: str, elsewhere: Runtime[str]) -> int:
    if how == "stream":
        (ctx.out / "d").symlink_to(elsewhere)
        with ctx.stream("d/leaked") as file:
            file.write(b"1")
    elif how == "shard":
        ctx.map(streamed_through_a_link, [1], elsewhere=elsewhere)
    elif how == "value":
        (ctx.out / "value.json").symlink_to(Path(elsewhere) / "leaked")
    elif how == "out":
        ctx.out.rmdir()
        ctx.out.symlink_to(elsewhere)
    else:
        with ctx.work.writing("part") as folder:
            folder.rmdir()
            folder.symlink_to(elsewhere)
    return 1


@pytest.mark.parametrize("how", ["stream", "shard", "value", "out", "work"])
def test_the_engine_writes_nothing_through_a_link_that_a_step_has_made(how: str, inline: Bench, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = writes_through_links(how=how, elsewhere=str(elsewhere))
    result = inline.run(target)
    assert re.search("is a link|kept for the returned value", failure(result)), failure(result)
    assert not [*elsewhere.iterdir()]
    assert not (step_folder(inline, target) / "commits").exists()
