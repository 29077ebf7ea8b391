"""Read a user's own text into documents.

Every row of every file comes out as a document or is counted under a named reason, with a sample in `removed.jsonl`;
the result depends on the files' content and relative names, not on where they lie or in which order they were given.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from marin_pipeline import Artifact, Context, LocalFile, ShardContext, step
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.funnel import FunnelReport
from marin_pipeline.data.schema import Documents

ROWS = "documents.parquet"


@dataclass(frozen=True)
class NamedFile:
    """A file under the name that its documents bear."""

    name: str
    """Relative to the folder that was given; its endings say how it is read."""
    file: LocalFile


def documents_from(
    path: str | Path,
    *,
    text_key: str = "text",
    id_key: str | None = None,
    source_key: str | None = None,
    source: str | None = None,
) -> Artifact[Documents]:
    """Declare the documents of a file or of a folder with all its sub-folders.

    Args:
        path: a .jsonl, .json (one object a line), .txt (one document a file) or .parquet file, all but the last also
            as .gz or .zst; or a folder, in which files of other kinds and hidden ones are left out.
        text_key: field or column of the text.
        id_key: field or column that names a document within its source; without one it is named by file and row.
        source_key: field or column of the source.
        source: the source without a `source_key`; by default the name of the file or folder without its endings.

    Raises:
        InputError: when there is no such path, or nothing there that can be read.
    """
    from marin_pipeline.data.readers import COMPRESSIONS, FORMATS, supported

    path = Path(path)
    endings = f"{', '.join(FORMATS)} (all but .parquet also with {' or '.join(COMPRESSIONS)})"
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; give the path of a file or folder of {endings}")
    found = sorted(path.rglob("*")) if path.is_dir() else [path]
    root = path if path.is_dir() else path.parent
    names = {file.relative_to(root).as_posix(): file for file in found if file.is_file()}
    hidden = [name for name in names if any(part.startswith(".") for part in name.split("/"))]
    visible = {name: file for name, file in names.items() if supported(name) and name not in hidden}
    left_out = sorted(set(names) - set(visible) - set(hidden))
    if visible and left_out:
        shown = ", ".join(left_out[:5]) + (", …" if len(left_out) > 5 else "")
        warnings.warn(f"{path}: left out, not of a kind that is read: {len(left_out)} files ({shown})", stacklevel=2)
    if not visible:
        raise InputError(f"{path}: nothing here can be read; supported are files that end in {endings}")
    return read_documents(
        files={name: LocalFile(file) for name, file in sorted(visible.items())},
        text_key=text_key,
        id_key=id_key,
        source_key=source_key,
        source=source or path.resolve().name.partition(".")[0] or "local",
    )


@step(version=1)
def read_documents(
    ctx: Context,
    files: dict[str, LocalFile],
    text_key: str = "text",
    id_key: str | None = None,
    source_key: str | None = None,
    source: str = "local",
) -> Documents:
    """Documents from files by relative name; see `documents_from`, which lists them.

    Raises:
        InputError: when a file cannot be read to its end, or has rows but none with the text key.
    """
    from marin_pipeline.data.funnel import merge, summary
    from marin_pipeline.data.writers import gather

    items = [NamedFile(name, file) for name, file in sorted(files.items())]
    results = ctx.map(read_one, items, text_key=text_key, id_key=id_key, source_key=source_key, source=source)
    documents = gather(ctx.out, [result / ROWS for result in results], merge(result.value for result in results))
    ctx.log(summary(documents))
    return documents


def read_one(
    shard: ShardContext, item: NamedFile, text_key: str, id_key: str | None, source_key: str | None, source: str
) -> FunnelReport:
    """Read one file into a part of its own, `documents.parquet`."""
    from marin_pipeline.data.document import make_document, sort_key
    from marin_pipeline.data.funnel import Funnel
    from marin_pipeline.data.readers import Rejection, RowKeys, read_rows
    from marin_pipeline.data.writers import write_part

    funnel = Funnel()
    documents = []
    for row in read_rows(item.file, item.name, RowKeys(text_key, id_key, source_key)):
        place = f"{item.name}#{row.number}"
        if isinstance(row, Rejection):
            funnel.reject(row.reason, source, place, row.detail, row.bytes)
        else:
            documents.append(make_document(row.text, row.source or source, row.id or place))
            funnel.keep(documents[-1])
    write_part(shard.out / ROWS, sorted(documents, key=sort_key))
    return funnel.report()
