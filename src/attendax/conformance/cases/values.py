"""The numbers of the forward: shapes, scale, modifiers, sizes of none, huge scores, dtypes (L1, L2, L7, L8, L11)."""

from .case import Case

TALL = {"T": 131, "S": 257}  # beyond blocks of 128, and no multiple of any
WIDE = TALL | {"D": 64, "V": 64}
HALF = "query, key = np.full_like(query, 300), np.full_like(key, 300); key[:, :, 3] = 301"

SHAPES = [
    Case("plain", "L2", "softmax(Q Kᵀ / √D) V"),
    Case(
        "arrays that are views",
        "L15",
        "strides do not matter: (B, T, N, D) in memory",
        lines="query, key, value = (x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (query, key, value))",
    ),
    Case("one query", "L1", "T = 1", sizes={"T": 1}),
    Case("one key", "L1", "S = 1: the result is the value", sizes={"S": 1}),
    Case("more queries than keys", "L1", "T = 11, S = 3", sizes={"T": 11, "S": 3}),
    Case("batch of one", "L1", "B = 1", sizes={"B": 1}),
    Case("one head", "L1", "N = 1", sizes={"N": 1, "G": 1}),
    Case("width 1", "L11", "D = V = 1", sizes={"D": 1, "V": 1}),
    Case("width 13", "L11", "D = V = 13, no power of two", sizes={"D": 13, "V": 13}),
    Case("lengths that no block divides", "L11", "T = 131, S = 257", sizes=TALL),
    Case("values wider than keys", "L1", "V = 6, D = 4", sizes={"V": 6}),
    Case("values narrower than keys", "L1", "V = 2, D = 4", sizes={"V": 2}),
    Case("no batch axis", "L1", "(N, T, D)", leading=""),
    Case("neither batch nor heads", "L1", "(T, D)", leading="-", sizes={"N": 1, "G": 1}),
    Case("two batch axes", "L1", "(A, B, N, T, D)", leading="AB", sizes={"A": 2, "B": 3}),
    Case("grouped heads", "L1", "6 query heads read 3 key heads, n // 2", sizes={"N": 6}),
    Case("one key head for all", "L1", "G = 1", sizes={"N": 4, "G": 1}),
    Case("grouped heads, other width of the values", "L1", "N = 6, G = 2, V = 5", sizes={"N": 6, "G": 2, "V": 5}),
]
SCALES = [
    Case("scale given", "L2", "scale = 0.3 instead of 1/√D", call="scale=0.3"),
    Case("scale 0", "L7", "all weights equal", call="scale=0.0", least="numbers"),
    Case("scale negative", "L7", "the least similar key wins", call="scale=-0.7", least="numbers"),
    Case("softcap", "L2", "cap · tanh(s / cap)", "value", lines="query = 3 * query", call="softcap=2.0"),
    Case("softcap and scale", "L2", "the cap is in units of the scaled scores", call="softcap=1.5, scale=2.0"),
    Case(
        "softcap, then bias",
        "L2",
        "the bias is added after the cap",
        lines="bias = 4 * rng.standard_normal((1, N, T, S)).astype(dtype)",
        call="softcap=1.0, bias=bias",
    ),
    Case(
        "softcap, then mask",
        "L2",
        "what is masked stays masked, whatever the cap",
        lines="mask = rng.random((T, S)) < 0.5; mask[:, 2] = True",
        call="softcap=1.0, mask=mask",
    ),
]
LOGITS = [  # the scores of a trained model; those of normal numbers stay below 6
    Case("logits to 100", "L7", "the largest is subtracted", sizes=WIDE, lines="query = 24 * query", least="numbers"),
    Case(
        "softcap of 30, logits to 60",
        "L2",
        "as Gemma caps them",
        sizes=WIDE,
        lines="query = 14 * query",
        call="softcap=30.0",
    ),
]
NONE = [
    Case("no keys", "L11", "S = 0: the empty set, so 0", sizes={"S": 0}, least="robust"),
    Case("no queries", "L11", "T = 0", sizes={"T": 0}, least="robust"),
    Case("no batch", "L11", "B = 0", sizes={"B": 0}, least="robust"),
    Case("no keys, lse", "L11", "S = 0: lse is -inf", sizes={"S": 0}, call="return_lse=True", least="robust"),
]
HUGE = [
    Case("scores of 1e30", "L7", "one key wins by far", lines="query, key = query * 1e15, key * 1e15", dtype="float32"),
    Case(
        "scores of -2e31, causal",
        "L7",
        "a forbidden key never wins, however low the others are",
        lines="query = np.full_like(query, 4e15); key = np.full_like(key, -4e15)",
        call="is_causal=True, scale=0.5",
        dtype="float32",
    ),
    Case(
        "scores of -2e31, masked",
        "L7",
        "a forbidden key never wins, however low the others are",
        lines="query = np.full_like(query, 4e15); key = np.full_like(key, -4e15); mask = np.arange(S)[None] % 3 < 2",
        call="mask=mask, scale=0.5",
        dtype="float32",
    ),
    Case(
        "bias of finfo.min under a causal mask",
        "L7",
        "the common idiom for padding must not let a row see the future",
        lines="bias = np.zeros((1, 1, 1, S), dtype); bias[..., :2] = np.finfo(dtype).min",
        call="bias=bias, is_causal=True",
        dtype="float32",
    ),
    Case(
        "bias of finfo.min under a mask",
        "L7",
        "a masked key never wins over one with the least bias",
        lines="bias = np.full((1, 1, T, S), np.finfo(dtype).min, dtype)\n"
        "mask = np.arange(S)[None] < 3 + 0 * np.arange(T)[:, None]",
        call="bias=bias, mask=mask",
        dtype="float32",
    ),
    Case(
        "scores shifted by 1e4",
        "L7",
        "softmax does not mind",
        lines="key[..., 0], query[..., 0] = 1e4, 2.0",
        dtype="float32",
    ),
    Case(
        "scores all very low",
        "L7",
        "no sum of exponentials becomes 0",
        lines="query = np.full_like(query, 200.0); key = -np.abs(key) - 1",
        dtype="float32",
    ),
    Case(
        "values near overflow",
        "L7",
        "an average is not above the largest",
        lines="value = np.full_like(value, 3e38 / S); query = 0 * query",  # whether the sum is divided first or last
        dtype="float32",
    ),
    Case(
        "float16 of 300, D = 64", "L7", "scores of 7e5 are beyond float16", sizes={"D": 64}, dtype="float16", lines=HALF
    ),
    Case(
        "long row of ones",
        "L7",
        "rows sum to 1 at S = 65,536",
        sizes={"B": 1, "N": 1, "G": 1, "T": 3, "S": 65536, "V": 1, "D": 1},
        lines="value = np.ones_like(value)",
        dtype="float32",
        slack=2.0,  # the order in which so many numbers are added is everybody's own
    ),
    Case("long row", "L7", "S = 4,097, scores spread widely", sizes={"B": 1, "S": 4097}, lines="query = 5 * query"),
]
DTYPES = [
    Case("float64", "L8", "stays float64 from end to end, 1e-12", dtype="float64", least="law"),
    Case(
        "float64, masked and causal",
        "L8",
        "1e-12",
        least="law",
        dtype="float64",
        call="mask=mask, is_causal=True",
        lines="mask = rng.random((T, S)) < 0.5; mask[:, 0] = True",
    ),
    Case(
        "bfloat16",
        "L8",
        "as good as the dense formula; the result is bfloat16",
        dtype="bfloat16",
        sizes={"D": 64, "V": 64},
    ),
    Case(
        "float16",
        "L8",
        "as good as the dense formula; the result is float16",
        dtype="float16",
        sizes={"D": 64, "V": 64},
    ),
    Case(
        "bfloat16, a long row",
        "L8",
        "sums run in float32",
        dtype="bfloat16",
        sizes={"S": 1999, "T": 3},
        least="robust",
    ),
    Case(
        "bfloat16 with a float32 bias",
        "L8",
        "the bias keeps its resolution",
        least="law",
        dtype="bfloat16",
        call="bias=bias",
        lines='bias = (100 + rng.standard_normal((1, N, T, S)) / 4).astype("float32")',
    ),
    Case(
        "lse of bfloat16 is wider",
        "L9",
        "float32 at least",
        dtype="bfloat16",
        call="return_lse=True",
        least="law",
    ),
    Case("eager", "L12", "without jit as with it", direction="eager", frameworks=("jax",)),
]
CASES = [*SHAPES, *SCALES, *LOGITS, *NONE, *HUGE, *DTYPES]
