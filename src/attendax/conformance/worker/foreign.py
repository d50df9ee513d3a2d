"""A candidate that is a program, an ONNX model or a folder of results, as a NumPy function."""

import dataclasses
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..adapters.implementation import Implementation, signature
from ..cases.case import Leaves
from ..protocol import Told, case_of, read_results, room_for, write_case
from .child import KEPT_BYTES, ended, last_lines
from .errors import Died, NoNumbers, answered
from .folders import Replay
from .onnx_model import OnnxModel

CASE_FIELD = "{case}"
FOLDERS: list[str] = []  # where the worker may write what is gone with it
SOURCE = """from attendax.conformance.worker.foreign import implementation

attend = implementation({!r}).attend"""
RANK_4_ALONE = {f"rank {rank}": "arrays are (B, N, T, D)" for rank in (2, 3, 5)}


class Command:
    """Answers what is asked by running a command."""

    def __init__(self, command: str) -> None:
        """Find the program."""
        try:
            self.command = shlex.split(command)
        except ValueError as error:
            raise ValueError(f"check: the command {command!r} cannot be read: {error}") from error
        if not self.command:
            raise ValueError("check: the command is empty, expected such as './attention {case}'")
        if not any(CASE_FIELD in word for word in self.command):
            self.command.append(CASE_FIELD)
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
        command, printed = [word.replace(CASE_FIELD, folder) for word in self.command], b""
        null, pipe, joined = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
        try:
            process = subprocess.Popen(command, stdin=null, stdout=pipe, stderr=joined)
        except OSError as error:
            raise Died(f"it cannot be started: {error.strerror}") from error
        with process, process.stdout as stream:  # type: ignore[union-attr]
            while some := os.read(stream.fileno(), KEPT_BYTES):
                printed = (printed + some)[-KEPT_BYTES:]
        return process.returncode, last_lines(printed)


ANSWERS: dict[str, Callable[[str], Callable[[Told], Leaves]]] = {  # what a path begins with: who answers
    "exec": Command,
    "onnx": OnnxModel,
    "folder": Replay,
}


def is_path(fn: Any) -> bool:
    """Tell whether it is a path of a candidate that is not a Python function: exec:COMMAND, onnx:FILE, folder:DIR."""
    return isinstance(fn, str) and fn.startswith(tuple(f"{kind}:" for kind in ANSWERS))


def name_of(path: str) -> str:
    """The command or the file of a path."""
    return path.partition(":")[2]


def implementation(path: str, name: str | None = None) -> Implementation:
    """Make an ``Implementation`` of such a path, which runs the program in the process that calls it.

    Raises ValueError if the program or model does not exist or cannot be read.
    """
    kind, _, rest = path.partition(":")
    answer = ANSWERS[kind](rest)
    made = of_answers(answer, name or name_of(path), SOURCE.format(path), getattr(answer, "accepted", None))
    return dataclasses.replace(made, recorded=True) if kind == "folder" else made


def of_answers(
    answer: Callable[[Told], Leaves], name: str, source: str = "", accepted: Iterable[str] | None = None
) -> Implementation:
    """The function of a program, of which ``answer`` gives the leaves for the content of a ``case.json``.

    ``source`` is Python that defines it, for a reproduction; it may be given the keywords ``accepted``, or all.
    """

    def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, **options: Any) -> Any:
        arrays = {"query": query, "key": key, "value": value}
        return _of(answer, case_of("forward", arrays, options, {}), unpack=not options.get("return_lse"))

    def backward(
        grad_output: np.ndarray, query: np.ndarray, key: np.ndarray, value: np.ndarray, *,
        grad_lse: np.ndarray | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        cotangent = {"out": grad_output} | ({} if grad_lse is None else {"lse": grad_lse})
        return _of(answer, case_of("gradient", {"query": query, "key": key, "value": value}, options, cotangent))

    attend.__signature__ = signature(accepted)  # type: ignore[attr-defined]
    return Implementation(attend, name, "numpy", backward, lacks=RANK_4_ALONE, source=source, process="", foreign=True)


def _of(answer: Callable[[Told], Leaves], told: Told, *, unpack: bool = False) -> Any:
    """The leaves that were asked for, in this order."""
    found = answer(told)
    names = {name.replace("_", " "): x["file"] for name, x in told["results"].items()}
    for name, file in names.items():
        if name not in found:
            missing = f"{file} was not written" if isinstance(answer, (Command, Replay)) else f"gives no {name}"
            raise NoNumbers(name, missing)
    leaves = [found[name] for name in names]
    return leaves[0] if unpack else leaves
