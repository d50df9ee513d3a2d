"""JAX's own tools see attention as they see one operation of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify, jet

from attendax import attention, masks, ops, scores

EMPTY = masks.padding(np.array([3, 0]))
ON = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "gradient": lambda f: jax.grad(lambda *arrays: (f(*arrays) ** 2).sum(), (0, 1, 2)),
    "gradient of a jit": lambda f: jax.grad(lambda *arrays: (jax.jit(f)(*arrays) ** 2).sum(), (0, 1, 2)),
    "jvp": lambda f: lambda *arrays: jax.jvp(f, arrays, arrays),
    "vmap": lambda f: lambda q, *rest: jax.vmap(f, (None, 0, 0))(q, *(x[None] for x in rest)),
}


@pytest.fixture
def arrays(rng):
    return tuple(jnp.asarray(rng.normal(size=(2, 3, 5, 7))) for _ in range(3))


def with_number(arrays, number):
    """The arrays, with a number that is not finite in the first key, which all see but the entry without keys."""
    query, key, value = arrays
    return query, key.at[0, 0, 0, 0].set(number), value


@pytest.mark.smoke
@pytest.mark.sample(6)
@pytest.mark.parametrize("implementation", [None, "dense"])
@pytest.mark.parametrize("mask", [None, EMPTY], ids=["open", "an entry without keys"])
@pytest.mark.parametrize("on", ON)
def test_a_nan_raises_as_in_jax(on, mask, implementation, arrays):
    run = ON[on](lambda *arrays: attention(*arrays, mask=mask, implementation=implementation))
    bad = with_number(arrays, jnp.nan)
    with jax.debug_nans(True), jax.debug_infs(True):
        run(*arrays)
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        run(*bad)


@pytest.mark.parametrize("on", ["eager", "gradient", "jvp"])
def test_an_infinity_raises_as_in_jax(on, arrays):
    bad = with_number(arrays, jnp.inf)
    with jax.debug_infs(True), pytest.raises(FloatingPointError, match="inf"):
        ON[on](attention)(*bad)


@pytest.mark.smoke
def test_what_is_masked_does_not_raise(arrays):
    query, key, value = arrays
    key = key.at[:, :, 3:].set(jnp.nan)
    with jax.debug_nans(True):
        jax.grad(lambda q: attention(q, key, value, mask=EMPTY).sum())(query)


def test_additive_attention_raises_for_a_nan_alone(rng):
    shapes = (2, 5, 3), (2, 4, 3), (2, 4, 3), (3, 6), (3, 6), (6,)
    given = [jnp.asarray(rng.normal(size=shape)) for shape in shapes]
    with jax.debug_nans(True):
        ops.additive_attention(*given)


def divides(query, key, value):
    return attention(query, key, value, score_mod=scores.from_function(lambda s, at: s / (at[1] - at[2])))


@pytest.mark.sample(2)
@pytest.mark.parametrize("on", ["eager", "jit", "gradient", "jvp", "vmap"])
def test_checkify_sees_inside(on, arrays):
    def found(f, arrays, errors):
        error, _ = checkify.checkify(ON[on](f), errors)(*arrays)
        return error.get() or ""

    masked = lambda *arrays: attention(*arrays, mask=EMPTY)  # noqa: E731
    assert found(masked, arrays, checkify.all_checks) == ""
    assert "nan" in found(masked, with_number(arrays, jnp.nan), checkify.nan_checks)
    assert "division by zero" in found(divides, arrays, checkify.div_checks)
    assert "division by zero" in found(divides, arrays, checkify.float_checks)


def test_the_gradient_through_checkify(arrays):
    def loss(query):
        checked = checkify.checkify(lambda q: attention(q, *arrays[1:], mask=EMPTY), checkify.float_checks)
        return (checked(query)[1] ** 2).sum()

    wanted = jax.grad(lambda q: (attention(q, *arrays[1:], mask=EMPTY) ** 2).sum())(arrays[0])
    np.testing.assert_allclose(jax.grad(loss)(arrays[0]), wanted, atol=1e-12)


def assert_transpose(f, x, rng):
    """⟨c, f(x)⟩ = ⟨fᵀ(c), x⟩."""
    y = f(x)
    c = jax.tree.map(lambda y: jnp.asarray(rng.normal(size=y.shape)), y)
    (turned,) = jax.linear_transpose(f, x)(c)
    one, other = (
        sum(jnp.vdot(*pair) for pair in zip(*map(jax.tree.leaves, trees), strict=True))
        for trees in ((c, y), (turned, x))
    )
    np.testing.assert_allclose(one, other, rtol=1e-10)


@pytest.mark.sample(2)
@pytest.mark.parametrize("by", ["value", "forward: s", "forward: t", "reverse: c", "reverse: t"])
def test_linear_transpose(by, arrays, rng):
    """By the value, and by each argument in which a second derivative is linear."""
    query, key, value = arrays
    s, t = (tuple(jnp.asarray(rng.normal(size=x.shape)) for x in arrays) for _ in range(2))

    def attend(*arrays):
        return attention(*arrays, mask=EMPTY, score_mod=scores.softcap(3.0))

    def forward(s, t):
        return jax.jvp(lambda *x: jax.jvp(attend, x, s)[1], arrays, t)[1]

    def reverse(c, t):
        return jax.jvp(lambda *x: jax.vjp(attend, *x)[1](c), arrays, t)[1]

    function, x = {
        "value": (lambda value: attend(query, key, value), value),
        "forward: s": (lambda s: forward(s, t), s),
        "forward: t": (lambda t: forward(s, t), t),
        "reverse: c": (lambda c: reverse(c, t), s[0]),
        "reverse: t": (lambda t: reverse(s[0], t), t),
    }[by]
    assert_transpose(function if by == "value" else jax.jit(function), x, rng)


@pytest.mark.smoke
def test_linear_transpose_is_by_value(arrays):
    query, key, value = arrays
    with pytest.raises(NotImplementedError, match=r"attention: linear_transpose works by value"):
        jax.linear_transpose(lambda query: attention(query, key, value, mask=EMPTY), query)(query)


def test_jet_says_that_it_is_not_there(arrays):
    for function in (attention, jax.jit(attention)):
        with pytest.raises(NotImplementedError, match=r"attention: jax.experimental.jet .* is not supported"):
            jet.jet(function, arrays, tuple((x,) for x in arrays))


@pytest.mark.smoke
@pytest.mark.parametrize("implementation", ["native", "blockwise"])
@pytest.mark.parametrize("symbolic", ["T", "S"])
def test_tiles_of_symbolic_lengths_are_refused_in_words(symbolic, implementation):
    (size,) = jax.export.symbolic_shape("n")
    T, S = (size, 5) if symbolic == "T" else (5, size)
    given = [jax.ShapeDtypeStruct((2, x, 4), jnp.float32) for x in (T, S, S)]
    with pytest.raises(NotImplementedError, match=r"here T or S is symbolic .*\n.*all T x S scores are one tile"):
        jax.export.export(jax.jit(lambda *a: attention(*a, implementation=implementation)))(*given)


NEW = {
    "scale": lambda k: {"scale": 0.5 + k},
    "modifier": lambda k: {"score_mod": scores.from_function(lambda s, at: jnp.where(at[1] > at[2] + k, s, -0.1 * k))},
    "mask": lambda k: {"mask": masks.from_function(lambda i, j: j <= i + k)},
}


@pytest.mark.parametrize("new", NEW)
def test_new_numbers_in_eager_calls_need_no_new_program(new, arrays):
    names, counts = [], []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: names.append(name))
    gradient = jax.grad(lambda q, **options: attention(q, *arrays[1:], **options).sum())
    for k in range(6):
        got = gradient(arrays[0], **NEW[new](k))
        counts.append(sum("backend_compile" in name for name in names))
    assert counts[0] > 0
    assert counts[1] == counts[-1], counts
    wanted = jax.jit(lambda q: gradient(q, **NEW[new](5)))(arrays[0])
    np.testing.assert_allclose(got, wanted, atol=1e-12)
