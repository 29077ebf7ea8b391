"""A snapshot of code is named by what is in it, and one from a stranger writes nothing outside of its folder."""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_pipeline.core.errors import CorruptOutput, InputError
from marin_pipeline.store import layout, snapshots
from marin_pipeline.store.objects import open_objects
from marin_pipeline.store.snapshots import Snapshot, keep_snapshot, read_snapshot

FILES = {"project/b.py": b"b = 1\n", "project/a/c.py": b"", "packages/steps/d.py": "ü".encode()}


def test_equal_files_have_one_digest_and_one_archive_in_any_order() -> None:
    first, second = Snapshot(FILES), Snapshot(dict(reversed(FILES.items())))
    assert first.digest == second.digest
    assert first.packed() == second.packed()
    assert Snapshot({**FILES, "project/b.py": b"b = 2\n"}).digest != first.digest
    # sha256 of '[["packages/steps/d.py","<sha256>"],["project/a/c.py",…],["project/b.py",…]]'
    assert first.digest == "ca3be69bb63fbb1324b89e3192d377e159d2df3d2b0e645487945ce7babd06c5"


def test_what_was_kept_is_read_and_unpacked_as_it_was(tmp_path: Path) -> None:
    objects, snapshot = open_objects(str(tmp_path / "store")), Snapshot(FILES)
    keep_snapshot(objects, snapshot)
    keep_snapshot(objects, snapshot)
    found = read_snapshot(objects, snapshot.digest)
    assert found == snapshot
    found.unpack(tmp_path / "code")
    assert {path: (tmp_path / "code" / path).read_bytes() for path in FILES} == FILES
    with pytest.raises(InputError, match="is there already"):
        found.unpack(tmp_path / "code")


@pytest.mark.parametrize(
    "path",
    [
        "../x.py",
        "/etc/x.py",
        "project/../../x.py",
        "project/./x.py",
        "project//x.py",
        "project",
        "project/",
        "elsewhere/x.py",
        "project\\..\\x.py",
        "project/a\0.py",
        "project/\x1b[2J.py",
        "project/" + "x" * 1000,
        "",
    ],
)
def test_a_path_that_leads_out_is_refused_packed_or_not(path: str) -> None:
    with pytest.raises(InputError, match="no path of a file in a snapshot"):
        Snapshot({**FILES, path: b""})
    with pytest.raises(CorruptOutput):
        Snapshot.unpacked(archive((zipfile.ZipInfo(path or "x"), b"")), "0" * 64, "x.zip")


def test_a_file_and_a_folder_of_one_name_are_refused() -> None:
    with pytest.raises(InputError):
        Snapshot({"project/a": b"", "project/a/b.py": b""})


def archive(*entries: tuple[zipfile.ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for entry, data in entries:
            file.writestr(entry, data)
    return buffer.getvalue()


def entry(path: str, kind: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(path)
    info.external_attr = (kind | 0o777) << 16
    return info


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_are_refused(kind: int) -> None:
    data = archive((entry("project/x.py", kind), b"/etc/passwd"))
    with pytest.raises(CorruptOutput, match="no plain file"):
        Snapshot.unpacked(data, "0" * 64, "x.zip")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_entries_of_one_name_are_refused() -> None:
    data = archive((entry("project/x.py", stat.S_IFREG), b"1"), (entry("project/x.py", stat.S_IFREG), b"2"))
    with pytest.raises(CorruptOutput, match="twice"):
        Snapshot.unpacked(data, "0" * 64, "x.zip")


def test_an_archive_that_grows_when_it_is_unpacked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Snapshot({"project/x.py": b"0" * 100_000})
    data = snapshot.packed()
    assert len(data) < 1000
    monkeypatch.setattr(snapshots, "MOST_BYTES", 50_000)
    with pytest.raises(CorruptOutput, match="more than"):
        Snapshot.unpacked(data, snapshot.digest, "x.zip")
    with pytest.raises(InputError, match="holds at most"):
        Snapshot({"project/x.py": b"0" * 100_000})
    monkeypatch.setattr(snapshots, "MOST_FILES", 0)
    with pytest.raises(CorruptOutput, match="files"):
        Snapshot.unpacked(data, snapshot.digest, "x.zip")


def test_an_archive_of_too_many_files_is_refused_before_its_list_is_read() -> None:
    with pytest.raises(CorruptOutput, match="more than 20,000 files"):
        Snapshot.unpacked(b"PK\x01\x02" * 50_000, "0" * 64, "there")


def test_other_files_than_the_name_says_and_a_missing_one_are_named(tmp_path: Path) -> None:
    objects, snapshot = open_objects(str(tmp_path)), Snapshot(FILES)
    with pytest.raises(CorruptOutput, match="missing"):
        read_snapshot(objects, snapshot.digest)
    objects.create(layout.snapshot(snapshot.digest), Snapshot({"project/b.py": b""}).packed())
    with pytest.raises(CorruptOutput, match="other files than its name says"):
        read_snapshot(objects, snapshot.digest)


@given(st.data())
def test_no_byte_of_an_archive_can_be_changed_unseen(data: st.DataObject) -> None:
    """Whatever is changed, what is read is what was kept, or the archive is refused."""
    snapshot = Snapshot(FILES)
    packed = bytearray(snapshot.packed())
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(packed), data.draw(st.integers(0, len(packed)))]))
    try:
        found = Snapshot.unpacked(bytes(packed[:end]), snapshot.digest, "x.zip")
    except CorruptOutput:
        return
    assert found == snapshot
