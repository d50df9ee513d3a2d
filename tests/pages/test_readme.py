"""The front page: what it shows of `attendax check` is what the command prints, and it stays a page."""

import os
import re
import subprocess
import sys
import tomllib

import numpy as np
import pytest

from attendax import attention, masks
from places import ROOT

README = (ROOT / "README.md").read_text("utf-8")


@pytest.mark.smoke
def test_its_first_screen_is_short():
    """At most 350 words above the second heading of a section, and the whole is a page."""
    first, second = list(re.finditer(r"^## ", README, re.MULTILINE))[:2]
    assert first.start() < second.start()
    assert len(README[: second.start()].split()) <= 350
    assert len(README.splitlines()) <= 90


def test_one_tagline():
    """The same words wherever the project says what it is."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["description"]
    assert README.splitlines()[2] == f"**{project}.**"
    assert (ROOT / "docs/index.md").read_text("utf-8").splitlines()[:3] == README.splitlines()[:3]
    citation = " ".join((ROOT / "CITATION.cff").read_text("utf-8").split())
    assert f"abstract: >- {project}. authors:" in citation
    assert 'title: "attendax: attention with a proof"' in citation


@pytest.mark.smoke
def test_what_it_promises_of_calls_that_fit_is_true():
    """Arrays that do not fit are refused; three mistakes that fit by chance are not, and sharp-bits.md says so."""
    rng = np.random.default_rng(0)
    query, key = (rng.normal(size=(2, 4, tokens, 8)).astype(np.float32) for tokens in (2, 4))
    swapped = rng.normal(size=(2, 6, 4, 8)).astype(np.float32)  # (B, T, N, D)
    assert attention(swapped, swapped, swapped).shape == swapped.shape
    assert attention(query, key, key, mask=np.ones((2, 4), bool)).shape == query.shape
    assert attention(query[:, :, :1], key, key, mask=masks.causal()).shape == (2, 4, 1, 8)
    for wrong in ({"mask": np.ones((2, 4, 4), bool)}, {"mask": np.ones((3, 4), bool)}, {"mask": np.ones((2, 4))}):
        with pytest.raises((TypeError, ValueError), match=r"^attention: mask "):
            attention(query, key, key, **wrong)
    page = (ROOT / "docs/sharp-bits.md").read_text("utf-8")
    for words in (
        "wrong shape or dtype raise",
        "(B, T, N, D) with T = S",
        "(B, S) with B = T",
        "`masks.causal()` with a cache",
    ):
        assert words in page


@pytest.mark.slow  # a whole run; .ci/docs also has it
def test_the_function_that_leaks_is_told_so():
    """The commands as a reader types them in a clone; what the last one prints, word for word."""
    shown = re.search(r"<!-- leaky -->\n```text\n\$ cd (.*?)\n\$ attendax (.*?)\n(.*?)\n```", README, re.DOTALL)
    assert shown is not None
    command = [sys.executable, "-m", "attendax", *shown[2].split()]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    folder = ROOT / shown[1]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.split() == shown[3].split()  # the page breaks long lines
