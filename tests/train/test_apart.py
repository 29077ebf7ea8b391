"""One text under two names, or as held-out text, is refused before the first step; so are stores that share parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marin_pipeline import Artifact, Tokens, run
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.token_ledger import Ledger
from marin_pipeline.data.token_store import TokenStore
from marin_pipeline.models.config import LlamaConfig
from marin_pipeline.run.driver import RunFailed
from marin_pipeline.train.apart import check_parts
from marin_pipeline.train.reading import TOGETHER
from steps.read_documents import documents_from
from steps.tokenize import tokenize
from steps.train import train
from steps.train_tokenizer import train_tokenizer
from tests.data.token_stores import write_store

ONE, TWO, THREE = [[1, 2, 0], [3, 0]], [[4, 5, 6, 0]], [[7, 0]]
NO_TEXT = [[0], [0]]


def ledger(folder: Path, *parts: list[list[int]]) -> Ledger:
    return TokenStore(write_store(folder, parts)).ledger


def test_equal_tokens_are_one_text_whatever_the_store_and_the_order_of_its_parts(tmp_path: Path) -> None:
    first, copy = ledger(tmp_path / "a", ONE, TWO), ledger(tmp_path / "b", TWO, NO_TEXT, ONE)
    with pytest.raises(InputError) as caught:
        check_parts({"a": first, "b": copy}, {})
    assert str(caught.value) == (
        "sources 'a' and 'b' are the same tokens under two names: give one of them, with the weight and the max_epochs "
        "of both"
    )
    with pytest.raises(InputError, match=r"^held_out is what source 'a' trains on, under another name: give text that"):
        check_parts({"a": first}, {TOGETHER: copy})
    with pytest.raises(InputError, match=r"^held_out\[a\] is what source 'a' trains on, under another name: "):
        check_parts({"a": first, "c": ledger(tmp_path / "c", THREE)}, {"a": copy})


def test_stores_that_share_parts_are_told_with_how_many(tmp_path: Path) -> None:
    first, second = ledger(tmp_path / "a", ONE, TWO), ledger(tmp_path / "b", THREE, TWO, ONE)
    with pytest.raises(InputError, match=r"^sources 'a' and 'b' share text: 2 of the 3 parts of the latter are parts"):
        check_parts({"a": first, "b": second}, {})
    with pytest.raises(InputError, match=r"^2 of the 3 parts of held_out\[b\] are parts of source 'a', which trains"):
        check_parts({"a": first}, {"b": second})


def test_parts_without_text_and_the_same_tokens_as_other_documents_are_not_one_text(tmp_path: Path) -> None:
    first, second = ledger(tmp_path / "a", ONE, NO_TEXT), ledger(tmp_path / "b", NO_TEXT, TWO)
    cut_otherwise, empty = ledger(tmp_path / "c", [[1, 2, 0, 3, 0]]), ledger(tmp_path / "d", NO_TEXT)
    check_parts({"a": first, "b": second, "c": cut_otherwise, "d": empty}, {"a": ledger(tmp_path / "e", NO_TEXT)})


@pytest.mark.parametrize("as_held_out", [False, True])
def test_a_copy_of_a_file_under_another_name_is_refused_before_the_run_is_started(
    tmp_path: Path, as_held_out: bool
) -> None:
    """The copies have other keys: what is equal is in their ledgers."""
    text = "".join(json.dumps({"text": f"The {place}th house stands by the river. " * 9}) + "\n" for place in range(30))
    tokens: dict[str, Artifact[Tokens]] = {}
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(text)
        documents = documents_from(tmp_path / f"{name}.jsonl")
        tokenizer = train_tokenizer(documents_from(tmp_path / "a.jsonl"), vocabulary=300)
        tokens[name] = tokenize(documents, tokenizer).named(name)
    assert tokens["a"].key != tokens["b"].key
    mixture = Mixture((Source("a"), Source("b")), (Phase(0, {"a": "1/2", "b": "1/2"}),))
    model = LlamaConfig(vocabulary=300, width=16, layers=1, heads=2, feed_forward=32)
    given: dict[str, Any] = {"tokens": tokens, "mixture": mixture}
    if as_held_out:
        given = {"tokens": tokens["a"], "held_out": tokens["b"]}
    asked = train(**given, model=model, steps=2, batch_size=2, sequence_length=16).named("trained")
    told = "held_out is what source 'tokens' trains on," if as_held_out else "'a' and 'b' are the same tokens"
    with pytest.raises(RunFailed, match=f"{told} under (two|another) name"):
        run(asked, prefix=str(tmp_path / "store"), backend="inline", quiet=True)
    assert not list((tmp_path / "store").glob("steps/**/train/**/attempts/*"))
    assert list((tmp_path / "store").glob("steps/**/tokenize/**/attempts/*"))
