"""The content of each `LocalFile` that a step was given, kept by its digest: who is given the key has not the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from marin_pipeline.core.artifact import ContentHash
from marin_pipeline.core.canonical import Tree
from marin_pipeline.core.errors import CorruptOutput, InputError, StoreError
from marin_pipeline.core.key import tagged
from marin_pipeline.store import layout
from marin_pipeline.store.objects import ObjectStore, explain_os_error, put, write_anew

SMALL = 8 * 2**20
"""Bytes up to which a file is written in one call."""

BLOCK = 2**20


def keep_file(objects: ObjectStore, file: Path, sha256: str, size: int) -> None:
    """Keep a file's content, unless the store has it; other bytes in its place are replaced. Of a file above `SMALL`
    that is there only the size is looked at: each run that is given it would have to read all of it
    (`verify --level full` does).

    Args:
        sha256: as `content_digest` gives it.

    Raises:
        InputError: when the file has other content by now.
        StoreError: when it cannot be written.
    """
    path = layout.kept_file(sha256)
    if size <= SMALL:
        is_right = _is_right(objects, path, sha256, size)
    else:
        info = objects.info(path)
        is_right = None if info is None else info.size == size
    if is_right:
        return
    try:
        if size <= SMALL:
            content = ContentHash()
            content.update(data := file.read_bytes())
            _refuse_other(file, content, sha256)
            if is_right is False or put(objects, path, data).data != data:
                write_anew(objects, path, data)
        else:
            _stream(objects, file, path, sha256)
    except OSError as error:
        raise explain_os_error(error, error.filename or file, "keep") from error


def copy_file(source: ObjectStore, target: ObjectStore, sha256: str, size: int | None) -> None:
    """Copy a file that is kept in one store into another, unless it is there, which is read; other bytes in its place
    are replaced.

    Args:
        size: bytes, where it is known; no more than one block after so many are read.

    Raises:
        CorruptOutput: when it is missing, or has other content; nothing is written.
        StoreError: when a store does not answer.
    """
    path = layout.kept_file(sha256)
    is_right = _is_right(target, path, sha256, size)
    if is_right:
        return
    blocks, small = _checked(source, path, sha256, size), bytearray()
    for block in blocks:
        small += block
        if len(small) > SMALL:
            break
    else:
        if is_right is None and put(target, path, bytes(small)).data == small:
            return
    with target.writer(path) as writer:
        writer.write(small)
        for block in blocks:
            writer.write(block)


def _is_right(objects: ObjectStore, path: str, sha256: str, size: int | None) -> bool | None:
    """Whether what lies at the path of a kept file is that file; None when nothing does."""
    content = ContentHash()
    try:
        for block in objects.blocks(path):
            content.update(block)
            if size is not None and content.size > size:
                return False
    except (FileNotFoundError, NotADirectoryError):
        return None
    return content.hexdigest() == sha256


def _checked(source: ObjectStore, path: str, sha256: str, size: int | None) -> Iterator[bytes]:
    """The blocks of a kept file.

    Raises:
        CorruptOutput: when it is missing; after the last block, when it was another file.
    """
    where, content = f"{source.url}/{path}", ContentHash()
    try:
        for block in source.blocks(path):
            content.update(block)
            if size is not None and content.size > size:
                break
            yield block
    except FileNotFoundError as error:
        raise CorruptOutput(f"{where}: the file that a step was given is missing") from error
    except OSError as error:
        raise StoreError(f"{where}: cannot be read ({error.strerror or error})") from error
    if content.hexdigest() != sha256 or size not in (None, content.size):
        raise CorruptOutput(
            f"{where}: is not the file that a step was given; take it from another store, or have it made again"
        )


def _stream(objects: ObjectStore, file: Path, path: str, sha256: str) -> None:
    content = ContentHash()
    with file.open("rb", buffering=0) as source, objects.writer(path) as writer:
        while block := source.read(BLOCK):
            content.update(block)
            writer.write(block)
        _refuse_other(file, content, sha256)


def _refuse_other(file: Path, content: ContentHash, sha256: str) -> None:
    if content.hexdigest() != sha256:
        raise InputError(f"{file}: was written while it was being read; run the experiment again")


def file_digests(tree: Tree) -> set[str]:
    """Digests of the local files inside a canonical tree."""
    return tagged(tree, "~file")
