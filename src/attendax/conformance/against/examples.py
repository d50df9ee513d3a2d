"""Inputs on which two functions are compared: small ones that show a difference, and many that have to show none."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..conventions.table import IGNORED
from ..worker.errors import Failed
from . import extremes, forms
from .asking import NARROW, TOLERANCE, Answer, Candidate, Equality, Probe, arrays, distance, narrowed
from .forms import Form, Option
from .options import (
    AXIS,
    OF_KEYS,
    OPTIONS,
    RULES,
    UNDER_A_ROOT,
    WITH_CAUSAL,
    beside,
    drawn,
    first_kind,
    is_one_for_both,
    own_values,
)
from .options import given as given_as
from .weights import WEIGHTS

SMALL_SIZES = (  # T, S, D
    (1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1), (1, 2, 2), (2, 3, 1), (3, 2, 1), (4, 1, 1), (3, 3, 2), (3, 5, 4),
    (4, 4, 4),
)  # fmt: skip
LONG_T, LONG_S = 300, 990  # tokens, and keys of few queries: beyond blocks of 512, and of no two as many whole ones
NOT_OFFERED = "NotImplementedError"
ARRAY_AXES = ("B", 0, 0), ("N", 0, 1), ("G", 1, 1), ("T", 0, 2), ("S", 1, 2), ("D", 0, 3), ("V", 2, 3)  # of which array


class Refused(NamedTuple):
    """A call, and which of the two refuses it with which words."""

    letter: str
    probe: Probe
    said: str


class Record(NamedTuple):
    """The calls that both answered, and those that one of the two refused."""

    compared: list[Probe]
    refused: list[Refused]
    crashes: bool = True  # whether it is a difference if A raises anything else, and B does not

    def told(self, form: Form) -> tuple[str, ...]:
        """Words for what is not compared, by the names of a form: the fewest options that are refused together."""
        common, notes = {frozenset(x.options) for x in self.compared}, list[str]()
        for letter in sorted({x.letter for x in self.refused}):
            of_one: dict[frozenset[str], Refused] = {}
            for x in sorted((x for x in self.refused if x.letter == letter), key=lambda x: len(x.probe.options)):
                options = frozenset(x.probe.options)
                if not any(fewer <= options for fewer in of_one):
                    of_one[options] = x
            calls: dict[str, list[str]] = {}
            for options, x in of_one.items():
                calls.setdefault(x.said, []).append(_words(x.probe, form, sizes=options in common))
            notes += [
                f"{', '.join(dict.fromkeys(words))}, which {letter} refuses ({said})" for said, words in calls.items()
            ]
        return tuple(notes)


def is_refusal(failed: Failed) -> bool:
    """Tell whether somebody wrote this error for such a call; a crash inside is a difference."""
    return failed.refusal or failed.said.startswith(NOT_OFFERED)


def _words(probe: Probe, form: Form, *, sizes: bool) -> str:
    """The options of a call, and its sizes if such calls of other sizes are compared."""
    names = [(form.options[k].name if k in form.options else "") or k.removeprefix(forms.PREFIX) for k in probe.options]
    together = " and ".join(names) + " together" * (len(names) > 1)
    if not sizes:
        return together or "calls without options"
    (B, N, T, D), (_, G, S, _) = (x.shape for x in probe.arrays[:2])
    at = f"some sizes, such as B={B}, N={N}, G={G}, T={T}, S={S}, D={D}"
    return f"{at}, with {together}" if together else at


def asking(*names: str, **more: Any) -> list[Probe]:
    """Small inputs with those options."""
    return list(small({name: OPTIONS[name].values[0] for name in names if name in OPTIONS} | more))


def small(options: Mapping[str, Any], *, heads: int = 1, groups: int = 0, tall: bool = False) -> Iterator[Probe]:
    """Inputs of small whole numbers, the smallest first."""
    for t, s, d in SMALL_SIZES:
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
    if ours.startswith(forms.PREFIX):
        values: Iterable[Any] = _near(form.defaults.get(option.name))
    else:
        values = (*OPTIONS[ours].values, *own_values(ours, option, form.how, 1)) if option.name else ()
    for x in values if option.form != UNDER_A_ROOT else (x for x in values if x > 0):
        yield from small({ours: x, **more})
    if ours == "mask" and option.form.startswith("BNTS"):
        yield from small({"mask": _of_each_head}, heads=2)
    if ours == "bias" and option.form not in ("TS", OF_KEYS):
        yield from small({"bias": lambda t, s: np.arange(2.0 * t * s, dtype=np.float32).reshape(1, 2, t, s)}, heads=2)


def with_arrays(key: str) -> Iterator[Probe]:
    """Small inputs with arrays for a keyword that takes no number: one of each head, one of each token, of each key."""
    for made in (
        lambda t, s: np.array([0.5, -1.0], np.float32),
        lambda t, s: np.arange(t, dtype=np.int32)[None] // 2,
        lambda t, s: np.arange(s, dtype=np.int32)[None] // 2,
        lambda t, s: np.linspace(-1, 1, t * s, dtype=np.float32).reshape(t, s),
    ):
        yield from small({key: made}, heads=2)


def answered(a: Candidate, probes: Iterable[Probe], key: str) -> bool:
    """Tell whether a function takes some value of an option."""
    return any(not isinstance(a.answer(x), Failed) for x in probes if key in x.options)


def _near(default: Any) -> tuple[Any, ...]:
    """Values of a keyword of which its default alone is known."""
    if isinstance(default, bool):
        return (not default,)
    if isinstance(default, int):
        return default + 1, default + 2
    return () if isinstance(default, str) else (0.25, 2.0, True)


def _of_each_head(t: int, s: int) -> np.ndarray:
    """A mask (1, 2, T, S): the first query lacks the last key in the first head, the last the first in the second."""
    mask = np.ones((1, 2, t, s), bool)
    if s > 1:
        mask[:, 0, 0, -1] = mask[:, 1, -1, 0] = False
    return mask


def cases(form: Form, sizes: tuple[int, ...], *, alone: bool = False) -> Iterator[Probe]:
    """Inputs on which two functions are compared: small ones; every option alone, with another, and all together.

    ``alone``, those for one function: each option alone, and one that it ignores with another.
    """
    one = is_one_for_both("segments", form.options.get("segments", Option("")).form)
    with_causal = form.options.get("window", Option("")).form == WITH_CAUSAL

    def is_asked(probe: Probe) -> bool:
        if with_causal and "window" in probe.options and not probe.options.get("is_causal"):
            return False
        return not (one and "segments" in probe.options and not np.array_equal(*probe.options["segments"]))

    return filter(is_asked, _cases(form, sizes, alone=alone))


def _cases(form: Form, sizes: tuple[int, ...], *, alone: bool) -> Iterator[Probe]:
    for name in form.options:
        yield from with_each_value(name, form)
    if form.grouped and not form.pack:
        yield from small({}, heads=4, groups=2)
    names = [x for x in form.options if form.options[x].name and x in OPTIONS]
    pairs = (x for x in itertools.combinations(names, 2) if x[1] != "offset" or x[0] in RULES)
    if alone:
        pairs = (x for x in pairs if IGNORED in [form.how[AXIS[name]] for name in x])
    some = [(), *((x,) for x in names), *pairs, *(() if alone else (tuple(names),))]
    B, N, T, S, D, V = sizes
    odd = (D + 4, V + 4 * (D == V))  # no power of two
    shapes = [sizes, (1, N, S + 2, S + 2, D, V), (N + 2, N + 2, S, S, *odd), (1, N // 2, LONG_T, LONG_T, D, V)]
    few = (B, N, S + 2, S, D, V), (1, N, 1, S, D, V), (1, N, 3, LONG_S, D, V)
    longer = alone and "M" not in form.layout  # of square weights it has a head for every D tokens
    shapes += few if T != S else [(1, 1, LONG_S, LONG_S, D, V)] * longer
    for (k, shape), asked in itertools.product(enumerate(shapes), dict.fromkeys(some)):
        # a query may be without any key, though each row of a mask has one: its lse may be any number
        empty = bool(set(RULES) & set(asked)) and (shape[2] > shape[3] or "without" in form.how["causal"])
        empty |= "segments" in asked and len(asked) > 1
        empty |= "window" in asked and bool({"offset", "key_lengths"} & set(asked))
        unlike = "return_lse" in asked and form.how["empty_lse"] == forms.UNKNOWN
        if unlike and empty:
            continue
        rng = np.random.default_rng(k)
        options = {x: drawn(x, form.options[x].form, shape, k, each_head=k % 3 != 1) for x in asked}
        if "mask" in asked and not unlike and form.layout not in WEIGHTS:  # whose result is multiplied: NaN spreads
            options["mask"][..., 0] = rng.random(options["mask"].shape[:-1]) < 0.9
        for groups in (0, 2) if form.grouped and len(asked) < 2 and shape[1] > 1 else (0,):
            yield Probe(arrays(shape, groups, seed=k + 1), options)
    if "mask" in form.options and not form.options["mask"].form.startswith("BS"):
        for ahead in (-1, 1):  # the first query of a block sees none of the keys that others of it see
            mask = np.tri(LONG_T, LONG_T, ahead, dtype=bool)[None, None]
            yield Probe(arrays((1, N // 2, LONG_T, LONG_T, D, V)), {"mask": mask})
    yield from extremes.cases(form, (1, N // 2, LONG_T, LONG_T, D, V), (1, N, 3, LONG_S, D, V) if T != S else ())
    if form.how["out"] != forms.UNKNOWN:
        yield from (narrowed(sizes, seed) for seed in (1, 2))


def refuting(candidate: Candidate, sizes: tuple[int, ...]) -> Iterator[Probe]:
    """Inputs with options for which a function gives other numbers than its form says, and without them does not.

    A query without any key may get anything.
    """
    by = candidate.by(candidate.form.but(empty="NaN", empty_lse="nan"))

    def is_off(probe: Probe) -> bool:
        found, right = candidate.answer(probe), by.right(probe)
        if isinstance(found, Failed) or not right[0].size:
            return False
        return distance(found, right, some=True) > probe.tolerance

    asked = (x for x in cases(candidate.form, sizes, alone=True) if x.options and not x.narrow)
    asked = (x for x in asked if not (x.scores and "return_lse" in x.options))  # an lse may overflow alone
    return (probe for probe in asked if is_off(probe) and not is_off(probe._replace(options={})))


def _answers(a: Candidate, b: Candidate, probes: Iterable[Probe]) -> Iterator[tuple[Probe, Answer, Answer | Failed]]:
    """Results of the two for each input that A answers; of B also that it raises."""
    for probe in probes:
        mine = a.answer(probe)
        if not isinstance(mine, Failed):
            yield probe, mine, b.answer(probe)


def _recorded(
    a: Candidate, b: Candidate, probes: Iterable[Probe], record: Record, letters: str = "AB"
) -> Iterator[tuple[Probe, Answer | Failed, Answer | Failed]]:
    """Yield results that one of the two gives at least; what either refuses is recorded instead."""
    for probe in probes:
        mine = a.answer(probe)
        refused = isinstance(mine, Failed) and is_refusal(mine)
        if isinstance(mine, Failed) and (probe.narrow or not (record.crashes or refused)):
            continue
        theirs: Answer | Failed = () if refused else b.answer(probe)
        some = [(x, letter) for x, letter in zip((mine, theirs), letters, strict=True) if isinstance(x, Failed)]
        if refusal := next((Refused(letter, probe, x.said) for x, letter in some if is_refusal(x)), None):
            record.refused.extend([refusal] * (not probe.narrow))
        elif len(some) < 2 and not (some and probe.narrow):
            record.compared.append(probe)
            yield probe, mine, theirs


def shown(a: Candidate, b: Candidate, axes: Iterable[str], probes: Iterable[Probe]) -> str:
    """The first input that shows what the values of some axes are: each function does there what its form says.

    The two differ by nothing else there, if there is such an input; else what A would give with B's values is told.
    Each is also tried with queries of zeros, so that no scale counts.
    """
    in_place = a.by(a.form.but(**{axis: b.form.how[axis] for axis in axes}))
    unlike_b = b.by(b.form.but(**{axis: a.form.how[axis] for axis in axes}))
    elsewhere = ""
    both = itertools.chain.from_iterable((x, x._replace(arrays=(0 * x.arrays[0], *x.arrays[1:]))) for x in probes)
    apart = (x for x in both if in_place.right(x)[0].size and _apart(a.right(x), in_place.right(x)))
    for probe, given, found in _answers(a, b, apart):
        mine, theirs, wanted = (x.right(probe) for x in (a, b, in_place))
        if _apart(given, mine) or _apart(found, theirs) or not _apart(theirs, unlike_b.right(probe)):
            continue  # where B does as well by A's value, nothing is seen of its own
        if not _apart(theirs, wanted):
            return _gives(probe, a, given, found)
        gives = _number(mine, wanted), _number(wanted, mine)
        said = f"A gives {gives[0]}; with B's convention A would give {gives[1]}"
        elsewhere = elsewhere or f"{told(probe, a.form)}: {said}"
    return elsewhere


def called(a: Candidate, b: Candidate, as_it_is: Form, probes: Iterable[Probe]) -> str:
    """The first input on which B, given what A is given, gives something else than where it is called as it should."""
    elsewhere = ""
    for probe, mine, found in _answers(a, b.by(as_it_is), probes):
        right = b.answer(probe)
        if isinstance(right, Failed) or not _apart(found, right):
            continue
        if isinstance(found, Failed) or not _apart(mine, right):
            return _gives(probe, a, mine, found)
        gives = f"B gives {_number(found, right)}, and {_number(right, found)} if called by its own conventions"
        elsewhere = elsewhere or f"{told(probe, a.form)}: {gives}"
    return elsewhere


def alike_in_float32(a: Candidate, b: Candidate, probe: Probe) -> bool:
    """Tell whether two functions give the same numbers for arrays of bfloat16 that are given in float32."""
    wide = probe._replace(arrays=tuple(x.astype(np.float32) for x in probe.arrays))
    return any(not _apart(theirs, mine) for _, mine, theirs in _answers(a, b, [wide]))


def smallest(a: Candidate, b: Candidate, probes: Iterable[Probe], record: Record | None = None) -> str:
    """The first input on which the two give other numbers, and what they give; empty where none does.

    A call that one of them refuses is recorded. Without a record, a refusal of B is a difference.
    """
    asked = _answers(a, b, probes) if record is None else _recorded(a, b, probes, record)
    for probe, mine, theirs in asked:
        if isinstance(theirs, Failed) or isinstance(mine, Failed):
            return _gives(probe, a, mine, theirs)
        same_kind = not probe.narrow or mine[0].dtype == theirs[0].dtype
        near = NARROW / 3 if probe.narrow else max(10 * TOLERANCE, probe.tolerance)
        if distance(theirs, mine) > near or not same_kind:
            return _gives(probe, a, mine, theirs) + ("" if same_kind else f" ({mine[0].dtype}), ({theirs[0].dtype})")
    return ""


def _apart(one: Answer | Failed, other: Answer) -> bool:
    return isinstance(one, Failed) or distance(one, other) > 10 * TOLERANCE


def _gives(probe: Probe, a: Candidate, mine: Answer | Failed, theirs: Answer | Failed) -> str:
    call = told(probe, a.form)
    if isinstance(theirs, Failed) or isinstance(mine, Failed):
        said = (f"raises {x.said}" if isinstance(x, Failed) else f"gives {_number(x, x)}" for x in (mine, theirs))
        return "{}: A {}; B {}".format(call, *said)
    return f"{call}: A gives {_number(mine, theirs)}, B {_number(theirs, mine)}"


def told(probe: Probe, form: Form) -> str:
    """Sizes, arrays and options, these as a function of that form is given them."""
    (B, N, T, D), (_, G, S, _) = probe.arrays[0].shape, probe.arrays[1].shape
    sizes = f"B={B}, " * (B > 1) + f"N={N}, G={G}, " * (N > 1) + f"T={T}, S={S}, D={D}"
    sizes += f", scores of about {' and '.join(f'{x:g}' for x in probe.scores)}" * bool(probe.scores)
    words = [f"{name} {_array(x)}" for name, x in zip(("query", "key", "value"), probe.arrays, strict=True)]
    for ours, x in probe.options.items():
        option = form.options.get(ours, Option(ours, first_kind(ours)))
        given = given_as(ours, option.form, x, B, S)
        if ours == "segments" and option.form:
            words += [f"{name} {_array(x)}" for name, x in zip(option, given, strict=True)]
        elif option.name:
            words.append(f"{option.name} {_array(given) if isinstance(given, np.ndarray) else given}")
    return f"{sizes}: {', '.join(words)}"


def _array(x: np.ndarray) -> str:
    while x.ndim > 2 and len(x) == 1:
        x = x[0]
    if x.size > 24:
        return f"of shape {x.shape}"
    x = x if x.dtype == bool else x.astype(np.float32)
    x = x.astype(int) if x.dtype != bool and np.isfinite(x).all() and (x == np.round(x)).all() else x
    return " ".join(np.array2string(x, separator=", ", precision=4).split()).replace("[ ", "[")


def _number(found: Answer, other: Answer) -> str:
    """The number of a result at which it is furthest from another."""
    some, others = ([x.astype(np.float64) for x in xs] for xs in (found, other))
    if len(some) != len(others) or some[-1].shape != others[-1].shape:
        return f"{some[-1].shape}"
    k = 0 if np.array_equal(some[-1], others[-1], equal_nan=True) else -1
    x, y = some[k], others[k]
    with np.errstate(all="ignore"):
        apart = np.where(np.isnan(x) != np.isnan(y), np.inf, np.nan_to_num(np.abs(x - y)))
    return f"{x[np.unravel_index(int(np.argmax(apart)), x.shape)]:.7g}"


def equality(a: Candidate, b: Candidate, sizes: tuple[int, ...], letters: str = "AB") -> Equality:
    """The distance of two functions that are called alike, over all cases that neither refuses."""
    apart, worst, record = {False: 0.0, True: 0.0}, None, Record([], [])  # of all, and of those in bfloat16
    for probe, mine, theirs in _recorded(a, b, cases(a.form, sizes), record, letters):
        far = np.inf if isinstance(theirs, Failed) or isinstance(mine, Failed) else distance(theirs, mine)
        apart[probe.narrow] = max(apart[probe.narrow], far)
        worst = worst or (probe if far > probe.tolerance else None)
    asked = record.compared
    found = {axis: {probe.arrays[array].shape[k] for probe in asked} for axis, array, k in ARRAY_AXES}
    sizes_of = [f"{axis} {', '.join(map(str, sorted(some)))}" for axis, some in found.items() if some]
    varied = [f"sizes {'; '.join(sizes_of)}"]
    names = dict.fromkeys(name.removeprefix(forms.PREFIX) for probe in asked for name in probe.options)
    dtypes = dict.fromkeys(str(probe.arrays[0].dtype) for probe in asked)
    largest = max((abs(x) for probe in asked for x in probe.scores), default=0)
    varied += [f"scores up to {largest:g}"] * bool(largest)
    varied += [f"options {', '.join(names)}" if names else "no options", f"in {', '.join(dtypes)}"]
    count = sum(not x.narrow for x in asked)
    return Equality(count, apart[False], worst, "; ".join(varied), apart[True], record.told(a.form))
