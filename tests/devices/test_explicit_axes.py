"""Explicit mesh axes: ``attention``, layers and ``encode`` read how arrays lie, and results lie as they do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sequences
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from attendax import attention, encoders, explain, masks, ops, scores, sharding, spec
from attendax.sharding.compiled import collectives

pytestmark = pytest.mark.slow
B, N, G, T = 4, 4, 2, 24
LENGTHS = np.array([24, 7, 1, 13])
MESH = jax.make_mesh((2, 2, 2), ("data", "heads", "seq"))
LAYOUTS = {
    "batch, heads": (P("data", "heads"), {"score_mod": scores.alibi(np.linspace(0.1, 0.4, N))}),
    "one key head for two devices": (P(None, ("heads", "seq")), {"mask": masks.causal()}),
    "all three": (P("data", "heads", "seq"), {"dropout_rate": 0.3, "dropout_rng": sequences.RNG}),
    "a function": (P("data"), {"score_mod": scores.from_function(lambda s, p, w: s * w, np.full((B, 1, 1, 1), 0.7))}),
}


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
        for ours, theirs in zip(grads, right, strict=True):
            np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-12, atol=1e-12)
        assert out.sharding.is_equivalent_to(placed[0].sharding, 4)
    if layout == "batch, heads":
        assert [each for each in collectives(compiled) if each.bytes > 8] == []  # but for the sum that is the loss


def test_layers(rng):
    """A block and an encoder, the batch and the tokens divided."""
    params, x = ops.init_encoder_block(jax.random.key(0), d_model=8, num_heads=4), rng.normal(size=(4, 8, 8))
    params = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    config = encoders.EncoderConfig(11, 12, 2, d_model=8, num_heads=4, d_ff=16, num_layers=1)
    weights, ids = encoders.init_encoder(jax.random.key(1), config), rng.integers(0, 11, (4, 8))

    def both(params, x, weights, ids):
        return ops.encoder_block(params, x, num_heads=4), encoders.encode(weights, ids, config=config)

    expected = jax.jit(both)(params, x, weights, ids)
    with jax.set_mesh(MESH):
        for where in (P("data"), P("data", "seq")):
            x_here, ids_here = (jax.device_put(each, NamedSharding(MESH, where)) for each in (x, ids))
            found = jax.jit(both)(params, x_here, weights, ids_here)
            for ours, right in zip(found, expected, strict=True):
                np.testing.assert_allclose(np.asarray(ours), right, rtol=1e-5, atol=1e-6)
                assert ours.sharding.is_equivalent_to(NamedSharding(MESH, P(*where, None)), 3)


def test_what_explain_says_is_sent(rng):
    """By the ring it is what the compiled program receives, but for positions."""
    arrays = sequences.arrays_of(rng, 48)
    across = sequences.attend_by(4, "ring", "in order", {}, {}, 48)
    bytes_received = sharding.bytes_received(jax.jit(across).lower(*arrays, {}).compile())
    choice = sharding.explain(*arrays, devices=4)
    assert 0 <= bytes_received - choice.bytes_received["ring"] < 100
    assert "ring" in str(choice)


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
    for ours, right in zip(orders(divided), orders(attend), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(divided(query, key, value), spec.attention(query, key, value, mask=masks.causal()))


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
    assert said(P()).devices == dict.fromkeys(batch.devices, 1)
    assert "nothing is divided" in str(said(P()))
    assert explain(*(np.zeros((1, 1, 3, 2)),) * 3).devices is None
