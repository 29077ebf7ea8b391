"""Which state of a source file a process has loaded, so that an edit during a run cannot pass for what it began with.

A file is looked at when its module is loaded, which may be late: steps import inside their functions. What is edited
after it was loaded harms nobody, nor does a touch or a comment. What a digest covers is run from its source alone:
bytecode of an earlier state passes for the file's where times are fixed, as image builds and archives do.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from marin_pipeline.core.errors import InputError
from marin_pipeline.core.projects import covered, real_path
from marin_pipeline.core.source import SourceStamp, module_digest

_loaded: dict[str, tuple[tuple[int, int] | None, bytes]] = {}
"""Time of change (ns) and size, and content of each covered source file when this process loaded it; None for a state
that was not to be had, since the file was being written."""

_watching_since = time.time_ns()

_from_bytecode: dict[str, bool] = {}
"""Of files that this process had loaded before it began to watch: whether other code than theirs was run."""

_get_code = SourceFileLoader.get_code


def _noting(self: SourceFileLoader, fullname: str) -> CodeType | None:
    """Compile a covered file from the bytes that are noted: bytecode may be of other bytes with one time and size."""
    path = self.get_filename(fullname)
    real = real_path(path)
    if not covered(real):
        return _get_code(self, fullname)
    before = _state(path)
    content = self.get_data(path)
    _loaded[real] = before if before == _state(path) else None, content
    return self.source_to_code(content, path)


def _state(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size


def watch() -> None:
    """From now on, note every source file that a code digest covers when this process loads it, and run what it says.

    Of all others, the engine and third-party code, Python's bytecode is used as ever.
    """
    SourceFileLoader.get_code = _noting


def refuse_edited(files: Iterable[SourceStamp], what: str) -> None:
    """Check that what was loaded is what the run began with.

    Args:
        files: the state of the files that `what` reaches, when the run began.
        what: the step or function, for the message.

    Raises:
        InputError: naming the files that were edited in between, or of which other code was run.
    """
    files = list(files)
    modules = _modules() if any(file.path not in _loaded for file in files) else {}
    for file in files:
        if file.path not in _loaded and file.path in modules and _is_from_bytecode(file.path, modules[file.path]):
            raise InputError(
                f"{what}: Python did not run {file.path} but bytecode that is not of it and passes for its own, as "
                "where times are fixed; remove the __pycache__ beside it and run the same command again"
            )
    edited = [file.path for file in files if _is_edited(file, modules)]
    if edited:
        names = ", ".join(os.path.basename(path) for path in edited[:3])
        raise InputError(
            f"{what}: {names} was edited while the run was going on, before it was loaded; run the same command again "
            "(in a session, reload the module first)"
        )


def _is_edited(file: SourceStamp, modules: Mapping[str, ModuleType]) -> bool:
    if file.path not in _loaded:
        # Loaded before this process began to watch, if at all: then it must not have been written since.
        return file.modified > _watching_since and file.path in modules
    state, content = _loaded[file.path]
    return state != file.state and module_digest(content, Path(file.path)) != file.digest


def _is_from_bytecode(path: str, module: ModuleType) -> bool:
    """Whether Python takes other code for a module than its source compiles to."""
    if path not in _from_bytecode:
        spec, loader = module.__spec__, module.__loader__
        # What was loaded in another way, as by pytest, has bytecode of its own; a program that was started has none.
        cached = spec.cached if spec and isinstance(loader, SourceFileLoader) else None
        _from_bytecode[path] = cached is not None and os.path.isfile(cached) and _differs(module)
    return _from_bytecode[path]


def _differs(module: ModuleType) -> bool:
    loader, name = module.__loader__, module.__name__
    assert isinstance(loader, SourceFileLoader)
    try:
        path = loader.get_filename(name)
        return _get_code(loader, name) != loader.source_to_code(loader.get_data(path), path)
    except (ImportError, OSError, SyntaxError, ValueError):
        return False  # it is gone or being edited; the state of the file tells


def _modules() -> dict[str, ModuleType]:
    """The modules that this process has loaded, by source file."""
    files = [(getattr(module, "__file__", None), module) for module in list(sys.modules.values())]
    return {real_path(file): module for file, module in files if file}
