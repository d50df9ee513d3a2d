"""``pytest --record FOLDER``: the CPU seconds of each test, and the lines of the package that it runs.

``choosing.py`` reads them. It needs Python 3.12 or newer, which tells of each line of a test but once.
"""

import itertools
import json
import os
import sys
from pathlib import Path

import pytest

from places import SOURCE

PACKAGE = str(SOURCE / "attendax")


class Recorder:
    """One process of a run: a line of JSON for each test."""

    def __init__(self, folder, worker):
        if sys.version_info < (3, 12):
            raise pytest.UsageError("--record needs Python 3.12 or newer")
        self.file = Path(folder) / f"{worker}.jsonl"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.lines, self.watching = set(), sys.monitoring
        self.watching.use_tool_id(self.watching.COVERAGE_ID, "attendax tests")
        self.watching.register_callback(self.watching.COVERAGE_ID, self.watching.events.LINE, self._line)
        self.watching.set_events(self.watching.COVERAGE_ID, self.watching.events.LINE)

    def _line(self, code, number):
        if code.co_filename.startswith(PACKAGE):
            self.lines.add((code.co_filename[len(PACKAGE) + 1 :], number))
        return self.watching.DISABLE  # until the next test begins

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Note one test, with what its fixtures cost."""
        self.lines.clear()
        self.watching.restart_events()
        before = seconds()
        result = yield
        found = {"test": item.nodeid, "seconds": round(seconds() - before, 3), "lines": in_ranges(self.lines)}
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        return result


def seconds():
    """CPU seconds of this process, its threads, and the processes that it has waited for."""
    return sum(os.times()[:4])


def in_ranges(lines):
    """Pairs (file, line) as {file: [[first, last], ...]}."""
    found = {}
    for file, of_file in itertools.groupby(sorted(lines), lambda pair: pair[0]):
        for _, number in of_file:
            ranges = found.setdefault(file, [])
            if ranges and ranges[-1][1] == number - 1:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
    return found
