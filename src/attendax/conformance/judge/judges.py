"""A judge for each kind of case: the calls that it makes, and what it compares the results with."""

from collections.abc import Callable

import numpy as np

from ..cases.case import ARRAYS, FORWARD, Inputs, Leaves
from ..cases.invariance import LAST
from ..conventions import parts, right
from ..conventions.table import DECLARED, MEAN_ADDED, SEES_ALL
from ..conventions.values import law
from .comparing import alike, at, compare, part_of, unchanged, unsound
from .dropout import dropped, dropped_all, dropped_none
from .tolerances import MOST_EFFORT
from .trial import Trial
from .verdicts import AGAIN, CHANGES, WROTE, Finding, Verdict

HOPELESS = {"float16": 0.1, "bfloat16": 0.3}  # no rounding error is larger, unless nearly as much is allowed
HOPELESS_IN_WIDE = 1e-3
# The formula is not asked about a result of so many pairs that is off by as much.
FAR_OFF, FAR_OFF_PAIRS = 0.5, 2**17


def value(trial: Trial) -> Finding:
    """The numbers of the specification, in the dtype of the query (L8)."""
    wanted, got = trial.both()
    trial.got = got
    finding = _of_numbers(trial, got, wanted)
    return finding if finding.verdict.fails else _dtypes(trial, got) or finding


def _of_numbers(trial: Trial, got: Leaves, wanted: Leaves) -> Finding:
    """Right by the law or by what is declared, or why not."""
    finding = compared(trial, got, wanted)
    if finding.verdict.fails:
        return _explained(trial, got, finding)
    return finding if trial.meant() is trial.inputs else _by_convention(trial)


def after_others(trial: Trial) -> Finding:
    """The numbers of the specification, after a call with other inputs, of which nothing may be kept (L15)."""
    trial.run(trial.changed())
    return value(trial)


def _by_convention(trial: Trial, *axes: str) -> Finding:
    """Right by what is declared of causal, where that matters, and of other axes."""
    axes = (*dict(trial.expressed(trial.inputs).off), *axes) if trial.meant() is not trial.inputs else axes
    return Finding(Verdict.CONVENTION, ", and ".join(trial.declared.line(axis).words for axis in axes))


def but_for_empty_rows(trial: Trial) -> Finding:
    """The numbers of the specification; queries without any key may get anything but what a key gives (L3)."""
    wanted, got = trial.both()
    trial.got = got
    rows = right.empty_rows(trial.meant())[..., None]
    out = np.asarray(got["out"], np.float64)
    finding = compared(trial, {"out": np.where(rows, wanted["out"], out)}, wanted)
    of_one_key = trial.by(trial.declared.but(key_lengths="at least 1"))
    if finding.verdict.fails or compared(trial, got, of_one_key).verdict.fails:
        return finding
    said = "a query without any key gets what a key gives"
    return at(Verdict.WRONG, said, "out", rows & (out != 0), wanted["out"], out)


def compared(trial: Trial, got: Leaves, wanted: Leaves) -> Finding:
    """Compare results with the right ones; where they are off by little more than is allowed, ask better."""
    finding, least = Finding(Verdict.OK), HOPELESS.get(trial.dtype, HOPELESS_IN_WIDE)
    far = FAR_OFF if trial.case.level == FORWARD and parts.pairs(trial.inputs) > FAR_OFF_PAIRS else np.inf
    for effort in range(0 if trial.how.strict else -1, MOST_EFFORT + 1):
        finding = compare(got, wanted, trial.tolerances(wanted, effort=effort))
        if finding.verdict is not Verdict.WRONG or finding.error is None:  # no rounding
            break
        if finding.error > far or (effort >= 0 and finding.error > max(10 * (finding.allowed or 0), least)):
            break
    return finding


def _dtypes(trial: Trial, got: Leaves) -> Finding | None:
    if not trial.how.strict:
        return None
    arrays, least = trial.inputs.arrays, np.float32 if trial.dtype != "float64" else np.float64
    for leaf, x in got.items():
        if leaf.endswith("lse"):
            if np.dtype(x.dtype).itemsize < np.dtype(least).itemsize:
                return Finding(Verdict.WRONG, f"lse is {x.dtype}, expected {np.dtype(least)} or wider", leaf)
            continue
        wanted = arrays.get(leaf.partition(" ")[2], arrays["query"]).dtype
        if x.dtype != wanted:
            return Finding(Verdict.WRONG, f"{leaf} is {x.dtype}, expected {wanted}", leaf)
    return None


def _explained(trial: Trial, got: Leaves, finding: Finding) -> Finding:
    """Tell whether a dtype or a convention explains it, an argument was ignored, or a gradient left out."""
    if integers := [(leaf, x.dtype) for leaf, x in got.items() if x.dtype.kind in "iub"]:
        leaf, dtype = integers[0]  # which has no fractions
        return Finding(Verdict.WRONG, f"{leaf} is {dtype}, expected {trial.dtype}", leaf)
    empty = trial.declared.value("empty")
    ways = ["", MEAN_ADDED, DECLARED["nan"]] if empty == DECLARED["mean"] else [""]
    ways = ways[: 2 + (trial.dtype == "float16")]  # where -1e9 is -inf
    if empty == SEES_ALL and trial.case.level == FORWARD:  # of scores that are rounded as those where masked
        wanted = trial.expected()
        rest = got | {"out": np.where(right.empty_rows(trial.meant())[..., None], wanted["out"], got["out"])}
        if not compared(trial, rest, wanted).verdict.fails:
            return _by_convention(trial, "empty")
    if empty != law("empty") and right.empty_rows(trial.meant()).any():
        for way in ways:
            wanted = trial.by_convention(way)
            mine = _but_for_nan(trial, got, wanted) if DECLARED["nan"] in (way, empty) else got
            if not compared(trial, mine, wanted).verdict.fails:
                return _by_convention(trial, "empty")
    finding, leaf = _named(got, finding), finding.leaf or ""
    if trial.case.direction in ("forward", "gradient") and finding.verdict is Verdict.WRONG:
        around = {"constants", "weights", "mapped", "changed"} & trial.inputs.extra.keys()
        whole = around or not parts.can_be_cut(trial.inputs) or parts.pairs(trial.inputs) <= FAR_OFF_PAIRS
        whole = whole or any(leaf not in got or got[leaf].shape != x.shape for leaf, x in trial.expected().items())
        for name, less in without(trial.inputs):
            wanted, mine = (trial.expected(less), got) if whole else _of_a_head(trial, less, got, finding)
            mine = {leaf: x for leaf, x in mine.items() if leaf in wanted}
            if leaf not in wanted or wanted.keys() != mine.keys() or compared(trial, mine, wanted).verdict.fails:
                continue
            rights = trial.expected() if whole else _of_a_head(trial, trial.inputs, got, finding)[0]
            if compared(trial, rights, wanted).verdict.fails:  # it matters there
                return finding._replace(verdict=Verdict.SILENT, message=f"the result is as if {name} were not given")
    return finding


def _but_for_nan(trial: Trial, got: Leaves, wanted: Leaves) -> Leaves:
    """Gradients with right ones in place of NaN: of a query without any key, and of the keys and values of its text."""
    rows = np.asarray(right.empty_rows(trial.meant()))[..., None]
    texts = rows.any((-2, -3), keepdims=True)
    places = {"grad query": rows, "grad key": texts, "grad value": texts}
    found = dict(got)
    for leaf in (x for x in got if x.startswith("grad") and wanted[x].shape == got[x].shape):
        here = places.get(leaf, rows.any()) if got[leaf].ndim == rows.ndim else rows.any()
        found[leaf] = np.where(np.isnan(got[leaf]) & here, wanted[leaf], got[leaf])
    return found


def _named(got: Leaves, finding: Finding) -> Finding:
    """The finding, with words for a gradient that is all zeros."""
    leaf = finding.leaf or ""
    of_gradient = finding.verdict is Verdict.WRONG and leaf.startswith(("grad", "tangent", "second"))
    if not of_gradient or leaf not in got or np.any(got[leaf]):
        return finding
    return finding._replace(verdict=Verdict.SILENT, message=f"{leaf} is all zeros")


def _of_a_head(trial: Trial, inputs: Inputs, got: Leaves, finding: Finding) -> tuple[Leaves, Leaves]:
    """Right results for other inputs, and those that are got, of the key head where a result is worst.

    The gradient of a bias or of sinks may be that of many heads: it is left out.
    """
    group = inputs.arrays["query"].shape[1] // inputs.arrays["key"].shape[1]
    b, head = finding.index[:2] if finding.index and len(finding.index) > 2 else (0, 0)
    g = head if finding.leaf in ("grad key", "grad value") else head // group
    b, g = (k if k < size else 0 for k, size in zip((b, g), inputs.arrays["key"].shape, strict=False))
    some, places = parts.part(inputs, right.allowed_pairs(trial.meant(inputs)), b, g)
    wanted = right.leaves(some, trial.case.direction)
    where = {leaf: places.get(leaf.removeprefix("grad "), places["query"]) for leaf in wanted}
    wanted = {leaf: x for leaf, x in wanted.items() if leaf not in ("grad bias", "grad sinks")}
    return wanted, {leaf: got[leaf][where[leaf]] for leaf in wanted if leaf in got}


def without(inputs: Inputs) -> list[tuple[str, Inputs]]:
    """The inputs without each option in turn."""
    fewer = []
    if "lse_cotangent" in inputs.extra:
        silent = inputs.extra | {"lse_cotangent": np.zeros_like(inputs.extra["lse_cotangent"])}
        fewer.append(("the cotangent of lse", inputs._replace(extra=silent)))
    segments = ("query_segment_ids", "key_segment_ids")
    for name in inputs.options:
        if name not in ("return_lse", "dropout_rng", segments[0]):
            gone = segments if name in segments else (name,)
            rest = {k: x for k, x in inputs.options.items() if k not in gone}
            fewer.append((name, inputs._replace(options=rest)))
    for name in (name for name in ARRAYS[3:] if name in inputs.arrays):
        rest = {k: x for k, x in inputs.arrays.items() if k != name}
        fewer.append((name, inputs._replace(arrays=rest)))
    return fewer


def same_bits(trial: Trial) -> Finding:
    """Two calls whose inputs differ where it may not matter give the same bits (L6, L15).

    Where only robustness is asked, or where no two calls are the same to the bit, the same numbers up to rounding.
    """
    other = trial.changed() if trial.case.changed else trial.inputs
    nan_rows = trial.declared.value("empty") == DECLARED["nan"]
    one, two = trial.run(), trial.run(other)
    found = unchanged(one, two, trial.case.where, nan_rows=nan_rows)
    exact = trial.how.strict and "determinism" not in trial.implementation.lacks
    if found.verdict is not Verdict.LEAK or exact or not trial.case.changed:
        return found
    return found if _compared_in_part(trial, one, two).verdict.fails else Finding(Verdict.OK)


def _compared_in_part(trial: Trial, one: Leaves, other: Leaves) -> Finding:
    """The parts of two results that the case is about, beside each other."""
    where = trial.case.where
    wanted, got = ({leaf: part_of(x, leaf, where) for leaf in where or one} for x in (one, other))
    return compared(trial, got, wanted)


def same_rows(trial: Trial) -> Finding:
    """The rows that two calls have in common have the same bits (row invariance)."""
    one, two, last = trial.run(), trial.run(trial.changed(), trial.case.then or None), 0
    where = dict(trial.case.where)
    if trial.case.then:  # an axis of vmap may stand before those of a call
        two = {leaf: x.reshape(one[leaf].shape) if x.size == one[leaf].size else x for leaf, x in two.items()}
    for leaf, part in trial.case.where.items():
        shape = np.minimum(one[leaf].shape, two[leaf].shape)
        if part == LAST:
            last, where[leaf] = int(shape[-2]), "..."
            one[leaf], two[leaf] = (x[leaf][..., -last:, :] for x in (one, two))
        one[leaf], two[leaf] = (x[leaf][tuple(map(slice, shape))] for x in (one, two))
    found = unchanged(one, two, where)
    if last and found.index is not None:  # in both calls counted from the end
        *heads, row, column = found.index
        found = found._replace(index=(*heads, row - last, column))
    return found


def close(trial: Trial) -> Finding:
    """Two calls agree up to rounding, where the case says (L15)."""
    one, other = trial.run(), trial.run(trial.changed())
    if fault := unsound(one):
        return fault
    found = _compared_in_part(trial, one, other)
    return found._replace(verdict=Verdict.LEAK) if found.verdict.fails else found


def unwritten(trial: Trial) -> Finding:
    """The arrays of the caller keep their numbers (L15)."""
    given = trial.inputs.arrays | {k: x for k, x in trial.inputs.options.items() if hasattr(x, "shape")}
    before = {name: x.copy() for name, x in given.items()}
    after = trial.run(direction="unwritten")
    for name, x in before.items():
        if (differ := x != after[name]).any():
            return at(Verdict.WRONG, f"{WROTE} {name}", name, differ, x, after[name])
    return Finding(Verdict.OK)


def held(trial: Trial) -> Finding:
    """A result keeps its numbers when the function is called again (L15); and it is right."""
    wanted, got = trial.both()
    for leaf, then in got.items():
        now = got.get(f"held {leaf.removeprefix('grad ')}", then)
        if then.shape == now.shape and (differ := ~alike(then, now)).any():
            return at(Verdict.WRONG, f"{CHANGES}: {leaf}", leaf, differ, then, now)
    again = {leaf.replace("again", "grad", 1): x for leaf, x in got.items() if leaf.startswith("again ")}
    trial.got = {leaf: x for leaf, x in got.items() if leaf in wanted}
    found = _of_numbers(trial, trial.got, wanted)
    if again and not found.verdict.fails and (second := _of_numbers(trial, again, wanted)).verdict.fails:
        leaf = (second.leaf or "").replace("grad", "again", 1)
        return second._replace(message=f"{AGAIN}: {second.message}", leaf=leaf)
    return found


OF_ONE_CALL = value, after_others, but_for_empty_rows, unwritten, held, dropped_all
OF_SEVERAL = same_bits, same_rows, close, dropped, dropped_none
JUDGES: dict[str, Callable[[Trial], Finding]] = {judge.__name__: judge for judge in (*OF_ONE_CALL, *OF_SEVERAL)}
