"""The first use of a term on a page is a link to the glossary."""

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

NO_PLACE = (
    nodes.reference,
    nodes.literal,
    nodes.literal_block,
    nodes.doctest_block,
    nodes.title,
    nodes.rubric,
    nodes.math,
    nodes.raw,
    nodes.term,
    addnodes.desc_signature,
    addnodes.pending_xref,
)
WITHOUT = ("glossary", "changelog", "index")  # pages
COMMON = {"score", "weight", "rank", "law", "decoding", "temperature", "dout", "eps", "silent", "backward"}  # words


def link(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Link the first use of each term of the glossary."""
    if page in WITHOUT or app.builder.format != "html":
        return
    terms = {name.lower(): place for (kind, name), place in objects(app).items() if kind == "term"}
    left = {name: place for name, place in terms.items() if name not in COMMON}
    for text in list(doctree.findall(nodes.Text)):
        if not inside(text, NO_PLACE):
            parts = linked(app, page, str(text), left)
            if len(parts) > 1:
                text.parent.replace(text, parts)


def objects(app: Sphinx) -> dict[tuple[str, str], tuple[str, str]]:
    """The places that Sphinx knows by kind and name."""
    return app.env.domaindata["std"]["objects"]


def inside(node: nodes.Node, kinds: tuple[type, ...]) -> bool:
    """Tell whether a node is inside one of these kinds."""
    while node.parent is not None:
        node = node.parent
        if isinstance(node, kinds):
            return True
    return False


def linked(app: Sphinx, page: str, text: str, left: dict[str, tuple[str, str]]) -> list[nodes.Node]:
    """A text in parts, the terms in it as links; each is taken out of those that are left."""
    names = sorted(left, key=len, reverse=True)
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, names))})(s?)\b", re.IGNORECASE) if names else None
    match = pattern.search(text) if pattern else None
    if match is None:
        return [nodes.Text(text)]
    document, place = left.pop(match[1].lower())
    uri = f"{app.builder.get_relative_uri(page, document)}#{place}"
    here = nodes.reference("", match[0], internal=True, refuri=uri, classes=["in-glossary"])
    return [nodes.Text(text[: match.start()]), here, *linked(app, page, text[match.end() :], left)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Link terms when the references of a page are known."""
    app.connect("doctree-resolved", link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
