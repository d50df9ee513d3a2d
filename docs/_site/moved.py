"""Old addresses of the site lead to where their text is now."""

import json
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

PAGES: dict[str, str] = {}  # a page that is gone: the page that has its text
SECTIONS = {  # a section that has left its page: where it is
    "conformance": {
        "profiles-and-options": "check-reference#profiles",
        "two-processes": "how-check-works#two-processes",
        "how-long": "check-reference#time",
        "sizes-as-people-run-them": "check-reference#sizes",
        "the-world-s-matrix": "matrix#all-libraries",
    },
    "against": {"layers": "layers"},
    "benchmarks": {
        "compared-with-a-matrix-product": "benchmarks#results",
        "what-disturbs-a-measurement": "benchmarks#what-slows-a-call-down",
    },
    "devices": {"native-or-tiles": "devices#bits", "several-processes": "devices#a-whole-encoder"},
    "gpu": {
        "cudnn-by-name": "gpu#cudnn",
        "the-kernels-of-triton-by-name": "gpu#triton",
        "what-costs-more": "gpu#triton",
        "several-gpus": "gpu#triton",
        "repeatable-gradients": "gpu#cudnn",
        "build-and-test-the-kernels": "contributing#work-on-the-gpu-kernels",
        "run-the-benchmark-on-a-gpu": "contributing#work-on-the-gpu-kernels",
    },
    "how-it-is-fast": {
        "layers": "where-xla-ends#the-gradient-of-a-weight-transposes-a-copy",
        "native-or-tiles": "implementations",
    },
    "masks": {"windows-that-are-data": "masks#windows-from-arrays"},
    "migrate": {"commands-and-options-that-left": "migrate#removed-commands-and-options"},
    "rotary": {"longer-contexts-and-parts-of-a-head": "rotary#longer-contexts"},
    "same-bits": {"without-the-native-library": "same-bits#without-the-native-kernel"},
    "what-is-proved": {"the-axioms": "what-is-proved#check-it-yourself"},
    "where-xla-ends": {
        "a-slice-of-bfloat16-makes-all-of-the-array-float32": "where-xla-ends#more-limits",
        "a-bfloat16-slice-becomes-a-float32-array": "where-xla-ends#more-limits",
        "a-product-of-many-small-matrices-runs-on-one-core": "where-xla-ends#more-limits",
        "memory-of-temporaries-is-new-in-each-call": "benchmarks#memory-that-is-given-back",
        "each-call-gets-new-memory-for-temporaries": "benchmarks#memory-that-is-given-back",
        "the-gradient-of-a-weight-as-jax-derives-it": "where-xla-ends#the-gradient-of-a-weight-transposes-a-copy",
        "what-a-branch-passes-on-is-copied": "where-xla-ends#more-limits",
        "a-branch-copies-its-inputs-for-the-backward": "where-xla-ends#more-limits",
    },
    "matrix": {"counts": "matrix#by-law", "what-was-found": "matrix#all-findings"},
}
GO = "const moved = {}; const to = moved[location.hash.slice(1)]; if (to) location.replace(to);"
GONE = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">{0}</a>\n'


def address(target: str) -> str:
    """The address of ``page`` or ``page#section``, from another page of the same folder."""
    page, mark, section = target.partition("#")
    return f"{page}.html{mark}{section}"


def lead_sections(app: Sphinx, page: str, *_: Any) -> None:
    """Add the script that leads on from an old section, to a page that has lost one."""
    if page in SECTIONS:
        addresses = {section: address(target) for section, target in SECTIONS[page].items()}
        app.add_js_file(None, body=GO.format(json.dumps(addresses)))


def lead_pages(app: Sphinx, error: Exception | None) -> None:
    """Write a page that leads on for each that is gone."""
    if error is None and app.builder.format == "html":
        for page, target in PAGES.items():
            Path(app.outdir, f"{page}.html").write_text(GONE.format(address(target)), "utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Lead on, in every build."""
    app.connect("html-page-context", lead_sections)
    app.connect("build-finished", lead_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
