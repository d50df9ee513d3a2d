"""The front page: what it shows of `attendax check` is what the command prints, and it stays a page."""

import os
import re
import subprocess
import sys

import pytest

from places import ROOT

README = (ROOT / "README.md").read_text("utf-8")


def test_it_is_at_most_90_lines():
    assert len(README.splitlines()) <= 90


@pytest.mark.slow  # a whole run; .ci/docs has it, too
def test_the_function_that_leaks_is_told_so():
    """Seconds of a run differ, and so does what its seed draws; the rest is printed word for word."""
    shown = re.search(r"<!-- leaky -->\n```text\n\$ attendax (.*?)\n(.*?)\n```", README, re.DOTALL)
    assert shown is not None
    command = [sys.executable, "-m", "attendax", *shown[1].split()]
    environment = os.environ | {"COLUMNS": "120", "PYTHONPATH": str(ROOT / "src")}
    folder = ROOT / "tests/data/leaky"
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert [line.rstrip() for line in done.stdout.strip().splitlines()] == shown[2].splitlines()
