"""What is printed steers no terminal, and is read as it stands."""

from __future__ import annotations

import io
import json
import unicodedata

import hypothesis
from hypothesis import strategies as st

from marin_pipeline.core.visible import as_line, is_line, say, visible


@hypothesis.given(st.text())
def test_no_control_is_left_but_tabs_and_line_breaks(text: str) -> None:
    shown = visible(text)
    assert not [letter for letter in shown if unicodedata.category(letter) in ("Cc", "Cs") and letter not in "\t\n"]
    assert visible(shown) == shown
    assert is_line(as_line(text))


def test_sequences_of_terminals_and_marks_of_direction_are_shown() -> None:
    assert visible("\x1b]0;t\x07\x9b2J a\rb\x7f") == "\\u001b]0;t\\u0007\\u009b2J a\\u000db\\u007f"
    assert visible("\u202eexe.txt\u2066\u2028\U000e0041\ud800") == "\\u202eexe.txt\\u2066\\u2028\\U000e0041\\ud800"
    for ordinary in ("grün\t→\n", "a\xa0b", "\u3000", "می\u200cخواهم", "👩\u200d🔬", "\\u001b"):
        assert visible(ordinary) == ordinary


@hypothesis.given(st.text())
def test_json_stays_the_same_json(text: str) -> None:
    stream = io.StringIO()
    say(json.dumps(text), stream)
    assert json.loads(stream.getvalue()) == text
