"""Addresses of files: what they name, and whether they fix the bytes. Nothing is asked of any server here.

| | fixed by |
|---|---|
| `https://host/path`, `http://…` | a sha256 beside it |
| `gs://bucket/object#1712345678901234` | the generation |
| `s3://bucket/object?versionId=…` | the version |
| `hf://datasets/OWNER/NAME@REVISION/path` | a full commit, 40 hex |
| `file:///path`, `/path` | a sha256 beside it |

An address of `gs`, `s3` or `hf` that has a `*` or a `?`, or ends in `/`, names all files that fit; `*` stops at a `/`,
`**` does not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import parse_qsl, unquote, urlsplit

from marin_pipeline.core.errors import InputError

SCHEMES = ("https", "http", "gs", "s3", "hf", "file")

_SIGNED = re.compile(
    r"(x-amz-|x-goog-)?(signature|credential|security-token)|sig|token|access_?token|(api|access)_?key|password|secret",
    re.IGNORECASE,
)
_LOGIN = re.compile(
    r"\s*(?!file:)(?:([a-z][a-z0-9+.-]*):/*[^/@\[]*:(?![0-9]+[/?#])[^@]*@|(https?|gs|s3):/*[^/?#@]*@)", re.IGNORECASE
)
"""A user and a password, or a token, before an `@`, however wrong the rest of the address may be."""
_HUB = re.compile(
    r"(?P<kind>datasets/|models/|)(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]*))?"
    r"(/(?P<path>.*))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_WILD = re.compile(r"[*?]")


@dataclass(frozen=True)
class Address:
    """What an address names."""

    url: str
    """As it was given."""
    scheme: str
    root: str = ""
    """Bucket of `gs` and `s3`, `OWNER/NAME` of `hf`."""
    path: str = ""
    """Object, file of the repository, or local path; may be a pattern."""
    version: str = ""
    """Generation, version or revision, where the address has one."""
    kind: str = ""
    """Of `hf`: `dataset` or `model`."""

    @property
    def is_fixed(self) -> bool:
        """Whether the address alone says which bytes are meant."""
        return bool(_COMMIT.fullmatch(self.version)) if self.scheme == "hf" else bool(self.version)

    @property
    def is_many(self) -> bool:
        """Whether it may name several files."""
        if self.scheme not in ("gs", "s3", "hf"):
            return False
        return not self.path or self.path.endswith("/") or bool(_WILD.search(self.path))

    @property
    def name(self) -> str:
        """What the file is called; empty when the address does not say."""
        path = urlsplit(self.url).path if self.scheme in ("http", "https") else self.path
        last = path.rpartition("/")[2]
        return unquote(last) if self.scheme in ("http", "https") else last

    @property
    def folder(self) -> str:
        """Of one that names many: the part of the path before the first wildcard, with its `/`."""
        wild = _WILD.search(self.path)
        fixed = self.path[: wild.start()] if wild else self.path
        return fixed[: fixed.rfind("/") + 1]

    def matches(self, path: str) -> bool:
        """Whether a path is one of the files that are meant."""
        if not _WILD.search(self.path):
            return path.startswith(self.path) if self.is_many else path == self.path
        return bool(re.fullmatch(_pattern(self.path), path, re.DOTALL))


def _pattern(path: str) -> str:
    """A path with wildcards as a regular expression; one that ends in `/` means all below it."""
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", path + ("**" if path.endswith("/") else ""))
    return "".join(known.get(part) or re.escape(part) for part in parts)


def parse(url: str) -> Address:
    """What an address names.

    Raises:
        InputError: for one that is of no known kind, or that holds a credential.
    """
    if url.startswith("/"):
        return _local(url, url)
    if login := _LOGIN.match(url):
        raise InputError(
            f"{login[1] or login[2]}://…: an address with a user and a password would be written into the key; leave "
            'them away, and give token=Secret("NAME"); gs:// and s3:// take credentials of the environment'
        )
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise InputError(
            f"{url!r}: a relative path says nothing to others; give a file of this machine as LocalFile({url!r}), or "
            f"an address that begins with {', '.join(f'{each}://' for each in SCHEMES)}"
        )
    if any(character.isspace() or not character.isprintable() for character in url) and scheme in ("http", "https"):
        raise InputError(f"{url!r}: an address has no spaces and no control characters; write %20 for a space")
    if scheme in ("http", "https"):
        return _web(url, scheme)
    if scheme == "gs":
        root, _, path = rest.partition("/")
        found = re.fullmatch(r"(.+)#(\d+)", path, re.DOTALL)
        return _bucket(Address(url, scheme, root, *(found.groups() if found else (path, ""))))
    if scheme == "s3":
        root, _, path = rest.partition("/")
        found = re.fullmatch(r"(.+)\?versionId=([^&?]+)", path, re.DOTALL)
        return _bucket(Address(url, scheme, root, *(found.groups() if found else (path, ""))))
    if scheme == "hf":
        return _hub(url, rest)
    if scheme == "file":
        if not rest.startswith("/"):
            raise InputError(f"{url!r}: the address of a local file is written file:///path")
        return _local(url, unquote(rest))
    raise InputError(f"{url!r}: {scheme}:// is not known; there are {', '.join(f'{each}://' for each in SCHEMES)}")


def _web(url: str, scheme: str) -> Address:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"{url!r}: cannot be an address ({error})") from None
    if not host:
        raise InputError(f"{url!r}: names no host")
    if "#" in url:
        raise InputError(f"{url!r}: what follows the '#' is not sent to the server; leave it away")
    signed = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True) if _SIGNED.fullmatch(name)]
    if signed:
        raise InputError(
            f"{scheme}://{host}{parts.path}?{signed[0]}=…: the credential in the address would be written into the "
            'key; give the plain address, and token=Secret("NAME"); gs:// and s3:// take credentials of the environment'
        )
    return Address(url, scheme)


def _bucket(address: Address) -> Address:
    if not address.root or not address.path.strip("/"):
        raise InputError(f"{address.url!r}: must name a bucket and an object, as in {address.scheme}://bucket/object")
    if address.version == "null":
        raise InputError(
            f"{address.url!r}: 'null' is the version of what may be overwritten; leave it away, and give the source a "
            "sha256"
        )
    if address.version and address.is_many:
        raise InputError(f"{address.url!r}: a version is of one object; leave the wildcards away, or the version")
    return address


def _hub(url: str, rest: str) -> Address:
    found = _HUB.fullmatch(rest)
    if found is None or found["revision"] == "" or found["repository"].startswith(("datasets/", "models/", "spaces/")):
        raise InputError(
            f"{url!r}: an address of the hub is written hf://datasets/OWNER/NAME@REVISION/path (hf://OWNER/NAME@… of a "
            "model); the path may be left out, or have wildcards"
        )
    revision, kind = unquote(found["revision"] or ""), found["kind"] or "models/"
    return Address(url, "hf", found["repository"], found["path"] or "", revision, kind[:-2])


def _local(url: str, path: str) -> Address:
    if ".." in PurePosixPath(path).parts or path.endswith("/"):
        raise InputError(f"{url!r}: must be the absolute path of a file, without '..'")
    return Address(url, "file", path=path)


def without_query(url: str) -> str:
    """An address for people and records: what may be a signature left out."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}{parts.path}{'?…' if parts.query else ''}"
