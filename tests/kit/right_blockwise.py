"""A correct attention of the kit's protocol in NumPy, tile by tile: what mistakes of block indices are planted into.

A first pass over the keys finds the largest score and the sum of each row, a second one the result. Everything that a
tile needs is read by its positions, ``rows`` of the queries and ``keys``.
"""

import numpy as np

from right_attention import WIDE, average, keep, refuse, to_shape, ungroup

BLOCK_Q = 128
BLOCK_K = 128


def attend(
    query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
    key_lengths=None, query_segment_ids=None, key_segment_ids=None, dropout_rate=0.0, dropout_rng=None,
    return_lse=False, offset=0, sinks=None,
):  # fmt: skip
    """out, or out and lse."""
    ids = query_segment_ids, key_segment_ids
    refuse(query, key, value, mask, bias, softcap, window, key_lengths, *ids, dropout_rate)
    kept = keep((*query.shape[:-1], key.shape[-2]), dropout_rate, dropout_rng)
    call = Tiles(
        query, key, value, mask, bias, is_causal, scale, softcap, window, key_lengths, *ids, kept, offset, sinks
    )
    out = np.zeros((*query.shape[:-1], value.shape[-1]), call.wide)
    lse = np.full(query.shape[:-1], -np.inf, call.wide)
    for rows in call.query_blocks():
        largest, total = call.normaliser(rows)
        for keys in call.key_blocks():
            weights, allowed, _ = call.weights(rows, keys, largest, total)
            out[..., rows, :] += average(weights * call.kept_at(rows, keys), call.values_at(keys), allowed)
        lse[..., rows] = (largest + np.log(total))[..., 0]
    return (out.astype(query.dtype), lse) if return_lse else out.astype(query.dtype)


def backward(
    grad_output, query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
    key_lengths=None, query_segment_ids=None, key_segment_ids=None, dropout_rate=0.0, dropout_rng=None, grad_lse=None,
    offset=0, sinks=None,
):  # fmt: skip
    """Gradients of query, key, value and, where there is one, the bias."""
    ids, full = (query_segment_ids, key_segment_ids), (*query.shape[:-1], key.shape[-2])
    kept = keep(full, dropout_rate, dropout_rng)
    call = Tiles(
        query, key, value, mask, bias, is_causal, scale, softcap, window, key_lengths, *ids, kept, offset, sinks
    )
    cotangent = grad_output.astype(call.wide)
    heads = query.shape[:-2]
    grad_query = np.zeros(query.shape, call.wide)
    grad_key = np.zeros((*heads, *key.shape[-2:]), call.wide)
    grad_value = np.zeros((*heads, *value.shape[-2:]), call.wide)
    grad_bias = np.zeros(full if bias is not None else (0,), call.wide)
    grad_sinks = 0
    for rows in call.query_blocks():
        largest, total = call.normaliser(rows)
        delta = 0
        for keys in call.key_blocks():
            weights, dweights, _, _ = call.dweights(rows, keys, cotangent, largest, total)
            delta = delta + (weights * dweights).sum(axis=-1, keepdims=True)
        for sink in call.scores_of_sinks(rows):
            moved = (0 if grad_lse is None else grad_lse[..., rows, None]) - delta
            grad_sinks = grad_sinks + (np.exp(sink - largest) / total * moved).sum(axis=(0, 2, 3))
        for keys in call.key_blocks():
            weights, dweights, allowed, products = call.dweights(rows, keys, cotangent, largest, total)
            dscores = weights * (dweights - delta)
            if grad_lse is not None:
                dscores = dscores + weights * grad_lse[..., rows, None]
            if bias is not None:
                grad_bias[..., rows[:, None], keys] = dscores
            if softcap is not None:
                dscores = dscores * (1 - np.tanh(products / softcap) ** 2)
            dproducts = dscores * call.scale
            grad_query[..., rows, :] += average(dproducts, call.keys_at(keys), allowed)
            turned = dproducts.swapaxes(-1, -2), allowed.swapaxes(-1, -2)
            grad_key[..., keys, :] += average(turned[0], call.queries_at(rows), turned[1])
            weights = weights * call.kept_at(rows, keys)
            grad_value[..., keys, :] += weights.swapaxes(-1, -2) @ cotangent[..., rows, :]
    grads = [grad_query.astype(query.dtype), ungroup(grad_key, key), ungroup(grad_value, value)]
    grads += [] if bias is None else [to_shape(grad_bias, bias)]
    return grads if sinks is None else [*grads, grad_sinks.astype(sinks.dtype)]


def blocks(length, block):
    """The positions of each block; the last one is shorter where the length is no multiple."""
    return [np.arange(start, min(start + block, length)) for start in range(0, length, block)]


def part(x, rows, keys):
    """What a mask or a bias says of a tile; an axis of 1 stays one."""
    x = np.atleast_2d(x)
    rows = rows if x.shape[-2] > 1 else np.arange(1)
    keys = keys if x.shape[-1] > 1 else np.arange(1)
    return x[..., rows[:, None], keys]


class Tiles:
    """One call, read tile by tile."""

    def __init__(
        self, query, key, value, mask, bias, is_causal, scale, softcap, window, key_lengths, query_ids, key_ids, kept,
        offset=0, sinks=None,
    ):  # fmt: skip
        self.wide = WIDE.get(query.dtype.name, np.float32)
        self.query, self.key, self.value = query, key, value
        self.mask, self.bias, self.is_causal, self.softcap, self.window = mask, bias, is_causal, softcap, window
        self.key_lengths, self.query_ids, self.key_ids, self.kept = key_lengths, query_ids, key_ids, kept
        self.offset, self.sinks = offset, sinks
        self.T, self.S = query.shape[-2], key.shape[-2]
        self.scale = self.wide(query.shape[-1] ** -0.5 if scale is None else scale)
        self.group = query.shape[-3] // max(key.shape[-3], 1) if query.ndim > 2 else 1

    def query_blocks(self):
        """Blocks of queries."""
        return blocks(self.T, BLOCK_Q)

    def key_blocks(self):
        """Blocks of keys; one that is empty where there are none."""
        return blocks(self.S, BLOCK_K) or [np.arange(0)]

    def queries_at(self, rows):
        """The queries of a block."""
        return self.query[..., rows, :].astype(self.wide)

    def keys_at(self, keys):
        """The keys of a block, for every query head."""
        return self.per_head(self.key[..., keys, :].astype(self.wide), keys)

    def values_at(self, keys):
        """The values of a block, for every query head."""
        return self.per_head(self.value[..., keys, :].astype(self.wide), keys)

    def per_head(self, x, keys):
        """Repeated for the query heads of a group."""
        return np.repeat(x, self.group, axis=-3) if x.ndim > 2 else x

    def kept_at(self, rows, keys):
        """Which weights of a tile dropout keeps."""
        return self.kept if self.kept.ndim == 0 else self.kept[..., rows[:, None], keys]

    def allowed(self, rows, keys):
        """Which pairs of a tile may look at each other."""
        i, j = rows[:, None], keys
        allowed = np.ones((*self.query.shape[:-2], len(rows), len(keys)), bool)
        begins = np.asarray(self.offset)[:, None, None, None] if np.ndim(self.offset) else self.offset
        if self.is_causal:
            allowed = allowed & (j <= i + begins)
        if self.window is not None:
            left, right = self.window
            i = i if begins is None else i + begins
            allowed = allowed if left is None else allowed & (j >= i - left)
            allowed = allowed if right is None else allowed & (j <= i + right)
        if self.key_lengths is not None:
            allowed = allowed & (j < self.key_lengths[:, None, None, None])
        if self.query_ids is not None:
            allowed = allowed & (self.query_ids[:, None, rows, None] == self.key_ids[:, None, None, keys])
        if self.mask is not None:
            allowed = allowed & part(self.mask, rows, keys)
        if self.bias is not None:
            allowed = allowed & (part(self.bias, rows, keys) != -np.inf)
        return allowed

    def scores(self, rows, keys):
        """The scores of a tile, which pairs are allowed, and the products before any cap."""
        allowed = self.allowed(rows, keys)
        products = (self.queries_at(rows) * self.scale) @ self.keys_at(keys).swapaxes(-1, -2)
        products = np.where(allowed, products, 0)
        scores = products
        if self.softcap is not None:
            scores = self.wide(self.softcap) * np.tanh(products / self.wide(self.softcap))
        if self.bias is not None:
            scores = scores + np.where(allowed, part(self.bias, rows, keys).astype(self.wide), 0)
        return np.where(allowed, scores, -np.inf), allowed, products

    def normaliser(self, rows):
        """The largest score of each row, 0 where there is none, and the sum of the exponentials."""
        every = [self.scores(rows, keys)[0] for keys in self.key_blocks()] + self.scores_of_sinks(rows)
        largest = np.max([x.max(axis=-1, keepdims=True, initial=-np.inf) for x in every], axis=0)
        largest = np.where(largest == -np.inf, 0, largest)
        return largest, sum(np.exp(x - largest).sum(axis=-1, keepdims=True) for x in every)

    def scores_of_sinks(self, rows):
        """Those of one more block of keys, of value 0, where there are sinks."""
        if self.sinks is None:
            return []
        return [np.broadcast_to(self.sinks.astype(self.wide)[:, None, None], (*self.query.shape[:-2], len(rows), 1))]

    def weights(self, rows, keys, largest, total):
        """The weights of a tile."""
        scores, allowed, products = self.scores(rows, keys)
        return np.exp(scores - largest) / np.where(total == 0, 1, total), allowed, products

    def dweights(self, rows, keys, cotangent, largest, total):
        """The weights of a tile and their gradient."""
        weights, allowed, products = self.weights(rows, keys, largest, total)
        dweights = cotangent[..., rows, :] @ self.values_at(keys).swapaxes(-1, -2)
        return weights, np.where(allowed, dweights, 0) * self.kept_at(rows, keys), allowed, products
