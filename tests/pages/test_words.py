"""Sentences of pages and docstrings: their subjects are things, not "what", "who", "which" or "the same"."""

import ast
import re

import pytest

from places import ROOT

FENCE = re.compile(r"^ *(`{3,}|:{3,}|~{3,}).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"\n\s*\n|\n(?= *(?:[-*>|]|\d+\.) )")
VAGUE = re.compile(r"(What|Who|Which|The same)\b(?!.*\?$)")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NO_NOUN = re.compile(  # nor a verb, at the beginning of a docstring
    r"(What|Who|Which|The same|Whether|How|Why|Where|When|If|As|In|Of|On|By|For|With|Without|From|To|At|And|So|Not)"
    r"\b(?!-)"
)
PACKAGE = ROOT / "src/attendax"
FILES = [p for folder in (PACKAGE, ROOT / "benchmarks") for p in folder.rglob("*.py")]


def vague(page):
    """Sentences, also after a colon or a semicolon, that begin with such a word and are no question."""
    page = re.sub(r"^> ?", "", re.sub(r"<!--.*?-->", "", FENCE.sub("\n\n", page), flags=re.DOTALL), flags=re.MULTILINE)
    blocks = (" ".join(block.split()) for block in BLOCK.split(re.sub(r"^#+ .*", "", page, flags=re.MULTILINE)))
    sentences = (re.sub(r"^[-*\d. |]+", "", part) for block in blocks for part in re.split(r"(?<=[.:;!?|])\s+", block))
    return [sentence for sentence in sentences if VAGUE.match(sentence) and sentence[-1] in ".:;"]


def test_no_sentence_is_vague():
    assert len(PAGES) > 40
    assert [(page.name, sentence) for page in PAGES for sentence in vague(page.read_text("utf-8"))] == []


@pytest.mark.parametrize(
    "text",
    [
        "What is right stays.",
        "- **Who** calls it is told.\n",
        "It runs. Which of them is\nrun differs.",
        "a: The same holds.",
    ],
)
def test_a_vague_sentence_is_found(text):
    assert len(vague(f"# Page\n\n{text}\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "What is a mask?",
        "```text\nWhat is it\n```",
        "It says what it is.",
        "Whatever it is.",
        "## What it is\n\nIt is.",
        "| What | b |",
    ],
)
def test_any_other_is_not(text):
    assert vague(f"# Page\n\n{text}\n") == []


def docstrings(source):
    """Those of a file: of itself, its classes and its functions."""
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef
    texts = (ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    return [text for text in texts if text]


def test_a_docstring_begins_with_a_verb_or_a_noun():
    texts = [(file.name, text) for file in FILES for text in docstrings(file.read_text("utf-8"))]
    assert len(texts) > 500
    assert [(file, text) for file, text in texts if NO_NOUN.match(text)] == []
    assert [(file, sentence) for file, text in texts for sentence in vague(text)] == []


def test_one_that_does_not_is_found():
    (text,) = docstrings('def far():\n    """How far it is."""\n')
    assert NO_NOUN.match(text)
    assert not NO_NOUN.match("All-gather: as others do.")
