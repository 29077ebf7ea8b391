"""Errors that are written for the reader: what was wrong, where, what to do.

A `MarinError` is shown without a traceback; anything else that a step raises is shown with the step's own.
"""

from __future__ import annotations


class MarinError(Exception):
    """Base of all errors whose message is meant to be read as it is."""

    exit_code = 1


class UsageError(MarinError):
    """The command line or a call was wrong; nothing was started."""

    exit_code = 2


class DeclarationError(UsageError, TypeError):
    """A step or an artifact was declared wrongly; the message names the step and the argument."""


class InputError(MarinError, ValueError):
    """Input that cannot be used; the message names the file (and row) or the argument, and the remedy."""


class NotRunError(MarinError):
    """A value or a file was asked of an artifact that has not run."""


class StoreError(MarinError):
    """The store could not be read or written; the message names the path."""


class CorruptOutput(StoreError):
    """Bytes in the store are not those that were committed; the message names the object."""


class CacheError(StoreError):
    """The folder of this machine for what comes from a remote store cannot be used; the message names it. Nothing is
    wrong with what lies in the store.
    """


class OtherBytes(CorruptOutput):
    """A file was read and hashed, and is not the one that was recorded."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path
        """Of the file, as its step knows it."""
        self.key = ""
        """Of the step that made it or was given it, where that is known."""


class Stopped(MarinError):
    """The step stopped because it was asked to; what it saved lets the next run go on."""

    exit_code = 130
