"""`{cases} L5`: what the conformance kit asks about a law, folded away."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from attendax.conformance import CASES


class Cases(SphinxDirective):
    """A list of the cases that cite the law."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Name and meaning of each."""
        cases = [case for case in CASES if case.law == self.arguments[0]]
        if not cases:
            return self.parse_text_to_nodes("`attendax check` has no case for this law. The tests of attendax do.")
        lines = [f"- {case.name}: {case.about}" for case in cases]
        title = f"Cases in `attendax check`: {len(cases)}"
        return self.parse_text_to_nodes("\n".join([f"```{{dropdown}} {title}", *lines, "```"]))


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive."""
    app.add_directive("cases", Cases)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
