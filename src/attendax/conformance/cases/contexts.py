"""The result does not depend on how a call comes to be compiled: losses and constants, numbers read anew (L17).

A compiler computes with all that it knows, such as the cotangent of ``out.sum()``; random arguments never show that.
"""

from typing import Any

from .case import FORWARD, GRADIENT, SAME, Case
from .given import CAUSAL, NOTHING, Given, bias, case, mask
from .gradients import FORWARD_OVER, REVERSE_OVER

SMALL: dict[str, Any] = {"B": 1, "N": 12, "G": 12, "T": 64, "S": 64, "D": 16, "V": 16}
LARGE: dict[str, Any] = {"B": 2, "N": 12, "G": 12, "T": 197, "S": 197, "D": 64, "V": 64}
ODD = SMALL | {"D": 24, "V": 24}  # of the weights
COTANGENTS = {  # of each loss
    "sum": ("out.sum()", Given("cotangent = np.ones_like(query)")),
    "mean": ("out.mean()", Given("cotangent = np.full_like(query, 1 / query.size)")),
    "a row": ("out[..., 0, :].sum()", Given("cotangent = np.zeros_like(query); cotangent[..., 0, :] = 1")),
}
SHOWN = {FORWARD: "", FORWARD_OVER: "second order: ", REVERSE_OVER: "second order: "}
SQUARE_MASK = mask("np.tri(T, S, dtype=bool)")
SLOPED_BIAS = bias("(-np.abs(np.arange(T)[:, None] - np.arange(S)) / 16).astype(dtype)")
WEIGHTS = Given("weights = np.eye(D, dtype=dtype)[::-1]")  # exact in every dtype


def context(name: str, about: str, given: Given = NOTHING, direction: str = FORWARD, **more: Any) -> Case:
    """A case of garbage, which is off by far more than any rounding."""
    return case(name, "L17", about, given, direction, slack=4.0, **more)


def loss(how: str, B: int, N: int, T: int, D: int, least: str = "law") -> Case:
    """The gradient of a loss as one writes it."""
    (text, given), name = COTANGENTS[how], f"gradient of a loss: {how}, {B}, {N}, {T}, {D}"
    sizes: dict[str, Any] = {"B": B, "N": N, "T": T, "D": D, "G": N, "S": T, "V": D}
    return context(name, f"loss = {text}", given, f"gradient of a loss, {how}", least=least, **sizes)


def known(
    name: str, kind: str, direction: str = FORWARD, given: Given = NOTHING, sizes: dict[str, Any] = SMALL,
    least: str = "law",
) -> Case:  # fmt: skip
    """An array is a constant of the compiled function; of torch a tensor that requires no gradient."""
    said = {"as given": "known", "ones": "of ones"}.get(kind, f"of {kind}")
    told = f"{SHOWN.get(direction, f'{direction}: ')}{name} {said}, {sizes['T']}"
    about = f"{name} is a constant in what is compiled" + (f", {direction}" if direction != FORWARD else "")
    return context(told, about, given, direction, constants={name: kind}, least=least, **sizes)


def itself(direction: str, about: str, *names: str, given: Given = NOTHING) -> Case:
    """Self-attention of one array, without projections: the call is given it in several places."""
    told = f"{'gradient: ' * (direction == GRADIENT)}one array for query, {' and '.join(names)}"
    return context(told, about, given, direction, constants=dict.fromkeys(names, SAME), least="numbers", **ODD)


def changed(name: str, first: str, then: str) -> Case:
    """Numbers are written into an array between two calls."""
    given = Given(f"{name} = {first}\nchanged = dict({name}=({then}).astype({name}.dtype))", f"{name}={name}")
    return context(f"{name} changed in place", "a second call reads it anew", given, "changed in place")


BOTH = ("key", "value")
CASES = [
    loss("sum", 1, 12, 64, 16, "numbers"), loss("sum", 2, 12, 128, 64), loss("sum", 2, 12, 197, 64, "numbers"),
    loss("sum", 8, 12, 128, 32), loss("mean", 2, 12, 128, 64), loss("a row", 2, 12, 128, 64),
    known("query", "identity"), known("key", "ones"), known("value", "positions"), known("value", "ones", sizes=LARGE),
    known("mask", "as given", given=SQUARE_MASK), known("bias", "as given", given=SLOPED_BIAS),
    known("weights", "as given", sizes=ODD, given=WEIGHTS),
    context("gradient: bias alone", "query, key and value have no gradient", SLOPED_BIAS, GRADIENT, least="numbers",
        constants=dict.fromkeys(("query", *BOTH), "as given"), **ODD | {"T": 56, "S": 56}),
    *(known(name, "as given", GRADIENT, CAUSAL, sizes=ODD | {"T": size, "S": size}, least="numbers")
      for name, size in (("query", 64), ("key", 48), ("value", 40))),
    known("query", "ones", GRADIENT), known("key", "positions", GRADIENT), known("value", "identity", GRADIENT),
    known("mask", "as given", GRADIENT, SQUARE_MASK), known("bias", "as given", GRADIENT, SLOPED_BIAS),
    known("weights", "as given", GRADIENT, WEIGHTS, ODD),
    itself(FORWARD, "attend(x, x, x)", *BOTH, given=CAUSAL), itself(FORWARD, "attend(x, x, value)", "key"),
    itself(GRADIENT, "attend(x, x, x): the sum of three gradients", *BOTH, given=CAUSAL),
    itself(GRADIENT, "attend(x, x, value): the sum of two gradients", "key"),
    known("query", "ones", "jvp"), known("value", "identity", "jvp"), known("query", "ones", FORWARD_OVER),
    known("value", "identity", REVERSE_OVER),
    changed("mask", "np.ones((T, S), bool)", "np.arange(S) <= np.arange(T)[:, None]"),
    changed("bias", "np.zeros((1, N, T, S), dtype)", "rng.standard_normal((1, N, T, S))"),
]  # fmt: skip
