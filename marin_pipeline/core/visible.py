"""Text for a screen: what steers a terminal is shown, not sent.

Records, logs and the answers of servers may be anybody's, and a terminal acts upon some characters: an escape sequence
changes the title, the clipboard or what was written before, a carriage return writes over a line, a mark of direction
reorders it. So whatever is printed goes through `say`. JSON lines may too: what is escaped stays the same JSON.
"""

from __future__ import annotations

import re
from typing import TextIO

# Controls (but tab and line break), halves of characters, separators of lines, marks of direction, invisible tags.
# Joiners, wide and narrow spaces and letters that this Python does not know yet are part of ordinary text.
_STEERING = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029"
    "\u061c\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
)
_FOUND = re.compile(f"[{_STEERING}]")
_IN_A_LINE = re.compile(f"[{_STEERING}\t\n]")


def visible(text: str) -> str:
    """`text` with an escape, such as `\\u001b`, for each character that steers a terminal or changes what is read."""
    return _FOUND.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def is_line(text: object) -> bool:
    """Whether something is text that can be shown as it is, in one line."""
    return isinstance(text, str) and _IN_A_LINE.search(text) is None


def as_line(text: str) -> str:
    """`text` in one line in which everything can be seen, as a record keeps it."""
    return _IN_A_LINE.sub(_escaped, text)


class OutputLost(OSError):
    """What a person or a program was to read could not be written: its reader has gone, or the disk is full."""


def say(text: object, stream: TextIO | None = None) -> None:
    """Print lines, as they can be seen; to stdout unless a stream is given.

    Raises:
        OutputLost: when they cannot be written.
    """
    say_plainly(visible(str(text)), stream)


def say_plainly(text: str, stream: TextIO | None = None) -> None:
    """Print text that holds nothing but what can be seen, byte for byte.

    Raises:
        OutputLost: when it cannot be written.
    """
    try:
        print(text, file=stream, flush=True)
    except OSError as error:
        raise OutputLost(error.errno, error.strerror) from error
