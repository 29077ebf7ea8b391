"""What was made elsewhere is declared by its digest: the key follows from the bytes and the name."""

from __future__ import annotations

from typing import Any

import pytest

from marin_pipeline import Artifact, adopted, step
from marin_pipeline.core.context import Context
from marin_pipeline.core.errors import DeclarationError, NotRunError
from marin_pipeline.core.graph import Graph
from marin_pipeline.core.key import key_of

DIGEST = "ab" * 32


@step
def uses(ctx: Context, data: Artifact[Any]) -> int:
    return len(data.files)


def test_the_key_is_that_of_the_documented_spec() -> None:
    spec = f'{{"arguments":{{"content":"{DIGEST}"}},"code":{{"version":1}},"schema":1,"step":"adopted/wiki"}}'
    assert adopted("wiki", DIGEST).key == key_of(spec.encode())


def test_the_key_moves_with_the_bytes_and_with_the_name_and_so_do_its_dependents() -> None:
    artifacts = [adopted("wiki", DIGEST), adopted("wiki", "cd" * 32), adopted("other", DIGEST)]
    assert len({each.key for each in artifacts}) == 3
    assert len({uses(data=each).key for each in artifacts}) == 3
    assert adopted("wiki", DIGEST).key == artifacts[0].key


def test_it_is_in_the_graph_like_what_was_loaded() -> None:
    made = adopted("wiki/clean", DIGEST)
    node = Graph([uses(data=made)]).nodes[made.key]
    assert (node.loaded, node.id, node.names) == (True, "adopted/wiki/clean", ("wiki/clean",))
    assert "marin-pipeline adopt PATH --as wiki/clean" in node.why_not_made


def test_its_content_is_not_read_where_it_is_declared() -> None:
    made = adopted("wiki", DIGEST)
    for read in (
        lambda: made.value,
        lambda: made.files,
        lambda: (made / "x").sha256,
        lambda: (made / "x").path,
        lambda: (made / "x").url,
    ):
        with pytest.raises(NotRunError, match="wiki is declared but has no output here"):
            read()


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "é", "a" * 201, "ab" * 8, "x/" + "0" * 16])
def test_a_name_that_could_not_be_found_again_is_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="adopted name"):
        adopted(name, DIGEST)


@pytest.mark.parametrize("digest", ["", "ab", DIGEST.upper(), DIGEST + "a", "g" * 64])
def test_what_is_no_digest_is_refused_with_the_command_that_prints_it(digest: str) -> None:
    with pytest.raises(DeclarationError, match=r"marin-pipeline adopt PATH --as wiki --dry-run"):
        adopted("wiki", digest)
