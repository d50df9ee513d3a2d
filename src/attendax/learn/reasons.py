"""Reasons why a learner's answers are wrong: mistakes that give the very numbers, or else the facts."""

import functools
import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from attendax import spec

from . import formulas
from .exercises import Exercise, Question, texts

CLOSE = 1e-6  # a factor that PyTorch makes of booleans is float32
SHOWN = 12  # numbers of an array that is shown whole
PIECES = inspect.getsource(formulas).split("\n\n\n")  # function by function
_compiled = functools.lru_cache(4096)(functools.partial(compile, filename="<formulas>", mode="exec"))
ORDER = "results in another order"  # the one mistake that is no text of the formulas
Off = tuple[tuple[str, int], ...]  # mistakes, and which of the ways to make each


class Failed(str):
    """The end of a call that gave no answer."""


Answer = dict[str, Any] | Failed


@functools.lru_cache(1024)
def edited(off: Off) -> dict[str, Any]:
    """The functions of a learner who makes these mistakes.

    Raises:
        ValueError: two of them are in one place.
    """
    pieces = list(PIECES)
    for old, new in itertools.chain(*(mistakes()[name]["wrong"][way] for name, way in off)):
        (found,) = (number for number, piece in enumerate(pieces) if old in piece)
        pieces[found] = pieces[found].replace(old, new)
    names: dict[str, Any] = {}
    for piece in pieces:
        exec(_compiled(piece), names)
    return names


def mistakes(exercise: Exercise | None = None) -> dict[str, dict[str, Any]]:
    """The table of mistakes, or those that can be made in one exercise."""
    rows = texts("mistakes").items()
    return {name: row for name, row in rows if exercise is None or exercise.name in row["on"].split()}


def right(exercise: Exercise, question: Question, answer: Answer) -> Answer:
    """The results of the specification; where numbers are dropped, what it gives for those."""
    if "dropped" in exercise.text:
        return mistaken(exercise, question, answer, ())
    found = exercise.ask(getattr(spec, exercise.symbol), question.inputs)
    return {name: np.asarray(value) for name, value in found.items()}


def mistaken(exercise: Exercise, question: Question, answer: Answer, off: Off) -> Answer:
    """The results of a learner who makes these mistakes; of a layer those that a mistake can touch."""
    try:
        names = edited(off)
        drops = question.inputs.get("rate", 0) > 0.1 and not isinstance(answer, Failed)
        results = exercise.text["dropped"] if drops else ()
        names["KEPT"][:] = [np.nan_to_num(answer[name]) != 0 for name in results if name in answer]
        formula = names[exercise.symbol]
        with np.errstate(all="ignore"):
            whole = exercise.symbol.islower() or isinstance(formula, type)
            found = exercise.ask(formula, question.inputs) if whole else formula(**question.inputs)
    except Exception as error:  # shapes that do not fit, as with the learner
        return Failed(str(error))
    return {name: np.asarray(value) for name, value in found.items()}


def close(one: Any, other: Any) -> bool:
    """Tell whether two arrays have one shape and the same numbers; booleans are not numbers."""
    one, other = np.asarray(one), np.asarray(other)
    alike = one.shape == other.shape and (one.dtype == bool) == (other.dtype == bool)
    return alike and bool(_near(one, other).all())


def _near(one: Any, other: Any) -> Any:
    """Mark where numbers are those of the other array, beside its largest."""
    one, other = one.astype(float), other.astype(float)
    finite, large = np.isfinite(other), np.abs(other)
    with np.errstate(invalid="ignore"):
        near = finite & (np.abs(one - other) <= CLOSE * (large + large.max(initial=1.0, where=finite)))
    return near | (one == other) | (np.isnan(one) & np.isnan(other))


class Case:
    """Answers of a learner's function to every question, beside the right ones.

    An item is how a call ended, or one result of it: a row for each question. ``wrong`` marks those that are wrong.
    """

    def __init__(self, exercise: Exercise, answers: list[Answer]) -> None:
        self.exercise, self.answers = exercise, answers
        self.asked = list(zip(exercise.questions, answers, strict=True))
        self.rights: list[Any] = [right(exercise, *each) for each in self.asked]
        self.names = list(dict.fromkeys(itertools.chain(*self.rights)))
        self.wrong = self.differ(answers, self.rights)
        fines = [next(fine[name] for fine in self.rights if name in fine) for name in self.names]
        # What mistakes have to give: how a call ends, and results, but for facts and sizes, which speak for themselves.
        self.open = np.array([True, *(value.ndim > 0 and value.dtype.kind != "i" for value in fines)])
        self.bad = list(itertools.compress(self.names, self.wrong[:, 1:].any(axis=0)))
        self.first = int(self.wrong.any(axis=1).argmax())

    def differ(self, ones: list[Any], others: list[Any]) -> Any:
        """Mark where answers differ: a row for each question. Two that raise are alike."""
        rows = []
        for one, other in zip(ones, others, strict=True):
            fails = isinstance(one, Failed) + isinstance(other, Failed)
            ended = one != other and "It returns" in one + other if fails == 2 else fails or one.keys() != other.keys()
            names = () if fails or ended else one
            rows.append([bool(ended)] + [name in names and not close(one[name], other[name]) for name in self.names])
        return np.array(rows)

    def _made(self, off: Off) -> Iterator[Answer]:
        """The answers of a learner who makes these mistakes; those ``apart`` only where results are wrong."""
        apart = any("apart" in texts("mistakes")[name] for name, _ in off)
        for each, fine in zip(self.asked, self.rights, strict=True):
            made = mistaken(self.exercise, *each, off)
            kept = [name for name in made if name in self.bad or not apart] if isinstance(made, dict) else ()
            yield made if isinstance(made, Failed) else fine | {name: made[name] for name in kept}

    def marks(self, off: Off) -> Any:
        """Mark each item: 0 where these mistakes leave it right, 1 where they give the learner's, 2 where neither."""
        made = list(self._made(off))
        found = self.differ(made, self.rights) * (1 + self.differ(made, self.answers))
        found[self.wrong[:, 0], 1:] = 0
        return found

    def _fit(self, marks: Any, only_fails: bool) -> bool:
        """Tell whether a mistake gives only what the learner has: a wrong result, or else all calls that fail."""
        seen = (marks[:, 0] == self.wrong[:, 0]).all() if only_fails else (marks[:, 1:] == 1).any()
        return bool(seen and (marks != 2).all())

    def explained(self) -> tuple[dict[str, str], Any]:
        """The mistakes with what is said of them, and the items that they explain.

        They are the fewest that together give what the learner's function gives: those of which each gives some results
        as they are and leaves the others, or two whose effects meet, or the former and one or two more. A mistake is
        not said if the others give it all, or if another would do in its place: that may be chance.
        """
        if moved := self._moved():
            return {ORDER: texts("mistakes")[ORDER]["says"].format(moved)}, self.wrong
        table = mistakes(self.exercise)
        ways = ((name, way) for name, row in table.items() for way in range(len(row.get("wrong", ()))))
        marked = {off: self.marks((off,)) for off in ways}
        chosen = self._apart(marked)
        hiding = [off for off in chosen if "part" in table[off[0]]]
        if not chosen or len(chosen) > 2 or not self._given_by(*chosen):
            chosen = self._pair(marked, self.wrong) or self._more(marked, chosen) or hiding
        chosen = self._sure(marked, chosen)
        covered = np.any([self.wrong & False, *(marked[off] > 0 for off in chosen)], axis=0)
        chosen.sort(key=lambda off: not marked[off][self.first].any())  # those that the example shows come first
        return {name: table[name]["says"] for name, _ in chosen}, covered

    def _apart(self, marked: dict[Any, Any]) -> list[Any]:
        """Mistakes that each give a result as it is, or do not touch it: first the one that explains most."""
        table, chosen, covered = mistakes(self.exercise), list[Any](), np.zeros_like(self.wrong)
        fits = [off for off, marks in marked.items() if self._fit(marks, "only_fails" in table[off[0]])]
        for off in sorted(fits, key=lambda off: -int((marked[off] == 1).sum())):
            if ((marked[off] == 1) & ~covered).any():
                chosen, covered = [*chosen, off], covered | (marked[off] == 1)
        return chosen

    def _more(self, marked: dict[Any, Any], chosen: list[Any]) -> list[Any]:
        """The chosen mistakes, and none, one or two more, that together give all answers."""
        rest = self.wrong & ~np.any([self.wrong & False, *(marked[off] == 1 for off in chosen)], axis=0)
        some = ([*chosen, *more] for more in ([], *([off] for off in marked)) if chosen)
        given = next((each for each in some if self._given_by(*each)), [])
        return given or (chosen and self._pair(marked, rest, *chosen))

    def _sure(self, marked: dict[Any, Any], chosen: list[Any]) -> list[Any]:
        """Those without which the others, or these and another, do not give all answers.

        A call that fails shows nothing of what would have come: a mistake has to be needed for a result, unless it is
        one that only makes calls fail.
        """
        if not chosen or not self._given_by(*chosen):
            return chosen
        table, kept, names = mistakes(self.exercise), list[Any](), {name for name, _ in chosen}
        others = [[each] for each in marked if each[0] not in names] if len(chosen) > 1 else []
        for off in chosen:
            rest = [each for each in chosen if each != off]
            own = np.all([marked[off] == 1, self.wrong & ~self.open, *(marked[each] == 0 for each in rest)], axis=0)
            idle = self._given_by(*rest, but_fails="only_fails" not in table[off[0]])
            idle = idle or any(self._given_by(*rest, *other) for other in others)
            kept += [off] if own.any() or not idle else []
        return kept

    def _given_by(self, *off: tuple[str, int], but_fails: bool = False) -> bool:
        """Tell whether these mistakes together give all answers, but for numbers and facts that need no reason."""
        both = zip(self._made(off), self.answers, strict=True)
        asked = (each for each in both if not (but_fails and isinstance(each[1], Failed)))
        return not any((self.differ([made], [answer]) & self.open).any() for made, answer in asked)

    def _pair(self, marked: dict[Any, Any], rest: Any, *chosen: Any) -> list[Any]:
        """The chosen mistakes and two more, of the rest, which together give all answers.

        Where several pairs do, it is what all of these have, if it gives most of the rest without help.
        """
        flat = np.array([marks.ravel() for marks in marked.values()])
        fits = (flat[:, None] * flat > 0) | ((flat[:, None] + flat > 0) == rest.ravel())
        pairs = ([list(marked)[i], list(marked)[j]] for i, j in np.argwhere(np.triu(fits.all(axis=2), 1)))
        found = [pair for pair in pairs if pair[0][0] != pair[1][0] and self._given_by(*chosen, *pair)]
        common = [off for off in found[0] if all(off[0] in dict(pair) for pair in found)] if found else []
        most = rest[:, 1:].sum() / 2
        sure = len(common) == 2 or any((marked[off][:, 1:] == 1).sum() > most for off in common)
        return [*chosen, *(off for off in common if marked[off].any())] if sure else []

    def _moved(self) -> str:
        """Name the results that stand in each other's place, if that is all."""
        place = {}
        for name in self.names if not self.wrong[:, 0].any() else ():
            here = [(got[name], fine) for got, fine in zip(self.answers, self.rights, strict=True) if name in fine]
            like = [each for each in self.names if all(each in fine and close(got, fine[each]) for got, fine in here)]
            place[name] = name if name in like else next(iter(like), "")
        moved = (f"{name} holds {other}" for name, other in place.items() if name != other)
        return ", ".join(moved) if sorted(place.values()) == sorted(self.names) else ""

    def _about(self, which: Any) -> str:
        return "; ".join(question.about for question, _ in itertools.compress(self.asked, which))

    def facts(self, covered: Any) -> list[str]:
        """All that is known of what no mistake of the table explains."""
        left, wrong, lines = self.wrong & ~covered, self.wrong.any(axis=1), list[str]()
        if left[:, 0].any():
            first = self.asked[int(left[:, 0].argmax())][1]
            if not isinstance(first, Failed):
                return [f"The results are {', '.join(first)}; expected {', '.join(self.rights[0])}."]
            alike = [answer == first for answer in self.answers]
            at = "" if all(alike) else f" with {self._about(alike)}"
            lines.append(f"{first.rstrip('?')}{at}{'?' if first.endswith('?') else '.'}")
        for name, column in zip(self.names, left[:, 1:].T, strict=True):
            pairs = [(self.asked[n][1][name], self.rights[n][name]) for n in np.flatnonzero(column)]
            where = "everywhere" if column.all() else f"everywhere with {self._about(column)}"
            lines += [_kind_of(name, pairs).replace("everywhere", where)] if pairs else []
        if left.any() and not wrong.all():
            lines.append(f"It is right with {self._about(~wrong)}; wrong with {self._about(wrong)}.")
            sizes = ({each.inputs[name].shape[-2] for name in "QK" if name in each.inputs} for each, _ in self.asked)
            if [len(size) == 2 for size in sizes] == wrong.tolist():
                lines.append("Where T and S are alike it is right: look for a swapped axis.")
        return lines

    def results(self) -> str:
        """Name the results that are wrong of several, where some are right."""
        names = [name for name in self.names if name.isidentifier()]
        well, bad = (", ".join(name for name in names if (name in self.bad) == wrong) for wrong in (False, True))
        return f"Right: {well}. Wrong: {bad}." if well and bad else ""

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


def hints(exercise: Exercise, level: int, result: str = "") -> str:
    """The hints up to that level."""
    hint = exercise.text.get("of", {}).get(result, exercise.text["hint"])
    derivation = "Derivation, that of attendax.spec:\n" + re.sub(r"(?<=\S)\n(?=\S)", " ", exercise.derivation)
    return "\n".join([f"Hint: {hint}", f"More: {exercise.text['more']}", derivation][:level])


def _kind_of(name: str, pairs: list[tuple[Any, Any]]) -> str:
    """The difference in kind, if any, of an array from what is expected; wherever it is wrong."""
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
    plain = "" if name.isidentifier() else f"{name}: other numbers come out."
    return f"{name} is {said}." if fits and (not factor or min(abs(factor), abs(factor - 1)) > 1e-3) else plain


def _named(name: str, value: Any) -> str:
    array, head = np.asarray(value), f"  {name} = "
    if array.size > SHOWN:
        return f"  {name}: shape {array.shape}"
    return head + np.array2string(array, precision=4, suppress_small=True, separator=", ", prefix=head)
