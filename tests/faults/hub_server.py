"""A small Hugging Face hub of the tests: what `huggingface_hub` asks of the real one to resolve, list and read.

Large files are redirected to another host, with a signature in the address, as the real hub does with LFS.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.faults.http_server import Act, Handler, HttpServer, Served

LARGE = 1000
"""Bytes from which on a file is in LFS."""


def git_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repository:
    """A dataset: files by commit, and what its branches stand for."""

    commits: dict[str, Mapping[str, bytes]]
    branches: dict[str, str]
    token: str = ""
    """What a request must bear."""
    wrong: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Files of which other bytes are sent than the listing says."""


class Hub:
    """The hub, on a server."""

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.repositories: dict[str, Repository] = {}
        self.refusals: list[tuple[int, dict[str, str]]] = []
        """Status and headers of what is answered first."""
        self.acts: dict[str, list[Act]] = {}
        """What is done with a large file, by its sha256."""
        server.answers["/api/datasets/"] = self._api
        server.answers["/datasets/"] = self._resolve

    def _api(self, handler: Handler) -> bool:
        parts = handler.path.removeprefix("/api/datasets/").partition("?")[0].split("/", 4)
        owner, name, what, revision, path = map(unquote, [*parts, "", "", ""][:5])
        repository = self._may(handler, f"{owner}/{name}")
        if repository is None:
            return True
        if self.refusals:
            status, headers = self.refusals.pop(0)
            handler.reply(status, b"{}", headers)
            return True
        commit = repository.branches.get(revision or "main", revision)
        if commit not in repository.commits:
            self._json(handler, {"error": "Revision not found"}, 404, {"X-Error-Code": "RevisionNotFound"})
        elif what in ("", "revision"):
            self._json(handler, {"id": f"{owner}/{name}", "sha": commit, "siblings": [], "tags": [], "private": False,
                                 "disabled": False, "downloads": 0, "likes": 0})  # fmt: skip
        elif what == "tree":
            files = repository.commits[commit]
            below = {each: data for each, data in files.items() if not path or each.startswith(f"{path}/")}
            self._json(handler, [self._entry(each, data) for each, data in sorted(below.items())])
        elif what == "paths-info":
            length = int(handler.headers["Content-Length"])
            body = handler.rfile.read(length)
            sent = handler.headers.get("Content-Type", "")
            asked = json.loads(body)["paths"] if "json" in sent else parse_qs(body.decode())["paths"]
            self._json(handler, [each for path in asked for each in self._at(repository.commits[commit], path)])
        else:
            handler.reply(404, b"{}")
        return True

    def _at(self, files: Mapping[str, bytes], path: str) -> list[dict[str, Any]]:
        if path in files:
            return [self._entry(path, files[path])]
        if any(each.startswith(f"{path}/") for each in files):
            return [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0}]
        return []

    def _entry(self, path: str, data: bytes) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git_blob(data)}
        if len(data) >= LARGE:
            digest = hashlib.sha256(data).hexdigest()
            entry |= {"oid": git_blob(digest.encode()), "lfs": {"oid": digest, "size": len(data), "pointerSize": 130}}
        return entry

    def _resolve(self, handler: Handler) -> bool:
        owner, name, what, commit, path = map(unquote, handler.path.removeprefix("/datasets/").split("/", 4))
        repository = self._may(handler, f"{owner}/{name}")
        if repository is None:
            return True
        if what != "resolve" or commit not in repository.commits or path not in repository.commits[commit]:
            handler.reply(404, b"Entry not found")
            return True
        data = repository.wrong.get(path, repository.commits[commit][path])
        if len(data) < LARGE:
            handler.reply(200, data, {"ETag": f'"{git_blob(data)}"'})
            return True
        digest = hashlib.sha256(data).hexdigest()
        self.server.files.setdefault(f"/lfs/{digest}", self._large(digest, data))
        location = f"{self.server.elsewhere}/lfs/{digest}?X-Amz-Signature=secret-signature"
        handler.reply(302, b"", {"Location": location})
        return True

    def _large(self, digest: str, data: bytes) -> Served:
        return Served(data, etag=f'"{digest[:32]}"', acts=list(self.acts.get(digest, ())))

    def _may(self, handler: Handler, name: str) -> Repository | None:
        """The repository, where it may be read; else the answer is given."""
        repository = self.repositories.get(name)
        if repository is not None and handler.headers.get("Authorization") == f"Bearer {repository.token}":
            return repository
        if repository is None or repository.token:
            headers = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
            handler.reply(401, b"{}", headers)
            return None
        return repository

    def _json(self, handler: Handler, tree: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        handler.reply(status, json.dumps(tree).encode(), {"Content-Type": "application/json", **(headers or {})})
