"""Questions to one of two functions for numbers, in its own form, and the distance of two answers."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..worker.errors import Failed
from . import writing
from .forms import Form, Option
from .options import NUMBER, first_kind, is_own

TOLERANCE = 2e-5  # of float32, as a share of the largest number
NARROW = 3 * 2.0**-8  # of bfloat16
Call = Callable[..., tuple[np.ndarray, ...]]


class Probe(NamedTuple):
    """Arrays (B, N, T, D), ... and options by their names in attendax."""

    arrays: tuple[np.ndarray, ...]
    options: Mapping[str, Any]
    said: str = ""


def arrays(sizes: tuple[int, ...], groups: int = 0, seed: int = 0, dtype: Any = np.float32) -> tuple[np.ndarray, ...]:
    """Query, key and value of sizes B, N, T, S, D, V."""
    B, N, T, S, D, V = sizes
    rng = np.random.default_rng((seed, *sizes, groups))
    G = groups or N
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in ((B, N, T, D), (B, G, S, D), (B, G, S, V)))


def caller(a: Form, b: Form, fn: Call) -> Callable[..., Any]:
    """The adapter from one form to another, around a function that takes arrays of NumPy."""
    text = writing.adapter(a, dataclasses.replace(b, arrays="numpy", path="somewhere:fn"))
    names: dict[str, Any] = {}
    exec(compile(text.replace("from somewhere import fn as fn\n", ""), "adapter.py", "exec"), names)

    def single(*args: Any, **options: Any) -> Any:
        found = fn(*args, **options)
        return found if len(found) > 1 else found[0]

    names["fn"] = single
    return names["adapted"]


def ask(fn: Call, form: Form, probe: Probe) -> tuple[np.ndarray, ...]:
    """The answer of a function of that form to a probe; raises Failed where it raises."""
    for k, x in probe.options.items():
        if is_own(k, x) and k in form.options:
            form = form.offering(k, form.options[k]._replace(form=NUMBER))
    options = {k: Option(k if x.name else "", first_kind(k)) for k, x in form.options.items()}
    straight = Form(options=options, how=form.how, grouped=form.grouped, defaults={"is_causal": False})
    given = {k: x for k, x in probe.options.items() if k not in options or options[k].name}
    try:
        found = caller(straight, form, fn)(*probe.arrays, **given)
    except (ValueError, IndexError, TypeError, AttributeError) as error:  # of a result of another shape
        raise Failed.by(error) from error
    return found if isinstance(found, tuple) else (found,)


def alike(found: tuple[np.ndarray, ...], right: tuple[np.ndarray, ...], tolerance: float = TOLERANCE) -> bool:
    """Tell whether two results are the same numbers, but for rounding."""
    return distance(found, right) <= tolerance


def distance(found: tuple[np.ndarray, ...], right: tuple[np.ndarray, ...]) -> float:
    """The largest difference of two results, as a share of the largest number; inf where the shapes or NaN differ."""
    if len(found) < len(right) or any(x.shape != y.shape for x, y in zip(found, right, strict=False)):
        return np.inf
    worst = 0.0
    for x, y in zip(found, right, strict=False):
        x, y = x.astype(np.float64), y.astype(np.float64)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        apart = np.abs(np.where(same, 0, x) - np.where(same, 0, y))
        size = max(1.0, np.abs(y[np.isfinite(y)]).max(initial=0.0))
        worst = max(worst, float(np.where(np.isnan(apart), np.inf, apart).max(initial=0.0) / size))
    return worst
