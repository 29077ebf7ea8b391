"""The index of results by what they were made from knows no keys of inputs, only what they hold."""

from __future__ import annotations

import hashlib
import json

from marin_pipeline.store.resolved import resolved_digest


def spec(arguments: object) -> bytes:
    return json.dumps({"arguments": arguments, "code": {"version": 1}, "schema": 1, "step": "project/step"}).encode()


def test_equal_contents_under_other_keys_are_the_same_and_other_contents_are_not() -> None:
    one = spec({"data": [{"~artifact": "a", "path": "x"}], "rate": 1e-05})
    other = spec({"data": [{"~artifact": "b", "path": "x"}], "rate": 1e-05})
    assert resolved_digest(one, {"a": "same"}) == resolved_digest(other, {"b": "same"})
    assert resolved_digest(one, {"a": "same"}) != resolved_digest(other, {"b": "else"})


def test_what_is_no_dependency_counts_as_it_was_written() -> None:
    # A dict of the user's with such a key is written with one more tilde, and is no dependency.
    written = spec({"data": {"~~artifact": "a"}, "number": 10**30, "tiny": 5e-324})
    assert (
        resolved_digest(written, {})
        == hashlib.sha256(
            b'{"arguments":{"data":{"~~artifact":"a"},"number":1000000000000000000000000000000,"tiny":5e-324},'
            b'"code":{"version":1},"schema":1,"step":"project/step"}'
        ).hexdigest()
    )


def test_another_part_of_the_same_input_is_something_else() -> None:
    one, other = spec({"data": {"~artifact": "a", "path": "x"}}), spec({"data": {"~artifact": "a", "path": "y"}})
    assert resolved_digest(one, {"a": "same"}) != resolved_digest(other, {"a": "same"})
