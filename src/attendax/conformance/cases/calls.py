"""Dropout (L10), and how a call comes to be compiled, on which nothing depends (L17).

A compiler computes with all that it knows, such as the cotangent of ``out.sum()``; random arguments never show that.
"""

import functools
from typing import Any

from .case import FORWARD, GRADIENT, SAME, Case
from .given import CAUSAL, NOTHING, Given, bias, case, lengths, mask, random_bias, random_mask, segments, words
from .gradients import FORWARD_OVER, REVERSE_OVER

ONE_HOT = "key = key / 4; value = np.broadcast_to(np.eye(S, dtype=dtype), (B, G, S, S)).copy()\nquestion = "
OF_WEIGHTS: dict[str, Any] = {"T": 12, "S": 40, "V": 40, "N": 3, "D": 4}
DROPPED = "dropout_rate={}, dropout_rng=3"


def dropout(
    name: str, about: str, question: str, direction: str = FORWARD, given: Given = NOTHING, **more: Any
) -> Case:
    """A question about dropout, or several; the values are one-hot, so that the result is the weights."""
    plain = {"needs": ("V != D",), "dtype": "float32", "judge": "dropped"} | OF_WEIGHTS
    asked = Given(f"{ONE_HOT}{question!r}") & given & words(DROPPED.format(0.4))
    return case("L10", f"dropout: {name}", about, asked, direction, **plain | more)


BESIDE = {  # an option that dropout must not make a function forget
    "causal": CAUSAL,
    "mask": random_mask("(B, N, T, S)"),
    "bias": random_bias("(1, N, T, S)"),
    "key lengths": lengths("[9, 40]"),
    "softcap and scale": words("softcap=1.5, scale=0.8"),
    "window": words("window=(7, 5)"),
    "segments": segments("[[0] * 5 + [1] * 7] * 2", "[[0] * 15 + [1] * 25] * 2"),
}
SINKS = Given("sinks = 3 + rng.standard_normal(N).astype(dtype)", "sinks=sinks")
IN_A_CACHE = Given('offset = np.array([20, 9], "int32")', "is_causal=True, offset=offset")
DROPOUT = [
    case("L10", "dropout: rate 0", "the identity to the bit", words(DROPPED.format(0.0)), judge="dropped_none"),
    case("L10", "dropout: rate 1", "zeros", words(DROPPED.format(1.0)), judge="dropped_all", least="robust"),
    dropout("share", "a weight is 0 or p / (1 - rate), as often as the rate says", "share"),
    dropout("independent", "for every batch, head and query", "independent"),
    dropout("grouped heads", "each query head of each batch has its own set", "independent", B=5, N=10, G=5),
    dropout("position", "the kept set depends on key and position, not on the numbers", "position only"),
    dropout("random key", "another key, another set", "other key"),
    dropout("gradient", "goes through the set that the forward kept", "gradient", GRADIENT),
    dropout("gradient, grouped heads", "each query head has its own set", "gradient", GRADIENT, N=6),
    dropout("wide heads", "D = 128", "share", D=128),
    dropout("many keys", "S = 1,100", "share, independent in blocks", B=1, N=1, G=1, S=1100, V=1100),
    dropout("bfloat16", "in bfloat16", "share, position only", dtype="bfloat16"),
    dropout("sinks", "beside sinks", "position only", given=SINKS),
    dropout("cache", "beside an offset for each batch", "position only", given=IN_A_CACHE),
    *(dropout(x, f"beside {x}", "position only", given=given) for x, given in BESIDE.items()),
    *(dropout(f"gradient, {x}", f"beside {x}", "gradient", GRADIENT, given=given) for x, given in BESIDE.items()),
]
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
context = functools.partial(case, "L17", slack=4.0)  # garbage is off by far more than any rounding
WEIGHTS = Given("weights = np.eye(D, dtype=dtype)[::-1]")  # exact in every dtype


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


CONTEXTS = [
    loss("sum", 1, 12, 64, 16, "numbers"), loss("sum", 2, 12, 128, 64), loss("sum", 2, 12, 197, 64, "numbers"),
    loss("sum", 8, 12, 128, 32), loss("mean", 2, 12, 128, 64), loss("a row", 2, 12, 128, 64),
    known("query", "identity"), known("key", "ones"), known("value", "positions"), known("value", "ones", sizes=LARGE),
    known("mask", "as given", given=SQUARE_MASK), known("bias", "as given", given=SLOPED_BIAS),
    known("weights", "as given", sizes=ODD, given=WEIGHTS),
    context("gradient: bias alone", "query, key and value have no gradient", SLOPED_BIAS, GRADIENT, least="numbers",
        constants=dict.fromkeys(("query", "key", "value"), "as given"), **ODD | {"T": 56, "S": 56}),
    *(known(name, "as given", GRADIENT, CAUSAL, sizes=ODD | {"T": size, "S": size}, least="numbers")
      for name, size in (("query", 64), ("key", 48), ("value", 40))),
    known("query", "ones", GRADIENT), known("key", "positions", GRADIENT), known("value", "identity", GRADIENT),
    known("mask", "as given", GRADIENT, SQUARE_MASK), known("bias", "as given", GRADIENT, SLOPED_BIAS),
    known("weights", "as given", GRADIENT, WEIGHTS, ODD),
    itself(FORWARD, "attend(x, x, x)", "key", "value", given=CAUSAL), itself(FORWARD, "attend(x, x, value)", "key"),
    itself(GRADIENT, "attend(x, x, x): the sum of three gradients", "key", "value", given=CAUSAL),
    itself(GRADIENT, "attend(x, x, value): the sum of two gradients", "key"),
    known("query", "ones", "jvp"), known("value", "identity", "jvp"), known("query", "ones", FORWARD_OVER),
    known("value", "identity", REVERSE_OVER),
    changed("mask", "np.ones((T, S), bool)", "np.arange(S) <= np.arange(T)[:, None]"),
    changed("bias", "np.zeros((1, N, T, S), dtype)", "rng.standard_normal((1, N, T, S))"),
]  # fmt: skip
