"""A long call of the native kernel runs beside the thread that calls it, which hears Ctrl-C meanwhile."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import attention
from attendax.kernels import native

pytestmark = pytest.mark.skipif(not native.library().isa, reason=native.library().why_not or "there")
INLINE = 1000  # operations: what XLA:CPU runs on the calling thread is less


def operations(function, *arrays):
    """How many XLA counts in the compiled program."""
    return jax.jit(function).lower(*arrays).compile().cost_analysis().get("flops", 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_a_long_call_is_counted(dtype):
    x = jax.ShapeDtypeStruct((1, 4, 1024, 64), dtype)
    assert operations(lambda x: attention(x, x, x, implementation="native"), x) >= INLINE


def test_its_backward_is_counted_by_itself():
    x = jax.ShapeDtypeStruct((1, 4, 1024, 64), jnp.float32)

    def backward(dout, x):
        return jax.vjp(lambda x: attention(x, x, x, implementation="native"), x)[1](dout)

    assert operations(backward, x, x) >= INLINE


def test_a_short_call_is_not():
    x = jax.ShapeDtypeStruct((1, 2, 16, 8), jnp.float32)
    assert operations(lambda x: attention(x, x, x, implementation="native"), x) < INLINE


def test_a_long_call_has_the_bits_of_a_short_one(monkeypatch):
    x = np.random.default_rng(3).normal(size=(1, 4, 1024, 64)).astype(np.float32)
    x[0, 1, 2] = -0.0, *x[0, 1, 2, 1:]
    one = np.asarray(jax.jit(lambda x: attention(x, x, x, implementation="native"))(x))
    monkeypatch.setattr(native, "LONG", np.inf)
    other = np.asarray(jax.jit(lambda x: attention(x, x, x, implementation="native"))(x))
    assert one.tobytes() == other.tobytes()
