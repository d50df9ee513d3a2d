"""Questions to one of two functions for numbers, in its own form, and the distance of two answers."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..worker.errors import Failed
from . import forms, writing
from .forms import Form, Option
from .options import NUMBER, first_kind, is_own

TOLERANCE = 2e-5  # of float32, as a share of the largest number
EPSILON = 2.0**-23  # a weight is off by so much times its score
NARROW = 3 * 2.0**-8  # of bfloat16
GENERAL, ALIKE, SQUARE = (2, 4, 3, 5, 8, 6), (2, 4, 3, 5, 8, 8), (2, 4, 5, 5, 8, 8)  # sizes B, N, T, S, D, V
Answer = tuple[np.ndarray, ...]


class Probe(NamedTuple):
    """Arrays (B, N, T, D), ... and options by their names in attendax."""

    arrays: tuple[np.ndarray, ...]
    options: Mapping[str, Any]
    scores: tuple[float, ...] = ()  # numbers near which all scores lie; any unless given

    @property
    def narrow(self) -> bool:
        """Tell whether it is in bfloat16."""
        return bool(self.arrays[0].dtype != np.float32)

    @property
    def tolerance(self) -> float:
        """The distance up to which two functions are equal, as a share of the largest number."""
        return NARROW if self.narrow else TOLERANCE + 2 * EPSILON * max(map(abs, self.scores), default=0)


class Equality(NamedTuple):
    """The distance of two functions, and the number of cases; ``worst`` is a case in which they differ."""

    cases: int
    apart: float
    worst: Any = None  # a Probe; of layers words
    varied: str = ""  # the values of each size, and the options; then keywords of no known option
    narrow: float = 0.0  # the distance in bfloat16
    refused: tuple[str, ...] = ()  # words for the calls that one of the two refuses

    def __str__(self) -> str:
        equal = f"Equal within {self.apart:.1g}" if self.apart else "Exactly equal"
        narrow = f", in bfloat16 within {self.narrow:.1g}," * (self.narrow > TOLERANCE)
        return f"{equal}{narrow} in {self.cases} cases"


def narrowed(sizes: tuple[int, ...], seed: int, times: int = 1) -> Probe:
    """Arrays in bfloat16; queries are multiplied, so that the shares of keys are apart."""
    query, key, value = arrays(sizes, seed=seed)
    return Probe(tuple(forms.bfloat16(x) for x in (times * query, key, value)), {})


def arrays(sizes: tuple[int, ...], groups: int = 0, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Query, key and value of sizes B, N, T, S, D, V."""
    B, N, T, S, D, V = sizes
    rng = np.random.default_rng((seed, *sizes, groups))
    G = groups or N
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((B, N, T, D), (B, G, S, D), (B, G, S, V)))


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A NumPy function, the form by which it is called, and what else is known of it."""

    fn: Any  # a ``Function``, or a call of an adapter around one
    form: Form
    known: bool = True  # whether its plain call is that of its form
    unknown: Mapping[str, str] = dataclasses.field(default_factory=dict)  # why, by names of keywords
    sizes: tuple[int, ...] = GENERAL  # of its plain call
    several: str = ""  # words for forms that explain it as well as each other

    def by(self, form: Form) -> "Candidate":
        """The function by another form."""
        return dataclasses.replace(self, form=form)

    def around(self, form: Form) -> "Candidate":
        """The function under the adapter by which it is called, and answers, as one of that form."""
        return Candidate(self.fn.adapted(writing.adapter(form, self.form)), dataclasses.replace(form, first=False))

    def right(self, probe: Probe) -> Answer:
        """Results by the conventions of its form; empty arrays where it has none.

        Queries that are read as keys have to be as many. A narrow softmax is that of narrow arrays alone.
        """
        how = self.form.how if probe.narrow else {**self.form.how, "softmax": forms.SOFTMAX[0]}
        with contextlib.suppress(ValueError, IndexError, ZeroDivisionError):
            found = forms.attention(probe.arrays, how, **probe.options)
            if found[0].shape == (*probe.arrays[0].shape[:3], probe.arrays[2].shape[-1]):
                return found
        return (np.empty(0),) * (2 if "return_lse" in probe.options else 1)

    def answer(self, probe: Probe) -> Answer | Failed:
        """Its answer to a probe, whatever it computes, or how it failed."""
        form = dataclasses.replace(self.form.plain(), arrays="numpy", path="", container="", by_position="")
        for k, x in probe.options.items():
            if is_own(k, x) and k in form.options:
                form = form.offering(k, form.options[k]._replace(form=NUMBER))
        options = {k: Option(k if x.name else "", first_kind(k)) for k, x in form.options.items()}
        straight = Form(options=options, grouped=form.grouped, defaults={"is_causal": False})
        given = {k: x for k, x in probe.options.items() if k not in options or options[k].name}

        def fn(*args: Any, **more: Any) -> Any:
            found = self.fn(*args, **more)
            return found if len(found) > 1 and "return_lse" in options else found[0]

        names: dict[str, Any] = {"fn": fn}
        try:
            exec(compile(writing.adapter(straight, form), "adapter.py", "exec"), names)
            found = names["adapted"](*probe.arrays, **given)
        except Failed as failed:
            return failed
        except (ValueError, IndexError, TypeError, AttributeError) as error:  # of a result of another shape
            return Failed.by(error)
        return found if isinstance(found, tuple) else (found,)


def distance(found: Answer, right: Answer, *, some: bool = False) -> float:
    """The largest difference of two results, as a share of the largest number; inf where the shapes or NaN differ.

    ``some``: no number counts where NaN is right.
    """
    if len(found) < len(right) or any(x.shape != y.shape for x, y in zip(found, right, strict=False)):
        return np.inf
    worst = 0.0
    for x, y in zip(found, right, strict=False):
        x, y = x.astype(np.float64), y.astype(np.float64)
        same = (x == y) | (np.isnan(y) & (np.isnan(x) | some))
        apart = np.abs(np.where(same, 0, x) - np.where(same, 0, y))
        size = max(1.0, np.abs(y[np.isfinite(y)]).max(initial=0.0))
        worst = max(worst, float(np.where(np.isnan(apart), np.inf, apart).max(initial=0.0) / size))
    return worst
