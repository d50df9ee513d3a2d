"""``docs/examples/two_processes.py``: attention over two processes is right, and ends when one of them does."""

import subprocess
import sys
import time

import pytest

from places import ROOT

SCRIPT = ROOT / "docs" / "examples" / "two_processes.py"
pytestmark = pytest.mark.slow  # each starts three times Python and compiles in two of them


def run(*options):
    """The status, all lines, and how many seconds the job ran on after a fault."""
    command = [sys.executable, str(SCRIPT), *options]
    lines, fault = [], time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        for line in job.stdout:
            lines.append(line.strip())
            fault = time.monotonic() if line.strip().endswith((" dies", " stalls")) else fault
        return job.wait(), lines, time.monotonic() - fault


def test_both_are_right():
    status, lines, _ = run()
    assert status == 0
    assert sum("largest difference from the specification" in line for line in lines) == 2
    losses = {line.partition("loss ")[2] for line in lines if "loss" in line}
    assert len(losses) == 1


def test_one_that_dies_ends_the_job():
    """With a clear line, in less than 30 seconds."""
    status, lines, seconds = run("--dies", "1")
    assert status == 1
    assert seconds < 30
    assert any("ended with status" in line and line.endswith("the job ends") for line in lines)
    assert not any("core dumped" in line for line in lines)


def test_one_that_stalls_is_found():
    """By the heartbeat of ten seconds, or else by the limit."""
    status, lines, seconds = run("--stalls", "1", "--limit", "100")
    assert status == 1
    assert seconds < 110
    assert any(line.endswith("the job ends") for line in lines)
