"""Programs that tests run in a process of their own."""

import os
import subprocess
import sys
import textwrap


def in_a_process(code, *, timeout=None, **environment):
    """The lines that a Python program prints, which finds the modules of the tests; it must end with status 0."""
    given = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()
