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
from .calls import own
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
    wrong: list[Grade] = []
    for line in asked:
        wanted = json.loads(line)
        found = graded(exercises[wanted["name"]], kind, wanted["hint"], float(seconds), wrong)
        print(json.dumps(dataclasses.asdict(found)), file=replies, flush=True)


def graded(exercise: Exercise, kind: Arrays, hint: int, seconds: float, wrong: list[Grade]) -> Grade:
    """The grade of an exercise whose file is imported, once; a wrong one joins those that are."""
    try:
        with limited(seconds), kind.wide():
            candidate = getattr(importlib.import_module(exercise.text["file"]), exercise.symbol)
    except Stopped as stopped:
        return Grade(exercise.name, "unread", f"It did not end within {seconds:g} seconds{stopped}.")
    except Exception as error:
        return Grade(exercise.name, "unread", failure(error))
    found = examined(exercise, candidate, kind, hint, seconds)
    if found.state != "wrong":
        return found
    wrong.append(found)
    called = own(candidate)
    for earlier in wrong[:-1]:
        calls = earlier.name.partition(".")[0] in called and set(found.mistakes) <= set(earlier.mistakes)
        if calls or (found.mistakes and found.reason == earlier.reason):
            return Grade(found.name, "wrong", f"as {earlier.name} is: mend that first")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
