"""The rules of how this project writes, held by counting (``prose.py``): pages, help, docstrings and messages."""

import re

import pytest

import prose
from attendax.cli import main
from places import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = "src/attendax", "benchmarks", "docs/examples"
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def name(path):
    return str(path.relative_to(ROOT))


@pytest.mark.smoke
def test_no_sentence_is_vague():
    """Nor long, nor in words that have a plainer one, on any page."""
    assert len(PAGES) > 40
    wrong = {name(page): prose.wrong(prose.of_page(page.read_text("utf-8"))) for page in PAGES}
    wrong["CHANGELOG.md"] = prose.wrong(prose.of_page(recent_changes()))
    assert {page: lines for page, lines in wrong.items() if lines} == {}


def recent_changes():
    """The changelog of the next version and of the last one."""
    unreleased, last = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")[1:3]
    return f"{unreleased}\n\n{last}"


def test_a_page_says_once_where_it_was_measured():
    found = {name(page): page.read_text("utf-8").count("(measured") for page in PAGES}
    assert {page: count for page, count in found.items() if count > 1} == {}


@pytest.mark.smoke
def test_a_docstring_begins_with_a_verb_or_a_noun():
    """And is written as a page is, and so are the messages of errors."""
    wrong = {name(file): prose.wrong_in_file(file) for file in FILES}
    assert sum(len(list(prose.docstrings(file.read_text("utf-8")))) for file in FILES) > 500
    assert {file: lines for file, lines in wrong.items() if lines} == {}


COMMANDS = ["", "check", "check --help-all", "check --model m:f", "describe", "diff", "learn", "grade", "embed", "demo"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_written_so(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = command.split()
    with pytest.raises(SystemExit, match=r"^0$"):
        main(words if "--help-all" in words else [*words, "--help"])
    entries = re.split(r"\n(?=  \S|\S|\n)", capsys.readouterr().out)
    assert prose.wrong([sentence for entry in entries for sentence in prose.split(" ".join(entry.split()))]) == []


@pytest.mark.parametrize(
    "text",
    [
        "What is right stays.",
        "- **Who** calls it is told.\n",
        "It runs. Which of them is\nrun differs.",
        "a: The same holds.",
        "It has that, too.",
        "A list is no array.",
        "Masks where there is one.",
        "All but for one.",
        "A function of JAX.",
        f"It {'really ' * 30} runs.",
        "| a |\n|---|\n| is no list |",
    ],
)
def test_a_sentence_that_breaks_a_rule_is_found(text):
    assert len(prose.wrong(prose.of_page(f"# Page\n\n{text}\n"))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "What is a mask?",
        "```text\nWhat is it, too.\n```",
        "It says what it is.",
        "Whatever it is.",
        "## What it is\n\nIt is.",
        "| What | b |",
        "There is no limit. It is no longer there.",
        f"`{'long ' * 40}` is code.",
        "It is also right. A JAX function. It is too long.",
        f"- {'a ' * 20}\n- {'b ' * 20}\n",
    ],
)
def test_any_other_is_not(text):
    assert prose.wrong(prose.of_page(f"# Page\n\n{text}\n")) == []


@pytest.mark.parametrize(
    "source",
    [
        'def far():\n    """How far it is."""\n',
        '"""A module, and more, too."""\n',
        'def f():\n    raise ValueError("a mask is no number")\n',
        'def f(x):\n    raise TypeError(f"{x} is an array, too")\n',
    ],
)
def test_a_docstring_or_a_message_that_breaks_a_rule_is_found(source, tmp_path):
    (tmp_path / "a.py").write_text(source)
    assert len(prose.wrong_in_file(tmp_path / "a.py")) == 1


def test_other_docstrings_are_not(tmp_path):
    (tmp_path / "a.py").write_text('"""All-gather: as others do.\n\n    >>> "it, too."\n    """\n')
    assert prose.wrong_in_file(tmp_path / "a.py") == []
