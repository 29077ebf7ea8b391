"""Documents from the docstrings of installed Python packages: real technical prose that needs no network.

The packages are pinned by version and content when the step is declared, so its key moves when a package does, and
only then. Source is parsed, never imported; a file that is not the one its RECORD lists stops the step.
"""

from __future__ import annotations

from marin_pipeline import Context, ShardContext, step
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.funnel import FunnelReport
from marin_pipeline.data.packages import PackagePin, SourceChunk, SourceFile, pinned
from marin_pipeline.data.schema import Documents

__all__ = ["PackagePin", "package_docs", "pinned"]

ROWS = "documents.parquet"


@step(version=1)
def package_docs(ctx: Context, packages: tuple[PackagePin, ...]) -> Documents:
    """One document a docstring of a module, class or function: source is the distribution, source_id the object's name.

    Args:
        packages: what `pinned(["numpy", "scipy/optimize", …])` returns.

    Raises:
        InputError: when a package is missing, has another version or content than was pinned, or a file was changed.
    """
    from marin_pipeline.data.funnel import merge, summary
    from marin_pipeline.data.packages import chunks, pinned_files
    from marin_pipeline.data.writers import gather

    if not packages:
        raise InputError(
            "package_docs: no packages; name some, as in package_docs(packages=pinned(['numpy', 'scipy/optimize']))"
        )
    selected: dict[str, dict[str, SourceFile]] = {}
    for pin in packages:
        selected.setdefault(pin.distribution, {}).update((file.path, file) for file in pinned_files(pin))
    items = [
        chunk
        for distribution, files in sorted(selected.items())
        for chunk in chunks(distribution, (files[path] for path in sorted(files)))
    ]
    results = ctx.map(read_docstrings, items)
    documents = gather(ctx.out, [result / ROWS for result in results], merge(result.value for result in results))
    ctx.log(summary(documents))
    return documents


def read_docstrings(shard: ShardContext, chunk: SourceChunk) -> FunnelReport:
    """Read the docstrings of some files into a part of their own, `documents.parquet`."""
    import gc

    from marin_pipeline.data.docstrings import Unparsable, docstrings, module_name
    from marin_pipeline.data.document import fault, make_document, sort_key, text_bytes
    from marin_pipeline.data.funnel import Funnel
    from marin_pipeline.data.packages import package_root, read_source
    from marin_pipeline.data.writers import write_part

    root = package_root(chunk.distribution)
    funnel = Funnel()
    documents = []
    collecting = gc.isenabled()
    # A syntax tree has no cycles, and looking for some after every few hundred nodes takes a third of the time.
    gc.disable()
    try:
        for file in chunk.files:
            found = docstrings(read_source(root, chunk.distribution, file), module_name(file.path))
            if isinstance(found, Unparsable):
                funnel.reject(found.reason, chunk.distribution, file.path, found.detail)
                continue
            for name, kind, text in found:
                reason = fault(text)
                if reason is not None:
                    funnel.reject(reason, chunk.distribution, name, text, text_bytes(text))
                    continue
                documents.append(make_document(text, chunk.distribution, name, {"kind": kind}))
                funnel.keep(documents[-1])
    finally:
        if collecting:
            gc.enable()
    write_part(shard.out / ROWS, sorted(documents, key=sort_key))
    return funnel.report()
