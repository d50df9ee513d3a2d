"""Programs that users put around divided attention: vmap over a divided batch, their own shard_map over other axes."""

import jax
import numpy as np
import pytest
import sequences
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from attendax import attention, masks, ops, scores, sharding, spec
from collectives import collectives

pytestmark = pytest.mark.usefixtures("compiled_quickly")
B, N, T = 4, 4, 8
NAMES = "data", "heads", "seq"
EXPLICIT = jax.make_mesh((2, 2, 2), NAMES)
AUTO = jax.make_mesh((2, 2, 2), NAMES, axis_types=(AxisType.Auto,) * 3)
CAUSAL = {"mask": masks.causal()}


def close(ours, right):
    np.testing.assert_allclose(np.asarray(ours), np.asarray(right), rtol=1e-12, atol=1e-12)


def both_ways(f, how):
    """The function, and its gradient by what it is given first."""
    slope = jax.grad(lambda x: (f(x) ** 2).sum())
    return [jax.jit(each) if how == "jit" else each for each in (f, slope)]


@pytest.mark.law("L12", "sharded")
@pytest.mark.slow
@pytest.mark.parametrize("how", ["jit", "eager"])
@pytest.mark.parametrize("where", [P("data", None, "seq"), P("data", "heads", "seq"), P("data", "heads")], ids=str)
def test_vmap_over_a_divided_batch(where, how, rng):
    host = rng.normal(size=(B, N, T, 3))
    f = jax.vmap(lambda q: attention(q, q, q, **CAUSAL))
    right = [each(host) for each in both_ways(lambda q: attention(q, q, q, **CAUSAL), "jit")]
    with jax.set_mesh(EXPLICIT):
        placed = jax.device_put(host, where)
        for ours, expected in zip(both_ways(f, how), right, strict=True):
            found = ours(placed)
            close(found, expected)
            assert found.sharding.is_equivalent_to(placed.sharding, 4)
        if how == "jit":
            sent = collectives(jax.jit(f).lower(placed).compile())
            assert {each.kind for each in sent if each.bytes > 8} <= {"collective-permute"}  # keys, and no batch


@pytest.mark.law("L12", "sharded")
@pytest.mark.slow
@pytest.mark.parametrize("how", ["jit", "eager"])
def test_vmap_of_a_layer_over_a_divided_batch(how, rng):
    """Outside jit, JAX itself cannot map such a layer: it would recurse without an end."""
    params = ops.init_encoder_block(jax.random.key(0), d_model=8, num_heads=4)
    params = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    host = rng.normal(size=(B, T, 8))

    def layer(x):
        return ops.encoder_block(x, params, num_heads=4)

    right = [each(host) for each in both_ways(layer, "jit")]
    with jax.set_mesh(EXPLICIT):
        placed = jax.device_put(host, P("data", "seq"))
        for ours, expected in zip(both_ways(jax.vmap(lambda x: layer(x[None])[0]), how), right, strict=True):
            close(ours(placed), expected)


@pytest.mark.slow
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("strategy", ["ring", "all_gather", "ulysses"])
def test_on_a_mesh_inside_a_shard_map_over_another_axis(strategy, check_vma, rng):
    """The mesh that a user has at hand is not quite that of the context: the types of its axes differ."""
    host = [rng.normal(size=(B, N, T, 3)) for _ in range(3)]
    right = spec.attention(*host, **CAUSAL)
    grads = spec.attention_backward(np.ones_like(right), *host, **CAUSAL)[:3]

    def here(q, k, v):
        given = {"axis_name": "seq", "strategy": strategy, "mesh": AUTO, **CAUSAL}
        return sharding.attention_on_mesh(q, k, v, **given)

    data = P("data")
    divided = jax.shard_map(here, mesh=AUTO, in_specs=data, out_specs=data, axis_names={"data"}, check_vma=check_vma)
    place = NamedSharding(AUTO, P("data", None, "seq"))
    placed = [jax.device_put(x, place) for x in host]
    close(jax.jit(divided)(*placed), right)
    for ours, expected in zip(jax.jit(jax.grad(lambda *x: divided(*x).sum(), (0, 1, 2)))(*placed), grads, strict=True):
        close(ours, expected)


@pytest.mark.slow
def test_layers_and_explicit_axes_inside_a_shard_map_over_another_axis(rng):
    params = ops.init_encoder_block(jax.random.key(0), d_model=8, num_heads=4)
    params = jax.tree.map(lambda leaf: leaf.astype(np.float64), params)
    x, q = rng.normal(size=(B, T, 8)), rng.normal(size=(B, N, T, 3))
    options = {"mesh": AUTO, "in_specs": P("data"), "out_specs": P("data"), "axis_names": {"data"}}
    block = sharding.on_mesh(ops.encoder_block, mesh=AUTO, axis_name="seq")
    close(
        jax.jit(jax.shard_map(lambda x: block(x, params, num_heads=4), **options))(x),
        ops.encoder_block(x, params, num_heads=4),
    )
    options["mesh"] = EXPLICIT
    for f, host in (
        (lambda q: attention(q, q, q, **CAUSAL), q),
        (lambda x: ops.encoder_block(x, params, num_heads=4), x),
    ):
        right = [each(host) for each in both_ways(f, "jit")]
        with jax.set_mesh(EXPLICIT):
            tokens = P("data", None, "seq") if host is q else P("data", "seq")
            placed = jax.device_put(host, tokens)
            for ours, expected in zip(both_ways(jax.shard_map(f, **options), "jit"), right, strict=True):
                close(ours(placed), expected)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["jit", "eager"])
def test_on_a_mesh_of_arrays_that_lie_on_explicit_axes(how, rng):
    q = rng.normal(size=(B, N, T, 3))

    def attend(q):
        return sharding.attention_on_mesh(q, q, q, mesh=EXPLICIT, axis_name="seq", **CAUSAL)

    right = [each(q) for each in both_ways(lambda q: attention(q, q, q, **CAUSAL), "jit")]
    with jax.set_mesh(EXPLICIT):
        for ours, expected in zip(both_ways(attend, how), right, strict=True):
            close(ours(jax.device_put(q, P("data", None, "seq"))), expected)


def test_a_mesh_that_is_not_that_of_the_context_is_refused():
    x = np.ones((2, 2, 4, 3))

    def call(mesh=AUTO, **axes):
        def here(x):
            return sharding.attention_on_mesh(x, x, x, mesh=mesh, **axes)

        return jax.eval_shape(jax.shard_map(here, mesh=AUTO, in_specs=P(), out_specs=P(), axis_names={"data"}), x)

    with pytest.raises(ValueError, match=r"axis 'data' already.\nLeave it out, or call sharding.attention"):
        call(axis_name="seq", batch_axes="data")
    with pytest.raises(ValueError, match=r"mesh has axes {'seq': 2}, but the mesh around this call has {'data': 2"):
        call(sequences.mesh_of(2), axis_name="seq")


@pytest.mark.slow
def test_a_function_where_the_axis_of_the_batch_has_one_device(rng):
    """It reads all batches and heads, and all are there."""
    mesh = jax.make_mesh((1, 2), ("data", "seq"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:2])
    q = rng.normal(size=(2, 2, 4, 3))
    options = {"score_mod": scores.from_function(lambda s, _, w: s * w, np.array([0.5, 2.0]).reshape(1, 2, 1, 1))}
    out = sharding.attention_on_mesh(q, q, q, mesh=mesh, axis_name="seq", batch_axes="data", **options)
    close(out, attention(q, q, q, **options))


JACOBIANS = {"jacfwd": jax.jacfwd, "jacrev": jax.jacrev, "hessian": jax.hessian}


@pytest.mark.law("L12", "sharded")
@pytest.mark.slow
@pytest.mark.parametrize("jacobian", JACOBIANS)
@pytest.mark.parametrize("strategy", ["ring", "all_gather", "ulysses"])
def test_jacobians(strategy, jacobian, rng):
    """Each is a vmap over directions alone, or over cotangents: the arrays themselves have no such axis."""
    leaves = tuple(rng.normal(size=(1, 2, 4, width)) for width in (2, 2, 1)), rng.normal(size=(1, 2, 4, 4))

    def jacobians(attend):
        def results(leaves, bias):
            found = attend(*leaves, bias)
            return sum((x**3).sum() for x in found) if jacobian == "hessian" else found

        return jax.tree.leaves(jax.jit(JACOBIANS[jacobian](results, (0, 1)))(*leaves))

    def alone(query, key, value, bias):
        return attention(query, key, value, bias=bias, return_lse=True, **CAUSAL)

    def here(query, key, value, bias):
        options = {"bias": bias, "axis_name": "seq", "strategy": strategy, "return_lse": True}
        return sharding.attention(query, key, value, **options, **CAUSAL)

    divided = jax.shard_map(
        here, mesh=sequences.mesh_of(2), in_specs=sequences.TOKENS, out_specs=(sequences.TOKENS, sequences.TOKENS)
    )
    for ours, right in zip(jacobians(divided), jacobians(alone), strict=True):
        close(ours, right)
