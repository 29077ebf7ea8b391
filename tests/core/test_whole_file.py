"""A file is written whole or not at all, and nothing is left beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from marin_pipeline.core.errors import InputError, MarinError
from marin_pipeline.core.whole_file import write_whole
from marin_pipeline.run.code_lock import LOCK, CodeLock, write_lock
from marin_pipeline.run.lock_file import Asked, LockFile


def test_a_file_is_replaced(tmp_path: Path) -> None:
    for data in (b"one", b"two"):
        write_whole(tmp_path / "file", data)
        assert (tmp_path / "file").read_bytes() == data
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_was_there_stays_when_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def half(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:1])
        raise error

    (tmp_path / "file").write_bytes(b"one")
    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(type(error)):
        write_whole(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["file"]


def test_a_lock_that_cannot_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    with pytest.raises(InputError, match=r"code\.lock: the lock of code cannot be written .* `marin-pipeline code acc"):
        write_lock(tmp_path, CodeLock())
    with pytest.raises(MarinError, match="the lock file cannot be written"):
        LockFile(Asked({}, ()), {}).write(tmp_path / "no" / "such.lock.json")
    assert os.listdir(tmp_path) == [LOCK]


def test_a_device_and_a_pipe_are_written_into_also_through_a_link(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        write_whole(path, b"one")
        assert os.read(reader, 10) == b"one"
        os.close(reader)
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "full", b"one")
    assert (pipe.is_fifo(), link.is_symlink()) == (True, True)
    assert sorted(os.listdir(tmp_path)) == ["full", "link", "pipe"]


@pytest.mark.parametrize("there", [True, False])
def test_what_a_link_leads_to_is_replaced_and_not_the_link(tmp_path: Path, there: bool) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    if there:
        (folder / "file").write_bytes(b"one")
    (tmp_path / "link").symlink_to("folder/file")
    write_whole(tmp_path / "link", b"two")
    assert (tmp_path / "link").is_symlink()
    assert (folder / "file").read_bytes() == b"two"
    assert (sorted(os.listdir(tmp_path)), os.listdir(folder)) == (["folder", "link"], ["file"])
