"""The help of the command line: short, in nouns, and there before anything is imported."""

import re
import subprocess
import sys

import pytest

from attendax.cli import GROUPS, main
from attendax.conformance.command.options import COMMON
from attendax.conformance.command.options import GROUPS as OPTIONS

pytestmark = pytest.mark.smoke

SEVEN = {"check", "describe", "diff", "learn", "grade", "embed", "demo"}
NO_NOUN = re.compile(r"(of|in|by|how|what|which|where|when|whether|the same|only)\b", re.IGNORECASE)
SCRIPT = """
import sys
from attendax.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*(name for name in sys.modules if name.partition(".")[0] in ("attendax", "numpy", "jax")), file=sys.stderr)
"""


@pytest.fixture
def shown(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def show(*words):
        with pytest.raises(SystemExit, match=r"^0$"):
            main(words)
        return capsys.readouterr().out

    return show


def test_seven_commands_on_one_screen(shown):
    assert {command for commands in GROUPS.values() for command in commands} == SEVEN
    lines = shown("--help").splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert {line.split()[0] for line in lines if line.startswith("  ") and "-" not in line.split()[0]} == SEVEN


def test_check_shows_the_common_options_and_all_if_asked(shown):
    common, every = shown("check", "--help"), shown("check", "--help-all")
    assert len(common.splitlines()) <= 60
    for name in (name for options in OPTIONS.values() for name in options):
        option = re.compile(rf"^  --{name.replace('_', '-')}\b", re.MULTILINE)
        assert option.search(every), name
        assert bool(option.search(common)) == (name in COMMON), name


def test_a_text_begins_with_its_noun():
    texts = [about for options in OPTIONS.values() for _, _, about in options.values()]
    assert [text for text in texts if NO_NOUN.match(text) or "unless given" in text] == []


def test_help_needs_nothing_of_the_kit():
    """Neither the cases nor NumPy: it answers at once."""
    command = [sys.executable, "-c", SCRIPT, "check", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--only" in done.stdout
    allowed = re.compile(r"attendax(\.(cli|exits|legible|successors|conformance(\.command(\.options)?)?))?$")
    assert [name for name in done.stderr.split() if not allowed.match(name)] == []
