"""The numbers of the forward: shapes, scale, modifiers, sizes of none, huge scores, dtypes (L1, L2, L7, L8, L11)."""

from typing import Any

from .case import Case
from .given import CAUSAL, LSE, Given, bias, case, mask, random_mask, words

TALL: dict[str, Any] = {"T": 131, "S": 257}  # beyond blocks of 128, and no multiple of any
WIDE = TALL | {"D": 64, "V": 64}
VIEWS = Given("query, key, value = (x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (query, key, value))")
GEMMA = Given("query = 14 * query", "softcap=30.0")
AT_THE_CAP = Given("query, key = np.full_like(query, 20), np.full_like(key, -20)", "softcap=60.0")
MASK, LOW = random_mask("(T, S)"), Given("query = np.full_like(query, 4e15); key = np.full_like(key, -4e15)")
NEVER_WINS = "a forbidden key never wins, however low the others are"

SHAPES = [
    case("plain", "L2", "softmax(Q Kᵀ / √D) V"),
    case("arrays that are views", "L15", "strides do not matter: (B, T, N, D) in memory", VIEWS),
    case("one query", "L1", "T = 1", T=1),
    case("one key", "L1", "S = 1: the result is the value", S=1),
    case("more queries than keys", "L1", "T = 11, S = 3", T=11, S=3),
    case("batch of one", "L1", "B = 1", B=1),
    case("one head", "L1", "N = 1", N=1, G=1),
    case("width 1", "L11", "D = V = 1", D=1, V=1),
    case("width 13", "L11", "D = V = 13, no power of two", D=13, V=13),
    case("lengths that no block divides", "L11", "T = 131, S = 257", **TALL),
    case("values wider than keys", "L1", "V = 6, D = 4", V=6),
    case("values narrower than keys", "L1", "V = 2, D = 4", V=2),
    case("no batch axis", "L1", "(N, T, D)", leading=""),
    case("neither batch nor heads", "L1", "(T, D)", leading="-", N=1, G=1),
    case("two batch axes", "L1", "(A, B, N, T, D)", leading="AB", A=2, B=3),
    case("grouped heads", "L1", "6 query heads read 3 key heads, n // 2", N=6),
    case("one key head for all", "L1", "G = 1", N=4, G=1),
    case("grouped heads, other width of the values", "L1", "N = 6, G = 2, V = 5", N=6, G=2, V=5),
]
SCALES = [
    case("scale given", "L2", "scale = 0.3 instead of 1/√D", words("scale=0.3")),
    case("scale 0", "L7", "all weights equal", words("scale=0.0"), least="numbers"),
    case("scale of 1", "L2", "as T5 has it: no scale", words("scale=1.0")),
    case("scale negative", "L7", "the least similar key wins", words("scale=-0.7"), least="numbers"),
    case("scale negative, causal", "L7", "of the keys up to its own", CAUSAL & words("scale=-0.7")),
    case("softcap", "L2", "cap · tanh(s / cap)", Given("query = 3 * query", "softcap=2.0")),
    case("softcap and scale", "L2", "the cap is in units of the scaled scores", words("softcap=1.5, scale=2.0")),
    case("softcap, then bias", "L2", "the bias is added after the cap",
        words("softcap=1.0") & bias("4 * rng.standard_normal((1, N, T, S)).astype(dtype)")),
    case("softcap, then mask", "L2", "what is masked stays masked, whatever the cap", words("softcap=1.0") & MASK),
]  # fmt: skip
LOGITS = [  # the scores of a trained model; those of normal numbers stay below 6
    case("logits to 100", "L7", "the largest is subtracted", Given("query = 24 * query"), least="numbers", **WIDE),
    case("softcap of 30, logits to 60", "L2", "as Gemma caps them", GEMMA, **WIDE),
    case(
        "softcap of 60, all scores at -60", "L7", "the largest is subtracted, not the cap", AT_THE_CAP, least="numbers"
    ),
]
NONE = [
    case("no keys", "L11", "S = 0: the empty set, so 0", least="robust", S=0),
    case("no queries", "L11", "T = 0", least="robust", T=0),
    case("no batch", "L11", "B = 0", least="robust", B=0),
    case("no keys, lse", "L11", "S = 0: lse is -inf", LSE, least="robust", S=0),
]


def huge(name: str, about: str, given: Given, **more: Any) -> Case:
    """Numbers that float32 can barely hold."""
    return case(name, "L7", about, given, **{"dtype": "float32"} | more)


HUGE = [
    huge("scores of 1e30", "one key wins by far", Given("query, key = query * 1e15, key * 1e15")),
    huge("scores of -2e31, causal", NEVER_WINS, LOW & CAUSAL & words("scale=0.5")),
    huge("scores of -2e31, masked", NEVER_WINS, LOW & mask("np.arange(S)[None] % 3 < 2") & words("scale=0.5")),
    huge("bias of finfo.min under a causal mask", "the common idiom for padding must not let a row see the future",
        bias("np.zeros((1, 1, 1, S), dtype); bias[..., :2] = np.finfo(dtype).min") & CAUSAL),
    huge(
        "bias of finfo.min under a mask", "a masked key never wins over one with the least bias",
        bias("np.full((1, 1, T, S), np.finfo(dtype).min, dtype)")
        & mask("np.arange(S)[None] < 3 + 0 * np.arange(T)[:, None]"),
    ),
    huge("scores shifted by 1e4", "softmax does not mind", Given("key[..., 0], query[..., 0] = 1e4, 2.0")),
    huge("scores all very low", "no sum of exponentials becomes 0",
        Given("query = np.full_like(query, 200.0); key = -np.abs(key) - 1")),
    huge(  # whether the sum is divided first or last
        "values near overflow", "an average is not above the largest",
        Given("value = np.full_like(value, 3e38 / S); query = 0 * query"),
    ),
    huge("float16 of 300, D = 64", "scores of 7e5 are beyond float16",
        Given("query, key = np.full_like(query, 300), np.full_like(key, 300); key[:, :, 3] = 301"), dtype="float16",
        D=64),
    huge(
        "long row of ones", "rows sum to 1 at S = 65,536", Given("value = np.ones_like(value)"),
        # the order of so many numbers is everybody's own: one after the other, each of two sums has a standard error of
        # sqrt(S) / 2 units; four times that is 3e-5
        slack=2.0, units={"out": 64.0}, B=1, N=1, G=1, T=3, S=65536, D=1, V=1,
    ),
    huge("long row", "S = 4,097, scores spread widely", Given("query = 5 * query"), dtype=None, B=1, S=4097),
]  # fmt: skip
DTYPES = [
    case("float64", "L8", "stays float64 from end to end, 1e-12", dtype="float64", least="law"),
    case("float64, masked and causal", "L8", "1e-12", random_mask("(T, S)", 0) & CAUSAL, dtype="float64", least="law"),
    case("bfloat16", "L8", "as good as the dense formula; the result is bfloat16", dtype="bfloat16", D=64, V=64),
    case("float16", "L8", "as good as the dense formula; the result is float16", dtype="float16", D=64, V=64),
    case("bfloat16, a long row", "L8", "sums run in float32", dtype="bfloat16", least="robust", S=1999, T=3),
    case("bfloat16 with a float32 bias", "L8", "the bias keeps its resolution",
        bias('(100 + rng.standard_normal((1, N, T, S)) / 4).astype("float32")'), dtype="bfloat16", least="law"),
    case("lse of bfloat16 is wider", "L9", "float32 at least", LSE, dtype="bfloat16", least="law"),
    case("eager", "L12", "without jit as with it", direction="eager", frameworks=("jax",)),
]  # fmt: skip
CASES = [*SHAPES, *SCALES, *LOGITS, *NONE, *HUGE, *DTYPES]
