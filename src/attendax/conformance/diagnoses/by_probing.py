"""Calls whose result tells what is looked for.

With one-hot values the result is the weights, with one-hot cotangents those of the backward; other calls tell the keys
that a key length hides, a scale, and how far causal reaches.
"""

from collections.abc import Mapping

import numpy as np

from ..cases import CASES
from ..cases.case import SIZES, Leaves
from ..cases.square import plain_of
from ..conventions import formula
from ..conventions.form import Measure, factor_of, scale_of_first, solved
from ..judge.comparing import compare
from ..judge.trial import Trial
from .by_running import is_called_once, rerun, with_case
from .hypothesis import GRADIENT, heads_of, lengths, loosely

MOST_CALLS = 80
BLOCKS = (128, 64, 32, 16)
SKIPPED, LOST = "blocks of keys are skipped that queries look at", "some queries do not see some keys"
TOO_MANY = "some queries see keys that they may not"
NEGATED = "some results have the wrong sign"
VALUES_ALONE = "the gradient of the values alone leaves out"
EQUAL = "query = 0 * query; value = np.broadcast_to(np.arange(S)[:, None], value.shape).astype(dtype)"
COUNTED = EQUAL + '\nkey_lengths = np.full(B, {length}, "int32")'  # all keys that are seen have one weight
ONE_KEY = """query = np.full_like(query, 2 / D); key = 0 * key; key[..., 0, :] = 1
value = 0 * value; value[..., 0, :] = 1"""  # the first score is twice the scale, all others are 0
BIASED = """query = 0 * query; value = 0 * value; value[..., 0, :] = 1
bias = np.zeros((1, 1, T, S), dtype); bias[..., 0] = 1"""  # the first score is what a bias of 1 adds
MANY, MORE_KEYS = 9, (0, 5)
GIVEN = 0.3


def told(trial: Trial) -> str:
    """A sentence of what the weights show, and where they do so first; empty where they are wrong in another way."""
    right = _right(trial)
    got = _weights(trial, right.shape) if right is not None else None
    if right is None or got is None or not np.isfinite(got).all():
        return ""
    few = 1e-4 * right.max(axis=-1, keepdims=True)
    turned = ((right > few) & (np.abs(got + right) < 2e-2 * right)).reshape(-1, *right.shape[-2:]).any(axis=(0, -1))
    if turned.any():
        return f"{NEGATED}: query {int(np.argmax(turned))}"
    lost = (right > few) & (got < 1e-3 * right)
    more = (right == 0) & (got > few)
    kept = np.where(lost | (right <= few), np.nan, got / np.where(right == 0, 1, right))
    with np.errstate(all="ignore"):
        factor = np.nanmedian(np.where(np.isnan(kept).all(-1, keepdims=True), 1, kept), axis=-1, keepdims=True)
        others = np.abs(kept - factor) > 2e-2 * factor
    if (others & ~np.isnan(kept)).any() or not (lost | more).any():
        return ""
    pairs = (more if more.any() else lost).reshape(-1, *right.shape[-2:]).any(axis=0)
    row = int(np.argmax(pairs.any(axis=-1)))
    keys = np.flatnonzero(pairs[row])
    last = keys[0] + int(np.argmin(np.append(np.diff(keys) == 1, False)))
    which = f"query {row}, " + (f"key {keys[0]}" if last == keys[0] else f"keys {keys[0]} to {last}")
    seen = (right > few).reshape(-1, *right.shape[-2:]).any(axis=0)
    if lost.any() and _is_of_values_alone(trial):
        of_key = pairs[:, keys[0]] | ~seen[:, keys[0]]
        return f"{VALUES_ALONE} {f'key {keys[0]}' if of_key.all() else which}"
    return f"{TOO_MANY if more.any() else SKIPPED if _are_blocks(pairs, seen) else LOST}: {which}"


def _are_blocks(lost: np.ndarray, seen: np.ndarray) -> bool:
    """Tell whether of each block of keys a query sees all or nothing of what it should see, and some are lost."""
    for block in BLOCKS:
        starts = np.arange(0, lost.shape[-1], block)
        missing, all_of = (np.add.reduceat(x.astype(int), starts, axis=-1) for x in (lost, seen))
        if len(starts) > 1 and ((missing == 0) | (missing == all_of)).all() and (missing > 1).any():
            return True
    return False


def _is_of_values_alone(trial: Trial) -> bool:
    """Tell whether the gradients of queries and of keys are right."""
    wanted = {leaf: x for leaf, x in trial.expected().items() if leaf in ("grad query", "grad key")}
    got = {leaf: trial.got[leaf] for leaf in wanted if leaf in trial.got}
    return len(got) == 2 and not compare(got, wanted, loosely(trial, wanted)).verdict.fails


def lengths_seen(trial: Trial) -> str:
    """The multiples that key lengths are rounded up to, where they are."""
    own = SIZES | trial.case.sizes
    length = 1100  # no multiple of a block
    sizes = own | {"S": length} | ({"T": length} if own["T"] == own["S"] else {})
    seen = []
    for given in (1, 130):
        case = trial.case._replace(lines=COUNTED.format(length=given), call="key_lengths=key_lengths", sizes=sizes)
        counted = with_case(trial, case._replace(direction="forward", dtype=None, judge="value"))
        out = np.asarray(counted.got["out"], np.float64) if counted else np.zeros(0)
        if not out.size or np.ptp(out) > 1e-3 * length:
            return ""
        seen.append(round(2 * float(out.flat[0]) + 1))
    block = seen[0]
    rounds = 1 < block < length and seen[1] == min(-(-130 // block) * block, length)
    return f"key lengths are rounded up to multiples of {block}" if rounds else ""


def _right(trial: Trial) -> np.ndarray | None:
    """The weights, where they can be seen: those of a group of heads are summed in a backward."""
    backward, (N, G) = trial.case.direction.partition(",")[0] in GRADIENT, heads_of(trial.inputs)
    if not is_called_once(trial) or "constants" in trial.inputs.extra or (backward and N != G):
        return None
    if -(-lengths(trial.inputs)[not backward] // trial.inputs.arrays["value"].shape[-1]) > MOST_CALLS:
        return None
    found = formula.weights(trial.inputs)
    return found if found.size else None


def _weights(trial: Trial, shape: tuple[int, ...]) -> np.ndarray | None:
    """Weights as the function has them, a few columns (or rows, of a backward) a call."""
    inputs, value = trial.inputs, trial.inputs.arrays["value"]
    backward, found = trial.case.direction.partition(",")[0] in GRADIENT, np.zeros(shape)
    length, width = shape[-2 if backward else -1], value.shape[-1]
    for start in range(0, length, width):
        one_hot = np.eye(length, dtype=value.dtype)[:, start : start + width]
        one_hot = np.pad(one_hot, [(0, 0), (0, width - one_hot.shape[-1])])
        if backward:
            cotangent = inputs.extra["cotangent"]
            extra = {"cotangent": np.broadcast_to(one_hot, cotangent.shape).copy()}
            extra |= {k: 0 * x for k, x in inputs.extra.items() if k == "lse_cotangent"}
            got: Leaves | None = rerun(trial, inputs._replace(extra=inputs.extra | extra))
        else:
            arrays = inputs.arrays | {"value": np.broadcast_to(one_hot, value.shape).copy()}
            got = rerun(trial, inputs._replace(arrays=arrays))
        x = (got or {}).get("grad value" if backward else "out")
        if x is None or x.shape != (value if backward else inputs.arrays["query"]).shape[:-1] + value.shape[-1:]:
            return None
        part = slice(start, min(start + width, length))
        x = np.asarray(x, np.float64)[..., : part.stop - start]
        if backward:
            found[..., part, :] = x.swapaxes(-1, -2)
        else:
            found[..., part] = x
    return found


def measured(trial: Trial) -> Measure:
    """The scale of a function at sizes, with one that is given or without."""

    def measure(sizes: Mapping[str, int], given: float | None) -> float | None:
        form = trial.implementation.form
        case = plain_of(form, {}, ONE_KEY, "" if given is None else f"scale={given}", case=CASES[0])
        case = case._replace(sizes=SIZES | case.sizes | dict(sizes), direction="forward", judge="value")
        if form.lacking(case) or trial.implementation.lack(case.traits(case.inputs(0, trial.dtype))):
            return None
        other = with_case(trial, case)
        return None if other is None else scale_of_first(other.got["out"], (SIZES | case.sizes)["S"])

    return measure


def scales(trial: Trial) -> dict[str, str]:
    """The scales of a function, by axis, where they can be solved for."""
    measure = measured(trial)
    sizes = SIZES | plain_of(trial.implementation.form, {}).sizes
    found = {"scale": solved(measure, sizes)}
    if trial.implementation.lack(["scale"]) is None:
        found["given_scale"] = solved(measure, sizes, GIVEN)
    return found


def bias(trial: Trial) -> str:
    """The number that a bias is multiplied by, 2·bias, where it is one at every width."""
    found = []
    for width in (4, 9):
        sizes = trial.case.sizes | {"D": width, "V": width}
        other = with_case(trial, trial.case._replace(lines=BIASED, call="bias=bias", sizes=sizes))
        found.append(None if other is None else scale_of_first(other.got["out"], other.inputs.arrays["key"].shape[-2]))
    return factor_of(found[0], found[1], "bias")


def causal(trial: Trial) -> str:
    """The reach of causal, j <= i + 2, where it is a number of keys from the start or from the end."""
    reach = []
    for more in MORE_KEYS:
        case = trial.case._replace(lines=EQUAL, sizes=trial.case.sizes | {"T": MANY, "S": MANY + more})
        if trial.implementation.form.lacking(case) or (other := with_case(trial, case)) is None:
            return ""
        out = np.asarray(other.got["out"], np.float64).reshape(-1, MANY, other.got["out"].shape[-1])
        last = np.rint(2 * out) if np.isfinite(out).all() else np.full(out.shape, -1)
        ahead = (last - np.arange(MANY)[:, None])[(last > 0) & (last < MANY + more - 1)]
        if not ahead.size or np.ptp(ahead):
            return ""
        reach.append(int(ahead[0]))
    if reach[1] - reach[0] not in (0, MORE_KEYS[1]):
        return ""
    end = "i + S - T" if reach[1] > reach[0] else "i"
    if reach[0] in (0, -1):
        return f"j {'<' if reach[0] else '<='} {end}"
    return f"j <= {end} {'-' if reach[0] < 0 else '+'} {abs(reach[0])}"
