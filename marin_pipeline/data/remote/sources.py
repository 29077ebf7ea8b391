"""What a list of sources stands for: files, the places that they are read from, and the paths of an output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from marin_pipeline.core.artifact import relative_path
from marin_pipeline.core.errors import DeclarationError, InputError
from marin_pipeline.data.remote.address import Address, without_query
from marin_pipeline.data.remote.pins import Pin, at_address, at_object, by_digest, no_pin, options_of
from marin_pipeline.data.remote.place import LEAST, Place

if TYPE_CHECKING:
    from marin_pipeline.data.remote.amazon import AmazonStorage
    from marin_pipeline.data.remote.google import GoogleStorage
    from marin_pipeline.data.remote.hub import Hub


@dataclass(frozen=True)
class Wanted:
    """One source, as it was declared."""

    address: Address | None
    """None for a file of this machine that is known by its content."""
    local: Path | None = None
    sha256: str = ""
    name: str = ""
    most: int | None = None
    """Bytes that a file of it may have."""
    token: str | None = None
    """The value that authorizes; it is used, and written nowhere."""
    secret: str = ""
    """Name of the variable that has it."""


@dataclass(frozen=True)
class Found:
    """One file that is to be read."""

    path: str
    """Relative to the output."""
    url: str
    """The address that was declared, empty for a file that is known by its content."""
    place: Place
    expected: Mapping[str, str]
    """Digests that its bytes must have."""
    pin: Pin = field(repr=False, default=no_pin)
    """How to write the source so that it is pinned."""
    most: int | None = None
    """Bytes that it may have."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """What it was resolved to, for the records."""


class Clients:
    """The services that sources are asked of, each opened once."""

    def __init__(
        self,
        stall: float,
        patiently: Callable[[Callable[[], list[Found]], str], list[Found]],
        least: float = LEAST,
    ) -> None:
        """Args:
        stall: seconds without a byte after which a connection counts as broken.
        patiently: makes a call that may have to be made again; gets what is asked for.
        least: bytes a second, below which a connection counts as broken, too.
        """
        self._stall = stall
        self._least = least
        self._patiently = patiently
        self._hubs: dict[str | None, Hub] = {}
        self._commits: dict[tuple[str, str, str], str] = {}
        self._google: GoogleStorage | None = None
        self._amazon: dict[str, AmazonStorage] = {}

    def find(self, wanted: Sequence[Wanted]) -> list[Found]:
        """The files of all sources, in their order, and of one source by their names.

        Raises:
            InputError: when a source has none, or two would be written to one place.
        """
        found: list[Found] = []
        for each in wanted:
            shown = each.address.url if each.address is not None else each.name
            files = self._patiently(lambda each=each: self._files(each), shown)
            found += [replace(file, most=each.most) for file in files]
        refuse_clashes([(each.path, each.url) for each in found])
        return found

    def _files(self, wanted: Wanted) -> list[Found]:
        from marin_pipeline.data.remote.local import LocalCopy

        address = wanted.address
        sha256 = {"sha256": wanted.sha256} if wanted.sha256 else {}
        if address is None:
            assert wanted.local is not None  # the step gives one of the two
            return [Found(wanted.name, "", LocalCopy(wanted.local, wanted.name), sha256)]
        if address.scheme == "file":
            return [_one(wanted, address, LocalCopy(Path(address.path), address.url), sha256)]
        if address.scheme in ("http", "https"):
            return [_one(wanted, address, self._web(wanted, address), sha256)]
        found = [
            Found(path, address.url, place, {**place.digests, **sha256}, pin if not sha256 else no_pin, facts=facts)
            for path, place, pin, facts in self._many(wanted, address)
        ]
        if not found:
            raise InputError(f"{address.url}: no file fits; check the address and its wildcards")
        return found

    def _web(self, wanted: Wanted, address: Address) -> Place:
        from marin_pipeline.data.remote.http import HttpFile, bearer, no_headers

        shown = without_query(address.url)
        return HttpFile(
            address.url,
            shown=f"{shown} ({output_path(address, wanted.name)})" if "?" in address.url else shown,
            account=wanted.secret,
            stall=self._stall,
            least=self._least,
            headers=bearer(wanted.token) if wanted.token else no_headers,
            to_set="" if not wanted.token else "the token that was given may not read it, or has expired",
            must_have_length=not wanted.sha256,
            may_leave_tls=bool(wanted.sha256) and not wanted.token,
        )

    def _many(self, wanted: Wanted, address: Address) -> list[tuple[str, Place, Pin, dict[str, str]]]:
        """Path, place, how to pin it, and what it was resolved to."""
        options = options_of(wanted.most, wanted.secret)
        if address.scheme == "hf":
            hub = self._hub(wanted.token)
            key = (address.kind, address.root, address.version)
            if key not in self._commits:
                self._commits[key] = hub.commit(address)
            commit = self._commits[key]
            name = wanted.name if address.is_many else _output(wanted, address, "")
            pin = no_pin if address.is_fixed else at_address(_with_revision(address, commit), name, options)
            files = hub.files(address, commit)
            return [(_output(wanted, address, name), place, pin, {"revision": commit}) for name, place in files]

        def pin_of(place: Place, path: str, generation: str = "") -> Pin:
            if address.is_fixed:
                return no_pin
            return at_object(place.shown, path, options, address.is_many, generation)

        if address.scheme == "gs":
            gs = [(_output(wanted, address, name), place) for name, place in self._google_storage().objects(address)]
            return [(path, place, pin_of(place, path, place.fixed), {"generation": place.fixed}) for path, place in gs]
        s3 = [(_output(wanted, address, name), place) for name, place in self._bucket(address.root).objects(address)]
        return [(path, place, pin_of(place, path), {}) for path, place in s3]

    def _hub(self, token: str | None) -> Hub:
        from marin_pipeline.data.remote.hub import Hub

        if token not in self._hubs:
            self._hubs[token] = Hub(self._stall, token, self._least)
        return self._hubs[token]

    def _google_storage(self) -> GoogleStorage:
        from marin_pipeline.data.remote.google import GoogleStorage

        if self._google is None:
            self._google = GoogleStorage(self._stall, self._least)
        return self._google

    def _bucket(self, name: str) -> AmazonStorage:
        from marin_pipeline.data.remote.amazon import AmazonStorage

        if name not in self._amazon:
            self._amazon[name] = AmazonStorage(name, self._stall)
        return self._amazon[name]


def output_path(address: Address, name: str) -> str:
    """Where the one file of an address is written.

    Raises:
        InputError: when neither the address nor a name says so.
    """
    path = name or address.name
    if not path:
        raise InputError(f"{address.url}: does not say what the file is called; give the source a name")
    return path


def refuse_clashes(paths: Sequence[tuple[str, str]]) -> None:
    """Check the paths of an output, each with the address that it is of.

    Raises:
        InputError: when one cannot be a path there, or two are in each other's way.
    """
    seen: dict[str, str] = {}
    for path, url in paths:
        try:
            is_plain = relative_path(path) == path and path.isprintable()
        except DeclarationError:
            is_plain = False
        if not is_plain or path == "value.json":
            raise InputError(f"{url}: {path!r} cannot be the path of a file of an output; give the source another name")
        if path in seen:
            raise InputError(
                f"{url} and {seen[path]}: both would be written to {path!r}; give each source a name of its own"
            )
        seen[path] = url
    for path, url in paths:
        parts = path.split("/")
        for above in ("/".join(parts[:count]) for count in range(1, len(parts))):
            if above in seen:
                raise InputError(
                    f"{url} and {seen[above]}: {above!r} would be a file and a folder; give one of them another name"
                )


def _one(wanted: Wanted, address: Address, place: Place, expected: Mapping[str, str]) -> Found:
    path = output_path(address, wanted.name)
    pin = no_pin if expected else by_digest(address, path, options_of(wanted.most, wanted.secret))
    return Found(path, address.url, place, expected, pin)


def _output(wanted: Wanted, address: Address, name: str) -> str:
    if not address.is_many:
        return output_path(address, wanted.name)
    below = name.removeprefix(address.folder)
    return f"{wanted.name}/{below}" if wanted.name else below


def _with_revision(address: Address, commit: str) -> str:
    kind = {"dataset": "datasets/", "model": ""}[address.kind]
    return f"hf://{kind}{address.root}@{commit}" + (f"/{address.path}" if address.path else "")
