"""Documents: their ids, what cannot be one, and the digest that names a set of them."""

from __future__ import annotations

import hashlib

import pytest

from marin_pipeline.data.document import LogicalDigest, document_id, excerpt, fault, make_document, text_bytes


def test_id_is_xxh3_128_of_the_utf8_text() -> None:
    # XXH3_128bits of the empty input with seed 0, among the sanity values of the xxHash project.
    assert document_id("") == "99aa06d3014798d86001c324468d497f"
    assert len(document_id("\u00e9")) == 32


def test_equal_text_has_an_equal_id_whatever_the_source() -> None:
    assert make_document("a b", "x", "1").id == make_document("a b", "y", "2", {"k": 1}).id


def test_unicode_forms_are_not_merged() -> None:
    assert document_id("é") != document_id("e\u0301")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n\t", "empty"),
        ("a\0b", "nul_byte"),
        ("a\ud800b", "lone_surrogate"),
        ("word", None),
        ("\U0001f600", None),
    ],
)
def test_a_text_that_cannot_be_a_document_says_why(text: str, reason: str | None) -> None:
    assert fault(text) == reason


def test_excerpt_and_size_take_any_text() -> None:
    assert excerpt("a\ud800" + "b" * 500).encode()
    assert text_bytes("\ud800") == 3


def test_logical_digest_is_over_framed_fields_in_order() -> None:
    document = make_document("text", "source", "name")
    digest = LogicalDigest()
    digest.add(document)
    framed = b"".join(len(field.encode()).to_bytes(8, "little") + field.encode() for field in document)
    assert digest.hexdigest() == hashlib.sha256(framed).hexdigest()
