"""Tokens are opened by their folder, or by what a store knows them by; anything else is refused by name."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from marin_pipeline import Context, Tokens, run, step
from marin_pipeline.core.errors import InputError, MarinError
from marin_pipeline.data.opened import open_tokens
from marin_pipeline.data.token_store import TokenStore
from tests.data.token_stores import write_store


@step
def given_tokens(ctx: Context, folder: str) -> Tokens:
    artifact = write_store(ctx.out, [[[5, 6, 0], [7, 0]], [[8, 0]]])
    (Path(folder) / "ran").touch()
    return artifact.value


@step
def number(ctx: Context) -> int:
    return 3


def test_a_folder_and_a_name_and_a_key_open_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "store"))
    made = run(given_tokens(folder=str(tmp_path)).named("web-tokens"), quiet=True, backend="inline")
    folder = tmp_path / "copy"
    write_store(folder, [[[5, 6, 0], [7, 0]], [[8, 0]]])
    for text in ("web-tokens", made.key[:8], str(folder)):
        store = TokenStore(open_tokens(text))
        assert store.read(0, store.tokens).tolist() == [5, 6, 0, 7, 0, 8, 0]


def test_the_store_may_be_named(tmp_path: Path) -> None:
    prefix = str(tmp_path / "store")
    run(given_tokens(folder=str(tmp_path)).named("web-tokens"), quiet=True, backend="inline", prefix=prefix)
    assert TokenStore(open_tokens("web-tokens", prefix)).tokens == 7


def test_what_is_not_tokens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "store"))
    run(number().named("three"), quiet=True, backend="inline")
    with pytest.raises(InputError, match="'three' is an output of 'number' without a record"):
        open_tokens("three")
    with pytest.raises(MarinError, match="'two' is no name and no key"):
        open_tokens("two")
    with pytest.raises(InputError, match="no readable ledger of tokens"):
        open_tokens(str(tmp_path))


def test_where_there_is_no_store_that_is_said(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(MarinError, match=rf"'two': there is no store in {nowhere}; say where it is \(--prefix, "):
        open_tokens("two", nowhere)
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_with_the_name_of_an_output_is_not_in_its_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    run(given_tokens(folder=str(tmp_path)).named("web"), quiet=True, backend="inline")
    (tmp_path / "web").mkdir()
    assert TokenStore(open_tokens("web")).tokens == 7


def test_a_part_that_is_missing_from_a_folder_is_named_when_it_is_read(tmp_path: Path) -> None:
    write_store(tmp_path, [[[5, 6, 0]], [[7, 0]]])
    shutil.rmtree(tmp_path / "part-1")
    with pytest.raises(InputError, match="part-1/tokens: missing"):
        TokenStore(open_tokens(str(tmp_path))).read(0, 5)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (False, r"damaged \([^;]*: its bytes are not those that were committed \(sha256 differs\)\)"),
        (True, r"missing \([^;]*: the committed file cannot be read \(No such file or directory\)\)"),
    ],
)
def test_a_file_that_is_not_as_committed_is_told_with_what_it_is_and_one_remedy(
    tmp_path: Path, missing: bool, said: str
) -> None:
    prefix = str(tmp_path / "store")
    made = run(given_tokens(folder=str(tmp_path)), quiet=True, backend="inline", prefix=prefix)
    file = Path(made / "part-0/tokens/c/0").resolve()
    content = bytearray(file.read_bytes())
    file.parent.chmod(0o755)
    file.chmod(0o644)
    content[-1] ^= 1
    file.write_bytes(content)
    if missing:
        file.unlink()
    with pytest.raises(InputError) as told:
        TokenStore(open_tokens(made.key[:8], prefix)).read(0, 5)
    remedy = (
        f"`marin-pipeline verify --level full {made.key[:8]}` says what has changed; "
        "then run the step that made it again with --force"
    )
    assert re.fullmatch(rf"part-0/tokens: {said}; {re.escape(remedy)}", str(told.value))
