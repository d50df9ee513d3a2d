"""Reasons why a learner's answers are wrong: mistakes that reproduce their numbers, or else the facts."""

import functools
import inspect
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from attendax import spec

from . import formulas
from .exercises import MANY, Exercise, Question, texts

CLOSE = 1e-6  # PyTorch divides booleans in float32
MAX_RESULT = 12  # numbers of a result that is shown whole
UNSHOWN = ("blocks", MANY)  # inputs that an example leaves out
PIECES = inspect.getsource(formulas).split("\n\n\n")  # function by function
_compiled = functools.lru_cache(4096)(functools.partial(compile, filename="<formulas>", mode="exec"))
ORDER = "results in another order"  # the one mistake without a text of the formulas
Mistakes = tuple[tuple[str, int], ...]  # each with the number of the way to make it


class ErrorMessage(str):
    """The error of a call without an answer, as a sentence."""


Answer = dict[str, Any] | ErrorMessage


@functools.lru_cache(1024)
def formulas_with(made: Mistakes) -> dict[str, Any]:
    """The functions of a learner who makes these mistakes.

    Raises:
        ValueError: two mistakes replace the same text.
    """
    pieces = list(PIECES)
    for old, new in itertools.chain(*(mistakes()[name]["wrong"][way] for name, way in made)):
        (index,) = (number for number, piece in enumerate(pieces) if old in piece)
        pieces[index] = pieces[index].replace(old, new)
    names: dict[str, Any] = {}
    for piece in pieces:
        exec(_compiled(piece), names)
    return names


def mistakes(exercise: Exercise | None = None) -> dict[str, dict[str, Any]]:
    """The table of mistakes, of all exercises or of one."""
    rows = texts("mistakes").items()
    return {name: row for name, row in rows if exercise is None or exercise.name in row["on"].split()}


def right(exercise: Exercise, question: Question, answer: Answer) -> Answer:
    """The results of the specification; with dropout, for the weights that the learner's function dropped."""
    if "dropped" in exercise.text:
        return answer_with(exercise, question, answer, ())
    results = exercise.call(getattr(spec, exercise.symbol), question.inputs)
    return {name: np.asarray(value) for name, value in results.items()}


def answer_with(exercise: Exercise, question: Question, answer: Answer, made: Mistakes) -> Answer:
    """The results of a learner who makes these mistakes; for a layer only those that a mistake can change."""
    try:
        names = formulas_with(made)
        drops = question.inputs.get("rate", 0) > 0.1 and not isinstance(answer, ErrorMessage)
        dropped = exercise.text["dropped"] if drops else ()
        names["DROPOUT_MASKS"][:] = [np.nan_to_num(answer[name]) != 0 for name in dropped if name in answer]
        formula = names[exercise.symbol]
        with np.errstate(all="ignore"):
            whole = exercise.symbol.islower() or isinstance(formula, type)
            results = exercise.call(formula, question.inputs) if whole else formula(**question.inputs)
    except Exception as error:  # such as shapes that do not match: the learner's function raises as well
        return ErrorMessage(str(error))
    return {name: np.asarray(value) for name, value in results.items()}


def close(one: Any, other: Any) -> bool:
    """Tell whether two arrays have the same shape and numbers; booleans are not numbers."""
    one, other = np.asarray(one), np.asarray(other)
    alike = one.shape == other.shape and (one.dtype == bool) == (other.dtype == bool)
    return alike and bool(_near(one, other).all())


def _near(one: Any, other: Any) -> Any:
    """Mark the numbers that equal those of the other array, within rounding errors of its largest one."""
    one, other = one.astype(float), other.astype(float)
    finite, large = np.isfinite(other), np.abs(other)
    with np.errstate(invalid="ignore"):
        near = finite & (np.abs(one - other) <= CLOSE * (large + large.max(initial=1.0, where=finite)))
    return near | (one == other) | (np.isnan(one) & np.isnan(other))


class Submission:
    """The answers of a learner's function to every question, and the right ones.

    ``wrong`` has a row for each question: whether its call failed, then for each result whether it is wrong.
    """

    def __init__(self, exercise: Exercise, answers: list[Answer]) -> None:
        self.exercise, self.answers = exercise, answers
        self.pairs = list(zip(exercise.questions, answers, strict=True))
        self.rights: list[Any] = [right(exercise, *each) for each in self.pairs]
        self.names = list(dict.fromkeys(itertools.chain(*self.rights)))
        self.wrong = self.differ(answers, self.rights)
        samples = [next(each[name] for each in self.rights if name in each) for name in self.names]
        # Mistakes have to reproduce failures and results, except facts and sizes, which explain themselves.
        self.open = np.array([True, *(value.ndim > 0 and value.dtype.kind != "i" for value in samples)])
        self.bad = list(itertools.compress(self.names, self.wrong[:, 1:].any(axis=0)))
        self.first = int(self.wrong.any(axis=1).argmax())

    def differ(self, ones: list[Any], others: list[Any]) -> Any:
        """Mark the answers that differ, in a row for each question. Two failed calls are equal."""
        rows = []
        for one, other in zip(ones, others, strict=True):
            fails = isinstance(one, ErrorMessage) + isinstance(other, ErrorMessage)
            ended = one != other and "It returns" in one + other if fails == 2 else fails or one.keys() != other.keys()
            names = () if fails or ended else one
            rows.append([bool(ended)] + [name in names and not close(one[name], other[name]) for name in self.names])
        return np.array(rows)

    def _predict(self, made: Mistakes) -> Iterator[Answer]:
        """The answers of a learner who makes these mistakes; a mistake ``apart`` changes only the wrong results."""
        apart = any("apart" in texts("mistakes")[name] for name, _ in made)
        for each, fine in zip(self.pairs, self.rights, strict=True):
            answer = answer_with(self.exercise, *each, made)
            changed = [name for name in answer if name in self.bad or not apart] if isinstance(answer, dict) else ()
            yield answer if isinstance(answer, ErrorMessage) else fine | {name: answer[name] for name in changed}

    def marks(self, made: Mistakes) -> Any:
        """Compare what these mistakes give: 0 if it is right, 1 if it is the learner's answer, 2 if it is neither."""
        answers = list(self._predict(made))
        marks = self.differ(answers, self.rights) * (1 + self.differ(answers, self.answers))
        marks[self.wrong[:, 0], 1:] = 0
        return marks

    def _fit(self, marks: Any, only_fails: bool) -> bool:
        """Tell whether a mistake changes nothing but wrong results, or causes exactly the failed calls."""
        explains = (marks[:, 0] == self.wrong[:, 0]).all() if only_fails else (marks[:, 1:] == 1).any()
        return bool(explains and (marks != 2).all())

    def explained(self) -> tuple[dict[str, tuple[str, str]], Any]:
        """The mistakes, each with its cause and remedy, and the items that they explain.

        They are the fewest that together give the learner's answers. First come mistakes that each reproduce some
        results and leave the others right; else two whose effects meet; else the former and one or two more. A mistake
        is left out if the others explain everything, or if another one could take its place: that may be chance.
        """
        if moved := self._moved():
            return {ORDER: (texts("mistakes")[ORDER]["says"].format(moved), "")}, self.wrong
        table = mistakes(self.exercise)
        ways = ((name, way) for name, row in table.items() for way in range(len(row.get("wrong", ()))))
        marked = {mistake: self.marks((mistake,)) for mistake in ways}
        chosen = self._apart(marked)
        partial = [mistake for mistake in chosen if "part" in table[mistake[0]]]
        if not chosen or len(chosen) > 2 or not self._reproduced_by(*chosen):
            chosen = self._pair(marked, self.wrong) or self._more(marked, chosen) or partial
        chosen = self._sure(marked, chosen)
        covered = np.any([self.wrong & False, *(marked[mistake] > 0 for mistake in chosen)], axis=0)
        chosen.sort(key=lambda mistake: not marked[mistake][self.first].any())  # first those that the example shows
        return {name: cause_and_remedy(table[name]["says"]) for name, _ in chosen}, covered

    def _apart(self, marked: dict[Any, Any]) -> list[Any]:
        """Mistakes that each reproduce a wrong result or leave it right, first the one that explains most."""
        table, chosen, covered = mistakes(self.exercise), list[Any](), np.zeros_like(self.wrong)
        fits = [mistake for mistake, marks in marked.items() if self._fit(marks, "only_fails" in table[mistake[0]])]
        for mistake in sorted(fits, key=lambda mistake: -int((marked[mistake] == 1).sum())):
            if ((marked[mistake] == 1) & ~covered).any():
                chosen, covered = [*chosen, mistake], covered | (marked[mistake] == 1)
        return chosen

    def _more(self, marked: dict[Any, Any], chosen: list[Any]) -> list[Any]:
        """The chosen mistakes and up to two more that together give all answers."""
        rest = self.wrong & ~np.any([self.wrong & False, *(marked[mistake] == 1 for mistake in chosen)], axis=0)
        some = ([*chosen, *more] for more in ([], *([mistake] for mistake in marked)) if chosen)
        enough = next((each for each in some if self._reproduced_by(*each)), [])
        return enough or (chosen and self._pair(marked, rest, *chosen))

    def _sure(self, marked: dict[Any, Any], chosen: list[Any]) -> list[Any]:
        """The mistakes that cannot be left out or replaced.

        A failed call has no results. So a mistake has to be needed for a result, unless it only makes calls fail.
        """
        if not chosen or not self._reproduced_by(*chosen):
            return chosen
        table, needed, names = mistakes(self.exercise), list[Any](), {name for name, _ in chosen}
        others = [[each] for each in marked if each[0] not in names] if len(chosen) > 1 else []
        for mistake in chosen:
            rest = [each for each in chosen if each != mistake]
            own = np.all([marked[mistake] == 1, self.wrong & ~self.open, *(marked[each] == 0 for each in rest)], axis=0)
            idle = self._reproduced_by(*rest, without_failed="only_fails" not in table[mistake[0]])
            idle = idle or any(self._reproduced_by(*rest, *other) for other in others)
            needed += [mistake] if own.any() or not idle else []
        return needed

    def _reproduced_by(self, *made: tuple[str, int], without_failed: bool = False) -> bool:
        """Tell whether these mistakes together give all answers, except facts and sizes that explain themselves."""
        pairs = zip(self._predict(made), self.answers, strict=True)
        compared = (pair for pair in pairs if not (without_failed and isinstance(pair[1], ErrorMessage)))
        return not any((self.differ([answer], [actual]) & self.open).any() for answer, actual in compared)

    def _pair(self, marked: dict[Any, Any], rest: Any, *chosen: Any) -> list[Any]:
        """The chosen mistakes and two more that together give all answers.

        If several pairs do, the result is what all of them contain, if it alone explains most of the rest.
        """
        flat = np.array([marks.ravel() for marks in marked.values()])
        fits = (flat[:, None] * flat > 0) | ((flat[:, None] + flat > 0) == rest.ravel())
        pairs = ([list(marked)[i], list(marked)[j]] for i, j in np.argwhere(np.triu(fits.all(axis=2), 1)))
        possible = [pair for pair in pairs if pair[0][0] != pair[1][0] and self._reproduced_by(*chosen, *pair)]
        first = possible[0] if possible else []
        common = [mistake for mistake in first if all(mistake[0] in dict(pair) for pair in possible)]
        most = rest[:, 1:].sum() / 2
        sure = len(common) == 2 or any((marked[mistake][:, 1:] == 1).sum() > most for mistake in common)
        return [*chosen, *(mistake for mistake in common if marked[mistake].any())] if sure else []

    def _moved(self) -> str:
        """Name the results that have changed places, if that is the only mistake."""
        source = {}
        for name in self.names if not self.wrong[:, 0].any() else ():
            here = [(got[name], fine) for got, fine in zip(self.answers, self.rights, strict=True) if name in fine]
            like = [each for each in self.names if all(each in fine and close(got, fine[each]) for got, fine in here)]
            source[name] = name if name in like else next(iter(like), "")
        moved = (f"{name} holds {other}" for name, other in source.items() if name != other)
        return ", ".join(moved) if sorted(source.values()) == sorted(self.names) else ""

    def _about(self, which: Any) -> str:
        return "; ".join(question.about for question, _ in itertools.compress(self.pairs, which))

    def facts(self, covered: Any) -> list[str]:
        """The facts about wrong answers that no mistake of the table explains."""
        left, wrong, lines = self.wrong & ~covered, self.wrong.any(axis=1), list[str]()
        if left[:, 0].any():
            first = self.pairs[int(left[:, 0].argmax())][1]
            if not isinstance(first, ErrorMessage):
                return [f"The results are {', '.join(first)}; expected {', '.join(self.rights[0])}."]
            alike = [answer == first for answer in self.answers]
            at = "" if all(alike) else f" with {self._about(alike)}"
            lines.append(f"{first.rstrip('?')}{at}{'?' if first.endswith('?') else '.'}")
        for name, column in zip(self.names, left[:, 1:].T, strict=True):
            pairs = [(self.pairs[n][1][name], self.rights[n][name]) for n in np.flatnonzero(column)]
            where = "everywhere" if column.all() else f"everywhere with {self._about(column)}"
            lines += [_kind_of(name, pairs).replace("everywhere", where)] if pairs else []
        if left.any() and not wrong.all():
            lines.append(f"It is right with {self._about(~wrong)}; wrong with {self._about(wrong)}.")
            sizes = ({each.inputs[name].shape[-2] for name in "QK" if name in each.inputs} for each, _ in self.pairs)
            if [len(size) == 2 for size in sizes] == wrong.tolist():
                lines.append("It is right if T = S: look for a swapped axis.")
        return lines

    def results(self) -> str:
        """Name the right and the wrong results of a function with several, if there are both."""
        names = [name for name in self.names if name.isidentifier()]
        right = ", ".join(name for name in names if name not in self.bad)
        wrong = ", ".join(name for name in names if name in self.bad)
        return f"Right: {right}. Wrong: {wrong}." if right and wrong else ""

    def shown(self) -> str:
        """The input, the expected result and the learner's."""
        (question, answer), correct = self.pairs[self.first], self.rights[self.first]
        inputs = {name: each for name, each in question.inputs.items() if each is not None and name not in UNSHOWN}
        head = f"The smallest input with a wrong result ({question.about}):"
        lines = [head, *map(_assignment, inputs, inputs.values())]
        if isinstance(answer, ErrorMessage):
            return "\n".join([*lines, f"  {answer}"])
        name = next(itertools.compress(self.names, self.wrong[self.first, 1:]), self.names[0])
        got, expected = np.asarray(answer.get(name)), correct[name]
        if expected.size > MAX_RESULT and got.shape == expected.shape:
            place = [int(i) for i in np.unravel_index(_near(got, expected).argmin(), got.shape)]
            return "\n".join([*lines, f"  {name} at {place}: expected {expected[*place]:.4g}, got {got[*place]:.4g}"])
        small = max(got.size, expected.size) <= MAX_RESULT
        shown = _assignment if small else lambda name, array: f"  {name}: shape {array.shape}"
        return "\n".join([*lines, shown(f"expected {name}", expected), shown(f"     got {name}", got)])


def cause_and_remedy(explanation: str) -> tuple[str, str]:
    """The explanation of a mistake up to the first ".", ":", ";" or "?", and the rest, which is a hint."""
    cause, mark, remedy = re.split(r"([.:;?])(?: |$)", explanation, maxsplit=1)
    return cause + (mark if mark == "?" else "."), remedy


def hints(exercise: Exercise, level: int, result: str = "", remedies: Sequence[str] = ()) -> str:
    """The first hints: remedies if there are any or else a question, then the steps, then the derivation."""
    first = [f"Hint: {hint}" for hint in remedies or [exercise.text.get("of", {}).get(result, exercise.text["hint"])]]
    derivation = "Derivation, from attendax.spec:\n" + re.sub(r"(?<=\S)\n(?=\S)", " ", exercise.derivation)
    return "\n".join(["\n".join(first), f"More: {exercise.text['more']}", derivation][:level])


def _kind_of(name: str, pairs: list[tuple[Any, Any]]) -> str:
    """The difference in shape, dtype or scale between wrong arrays and the expected ones, if any."""
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
        return f"{name} is {dtype}, and the inputs are float64: a step loses digits."
    if dtype.kind == "b" or not np.any(expected):
        return ""
    some = expected != 0
    factor = float(np.median(got[some] / expected[some]))
    fits = some.sum() > 1 and np.allclose(got, factor * expected, rtol=1e-6, atol=1e-12)
    scale = f"{factor:.6g} times the right result everywhere" if factor else "0 everywhere"
    plain = "" if name.isidentifier() else f"{name}: the numbers differ."
    return f"{name} is {scale}." if fits and (not factor or min(abs(factor), abs(factor - 1)) > 1e-3) else plain


def _assignment(name: str, value: Any) -> str:
    head = f"  {name} = "
    return head + np.array2string(np.asarray(value), precision=4, suppress_small=True, separator=", ", prefix=head)
