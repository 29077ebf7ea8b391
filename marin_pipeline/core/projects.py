"""Which project a source file belongs to, what it is called there, and whether a code digest covers it.

Everything is decided by where files lie; nothing is imported. The distribution's own files have the same names in a
checkout and in an installed wheel.
"""

from __future__ import annotations

import functools
import os
import sysconfig
from pathlib import Path

from marin_pipeline.core.errors import InputError

DISTRIBUTION = os.path.realpath(Path(__file__).parents[2])
"""The folder that holds `marin_pipeline` and `steps`: a checkout, or the site-packages that a wheel is installed in."""

_OWN = ("marin_pipeline", "steps")
_COVERED = ("data", "models", "train", "evaluate")
_INSTALLED = {"site-packages", "dist-packages"}
_PROGRAMS = {"bin", "Scripts"}
_STANDARD_LIBRARY = os.path.realpath(sysconfig.get_path("stdlib"))


def project_root(file: Path) -> Path:
    """Folder of the nearest `pyproject.toml` upwards; without one, the file's own folder."""
    return Path(root_of(real_path(file)))


def project_name(file: Path) -> str | None:
    """Name in the nearest `pyproject.toml`, "-" written as "_"; None where there is none.

    Raises:
        InputError: when that file is not TOML.
    """
    path = real_path(file)
    if own_parts(path):
        return "marin_pipeline"
    pyproject = Path(root_of(path)) / "pyproject.toml"
    if not pyproject.is_file():
        return None
    try:
        import tomllib

        project = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError) as error:
        raise InputError(
            f"{pyproject}: cannot be read ({error}); correct it, since steps with a version are named after the project"
        ) from error
    name = project.get("name")
    return name.replace("-", "_") if isinstance(name, str) else None


def module_id(file: Path) -> str:
    """Path of a module in its project, without its ending: `experiments/hello`; `pkg` for `pkg/__init__.py`."""
    return id_of(real_path(file))


def is_third_party(file: Path) -> bool:
    """Whether a file belongs to the standard library or to an installed package other than this one."""
    return third_party(real_path(file))


# The same on real paths as strings, which is what the search for imports works on


def real_path(file: Path | str) -> str:
    """Absolute path with the links among its folders resolved; the file itself may be a link and keeps its name."""
    folder, name = os.path.split(os.path.abspath(file))
    return os.path.join(real_folder(folder), name)


@functools.lru_cache(maxsize=4096)
def real_folder(folder: str) -> str:
    """Absolute path of a folder, links resolved."""
    return os.path.realpath(folder)


def root_of(path: str) -> str:
    """See `project_root`."""
    own = folder = os.path.dirname(path)
    if own_parts(path):
        return DISTRIBUTION
    while not os.path.isfile(os.path.join(folder, "pyproject.toml")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return own
        folder = parent
    return folder


def id_of(path: str, root: str | None = None) -> str:
    """See `module_id`; `root` is taken for the project's when it is given and holds the file."""
    root = root if root is not None and path.startswith(root + os.sep) and not own_parts(path) else root_of(path)
    parts = os.path.splitext(os.path.relpath(path, root))[0].split(os.sep)
    found = "/".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
    try:
        found.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(
            f"{path!a}: its name is not UTF-8, and keys and records could not hold it; rename it"
        ) from None
    return found


def own_parts(path: str) -> list[str]:
    """Parts of the path of one of the distribution's own files, from `marin_pipeline` or `steps` on; else empty."""
    if not path.startswith(DISTRIBUTION + os.sep):
        return []
    parts = path[len(DISTRIBUTION) + 1 :].split(os.sep)
    return parts if parts[0] in _OWN else []


def covered(path: str) -> bool:
    """Whether a code digest covers a module: the user's project, `steps`, and the science in `marin_pipeline`."""
    if parts := own_parts(path):
        return parts[0] == "steps" or parts[1] in _COVERED
    return not third_party(path)


def third_party(path: str) -> bool:
    """See `is_third_party`."""
    return not own_parts(path) and _third_party_folder(os.path.dirname(path))


@functools.lru_cache(maxsize=4096)
def _third_party_folder(folder: str) -> bool:
    if f"{folder}{os.sep}".startswith(_STANDARD_LIBRARY + os.sep) or _INSTALLED & set(folder.split(os.sep)):
        return True
    # Of a virtual environment only what was installed is not the user's: a project may be one (`python -m venv .`).
    inside: list[str] = []
    while not (inside and os.path.isfile(os.path.join(folder, "pyvenv.cfg"))):
        if os.path.isfile(os.path.join(folder, "pyproject.toml")) or os.path.dirname(folder) == folder:
            return False
        folder, name = os.path.split(folder)
        inside.insert(0, name)
    return inside[0] in _PROGRAMS or (inside[0] in ("lib", "lib64") and inside[1:2] != [] and "py" in inside[1])
