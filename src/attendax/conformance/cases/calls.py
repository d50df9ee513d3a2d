"""Dropout (L10); mistakes of the caller (L14); and how a call comes to be compiled, on which nothing depends (L17).

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
AXES = ("length", "depth", "width", "shape", "size", "dimension", "dims", "axis")
OF_BATCH, OF_MASK, OF_LENGTHS = ("key", "query", "batch", *AXES), ("mask", *AXES), ("length", "seq")
RATE, CAP = ("dropout", "rate", "probability"), ("softcap", "cap")
BATCH: dict[str, Any] = {"needs": ("batch",)}
HEADS: dict[str, Any] = {"needs": ("heads",)}
ANOTHER_BATCH = Given("key, value = np.zeros((B + 1, G, S, D), dtype), np.zeros((B + 1, G, S, V), dtype)")
TO_INTEGERS = Given("query, key, value = ((9 * x).astype('int32') for x in (query, key, value))")
SIX_IDS = Given(
    'q_ids = np.zeros((B, T + 1), "int32"); k_ids = np.zeros((B, S), "int32")',
    "query_segment_ids=q_ids, key_segment_ids=k_ids",
)
OF_3_AXES = mask("rng.random((B, T, S)) < 0.5; mask[..., 2] = True")
REPEATED = "key, value = (np.concatenate([x] * B) for x in (key, value))"
TO_FLOATS = "query, key, value = (x.astype('float32') for x in (query, key, value))"
WIDENED, NOT_ZERO = "key, value = key.astype('float32'), value.astype('float32')", "mask = mask != 0"


def refusal(
    name: str, about: str, given: Given, speaks_of: tuple[str, ...], law: str = "L14", meant: str = "", **more: Any
) -> Case:
    """A mistake that must be refused, in words that speak of it; what it may have meant is Python that changes it."""
    given = given & Given(f"speaks_of = {speaks_of!r}")
    return case(law, f"refused: {name}", about, given, judge="refused", changed=meant, **more)


REFUSALS = [
    refusal("key width", "query has D = 4, key D = 6",
        Given("key = rng.standard_normal((B, G, S, D + 2)).astype(dtype)"), ("key", *AXES)),
    refusal("value length", "key has S = 7, value S = 6", Given("value = value[:, :, :-1]"), ("value", *AXES)),
    refusal("batch of the keys", "query has B = 2, key and value B = 3", ANOTHER_BATCH, OF_BATCH, **BATCH),
    refusal("batch of 1 beside 2", "nothing is broadcast behind the caller's back",
        Given("key, value = key[:1], value[:1]"), OF_BATCH, "L1", REPEATED, **BATCH),
    refusal("heads that do not divide", "N = 3, G = 2", Given("key, value = key[:, :2], value[:, :2]"),
        ("head", "key", "multiple", *AXES), **HEADS),
    refusal("heads of the values", "key has G = 3, value 1", Given("value = value[:, :1]"), ("head", "value", *AXES),
        "L1", "value = np.concatenate([value] * G, axis=1)", **HEADS),
    refusal("integer arrays", "attention is of floating numbers", TO_INTEGERS, ("dtype", "float", "int", "type"),
        meant=TO_FLOATS),
    refusal("mixed dtypes", "query is float32, key and value are float16",
        Given("key, value = key.astype('float16'), value.astype('float16')"), ("dtype", "type", "float16", "half"),
        "L8", WIDENED, dtype="float32"),
    refusal("mask of integers", "is 1 'may look', or an additive 1?", mask("np.ones((T, S), 'int32'); mask[1, 2] = 0"),
        ("mask", "bool"), "L3", NOT_ZERO),
    refusal("mask of floats", "is 0 'may look', or 'may not'?", mask("np.zeros((T, S), dtype); mask[:, :2] = 1"),
        ("mask", "bool"), "L3", NOT_ZERO),
    refusal("mask (B, T, S) where B = N", "batches or heads?", OF_3_AXES, ("mask", "rank", "ndim", *AXES), "L3",
        "mask = mask[None]", B=3, **BATCH),
    refusal("mask of another length", "S = 7, the mask has 6", mask("np.ones((T, S - 1), bool)"), OF_MASK, "L3"),
    refusal("mask of too few queries", "T = 5, the mask has 4", mask("np.ones((B, 1, T - 1, S), bool)"), OF_MASK, "L3"),
    refusal("mask (S, T)", "the wrong way round", mask("np.ones((S, T), bool)"), OF_MASK, "L3"),
    refusal("boolean bias", "a mask in the wrong place", bias("rng.random((1, 1, T, S)) < 0.5"),
        ("bias", "mask", "bool", "dtype"), "L3", "bias = bias.astype(dtype)"),
    refusal("bias of another length", "S = 7, the bias has 6", bias("np.zeros((1, N, T, S - 1), dtype)"),
        ("bias", *OF_MASK)),
    refusal("key length too long", "S = 7, a length of 9", lengths("[4, S + 2]"), OF_LENGTHS, direction="eager"),
    refusal("key length negative", "a length of -1", lengths("[4, -1]"), OF_LENGTHS, direction="eager"),
    refusal("key lengths of another batch", "B = 2, three lengths", lengths("[4, 5, 6]"), (*OF_LENGTHS, *AXES),
        **BATCH),
    refusal("segment ids of another length", "T = 5, six ids", SIX_IDS, ("segment", "ids", *AXES)),
    refusal("window to nowhere", "left = -1", words("window=(-1, 2)"), ("window", "left")),
    refusal("softcap of 0", "a division by 0", words("softcap=0.0"), CAP),
    refusal("softcap negative", "the cap is a bound", words("softcap=-2.0"), CAP),
    refusal("dropout rate above 1", "no probability", words("dropout_rate=1.5, dropout_rng=3"), RATE, "L10"),
    refusal("dropout rate negative", "no probability", words("dropout_rate=-0.25, dropout_rng=3"), RATE, "L10"),
]  # fmt: skip
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
