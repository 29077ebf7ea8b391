"""The cache gives what was committed and nothing else, keeps its bound, and takes no file away that somebody uses."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from marin_pipeline.core.errors import CacheError, CorruptOutput, UsageError
from marin_pipeline.store import cache as module
from marin_pipeline.store import downloads
from marin_pipeline.store.cache import Cache, check_cache
from marin_pipeline.store.manifest import Entry
from marin_pipeline.store.objects import DiskFull, NoAnswer, Wanted
from marin_pipeline.store.output import all_verified
from marin_pipeline.store.own_folder import own_folder
from marin_pipeline.store.sizes import parse_size
from tests.conftest import ROOT
from tests.run.sessions import wait_until
from tests.store.far_objects import FarObjects


@pytest.fixture(params=["small as small", "all as large"])
def objects(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FarObjects:
    if request.param == "all as large":
        monkeypatch.setattr(module, "SMALL", -1)
    monkeypatch.setenv("MARIN_CACHE", str(tmp_path / "cache"))
    return FarObjects(tmp_path / "far")


def put(objects: FarObjects, path: str, data: bytes) -> Wanted:
    assert objects.create(path, data)
    return Wanted(path, len(data), hashlib.sha256(data).hexdigest())


def put_many(objects: FarObjects, count: int, size: int = 1000) -> list[Wanted]:
    return [put(objects, f"many/{number:03}.bin", bytes([number]) * size) for number in range(count)]


def kept(root: Path) -> list[Path]:
    return sorted((root / "objects").glob("*/*"))


def another(objects: FarObjects) -> Cache:
    """A cache as another process sees it, which has used nothing yet."""
    own_folder.cache_clear()
    return Cache(Path(os.environ["MARIN_CACHE"]), parse_size(os.environ.get("MARIN_CACHE_BYTES", "20GB")))


def in_a_process(objects: FarObjects, program: str, *arguments: str, wait: bool = True) -> subprocess.Popen[str]:
    """A program that has `objects` and `wanted`, an object of its arguments PATH SIZE SHA256."""
    begin = f"""
    import os, sys, time
    from pathlib import Path
    from tests.store.far_objects import FarObjects
    from marin_pipeline.store.objects import Wanted
    objects = FarObjects(Path({str(objects.near.root)!r}))
    wanted = [Wanted(path, int(size), sha) for path, size, sha in zip(*[iter(sys.argv[1:])] * 3)]
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(program), *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
    )
    if wait:
        assert process.wait(60) == 0
    return process


def flat(*wanted: Wanted) -> list[str]:
    return [str(part) for each in wanted for part in each]


def test_an_object_is_fetched_once_and_keeps_the_end_of_its_name(objects: FarObjects) -> None:
    wanted = put(objects, "a/deep/table.parquet", b"data")
    for _ in range(3):
        (path,) = objects.fetch([wanted])
        assert path.name == "table.parquet"
        assert path.read_bytes() == b"data"
        assert path.stat().st_mode & 0o777 == 0o444
    assert objects.fetched() == ["table.parquet"]


def test_what_lies_in_one_folder_of_the_store_lies_in_one_folder_here(objects: FarObjects) -> None:
    paths = objects.fetch(put_many(objects, 20))
    assert {path.parent for path in paths} == {paths[0].parent}
    assert [path.name for path in paths] == sorted(path.name for path in paths[0].parent.iterdir())
    assert sorted(objects.fetched()) == [path.name for path in paths]


def test_what_is_known_of_fetched_files_does_not_grow_with_their_number(
    objects: FarObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marin_pipeline.store.cache.MOST", 5)
    cache, wanted = another(objects), [put(objects, f"{number}/x", b"%d" % number) for number in range(20)]
    for each in (*wanted, *wanted):
        assert cache.fetched(objects, [each])[0].read_bytes() == each.path.removesuffix("/x").encode()
    assert len(cache._contents) <= 5
    assert len(cache._folders) <= 5


def test_one_content_is_fetched_once_whatever_its_names_and_stores(objects: FarObjects, tmp_path: Path) -> None:
    first, second = put(objects, "a/x.txt", b"same"), put(objects, "b/y.json", b"same")
    other = FarObjects(tmp_path / "other")
    third = put(other, "a/x.txt", b"same")
    found = [*objects.fetch([first]), *objects.fetch([second]), *other.fetch([third])]
    assert [path.name for path in found] == ["x.txt", "y.json", "x.txt"]
    assert len({path.stat().st_ino for path in found}) == 1
    assert objects.fetched() == ["x.txt"]
    assert other.fetched() == []


def test_other_bytes_than_were_committed_are_not_handed_out_and_not_kept(objects: FarObjects, tmp_path: Path) -> None:
    wanted = put(objects, "a/x", b"good")
    problems = {
        b"evil": "sha256 differs",
        b"bad": "has 3 bytes, but 4 were committed",
        b"": "has 0 bytes, but 4 were committed",
        b"much more" * 100_000: "has more than 4 bytes, but 4 were committed",
    }
    for changed, problem in problems.items():
        (tmp_path / "far" / "a" / "x").write_bytes(changed)
        with pytest.raises(CorruptOutput, match=rf"^far://.*/a/x: .*{problem}.*--force"):
            objects.fetch([wanted])
        assert kept(tmp_path / "cache") == []
    (tmp_path / "far" / "a" / "x").write_bytes(b"good")
    assert objects.fetch([wanted])[0].read_bytes() == b"good"


def test_an_object_that_is_not_there_is_told_by_its_path(objects: FarObjects) -> None:
    good = put(objects, "a", b"1")
    with pytest.raises(FileNotFoundError) as told:
        objects.fetch([good, Wanted("b/c", 1, "0" * 64)])
    assert told.value.filename == "b/c"


def damage(path: Path, how: str) -> None:
    path.chmod(0o644)
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes({"flipped": b"dbta", "shorter": b"da", "empty": b""}[how])


@pytest.mark.parametrize("how", ["flipped", "shorter", "empty", "gone"])
def test_a_cached_file_that_was_damaged_is_found_at_the_first_use_and_fetched_anew(
    objects: FarObjects, tmp_path: Path, how: str
) -> None:
    wanted = put(objects, "a/x", b"data")
    objects.fetch([wanted])
    objects.fetched()
    (file,) = kept(tmp_path / "cache")
    damage(file, how)
    (path,) = another(objects).fetched(objects, [wanted])
    assert path.read_bytes() == b"data"
    assert objects.fetched() == ["x"]
    assert [file.read_bytes() for file in kept(tmp_path / "cache")] == [b"data"]


def no_links(source: str, target: str) -> None:
    raise OSError(errno.EPERM, "no links")


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("data", [b"data", b""])
@pytest.mark.parametrize("what", ["folder", "pipe", "link to a pipe", "link to nothing"])
def test_what_is_no_file_gives_way_to_one_and_is_not_opened(
    objects: FarObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, data: bytes, links: bool
) -> None:
    wanted = put(objects, "a/x", data)
    objects.fetch([wanted])
    (file,) = kept(tmp_path / "cache")
    file.unlink()
    os.mkfifo(tmp_path / "pipe")
    if what == "folder":
        file.mkdir()
    elif what == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(tmp_path / ("pipe" if what == "link to a pipe" else "nothing"))
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    (place,) = another(objects).fetched(objects, [wanted])
    assert place.read_bytes() == data
    assert not file.is_symlink()
    assert file.read_bytes() == data


def test_a_file_that_a_step_wrote_into_is_not_handed_out_again(objects: FarObjects) -> None:
    wanted = put(objects, "a/x", b"data")
    (path,) = objects.fetch([wanted])
    time.sleep(0.01)
    damage(path, "flipped")
    (path,) = objects.fetch([wanted])
    assert path.read_bytes() == b"data"


def test_what_was_not_used_for_the_longest_time_goes_first(
    objects: FarObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIN_CACHE_BYTES", "5kB")
    wanted = put_many(objects, 7)
    for each in wanted[:5]:
        in_a_process(objects, "objects.fetch(wanted)", *flat(each))
    in_a_process(objects, "objects.fetch(wanted)", *flat(wanted[0]))
    in_a_process(objects, "objects.fetch(wanted)", *flat(wanted[5], wanted[6]))
    names = {file.name for file in kept(tmp_path / "cache")}
    assert names == {wanted[index].sha256 for index in (0, 3, 4, 5, 6)}


def test_what_a_process_uses_stays_for_it_whatever_the_others_fetch(
    objects: FarObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIN_CACHE_BYTES", "2kB")
    wanted = put_many(objects, 12)
    paths = objects.fetch(wanted[:4])
    for start in range(4, 12, 2):
        in_a_process(objects, "objects.fetch(wanted)", *flat(*wanted[start : start + 2]))
    assert [path.read_bytes() for path in paths] == [bytes([number]) * 1000 for number in range(4)]
    assert {each.sha256 for each in wanted[:4]} <= {file.name for file in kept(tmp_path / "cache")}
    assert len(kept(tmp_path / "cache")) <= 6
    # Even when somebody empties the cache.
    shutil.rmtree(tmp_path / "cache" / "objects")
    assert [path.read_bytes() for path in objects.fetch(wanted[:4])] == [bytes([each]) * 1000 for each in range(4)]


def test_the_folders_of_dead_processes_go_and_those_of_living_ones_stay(objects: FarObjects, tmp_path: Path) -> None:
    wanted = put(objects, "a/x", b"data")
    objects.fetch([wanted])
    folders = tmp_path / "cache" / "processes"
    (mine,) = (path for path in folders.iterdir() if path.is_dir())
    in_a_process(objects, "objects.fetch(wanted)", *flat(wanted))
    assert [path for path in folders.iterdir() if path.is_dir()] == [mine]
    waiting = in_a_process(
        objects, "objects.fetch(wanted)\nprint(1, flush=True)\ntime.sleep(60)", *flat(wanted), wait=False
    )
    assert waiting.stdout is not None
    waiting.stdout.readline()
    (theirs,) = (path for path in folders.iterdir() if path.is_dir() and path != mine)
    in_a_process(objects, "objects.fetch(wanted)", *flat(wanted))
    assert theirs.is_dir()
    waiting.kill()
    waiting.wait()
    assert theirs.is_dir()
    in_a_process(objects, "objects.fetch(wanted)", *flat(wanted))
    assert not theirs.exists()
    assert mine.is_dir()
    assert sorted(path.name for path in folders.iterdir()) == sorted([mine.name, f"{mine.name}.alive", "lock"])


SLOWLY = """
plain = objects._blocks
def slow(path, start, stop):
    for block in plain(path, start, stop):
        for at in range(0, len(block), 1000):
            yield block[at:at + 1000]
            if at == 3000:
                print("half", flush=True)
                time.sleep(60)
objects._blocks = slow
objects.fetch(wanted)
"""


def test_a_process_that_is_killed_while_it_fetches_leaves_nothing_that_is_believed(
    objects: FarObjects, tmp_path: Path
) -> None:
    wanted = put(objects, "a/x", b"data" * 10_000)
    killed = in_a_process(objects, SLOWLY, *flat(wanted), wait=False)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "half\n"
    assert kept(tmp_path / "cache") == []
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    (path,) = objects.fetch([wanted])
    assert path.read_bytes() == b"data" * 10_000
    rest = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert {path.stat().st_size for path in rest} == {0, 40_000}
    assert {path.name for path in rest if path.stat().st_size} == {"x", wanted.sha256}


def test_many_processes_fetch_one_object_once(objects: FarObjects) -> None:
    wanted = put(objects, "a/x", b"data" * 100_000)
    program = """
    plain = objects.download
    def download(path, target):
        time.sleep(0.5)
        print("downloads", flush=True)
        return plain(path, target)
    objects.download = download
    assert objects.fetch(wanted)[0].read_bytes() == b"data" * 100_000
    """
    running = [in_a_process(objects, program, *flat(wanted), wait=False) for _ in range(4)]
    printed = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert sorted(printed) == ["", "", "", "downloads\n"]


def test_without_links_files_are_copied(objects: FarObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        os.stat(source)
        raise PermissionError(errno.EPERM, "no links here")

    wanted = put(objects, "a/x", b"data")
    monkeypatch.setattr(os, "link", refuse)
    (path,) = objects.fetch([wanted])
    assert path.read_bytes() == b"data"
    damage(kept(tmp_path / "cache")[0], "gone")
    assert path.read_bytes() == b"data"
    again = another(objects)
    again.fetched(objects, [wanted])
    another(objects).fetched(objects, [wanted])
    assert objects.fetched() == ["x", "x"]


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_told_with_what_to_do(
    objects: FarObjects, tiny_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIN_CACHE", str(tiny_disk / "cache"))
    big = put(objects, "big", b"x" * 2_000_000)
    with pytest.raises(
        DiskFull, match=r"tiny/cache: there is no room for far://.*/big \(2,000,000 bytes\).*MARIN_CACHE"
    ):
        objects.fetch([big])
    small = put(objects, "small", b"x" * 500_000)
    assert objects.fetch([small])[0].stat().st_size == 500_000


def test_a_disk_that_is_full_of_what_nobody_uses_is_no_error(
    objects: FarObjects, tiny_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARIN_CACHE", str(tiny_disk / "cache"))
    for number in range(4):
        wanted = put(objects, f"{number}", bytes([number]) * 400_000)
        in_a_process(objects, "objects.fetch(wanted)", *flat(wanted))
    assert len(kept(tiny_disk / "cache")) < 3


def test_a_store_that_does_not_answer_is_told_as_such(objects: FarObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(path: str, start: int, stop: int | None) -> Iterator[bytes]:
        if not start:
            yield b"da"
        raise NoAnswer("the store does not answer")

    wanted = put(objects, "a/x", b"data")
    with monkeypatch.context() as patch:
        patch.setattr(downloads, "WAITS", (0.01,))
        patch.setattr(objects, "_blocks", silent)
        with pytest.raises(NoAnswer):
            objects.fetch([wanted])
    assert objects.fetch([wanted])[0].read_bytes() == b"data"


def test_several_are_fetched_at_the_same_time_and_not_all(objects: FarObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, plain = set[str](), 0, objects._blocks

    def blocks(path: str, start: int, stop: int | None) -> Iterator[bytes]:
        nonlocal most
        running.add(path)
        most = max(most, len(running))
        time.sleep(0.02)
        running.remove(path)
        yield from plain(path, start, stop)

    monkeypatch.setattr(objects, "_blocks", blocks)
    objects.fetch(put_many(objects, 64, size=10))
    assert 2 <= most <= module.AT_ONCE


def test_variables_that_say_nothing_sensible_are_told(
    objects: FarObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = put(objects, "a", b"1")
    with monkeypatch.context() as patch:
        patch.setenv("MARIN_CACHE_BYTES", "much")
        for call in (lambda: objects.fetch([wanted]), check_cache):
            with pytest.raises(UsageError, match="MARIN_CACHE_BYTES: 'much' is no size; write it as in 500MB"):
                call()
    check_cache()
    (tmp_path / "file").write_text("")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "objects").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/cache"), tmp_path / "odd"):
        monkeypatch.setenv("MARIN_CACHE", str(place))
        with pytest.raises(UsageError, match=f"^MARIN_CACHE {place}: .*; set it to a folder of your own"):
            check_cache()
        if place.name != "odd":
            for call in (lambda: objects.fetch([wanted]), lambda: objects.is_at_hand(wanted)):
                with pytest.raises(CacheError, match="set MARIN_CACHE to a folder of your own"):
                    call()


def test_what_is_wrong_with_the_cache_is_not_told_of_what_was_committed(
    objects: FarObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = put(objects, "a", b"1")
    entry = Entry("a", wanted.path, wanted.size, wanted.sha256)
    (fetched,) = all_verified(objects, [entry])

    def gone(wanted: Sequence[Wanted]) -> list[Path]:
        fetched.unlink(missing_ok=True)
        return [fetched]

    monkeypatch.setattr(objects, "fetch", gone)
    with pytest.raises(CacheError, match=r"was fetched from far://.* and is there no more"):
        all_verified(objects, [entry])

    def refused(wanted: Sequence[Wanted]) -> list[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(fetched))

    monkeypatch.setattr(objects, "fetch", refused)
    with pytest.raises(CacheError, match="Permission denied"):
        all_verified(objects, [entry])


def test_the_scratch_of_a_killed_process_goes_with_the_next(
    objects: FarObjects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    program = """
    folder = objects.folder("a/out")
    (folder / "x").write_text("x")
    print(folder, flush=True)
    time.sleep(60)
    """
    killed = in_a_process(objects, program, wait=False)
    assert killed.stdout is not None
    folder = Path(killed.stdout.readline().strip())
    assert (folder / "x").read_text() == "x"
    killed.kill()
    killed.wait()
    in_a_process(objects, "objects.folder('b')")
    wait_until(lambda: not folder.exists())
