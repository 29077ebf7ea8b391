"""`marin-pipeline show` is written for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from marin_pipeline import Context, LocalFile, Secret, step
from marin_pipeline.run import inspection
from tests.run.sessions import Bench


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
