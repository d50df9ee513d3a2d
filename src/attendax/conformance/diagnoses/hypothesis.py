"""A hypothesis: a reason for wrong numbers, and what would be right if it were true."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..adapters.implementation import PACKED
from ..cases.case import Inputs, Leaves
from ..conventions import formula
from ..conventions.parts import pairs
from ..conventions.table import ASKS, BACKWARD_AXES, DECLARED, IGNORED, TABLE, python
from ..conventions.values import LAW, Conventions
from ..judge.comparing import Tolerance, compare
from ..judge.trial import Trial

LOOSE = {"float64": 1e-9, "float32": 2e-5, "float16": 2e-2, "bfloat16": 6e-2}
COARSE = {"tf32": "float16", "bf16": "bfloat16"}  # dtypes of so many bits
FORWARD_WAYS, GRADIENT_WAYS = ("forward", "eager"), ("gradient", "gradient of a loss", "gradient under checkpoint")
EMPTYING = ("causal", "offset", "window", "key_lengths", "segments", "mask", "pairs")  # may leave a row without a key
NO_SENSE = (ValueError, IndexError, KeyError, TypeError, ArithmeticError, NotImplementedError)  # of such a call
SLOW_PAIRS = 2**21  # pairs, from which what is right takes a second
LEAVES_OF_QUERIES = ("out", "lse", "grad query")  # the gradients of other keys are not those of the case


class Hypothesis(NamedTuple):
    """A reason, in words, and what a function gives that has it."""

    name: str  # the words
    remedy: str = ""  # what declares or repairs it
    values: tuple[tuple[str, str], ...] = ()  # of the axes of ``conventions``, by which the function computes
    # of what is no convention: what the function gives for a trial, or None
    gives: Callable[[Trial], Leaves | None] | None = None

    def says(self, trial: Trial, *, whole: bool = False) -> bool | None:
        """Tell whether the mistaken function gives what was got, of leaves that it can tell; None if it is right.

        A gradient that is right speaks only against a mistake as a ``whole``.
        """
        truth = trial.expected if self.gives else trial.by_convention
        said = [attempt(_is_given, trial, wanted, truth(), whole) for wanted in self._wanted(trial)]
        return max((given for given in said if given is not None), default=None)

    def _wanted(self, trial: Trial) -> Iterator[Leaves]:
        """Its results; in a backward also those where the forward is right, and has saved lse and delta.

        A row that is left without any key by it may get the mean of the values or NaN: not where its value can be
        declared, so that these rows are left to be told.
        """
        if gives := self.gives:
            yield from filter(None, [attempt(gives, trial)])
            return
        declared, axes = trial.declared, dict(self.values)
        conventions = declared.but(**axes)
        if conventions == declared or not self.matters(trial):
            return
        ways: list[tuple[Conventions, Conventions | None]] = [(conventions, None)]
        if is_backward(trial) and not axes.keys() <= set(BACKWARD_AXES):
            ways = [(conventions, declared), *ways]
        may_empty = axes.keys() & set(EMPTYING) and "empty" not in axes and not self.remedy
        if may_empty and attempt(_empties, trial, conventions, declared):
            ways += [(conventions.but(empty=DECLARED[empty]), None) for empty in ("mean", "nan")]
        yield from filter(None, (attempt(_leaves, trial, *way) for way in ways))

    def is_ignored(self, trial: Trial) -> bool:
        """Tell whether all is as if an option were not given: the judge says so, and where that is so.

        Without this a function that keeps the state of an earlier call would ignore the option.
        """
        if IGNORED not in dict(self.values).values():
            return False
        found = _leaves(trial, trial.declared.but(**dict(self.values)))
        return bool(_is_given(trial, found, trial.expected()))

    def matters(self, trial: Trial) -> bool:
        """Tell whether one of its axes may make a difference there."""
        return any(_matters(axis, trial) for axis in self.axes)

    def changes(self, trial: Trial) -> bool | None:
        """Tell whether its results differ there from the right ones, by more than the tolerance; None if unknown."""
        if self.values and not self.matters(trial):
            return False
        said = self.differences(trial, times=0.5)
        return None if not said or None in said else any(said)

    def differences(self, trial: Trial, times: float = 1.0) -> list[bool | None]:
        """Tell of each of its results whether it differs from the right one by so many tolerances; None if unknown."""
        truth = trial.expected() if self.gives else trial.by_convention()
        return [attempt(_differs, trial, wanted, truth, times) for wanted in self._wanted(trial)]

    @property
    def axes(self) -> set[str]:
        """The axes of its values."""
        return {axis for axis, _ in self.values}

    def after(self, first: "Hypothesis") -> "Hypothesis":
        """The hypothesis where another reason holds as well."""
        return first.beside(self)._replace(name=self.name)

    def beside(self, other: "Hypothesis") -> "Hypothesis":
        """Two reasons at once."""
        flags = [flag for flag in (self.remedy, other.remedy) if flag]
        remedy = "".join(flags) if len(flags) < 2 else " ".join(flags) if all(x[:2] == "--" for x in flags) else ""
        return Hypothesis(f"{self.name}; {other.name}", remedy, (*self.values, *other.values))


def attempt(function: Callable[..., Any], *given: Any) -> Any:
    """A result; None where the call makes no sense."""
    with contextlib.suppress(*NO_SENSE), np.errstate(all="ignore"):
        return function(*given)
    return None


def _differs(trial: Trial, wanted: Leaves, truth: Leaves, times: float) -> bool:
    return not is_near(trial, wanted, {leaf: truth[leaf] for leaf in wanted}, times)


def _matters(axis: str, trial: Trial) -> bool:
    """Tell whether an axis may make a difference there."""
    inputs = trial.inputs
    if axis in BACKWARD_AXES and "cotangent" not in inputs.extra:
        return False
    asks = ASKS.get(axis, ())
    return not asks or any(x in inputs.arrays or formula.is_given(inputs.options.get(x)) for x in asks)


def _leaves(trial: Trial, conventions: Conventions, saved: Conventions | None = None) -> Leaves:
    found = trial.by(conventions, saved)
    if all(np.isnan(x).all() for x in found.values()) and formula.Steps(trial.inputs, conventions).seen.any():
        return {}  # NaN is like any other NaN
    return found


def _empties(trial: Trial, conventions: Conventions, declared: Conventions) -> bool:
    """Tell whether it leaves rows without any key that have one."""
    seen, before = (formula.Steps(trial.inputs, x).seen.any(axis=-1) for x in (conventions, declared))
    return bool((before & ~seen).any())


def of_table(numbers: Mapping[str, str]) -> list[Hypothesis]:
    """A hypothesis for each value of each axis, and for the ``numbers`` that were solved for."""
    found = []
    for axis, values in TABLE.items():
        known = {line.text.replace(" ", "") for line in values.values()}
        solved = [numbers[axis]] if python(numbers.get(axis, "")).replace(" ", "") not in {*known, ""} else []
        for value in (*values, *solved):
            line = LAW.but(**{axis: value}).line(axis)
            if line.words:
                found.append(Hypothesis(line.words, line.flag.format(axis=axis, value=value), ((axis, value),)))
    return found


def _with_keys(inputs: Inputs, change: Callable[[np.ndarray], np.ndarray]) -> Inputs:
    return inputs._replace(arrays=inputs.arrays | {name: change(inputs.arrays[name]) for name in ("key", "value")})


# Behind each packed sequence is one of its first token alone, as ``against.options.VARLEN`` has it.


def _short(x: np.ndarray) -> np.ndarray:
    return x[..., :1, :]


def _before(inputs: Inputs) -> Inputs:
    def longer(x: np.ndarray) -> np.ndarray:
        first = np.concatenate([x[:1], 0 * x[:1, ..., :1, :]], axis=-2)
        return np.concatenate([first, np.concatenate([_short(x)[:-1, ..., -1:, :], x[1:]], axis=-2)])

    B, S = len(inputs.arrays["query"]), inputs.arrays["key"].shape[-2]
    ends = np.array([S] + [S + 1] * (B - 1), "int32")  # there is none before the first
    return _with_keys(inputs, longer)._replace(options=inputs.options | {"key_lengths": ends})


def _behind(inputs: Inputs) -> Inputs:
    return _with_keys(inputs, lambda x: np.concatenate([x, x[..., :1, :]], axis=-2))


def _at_queries(inputs: Inputs) -> Inputs:
    T = inputs.arrays["query"].shape[-2]

    def cut(x: np.ndarray) -> np.ndarray:
        packed = np.concatenate([part for row in x for part in (row, _short(row))], axis=-2)
        begins = np.arange(len(x)) * (T + min(T, 1))
        return np.stack([packed[..., begin : begin + T, :] for begin in begins])

    return _with_keys(inputs, cut)


def _of_pack(change: Callable[[Inputs], Inputs], trial: Trial) -> Leaves | None:
    if trial.implementation.layout != PACKED:
        return None
    return {leaf: x for leaf, x in trial.expected(change(trial.inputs)).items() if leaf in LEAVES_OF_QUERIES}


OF_PACKS = [  # of functions of packed sequences
    Hypothesis(name, gives=functools.partial(_of_pack, change))
    for name, change in {
        "a packed sequence sees the last key of the one before it": _before,
        "a packed sequence sees the first key of the one behind it": _behind,
        "keys of packed sequences are cut at cu_seqlens_q, not at cu_seqlens_k": _at_queries,
    }.items()
]


def _is_given(trial: Trial, wanted: Leaves, truth: Leaves, whole: bool = False) -> bool | None:
    """Leaves of gradients: each may be right or as it is wanted; one program of a backward may be mistaken alone."""
    got = {leaf: x for leaf, x in trial.got.items() if leaf in wanted}
    if got.keys() != wanted.keys():
        return None
    loose = loosely(trial, wanted)
    told = [leaf for leaf in wanted if leaf in truth and wanted[leaf].shape == truth[leaf].shape]
    by_it, right = ({leaf: x[leaf] for leaf in told} for x in (wanted, truth))
    near = all(np.allclose(by_it[leaf], right[leaf], rtol=1e-3, atol=1e-6, equal_nan=True) for leaf in told)
    if told and near and is_near(trial, by_it, right):
        return True if _tells(trial, got, by_it, right) else None  # it would be right
    right_ones = [leaf for leaf in told if not compare({leaf: got[leaf]}, {leaf: truth[leaf]}, loose).verdict.fails]
    if len(right_ones) == len(wanted):
        return None if _is_nearer(got, by_it, right, loose) else False
    others = [leaf for leaf in wanted if leaf not in right_ones]
    none_wanted = all(leaf == "out" and not np.any(wanted[leaf]) for leaf in others)
    if not none_wanted and not any(np.any(got[leaf]) for leaf in others):
        return None  # zeros have a name of their own
    if not whole:
        wanted = wanted | {leaf: truth[leaf] for leaf in right_ones if leaf.startswith("grad ")}
    if _is_nearer(got, wanted, {leaf: truth[leaf] for leaf in told}, loose):
        return True
    return None if any(np.isnan(x).any() for x in wanted.values()) else False  # inf - inf is no number of a function's


def _is_nearer(got: Leaves, wanted: Leaves, right: Leaves, allowed: dict[str, Tolerance]) -> bool:
    """Tell whether a result is what is wanted, and differs from what is right by twice as much at least."""
    found, plainly = compare(got, wanted, allowed), compare(got, right, allowed)
    return not found.verdict.fails and (not right or plainly.error is None or (found.error or 0) <= plainly.error / 2)


def _tells(trial: Trial, got: Leaves, by_it: Leaves, right: Leaves) -> bool:
    """Tell whether rounding explains how a result differs from what is as near to right, and not how from right."""
    if all(np.array_equal(x, right[leaf], equal_nan=True) for leaf, x in by_it.items()):
        return False
    mine, any_error = {leaf: got[leaf] for leaf in by_it}, dict.fromkeys(right, Tolerance(np.inf))
    plainly, found = (compare(mine, wanted, any_error) for wanted in (right, by_it))
    if plainly.verdict.fails or found.verdict.fails or not (found.error or 0) < (plainly.error or 0) / 4:
        return False  # without the tolerances, which take long
    allowed = trial.tolerances(right)
    plainly, found = (compare(mine, wanted, allowed) for wanted in (right, by_it))
    return plainly.verdict.fails and not found.verdict.fails and (found.error or 0) <= (plainly.error or 0) / 4


def multiplied(trial: Trial) -> str:
    """The dtype whose mantissa the operands of products have: by what was asked, not always their own."""
    return COARSE.get(trial.how.precision, "float32") if trial.dtype == "float32" else trial.dtype


def loosely(trial: Trial, wanted: Leaves) -> dict[str, Tolerance]:
    """A few times what rounding explains: what tells reasons apart is far larger."""
    dtype, kept = multiplied(trial), trial.loose
    if not wanted.keys() <= kept.keys():
        allowed = trial.tolerances(wanted, effort=0 if dtype == "float32" else -1)  # large logits are rounded coarsely
        kept |= {leaf: Tolerance(max(LOOSE[dtype], 2 * t.allowed)) for leaf, t in allowed.items()}
    return {leaf: kept[leaf] for leaf in wanted}


def is_near(trial: Trial, got: Leaves, wanted: Leaves, times: float = 1.0) -> bool:
    """Tell whether rounding, or so many times as much, explains how two results differ."""
    allowed = {leaf: Tolerance(times * t.allowed) for leaf, t in loosely(trial, wanted).items()}
    return not compare(got, wanted, allowed).verdict.fails


def is_right(trial: Trial, got: Leaves) -> bool:
    """Tell whether numbers are right, except for rounding."""
    return is_near(trial, got, trial.expected())


def is_backward(trial: Trial) -> bool:
    """Tell whether the gradients of one call are asked."""
    return trial.case.direction.partition(",")[0] in GRADIENT_WAYS


def pairs_of(trial: Trial) -> int:
    """The number of pairs of a query and a key in its inputs."""
    return pairs(trial.inputs)


def lengths(trial: Trial) -> tuple[Any, ...]:
    """T and S."""
    return tuple(trial.inputs.arrays[name].shape[-2] for name in ("query", "key"))
