"""The result does not depend on how a call comes to be compiled: losses and constants, numbers read anew (L17).

A compiler computes with all that it knows, such as the cotangent of ``out.sum()``; random arguments never show that.
"""

from typing import Any

from .case import FORWARD, GRADIENT, SAME, Case
from .given import CAUSAL, NOTHING, Given, bias, case, mask
from .gradients import FORWARD_OVER, REVERSE_OVER

SMALL: dict[str, Any] = {"B": 1, "N": 12, "G": 12, "T": 64, "S": 64, "D": 16, "V": 16}
LARGE: dict[str, Any] = {"B": 2, "N": 12, "G": 12, "T": 197, "S": 197, "D": 64, "V": 64}
IN_NUMBERS = ((1, 12, 64, 16), (2, 12, 197, 64))
GARBAGE = 4.0  # is off by far more than any rounding
COTANGENTS = {  # of each loss
    "sum": Given("cotangent = np.ones_like(query)"),
    "mean": Given("cotangent = np.full_like(query, 1 / query.size)"),
    "a row": Given("cotangent = np.zeros_like(query); cotangent[..., 0, :] = 1"),
}
SQUARE_MASK = mask("np.tri(T, S, dtype=bool)")
SLOPED_BIAS = bias("(-np.abs(np.arange(T)[:, None] - np.arange(S)) / 16).astype(dtype)")
ODD = SMALL | {"D": 24, "V": 24}  # of the weights
WEIGHTS = Given("weights = np.eye(D, dtype=dtype)[::-1]")  # exact in every dtype


def loss(how: str, *shape: int) -> Case:
    """The gradient of a loss as one writes it."""
    sizes: dict[str, Any] = dict(zip("BNTD", shape, strict=True))
    sizes |= {"G": sizes["N"], "S": sizes["T"], "V": sizes["D"]}
    about = {"sum": "loss = out.sum()", "mean": "loss = out.mean()", "a row": "loss = out[..., 0, :].sum()"}[how]
    name, direction = f"gradient of a loss: {how}, {', '.join(map(str, shape))}", f"gradient of a loss, {how}"
    least = "numbers" if shape in IN_NUMBERS else "law"
    return case(name, "L17", about, COTANGENTS[how], direction, slack=GARBAGE, least=least, **sizes)


def known(
    name: str, kind: str, direction: str = FORWARD, given: Given = NOTHING, sizes: dict[str, Any] = SMALL,
    least: str = "law",
) -> Case:  # fmt: skip
    """An array is a constant of the compiled function; of torch a tensor that requires no gradient."""
    said = {"as given": "known", "ones": "of ones"}.get(kind, f"of {kind}")
    shown = {FORWARD: "", "second": "second order: "}.get(direction.partition(",")[0], f"{direction}: ")
    about = f"{name} is a constant in what is compiled" + (f", {direction}" if direction != FORWARD else "")
    more: dict[str, Any] = {"constants": {name: kind}, "slack": GARBAGE, "least": least}
    return case(f"{shown}{name} {said}, {sizes['T']}", "L17", about, given, direction, **more, **sizes)


def itself(direction: str, about: str, *names: str, given: Given = NOTHING) -> Case:
    """Self-attention of one array, without projections: the call is given it in several places."""
    told = f"one array for query, {' and '.join(names)}"
    more: dict[str, Any] = {"constants": dict.fromkeys(names, SAME), "slack": GARBAGE, "least": "numbers"}
    prefix = "gradient: " * (direction == GRADIENT)
    return case(f"{prefix}{told}", "L17", about, given, direction, **more, **ODD)


def changed(name: str, first: str, then: str) -> Case:
    """Numbers are written into an array between two calls."""
    given = Given(f"{name} = {first}\nchanged = dict({name}=({then}).astype({name}.dtype))", f"{name}={name}")
    about = "a second call reads it anew"
    return case(f"{name} changed in place", "L17", about, given, "changed in place", slack=GARBAGE)


LOSSES = [
    loss("sum", 1, 12, 64, 16), loss("sum", 2, 12, 128, 64), loss("sum", 2, 12, 197, 64), loss("sum", 8, 12, 128, 32),
    loss("mean", 2, 12, 128, 64), loss("a row", 2, 12, 128, 64),
]  # fmt: skip
CONSTANTS = [
    known("query", "identity"), known("key", "ones"), known("value", "positions"), known("value", "ones", sizes=LARGE),
    known("mask", "as given", given=SQUARE_MASK), known("bias", "as given", given=SLOPED_BIAS),
    known("weights", "as given", sizes=ODD, given=WEIGHTS),
]  # fmt: skip
FROZEN = [
    known(name, "as given", "gradient", CAUSAL, sizes=ODD | {"T": size, "S": size}, least="numbers")
    for name, size in (("query", 64), ("key", 48), ("value", 40))
]
BIAS_ALONE = case(
    "gradient: bias alone", "L17", "query, key and value have no gradient", SLOPED_BIAS, GRADIENT,
    constants=dict.fromkeys(("query", "key", "value"), "as given"), slack=GARBAGE, least="numbers",
    **ODD | {"T": 56, "S": 56},
)  # fmt: skip
GRADIENTS = [
    BIAS_ALONE, *FROZEN, known("query", "ones", "gradient"), known("key", "positions", "gradient"),
    known("value", "identity", "gradient"), known("mask", "as given", "gradient", given=SQUARE_MASK),
    known("bias", "as given", "gradient", given=SLOPED_BIAS),
    known("weights", "as given", "gradient", sizes=ODD, given=WEIGHTS),
]  # fmt: skip
DIRECTIONS = [
    known("query", "ones", "jvp"), known("value", "identity", "jvp"), known("query", "ones", FORWARD_OVER),
    known("value", "identity", REVERSE_OVER),
]  # fmt: skip
ITSELF = [
    itself(FORWARD, "attend(x, x, x)", "key", "value", given=CAUSAL), itself(FORWARD, "attend(x, x, value)", "key"),
    itself(GRADIENT, "attend(x, x, x): the sum of three gradients", "key", "value", given=CAUSAL),
    itself(GRADIENT, "attend(x, x, value): the sum of two gradients", "key"),
]  # fmt: skip
ANEW = [
    changed("mask", "np.ones((T, S), bool)", "np.arange(S) <= np.arange(T)[:, None]"),
    changed("bias", "np.zeros((1, N, T, S), dtype)", "rng.standard_normal((1, N, T, S))"),
]
CASES = [*LOSSES, *CONSTANTS, *GRADIENTS, *ITSELF, *DIRECTIONS, *ANEW]
