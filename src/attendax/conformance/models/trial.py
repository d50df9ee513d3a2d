"""A model on trial: its laws, texts to ask about, answers asked once each, and two results held against each other."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..cases.case import FORWARD, NUMBERS, Case
from ..judge.verdicts import Finding, Verdict
from .blackbox import LONGER, Model, Request

ROUNDING = {"float64": 2**20, "float32": 128.0}  # times the spacing of numbers; of narrower ones the last
NARROW = 8.0
SPACING = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10}
MOST_NOISE = 1e-4  # more than that is not rounding
SLACK = 32.0  # float64 beside float32 is off by all the rounding there is, not by what differs between two orders
Place = tuple[int, int]  # row and position
Places = Sequence[tuple[Place, Place]]  # of the one, and of the other


class Evidence(NamedTuple):
    """Two requests, a place of each, and a relation that has to hold between the two.

    ``one`` may be the numbers (C,) that are right. ``kind`` is "equal", "other", "finite", "zero", "some", or "mean":
    the mean of ``other`` over seeds has ``one`` itself as its part in the direction of ``one``.
    """

    one: Request | np.ndarray
    other: Request
    at: Place
    beside: Place
    allowed: float
    kind: str = "equal"


class Found(NamedTuple):
    """The answer of a law: a verdict, evidence of it, and its usual cause."""

    finding: Finding
    evidence: Evidence | None = None
    usual: str = ""


FINE = Found(Finding(Verdict.OK))


class Law(NamedTuple):
    """One question about a model."""

    law: str  # one of ``MODEL_LAWS``, of which those come first from whose faults others follow
    name: str  # of the question
    about: str  # the question in a sentence
    judge: "Callable[[Trial], Found]"  # answers it of a model
    needs: tuple[str, ...] = ()  # traits without which it cannot be asked
    level: str = FORWARD  # the least that includes it, as of cases
    profile: str = NUMBERS  # the least that includes it

    @property
    def case(self) -> Case:
        """The question as reports have it."""
        return Case(self.name, self.law, self.about, direction=self.level, least=self.profile)


ONCE: Mapping[str, dict[str, Any]] = {"": {}}
SIDES = {"right": {"side": "right"}, "left": {"side": "left"}}  # of padding


class Laws:
    """The questions of a family, each noted where it is answered; called with a model it gives those of that model."""

    def __init__(self, law: str) -> None:
        self.law = law
        self.noted: list[Callable[[Model], list[Law]]] = []

    def ask(
        self, name: str, about: str, *needs: str, of: Any = ONCE, law: str = "", level: str = FORWARD,
        profile: str = NUMBERS,
    ) -> Callable[[Any], Any]:  # fmt: skip
        """Note a question, one for each key of ``of`` (or of what that gives for a model), with further arguments."""

        def note(judge: Any) -> Any:
            def laws(model: Model) -> list[Law]:
                return [
                    Law(law or self.law, name.format(key), about.format(key, model=model), partial(judge, **given),
                        tuple(need.format(key) for need in needs), level, profile)
                    for key, given in (of(model) if callable(of) else of).items()
                ]  # fmt: skip

            self.noted.append(laws)
            return judge

        return note

    def __call__(self, model: Model) -> list[Law]:
        """Every question for a model."""
        return [law for laws in self.noted for law in laws(model)]


class Trial:
    """A model, with its answers."""

    def __init__(self, model: Model, seed: int) -> None:
        self.model, self.seed = model, seed
        self.noise = 0.0
        self.fit: str | None = None  # what the model sees, once that was measured
        self._answers: dict[tuple[object, ...], np.ndarray] = {}

    def ask(self, request: Request) -> np.ndarray:
        """Results (B, T, C), or the gradient (B, T, M)."""
        key = request.key
        if key not in self._answers:
            self._answers[key] = self.model.run(request)
        return self._answers[key]

    def texts(self, rows: int, length: int, *, salt: int = 0) -> np.ndarray:
        """Tokens (rows, length), no two neighbours equal; the same again for the same numbers.

        With a salt, those of vectors have one length.
        """
        rng = np.random.default_rng((self.seed, rows, length, salt))
        known = self.model.known_tokens
        known = known[known < LONGER] if salt and self.model.inputs == "vectors" else known
        found = rng.integers(len(known), size=(rows, length))
        found[:, 1:] += found[:, 1:] == found[:, :-1]
        return known[found % len(known)].astype(np.int32)

    def others(self, tokens: np.ndarray, *, salt: int = 0) -> np.ndarray:
        """Other tokens at each place."""
        known = self.model.known_tokens
        rng = np.random.default_rng((self.seed, *tokens.shape, salt, 1))
        moved = np.searchsorted(known, tokens) + rng.integers(1, len(known), size=tokens.shape)
        return known[moved % len(known)].astype(np.int32)

    def allowed(self, results: np.ndarray) -> np.ndarray:
        """Bounds of the rounding of each position's result: (..., C) -> (...)."""
        size = np.abs(np.where(np.isfinite(results), results, 0)).max(-1, initial=0.0)
        size = np.maximum(size, 1e-3 * size.max(initial=0.0))
        return size * max(self.relative(results), 8 * self.noise)

    def relative(self, results: np.ndarray) -> float:
        """The share of a result that rounding may take."""
        if self.model.bits:
            return 0.0
        return ROUNDING.get(self.model.dtype, NARROW) * SPACING.get(self.model.dtype, 2.0**-7)

    def measure(self) -> None:
        """Note how far a row moves when it is computed with others: rounding, where that is small."""
        tokens = self.texts(3, 9)
        together, alone = self.ask(Request(tokens)), self.ask(Request(tokens[:1]))
        size = np.abs(alone).max(initial=0.0)
        found = float(np.abs(together[:1] - alone).max(initial=0.0) / size) if size else 0.0
        self.noise = found if found < MOST_NOISE and not self.model.bits else 0.0


def distance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The largest difference of each position (..., C) -> (...); infinite where one of the two is not a number."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    apart = np.where(np.isnan(one) & np.isnan(other), 0.0, np.where(np.isnan(apart), np.inf, apart))
    return apart.max(-1, initial=0.0)


def same(
    trial: Trial, one: Request, other: Request, said: str, usual: str, where: Places | np.ndarray | None = None,
    slack: float = 1,
) -> Found:  # fmt: skip
    """Hold two requests against each other, the right one first, and name the first place where they differ.

    ``said`` is the fault in words, and ``usual`` its usual cause. The places are pairs, or True in an array (B, T);
    everywhere unless given. ``slack`` times the rounding is allowed.
    """
    where = np.ones(one.tokens.shape, bool) if where is None else where
    places = [(at, at) for at in true(where)] if isinstance(where, np.ndarray) else where
    expected = trial.ask(one)[tuple(np.array([at for at, _ in places]).T)]
    if np.isnan(expected).any():
        return not_a_number(one, places[int(np.isnan(expected).any(-1).argmax())][0])
    found = equal(trial, expected, other, [beside for _, beside in places], said, usual, slack)
    if found.evidence is None:
        return found
    at = next(at for at, beside in places if beside == found.evidence.beside)
    return found._replace(evidence=found.evidence._replace(one=one, at=at))


def true(where: np.ndarray) -> list[Place]:
    """The places of an array (B, T) that are True."""
    return [(int(row), int(position)) for row, position in np.argwhere(where)]


def equal(
    trial: Trial, expected: np.ndarray, request: Request, at: Sequence[Place], said: str, usual: str, slack: float = 1
) -> Found:
    """Hold the results of a request at places against ``expected`` (places, C); see ``same``."""
    got = trial.ask(request)[tuple(np.array(at).T)]
    apart, allowed = distance(expected, got), slack * trial.allowed(expected)
    wrong = apart > allowed
    if not wrong.any():
        return measured(apart, allowed)
    first = int(wrong.argmax())
    row, position = at[first]
    verdict = Verdict.NAN if np.isnan(got[first]).any() else Verdict.WRONG
    how = "is NaN"
    if verdict is Verdict.WRONG:
        how = f"is off by {apart[first]:.2g}, {beside_rounding(apart[first], allowed[first])}"
    said = f"{said}: row {row}, position {position} {how}"
    finding = measure_of(Finding(verdict, said), expected[first], apart[first], allowed[first], (row, position))
    evidence = Evidence(expected[first], request, at[first], at[first], float(allowed[first]))
    return Found(finding, evidence, usual)


def silent(said: str, one: Request, other: Request, at: Place, allowed: float, usual: str) -> Found:
    """A fault: two requests that have to differ at a place, and do not."""
    return Found(Finding(Verdict.SILENT, said, "out", at), Evidence(one, other, at, at, allowed, "other"), usual)


def not_a_number(request: Request, at: Place) -> Found:
    """A result that is NaN without a reason."""
    finding = Finding(Verdict.NAN, f"row {at[0]}, position {at[1]} is NaN", "out", at)
    return Found(finding, Evidence(request, request, at, at, 0.0, "finite"), "an empty softmax")


def measure_of(finding: Finding, expected: np.ndarray, apart: float, allowed: float, index: tuple[int, ...]) -> Finding:
    """Measure a finding, relative to the size of the result."""
    size = float(np.abs(np.nan_to_num(expected)).max(initial=0.0)) or 1.0
    return finding._replace(leaf="out", index=index, error=float(apart / size), allowed=float(allowed / size))


def measured(apart: np.ndarray, allowed: np.ndarray) -> Found:
    """No fault; the nearest to one."""
    if not apart.size:
        return FINE
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(allowed > 0, apart / allowed, np.where(apart > 0, np.inf, 0.0))
    worst = int(share.argmax())
    return Found(Finding(Verdict.OK, error=float(apart.flat[worst]), allowed=float(allowed.flat[worst])))


def beside_rounding(apart: float, allowed: float) -> str:
    """The size of a difference beside that of rounding."""
    return f"{apart / allowed:.2g} times what rounding may do" if allowed else "where not a bit may differ"
