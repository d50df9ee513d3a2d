"""Pairs of a query and a key in Triton: which are allowed, their scores, and which weights dropout keeps.

A tile of them lies (queries, keys), or with ``KEYS_FIRST`` the other way. A kernel that is compiled for modified scores
(``MODIFIED``) sees when it runs which of all this a call has, and does not read the rest.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
INF = tl.constexpr(float("inf"))
LARGEST = tl.constexpr(3.4028234663852886e38)
EVERY = tl.constexpr(2**31 - 1)


@triton.jit
def is_finite(x):
    """Tell of each number whether it is finite."""
    return tl.abs(x.to(tl.float32)) < INF


@triton.jit
def of_queries(x, KEYS_FIRST: tl.constexpr):
    """Numbers of queries, along a tile of pairs."""
    if KEYS_FIRST:
        return x[None, :]
    else:
        return x[:, None]


@triton.jit
def of_keys(x, KEYS_FIRST: tl.constexpr):
    """Numbers of keys, along a tile of pairs."""
    return of_queries(x, not KEYS_FIRST)


@triton.jit
def plane(b, n, N, by_text, by_head):
    """The place of a text and a head in an array that may have one entry for all texts, or for all heads."""
    return b * by_text * (1 + by_head * (N - 1)) + n * by_head


@triton.jit
def load_seen(seen, rows, T):
    """first, last, open and shut of queries; rows behind the last query see nothing, and no tile is masked for them."""
    at, there = seen + 4 * rows.to(tl.int64), rows < T
    first = tl.load(at, mask=there, other=0)
    last = tl.load(at + 1, mask=there, other=0)
    opened = tl.load(at + 2, mask=there, other=0)
    shut = tl.load(at + 3, mask=there, other=EVERY)
    return first, last, opened, shut


@triton.jit
def allowed_pairs(
    seen, query_ids, key_ids, bits, rows, columns, T, S, KEYS_FIRST: tl.constexpr, MODIFIED: tl.constexpr
):
    """Tell which queries see which keys. All is loaded anew for each tile: few are masked, and registers are few."""
    first, last, _, _ = load_seen(seen, rows, T)
    query_ids = tl.load(query_ids + rows, mask=rows < T, other=-2)
    key_ids = tl.load(key_ids + columns, mask=columns < S, other=-1)
    i, j = of_queries(rows, KEYS_FIRST), of_keys(columns, KEYS_FIRST)
    inside = (j >= of_queries(first, KEYS_FIRST)) & (j < of_queries(last, KEYS_FIRST))
    inside = inside & (of_queries(query_ids, KEYS_FIRST) == of_keys(key_ids, KEYS_FIRST))
    if MODIFIED:
        words, by_query, there = bits  # no branch here: Triton 3.9 has no layout for truth values that leave one
        word = tl.load(words + i.to(tl.int64) * by_query + j // 32, mask=inside & (j < S * there), other=-1)
        inside = inside & ((word >> (j % 32)) & 1 != 0)
    return inside


@triton.jit
def tanh(x):
    """The hyperbolic tangent, to the precision of float32: near 0 a polynomial, as a difference loses digits."""
    small = x * x
    near = -5.70498872745e-3 * small + 2.06390887954e-2
    near = (near * small - 5.37397155531e-2) * small + 1.33314422036e-1
    near = (near * small - 3.33332819422e-1) * small * x + x
    far = 1.0 - 2.0 / (tl.exp2(tl.abs(x) * (2 * LOG2E)) + 1.0)
    return tl.where(tl.abs(x) < 0.625, near, tl.where(x < 0, -far, far))


@triton.jit
def of_head(factors, options, alibi, table, places, bias, bits, words, b, n, N, T, S):
    """Read for a text and a head what its scores need beside products, the bits of its mask, and its dropout."""
    alibi += 2 * plane(b, n, N, tl.load(options), tl.load(options + 1))
    by_text, radius = tl.load(options + 2), tl.load(options + 3)
    table += plane(b, n, N, by_text, 1) * (2 * radius + 1)
    by_query, by_key = tl.load(options + 7), tl.load(options + 8)
    row = 1 + by_key * (S - 1)
    bias += plane(b, n, N, tl.load(options + 5), tl.load(options + 6)) * (1 + by_query * (T - 1)) * row
    by_query = tl.where(tl.load(options + 4) != 0, by_query * row, -1)
    place = tl.load(places + b * by_text)
    scores = tl.load(factors + 1), tl.load(alibi), tl.load(alibi + 1), table, radius, place, bias, by_query, by_key
    row, by_row = tl.cdiv(S, 32), tl.load(options + 12)
    bits += plane(b, n, N, tl.load(options + 10), tl.load(options + 11)) * (1 + by_row * (T - 1)) * row
    drops = tl.load(options + 13)
    words += 2 * drops * plane(b, n, N, 1, 1)
    dropout = (drops, tl.load(words).to(tl.uint32, bitcast=True), tl.load(words + 1).to(tl.uint32, bitcast=True),
               tl.load(options + 14).to(tl.uint32, bitcast=True), tl.load(factors + 2))  # fmt: skip
    return scores, (bits, by_row * row, tl.load(options + 9)), dropout


@triton.jit
def modified(s, rows, columns, T, S, modifiers, KEYS_FIRST: tl.constexpr):
    """Scores after softcap, ALiBi, relative bias and bias (L2), and the derivative of the softcap.

    A product beyond float32 is NaN after a softcap, as it is without. A bias of -inf forbids. The sum of two finite
    numbers stays finite (L7).
    """
    cap, slope, place, table, radius, table_place, bias, by_query, by_key = modifiers
    i, j = of_queries(rows, KEYS_FIRST), of_keys(columns, KEYS_FIRST)
    derivative = tl.full(s.shape, 1.0, tl.float32)
    if cap > 0.0:
        t = tanh(s / cap)
        derivative = 1.0 - t * t
        s = tl.where(is_finite(s), cap * t, float("nan"))
    if slope != 0.0:
        s = s - slope * tl.abs((i - j).to(tl.float32) + place)
    if radius >= 0:
        s = s + tl.load(table + radius + tl.minimum(tl.maximum(j - i - table_place, -radius), radius))
    if by_query >= 0:
        at = i.to(tl.int64) * by_query + j * by_key
        b = tl.load(bias + at, mask=(i < T) & (j < S), other=0.0)
        total = s + b
        near = tl.minimum(tl.maximum(total, -LARGEST), LARGEST)
        total = tl.where(is_finite(s) & is_finite(b), near, total)
        s = tl.where(b == -INF, -INF, total)
    return s, derivative


@triton.jit
def rounds(a, b, r0: tl.constexpr, r1: tl.constexpr, r2: tl.constexpr, r3: tl.constexpr):
    """Four rounds of Threefry-2x32."""
    a += b
    b = a ^ ((b << r0) | (b >> (32 - r0)))
    a += b
    b = a ^ ((b << r1) | (b >> (32 - r1)))
    a += b
    b = a ^ ((b << r2) | (b >> (32 - r2)))
    a += b
    b = a ^ ((b << r3) | (b >> (32 - r3)))
    return a, b


@triton.jit
def kept(rows, columns, dropout, KEYS_FIRST: tl.constexpr):
    """The factor of each weight: 0 if dropout takes it (L10). The draw is Threefry's, of a query and a key."""
    _, one, other, threshold, factor = dropout
    third = one ^ other ^ 0x1BD11BDA
    a = of_queries(rows, KEYS_FIRST).to(tl.uint32) + one
    b = of_keys(columns, KEYS_FIRST).to(tl.uint32) + other
    a, b = rounds(a, b, 13, 15, 26, 6)
    a, b = rounds(a + other, b + third + 1, 17, 29, 16, 24)
    a, b = rounds(a + third, b + one + 2, 13, 15, 26, 6)
    a, b = rounds(a + one, b + other + 3, 17, 29, 16, 24)
    a, b = rounds(a + other, b + third + 4, 13, 15, 26, 6)
    return tl.where(a + third >= threshold, factor, 0.0)


@triton.jit
def dropped(x, rows, columns, dropout, KEYS_FIRST: tl.constexpr):
    """Weights, or their cotangents, after dropout (L10)."""
    if dropout[0] != 0:
        x = x * kept(rows, columns, dropout, KEYS_FIRST)
    return x
