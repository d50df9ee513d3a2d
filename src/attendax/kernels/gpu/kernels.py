"""Attention in Triton: the forward, and the gradients of query, key and value; how they are launched: ``launches.py``.

Arrays are dense: query (B, N, T, W), key (B, G, S, W), value (B, G, S, W). ``seen`` has four numbers for each query:
the keys [first, last) that it may see, and among them the keys [open, shut), all of which it does see. Of the others
it sees those that have its id, and of these, where the scores are ``MODIFIED``, those whose bit is set. The scale is
above 0. ``MODIFIED`` kernels have all of ``pairs.py`` in one loop, and those without it the fewest registers.

The laws hold so:

- L5: a query that sees no key has row_sum 0, out 0 and lse -inf.
- L6: the loops look for nothing. A look at the result of a tile tells whether it met a number that is not finite. Then
  the kernel runs once more with ``CARE``: a block ends at once if nothing was met, and else computes its tile again,
  with 0 in place of such numbers and NaN in the rows that see one. In one kernel the two would spill registers. Keys
  are looked at before, because a key of inf may give scores of -inf, which leave no trace.
- L7: row_max and row_sum are apart, and a score is rounded before its maximum is subtracted. A multiply-add that does
  both at once would be off by 1e23 at scores of 1e30; so the kernels are compiled without (``enable_fp_fusion``).
- L15: tiles of keys begin at multiples of their size, which depends on widths and dtype alone. A tile in which a
  row sees nothing changes no bit of it: its maximum stays, exp(0) is 1, and 0 is added. There are no atomics.
"""

import triton
import triton.language as tl

from attendax.kernels.gpu.bias import gradient_of_bias as gradient_of_bias
from attendax.kernels.gpu.pairs import (
    INF,
    LOG2E,
    allowed_pairs,
    dropped,
    is_finite,
    load_seen,
    modified,
    of_head,
    plane,
)
from attendax.kernels.gpu.rows import (
    add_product,
    finite_or_zero,
    load_rows,
    product,
    products_in_steps,
    products_with,
    store_rows,
    weights_of,
    zero_unless_live,
)  # fmt: skip

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def tiles_of_keys(first, last, opened, shut, low, high, BLOCK: tl.constexpr):
    """The keys [begin, end) of [low, high) that some query may see, from the first of a tile on.

    In [open, shut) each query sees each key.
    """
    begin = tl.maximum(tl.min(tl.where(first < last, first, high)) // BLOCK * BLOCK, low)
    end = tl.maximum(tl.minimum(tl.max(tl.where(first < last, last, 0)), high), begin)
    opened = tl.minimum(tl.maximum(tl.cdiv(tl.max(opened), BLOCK) * BLOCK, begin), end)
    shut = tl.maximum(tl.minimum(tl.min(shut), end) // BLOCK * BLOCK, opened)
    return begin, opened, shut, end


@triton.jit
def mark_keys(key, marked_keys, S, W: tl.constexpr, BLOCK_N: tl.constexpr):
    """Mark the tiles of keys in which a number is not finite."""
    tiles = tl.cdiv(S, BLOCK_N)
    tile, head = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    k = load_rows(key + head * S * W, tile * BLOCK_N + tl.arange(0, BLOCK_N), S, W)
    tl.store(marked_keys + tl.program_id(0), tl.max(tl.max((is_finite(k) == 0).to(tl.int8), 1), 0))


@triton.jit
def any_marked(marked_keys, begin, end):
    """Tell whether one of these tiles is marked."""
    found = 0
    for at in range(begin, end, 128):
        tiles = at + tl.arange(0, 128)
        found = tl.maximum(found, tl.max(tl.load(marked_keys + tiles, mask=tiles < end, other=0).to(tl.int32)))
    return found


@triton.jit
def average_over(
    q, acc, row_sum, row_max, begin, end, query, key, value, scale, seen, query_ids, key_ids, rows, T, S, more,
    W: tl.constexpr, STEP: tl.constexpr, BLOCK_N: tl.constexpr, MODIFIED: tl.constexpr, MASKED: tl.constexpr,
    CARE: tl.constexpr,
):  # fmt: skip
    """Add the keys [begin, end) to the sums of their weights and values: one tile after the other."""
    for at in range(begin, end, BLOCK_N):
        columns = at + tl.arange(0, BLOCK_N)
        k = load_rows(key, columns, S, W)
        values = load_rows(value, columns, S, W)
        if STEP == W:
            s = products_with(q, k, MODIFIED) * scale
        else:
            s = products_in_steps(query, rows, T, key, columns, S, W, STEP, MODIFIED) * scale
        if CARE:
            bad_keys = (tl.sum(k.to(tl.float32) * 0.0, 1) + tl.sum(values.to(tl.float32) * 0.0, 1)) != 0.0
            bad_queries = tl.sum(q.to(tl.float32) * 0.0, 1) != 0.0
            s = tl.where(bad_keys[None, :] | bad_queries[:, None], float("nan"), s)
            values = finite_or_zero(values)
        if MODIFIED:
            s, _ = modified(s, rows, columns, T, S, more[0], False)
        if MASKED:
            allowed = allowed_pairs(seen, query_ids, key_ids, more[1], rows, columns, T, S, False, MODIFIED)
            s = tl.where(allowed, s, -INF)
        above = tl.maximum(row_max, tl.max(s, 1))
        shift = tl.where(above == -INF, 0.0, above)
        p = tl.exp2((s - shift[:, None]) * LOG2E)
        shrink = tl.exp2((row_max - shift) * LOG2E)
        row_sum = row_sum * shrink + tl.sum(p, 1)
        if MODIFIED:
            p = dropped(p, rows, columns, more[2], False)
        acc = product(p.to(values.dtype), values, acc * shrink[:, None])
        row_max = above
    return acc, row_sum, row_max


@triton.jit
def joined(acc, row_sum, row_max, other_acc, other_sum, other_max):
    """The sums of some keys and of others; those of nothing change no bit of the others."""
    above = tl.maximum(row_max, other_max)
    shift = tl.where(above == -INF, 0.0, above)
    shrink, other = tl.exp2((row_max - shift) * LOG2E), tl.exp2((other_max - shift) * LOG2E)
    return acc * shrink[:, None] + other_acc * other[:, None], row_sum * shrink + other_sum * other, above


@triton.jit
def load_sums(sums, sums_of_rows, rows, T, W: tl.constexpr):
    """The sums of a part of the keys: of weights and values, of weights, and the maximum."""
    at, there = sums_of_rows + 2 * rows, rows < T
    return load_rows(sums, rows, T, W), tl.load(at, mask=there, other=0.0), tl.load(at + 1, mask=there, other=-INF)


@triton.jit
def store_sums(sums, sums_of_rows, acc, row_sum, row_max, rows, T, W: tl.constexpr):
    """Write the sums of a part of the keys."""
    at, there = sums_of_rows + 2 * rows, rows < T
    store_rows(sums, rows, T, acc, W)
    tl.store(at, row_sum, mask=there)
    tl.store(at + 1, row_max, mask=there)


@triton.jit
def store_results(
    acc, row_sum, row_max, out, row_max_of, row_sum_of, lse, head, rows, T, W: tl.constexpr
):  # fmt: skip
    """Write average of values, row maximum, row sum and log-sum-exp."""
    total = tl.where(row_sum == 0.0, 1.0, row_sum)
    average = tl.where((row_sum == row_sum)[:, None], acc / total[:, None], float("nan"))
    store_rows(out + head * T * W, rows, T, average, W)
    at, there = head * T + rows, rows < T
    tl.store(row_max_of + at, row_max, mask=there)
    tl.store(row_sum_of + at, row_sum, mask=there)
    tl.store(lse + at, row_max + tl.log2(total) * LN2, mask=there)


@triton.jit
def forward(
    query, key, value, factors, seen, query_ids, key_ids, options, alibi, table, places, bias, bits, words, marked_keys,
    out, row_max_of, row_sum_of, lse, marked, sums, sums_of_rows,
    N, GROUP, T, S, seen_b, seen_n, ids_b, part, from_part, count, slots, to_slot,
    W: tl.constexpr, STEP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MODIFIED: tl.constexpr,
    CARE: tl.constexpr,
):  # fmt: skip
    """A tile of queries and a part of the keys: average of values, row maximum, row sum and log-sum-exp.

    Parts have ``part`` keys each; ``count`` of them, from ``from_part`` on, have blocks of their own. With ``slots``
    the sums of each are written into one of these, from ``to_slot`` on, and ``join_parts`` joins them.
    """
    tiles = tl.cdiv(T, BLOCK_M)
    tile, number = tiles - 1 - tl.program_id(0) % tiles, tl.program_id(0) // tiles % count
    head = (tl.program_id(0) // tiles // count).to(tl.int64)
    b, n, of_keys = head // N, head % N, head // GROUP  # the longest rows of a causal mask begin first
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    seen += plane(b, n, N, seen_b, seen_n) * T * 4
    first, last, opened, shut = load_seen(seen, rows, T)
    low = (from_part + number) * part
    begin, opened, shut, end = tiles_of_keys(first, last, opened, shut, low, tl.minimum(low + part, S), BLOCK_N)
    if CARE:
        met = tl.load(marked + tl.program_id(0)).to(tl.int32)
        marked_keys += of_keys * tl.cdiv(S, BLOCK_N)
        if tl.maximum(met, any_marked(marked_keys, begin // BLOCK_N, tl.cdiv(end, BLOCK_N))) == 0:
            return
    q = load_rows(query + head * T * W, rows, T, W)
    bad_query = tl.max(tl.max((is_finite(q) == 0).to(tl.int8), 1), 0)
    acc = tl.zeros((BLOCK_M, W), tl.float32)
    row_sum, row_max = tl.zeros((BLOCK_M,), tl.float32), tl.full((BLOCK_M,), -INF, tl.float32)
    more = (0, 0, 0)
    if MODIFIED:
        more = of_head(factors, options, alibi, table, places, bias, bits, words, b, n, N, T, S)
    rest = (query + head * T * W, key + of_keys * S * W, value + of_keys * S * W, tl.load(factors), seen,
            query_ids + b * ids_b * T, key_ids + b * ids_b * S, rows, T, S, more)  # fmt: skip
    own = acc, row_sum, row_max
    if CARE or MODIFIED:
        own = average_over(q, *own, begin, end, *rest, W, STEP, BLOCK_N, MODIFIED, True, CARE)
    else:
        own = average_over(q, *own, begin, opened, *rest, W, STEP, BLOCK_N, False, True, False)
        own = average_over(q, *own, opened, shut, *rest, W, STEP, BLOCK_N, False, False, False)
        own = average_over(q, *own, shut, end, *rest, W, STEP, BLOCK_N, False, True, False)
    acc, row_sum, row_max = own
    if not CARE:
        met = (tl.sum(acc * 0.0, 1) + row_sum * 0.0 != 0.0).to(tl.int8)
        tl.store(marked + tl.program_id(0), tl.maximum(tl.max(met), bad_query))
    if slots == 0:
        store_results(acc, row_sum, row_max, out, row_max_of, row_sum_of, lse, head, rows, T, W)
    else:
        to = (head * slots + to_slot + number) * T
        store_sums(sums + to * W, sums_of_rows + to * 2, acc, row_sum, row_max, rows, T, W)


@triton.jit
def join_parts(
    sums, sums_of_rows, out, row_max_of, row_sum_of, lse, T, slots, last, W: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """Join the sums of all slots in their order: into the results of a tile of queries, or into the first slot."""
    tiles = tl.cdiv(T, BLOCK_M)
    tile, head = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    own = head * slots * T
    acc, row_sum, row_max = load_sums(sums + own * W, sums_of_rows + own * 2, rows, T, W)
    for slot in range(1, slots):
        at = (head * slots + slot) * T
        other, other_sum, other_max = load_sums(sums + at * W, sums_of_rows + at * 2, rows, T, W)
        acc, row_sum, row_max = joined(acc, row_sum, row_max, other, other_sum, other_max)
    if last != 0:
        store_results(acc, row_sum, row_max, out, row_max_of, row_sum_of, lse, head, rows, T, W)
    else:
        store_sums(sums + own * W, sums_of_rows + own * 2, acc, row_sum, row_max, rows, T, W)


@triton.jit
def prepare_rows(
    dout, dlse, out, row_max, row_sum, seen, delta_of, shift_of, share_of, reach, N, T, S, seen_b, seen_n,
    W: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """delta, shift and 1 / row_sum of each row, as in ``not_finite.RowsOfBackward``; and the keys that a tile reaches.

    The share is 0 in a row whose weights count for nothing, and NaN in one that is not finite.
    """
    tiles = tl.cdiv(T, BLOCK_M)
    tile, head = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    at, there = head * T + rows, rows < T
    do = load_rows(dout + head * T * W, rows, T, W).to(tl.float32)
    of_lse = tl.load(dlse + at, mask=there, other=0.0)
    total = tl.load(row_sum + at, mask=there, other=0.0)
    highest = tl.load(row_max + at, mask=there, other=0.0)
    delta = tl.sum(do * load_rows(out + head * T * W, rows, T, W).to(tl.float32), 1) - of_lse
    zero = (tl.sum(tl.abs(do), 1) == 0.0) & (of_lse == 0.0)
    read = (total != 0.0) & (zero == 0) & there
    fine = is_finite(delta) & is_finite(total) & is_finite(highest)
    live = read & fine
    share = tl.where(live, 1.0 / tl.where(live, total, 1.0), tl.where(read, float("nan"), 0.0))
    tl.store(delta_of + at, tl.where(live, delta, 0.0), mask=there)
    tl.store(shift_of + at, tl.where(read, tl.where(fine, highest, float("nan")), INF), mask=there)
    tl.store(share_of + at, share, mask=there)
    first, last, opened, shut = load_seen(seen + plane(head // N, head % N, N, seen_b, seen_n) * T * 4, rows, T)
    some = (first < last) & read
    reach += tl.program_id(0) * 4
    tl.store(reach, tl.min(tl.where(some, first, S)))
    tl.store(reach + 1, tl.max(tl.where(some, last, 0)))
    tl.store(reach + 2, tl.max(opened))
    tl.store(reach + 3, tl.min(shut))


@triton.jit
def may_see(s, shift, CARE: tl.constexpr):
    """Tell which pairs count in a gradient. Without ``CARE`` all pairs of a NaN row do, so that its tile is marked."""
    if CARE:
        return s != -INF
    else:
        return s - shift != -INF


@triton.jit
def gradient_over_keys(
    q, do, acc, begin, end, key, value, scale, shift, share, delta, seen, query_ids, key_ids, rows, T, S, more,
    W: tl.constexpr, STEP: tl.constexpr, BLOCK_N: tl.constexpr, MODIFIED: tl.constexpr, MASKED: tl.constexpr,
    CARE: tl.constexpr,
):  # fmt: skip
    """Add the keys [begin, end) to the gradient of a tile of queries."""
    for at in range(begin, end, BLOCK_N):
        columns = at + tl.arange(0, BLOCK_N)
        k = load_rows(key, columns, S, W)
        if CARE or STEP < W:
            s = products_in_steps(q, rows, T, key, columns, S, W, STEP, MODIFIED) * scale
            dp = products_in_steps(do, rows, T, value, columns, S, W, STEP, MODIFIED)
        else:
            s = products_with(q, k, MODIFIED) * scale
            dp = products_with(do, load_rows(value, columns, S, W), MODIFIED)
        if CARE:
            live = (share > 0.0)[:, None]
            k, s, dp = finite_or_zero(k), tl.where(live, s, 0.0), tl.where(live, dp, 0.0)
        if MODIFIED:
            s, derivative = modified(s, rows, columns, T, S, more[0], False)
            dp = dropped(dp, rows, columns, more[2], False)
            if CARE:
                s = zero_unless_live(s, live)
            s = tl.where(allowed_pairs(seen, query_ids, key_ids, more[1], rows, columns, T, S, False, True), s, -INF)
        ds = weights_of(s, shift[:, None], share[:, None]) * (dp - delta[:, None])
        if MODIFIED:  # a bias may forbid, too
            ds = tl.where(may_see(s, shift[:, None], CARE), ds * derivative, 0.0)
        elif MASKED:
            allowed = allowed_pairs(seen, query_ids, key_ids, more[1], rows, columns, T, S, False, False)
            ds = tl.where(allowed, ds, 0.0)
        acc = add_product(acc, ds, k)
    return acc


@triton.jit
def gradient_of_query(
    query, key, value, factors, seen, query_ids, key_ids, options, alibi, table, places, bias, bits, words,
    dout, delta_of, shift_of, share_of, dquery, marked,
    N, GROUP, T, S, seen_b, seen_n, ids_b,
    W: tl.constexpr, STEP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MODIFIED: tl.constexpr,
    CARE: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of queries."""
    tiles = tl.cdiv(T, BLOCK_M)
    tile, head = tiles - 1 - tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    b, n, of_keys = head // N, head % N, head // GROUP
    if CARE:  # noqa: SIM102 - a condition of Triton is either a constant or not
        if tl.load(marked + tl.program_id(0)) == 0:
            return
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    at, there = head * T + rows, rows < T
    q, do = query + head * T * W, dout + head * T * W
    if STEP == W and not CARE:
        q, do = load_rows(q, rows, T, W), load_rows(do, rows, T, W)
    delta = tl.load(delta_of + at, mask=there, other=0.0)
    shift = tl.load(shift_of + at, mask=there, other=INF)
    share = tl.load(share_of + at, mask=there, other=0.0)
    seen += plane(b, n, N, seen_b, seen_n) * T * 4
    first, last, opened, shut = load_seen(seen, rows, T)
    last = tl.where(shift == INF, first, last)  # of such a row nothing is wanted
    begin, opened, shut, end = tiles_of_keys(first, last, opened, shut, 0, S, BLOCK_N)
    acc = tl.zeros((BLOCK_M, W), tl.float32)
    scale, more = tl.load(factors), (0, 0, 0)
    if MODIFIED:
        more = of_head(factors, options, alibi, table, places, bias, bits, words, b, n, N, T, S)
    rest = (key + of_keys * S * W, value + of_keys * S * W, scale, shift, share, delta, seen,
            query_ids + b * ids_b * T, key_ids + b * ids_b * S, rows, T, S, more)  # fmt: skip
    if CARE or MODIFIED:
        acc = gradient_over_keys(q, do, acc, begin, end, *rest, W, STEP, BLOCK_N, MODIFIED, True, CARE)
    else:
        acc = gradient_over_keys(q, do, acc, begin, opened, *rest, W, STEP, BLOCK_N, False, True, False)
        acc = gradient_over_keys(q, do, acc, opened, shut, *rest, W, STEP, BLOCK_N, False, False, False)
        acc = gradient_over_keys(q, do, acc, shut, end, *rest, W, STEP, BLOCK_N, False, True, False)
    if CARE:
        acc = tl.where((share != share)[:, None], tl.where(first < last, float("nan"), 0.0)[:, None], acc)
    else:
        tl.store(marked + tl.program_id(0), tl.max((tl.sum(acc * 0.0, 1) != 0.0).to(tl.int8)))
    store_rows(dquery + head * T * W, rows, T, acc * scale, W)


@triton.jit
def tiles_that_reach(reach, count, begin, end):
    """Tiles [first, last) of queries of which some see some key of [begin, end); in [open, shut) all see all."""
    first, last, opened = count, 0, count
    for at in range(0, count, 128):
        tiles = at + tl.arange(0, 128)
        there = tiles < count
        some = (tl.load(reach + 4 * tiles, mask=there, other=0) < end) & there
        some = some & (tl.load(reach + 4 * tiles + 1, mask=there, other=0) > begin)
        every = (tl.load(reach + 4 * tiles + 2, mask=there, other=0) <= begin) & some
        every = every & (tl.load(reach + 4 * tiles + 3, mask=there, other=0) >= end)
        first = tl.minimum(first, tl.min(tl.where(some, tiles, count)))
        last = tl.maximum(last, tl.max(tl.where(some, tiles + 1, 0)))
        opened = tl.minimum(opened, tl.min(tl.where(every, tiles, count)))
    first, opened, shut = tl.minimum(first, last), tl.minimum(opened, last), last
    for at in range(0, count, 128):
        tiles = at + tl.arange(0, 128)
        there = (tiles < count) & (tiles >= opened)
        every = tl.load(reach + 4 * tiles + 2, mask=there, other=0) <= begin
        every = every & (tl.load(reach + 4 * tiles + 3, mask=there, other=0) >= end)
        shut = tl.minimum(shut, tl.min(tl.where(there & (every == 0), tiles, count)))
    return first, opened, tl.maximum(shut, opened), last


@triton.jit
def gradients_over_queries(
    k, values, dk, dv, begin, end, query, dout, scale, delta_of, shift_of, share_of, seen, query_ids, key_ids, columns,
    T, S, more,
    W: tl.constexpr, STEP: tl.constexpr, BLOCK_M: tl.constexpr, MODIFIED: tl.constexpr, MASKED: tl.constexpr,
    CARE: tl.constexpr,
):  # fmt: skip
    """Add tiles [begin, end) of queries to the gradients of a tile of keys and values: keys are rows."""
    for tile in range(begin, end):
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        there = rows < T
        q = load_rows(query, rows, T, W)
        do = load_rows(dout, rows, T, W)
        delta = tl.load(delta_of + rows, mask=there, other=0.0)
        shift = tl.load(shift_of + rows, mask=there, other=INF)
        share = tl.load(share_of + rows, mask=there, other=0.0)
        if CARE or STEP < W:
            s = products_in_steps(k, columns, S, query, rows, T, W, STEP, MODIFIED) * scale
            dp = products_in_steps(values, columns, S, dout, rows, T, W, STEP, MODIFIED)
        else:
            s, dp = products_with(k, q, MODIFIED) * scale, products_with(values, do, MODIFIED)
        if CARE:
            live = share > 0.0
            q, do = tl.where(live[:, None], q, 0.0).to(q.dtype), tl.where(live[:, None], do, 0.0).to(do.dtype)
            s, dp = tl.where(live[None, :], s, 0.0), tl.where(live[None, :], dp, 0.0)
        if MODIFIED:
            s, derivative = modified(s, rows, columns, T, S, more[0], True)
            dp = dropped(dp, rows, columns, more[2], True)
            if CARE:
                s = zero_unless_live(s, live[None, :])
            s = tl.where(allowed_pairs(seen, query_ids, key_ids, more[1], rows, columns, T, S, True, True), s, -INF)
        p = weights_of(s, shift[None, :], share[None, :])
        ds = p * (dp - delta[None, :])
        if MODIFIED:  # a bias may forbid, too
            sees = may_see(s, shift[None, :], CARE)
            p, ds = tl.where(sees, p, 0.0), tl.where(sees, ds * derivative, 0.0)
            p = dropped(p, rows, columns, more[2], True)
        elif MASKED:
            allowed = allowed_pairs(seen, query_ids, key_ids, more[1], rows, columns, T, S, True, False)
            p, ds = tl.where(allowed, p, 0.0), tl.where(allowed, ds, 0.0)
        dv = product(p.to(do.dtype), do, dv)
        dk = add_product(dk, ds, q)
    return dk, dv


@triton.jit
def gradients_of_keys(
    query, key, value, factors, seen, query_ids, key_ids, options, alibi, table, places, bias, bits, words,
    dout, delta_of, shift_of, share_of, reach, dkey, dvalue, marked,
    N, GROUP, T, S, seen_b, seen_n, ids_b,
    W: tl.constexpr, STEP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MODIFIED: tl.constexpr,
    CARE: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values, over the queries of its heads in their order."""
    tiles, count = tl.cdiv(S, BLOCK_N), tl.cdiv(T, BLOCK_M)
    tile, of_keys = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    b = of_keys * GROUP // N
    if CARE:  # noqa: SIM102 - a condition of Triton is either a constant or not
        if tl.load(marked + tl.program_id(0)) == 0:
            return
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    k, values = key + of_keys * S * W, value + of_keys * S * W
    if STEP == W and not CARE:
        k, values = load_rows(k, columns, S, W), load_rows(values, columns, S, W)
    scale = tl.load(factors)
    dk, dv = tl.zeros((BLOCK_N, W), tl.float32), tl.zeros((BLOCK_N, W), tl.float32)
    for head in range(of_keys * GROUP, of_keys * GROUP + GROUP):
        end = tl.minimum(tile * BLOCK_N + BLOCK_N, S)
        first, opened, shut, last = tiles_that_reach(reach + head * count * 4, count, tile * BLOCK_N, end)
        seen_of, more = seen + plane(b, head % N, N, seen_b, seen_n) * T * 4, (0, 0, 0)
        if MODIFIED:
            more = of_head(factors, options, alibi, table, places, bias, bits, words, b, head % N, N, T, S)
        rest = (query + head * T * W, dout + head * T * W, scale, delta_of + head * T, shift_of + head * T,
                share_of + head * T, seen_of, query_ids + b * ids_b * T, key_ids + b * ids_b * S, columns, T, S,
                more)  # fmt: skip
        own = dk, dv
        if CARE or MODIFIED:
            own = gradients_over_queries(k, values, *own, first, last, *rest, W, STEP, BLOCK_M, MODIFIED, True, CARE)
        else:
            own = gradients_over_queries(k, values, *own, first, opened, *rest, W, STEP, BLOCK_M, False, True, False)
            own = gradients_over_queries(k, values, *own, opened, shut, *rest, W, STEP, BLOCK_M, False, False, False)
            own = gradients_over_queries(k, values, *own, shut, last, *rest, W, STEP, BLOCK_M, False, True, False)
        dk, dv = own
    if not CARE:
        tl.store(marked + tl.program_id(0), tl.max((tl.sum(dk * 0.0, 1) + tl.sum(dv * 0.0, 1) != 0.0).to(tl.int8)))
    store_rows(dkey + of_keys * S * W, columns, S, dk * scale, W)
    store_rows(dvalue + of_keys * S * W, columns, S, dv, W)
