"""By which option a store was given: an error of a store says `--prefix`, and a command may have several stores.

What is changed of a message is that option alone: where it opens with it, and in what it says to do about this store.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from marin_pipeline.core.errors import MarinError, UsageError
from marin_pipeline.store.objects import ObjectStore, open_objects

_REMEDY = re.compile(r"(?<=choose another )--prefix|(?<=choose another prefix with )--prefix|(?<=correct )--prefix")


def open_given(prefix: str, option: str) -> ObjectStore:
    """The objects under a prefix.

    Raises:
        UsageError: for a prefix of another kind; names the option.
    """
    try:
        return open_objects(prefix)
    except UsageError as error:
        raise UsageError(re.sub(r"\A--prefix(?= )", option, str(error))) from error


@contextmanager
def given_as(stores: Mapping[str, str]) -> Generator[None]:
    """Errors name the option that the store which they are of was given by.

    Args:
        stores: URL by option.
    """
    try:
        yield
    except MarinError as error:
        error.args = (naming_option(str(error), stores),)
        raise


def naming_option(text: str, stores: Mapping[str, str]) -> str:
    """The message of an error, with the option of the store that it is of; see `given_as`."""
    for option, url in stores.items():
        if any(text.startswith(f"--prefix {place}: ") for place in (url, _bucket(url))):
            text = f"{option}{text.removeprefix('--prefix')}"
            break
    return _REMEDY.sub(lambda found: _nearest(text[: found.start()], stores), text)


def _nearest(before: str, stores: Mapping[str, str]) -> str:
    """The option of the store that was named last; of one inside of another the inner one."""
    found = [
        (named.start(), len(place), option)
        for option, url in stores.items()
        for place, end in ((url, "[/:;,)\\s]"), (_bucket(url), "[:;,)\\s]"))
        for named in re.finditer(rf"(?<![^\s('\"]){re.escape(place)}(?={end})", before)
    ]
    return max(found, key=lambda each: each[:2], default=(0, 0, "--prefix"))[2]


def _bucket(url: str) -> str:
    """Of a bucket that is not there no more than its name is told."""
    return "/".join(url.split("/")[:3]) if "://" in url else url
