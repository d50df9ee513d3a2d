"""A sink takes a share of the weight and gives nothing (L2, L5, L6, L9): one more key, in NumPy and on every path."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import masks, ops, scores, spec
from attendax.conformance import directional_difference
from attendax.kernels.backends import default
from blockwise import Tiny
from cases import B, D, G, N, S, T, V
from compilation import quickly
from judges import assert_leaves_close

LOGITS = np.random.default_rng(5).normal(size=N)
SLOPES = np.linspace(0.1, 0.7, N)
EMPTY = np.random.default_rng(6).random((B, N, T, S)) < 0.5
EMPTY[:, :, 1] = False
SETTINGS = {
    "plain": (lambda x: scores.sink(x), {}),
    "causal": (lambda x: scores.sink(x), {"mask": masks.causal(1)}),
    "empty rows": (lambda x: scores.sink(x), {"mask": EMPTY}),
    "bias": (lambda x: scores.sink(x), {"bias": np.random.default_rng(7).normal(size=(N, T, S)), "scale": 0.3}),
    "dropout": (lambda x: scores.sink(x), {"dropout_rate": 0.4, "dropout_rng": np.array([3, 8], np.uint32)}),
    "with softcap": (lambda x: scores.compose(scores.softcap(0.9), scores.sink(x)), {"mask": EMPTY}),
    "before alibi": (lambda x: scores.compose(scores.sink(x), scores.alibi(SLOPES)), {}),
    "two": (lambda x: scores.compose(scores.sink(x), scores.compose(scores.sink(x[::-1]))), {"mask": EMPTY}),
}
PATHS = {
    "whole": attendax.attention,
    "tiles": Tiny.attention,
    "dense": lambda *args, **rest: attendax.attention(*args, **rest, implementation="dense"),
    "ops": ops.attention,
}
every_setting = pytest.mark.parametrize("name", SETTINGS)
every_path = pytest.mark.parametrize("path", PATHS)


def arrays(rng):
    return rng.normal(size=(B, N, T, D)), rng.normal(size=(B, G, S, D)), rng.normal(size=(B, G, S, V))


def as_a_key(query, key, value, mask, logits):
    """Attention with one more key, of value 0, whose score is a bias."""
    ones, more = np.ones((B, N, T, 1), bool), [np.zeros((B, G, 1, width)) for width in (D, V)]
    key, value = (np.concatenate(pair, axis=2) for pair in zip((key, value), more, strict=True))
    bias = np.concatenate([np.zeros((N, T, S)), np.broadcast_to(logits[:, None, None], (N, T, 1))], axis=-1)
    return (query, key, value), {"mask": np.concatenate([mask, ones], axis=-1), "bias": bias}


@pytest.mark.law("L2", "spec")
def test_a_sink_is_one_more_key_of_value_0(rng):
    qkv = arrays(rng)
    wide, options = as_a_key(*qkv, EMPTY, LOGITS)
    given = {"mask": EMPTY, "score_mod": scores.sink(LOGITS)}
    results = spec.attention(*qkv, **given, return_lse=True)
    assert_leaves_close(results, spec.attention(*wide, **options, return_lse=True), atol=1e-12)
    dout, dlse = rng.normal(size=(B, N, T, V)), rng.normal(size=(B, N, T))
    got = spec.attention_backward(dout, *qkv, **given, grad_lse=dlse)
    wanted = spec.attention_backward(dout, *wide, **options, grad_lse=dlse)
    np.testing.assert_allclose(got.grad_query, wanted.grad_query, atol=1e-12)
    np.testing.assert_allclose(got.grad_value, wanted.grad_value[:, :, :S], atol=1e-12)
    np.testing.assert_allclose(got.grad_score_mod.arrays[0], wanted.grad_bias[:, :, S].sum(-1), atol=1e-12)


@pytest.mark.law("L2", "spec")
@every_setting
def test_the_gradient_by_hand_is_that_of_finite_differences(name, rng):
    make, options = SETTINGS[name]

    def forward(query, key, value, logits):
        out, lse = spec.attention(query, key, value, score_mod=make(logits), return_lse=True, **options)
        return out, lse

    def backward(grads, query, key, value, logits):
        dout, dlse = grads
        found = spec.attention_backward(dout, query, key, value, score_mod=make(logits), grad_lse=dlse, **options)
        by_sink = found.grad_score_mod.sinks()
        return *found[:3], by_sink[0] + (by_sink[1][::-1] if len(by_sink) > 1 else 0)

    qkvl, cotangents = (*arrays(rng), LOGITS), (rng.normal(size=(B, N, T, V)), rng.normal(size=(B, N, T)))
    got = backward(cotangents, *qkvl)
    for k, (x, grad) in enumerate(zip(qkvl, got, strict=True)):
        along, step = rng.normal(size=x.shape), 1e-5
        ends = [forward(*qkvl[:k], x + sign * step * along, *qkvl[k + 1 :]) for sign in (1, -1)]
        slope = sum(
            np.sum(c * (np.where(np.isinf(one), 0, one) - np.where(np.isinf(other), 0, other)))
            for c, one, other in zip(cotangents, *ends, strict=True)
        ) / (2 * step)
        np.testing.assert_allclose(np.sum(grad * along), slope, rtol=1e-6, atol=1e-7)


@pytest.mark.smoke(1)
@pytest.mark.law("L2", "ops", "tiles", "native")
@pytest.mark.sample(10)
@every_setting
@every_path
def test_every_path_and_its_gradients(path, name, rng):
    make, options = SETTINGS[name]
    qkv, attend = arrays(rng), PATHS[path]

    def run(query, key, value, mod):
        return attend(query, key, value, score_mod=mod, return_lse=True, **options)

    def both(qkv, mod, cotangents):
        results, pull = jax.vjp(run, *qkv, mod)
        return results, pull(cotangents)

    cotangents = rng.normal(size=(B, N, T, V)), rng.normal(size=(B, N, T))
    mod = make(LOGITS)
    results, grads = quickly(both)(qkv, mod, cotangents)
    by_hand = spec.attention_backward(cotangents[0], *qkv, score_mod=mod, grad_lse=cotangents[1], **options)
    wanted = spec.attention(*qkv, score_mod=mod, return_lse=True, **options), by_hand[:3], by_hand.grad_score_mod
    assert_leaves_close((results, grads), wanted, atol=1e-12)
    if name == "empty rows":
        assert not np.asarray(results[0][:, :, 1]).any()
        np.testing.assert_array_equal(results[1][:, :, 1], np.broadcast_to(LOGITS, (B, N)))


@pytest.mark.slow
def test_every_direction(rng):
    """The Hessian by forward and reverse mode in each order; the first derivative is held against the specification."""

    def loss(query, key, value, logits):
        options = {"mask": EMPTY[0], "score_mod": scores.sink(logits), "return_lse": True}
        out, lse = Tiny.attention(query, key, value, **options)
        return jnp.sum(out**2) + 0.3 * jnp.sum(lse**2)

    qkvl = *(x[0] for x in arrays(rng)), LOGITS
    along = [rng.normal(size=x.shape) for x in qkvl]
    gradient = jax.grad(loss, (0, 1, 2, 3))

    def by_spec(*qkvl):
        options = {"mask": EMPTY[0], "score_mod": scores.sink(qkvl[3])}
        out, lse = spec.attention(*qkvl[:3], **options, return_lse=True)
        found = spec.attention_backward(2 * out, *qkvl[:3], **options, grad_lse=0.6 * lse)
        return [*found[:3], found.grad_score_mod.arrays[0]]

    wanted = directional_difference(by_spec, list(qkvl), along, step=2e-3)
    moved = quickly(lambda x, t: jax.jvp(gradient, x, t)[1])(qkvl, tuple(along))
    dot = lambda x: sum(jnp.sum(g * t) for g, t in zip(gradient(*x), along, strict=True))  # noqa: E731
    again = quickly(jax.grad(dot))(qkvl)
    slope = lambda x: jax.jvp(loss, x, tuple(along))[1]  # noqa: E731
    reverse = quickly(jax.grad(slope))(qkvl)
    for found in (moved, again, reverse):
        assert_leaves_close(found, wanted, atol=1e-8)


@pytest.mark.smoke
def test_vmap_over_logits(rng):
    qkv, logits = arrays(rng), rng.normal(size=(3, N))
    got = jax.vmap(lambda x: attendax.attention(*qkv, score_mod=scores.sink(x)))(logits)
    each = [spec.attention(*qkv, score_mod=scores.sink(x)) for x in logits]
    np.testing.assert_allclose(got, np.stack(each), atol=1e-12)


@pytest.mark.law("L6", "ops", "tiles")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_l6_what_is_not_finite_spoils_its_head_where_it_is_read(bad, rng):
    """A logit, seen by its whole head; -inf is no sink; a row of NaN spoils no gradient if nothing reads it."""
    qkv, logits = arrays(rng), np.array([-np.inf, *LOGITS[1:-1], bad])
    dout = rng.normal(size=(B, N, T, V))
    dout[:, -1] = 0
    options = {"mask": masks.causal(1)}

    def run(query, key, value, logits):
        return attendax.attention(query, key, value, score_mod=scores.sink(logits), **options)

    out, pull = jax.vjp(run, *qkv, logits)
    assert np.isnan(out[:, -1]).all()
    assert np.isfinite(out[:, :-1]).all()
    plain = attendax.attention(*qkv, **options)
    np.testing.assert_array_equal(out[:, 0], plain[:, 0])
    for cotangent in (dout, np.ones_like(dout)):
        found = pull(cotangent)
        wanted = spec.attention_backward(cotangent, *qkv, score_mod=scores.sink(logits), **options)
        assert_leaves_close(found, [*wanted[:3], wanted.grad_score_mod.arrays[0]], atol=1e-12)
    moved = jax.jvp(lambda x: run(*qkv, x), (logits,), (np.where(logits == -np.inf, np.nan, 0),))[1]
    assert not np.asarray(moved[:, 0]).any()


@pytest.mark.law("L6", "ops", "tiles")
def test_l6_a_spoiled_query_that_nothing_reads(rng):
    query, key, value = arrays(rng)
    query[0, 0, 0, 0] = np.nan
    dout = rng.normal(size=(B, N, T, V))
    for read in (False, True):
        dout[0, 0, 0] = read
        pull = jax.vjp(lambda *x: attendax.attention(*x[:3], score_mod=scores.sink(x[3])), query, key, value, LOGITS)[1]
        wanted = spec.attention_backward(dout, query, key, value, score_mod=scores.sink(LOGITS))
        assert np.isnan(wanted.grad_score_mod.arrays[0][0]) == read
        assert_leaves_close(pull(dout), [*wanted[:3], wanted.grad_score_mod.arrays[0]], atol=1e-12)


@pytest.mark.law("L7", "ops", "tiles")
def test_l7_scores_and_logits_of_1e30():
    query, key = np.full((1, 1, 1), 1e15, np.float32), np.full((1, 3, 1), 1e15, np.float32)
    value, logits = np.ones((1, 3, 1), np.float32), np.full(1, 1e30, np.float32)
    logits[:] = np.float32(1e15) * np.float32(1e15)
    for attend in (spec.attention, attendax.attention):
        np.testing.assert_allclose(attend(query, key, value, score_mod=scores.sink(logits)), [[[0.75]]], rtol=1e-6)


@pytest.mark.law("L8", "ops", "tiles")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_l8_the_share_is_taken_before_the_rounding(dtype, rng):
    qkv = [np.asarray(x, dtype) for x in arrays(rng)]
    logits = LOGITS.astype(dtype)
    out, lse = attendax.attention(*qkv, score_mod=scores.sink(logits), return_lse=True)
    wide = [np.asarray(x, np.float64) for x in (*qkv, logits)]
    wanted, wanted_lse = spec.attention(*wide[:3], score_mod=scores.sink(wide[3]), return_lse=True)
    assert (out.dtype, lse.dtype) == (dtype, np.float32)
    np.testing.assert_allclose(np.asarray(out, np.float64), wanted, rtol=0.51 * float(jnp.finfo(dtype).eps), atol=1e-6)
    np.testing.assert_allclose(lse, wanted_lse, atol=1e-5)


@pytest.mark.parametrize("module", [spec, ops])
def test_weights_sum_to_the_share_of_the_keys(module, rng):
    qkv = arrays(rng)
    options = {"mask": EMPTY, "score_mod": scores.sink(LOGITS)}
    out, lse, weights = module.attention_with_weights(*qkv, **options)
    plain = spec.attention(*qkv, mask=EMPTY, return_lse=True)[1]
    np.testing.assert_allclose(weights.sum(-1), np.exp(plain - np.asarray(lse)), atol=1e-12)
    np.testing.assert_allclose(out, weights @ np.repeat(qkv[2], N // G, axis=1), atol=1e-12)


@pytest.mark.law("L11", "ops", "tiles")
def test_no_keys_and_no_queries(rng):
    query, key, value = arrays(rng)
    for attend in (spec.attention, attendax.attention):
        out, lse = attend(query, key[:, :, :0], value[:, :, :0], score_mod=scores.sink(LOGITS), return_lse=True)
        assert not np.asarray(out).any()
        np.testing.assert_allclose(lse, np.broadcast_to(LOGITS[:, None], (B, N, T)))
        assert attend(query[:, :, :0], key, value, score_mod=scores.sink(LOGITS)).shape == (B, N, 0, V)


@pytest.mark.law("L9", "ops")
def test_merged_with_a_part_that_has_none_it_is_that_of_all(rng):
    query, key, value = arrays(rng)
    with_sink = attendax.attention(
        query, key[:, :, :2], value[:, :, :2], score_mod=scores.sink(LOGITS), return_lse=True
    )
    rest = attendax.attention(query, key[:, :, 2:], value[:, :, 2:], return_lse=True)
    wanted = spec.attention(query, key, value, score_mod=scores.sink(LOGITS), return_lse=True)
    assert_leaves_close(attendax.merge(with_sink, rest), wanted, atol=1e-12)


def test_a_call_without_sinks_has_the_same_program(rng):
    qkv = arrays(rng)
    mod = scores.compose(scores.softcap(2.0), scores.alibi(SLOPES))
    assert mod.without_sinks() == mod
    with_it = scores.compose(scores.softcap(2.0), scores.sink(LOGITS), scores.alibi(SLOPES))
    assert [part.kind for part in with_it.without_sinks().arrays] == ["softcap", "alibi"]
    assert scores.sink(LOGITS).without_sinks() is None
    explained = attendax.explain(*qkv, score_mod=scores.sink(LOGITS))
    assert explained.implementation == attendax.explain(*qkv).implementation == default()
    assert "sink" in explained.impossible["cudnn"]


@pytest.mark.smoke
@pytest.mark.law("L14", "ops")
def test_l14_what_it_does_not_go_with(rng):
    qkv, mod = arrays(rng), scores.compose(scores.sink(LOGITS))
    with pytest.raises(NotImplementedError, match="a sink needs"):
        attendax.attention(*qkv, score_mod=mod, implementation="cudnn")
    for inspect, which in ((attendax.attention_stats, {}), (attendax.weights_at, {"keys": np.array([0])})):
        with pytest.raises(NotImplementedError, match="has a sink"):
            inspect(*qkv[:2], score_mod=mod, **which)
    with pytest.raises(TypeError, match=r"Write score_mod=scores.sink\(logits\)"):
        attendax.attention(*qkv, sinks=LOGITS)
