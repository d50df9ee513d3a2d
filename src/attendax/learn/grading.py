"""``grade``: call a learner's function, compare its results with the specification, and explain the difference."""

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

from .arrays import Arrays, UnexpectedResult, foreign, library
from .exercises import Exercise, Question, path
from .reasons import Answer, ErrorMessage, Submission, hints

SECONDS = 10.0  # time limit of one function


@dataclass(frozen=True)
class Grade:
    """The grade of one exercise; a notebook shows it, ``print`` prints it.

    Attributes:
        name: the function, the class, or ``Class.method``.
        state: "right", "wrong", "not yet", or "unread" if its file cannot be imported.
        reason: the cause, in words.
        example: the smallest input that shows the difference, the expected result and the learner's.
        hint: the hints, as many as were requested.
        mistakes: names of the mistakes that reproduce the learner's numbers exactly.
    """

    name: str
    state: str
    reason: str = ""
    example: str = ""
    hint: str = ""
    mistakes: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Tell whether the exercise is solved."""
        return self.state == "right"

    def __str__(self) -> str:
        return "\n".join(filter(None, [f"{self.state}: {self.name}", self.reason, self.example, self.hint]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        colour = {"right": "#15803d", "not yet": "#666666"}.get(self.state, "#c2410c")
        # These colours are legible on a light and on a dark page.
        mark = f'<b style="background: {colour}; color: #ffffff; padding: 0 0.5em">{self.state}</b>'
        parts = ("code", self.name), ("p", self.reason), ("pre", self.example), ("pre", self.hint)
        body = "".join(f"<{tag}>{html.escape(part)}</{tag}>" for tag, part in parts if part)
        return f"<div>{mark} {body}</div>"


class Timeout(BaseException):
    """The time limit is exceeded. Not an ``Exception``, so that ``except Exception`` in a loop cannot hide it."""


def grade(
    function: Any, *, arrays: str | None = None, hint: int = 0, name: str | None = None, seconds: float = SECONDS
) -> Grade:
    """Grade a function or class of the course, such as your own ``softmax``.

    It is called with a few small arrays in float64, and its results are compared with those of ``attendax.spec``. A
    mistake is named only if its formula reproduces the function's numbers for every input, and no other mistake does.

    Args:
        function: the function or class; its name says which exercise it solves.
        arrays: library of its arrays: "numpy", "jax" or "torch"; by default the library that its code uses.
        hint: number of hints: 0, 1, 2, or 3 for the derivation also.
        name: the exercise, if the function has another name.
        seconds: time limit (on POSIX, in the main thread).

    Returns:
        A ``Grade``. For a class with several exercises it is that of the first one that is not right.

    Raises:
        ValueError: there is no exercise of this name, or another option is out of range.
        ModuleNotFoundError: JAX or PyTorch is not installed.
    """
    symbol = name or getattr(function, "__name__", "")
    exercises = [exercise for exercise in path() if symbol in (exercise.name, exercise.symbol)]
    if not exercises:
        similar = did_you_mean(symbol, (exercise.name for exercise in path()))
        raise ValueError(f"grade: there is no exercise {symbol!r}{similar}; name= states which exercise it solves")
    if hint not in (0, 1, 2, 3):
        raise ValueError(f"grade: hint got {hint!r}, expected 0, 1, 2 or 3")
    kind = Arrays(library(function) if arrays is None else arrays)
    grades = (grade_exercise(exercise, function, kind, hint, seconds) for exercise in exercises)
    return min(grades, key=lambda each: each.right)


def grade_exercise(exercise: Exercise, candidate: Any, kind: Arrays, hint: int = 0, seconds: float = SECONDS) -> Grade:
    """The grade of one exercise."""
    answers = list[Answer]()
    try:
        with limit_time(seconds), kind.wide(), np.errstate(all="ignore"):
            for question in (*exercise.questions, exercise.questions[0]):  # the first one twice: is it deterministic?
                inputs = {name: kind.convert(value) for name, value in question.inputs.items()}
                answers.append(_answer(exercise, candidate, kind, inputs))
                if changed := _changed(question, inputs, kind):
                    reason = f"It writes into its input {changed}, which the caller still needs. Work on a new array."
                    return Grade(exercise.name, "wrong", reason, hint=hints(exercise, hint))
            submission = Submission(exercise, answers[:-1])
            if not submission.wrong.any():
                return Grade(exercise.name, "right")
            example = _example(submission, candidate, kind)
    except Timeout as timeout:
        return Grade(exercise.name, "wrong", failure(timeout), hint=hints(exercise, hint))
    except NotImplementedError as error:
        return Grade(exercise.name, "not yet", _dependency(exercise, error), hint=hints(exercise, hint))
    mistakes, covered = submission.explained()
    facts = submission.facts(covered)
    if not mistakes and "dropped" not in exercise.text and submission.differ(answers[:1], answers[-1:]).any():
        facts.append("A second call with the same input differs: is anything random, or kept between calls?")
    causes = [cause for cause, _ in mistakes.values()]
    reason = "\n".join(filter(None, [*causes, submission.results(), *facts])) or "The numbers differ."
    *lines, last = example.splitlines()
    example = "\n".join(lines if last.strip().rstrip("?") in reason else [*lines, last])  # an error is said once
    remedies = [remedy for _, remedy in mistakes.values() if remedy]
    help_text = hints(exercise, hint, next(iter(submission.bad), ""), remedies)
    return Grade(exercise.name, "wrong", reason, example, help_text, tuple(mistakes))


def _answer(exercise: Exercise, candidate: Any, kind: Arrays, inputs: dict[str, Any]) -> Answer:
    """The results of a function as NumPy arrays, or the way in which its call failed."""
    try:
        results = exercise.call(candidate, inputs)
        several = len(results) > 1
        return {name: kind.to_numpy(value, f" as {name}" if several else "") for name, value in results.items()}
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1].line or "NotImplementedError"
        if isinstance(error, NotImplementedError) and "NotImplementedError" in line:  # not one of a library
            raise
        words = f"returns {error}" if isinstance(error, UnexpectedResult) else f"raises {failure(error)}"
        return ErrorMessage(f"It {words}")


def _example(submission: Submission, candidate: Any, kind: Arrays) -> str:
    """The first question with a wrong answer; of a batch one text, if it alone shows a difference."""
    exercise = submission.exercise
    question = exercise.questions[submission.first]
    for text in range(question.batch):
        alone = question.of_text(text)
        answer = _answer(exercise, candidate, kind, {name: kind.convert(x) for name, x in alone.inputs.items()})
        smaller = Submission(exercise._replace(questions=(alone,)), [answer])
        if smaller.wrong.any():
            return smaller.shown()
    return submission.shown()


def failure(error: BaseException) -> str:
    """One line: the error, and the learner's line that led to it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not foreign(frame.filename)]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {one_line(str(error), 160)}{place}"


def _changed(question: Question, inputs: dict[str, Any], kind: Arrays) -> str:
    arrays = ((name, value) for name, value in question.inputs.items() if isinstance(value, np.ndarray))
    return next((name for name, value in arrays if not np.array_equal(value, kind.to_numpy(inputs[name]))), "")


def _dependency(exercise: Exercise, error: BaseException) -> str:
    """Name the unwritten function that a written one calls."""
    code = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    name = str(error) if foreign(code.co_filename) else code.co_qualname
    return "" if exercise.symbol in name.split(".") else f"It calls {name}, which is not written yet."


@contextlib.contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Raise ``Timeout`` in the block after so many seconds, in the main thread of POSIX; elsewhere set no limit."""

    def stop(number: int, frame: Any) -> None:
        raise Timeout(f"it did not end within {seconds:g} seconds")

    with contextlib.ExitStack() as after:
        if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
            after.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, stop))
            after.callback(signal.setitimer, signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
