"""Calls whose result tells what is looked for.

With one-hot values the result is the weights, with one-hot cotangents those of the backward; other calls tell the keys
that a key length hides, a scale, and how far causal reaches.
"""

from collections.abc import Callable, Mapping

import numpy as np

from ..cases import CASES
from ..cases.case import SIZES, Inputs
from ..cases.square import plain_of
from ..conventions import formula
from ..conventions.values import factor_of, scale_of_first, solved
from ..judge.trial import Trial
from .by_running import is_called_once, rerun, with_case
from .hypothesis import FORWARD_WAYS, attempt, is_backward, is_near, is_right, lengths

MOST_CALLS = 80
PROBED_BLOCKS = (128, 64, 32, 16)
SKIPPED, LOST = "some queries do not see whole blocks of keys", "some queries do not see some keys"
BLIND, TOO_MANY = "some queries see no key", "some queries see keys that they may not"
NEGATED = "some results have the wrong sign"
VALUES_ALONE = "the gradient of the values alone leaves out"
EQUAL = "query = 0 * query; value = np.broadcast_to(np.arange(S)[:, None], value.shape).astype(dtype)"
COUNTED = EQUAL + '\nkey_lengths = np.full(B, {length}, "int32")'  # all keys that are seen have one weight
ONE_KEY = """query = np.full_like(query, 2 / D); key = 0 * key; key[..., 0, :] = 1
value = 0 * value; value[..., 0, :] = 1"""  # the first score is twice the scale, all others are 0
BIASED = """query = 0 * query; value = 0 * value; value[..., 0, :] = 1
bias = np.zeros((1, 1, T, S), dtype); bias[..., 0] = 1"""  # the first score is what a bias of 1 adds
EQUAL_SCORES = "query = np.full_like(query, 1 / D); key = np.full_like(key, {score} * D**0.5)"
ABOUT = {"float16": (6, 100), "float64": (600, 720)}  # scores below and above the last whose exponential is finite
UNDERFLOW_SCORE = -103.0  # a score below which every exponential is 0 in float32
COUNTED_KEYS, MORE_KEYS = 9, (0, 5)
GIVEN_SCALE = 0.3


def told(trial: Trial) -> str:
    """A sentence of what the weights show, and where they do so first; empty where they are wrong in another way."""
    right = _right(trial, trial.inputs)
    got = _weights(trial, trial.inputs, right.shape) if right is not None else None
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
    rows, blind = lost.any(axis=-1), (lost | (right <= few)).all(axis=-1)
    if not more.any() and (blind.all() or _is_seen_otherwise(trial, lost)):
        return ""
    pairs = (more if more.any() else lost).reshape(-1, *right.shape[-2:]).any(axis=0)
    row = int(np.argmax(pairs.any(axis=-1)))
    keys = np.flatnonzero(pairs[row])
    last = keys[0] + int(np.argmin(np.append(np.diff(keys) == 1, False)))
    which = f"query {row}, " + (f"key {keys[0]}" if last == keys[0] else f"keys {keys[0]} to {last}")
    seen = (right > few).reshape(-1, *right.shape[-2:]).any(axis=0)
    others = {leaf: x for leaf, x in trial.expected().items() if leaf in ("grad query", "grad key")}
    if lost.any() and len(others) == 2 and is_near(trial, trial.got, others):
        of_key = pairs[:, keys[0]] | ~seen[:, keys[0]]
        return f"{VALUES_ALONE} {f'key {keys[0]}' if of_key.all() else which}"
    if not more.any() and blind[rows].all():
        return f"{BLIND}: query {row}"
    return f"{TOO_MANY if more.any() else SKIPPED if _are_blocks(pairs, seen) else LOST}: {which}"


def _is_seen_otherwise(trial: Trial, lost: np.ndarray) -> bool:
    """Tell whether some of the pairs that are lost are not lost where each score has the other sign, or all may be."""
    inputs = trial.inputs._replace(arrays=trial.inputs.arrays | {"query": -trial.inputs.arrays["query"]})
    right = _right(trial, inputs)
    got = None if right is None else _weights(trial, inputs, right.shape)
    if right is None or got is None:
        return True
    return bool((lost & (right > 1e-4 * right.max(axis=-1, keepdims=True)) & (got > 0.5 * right)).any())


def _are_blocks(lost: np.ndarray, seen: np.ndarray) -> bool:
    """Tell whether of each block of keys a query sees all or nothing of what it should see, and some are lost."""
    for block in PROBED_BLOCKS:
        starts = np.arange(0, lost.shape[-1], block)
        missing, all_of = (np.add.reduceat(x.astype(int), starts, axis=-1) for x in (lost, seen))
        if len(starts) > 1 and ((missing == 0) | (missing == all_of)).all() and (missing > 1).any():
            return True
    return False


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


def overflows(trial: Trial) -> bool:
    """Tell whether rows are not finite whose largest exponential is infinite, or 0, and all others are right.

    And scores that are all alike are right as long as their exponentials are finite, and wrong beyond.
    """
    wanted, got = (x.get("out", np.zeros(0)) for x in (trial.expected(), trial.got))
    if trial.case.direction not in FORWARD_WAYS or got.shape != wanted.shape or np.isfinite(got).all():
        return False
    largest = attempt(lambda: formula.top(formula.Steps(trial.inputs).scores()))
    if largest is None:
        return False
    limit = np.log(float(np.finfo("float16" if trial.dtype == "float16" else "float32").max))
    bad = ((largest > limit) | ((largest < UNDERFLOW_SCORE) & (largest > -np.inf))).reshape(*wanted.shape[:-1], 1)
    if not is_near(trial, {"out": np.where(bad & ~np.isfinite(got), wanted, got)}, {"out": wanted}):
        return False
    ends = []
    for score in ABOUT.get(trial.dtype, (80, 92)):
        other = with_case(trial, trial.case._replace(lines=f"{trial.case.lines}\n{EQUAL_SCORES.format(score=score)}"))
        ends.append(other and is_right(other, other.got))
    return ends == [True, False]


def _right(trial: Trial, inputs: Inputs) -> np.ndarray | None:
    """The weights, where they can be seen: those of a group of heads are summed in a backward."""
    backward, sizes = is_backward(trial), SIZES | trial.case.sizes
    if not is_called_once(trial) or "constants" in trial.inputs.extra or (backward and sizes["N"] != sizes["G"]):
        return None
    if -(-lengths(trial)[not backward] // trial.inputs.arrays["value"].shape[-1]) > MOST_CALLS:
        return None
    found = formula.weights(inputs)
    return found if found.size else None


def _weights(trial: Trial, inputs: Inputs, shape: tuple[int, ...]) -> np.ndarray | None:
    """Weights as the function has them, a few columns (or rows, of a backward) a call."""
    value, backward, found = inputs.arrays["value"], is_backward(trial), np.zeros(shape)
    length, width = shape[-2 if backward else -1], value.shape[-1]
    leaf, rows = ("grad value", value) if backward else ("out", inputs.arrays["query"])
    for start in range(0, length, width):
        one_hot = np.eye(length, dtype=value.dtype)[:, start : start + width]
        one_hot = np.pad(one_hot, [(0, 0), (0, width - one_hot.shape[-1])])
        if backward:
            extra = {"cotangent": np.broadcast_to(one_hot, inputs.extra["cotangent"].shape).copy()}
            extra |= {k: 0 * x for k, x in inputs.extra.items() if k == "lse_cotangent"}
            given = inputs._replace(extra=inputs.extra | extra)
        else:
            given = inputs._replace(arrays=inputs.arrays | {"value": np.broadcast_to(one_hot, value.shape).copy()})
        x = (rerun(trial, given) or {}).get(leaf)
        if x is None or x.shape != rows.shape[:-1] + value.shape[-1:]:
            return None
        part = slice(start, min(start + width, length))
        x = np.asarray(x, np.float64)[..., : part.stop - start]
        (found.swapaxes(-1, -2) if backward else found)[..., part] = x
    return found


def _scales(trial: Trial) -> dict[str, str]:
    """The scales of a function, by axis, where they can be solved for."""
    form = trial.implementation.form

    def measure(sizes: Mapping[str, int], given: float | None) -> float | None:
        case = plain_of(form, {}, ONE_KEY, "" if given is None else f"scale={given}", case=CASES[0])
        case = case._replace(sizes=SIZES | case.sizes | dict(sizes), direction="forward", judge="value")
        other = with_case(trial, case)
        out = np.zeros(0) if other is None else other.got["out"]
        return scale_of_first(out, case.sizes["S"]) if out.ndim > 1 else None  # else it is no result of rows

    sizes = SIZES | plain_of(form, {}).sizes
    found = {"scale": solved(measure, sizes)}
    if trial.implementation.lack(["scale"]) is None:
        found["given_scale"] = solved(measure, sizes, GIVEN_SCALE)
    return found


def _bias(trial: Trial) -> dict[str, str]:
    """The number that a bias is multiplied by, 2·bias, where it is one at every width."""
    found = []
    for width in (4, 9):
        sizes = trial.case.sizes | {"D": width, "V": width}
        other = with_case(trial, trial.case._replace(lines=BIASED, call="bias=bias", sizes=sizes))
        found.append(None if other is None else scale_of_first(other.got["out"], other.inputs.arrays["key"].shape[-2]))
    return {"bias": factor_of(found[0], found[1], "bias")}


def _causal(trial: Trial) -> dict[str, str]:
    """The reach of causal, j <= i + 2, where it is a number of keys from the start or from the end."""
    reach = []
    for more in MORE_KEYS:
        sizes = trial.case.sizes | {"T": COUNTED_KEYS, "S": COUNTED_KEYS + more}
        if (other := with_case(trial, trial.case._replace(lines=EQUAL, sizes=sizes))) is None:
            return {}
        out = np.asarray(other.got["out"], np.float64).reshape(-1, COUNTED_KEYS, other.got["out"].shape[-1])
        keys = np.rint(2 * out) if np.isfinite(out).all() else np.full(out.shape, -1)
        ahead = (keys - np.arange(COUNTED_KEYS)[:, None])[(keys > 0) & (keys < COUNTED_KEYS + more - 1)]
        if not ahead.size or np.ptp(ahead):
            return {}
        reach.append(int(ahead[0]))
    if reach[1] - reach[0] not in (0, MORE_KEYS[1]):
        return {}
    end, last = "i + S - T" if reach[1] > reach[0] else "i", reach[0]
    if last in (0, -1):
        return {"causal": f"j {'<' if last else '<='} {end}"}
    return {"causal": f"j <= {end} {'-' if last < 0 else '+'} {abs(last)}"}


PROBES: tuple[tuple[list[set[str]], Callable[[Trial], dict[str, str]]], ...] = (  # by the options of a call
    ([set(), {"scale"}], _scales),
    ([{"bias"}], _bias),
    ([{"is_causal"}], _causal),
)
