"""Objects of Google Cloud Storage: each is read at one generation, which never changes.

gcsfs knows the credentials and lists; the bytes are read over HTTP like any others. Its emulator is found by
STORAGE_EMULATOR_HOST.
"""

from __future__ import annotations

import base64
import functools
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from marin_pipeline.core.endpoints import gcs_emulator
from marin_pipeline.core.errors import InputError
from marin_pipeline.data.remote.address import Address
from marin_pipeline.data.remote.http import HttpFile
from marin_pipeline.data.remote.place import LEAST, Broken

REMEDY = (
    "set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`, as somebody who may read the "
    "bucket"
)


_NUMBER = re.compile(r"[0-9]{1,19}")


class GoogleStorage:
    """The store as one step sees it."""

    def __init__(self, stall: float, least: float = LEAST) -> None:
        self._stall = stall
        self._least = least
        gcs_emulator()  # gcsfs takes what stands there as it is
        self._files = file_system()

    def objects(self, address: Address) -> list[tuple[str, HttpFile]]:
        """The objects that an address names, by their names, sorted.

        Raises:
            Broken: when the store does not answer.
            InputError: when there is no such object, or it may not be read.
        """
        if not address.is_many:
            generation = address.version or None
            found = self._asked(address, "b/{}/o/{}", address.path, generation=generation)
            return [(address.path, self._file(address, found))]
        found, page = [], None
        while True:
            listed = self._asked(address, "b/{}/o", prefix=address.folder or None, pageToken=page)
            found += [each for each in listed.get("items", []) if address.matches(each["name"])]
            page = listed.get("nextPageToken")
            if not page:
                files = (each for each in found if not each["name"].endswith("/"))
                return sorted(((each["name"], self._file(address, each)) for each in files), key=lambda each: each[0])

    def _asked(self, address: Address, path: str, *parts: str, **query: Any) -> Any:
        import aiohttp
        import requests
        from gcsfs.retry import HttpError
        from google.auth.exceptions import GoogleAuthError

        try:
            return self._files.call("GET", path, address.root, *parts, json_out=True, **query)
        except FileNotFoundError:
            raise InputError(
                f"{address.url}: there is no such bucket, object or generation; check the address"
            ) from None
        except HttpError as error:
            if error.code in (401, 403):
                raise InputError(f"{address.url}: {error.code}: may not be read; {REMEDY}") from None
            raise Broken(f"{error.code} from the store") from None
        except GoogleAuthError as error:
            raise InputError(
                f"{address.url}: the credentials are not accepted ({type(error).__name__}); {REMEDY}"
            ) from None
        except (aiohttp.ClientError, requests.RequestException, TimeoutError) as error:
            raise Broken(f"no answer from the store ({type(error).__name__})") from None
        except ValueError as error:
            raise Broken(f"an answer of the store that cannot be read ({type(error).__name__})") from None
        except OSError as error:
            if str(error).startswith("Forbidden"):
                raise InputError(f"{address.url}: 403: may not be read; {REMEDY}") from None
            raise Broken(f"no answer from the store ({type(error).__name__})") from None

    def _file(self, address: Address, found: Mapping[str, Any]) -> HttpFile:
        generation, size = str(found.get("generation", "")), str(found.get("size", ""))
        if not _NUMBER.fullmatch(generation) or not _NUMBER.fullmatch(size):
            raise InputError(f"{address.url}: the store tells no generation and size of it: it is not GCS")
        if address.version and int(generation) != int(address.version):
            raise InputError(
                f"{address.url}: the store gave generation {generation}, where {address.version} was asked for; leave "
                "what follows the # away, and give the source a sha256"
            )
        name = f"{quote(address.root, safe='')}/o/{quote(found['name'], safe='')}"
        digests: dict[str, str] = {}
        for digest, field in (("md5", "md5Hash"), ("crc32c", "crc32c")):
            if found.get(field) and not digests:
                digests[digest] = base64.b64decode(found[field]).hex()
        return HttpFile(
            f"{self._files._location}/download/storage/v1/b/{name}?alt=media&generation={generation}",
            shown=f"gs://{address.root}/{found['name']}",
            stall=self._stall,
            least=self._least,
            headers=self._authorization,
            to_set=REMEDY,
            digests=digests,
            size=int(size),
            fixed=generation,
            # Objects that are stored as gzip come as they are to who accepts gzip, and unpacked to others.
            encoding="gzip",
        )

    def _authorization(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        self._files.credentials.apply(found)
        return found


@functools.cache
def file_system() -> Any:
    # Without it gcsfs asks over another protocol what kind of bucket it is, which emulators do not answer for a minute.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import gcsfs

    return gcsfs.GCSFileSystem(access="read_only", use_listings_cache=False, skip_instance_cache=True)
