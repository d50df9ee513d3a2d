"""A model on trial: its laws, texts to ask about, answers asked once each, and two results held against each other."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..cases.case import FORWARD, NUMBERS, Case
from ..judge.verdicts import Finding, Verdict
from ..worker.errors import Failed
from .blackbox import LONGER, Computation, Model

ROUNDING = {"float64": 2**20, "float32": 128.0}  # times the spacing of numbers; of narrower ones the last
NARROW_ROUNDING, NARROW_DTYPES = 8.0, ("bfloat16", "float16")  # the coarsest first
SPACING = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10}
FAINT = 10.0  # times what can be told: where tokens move another position by less, nothing tells what is seen
PARTS = "dtypes of parts"  # what is read of a model in place of results
WIDE = "float64"  # the way of running in which a silence of a narrow dtype is asked about again
MOST_NOISE = 1e-4  # more than that is not rounding
Place = tuple[int, int]  # row and position
Places = Sequence[tuple[Place, Place]]  # of the one, and of the other


class Evidence(NamedTuple):
    """Two requests, a place of each, and a relation that has to hold between the two.

    ``one`` may be the numbers (C,) that are right. ``kind`` is "equal", "other", "finite", "zero", "some", or "mean":
    the mean of ``other`` over seeds has ``one`` itself as its part in the direction of ``one``.
    """

    one: Computation | np.ndarray
    other: Computation
    at: Place
    beside: Place
    allowed: float
    kind: str = "equal"


class Found(NamedTuple):
    """The answer of a law: a verdict, evidence of it, and its usual cause."""

    finding: Finding
    evidence: Evidence | None = None
    usual: str = ""

    @property
    def verdict(self) -> Verdict:
        """The verdict of its finding."""
        return self.finding.verdict


FINE = Found(Finding(Verdict.OK))


class Untold(NotImplementedError):
    """The dtype of the results, or the weights of the model, hide what a question asks about."""


class Law(NamedTuple):
    """One question about a model, as reports have it, and the function that answers it."""

    case: Case
    judge: "Callable[[Answers], Found]"


LAWS: list[Callable[[Model], list[Law]]] = []  # the questions for a model, each noted where it is answered
OF_LAWS = {"dropout": "ways"}  # the law of questions whose names begin with another word
ONCE: Mapping[str, dict[str, Any]] = {"": {}}
SIDES = {"right": {"side": "right"}, "left": {"side": "left"}}  # of padding


def ask(
    name: str, about: str, *needs: str, of: Any = ONCE, level: str = FORWARD, profile: str = NUMBERS
) -> Callable[[Any], Any]:
    """Note a question, one for each key of ``of`` (or of what that gives for a model), with further arguments.

    ``needs`` are traits without which it cannot be asked; its name begins with its law.
    """

    def note(judge: Any) -> Any:
        word = name.replace(",", ":").partition(":")[0]

        def laws(model: Model) -> list[Law]:
            found = []
            for key, given in (of(model) if callable(of) else of).items():
                case = Case(name.format(key), OF_LAWS.get(word, word), about.format(key, model=model), direction=level,
                            needs=tuple(need.format(key) for need in needs), least=profile)  # fmt: skip
                found.append(Law(case, functools.partial(judge, **given)))
            return found

        LAWS.append(laws)
        return judge

    return note


class Answers:
    """A model, with its answers; ``way`` is how it is run where a request names none."""

    def __init__(self, model: Model, seed: int, way: str = "") -> None:
        self.model, self.seed, self.way = model, seed, way
        self.dtype = "float32" if way else model.dtype  # a copy in float64 may compute parts in float32
        self.fit: tuple[str, bool] | None = None  # what the model sees, and if causal, once that was measured
        self.wrote: list[str] = []  # the arrays of its caller that it wrote to in any call
        self._answers: dict[tuple[object, ...], np.ndarray] = {}
        self.rounding = self._rounding()

    def ask(self, request: Computation) -> np.ndarray:
        """Results (B, T, C), or the gradient (B, T, M)."""
        plain = request.weights is None and not request.chunks and not request.read
        self._refuse_longer(request)
        request = request._replace(way=request.way or self.way) if plain else request
        key = request.key
        if key not in self._answers:
            self._answers[key], wrote = self.model.run(request)
            self.wrote = list(dict.fromkeys(self.wrote + wrote))
        return self._answers[key]

    def _refuse_longer(self, request: Computation) -> None:
        """Say that a model takes fewer tokens, or has fewer places, than a question has."""
        places = request.options.get("positions", np.zeros(1, int)).max(initial=0) + 1
        asked, longest = max(request.tokens.shape[1], int(places)), self.model.longest
        if longest is not None and asked > longest:
            raise NotImplementedError(f"it takes {longest} tokens, and this asks for {asked}")

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
        return np.maximum(size, 1e-3 * size.max(initial=0.0)) * self.rounding

    @property
    def narrow(self) -> bool:
        """True where the results have so few digits that what a token does may be lost in them."""
        return self.dtype in NARROW_DTYPES and not self.model.bits

    @property
    def finer(self) -> float:
        """Spacings of numbers that rounding may take, in a narrow dtype; else 1: what shows is more than rounding."""
        return self.rounding / SPACING.get(self.dtype, 2.0**-7) if self.narrow else 1.0

    @functools.cached_property
    def inner(self) -> str:
        """The coarsest narrow dtype in which parts are computed; empty without one, or if nothing tells."""
        with contextlib.suppress(Failed, NotImplementedError):
            has = self.ask(Computation(self.texts(1, min(3, self.model.longest or 3)), read=PARTS))
            return next((name for name, x in zip(NARROW_DTYPES, has, strict=True) if x), "")
        return ""

    @functools.cached_property
    def wide(self) -> "Answers | None":
        """Give the same model in float64, if its results are narrow and it can be converted."""
        if not self.narrow or "results" not in self.model.ways.get(WIDE, ()):
            return None
        found = Answers(self.model, self.seed, WIDE)
        with contextlib.suppress(Failed, NotImplementedError):
            found.ask(Computation(self.texts(2, 3)))
            return found
        return None

    def _rounding(self) -> float:
        """The share of a result that rounding may take; at least what moves a row when it is computed with others."""
        if self.model.bits:
            return 0.0
        noise = 0.0
        with contextlib.suppress(Failed):  # the laws say so
            tokens = self.texts(3, self.model.lengths((9,))[0])
            together, alone = self.ask(Computation(tokens)), self.ask(Computation(tokens[:1]))
            self.dtype = next((x for x in NARROW_DTYPES if _are_of(x, together)), self.dtype)
            size = np.abs(alone).max(initial=0.0)
            noise = float(np.abs(together[:1] - alone).max(initial=0.0) / size) if size else 0.0
        spacing = ROUNDING.get(self.dtype, NARROW_ROUNDING) * SPACING.get(self.dtype, 2.0**-7)
        return max(spacing, 8 * noise if noise < MOST_NOISE else 0.0)

    def same(
        self, one: Computation | np.ndarray, other: Computation, said: str, usual: str,
        where: Places | np.ndarray | None = None, slack: float = 1,
    ) -> Found:  # fmt: skip
        """Hold two requests against each other, the right one first, and name the first place where they differ.

        ``one`` may be the results (B, T, C) that are right; ``said`` is the fault in words, and ``usual`` its usual
        cause. The places are pairs, or True in an array (B, T); everywhere unless given. ``slack`` times the rounding
        is allowed.
        """
        where = np.ones(other.tokens.shape, bool) if where is None else where
        places = [(at, at) for at in true(where)] if isinstance(where, np.ndarray) else where
        results = self.ask(one) if isinstance(one, Computation) else one
        expected = results[tuple(np.array([at for at, _ in places]).T)]
        if isinstance(one, Computation) and np.isnan(expected).any():
            return not_a_number(one, places[int(np.isnan(expected).any(-1).argmax())][0])
        got = self.ask(other)[tuple(np.array([beside for _, beside in places]).T)]
        apart, allowed = distance(expected, got), slack * self.allowed(expected)
        if not (wrong := apart > allowed).any():
            return measured(apart, allowed)
        self._refuse_coarse(apart, allowed / slack)
        k = int(wrong.argmax())
        verdict, how = Verdict.NAN, "is NaN"
        if not np.isnan(got[k]).any():
            verdict, how = Verdict.WRONG, f"is off by {apart[k]:.2g}, {beside_rounding(apart[k], allowed[k])}"
        (at, beside), right = places[k], one if isinstance(one, Computation) else expected[k]
        said = f"{said}: row {beside[0]}, position {beside[1]} {how}"
        evidence = Evidence(right, other, at, beside, float(allowed[k]))
        return fault(verdict, said, usual, evidence, apart[k], expected[k])

    def _refuse_coarse(self, apart: np.ndarray, allowed: np.ndarray) -> None:
        """Say that a difference cannot be told where it is within the rounding of parts of a narrow dtype."""
        if not self.rounding or self.narrow or not self.inner:
            return
        coarse = NARROW_ROUNDING * SPACING.get(self.inner, 2.0**-7) / self.rounding
        if (apart <= allowed * coarse).all():
            raise Untold(f"it cannot be told: parts are computed in {self.inner}, which may round by as much")

    def share(self, one: Computation, other: Computation, position: int) -> float:
        """The distance of two requests at a position of any row, beside rounding."""
        before = self.ask(one)
        apart, allowed = distance(before, self.ask(other))[:, position], self.allowed(before)[:, position]
        return float(np.divide(apart, allowed, out=np.full(apart.shape, np.inf), where=allowed > 0).max())

    def differ(self, one: Computation, other: Computation, said: str, usual: str, position: int | None = None) -> Found:
        """Hold two requests that have to differ against each other: anywhere, or at a position of any row."""
        before, places = self.ask(one), slice(None) if position is None else [position]
        allowed, apart = self.allowed(before), distance(before, self.ask(other))
        if (apart > allowed)[:, places].any():
            return FINE
        if self.narrow and apart[:, places].any():
            raise Untold(f"in {self.dtype} it cannot be told: what changes is within rounding")
        return silent(said, one, other, (0, position or 0), float(allowed[0, position or 0]), usual)


def _are_of(dtype: str, results: np.ndarray) -> bool:
    """Tell whether all numbers are of a narrow dtype, and not all are whole: that of the model, whatever holds them."""
    narrow = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    with np.errstate(all="ignore"):
        kept = np.array_equal(results, results.astype(narrow).astype(results.dtype), equal_nan=True)
    return kept and bool((results != np.rint(results)).any())


def distance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The largest difference of each position (..., C) -> (...); infinite where one of the two is not a number."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(one.astype(np.float64) - other.astype(np.float64))
    apart = np.where(np.isnan(one) & np.isnan(other), 0.0, np.where(np.isnan(apart), np.inf, apart))
    return apart.max(-1, initial=0.0)


def true(where: np.ndarray) -> list[Place]:
    """The places of an array (B, T) that are True."""
    return [(int(row), int(position)) for row, position in np.argwhere(where)]


def first(founds: Iterable[Found]) -> Found:
    """The first fault, else the last answer."""
    for found in founds:
        if found.verdict.fails:
            break
    return found


def fault(
    verdict: Verdict, said: str, usual: str, evidence: Evidence, apart: float | None = None,
    expected: np.ndarray | None = None, leaf: str = "out",
) -> Found:  # fmt: skip
    """A fault in words, with its usual cause; how far it is off, relative to the size of what is expected."""
    finding = Finding(verdict, said, leaf, evidence.beside)
    if apart is not None:
        size = 1.0 if expected is None else float(np.abs(np.nan_to_num(expected)).max(initial=0.0)) or 1.0
        finding = finding._replace(error=float(apart / size), allowed=float(evidence.allowed / size))
    return Found(finding, evidence, usual)


def silent(said: str, one: Computation, other: Computation, at: Place, allowed: float, usual: str) -> Found:
    """A fault: two requests that have to differ at a place, and do not."""
    return fault(Verdict.SILENT, said, usual, Evidence(one, other, at, at, allowed, "other"))


def refuse_faint(share: float) -> None:
    """Say that what is seen cannot be told, where a token moves another position by little beside rounding."""
    if share < FAINT:
        raise Untold(f"no token moves another position by more than {share:.1f} times what rounding does")


def not_a_number(request: Computation, at: Place, usual: str = "an empty softmax") -> Found:
    """A result that is NaN without a reason."""
    evidence = Evidence(request, request, at, at, 0.0, "finite")
    return fault(Verdict.NAN, f"row {at[0]}, position {at[1]} is NaN", usual, evidence)


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
    return f"which is {apart / allowed:.2g} times the allowed rounding" if allowed else "where no bit may differ"
