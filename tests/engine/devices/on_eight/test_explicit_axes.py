"""Explicit mesh axes: ``attention``, layers and ``encode`` read how arrays lie, and results lie as they do."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sequences
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from attendax import attention, attention_stats, encoders, explain, masks, ops, scores, sharding, spec, weights_at
from attendax.kernels.backends import default
from collectives import collectives
from judges import assert_leaves_close

pytestmark = pytest.mark.slow
B, N, G, T = 4, 4, 2, 24
LENGTHS = np.array([24, 7, 1, 13])
MESH = jax.make_mesh((2, 2, 2), ("data", "heads", "seq"))
LAYOUTS = {
    "batch, heads": (P("data", "heads"), {"score_mod": scores.alibi(np.linspace(0.1, 0.4, N))}),
    "a sink": (P("data", "heads", "seq"), {"score_mod": scores.sink(np.linspace(-1, 2, N))}),
    "one key head for two devices": (P(None, ("heads", "seq")), {"mask": masks.causal()}),
    "all three": (P("data", "heads", "seq"), {"dropout_rate": 0.3, "dropout_rng": sequences.RNG}),
    "a function": (P("data"), {"score_mod": scores.from_function(lambda s, p, w: s * w, np.full((B, 1, 1, 1), 0.7))}),
}


@pytest.mark.law("L17", "sharded")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention(layout, rng):
    where, options = LAYOUTS[layout]
    host = [rng.normal(size=(B, n, T, 5)) for n in (N, G, G)]
    padded = {"mask": masks.padding(LENGTHS)} if "mask" not in options else {}
    weights = rng.normal(size=host[0].shape)
    of_keys = P(*where[:1]) if where[1:2] == (("heads", "seq"),) else where

    def step(*leaves):
        def loss(*leaves):
            out = attention(*leaves, **options, **padded)
            return (out * weights).sum(), out

        return jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*leaves)

    (_, expected), right = jax.jit(step)(*host)
    with jax.set_mesh(MESH):
        places = (NamedSharding(MESH, x) for x in (where, of_keys, of_keys))
        placed = [jax.device_put(x, place) for x, place in zip(host, places, strict=True)]
        compiled = jax.jit(step).lower(*placed).compile()
        (_, out), grads = compiled(*placed)
        np.testing.assert_allclose(np.asarray(out), np.asarray(expected), rtol=1e-12, atol=1e-12)
        assert_leaves_close(grads, right, rtol=1e-12, atol=1e-12)
        assert out.sharding.is_equivalent_to(placed[0].sharding, 4)
    if layout == "batch, heads":
        assert [each for each in collectives(compiled) if each.bytes > 8] == []  # but for the sum that is the loss


@pytest.mark.parametrize("where", [P("data"), P(None, None, "seq")])
def test_bfloat16_that_devices_share(where, rng):
    """Its gradient is a sum over devices, of float32: of bfloat16, XLA's CPU compiler ends the process."""
    sizes = (B, N, T, 5), (B, G, T, 5), (B, G, T, 5), (T, T), (N,)
    host = [jnp.asarray(0.1 * rng.normal(size=size), jnp.bfloat16) for size in sizes]

    def loss(query, key, value, bias, slopes):
        return attention(query, key, value, bias=bias, score_mod=scores.alibi(slopes)).astype(jnp.float32).sum()

    step = jax.grad(loss, tuple(range(len(host))))
    right = jax.jit(step)(*(x.astype(jnp.float32) for x in host))
    with jax.set_mesh(MESH):
        placed = [jax.device_put(host[0], NamedSharding(MESH, where)), *host[1:]]
        lowered = jax.jit(step).lower(*placed)
        sums = re.findall(r"all_reduce.*\n\s*\^bb0\(%\w+: tensor<(\w+)>", lowered.as_text())
        assert "f32" in sums
        assert "bf16" not in sums
        for ours, theirs in zip(lowered.compile()(*placed), right, strict=True):
            assert ours.dtype == jnp.bfloat16
            largest = np.abs(theirs).max()
            np.testing.assert_allclose(np.asarray(ours, np.float32), theirs, rtol=0.02, atol=0.02 * largest)


def test_layers(rng):
    """A block and an encoder, the batch and the tokens divided."""
    params, x = ops.init_encoder_block(jax.random.key(0), d_model=8, num_heads=4), rng.normal(size=(4, 8, 8))
    params = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    config = encoders.EncoderConfig(11, 12, 2, d_model=8, num_heads=4, d_ff=16, num_layers=1)
    weights, ids = encoders.init_encoder(jax.random.key(1), config), rng.integers(0, 11, (4, 8))

    def both(params, x, weights, ids):
        return ops.encoder_block(x, params, num_heads=4), encoders.encode(ids, weights, config=config)

    expected = jax.jit(both)(params, x, weights, ids)
    with jax.set_mesh(MESH):
        for where in (P("data"), P("data", "seq")):
            x_here, ids_here = (jax.device_put(each, NamedSharding(MESH, where)) for each in (x, ids))
            found = jax.jit(both)(params, x_here, weights, ids_here)
            for ours, right in zip(found, expected, strict=True):
                np.testing.assert_allclose(np.asarray(ours), right, rtol=1e-5, atol=1e-6)
                assert ours.sharding.is_equivalent_to(NamedSharding(MESH, P(*where, None)), 3)


@pytest.mark.law("L12", "sharded")
def test_second_and_third_order_inside_shard_map(rng):
    """With ``check_vma``, as it is by default."""
    query, key, value = (jnp.asarray(rng.normal(size=(2, 2, 6, 3))) for _ in range(3))

    def orders(attend):
        def of_query(query):
            return (attend(query, key, value) ** 2).sum()

        def along(f):
            return lambda query: jax.jvp(f, (query,), (key,))[1]

        first = jax.grad(of_query)
        return jax.jit(lambda query: (along(first)(query), along(along(first))(query)))(query)

    def attend(query, key, value):
        return attention(query, key, value, mask=masks.causal())

    divided = jax.shard_map(attend, mesh=sequences.mesh_of(2), in_specs=P("seq"), out_specs=P("seq"))
    assert_leaves_close(orders(divided), orders(attend), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(divided(query, key, value), spec.attention(query, key, value, mask=masks.causal()))


@pytest.mark.law("L16", "sharded")
def test_explain_says_what_is_divided():
    def said(where, **options):
        with jax.set_mesh(MESH):
            x = jax.ShapeDtypeStruct((B, N, T, 8), jnp.float32, sharding=NamedSharding(MESH, where))
            return explain(x, x, x, mask=masks.causal(), **options)

    everything = said(P("data", "heads", "seq"))
    assert everything.devices == {"batch": 2, "heads": 2, "queries": 2, "keys": 2}
    assert everything.across.strategy in everything.across.bytes_received
    assert everything.across.bytes_received["ring"] == 2 * (B // 2) * (N // 2) * (T // 2) * 8 * 4
    assert "devices      batch by 2, heads by 2, queries by 2, keys by 2" in str(everything)
    assert f"sharding.attention by {everything.across.strategy!r}" in str(everything)

    batch = said(P("data"))
    assert batch.devices == {"batch": 2, "heads": 1, "queries": 1, "keys": 1}
    assert batch.across is None
    assert "devices      batch by 2\n" in str(batch)
    if default() == "native":  # the other axes of the mesh are XLA's to divide, and a kernel cannot be
        assert (batch.implementation, batch.impossible["native"][:26]) == ("blockwise", "a program that XLA divides")
    assert said(P()).devices is None
    assert said(P()).implementation == everything.implementation == default()  # on each device, too
    assert explain(*(np.zeros((1, 1, 3, 2)),) * 3).devices is None


@pytest.mark.parametrize("how", ["eager", "jit"])
def test_masks_whose_arrays_lie_as_the_tokens_do(how, rng):
    arrays = [rng.normal(size=(B, N, T, 4)) for _ in range(3)]
    ids, dense = rng.integers(0, 2, (B, T)), rng.random((T, T)) < 0.7
    attend = attention if how == "eager" else jax.jit(attention)
    with jax.set_mesh(MESH):
        placed = [jax.device_put(x, P("data", None, "seq")) for x in arrays]
        ids_here, dense_here = jax.device_put(ids, P("data", "seq")), jax.device_put(dense, P("seq"))
        for here, whole in (
            (masks.segments(ids_here, ids_here), masks.segments(ids, ids)),
            (masks.dense(dense_here) & ~masks.causal(-4), masks.dense(dense) & ~masks.causal(-4)),
        ):
            expected = spec.attention(*arrays, mask=whole)
            np.testing.assert_allclose(np.asarray(attend(*placed, mask=here)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.law("L14", "sharded")
def test_what_takes_all_tokens_says_so():
    with jax.set_mesh(MESH):
        x = jax.device_put(jnp.ones((B, N, T, 4)), P("data", None, "seq"))
        for f in (
            lambda: ops.scaled_dot_product_attention(x, x, x),
            lambda: ops.attention_with_weights(x, x, x),
            lambda: attention_stats(x, x),
            lambda: weights_at(x, x, queries=jnp.array([1])),
        ):
            with pytest.raises(
                NotImplementedError, match="it needs all tokens of a head; here they are divided over seq"
            ):
                f()
        whole = jnp.ones((T, 4))
        assert ops.scaled_dot_product_attention(whole, whole, whole)[0].shape == (T, 4)


def test_no_heads_and_divided_tokens():
    with jax.set_mesh(MESH):
        x = jax.device_put(jnp.ones((B, 0, T, 4)), P("data", None, "seq"))
        assert attention(x, x, x).shape == x.shape


@pytest.mark.law("L14", "sharded")
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"positions": np.arange(2 * T)}, ValueError, r"positions have shape \(48,\) but there are 24 tokens"),
        ({"positions": np.arange(T // 2)}, ValueError, "positions have shape"),
        ({"positions": np.arange(T) / 2}, TypeError, "positions must be integers, got float64"),
        ({"positions": list(range(T))}, TypeError, "positions must be integers, got list"),
        ({"batch_axes": "seq"}, ValueError, "axis 'seq' is named twice"),
        ({"axis_name": ("seq", "seq")}, ValueError, "axis 'seq' is named twice"),
        ({"axis_name": None}, TypeError, "an axis must be a name or a tuple of names, got NoneType"),
        ({"mesh": None}, TypeError, "mesh must be a mesh, got NoneType"),
    ],
)
def test_what_does_not_fit_a_mesh_is_refused(options, error, message):
    x = jnp.ones((B, N, T, 4))
    given = {"mesh": sequences.mesh_of(2), "axis_name": "seq", "mask": masks.causal()} | options
    with pytest.raises(error, match=message):
        sharding.attention_on_mesh(x, x, x, **given)
    with pytest.raises(ValueError, match="'seq' is not an axis of a shard_map around this call"):
        sharding.attention(x, x, x, axis_name="seq")


@pytest.mark.parametrize("where", [P("data"), P(None, None, "seq")])
def test_without_a_mesh_around_the_call(where, rng):
    """The types of the arrays say the mesh. (Outside jit JAX has no gradient then, of ``jnp.sin`` neither.)"""
    x = rng.normal(size=(B, N, T, 5))
    placed = jax.device_put(x, NamedSharding(MESH, where))

    def gradient(x):
        return jax.grad(lambda x: (attention(x, x, x, mask=masks.causal()) ** 2).sum())(x)

    def attend(x):
        return attention(x, x, x, mask=masks.causal())

    for run in (attend, jax.jit(attend), jax.jit(gradient)):
        np.testing.assert_allclose(np.asarray(run(placed)), np.asarray(run(x)), rtol=1e-12, atol=1e-12)
    assert explain(placed, placed, placed).devices == explain_under_the_mesh(placed)


def explain_under_the_mesh(x):
    with jax.set_mesh(MESH):
        return explain(x, x, x).devices
