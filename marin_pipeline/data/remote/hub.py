"""Files of the Hugging Face hub: a revision is resolved to a commit once, and the files of a commit never change.

The hub says the sha256 of large files (LFS) and the git blob's sha1 of small ones; both are checked. Where it is, and
with which token it is asked, the environment says: HF_ENDPOINT, HF_TOKEN (or `hf auth login`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from marin_pipeline.core.errors import InputError
from marin_pipeline.data.remote.address import Address
from marin_pipeline.data.remote.http import AGAIN, HttpFile, bearer, no_headers, seconds_until
from marin_pipeline.data.remote.place import LEAST, Broken


class Hub:
    """The hub as one step sees it."""

    def __init__(self, stall: float, token: str | None, least: float = LEAST) -> None:
        """Args:
        token: in place of the environment's.
        """
        import huggingface_hub

        self._stall = stall
        self._least = least
        self._endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
        self._token = token or huggingface_hub.get_token()
        self._api = huggingface_hub.HfApi(endpoint=self._endpoint, token=self._token or False)

    def commit(self, address: Address) -> str:
        """The commit that the revision of an address is now, 40 hex.

        Raises:
            Broken: when the hub does not answer.
            InputError: when there is no such repository or revision, it may not be read, or the hub gives another one.
        """
        revision = address.version or None
        found: Any = _asked(
            address, lambda: self._api.repo_info(address.root, repo_type=address.kind, revision=revision)
        )
        if address.is_fixed and found.sha != address.version:
            raise InputError(
                f"{address.url}: the hub gave the commit {found.sha}, where another one was asked for; take it from "
                "another hub (HF_ENDPOINT), or leave the @ and the commit away and give the source a sha256"
            )
        return found.sha

    def files(self, address: Address, commit: str) -> list[tuple[str, HttpFile]]:
        """The files of a commit that an address names, by path in the repository, sorted.

        Raises:
            Broken: when the hub does not answer.
            InputError: when there is none, or they may not be read.
        """
        return sorted(
            ((each.path, self._file(address, commit, each)) for each in self._listed(address, commit)),
            key=lambda found: found[0],
        )

    def _listed(self, address: Address, commit: str) -> Iterator[Any]:
        where: dict[str, Any] = {"revision": commit, "repo_type": address.kind}
        if not address.is_many:
            found = _asked(address, lambda: self._api.get_paths_info(address.root, [address.path], **where))
            files = [each for each in found if hasattr(each, "blob_id")]
            if files:
                yield from files
                return
            if not found:
                raise InputError(f"{address.url}: the repository has no such file at {commit}; check the path")
            raise InputError(f"{address.url}: is a folder; write '{address.url}/' for all files below it")
        folder = address.folder.rstrip("/") or None
        tree = _asked(address, lambda: list(self._api.list_repo_tree(address.root, folder, recursive=True, **where)))
        yield from (each for each in tree if hasattr(each, "blob_id") and address.matches(each.path))

    def _file(self, address: Address, commit: str, file: Any) -> HttpFile:
        import huggingface_hub

        repository = {"repo_type": address.kind, "revision": commit, "endpoint": self._endpoint}
        digests = {"git": file.blob_id} if file.lfs is None else {"sha256": file.lfs.sha256}
        return HttpFile(
            huggingface_hub.hf_hub_url(address.root, file.path, **repository),
            stall=self._stall,
            least=self._least,
            headers=bearer(self._token) if self._token else no_headers,
            to_set=_remedy(address),
            digests=digests,
            size=file.size,
            fixed=commit,
        )


def _remedy(address: Address) -> str:
    return (
        f"set HF_TOKEN to a token that may read {address.root} (and accept its conditions on its page, if it has "
        "some), or check the name"
    )


def _asked(address: Address, call: Any) -> Any:
    """What the hub says.

    Raises:
        Broken: when it does not answer, or not now.
        InputError: when it says no.
    """
    from huggingface_hub import errors

    try:
        return call()
    except errors.RevisionNotFoundError:
        raise InputError(f"{address.url}: the repository has no such revision; check what follows the '@'") from None
    except errors.OfflineModeIsEnabled:
        raise InputError(f"{address.url}: HF_HUB_OFFLINE is set; unset it to download") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise InputError(f"{address.url}: {status}: may not be read; {_remedy(address)}") from None
        if status in AGAIN or status >= 500:
            raise Broken(f"{status} from the hub", seconds_until(error.response.headers)) from None
        raise InputError(f"{address.url}: {status}: is not there; check the name and the revision") from None
    except errors.HFValidationError as error:
        raise InputError(f"{address.url}: {error}") from None
    except ValueError as error:
        raise Broken(f"an answer of the hub that cannot be read ({type(error).__name__})") from None
    except Exception as error:
        # The client's own errors of connections are of the library that it happens to use.
        if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "requests"):
            raise Broken(f"no answer from the hub ({type(error).__name__})") from None
        raise
