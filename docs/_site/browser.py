"""`python docs/_site/browser.py SITE [PICTURES]`: what Chromium says of every page of the built site.

A page must be no wider than a phone or a desktop, ask nothing of another host, and leave no error on the console.
With a folder for PICTURES, each page is drawn in both themes, to look at.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import chromium

SCREENS = {"phone": (390, 844), "desktop": (1280, 900)}
TOO_WIDE = """[...document.querySelectorAll("article *, .sidebar-drawer, .bd-content")].filter(
  (x) => x.getClientRects().length && x.getBoundingClientRect().right > document.documentElement.clientWidth + 1
).filter((x) => {
  for (let y = x; y && y.tagName !== "BODY"; y = y.parentElement)
    if (getComputedStyle(y).overflowX !== "visible" || getComputedStyle(y).position === "fixed") return false;
  return true;
}).map((x) => x.tagName.toLowerCase() + ": " + x.textContent.trim().slice(0, 40)).slice(0, 3)"""
WIDER = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
UNDRAWN = """[...document.querySelectorAll("article math")].filter((x) => !x.getBoundingClientRect().width).length +
[...document.querySelectorAll(".formula")].filter((x) => x.scrollHeight > x.offsetHeight).length"""
HITS = "[...document.querySelectorAll('#search-results li a')].map((a) => a.pathname)"


class Browser(chromium.Browser):
    """Notes what goes wrong: exceptions, errors on the console, answers that fail, requests that leave the site."""

    def __init__(self, folder: str, home: str):
        self.wrong: list[str] = []
        self._home = home
        super().__init__(folder)
        self.ask("Log.enable")
        self.ask("Network.enable")

    def _read(self) -> dict[str, Any]:
        answer = super()._read()
        said = answer.get("params", {})
        match answer.get("method"):
            case "Runtime.exceptionThrown":
                self.wrong.append(said["exceptionDetails"]["text"])
            case "Runtime.consoleAPICalled" if said["type"] in ("error", "warning", "assert"):
                self.wrong.append(str([arg.get("value") for arg in said["args"]]))
            case "Log.entryAdded" if said["entry"]["level"] == "error":
                self.wrong.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
            case "Network.requestWillBeSent" if not said["request"]["url"].startswith((self._home, "data:", "blob:")):
                self.wrong.append(f"asks for {said['request']['url']}")
        return answer

    def size(self, screen: str) -> None:
        """As wide and as high as the screen."""
        width, height = SCREENS[screen]
        measures = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": screen == "phone"}
        self.ask("Emulation.setDeviceMetricsOverride", **measures)

    def go(self, page: str) -> None:
        """Open a page of the site, and wait until it is there."""
        self.ask("Page.navigate", url=self._home + page)
        while self.value("location.href + ' ' + document.readyState") != f"{self._home}{page} complete":
            time.sleep(0.01)


def faults(browser: Browser, page: str, pictures: Path | None) -> Iterator[str]:
    """A line for each thing wrong with a page."""
    browser.go(page)
    for screen in SCREENS:
        browser.size(screen)
        if browser.value(WIDER) or browser.value(TOO_WIDE):
            yield f"wider than a {screen}: {browser.value(TOO_WIDE)}"
        for theme in ("light", "dark") if pictures else ():
            browser.dark(theme == "dark")
            browser.picture(pictures / f"{page.replace('/', '-')}.{screen}.{theme}.png")
    if undrawn := browser.value(UNDRAWN):
        yield f"{undrawn} formulas are not drawn, or cut off"
    yield from browser.wrong
    browser.wrong.clear()


TERMS = ["sliding window", "local attention", "SWA", "GQA", "MQA", "KV cache", "flash attention", "RoPE", "packing"]
TERMS += ["varlen", "cu_seqlens", "paged", "SDPA", "ALiBi"]
WORDS = {"slopes": "scores.html"} | dict.fromkeys(TERMS, "glossary.html")


def search(browser: Browser) -> Iterator[str]:
    """The search finds what people type on the page that has it."""
    for words, page in WORDS.items():
        browser.go(f"search.html?q={quote(words)}")
        for _ in range(500):
            if any(path.endswith(f"/{page}") for path in browser.value(HITS)):
                break
            time.sleep(0.02)
        else:
            yield f"the search for {words!r} does not find {page}"


def matrix(browser: Browser) -> Iterator[str]:
    """Its names stay while it scrolls; details come by keyboard and by a touch; the address holds the choice."""
    browser.size("phone")
    browser.go("matrix.html?kind=crash&text=onnx")
    if browser.value("document.querySelector('[data-filter=kind]').value") != "crash":
        yield "a filter in the address is not chosen"
    shown = (
        "[...document.querySelectorAll('.matrix.causes tbody tr')].filter((x) => !x.hidden).map((x) => x.dataset.kind)"
    )
    if set(browser.value(shown)) != {"crash"}:
        yield f"the filter in the address leaves {set(browser.value(shown))}"
    browser.value("""{ const x = document.querySelector("[data-filter=kind]"); x.value = "";
      x.dispatchEvent(new Event("input", {bubbles: true})); }""")
    if browser.value("location.search") != "?text=onnx":
        yield f"the address does not follow the filters: {browser.value('location.search')}"
    place = """(() => { const box = document.querySelector(".wide:has(.matrix.counts)");
      box.scrollTo(200, 300);
      const [name, law] = [box.querySelector("tbody tr:last-child th"), box.querySelector("thead th:last-child")];
      const [a, b, c] = [box, name, law].map((x) => x.getBoundingClientRect());
      return [box.scrollLeft, box.scrollTop, b.left - a.left, c.top - a.top]; })()"""
    right, down, left, top = browser.value(place)
    if not right or abs(left) > 1 or (down and abs(top) > 1):
        yield f"the names of the matrix leave while it scrolls: {left}, {top} after {right}, {down}"
    detail = "document.querySelector('.matrix-detail').textContent"
    button = "document.querySelectorAll('.matrix.counts button')"
    for how, act in (("keyboard", f"{button}[3].focus()"), ("touch", f"{button}[5].click()")):
        before = browser.value(detail)
        browser.value(act)
        if browser.value(detail) == before:
            yield f"no detail of a number by {how}"


def dark_plots(browser: Browser) -> Iterator[str]:
    """A plot on white is turned dark with the page."""
    browser.dark(True)
    browser.go("benchmarks.html")
    if browser.value("getComputedStyle(document.querySelector('img.plot')).filter") == "none":
        yield "the plot stays white in dark mode"
    browser.dark(False)


def main(site: Path, pictures: Path | None = None) -> list[str]:
    """Look at all pages."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    pages = [str(path.relative_to(site)) for path in sorted(site.rglob("*.html"))]
    pages = [page for page in pages if not page.startswith(("_modules", "_static"))]
    home = f"http://127.0.0.1:{server.server_port}/"
    with tempfile.TemporaryDirectory() as folder, Browser(folder, home) as browser:
        found = [f"{page}: {fault}" for page in pages for fault in faults(browser, page, pictures)]
        return [*found, *search(browser), *matrix(browser), *dark_plots(browser)]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    if chromium.found() is None:
        sys.exit("no Chromium: nobody has looked at the pages (apt install chromium)")
    sys.exit("\n".join(main(*map(Path, sys.argv[1:]))) or None)
