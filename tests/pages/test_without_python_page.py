"""docs/without-python.md shows what its commands print, one after the other, in an empty folder."""

import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import pages

PAGE = (pages.ROOT / "docs" / "without-python.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(?:sh|text)\n(.*?)\n```", PAGE, re.DOTALL | re.MULTILINE)
EXAMPLES = pages.ROOT / "docs" / "examples"


def printed(block, folder):
    """The output of the command of a block; of one without a prompt that it runs."""
    shim = folder / "bin" / "attendax"
    if not shim.exists():
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m attendax "$@"\n')
        shim.chmod(0o755)
    path = os.pathsep.join([str(shim.parent), os.environ["PATH"]])
    environment = os.environ | {"PYTHONPATH": str(pages.ROOT / "src"), "PATH": path}
    command = block.removeprefix("$ ").split("\n", 1)[0] if block.startswith("$ ") else f"set -e\n{block}"
    run = ["sh", "-c", command]
    done = subprocess.run(run, cwd=folder / "empty", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in ((0, 1) if block.startswith("$ ") else (0,)), done.stderr
    return done.stdout.split()  # the page breaks long lines


def test_everything_is_shown():
    assert len([block for block in BLOCKS if block.startswith("$ ")]) >= 6
    assert all("--seed" in block or "inputs" not in block for block in BLOCKS if block.startswith("$ attendax"))


@pytest.mark.slow
def test_the_page_runs(tmp_path):
    for program in ("cc", "node"):
        if not shutil.which(program):
            pytest.skip(f"there is no {program} here")
    pytest.importorskip("rich", reason="the extra 'check' is not installed")
    shutil.copytree(EXAMPLES / "c", tmp_path / "empty")
    shutil.copy(EXAMPLES / "attention.mjs", tmp_path / "empty")
    for block in BLOCKS:
        shown = block.partition("\n")[2] if block.startswith("$ ") else ""
        assert printed(block, tmp_path) == shown.split(), block.partition("\n")[0]


NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="there is no node here")
def test_a_program_for_node(tmp_path, monkeypatch, capfd):
    """Written from the page alone."""
    from attendax.conformance import check

    path = f"exec:{NODE} {EXAMPLES / 'attention.mjs'} {{case}}"
    only = ["mask (B, 1", "grouped heads", "lse, masked", "empty row by a mask", "bias (T, S)"]
    report = check(path, only=only, level="forward", profile="robust", budget=0, repeat=1, seed=2)
    assert report.ok, report
    assert report.counts()["ok"] >= 5
    assert report.counts()["not offered"] >= 1
