"""L6, L7, L13: gradients where an array holds NaN, an infinity or the largest number, against those by hand.

A number that a query may look at counts as NaN, also where the formula would hide it: an infinite key whose score is
-inf, or under a softcap. A key that a bias of -inf forbids does not count, however large it is.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import masks, scores, spec
from judges import assert_leaves_close

N, T, S, D = 1, 3, 4, 2
FORBIDS = np.zeros((1, 1, S), np.float32)
FORBIDS[..., 1] = -np.inf
ZEROS = np.zeros((1, T, S), np.float32)
TABLE = np.array([[0.5, -0.25, -np.inf, 0.1, 0.3, -0.7, 0.2]], np.float32)  # relative positions -3 to 3


def arrays():
    rng = np.random.default_rng(5)
    shapes = {"query": (N, T, D), "key": (N, S, D), "value": (N, S, D)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


CASES = {  # what is written where, and the options
    "key -inf": ("key", (0, 1), [-np.inf, 0], {"bias": ZEROS}),
    "key -inf, small": ("key", (0, 1), [-np.inf, 0], {}),
    "softcap, key inf": ("key", (0, 1), [np.inf, 0], {"score_mod": scores.softcap(2.0)}),
    "softcap, query inf": ("query", (0, 1), [np.inf, 0], {"score_mod": scores.softcap(2.0)}),
    "key forbidden by a bias": ("key", (0, 1), 3e38, {"bias": FORBIDS}),
    "value forbidden by a bias": ("value", (0, 1), 3e38, {"bias": FORBIDS}),
    "value forbidden by a mask": (
        "value",
        (0, 1),
        3e38,
        {"mask": np.isfinite(FORBIDS), "bias": ZEROS},
    ),
    "NaN under a window": ("key", (0, 3), np.nan, {"mask": masks.window(1, 1), "bias": ZEROS}),
    "a table with -inf": ("value", (0, 0), 1.0, {"score_mod": scores.relative_bias(TABLE)}),
    "a table with -inf and a bias": (
        "value",
        (0, 0),
        1.0,
        {"score_mod": scores.relative_bias(TABLE), "bias": ZEROS},
    ),
}


@pytest.mark.law("L6", "ops")
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_by_hand(name):
    place, index, number, options = CASES[name]
    given = arrays()
    if name.startswith("key -inf"):
        given["query"] = abs(given["query"])  # its score is -inf
    given[place][index] = number
    dout = 1 + 4 * np.random.default_rng(6).random((N, T, D), np.float32)

    def attend(*arrays):
        return attendax.attention(*arrays, **options)

    out, pull = jax.vjp(attend, *given.values())
    np.testing.assert_allclose(out, spec.attention(**given, **options), rtol=1e-5, atol=1e-6)
    wanted = spec.attention_backward(dout, **given, **options)[:3]
    for got, right, which in zip(pull(jnp.asarray(dout)), wanted, given, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=2e-6, err_msg=which)


@pytest.mark.law("L6", "ops", "tiles", "native")
@pytest.mark.parametrize("implementation", [None, "blockwise", "dense"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_l6_a_query_that_nothing_depends_on_adds_nothing_to_the_gradient_of_a_scale(number, implementation):
    """The last query sees no key, or no loss reads it; where one does, the gradient is NaN."""
    clean, hidden = arrays(), arrays()
    hidden["query"][:, -1, 0] = number

    def gradients(given, mask, rows):
        def loss(scale):
            out = attendax.attention(**given, mask=mask, scale=scale, implementation=implementation)
            return (out[:, :rows] ** 2).sum()

        return jax.grad(loss)(jnp.float32(0.4)), jax.hessian(loss)(jnp.float32(0.4))

    for mask, rows in ((masks.padding(S, T - 1), T), (None, T - 1)):
        wanted = gradients(clean, mask, rows)
        assert np.isfinite(wanted).all()
        np.testing.assert_array_equal(gradients(hidden, mask, rows), wanted)
    assert np.isnan(gradients(hidden, None, T)).all()


@pytest.mark.slow
@pytest.mark.parametrize("closed_over", [False, True])
def test_infinity_is_a_parameter_like_any_other(closed_over):
    """No cap for the first head: its gradients are those of plain attention, and its cap has the gradient 0."""
    rng = np.random.default_rng(7)
    query, key, value = (jnp.asarray(rng.normal(size=(2, n, D)), jnp.float32) for n in (T, S, S))
    caps = jnp.array([jnp.inf, 0.5])

    def modifier(caps):
        if closed_over:
            return scores.from_function(lambda score, at: jnp.minimum(score, caps[at[0]]))
        return scores.from_function(lambda score, at, caps: jnp.minimum(score, caps[at[0]]), caps)

    def loss(query, key, value, caps):
        return jnp.sin(attendax.attention(query, key, value, score_mod=modifier(caps))).sum()

    def plain(query, key, value, caps):
        s = jnp.minimum(query @ key.swapaxes(-1, -2) / np.sqrt(D), caps[:, None, None])
        return jnp.sin(jax.nn.softmax(s) @ value).sum()

    for f in (jax.grad, jax.jacfwd):
        got, wanted = (f(g, (0, 1, 2, 3))(query, key, value, caps) for g in (loss, plain))
        assert_leaves_close(got, wanted, atol=1e-5)


@pytest.mark.slow
def test_a_random_key_of_a_modifier_needs_no_gradient():
    modifier = scores.from_function(lambda score, at, key: score + jax.random.uniform(key, ()), jax.random.key(0))
    query, key, value = (jnp.asarray(x) for x in arrays().values())
    got = jax.grad(lambda q: (attendax.attention(q, key, value, score_mod=modifier) ** 2).sum())(query)
    wanted = jax.grad(lambda q: (attendax.attention(q, key, value) ** 2).sum())(query)
    np.testing.assert_allclose(got, wanted, atol=1e-5)  # the same number for every score


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"bias": np.ones((1, T, S), np.float32)}], ids=["plain", "bias"])
@pytest.mark.parametrize(
    "second", [jax.hessian, lambda f: jax.jacrev(jax.jacrev(f)), lambda f: jax.jacfwd(jax.jacfwd(f))]
)
def test_vmap_of_a_hessian(second, options):
    given = arrays()
    queries = jnp.stack([given["query"], -given["query"]])

    def loss(query):
        return jnp.sin(attendax.attention(query, given["key"], given["value"], **options)).sum()

    got = jax.vmap(second(loss))(queries)
    for one, query in zip(got, queries, strict=True):
        np.testing.assert_allclose(one, second(loss)(query), atol=1e-5)
    along = jnp.ones_like(queries[0])
    moved = jax.vmap(lambda q: jax.jvp(jax.grad(loss), (q,), (along,))[1])(queries)
    np.testing.assert_allclose(moved, np.tensordot(got, along, 3), atol=1e-5)


@pytest.mark.law("L6", "ops", "tiles")
@pytest.mark.parametrize("implementation", ["blockwise", "dense"])
def test_a_visible_nan_whose_weight_is_dropped_spreads_as_in_the_specification(implementation, rng):
    """0 * NaN is NaN in the result and in the gradients, whatever dropout keeps."""
    query, key, value = rng.normal(size=(3, 1, 2, 6, 2))
    value[..., 4, :] = np.nan
    options = {"mask": masks.causal(), "dropout_rate": 0.4, "dropout_rng": np.array([1, 2], np.uint32)}

    def f(*arrays):
        return attendax.attention(*arrays, **options, implementation=implementation)

    np.testing.assert_allclose(jax.jit(f)(query, key, value), spec.attention(query, key, value, **options), atol=1e-12)
    wanted = spec.attention_backward(np.ones(value.shape), query, key, value, **options)[:3]
    assert_leaves_close(jax.jit(jax.grad(lambda *a: f(*a).sum(), (0, 1, 2)))(query, key, value), wanted, atol=1e-12)
    moved = jax.jit(lambda *a: jax.jvp(f, a, a)[1])(query, key, value)
    assert np.isnan(moved).all(-1).tolist() == np.isnan(moved).any(-1).tolist() == [[[i >= 4 for i in range(6)]] * 2]


@pytest.mark.law("L6", "ops", "tiles", "native")
@pytest.mark.parametrize("implementation", ["blockwise", "dense", None])
def test_a_nan_among_thousands_of_scores_is_seen(implementation):
    """XLA's maximum of so many drops it; the sum of the row does not."""
    query, key, value = (np.random.default_rng(6).normal(size=(1, n, 8)).astype(np.float32) for n in (1, 4096, 4096))
    key[0, -1] = np.nan

    def loss(*arrays):
        return sum(x.sum() for x in attendax.attention(*arrays, return_lse=True, implementation=implementation))

    assert all(
        np.isnan(x) for x in attendax.attention(query, key, value, return_lse=True, implementation=implementation)[1:]
    )
    for grads in (jax.grad(loss, (0, 1, 2)), jax.jit(jax.grad(loss, (0, 1, 2)))):
        assert all(np.isnan(x).all() for x in grads(query, key, value))


@pytest.mark.law("L6", "tiles")
@pytest.mark.parametrize("name", ["query", "key"])
@pytest.mark.parametrize(("width", "score_mod"), [(1, None), (2, scores.relative_bias(jnp.zeros((1, 3))))])
def test_second_derivatives_of_scores_that_are_nan(width, score_mod, name):
    """A score of width 1, or of a modifier, is rounded by a selection, which has to let a gradient of NaN through."""
    spoilt = {name: np.full((1, 2, width), 0.5, np.float32) for name in ("query", "key", "value")}
    spoilt[name][0, 0] = np.nan

    def gradients(*arrays):
        return jax.grad(lambda *a: attendax.attention(*a, score_mod=score_mod).sum(), (0, 1, 2))(*arrays)

    moved = jax.jvp(gradients, tuple(spoilt.values()), tuple(map(np.ones_like, spoilt.values())))[1]
    for found, array in zip(moved, spoilt.values(), strict=True):
        rows = 1 if name == "query" and array is spoilt["query"] else 2
        assert np.isnan(found[0, :rows]).all()
        assert not np.isnan(found[0, rows:]).any()
