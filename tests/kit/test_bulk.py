"""Many candidates: the line of docs/conformance.md judges each file of a folder."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from places import ROOT

pytest.importorskip("rich", reason="the extra 'check' is not installed")

RIGHT = """
import numpy as np


def attention(query, key, value):
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value
"""
SOME = "--only 'width 1' --level forward --budget 0 --seed 0"


def test_the_line_of_the_page_judges_each_file(tmp_path):
    page = (ROOT / "docs/conformance.md").read_text("utf-8")
    (line,) = re.findall(r"^ls .*xargs -P.*$", page, re.MULTILINE)
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "doubles.py").write_text(RIGHT.replace("@ value", "@ (2 * value)"))
    command = line.replace("attendax", f"{shlex.quote(sys.executable)} -m attendax")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    run = ["sh", "-c", f"{command} {SOME}"]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode not in (0, 126, 127), done.stderr
    reports = {name: json.loads((tmp_path / f"{name}.json").read_text("utf-8")) for name in ("right", "doubles")}
    assert {name: report["ok"] for name, report in reports.items()} == {"right": True, "doubles": False}
