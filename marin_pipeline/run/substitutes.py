"""Other stores that are looked in for what is missing here, in order; they are only read."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from marin_pipeline.core.errors import MarinError, StoreError
from marin_pipeline.core.graph import Graph, Node
from marin_pipeline.core.visible import say
from marin_pipeline.run.options import SUBSTITUTES, given_substitutes
from marin_pipeline.store.commit import Elsewhere, Look, look_again
from marin_pipeline.store.given import naming_option, open_given
from marin_pipeline.store.objects import ObjectStore, answered, together
from marin_pipeline.store.read_only import ReadOnlyObjects


def with_elsewhere(
    graph: Graph, objects: ObjectStore, looks: Mapping[str, Look], prefixes: Sequence[str]
) -> dict[str, Look]:
    """The looks, with where else there is what has no output here. A store that does not answer is told, and the others
    are looked in.

    Raises:
        UsageError: for a prefix of an unknown kind.
    """
    found = dict(looks)
    missing = [node for key, node in graph.nodes.items() if looks[key].commit is None and not looks[key].begins_anew]
    if not missing:
        return found
    for prefix in dict.fromkeys(prefixes):
        given_as = SUBSTITUTES if prefix in given_substitutes() else "--substitute"
        store = ReadOnlyObjects(open_given(prefix, given_as))
        for key, each in _outputs(store, objects, missing, given_as).items():
            found[key] = replace(found[key], elsewhere=(*found[key].elsewhere, each))
    return found


def tell(text: str) -> None:
    """Say on stderr what a person should know; nothing hangs on it."""
    say(f"warning: {text}", sys.stderr)


def _outputs(store: ObjectStore, own: ObjectStore, nodes: Sequence[Node], given_as: str) -> dict[str, Elsewhere]:
    """The current outputs of steps in one other store, by key; what is wrong with it names where it was given."""
    if store.url == own.url:
        return {}
    try:
        if not store.is_there():
            raise StoreError(f"{store.url}: there is no store")
        first = _look(store, nodes[0])  # a store that does not answer is asked once, and not for every step
        looks = [first, *together(store, *(partial(_look, store, node) for node in nodes[1:]))]
    except MarinError as error:
        tell(f"{naming_option(str(error), {given_as: store.url})}; nothing is taken from there in this run")
        return {}
    for look in looks:
        if look.damage:
            tell(f"{look.damage.rpartition('; ')[0]}; it is not taken from there")
    return {
        node.key: Elsewhere(store, look, look.commit)
        for node, look in zip(nodes, looks, strict=True)
        if look.commit is not None
    }


def _look(store: ObjectStore, node: Node) -> Look:
    found = answered(partial(look_again, store, node.id, node.key, Look(1, None, None, None)))
    if found.commit is None or node.loaded or found.commit.code == node.declaration.code.digest:
        return found
    from marin_pipeline.run.code_lock import with_accepted

    return with_accepted(store, node, found)
