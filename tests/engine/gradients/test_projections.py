"""The product of tokens and a weight: every derivative is that of the plain product, and nothing is copied for them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import ops
from attendax.kernels.rules import product
from attendax.ops.projections import project
from judges import assert_leaves_close

HIGHEST = jax.lax.Precision.HIGHEST


def arrays(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes]


def plain(x, W):
    return jnp.matmul(x, W, precision=HIGHEST)


def close(one, other):
    assert_leaves_close(one, other, rtol=1e-5, atol=2e-5)


def grads(f):
    return jax.grad(lambda x, W: jnp.sum(jnp.sin(f(x, W))), (0, 1))


DIRECTIONS = {
    "forward": lambda f: f,
    "backward": grads,
    "backward by x": lambda f: jax.grad(lambda x, W: jnp.sum(jnp.sin(f(x, W)))),
    "jvp": lambda f: lambda x, W: jax.jvp(f, (x, W), (W.sum() * x, x.sum() * W)),
    "jvp by W": lambda f: lambda x, W: jax.jvp(lambda W: f(x, W), (W,), (W,)),
    "hvp": lambda f: lambda x, W: jax.jvp(grads(f), (x, W), (x, W)),
    "twice": lambda f: jax.grad(lambda x, W: sum(jnp.sum(g**2) for g in grads(f)(x, W)), (0, 1)),
    "thrice": lambda f: lambda x, W: jax.jvp(lambda W: jax.jvp(grads(f), (x, W), (x, W)), (W,), (W,)),
    "linear transpose by x": lambda f: lambda x, W: jax.linear_transpose(lambda x: f(x, W), x)(f(x, W)),
    "linear transpose by W": lambda f: lambda x, W: jax.linear_transpose(lambda W: f(x, W), W)(f(x, W)),
    "checkpoint": lambda f: grads(jax.checkpoint(f)),
}


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", DIRECTIONS)
@pytest.mark.parametrize("shape", [(2, 5, 3), (5, 3), (3,)], ids=str)
def test_every_derivative_is_that_of_the_plain_product(shape, name):
    x, W = arrays(shape, (3, 4))
    direction = DIRECTIONS[name]
    close(jax.jit(direction(project))(x, W), direction(plain)(x, W))
    close(direction(project)(x, W), direction(plain)(x, W))


@pytest.mark.smoke
@pytest.mark.sample(6)
@pytest.mark.parametrize("axes", [(0, None), (1, None), (None, 0), (None, 2), (0, 0), (2, 1)], ids=str)
@pytest.mark.parametrize("name", ["forward", "backward", "hvp"])
def test_a_batch_of_products(axes, name):
    shapes = [list((5, 3)), list((3, 4))]
    for shape, axis in zip(shapes, axes, strict=True):
        if axis is not None:
            shape.insert(axis, 6)
    x, W = arrays(*map(tuple, shapes))
    found, expected = (jax.jit(jax.vmap(DIRECTIONS[name](f), axes))(x, W) for f in (project, plain))
    close(found, expected)


def test_a_derivative_of_a_batch():
    x, W = arrays((6, 5, 3), (6, 3, 4))
    for axes, w in (((0, None), W[0]), ((0, 0), W)):
        found, expected = (jax.jit(grads(jax.vmap(f, axes)))(x, w) for f in (project, plain))
        close(found, expected)


@pytest.mark.parametrize(("in_x", "in_W"), [*itertools.product([0, np.nan, np.inf], repeat=2)])
def test_what_is_not_finite_counts_as_zero_where_asked(in_x, in_W):
    """As in ``rules.product``, in the first derivative and in the second, with a batch, with jit and without."""
    x, W = arrays((2, 5, 3), (3, 4))
    x, W = x.at[0, 1, 2].set(in_x), W.at[1, 3].set(in_W)
    dx, dW = arrays(x.shape, W.shape, seed=1)
    ours, theirs = (lambda x, W: project(x, W, only_finite=True)), (lambda x, W: product(x, W, False))

    def each(f):
        tangent = lambda x, W: jax.jvp(f, (x, W), (dx, dW))[1]  # noqa: E731
        backward = lambda x, W: jax.vjp(f, x, W)[1](jnp.ones((2, 5, 4), jnp.float32))  # noqa: E731
        return tangent, backward, lambda x, W: jax.jvp(tangent, (x, W), (dx, dW)), lambda x, W: f(x, W)

    for one, other in zip(each(ours), each(theirs), strict=True):
        close(jax.jit(one)(x, W), other(x, W))
        close(one(x, W), other(x, W))
    over_batch = [jax.vmap(f, (0, None)) for f in (ours, theirs)]
    close(*(jax.vjp(f, x, W)[1](jnp.ones((2, 5, 4), jnp.float32)) for f in over_batch))


def test_the_backward_copies_no_weight():
    """A condition would hand each weight on as a result, and XLA would copy it."""
    x, *weights = arrays((1, 8, 256), (256, 1024), (1024,), (1024, 256), (256,))
    loss = lambda *arrays: jnp.sum(ops.feed_forward(*arrays, activation="gelu"))  # noqa: E731
    compiled = jax.jit(jax.grad(loss, (0, 1, 2, 3, 4))).lower(x, *weights).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < weights[0].nbytes / 4


def test_the_gradient_of_a_weight_needs_no_copy_of_what_it_is_computed_from():
    """XLA would copy the gradient of the result, with its axes swapped, for the product that JAX derives."""
    x, W, dout = arrays((2, 64, 96), (96, 512), (2, 64, 512))
    compiled = jax.jit(lambda x, W, dout: jax.vjp(project, x, W)[1](dout)[1]).lower(x, W, dout).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < dout.nbytes / 4


@pytest.mark.smoke
@pytest.mark.sample(4)
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("network", [ops.feed_forward, ops.gated_feed_forward], ids=["plain", "gated"])
def test_the_backward_keeps_of_a_network_what_is_before_and_after_its_activation(network, activation):
    width = 128 * (1 + (network is ops.gated_feed_forward))
    given = arrays((4, 16, 8), (8, width), (width,), (128, 8), (8,))
    kept = jax.eval_shape(lambda *given: jax.vjp(lambda *x: network(*x, activation=activation), *given)[1], *given)
    sizes = [x.size for x in jax.tree.leaves(kept) if x.ndim == 3]
    assert sorted(sizes) == [4 * 16 * 8, 4 * 16 * 128, 4 * 16 * width]


def test_tools_of_jax_see_one_operation():
    from jax.experimental import checkify

    x, W = arrays((5, 3), (3, 4))
    checked = checkify.checkify(jax.jit(project), checkify.nan_checks)
    assert checked(x, W)[0].get() is None
    assert "nan" in checked(x.at[0, 0].set(jnp.nan), W)[0].get()
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        jax.jit(project)(x.at[0, 0].set(jnp.nan), W)


@pytest.mark.smoke
@pytest.mark.parametrize("name", ["forward", "backward", "hvp"])
def test_a_batch_along_an_explicit_axis_lies_as_that_of_the_plain_product(name):
    """A residual adds what lies alike: a product that forgot the axis of the batch had a gradient of another type."""
    x, W = arrays((2, 4, 5, 3), (3, 3))
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.P("data")))
        residual = (lambda x, W, f=f: x + f(x, W) for f in (project, plain))
        found, expected = (jax.jit(jax.vmap(DIRECTIONS[name](f), (0, None)))(x, W) for f in residual)
    close(found, expected)
    assert [jax.typeof(y).sharding.spec for y in jax.tree.leaves(found)] == [
        jax.typeof(y).sharding.spec for y in jax.tree.leaves(expected)
    ]


@pytest.mark.smoke
def test_taylor_mode_is_refused_in_words():
    from jax.experimental.jet import jet

    x, W = arrays((5, 3), (3, 4))
    with pytest.raises(NotImplementedError, match=r"^a layer: jax.experimental.jet"):
        jet(jax.jit(project), (x, W), ((x,), (W,)))
