"""Why a learner's answers are wrong: the mistakes that give the very same numbers, or else the facts."""

import ast
import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from attendax import spec

from . import formulas
from .exercises import Exercise, Question, texts

CLOSE = 1e-6  # a factor that PyTorch makes of booleans is float32
SHOWN = 12  # numbers of an array that is shown whole
_compiled = functools.lru_cache(4096)(functools.partial(compile, filename="<formulas>", mode="exec"))
TURNED, ORDER = "sign turned", "results in another order"  # these two are no text of the formulas
Off = tuple[tuple[str, int], ...]  # mistakes, and which of the ways to make each


class Failed(str):
    """How a call ended that gave no answer."""


Answer = dict[str, Any] | Failed


@functools.cache
def _pieces() -> tuple[str, ...]:
    """The texts of the functions and classes of the formulas."""
    text = Path(formulas.__file__).read_text("utf-8")
    return tuple(ast.get_source_segment(text, node) or "" for node in ast.parse(text).body)


def edited(off: Off) -> dict[str, Any] | None:
    """The functions of a learner who makes these mistakes; None where two of them are in one place."""
    pieces = list(_pieces())
    for name, way in off:
        for old, new in mistakes()[name].get("wrong", [()])[way] if name != TURNED else ():
            found = [number for number, piece in enumerate(pieces) if old in piece]
            if len(found) != 1:
                return None
            pieces[found[0]] = pieces[found[0]].replace(old, new)
    names: dict[str, Any] = {}
    for piece in pieces:
        exec(_compiled(piece), names)
    return names


def mistakes(exercise: Exercise | None = None) -> dict[str, dict[str, Any]]:
    """The table of mistakes, or those that can be made in one exercise."""
    table = texts("mistakes")
    return {name: row for name, row in table.items() if exercise is None or exercise.name in row["on"].split()}


def right(exercise: Exercise, question: Question, answer: Answer) -> Answer:
    """The results of the specification; where numbers are dropped, what it gives for those."""
    if "dropped" in exercise.text:
        return mistaken(exercise, question, answer, ())
    found = exercise.ask(getattr(spec, exercise.symbol), question.inputs)
    return {name: np.asarray(value) for name, value in found.items()}


def mistaken(exercise: Exercise, question: Question, answer: Answer, off: Off) -> Answer:
    """The results of a learner who makes these mistakes."""
    names = edited(off)
    if names is None:
        return Failed("no such learner")
    if question.inputs.get("rate", 0) > 0.1 and not isinstance(answer, Failed):
        names["KEPT"] += [np.nan_to_num(answer[name]) != 0 for name in exercise.text["dropped"] if name in answer]
    try:
        with np.errstate(all="ignore"):
            found = exercise.ask(names[exercise.symbol], question.inputs)
    except Exception as error:  # shapes that do not fit, as with the learner
        return Failed(str(error))
    return {name: -value if (TURNED, 0) in off else np.asarray(value) for name, value in found.items()}


def close(one: Any, other: Any) -> bool:
    """Whether two arrays have one shape and the same numbers; booleans are not numbers."""
    one, other = np.asarray(one), np.asarray(other)
    alike = one.shape == other.shape and (one.dtype == bool) == (other.dtype == bool)
    return alike and bool(_near(one, other).all())


def _near(one: Any, other: Any) -> Any:
    """Where numbers are those of the other array, beside its largest."""
    size = np.abs(other[np.isfinite(other)]).max(initial=1.0)
    return np.isclose(one, other, CLOSE, CLOSE * float(size), equal_nan=True)


class Case:
    """What a learner's function gave for every question, beside what is right.

    An item is how a call ended, or one result of it: a row for each question. ``wrong`` marks those that are wrong.
    """

    def __init__(self, exercise: Exercise, answers: list[Answer]) -> None:
        self.exercise, self.answers = exercise, answers
        self.asked = list(zip(exercise.questions, answers, strict=True))
        self.rights: list[Any] = [right(exercise, *each) for each in self.asked]
        self.names = list(dict.fromkeys(itertools.chain(*self.rights)))
        self.wrong = self._differ(answers, self.rights)
        self.first = int(self.wrong.any(axis=1).argmax())

    def _differ(self, ones: list[Any], others: list[Any]) -> Any:
        """Where answers differ: a row for each question. Two failures are alike."""
        rows = []
        for one, other in zip(ones, others, strict=True):
            fails = isinstance(one, Failed) + isinstance(other, Failed)
            ended = fails == 1 or (not fails and one.keys() != other.keys())
            names = () if fails or ended else one
            rows.append([ended] + [name in names and not close(one[name], other[name]) for name in self.names])
        return np.array(rows)

    def _made(self, off: Off) -> list[Answer]:
        """The answers of a learner who makes these mistakes."""
        return [mistaken(self.exercise, *each, off) for each in self.asked]

    def marks(self, off: Off) -> Any:
        """For each item 0 where these mistakes leave it right, 1 where they give the learner's, 2 where neither."""
        made = self._made(off)
        found = self._differ(made, self.rights) * (1 + self._differ(made, self.answers))
        found[self.wrong[:, 0], 1:] = 0
        return found

    def explained(self) -> tuple[dict[str, str], Any]:
        """The mistakes with what is said of them, and the items that they explain.

        A mistake fits where it gives each result as it is, or does not touch it. The one that explains most goes
        first; then those that explain the rest; or else the pair whose effects meet.
        """
        if moved := self._moved():
            return {ORDER: texts("mistakes")[ORDER]["says"].format(moved)}, self.wrong
        table = mistakes(self.exercise)
        ways = ((name, way) for name, row in table.items() for way in range(len(row.get("wrong", [()]))))
        marked = {off: self.marks((off,)) for off in ways if off[0] != ORDER}
        seen = {off: marks if "only_fails" in table[off[0]] else marks[:, 1:] for off, marks in marked.items()}
        fits = [off for off in marked if not (marked[off] == 2).any() and (seen[off] == 1).any()]
        chosen, covered = dict[str, Any](), np.zeros_like(self.wrong)
        for off in sorted(fits, key=lambda off: -int((marked[off] == 1).sum())):
            if ((marked[off] == 1) & ~covered).any():
                chosen[off[0]], covered = marked[off], covered | (marked[off] == 1)
        if (self.wrong & ~covered)[:, 1:].any() and (pair := self._pair(marked)):
            chosen, covered = {name: marked[name, 0] for name in pair}, self.wrong
        late = {name: not (marks[self.first] > 0).any() for name, marks in chosen.items()}
        return {name: table[name]["says"] for name in sorted(chosen, key=late.__getitem__)}, covered

    def _pair(self, marked: dict[tuple[str, int], Any]) -> tuple[str, ...]:
        """The two mistakes that together give all answers; where several pairs do, what all of these have."""
        flat = np.array([marks.ravel() for marks in marked.values()])
        one, other = flat[:, None], flat[None]
        odd = (one * other == 0) & ((one + other == 2) | ((one + other == 0) & self.wrong.ravel()))
        found = list[set[str]]()
        for i, j in np.argwhere(np.triu(~odd.any(axis=2), 1)):
            off = list(marked)[i], list(marked)[j]
            both = {name for name, _ in off}
            if len(both) == 2 and not self._differ(self.answers, self._made(off)).any():
                found.append(both)
        return tuple(set.intersection(*found)) if found else ()

    def _moved(self) -> str:
        """Which results stand in each other's place, if that is all."""
        place = {}
        for name in self.names if not self.wrong[:, 0].any() else ():
            here = [(got[name], fine) for got, fine in zip(self.answers, self.rights, strict=True) if name in fine]
            like = [each for each in self.names if all(each in fine and close(got, fine[each]) for got, fine in here)]
            place[name] = name if name in like else next(iter(like), "")
        moved = (f"{name} holds {other}" for name, other in place.items() if name != other)
        return ", ".join(moved) if sorted(place.values()) == sorted(self.names) else ""

    def facts(self, covered: Any) -> list[str]:
        """All that is known of what no mistake of the table explains."""
        left, wrong, lines = self.wrong & ~covered, self.wrong.any(axis=1), list[str]()
        if left[:, 0].any():
            first = self.asked[int(left[:, 0].argmax())][1]
            if not isinstance(first, Failed):
                return [f"The results are {', '.join(first)}; expected {', '.join(self.rights[0])}."]
            alike = [question.about for question, answer in self.asked if answer == first]
            at = "" if left[:, 0].all() else f" with {'; '.join(alike)}"
            lines.append(f"{first.rstrip('?')}{at}{'?' if first.endswith('?') else '.'}")
        for name, column in zip(self.names, left[:, 1:].T, strict=True):
            pairs = [(self.asked[n][1][name], self.rights[n][name]) for n in np.flatnonzero(column)]
            lines += [_kind_of(name, pairs)] if pairs else []
        if left.any() and not wrong.all():
            labels = [question.about for question, _ in self.asked]
            well, ill = ("; ".join(itertools.compress(labels, which)) for which in (~wrong, wrong))
            lines.append(f"It is right with {well}; wrong with {ill}.")
            sizes = ({each.inputs[name].shape[-2] for name in "QK" if name in each.inputs} for each, _ in self.asked)
            if [len(size) == 2 for size in sizes] == wrong.tolist():
                lines.append("Where T and S are alike it is right: look for a swapped axis.")
        return lines

    def results(self) -> str:
        """Which of several results are wrong, where some are right."""
        bad = self.wrong[:, 1:].any(axis=0)
        parts: Any = [list(filter(str.isidentifier, itertools.compress(self.names, which))) for which in (~bad, bad)]
        said = (f"{word}: {', '.join(names)}." for word, names in zip(("Right", "Wrong"), parts, strict=True))
        return " ".join(said) if all(parts) else ""

    def shown(self) -> str:
        """The input, what was expected and what came."""
        (question, answer), correct = self.asked[self.first], self.rights[self.first]
        given = {name: each for name, each in question.inputs.items() if each is not None and name != "blocks"}
        lines = [f"The smallest input that shows it ({question.about}):", *map(_named, given, given.values())]
        if isinstance(answer, Failed):
            return "\n".join([*lines, f"  {answer[0].lower()}{answer[1:]}"])
        name = next(itertools.compress(self.names, self.wrong[self.first, 1:]), self.names[0])
        got, expected = np.asarray(answer.get(name)), correct[name]
        if expected.size > SHOWN and got.shape == expected.shape:
            place = [int(i) for i in np.unravel_index(_near(got, expected).argmin(), got.shape)]
            return "\n".join([*lines, f"  {name} at {place}: expected {expected[*place]:.4g}, got {got[*place]:.4g}"])
        return "\n".join([*lines, _named(f"expected {name}", expected), _named(f"     got {name}", got)])

    def first_wrong(self) -> str:
        """The first result that is wrong, if one is."""
        return next(itertools.compress(self.names, self.wrong[:, 1:].any(axis=0)), "")


def hints(exercise: Exercise, level: int, result: str = "") -> str:
    """The hints up to that level."""
    hint = exercise.text.get("of", {}).get(result, exercise.text["hint"])
    derivation = f"Derivation, that of attendax.spec:\n{exercise.derivation}"
    return "\n".join([f"Hint: {hint}", f"More: {exercise.text['more']}", derivation][:level])


def _kind_of(name: str, pairs: list[tuple[Any, Any]]) -> str:
    """How an array differs in kind, if it does, from what is expected; wherever it is wrong."""
    for got, expected in pairs:
        if got.shape != expected.shape:
            return f"{name} has shape {got.shape}, expected {expected.shape}."
        if not got.ndim or expected.dtype.kind == "i":
            return f"Not so: {name}." if expected.dtype == bool else f"{name}: {got}, expected {expected}."
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
    some = expected != 0
    factor = float(np.median(got[some] / expected[some]))
    fits = some.sum() > 1 and np.allclose(got, factor * expected, rtol=1e-6, atol=1e-12)
    said = f"{factor:.6g} times what is right, here" if factor else "0 everywhere"
    return f"{name} is {said}." if fits and (not factor or min(abs(factor), abs(factor - 1)) > 1e-3) else ""


def _named(name: str, value: Any) -> str:
    array, head = np.asarray(value), f"  {name} = "
    if array.size > SHOWN:
        return f"  {name}: shape {array.shape}"
    return head + np.array2string(array, precision=4, suppress_small=True, separator=", ", prefix=head)
