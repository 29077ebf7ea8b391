"""How documents become rows: every target once, never short of context."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_pipeline.evaluate.windows import batches, windows

END = 0

documents = st.lists(st.lists(st.integers(1, 50), max_size=40).map(lambda ids: np.array([*ids, END])), max_size=8)


@given(documents=documents, length=st.integers(2, 16), multiple=st.integers(1, 4))
@settings(deadline=None)
def test_every_target_is_scored_exactly_once_with_enough_context(
    documents: list[np.ndarray], length: int, multiple: int
):
    scored: dict[int, list[int]] = {index: [] for index in range(len(documents))}
    for row in windows(documents, END, length):
        stream = [END, *documents[row.document]]
        assert len(row.inputs) == len(row.targets) <= length
        first = len(scored[row.document]) - row.skipped
        assert row.inputs.tolist() == stream[first : first + len(row.inputs)]
        assert row.targets.tolist() == stream[first + 1 : first + 1 + len(row.targets)]
        assert first == 0 or row.skipped >= length // 2
        assert row.skipped < len(row.targets)
        scored[row.document] += row.targets[row.skipped :].tolist()
    assert scored == {index: ids.tolist() for index, ids in enumerate(documents)}

    rows = list(windows(documents, END, length))
    made = list(batches(rows, length, tokens=32, multiple=multiple))
    assert len({batch.inputs.shape for batch in made}) <= 2
    assert all(batch.inputs.shape[0] % multiple == 0 for batch in made)
    assert sum(int(batch.scored.sum()) for batch in made) == sum(len(ids) for ids in documents)
    assert all(not batch.scored[batch.documents < 0].any() for batch in made)
