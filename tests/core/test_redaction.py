"""Values of secrets are found in whatever form programs write them, also across the borders of blocks."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
import urllib.parse
from collections.abc import Iterable, Mapping

import hypothesis
import pytest
from hypothesis import strategies as st

from marin_pipeline import Secret
from marin_pipeline.core import redaction, secrets
from marin_pipeline.core.errors import DeclarationError, InputError
from marin_pipeline.core.redaction import Redactor
from marin_pipeline.core.secrets import guard, guarding, redacted, redacted_tree, secret_names

VALUES = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=8, max_size=40)
ALIKE = st.text("ab", min_size=8, max_size=12)
"""Values that begin and end alike, so that one may begin inside another."""


@hypothesis.given(VALUES, st.text(max_size=5), st.text(max_size=5))
def test_a_value_is_found_in_every_form(value: str, before: str, after: str) -> None:
    known = Redactor({"TOKEN": [value]})
    whole = f"{before}{value}{after}"
    plain = whole.encode()
    forms = [
        plain,
        json.dumps(whole).encode(),
        json.dumps(whole, ensure_ascii=False).encode(),
        repr(whole).encode(),
        repr(plain).encode(),
        urllib.parse.quote(whole).encode(),
        urllib.parse.quote_plus(whole).encode(),
        urllib.parse.urlencode({"q": whole}).encode(),
        plain.hex().encode(),
        base64.b64encode(plain),
        base64.urlsafe_b64encode(plain),
        base64.b64encode(whole.encode("utf-16-le")),
        base64.b64encode(base64.b64encode(f"{value}{after}".encode())),
        str(list(plain)).encode(),
        whole.encode("utf-16"),
        whole.encode("utf-32"),
    ]
    for form in forms:
        # A quote in the text around it changes how Python quotes the whole; then the value is escaped otherwise.
        if form == repr(whole).encode() and repr(whole)[0] != repr(value)[0]:
            continue
        assert known.find(form) == "TOKEN", form
        assert b"<secret TOKEN>" in known.redacted(form), form


@hypothesis.given(st.lists(ALIKE, min_size=1, max_size=3), st.lists(st.text("abc", max_size=30), max_size=8))
def test_pieces_are_redacted_as_the_whole(values: list[str], pieces: list[str]) -> None:
    known = Redactor({f"T{number}": [value] for number, value in enumerate(values)})
    whole = "".join(pieces).encode()
    written, rest = b"", b""
    for piece in pieces:
        done, rest = known.split(rest + piece.encode())
        written += done
        assert not known.find(written)
        assert len(rest) < max(map(len, known.forms))
    written += known.redacted(rest)
    assert written == known.redacted(whole)


@hypothesis.given(ALIKE, st.integers(1, 12))
def test_nothing_is_held_back_that_begins_no_value(value: str, size: int) -> None:
    assert Redactor({"T": [value]}).split(b"c" * size + b"\n") == (b"c" * size + b"\n", b"")


def test_a_value_of_which_every_character_is_escaped_is_found() -> None:
    known = Redactor({"TOKEN": ["hf_Ab/+9ü→xyz"]})
    assert known.find("".join(f"\\u{ord(letter):04x}" for letter in "a hf_Ab/+9ü→xyz b").encode()) == "TOKEN"


def test_parts_of_a_key_and_of_credentials_are_found() -> None:
    pem = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END KEY-----\n"
    known = Redactor({"PEM": [pem], "ACCOUNT": [json.dumps({"private_key": pem, "token_uri": "https://a.b/token-of"})]})
    assert known.redacted(b"a AQEFAASCBKcwggSjAgEAAoIB b") == b"a <secret PEM> b"
    alone = Redactor({"ACCOUNT": [json.dumps({"private_key": pem, "token_uri": "https://a.b/token-of"})]})
    assert alone.find(b"a AQEFAASCBKcwggSjAgEAAoIB b") == "ACCOUNT"
    assert alone.find(b"https://a.b/token-of") is None
    assert alone.find(b"-----BEGIN KEY-----") is None


def test_what_is_known_here_is_redacted_and_stays_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_REDACTED", "first-value-of-it")
    assert redacted("a first-value-of-it b") == "a first-value-of-it b"
    secret = Secret("TEST_REDACTED")
    assert redacted("a first-value-of-it b") == "a <secret TEST_REDACTED> b"
    monkeypatch.setenv("TEST_REDACTED", " second-value-of-it\n")
    assert secret.value == " second-value-of-it\n"
    assert redacted(b"first-value-of-it second-value-of-it") == b"<secret TEST_REDACTED> <secret TEST_REDACTED>"
    tree = {"first-value-of-it": ["second-value-of-it", 1, None], "\ud800": "\udcff"}
    assert redacted_tree(tree) == {
        "<secret TEST_REDACTED>": ["<secret TEST_REDACTED>", 1, None],
        "\ud800": "\udcff",
    }


def test_a_redactor_that_was_made_while_another_value_was_seen_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_CHANGING", "first value of all")
    begun = threading.Event()

    class Slow(Redactor):
        def __init__(self, values: Mapping[str, Iterable[str]]) -> None:
            super().__init__(values)
            is_first = not begun.is_set()
            begun.set()
            time.sleep(0.1 * is_first)

    monkeypatch.setattr(redaction, "Redactor", Slow)
    thread = threading.Thread(target=secrets.redactor, args=(["TEST_CHANGING"],))
    thread.start()
    assert begun.wait(10)
    monkeypatch.setenv("TEST_CHANGING", "second value of all")
    secrets.redactor(["TEST_CHANGING"])
    thread.join()
    found = secrets.redactor(["TEST_CHANGING"])
    assert found is not None
    assert found.redacted(b"first value of all, second value of all") == (
        b"<secret TEST_CHANGING>, <secret TEST_CHANGING>"
    )


def test_a_value_with_bytes_that_are_no_text_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_BYTES", os.fsdecode(b"\xff\xfevalue-of-it"))
    value = Secret("TEST_BYTES").value
    assert redacted(f"a {value}") == "a <secret TEST_BYTES>"
    assert redacted(b"a \xff\xfevalue-of-it") == b"a <secret TEST_BYTES>"


def test_a_value_that_is_too_short_is_refused_and_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_SHORT", "  seven77\n")
    with pytest.raises(InputError, match=r"TEST_SHORT has a value of fewer than 8 characters, .*; set a longer one"):
        _ = Secret("TEST_SHORT").value
    assert redacted("seven77") == "seven77"


@pytest.mark.parametrize("token", ["hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123", "ghp_0123456789abcdefABCDEF0123456789abcd"])
def test_a_token_that_could_be_a_name_is_refused_for_one(token: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        Secret(token)
    assert token not in str(caught.value)


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "hfToken2", "GOOGLE_APPLICATION_CREDENTIALS_2"])
def test_names_of_variables_are_taken(name: str) -> None:
    assert Secret(name).name == name


def test_the_secrets_of_a_task_are_guarded_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_GUARDED", "value-that-is-guarded")
    monkeypatch.setenv("TEST_OTHER", "value-of-another")
    Secret("TEST_OTHER")
    assert guard() is None
    with guarding(("TEST_GUARDED",)):
        with guarding(()):
            known = guard()
        assert known is not None
        assert known.find(b"value-that-is-guarded")
        assert not known.find(b"value-of-another")
    assert guard() is None
    with guarding(("TEST_NOT_SET",)):
        assert guard() is None


def test_names_of_secrets_are_found_at_any_depth() -> None:
    tree = {"a": [{"~data": "x", "fields": {"token": {"~secret": "B"}}}], "b": {"~secret": "A"}, "~~secret": "no"}
    assert secret_names(tree) == ("A", "B")


def test_without_secrets_nothing_is_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", {})
    text = "any text"
    assert redacted(text) is text
    tree = {"a": [1]}
    assert redacted_tree(tree) is tree
