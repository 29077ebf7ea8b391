"""Times as records hold them, and as names of attempts begin with them: always UTC, in forms that sort as text."""

from __future__ import annotations

import datetime
import os
import re

from marin_pipeline.core.errors import UsageError

_DURATION = re.compile(r"([0-9]{1,18})([smhd])")
_LONGEST = datetime.timedelta(days=36500)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_WRITTEN = re.compile(r"(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z)?", re.ASCII)
_IN_A_NAME = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)T(\d\d):?(\d\d):?(\d\d)", re.ASCII)


def utc() -> datetime.datetime:
    """The time now."""
    return datetime.datetime.now(datetime.UTC)


def written(time: datetime.datetime) -> str:
    """A UTC time, to the microsecond, in a form that sorts as text."""
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def now() -> str:
    """The time now, as records hold it."""
    return written(utc())


def attempt_name() -> str:
    """A name that no other attempt has, and that tells when it began, to the microsecond, so that the attempts of a
    step that is tried again sort as they were made: `20260131T235959.123456-0a1b2c3d`.
    """
    return f"{now()[:26].replace('-', '').replace(':', '')}-{os.urandom(4).hex()}"


def is_moment(text: object) -> bool:
    """Whether a field of a record is a time, or empty, as where nobody knows it."""
    return isinstance(text, str) and _WRITTEN.fullmatch(text) is not None


def moment(text: str) -> datetime.datetime | None:
    """The time that a record's field, or the name of an attempt or of a run's record, begins with, to the second.

    None when it begins with none.
    """
    found = _IN_A_NAME.match(text)
    try:
        return None if found is None else datetime.datetime(*map(int, found.groups()), tzinfo=datetime.UTC)
    except ValueError:
        return None


def duration(text: str) -> datetime.timedelta:
    """A length of time: a number and `s`, `m`, `h` or `d`.

    Raises:
        UsageError: for anything else.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise UsageError(f"{text[:40]!r} is no length of time; write a number and s, m, h or d, as in 7d")
    try:
        length = datetime.timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        length = datetime.timedelta.max
    if length > _LONGEST:
        raise UsageError(f"{text!r} is too long; at most {_LONGEST.days}d")
    return length
