"""Attention as block kernels compute it, in NumPy: what mistakes of such kernels are planted into.

The forward is a program for each block of queries with an online softmax in base 2. The backward takes the weights from
the saved log-sum-exp: a pass for delta, a program for each block of keys (dK, dV), one for each block of queries (dQ).
Tiles are always full: what lies beyond an array is loaded as zeros, and never stored.
"""

import numpy as np

BLOCK_Q, BLOCK_K, BLOCK_D = 64, 32, 32
LOG2E = 1.4426950408889634


def attend(
    query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
    key_lengths=None, query_segment_ids=None, key_segment_ids=None, dropout_rate=0.0, dropout_rng=None,
    return_lse=False, offset=0,
):  # fmt: skip
    """out, or out and lse."""
    options = dict(mask=mask, bias=bias, is_causal=is_causal, scale=scale, softcap=softcap, window=window,
                   key_lengths=key_lengths, query_ids=query_segment_ids, key_ids=key_segment_ids, rate=dropout_rate,
                   seed=dropout_rng, offset=offset)  # fmt: skip
    out, lse = Launch(query, key, value, **options).forward()
    return (out, lse) if return_lse else out


def backward(
    grad_output, query, key, value, *, mask=None, bias=None, is_causal=False, scale=None, softcap=None, window=None,
    key_lengths=None, query_segment_ids=None, key_segment_ids=None, dropout_rate=0.0, dropout_rng=None, grad_lse=None,
    offset=0,
):  # fmt: skip
    """Gradients of query, key, value and, where there is one, the bias."""
    options = dict(mask=mask, bias=bias, is_causal=is_causal, scale=scale, softcap=softcap, window=window,
                   key_lengths=key_lengths, query_ids=query_segment_ids, key_ids=key_segment_ids, rate=dropout_rate,
                   seed=dropout_rng, offset=offset)  # fmt: skip
    return Launch(query, key, value, **options).backward(grad_output, grad_lse)


def load(x, rows):
    """A tile in the dtype of the sums; zeros beyond the end."""
    wide = np.float64 if x.dtype == np.float64 else np.float32
    tile = x[..., np.minimum(rows, x.shape[-2] - 1), :].astype(wide)
    return np.where((rows < x.shape[-2])[:, None], tile, 0)


def store(x, rows, tile):
    """A tile, but for what lies beyond the end."""
    inside = rows < x.shape[-2]
    x[..., rows[inside], :] = tile[..., inside, :].astype(x.dtype)


def tiles(first, last, block):
    """The positions of the tiles that hold first .. last - 1."""
    return [np.arange(start, start + block) for start in range(first // block * block, last, block)]


def score_product(q, k):
    """q kᵀ, a chunk of the width at a time."""
    scores = 0
    for start in range(0, q.shape[-1], BLOCK_D):
        scores = scores + q[..., start : start + BLOCK_D] @ k[..., start : start + BLOCK_D].swapaxes(-1, -2)
    return scores


class Launch:
    """One call: its arrays, and what each tile reads of them."""

    def __init__(
        self, query, key, value, *, mask, bias, is_causal, scale, softcap, window, key_lengths, query_ids, key_ids,
        rate, seed, offset,
    ):  # fmt: skip
        self.query, self.key, self.value = query, key, value
        self.mask, self.bias, self.is_causal, self.softcap = mask, bias, is_causal, softcap
        self.left, self.right = window or (None, None)
        self.key_lengths, self.query_ids, self.key_ids = key_lengths, query_ids, key_ids
        self.rate, self.seed, self.offset = rate, seed, np.asarray(offset)
        self.T, self.S, self.D = query.shape[-2], key.shape[-2], query.shape[-1]
        self.N = query.shape[-3] if query.ndim > 2 else 1
        self.group = self.N // (key.shape[-3] if key.ndim > 2 else 1)
        self.wide = np.float64 if query.dtype == np.float64 else np.float32
        self.scale = self.wide(self.D**-0.5 if scale is None else scale)

    def queries(self, x, rows):
        """A tile of what the queries have: query, grad_output, out."""
        return load(x, rows)

    def keys(self, x, keys):
        """A tile of what the keys have, for each query head."""
        if x.ndim == 2:
            return load(x, keys)
        return load(x, keys)[..., np.arange(self.N) // self.group, :, :]

    def keys_of(self, rows):
        """The tiles of keys that a block of queries sees."""
        first, last = 0, self.S
        if self.is_causal:
            last = min(last, rows[-1] + 1 + self.offset.max())
        if self.left is not None and not self.offset.any():
            first = max(first, rows[0] - self.left)
        if self.right is not None and not self.offset.any():
            last = min(last, rows[-1] + 1 + self.right)
        if self.key_lengths is not None:
            last = min(last, self.key_lengths.max())
        return tiles(first, last, BLOCK_K)

    def rows_of(self, keys):
        """The tiles of queries that see a block of keys."""
        first, last = 0, self.T
        if self.is_causal:
            first = max(first, keys[0] - self.offset.max())
        if self.left is not None and not self.offset.any():
            last = min(last, keys[-1] + 1 + self.left)
        if self.right is not None and not self.offset.any():
            first = max(first, keys[0] - self.right)
        return tiles(first, last, BLOCK_Q)

    def seen(self, rows, keys):
        """Which pairs of a tile look at each other."""
        i, j = rows[:, None], keys
        seen = (i < self.T) & (j < self.S)
        begins = self.offset[:, None, None, None] if self.offset.ndim else self.offset
        if self.is_causal:
            seen = seen & (j <= i + begins)
        i = i + begins
        if self.left is not None:
            seen = seen & (j >= i - self.left)
        if self.right is not None:
            seen = seen & (j <= i + self.right)
        if self.key_lengths is not None:
            seen = seen & (j < self.key_lengths[:, None, None, None])
        if self.query_ids is not None:
            ours = self.query_ids[:, np.minimum(rows, self.T - 1)]
            theirs = self.key_ids[:, np.minimum(keys, self.S - 1)]
            seen = seen & (ours[:, None, :, None] == theirs[:, None, None, :])
        if self.mask is not None:
            seen = seen & self.pairs(self.mask, rows, keys)
        return np.broadcast_to(seen, (*self.query.shape[:-2], len(rows), len(keys)))

    def pairs(self, x, rows, keys):
        """A tile of a mask or a bias; an axis of 1 is read at 0."""
        x = np.atleast_2d(x)
        at_rows = np.minimum(rows, x.shape[-2] - 1)
        at_keys = np.minimum(keys, x.shape[-1] - 1)
        return x[..., at_rows[:, None], at_keys]

    def scores(self, rows, keys):
        """The scores of a tile in units of log 2, and the derivative of the cap."""
        q, k = self.queries(self.query, rows), self.keys(self.key, keys)
        scores = score_product(q, k) * self.scale
        slope = 1
        if self.softcap is not None:
            tanh = np.tanh(scores / self.softcap)
            scores, slope = self.wide(self.softcap) * tanh, 1 - tanh * tanh
        if self.bias is not None:
            scores = scores + self.pairs(self.bias, rows, keys).astype(self.wide)
        return np.where(self.seen(rows, keys), scores * self.wide(LOG2E), -np.inf), slope

    def kept(self, rows, keys):
        """What dropout multiplies a tile of weights by, from a counter for each pair."""
        if not self.rate:
            return self.wide(1)
        heads = np.arange(np.prod(self.query.shape[:-2], dtype=int)).reshape(*self.query.shape[:-2], 1, 1)
        counter = ((heads * self.T + rows[:, None]) * self.S + keys + 1).astype(np.uint64)
        x = (counter + np.uint64(self.seed << 40)) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        drawn = (x >> np.uint64(11)).astype(np.float64) / 2**53
        return (drawn >= self.rate) * self.wide(1 / (1 - self.rate) if self.rate < 1 else 0)

    def forward(self):
        """out, and the log-sum-exp of each row."""
        heads, dtype = self.query.shape[:-2], self.query.dtype
        out = np.empty((*heads, self.T, self.value.shape[-1]), dtype)
        lse = np.empty((*heads, self.T, 1), self.wide)
        for rows in tiles(0, self.T, BLOCK_Q):
            row_max = np.full((*heads, len(rows), 1), -np.inf, self.wide)
            row_sum = np.zeros((*heads, len(rows), 1), self.wide)
            acc = np.zeros((*heads, len(rows), self.value.shape[-1]), self.wide)
            for keys in self.keys_of(rows):
                scores, _ = self.scores(rows, keys)
                higher = np.maximum(row_max, scores.max(axis=-1, keepdims=True))
                shift = np.where(higher == -np.inf, 0, higher)
                p = np.exp2(scores - shift)
                alpha = np.exp2(row_max - shift)
                row_sum = row_sum * alpha + p.sum(axis=-1, keepdims=True)
                p = (p * self.kept(rows, keys)).astype(dtype).astype(self.wide)
                acc = acc * alpha + p @ self.keys(self.value, keys)
                row_max = higher
            store(out, rows, acc / np.where(row_sum == 0, 1, row_sum))
            store(lse, rows, (row_max + np.log2(row_sum)) / self.wide(LOG2E))
        return out, lse[..., 0]

    def backward(self, grad_output, grad_lse):
        """Gradients of query, key, value and the bias."""
        out, lse = self.forward()
        delta = (grad_output.astype(self.wide) * out.astype(self.wide)).sum(axis=-1)
        if grad_lse is not None:
            delta = delta - grad_lse
        saved = grad_output, lse[..., None], delta[..., None]
        grad_query, grad_bias = self.of_queries(*saved)
        grads = [grad_query, *self.of_keys(*saved)]
        return [*grads, grad_bias] if self.bias is not None else grads

    def tile(self, rows, keys, grad_output, lse, delta):
        """The weights of a tile, their dropout, and the gradients of the scores and of the products."""
        scores, slope = self.scores(rows, keys)
        lse = self.queries(lse, rows)
        p = np.exp2(scores - np.where(lse == -np.inf, 0, lse) * self.wide(LOG2E))
        kept = self.kept(rows, keys)
        dp = self.queries(grad_output, rows) @ self.keys(self.value, keys).swapaxes(-1, -2) * kept
        ds = p * (dp - self.queries(delta, rows))
        return p * kept, ds, ds * slope

    def of_keys(self, grad_output, lse, delta):
        """dK and dV, a program for each block of keys."""
        heads, narrow = self.query.shape[:-2], self.query.dtype
        grad_key = np.empty((*heads, *self.key.shape[-2:]), self.wide)
        grad_value = np.empty((*heads, *self.value.shape[-2:]), self.wide)
        for keys in tiles(0, self.S, BLOCK_K):
            dk = np.zeros((*heads, len(keys), self.D), self.wide)
            dv = np.zeros((*heads, len(keys), self.value.shape[-1]), self.wide)
            for rows in self.rows_of(keys):
                p, _, ds = self.tile(rows, keys, grad_output, lse, delta)
                p, ds = (x.astype(narrow).astype(self.wide).swapaxes(-1, -2) for x in (p, ds))
                dv = dv + p @ self.queries(grad_output, rows)
                dk = dk + ds @ self.queries(self.query, rows)
            store(grad_key, keys, dk * self.scale)
            store(grad_value, keys, dv)
        return self.per_group(grad_key, self.key), self.per_group(grad_value, self.value)

    def of_queries(self, grad_output, lse, delta):
        """dQ and the gradient of the bias, a program for each block of queries."""
        heads, narrow = self.query.shape[:-2], self.query.dtype
        grad_query = np.empty(self.query.shape, self.wide)
        grad_bias = np.zeros((*heads, self.T, self.S) if self.bias is not None else (0,), self.wide)
        for rows in tiles(0, self.T, BLOCK_Q):
            dq = np.zeros((*heads, len(rows), self.D), self.wide)
            for keys in self.keys_of(rows):
                _, dbias, ds = self.tile(rows, keys, grad_output, lse, delta)
                dq = dq + ds.astype(narrow).astype(self.wide) @ self.keys(self.key, keys)
                if self.bias is not None:
                    i, j = rows[rows < self.T], keys[keys < self.S]
                    grad_bias[..., i[:, None], j] += dbias[..., : len(i), : len(j)]
            store(grad_query, rows, dq * self.scale)
        return grad_query.astype(narrow), None if self.bias is None else self.per_axis(grad_bias)

    def per_group(self, grad, x):
        """Summed over the query heads that share a key head."""
        if grad.shape != x.shape:
            *lead, G, S, width = x.shape
            grad = grad.reshape(*lead, G, self.group, S, width).sum(axis=-3)
        return grad.astype(x.dtype)

    def per_axis(self, grad):
        """The gradient of the bias, summed over the axes along which it is repeated."""
        bias = self.bias
        grad = grad.sum(axis=tuple(range(grad.ndim - bias.ndim)))
        axes = tuple(axis for axis, size in enumerate(bias.shape) if size == 1)
        return grad.sum(axis=axes, keepdims=True).astype(bias.dtype)
