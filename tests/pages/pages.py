"""`python tests/pages/pages.py PAGE`: its blocks of Python, in order, in this interpreter, as a reader pastes them.

`--first PAGE...` runs the first block of each page, one page after the other.

A block of lines with ``>>>`` must print what it shows. One that begins with ``# name.py`` is that file. Nothing is
defined beforehand.
"""

import doctest
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?:python|\{code-cell\})\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
OPTIONS = doctest.NORMALIZE_WHITESPACE


def found():
    """Every page that has such a block, and README.md."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if BLOCK.search(page.read_text("utf-8"))]


def run(page, count=None):
    """Run the blocks of a page, or so many of them; the first that fails ends it."""
    names = {"__name__": "__main__"}
    for number, block in enumerate(BLOCK.findall(page.read_text("utf-8"))[:count], 1):
        title = f"block {number} of {page.name}"
        if file := FILE.match(block):
            Path(file[1]).write_text(block)
        if block.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block, names, title, None, 0)
            if doctest.DocTestRunner(optionflags=OPTIONS).run(test, clear_globs=False).failed:
                sys.exit(f"{title} does not print what it shows")
            names.update(test.globs)
            continue
        exec(compile(block, title, "exec"), names)


if __name__ == "__main__":
    sys.path.insert(0, "")  # where files are written, as in an interpreter; not the folder of the tests
    sys.path.remove(str(Path(__file__).parent))
    count = 1 if sys.argv[1] == "--first" else None
    for page in sys.argv[2:] if count else sys.argv[1:]:
        run(Path(page).resolve(), count)
