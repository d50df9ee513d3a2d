"""Finite differences, and the checker of gradients that stands on them: what is right passes, every mistake is told."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import attention, ops, spec
from attendax.conformance import assert_gradients, directional_difference

B, T, S, D, V = 2, 5, 7, 3, 11


@pytest.fixture
def arrays(rng):
    return [rng.normal(size=shape) for shape in ((B, T, D), (B, S, D), (B, S, V))]


class TestDirectionalDifference:
    @pytest.mark.parametrize("order", [2, 4, 6, 8])
    def test_is_exact_for_polynomials_of_its_order(self, order, rng):
        """And not for one degree more, where the error is of the order that it has its name from."""
        x, d = rng.normal(size=(2, 3))
        for degree in range(1, order + 1):
            got = directional_difference(lambda x, n=degree: x**n, [x], [d], step=0.5, order=order)
            np.testing.assert_allclose(got, degree * x ** (degree - 1) * d, rtol=1e-10, atol=1e-12)
        errors = []
        for step in (0.5, 0.25):
            got = directional_difference(lambda x: x ** (order + 1), [x], [d], step=step, order=order)
            errors.append(np.abs(got - (order + 1) * x**order * d))
        np.testing.assert_allclose(errors[0] / errors[1], 2**order, rtol=1e-3)

    def test_of_trees(self, rng):
        x, d, y, e = rng.normal(size=(4, 3))
        got = directional_difference(
            lambda a, b: {"sum": a["x"] + 3 * b, "product": (a["x"] * b,)}, [{"x": x}, y], [{"x": d}, e]
        )
        np.testing.assert_allclose(got["sum"], d + 3 * e, rtol=1e-11)
        np.testing.assert_allclose(got["product"][0], x * e + y * d, rtol=1e-11)

    def test_in_float64_whatever_is_given_and_set(self, rng):
        x, d = rng.normal(size=(2, 3)).astype(np.float32)
        with jax.enable_x64(False):
            got = directional_difference(jnp.sin, [x], [d])
        np.testing.assert_allclose(got, np.cos(np.float64(x)) * d, rtol=1e-11)

    def test_infinities_that_stay_do_not_move_and_nan_stays_nan(self):
        x, d = np.array([-np.inf, np.inf, np.nan, 1.0]), np.ones(4)
        np.testing.assert_array_equal(directional_difference(np.copy, [x], [d]).round(9), [0, 0, np.nan, 1])

    def test_an_unknown_order(self):
        with pytest.raises(KeyError):
            directional_difference(np.sin, [np.ones(2)], [np.ones(2)], order=3)


# --- What is right ---------------------------------------------------------------------------------------------------


def attend(Q, K, V):
    return spec.scaled_dot_product_attention(Q, K, V)[0]


def test_by_hand_and_by_jax(arrays):
    """By hand = autodiff = finite differences: of the specification, of its twin, and of both at once."""
    twin = jax.jit(lambda *arrays: ops.scaled_dot_product_attention(*arrays)[0])
    assert_gradients(attend, *arrays, backward=spec.scaled_dot_product_attention_backward)
    assert_gradients(twin, *arrays, backward=spec.scaled_dot_product_attention_backward, seed=3, directions=2)


def test_infinities_do_not_move(arrays):
    """A query without any key has an lse of -inf; its cotangent reaches nobody."""
    mask = np.arange(S) < np.arange(T)[:, None]
    assert_gradients(jax.jit(functools.partial(attention, mask=mask, return_lse=True)), *arrays)

    def backward(grad_output, *arrays):
        return spec.attention_backward(grad_output[0], *arrays, mask=mask, grad_lse=grad_output[1])

    assert_gradients(functools.partial(spec.attention, mask=mask, return_lse=True), *arrays, backward=backward)


class Params(NamedTuple):
    W: np.ndarray
    b: np.ndarray | None = None


def test_trees_and_what_does_not_move(rng):
    """Weights with a bias that is None, token ids, a random key, a number."""
    table, W = rng.normal(size=(11, 3)), rng.normal(size=(3, 5))

    def embed(params, ids, key, scale):
        noise = jax.random.normal(key, (1, 1, 5), np.float64)
        return {"out": scale * jnp.tanh(params["table"][ids] @ params["layer"].W) + noise}

    params = {"table": table, "layer": Params(W)}
    assert_gradients(jax.jit(embed), params, np.array([[1, 0, 7]]), jax.random.key(1), 0.5)

    def layer(params, x):
        return x @ params.W

    def backward(grad_output, params, x):
        return Params(x.T @ grad_output), grad_output @ params.W.T

    assert_gradients(layer, Params(W), table, backward=backward)
    assert_gradients(
        lambda params: layer(params, table), Params(W), backward=lambda g, params: backward(g, params, table)[0]
    )


@pytest.mark.smoke
def test_a_vjp_of_ones_own_without_a_jvp(rng):
    square = jax.custom_vjp(lambda x: x**2)
    square.defvjp(lambda x: (x**2, x), lambda x, g: (2 * x * g,))
    assert_gradients(square, rng.normal(size=3))
    square.defvjp(lambda x: (x**2, x), lambda x, g: (x * g,))
    with pytest.raises(AssertionError, match=r"by vjp: .* 0.5 times as large"):
        assert_gradients(square, rng.normal(size=3))


def test_large_and_small_numbers(arrays):
    """The tolerance follows the numbers: an error of a millionth is told at every size."""
    for size in (1e-6, 1e6):
        scaled = [*arrays[:2], size * arrays[2]]
        assert_gradients(attend, *scaled, backward=spec.scaled_dot_product_attention_backward)
        with pytest.raises(AssertionError, match="V by hand"):
            assert_gradients(attend, *scaled, backward=damaged(lambda q, k, v: (q, k, v * (1 + 1e-6))))


def test_arguments_are_the_callers_own(arrays):
    """They are neither changed nor made read-only; a backward that writes to what it is given is told so."""
    copies = [x.copy() for x in arrays]
    assert_gradients(attend, *arrays, backward=spec.scaled_dot_product_attention_backward)
    for x, copy in zip(arrays, copies, strict=True):
        assert x.flags.writeable
        np.testing.assert_array_equal(x, copy)

    def backward(grad_output, x):
        x *= 2
        return grad_output * x

    with pytest.raises(ValueError, match="read-only"):
        assert_gradients(lambda x: x**2, arrays[0], backward=backward)


# --- Mistakes, planted -----------------------------------------------------------------------------------------------


def damaged(change):
    return lambda *given: change(*spec.scaled_dot_product_attention_backward(*given)[:3])


def in_one_number(x, value):
    x = x.copy()
    x[1, 2, 1] = value
    return x


MISTAKES = {
    "a factor": (lambda q, k, v: (q, 2 * k, v), r"\n  K by hand: .* 2 times as large$"),
    "a sign": (lambda q, k, v: (-q, k, v), r"\n  Q by hand: .* -1 times as large$"),
    "a factor that is nearly 1": (lambda q, k, v: (q, k, v * (1 + 1e-8)), r"\n  V by hand: "),
    "two at once": (lambda q, k, v: (3 * q, k, v / 2), r"Q by hand: .* 3 times as large\n  V by hand: .* 0.5 times"),
    "NaN": (lambda q, k, v: (q, in_one_number(k, np.nan), v), r"\n  K by hand: nan, "),
    "infinity": (lambda q, k, v: (q, k, in_one_number(v, np.inf)), r"\n  V by hand: -?inf, "),
    "zero": (lambda q, k, v: (q, k, 0 * v), r"\n  V by hand: -?0, .* -?0 times as large$"),
    "zeros everywhere": (lambda q, k, v: (0 * q, 0 * k, 0 * v), r"\n  Q .*\n  K .*\n  V "),
    "one number": (lambda q, k, v: (in_one_number(q, 0.0), k, v), r"\n  Q by hand: "),
    "rows in another order": (lambda q, k, v: (q[:, ::-1], k, v), r"\n  Q by hand: "),
    "swapped": (lambda q, k, v: (k, q, v), r"Q by hand: the gradient is of shape \(2, 7, 3\), expected \(2, 5, 3\)$"),
    "summed over the batch": (lambda q, k, v: (q, k.sum(0), v), r"K by hand: the gradient is of shape \(7, 3\), expe"),
    "missing": (lambda q, k, v: (q, None, v), r"K by hand: the gradient is missing$"),
    "one too few": (lambda q, k, v: (q, k), r"2 gradients by hand of 3 arguments$"),
    "one too many": (lambda q, k, v: (q, k, v, v), r"4 gradients by hand of 3 arguments$"),
}  # fmt: skip


@pytest.mark.smoke
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("change", "words"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_by_hand_is_told(change, words, seed, arrays):
    assert_gradients(attend, *arrays, backward=damaged(lambda *grads: grads), seed=seed)
    with pytest.raises(AssertionError, match=words) as caught:
        assert_gradients(attend, *arrays, backward=damaged(change), seed=seed)
    assert str(caught.value).startswith("assert_gradients: attend")
    assert "\n" not in str(caught.value) or f"(seed {seed}, step 0.001)" in str(caught.value)


def test_a_missing_term_is_told(rng):
    """Of the softmax: the share of the other weights."""
    with pytest.raises(AssertionError, match="scores by hand"):
        assert_gradients(
            spec.attention_weights,
            rng.normal(size=(5, 7)),
            backward=lambda grad_output, scores: grad_output * spec.attention_weights(scores),
        )


def test_arguments_swapped_where_the_shapes_agree(arrays):
    query = arrays[0]
    with pytest.raises(AssertionError, match=r"Q by hand.*\n  K by hand"):
        assert_gradients(attend, query, 2 * query, query, backward=damaged(lambda q, k, v: (k, q, v)))


@pytest.mark.smoke
@pytest.mark.parametrize("direction", ["vjp", "jvp"])
def test_a_mistake_in_jax_is_told(direction, rng):
    """Only in one of the directions, beside a backward that is right."""

    factors = {"vjp": (2.0, 3.0), "jvp": (3.0, 2.0)}[direction]

    def move(t):
        forwards, backwards = (lambda _, t, factor=factor: factor * t for factor in factors)
        return jax.custom_derivatives.linear_call(forwards, backwards, (), t)

    @jax.custom_jvp
    def square(x):
        return jnp.square(x)

    square.defjvp(lambda x, t: (jnp.square(x[0]), x[0] * move(t[0])))
    with pytest.raises(AssertionError, match=rf"step 0.001\)\n  x by {direction}: .* 1.5 times as large$"):
        assert_gradients(square, rng.normal(size=3), backward=lambda grad_output, x: 2 * grad_output * x)


def test_a_stopped_gradient_is_told(rng):
    def stopped(x, y):
        return x * jax.lax.stop_gradient(y)

    with pytest.raises(AssertionError, match=r"y by vjp: 0, .*\n  y by jvp: 0, "):
        assert_gradients(stopped, *rng.normal(size=(2, 3)))


# --- What shows nothing, or cannot be shown --------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_function_that_does_not_move_shows_nothing(rng):
    with pytest.raises(AssertionError, match="moves along none of the directions"):
        assert_gradients(np.sign, 3 + rng.random(3), backward=lambda grad_output, x: 0 * x)
    with pytest.raises(AssertionError, match="moves along none"):
        assert_gradients(np.sin, np.ones(3), backward=lambda grad_output, x: np.cos(x) * grad_output, directions=0)
    assert_gradients(lambda x, y: x + np.sign(y), np.ones(3), np.ones(3), backward=lambda g, x, y: (g, 0 * y))


@pytest.mark.smoke
def test_a_kink_within_the_steps_is_told_and_a_shorter_step_avoids_it():
    def relu(x):
        return np.maximum(x, 0)

    def backward(grad_output, x):
        return grad_output * (x > 0)

    x = np.linspace(-3e-3, 3e-3, 30)
    with pytest.raises(AssertionError, match=r"order 8 and 6 are .* apart.* kink"):
        assert_gradients(relu, x, backward=backward)
    assert_gradients(relu, x, backward=backward, step=1e-6)


def relu(x):
    return np.maximum(x, 0)


class TestKinks:
    """At an exact 0 of a ReLU there is no one slope: the point has to be moved."""

    X = np.array([0.0, 1.0, -2.0, 0.0, 0.5])

    @pytest.mark.smoke
    @pytest.mark.parametrize("after", [lambda y: y, np.sin, lambda y: y.sum() * np.ones(2)])
    def test_a_kink_is_told_whatever_the_gradient_takes_there(self, after):
        for at_0 in (0.0, 1.0, 1.5):
            with pytest.raises(AssertionError, match="<lambda> is not smooth here: x is at a kink; move it"):
                assert_gradients(lambda x: after(relu(x)), self.X, backward=lambda g, x, c=at_0: c * np.ones(x.shape))

    def test_a_kink_of_jax_is_told(self):
        with pytest.raises(AssertionError, match="is at a kink"):
            assert_gradients(jax.nn.relu, jnp.asarray(self.X))
        assert_gradients(jax.nn.relu, jnp.asarray(self.X) + 0.1)

    @pytest.mark.smoke
    @pytest.mark.parametrize("fn", [np.sin, np.exp, np.cosh, lambda x: np.sin(30 * x), lambda x: 1 / (1 + x**4)])
    def test_a_wrong_gradient_of_a_smooth_function_is_no_kink(self, fn):
        for x in (self.X, np.zeros(3)):
            with pytest.raises(AssertionError, match=r"\n  x by hand: .*, by differences"):
                assert_gradients(fn, x, backward=lambda g, x: g + 1)

    @pytest.mark.parametrize("seed", range(3))
    def test_a_network_of_relu_at_random_points(self, rng, seed):
        x, shapes = rng.standard_normal((2, 3, 4)), ((4, 6), (6,), (6, 4), (4,))
        weights = [rng.standard_normal(shape) for shape in shapes]
        assert_gradients(spec.feed_forward, x, *weights, backward=spec.feed_forward_backward, step=1e-5, seed=seed)

        def wrong(*arrays):
            grad_x, *rest = spec.feed_forward_backward(*arrays)
            return 1.001 * grad_x, *rest

        with pytest.raises(AssertionError, match=r"\n  x by hand: .* 1.001 times as large"):
            assert_gradients(spec.feed_forward, x, *weights, backward=wrong, step=1e-5, seed=seed)

    def test_a_jump_is_told(self):
        with pytest.raises(AssertionError, match="a jump"):
            assert_gradients(lambda x: x + np.sign(x), self.X, backward=lambda g, x: g)


def test_less_precision_than_float64_is_told(rng):
    def rough(x):
        return jnp.sin(x.astype(np.float32))

    with pytest.raises(AssertionError, match="too little precision"):
        assert_gradients(rough, rng.normal(size=3))


@pytest.mark.smoke
def test_nan_in_the_result_is_told():
    with np.errstate(invalid="ignore"), pytest.raises(AssertionError, match="sqrt gives NaN"):
        assert_gradients(np.sqrt, np.array([1.0, -1.0]), backward=lambda grad_output, x: grad_output)


def test_tensors_of_torch_are_refused():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    words = r"assert_gradients: x got a torch.Tensor, expected JAX or NumPy arrays; .*torch.autograd.gradcheck"
    with pytest.raises(TypeError, match=words):
        assert_gradients(lambda x: torch.sin(x), torch.ones(3))


@pytest.mark.smoke
def test_nothing_to_differentiate():
    with pytest.raises(TypeError, match="given no floating array"):
        assert_gradients(jnp.sin, np.arange(3))
    with pytest.raises(TypeError, match="its backward is missing"):
        assert_gradients(np.sin, np.ones(3))
