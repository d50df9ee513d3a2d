"""Functions of a user: what they close over has its gradient (L13) and is read anew at every call (L17)."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import attention, masks, scores
from attendax.kernels import derivatives, primitives
from attendax.kernels.backends import BACKENDS
from compilation import kept

SHAPES = (2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4)


@pytest.fixture
def arrays(rng):
    return tuple(rng.normal(size=shape) for shape in SHAPES)


def closing_over(slope, arrays, **options):
    """A loss that the slope reaches only inside two functions."""
    modifier = scores.from_function(lambda s, at: s * slope - jnp.where(at[1] > at[2], slope**2, 0.0) * at[0])
    mask = masks.from_function(lambda i, j: j * slope < 4 + i)
    return (attention(*arrays, score_mod=modifier, mask=mask, **options) ** 2).sum()


def given(slope, arrays):
    """Attention with the slope handed over."""
    modifier = scores.from_function(lambda s, at, a: s * a - jnp.where(at[1] > at[2], a**2, 0.0) * at[0], slope)
    mask = masks.from_function(lambda i, j, a: j * a < 4 + i, slope)
    return (attention(*arrays, score_mod=modifier, mask=mask, implementation="dense") ** 2).sum()


SLOPES = np.array([0.7, 0.2, -0.4])


def scanned(function):
    return lambda slopes: jax.lax.scan(lambda carry, slope: (carry, function(slope)), 0, slopes)[1]


@pytest.mark.law("L13", "tiles")
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda f: lambda x: jnp.stack([f(s) for s in x]), id="eager"),
        pytest.param(lambda f: lambda x: jnp.stack([jax.jit(f)(s) for s in x]), id="jit"),
        pytest.param(lambda f: lambda x: jax.vmap(f)(x), id="vmap"),
        pytest.param(lambda f: jax.jit(scanned(f)), id="scan"),
        pytest.param(lambda f: jax.jit(jax.vmap(jax.checkpoint(f))), id="checkpoint"),
    ],
)
@pytest.mark.parametrize("derive", [lambda f: f, jax.grad, jax.jacfwd, jax.hessian], ids=["", "grad", "jvp", "hessian"])
def test_l13_what_a_function_closes_over_has_its_gradient(derive, wrap, arrays):
    got = wrap(derive(lambda slope: closing_over(slope, arrays)))(SLOPES)
    wanted = [derive(lambda slope: given(slope, arrays))(slope) for slope in SLOPES]
    np.testing.assert_allclose(got, wanted, rtol=1e-9)


@pytest.mark.law("L13", "tiles")
@pytest.mark.slow
def test_l13_a_function_that_closes_over_the_query(arrays):
    """A gate made of the query itself; nothing says so but the closure."""

    def loss(query, **options):
        gate = jnp.tanh(query).mean((0, 2, 3)).reshape(1, 3, 1, 1)
        modifier = scores.compose(scores.softcap(5.0), scores.from_function(lambda s, at: s * gate))
        return attention(query, *arrays[1:], score_mod=modifier, **options).sum()

    got, wanted = (jax.jit(jax.grad(lambda q, o=o: loss(q, **o)))(arrays[0]) for o in ({}, {"implementation": "dense"}))
    np.testing.assert_allclose(got, wanted, atol=1e-12)


@pytest.mark.slow
def test_a_nested_jit_may_close_over_a_tracer(arrays):
    def loss(slope, **options):
        bend = jax.jit(lambda s: s * slope)
        return attention(*arrays, score_mod=scores.from_function(lambda s, at: bend(s)), **options).sum()

    wanted = jax.grad(lambda slope: loss(slope, implementation="dense"))(0.3)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(0.3), wanted, rtol=1e-9)


class Gate:
    """A modifier with state."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, s, at):
        return s * self.factor


@pytest.mark.law("L17", "tiles")
def test_l17_state_is_read_anew(arrays):
    """A bound method, a NumPy table written to, a variable: the same object, other numbers."""
    table, gate = np.ones((5, 7), bool), Gate(2.0)
    mask = masks.from_function(lambda i, j: jnp.asarray(table)[i, j])
    modifier = scores.from_function(gate.__call__)
    for keep, factor in ((slice(None), 2.0), (slice(0, 3), -1.0)):
        table[:], gate.factor = False, factor
        table[:, keep] = True
        got = attention(*arrays, mask=mask, score_mod=modifier)
        wanted = attention(*arrays, mask=table, scale=factor / 2)
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


def traces(arrays, **options):
    """How often a call has to be compiled: JAX asks for the backend's forward only then."""
    backend, count = BACKENDS["blockwise"].functions, []
    original = backend.forward
    backend.forward = lambda *a: count.append(1) or original(*a)
    try:
        attention(*arrays, **options)
    finally:
        backend.forward = original
    return len(count)


def test_equal_functions_are_compiled_once(arrays):
    def options(table, factor):
        return {"score_mod": scores.from_function(lambda s, at: factor * s + jnp.asarray(table)[at[2]])}

    one, other = np.zeros(7), np.ones(7)
    attention(*arrays, **options(one, 3.0))
    assert traces(arrays, **options(one, 3.0)) == 0
    assert traces(arrays, **options(other, 3.0)) == 0
    assert traces(arrays, **options(one, -0.0)) == 0
    assert traces(arrays, score_mod=scores.from_function(lambda s, at: 3.0 - s)) > 0


def test_nothing_holds_on_to_what_a_function_closed_over(arrays):
    class Table(np.ndarray):
        """An array that can be watched."""

    watched = []
    for k in range(3):
        table = np.full(7, float(k)).view(Table)
        watched.append(weakref.ref(table))
        attention(*arrays, score_mod=scores.from_function(lambda s, at, t=table: s + jnp.asarray(np.asarray(t))[at[2]]))
        del table
    gc.collect()
    assert [ref() for ref in watched] == [None] * 3


def test_the_calls_that_stay_compiled_are_bounded(arrays, monkeypatch):
    assert kept(derivatives.forward_p).cache_info().maxsize == primitives.CACHED_PROGRAMS < 1000


@pytest.mark.law("L11", "tiles")
@pytest.mark.parametrize("sizes", [(0, 7), (5, 0)])
def test_l11_a_function_is_not_asked_where_there_is_no_pair(sizes, rng):
    query, key = (rng.normal(size=(2, n, 4)) for n in sizes)
    last = jnp.arange(sizes[0])
    mask = masks.from_function(lambda i, j, last: j <= last[i], last)
    assert attention(query, key, key, mask=mask).shape == query.shape


def test_a_random_key_beside_a_function(arrays):
    key = jax.random.key(3)
    modifier = scores.from_function(lambda s, at, key: s + jax.random.normal(jax.random.fold_in(key, 1)), key)
    np.testing.assert_allclose(attention(*arrays, score_mod=modifier), attention(*arrays), atol=1e-12)
