"""Secrets that steps are given and that are not there where they would run: found before anything runs.

Backends that run steps elsewhere than in this process and its children have another environment, and are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from marin_pipeline.core.arguments import references
from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import InputError
from marin_pipeline.core.graph import Node
from marin_pipeline.core.secrets import Secret
from marin_pipeline.run.plan import Plan


@dataclass(frozen=True)
class UnsetSecret:
    """A secret that a step is given, and whose value cannot be used."""

    node: Node
    argument: str
    """Its path in the call."""
    variable: str
    """Of the environment."""
    problem: str
    """That it is not set, or too short, with what to do."""

    def __str__(self) -> str:
        return f"{self.node.name}.{self.argument}: {self.problem}"

    @property
    def line(self) -> str:
        """Of a plan."""
        return f"{'secret':<9}{self.node.key[:8]}  {self}"

    def tree(self) -> Tree:
        """Of `plan --json`, with the step."""
        return {"argument": self.argument, "variable": self.variable, "text": self.problem}


def unset_secrets(plan: Plan) -> Sequence[UnsetSecret]:
    """Those of the steps that this run would begin, in the order of the plan."""
    return [
        found
        for each in plan.running
        if each.status != "leased" and not each.node.loaded
        for found in _unset(each.node)
    ]


def _unset(node: Node) -> Iterator[UnsetSecret]:
    for name, value in node.declaration.arguments.items():
        for path, secret in references(value, name):
            if isinstance(secret, Secret):
                try:
                    secret.refuse_unusable()
                except InputError as error:
                    yield UnsetSecret(node, path, secret.name, str(error))
