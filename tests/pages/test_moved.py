"""Every address that the site has had leads somewhere."""

import re
import runpy

from places import ROOT

DOCS = ROOT / "docs"
MOVED = runpy.run_path(str(DOCS / "_site" / "moved.py"))
HAD = """add-a-backend adopt against attention benchmarks changelog check-a-model cite conformance contributing
decode derivations describe devices differentiate encoders glossary gpu how-it-is-fast how-to-test index install laws
learn learn-in-class masks matrix migrate onnx rotary same-bits scores stability ten-minutes train what-is-proved
where-xla-ends why without-python xla-faults"""


def places(page: str) -> set[str]:
    """The places of a page that an address can name, as MyST names headings and labels."""
    text = re.sub(r"^```.*?^```", "", (DOCS / f"{page}.md").read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return {""} | slugs | set(re.findall(r"^\((.*)\)=$", text, re.MULTILINE))


def test_every_page_is_there_or_leads_on():
    there = {path.stem for path in [*DOCS.glob("*.md"), *DOCS.glob("*.ipynb")]}
    assert set(HAD.split()) <= there | MOVED["PAGES"].keys()
    assert not there & MOVED["PAGES"].keys()


def test_what_has_moved_is_where_its_address_leads():
    targets = [*MOVED["PAGES"].values(), *(x for moved in MOVED["SECTIONS"].values() for x in moved.values())]
    assert targets
    for target in targets:
        page, _, section = target.partition("#")
        assert section in places(page), target


def test_a_section_that_leads_on_is_gone():
    for page, moved in MOVED["SECTIONS"].items():
        assert not moved.keys() & places(page)


def test_a_page_that_is_gone_leads_on(tmp_path):
    class Site:
        outdir = tmp_path
        builder = type("html", (), {"format": "html"})

    MOVED["PAGES"]["old"] = "matrix#by-law"
    MOVED["lead_pages"](Site, None)
    assert 'url=matrix.html#by-law"' in (tmp_path / "old.html").read_text("utf-8")
