"""Which option errors of stores name, where a command has several stores."""

from __future__ import annotations

import pytest

from marin_pipeline.core.errors import UsageError
from marin_pipeline.store.given import naming_option, open_given

STORES = {"--from": "s3://lab/b", "--prefix": "s3://lab/b/strange", "--to": "/data/b"}


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("s3://lab/b/steps/x: cannot write: full; choose another prefix with {}", "--from"),
        ("s3://lab/b/strange/steps/x: cannot write: full; choose another prefix with {}", "--prefix"),
        ("s3://lab/b2/steps/x: cannot write: full; choose another prefix with {}", "--prefix"),
        ("/data/b/steps/x: cannot write: full; choose another prefix with {}", "--to"),
        ("/data/b2/steps/x: cannot write: full; choose another prefix with {}", "--prefix"),
        ("/other/data/b/x: cannot write: full; choose another prefix with {}", "--prefix"),
        ("x (s3://lab/b/y): s3://lab/b/strange/z: no; choose another {}", "--prefix"),
        ("s3://lab: there is no such bucket; create it, or choose another {}", "--from"),
        ("{} s3://lab/b: the variables are wrong", "--from"),
        ("{} s3://lab/b/strange: the variables are wrong", "--prefix"),
        ("s3://lab/b: has another output; pull into another {}", "--prefix"),
        ("s3://lab/b: say `marin-pipeline pull KEY --from s3://lab/b --deep {} /data/b`", "--prefix"),
    ],
)
def test_a_message_names_the_option_of_the_store_that_it_is_of(text: str, option: str) -> None:
    assert naming_option(text.format("--prefix"), STORES) == text.format(option)


def test_a_prefix_that_cannot_be_one_names_its_option_whatever_is_left_out_of_it() -> None:
    with pytest.raises(UsageError, match=r"^--to s3://…: has something before '@'"):
        open_given("s3://user:password@lab/a", "--to")
