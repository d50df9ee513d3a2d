"""The laws of attention of a sequence on several devices, and what the devices send.

That it equals the specification on the whole, with each option by each strategy, is in test_every_mesh.py.
"""

import jax
import numpy as np
import pytest
import sequences
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from attendax import masks, scores, sharding, spec
from collectives import bytes_received, collectives
from judges import assert_leaves_close, by_definition

STRATEGIES = {"ring": "collective-permute", "all_gather": "all-gather", "ulysses": "all-to-all"}


@pytest.fixture(scope="module")
def causal_ring():
    """A compiled program in float32: causal and padded, in zigzag order, on four devices by the ring."""
    T, devices, rng = 32, 4, np.random.default_rng(5)
    options = {"mask": masks.causal() & masks.padding(np.array([T, T - 10]))}
    given, specs, rest = sequences.placed(options, devices, "zigzag")
    attend = sequences.attend_by(devices, "ring", "zigzag", specs, rest, T)
    run = jax.jit(sequences.results_and_gradients(attend))
    arrays = sequences.arrays_of(rng, T, dtype=np.float32)
    cotangents = [rng.normal(size=(2, 8, T, 3)).astype(np.float32), rng.normal(size=(2, 8, T)).astype(np.float32)]

    def results(arrays, dout=cotangents[0], dlse=cotangents[1]):
        turned = [sharding.zigzag(x, devices, -2) for x in (*arrays, dout)]
        found = run(*turned[:3], given, turned[3], sharding.zigzag(dlse, devices, -1))
        return sequences.in_order(found, devices, "zigzag"), by_definition(arrays, dout, dlse, **options)

    return arrays, results


@pytest.mark.law("L6", "sharded")
def test_what_is_masked_cannot_matter(causal_ring):
    """A NaN in the padding, and one that later tokens see: not a bit of any row before it (L6)."""
    arrays, results = causal_ring
    before, _ = results(arrays)
    query, key, value = (x.copy() for x in arrays)
    key[1, :, -10:], value[1, :, -10:] = np.nan, np.inf
    after, _ = results([query, key, value])
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    key, value = arrays[1].copy(), arrays[2].copy()
    value[0, 1, 20], key[0, 0, 25] = np.nan, np.inf
    dout = np.ones((2, 8, 32, 3), np.float32)
    dout[:, :, 20:] = 0
    dlse = np.zeros((2, 8, 32), np.float32)
    (spared, _), (found, expected) = results(arrays, dout, dlse), results([arrays[0], key, value], dout, dlse)
    for one, other in zip((x[:, :, :20] for x in spared), (x[:, :, :20] for x in found), strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.isnan(found[0][0, 4:, 20:]).all()
    np.testing.assert_array_equal(np.isnan(found[0]), np.isnan(expected[0]))


@pytest.mark.law("L6", "sharded")
def test_a_gradient_through_what_is_not_a_number(causal_ring):
    """It is not a number where the specification's is not, and right everywhere else (L13)."""
    arrays, results = causal_ring
    key, value = arrays[1].copy(), arrays[2].copy()
    value[0, 1, 20], key[1, 0, 9] = np.nan, np.nan
    found, expected = results([arrays[0], key, value])
    for ours, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(right))
        np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-4)


@pytest.mark.law("L5", "sharded")
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_text_without_keys_gets_zero_and_no_gradient(strategy, rng):
    """Its rows are empty on every device."""
    query, key, value = sequences.arrays_of(rng, 8)
    dout, dlse = rng.normal(size=(2, 8, 8, sequences.V)), rng.normal(size=(2, 8, 8))
    given, specs, rest = sequences.placed({"mask": masks.padding(np.array([0, 8]))}, 4, "in order")
    attend = sequences.attend_by(4, strategy, "in order", specs, rest, 8)
    run = jax.jit(sequences.results_and_gradients(attend))
    out, lse, *grads = map(np.asarray, run(query, key, value, given, dout, dlse))
    assert (lse[0] == -np.inf).all()
    assert np.isfinite(lse[1]).all()
    for x in (out, *grads):
        assert (x[0] == 0).all()
        assert np.isfinite(x).all()
        assert abs(x[1]).max() > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_sends_by_its_own_collective(strategy, rng):
    across = sequences.attend_by(4, strategy, "in order", {}, {}, 48)
    kinds = {one.kind for one in collectives(jax.jit(across).lower(*sequences.arrays_of(rng, 48), {}).compile())}
    assert STRATEGIES[strategy] in kinds
    if strategy == "ring":
        assert not kinds & {"all-gather", "all-to-all"}  # nothing is ever whole on a device


@pytest.mark.law("L16", "sharded")
def test_explain_says_what_is_sent(rng):
    """By the ring it is what the compiled program receives, but for positions."""
    arrays = sequences.arrays_of(rng, 48)
    across = sequences.attend_by(4, "ring", "in order", {}, {}, 48)
    received = bytes_received(jax.jit(across).lower(*arrays, {}).compile().as_text())
    choice = sharding.explain(*arrays, devices=4)
    assert 0 <= received - choice.bytes_received["ring"] < 100
    assert "ring" in str(choice)


@pytest.mark.law("L7", "sharded")
def test_huge_scores(causal_ring):
    """Scores of 1e30 and their gradients (L7): maximum and sum of a row are taken again round the ring."""
    arrays, results = causal_ring
    for size in (1e2, 1e15):
        found, expected = results([arrays[0] * np.float32(size), arrays[1] * np.float32(size), arrays[2]])
        for ours, right, scale in zip(found, expected, (1, size**2, size, size, 1), strict=True):
            assert np.isfinite(ours).all()
            np.testing.assert_allclose(ours / scale, right / scale, rtol=2e-5, atol=2e-4)


def test_order():
    x = np.arange(48.0).reshape(2, 24)
    for devices in (1, 2, 3, 4, 6):
        turned = sharding.zigzag(x, devices, axis=1)
        np.testing.assert_array_equal(sharding.restore(turned, devices, axis=1), x)
        np.testing.assert_array_equal(np.asarray(turned)[0], sharding.positions(24, devices))
    with pytest.raises(ValueError, match="not a multiple of 2 x 5"):
        sharding.zigzag(x, 5, axis=1)


@pytest.mark.law("L14", "sharded")
def test_refusals(rng):
    query, key, value = sequences.arrays_of(rng, 12, heads=4)

    def call(devices=2, **options):
        attend = jax.shard_map(
            lambda *x: sharding.attention(*x, axis_name="seq", **options),
            mesh=sequences.mesh_of(devices),
            in_specs=sequences.TOKENS,
            out_specs=sequences.TOKENS,
        )
        return jax.eval_shape(attend, query, key, value)

    with pytest.raises(ValueError, match="4 heads are not a multiple of 3 devices"):
        call(3, strategy="ulysses")
    with pytest.raises(ValueError, match="strategy"):
        call(strategy="flash")
    with pytest.raises(ValueError, match=r"positions have shape .12,. but this device holds 6"):
        call(positions=np.arange(12))
    with pytest.raises(TypeError, match="positions must be integers"):
        call(positions=np.arange(6.0))
    with pytest.raises(ValueError, match="bias has shape"):
        call(bias=np.zeros((4, 6, 6)))
    mesh = sequences.mesh_of(2)
    with pytest.raises(ValueError, match="13 queries are not a multiple of 2"):
        sharding.attention_on_mesh(*[np.zeros((2, 13, 4))] * 3, mesh=mesh, axis_name="seq")


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_tells_heads_apart_where_heads_and_tokens_are_divided(strategy, rng):
    """Heads are counted over both: over the devices that share them, and over those to which "ulysses" gives them."""
    mesh = jax.make_mesh((2, 2, 2), ("data", "heads", "seq"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    arrays, N = sequences.arrays_of(rng, 12), sequences.N
    given = {
        "score_mod": scores.compose(scores.alibi(rng.normal(size=N)), scores.relative_bias(rng.normal(size=(N, 5)))),
        "bias": rng.normal(size=(1, N, 12, 12)),
    }
    rest = {"dropout_rate": 0.2, "dropout_rng": sequences.RNG}
    axes = {"mesh": mesh, "axis_name": "seq", "batch_axes": "data", "head_axes": "heads", "strategy": strategy}

    def attend(query, key, value, given):
        return sharding.attention_on_mesh(query, key, value, return_lse=True, **given, **rest, **axes)

    dout, dlse = rng.normal(size=(*arrays[0].shape[:-1], sequences.V)), rng.normal(size=arrays[0].shape[:-1])
    found = jax.jit(sequences.results_and_gradients(attend))(*arrays, given, dout, dlse)
    assert_leaves_close(found, by_definition(arrays, dout, dlse, **given, **rest), rtol=1e-12, atol=1e-12)


@pytest.mark.law("L10", "sharded")
@pytest.mark.slow
def test_on_a_mesh_with_the_right_answer(rng):
    """``attention_on_mesh``, eager, with batches and heads divided, too: the same weights are kept (L10)."""
    mesh = jax.make_mesh((2, 2, 2), ("data", "heads", "seq"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    arrays = sequences.arrays_of(rng, 12)
    options = {"mask": masks.causal(), "dropout_rate": 0.2, "dropout_rng": sequences.RNG}
    axes = {"mesh": mesh, "axis_name": "seq", "batch_axes": "data", "head_axes": "heads", "strategy": "ring"}
    out = sharding.attention_on_mesh(*arrays, **axes, **options)
    np.testing.assert_allclose(out, spec.attention(*arrays, **options), rtol=1e-12, atol=1e-12)
    assert out.sharding.is_equivalent_to(NamedSharding(mesh, P("data", "heads", "seq", None)), out.ndim)
