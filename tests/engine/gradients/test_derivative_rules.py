"""Functions with a derivative of their own keep it in every program: in a loop, too, in a second derivative (L12).

If reverse mode goes through a loop, jax 0.10.2 drops the rule of a ``custom_jvp``, and differentiates its body.
"""

import pathlib
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import scores
from attendax.kernels.online_softmax import at_most_zero, parts_of_softmax
from attendax.kernels.rules import product
from attendax.kernels.score_modifiers import add_bias
from attendax.ops import in_pieces, norms, token_wise
from judges import assert_leaves_close

pytestmark = pytest.mark.law("L12", "ops", "tiles", "native")

RNG = np.random.default_rng(11)
X, OTHER = RNG.standard_normal((2, 3, 5)).astype(np.float32)
SPOILED = np.float32([[0], [np.inf], [0]])
LARGE = np.float32(3e38)
ROOT = pathlib.Path(attendax.__file__).parent


def attended(query, implementation, **options):
    arrays = query[:, None], jnp.asarray(OTHER)[:, None], jnp.asarray(X)[:, None] + 1
    return attendax.attention(*arrays, score_mod=scores.sink(jnp.arange(3.0)), implementation=implementation, **options)


def in_one_piece_or_many(x):
    many = jnp.concatenate([x] * 400)[:, None].repeat(3, 1)  # 1200 x 3 tokens: several pieces under jit
    return in_pieces.layer_in_pieces(
        lambda gain, x, mask: jnp.tanh(gain * x), (1200, 1, 3, 3), jnp.ones((1, 1, 5)), many, mask=None
    )


FUNCTIONS = {  # of x, with what is its own in the derivative
    "sink, native": (partial(attended, implementation="native"), X),
    "sink, in tiles": (partial(attended, implementation="blockwise"), X),
    "sink, dense": (partial(attended, implementation="dense"), X),
    "lse with a sink": (lambda x: attended(x, None, return_lse=True)[1], X),
    "scores at their maximum": (lambda x: jnp.exp(at_most_zero(x - jax.lax.stop_gradient(x.max(-1)[:, None]))), X),
    "scores above their maximum": (lambda x: jnp.exp(x * at_most_zero(x)), np.abs(X)),
    "parts of softmax": (lambda x: jnp.stack(jnp.broadcast_arrays(*parts_of_softmax(x * x))), X),
    "a bias beyond the range": (lambda x: add_bias(LARGE + x, LARGE + x * x), X),
    "product": (lambda x: product(x * x, jnp.asarray(OTHER), True), X),
    "product with what is not finite": (
        lambda x: jnp.where(np.isinf(SPOILED), 0, product(x * x + SPOILED, x, True)),
        X,
    ),
    "layer norm": (lambda x: norms._normalised(1e-6, x)[0], X),
    "gelu": (token_wise.ACTIVATIONS["gelu"], X),
    "gelu_tanh": (token_wise.ACTIVATIONS["gelu_tanh"], X),
    "silu": (token_wise.ACTIVATIONS["silu"], X),
    "a layer in pieces": (in_one_piece_or_many, X),
}
LOOPS = {
    "map": lambda f, x: jax.lax.map(f, x[None])[0],
    "scan": lambda f, x: jax.lax.scan(lambda carry, x: (carry + f(x), None), jnp.zeros_like(f(x)), x[None])[0],
    "fori": lambda f, x: jax.lax.fori_loop(0, 1, lambda i, both: (both[0], f(both[0])), (x, jnp.zeros_like(f(x))))[1],
}


def second(f, x):
    """The derivative along a direction of a gradient, forward over reverse, and reverse over reverse."""
    grad, along = jax.grad(lambda x: jnp.sum(jnp.sin(f(x)))), jnp.cos(x)
    return jax.jvp(grad, (x,), (along,))[1], jax.grad(lambda x: jnp.vdot(grad(x), along))(x)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_second_derivative_in_a_loop(name, loop):
    f, x = FUNCTIONS[name]
    if name == "sink, native" and attendax.kernels.backends.default() != "native":
        pytest.skip("the library is not there")
    wanted = jax.jit(partial(second, f))(x)
    assert np.isfinite(wanted).all()
    assert np.abs(wanted[0]).max() > 1e-3
    assert_leaves_close(jax.jit(partial(second, partial(LOOPS[loop], f)))(x), wanted, rtol=2e-4, atol=2e-5)


@pytest.mark.smoke
def test_no_other_function_has_a_rule_that_jax_may_drop():
    """Where body and rule differ, ``kernels.rules.with_rule`` is what keeps the rule."""
    files = [path for path in ROOT.rglob("*.py") if "conformance" not in path.relative_to(ROOT).parts]
    found = {path.name for path in files if re.search(r"jax\.custom_(jvp|vjp)(?!`)", path.read_text("utf-8"))}
    assert found == {"norms.py", "token_wise.py", "in_pieces.py"}  # test_activations.py holds the first two
