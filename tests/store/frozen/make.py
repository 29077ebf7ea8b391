"""Freezes a small store of each kind, as later versions must read it:

    python -m tests.store.frozen.make 2

writes `2/local.zip`, `2/memory.zip`, `2/gs.zip` and `2/s3.zip` beside this file, in which each object lies under its
path. It starts the servers that it needs. Give a new number when the format has got something new; what was frozen
stays. Nothing in a frozen store tells who made it, or on which machine.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from marin_pipeline import Artifact
from marin_pipeline.run.adoption import Content, adopt
from marin_pipeline.run.driver import RunResult, Session
from marin_pipeline.run.options import Options
from marin_pipeline.store.clock import attempt_name, now
from marin_pipeline.store.commit import Commit, Invalidation, accept, invalidate, look, publish_commit
from marin_pipeline.store.copying import copy_output
from marin_pipeline.store.lease import Holder
from marin_pipeline.store.names import drop_root, give_name
from marin_pipeline.store.objects import ObjectStore, open_objects
from marin_pipeline.store.origins import Package
from tests import servers
from tests.stores import BUCKET, STORES, environment_of

HERE = Path(__file__).parent
PROJECT = HERE / "project"

NEUTRAL = Path("/dev/shm/frozen")
"""Where the project lies while its steps run: commits name the path of a local file. It must not be there before."""

FOLDERS = (
    "chains", "code", "experiments", "files", "gc", "names", "origins", "resolved", "roots", "shards", "steps",
)  # fmt: skip
"""Where objects lie that are kept; leases and scratch of a moment are none."""

_DATE = (1980, 1, 1, 0, 0, 0)


def recipes(project: Path = PROJECT) -> ModuleType:
    """The steps, imported from a project."""
    name = "recipes"
    sys.modules.pop(name, None)
    if str(project) not in sys.path:
        sys.path.insert(0, str(project))
    spec = importlib.util.spec_from_file_location(name, project / "recipes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def session(prefix: str, targets: list[Artifact[Any]], **options: Any) -> Session:
    """A run of the experiment in this process."""
    return Session.open(targets, Options(prefix=prefix, backend="inline", **options), "experiment.py", "Frozen")


def packed(objects: ObjectStore) -> bytes:
    """All that a store keeps, as an archive: the same bytes for the same objects."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for info in (info for folder in FOLDERS for info in objects.list(folder)):
            found = objects.read(info.path)
            assert found is not None
            archive.writestr(zipfile.ZipInfo(info.path, _DATE), found.data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def unpack(frozen: Path, objects: ObjectStore) -> dict[str, bytes]:
    """Put a frozen store into an empty one of its kind; its objects."""
    with zipfile.ZipFile(frozen) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    for path, data in found.items():
        assert objects.create(path, data) is not None
    return found


@contextmanager
def anonymous(project: Path) -> Generator[None]:
    """Without what tells who made something and where, and without what would make it large: the packages that are
    installed, and the code of marin_pipeline itself.
    """
    somebody = Holder("", "somebody", "somewhere", "", 1, "")
    machine = {"python": "3.11.0", "system": "Linux", "architecture": "x86_64", "processor": "any", "versions": {}}
    with ExitStack() as stack:
        for what, value in (
            ("run.sources._program", lambda: str(project / "recipes.py")),
            ("run.sources._own_files", lambda: iter(())),
            ("run.origin.packages", lambda: {"example": Package("1.0", None)}),
            ("run.fingerprint._machine", lambda: {**machine, "instructions": []}),
            ("store.lease._process", lambda pid: somebody),
            ("store.pages.MOST", 6),
            ("store.pages.PAGE", 4),
        ):
            stack.enter_context(mock.patch(f"marin_pipeline.{what}", value))
        stack.enter_context(mock.patch.object(sys, "argv", ["experiment.py"]))
        stack.enter_context(mock.patch.dict(os.environ, {"MARIN_OWNER": "somebody"}))
        yield


def build(prefix: str) -> bytes:
    """Make a store with one of each thing, and pack it."""
    shutil.copytree(PROJECT, NEUTRAL, ignore=shutil.ignore_patterns("__pycache__"))
    try:
        with anonymous(NEUTRAL):
            _build(prefix, NEUTRAL)
            return packed(open_objects(prefix))
    finally:
        shutil.rmtree(NEUTRAL)


def _build(prefix: str, project: Path) -> None:
    objects = open_objects(prefix)
    made = recipes(project)
    targets: list[Artifact[Any]] = made.experiment(str(project))
    adopt(objects, Content.of(project / "texts", "texts", "null"), 30.0)
    _copied_in(objects, made)
    with mock.patch.dict(os.environ, {"FROZEN_BREAK": "an earlier version"}):
        result = session(prefix, targets).run()
    failed = [node.name for node, _ in result.failures]
    assert failed == ["parts"], result.failures

    id, key = _of(result, "first")
    invalidate(objects, id, key, 1, Invalidation("invalidated", "an example", now()))
    assert session(prefix, targets[:-3], only=["first"]).run().ok
    commit = _commit(objects, id, key)
    late = replace(commit, attempt=attempt_name(), output="0" * 64)
    publish_commit(objects, id, key, late)  # as one that came second, with other bytes

    id, key = _of(result, "squares")
    accept(objects, id, key, 1, "0" * 64, "an example", now())
    give_name(objects, "kept/squares", id, key)
    give_name(objects, "dropped", id, key)
    drop_root(objects, "dropped@1")


def _copied_in(objects: ObjectStore, made: ModuleType) -> None:
    """An output that comes from another store."""
    other = "memory://another"
    artifact: Artifact[Any] = made.words(text="a b c")
    result = session(other, [artifact]).run()
    id, key = _of(result, "words")
    source = open_objects(other)
    copy_output(source, objects, id, key, _commit(source, id, key))


def _of(result: RunResult, name: str) -> tuple[str, str]:
    (node,) = (node for node in result.graph.nodes.values() if name in node.names)
    return node.id, node.key


def _commit(objects: ObjectStore, id: str, key: str) -> Commit:
    commit = look(objects, id, key).commit
    assert commit is not None
    return commit


def main() -> None:
    """Freeze a store of each kind."""
    folder = HERE / sys.argv[1]
    folder.mkdir()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gs = stack.enter_context(servers.fake_gcs())
        s3 = stack.enter_context(servers.seaweedfs(scratch))
        servers.make_gcs_bucket(gs, BUCKET)
        servers.make_s3_bucket(s3, BUCKET)
        os.environ.update(environment_of("gs", gs.url) | environment_of("s3", s3.url))
        prefixes = {
            "local": str(scratch / "store"),
            "memory": "memory://frozen",
            "gs": f"gs://{BUCKET}/frozen",
            "s3": f"s3://{BUCKET}/frozen",
        }
        for kind in STORES:
            data = build(prefixes[kind])
            (folder / f"{kind}.zip").write_bytes(data)
            print(f"{kind}: {len(data):,} bytes")


if __name__ == "__main__":
    main()
