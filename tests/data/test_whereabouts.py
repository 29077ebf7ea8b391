"""What a step read and where a document was read are one answer, and it is what the rows really hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_pipeline import local_artifact, test_context
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.order import TrainingOrder
from marin_pipeline.data.packed_sequences import PackedSequences
from marin_pipeline.data.sequences import DocumentSource, Piece, Sequences
from marin_pipeline.data.shuffle import Shuffle
from marin_pipeline.data.stream import Stream
from marin_pipeline.data.token_store import TokenStore
from marin_pipeline.data.tokenizer import encode, load_tokenizer, train_bpe
from marin_pipeline.data.whereabouts import Visit, documents_in, steps_of, text_of, whole
from steps.pack import pack
from tests.data.token_stores import write_store

LENGTH = 8
DOCUMENTS = st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=4), min_size=1, max_size=3)
"""Tokens of text of each document, by part."""


def opened(folder: Path, parts: list[list[int]], length: int = LENGTH, packed: bool = False) -> DocumentSource:
    """A source in which each document has this many tokens of text, and one that ends it."""
    random = np.random.default_rng(0)
    made = [[[*random.integers(1, 64, size).tolist(), 0] for size in part] for part in parts]
    tokens = write_store(folder / "tokens", made, vocabulary=64)
    if not packed:
        return Sequences(TokenStore(tokens), length, separate=True)
    ctx = test_context(folder / "packing")
    value = pack.fn(ctx, tokens=tokens, sequence_length=length)
    return PackedSequences(TokenStore(tokens), local_artifact(ctx.out, value))


def mixed(
    sources: Mapping[str, DocumentSource], batch_size: int = 3, seed: int = 5, first_step: int = 0, first_token: int = 0
) -> TrainingOrder:
    """Two sources in turn, then one of them alone, then both again."""
    mixture = Mixture(
        tuple(Source(name, max_epochs=None) for name in sources),
        (
            Phase(0, {"web": "1/3", "code": "2/3"}),
            Phase(20 * LENGTH, {"code": 1}),
            Phase(30 * LENGTH, {"web": "0.6", "code": "0.4"}),
        ),
    )
    counts = {name: len(source) for name, source in sources.items()}
    stream = Stream(mixture, LENGTH)
    return TrainingOrder(stream, counts, batch_size, seed, Shuffle(2, 2), first_step, first_token)


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, DocumentSource]:
    """One that is cut, and one of whole documents in rows."""
    return {
        "web": opened(tmp_path / "web", [[11, 3, 0], [40], [0, 0, 7]]),
        "code": opened(tmp_path / "code", [[5, 4, 2, 5], [30, 1]], packed=True),
    }


@pytest.mark.parametrize("packed", [False, True])
@settings(max_examples=40, suppress_health_check=[HealthCheck.differing_executors])
@given(DOCUMENTS)
def test_the_pieces_of_a_sequence_are_the_tokens_that_it_predicts(
    tmp_path_factory: pytest.TempPathFactory, packed: bool, parts: list[list[int]]
) -> None:
    source = opened(tmp_path_factory.mktemp("store"), parts, 4, packed)
    pieces = [source.pieces(sequence) for sequence in range(len(source))]
    rows = source.read(np.arange(len(source)))
    assert rows.documents is not None
    for row, found in enumerate(pieces):
        tokens = [source.store.document(each.document)[each.start : each.stop].tolist() for each in found]
        filled = rows.documents[row] > 0
        assert [token for each in tokens for token in each] == rows.targets[row][filled].tolist()
        assert [place for place, each in enumerate(tokens, 1) for _ in each] == rows.documents[row][filled].tolist()
    for document in range(source.store.documents):
        within = [
            (each.start, sequence)
            for sequence, found in enumerate(pieces)
            for each in found
            if each.document == document
        ]
        assert list(source.sequences_of(document)) == [sequence for _, sequence in sorted(within)]


def test_every_token_that_a_source_reads_is_in_one_sequence(sources: dict[str, DocumentSource]) -> None:
    for name, source in sources.items():
        starts = source.store.offsets
        read = sorted(
            int(starts[each.document]) + place
            for sequence in range(len(source))
            for each in source.pieces(sequence)
            for place in range(each.start, each.stop)
        )
        # A cut never predicts a store's first token, and leaves a rest; whole documents have neither.
        whole_sequences = range(1, 1 + len(source) * LENGTH)
        assert read == list(range(source.store.tokens) if name == "code" else whole_sequences)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 9), st.integers(0, 70), st.integers(1, 5), st.integers(0, 2**32))
def test_what_steps_read_and_where_documents_are_read_is_the_same(
    sources: dict[str, DocumentSource], first_step: int, first_sequence: int, batch_size: int, seed: int
) -> None:
    order = mixed(sources, batch_size, seed, first_step, first_sequence * LENGTH)
    stop = first_step + 120 // batch_size
    by_document: dict[tuple[str, int], list[Visit]] = {}
    for step in range(first_step, stop):
        rows = documents_in(order, sources, step)
        assert [row.sequence for row in rows] == order.batch(step).sequences.tolist()
        for row in rows:
            for piece in row.pieces:
                visit = Visit(step, row.row, row.sequence, row.epoch, piece)
                by_document.setdefault((row.source, piece.document), []).append(visit)
    assert all(len({visit.epoch for visit in visits}) > 1 for visits in by_document.values())
    for name, source in sources.items():
        for document in range(source.store.documents):
            assert steps_of(order, sources, name, document, stop) == by_document.get((name, document), [])


def test_nothing_is_found_beyond_the_last_step(sources: dict[str, DocumentSource]) -> None:
    order = mixed(sources)
    all_steps = {visit.step for visit in steps_of(order, sources, "web", 3, 40)}
    assert {visit.step for visit in steps_of(order, sources, "web", 3, 12)} == {each for each in all_steps if each < 12}
    assert steps_of(order, sources, "web", 3, 0) == []


def test_a_source_or_a_document_that_is_not_there_is_refused(sources: dict[str, DocumentSource]) -> None:
    order = mixed(sources)
    with pytest.raises(InputError, match="source 'books' is none of the run's: these are 'web', 'code'"):
        steps_of(order, sources, "books", 0, 40)
    with pytest.raises(InputError, match="document 7 of a store that has 7"):
        steps_of(order, sources, "web", 7, 40)
    with pytest.raises(InputError, match="sequence 8 of a store that has 8"):
        sources["web"].pieces(8)


def test_the_text_of_pieces_is_that_of_their_documents(tmp_path: Path) -> None:
    texts = ["Zürich liegt am See.", "", "x = [1, 2]\n\treturn x", "naïve café 北京 🙂"]
    train_bpe(texts, 300).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    documents = encode(tokenizer, texts, 0)
    store = TokenStore(write_store(tmp_path / "store", [documents[:1], documents[1:]], vocabulary=300))
    source = Sequences(store, 5)
    everything = [whole(source, document) for document in range(len(texts))]
    assert text_of(source, everything, tokenizer) == texts
    cut = [piece for sequence in range(len(source)) for piece in source.pieces(sequence) if piece.document == 2]
    assert len(cut) > 1
    assert "".join(text_of(source, cut, tokenizer)) == texts[2]
    sign = tokenizer.encode("🙂", add_special_tokens=False).ids
    assert len(sign) > 1
    end = len(documents[3]) - 1
    halves = [Piece(3, end - len(sign), end - 1), Piece(3, end - 1, end)]
    assert all("\ufffd" in text for text in text_of(source, halves, tokenizer))
