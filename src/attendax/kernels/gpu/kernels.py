"""Attention in Triton: the forward, and the gradients of query, key and value; how they are launched: ``launches.py``.

Arrays are dense: query (B, N, T, W), key (B, G, S, W), value (B, G, S, W). ``seen`` has four numbers for each query:
the keys [first, last) that it may see, and among them the keys [open, shut), all of which it does see. Of the others
it sees those that have its id. The scale is above 0.

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

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
INF = tl.constexpr(float("inf"))
EVERY = tl.constexpr(2**31 - 1)


@triton.jit
def is_finite(x):
    """Tell of each number whether it is finite."""
    return tl.abs(x.to(tl.float32)) < INF


@triton.jit
def finite_or_zero(x):
    """The numbers, with 0 in place of those that are not finite."""
    return tl.where(is_finite(x), x, 0.0).to(x.dtype)


@triton.jit
def product(one, other, acc):
    """``acc + one other``; of float32 by three products of TF32 (L8)."""
    return tl.dot(one, other, acc, input_precision="tf32x3")


@triton.jit
def products_with(one, other):
    """The product of each row of one array with each of another."""
    return tl.dot(one, tl.trans(other), input_precision="tf32x3")


@triton.jit
def load_rows(array, rows, count, WIDTH: tl.constexpr):
    """Rows of an array (count, WIDTH), and zeros behind the last."""
    at = rows.to(tl.int64)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.load(array + at, mask=(rows < count)[:, None], other=0.0)


@triton.jit
def store_rows(array, rows, count, x, WIDTH: tl.constexpr):
    """Write rows of an array (count, WIDTH); -0 becomes 0, as where a tile of nothing was added."""
    at = rows.to(tl.int64)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(array + at, (x + 0.0).to(array.dtype.element_ty), mask=(rows < count)[:, None])


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
def tiles_of_keys(first, last, opened, shut, S, BLOCK: tl.constexpr):
    """The keys [begin, end) that some query may see, from the first of a tile on; in [open, shut) each sees each."""
    begin = tl.min(tl.where(first < last, first, S)) // BLOCK * BLOCK
    end = tl.maximum(tl.max(tl.where(first < last, last, 0)), begin)
    opened = tl.minimum(tl.maximum(tl.cdiv(tl.max(opened), BLOCK) * BLOCK, begin), end)
    shut = tl.maximum(tl.minimum(tl.min(shut), end) // BLOCK * BLOCK, opened)
    return begin, opened, shut, end


@triton.jit
def allowed_pairs(seen, query_ids, key_ids, rows, columns, T, S):
    """Tell which queries see which keys. All is loaded anew for each tile: few are masked, and registers are few."""
    first, last, _, _ = load_seen(seen, rows, T)
    query_ids = tl.load(query_ids + rows, mask=rows < T, other=-2)
    key_ids = tl.load(key_ids + columns, mask=columns < S, other=-1)
    inside = (columns[None, :] >= first[:, None]) & (columns[None, :] < last[:, None])
    return inside & (query_ids[:, None] == key_ids[None, :])


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
    q, acc, row_sum, row_max, begin, end, key, value, scale, seen, query_ids, key_ids, rows, T, S,
    W: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr, CARE: tl.constexpr,
):  # fmt: skip
    """Add the keys [begin, end) to the sums of their weights and values: one tile after the other."""
    for at in range(begin, end, BLOCK_N):
        columns = at + tl.arange(0, BLOCK_N)
        k = load_rows(key, columns, S, W)
        values = load_rows(value, columns, S, W)
        s = products_with(q, k) * scale
        if CARE:
            bad_keys = (tl.sum(k.to(tl.float32) * 0.0, 1) + tl.sum(values.to(tl.float32) * 0.0, 1)) != 0.0
            bad_queries = tl.sum(q.to(tl.float32) * 0.0, 1) != 0.0
            s = tl.where(bad_keys[None, :] | bad_queries[:, None], float("nan"), s)
            values = finite_or_zero(values)
        if MASKED:
            s = tl.where(allowed_pairs(seen, query_ids, key_ids, rows, columns, T, S), s, -INF)
        above = tl.maximum(row_max, tl.max(s, 1))
        shift = tl.where(above == -INF, 0.0, above)
        p = tl.exp2((s - shift[:, None]) * LOG2E)
        shrink = tl.exp2((row_max - shift) * LOG2E)
        row_sum = row_sum * shrink + tl.sum(p, 1)
        acc = product(p.to(values.dtype), values, acc * shrink[:, None])
        row_max = above
    return acc, row_sum, row_max


@triton.jit
def forward(
    query, key, value, scale, seen, query_ids, key_ids, marked_keys, out, row_max_of, row_sum_of, lse, marked,
    N, GROUP, T, S, seen_b, ids_b,
    W: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CARE: tl.constexpr,
):  # fmt: skip
    """A tile of queries: average of values, row maximum, row sum and log-sum-exp."""
    tiles = tl.cdiv(T, BLOCK_M)
    tile, head = tiles - 1 - tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    b, of_keys = head // N, head // GROUP  # the longest rows of a causal mask begin first
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    seen += b * seen_b * T * 4
    first, last, opened, shut = load_seen(seen, rows, T)
    begin, opened, shut, end = tiles_of_keys(first, last, opened, shut, S, BLOCK_N)
    if CARE:
        met = tl.load(marked + tl.program_id(0)).to(tl.int32)
        marked_keys += of_keys * tl.cdiv(S, BLOCK_N)
        if tl.maximum(met, any_marked(marked_keys, begin // BLOCK_N, tl.cdiv(end, BLOCK_N))) == 0:
            return
    q = load_rows(query + head * T * W, rows, T, W)
    bad_query = tl.max(tl.max((is_finite(q) == 0).to(tl.int8), 1), 0)
    acc = tl.zeros((BLOCK_M, W), tl.float32)
    row_sum, row_max = tl.zeros((BLOCK_M,), tl.float32), tl.full((BLOCK_M,), -INF, tl.float32)
    rest = (key + of_keys * S * W, value + of_keys * S * W, tl.load(scale), seen, query_ids + b * ids_b * T,
            key_ids + b * ids_b * S, rows, T, S)  # fmt: skip
    if CARE:
        acc, row_sum, row_max = average_over(q, acc, row_sum, row_max, begin, end, *rest, W, BLOCK_N, True, True)
    else:
        acc, row_sum, row_max = average_over(q, acc, row_sum, row_max, begin, opened, *rest, W, BLOCK_N, True, False)
        acc, row_sum, row_max = average_over(q, acc, row_sum, row_max, opened, shut, *rest, W, BLOCK_N, False, False)
        acc, row_sum, row_max = average_over(q, acc, row_sum, row_max, shut, end, *rest, W, BLOCK_N, True, False)
        met = (tl.sum(acc * 0.0, 1) + row_sum * 0.0 != 0.0).to(tl.int8)
        tl.store(marked + tl.program_id(0), tl.maximum(tl.max(met), bad_query))
    total = tl.where(row_sum == 0.0, 1.0, row_sum)
    average = tl.where((row_sum == row_sum)[:, None], acc / total[:, None], float("nan"))
    store_rows(out + head * T * W, rows, T, average, W)
    at, there = head * T + rows, rows < T
    tl.store(row_max_of + at, row_max, mask=there)
    tl.store(row_sum_of + at, row_sum, mask=there)
    tl.store(lse + at, row_max + tl.log2(total) * LN2, mask=there)


@triton.jit
def prepare_rows(
    dout, dlse, out, row_max, row_sum, seen, delta_of, shift_of, share_of, reach, N, T, S, seen_b,
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
    first, last, opened, shut = load_seen(seen + (head // N) * seen_b * T * 4, rows, T)
    some = (first < last) & read
    reach += tl.program_id(0) * 4
    tl.store(reach, tl.min(tl.where(some, first, S)))
    tl.store(reach + 1, tl.max(tl.where(some, last, 0)))
    tl.store(reach + 2, tl.max(opened))
    tl.store(reach + 3, tl.min(shut))


@triton.jit
def weights_of(s, shift, share):
    """The weights of scores. By another product than that of the maximum, a score may be above it by a rounding."""
    return tl.exp2(tl.minimum(s - shift, 0.0, propagate_nan=tl.PropagateNan.ALL) * LOG2E) * share


@triton.jit
def add_product(acc, ds, x):
    """``acc + ds x``; gradients of scores may be beyond the range of float16, so there both are TF32."""
    if x.dtype == tl.float16:
        return tl.dot(ds, x.to(tl.float32), acc, input_precision="tf32")
    return product(ds.to(x.dtype), x, acc)


@triton.jit
def gradient_over_keys(
    q, do, acc, begin, end, key, value, scale, shift, share, delta, seen, query_ids, key_ids, rows, T, S,
    W: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr, CARE: tl.constexpr,
):  # fmt: skip
    """Add the keys [begin, end) to the gradient of a tile of queries."""
    for at in range(begin, end, BLOCK_N):
        columns = at + tl.arange(0, BLOCK_N)
        k = load_rows(key, columns, S, W)
        values = load_rows(value, columns, S, W)
        if CARE:
            k, values = finite_or_zero(k), finite_or_zero(values)
        p = weights_of(products_with(q, k) * scale, shift[:, None], share[:, None])
        ds = p * (products_with(do, values) - delta[:, None])
        if MASKED:
            ds = tl.where(allowed_pairs(seen, query_ids, key_ids, rows, columns, T, S), ds, 0.0)
        acc = add_product(acc, ds, k)
    return acc


@triton.jit
def gradient_of_query(
    query, key, value, scale, seen, query_ids, key_ids, dout, delta_of, shift_of, share_of, dquery, marked,
    N, GROUP, T, S, seen_b, ids_b,
    W: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CARE: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of queries."""
    tiles = tl.cdiv(T, BLOCK_M)
    tile, head = tiles - 1 - tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    b, of_keys = head // N, head // GROUP
    if CARE:  # noqa: SIM102 - a condition of Triton is either a constant or not
        if tl.load(marked + tl.program_id(0)) == 0:
            return
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    at, there = head * T + rows, rows < T
    q = load_rows(query + head * T * W, rows, T, W)
    do = load_rows(dout + head * T * W, rows, T, W)
    delta = tl.load(delta_of + at, mask=there, other=0.0)
    shift = tl.load(shift_of + at, mask=there, other=INF)
    share = tl.load(share_of + at, mask=there, other=0.0)
    seen += b * seen_b * T * 4
    first, last, opened, shut = load_seen(seen, rows, T)
    last = tl.where(shift == INF, first, last)  # of such a row nothing is wanted
    begin, opened, shut, end = tiles_of_keys(first, last, opened, shut, S, BLOCK_N)
    acc = tl.zeros((BLOCK_M, W), tl.float32)
    scale = tl.load(scale)
    rest = (key + of_keys * S * W, value + of_keys * S * W, scale, shift, share, delta, seen,
            query_ids + b * ids_b * T, key_ids + b * ids_b * S, rows, T, S)  # fmt: skip
    if CARE:
        live = share > 0.0
        q, do = tl.where(live[:, None], q, 0.0).to(q.dtype), tl.where(live[:, None], do, 0.0).to(do.dtype)
        acc = gradient_over_keys(q, do, acc, begin, end, *rest, W, BLOCK_N, True, True)
        acc = tl.where((share != share)[:, None], tl.where(first < last, float("nan"), 0.0)[:, None], acc)
    else:
        acc = gradient_over_keys(q, do, acc, begin, opened, *rest, W, BLOCK_N, True, False)
        acc = gradient_over_keys(q, do, acc, opened, shut, *rest, W, BLOCK_N, False, False)
        acc = gradient_over_keys(q, do, acc, shut, end, *rest, W, BLOCK_N, True, False)
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
    T, S,
    W: tl.constexpr, BLOCK_M: tl.constexpr, MASKED: tl.constexpr, CARE: tl.constexpr,
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
        if CARE:
            live = share > 0.0
            q, do = tl.where(live[:, None], q, 0.0).to(q.dtype), tl.where(live[:, None], do, 0.0).to(do.dtype)
        p = weights_of(products_with(k, q) * scale, shift[None, :], share[None, :])
        ds = p * (products_with(values, do) - delta[None, :])
        if MASKED:
            allowed = tl.trans(allowed_pairs(seen, query_ids, key_ids, rows, columns, T, S))
            p, ds = tl.where(allowed, p, 0.0), tl.where(allowed, ds, 0.0)
        dv = product(p.to(do.dtype), do, dv)
        dk = add_product(dk, ds, q)
    return dk, dv


@triton.jit
def gradients_of_keys(
    query, key, value, scale, seen, query_ids, key_ids, dout, delta_of, shift_of, share_of, reach, dkey, dvalue, marked,
    N, GROUP, T, S, seen_b, ids_b,
    W: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CARE: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values, over the queries of its heads in their order."""
    tiles, count = tl.cdiv(S, BLOCK_N), tl.cdiv(T, BLOCK_M)
    tile, of_keys = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    b = of_keys * GROUP // N
    if CARE:  # noqa: SIM102 - a condition of Triton is either a constant or not
        if tl.load(marked + tl.program_id(0)) == 0:
            return
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    k = load_rows(key + of_keys * S * W, columns, S, W)
    values = load_rows(value + of_keys * S * W, columns, S, W)
    if CARE:
        k, values = finite_or_zero(k), finite_or_zero(values)
    scale = tl.load(scale)
    dk, dv = tl.zeros((BLOCK_N, W), tl.float32), tl.zeros((BLOCK_N, W), tl.float32)
    for head in range(of_keys * GROUP, of_keys * GROUP + GROUP):
        end = tl.minimum(tile * BLOCK_N + BLOCK_N, S)
        first, opened, shut, last = tiles_that_reach(reach + head * count * 4, count, tile * BLOCK_N, end)
        rest = (query + head * T * W, dout + head * T * W, scale, delta_of + head * T, shift_of + head * T,
                share_of + head * T, seen + b * seen_b * T * 4, query_ids + b * ids_b * T, key_ids + b * ids_b * S,
                columns, T, S)  # fmt: skip
        if CARE:
            dk, dv = gradients_over_queries(k, values, dk, dv, first, last, *rest, W, BLOCK_M, True, True)
        else:
            dk, dv = gradients_over_queries(k, values, dk, dv, first, opened, *rest, W, BLOCK_M, True, False)
            dk, dv = gradients_over_queries(k, values, dk, dv, opened, shut, *rest, W, BLOCK_M, False, False)
            dk, dv = gradients_over_queries(k, values, dk, dv, shut, last, *rest, W, BLOCK_M, True, False)
    if not CARE:
        tl.store(marked + tl.program_id(0), tl.max((tl.sum(dk * 0.0, 1) + tl.sum(dv * 0.0, 1) != 0.0).to(tl.int8)))
    store_rows(dkey + of_keys * S * W, columns, S, dk * scale, W)
    store_rows(dvalue + of_keys * S * W, columns, S, dv, W)
