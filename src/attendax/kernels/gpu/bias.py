"""The gradient of a bias in Triton."""

import triton
import triton.language as tl

from attendax.kernels.gpu.pairs import INF, allowed_pairs, dropped, modified, of_head, plane
from attendax.kernels.gpu.rows import products_in_steps, weights_of, zero_unless_live


@triton.jit
def gradient_of_bias(
    query, key, value, factors, seen, query_ids, key_ids, options, alibi, table, places, bias, bits, words,
    dout, delta_of, shift_of, share_of, dbias,
    N, GROUP, T, S, seen_b, seen_n, ids_b, B, by_text, by_head, by_query, by_key,
    W: tl.constexpr, STEP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A tile of it. Along each axis that it lacks it is a sum: over texts, heads, queries and keys in their order.

    It looks at each number as the other kernels do with ``CARE``.
    """
    tiles_t, tiles_s = tl.cdiv(T, BLOCK_M), tl.cdiv(S, BLOCK_N)
    own_t, own_s = tl.where(by_query != 0, tiles_t, 1), tl.where(by_key != 0, tiles_s, 1)
    own_n = tl.where(by_head != 0, N, 1)
    tile_s, tile_t = tl.program_id(0) % own_s, tl.program_id(0) // own_s % own_t
    at = tl.program_id(0) // own_s // own_t
    sum_s, sum_t = tiles_s // own_s, tiles_t // own_t
    sum_n, sum_b = N // own_n, tl.where(by_text != 0, 1, B)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    scale = tl.load(factors)
    for step in range(sum_b * sum_n * sum_t):
        rows = (tile_t + step % sum_t) * BLOCK_M + tl.arange(0, BLOCK_M)
        n = (at % own_n + step // sum_t % sum_n).to(tl.int64)
        b = (at // own_n + step // sum_t // sum_n).to(tl.int64)
        head, of_keys, there = b * N + n, (b * N + n) // GROUP, rows < T
        delta = tl.load(delta_of + head * T + rows, mask=there, other=0.0)
        shift = tl.load(shift_of + head * T + rows, mask=there, other=INF)
        share = tl.load(share_of + head * T + rows, mask=there, other=0.0)
        live = (share > 0.0)[:, None]
        q, do, k, values = query + head * T * W, dout + head * T * W, key + of_keys * S * W, value + of_keys * S * W
        scores, of_bits, dropout = of_head(factors, options, alibi, table, places, bias, bits, words, b, n, N, T, S)
        seen_of, query_ids_of = seen + plane(b, n, N, seen_b, seen_n) * T * 4, query_ids + b * ids_b * T
        key_ids_of = key_ids + b * ids_b * S
        for part in range(sum_s):  # apart, or the number of steps might not be of int32
            columns = (tile_s + part) * BLOCK_N + tl.arange(0, BLOCK_N)
            s = tl.where(live, products_in_steps(q, rows, T, k, columns, S, W, STEP, True) * scale, 0.0)
            dp = tl.where(live, products_in_steps(do, rows, T, values, columns, S, W, STEP, True), 0.0)
            s, _ = modified(s, rows, columns, T, S, scores, False)
            s = zero_unless_live(s, live)
            dp = dropped(dp, rows, columns, dropout, False)
            s = tl.where(
                allowed_pairs(seen_of, query_ids_of, key_ids_of, of_bits, rows, columns, T, S, False, True), s, -INF
            )
            ds = weights_of(s, shift[:, None], share[:, None]) * (dp - delta[:, None])
            acc += tl.where(s != -INF, ds, 0.0)
    size_t, size_s = tl.where(by_query != 0, T, 1), tl.where(by_key != 0, S, 1)
    if by_query == 0:
        acc = tl.sum(acc, 0)[None, :] + tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    if by_key == 0:
        acc = tl.sum(acc, 1)[:, None] + tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    i = (tile_t * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    j = (tile_s * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    to = dbias + (at.to(tl.int64) * size_t + i) * size_s + j
    tl.store(to, acc, mask=(i < size_t) & (j < size_s))
