"""Mistakes that the cases of ``conformance.cases.gradients`` catch first: the forward stays right."""

from planted import Mistake

BACKWARD = '    """Gradients of query, key, value and, where there is one, the bias."""\n'
COTANGENT = 'cotangent = grad_output.astype(steps["wide"])\n'
VIEW_LOST = '.ravel(order="K").reshape(grad_output.shape).astype'
DELTA = "delta = (dweights * weights).sum(axis=-1, keepdims=True)\n"
DPRODUCTS = 'dproducts = dproducts * steps["scale"]\n'
WITH_LSE = "if grad_lse is not None:\n"
ADD_LSE = "dscores = dscores + weights * grad_lse[..., None]\n"
GRAD_KEY = "grad_key = average(dproducts.swapaxes(-1, -2), q, allowed.swapaxes(-1, -2))\n"
WEIGHTS = 'q, k, v, weights = steps["q"], steps["k"], steps["v"], steps["weights"]\n'
RESULT = "grads = [grad_query.astype(query.dtype), "
BIAS_RESULT = "to_shape(dscores, bias)]"
SUMMED = "gradient = gradient.sum(axis=tuple(range(gradient.ndim - bias.ndim)))\n"
REPEATED = "    for axis, size in enumerate(bias.shape):\n"


def before(case: str, old: str, *lines: str) -> Mistake:
    """Lines before a piece that begins with its indentation."""
    return Mistake(f"gradient: {case}", old, "".join(f"    {line}\n" for line in lines) + old)


def after(case: str, old: str, *lines: str) -> Mistake:
    """Lines after a piece that ends with a line."""
    return Mistake(f"gradient: {case}", old, old + "".join(f"    {line}\n" for line in lines))


def instead(case: str, old: str, new: str) -> Mistake:
    """Another piece."""
    return Mistake(f"gradient: {case}", old, new)


PLAIN = [
    # computed again from scores whose largest is not subtracted
    before("logits to 100", f"    {COTANGENT}",
        "if mask is None and bias is None and softcap is None and sinks is None:",
        '    powers = np.exp(np.where(allowed, steps["products"], -np.inf))',
        "    weights = powers / np.maximum(powers.sum(axis=-1, keepdims=True), 1e-30)"),
    instead("plain", "dscores = weights * (dweights - delta)", "dscores = weights * dweights"),
    after("one query", DELTA, "delta = delta if query.shape[-2] > 1 else 0"),
    after("one key", DELTA, "delta = delta if key.shape[-2] > 1 else 0"),
    after("more queries than keys", DPRODUCTS, "dproducts[..., key.shape[-2] :, :] = 0"),
    after("lengths that no block divides", GRAD_KEY, "if key.shape[-2] > 128:",
        "    grad_key[..., key.shape[-2] // 128 * 128 :, :] = 0"),
    instead("values wider than keys", "cotangent @ v.swapaxes(-1, -2)",
        "cotangent[..., : q.shape[-1]] @ v[..., : q.shape[-1]].swapaxes(-1, -2)"),
    instead("grouped heads", "S, width).sum(axis=-3)", "S, width).mean(axis=-3)"),
    before("one key head for all", "    if gradient.shape != array.shape:\n",
        "if array.ndim > 2 and array.shape[-3] == 1:", "    gradient = gradient[..., :1, :, :]"),
    instead("neither batch nor heads", RESULT,
        "grads = [grad_query.astype(query.dtype).reshape(-1, *query.shape[-3:]), "),
    instead("scale given", DPRODUCTS, "dproducts = dproducts * q.dtype.type(query.shape[-1] ** -0.5)\n"),
    instead("scale 0", DPRODUCTS, "dproducts = dproducts * q.dtype.type(scale or query.shape[-1] ** -0.5)\n"),
    instead("softcap", 'dscores * (1 - np.tanh(steps["products"] / softcap) ** 2)', "dscores"),
    instead("a cotangent that is a view", COTANGENT, COTANGENT.replace(".astype", VIEW_LOST)),
    instead(
        "no keys",
        DELTA,
        "blocks = np.array_split(dweights * weights, -(-key.shape[-2] // 128), axis=-1)\n"
        "    delta = sum(block.sum(axis=-1, keepdims=True) for block in blocks)\n",
    ),
    after("no batch", COTANGENT, 'assert np.abs(cotangent).max() < np.inf, "grad_output is not finite"'),
]  # fmt: skip
MASKED = [
    after("mask (T, S)", BACKWARD, "mask = None"),
    after("mask (B, N, T, S)", BACKWARD, "if mask is not None and mask.ndim == 4 and mask.shape[2] > 1:",
        "    mask = mask[:1, :1]"),
    after("mask (B, 1, 1, S)", BACKWARD, "mask = None if mask is not None and mask.shape[-2] == 1 else mask"),
    after("mask with grouped heads", BACKWARD, "if mask is not None and mask.ndim == 4:",
        "    group = query.shape[1] // key.shape[1]", "    mask = np.repeat(mask[:, ::group], group, axis=1)"),
    after("causal, fewer queries", BACKWARD, "is_causal = False"),
    after("causal, more queries", BACKWARD, "if is_causal and query.shape[-2] > key.shape[-2]:",
        "    mask = np.tri(query.shape[-2], key.shape[-2], key.shape[-2] - query.shape[-2], dtype=bool)"),
    after("window", BACKWARD, "window = None"),
    after("key lengths", BACKWARD, "key_lengths = None"),
    after("segments", BACKWARD, "query_segment_ids = None"),
    after("segments, T = S", BACKWARD, "if query_segment_ids is not None and query.shape[-2] == key.shape[-2]:",
        "    query_segment_ids = key_segment_ids"),
    after("empty row by a mask", WEIGHTS, "weights = weights / weights.sum(axis=-1, keepdims=True)"),
    after("empty row by a length of 0", BACKWARD, "if key_lengths is not None:",
        "    key_lengths = np.maximum(key_lengths, 1)"),
    after("empty row by a bias of -inf", BACKWARD, "if bias is not None:",
        "    bias = np.maximum(bias, np.finfo(bias.dtype).min)"),
    after("causal, lengths that no block divides", BACKWARD, "if is_causal:",
        "    mask = np.arange(key.shape[-2]) <= np.arange(query.shape[-2])[:, None] % 128"),
]  # fmt: skip
BIASES = [
    after("bias (B, N, T, S)", BACKWARD, "if bias is not None:",
        "    bias = np.where(bias == -np.inf, bias, 0).astype(bias.dtype)"),
    before("bias (1, N, T, S)", REPEATED, "if bias.ndim == 4 and bias.shape[0] == 1 < bias.shape[1]:",
        "    gradient = gradient[:1]"),
    before("bias (B, 1, T, S)", REPEATED, "if bias.ndim == 4 and bias.shape[1] == 1 < bias.shape[0]:",
        "    gradient = gradient.mean(axis=1, keepdims=True)"),
    before("bias (B, 1, 1, S)", REPEATED, "if bias.shape[-2:-1] == (1,):", "    gradient = gradient[..., :1, :]"),
    before("bias (B, N, T, 1)", REPEATED, "gradient = gradient[..., : bias.shape[-1]]"),
    instead("bias (T, S)", SUMMED, SUMMED.replace("sum", "mean")),
    instead("bias (S,)", SUMMED, "gradient = gradient.sum(axis=(0, 1)) if bias.ndim < 4 else gradient\n"),
    after("bias with a mask", BACKWARD, "mask = mask if bias is None else None"),
    after("bias under a causal mask", BACKWARD, "is_causal = is_causal and bias is None"),
    instead("bias after a softcap", BIAS_RESULT, 'to_shape(dproducts / steps["scale"], bias)]'),
    before("bias with grouped heads", "    grads = grads if bias is None else [",
        "if bias is not None and query.ndim == 4:", "    B, N, *rest = dscores.shape",
        "    dscores = dscores.reshape(B, key.shape[1], -1, *rest).swapaxes(1, 2).reshape(dscores.shape)"),
    after("bias of -inf", BACKWARD, "if bias is not None:", "    empty = (bias == -np.inf).all(axis=-1, keepdims=True)",
        "    bias = np.where(empty, bias, np.maximum(bias, -9)).astype(bias.dtype)"),
]  # fmt: skip
LSE = [
    instead("lse", WITH_LSE, "if grad_lse is not None and not grad_output.any():\n"),
    after("lse alone", COTANGENT, "grad_lse = grad_lse if cotangent.any() else None"),
    instead("lse, masked", WITH_LSE, "if grad_lse is not None and mask is None:\n"),
    instead(
        "lse, grouped heads",
        ADD_LSE,
        "B, N, T = grad_lse.shape\n"
        "        grad_lse = grad_lse.reshape(B, -1, key.shape[1], T).swapaxes(1, 2).reshape(B, N, T)\n"
        f"        {ADD_LSE}",
    ),
    instead(
        "lse of an empty row",
        ADD_LSE,
        "dscores = dscores + weights * grad_lse[..., None] / weights.sum(axis=-1, keepdims=True)\n",
    ),
    instead("lse under dropout", ADD_LSE, ADD_LSE.replace("* grad_lse", "* kept * grad_lse")),
    instead("lse and a bias", BIAS_RESULT, "to_shape(weights * (dweights - delta), bias)]"),
]
NUMBERS = [
    after("scores of 1e30", BACKWARD, "query = np.clip(query, -1e4, 1e4)"),
    after("scores all very low", WEIGHTS, 'weights = np.where(np.exp(steps["lse"])[..., None] > 0, weights, 0)'),
    instead("float64", COTANGENT, "cotangent = grad_output.astype(np.float32)\n"),
    instead("bfloat16", RESULT, "grads = [grad_query, "),
    after("float16", COTANGENT, "if query.dtype.itemsize == 2:",
        '    cotangent = grad_output.astype("bfloat16").astype(np.float32)'),
    instead("bfloat16, a bias of many queries", SUMMED, SUMMED.replace(".sum", ".astype(bias.dtype).sum", 1)),
    after("long row", GRAD_KEY, "if key.shape[-2] > 1024:", "    grad_key[..., key.shape[-2] // 1024 * 1024 :, :] = 0"),
]  # fmt: skip
MISTAKES = [*PLAIN, *MASKED, *BIASES, *LSE, *NUMBERS]
