"""Cases as folders: the inputs of each case are written there, and the results that a candidate leaves are judged."""

import hashlib
import itertools
import json
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..cases.case import Leaves
from ..protocol import SCHEMA, Told, read_results, room_for, write_case
from .errors import Died, answered

INDEX = "index.json"
NOT_JUDGED = "not judged"
NO_RESULTS, NO_FOLDER = "no results", "no folder"  # why a case is not judged


class Recorder:
    """Writes what it is asked to folders, and answers with zeros."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.case, self.last = ("", True)  # the case that asks, if any, and whether its first call is its last
        self.cases: dict[str, list[str]] = {}  # the folders of each case, in the order of its calls
        self.folders: dict[str, str] = {}  # the id of each folder
        self.failed: Exception | None = None  # why a folder could not be written
        self.ids: dict[str, str] = {}  # the folder of each id

    def __call__(self, told: Told) -> Leaves:
        """Zeros, in the shapes of the results."""
        if self.case:
            folders = self.cases.setdefault(self.case, [])
            try:
                name = self._written(told)
            except Exception as error:  # who asks takes it for one of a candidate
                self.failed = error
                raise
            folders += [name] * (name not in folders)
        if self.last:
            raise Died("it is written", NOT_JUDGED)
        return {k.replace("_", " "): np.zeros(x["shape"], np.float32) for k, x in told["results"].items()}

    def _written(self, told: Told) -> str:
        number = identity(told)
        if number not in self.ids:
            stem = re.sub(r"[^0-9a-z]+", "-", self.case.lower()).strip("-")[:80]
            names = itertools.chain([stem], (f"{stem}-{count}" for count in itertools.count(2)))
            name = next(name for name in names if name not in self.folders)
            folder = os.path.join(self.home, name)
            os.mkdir(folder)
            write_case(folder, {"id": number} | told)
            self.folders[name], self.ids[number] = number, name
        return self.ids[number]


class Replay:
    """Answers with the results that somebody has written into the folders of ``Recorder``."""

    def __init__(self, home: str) -> None:
        """Read the index."""
        self.home, self.index = home, read_index(home)
        self.ids = {number: name for name, number in self.index["folders"].items()}
        for number, name in self.ids.items():
            file = os.path.join(home, name, "case.json")
            if os.path.isdir(os.path.dirname(file)) and _read_json(file).get("id") != number:  # else it is not judged
                raise ValueError(
                    f"check: {file} is of another run than {os.path.join(home, INDEX)}: its results are of other "
                    "numbers; run the program on the folders that were written with this index"
                )

    def __call__(self, told: Told) -> Leaves:
        """The results."""
        name = self.ids.get(identity(told))
        if name is None:
            raise Died(NO_FOLDER, NOT_JUDGED)
        folder = os.path.join(self.home, name)
        if not os.path.isdir(folder):
            raise Died(NO_RESULTS, NOT_JUDGED)
        try:
            found = read_results(folder, room_for(told))
        except ValueError as error:
            raise Died(f"{folder}: {error}") from error
        if not found:
            raise Died(NO_RESULTS, NOT_JUDGED)
        return answered(found)


def read_index(home: str) -> dict[str, Any]:
    """Read the index that ``attendax inputs`` wrote of all folders."""
    file = os.path.join(home, INDEX)
    if not os.path.isfile(file):
        raise ValueError(f"check: there is no {file}: name a folder that `attendax inputs DIR` has written")
    told = _read_json(file)
    known = {"folders": dict, "cases": dict, "asked": dict}
    if wrong := [k for k, kind in known.items() if not isinstance(told.get(k), kind)]:
        raise ValueError(f"check: {file} has no {wrong[0]}: write the folder again by `attendax inputs`")
    return told


def _read_json(file: str) -> dict[str, Any]:
    try:
        with open(file, encoding="utf-8") as text:
            told = json.load(text)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise ValueError(f"check: {file} cannot be read: {why}; write it again by `attendax inputs`") from error
    if not isinstance(told, dict) or told.get("schema") != SCHEMA:
        found = told.get("schema") if isinstance(told, dict) else None
        raise ValueError(f"check: {file} is of schema {found}, this version of attendax reads {SCHEMA}")
    return told


def identity(told: Told) -> str:
    """A number of all that is asked: who is asked for the same has the same."""
    found = hashlib.sha256()

    def add(x: Any) -> None:
        if isinstance(x, Mapping):
            for k in sorted(x):
                found.update(f"{k}:".encode())
                add(x[k])
        elif isinstance(x, np.ndarray):
            found.update(f"{x.dtype}{x.shape}".encode() + np.ascontiguousarray(x).tobytes())
        else:
            found.update(repr(x).encode())

    add(told)
    return found.hexdigest()[:32]
