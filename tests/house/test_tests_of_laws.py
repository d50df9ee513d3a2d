"""Each law has a test on each implementation; the pages of the laws show them all."""

import re

import pytest

from laws import IMPLEMENTATIONS, LAWS, WITHOUT, laws_and_tests
from places import ROOT

TESTS = list(laws_and_tests())
PAIRS = [(law, of) for law in LAWS for of in IMPLEMENTATIONS if of != "gpu" and (law, of) not in WITHOUT]


@pytest.mark.parametrize(("law", "implementation"), PAIRS)
def test_a_law_has_a_quick_test_on_each_implementation(law, implementation):
    assert [test.node for test in TESTS if (test.law, test.implementation) == (law, implementation) and test.is_quick]


def test_a_name_with_the_number_of_a_law_has_its_marker():
    marked = {(test.file, test.name, test.law) for test in TESTS}
    named = [
        (path.relative_to(ROOT / "tests").as_posix(), name, f"L{number}")
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name, number in re.findall(r"^def (test_l(\d+)_\w+)", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert [test for test in named if test not in marked] == []


@pytest.mark.parametrize("law", LAWS)
def test_the_page_of_a_law_shows_its_tests(law):
    assert f"```{{law-tests}} {law}\n" in (ROOT / f"docs/laws/{law}.md").read_text("utf-8")
