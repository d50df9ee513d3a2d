"""Text on a terminal: whole as it was written, and nothing in it that steers the terminal."""

import pytest

from attendax.cli import main
from attendax.legible import one_line

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
PERSIAN = "می\u200cخواهم"


class TestOneLine:
    @pytest.mark.parametrize(
        "text",
        [
            FAMILY,
            PERSIAN,
            "क्\u200dष",
            "❤\ufe0f",
            "\U0001f3f4\U000e0067\U000e0062\U000e007f",  # a flag of tags
            "\u0600 \u200fעברית\u200e",
            "\U0001fae9 \ue0b0",  # newer than this Python's tables; private use
            "e\u0301",
        ],
    )
    def test_what_people_write_stays(self, text):
        assert one_line(text) == text
        assert one_line(text, 60) == text

    @pytest.mark.parametrize("character", [*"\x00\x07\x08\x1b\x7f\x9b", *"\u202a\u202e\u2066\u2069", "\ud800"])
    def test_what_steers_a_terminal_does_not(self, character):
        assert one_line(f"a{character}[31m") == "a\ufffd[31m"

    @pytest.mark.parametrize("blank", [*"\n\r\t\x0b\x0c\x1c\x85\u2028\u2029\u3000", "\r\n"])
    def test_blanks_are_joined(self, blank):
        assert one_line(f"a{blank} b{blank}") == "a b"

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("text", "columns", "shown"),
        [
            ("abcdef", 6, "abcdef"),
            ("abcdefg", 6, "abcde…"),
            ("東京東京", 8, "東京東京"),
            ("東京東京", 7, "東京東…"),
            ("東京東京", 6, "東京…"),
            ("abe\u0301f", 3, "ab…"),
            ("abe\u0301fg", 4, "abe\u0301…"),
            (f"a{FAMILY}{FAMILY}", 8, f"a{FAMILY}…"),
            (f"a{FAMILY}", 6, "a…"),
            (f"{FAMILY}", 3, "…"),
        ],
    )
    def test_cut_by_columns_and_never_inside_a_picture(self, text, columns, shown):
        assert one_line(text, columns) == shown


def test_errors_cannot_steer_the_terminal(capsys, tmp_path):
    """The message shows a name from the command line, or from a file."""
    assert main(["embed", "a", "--weights", str(tmp_path / "a\x1b[31m\nb")]) == 2
    err = capsys.readouterr().err
    assert err.endswith("a\ufffd[31m b does not exist\n")
    assert err.count("\n") == 1
