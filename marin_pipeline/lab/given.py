"""Under which option a store was given: an error of a store says `--prefix`, and a command may have several."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from marin_pipeline.core.errors import MarinError


@contextmanager
def given_as(option: str, prefix: str | None) -> Generator[None]:
    """Errors that are of this prefix, or of its bucket, name the option; None for one that was not given."""
    try:
        yield
    except MarinError as error:
        if prefix is not None and _place(prefix) in str(error):
            error.args = (str(error).replace("--prefix", option),)
        raise


def _place(prefix: str) -> str:
    """What every error of a store there names: of a bucket the bucket, else the folder."""
    return "/".join(prefix.split("/")[:3]) if "://" in prefix else prefix
