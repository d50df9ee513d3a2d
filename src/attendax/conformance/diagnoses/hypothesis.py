"""What a hypothesis is: a reason for wrong numbers, and what would be right if it were true."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..cases.case import Inputs, Leaves
from ..judge import right
from ..judge.comparing import Tolerance, compare
from ..judge.trial import Trial

Change = Callable[[Inputs], Inputs | None]
KEY_BLOCKS = (4, 8, 16, 32, 64, 128, 256, 512)
LOOSE = {"float64": 1e-9, "float32": 2e-5, "float16": 2e-2, "bfloat16": 6e-2}
COARSE = {"tf32": "float16", "bf16": "bfloat16"}  # dtypes of so many bits
ON_TOP = "on top of it, "  # of the reason that explains the most
FORWARD, GRADIENT = ("forward", "eager"), ("gradient", "gradient of a loss", "gradient under checkpoint")


class Hypothesis(NamedTuple):
    """A reason, in words, and a function of a trial that gives what the mistaken function would give, or None."""

    name: str
    gives: Callable[[Trial], Leaves | None]
    remedy: str = ""
    change: Change | None = None  # where it is other inputs
    filled: bool = True  # whether rows that it leaves without any key may get the mean of the values
    saved: Callable[[Trial], Leaves | None] | None = None  # the same in a backward whose forward is right

    def after(self, first: "Hypothesis") -> "Hypothesis":
        """The same where another reason, of other inputs, holds as well."""
        mine, other = self.change, first.change
        if other is None:
            return self
        flags = (first.remedy, self.remedy)
        remedy = self.remedy if mine else " ".join(flags) if all(flag.startswith("--") for flag in flags) else ""

        def formula(trial: Trial) -> Leaves | None:
            changed = other(trial.inputs)
            return None if changed is None else self.gives(trial.at(changed))

        def both(inputs: Inputs) -> Inputs | None:
            changed = mine(inputs) if mine else None
            return None if changed is None else other(changed) or changed

        if mine:
            return self._replace(gives=of_inputs(both), remedy=remedy, change=both, filled=False, saved=None)
        return Hypothesis(f"{ON_TOP}{self.name}", formula, remedy)

    def says(self, trial: Trial) -> bool | None:
        """Whether the mistaken function gives what was got, of as many leaves as it can tell; None if it is right."""
        try:
            with np.errstate(all="ignore"):
                said = [_is_given(trial, wanted) for wanted in self._gives_all(trial) if wanted]
        except (ValueError, IndexError, KeyError, TypeError, ArithmeticError):  # it makes no sense of such a call
            return None
        return max((given for given in said if given is not None), default=None)

    def _gives_all(self, trial: Trial) -> Iterator[Leaves | None]:
        """What it gives; where nothing is left to see, also by those who write a low number and get the mean.

        But for a convention that can be declared: then these rows are left to be told.
        """
        if self.saved and trial.case.direction.partition(",")[0] in GRADIENT and "constants" not in trial.inputs.extra:
            yield self.saved(trial)
        wanted = self.gives(trial)
        changed = self.change(trial.inputs) if self.change else None
        if changed is not None and any(np.isnan(x).any() for x in (wanted or {}).values()):
            return  # NaN is like any other NaN
        yield wanted
        if not wanted or changed is None or not self.filled:
            return
        if (right.empty_rows(changed) & ~right.empty_rows(trial.inputs)).any():
            yield right.with_mean_of_values(changed, wanted)


def _is_given(trial: Trial, wanted: Leaves) -> bool | None:
    """Of gradients, each may be right or as it is wanted: one program of a backward may be mistaken, another not."""
    got = {leaf: x for leaf, x in trial.got.items() if leaf in wanted}
    if got.keys() != wanted.keys():
        return None
    truth, loose = trial.expected(), loosely(trial, wanted)
    told = [leaf for leaf in wanted if leaf in truth and wanted[leaf].shape == truth[leaf].shape]
    if told and all(np.allclose(wanted[leaf], truth[leaf], rtol=1e-3, atol=1e-6, equal_nan=True) for leaf in told):
        return None  # it would be right
    right_ones = [leaf for leaf in told if not compare({leaf: got[leaf]}, {leaf: truth[leaf]}, loose).verdict.fails]
    if len(right_ones) == len(wanted):
        return False
    if not any(np.any(got[leaf]) for leaf in wanted if leaf not in right_ones):
        return None  # zeros have a name of their own
    wanted = wanted | {leaf: truth[leaf] for leaf in right_ones if leaf.startswith("grad ")}
    found = compare(got, wanted, loose)
    plainly = compare(got, {leaf: truth[leaf] for leaf in told}, loose)
    nearer = not told or plainly.error is None or (found.error or 0) <= plainly.error / 2  # than to what is right
    return nearer and not found.verdict.fails


def multiplied(trial: Trial) -> str:
    """The dtype whose mantissa the operands of products have: by what was asked, not always their own."""
    return COARSE.get(trial.how.precision, "float32") if trial.dtype == "float32" else trial.dtype


def loosely(trial: Trial, wanted: Leaves) -> dict[str, Tolerance]:
    """A few times what rounding explains: what tells reasons apart is far larger."""
    dtype = multiplied(trial)
    allowed = trial.tolerances(wanted, effort=0 if dtype == "float32" else -1)  # large logits are rounded coarsely
    return {leaf: Tolerance(max(LOOSE[dtype], 2 * t.allowed)) for leaf, t in allowed.items()}


def is_right(trial: Trial, got: Leaves) -> bool:
    """Whether numbers are right, but for rounding."""
    wanted = trial.expected()
    return wanted.keys() <= got.keys() and not compare(got, wanted, loosely(trial, wanted)).verdict.fails


def of_inputs(change: Change) -> Callable[[Trial], Leaves | None]:
    """What is right for other inputs."""

    def gives(trial: Trial) -> Leaves | None:
        inputs = change(trial.inputs)
        return None if inputs is None else trial.expected(inputs)

    return gives


def other(name: str, change: Callable[[Any, Inputs], Any]) -> Change:
    """Another value of an option, or other numbers of an array."""

    def changed(inputs: Inputs) -> Inputs | None:
        given = inputs.arrays if name in inputs.arrays else inputs.options
        x = None if given.get(name) is None else change(given[name], inputs)
        return None if x is None else with_(inputs, **{name: x})

    return changed


def with_(inputs: Inputs, **values: Any) -> Inputs:
    """The inputs with other arrays, or options."""
    arrays = {name: x for name, x in values.items() if name in inputs.arrays}
    options = {name: x for name, x in values.items() if name not in arrays}
    return inputs._replace(arrays=inputs.arrays | arrays, options=inputs.options | options)


def scale_of(inputs: Inputs) -> float:
    """That of a call, given or not."""
    return float(inputs.options.get("scale", inputs.arrays["query"].shape[-1] ** -0.5))


def heads_of(inputs: Inputs) -> tuple[int, int]:
    """N and G; 1 where there is no axis of heads."""
    N, G = (inputs.arrays[name].shape[-3] if inputs.arrays[name].ndim > 2 else 1 for name in ("query", "key"))
    return N, G


def lengths(inputs: Inputs) -> tuple[int, int]:
    """T and S."""
    return inputs.arrays["query"].shape[-2], inputs.arrays["key"].shape[-2]


def allowed(inputs: Inputs) -> np.ndarray:
    """Which pairs may look at each other, in the full shape of the scores."""
    query, key = inputs.arrays["query"], inputs.arrays["key"]
    return np.broadcast_to(right.allowed_pairs(inputs), (*query.shape[:-1], key.shape[-2]))
