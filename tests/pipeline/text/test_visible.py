"""Text from rows on a terminal."""

import unicodedata

from rich.cells import cell_len

from pipeline.inputs.values import visible


def test_no_control_character_but_tab_and_line_feed_reaches_the_terminal():
    controls = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Zl", "Zp", "Cs")]
    left = [letter for letter in controls if visible(letter) == letter]
    assert left == ["\t", "\n"]


def test_an_escape_sequence_is_shown_as_the_characters_that_it_has():
    assert visible("\x1b[2J\x1b]8;;http://a\x07link") == "\u241b[2J\u241b]8;;http://a\u2407link"
    assert visible("\x9b31m \x7f \x00") == "\ufffd31m \u2421 \u2400"


def test_what_would_reorder_a_line_is_replaced_and_marks_of_right_to_left_text_stay():
    bidi = {chr(code) for code in range(0x110000) if unicodedata.bidirectional(chr(code)) in _REORDERING}
    assert len(bidi) == 9
    assert visible("".join(sorted(bidi))) == "\ufffd" * 9
    hebrew = "\u200f\u05e9\u05dc\u05d5\u05dd\u200e (1) \u061c"
    assert visible(hebrew) == hebrew


def test_wide_letters_joined_pictures_and_spaces_stay_as_they_are():
    text = "a\tb\nc\u00a0d\u3000\u6f22\u5b57 \U0001f469\u200d\U0001f680 e\u0301 \u200b\ufeff"
    assert visible(text) == text
    assert cell_len(visible("\x1b\u6f22\x9b")) == 1 + 2 + 1


_REORDERING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
