"""What an output was made from is found again, as it was read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from marin_pipeline import load, local_artifact
from marin_pipeline.core.errors import NotRunError, StoreError
from tests.run.sample_steps import add, echo, number, random_bytes, times, words
from tests.run.sessions import Bench, step_folder


def test_what_was_read_is_found_by_its_role_and_so_is_what_that_was_made_from(in_each_store: Bench) -> None:
    bench = in_each_store
    counted = times(count=words(text="a bb"), factor=2).named("counted")
    assert bench.run(add(numbers=[number(value=7), counted])).ok
    found = load("add", prefix=bench.objects.url)
    assert list(found.inputs) == ["numbers[0]", "numbers[1]"]
    assert [(each.name, each.value) for each in found.inputs.values()] == [("number", 7), ("times", 4)]
    (read,) = found.inputs["numbers[1]"].inputs.values()
    assert (read / "words.txt").read_text() == "a\nbb"
    assert dict(read.inputs) == {}


def test_an_input_that_was_made_again_is_found_as_it_was_read(inline: Bench) -> None:
    made = random_bytes(seed=1)
    assert inline.run(echo(text=made)).ok
    before = load("echo", prefix=str(inline.prefix))
    assert inline.run(made, force=("random_bytes",)).ok
    assert load("random_bytes", prefix=str(inline.prefix)).value != before.value
    assert before.inputs["text"].value == before.value


def test_an_input_that_is_gone_is_an_error_where_it_is_looked_up(inline: Bench) -> None:
    first, second = number(value=1), number(value=2)
    assert inline.run(add(numbers=[first, second])).ok
    shutil.rmtree(step_folder(inline, first))
    found = load("add", prefix=str(inline.prefix)).inputs
    assert (len(found), found["numbers[1]"].value) == (2, 2)
    with pytest.raises(StoreError, match=rf"numbers\[0\] of .*add .*, which is {first.key[:8]} .* not there any more"):
        found["numbers[0]"]


def test_what_has_not_run_was_made_from_nothing_yet(tmp_path: Path) -> None:
    with pytest.raises(NotRunError, match="has no output here"):
        _ = number(value=1).inputs
    assert dict(local_artifact(tmp_path, 1).inputs) == {}
