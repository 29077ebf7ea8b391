"""Times as records hold them, and as names of attempts begin with them: always UTC, in forms that sort as text."""

from __future__ import annotations

import datetime
import re
import uuid

_IN_A_NAME = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)T(\d\d):?(\d\d):?(\d\d)")


def now() -> str:
    """UTC, to the microsecond, in a form that sorts as text."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def attempt_name() -> str:
    """A name that no other attempt has, and that tells when it began: `20260131T235959-0a1b2c3d`."""
    return f"{now()[:19].replace('-', '').replace(':', '')}-{uuid.uuid4().hex[:8]}"


def moment(text: str) -> datetime.datetime | None:
    """The time that a record's field, or the name of an attempt or of a run's record, begins with, to the second.

    None when it begins with none.
    """
    found = _IN_A_NAME.match(text)
    try:
        return None if found is None else datetime.datetime(*map(int, found.groups()), tzinfo=datetime.UTC)
    except ValueError:
        return None
