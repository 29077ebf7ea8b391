"""The step that plans the packing of a token store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from marin_pipeline import local_artifact, test_context
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.packing import make_plan, open_plan
from marin_pipeline.data.packing_ledger import PACKING_FILE, PackingLedger, ledger_digest
from marin_pipeline.data.token_store import TokenStore
from steps.pack import pack
from tests.conftest import Ran
from tests.data.token_stores import write_store

EXPERIMENT = """
import numpy as np

from marin_pipeline import Context, Tokens, main, step
from marin_pipeline.data.token_ledger import LEDGER_FILE, Ledger
from marin_pipeline.data.token_writer import write_token_part
from steps.pack import pack


@step
def made(ctx: Context) -> Tokens:
    random = np.random.default_rng(3)
    parts = []
    for place in range(5):
        documents = [random.integers(1, 99, length) for length in random.integers(1, 200, 300)]
        parts.append(write_token_part(ctx.out / f"part-{place}", documents, 100, 1))
    ledger = Ledger(tuple(parts), "uint16", 100, 0, "ab" * 32)
    (ctx.out / LEDGER_FILE).write_text(ledger.to_json())
    return Tokens(LEDGER_FILE, ledger.tokens, ledger.documents, ledger.bytes, 100, 0)


if __name__ == "__main__":
    main(pack(made(), sequence_length=128))
"""


def test_each_part_has_its_plan_and_the_ledger_its_counts(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    random = np.random.default_rng(0)
    parts = [[random.integers(0, 9, length) for length in random.integers(1, 90, count)] for count in (40, 1, 25)]
    tokens = write_store(tmp_path / "tokens", parts)
    ctx = test_context(tmp_path / "packing")
    value = pack.fn(ctx, tokens=tokens, sequence_length=50)
    ledger = PackingLedger.from_json((ctx.out / PACKING_FILE).read_text())
    store = TokenStore(tokens)
    assert ledger.token_ledger == ledger_digest(store.ledger)
    assert (value.sequence_length, ledger.sequence_length) == (50, 50)
    assert (value.rows, value.documents, value.tokens) == (ledger.rows, 66, store.tokens)
    assert sorted(path.name for path in ctx.out.iterdir()) == [PACKING_FILE, *(f"part-{p}.npy" for p in range(3))]
    for place, part in enumerate(ledger.parts):
        expected = make_plan(store.part_offsets(place), 50)
        found = open_plan(str(ctx.out / part.name), part.rows, part.continued, part.sha256)
        np.testing.assert_array_equal(found.places, expected.places)
        np.testing.assert_array_equal(found.pieces, expected.pieces)
        assert (part.rows, part.continued) == (expected.rows, expected.continued)
        assert (part.pieces, part.documents, part.tokens) == (
            len(expected.pieces),
            len(parts[place]),
            sum(map(len, parts[place])),
        )


def test_the_plan_is_the_same_however_many_workers_make_it(tmp_path: Path, program: Callable[..., Ran]) -> None:
    experiment = tmp_path / "experiment.py"
    experiment.write_text(EXPERIMENT)
    found = []
    for place, options in enumerate((("--backend", "inline"), ("--max-parallel", "1"), ("--max-parallel", "3"))):
        ran = program(experiment, *options, "--json", prefix=tmp_path / f"store-{place}")
        assert ran.code == 0, ran.out + ran.err
        found.append(ran.summary["pack"]["digest"])
    assert len(set(found)) == 1


@pytest.mark.parametrize("sequence_length", [0, -3])
def test_a_row_without_positions_stops_the_step(tmp_path: Path, sequence_length: int) -> None:
    tokens = write_store(tmp_path, [[[1, 0]]])
    with pytest.raises(InputError, match=f"pack: sequence_length={sequence_length}: it must be at least 1"):
        pack.fn(test_context(tmp_path / "packing"), tokens=tokens, sequence_length=sequence_length)


def test_starts_of_documents_that_were_changed_stop_the_step(tmp_path: Path) -> None:
    for name, damage in (("flipped", _flip), ("other", _replace), ("gone", Path.unlink)):
        folder = tmp_path / name
        folder.mkdir()
        value = write_store(folder, [[[1, 2, 0], [3, 0]]]).value
        damage(folder / "part-0" / "offsets" / "c" / "0")
        tokens = local_artifact(folder, value)
        with pytest.raises(InputError, match=r"where documents start .*verify --level full` says .*--force"):
            pack.fn(test_context(tmp_path / f"packing-{name}"), tokens=tokens, sequence_length=4)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)


def _replace(path: Path) -> None:
    """As it would be for other documents of as many tokens."""
    other = path.parents[4] / "replacement"
    other.mkdir()
    write_store(other, [[[1, 0], [2, 3, 0]]])
    path.write_bytes((other / "part-0" / "offsets" / "c" / "0").read_bytes())
