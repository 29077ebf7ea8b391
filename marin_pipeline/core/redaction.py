"""Text without the values of secrets: each value, in the forms in which programs write it, is replaced by its name.

Pure functions of bytes. Nothing else of the package is imported, since a process of its own runs this over a step's
log. Not found is a value that was compressed, encrypted, or cut in pieces, or in an encoding that is not among the
forms: each of them is looked for by itself, and takes some 0.05 ns a byte.
"""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

_PART = 16
"""Characters of a part of a value (a line, a field) that is taken for secret by itself, at least."""

_SECRET_FIELD = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)


def forms_of(value: str) -> set[bytes]:
    """The bytes by which a value is known: as it is, and as programs write it into URLs, headers, JSON and code."""
    found: set[bytes] = set()
    for part in {value, *_parts(value)}:
        found.update(_forms(part))
    return found


def _parts(value: str) -> Iterator[str]:
    """Of a value of several lines each line, and of one that is JSON each field that is called a secret: a key in PEM
    form, or the credentials of a service account, are printed by parts.
    """
    texts = [value, *_secret_fields(value)]
    for text in texts:
        lines = text.splitlines()
        for line in map(str.strip, lines if len(lines) > 1 or text is not value else ()):
            if len(line) >= _PART and not re.search(r"\s|-----|://", line):
                yield line


def _secret_fields(value: str) -> Iterator[str]:
    if not value.startswith(("{", "[")):
        return
    try:
        todo: list[tuple[str, Any]] = [("", json.loads(value))]
    except (ValueError, RecursionError):
        return
    while todo:
        name, found = todo.pop()
        if isinstance(found, dict):
            todo += cast("dict[str, Any]", found).items()
        elif isinstance(found, list):
            todo += [(name, each) for each in cast("list[Any]", found)]
        elif isinstance(found, str) and _SECRET_FIELD.search(name):
            yield found


def _forms(value: str) -> Iterator[bytes]:
    plain = value.encode("utf-8", "surrogateescape")
    yield from (plain, value.encode("utf-8", "surrogatepass"))
    texts = {
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        json.dumps(value)[1:-1].replace("/", "\\/"),
        json.dumps(json.dumps(value)[1:-1])[1:-1],
        repr(value)[1:-1],
        ascii(value)[1:-1],
        repr(plain)[2:-1],
        html.escape(value),
        shlex.quote(value).removeprefix("'").removesuffix("'"),
    }
    for safe in ("", "/"):
        quoted = urllib.parse.quote(plain, safe=safe)
        texts |= {quoted, quoted.replace("%20", "+"), re.sub("%..", lambda code: code[0].lower(), quoted)}
    yield from (text.encode("utf-8", "surrogatepass") for text in texts)
    yield from (plain.hex().encode(), plain.hex().upper().encode())
    if value.isascii():  # of wide characters in either byte order what both have: all but zero bytes at one end
        yield from (value.encode("utf-16-le")[:-1], value.encode("utf-32-le")[:-3])
    else:
        yield from (value.encode(f"utf-{size}-{order}", "surrogatepass") for size in (16, 32) for order in ("le", "be"))
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield from _shifted(encode, plain)
    yield from _shifted(base64.b64encode, value.encode("utf-16-le", "surrogatepass"))  # as PowerShell takes commands
    yield next(
        _shifted(base64.b64encode, next(_shifted(base64.b64encode, plain)))
    )  # as Kubernetes keeps what is base64
    yield ", ".join(map(str, plain)).encode()
    if all(ord(letter) < 0x10000 for letter in value):
        yield "".join(f"\\u{ord(letter):04x}" for letter in value).encode()


def _shifted(encode: Callable[[bytes], bytes], data: bytes) -> Iterator[bytes]:
    """Data in base64, in which three bytes make four characters: what it becomes depends on where it begins, as after
    `user:` in the header of basic authentication. Characters that hold bits of its neighbours are left out.
    """
    for shift, first in ((0, 0), (1, 2), (2, 3)):
        yield encode(bytes(shift) + data)[first : (shift + len(data)) * 8 // 6]


class Redactor:
    """Finds and replaces the values of some secrets."""

    def __init__(self, values: Mapping[str, Iterable[str]]) -> None:
        """Args:
        values: of each secret, by its name.
        """
        self.values = {name: sorted(each) for name, each in sorted(values.items())}
        """Of each secret, by its name."""
        self._names = {form: name for name, each in self.values.items() for value in each for form in forms_of(value)}
        self.forms = sorted(self._names, key=lambda form: (-len(form), form))
        """All that is looked for, the longest first."""
        self._pattern = re.compile(b"|".join(map(re.escape, self.forms)) or b"(?!)")
        # What holds a longer form holds the shorter one that is in it.
        kept: list[bytes] = []
        for form in reversed(self.forms):
            if not any(shorter in form for shorter in kept):
                kept.append(form)
        self._enough = kept
        self.overlap = max(map(len, kept), default=1) - 1
        """Bytes that two blocks must share, so that what lies across their border is found."""

    def redacted(self, data: bytes) -> bytes:
        """`data` with `<secret NAME>` for each value."""
        return self._pattern.sub(self._named, data)

    def _named(self, found: re.Match[bytes]) -> bytes:
        return f"<secret {self._names[found[0]]}>".encode()

    def find(self, data: bytes) -> str | None:
        """Name of a secret whose value is in `data`, or None."""
        return next((self._names[form] for form in self._enough if form in data), None)

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """What can be written of `data`, redacted, and the rest, which may be the beginning of a value."""
        border = min((_begun(form, data) for form in self.forms), default=len(data))
        written, done = list[bytes](), 0
        for found in self._pattern.finditer(data):
            if found.start() >= border:
                break
            written += [data[done : found.start()], self._named(found)]
            done = found.end()
        border = max(border, done)
        return b"".join([*written, data[done:border]]), data[border:]


def _begun(form: bytes, data: bytes) -> int:
    """Where the longest end of `data` begins with which `form` may begin; the length of `data` when there is none."""
    at = data.find(form[:1], max(0, len(data) - len(form) + 1))
    while at >= 0 and not form.startswith(data[at:]):
        at = data.find(form[:1], at + 1)
    return at if at >= 0 else len(data)
