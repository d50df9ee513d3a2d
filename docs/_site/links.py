"""`python docs/_site/links.py SITE`: every link inside the built site leads to a file, and to a place in it.

Every page is at most two clicks away from the first, and shows no path of the machine that built it.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Links of a page, and the places in it that can be linked to."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.places = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect ids and links."""
        given = dict(attrs)
        self.places |= {unquote(given[key]) for key in ("id", "name") if given.get(key)}
        self.links += [given[key] for key in ("href", "src") if given.get(key)]


def broken(site: Path) -> list[str]:
    """A line for each place inside the site that a link names and that is not there."""
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    lines: dict[str, str] = {}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                lines.setdefault(str(target), f"{path.relative_to(site.resolve())}: {link} is not there")
            elif target in pages and unquote(parts.fragment) not in pages[target].places:
                lines.setdefault(
                    f"{target}#{parts.fragment}", f"{path.relative_to(site.resolve())}: {link} names no place"
                )
    return list(lines.values())


def far(site: Path, clicks: int = 2) -> list[str]:
    """A line for each page that so many clicks do not reach from the first page."""
    reached = new = {(site / "index.html").resolve()}
    for _ in range(clicks):
        links = ((path, link) for path in new for link in Page(path.read_text("utf-8")).links)
        targets = {(path.parent / unquote(urlsplit(link).path)).resolve() for path, link in links}
        new = {path for path in targets - reached if path.suffix == ".html" and path.exists()}
        reached = reached | new
    made = ("_modules", "_static")
    pages = [path.resolve() for path in site.rglob("*.html") if path.relative_to(site).parts[0] not in made]
    return [f"{path.name}: more than {clicks} clicks from the first page" for path in pages if path not in reached]


def machine(site: Path) -> list[str]:
    """A line for each page that shows a path of the machine that built it, such as a traceback has."""
    folders = {str(Path(__file__).resolve().parents[2]), sys.prefix, str(Path.home())}
    pages = [path for path in site.rglob("*.html") if path.relative_to(site).parts[0] != "_modules"]
    shown = {path: path.read_text("utf-8") for path in pages}
    return [
        f"{path.name}: shows {folder}" for path, text in shown.items() for folder in folders if f"{folder}/" in text
    ]


if __name__ == "__main__":
    site = Path(sys.argv[1])
    found = broken(site) + far(site) + machine(site)
    sys.exit("\n".join(found) or None)
