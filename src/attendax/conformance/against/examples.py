"""Inputs on which two functions are compared: small ones that show a difference, and many that have to show none."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..worker.errors import Failed
from . import forms
from .asking import NARROW, TOLERANCE, Call, Probe, arrays, ask, distance
from .forms import Form, Option
from .options import OPTIONS, RULES, beside, drawn, first_kind, own_values
from .options import given as given_as

SMALL = (  # T, S, D
    (1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1), (1, 2, 2), (2, 3, 1), (3, 2, 1), (4, 1, 1), (3, 3, 2), (3, 5, 4),
    (4, 4, 4),
)  # fmt: skip
LONG = 150  # tokens, beyond blocks of 128


class Equality(NamedTuple):
    """The distance of two functions, and the number of cases; ``worst`` is a case in which they differ."""

    cases: int
    apart: float
    worst: Probe | None = None
    varied: str = ""  # the values of each size, and the options


def asking(*names: str, **more: Any) -> list[Probe]:
    """Small inputs with those options."""
    return list(small({name: OPTIONS[name].values[0] for name in names if name in OPTIONS} | more))


def small(options: Mapping[str, Any], *, heads: int = 1, groups: int = 0, tall: bool = False) -> Iterator[Probe]:
    """Inputs of small whole numbers, the smallest first."""
    for t, s, d in SMALL:
        if tall and t <= s:
            continue
        rng = np.random.default_rng((t, s, d))
        shapes = (1, heads, t, d), (1, groups or heads, s, d), (1, groups or heads, s, d if d > 2 else 1)
        drawn = tuple(rng.integers(-1, 3, shape).astype(np.float32) for shape in shapes)
        drawn[2][:] = np.arange(1, drawn[2].size + 1).reshape(drawn[2].shape)
        yield Probe(drawn, {k: x(t, s) if callable(x) else x for k, x in options.items()})


def with_each_value(ours: str, form: Form) -> Iterator[Probe]:
    """Small inputs with each value of an option."""
    option, more = form.options[ours], beside(ours, form.options)
    if ours.startswith(forms.GIVEN):
        values: Iterable[Any] = _near(form.defaults.get(option.name))
    else:
        values = (*OPTIONS[ours].values, *own_values(ours, option, form.defaults, 1)) if option.name else ()
    for x in values:
        yield from small({ours: x, **more})
    if ours == "mask" and option.form.startswith("BNTS"):
        yield from small({"mask": _of_each_head}, heads=2)
    if ours == "bias" and option.form != "TS":
        yield from small({"bias": lambda t, s: np.arange(2.0 * t * s, dtype=np.float32).reshape(1, 2, t, s)}, heads=2)


def _near(default: Any) -> tuple[Any, ...]:
    """Values of a keyword of which its default alone is known."""
    if isinstance(default, bool):
        return (not default,)
    if isinstance(default, int):
        return default + 1, default + 2
    return () if isinstance(default, str) else (0.25, 2.0, True)


def _of_each_head(t: int, s: int) -> np.ndarray:
    """A mask (1, 2, T, S): the second head lacks the first key, the first head the last."""
    mask = np.ones((1, 2, t, s), bool)
    if s > 1:
        mask[:, 0, :, -1] = mask[:, 1, :, 0] = False
    return mask


def narrow() -> list[Probe]:
    """Inputs in bfloat16."""
    import ml_dtypes

    found = []
    for k, sizes in enumerate(((1, 1, 1, 2, 1, 1), (1, 1, 1, 2, 4, 1), (1, 1, 2, 3, 8, 1), (1, 2, 3, 5, 8, 6))):
        some = arrays(sizes, seed=k)
        found.append(Probe(tuple((x * f).astype(ml_dtypes.bfloat16) for x, f in zip(some, (8, 1, 1), strict=True)), {}))
    return found


def _answers(
    a: Call, b: Call, one: Form, other: Form, probes: Iterable[Probe]
) -> Iterator[tuple[Probe, tuple[np.ndarray, ...], tuple[np.ndarray, ...] | Failed]]:
    """Results of the two for each input that A answers; of B also that it raises."""
    for probe in probes:
        theirs: tuple[np.ndarray, ...] | Failed
        try:
            mine = ask(a, one.plain(), probe)
        except Failed:
            continue
        try:
            theirs = ask(b, other.plain(), probe)
        except Failed as failed:
            theirs = failed
        yield probe, mine, theirs


def shown(a: Call, b: Call, one: Form, other: Form, axes: Iterable[str], probes: Iterable[Probe]) -> str:
    """The first input that shows what the values of some axes are: each function does there what its form says.

    The two differ by nothing else there, if there is such an input; else what A would give with B's values is told.
    Each is tried with queries of zeros, too, so that no scale counts.
    """
    in_place = one.but(**{axis: other.how[axis] for axis in axes})
    others = [one.but(empty=x) for x in forms.EMPTY if x != one.how["empty"]] if axes == ("empty",) else []
    elsewhere = ""
    both = itertools.chain.from_iterable((x, x._replace(arrays=(0 * x.arrays[0], *x.arrays[1:]))) for x in probes)
    apart = (x for x in both if all(_apart(_right(x, one), _right(x, form)) for form in (in_place, *others)))
    for probe, given, found in _answers(a, b, one, other, apart):
        mine, theirs, wanted = (_right(probe, form) for form in (one, other, in_place))
        if isinstance(found, Failed) or _apart(given, mine) or _apart(found, theirs):
            continue
        if not _apart(theirs, wanted):
            return f"{told(probe, one)}: A gives {_number(given, found)}, B {_number(found, given)}"
        gives = _number(mine, wanted), _number(wanted, mine)
        elsewhere = elsewhere or f"{told(probe, one)}: A gives {gives[0]}, with what B has in its place {gives[1]}"
    return elsewhere


def called(a: Call, b: Call, one: Form, other: Form, as_it_is: Form, probes: Iterable[Probe]) -> str:
    """The first input on which B, given what A is given, gives something else than where it is called as it should."""
    elsewhere = ""
    for probe, mine, found in _answers(a, b, one, as_it_is, probes):
        try:
            right = ask(b, other.plain(), probe)
        except Failed:
            continue
        if isinstance(found, Failed):
            return _raises(probe, one, mine, found)
        if not _apart(found, right):
            continue
        if not _apart(mine, right):
            return f"{told(probe, one)}: A gives {_number(mine, found)}, B {_number(found, mine)}"
        gives = _number(found, right), _number(right, found)
        elsewhere = elsewhere or f"{told(probe, one)}: B, called so, gives {gives[0]}, and {gives[1]} as it is meant"
    return elsewhere


def smallest(a: Call, b: Call, one: Form, other: Form, probes: Iterable[Probe]) -> str:
    """The first input on which the two give other numbers, and what they give; empty where none does."""
    for probe, mine, theirs in _answers(a, b, one, other, probes):
        if isinstance(theirs, Failed):
            return _raises(probe, one, mine, theirs)
        narrow = _is_narrow(probe)
        same_kind = not narrow or mine[0].dtype == theirs[0].dtype
        if distance(theirs, mine) > (NARROW / 3 if narrow else 10 * TOLERANCE) or not same_kind:
            kind = "" if same_kind else f" ({mine[0].dtype}), ({theirs[0].dtype})"
            return f"{told(probe, one)}: A gives {_number(mine, theirs)}, B {_number(theirs, mine)}{kind}"
    return ""


def _raises(probe: Probe, form: Form, mine: tuple[np.ndarray, ...], failed: Failed) -> str:
    return f"{told(probe, form)}: A gives {_number(mine, mine)}; B raises {failed.said}"


def _right(probe: Probe, form: Form) -> tuple[np.ndarray, ...]:
    return forms.attention(probe.arrays, form.how, **probe.options)


def _apart(one: tuple[np.ndarray, ...], other: tuple[np.ndarray, ...]) -> bool:
    return distance(one, other) > 10 * TOLERANCE


def told(probe: Probe, form: Form) -> str:
    """Sizes, arrays and options, these as a function of that form is given them."""
    (B, N, T, D), (_, G, S, _) = probe.arrays[0].shape, probe.arrays[1].shape
    sizes = f"B={B}, " * (B > 1) + f"N={N}, G={G}, " * (N > 1) + f"T={T}, S={S}, D={D}"
    words = [f"{name} {_array(x)}" for name, x in zip(("query", "key", "value"), probe.arrays, strict=True)]
    for ours, x in probe.options.items():
        option = form.options.get(ours, Option(ours, first_kind(ours)))
        given = given_as(ours, option.form, x, B)
        if option.name:
            words.append(f"{option.name} {_array(given) if isinstance(given, np.ndarray) else given}")
    return f"{sizes}: {', '.join(words)}"


def _array(x: np.ndarray) -> str:
    while x.ndim > 2 and len(x) == 1:
        x = x[0]
    whole = x.dtype != bool and x.size <= 24 and (x == np.round(x.astype(np.float64))).all() and np.isfinite(x).all()
    kind: Any = int if whole else bool if x.dtype == bool else np.float32
    text = np.array2string(x.astype(kind), separator=", ", precision=4)
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
    """Inputs on which two functions are compared: small ones; every option alone, with another, and all together."""
    for name in form.options:
        yield from with_each_value(name, form)
    if form.grouped and not form.pack:
        yield from small({}, heads=4, groups=2)
    names = [x for x in form.options if form.options[x].name and x in OPTIONS]
    pairs = (x for x in itertools.combinations(names, 2) if x[1] != "offset" or x[0] in RULES)
    some = [(), *((x,) for x in names), *pairs, tuple(names)]
    B, N, T, S, D, V = sizes
    shapes = [sizes, (1, N, S + 2, S + 2, D, V), (3, N + 2, S, S, D, V), (1, N, LONG, LONG, D, V)]
    shapes += [] if T == S else [(B, N, S + 2, S, D, V), (1, N, 1, S, D, V), (1, N, 3, LONG, D, V)]
    for (k, shape), asked in itertools.product(enumerate(shapes), dict.fromkeys(some)):
        if "return_lse" in asked and _may_be_empty(asked, shape, form):
            continue  # its lse is -inf, or some large number
        rng = np.random.default_rng(k)
        options = {x: drawn(x, form.options[x].form, shape, k, each_head=k % 3 == 0) for x in asked}
        if "mask" in asked and "return_lse" not in asked:
            options["mask"][..., 0] = rng.random(options["mask"].shape[:-1]) < 0.9
        for groups in (0, 2) if form.grouped and len(asked) < 2 else (0,):
            yield Probe(arrays(shape, groups, seed=k + 1), options)
    if form.how["out"] != forms.REFUSED:
        import ml_dtypes

        for seed in (1, 2):
            yield Probe(tuple(x.astype(ml_dtypes.bfloat16) for x in arrays(sizes, seed=seed)), {})


def _may_be_empty(asked: tuple[str, ...], shape: tuple[int, ...], form: Form) -> bool:
    """Tell whether a query may be without any key, though each row of a mask has one."""
    if "window" in asked and {"offset", "key_lengths"} & set(asked):
        return True
    return bool(set(RULES) & set(asked)) and (shape[2] > shape[3] or "without" in form.how["causal"])


def equality(a: Call, b: Call, one: Form, other: Form, sizes: tuple[int, ...]) -> Equality:
    """The distance of two functions that are called alike, over all cases; a refusal of A is no case."""
    apart, worst = 0.0, None
    asked: list[Probe] = []
    for probe, mine, theirs in _answers(a, b, one, other, cases(one, sizes)):
        far, narrow = np.inf if isinstance(theirs, Failed) else distance(theirs, mine), _is_narrow(probe)
        if narrow and isinstance(theirs, Failed):
            continue
        asked.append(probe)
        apart = apart if narrow else max(apart, far)
        worst = worst or (probe if far > (NARROW if narrow else TOLERANCE) else None)
    return Equality(sum(not _is_narrow(x) for x in asked), apart, worst, _varied(asked))


def _is_narrow(probe: Probe) -> bool:
    return bool(probe.arrays[0].dtype != np.float32)


def _varied(probes: list[Probe]) -> str:
    """The sizes, the options and the dtypes that some probes had."""
    sizes: dict[str, set[int]] = {}
    for (query, key, value), _, _ in probes:
        B, N, T, D = query.shape
        for axis, size in zip("BNGTSDV", (B, N, key.shape[1], T, key.shape[2], D, value.shape[3]), strict=True):
            sizes.setdefault(axis, set()).add(size)
    told = [f"{axis} {', '.join(map(str, sorted(some)))}" for axis, some in sizes.items()]
    names = dict.fromkeys(name.removeprefix(forms.GIVEN) for probe in probes for name in probe.options)
    dtypes = dict.fromkeys(str(probe.arrays[0].dtype) for probe in probes)
    return "; ".join([*told, ", ".join(names) or "no options", ", ".join(dtypes)])
