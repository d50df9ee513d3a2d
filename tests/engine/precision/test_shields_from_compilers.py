"""Shields from a compiler, each alone, on the smallest programs that were wrong (docs/xla-faults.md)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax.kernels.numerics import (
    fusion_barrier,
    in_memory,
    rows_finite,
    sums_of_products,
    times,
)
from attendax.ops.weighted_sum import matmul, matmul_transposed
from judges import assert_leaves_close

OPERANDS = {
    "ones": lambda s, shape: jnp.ones(shape),
    "a number": lambda s, shape: jnp.full(shape, s),
    "a column": lambda s, shape: jnp.broadcast_to(s * jnp.ones((shape[0], 1)), shape),
    "an argument repeated": lambda s, shape: jnp.broadcast_to(jnp.reshape(s, (1, 1)), shape),
}


def total_behind_a_barrier(x, y):
    return fusion_barrier(lambda x, y: times(x, y).sum(), x, y)


TOTALS = {
    "fusion_barrier": total_behind_a_barrier,
    "in memory": lambda x, y: times(in_memory(x), in_memory(y)).sum(),
    "matmul": lambda x, y: matmul(x, y).sum(),
    "matmul transposed": lambda x, y: matmul_transposed(x, y.swapaxes(-1, -2)).sum(),
}


@pytest.mark.law("L17", "ops", "tiles")
@pytest.mark.sample(4)
@pytest.mark.parametrize("total", TOTALS)
@pytest.mark.parametrize("operand", OPERANDS)
def test_l17_a_product_with_an_operand_that_is_known(operand, total):
    """Its sum, the sum of the squares of its gradient, and both as tangents."""
    known, total = OPERANDS[operand], TOTALS[total]
    x = np.random.default_rng(1).normal(size=(64, 2)).astype(np.float32)

    def value(x, s):
        return total(x, known(s, (2, 64)).astype(x.dtype))

    wanted = 64.0 * x.sum()
    np.testing.assert_allclose(jax.jit(value)(x, np.float32(1)), wanted, rtol=1e-5)
    move = jax.jit(lambda x, s: jax.jvp(value, (x, s), (x, s))[1])(x, np.float32(1))
    np.testing.assert_allclose(move, wanted if operand == "ones" else 2 * wanted, rtol=1e-5)
    grad = jax.jit(jax.grad(value))(x, np.float32(1))
    np.testing.assert_allclose(grad, np.full_like(x, 64), rtol=1e-6)

    def squares(y):
        return (jax.grad(lambda x: total(x, y))(x) ** 2).sum()

    np.testing.assert_allclose(jax.jit(squares)(np.ones((2, 64), np.float32)), 128 * 64.0**2, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(jax.grad(squares))(np.ones((2, 64), np.float32)), 2 * 64 * 64.0, rtol=1e-5)


def test_a_fusion_barrier_is_a_call_in_the_compiled_program():
    """A function that it calls in turn is inlined. Each derivative has a call of its own, too."""
    x = jnp.ones((4, 4))

    def total(x):
        return fusion_barrier(lambda x: jnp.where(x > 0, jnp.tanh(x) @ x, 0), x).sum()

    one = jax.jit(total).lower(x).compile().as_text()
    assert one.count(" call(") == 1
    move = jax.jit(lambda x: jax.jvp(total, (x,), (x,))[1]).lower(x).compile().as_text()
    assert move.count(" call(") == 1
    grad = jax.jit(jax.grad(total)).lower(x).compile().as_text()
    assert grad.count(" call(") == 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_what_is_in_memory_keeps_its_bits(dtype, rng):
    x = jnp.asarray(rng.normal(size=200) * 10.0 ** rng.integers(-4, 4, 200), dtype)
    x = jnp.concatenate(
        [x, jnp.array([0.0, -0.0, jnp.inf, -jnp.inf, jnp.finfo(dtype).max, jnp.finfo(dtype).tiny], dtype)]
    )
    assert np.asarray(jax.jit(in_memory)(x)).tobytes() == np.asarray(x).tobytes()
    assert np.isnan(jax.jit(in_memory)(jnp.full(5000, jnp.nan, dtype))).all()


@pytest.mark.law("L6", "ops", "tiles")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [3, 1000, 4096, 5000, 70000])
def test_l6_one_number_that_is_not_finite_is_found_at_every_size(size, dtype):
    """A maximum would drop it from 4,096 numbers on."""
    check = jax.jit(rows_finite)
    assert check(np.full(size, 100, dtype))
    for wild in (np.nan, np.inf, -np.inf):
        for place in (0, size // 2, size - 1):
            x = np.full(size, 100, dtype)
            x[place] = wild
            assert not check(x), (wild, place)


@pytest.mark.parametrize("lead", [(), (1,), (2, 1, 3)])
def test_sums_of_products_move_as_they_do(lead, rng):
    """In both modes, and twice; a number that is not finite spoils its own row only."""
    x, y, t = (rng.normal(size=(*lead, 5, 4)) for _ in range(3))
    np.testing.assert_allclose(jax.jit(sums_of_products)(x, y), (x * y).sum(-1, keepdims=True), rtol=1e-14)

    def cubes(function):
        return jax.jvp(jax.grad(lambda x: (function(x, y) ** 3).sum()), (x,), (t,))

    plain = cubes(lambda x, y: (x * y).sum(-1, keepdims=True))
    assert_leaves_close(cubes(sums_of_products), plain, rtol=1e-12)
    x[..., 2, 1] = np.nan
    assert np.isnan(jax.jit(sums_of_products)(x, y)).sum() == math.prod(lead)


@pytest.mark.law("L6", "ops", "tiles")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_l6_rows_that_are_finite(dtype, rng):
    """The largest numbers of a dtype are."""
    x = jnp.asarray(rng.normal(size=(1, 7, 300)), dtype).at[0, 1].set(jnp.finfo(dtype).max)
    for place, odd in ((2, jnp.nan), (4, jnp.inf), (5, -jnp.inf)):
        x = x.at[0, place, 7].set(odd)
    found = jax.jit(rows_finite)(x)
    assert found[0, :, 0].tolist() == [True, True, False, True, False, False, True]
