"""The glossary has the terms of the pages, and pages link the first use of each."""

import re
import runpy
from types import SimpleNamespace

import pytest

from places import ROOT

GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")


def test_forty_terms_are_explained():
    own, _, _ = GLOSSARY.partition("## Your word, our word")
    (block,) = re.findall(r"^```\{glossary\}\n(.*?)^```", own, re.MULTILINE | re.DOTALL)
    terms = re.findall(r"^\w.*$", block, re.MULTILINE)
    assert len(terms) >= 40
    assert len(set(terms)) == len(terms)
    for word in ("ladder", "kit", "judge", "twin", "tile", "cause", "finding", "claim"):  # our own words
        assert word in terms


def test_the_first_use_is_linked_and_no_other():
    nodes = pytest.importorskip("docutils.nodes", reason="the extra 'docs' is not installed")
    pytest.importorskip("sphinx", reason="the extra 'docs' is not installed")
    linked = runpy.run_path(str(ROOT / "docs" / "_site" / "terms.py"))["linked"]
    site = SimpleNamespace(builder=SimpleNamespace(get_relative_uri=lambda page, document: f"{document}.html"))
    left = {"tile": ("glossary", "term-tile"), "tile size": ("glossary", "term-tile-size")}
    parts = linked(site, "masks", "Tiles have a tile size, and tiles are skipped.", left)
    links = [(part.astext(), part["refuri"]) for part in parts if isinstance(part, nodes.reference)]
    assert links == [("Tiles", "glossary.html#term-tile"), ("tile size", "glossary.html#term-tile-size")]
    assert "".join(part.astext() for part in parts) == "Tiles have a tile size, and tiles are skipped."
    assert left == {}
