"""Activations and layer norm in every order of differentiation: their slopes are written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import ops
from attendax.ops.token_wise import ACTIVATIONS
from compilation import temporaries

THEIRS = {
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": jax.nn.gelu,
    "silu": jax.nn.silu,
}


@pytest.mark.law("L12", "ops")
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_three_derivatives(name):
    x = jnp.concatenate([jnp.linspace(-8, 8, 65), jnp.array([-40.0, -1e-8, 1e-8, 0.3, 40.0])])
    x = x[x != 0]  # where relu has no slope
    ours, theirs = ACTIVATIONS[name], THEIRS[name]
    for order in range(4):
        got, wanted = (jax.vmap(f)(x) for f in (ours, theirs))
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-11, err_msg=f"derivative {order}")
        ours, theirs = (jax.grad(f) if order % 2 else jax.jacfwd(f) for f in (ours, theirs))


@pytest.mark.law("L16", "ops")
@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "relu"])
def test_l16_the_backward_of_a_network_keeps_two_arrays(name):
    """The result of the activation and its slope."""

    def memory(x, W1, b1, W2, b2, cotangent):
        _, pull = jax.vjp(lambda *arrays: ops.feed_forward(*arrays, activation=name), x, W1, b1, W2, b2)
        return pull(cotangent)

    shapes = (1, 256, 64), (64, 4096), (4096,), (4096, 64), (64,), (1, 256, 64)
    assert temporaries(memory, *shapes) < 5 * 4 * 256 * 4096  # with what the gradient itself needs; 7 and more before


@pytest.mark.law("L12", "ops")
def test_two_derivatives_of_layer_norm():
    rng = np.random.default_rng(0)
    x, gamma, beta, tangent = (jnp.asarray(rng.standard_normal(shape)) for shape in ((3, 7), (7,), (7,), (3, 7)))

    x = x.at[1].set(0)  # a row without a spread

    def formula(x, gamma, beta):
        centred = x - x.mean(-1, keepdims=True)
        return gamma[None] * centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) + beta[None]

    def second(f):
        loss = lambda x, gamma, beta: jnp.sin(f(x, gamma, beta)).sum()  # noqa: E731
        grads = jax.grad(loss, (0, 1, 2))
        return grads(x, gamma, beta), jax.jvp(lambda x: grads(x, gamma, beta), (x,), (tangent,))[1]

    got, wanted = second(lambda *arrays: ops.layer_norm(*arrays, eps=1e-3)), second(formula)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), got, wanted)
