"""Numbers in README.md and docs/ follow from the committed results.

    python benchmarks/measured.py

writes every statement anew, after the results were made anew. A page holds a statement between two comments, as lines
of their own or within a line:

    <!-- measured: libraries_at_fault -->12<!-- end -->

The name is that of a function in ``statements.py`` or ``statements_of_cost.py``. Words that other numbers would make
wrong stand in a ``claim``: where one does not hold any more, the command names it, and somebody writes it anew there.
"""

import re
import sys
import textwrap
from pathlib import Path

import statements
import statements_of_cost
from attendax import writing
from committed import Results, Untrue, committed

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(r"(?<=<!-- measured: )([a-z]\w*)( -->)(.*?)(?=<!-- end -->)", re.DOTALL)
STATEMENTS = {f.__name__: f for f in (*statements.STATEMENTS, *statements_of_cost.STATEMENTS)}
LINES = {"width": 130, "break_long_words": False, "break_on_hyphens": False}


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def anew(page: str, results: Results) -> tuple[str, list[str]]:
    """The text of a page, every statement as the results have it; and which statements stay as they were, and why."""
    kept = []

    def statement(found: re.Match[str]) -> str:
        name, middle, before = found.groups()
        try:
            if name not in STATEMENTS:
                raise Untrue("there is no such statement in benchmarks/statements.py or statements_of_cost.py")
            text = STATEMENTS[name](results)
        except Untrue as error:
            kept.append(f"{name}: {error}")
            return found[0]
        return name + middle + (wrapped(text) if before.startswith("\n") else text)

    return MARKED.sub(statement, page), kept


def wrapped(text: str) -> str:
    """Sentences in lines of the usual length; tables as they are, with an empty line after them, which ends them."""
    parts = text.strip().split("\n\n")
    lines = "\n\n".join(part if part.startswith("|") else textwrap.fill(part, **LINES) for part in parts)
    return f"\n{lines}\n\n" if parts[-1].startswith("|") else f"\n{lines}\n"


def main() -> int:
    """1 where a statement was not written anew."""
    results, status = committed(), 0
    for page in pages():
        before = page.read_text("utf-8")
        after, kept = anew(before, results)
        for why in kept:
            print(f"{page.relative_to(ROOT)}: {why}", file=sys.stderr)
            status = 1
        if after != before:
            writing.write(page, after)
            print(f"{page.relative_to(ROOT)}: written anew")
    return status


if __name__ == "__main__":
    sys.exit(main())
