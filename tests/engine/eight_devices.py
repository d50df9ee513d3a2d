"""Tests in a process of their own that has eight devices."""

import os
import subprocess
import sys

from places import ROOT, TESTS

FOLDER = TESTS / "engine" / "devices" / "on_eight"


def run(path, which):
    options = ["-q", "-x", "--tb=short", "-p", "no:cacheprovider", "-o", "addopts=", "-m", which]
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-m", "pytest", *options, str(path)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
