"""Sentences of the pages: their subjects are things, not "what", "who", "which" or "the same"."""

import re

import pytest

from places import ROOT

FENCE = re.compile(r"^ *(`{3,}|:{3,}|~{3,}).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"\n\s*\n|\n(?= *(?:[-*>|]|\d+\.) )")
VAGUE = re.compile(r"(What|Who|Which|The same)\b(?!.*\?$)")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def vague(page):
    """Sentences, also after a colon or a semicolon, that begin with such a word and are no question."""
    page = re.sub(r"^> ?", "", re.sub(r"<!--.*?-->", "", FENCE.sub("\n\n", page), flags=re.DOTALL), flags=re.MULTILINE)
    blocks = (" ".join(block.split()) for block in BLOCK.split(re.sub(r"^#+ .*", "", page, flags=re.MULTILINE)))
    sentences = (re.sub(r"^[-*\d. |]+", "", part) for block in blocks for part in re.split(r"(?<=[.:;!?|])\s+", block))
    return [sentence for sentence in sentences if VAGUE.match(sentence) and sentence[-1] in ".:;"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_vague(page):
    assert vague(page.read_text("utf-8")) == []


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
