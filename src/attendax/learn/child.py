"""``python -m attendax.learn.child FOLDER ARRAYS SECONDS``: grades functions of a folder, each asked for by a line.

It is a process of its own, so that a loop that never ends, or a crash, ends nothing but itself. Prints of the learner's
files go to standard error; they have no standard input.
"""

import dataclasses
import importlib
import json
import os
import sys

from .arrays import Arrays
from .exercises import Exercise, path
from .grading import Grade, Stopped, examined, failure, limited


def main(folder: str, arrays: str, seconds: str) -> None:
    """Answer each line ``{"name": ..., "hint": ...}`` by the fields of a ``Grade``."""
    asked, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.path.insert(0, folder)
    kind, exercises = Arrays(arrays), {exercise.name: exercise for exercise in path()}
    print("ready", file=replies, flush=True)
    for line in asked:
        wanted = json.loads(line)
        found = graded(exercises[wanted["name"]], kind, wanted["hint"], float(seconds))
        print(json.dumps(dataclasses.asdict(found)), file=replies, flush=True)


def graded(exercise: Exercise, kind: Arrays, hint: int, seconds: float) -> Grade:
    """The grade of an exercise whose file is imported, once."""
    try:
        with limited(seconds), kind.wide():
            candidate = getattr(importlib.import_module(exercise.text["file"]), exercise.symbol)
    except Stopped as stopped:
        return Grade(exercise.name, "unread", f"It did not end within {seconds:g} seconds{stopped}.")
    except Exception as error:
        return Grade(exercise.name, "unread", failure(error))
    return examined(exercise, candidate, kind, hint, seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
