"""A program that is judged: it reads the folder of a case and writes its results there, one process for each call."""

import os
import shlex
import shutil
import subprocess
import tempfile

from ..cases.case import Leaves
from ..protocol import read_results, room_for, write_case
from .asked import Told
from .child import KEPT, ended, last_lines
from .errors import Died
from .process import answered

CASE = "{case}"
FOLDERS: list[str] = []  # where the worker may write what is gone with it


class Program:
    """Answers what is asked by running a command."""

    def __init__(self, command: str) -> None:
        """Find the program."""
        try:
            self.command = shlex.split(command)
        except ValueError as error:
            raise ValueError(f"check: the command {command!r} cannot be read: {error}") from error
        if not self.command:
            raise ValueError("check: the command is empty, expected such as './attention {case}'")
        if not any(CASE in word for word in self.command):
            self.command.append(CASE)
        name = self.command[0]
        if not shutil.which(name):
            if os.path.isfile(name):
                raise ValueError(f"check: {name!r} may not be executed: chmod +x {shlex.quote(name)}")
            raise ValueError(f"check: there is no program {name!r}: build it, or give the path of another")

    def __call__(self, told: Told) -> Leaves:
        """The results of one case."""
        home = next(iter(FOLDERS), None)
        with tempfile.TemporaryDirectory(prefix="attendax-", dir=home, ignore_cleanup_errors=True) as folder:
            write_case(folder, told)
            status, said = self._run(folder)
            try:
                found = read_results(folder, room_for(told))
            except ValueError as error:
                raise Died(f"its answer cannot be read: {error}") from error
            except FileNotFoundError as error:
                raise Died("it removed the folder of its case") from error
            if status and not isinstance(found, tuple):
                raise Died(f"its process {ended(status)}" + (f"; it said: {said}" if said else ""))
            return answered(found)

    def _run(self, folder: str) -> tuple[int, str]:
        """The exit status, and the end of what it printed."""
        command = [word.replace(CASE, folder) for word in self.command]
        printed = b""
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise Died(f"it cannot be started: {error.strerror}") from error
        with process, process.stdout as stream:  # type: ignore[union-attr]
            while some := os.read(stream.fileno(), KEPT):
                printed = (printed + some)[-KEPT:]
        return process.returncode, last_lines(printed)
