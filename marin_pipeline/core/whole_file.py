"""Files that are written whole or not at all: nobody ever reads half of one, whenever the writer is ended."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file in a folder that is there. A file of this name, or that a link of this name leads to, is replaced;
    into a device or a pipe it is written.

    Raises:
        OSError: when it cannot be written; what was there is as it was.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = Path(os.path.realpath(path))
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(data)
        aside.replace(path)
    except BaseException:
        with suppress(OSError):  # the error itself is what the reader needs
            aside.unlink()
        raise
