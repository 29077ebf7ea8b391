"""A cache that cannot be used is told as such, before a run ends what is good."""

from __future__ import annotations

from pathlib import Path

import pytest

from marin_pipeline.core.errors import CacheError, UsageError
from marin_pipeline.run.screen import LineScreen
from tests.run.conftest import inline
from tests.run.sample_steps import add, number
from tests.run.sessions import Bench
from tests.stores import new_prefix

__all__ = ["inline"]

TOTAL = add([number(value=1), number(value=2)])


@pytest.fixture
def far(inline: Bench, request: pytest.FixtureRequest) -> Bench:
    inline.url = new_prefix(request, "gs")
    return inline


@pytest.mark.parametrize("name", ["MARIN_CACHE_BYTES", "MARIN_CACHE"])
def test_nothing_is_ended_where_the_cache_cannot_be_used(
    far: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").write_text("")
    assert far.run(TOTAL).ok
    before = {info.path for info in far.objects.list("steps")}
    monkeypatch.setenv(name, str(tmp_path / "file"))
    with pytest.raises(UsageError, match=f"^{name}"):
        far.run(TOTAL, force=("add",))
    assert {info.path for info in far.objects.list("steps")} == before
    monkeypatch.delenv(name)
    assert set(far.statuses(TOTAL).values()) == {"cached"}


def test_an_output_that_the_cache_cannot_take_is_not_called_damaged(
    far: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert far.run(TOTAL).ok
    monkeypatch.setenv("MARIN_CACHE", str(tmp_path / "file"))
    session = far.session(TOTAL)
    looks = session.looks()
    result = session.show(LineScreen(0), session.plan(looks), looks)
    assert result.ok
    printed = capsys.readouterr()
    assert "damaged" not in printed.out + printed.err
    assert "unread" in printed.out + printed.err
    with pytest.raises(CacheError, match="set MARIN_CACHE to a folder of your own"):
        _ = result.bound(TOTAL.key).value


def test_a_url_is_no_folder_of_the_cache(far: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("gs://lab/c", "s3://lab/c", "file:///lab/c"):
        monkeypatch.setenv("MARIN_CACHE", url)
        with pytest.raises(UsageError, match=f"^MARIN_CACHE {url}: is a URL; set it to a folder of this machine"):
            far.run(TOTAL)
    assert not list(tmp_path.glob("*:"))
