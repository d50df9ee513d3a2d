"""``grade``: one function of a learner, asked, judged by the specification, and explained."""

import contextlib
import html
import itertools
import signal
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attendax import spec
from attendax.legible import did_you_mean, one_line

from .arrays import Arrays, Unusable
from .calls import HERE, foreign, library
from .exercises import Exercise, Question, path, texts

SECONDS = 10.0  # for one function
CLOSE = 1e-6  # a factor that PyTorch makes of booleans is float32
SHOWN = 12  # numbers of an array that is shown whole
RAISING = {"odd width fails", "three axes only", "whole table added"}  # their sentences say no more than where it fails


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
        """Whether nothing is left to do."""
        return self.state == "right"

    def __str__(self) -> str:
        parts = (part for part in (self.reason, self.example, self.hint) if part)
        return "\n".join([f"{self.state}: {self.name}", *parts])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        colour = {"right": "#15803d", "not yet": "#666666"}.get(self.state, "#c2410c")
        badge = f"background: {colour}; color: #ffffff; padding: 0 0.5em"  # read on a light and on a dark page
        mark = f'<b style="{badge}">{self.state}</b>'
        said = "".join(f"<p>{html.escape(part)}</p>" for part in (self.reason,) if part)
        shown = "".join(f"<pre>{html.escape(part)}</pre>" for part in (self.example, self.hint) if part)
        return f"<div>{mark} <code>{html.escape(self.name)}</code>{said}{shown}</div>"


class Failed(str):
    """How a call ended that gave no answer."""


class Stopped(BaseException):
    """The time was over; no Exception, so that ``except Exception`` in a loop does not hide it."""


Answer = Any  # arrays by name, or Failed


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
    grades = (examined(exercise, function, kind, hint, seconds) for exercise in found)
    return min(grades, key=lambda each: each.right)


def examined(exercise: Exercise, candidate: Any, kind: Arrays, hint: int = 1, seconds: float = SECONDS) -> Grade:
    """The grade of one exercise."""
    answers: list[Answer] = []
    try:
        with limited(seconds * kind.patience), kind.wide(), np.errstate(all="ignore"):
            for question in exercise.questions:
                given = {name: kind.given(value) for name, value in question.inputs.items()}
                answers.append(_asked(exercise, candidate, kind, given))
                if changed := _changed(question, given, kind):
                    reason = f"It writes into its input {changed}: whoever gave it still needs it. Work on a new array."
                    return Grade(exercise.name, "wrong", reason, hint=helped(exercise, hint))
    except Stopped as stopped:
        reason = f"It did not end within {seconds * kind.patience:g} seconds and was stopped{stopped}."
        return Grade(exercise.name, "wrong", reason, hint=helped(exercise, hint))
    except NotImplementedError as error:
        return Grade(exercise.name, "not yet", _waits(exercise, error), hint=helped(exercise, hint) if hint > 1 else "")
    return judged(exercise, answers, hint)


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
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    inner = frames[-1].f_code
    if inner.co_filename.startswith(HERE[0]):
        return f"It waits for {error}."
    mine = inner.co_qualname.split(".")[0] in (exercise.symbol, "<lambda>") or len(frames) < 4
    return "" if mine else f"It waits for {inner.co_qualname}."


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise ``Stopped`` in the block after so many seconds; elsewhere than in the main thread of POSIX it cannot."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        while frame is not None and foreign(frame.f_code.co_filename):
            frame = frame.f_back
        place = f": line {frame.f_lineno} of {Path(frame.f_code.co_filename).name} ran then" if frame else ""
        raise Stopped(place)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def judged(exercise: Exercise, answers: list[Answer], hint: int = 1) -> Grade:
    """Compare the answers with what is right, and explain them."""
    rights = [right(exercise, *each) for each in zip(exercise.questions, answers, strict=True)]
    wrong = [number for number, each in enumerate(zip(answers, rights, strict=True)) if not same(*each)]
    if not wrong:
        return Grade(exercise.name, "right")
    case = exercise.questions[wrong[0]], answers[wrong[0]]
    example = shown(*case, rights[wrong[0]])
    if off := explained(exercise, answers, rights):
        off = tuple(sorted(off, key=lambda name: same(mistaken(exercise, *case, (name,)), rights[wrong[0]])))
        reason = "\n".join(mistakes()[name]["says"] for name in off)
        return Grade(exercise.name, "wrong", reason, example, helped(exercise, hint) if hint > 1 else "", off)
    return Grade(exercise.name, "wrong", facts(exercise, answers, rights, wrong), example, helped(exercise, hint))


def right(exercise: Exercise, question: Question, answer: Answer) -> Answer:
    """The results of the specification; where numbers are drawn, what it gives for those."""
    if exercise.random:
        return mistaken(exercise, question, answer, ())
    return exercise.ask(getattr(spec, exercise.symbol), question.inputs)


def mistaken(exercise: Exercise, question: Question, answer: Answer, off: tuple[str, ...]) -> Answer:
    """The results of a learner who makes these mistakes."""
    if isinstance(answer, Failed) and exercise.random:
        return {}
    try:
        with np.errstate(all="ignore"):
            found = exercise.formula(question.inputs, off, answer)
    except (ValueError, IndexError) as error:  # shapes that do not fit
        return Failed(str(error))
    return {name: -value for name, value in found.items()} if "sign turned" in off else found


def same(one: Answer, other: Answer) -> bool:
    """Whether two answers are the same, name by name; two failures are."""
    if isinstance(one, Failed) or isinstance(other, Failed):
        return isinstance(one, Failed) and isinstance(other, Failed)
    return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)


def close(one: Any, other: Any) -> bool:
    """Whether two arrays have one shape and the same numbers; booleans are not numbers."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or (one.dtype == bool) != (other.dtype == bool):
        return False
    size = np.abs(other[np.isfinite(other)]).max(initial=1.0)
    return bool(np.allclose(one, other, rtol=CLOSE, atol=CLOSE * float(size), equal_nan=True))


def mistakes(exercise: Exercise | None = None) -> dict[str, dict[str, Any]]:
    """The table of mistakes, or those that can be made in one exercise."""
    table = texts("mistakes")
    return {name: row for name, row in table.items() if exercise is None or exercise.name in row["on"].split()}


def explained(exercise: Exercise, answers: list[Answer], rights: list[Answer]) -> tuple[str, ...]:
    """The one mistake, or else the one pair, that gives all of the answers; nothing where there are several or none."""
    asked = list(zip(exercise.questions, answers, rights, strict=True))

    def gives(off: tuple[str, ...]) -> bool:
        evidence = False
        for question, answer, correct in asked:
            found = mistaken(exercise, question, answer, off)
            if not same(answer, found):
                return False
            failed = isinstance(found, Failed) and not RAISING & set(off)
            evidence = evidence or (not failed and not same(found, correct))
        return evidence

    for number in (1, 2):
        if found := [off for off in itertools.combinations(mistakes(exercise), number) if gives(off)]:
            return found[0] if len(found) == 1 else ()
    return ()


def facts(exercise: Exercise, answers: list[Answer], rights: list[Answer], wrong: list[int]) -> str:
    """All that is known of a fault that no mistake of the table gives."""
    labels = [question.about for question in exercise.questions]
    well = [label for number, label in enumerate(labels) if number not in wrong]
    failed = [number for number in wrong if isinstance(answers[number], Failed)]
    lines = []
    if failed:
        first = answers[failed[0]]
        at = "; ".join(labels[number] for number in failed if answers[number] == first)
        with_these = f" with {at}" if len(failed) < len(labels) else ""
        lines.append(f"{first.removesuffix('?')}{with_these}{'?' if first.endswith('?') else '.'}")
    lines += _differences([pair for pair in zip(answers, rights, strict=True) if not isinstance(pair[0], Failed)])
    if well:
        lines.append(f"It is right with {'; '.join(well)}; wrong with {'; '.join(labels[n] for n in wrong)}.")
    sizes = [{each.inputs[name].shape[-2] for name in "QK" if name in each.inputs} for each in exercise.questions]
    if well and wrong == [number for number, size in enumerate(sizes) if len(size) == 2]:
        lines.append("Where T and S are alike it is right: look for a swapped axis.")
    return "\n".join(lines) or "Other numbers come out."


def _differences(pairs: list[tuple[Answer, Answer]]) -> list[str]:
    """Of the answers that came: which results are right, and how the others differ."""
    if odd := next((pair for pair in pairs if pair[0].keys() != pair[1].keys()), None):
        return [f"The results are {', '.join(odd[0])}; expected {', '.join(odd[1])}."]
    names = list(pairs[0][1]) if pairs else []
    off = {name: [(a[name], r[name]) for a, r in pairs if not close(a[name], r[name])] for name in names}
    good, bad = ([name for name in names if bool(off[name]) == wrong] for wrong in (False, True))
    parts = [f"{word}: {', '.join(each)}." for word, each in (("Right", good), ("Wrong", bad)) if each]
    lines = [" ".join(parts)] if bad and len(names) > 1 else []
    return lines + [line for name in bad if (line := _kind_of(name, off[name]))]


def _part(answer: Answer, correct: Answer, name: str) -> bool:
    return not isinstance(answer, Failed) and name in answer and close(answer[name], correct[name])


def _kind_of(name: str, pairs: list[tuple[Any, Any]]) -> str:
    """How an array differs in kind, if it does, from what is expected; wherever it is wrong."""
    for got, expected in pairs:
        if got.shape != expected.shape:
            return f"{name} has shape {got.shape}, expected {expected.shape}."
        if (got.dtype == bool) != (expected.dtype == bool):
            return f"{name} holds {got.dtype}, expected {expected.dtype}."
        if np.isnan(got).any() and not np.isnan(expected).any():
            return f"{name} has NaN."
    dtype = pairs[0][0].dtype
    got, expected = (np.concatenate([np.ravel(pair[which]) for pair in pairs]) for which in (0, 1))
    if dtype.kind not in "biu" and dtype.itemsize < 8 and np.allclose(got, expected, rtol=1e-3, atol=1e-3):
        return f"{name} is {dtype} of float64 inputs: digits are lost where it is made."
    if dtype.kind == "b" or not np.any(expected):
        return ""
    if not np.any(got):
        return f"{name} is 0 everywhere."
    some = expected != 0
    factor = float(np.median(got[some] / expected[some]))
    fits = some.sum() > 1 and np.allclose(got, factor * expected, rtol=1e-6, atol=1e-12)
    return (
        f"{name} is {factor:.6g} times what is right, here."
        if fits and min(abs(factor), abs(factor - 1)) > 1e-3
        else ""
    )


def shown(question: Question, answer: Answer, correct: Answer) -> str:
    """The input, what was expected and what came."""
    lines = [f"The smallest input that shows it ({question.about}):"]
    for name, value in question.inputs.items():
        if value is not None and not isinstance(value, list):
            lines += _named(name, value)
    if isinstance(answer, Failed):
        return "\n".join([*lines, f"  {answer[0].lower()}{answer[1:]}"])
    name = next((name for name in correct if not _part(answer, correct, name)), next(iter(correct)))
    got, expected = np.asarray(answer.get(name)), np.asarray(correct[name])
    if expected.size > SHOWN and got.shape == expected.shape:
        far = ~np.isclose(got, expected, CLOSE, CLOSE * np.abs(expected[np.isfinite(expected)]).max(initial=1.0), True)
        place = next(iter(np.argwhere(far).tolist()), [0] * got.ndim)
        return "\n".join([*lines, f"  {name} at {place}: expected {expected[*place]:.4g}, got {got[*place]:.4g}"])
    lines += _named(f"expected {name}", correct[name])
    return "\n".join(lines + (_named(f"     got {name}", answer[name]) if name in answer else []))


def _named(name: str, value: Any) -> list[str]:
    array = np.asarray(value)
    if array.size > SHOWN:
        return [f"  {name}: shape {array.shape}"]
    head = f"  {name} = "
    text = np.array2string(array, precision=4, suppress_small=True, separator=", ", prefix=head)
    return [head + line if number == 0 else line for number, line in enumerate(text.splitlines())]


def helped(exercise: Exercise, hint: int) -> str:
    """The hints up to that level."""
    more = f"Derivation, that of attendax.spec:\n{exercise.derivation}"
    return "\n".join([f"Hint: {exercise.text['hint']}", f"More: {exercise.text['more']}", more][:hint])
