"""The map in docs/contributing.md is the tree as it is: what it names is there, and what is there is named."""

import re

import pytest

from places import ROOT

TEXT = (ROOT / "docs/contributing.md").read_text("utf-8")
SAID_ONCE = {"__init__.py", "__main__.py", "py.typed"}


def the_map():
    return TEXT.split("src/attendax/\n", 1)[1].split("```", 1)[0]


@pytest.mark.smoke
def test_what_is_named_is_there():
    names = {path.name for path in ROOT.rglob("*.py")} | {path.name for path in ROOT.rglob("*.html")}
    named = set(re.findall(r"[\w]+\.(?:py|html)", the_map()))
    assert named
    assert named <= names
    folders = set(re.findall(r"^ *([\w]+)/ ", the_map(), re.MULTILINE))
    assert folders <= {path.name for path in ROOT.rglob("*") if path.is_dir()}


@pytest.mark.smoke
def test_every_part_of_the_package_is_named():
    """Each folder and each file of the package and of the benchmarks; of the kit those outside its rooms."""
    text = the_map()
    package = ROOT / "src/attendax"
    kit = package / "conformance"
    paths = [*package.iterdir(), *kit.iterdir(), *package.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    for path in sorted(paths):
        said = path.name in SAID_ONCE | {"__pycache__", "checked"} or path.parent.name == "checked"
        if said or path.name.startswith(".") or kit in path.parent.parents:
            continue
        assert path.name in text, path


WHERE = {  # what a newcomer looks for: the file whose first line says it, and the words
    "a mask is applied": ("kernels/blockwise/tile.py", "mask", "applied"),
    "the gradient of the bias is": ("kernels/blockwise/tile.py", "gradients", "bias"),
    "a backend is added": ("kernels/backends.py", "backends", "new one"),
    "a ring passes its keys": ("sharding/ring.py", "ring", "passes its keys"),
    "the kit decides that two numbers differ": ("conformance/judge/comparing.py", "two numbers differ"),
}


@pytest.mark.parametrize("what", WHERE)
def test_a_newcomer_finds_where(what):
    file, *words = WHERE[what]
    first = (ROOT / "src/attendax" / file).read_text("utf-8").splitlines()[0]
    assert [word for word in words if word not in first] == []
    assert file.rpartition("/")[2] in the_map()
