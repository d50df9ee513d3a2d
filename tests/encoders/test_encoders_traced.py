"""Encoders inside jit, grad, vmap and scan: what a function closes over is known, and looked at."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import spec
from attendax.encoders import EncoderConfig, encode, init_encoder, layer_attention
from attendax.encoders.embedding import mean_pool
from attendax.ops.in_pieces import in_pieces
from random_encoders import IDS, MASK, TYPES

CONFIG = EncoderConfig(17, 13, 2, d_model=6, num_heads=3, d_ff=11, num_layers=1)
GIVEN = {"mask": MASK, "token_types": TYPES}
KINDS = pytest.mark.parametrize("kind", [jnp.asarray, np.asarray], ids=["jax", "numpy"])
ON_IDS = [{"x": IDS + 17}, {"x": -IDS}, {"token_types": TYPES + 1}]


@pytest.fixture(scope="module")
def params():
    return jax.jit(init_encoder, static_argnums=1)(jax.random.key(0), CONFIG)


def by_specification(params):
    return encode(IDS, params, config=CONFIG, **GIVEN, twin=spec)


def loss_over(of_ids, of_others):
    """A loss that closes over ids, mask and types, as arrays of these kinds, or is given them."""
    ids, given = of_ids(IDS), {name: of_others(array) for name, array in GIVEN.items()}

    def loss(params, ids=ids, given=given):
        hidden = encode(ids, params, config=CONFIG, **given)
        return (jnp.where(given["mask"][:, :, None], hidden, 0.0) ** 2).mean()

    return loss


def loss_by_specification(params):
    return (np.where(MASK[:, :, None], by_specification(params), 0.0) ** 2).mean()


def assert_close(found, wanted):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, wanted)


class TestClosedOver:
    @pytest.mark.slow
    def test_gradient(self, params):
        """Equal to that of a loss which is given its ids and mask, traced, as arguments; arrays of either kind."""
        loss = loss_over(jnp.asarray, np.asarray)
        traced = jax.jit(jax.grad(loss))(params, jnp.asarray(IDS), jax.tree.map(jnp.asarray, GIVEN))
        assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(traced)) > 1e-3
        assert_close(jax.jit(jax.grad(loss))(params), traced)
        assert_close(jax.jit(jax.grad(jax.checkpoint(loss_over(np.asarray, jnp.asarray))))(params), traced)

    @pytest.mark.slow
    def test_vmap_over_weights(self, params):
        other = jax.tree.map(lambda leaf: 2 * leaf, params)
        both = jax.tree.map(lambda a, b: jnp.stack([a, b]), params, other)
        found = jax.jit(jax.vmap(loss_over(jnp.asarray, np.asarray)))(both)
        assert_close(found, np.array([loss_by_specification(params), loss_by_specification(other)]))

    @pytest.mark.slow
    def test_training_in_a_scan(self, params):
        loss = loss_over(np.asarray, jnp.asarray)

        def step(params, _):
            value, gradient = jax.value_and_grad(loss)(params)
            return jax.tree.map(lambda leaf, slope: leaf - 0.5 * slope, params, gradient), value

        trained, values = jax.jit(lambda params: jax.lax.scan(step, params, None, length=4))(params)
        assert values[3] < values[0]
        np.testing.assert_allclose(values[0], loss_by_specification(params), rtol=1e-5)
        assert loss_by_specification(trained) < values[3]

    @pytest.mark.slow
    def test_rows_of_ids_in_vmap_and_scan(self, params):
        """There the ids are traced."""
        ids = jnp.asarray(IDS)
        right = encode(ids, params, config=CONFIG)
        assert_close(jax.vmap(lambda row: encode(row[None], params, config=CONFIG)[0])(ids), right)
        scan = jax.lax.scan(lambda _, row: (None, encode(row[None], params, config=CONFIG)[0]), None, ids)
        assert_close(scan[1], right)

    @pytest.mark.sample(3)
    @KINDS
    @pytest.mark.parametrize("change", ON_IDS, ids=["x above", "x below", "token_types above"])
    def test_ids_outside_their_table_are_refused(self, params, kind, change):
        """Known ids are looked at inside jit too, with the words of an eager call."""
        given = {"x": kind(IDS)} | {name: kind(array) for name, array in change.items()}
        messages = []
        for call in (lambda f: f(params), lambda f: jax.jit(f)(params), lambda f: jax.jit(jax.grad(f))(params)):
            with pytest.raises(ValueError, match=r"^encode: .* but its table has rows 0 to ") as caught:
                call(lambda params: encode(params=params, config=CONFIG, **given).sum())
            messages.append(str(caught.value))
        assert len(set(messages)) == 1

    @KINDS
    def test_specification_of_what_is_known(self, params, kind):
        """Nothing in it is traced, though all is called inside jit."""
        weights, ids = jax.tree.map(kind, params), kind(IDS)
        mask = kind(MASK)

        def call(y):
            hidden = encode(ids, weights, config=CONFIG, mask=mask, twin=spec)
            return y + mean_pool(hidden, mask) + layer_attention(ids, weights, config=CONFIG, layer=0).sum()

        assert_close(jax.jit(call)(1.0), call(1.0))


class TestIds:
    @pytest.mark.sample(2)
    @pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "int64", "uint64", ">i2", ">i4", ">u8"])
    @pytest.mark.parametrize("call", [lambda f: f, jax.jit], ids=["eager", "jit"])
    def test_any_integers(self, params, dtype, call):
        types = TYPES
        right = encode(IDS, params, config=CONFIG, token_types=types)
        ids, types = IDS.astype(dtype), types.astype(dtype)
        assert_close(call(lambda params: encode(ids, params, config=CONFIG, token_types=types))(params), right)

    @pytest.mark.smoke
    def test_64_bits_are_not_cut(self, params):
        """With 32-bit JAX 2**32 + 3 would become 3."""
        ids = np.array([[2**32 + 3]])
        with jax.enable_x64(False), pytest.raises(ValueError, match=r"^encode: x holds 4294967299 but its table has"):
            jax.jit(lambda params: encode(ids, params, config=CONFIG))(params)


class TestRefusals:
    @pytest.mark.parametrize("name", ["params", "x", "mask"])
    def test_numpy_refuses_what_is_traced(self, params, name):
        given = {"params": params, "x": IDS, "mask": MASK}
        calls = {
            "encode with twin=spec": lambda **given: encode(config=CONFIG, twin=spec, **given),
            "layer_attention": lambda **given: layer_attention(config=CONFIG, layer=0, **given),
        }
        for function, call in calls.items():
            with pytest.raises(TypeError, match=rf"^{function}: it computes in NumPy and got a traced array"):
                jax.jit(lambda value, call=call: call(**given | {name: value}))(given[name])

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"params": None}, "params must be EncoderParams, got NoneType"),
            ({"params": {}}, "params must be EncoderParams, got dict"),
            ({"config": {}}, "config must be EncoderConfig, got dict"),
            ({"config": None}, "config must be EncoderConfig, got NoneType"),
        ],
    )
    def test_arguments_of_another_kind(self, params, change, message):
        with pytest.raises(TypeError, match=rf"^encode: {message}\.$"):
            encode(**{"params": params, "x": IDS, "config": CONFIG} | change)

    def test_a_table_that_is_no_array(self, params):
        broken = params._replace(embeddings=params.embeddings._replace(token=[1.0, 2.0]))
        with pytest.raises(ValueError, match=r"^encode: the table token of params is not that of config"):
            encode(IDS, broken, config=CONFIG)

    @pytest.mark.smoke
    @KINDS
    @pytest.mark.parametrize(
        ("mask", "error", "message"),
        [
            (np.ones((2, 5), np.int32), TypeError, "mask must be an array of boolean dtype, got int32"),
            (np.full((2, 5), 0.5, np.float32), TypeError, "mask must be an array of boolean dtype, got float32"),
            (np.ones((5, 2), bool), ValueError, "hidden and mask do not fit each other"),
            (np.ones((2, 1), bool), ValueError, "hidden and mask do not fit each other"),
        ],
    )
    def test_pooling_with_another_mask(self, kind, mask, error, message):
        """A mask of numbers would be taken for weights, and one of another shape repeated."""
        with pytest.raises(error, match=rf"^mean_pool: {message}"):
            mean_pool(kind(np.ones((2, 5, 6), np.float32)), kind(mask))

    @pytest.mark.smoke
    @pytest.mark.parametrize("mask", [None, [[True] * 5] * 2])
    def test_pooling_of_lists(self, mask):
        with pytest.raises(TypeError, match=r"^mean_pool: mask must be an array of boolean dtype, got "):
            mean_pool(np.ones((2, 5, 6)), mask)
        with pytest.raises(TypeError, match=r"^mean_pool: hidden must be an array, got list"):
            mean_pool([[[1.0]]], np.ones((1, 1), bool))


def test_a_symbolic_batch_is_not_cut_into_pieces():
    """How many pieces there are is not known when such a function is exported."""
    (rows,) = jax.export.symbolic_shape("b")
    double = jax.jit(lambda hidden: in_pieces(lambda hidden, mask: 2 * hidden, hidden, None))
    exported = jax.export.export(double)(jax.ShapeDtypeStruct((rows, 5, 6), np.float32))
    np.testing.assert_array_equal(exported.call(np.ones((3, 5, 6), np.float32)), np.full((3, 5, 6), 2.0))
