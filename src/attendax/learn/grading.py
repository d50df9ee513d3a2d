"""``grade``: one function of a learner, asked, judged by the specification, and explained."""

import contextlib
import html
import signal
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attendax.legible import did_you_mean, one_line

from .arrays import Arrays, Unusable, foreign, library
from .exercises import Exercise, Question, path
from .reasons import Answer, Case, Failed, hints

SECONDS = 10.0  # for one function


@dataclass(frozen=True)
class Grade:
    """The findings of one exercise; a notebook shows it, ``print`` prints it.

    Attributes:
        name: the function, the class, or ``Class.method``.
        state: "right", "wrong", "not yet", or "unread" where its file could not be read.
        reason: what is wrong, in words.
        example: the smallest input that shows it, what was expected and what came.
        hint: as much help as was asked for.
        mistakes: the names of the mistakes that give the very same numbers.
    """

    name: str
    state: str
    reason: str = ""
    example: str = ""
    hint: str = ""
    mistakes: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Tell whether nothing is left to do."""
        return self.state == "right"

    def __str__(self) -> str:
        return "\n".join(filter(None, [f"{self.state}: {self.name}", self.reason, self.example, self.hint]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        colour = {"right": "#15803d", "not yet": "#666666"}.get(self.state, "#c2410c")
        # The colours are read on a light and on a dark page.
        mark = f'<b style="background: {colour}; color: #ffffff; padding: 0 0.5em">{self.state}</b>'
        parts = ("code", self.name), ("p", self.reason), ("pre", self.example), ("pre", self.hint)
        said = "".join(f"<{tag}>{html.escape(part)}</{tag}>" for tag, part in parts if part)
        return f"<div>{mark} {said}</div>"


class Stopped(BaseException):
    """The time was over; no Exception, so that ``except Exception`` in a loop does not hide it."""


def grade(
    function: Any, *, arrays: str | None = None, hint: int = 1, name: str | None = None, seconds: float = SECONDS
) -> Grade:
    """Grade a function or class of the path, such as your own ``softmax``.

    It is called with a few small arrays in float64. Its results are compared with those of ``attendax.spec``. A mistake
    is named only where its formula gives the very numbers of the function for every question, and no other does.

    Args:
        function: the function or the class; it is known by its name.
        arrays: what it takes and gives: "numpy", "jax" or "torch"; unless given, the library that its code uses, or
            else its module.
        hint: 1 for a hint where something is wrong, 2 for more, 3 for the derivation, too.
        name: the exercise, where the function has another name.
        seconds: after so long it is stopped (on POSIX, in the main thread).

    Returns:
        A ``Grade``; of a class with several exercises that of the first which is not right.

    Raises:
        ValueError: there is no exercise of this name, or another option is out of range.
        ModuleNotFoundError: JAX or PyTorch is not installed.
    """
    symbol = name or getattr(function, "__name__", "")
    found = [exercise for exercise in path() if symbol in (exercise.name, exercise.symbol)]
    if not found:
        near = did_you_mean(symbol, (exercise.name for exercise in path()))
        raise ValueError(f"grade: there is no exercise {symbol!r}{near}; name= says which it is")
    if hint not in (1, 2, 3):
        raise ValueError(f"grade: hint got {hint!r}, expected 1, 2 or 3")
    kind = Arrays(library(function) if arrays is None else arrays)
    return min((examined(exercise, function, kind, hint, seconds) for exercise in found), key=lambda each: each.right)


def examined(exercise: Exercise, candidate: Any, kind: Arrays, hint: int = 1, seconds: float = SECONDS) -> Grade:
    """The grade of one exercise."""
    answers = list[Answer]()
    try:
        with limited(seconds), kind.wide(), np.errstate(all="ignore"):
            for question in (*exercise.questions, exercise.questions[0]):  # the first again: is the answer, too?
                given = {name: kind.given(value) for name, value in question.inputs.items()}
                answers.append(_asked(exercise, candidate, kind, given))
                if changed := _changed(question, given, kind):
                    said = f"It writes into its input {changed}: whoever gave it still needs it. Work on a new array."
                    return Grade(exercise.name, "wrong", said, hint=hints(exercise, hint))
    except Stopped as stopped:
        return Grade(exercise.name, "wrong", failure(stopped), hint=hints(exercise, hint))
    except NotImplementedError as error:
        return Grade(exercise.name, "not yet", _waits(exercise, error), hint=hints(exercise, hint) if hint > 1 else "")
    case = Case(exercise, answers[:-1])
    if not case.wrong.any():
        return Grade(exercise.name, "right")
    found, covered = case.explained()
    facts = case.facts(covered)
    if not found and "dropped" not in exercise.text and case.differ(answers[:1], answers[-1:]).any():
        facts.append("It gives other results when asked the same again: is anything drawn, or kept between calls?")
    reason = "\n".join(filter(None, [*found.values(), case.results(), *facts])) or "Other numbers come out."
    more = hints(exercise, hint, next(iter(case.bad), "")) if hint > 1 or facts or not found else ""
    return Grade(exercise.name, "wrong", reason, case.shown(), more, tuple(found))


def _asked(exercise: Exercise, candidate: Any, kind: Arrays, given: dict[str, Any]) -> Answer:
    try:
        found = exercise.ask(candidate, given)
        return {name: kind.returned(value, f" as {name}" if len(found) > 1 else "") for name, value in found.items()}
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1].line or "NotImplementedError"
        if isinstance(error, NotImplementedError) and "NotImplementedError" in line:  # else it is a library's
            raise
        return Failed(f"It returns {error}" if isinstance(error, Unusable) else f"It raises {failure(error)}")


def failure(error: BaseException) -> str:
    """One line: the error, and the last line of the learner's that led to it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not foreign(frame.filename)]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {one_line(str(error), 160)}{place}"


def _changed(question: Question, given: dict[str, Any], kind: Arrays) -> str:
    arrays = ((name, value) for name, value in question.inputs.items() if isinstance(value, np.ndarray))
    return next((name for name, value in arrays if not np.array_equal(value, kind.returned(given[name]))), "")


def _waits(exercise: Exercise, error: BaseException) -> str:
    code = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    name = str(error) if foreign(code.co_filename) else code.co_qualname
    return "" if exercise.symbol in name.split(".") else f"It waits for {name}."


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise ``Stopped`` in the block after so many seconds; elsewhere than in the main thread of POSIX it cannot."""

    def stop(number: int, frame: Any) -> None:
        raise Stopped(f"it did not end within {seconds:g} seconds")

    with contextlib.ExitStack() as after:
        if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
            after.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, stop))
            after.callback(signal.setitimer, signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
