"""Mistakes that the cases of ``conformance.cases.forward`` catch first."""

from planted import Mistake

CALL = "*ids, dropout_rate)"  # the end of the line of ``attend`` that looks for mistakes of the caller
CAP = "    if softcap is not None:\n        scores = wide(softcap) * np.tanh(products / wide(softcap))\n"
BIAS = "    if bias is not None:\n        scores = scores + np.where(allowed, bias.astype(wide), 0)\n"
MASK = "    scores = np.where(allowed, scores, -np.inf)\n"
CAP_OF_ALL = CAP.replace("products", "scores")
RESULT = "out = out.astype(query.dtype).reshape(*query.shape[:-1], value.shape[-1])"
AVERAGE = "out = weights @ np.where(tame, values, 0)"
KEYS, VALUES = "k = np.repeat(k, group, axis=-3)", "v = np.repeat(v, group, axis=-3)"
TOTAL = "total = powers.sum(axis=-1, keepdims=True)"
WEIGHTS = "weights = powers / np.where(total == 0, 1, total)"
LSE = "lse = (shift + np.log(total))[..., 0]"
NO_SCALE = "    if scale is None:\n        scale = query.shape[-1] ** -0.5\n"

SHAPES = [
    Mistake("plain", "scores = np.where(allowed, scores, -np.inf)", "scores = np.where(allowed, -scores, -np.inf)"),
    Mistake("plain", "scale = query.shape[-1] ** -0.5", "scale = 1.0"),
    # memory is read in its order
    Mistake("arrays that are views", "q, k, v = query.astype(wide), key.astype(wide), value.astype(wide)",
        'q, k, v = (np.ravel(x, order="K").reshape(x.shape).astype(wide) for x in (query, key, value))'),
    Mistake("one query", RESULT, "out = out.astype(query.dtype).squeeze()"),
    # the only value, but not once for each query
    Mistake("one key", AVERAGE, "out = values if values.shape[-2] == 1 else weights @ np.where(tame, values, 0)"),
    # tiles of 8 queries: what is left over counts only where it is all there is
    Mistake("more queries than keys", AVERAGE,
        AVERAGE + "\n    T = out.shape[-2]\n    out[..., T // 8 * 8 or T :, :] = 0"),
    Mistake("batch of one", "if return_lse else out\n", "if return_lse else out[0] if len(out) == 1 else out\n"),
    # without its axis the batch of the keys meets the heads of the query
    Mistake("one head", KEYS, "k = np.repeat(k, group, axis=-3) if key.shape[-3] > 1 else k[..., 0, :, :]"),
    Mistake("width 1", "scale = query.shape[-1] ** -0.5", "scale = (query.shape[-1] + query.shape[-1] % 2) ** -0.5"),
    Mistake("width 13", "scale = query.shape[-1] ** -0.5", "scale = (1 << (query.shape[-1] - 1).bit_length()) ** -0.5"),
    Mistake("lengths that no block divides", MASK,
        MASK + "    S = key.shape[-2]\n    scores[..., S // 128 * 128 or S :] = -np.inf\n"),
    Mistake("values wider than keys", RESULT, "out = out.astype(query.dtype).reshape(query.shape)"),
    # as wide as the wider of the two, and not cut
    Mistake("values narrower than keys", RESULT,
        "out = np.pad(out, [(0, 0)] * (out.ndim - 1) + [(0, max(query.shape[-1] - value.shape[-1], 0))])"),
    Mistake("no batch axis", "group = query.shape[-3] // max(key.shape[-3], 1)",
        "group = query.shape[1] // max(key.shape[1], 1)"),
    Mistake("neither batch nor heads", "if query.ndim > 2:", "if True:"),
    Mistake("two batch axes", RESULT, "out = out.astype(query.dtype).reshape(*query.shape[-4:-1], value.shape[-1])"),
    Mistake("grouped heads", KEYS, "k = np.concatenate([k] * group, axis=-3)"),
    Mistake("grouped heads", VALUES, "v = np.concatenate([v] * group, axis=-3)"),
    # heads folded into queries, in the order of queries
    Mistake("one key head for all", KEYS,
        KEYS + "\n        if key.shape[-3] == 1:\n            q = q.swapaxes(-3, -2).reshape(q.shape)"),
    Mistake("grouped heads, other width of the values", VALUES,
        VALUES + "\n        if group > 1:\n            v = v.reshape(*query.shape[:-2], *key.shape[-2:])"),
]  # fmt: skip
SCALES = [
    Mistake("scale given", NO_SCALE, "    scale = query.shape[-1] ** -0.5\n"),
    Mistake("scale given", NO_SCALE, "    scale = query.shape[-1] ** -0.5 * (1 if scale is None else scale)\n"),
    Mistake("scale 0", "if scale is None:", "if not scale:"),
    Mistake("scale of 1", "if scale is None:", "if scale is None or scale == 1:"),
    # half of the scale to the query, half to the key
    Mistake("scale negative, causal", '    """out, or out and lse."""\n',
        '    """out, or out and lse."""\n    is_causal = is_causal and not (scale or 0) < 0\n'),
    Mistake("scale negative", "(q * scale) @ k.swapaxes(-1, -2)",
        "(q * scale**0.5) @ (k * scale**0.5).swapaxes(-1, -2)"),
    Mistake("softcap", "scores = wide(softcap) * np.tanh", "scores = np.tanh"),
    Mistake("softcap", CAP, ""),
    # capped, the products have a scale of their own
    Mistake(
        "softcap and scale",
        CAP,
        "    if softcap is not None:\n        products = (q * wide(query.shape[-1] ** -0.5)) @ k.swapaxes(-1, -2)\n"
        "        scores = wide(softcap) * np.tanh(products / wide(softcap))\n",
    ),
    Mistake("softcap, then bias", CAP + BIAS, BIAS + CAP_OF_ALL),
    Mistake("softcap, then mask", CAP + BIAS + MASK, MASK + CAP_OF_ALL + BIAS),
    # powers overflow at 88
    Mistake("logits to 100", "powers = np.exp(scores - shift)", "shift = 0 * shift\n    powers = np.exp(scores)"),
    # the cap is left out where it is large
    Mistake("softcap of 30, logits to 60", CAP, CAP.replace("not None", "not None and softcap < 20")),
    # no score is larger than the cap, so the cap is subtracted
    Mistake("softcap of 60, all scores at -60", "powers = np.exp(scores - shift)",
        "shift = shift if softcap is None else np.full_like(shift, softcap)\n    powers = np.exp(scores - shift)"),
]  # fmt: skip
NONE = [
    Mistake("no keys", "keepdims=True, initial=-np.inf)", "keepdims=True)"),
    # tiles of queries, of which there is none
    Mistake(
        "no queries",
        AVERAGE,
        "values = np.where(tame, values, 0)\n    tiles = range(0, weights.shape[-2], 128)\n"
        "    out = np.concatenate([weights[..., i : i + 128, :] @ values for i in tiles], axis=-2)",
    ),
    # one batch after the other, of which there is none
    Mistake(
        "no batch",
        AVERAGE,
        AVERAGE
        + "\n    if out.ndim > 3:\n        out = np.stack([w @ x for w, x in zip(weights, np.where(tame, values, 0))])",
    ),
    Mistake("no keys, lse", LSE, "lse = (shift + np.log(np.where(total == 0, 1, total)))[..., 0]"),
]
HUGE = [
    Mistake("scores of 1e30", "shift = np.where(largest == -np.inf, 0, largest)", "shift = np.zeros_like(largest)"),
    Mistake("scores of -2e31, causal", "scores = np.where(allowed, scores, -np.inf)",
        "scores = np.where(allowed, scores, -1e30)"),
    Mistake(
        "scores of -2e31, masked",
        CALL,
        CALL + "\n    if mask is not None:\n"
        "        bias, mask = (0 if bias is None else bias) + np.where(mask, 0, -1e9), None",
    ),
    Mistake("bias of finfo.min under a causal mask", "scores = np.where(allowed, scores, -np.inf)",
        "scores = np.where(allowed, scores, np.finfo(wide).min)"),
    Mistake(
        "bias of finfo.min under a mask",
        CALL,
        CALL + '\n    if mask is not None:\n        least = np.finfo("float32").min\n'
        "        bias, mask = np.where(mask, 0 if bias is None else bias, least), None",
    ),
    # the maximum is subtracted only where float16, not exp, would overflow
    Mistake("scores shifted by 1e4", "shift = np.where(largest == -np.inf, 0, largest)",
        "large = np.isfinite(largest) & (np.abs(largest) > 65504)\n    shift = np.where(large, largest, 0)"),
    # where nothing is masked, the running maximum begins at 0
    Mistake("scores all very low", "keepdims=True, initial=-np.inf)",
        "keepdims=True, initial=0 if allowed.all() else -np.inf)"),
    # powers of up to 256, for weights of eight bits
    Mistake("values near overflow", "[:, None] * row", "[:, None] * (256 * row) / 256"),
    Mistake("float16 of 300, D = 64", "scores = products\n", "scores = products.astype(query.dtype).astype(wide)\n"),
    # sums of 4,096 keys, kept in half precision; one key after the other is no mistake: libraries' products add so
    Mistake(
        "long row of ones",
        TOTAL,
        TOTAL
        + "\n    if powers.shape[-1] == 65536:"
        + "\n        parts = powers.reshape(*powers.shape[:-1], 16, 4096).sum(axis=-1)"
        + "\n        total = parts.astype(np.float16).astype(wide).sum(axis=-1, keepdims=True)",
    ),
    Mistake("long row of ones", WEIGHTS, WEIGHTS + "\n    weights = np.where(weights < 1e-7, 0, weights)"),
    # a ring of 4096 values
    Mistake("long row", "\n        v = np.repeat(v",
        "\n        v = v[..., np.arange(v.shape[-2]) % 4096, :]\n        v = np.repeat(v"),
]  # fmt: skip
DTYPES = [
    Mistake("float64", 'WIDE = {"float64": np.float64}', "WIDE = {}"),
    # a buffer of float32 where something is masked
    Mistake("float64, masked and causal", MASK,
        "    if not allowed.all():\n        scores = np.where(allowed, scores, -np.inf).astype(np.float32)\n"),
    # what NumPy itself does not know becomes float32
    Mistake("bfloat16", RESULT,
        RESULT.replace("query.dtype", 'query.dtype if query.dtype.kind == "f" else np.float32')),
    # both half dtypes are taken for bfloat16, the upper half of a float32
    Mistake(
        "float16",
        WEIGHTS,
        WEIGHTS + "\n    if query.dtype.itemsize == 2:\n"
        "        weights = (weights.view(np.uint32) & 0xFFFF0000).view(np.float32)",
    ),
    Mistake("bfloat16, a long row", TOTAL,
        "total = powers.sum(axis=-1, keepdims=True, dtype=query.dtype).astype(wide)"),
    Mistake("bfloat16 with a float32 bias", "bias.astype(wide)", "bias.astype(query.dtype).astype(wide)"),
    Mistake("lse of bfloat16 is wider", 'lse = steps["lse"]', 'lse = steps["lse"].astype(query.dtype)'),
]  # fmt: skip
MISTAKES = [*SHAPES, *SCALES, *NONE, *HUGE, *DTYPES]
