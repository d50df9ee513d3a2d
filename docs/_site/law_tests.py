"""`{law-tests} L5`: the tests of a law, a row for each implementation, folded away."""

import sys
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from laws import IMPLEMENTATIONS, WITHOUT, Test, laws_and_tests

TESTS = list(laws_and_tests())


class LawTests(SphinxDirective):
    """A table, made from the markers of the tests."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The table, in HTML."""
        law = self.arguments[0]
        rows = []
        for implementation, words in IMPLEMENTATIONS.items():
            tests = [test for test in TESTS if (test.law, test.implementation) == (law, implementation)]
            if cell := _by_file(tests) or escape(WITHOUT.get((law, implementation), "")):
                rows.append(f'<tr><th scope="row">{escape(words.replace("`", ""))}</th><td>{cell}</td></tr>')
        count = len({(test.file, test.name) for test in TESTS if test.law == law})
        table = f'<div class="wide"><table class="matrix">{"".join(rows)}</table></div>'
        how = "<p>To run one: <code>pytest -m &quot;&quot; -k NAME</code>. If it is in several rows, this runs all.</p>"
        text = f"<details><summary>How it is tested: {count} tests</summary>{how}{table}</details>"
        return [nodes.raw("", text, format="html")]


def _by_file(tests: list[Test]) -> str:
    """The names of the tests, file by file."""
    cells = []
    for file in dict.fromkeys(test.file for test in tests):
        names = dict.fromkeys(test.name for test in tests if test.file == file)
        shown = ", ".join(f"<code>{escape(name)}</code>" for name in names)
        cells.append(f"<p>tests/{escape(file)}: {shown}</p>")
    return "".join(cells)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("law-tests", LawTests)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
