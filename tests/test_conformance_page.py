"""What docs/conformance.md shows of `attendax check` is what the command prints."""

import os
import re
import shlex
import subprocess
import sys

import pytest

import pages

PAGE = (pages.ROOT / "docs" / "conformance.md").read_text("utf-8")
SHOWN = re.findall(r"```text\n\$ attendax (.*?)\n(.*?)\n```", PAGE, re.DOTALL)


def test_commands_are_shown():
    assert len(SHOWN) >= 3
    assert all("--seed" in command for command, _ in SHOWN)  # without, the numbers of a run are others


@pytest.mark.slow
@pytest.mark.parametrize(("command", "printed"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_prints_what_is_shown(command, printed, tmp_path):
    pytest.importorskip("rich", reason="the extra 'check' is not installed")
    for block in pages.BLOCK.findall(PAGE):
        if file := pages.FILE.match(block):
            (tmp_path / file[1]).write_text(block)
    environment = os.environ | {"COLUMNS": "120", "PYTHONPATH": str(pages.ROOT / "src")}
    run = [sys.executable, "-m", "attendax", *shlex.split(command)]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert [line.rstrip() for line in done.stdout.strip().splitlines()] == printed.splitlines()
