"""The gradients of everything that has one, the other directions, and sinks in all of them (L12, L13).

A sink is for each query head the score of one more key, which every query sees and whose value is 0 (L2). It is learned
by gpt-oss: a share of the weight that gives nothing.
"""

import functools
import re
from typing import Any

from .case import GRADIENT, Case
from .forward import BIAS, FULL_MASK, LONG_SEGMENTS, MASK
from .forward import CASES as OF_RESULTS
from .given import CAUSAL, LSE, NOTHING, Given, bias, case, gradient, lengths, mask, random_bias, random_mask, words

FORWARD_OVER, REVERSE_OVER = "second, forward over reverse", "second, reverse over reverse"
WIDE: dict[str, Any] = {"T": 80, "S": 80, "D": 16, "V": 24}
OF_LSE = Given("cotangent = np.zeros(query.shape[:-1] + value.shape[-1:], dtype)") & LSE  # alone
A_VIEW = Given("cotangent = np.moveaxis(rng.standard_normal((B, T, N, V)).astype(dtype), 1, 2)")
FORBIDDEN = bias("np.where(rng.random((1, N, T, S)) < 0.5, 0, -np.inf).astype(dtype); bias[..., 2] = 1")
BEYOND = Given("query, key = query * 1e15, key * 1e15")


def empty_row(row: int) -> Given:
    """A mask in which a query sees nothing, and the others all."""
    return mask(f"np.ones((T, S), bool); mask[{row}] = False")


def as_of(name: str, *laws: str) -> Case:
    """The gradient of the case of a result; its law is L13, unless that of the result is of gradients as well."""
    of = next(of for of in OF_RESULTS if of.name == name)
    needs = ("gradient of bias",) * ("bias" in of.options)
    own: dict[str, Any] = {} if of.law in ("L5", "L8", "L9", *laws) else {"law": "L13", "least": ""}
    return of._replace(name=f"gradient: {name}", direction=GRADIENT, needs=of.needs + needs, **own)


GRADIENTS = [x if isinstance(x, Case) else as_of(x) for x in (
    "plain", "one query", "one key", "more queries than keys", "lengths that no block divides",
    "values wider than keys", "grouped heads", "one key head for all", "neither batch nor heads", "scale given",
    "scale 0", "softcap",
    gradient("logits to 100", "the largest is subtracted", Given("query = 24 * query"), T=131, S=257, D=64),
    gradient("a cotangent that is a view", "its memory is in another order", A_VIEW),
    as_of("no keys", "L11"), as_of("no batch", "L11"),
    gradient("mask (T, S)", "only through what is seen", MASK),
    gradient("mask (B, N, T, S)", "of the full shape", FULL_MASK),
    gradient("mask (B, 1, 1, S)", "padding as a mask", mask("(rng.random((B, 1, 1, S)) < 0.5) | (np.arange(S) == 2)")),
    "mask with grouped heads", "causal, fewer queries", "causal, more queries", "window", "key lengths", "segments",
    "segments, T = S",
    gradient("empty row by a mask", "exactly 0 through it, and no NaN", empty_row(3), "L5"),
    "empty row by a length of 0",
    gradient("empty row by a bias of -inf", "exactly 0 through it, and no NaN",
        bias("np.zeros((1, 1, T, S), dtype); bias[..., 1, :] = -np.inf"), "L5"),
    "causal, lengths that no block divides", "bias (B, N, T, S)", "bias (1, N, T, S)",
    gradient("bias (B, 1, T, S)", "summed over the heads", random_bias("(B, 1, T, S)")),
    "bias (B, 1, 1, S)", "bias (B, N, T, 1)", "bias (T, S)", "bias (S,)",
    gradient("bias with a mask", "0 where masked", MASK & BIAS),
    gradient("bias under a causal mask", "0 in the future", BIAS & CAUSAL),
    gradient("bias after a softcap", "the bias is not capped", BIAS & words("softcap=1.0")),
    "bias with grouped heads",
    gradient("bias of -inf", "0 where it forbids", FORBIDDEN, "L5"),
    "lse",
    gradient("lse alone", "the cotangent of out is 0", OF_LSE, "L9"),
    "lse, masked", "lse, grouped heads",
    gradient("lse of an empty row", "nothing, and no NaN", LSE & empty_row(2), "L5"),
    gradient("lse under dropout", "of the weights before dropout",
        OF_LSE & words("dropout_rate=0.4, dropout_rng=3"), "L9"),
    gradient("lse and a bias", "flows to the bias", LSE & BIAS, "L9"),
    gradient("scores of 1e30", "0 but for a rounding of terms of 1e15", BEYOND, "L7", dtype="float32",
        units={"grad query": 1e16, "grad key": 1e16}),
    gradient("scores all very low", "finite", Given("query = np.full_like(query, 200.0); key = -np.abs(key) / 100 - 1"),
        "L7", dtype="float32"),
    "float64", "bfloat16", "float16",
    gradient("bfloat16, a bias of many queries", "its gradient is a sum over batches, heads and queries, in float32",
        random_bias("(S,)"), "L8", dtype="bfloat16", B=8, T=120),
    gradient("long row", "S = 4,097", law="L8", least="robust", B=1, S=4097),
)]  # fmt: skip


def mapped(name: str, about: str, given: Given = NOTHING, direction: str = "vmap", **more: Any) -> Case:
    """Under vmap, over the first axis of each of its arrays."""
    names = ("query", "key", "value", *re.findall(r"(\w+)=", given.call))
    over = Given(f"mapped = dict({', '.join(f'{x}=0' for x in names)})")
    return case("L12", f"vmap: {name}", about, given & over, direction, **EXAMPLES, **more)


jvp = functools.partial(case, "L12", direction="jvp")
EXAMPLES: dict[str, Any] = {"leading": "AB", "A": 3}
FROM_JAX: dict[str, Any] = {"frameworks": ("jax",)}
SHARED = """query = rng.standard_normal((4, B, N, T, D)).astype(dtype)
mapped = dict(query=0, key=None, value=None)"""
AXES = """query, key, value = np.moveaxis(query, 0, 1), np.moveaxis(key, 0, 2), np.moveaxis(value, 0, 3)
mapped = dict(query=1, key=2, value=3)"""
LENGTHS = Given('key_lengths = rng.integers(1, S + 1, (A, B)).astype("int32")', "key_lengths=key_lengths")
IDS = Given(
    'q_ids, k_ids = (rng.integers(0, 2, (A, B, n)).astype("int32") for n in (T, S)); k_ids[..., :2] = 0, 1',
    "query_segment_ids=q_ids, key_segment_ids=k_ids",
)
DIRECTIONS = [
    jvp("jvp: plain", "forward mode"),
    jvp("jvp: causal, softcap", "forward mode", CAUSAL & words("softcap=2.0")),
    jvp("jvp: bias", "the bias moves, too", BIAS),
    jvp("jvp: mask with an empty row", "it does not move", empty_row(3), least="robust"),
    jvp("jvp: lse", "lse moves, too", LSE),
    jvp("jvp: grouped heads and a mask", "of several blocks", FULL_MASK, N=6, **WIDE),
    jvp("jvp: key lengths and window", "of several blocks", words("window=(50, 9)") & lengths("[80, 60]"),
        **WIDE),
    jvp("jvp: segments and scale", "of several blocks", LONG_SEGMENTS & words("scale=0.3"), **WIDE),
    case("L12", "second order: forward over reverse", "the Hessian times a direction", direction=FORWARD_OVER),
    case("L12", "second order: reverse over reverse", "a gradient of a gradient", direction=REVERSE_OVER),
    case("L12", "second order: mask and softcap", "forward over reverse", MASK & words("softcap=2.0"), FORWARD_OVER),
    case("L12", "second order: bias", "reverse over reverse", BIAS, REVERSE_OVER),
    case("L12", "second order: lse", "forward over reverse", LSE, FORWARD_OVER),
    mapped("first axis", "an axis before the batch"),
    case("L12", "vmap: shared keys", "over the queries only", Given(SHARED), "vmap"),
    case("L12", "vmap: other axes", "in_axes of 1, 2 and 3", Given(AXES), "vmap", **EXAMPLES),
    mapped("a mask for each", "the mask is mapped, too", random_mask("(A, B, N, T, S)"), **FROM_JAX),
    mapped("a bias for each", "the bias is mapped, too", random_bias("(A, B, N, T, S)"), **FROM_JAX),
    mapped("lengths for each", "key lengths are mapped, too", LENGTHS, **FROM_JAX),
    mapped("segments for each", "ids are mapped, too", IDS, **FROM_JAX),
    mapped("gradients by example", "vmap of grad", direction="per example gradient"),
    case("L12", "checkpoint", "the forward is computed again", CAUSAL, "gradient under checkpoint", **FROM_JAX),
]  # fmt: skip
MAKING = Given("sinks = rng.standard_normal(N).astype(dtype)", "sinks=sinks")
UNITS = dict.fromkeys(("grad sinks", "second sinks"), 1.0)  # sums that may cancel, of terms that add up to about 1


def sinks(name: str, law: str, about: str, given: Given = NOTHING, **more: Any) -> Case:
    """A call with sinks; its gradients where a direction says so."""
    return case(law, name, about, MAKING & given, **more)._replace(units=UNITS if "direction" in more else {})


OF_SINKS = [
    sinks("sinks", "L2", "each head has its own"),
    sinks("sinks and scale", "L2", "the scale is not applied to them", words("scale=0.1")),
    sinks("sinks, softcap and bias", "L2", "neither changes them",
        Given("sinks = 2 * sinks") & words("softcap=1.0") & BIAS),
    sinks("sinks, grouped heads", "L2", "one for each query head", N=6),
    sinks("sinks, window", "L4", "that looks ahead: it takes none of them", words("window=(1, 2)"), T=7, N=4, G=4),
    sinks("sinks, masked", "L2", "no mask forbids them", FULL_MASK),
    sinks("sinks, long", "L2", "counted once, T = 131, S = 257", T=131, S=257),
    sinks("sinks, lse", "L9", "lse counts them", LSE),
    sinks("sinks, large scores", "L7", "of 100, as the sinks", Given("query, sinks = 50 * query, 100 + 10 * sinks")),
    sinks("sinks of -inf", "L7", "take no weight", Given("sinks[1] = -np.inf") & LSE),
    sinks("sinks, empty row", "L5", "out is 0, and lse the sink",
        mask("rng.random((B, N, T, S)) < 0.5; mask[:, 1, 2] = False") & LSE),
    sinks("gradient: sinks", "L13", "of the sinks, too", direction=GRADIENT),
    sinks("gradient: sinks, masked", "L13", "summed over all queries", FULL_MASK, direction=GRADIENT),
    sinks("gradient: sinks, grouped heads", "L13", "one for each query head", direction=GRADIENT, N=6),
    sinks("gradient: sinks, lse", "L13", "through both results", LSE, direction=GRADIENT),
    sinks("jvp: sinks", "L12", "forward mode", LSE, direction="jvp", needs=("gradient of sinks",)),
    sinks("second order: sinks", "L12", "forward over reverse", direction=FORWARD_OVER, least="law"),
    sinks("second order: sinks, the other way", "L12", "reverse over reverse", direction=REVERSE_OVER, least="law"),
]  # fmt: skip
CASES = [*GRADIENTS, *DIRECTIONS]
