"""The gradients of everything that has one, and the other directions (L12, L13)."""

from typing import Any

from .biases import BIAS, FULL_MASK
from .case import Case
from .given import (
    CAUSAL,
    LSE,
    NOTHING,
    Given,
    bias,
    case,
    gradient,
    lengths,
    mask,
    random_bias,
    random_mask,
    segments,
    words,
)
from .masks import MASK, SEGMENTS, SQUARE_SEGMENTS

FORWARD_OVER, REVERSE_OVER = "second, forward over reverse", "second, reverse over reverse"
FROM_JAX = ("jax",)
OF_LSE = Given("cotangent = np.zeros(query.shape[:-1] + value.shape[-1:], dtype)") & LSE  # alone
A_VIEW = Given("cotangent = np.moveaxis(rng.standard_normal((B, T, N, V)).astype(dtype), 1, 2)")


def empty_row(row: int) -> Given:
    """A mask in which a query sees nothing, and the others all."""
    return mask(f"np.ones((T, S), bool); mask[{row}] = False")


def of_bias(shape: str, about: str) -> Case:
    """The gradient of a bias of a shape, summed over the axes along which it is repeated."""
    return gradient(f"bias {shape}", about, random_bias(shape))


PLAIN = [
    gradient("plain", "of query, key and value"),
    gradient("one query", "T = 1", T=1),
    gradient("one key", "S = 1: nothing flows to query and key", S=1),
    gradient("more queries than keys", "T = 11, S = 3", T=11, S=3),
    gradient("lengths that no block divides", "T = 131, S = 257", T=131, S=257),
    gradient("values wider than keys", "V = 6, D = 4", V=6),
    gradient("grouped heads", "summed over the query heads of a group", N=6),
    gradient("one key head for all", "G = 1", N=4, G=1),
    gradient("neither batch nor heads", "(T, D)", leading="-", N=1, G=1),
    gradient("scale given", "the scale is in both", words("scale=0.3")),
    gradient("scale 0", "nothing flows to query and key", words("scale=0.0")),
    gradient("softcap", "through the tanh", Given("query = 3 * query", "softcap=2.0")),
    gradient("logits to 100", "the largest is subtracted", Given("query = 24 * query"), T=131, S=257, D=64),
    gradient("a cotangent that is a view", "its memory is in another order", A_VIEW),
    gradient("no keys", "S = 0", law="L11", least="robust", S=0),
    gradient("no batch", "B = 0", law="L11", least="robust", B=0),
]
MASKED = [
    gradient("mask (T, S)", "only through what is seen", MASK),
    gradient("mask (B, N, T, S)", "of the full shape", FULL_MASK),
    gradient("mask (B, 1, 1, S)", "padding as a mask", mask("(rng.random((B, 1, 1, S)) < 0.5) | (np.arange(S) == 2)")),
    gradient("mask with grouped heads", "its heads are the query heads", random_mask("(1, N, T, S)"), N=6),
    gradient("causal, fewer queries", "T = 5, S = 7: keys 5 and 6 get none", CAUSAL),
    gradient("causal, more queries", "T = 9, S = 4", CAUSAL, T=9, S=4),
    gradient("window", "two keys back, one ahead", words("window=(2, 1)"), T=7),
    gradient("key lengths", "padding gets none", lengths("[4, 6]")),
    gradient("segments", "packed sequences do not mix", SEGMENTS),
    gradient("segments, T = S", "ids of queries and of keys differ, as lengths do not", SQUARE_SEGMENTS, T=7),
    gradient("empty row by a mask", "exactly 0 through it, and no NaN", empty_row(3), "L5"),
    gradient("empty row by a length of 0", "exactly 0 in that batch", lengths("[0, 6]"), "L5"),
    gradient("empty row by a bias of -inf", "exactly 0 through it, and no NaN",
        bias("np.zeros((1, 1, T, S), dtype); bias[..., 1, :] = -np.inf"), "L5"),
    gradient("causal, lengths that no block divides", "T = S = 131", CAUSAL, T=131, S=131),
]  # fmt: skip
BIASES = [
    of_bias("(B, N, T, S)", "of the full shape"),
    of_bias("(1, N, T, S)", "summed over the batch"),
    of_bias("(B, 1, T, S)", "summed over the heads"),
    of_bias("(B, 1, 1, S)", "summed over heads and queries"),
    of_bias("(B, N, T, 1)", "summed over the keys: 0 in truth"),
    of_bias("(T, S)", "rank 2"),
    of_bias("(S,)", "rank 1"),
    gradient("bias with a mask", "0 where masked", MASK & BIAS),
    gradient("bias under a causal mask", "0 in the future", BIAS & CAUSAL),
    gradient("bias after a softcap", "the bias is not capped", BIAS & words("softcap=1.0")),
    gradient("bias with grouped heads", "its heads are the query heads", BIAS, N=6),
    gradient("bias of -inf", "0 where it forbids",
        bias("np.where(rng.random((1, N, T, S)) < 0.5, 0, -np.inf).astype(dtype); bias[..., 2] = 1"), "L5"),
]  # fmt: skip
THROUGH_LSE = [
    gradient("lse", "its cotangent counts", LSE, "L9"),
    gradient("lse alone", "the cotangent of out is 0", OF_LSE, "L9"),
    gradient("lse, masked", "over the allowed keys", LSE & FULL_MASK, "L9"),
    gradient("lse, grouped heads", "summed over the group", LSE, "L9", N=6),
    gradient("lse of an empty row", "nothing, and no NaN", LSE & empty_row(2), "L5"),
    gradient(
        "lse under dropout", "of the weights before dropout", OF_LSE & words("dropout_rate=0.4, dropout_rng=3"), "L9"
    ),
    gradient("lse and a bias", "flows to the bias", LSE & BIAS, "L9"),
]
NUMBERS = [
    gradient("scores of 1e30", "0 but for a rounding of terms of 1e15", Given("query, key = query * 1e15, key * 1e15"),
        "L7", dtype="float32", units={"grad query": 1e16, "grad key": 1e16}),
    gradient("scores all very low", "finite", Given("query = np.full_like(query, 200.0); key = -np.abs(key) / 100 - 1"),
        "L7", dtype="float32"),
    gradient("float64", "1e-12", law="L8", dtype="float64", least="law"),
    *(
        gradient(dtype, f"as good as the dense formula; in {dtype}", law="L8", dtype=dtype, D=64, V=64)
        for dtype in ("bfloat16", "float16")
    ),
    gradient("bfloat16, a bias of many queries", "its gradient is a sum over batches, heads and queries, in float32",
        random_bias("(S,)"), "L8", dtype="bfloat16", B=8, T=120),
    gradient("long row", "S = 4,097", law="L8", least="robust", B=1, S=4097),
]  # fmt: skip


def other(name: str, about: str, direction: str, given: Given = NOTHING, **more: Any) -> Case:
    """Another direction than results and gradients."""
    return case(name, "L12", about, given, direction, **more)


def mapped(name: str, about: str, lines: str, direction: str = "vmap", given: Given = NOTHING, **more: Any) -> Case:
    """Under vmap, over axes that the lines name."""
    return other(f"vmap: {name}", about, direction, given & Given(lines), **more)


WIDE: dict[str, Any] = {"T": 80, "S": 80, "D": 16, "V": 24}
TWO_PARTS, PADDED = segments("[[0] * 30 + [1] * 50] * 2"), lengths("[80, 60]")
EXAMPLES: dict[str, Any] = {"leading": "AB", "A": 3}
FIRST = "mapped = dict(query=0, key=0, value=0)"
DIRECTIONS = [
    other("jvp: plain", "forward mode", "jvp"),
    other("jvp: causal, softcap", "forward mode", "jvp", CAUSAL & words("softcap=2.0")),
    other("jvp: bias", "the bias moves, too", "jvp", BIAS),
    other("jvp: mask with an empty row", "it does not move", "jvp", empty_row(3), least="robust"),
    other("jvp: lse", "lse moves, too", "jvp", LSE),
    other("jvp: grouped heads and a mask", "of several blocks", "jvp", FULL_MASK, N=6, **WIDE),
    other("jvp: key lengths and window", "of several blocks", "jvp", words("window=(50, 9)") & PADDED, **WIDE),
    other("jvp: segments and scale", "of several blocks", "jvp", TWO_PARTS & words("scale=0.3"), **WIDE),
    other("second order: forward over reverse", "the Hessian times a direction", FORWARD_OVER),
    other("second order: reverse over reverse", "a gradient of a gradient", REVERSE_OVER),
    other("second order: mask and softcap", "forward over reverse", FORWARD_OVER, MASK & words("softcap=2.0")),
    other("second order: bias", "reverse over reverse", REVERSE_OVER, BIAS),
    other("second order: lse", "forward over reverse", FORWARD_OVER, LSE),
    mapped("first axis", "an axis before the batch", FIRST, **EXAMPLES),
    mapped("shared keys", "over the queries only",
        "query = rng.standard_normal((4, B, N, T, D)).astype(dtype)\nmapped = dict(query=0, key=None, value=None)"),
    mapped(
        "other axes", "in_axes of 1, 2 and 3",
        "query, key, value = np.moveaxis(query, 0, 1), np.moveaxis(key, 0, 2), np.moveaxis(value, 0, 3)\n"
        "mapped = dict(query=1, key=2, value=3)", **EXAMPLES,
    ),
    mapped("a mask for each", "the mask is mapped, too", "mapped = dict(query=0, key=0, value=0, mask=0)",
        given=random_mask("(A, B, N, T, S)"), frameworks=FROM_JAX, **EXAMPLES),
    mapped("a bias for each", "the bias is mapped, too", "mapped = dict(query=0, key=0, value=0, bias=0)",
        given=random_bias("(A, B, N, T, S)"), frameworks=FROM_JAX, **EXAMPLES),
    mapped("lengths for each", "key lengths are mapped, too", "mapped = dict(query=0, key=0, value=0, key_lengths=0)",
        given=Given('key_lengths = rng.integers(1, S + 1, (A, B)).astype("int32")', "key_lengths=key_lengths"),
        frameworks=FROM_JAX, **EXAMPLES),
    mapped(
        "segments for each", "ids are mapped, too",
        "mapped = dict(query=0, key=0, value=0, query_segment_ids=0, key_segment_ids=0)",
        given=Given(
            'q_ids, k_ids = (rng.integers(0, 2, (A, B, n)).astype("int32") for n in (T, S)); k_ids[..., :2] = 0, 1',
            "query_segment_ids=q_ids, key_segment_ids=k_ids",
        ),
        frameworks=FROM_JAX, **EXAMPLES,
    ),
    mapped("gradients by example", "vmap of grad", FIRST, "per example gradient", **EXAMPLES),
    other("checkpoint", "the forward is computed again", "gradient under checkpoint", CAUSAL, frameworks=FROM_JAX),
]  # fmt: skip
CASES = [*PLAIN, *MASKED, *BIASES, *THROUGH_LSE, *NUMBERS, *DIRECTIONS]
