"""Mistakes of the caller, which must be refused (L14)."""

from typing import Any

from .case import Case
from .given import Given, bias, case, lengths, mask, words

SIZES = ("length", "depth", "width", "shape", "size", "dimension", "dims", "axis")
OF_BATCH, OF_MASK, OF_LENGTHS = ("key", "query", "batch", *SIZES), ("mask", *SIZES), ("length", "seq")
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
    return case(f"refused: {name}", law, about, given, judge="refused", changed=meant, **more)


CASES = [
    refusal("key width", "query has D = 4, key D = 6",
        Given("key = rng.standard_normal((B, G, S, D + 2)).astype(dtype)"), ("key", *SIZES)),
    refusal("value length", "key has S = 7, value S = 6", Given("value = value[:, :, :-1]"), ("value", *SIZES)),
    refusal("batch of the keys", "query has B = 2, key and value B = 3", ANOTHER_BATCH, OF_BATCH, **BATCH),
    refusal("batch of 1 beside 2", "nothing is broadcast behind the caller's back",
        Given("key, value = key[:1], value[:1]"), OF_BATCH, "L1", REPEATED, **BATCH),
    refusal("heads that do not divide", "N = 3, G = 2", Given("key, value = key[:, :2], value[:, :2]"),
        ("head", "key", "multiple", *SIZES), **HEADS),
    refusal("heads of the values", "key has G = 3, value 1", Given("value = value[:, :1]"), ("head", "value", *SIZES),
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
    refusal("mask (B, T, S) where B = N", "batches or heads?", OF_3_AXES, ("mask", "rank", "ndim", *SIZES), "L3",
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
    refusal("key lengths of another batch", "B = 2, three lengths", lengths("[4, 5, 6]"), (*OF_LENGTHS, *SIZES),
        **BATCH),
    refusal("segment ids of another length", "T = 5, six ids", SIX_IDS, ("segment", "ids", *SIZES)),
    refusal("window to nowhere", "left = -1", words("window=(-1, 2)"), ("window", "left")),
    refusal("softcap of 0", "a division by 0", words("softcap=0.0"), CAP),
    refusal("softcap negative", "the cap is a bound", words("softcap=-2.0"), CAP),
    refusal("dropout rate above 1", "no probability", words("dropout_rate=1.5, dropout_rng=3"), RATE, "L10"),
    refusal("dropout rate negative", "no probability", words("dropout_rate=-0.25, dropout_rng=3"), RATE, "L10"),
]  # fmt: skip
