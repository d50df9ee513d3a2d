"""Inputs on which two functions are compared: small ones that show a difference, and many that have to show none."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..worker.errors import Failed
from . import forms, ways
from .asking import NARROW, TOLERANCE, Call, Probe, arrays, ask, distance
from .forms import Form, Option

SMALL = (
    (1, 1, 1),
    (1, 2, 1),
    (2, 1, 1),
    (2, 2, 1),
    (1, 2, 2),
    (2, 3, 1),
    (3, 2, 1),
    (4, 1, 1),
    (3, 3, 2),
    (3, 5, 4),
    (4, 4, 4),
)  # T, S, D


LONG = 150  # tokens, beyond blocks of 128


class Equality(NamedTuple):
    """How far two functions are apart in how many cases; ``worst`` is a case in which they differ.

    Attributes:
        varied: the values of each size, and the options.
    """

    cases: int
    apart: float
    worst: Probe | None = None
    narrow: int = 0
    varied: str = ""


def no_key(t: int, s: int) -> np.ndarray:
    """A mask that forbids all."""
    return np.zeros((1, 1, t, s), bool)


def _mask(t: int, s: int) -> np.ndarray:
    return (np.arange(s)[None, None, None] < max(s - 1, 1)) & np.ones((1, 1, t, 1), bool)


VALUES: dict[str, Any] = {
    "mask": _mask,
    "is_causal": True,
    "window": 1,
    "scale": 0.25,
    "softcap": 0.5,
    "bias": lambda t, s: np.broadcast_to(np.arange(1.0, s + 1, dtype=np.float32), (1, 1, t, s)).copy(),
    "return_lse": True,
}


def asking(*names: str) -> list[Probe]:
    """Small inputs with those options."""
    return list(small({name: VALUES[name] for name in names}))


def small(options: Mapping[str, Any], *, heads: int = 1, groups: int = 0, tall: bool = False) -> Iterator[Probe]:
    """Inputs of small whole numbers, the smallest first."""
    for t, s, d in SMALL:
        if tall and "mask" not in options and t <= s:
            continue
        rng = np.random.default_rng((t, s, d))
        shapes = (1, heads, t, d), (1, groups or heads, s, d), (1, groups or heads, s, d if d > 2 else 1)
        drawn = tuple(rng.integers(-1, 3, shape).astype(np.float32) for shape in shapes)
        drawn[2][:] = np.arange(1, drawn[2].size + 1).reshape(drawn[2].shape)
        given = {k: x(t, s) if callable(x) else x for k, x in options.items()}
        yield Probe(drawn, given)


def narrow() -> list[Probe]:
    """Inputs in bfloat16."""
    import ml_dtypes

    found = []
    for k, sizes in enumerate(((1, 1, 1, 2, 1, 1), (1, 1, 1, 2, 4, 1), (1, 1, 2, 3, 8, 1), (1, 2, 3, 5, 8, 6))):
        some = arrays(sizes, seed=k)
        found.append(Probe(tuple((x * f).astype(ml_dtypes.bfloat16) for x, f in zip(some, (8, 1, 1), strict=True)), {}))
    return found


def shown(a: Call, b: Call, one: Form, other: Form, axes: Iterable[str], probes: Iterable[Probe]) -> str:
    """The first input that shows what the values of some axes are: each function does there what its form says.

    The two differ by nothing else there, if there is such an input; else what A would give with B's values is told.
    """
    theirs_in_place = one.but(**{axis: other.how[axis] for axis in axes})
    beside = ""
    for probe in itertools.chain.from_iterable((x, _without_scores(x)) for x in probes):
        mine, theirs, wanted = (_right(probe, form) for form in (one, other, theirs_in_place))
        empty = [x for x in forms.EMPTY if x != one.how["empty"]] if axes == ("empty",) else []
        if not _apart(mine, wanted) or not all(_apart(_right(probe, one.but(empty=x)), mine) for x in empty):
            continue
        try:
            found = ask(a, _plain(one), probe), ask(b, _plain(other), probe)
        except Failed:
            continue
        if _apart(found[0], mine) or _apart(found[1], theirs):
            continue
        if not _apart(theirs, wanted):
            return f"{told(probe, one)}: A gives {_number(*found)}, B {_number(*found[::-1])}"
        beside = beside or (
            f"{told(probe, one)}: A gives {_number(mine, wanted)}, with what B has in its place {_number(wanted, mine)}"
        )
    return beside


def called(a: Call, b: Call, one: Form, other: Form, as_it_is: Form, probes: Iterable[Probe]) -> str:
    """The first input on which B, given what A is given, gives something else than where it is called as it should."""
    beside = ""
    for probe in probes:
        try:
            mine, right = ask(a, _plain(one), probe), ask(b, _plain(other), probe)
        except Failed:
            continue
        try:
            found = ask(b, _plain(as_it_is), probe)
        except Failed as failed:
            return f"{told(probe, one)}: A gives {_number(mine, mine)}; B raises {failed.said}"
        if not _apart(found, right):
            continue
        if not _apart(mine, right):
            return f"{told(probe, one)}: A gives {_number(mine, found)}, B {_number(found, mine)}"
        gives = _number(found, right), _number(right, found)
        beside = beside or f"{told(probe, one)}: B, called so, gives {gives[0]}, and {gives[1]} as it is meant"
    return beside


def _plain(form: Form) -> Form:
    """How it is called, whatever it computes."""
    return dataclasses.replace(form, how=forms.LAW)


def _right(probe: Probe, form: Form) -> tuple[np.ndarray, ...]:
    return forms.attention(probe.arrays, form.how, **probe.options)


def _apart(one: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...]) -> bool:
    return distance(one, other) > 10 * TOLERANCE


def _without_scores(probe: Probe) -> Probe:
    """Queries of zeros, so that no scale counts."""
    return probe._replace(arrays=(0 * probe.arrays[0], *probe.arrays[1:]))


def smallest(a: Call, b: Call, one: Form, other: Form, probes: Iterable[Probe]) -> str:
    """The first input on which the two give other numbers, and what they give; empty where none does."""
    for probe in probes:
        try:
            mine = ask(a, _plain(one), probe)
        except Failed:
            continue
        try:
            theirs = ask(b, _plain(other), probe)
        except Failed as failed:
            return f"{told(probe, one)}: A gives {_number(mine, mine)}; B raises {failed.said}"
        narrow = probe.arrays[0].dtype != np.float32
        same_kind = not narrow or mine[0].dtype == theirs[0].dtype
        if distance(theirs, mine) > (NARROW / 3 if narrow else 10 * TOLERANCE) or not same_kind:
            kind = "" if same_kind else f" ({mine[0].dtype}), ({theirs[0].dtype})"
            return f"{told(probe, one)}: A gives {_number(mine, theirs)}, B {_number(theirs, mine)}{kind}"
    return ""


def told(probe: Probe, form: Form) -> str:
    """Sizes, arrays and options, these as a function of that form is given them."""
    (B, N, T, D), (_, G, S, _) = probe.arrays[0].shape, probe.arrays[1].shape
    sizes = f"B={B}, " * (B > 1) + f"N={N}, G={G}, " * (N > 1) + f"T={T}, S={S}, D={D}"
    words = [f"{name} {_array(x)}" for name, x in zip(("query", "key", "value"), probe.arrays, strict=True)]
    for ours, x in probe.options.items():
        option = form.options.get(ours, Option(ours, ways.STRAIGHT.get(ours, "")))
        given = ways.given(ours, option.form, x)
        if option.name:
            words.append(f"{option.name} {_array(given) if isinstance(given, np.ndarray) else given}")
    return f"{sizes}: {', '.join(words)}"


def _array(x: np.ndarray) -> str:
    while x.ndim > 2 and len(x) == 1:
        x = x[0]
    whole = x.dtype != bool and x.size <= 24 and (x == np.round(x.astype(np.float64))).all() and np.isfinite(x).all()
    text = np.array2string(
        x.astype(int) if whole else x.astype(x.dtype if x.dtype == bool else np.float32), separator=", ", precision=4
    )
    return " ".join(text.split()).replace("[ ", "[") if x.size <= 24 else f"of shape {x.shape}"


def _number(found: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...]) -> str:
    """The number of a result at which it is furthest from another."""
    x, y = found[-1].astype(np.float64), other[-1].astype(np.float64)
    if len(found) != len(other) or x.shape != y.shape:
        return f"{x.shape}"
    if len(found) > 1 and np.array_equal(x, y, equal_nan=True):
        x, y = found[0].astype(np.float64), other[0].astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.where(np.isnan(x) != np.isnan(y), np.inf, np.nan_to_num(np.abs(x - y)))
    at = np.unravel_index(int(np.argmax(apart)), x.shape)
    return f"{x[at]:.7g}"


def cases(form: Form, sizes: tuple[int, ...]) -> Iterator[Probe]:
    """Inputs on which two functions are compared: every option alone, with another, and all together."""
    names = [x for x in form.options if x != "return_lse" or form.options[x].name]
    some = [(), *((x,) for x in names), *itertools.combinations(names, 2), tuple(names)]
    B, N, T, S, D, V = sizes
    square = T == S
    shapes = [sizes, (1, N, S + 2, S + 2, D, V), (3, N + 2, S, S, D, V), (1, N, LONG, LONG, D, V)]
    shapes += [] if square else [(B, N, S + 2, S, D, V), (1, N, 1, S, D, V), (1, N, 3, LONG, D, V)]
    for (k, shape), asked in itertools.product(enumerate(shapes), dict.fromkeys(some)):
        rules = {"is_causal", "window"} & set(asked)
        if "return_lse" in asked and rules and (shape[2] > shape[3] or "without" in form.how["causal"]):
            continue  # a row without any key has an lse of -inf, or some large number
        rng = np.random.default_rng((k, len(asked)))
        options = {x: _drawn(x, form, shape, rng) for x in asked}
        if "return_lse" in asked and "mask" in asked:
            options["mask"][..., 0] = True
        for groups in (0, 2) if form.grouped and len(asked) < 2 else (0,):
            yield Probe(arrays(shape, groups, seed=k + 1), options)
    if form.how["out"] != forms.REFUSED:
        import ml_dtypes

        for seed in (1, 2):
            yield Probe(tuple(x.astype(ml_dtypes.bfloat16) for x in arrays(sizes, seed=seed)), {})


def _drawn(name: str, form: Form, sizes: tuple[int, ...], rng: np.random.Generator) -> Any:
    B, N, T, S = sizes[:4]
    if name == "mask":
        rank = form.options["mask"].form.split("/")[0]
        shape = {"TS": (1, 1, T, S), "BS": (B, 1, 1, S)}.get(rank, (B, 1, T, S))
        if rank == "BNTS" and rng.random() < 0.5:
            shape = (B, N, T, S)
        mask = rng.random(shape) < 0.6
        mask[..., 0] = rng.random(shape[:-1]) < 0.9
        return mask
    if name == "bias":
        shape = {"TS": (1, 1, T, S), "NTS": (1, N, T, S)}.get(form.options["bias"].form, (B, N, T, S))
        return rng.standard_normal(shape).astype(np.float32)
    return {"is_causal": True, "scale": 0.3, "softcap": 0.7, "window": 2, "return_lse": True}[name]


def equality(a: Call, b: Call, one: Form, other: Form, sizes: tuple[int, ...]) -> Equality:
    """How far apart two functions are that are called alike, over all cases; what A refuses is no case."""
    count, narrow, apart, worst = 0, 0, 0.0, None
    asked: list[Probe] = []
    for probe in cases(one, sizes):
        try:
            mine = ask(a, _plain(one), probe)
        except Failed:
            continue
        is_narrow = probe.arrays[0].dtype != np.float32
        try:
            far = distance(ask(b, _plain(other), probe), mine)
        except Failed:
            if is_narrow:
                continue
            far = np.inf
        asked.append(probe)
        if is_narrow:
            narrow += 1
            worst = probe if far > NARROW else worst
            continue
        count += 1
        apart = max(apart, far)
        worst = probe if far > TOLERANCE and worst is None else worst
    return Equality(count, apart, worst, narrow, _varied(asked))


def _varied(probes: list[Probe]) -> str:
    """What some probes had: the sizes, the options and the dtypes."""
    sizes: dict[str, set[int]] = {}
    for (query, key, value), _, _ in probes:
        B, N, T, D = query.shape
        for axis, size in zip("BNGTSDV", (B, N, key.shape[1], T, key.shape[2], D, value.shape[3]), strict=True):
            sizes.setdefault(axis, set()).add(size)
    told = [f"{axis} {', '.join(map(str, sorted(some)))}" for axis, some in sizes.items()]
    names = dict.fromkeys(name.removeprefix(forms.GIVEN) for probe in probes for name in probe.options)
    dtypes = dict.fromkeys(str(probe.arrays[0].dtype) for probe in probes)
    return "; ".join([*told, ", ".join(names) or "no options", ", ".join(dtypes)])
