"""Artifacts and files: what a step makes, handed on before it has run and read after.

An `Artifact` is inert until its output is bound to it: it can only be passed on, and it stands in a spec by its key
alone. A bound one reads exactly the files that its manifest names.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Generic, NewType, Protocol, TypeVar, get_args, get_origin

from marin_pipeline.core.annotations import UNIONS, describe
from marin_pipeline.core.canonical import Reference, Tree
from marin_pipeline.core.errors import DeclarationError, InputError, NotRunError
from marin_pipeline.core.paths import relative_path
from marin_pipeline.core.resources import Resources

if TYPE_CHECKING:
    from marin_pipeline.core.step import Declaration

T_co = TypeVar("T_co", covariant=True)

LONGEST_NAME = 200
"""Characters: it is part of a path."""

NAME = re.compile(r"[a-z0-9_-]+(/[a-z0-9_-]+)*")


class FileEntry(Protocol):
    """One file of a committed output."""

    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> str: ...


class Output(Protocol):
    """A committed output, as its readers see it."""

    @property
    def id(self) -> str:
        """Id of the step that made it."""
        ...

    @property
    def key(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def files(self) -> Mapping[str, FileEntry]: ...
    @property
    def unpinned(self) -> Sequence[str]:
        """Names of what it was made from and no key fixes."""
        ...

    @property
    def inputs(self) -> Mapping[str, Output]:
        """What its step read, by role; each is looked up when it is asked for."""
        ...

    def value(self, annotation: Any) -> Any:
        """The returned value, checked against `annotation`."""
        ...

    def local(self, path: str) -> Path:
        """A local file or folder that holds `path` of the output."""
        ...

    def open(self, path: str) -> BinaryIO:
        """A file of the output, opened for reading; it is not fetched first."""
        ...

    def url(self, path: str) -> str:
        """Where `path` of the output lies in its store."""
        ...


class Artifact(Reference, Generic[T_co]):
    """What a step makes. `T` is the type of the value that the step returns."""

    def __init__(
        self,
        key: str,
        *,
        declaration: Declaration | None = None,
        kind: Any = Any,
        name: str | None = None,
        resources: Resources | None = None,
        output: Output | None = None,
    ) -> None:
        self.key = key
        """64 hex: sha256 of the spec."""
        self.declaration = declaration
        """The step and the arguments that make it; None for one that was loaded by key."""
        self.kind = kind
        """Annotation of the value."""
        self.label = name
        """The name that was given with `named`, or None."""
        self.resources = resources or (declaration.step.resources if declaration else Resources())
        self._output = output

    @property
    def name(self) -> str:
        """The name on screen: the given one, else the step's."""
        if self.label is not None:
            return self.label
        return self.declaration.step.name if self.declaration else self.key[:8]

    @property
    def output(self) -> Output:
        """The committed output.

        Raises:
            NotRunError: before the step has run, or outside a step and without `run` or `load`.
        """
        if self._output is None:
            raise NotRunError(
                f"{self.name} is declared but has no output here; its value and files can be read inside a step that "
                "takes it as an argument, or from the artifact that run(...) or load(...) returns"
            )
        return self._output

    @property
    def value(self) -> T_co:
        """What the step returned."""
        return self.output.value(self.kind)

    @property
    def unpinned(self) -> Sequence[str]:
        """Names of what its step reads and no key fixes; of one that was loaded, also what it was made from."""
        if self.declaration is not None:
            return self.declaration.unpinned
        return () if self._output is None else self._output.unpinned

    @property
    def inputs(self) -> Mapping[str, Artifact[Any]]:
        """What its step read, by role (`tokens`, `tokens[web]`), with the outputs that were read; each is looked up
        when it is asked for. For looking back at what was made: a step takes what it reads as an argument.

        Raises:
            NotRunError: before the step has run.
            StoreError: by a look-up, when what was read is not in the store any more.
        """
        return _Inputs(self.output.inputs)

    @property
    def files(self) -> list[str]:
        """Relative paths of the output's files, from its manifest, sorted."""
        return sorted(self.output.files)

    def __truediv__(self, path: str) -> OutputFile:
        return OutputFile(self, relative_path(path))

    @classmethod
    def loaded(cls, output: Output) -> Artifact[Any]:
        """The artifact of a committed output that is not declared here; its step names it."""
        return Artifact(output.key, name=output.id.rpartition("/")[2].rpartition(".")[2].lower(), output=output)

    def named(self, name: str) -> Artifact[T_co]:
        """The same artifact under a name of `[a-z0-9_-]` and `/`. Names are not in the key.

        Raises:
            DeclarationError: for a name with other characters.
        """
        if len(name) > LONGEST_NAME:
            raise DeclarationError(
                f"{self.name}.named(...): a name has at most {LONGEST_NAME} characters, not {len(name)}"
            )
        if not NAME.fullmatch(name):
            raise DeclarationError(f"{self.name}.named({name!r}): a name is made of a-z, 0-9, '_', '-' and '/'")
        return self._copy(name=name)

    def using(self, resources: Resources) -> Artifact[T_co]:
        """The same artifact, made with other resources. Resources are not in the key."""
        return self._copy(resources=resources)

    def bound(self, output: Output) -> Artifact[T_co]:
        """The same artifact with its output at hand."""
        return self._copy(output=output)

    def _copy(
        self,
        *,
        kind: Any = None,
        name: str | None = None,
        resources: Resources | None = None,
        output: Output | None = None,
    ) -> Artifact[T_co]:
        return Artifact(
            self.key,
            declaration=self.declaration,
            kind=kind or self.kind,
            name=name or self.label,
            resources=resources or self.resources,
            output=output or self._output,
        )

    def canonical(self, path: str) -> Tree:
        return {"~artifact": self.key}

    def fits(self, annotation: Any) -> bool:
        if get_origin(annotation) is not Artifact:
            return True
        return _fits(self.kind, get_args(annotation)[0])

    def typed(self, annotation: Any) -> Artifact[Any]:
        if self.kind is not Any or get_origin(annotation) is not Artifact:
            return self
        return self._copy(kind=get_args(annotation)[0])

    def described(self) -> str:
        return repr(self) if self.kind is Any else f"{self.name}, an artifact of {describe(self.kind)}"

    def __repr__(self) -> str:
        return f"<artifact {self.name} {self.key[:8]}>"


class _Inputs(Mapping[str, Artifact[Any]]):
    """Outputs by role, as artifacts."""

    def __init__(self, outputs: Mapping[str, Output]) -> None:
        self._outputs = outputs

    def __getitem__(self, role: str) -> Artifact[Any]:
        return Artifact.loaded(self._outputs[role])

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)


def _fits(kind: Any, wanted: Any) -> bool:
    """Whether a value of `kind` is one of `wanted`, as far as that can be told without the value."""
    if isinstance(kind, NewType) and kind is not wanted:
        return _fits(kind.__supertype__, wanted)
    if Any in (kind, wanted) or wanted in (object, kind) or isinstance(wanted, TypeVar):
        return True
    if get_origin(kind) in UNIONS:
        return all(_fits(each, wanted) for each in get_args(kind))
    if get_origin(wanted) in UNIONS:
        return any(_fits(kind, each) for each in get_args(wanted))
    if (kind, wanted) == (int, float):
        return True
    made, asked = get_origin(kind) or kind, get_origin(wanted) or wanted
    if not isinstance(made, type) or not isinstance(asked, type) or not issubclass(made, asked):
        return False
    inner, asked_inner = get_args(kind), get_args(wanted)
    return len(inner) != len(asked_inner) or all(map(_fits, inner, asked_inner))


class File(Reference):
    """A file that a step reads: one of an artifact (`artifact / "words.txt"`), or a `LocalFile` of this machine."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Last part of the path."""
        ...

    @property
    @abstractmethod
    def path(self) -> Path:
        """A local file (or folder) with the content."""
        ...

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the file lies, for readers that read ranges."""
        ...

    @property
    @abstractmethod
    def sha256(self) -> str:
        """Digest of the content, 64 hex."""
        ...

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes."""
        ...

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def read_text(self, encoding: str = "utf-8") -> str:
        """The whole file as text."""
        return self.path.read_text(encoding)

    def read_bytes(self) -> bytes:
        """The whole file."""
        return self.path.read_bytes()

    def open(self, mode: str = "rb", encoding: str = "utf-8") -> IO[Any]:
        """The file, opened for reading, as bytes or as text (`r`).

        A large one that lies in a bucket, and was not fetched before, is read by ranges, without a copy on this
        machine's disk. Read from the beginning to the end, it is held against its sha256, and wrong bytes are an error
        before the last of them are handed out. Where its reader jumps about, its size and the checksum of the store
        are all that was compared, when it was opened: `path` has a copy that was verified.

        Raises:
            CorruptOutput: here, or by a read, when the file is not what was committed.
        """
        if set(mode) - set("rbt"):
            raise InputError(f"{self!r} is committed and can only be read; open it with mode 'r' or 'rb', not {mode!r}")
        file = self._open()
        return file if "b" in mode else io.TextIOWrapper(file, encoding=encoding)

    def _open(self) -> BinaryIO:
        return self.path.open("rb")


class OutputFile(File):
    """A file (or folder) of an artifact: at declaration a dependency on it, in a running step its content."""

    def __init__(self, artifact: Artifact[Any], sub: str) -> None:
        self.artifact = artifact
        self.sub = sub
        """Path relative to the artifact's output."""

    @property
    def name(self) -> str:
        return PurePosixPath(self.sub).name

    @property
    def path(self) -> Path:
        return self.artifact.output.local(self.sub)

    def _open(self) -> BinaryIO:
        return self.artifact.output.open(self.sub)

    @property
    def url(self) -> str:
        return self.artifact.output.url(self.sub)

    @property
    def sha256(self) -> str:
        """Digest of the content, 64 hex, from the manifest."""
        return self._entry().sha256

    @property
    def size(self) -> int:
        """Bytes, from the manifest."""
        return self._entry().size

    def _entry(self) -> FileEntry:
        files = self.artifact.output.files
        if self.sub not in files:
            known = ", ".join(itertools.islice(files, 10)) or "none"
            raise InputError(f"{self.artifact.name} has no file {self.sub!r}; it has {known}")
        return files[self.sub]

    def __truediv__(self, path: str) -> OutputFile:
        return OutputFile(self.artifact, f"{self.sub}/{relative_path(path)}")

    def canonical(self, path: str) -> Tree:
        return {"~artifact": self.artifact.key, "path": self.sub}

    def __repr__(self) -> str:
        return f"<file {self.artifact.name}/{self.sub}>"


CHUNK = 64 * 2**20
"""Bytes of a chunk. A larger file is identified by the sha256 of its chunks' digests: parts are hashed apart."""


_BLOCK = 2**20
"""Bytes of a file that are read at a time."""


class ContentHash:
    """sha256 of content that comes in pieces, as `content_digest` gives it for a file."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes so far."""
        self._chunk = hashlib.sha256()
        self._outer = hashlib.sha256()

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Append bytes."""
        left = memoryview(data).cast("B")
        while left:
            if self.size and self.size % CHUNK == 0:
                self._outer.update(self._chunk.digest())
                self._chunk = hashlib.sha256()
            piece = left[: CHUNK - self.size % CHUNK]
            self._chunk.update(piece)
            self.size += len(piece)
            left = left[len(piece) :]

    def hexdigest(self) -> str:
        """64 hex."""
        if self.size <= CHUNK:
            return self._chunk.hexdigest()
        outer = self._outer.copy()
        outer.update(self._chunk.digest())
        return outer.hexdigest()


def content_digest(path: Path) -> str:
    """sha256 of a file, 64 hex; above 64 MiB the sha256 of the digests of its 64 MiB chunks. Many threads may do this
    at the same time: each holds a block of the file, and not a chunk.
    """
    with path.open("rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size <= CHUNK:
            return hashlib.file_digest(file, "sha256").hexdigest()
        content, block = ContentHash(), memoryview(bytearray(_BLOCK))
        while size := file.readinto(block):
            content.update(block[:size])
        return content.hexdigest()


class LocalFile(File):
    """A file of this machine, keyed by its content: where it lies and what it is called do not count.

    Raises:
        InputError: when the file cannot be read, or when it has changed between declaration and use.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, sha256: str | None = None, stamp: tuple[int, int] | None = None
    ) -> None:
        self._path = Path(path).absolute()
        try:
            found = self._path.stat()
            if not self._path.is_file():
                raise InputError(f"LocalFile({str(path)!r}): not a file; list a folder's files one by one")
            self.stamp = (found.st_size, found.st_mtime_ns)
            """Size in bytes and time of change in ns when the content was hashed."""
            self._sha256 = sha256 if sha256 and stamp == self.stamp else content_digest(self._path)
        except OSError as error:
            problem = error.strerror or error
            raise InputError(f"LocalFile({str(path)!r}): cannot be read ({problem}); check the path") from error
        if sha256 and sha256 != self._sha256:
            raise InputError(f"{self._path}: the file has changed since it was declared; run the experiment again")

    @property
    def name(self) -> str:
        """Last part of the path; not in the key."""
        return self._path.name

    @property
    def path(self) -> Path:
        return self._path

    @property
    def url(self) -> str:
        return str(self._path)

    def refuse_changed(self) -> None:
        """Check that the file is still as it was when it was hashed.

        Raises:
            InputError: when it was written since, or has gone.
        """
        try:
            found = self._path.stat()
        except OSError as error:
            raise InputError(f"{self._path}: has gone while it was being read; run the experiment again") from error
        if (found.st_size, found.st_mtime_ns) != self.stamp:
            raise InputError(f"{self._path}: was written while it was being read; run the experiment again")

    @property
    def sha256(self) -> str:
        """Digest of the content, 64 hex."""
        return self._sha256

    @property
    def size(self) -> int:
        """Bytes."""
        return self.stamp[0]

    def canonical(self, path: str) -> Tree:
        return {"~file": self._sha256}

    def __repr__(self) -> str:
        return f"<local file {self.name} {self._sha256[:8]}>"
