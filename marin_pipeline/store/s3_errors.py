"""What went wrong at an S3 store, for the person who is to mend it.

obstore's errors carry the whole answer of the server, and that of a refused signature repeats the request's headers,
the session token among them: so only the server's code is taken over, and nothing is chained.
"""

from __future__ import annotations

import re

from marin_pipeline.core.errors import StoreError
from marin_pipeline.store.bucket_client import is_broken, status_of, strange
from marin_pipeline.store.objects import DiskFull, NoAnswer

_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_METADATA = ("/latest/api/token", "/latest/meta-data", "169.254.169.254")
"""Where credentials of the machine itself are asked for, when none were given."""

_EXPIRED = "the credentials have expired; renew them (a new AWS_SESSION_TOKEN, or `aws sso login`), and run again"
_REFUSED = (
    "the credentials are not accepted; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, and that "
    "they are for this endpoint"
)
_REGION = "the bucket is in another region; set AWS_REGION to its region, and run again"
REMEDIES = {
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "InvalidAccessKeyId": _REFUSED,
    "SignatureDoesNotMatch": _REFUSED,
    "InvalidToken": _REFUSED,
    "AccessDenied": (
        "access denied; the credentials need s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there"
    ),
    "RequestTimeTooSkewed": "the clock of this machine is wrong; set it, and run again",
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "InvalidBucketName": "that cannot be a bucket's name; correct --prefix",
    "KeyTooLongError": "the path is longer than the 1,024 bytes of S3; choose a shorter name or prefix",
    "NotImplemented": "the server lacks an operation that is needed (a conditional write?); use another store",
    "InvalidObjectState": "the object lies in an archive; restore it, and run again",
}
_FULL = ("QuotaExceeded", "InsufficientCapacity", "XMinioStorageFull", "EntityTooLarge")


def code_of(error: BaseException) -> str:
    """The server's own word for an error (`NoSuchKey`), or what stands for it; empty when there is none."""
    text = str(error)
    code = _CODE.search(text)
    if code is not None:
        return code[1]
    status = status_of(error)
    return {401: "InvalidAccessKeyId", 403: "AccessDenied", 301: "PermanentRedirect"}.get(status, "")


def explained(error: BaseException, where: str, doing: str, server: str) -> StoreError:
    """The error that a person should see.

    Args:
        where: URL of the object.
        doing: what was tried, as in `read`.
        server: the endpoint, as it is shown.
    """
    stranger = strange(error, where, doing, server, "S3", "AWS_ENDPOINT_URL")
    if stranger is not None:
        return stranger
    code, status = code_of(error), status_of(error)
    told = f"{where}: cannot {doing}"
    if any(each in str(error) for each in _METADATA):
        return StoreError(
            f"{told}: no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or install boto3 for "
            "the profiles of ~/.aws"
        )
    if code == "NoSuchBucket":
        return no_bucket(where, server)
    if code in REMEDIES:
        return StoreError(f"{told}: {REMEDIES[code]} ({code})")
    if code in _FULL or status == 507:
        return DiskFull(f"{told}: there is no room left; free some, or choose another prefix with --prefix ({code})")
    if status in (429, 503) or code == "SlowDown":
        return NoAnswer(
            f"{told}: {server} asks to slow down ({code or status}); wait, or use fewer workers, then again"
        )
    if status >= 500:
        return NoAnswer(f"{told}: {server} fails ({code or status}); wait, and run again")
    if is_broken(error):
        return NoAnswer(f"{told}: the answer of {server} breaks off; check the line and what lies on it, and run again")
    if not status:
        return NoAnswer(f"{told}: {server} does not answer; check AWS_ENDPOINT_URL and the line, and run again")
    return StoreError(f"{told}: {server} says {code or status}")


def no_bucket(where: str, server: str) -> StoreError:
    """The error of a bucket that is not there."""
    bucket = "/".join(where.split("/")[:3])
    return StoreError(f"{bucket}: there is no such bucket at {server}; create it, or choose another --prefix")
