"""Attention inside other programs: inside ``shard_map``, batched over some arguments or over nothing."""

import jax
import numpy as np
import pytest

from attendax import attention, masks, spec
from compilation import temporaries
from processes import in_a_process


def float32(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


SHARDED = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P
from attendax import attention, masks, ops

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
arrays = [jax.random.normal(jax.random.key(k), (4, 2, 40, 8)) for k in range(3)]
block = ops.init_encoder_block(jax.random.key(3), d_model=16, num_heads=2)
x = jax.random.normal(jax.random.key(4), (4, 10, 16))

def attend(query, key, value):
    return attention(query, key, value, mask=masks.causal())

def layer(block, x):
    return ops.encoder_block(x, block, num_heads=2)

data = P("data")
for function, given, specs in ((attend, arrays, (data,) * 3), (attend, [arrays[0], *(a[:1] for a in arrays[1:])],
                               (data, P(), P())), (layer, (block, x), (P(), data))):
    sharded = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=data)
    plain = function
    if specs[1] == P():  # every device has the same keys
        plain = lambda q, k, v: attend(q, *(jnp.broadcast_to(a, (4, *a.shape[1:])) for a in (k, v)))

    def gradients_and_move(f):
        gradients = jax.grad(lambda *a: (f(*a) ** 2).sum(), tuple(range(len(given))))
        return lambda *a: (gradients(*a), jax.jvp(f, a, a)[1])

    wanted = jax.tree.leaves(jax.jit(gradients_and_move(plain))(*given))
    for run in (lambda f: f, jax.jit):
        for a, b in zip(jax.tree.leaves(run(gradients_and_move(sharded))(*given)), wanted, strict=True):
            assert jnp.abs(a - b).max() <= 1e-5 * jnp.abs(b).max(), (function, jnp.abs(a - b).max())
print("right")
"""


@pytest.mark.slow
def test_the_gradient_through_shard_map_with_its_defaults():
    """On four CPU devices: attention, keys that all devices share, an encoder block; eager and under jit."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    assert in_a_process(SHARDED, **flags) == ["right"]


@pytest.mark.smoke
@pytest.mark.law("L12", "native")
def test_vmap_over_an_axis_of_nothing(rng):
    arrays = [np.zeros((0, 2, 5, 4)), np.zeros((0, 2, 7, 4)), np.zeros((0, 2, 7, 3))]

    def loss(*arrays):
        return jax.vmap(lambda *one: attention(*one, mask=masks.causal()))(*arrays).sum()

    assert jax.vmap(attention)(*arrays).shape == (0, 2, 5, 3)
    assert [g.shape for g in jax.grad(loss, (0, 1, 2))(*arrays)] == [a.shape for a in arrays]
    assert jax.jvp(loss, arrays, arrays)[1] == 0


@pytest.mark.law("L16", "tiles")
@pytest.mark.slow
def test_l16_reverse_over_reverse_keeps_no_tile():
    """Its memory at S = 2,048 is at most twice that at 1,024, and less than two arrays of S x S."""

    def slope(query, key, value):
        grads = jax.grad(lambda *arrays: (attention(*arrays) ** 2).sum(), (0, 1, 2))(query, key, value)
        return sum((g**2).sum() for g in grads)

    small, large = (temporaries(jax.grad(slope), *[(1, size, 64)] * 3) for size in (1024, 2048))
    assert large < 2 * small
    assert large < 2 * 4 * 2048**2


@pytest.mark.law("L7", "native")
@pytest.mark.parametrize("size", [40, 600], ids=["one tile", "tiles"])
@pytest.mark.parametrize("value", [1.2e-38, 1e-37, 3.4e38 / 600])
def test_l7_values_at_both_ends_of_the_range(value, size, rng):
    """The average of equal values below max / S is that value, to rounding: nothing overflows, nothing is flushed."""
    query, key = (float32(rng, 2, size, 8) for _ in range(2))
    values = np.full((2, size, 3), value, np.float32)
    got = attention(0 * query, key, values)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(np.asarray(got, float), value, rtol=1e-5)


@pytest.mark.law("L8", "tiles")
@pytest.mark.slow
def test_l8_a_common_part_of_the_keys_leaves_the_gradient_its_digits(rng):
    """Keys of mean 30, shared by a batch: at most twice the error of the dense formula, and some last places."""
    query, value = float32(rng, 3, 12, 33, 32), 30 + float32(rng, 3, 12, 12, 3)
    key = 30 + float32(rng, 12, 12, 32)

    def gradient(query, key, **options):
        loss = lambda q: (jax.vmap(lambda *a: attention(*a, **options), (0, None, 0))(q, key, value) ** 2).sum()  # noqa: E731
        return np.asarray(jax.jit(jax.grad(loss))(query), float)

    blockwise, dense = (gradient(query, key, implementation=name, scale=-0.7) for name in ("blockwise", "dense"))
    full = [np.asarray(x, float) for x in (query, np.stack([key] * 3), value)]
    out = spec.attention(*full, scale=-0.7)
    exact = spec.attention_backward(2 * out, *full, scale=-0.7)[0]
    largest = np.abs(exact).max()
    assert np.abs(blockwise - exact).max() <= 2 * np.abs(dense - exact).max() + 8 * np.finfo(np.float32).eps * largest


@pytest.mark.law("L12", "native")
def test_a_hessian_vector_product_of_a_short_text_has_as_many_kernels_as_that_of_jax_nn(rng):
    """Where one tile has all keys of a row, second derivatives need no results, and no scores twice."""
    arrays = tuple(float32(rng, 1, 2, 16, 8) for _ in range(3))
    cotangent, *directions = (float32(rng, 1, 2, 16, 8) for _ in range(4))

    def by_jax_nn(*arrays):
        swapped = (x.swapaxes(1, 2) for x in arrays)
        return jax.nn.dot_product_attention(*swapped).swapaxes(1, 2)

    def kernels(attend):
        gradients = jax.grad(lambda *arrays: (attend(*arrays) * cotangent).sum(), (0, 1, 2))
        compiled = jax.jit(lambda *arrays: jax.jvp(gradients, arrays, tuple(directions))[1]).lower(*arrays).compile()
        return sum(compiled.as_text().count(f" {kind}(") for kind in ("fusion", "custom-call"))

    assert kernels(attention) <= kernels(by_jax_nn) + 1


@pytest.mark.parametrize("size", [16, 4096])
def test_a_derivative_that_is_computed_anew_runs_no_forward_of_the_library(size, rng):
    """Of one tile and of several: the results that it is given are not read, so nothing computes them."""
    arrays = tuple(float32(rng, 1, 1, size, 8) for _ in range(3))

    def gradients(*arrays):
        return jax.grad(lambda *arrays: (attention(*arrays) * 2).sum(), (0, 1, 2))(*arrays)

    hvp = jax.jit(lambda *arrays: jax.jvp(gradients, arrays, arrays)[1])
    assert "attendax_forward" not in hvp.lower(*arrays).compile().as_text()
