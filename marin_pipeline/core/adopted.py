"""Outputs that were made elsewhere and taken into a store: `marin-pipeline adopt PATH --as NAME`.

The key follows from the bytes: the spec holds the digest of the content and nothing else, so that the same bytes under
the same name have the same key in every store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from marin_pipeline.core.artifact import LONGEST_NAME, NAME, Artifact, FileEntry, Output
from marin_pipeline.core.errors import DeclarationError, NotRunError
from marin_pipeline.core.key import key_of, spec_bytes

PREFIX = "adopted/"
"""Ids of adopted outputs begin with it."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEY_FOLDER = re.compile(r"[0-9a-f]{16}")


def adopted_id(name: str) -> str:
    """Id of what is adopted under a name.

    Raises:
        DeclarationError: for what cannot be a name.
    """
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise DeclarationError(
            f"adopted name {name!r}: a name has a-z, 0-9, '_', '-' and '/', and at most {LONGEST_NAME} characters"
        )
    if any(_KEY_FOLDER.fullmatch(part) for part in name.split("/")):
        raise DeclarationError(
            f"adopted name {name!r}: a part of 16 hex digits would be taken for a key; choose another"
        )
    return f"{PREFIX}{name}"


def adopted_spec(name: str, content: str) -> bytes:
    """The spec of what is adopted under a name.

    Args:
        content: 64 hex; digest over paths, sizes and sha256 of the files, and of the value where there is one.
    """
    return spec_bytes(adopted_id(name), {"version": 1}, {"content": content})


def adopted(name: str, digest: str) -> Artifact[Any]:
    """What was adopted under a name, as `marin-pipeline adopt` printed its digest. In a graph it is cached where the
    store has it, and else blocked until it is adopted.

    Raises:
        DeclarationError: for what cannot be a name or a digest.
    """
    if not _DIGEST.fullmatch(digest):
        raise DeclarationError(
            f"adopted({name!r}, {digest!r}): the digest is 64 hex digits, as `marin-pipeline adopt PATH --as {name} "
            "--dry-run` prints it"
        )
    key = key_of(adopted_spec(name, digest))
    return Artifact(key, name=name, output=_NotHere(adopted_id(name), key, digest, name))


@dataclass(frozen=True)
class _NotHere:
    """Stands where the output will be: it knows what it is, and has none of it."""

    id: str
    key: str
    digest: str
    name: str
    unpinned: tuple[str, ...] = ()
    """Its key is that of its content."""

    def _refuse(self) -> NoReturn:
        raise NotRunError(
            f"{self.name} is declared but has no output here; its value and files can be read inside a step that takes "
            "it as an argument, or from the artifact that run(...) or load(...) returns"
        )

    @property
    def files(self) -> Mapping[str, FileEntry]:
        self._refuse()

    @property
    def inputs(self) -> Mapping[str, Output]:
        self._refuse()

    def value(self, annotation: Any) -> Any:
        self._refuse()

    def local(self, path: str) -> Path:
        self._refuse()

    def open(self, path: str) -> BinaryIO:
        self._refuse()

    def url(self, path: str) -> str:
        self._refuse()
