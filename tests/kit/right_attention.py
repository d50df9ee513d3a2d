"""A correct attention of the kit's protocol in NumPy, forward and backward: what mistakes are planted into.

It is written step by step, one fact a line, so that a mistake is a change of one line.
"""

import numpy as np

WIDE = {"float64": np.float64}
FLOATING = ("float64", "float32", "float16", "bfloat16")


def attend(
    query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
    key_lengths=None, query_segment_ids=None, key_segment_ids=None, dropout_rate=0.0, dropout_rng=None,
    return_lse=False, offset=0, sinks=None,
):  # fmt: skip
    """out, or out and lse."""
    ids = query_segment_ids, key_segment_ids
    refuse(query, key, value, mask, bias, softcap, window, key_lengths, *ids, dropout_rate)
    allowed = pairs(query, key, mask, is_causal, window, key_lengths, *ids, bias, offset)
    steps = forward(query, key, value, allowed, bias, scale, softcap)
    kept = keep(steps["weights"].shape, dropout_rate, dropout_rng)
    steps = beside_sinks(steps, sinks)
    out = average(steps["weights"] * kept, steps["v"], allowed)
    out = out.astype(query.dtype).reshape(*query.shape[:-1], value.shape[-1])
    lse = steps["lse"].reshape(query.shape[:-1])
    return (out, lse) if return_lse else out


def refuse(query, key, value, mask, bias, softcap, window, key_lengths, query_ids, key_ids, dropout_rate):
    """Every mistake that can be seen."""
    leading, T, S = query.shape[:-2], query.shape[-2], key.shape[-2]
    if query.dtype.name not in FLOATING:
        raise TypeError("query is not floating")
    if key.dtype != query.dtype or value.dtype != query.dtype:
        raise TypeError("query, key and value differ in dtype")
    if query.shape[-1] != key.shape[-1]:
        raise ValueError("key and query differ in width: shape")
    if value.shape[-2] != key.shape[-2]:
        raise ValueError("value and key differ in length: shape")
    if query.shape[:-3] != key.shape[:-3]:
        raise ValueError("query and key differ in batch: shape")
    if query.ndim > 2 and key.shape[-3] and query.shape[-3] % key.shape[-3]:
        raise ValueError("query heads are not a multiple of key heads")
    if value.shape[:-2] != key.shape[:-2]:
        raise ValueError("value and key differ in heads: shape")
    shape = (*leading, T, S)
    if mask is not None:
        if mask.dtype != bool:
            raise TypeError("mask is not boolean")
        if mask.ndim not in (2, len(shape)):
            raise ValueError("mask is neither of rank 2 nor of the rank of the scores")
        if any(size not in (1, full) for size, full in zip(mask.shape, shape[-mask.ndim :], strict=True)):
            raise ValueError("mask has a shape other than the scores")
    if bias is not None:
        if bias.dtype.name not in FLOATING:
            raise TypeError("bias is not floating")
        if any(size not in (1, full) for size, full in zip(bias.shape[::-1], shape[::-1], strict=False)):
            raise ValueError("bias has a shape other than the scores")
    if key_lengths is not None:
        if key_lengths.shape != query.shape[:1]:
            raise ValueError("key_lengths has another shape than the batch")
        if (key_lengths < 0).any():
            raise ValueError("key_lengths are negative")
        if (key_lengths > S).any():
            raise ValueError("key_lengths are longer than the keys")
    if query_ids is not None and (query_ids.shape[-1] != T or key_ids.shape[-1] != S):
        raise ValueError("segment ids have another length than query and key")
    if window is not None and any(side is not None and side < 0 for side in window):
        raise ValueError("window has a negative side")
    if softcap is not None and not softcap > 0:
        raise ValueError("softcap is not positive")
    if not 0 <= dropout_rate <= 1:
        raise ValueError("dropout_rate is no probability")


def pairs(query, key, mask, is_causal, window, key_lengths, query_ids, key_ids, bias, offset=0):
    """Which query may look at which key, in the full shape of the scores."""
    T, S = query.shape[-2], key.shape[-2]
    i, j = np.arange(T)[:, None], np.arange(S)[None]
    allowed = np.ones((*query.shape[:-1], S), bool)
    begins = np.asarray(offset)[:, None, None, None] if np.ndim(offset) else offset
    if is_causal:
        allowed = allowed & (j <= i + begins)
    if window is not None:
        left, right = window
        i = i if begins is None else i + begins
        if left is not None:
            allowed = allowed & (j >= i - left)
        if right is not None:
            allowed = allowed & (j <= i + right)
    if key_lengths is not None:
        allowed = allowed & (j < key_lengths[:, None, None, None])
    if query_ids is not None:
        allowed = allowed & (query_ids[:, None, :, None] == key_ids[:, None, None, :])
    if mask is not None:
        allowed = allowed & mask
    if bias is not None:
        allowed = allowed & (bias != -np.inf)
    return allowed


def forward(query, key, value, allowed, bias, scale, softcap):
    """Scores, weights and lse, and the arrays they come from."""
    wide = WIDE.get(query.dtype.name, np.float32)
    q, k, v = query.astype(wide), key.astype(wide), value.astype(wide)
    if query.ndim > 2:
        group = query.shape[-3] // max(key.shape[-3], 1)
        k = np.repeat(k, group, axis=-3)
        v = np.repeat(v, group, axis=-3)
    if scale is None:
        scale = query.shape[-1] ** -0.5
    scale = wide(scale)
    products = np.where(allowed, (q * scale) @ k.swapaxes(-1, -2), 0)
    scores = products
    if softcap is not None:
        scores = wide(softcap) * np.tanh(products / wide(softcap))
    if bias is not None:
        scores = scores + np.where(allowed, bias.astype(wide), 0)
    scores = np.where(allowed, scores, -np.inf)
    largest = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    shift = np.where(largest == -np.inf, 0, largest)
    powers = np.exp(scores - shift)
    total = powers.sum(axis=-1, keepdims=True)
    weights = powers / np.where(total == 0, 1, total)
    lse = (shift + np.log(total))[..., 0]
    return dict(
        q=q, k=k, v=v, scale=scale, products=products, weights=weights, shift=shift, total=total, lse=lse, wide=wide
    )


def beside_sinks(steps, sinks):
    """Weights and lse beside a key of value 0 for each head, which every query sees, and its share of the weight."""
    if sinks is None:
        return steps
    shift, column = steps["shift"], sinks.astype(steps["wide"])[:, None, None]
    largest = np.maximum(shift, column)
    of_keys, of_sink = steps["total"] * np.exp(shift - largest), np.exp(column - largest)
    lse = largest + np.log(of_keys + of_sink)
    share = of_sink / (of_keys + of_sink)
    return steps | dict(weights=steps["weights"] * of_keys / (of_keys + of_sink), share=share, lse=lse[..., 0])


def average(weights, values, allowed):
    """Σ_j weights_ij values_j; a value that a query may not look at cannot reach it, whatever it is."""
    tame = np.isfinite(values) & (np.abs(values) < 1e37)
    out = weights @ np.where(tame, values, 0)
    for *lead, j in np.argwhere(~tame.all(axis=-1)):
        seen = allowed[(*lead, slice(None), j)]
        row = np.where(tame[(*lead, j)], 0, values[(*lead, j)])
        out[(*lead, seen)] += weights[(*lead, seen, j)][:, None] * row
    return out


def keep(shape, rate, rng):
    """Which weights dropout keeps, each divided by the share that stays."""
    if rate == 0:
        return np.ones((), np.float32)
    if rate == 1:
        return np.zeros(shape, np.float32)
    drawn = np.random.default_rng(rng).random(shape)
    return ((drawn >= rate) / (1 - rate)).astype(np.float32)


def backward(
    grad_output, query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
    key_lengths=None, query_segment_ids=None, key_segment_ids=None, dropout_rate=0.0, dropout_rng=None, grad_lse=None,
    offset=0, sinks=None,
):  # fmt: skip
    """Gradients of query, key, value and, where there is one, the bias."""
    ids = query_segment_ids, key_segment_ids
    allowed = pairs(query, key, mask, is_causal, window, key_lengths, *ids, bias, offset)
    steps = forward(query, key, value, allowed, bias, scale, softcap)
    q, k, v, weights = steps["q"], steps["k"], steps["v"], steps["weights"]
    kept = keep(weights.shape, dropout_rate, dropout_rng)
    if sinks is not None:
        steps = beside_sinks(steps, sinks)
        weights = steps["weights"]
    cotangent = grad_output.astype(steps["wide"])
    dweights = np.where(allowed, cotangent @ v.swapaxes(-1, -2), 0) * kept
    delta = (dweights * weights).sum(axis=-1, keepdims=True)
    dscores = weights * (dweights - delta)
    if grad_lse is not None:
        dscores = dscores + weights * grad_lse[..., None]
    dproducts = dscores
    if softcap is not None:
        dproducts = dscores * (1 - np.tanh(steps["products"] / softcap) ** 2)
    dproducts = dproducts * steps["scale"]
    grad_query = average(dproducts, k, allowed)
    grad_key = average(dproducts.swapaxes(-1, -2), q, allowed.swapaxes(-1, -2))
    grad_value = (weights * kept).swapaxes(-1, -2) @ cotangent
    grads = [grad_query.astype(query.dtype), ungroup(grad_key, key), ungroup(grad_value, value)]
    grads = grads if bias is None else [*grads, to_shape(dscores, bias)]
    return grads if sinks is None else [*grads, of_sinks(steps["share"], delta, grad_lse, sinks)]


def of_sinks(share, delta, grad_lse, sinks):
    """The gradient of the sinks: their weight has none, for their value is 0."""
    gradient = -delta if grad_lse is None else grad_lse[..., None] - delta
    return (share * gradient).sum(axis=(0, 2, 3)).astype(sinks.dtype)


def ungroup(gradient, array):
    """Summed over the query heads that share a key head."""
    if gradient.shape != array.shape:
        *lead, G, S, width = array.shape
        gradient = gradient.reshape(*lead, G, -1, S, width).sum(axis=-3)
    return gradient.astype(array.dtype)


def to_shape(gradient, bias):
    """Summed over the axes along which the bias was repeated."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - bias.ndim)))
    for axis, size in enumerate(bias.shape):
        if size == 1:
            gradient = gradient.sum(axis=axis, keepdims=True)
    return gradient.astype(bias.dtype)
