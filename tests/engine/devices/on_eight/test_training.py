"""A whole encoder on a mesh of 2 x 2 x 2: data, heads and hidden units, tokens."""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

from attendax import encoders, sharding
from collectives import collectives

CONFIG = encoders.EncoderConfig(11, 12, 2, d_model=8, num_heads=4, d_ff=16, num_layers=1, window=3, dropout=0.1)
NAMES = "data", "model", "seq"
DIVIDED = {"axis_name": "seq", "batch_axes": "data", "head_axes": "model", "strategy": "ring"}


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("tokens_by", ["XLA", "the ring", "types"])
def test_one_training_step(tokens_by, rng):
    """Loss and weights after it equal those of one device to 1e-12, and the weights lie where they lay."""
    params = jax.tree.map(lambda x: x.astype(np.float64), encoders.init_encoder(jax.random.key(0), CONFIG))
    ids, target = rng.integers(0, 11, (4, 8)), rng.normal(size=(4, 8, 8))
    mask, rng = np.arange(8) < np.array([8, 5, 3, 7])[:, None], jax.random.key(3)

    def step_of(encode):
        def step(params, ids, mask, target):
            def loss(params):
                hidden = encode(ids, params, config=CONFIG, mask=mask, dropout_rng=rng)
                return (((hidden - target) * mask[..., None]) ** 2).mean()

            value, grads = jax.value_and_grad(loss)(params)
            return value, jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)

        return step

    kind = AxisType.Explicit if tokens_by == "types" else AxisType.Auto
    mesh = jax.make_mesh((2, 2, 2), NAMES, axis_types=(kind,) * 3)
    specs = encoders.partition_specs(CONFIG, tensor="model", devices=2)
    tokens = encoders.token_spec(data="data", sequence="seq")

    def put(x, spec):
        return jax.device_put(x, NamedSharding(mesh, spec))

    encode = encoders.encode
    expected = jax.jit(step_of(encode))(params, ids, mask, target)
    encode = sharding.on_mesh(encode, mesh=mesh, **DIVIDED) if tokens_by == "the ring" else encode
    with jax.set_mesh(mesh):
        on_mesh = jax.tree.map(put, params, specs), *(put(x, tokens) for x in (ids, mask, target))
        places = None if tokens_by == "types" else (None, jax.tree.map(lambda x: x.sharding, on_mesh[0]))
        compiled = jax.jit(step_of(encode), out_shardings=places).lower(*on_mesh).compile()
        found = compiled(*on_mesh)
        pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
        for ours, right in pairs:
            np.testing.assert_allclose(np.asarray(ours), right, rtol=1e-12, atol=1e-12)
        for before, after in zip(jax.tree.leaves(on_mesh[0]), jax.tree.leaves(found[1]), strict=True):
            assert after.sharding.is_equivalent_to(before.sharding, after.ndim)
    sent = {one.kind for one in collectives(compiled)}
    assert tokens_by != "the ring" or "collective-permute" in sent
