"""Rows of queries, keys and values in Triton: how they are loaded, stored and multiplied, and the weights of a row."""

import triton
import triton.language as tl

from attendax.kernels.gpu.pairs import INF, LOG2E, is_finite


@triton.jit
def finite_or_zero(x):
    """The numbers, with 0 in place of those that are not finite."""
    return tl.where(is_finite(x), x, 0.0).to(x.dtype)


@triton.jit
def zero_unless_live(s, live):
    """Modified scores, with 0 in rows that count for nothing or are NaN; except those that a bias of -inf forbids."""
    return tl.where(live | (s == -INF), s, 0.0)


@triton.jit
def product(one, other, acc):
    """``acc + one other``; of float32 by three products of TF32 (L8)."""
    return tl.dot(one, other, acc, input_precision="tf32x3")


@triton.jit
def products_with(one, other, MODIFIED: tl.constexpr):
    """The product of each row of one array with each of another.

    Beside modifiers float32 is multiplied without tensor cores: its parts in TF32 would need too many registers.
    """
    return tl.dot(one, tl.trans(other), input_precision="ieee" if MODIFIED else "tf32x3")


@triton.jit
def load_rows(array, rows, count, WIDTH: tl.constexpr):
    """Rows of an array (count, WIDTH), and zeros behind the last."""
    return load_steps(array, rows, count, WIDTH, WIDTH)


@triton.jit
def load_steps(array, rows, count, WIDTH: tl.constexpr, STEP: tl.constexpr):
    """The first STEP numbers of rows of an array (count, WIDTH), and zeros behind the last row."""
    at = rows.to(tl.int64)[:, None] * WIDTH + tl.arange(0, STEP)[None, :]
    return tl.load(array + at, mask=(rows < count)[:, None], other=0.0)


@triton.jit
def products_in_steps(
    one, rows, count, other, columns, other_count, W: tl.constexpr, STEP: tl.constexpr, MODIFIED: tl.constexpr
):
    """The product of each row of one array with each of another: STEP numbers of each row are loaded at a time."""
    s = tl.zeros((rows.shape[0], columns.shape[0]), tl.float32)
    for at in range(0, W, STEP):
        x, y = load_steps(one + at, rows, count, W, STEP), load_steps(other + at, columns, other_count, W, STEP)
        s += products_with(x, y, MODIFIED)
    return s


@triton.jit
def store_rows(array, rows, count, x, WIDTH: tl.constexpr):
    """Write rows of an array (count, WIDTH); -0 becomes 0, as where a tile of nothing was added."""
    at = rows.to(tl.int64)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(array + at, (x + 0.0).to(array.dtype.element_ty), mask=(rows < count)[:, None])


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
