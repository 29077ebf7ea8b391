"""The content of each `LocalFile` that a step was given, kept by its digest: who is given the key has not the file."""

from __future__ import annotations

from pathlib import Path

from marin_pipeline.core.artifact import ContentHash
from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import CorruptOutput, InputError, StoreError
from marin_pipeline.core.key import tagged
from marin_pipeline.store import layout
from marin_pipeline.store.objects import ObjectStore, explain_os_error, holds, put

SMALL = 8 * 2**20
"""Bytes up to which a file is written in one call."""

BLOCK = 2**20


def keep_file(objects: ObjectStore, file: Path, sha256: str, size: int) -> None:
    """Keep a file's content, unless the store has it.

    Args:
        sha256: as `content_digest` gives it.

    Raises:
        InputError: when the file has other content by now.
        StoreError: when it cannot be written.
    """
    path = layout.kept_file(sha256)
    if holds(objects, path):
        return
    try:
        if size <= SMALL:
            content = ContentHash()
            content.update(data := file.read_bytes())
            _refuse_other(file, content, sha256)
            put(objects, path, data)
        else:
            _stream(objects, file, path, sha256)
    except OSError as error:
        raise explain_os_error(error, error.filename or file, "keep") from error


def copy_file(source: ObjectStore, target: ObjectStore, sha256: str, size: int) -> None:
    """Copy a file that is kept in one store into another, unless it is there.

    Raises:
        CorruptOutput: when it is missing, or has other content; nothing is written.
    """
    path = layout.kept_file(sha256)
    if holds(target, path):
        return
    where = f"{source.url}/{path}"
    content, small, writer = ContentHash(), bytearray(), None if size <= SMALL else target.writer(path)
    try:
        for block in source.blocks(path):
            content.update(block)
            if content.size > size:
                break
            if writer is None:
                small += block
            else:
                writer.write(block)
        if (content.size, content.hexdigest()) != (size, sha256):
            raise CorruptOutput(
                f"{where}: is not the file that a step was given; take it from another store, or have it made again"
            )
    except BaseException as error:
        if writer is not None:
            writer.abort()
        if isinstance(error, FileNotFoundError):
            raise CorruptOutput(f"{where}: the file that a step was given is missing") from error
        if isinstance(error, OSError):
            raise StoreError(f"{where}: cannot be read ({error.strerror or error})") from error
        raise
    if writer is None:
        put(target, path, bytes(small))
    else:
        writer.close()


def _stream(objects: ObjectStore, file: Path, path: str, sha256: str) -> None:
    content = ContentHash()
    with file.open("rb", buffering=0) as source:
        writer = objects.writer(path)
        try:
            while block := source.read(BLOCK):
                content.update(block)
                writer.write(block)
            _refuse_other(file, content, sha256)
        except BaseException:
            writer.abort()
            raise
        writer.close()


def _refuse_other(file: Path, content: ContentHash, sha256: str) -> None:
    if content.hexdigest() != sha256:
        raise InputError(f"{file}: was written while it was being read; run the experiment again")


def file_digests(tree: Tree) -> set[str]:
    """Digests of the local files inside a canonical tree."""
    return tagged(tree, "~file")
