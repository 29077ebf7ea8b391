"""An equal result is taken over instead of being made again: after a refactoring only what gives other bytes runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from marin_pipeline import Artifact, load
from marin_pipeline.core.key import artifact_keys
from marin_pipeline.store.commit import Commit, look
from tests.conftest import Program
from tests.run.sample_steps import add, number, times, words
from tests.run.sessions import Bench, outcomes, step_folder, value

REFACTORED = """
from marin_pipeline import Artifact, Context, main, step

@step(version=1)
def corpus(ctx: Context, text: str) -> None:
    (ctx.out / "text").write_text(text)

@step{version}
def dedupe(ctx: Context, documents: Artifact[None]) -> None:
    lines = (documents / "text").read_text().split()
    (ctx.out / "text").write_text({body})

@step(version=1)
def tokenize(ctx: Context, documents: Artifact[None]) -> int:
    (ctx.out / "tokens").write_text("tokens of " + (documents / "text").read_text())
    return 3

@step(version=1)
def train(ctx: Context, tokens: Artifact[int]) -> int:
    return tokens.value + 1

if __name__ == "__main__":
    main(train(tokens=tokenize(documents=dedupe(documents=corpus(text="b a b")))))
"""


FIRST: Artifact[Any] = add(numbers=[number(value=2)]).named("first")
SECOND: Artifact[Any] = add(numbers=[times(count=words(text="a b"))]).named("second")
"""The same step on an equal input that another recipe makes."""


def commit_of(bench: Bench, artifact: Artifact[Any]) -> Commit:
    assert artifact.declaration is not None
    found = look(bench.objects, artifact.declaration.step.id, artifact.key).commit
    assert found is not None
    return found


def test_after_a_refactoring_with_equal_output_only_the_refactored_step_runs(tmp_path: Path, program: Program) -> None:
    file = tmp_path / "curate.py"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "sample"\n')
    for version, body in (
        ("", 'f"{len(set(lines))}"'),
        ("(version=2)", "str(len(dict.fromkeys(lines)))"),
        ("", 'f"{len({*lines})}"'),
    ):
        file.write_text(REFACTORED.format(version=version, body=body))
        done = program(file, "--json")
        assert done.code == 0, done.err
        statuses = {name: each["status"] for name, each in done.summary.items()}
        first = version == "" and "set(lines)" in body
        rest = "done" if first else "cached"
        assert statuses == {"corpus": rest, "dedupe": "done", "tokenize": rest, "train": rest}
        if not first:
            adopted = {
                each["name"] for each in done.events if each["event"] == "adopt" and each["adopted_from"]["number"]
            }
            assert adopted == {"tokenize", "train"}
    again = program(file, "--json")
    assert {each["status"] for each in again.summary.values()} == {"cached"}
    file.write_text(REFACTORED.format(version="(version=3)", body="str(len(lines))"))
    other = program(file, "--json")
    assert {name: each["status"] for name, each in other.summary.items()} == {
        "corpus": "cached",
        "dedupe": "done",
        "tokenize": "done",
        "train": "done",
    }


def test_an_adopted_output_says_where_it_came_from_and_is_read_like_any_other(bench: Bench) -> None:
    bench.run(FIRST)
    bench.ran()
    assert outcomes(bench.run(SECOND)) == {"words": "done", "times": "done", "second": "cached"}
    assert bench.ran() == {"words": 1, "times": 1}
    source, taken = commit_of(bench, FIRST), commit_of(bench, SECOND)
    assert taken.adopted_from is not None
    assert (taken.adopted_from.key, taken.adopted_from.number) == (FIRST.key, 1)
    assert (taken.output, taken.manifest) == (source.output, source.manifest)
    assert taken.inputs != source.inputs
    assert artifact_keys(taken.arguments) == {times(count=words(text="a b")).key}
    assert load(SECOND.key[:12], prefix=str(bench.prefix)).value == 2
    assert bench.statuses(SECOND) == {"words": "cached", "times": "cached", "second": "cached"}


def test_equal_code_on_other_bytes_is_made(bench: Bench) -> None:
    bench.run(FIRST)
    assert outcomes(bench.run(add(numbers=[number(value=3)])))["add"] == "done"


def test_the_adopted_falls_with_what_it_was_adopted_from_and_is_made_anew(bench: Bench) -> None:
    bench.run(FIRST)
    bench.run(SECOND)
    assert bench.run(FIRST, force=["first"], reason="not trusted").ok
    planned = bench.plan(SECOND).nodes[SECOND.key]
    assert planned.status == "run"
    assert "adopted from" in planned.reason
    assert "not trusted" in planned.reason
    bench.ran()
    assert outcomes(bench.run(SECOND))["second"] == "done"
    assert bench.ran() == {"add": 1}
    assert commit_of(bench, SECOND).number == 2
    assert commit_of(bench, SECOND).adopted_from is None


def test_what_was_adopted_can_be_adopted_and_points_to_where_the_bytes_were_made(inline: Bench) -> None:
    third = add(numbers=[add(numbers=[number(value=2)])]).named("third")
    for artifact in (FIRST, SECOND, third):
        inline.run(artifact)
    source = commit_of(inline, third).adopted_from
    assert source is not None
    assert source.key == FIRST.key


def test_a_forced_step_is_made_and_adopts_nothing_and_its_result_can_be_adopted(inline: Bench) -> None:
    inline.run(FIRST)
    assert outcomes(inline.run(SECOND, force=["second"]))["second"] == "done"
    inline.run(FIRST, force=["first"])
    third = add(numbers=[add(numbers=[number(value=2)])]).named("third")
    inline.run(third)
    source = commit_of(inline, third).adopted_from
    assert source is not None
    assert (source.key, source.number) == (FIRST.key, 2)


def test_a_damaged_entry_of_the_index_costs_a_run_and_is_replaced(inline: Bench) -> None:
    inline.run(FIRST)
    for entry in inline.prefix.glob("resolved/*/*"):
        entry.write_bytes(b"{")
    assert outcomes(inline.run(SECOND))["second"] == "done"
    digest = commit_of(inline, SECOND).resolved
    assert json.loads((inline.prefix / "resolved" / digest[:2] / digest).read_text())["key"] == SECOND.key


def test_a_source_whose_manifest_is_gone_is_not_adopted(inline: Bench) -> None:
    inline.run(FIRST)
    for file in step_folder(inline, FIRST).glob("attempts/*/manifest.json"):
        file.unlink()
    assert outcomes(inline.run(SECOND))["second"] == "done"


def test_an_entry_that_names_another_result_is_not_believed(inline: Bench) -> None:
    """As after a restore that mixed up files: what it names must itself say that it was made from these contents."""
    other = add(numbers=[number(value=3)]).named("other")
    inline.run([FIRST, other])
    first, second = (commit_of(inline, each).resolved for each in (FIRST, other))
    paths = [inline.prefix / "resolved" / digest[:2] / digest for digest in (first, second)]
    kept = [path.read_bytes() for path in paths]
    for path, data in zip(paths, reversed(kept), strict=True):
        path.write_bytes(data)
    result = inline.run(SECOND)
    assert outcomes(result)["second"] == "done"
    assert value(result, "second") == 2
