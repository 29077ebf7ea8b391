"""Objects in a bucket of Google Cloud Storage. An object's version is its generation.

Create-only and compare-and-swap are one request each, with the condition on the generation: the emulator keeps
conditions on nothing else, neither on uploads in parts nor on deletions, so that nothing rests on those.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Sequence
from typing import Any

from marin_pipeline.core.endpoints import gcs_emulator
from marin_pipeline.core.errors import StoreError, UsageError
from marin_pipeline.store.bucket_client import BLOCK, Failed
from marin_pipeline.store.bucket_client import Client as Reader
from marin_pipeline.store.downloads import Opened
from marin_pipeline.store.gcs_client import BYTES_SECONDS, CALL_SECONDS, Client, Place, all_of, client_of
from marin_pipeline.store.gcs_uploads import Writer, publish, put
from marin_pipeline.store.objects import RECORD, FileToPublish, Found, ObjectInfo, ObjectWriter, Told, Written, untold
from marin_pipeline.store.remote_objects import RemoteObjects, refuse_parts

DELETED_AT_ONCE = 64
"""Requests that delete objects below a folder at the same time."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]|(?=.*\.)[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class GcsObjects(RemoteObjects):
    """Objects of `gs://bucket/prefix`."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        bucket, _, prefix = rest.partition("/")
        prefix = prefix.strip("/")
        if scheme != "gs" or not bucket:
            raise UsageError(f"--prefix {url}: is not gs://BUCKET/FOLDER")
        if not _BUCKET.fullmatch(bucket):
            raise UsageError(
                f"--prefix {url}: {bucket!r} cannot be a bucket's name: that has 3 to 63 characters (with dots, up to "
                "222) of a-z, 0-9, '-', '_' and '.', and begins and ends with a letter or a digit"
            )
        refuse_parts(url, prefix)
        super().__init__(f"gs://{bucket}/{prefix}".rstrip("/"))
        self.bucket = bucket
        self._above = f"{prefix}/" if prefix else ""
        self._endpoint = gcs_emulator()

    @functools.cached_property
    def client(self) -> Client:
        """Makes the requests."""
        return client_of(self._endpoint)

    def _name(self, path: str) -> str:
        """An object's name in the bucket.

        Raises:
            StoreError: for a path that would lead out of the store, or that cannot be asked for.
        """
        name = self._above + self.checked(path)
        if _CONTROL.search(name):
            raise StoreError(
                f"{self.url}: {path!a} has a control character, which no name in GCS may have here; rename it"
            )
        return name

    def _place(self, path: str) -> Place:
        return Place(self.client, self.bucket, self._name(path), self.url, path)

    @property
    def endpoint(self) -> str | None:
        return self._endpoint

    def region(self) -> str:
        return str(self.client.wait(self._bucket("location")).get("location") or "")

    async def _bucket(self, fields: str) -> dict[str, Any]:
        """What the server says of the bucket."""
        url = self.client.bucket_url(self.bucket, fields=fields)
        reply = await self.client.request("GET", url, f"gs://{self.bucket}", "read")
        return self.client.tree(reply, f"gs://{self.bucket}", "read")

    # Records ---------------------------------------------------------------------------------------------------------

    def is_there(self) -> bool:
        return bool(self.client.wait(self._page(self._above, maxResults="1")).get("items"))

    def read(self, path: str, most: int = RECORD) -> Found | None:
        place = self._place(path)
        try:
            return Found(*self._reader(CALL_SECONDS, place).read(place.name, place.where, most))
        except Failed as error:
            explained = self.client.unread(place, "", error)
            if isinstance(explained, FileNotFoundError):
                return None
            raise explained from None

    def create(self, path: str, data: bytes) -> str | None:
        return self.client.wait(put(self._place(path), data, ifGenerationMatch="0"))

    def swap(self, path: str, data: bytes, version: str) -> str | None:
        return self.client.wait(put(self._place(path), data, ifGenerationMatch=version))

    # Listings --------------------------------------------------------------------------------------------------------

    async def _page(self, prefix: str, **parameters: str) -> dict[str, Any]:
        url = self.client.list_url(self.bucket, prefix=prefix, **parameters)
        where = f"gs://{self.bucket}/{prefix}".rstrip("/")
        page = self.client.tree(await self.client.request("GET", url, where, "list"), where, "list")
        if page.get("kind") != "storage#objects":  # any answer in JSON else says that nothing is there
            raise self.client.not_gcs(where, "list")
        return page

    async def _pages(self, prefix: str, **parameters: str) -> list[dict[str, Any]]:
        """All objects whose names begin so, a page after the other."""
        found: list[dict[str, Any]] = []
        token = ""
        while not found or token:
            more = {"pageToken": token} if token else {}
            found.append(await self._page(prefix, **parameters, **more))
            token = found[-1].get("nextPageToken") or ""
        return found

    def list(self, folder: str) -> list[ObjectInfo]:
        fields = "kind,items(name,size,crc32c),nextPageToken"
        pages = self.client.wait(self._pages(f"{self._name(folder)}/", fields=fields))
        items = [item for page in pages for item in page.get("items") or () if not item["name"].endswith("/")]
        return sorted(map(self._info, items), key=lambda info: info.path)

    def info(self, path: str) -> ObjectInfo | None:
        return self.client.wait(self._look(self._place(path)))

    async def _look(self, place: Place) -> ObjectInfo | None:
        url = self.client.object_url(self.bucket, place.name, fields="name,size,crc32c")
        reply = await self.client.request("GET", url, place.where, "read", expected=(404,))
        if reply.status == 404:
            if self.client.is_about_the_bucket(reply):
                self.client.refuse(reply, place.where, "read")
            return None
        return self._info(self.client.tree(reply, place.where, "read"))

    def _info(self, item: dict[str, Any]) -> ObjectInfo:
        if "name" not in item or "size" not in item:
            raise self.client.not_gcs(self.url, "read")
        return ObjectInfo(item["name"][len(self._above) :], int(item["size"]), item.get("crc32c") or None)

    def names(self, folder: str) -> list[str]:
        below = f"{self._name(folder)}/"
        cut = len(below)
        fields = "kind,prefixes,items(name),nextPageToken"
        pages = self.client.wait(self._pages(below, delimiter="/", fields=fields))
        found = {item["name"][cut:] for page in pages for item in page.get("items") or ()}
        found.update(name[cut:-1] for page in pages for name in page.get("prefixes") or ())
        return sorted(found - {""})

    # Deletion --------------------------------------------------------------------------------------------------------

    def delete(self, path: str) -> None:
        self.client.wait(self._delete(self._place(path)))

    async def _delete(self, place: Place) -> None:
        listing = self._pages(f"{place.name}/", fields="kind,items(name),nextPageToken")
        _, pages = await asyncio.gather(self._delete_one(place), listing)
        below = iter([item["name"] for page in pages for item in page.get("items") or ()])

        async def work() -> None:
            for name in below:
                await self._delete_one(place._replace(name=name))

        await all_of(work() for _ in range(DELETED_AT_ONCE))

    async def _delete_one(self, place: Place) -> None:
        url = self.client.object_url(self.bucket, place.name)
        await self.client.request("DELETE", url, place.where, "delete", expected=(404,))

    # Bytes -----------------------------------------------------------------------------------------------------------

    def publish(self, path: str, files: Sequence[FileToPublish], told: Told = untold) -> list[Written]:
        self.checked(path)
        return self.client.wait(publish([self._place(f"{path}/{each.name}") for each in files], files, told))

    def writer(self, path: str) -> ObjectWriter:
        return Writer(self._place(path))

    def opened(self, path: str, start: int, stop: int | None, version: str) -> Opened:
        place = self._place(path)
        few = stop is not None and stop - start <= BLOCK
        reader = self._reader(CALL_SECONDS if few else BYTES_SECONDS, place)
        return reader.opened(place.name, start, stop, version, functools.partial(self.client.unread, place, version))

    def _reader(self, seconds: float, place: Place) -> Reader:
        """What reads an object, when there are credentials for it."""
        self.client.renew(place.where)
        return self.client.reader(self.bucket, seconds)
