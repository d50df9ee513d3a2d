"""Each law has a test on each implementation; the pages of the laws show them all."""

import re

import pytest

from laws import IMPLEMENTATIONS, LAWS, WITHOUT, laws_and_tests
from places import ROOT

pytestmark = pytest.mark.smoke

TESTS = list(laws_and_tests())
PAIRS = [(law, of) for law in LAWS for of in IMPLEMENTATIONS if of != "gpu" and (law, of) not in WITHOUT]


def test_a_law_has_a_test_on_each_implementation_in_the_default_suite():
    covered = {(test.law, test.implementation) for test in TESTS if test.is_smoke}
    assert [pair for pair in PAIRS if pair not in covered] == []


def test_a_name_with_the_number_of_a_law_has_its_marker():
    marked = {(test.file, test.name, test.law) for test in TESTS}
    named = [
        (path.relative_to(ROOT / "tests").as_posix(), name, f"L{number}")
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name, number in re.findall(r"^def (test_l(\d+)_\w+)", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert [test for test in named if test not in marked] == []


def test_the_page_of_a_law_shows_its_tests():
    pages = {law: (ROOT / f"docs/laws/{law}.md").read_text("utf-8") for law in LAWS}
    assert [law for law, page in pages.items() if f"```{{law-tests}} {law}\n" not in page] == []
