"""Checkpoints: what is saved comes back, equal states give equal files, and no damage goes unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from marin_pipeline.core.errors import CorruptOutput
from marin_pipeline.train import checkpoint
from marin_pipeline.train.checkpoint import HostArray, Snapshot

MATRIX = "parameters/blocks.attention.query"


def snapshot() -> Snapshot:
    random = np.random.default_rng(0)
    arrays = {
        MATRIX: HostArray((("layers", 2), ("embed", 5)), random.normal(size=(2, 5)).astype("f")),
        "parameters/norm": HostArray((("embed", 5),), np.ones(5, np.float32)),
        "optimizer/momentum/norm": HostArray((("embed", 5),), random.normal(size=5).astype("f")),
    }
    return Snapshot(7, arrays, b'{"step": 7}\n', {"recipe": {"seed": 1}, "data": {"tokens_read": 56}})


def digest(folder: Path) -> str:
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    files = [[str(path.relative_to(folder)), path.read_bytes().hex()] for path in paths]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def test_what_is_saved_comes_back(tmp_path: Path):
    saved = snapshot()
    checkpoint.save(tmp_path, saved)
    loaded = checkpoint.load(tmp_path)
    assert (loaded.step, loaded.metrics, loaded.described) == (7, saved.metrics, saved.described)
    assert set(loaded.arrays) == set(saved.arrays)
    for name, array in saved.arrays.items():
        assert loaded.arrays[name].axes == array.axes
        np.testing.assert_array_equal(loaded.arrays[name].values, array.values)


def test_equal_states_give_equal_files_and_another_state_another_digest(tmp_path: Path):
    first = checkpoint.save(tmp_path / "a", snapshot())
    assert checkpoint.save(tmp_path / "b", snapshot()) == first
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    changed = snapshot()
    changed.arrays[MATRIX].values[0, 0] = np.nextafter(changed.arrays[MATRIX].values[0, 0], np.float32(9))
    assert checkpoint.save(tmp_path / "c", changed) != first


def test_arrays_are_zarr3_with_the_names_of_their_axes(tmp_path: Path):
    checkpoint.save(tmp_path, snapshot())
    metadata = json.loads((tmp_path / "arrays" / MATRIX / "zarr.json").read_text())
    assert metadata["zarr_format"] == 3
    assert metadata["dimension_names"] == ["layers", "embed"]
    assert "haliax" not in (tmp_path / "checkpoint.json").read_text()


def test_a_reader_may_take_the_parameters_alone(tmp_path: Path):
    checkpoint.save(tmp_path, snapshot())
    (tmp_path / "arrays/optimizer/momentum/norm/zarr.json").unlink()
    assert set(checkpoint.load(tmp_path, "parameters/").arrays) == {MATRIX, "parameters/norm"}


def test_large_arrays_are_cut_into_chunks_by_their_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", 40)
    values = np.arange(3 * 4 * 6, dtype=np.float32).reshape(3, 4, 6)
    large = Snapshot(0, {"x": HostArray((("a", 3), ("b", 4), ("c", 6)), values)}, b"", {})
    checkpoint.save(tmp_path, large)
    metadata = json.loads((tmp_path / "arrays/x/zarr.json").read_text())
    assert metadata["chunk_grid"]["configuration"]["chunk_shape"] == [1, 1, 6]
    np.testing.assert_array_equal(checkpoint.load(tmp_path).arrays["x"].values, values)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("file", "damage", "named"),
    [
        (f"arrays/{MATRIX}/c/0/0", flip, MATRIX),
        (f"arrays/{MATRIX}/c/0/0", cut, MATRIX),
        (f"arrays/{MATRIX}/c/0/0", remove, MATRIX),
        (f"arrays/{MATRIX}/zarr.json", remove, MATRIX),
        (f"arrays/{MATRIX}/zarr.json", cut, MATRIX),
        ("metrics.jsonl", flip, "metrics.jsonl"),
        ("metrics.jsonl", remove, "metrics.jsonl"),
        ("checkpoint.json", flip, "checkpoint.json"),
        ("checkpoint.json", cut, "checkpoint.json"),
        ("checkpoint.json", remove, "checkpoint.json"),
    ],
)
def test_damage_is_refused_by_name(tmp_path: Path, file: str, damage: Callable[[Path], None], named: str):
    checkpoint.save(tmp_path, snapshot())
    damage(tmp_path / file)
    with pytest.raises(CorruptOutput, match=named):
        checkpoint.load(tmp_path)


def test_an_array_that_was_struck_from_the_list_is_missed(tmp_path: Path):
    checkpoint.save(tmp_path, snapshot())
    description = json.loads((tmp_path / "checkpoint.json").read_text())
    del description["arrays"][MATRIX]
    (tmp_path / "checkpoint.json").write_text(json.dumps(description))
    with pytest.raises(CorruptOutput, match="not what was saved"):
        checkpoint.load(tmp_path)


def test_another_format_is_refused(tmp_path: Path):
    checkpoint.save(tmp_path, snapshot())
    description = json.loads((tmp_path / "checkpoint.json").read_text())
    (tmp_path / "checkpoint.json").write_text(json.dumps({**description, "format": 99}))
    with pytest.raises(CorruptOutput, match="format 99"):
        checkpoint.load(tmp_path)
