"""The first judge: attention by its definition, one number at a time, sharing no code with either twin.

Slow and plain on purpose. Arrays are indexed, never broadcast; a forbidden key is skipped, never multiplied by 0.
"""

import math


def softmax(values):
    if not values:
        return []
    largest = max(values)
    powers = [math.exp(value - largest) for value in values]
    return [power / sum(powers) for power in powers]


def heads(query, key, value):
    """Each query head of (B, N, T, D) beside its key head of (B, G, S, D), as lists: (b, n, query, key, value)."""
    group = query.shape[1] // key.shape[1]
    for b in range(query.shape[0]):
        for n in range(query.shape[1]):
            yield b, n, query[b, n].tolist(), key[b, n // group].tolist(), value[b, n // group].tolist()


def attend(query, key, value, allowed, score):
    """One head. ``allowed(i, j)`` and ``score(i, j)`` say which pairs count and what they score.

    Returns out[i][d], weights[i][j] and lse[i] as nested lists.
    """
    T, S, V = len(query), len(key), len(value[0]) if len(value) else 0
    out, weights, lse = [], [], []
    for i in range(T):
        seen = [j for j in range(S) if allowed(i, j)]
        scores = [score(i, j) for j in seen]
        share = dict(zip(seen, softmax(scores), strict=True))
        weights.append([share.get(j, 0.0) for j in range(S)])
        out.append([sum(share[j] * value[j][d] for j in seen) for d in range(V)])
        largest = max(scores, default=-math.inf)
        lse.append(largest + math.log(sum(math.exp(s - largest) for s in scores)) if seen else -math.inf)
    return out, weights, lse


def rows_that_are_nan(query, key, value, allowed, bias):
    """L6 of one head: which rows of out and lse are NaN, because they see something that is not finite."""

    def spoils(i, j):
        return not math.isfinite(bias(i, j)) or not all(map(math.isfinite, [*query[i], *key[j], *value[j]]))

    return [any(allowed(i, j) and spoils(i, j) for j in range(len(key))) for i in range(len(query))]


def pairs_of_nan_gradient(nan_rows, allowed, S, grad_out, grad_lse):
    """L6 of one head: the pairs (i, j) that make row i of the gradient of the query and row j of key and value NaN.

    The row is NaN, or its own gradient is not finite, and something depends on it.
    """
    found = []
    for i, row in enumerate(grad_out):
        given = [*row, grad_lse[i]]
        if any(g != 0 for g in given) and (nan_rows[i] or not all(map(math.isfinite, given))):
            found += [(i, j) for j in range(S) if allowed(i, j)]
    return found


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def scaled(query, key):
    """The score of scaled dot-product attention."""
    return lambda i, j: dot(query[i], key[j]) / math.sqrt(len(query[i]))


def layer_norm(row, gamma, beta, eps):
    mean = math.fsum(row) / len(row)
    variance = math.fsum((x - mean) ** 2 for x in row) / len(row)
    return [g * (x - mean) / math.sqrt(variance + eps) + b for x, g, b in zip(row, gamma, beta, strict=True)]


def affine(row, W, b):
    return [sum(row[i] * W[i][j] for i in range(len(row))) + b[j] for j in range(len(b))]


ACTIVATIONS = {
    "relu": lambda x: x if x > 0 else 0.0,
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: x * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def feed_forward(row, W1, b1, W2, b2, activation):
    return affine([ACTIVATIONS[activation](a) for a in affine(row, W1, b1)], W2, b2)


def multi_head(tokens, memory, params, num_heads, allowed):
    """One batch row: tokens (T, M) attend to memory (S, M) as lists; ``allowed(n, i, j)``."""
    width = len(tokens[0]) // num_heads
    q = [affine(row, params.W_Q, params.b_Q) for row in tokens]
    k = [affine(row, params.W_K, params.b_K) for row in memory]
    v = [affine(row, params.W_V, params.b_V) for row in memory]
    joined = [[] for _ in tokens]
    for n in range(num_heads):
        columns = slice(n * width, (n + 1) * width)
        head = [[row[columns] for row in x] for x in (q, k, v)]
        out, _, _ = attend(*head, lambda i, j, n=n: allowed(n, i, j), scaled(head[0], head[1]))
        for row, piece in zip(joined, out, strict=True):
            row.extend(piece)
    return [affine(row, params.W_O, params.b_O) for row in joined]


def encoder_block(tokens, params, num_heads, allowed, norm, activation, eps):
    """One batch row through one encoder block, as nested lists."""

    def attend_all(x):
        return multi_head(x, x, params.attention, num_heads, allowed)

    def feed(x):
        return [feed_forward(row, params.W1, params.b1, params.W2, params.b2, activation) for row in x]

    def norm1(x):
        return [layer_norm(row, params.gamma1, params.beta1, eps) for row in x]

    def norm2(x):
        return [layer_norm(row, params.gamma2, params.beta2, eps) for row in x]

    def add(x, y):
        return [[a + b for a, b in zip(one, other, strict=True)] for one, other in zip(x, y, strict=True)]

    if norm == "pre":
        hidden = add(tokens, attend_all(norm1(tokens)))
        return add(hidden, feed(norm2(hidden)))
    hidden = norm1(add(tokens, attend_all(tokens)))
    return norm2(add(hidden, feed(hidden)))


def threefry(key, counter):
    """Threefry-2x32 with Python integers."""
    mask = 2**32 - 1
    schedule = [*key, key[0] ^ key[1] ^ 0x1BD11BDA]
    a, b = (counter[0] + schedule[0]) & mask, (counter[1] + schedule[1]) & mask
    for step in range(20):
        rotation = (13, 15, 26, 6, 17, 29, 16, 24)[step % 8]
        a = (a + b) & mask
        b = (((b << rotation) | (b >> (32 - rotation))) & mask) ^ a
        if step % 4 == 3:
            count = step // 4 + 1
            a, b = (a + schedule[count % 3]) & mask, (b + schedule[(count + 1) % 3] + count) & mask
    return a, b
