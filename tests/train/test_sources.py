"""The sources of a run are opened by name: what is wrong with one is told with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from marin_pipeline import Artifact, local_artifact, test_context
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.schema import Packing
from marin_pipeline.data.shuffle import Shuffle
from marin_pipeline.data.token_ledger import LEDGER_FILE
from marin_pipeline.train.reading import TOGETHER, Reading
from marin_pipeline.train.sources import open_sources
from steps.pack import pack
from tests.data.token_stores import write_store

NAMES = ("web", "code")
MIXTURE = Mixture((Source("web"), Source("code")), (Phase(0, {"web": 0.5, "code": 0.5}),))
READING = Reading({}, None, MIXTURE, 8, 0, Shuffle(), separate=True)


def test_a_plan_of_another_source_is_told_with_the_source_that_it_is_given_for(tmp_path: Path) -> None:
    tokens = {name: write_store(tmp_path / name, [[[place] * 20 + [0]]]) for place, name in enumerate(NAMES, 1)}
    plans: dict[str, Artifact[Packing]] = {}
    for name in NAMES:
        ctx = test_context(tmp_path / f"packed-{name}")
        plans[name] = local_artifact(ctx.out, pack.fn(ctx, tokens=tokens[name], sequence_length=8))
    assert len(open_sources(tokens, plans, {}, READING)[0]) == 2
    with pytest.raises(InputError, match=r"^source 'code': [^;]*: the plan was made for other tokens \(ledger "):
        open_sources(tokens, {**plans, "code": plans["web"]}, {}, READING)


@pytest.mark.parametrize(
    ("damaged", "said"),
    [("code", "source 'code'"), ("apart", "held-out text of 'web'"), ("together", TOGETHER)],
)
def test_tokens_that_are_not_as_written_are_told_with_their_source(tmp_path: Path, damaged: str, said: str) -> None:
    tokens = {name: write_store(tmp_path / name, [[[1] * 20]]) for name in NAMES}
    apart = {"web": write_store(tmp_path / "apart", [[[1] * 20]])}
    together = {TOGETHER: write_store(tmp_path / "together", [[[1] * 20]])}
    (tmp_path / damaged / LEDGER_FILE).write_text("{}")
    with pytest.raises(InputError, match=f"^{said}: .*{LEDGER_FILE}: "):
        open_sources(tokens, None, together if damaged == "together" else apart, READING)
