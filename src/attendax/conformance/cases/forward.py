"""Results: shapes, numbers, dtypes, masks of every kind, rows without keys, biases, log-sum-exp (L1 to L9)."""

import functools
from typing import Any

from .given import CAUSAL, LSE, Given, bias, case, lengths, mask, random_bias, random_mask, segments, words

TALL: dict[str, Any] = {"T": 131, "S": 257}  # beyond blocks of 128, and no multiple of any
WIDE = TALL | {"D": 64, "V": 64}
MASK, FULL_MASK, EACH_BATCH = random_mask("(T, S)"), random_mask("(B, N, T, S)"), random_mask("(B, 1, T, S)", 0)
BIAS, FULL_BIAS = random_bias("(1, N, T, S)"), random_bias("(B, N, T, S)")
SEGMENTS = segments("[[0, 0, 1, 1, 2], [0, 1, 1, 1, 2]]", "[[0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 2, 2, 2, 2]]")
SQUARE_SEGMENTS = segments(
    "[[0, 0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1, 1]]", "[[0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 1, 1]]"
)
LONG_SEGMENTS = segments("[[0] * 30 + [1] * 50] * 2")
ANY_ORDER = segments("[[2, 0, 1, 0, 2], [1, 0, 1, 1, 0]]", "[[0, 2, 1, 0, 1, 2, 2], [1, 1, 0, 1, 0, 1, 0]]")
BELOW_0 = segments("[[-1, -1, 0, 0, -7], [3, -1, -1, 3, -1]]", "[[-1, 0, 0, -1, -7, -7, 0], [-1, 3, 3, -1, 3, -1, 3]]")
NO_KEYS = segments("[[0, 0, 1, 9, 9]] * 2", "[[0, 0, 0, 1, 1, 1, 1]] * 2")
FORBIDDEN = bias("np.zeros((1, 1, T, S), dtype); bias[..., 1, :] = -np.inf; bias[..., 4, :3] = -np.inf")
SOME_FORBIDDEN = bias("np.where(rng.random((B, N, T, S)) < 0.5, 0, -np.inf).astype(dtype); bias[..., 2] = 1")
EVERY_SECOND = mask("(np.arange(T)[:, None] + np.arange(S)) % 2 == 0")
SQUARE_MASK = mask("(np.arange(T)[:, None] + 2 * np.arange(S)) % 5 < 2; mask[:, 0] = True")
LOW = Given("query = np.full_like(query, 4e15); key = np.full_like(key, -4e15)")
LEAST = bias("np.full((1, 1, T, S), np.finfo(dtype).min, dtype)")
PADDING = bias("np.zeros((1, 1, 1, S), dtype); bias[..., :2] = np.finfo(dtype).min")
GEMMA = Given("query = 14 * query", "softcap=30.0")
OF_300 = Given("query, key = np.full_like(query, 300), np.full_like(key, 300); key[:, :, 3] = 301")
BOTH, NEVER_WINS = "both count", "a forbidden key never wins, however low the others are"


huge = functools.partial(case, "L7", dtype="float32")  # numbers that float32 can barely hold
NUMBERS = [
    case("L2", "plain", "softmax(Q Kᵀ / √D) V"),
    case("L15", "arrays that are views", "strides do not matter: (B, T, N, D) in memory",
        Given("query, key, value = (x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (query, key, value))")),
    case("L1", "one query", "T = 1", T=1),
    case("L1", "one key", "S = 1: the result is the value", S=1),
    case("L1", "more queries than keys", "T = 11, S = 3", T=11, S=3),
    case("L1", "batch of one", "B = 1", B=1),
    case("L1", "one head", "N = 1", N=1, G=1),
    case("L11", "width 1", "D = V = 1", D=1, V=1),
    case("L11", "width 13", "D = V = 13, no power of two", D=13, V=13),
    case("L11", "lengths that no block divides", "T = 131, S = 257", **TALL),
    case("L1", "values wider than keys", "V = 6, D = 4", V=6),
    case("L1", "values narrower than keys", "V = 2, D = 4", V=2),
    case("L1", "no batch axis", "(N, T, D)", leading=""),
    case("L1", "neither batch nor heads", "(T, D)", leading="-", N=1, G=1),
    case("L1", "two batch axes", "(A, B, N, T, D)", leading="AB", A=2, B=3),
    case("L1", "grouped heads", "6 query heads read 3 key heads, n // 2", N=6),
    case("L1", "one key head for all", "G = 1", N=4, G=1),
    case("L1", "grouped heads, other width of the values", "N = 6, G = 2, V = 5", N=6, G=2, V=5),
    case("L2", "scale given", "scale = 0.3 instead of 1/√D", words("scale=0.3")),
    case("L7", "scale 0", "all weights equal", words("scale=0.0"), least="numbers"),
    case("L2", "scale of 1", "as T5 has it: no scale", words("scale=1.0")),
    case("L7", "scale negative", "the least similar key wins", words("scale=-0.7"), least="numbers"),
    case("L7", "scale negative, causal", "of the keys up to its own", CAUSAL & words("scale=-0.7")),
    case("L2", "softcap", "cap · tanh(s / cap)", Given("query = 3 * query", "softcap=2.0")),
    case("L2", "softcap and scale", "the cap is in units of the scaled scores", words("softcap=1.5, scale=2.0")),
    case("L2", "softcap, then bias", "the bias is added after the cap",
        words("softcap=1.0") & bias("4 * rng.standard_normal((1, N, T, S)).astype(dtype)")),
    case("L2", "softcap, then mask", "what is masked stays masked, whatever the cap", words("softcap=1.0") & MASK),
    # the scores of a trained model; those of normal numbers stay below 6
    case("L7", "logits to 100", "the largest is subtracted", Given("query = 24 * query"), least="numbers", **WIDE),
    case("L2", "softcap of 30, logits to 60", "as Gemma caps them", GEMMA, **WIDE),
    case("L7", "softcap of 60, all scores at -60", "the largest is subtracted, not the cap",
        Given("query, key = np.full_like(query, 20), np.full_like(key, -20)", "softcap=60.0"), least="numbers"),
    case("L11", "no keys", "S = 0: the empty set, so 0", least="robust", S=0),
    case("L11", "no queries", "T = 0", least="robust", T=0),
    case("L11", "no batch", "B = 0", least="robust", B=0),
    case("L11", "no keys, lse", "S = 0: lse is -inf", LSE, least="robust", S=0),
    huge("scores of 1e30", "one key wins by far", Given("query, key = query * 1e15, key * 1e15")),
    huge("scores of -2e31, causal", NEVER_WINS, LOW & CAUSAL),
    huge("scores of -2e31, masked", NEVER_WINS, LOW & mask("np.arange(S)[None] % 3 < 2")),
    huge("bias of finfo.min under a causal mask", "the common idiom for padding must not let a row see the future",
        PADDING & CAUSAL),
    huge("bias of finfo.min under a mask", "a masked key never wins over one with the least bias",
        LEAST & mask("np.arange(S)[None] < 3 + 0 * np.arange(T)[:, None]")),
    huge("scores shifted by 1e4", "softmax does not mind", Given("key[..., 0], query[..., 0] = 1e4, 2.0")),
    huge("scores all very low", "no sum of exponentials becomes 0",
        Given("query = np.full_like(query, 200.0); key = -np.abs(key) - 1")),
    huge("values near overflow", "an average is not above the largest",  # whether the sum is divided first or last
        Given("value = np.full_like(value, 3e38 / S); query = 0 * query")),
    huge("float16 of 300, D = 64", "scores of 7e5 are beyond float16", OF_300, dtype="float16", D=64),
    # the order of so many numbers is everybody's own: one after the other, each of two sums has a standard error of
    # sqrt(S) / 2 units; four times that is 3e-5
    huge("long row of ones", "rows sum to 1 at S = 65,536", Given("value = np.ones_like(value)"), slack=2.0,
        units={"out": 64.0}, B=1, N=1, G=1, T=3, S=65536, D=1, V=1),
    huge("long row", "S = 4,097, scores spread widely", Given("query = 5 * query"), dtype=None, B=1, S=4097),
    case("L8", "float64", "stays float64 from end to end, 1e-12", dtype="float64", least="law"),
    case("L8", "float64, masked and causal", "1e-12", random_mask("(T, S)", 0) & CAUSAL, dtype="float64", least="law"),
    case("L8", "bfloat16", "as good as the dense formula; the result is bfloat16", dtype="bfloat16", D=64, V=64),
    case("L8", "float16", "as good as the dense formula; the result is float16", dtype="float16", D=64, V=64),
    case("L8", "bfloat16, a long row", "sums run in float32", dtype="bfloat16", least="robust", S=1999, T=3),
    case("L8", "bfloat16 with a float32 bias", "the bias keeps its resolution",
        bias('(100 + rng.standard_normal((1, N, T, S)) / 4).astype("float32")'), dtype="bfloat16", least="law"),
    case("L9", "lse of bfloat16 is wider", "float32 at least", LSE, dtype="bfloat16", least="law"),
    case("L12", "eager", "without jit as with it", direction="eager", frameworks=("jax",)),
]  # fmt: skip
OF_SHAPES = {
    "(T, S)": "the same for all heads", "(B, N, T, S)": "of the full shape", "(1, 1, T, S)": "rank 4, broadcast",
    "(B, 1, 1, S)": "padding as a mask", "(B, 1, T, S)": "one for each batch", "(1, N, T, S)": "one for each head",
    "(B, N, 1, S)": "one for each batch and head", "(1, S)": "rank 2, the same for all queries",
}  # fmt: skip
MASKS = [
    *(case("L3", f"mask {x}", about, random_mask(x, "2 % mask.shape[-1]")) for x, about in OF_SHAPES.items()),
    case("L3", "mask with grouped heads", "its heads are the query heads", random_mask("(1, N, T, S)"), N=6),
    case("L3", "mask that allows one key", "the result is its value", mask("np.arange(S)[None] == 4")),
    case("L3", "mask (T, S) where B = T", "rows are queries, not batches", MASK, B=3, T=3),
    case("L3", "mask (B, N, T, S) where B = N", "its heads are no batches", FULL_MASK, B=3),
    case("L3", "mask with T = S", "rows are queries, not keys", SQUARE_MASK, T=7),
    case("L2", "mask with bias", BOTH, MASK & BIAS),
    case("L3", "mask without a batch axis", "full rank is 3", random_mask("(N, T, S)"), leading=""),
    case("L4", "causal", "T = S", CAUSAL, T=7),
    case("L4", "causal, fewer queries", "T = 5, S = 7: aligned to the start", CAUSAL),
    case("L4", "causal, more queries", "T = 9, S = 4: aligned to the start", CAUSAL, T=9, S=4),
    case("L4", "causal, one query", "T = 1: it sees key 0 only", CAUSAL, T=1),
    # a mask that is kept from fewer keys, depends on the number of keys alone, or ends at 2,048
    case("L4", "causal, after fewer keys", "as many queries saw fewer keys before", CAUSAL, judge="after_others",
        changed="key, value = key[..., :T, :], value[..., :T, :]", T=6, S=13),
    case("L4", "causal, few queries of many keys", "T = 5, S = 2,304", CAUSAL, S=2304),
    case("L4", "causal, from 2,048 on", "T = S = 2,176", CAUSAL, slack=4.0, B=1, N=1, G=1, T=2176, S=2176, D=8, V=8),
    case("L4", "causal and a mask", BOTH, EACH_BATCH & CAUSAL),
    case("L4", "causal, lengths that no block divides", "T = S = 131", CAUSAL, T=131, S=131),
    case("L4", "causal with grouped heads", "N = 6, G = 3", CAUSAL, N=6),
    case("L4", "causal with bias", BOTH, FULL_BIAS & CAUSAL),
    case("L4", "window", "two keys back, one ahead", words("window=(2, 1)"), T=7),
    case("L4", "window to the left", "no bound ahead", words("window=(2, None)"), T=7),
    case("L4", "window to the right", "no bound back", words("window=(None, 1)"), T=7),
    case("L4", "window, one query", "T = 1, which is the first: it sees keys 0 and 1", words("window=(2, 1)"), T=1),
    case("L4", "window of one", "each query sees its own key", words("window=(0, 0)"), T=7),
    case("L4", "window wider than the keys", "changes nothing", words("window=(20, 20)")),
    case("L4", "window of the largest int32", "no bound", words("window=(2**31 - 1, 2**31 - 1)"), least="robust", T=7),
    case("L4", "window, causal", BOTH, words("window=(3, 2)") & CAUSAL, T=7),
    case("L3", "window with a mask", BOTH, words("window=(2, 2)") & EVERY_SECOND),
    case("L4", "window, lengths that no block divides", "T = S = 131", words("window=(37, 5)"), T=131, S=131),
    case("L3", "key lengths", "the keys beyond are padding", lengths("[4, 6]")),
    case("L3", "key lengths, one full", "a full row is no special case", lengths("[7, 3]")),
    case("L4", "key lengths, causal", BOTH, lengths("[3, 5]") & CAUSAL, T=7),
    case("L3", "key lengths with bias", BOTH, lengths("[3, 5]") & BIAS),
    case("L3", "key lengths with a mask", BOTH, lengths("[3, 5]") & EACH_BATCH),
    case("L4", "key lengths, window", BOTH, lengths("[3, 5]") & words("window=(2, 2)")),
    case("L3", "key lengths, one of 0", "a length of 0 is none of 1", lengths("[0, 6]"), judge="but_for_empty_rows"),
    case("L3", "segments", "a query sees the keys of its own segment", SEGMENTS),
    case("L3", "segments, in any order", "ids need not be sorted", ANY_ORDER),
    case("L3", "segments, ids below 0", "an id is a name: -1 is one like any other", BELOW_0, least="robust"),
    case("L3", "segments with a mask", BOTH, SEGMENTS & EVERY_SECOND),
    case("L4", "segments, window", BOTH, SEGMENTS & words("window=(2, 2)")),
    case("L3", "segments, key lengths", BOTH, SEGMENTS & lengths("[6, 5]")),
    case("L3", "segments, T = S", "ids of queries and of keys differ, as lengths do not", SQUARE_SEGMENTS, T=7),
    case("L4", "segments, causal", BOTH, segments("[[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 2, 2]]") & CAUSAL, T=7),
    case("L5", "empty row by a mask", "a query that may look at no key gets 0", MASK & Given("mask[3] = False")),
    case("L5", "empty row of one head", "0 there, and nowhere else",
        mask("np.ones((B, N, T, S), bool); mask[1, 2, 0] = False"), needs=("heads apart",)),
    case("L5", "all rows empty", "everything is 0", mask("np.zeros((1, 1, T, S), bool)")),
    case("L5", "empty row by a length of 0", "a batch without any key gets 0", lengths("[0, 6]")),
    case("L5", "empty row by a window", "queries beyond the last key and the window", words("window=(2, 0)"),
        T=11, S=4),
    case("L5", "empty row by a segment", "a segment without keys", NO_KEYS),
    case("L5", "empty row by a bias of -inf", "forbids like a mask", FORBIDDEN),
    case("L5", "empty row, lse", "lse is -inf", mask("np.ones((B, N, T, S), bool); mask[:, :, 2] = False") & LSE),
    case("L5", "empty row, causal and a mask", "the past is masked",
        mask("np.ones((T, S), bool); mask[:, :2] = False") & CAUSAL),
]  # fmt: skip
OF_SHAPES = {
    "(B, N, T, S)": "of the full shape", "(1, N, T, S)": "one for each head", "(T, S)": "the same for all heads",
    "(B, 1, 1, S)": "one for each key", "(N, 1, S)": "rank 3, aligned at the end", "(S,)": "rank 1",
    "(B, N, T, 1)": "the same for all keys changes nothing",
}  # fmt: skip
BIASES = [
    *(case("L2", f"bias {shape}", about, random_bias(shape)) for shape, about in OF_SHAPES.items()),
    case("L2", "bias (B, N, T, S) where B = N", "its heads are no batches", FULL_BIAS, B=3),
    case("L2", "bias with grouped heads", "its heads are the query heads", BIAS, N=6),
    case("L5", "bias of -inf", "forbids like a mask", SOME_FORBIDDEN),
    case("L2", "bias and scale", "the scale is not applied to the bias", BIAS & words("scale=0.1")),
    case("L9", "lse", "natural log-sum-exp of the scaled scores", LSE),
    case("L9", "lse, scale", "of the scores as softmaxed; T = 11, S = 3", LSE & words("scale=2.0"), T=11, S=3),
    case("L9", "lse, masked", "over the allowed keys", LSE & FULL_MASK),
    case("L9", "lse, softcap and bias", "after the cap, with the bias", LSE & words("softcap=1.0") & BIAS),
    case("L9", "lse, causal", "over the past", LSE & CAUSAL),
    case("L9", "lse, grouped heads", "one for each query head", LSE, N=6),
]
CASES = [*NUMBERS, *MASKS, *BIASES]
