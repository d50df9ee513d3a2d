"""The gradients of everything that has one, and the other directions (L12, L13)."""

from .case import Case

MASK = "mask = rng.random((T, S)) < 0.5; mask[:, 2] = True"
FULL_MASK = "mask = rng.random((B, N, T, S)) < 0.5; mask[..., 2] = True"
BIAS = "bias = rng.standard_normal((1, N, T, S)).astype(dtype)"
FORWARD_OVER, REVERSE_OVER = "second, forward over reverse", "second, reverse over reverse"
FROM_JAX = ("jax",)


def gradient(name: str, about: str, lines: str = "", call: str = "", law: str = "L13", **more) -> Case:
    """Gradients of every floating array for a random cotangent."""
    return Case(f"gradient: {name}", law, about, direction="gradient", lines=lines, call=call, **more)


def bias_gradient(shape: str, about: str) -> Case:
    """The gradient of a bias of a shape, summed over the axes along which it is repeated."""
    lines = f"bias = rng.standard_normal({shape}).astype(dtype)"
    return gradient(f"bias {shape}", about, lines, "bias=bias", needs=("gradient of bias",))


PLAIN = [
    gradient("plain", "of query, key and value"),
    gradient("one query", "T = 1", sizes={"T": 1}),
    gradient("one key", "S = 1: nothing flows to query and key", sizes={"S": 1}),
    gradient("more queries than keys", "T = 11, S = 3", sizes={"T": 11, "S": 3}),
    gradient("lengths that no block divides", "T = 131, S = 257", sizes={"T": 131, "S": 257}),
    gradient("values wider than keys", "V = 6, D = 4", sizes={"V": 6}),
    gradient("grouped heads", "summed over the query heads of a group", sizes={"N": 6}),
    gradient("one key head for all", "G = 1", sizes={"N": 4, "G": 1}),
    gradient("neither batch nor heads", "(T, D)", leading="-", sizes={"N": 1, "G": 1}),
    gradient("scale given", "the scale is in both", call="scale=0.3"),
    gradient("scale 0", "nothing flows to query and key", call="scale=0.0"),
    gradient("softcap", "through the tanh", lines="query = 3 * query", call="softcap=2.0"),
    gradient("logits to 100", "the largest is subtracted", "query = 24 * query", sizes={"T": 131, "S": 257, "D": 64}),
    gradient(
        "a cotangent that is a view",
        "its memory is in another order",
        "cotangent = np.moveaxis(rng.standard_normal((B, T, N, V)).astype(dtype), 1, 2)",
    ),
    gradient("no keys", "S = 0", sizes={"S": 0}, law="L11", least="robust"),
    gradient("no batch", "B = 0", sizes={"B": 0}, law="L11", least="robust"),
]
MASKED = [
    gradient("mask (T, S)", "only through what is seen", MASK, "mask=mask"),
    gradient("mask (B, N, T, S)", "of the full shape", FULL_MASK, "mask=mask"),
    gradient(
        "mask (B, 1, 1, S)",
        "padding as a mask",
        "mask = (rng.random((B, 1, 1, S)) < 0.5) | (np.arange(S) == 2)",
        "mask=mask",
    ),
    gradient(
        "mask with grouped heads",
        "its heads are the query heads",
        sizes={"N": 6},
        call="mask=mask",
        lines="mask = rng.random((1, N, T, S)) < 0.5; mask[..., 2] = True",
    ),
    gradient("causal, fewer queries", "T = 5, S = 7: keys 5 and 6 get none", call="is_causal=True"),
    gradient("causal, more queries", "T = 9, S = 4", sizes={"T": 9, "S": 4}, call="is_causal=True"),
    gradient("window", "two keys back, one ahead", sizes={"T": 7}, call="window=(2, 1)"),
    gradient("key lengths", "padding gets none", 'key_lengths = np.array([4, 6], "int32")', "key_lengths=key_lengths"),
    gradient(
        "segments",
        "packed sequences do not mix",
        call="query_segment_ids=q_ids, key_segment_ids=k_ids",
        lines='q_ids = np.array([[0, 0, 1, 1, 2], [0, 1, 1, 1, 2]], "int32")\n'
        'k_ids = np.array([[0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 2, 2, 2, 2]], "int32")',
    ),
    gradient(
        "segments, T = S",
        "ids of queries and of keys differ, as lengths do not",
        sizes={"T": 7},
        call="query_segment_ids=q_ids, key_segment_ids=k_ids",
        lines='q_ids = np.array([[0, 0, 0, 1, 1, 2, 2], [0, 0, 1, 1, 1, 1, 1]], "int32")\n'
        'k_ids = np.array([[0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 1, 1]], "int32")',
    ),
    gradient(
        "empty row by a mask",
        "exactly 0 through it, and no NaN",
        "mask = np.ones((T, S), bool); mask[3] = False",
        "mask=mask",
        "L5",
    ),
    gradient(
        "empty row by a length of 0",
        "exactly 0 in that batch",
        'key_lengths = np.array([0, 6], "int32")',
        "key_lengths=key_lengths",
        "L5",
    ),
    gradient(
        "empty row by a bias of -inf",
        "exactly 0 through it, and no NaN",
        call="bias=bias",
        law="L5",
        needs=("gradient of bias",),
        lines="bias = np.zeros((1, 1, T, S), dtype); bias[..., 1, :] = -np.inf",
    ),
    gradient("causal, lengths that no block divides", "T = S = 131", sizes={"T": 131, "S": 131}, call="is_causal=True"),
]
BIASES = [
    bias_gradient("(B, N, T, S)", "of the full shape"),
    bias_gradient("(1, N, T, S)", "summed over the batch"),
    bias_gradient("(B, 1, T, S)", "summed over the heads"),
    bias_gradient("(B, 1, 1, S)", "summed over heads and queries"),
    bias_gradient("(B, N, T, 1)", "summed over the keys: 0 in truth"),
    bias_gradient("(T, S)", "rank 2"),
    bias_gradient("(S,)", "rank 1"),
    gradient(
        "bias with a mask", "0 where masked", f"{MASK}\n{BIAS}", "mask=mask, bias=bias", needs=("gradient of bias",)
    ),
    gradient(
        "bias under a causal mask", "0 in the future", BIAS, "bias=bias, is_causal=True", needs=("gradient of bias",)
    ),
    gradient(
        "bias after a softcap", "the bias is not capped", BIAS, "bias=bias, softcap=1.0", needs=("gradient of bias",)
    ),
    gradient(
        "bias with grouped heads",
        "its heads are the query heads",
        BIAS,
        "bias=bias",
        sizes={"N": 6},
        needs=("gradient of bias",),
    ),
    gradient(
        "bias of -inf",
        "0 where it forbids",
        call="bias=bias",
        law="L5",
        needs=("gradient of bias",),
        lines="bias = np.where(rng.random((1, N, T, S)) < 0.5, 0, -np.inf).astype(dtype); bias[..., 2] = 1",
    ),
]
LSE = [
    gradient("lse", "its cotangent counts", call="return_lse=True", law="L9"),
    gradient(
        "lse alone",
        "the cotangent of out is 0",
        "cotangent = np.zeros(query.shape[:-1] + value.shape[-1:], dtype)",
        "return_lse=True",
        "L9",
    ),
    gradient("lse, masked", "over the allowed keys", FULL_MASK, "return_lse=True, mask=mask", "L9"),
    gradient("lse, grouped heads", "summed over the group", call="return_lse=True", sizes={"N": 6}, law="L9"),
    gradient(
        "lse of an empty row",
        "nothing, and no NaN",
        "mask = np.ones((T, S), bool); mask[2] = False",
        "return_lse=True, mask=mask",
        "L5",
    ),
    gradient(
        "lse under dropout",
        "of the weights before dropout",
        "cotangent = np.zeros(query.shape[:-1] + value.shape[-1:], dtype)",
        "return_lse=True, dropout_rate=0.4, dropout_rng=3",
        "L9",
    ),
    gradient(
        "lse and a bias", "flows to the bias", BIAS, "return_lse=True, bias=bias", "L9", needs=("gradient of bias",)
    ),
]
NUMBERS = [
    gradient(
        "scores of 1e30",
        "0 but for a rounding of terms of 1e15",
        "query, key = query * 1e15, key * 1e15",
        law="L7",
        dtype="float32",
        units={"grad query": 1e16, "grad key": 1e16},
    ),
    gradient(
        "scores all very low",
        "finite",
        "query = np.full_like(query, 200.0); key = -np.abs(key) / 100 - 1",
        law="L7",
        dtype="float32",
    ),
    gradient("float64", "1e-12", dtype="float64", law="L8", least="law"),
    gradient(
        "bfloat16", "as good as the dense formula; in bfloat16", dtype="bfloat16", sizes={"D": 64, "V": 64}, law="L8"
    ),
    gradient(
        "float16", "as good as the dense formula; in float16", dtype="float16", sizes={"D": 64, "V": 64}, law="L8"
    ),
    gradient(
        "bfloat16, a bias of many queries",
        "its gradient is a sum over batches, heads and queries, in float32",
        "bias = rng.standard_normal((S,)).astype(dtype)",
        "bias=bias",
        dtype="bfloat16",
        sizes={"B": 8, "T": 120},
        law="L8",
        needs=("gradient of bias",),
    ),
    gradient("long row", "S = 4,097", sizes={"B": 1, "S": 4097}, law="L8", least="robust"),
]
DIRECTIONS = [
    Case("jvp: plain", "L12", "forward mode", direction="jvp"),
    Case("jvp: causal, softcap", "L12", "forward mode", direction="jvp", call="is_causal=True, softcap=2.0"),
    Case("jvp: bias", "L12", "the bias moves, too", direction="jvp", lines=BIAS, call="bias=bias"),
    Case(
        "jvp: mask with an empty row",
        "L12",
        "it does not move",
        least="robust",
        direction="jvp",
        call="mask=mask",
        lines="mask = np.ones((T, S), bool); mask[3] = False",
    ),
    Case("jvp: lse", "L12", "lse moves, too", direction="jvp", call="return_lse=True"),
    Case("second order: forward over reverse", "L12", "the Hessian times a direction", direction=FORWARD_OVER),
    Case("second order: reverse over reverse", "L12", "a gradient of a gradient", direction=REVERSE_OVER),
    Case(
        "second order: mask and softcap",
        "L12",
        "forward over reverse",
        least="law",
        direction=FORWARD_OVER,
        lines=MASK,
        call="mask=mask, softcap=2.0",
    ),
    Case(
        "second order: bias",
        "L12",
        "reverse over reverse",
        least="law",
        direction=REVERSE_OVER,
        lines=BIAS,
        call="bias=bias",
        needs=("gradient of bias",),
    ),
    Case(
        "second order: lse",
        "L12",
        "forward over reverse",
        least="law",
        direction=FORWARD_OVER,
        call="return_lse=True",
    ),
    Case(
        "vmap: first axis",
        "L12",
        "an axis before the batch",
        "value",
        "vmap",
        leading="AB",
        sizes={"A": 3},
        lines="mapped = dict(query=0, key=0, value=0)",
    ),
    Case(
        "vmap: shared keys",
        "L12",
        "over the queries only",
        "value",
        "vmap",
        lines="query = rng.standard_normal((4, B, N, T, D)).astype(dtype)\n"
        "mapped = dict(query=0, key=None, value=None)",
    ),
    Case(
        "vmap: other axes",
        "L12",
        "in_axes of 1, 2 and 3",
        "value",
        "vmap",
        leading="AB",
        sizes={"A": 3},
        lines="query, key, value = np.moveaxis(query, 0, 1), np.moveaxis(key, 0, 2), np.moveaxis(value, 0, 3)\n"
        "mapped = dict(query=1, key=2, value=3)",
    ),
    Case(
        "vmap: a mask for each",
        "L12",
        "the mask is mapped, too",
        "value",
        "vmap",
        leading="AB",
        sizes={"A": 3},
        call="mask=mask",
        lines="mask = rng.random((A, B, N, T, S)) < 0.5; mask[..., 2] = True\n"
        "mapped = dict(query=0, key=0, value=0, mask=0)",
        frameworks=FROM_JAX,
    ),
    Case(
        "vmap: gradients by example",
        "L12",
        "vmap of grad",
        "value",
        "per example gradient",
        leading="AB",
        sizes={"A": 3},
        lines="mapped = dict(query=0, key=0, value=0)",
    ),
    Case(
        "checkpoint",
        "L12",
        "the forward is computed again",
        "value",
        "gradient under checkpoint",
        call="is_causal=True",
        frameworks=FROM_JAX,
    ),
]
CASES = [*PLAIN, *MASKED, *BIASES, *LSE, *NUMBERS, *DIRECTIONS]
