"""The tests in ``tests/devices``, in a process that has eight devices; all other tests keep their one device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "devices"
FILES = sorted(FOLDER.glob("test_*.py"))


def run(path, which):
    options = ["-q", "-x", "--tb=short", "-p", "no:cacheprovider", "-o", "addopts=", "-m", which]
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-m", "pytest", *options, str(path)]
    done = subprocess.run(command, env=environment, cwd=FOLDER.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_on_eight_devices():
    run(FOLDER, "not slow")


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_on_eight_devices_more_of_it(file):
    run(file, "slow")
