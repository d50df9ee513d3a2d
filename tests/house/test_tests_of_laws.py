"""Each law has a test on each implementation; the pages of the laws show them all."""

import json
import re

from choosing import LIST
from laws import IMPLEMENTATIONS, LAWS, WITHOUT, laws_and_tests
from places import ROOT

TESTS = list(laws_and_tests())
LISTED = json.loads(LIST.read_text("utf-8"))
PAIRS = [(law, of) for law in LAWS for of in IMPLEMENTATIONS if of != "gpu" and (law, of) not in WITHOUT]


AS_PARAMETER = {"spec": "spec", "ops": "ops", "tiles": "tiny tiles", "native": "default"}  # in engine/test_laws.py


def is_by_default(test):
    """Whether the default suite has a test, with a parameter for its implementation where that is one."""
    if "/on_eight/" in test.file:
        return test.is_quick  # test_on_eight.py runs them
    listed = [node for node in LISTED if node.partition("[")[0] == test.node.partition("[")[0]]
    of = test.parameter or (AS_PARAMETER[test.implementation] if test.is_on_each else "")
    return any(of in node.partition("[")[2] for node in listed)


def test_a_law_has_a_test_on_each_implementation_in_the_default_suite():
    covered = {(test.law, test.implementation) for test in TESTS if is_by_default(test)}
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
