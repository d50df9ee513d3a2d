"""Every page can be pasted, in order, into a fresh interpreter with what the page says to install."""

import ast
import builtins
import doctest
import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import pages
from attendax import masks
from attendax.pictures import Pictures

GIVEN = {"attendax", "jax", "numpy", *sys.stdlib_module_names}
QUICK = {"index.md"}
LINE = re.compile(r"^(?:>>> |\.\.\. )?(?:import|from) .*$", re.MULTILINE)


def imported(page):
    """Names that the blocks of a page import beside Python, JAX and NumPy and the files that the page has."""
    blocks = pages.BLOCK.findall(page.read_text("utf-8"))
    own = {file[1].removesuffix(".py") for block in blocks if (file := pages.FILE.match(block))}
    lines = [re.sub(r"^(>>> |\.\.\. )", "", line) for block in blocks for line in LINE.findall(block)]
    names = (
        re.findall(r"(?:from|import|,) ([\w.]+)", line if line.startswith("import") else line.split(" import ")[0])
        for line in lines
    )
    return {name.split(".")[0] for found in names for name in found} - GIVEN - own


PAGES = [
    pytest.param(page, id=str(page.relative_to(pages.ROOT)), marks=() if page.name in QUICK else pytest.mark.slow)
    for page in pages.found()
]


def pasted(folder, *arguments):
    """Run ``pages.py`` in an empty folder."""
    environment = os.environ | {"JAX_ENABLE_X64": "0", "JAX_PLATFORMS": "cpu"}
    environment.pop("KERAS_BACKEND", None)
    command = [sys.executable, pages.__file__, *map(str, arguments)]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_pasted(page, tmp_path):
    for package in imported(page):
        if find_spec(package) is None:
            pytest.skip(f"{package}, which the page asks for, is not installed")
    pasted(tmp_path, page)


def test_the_first_block_of_each_page_can_be_pasted(tmp_path):
    """Of those that ask for nothing but the package; one process for all, so that it is quick."""
    plain = [page for page in pages.found() if not imported(page)]
    assert len(plain) > 20
    pasted(tmp_path, "--first", *plain)


@pytest.mark.parametrize("page", pages.found(), ids=lambda page: page.name)
def test_every_name_comes_from_the_page(page):
    """Quick, for all of them, by reading: a name that is used was bound by this block or one before."""
    known = set(vars(builtins)) | {"__name__", "__file__"}
    for block in pages.BLOCK.findall(page.read_text("utf-8")):
        if block.startswith(">>>"):
            block = "".join(example.source for example in doctest.DocTestParser().get_examples(block))
        nodes = list(ast.walk(ast.parse(block)))
        for node in nodes:
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                    known.add(name)
                case ast.ClassDef(name=name) | ast.ExceptHandler(name=name):
                    known.add(name)
                case ast.alias(name=name, asname=other):
                    known.add(other or name.partition(".")[0])
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        assert used <= known, f"{page.name} does not say where these come from: {used - known}"


def test_a_page_says_what_to_install():
    """In a command of pip, or as the extra that has it."""
    for page in pages.found():
        told = " ".join(re.findall(r"pip install ([^`\n]*)", page.read_text("utf-8")))
        assert imported(page) <= set(re.split(r"\W+", told)), page


def test_no_page_is_left_out():
    assert len(PAGES) > 30
    assert {page.name for page in pages.found()} >= QUICK


@pytest.mark.parametrize(
    "text",
    [
        "```python\nnp.ones(3)\n```\n",
        "```{code-cell}\nfrom pictures import Pictures\n```\n",
        "```python\n>>> 1 + 1\n3\n\n```\n",
    ],
    ids=["a name from nowhere", "a module of the site", "another output"],
)
def test_a_page_that_cannot_be_pasted_is_found(text, tmp_path):
    (tmp_path / "page.md").write_text(text)
    run = subprocess.run([sys.executable, pages.__file__, "page.md"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 1


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (masks.causal(), "mask\n■ ·\n■ ■"),
        (masks.padding(np.array([1, 2])), "mask [0, 0]\n■ ·\n■ ·\n\nmask [1, 0]\n■ ■\n■ ■"),
    ],
)
def test_a_mask_shows_itself(mask, text):
    assert repr(mask.show(2, 2)) == text
    drawn = mask.show(2, 2)._repr_html_()
    assert drawn.count("<figure") == text.count("mask")
    assert drawn.count("--color-brand-primary") == text.count("■")


@pytest.mark.smoke
def test_numbers_are_drawn_by_their_size():
    shown = Pictures(some_scores=np.array([[2.0, -1.0], [0.0, -np.inf]]))
    assert repr(shown) == "some scores\n  2.00  -1.00\n  0.00   -inf"
    assert re.findall(r'(2962ff|c2410c)\)?" opacity="([\d.]+)"', shown._repr_html_()) == [
        ("2962ff", "1.000"),
        ("c2410c", "0.500"),
    ]


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones(3), r"^Pictures: a has shape \(3,\) but must end in \(T, S\)"),
        (np.ones((200, 200)), r"^Pictures: there are 40,000 squares, and at most 16,384 are drawn"),
    ],
)
def test_refuses(array, message):
    with pytest.raises(ValueError, match=message):
        Pictures(a=array)


GLOSSARY = (pages.ROOT / "docs" / "glossary.md").read_text("utf-8")


@pytest.mark.slow  # it compiles for ten seconds; .ci/docs has it, too
def test_every_line_of_the_glossary_runs():
    names: dict = {}
    exec(pages.BLOCK.search(GLOSSARY)[1], names)
    code = re.findall(r"`([^`\n]+)`", GLOSSARY)
    lines = [
        line for line in code if re.match(r"(out, lse = )?(attention|masks|attendax)\b.*\(", line) and "..." not in line
    ]
    assert len(lines) > 25
    for line in lines:
        if "tokens[" not in line and "lengths" not in line:
            exec(line, names)


def test_the_glossary_has_what_people_type():
    """Each is a term, a line of its own; docs/_site/browser.py asks the search of the built site for the same."""
    terms = re.findall(r"^(?:\(|\w)[^`.]*$", GLOSSARY, re.MULTILINE)
    words = runpy.run_path(str(pages.ROOT / "docs" / "_site" / "browser.py"))["WORDS"]
    asked = [word for word, page in words.items() if page == "glossary.html"]
    assert len(asked) > 12
    for word in asked:
        assert any(word in term for term in terms), word
