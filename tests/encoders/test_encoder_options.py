"""The encoders in use, as configurations: positions, norms, gates, windows, dropout, packing, scan, remat, bfloat16."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import spec
from attendax.encoders import EncoderConfig, encode, encoder_shapes, init_encoder, layer_attention, stack_layers
from compilation import quickly
from random_encoders import IDS, MASK, random_params

PACKED = np.array([[4, 4, 4, 7, 7], [1, 1, 1, 0, 0]], np.int32)
BERT = EncoderConfig(17, 13, 2, d_model=12, num_heads=3, d_ff=11, num_layers=3)
CONFIGS = {
    "modern": dataclasses.replace(
        BERT, norm="pre", activation="geglu", norm_bias=False, bias=False, positions="rotary", num_token_types=0,
        rope_theta=(50.0, 10000.0, 50.0), window=(None, 1, None), first_norm=False, final_norm=True, eps=1e-5,
    ),
    "grouped": dataclasses.replace(
        BERT, norm="pre", activation="swiglu", norm_kind="rms", bias=False, num_kv_heads=1, positions="alibi",
        final_norm=True, embedding_norm=False, num_token_types=0, eps=1e-6,
    ),
    "sinusoidal": dataclasses.replace(BERT, positions="sinusoidal", activation="silu", window=2),
    "nothing": dataclasses.replace(BERT, positions="none", activation="geglu_tanh", norm_bias=False),
}  # fmt: skip
KEY = np.array([3, 5], np.uint32)


class TestConfig:
    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({"d_model": 7}, ValueError, "d_model=7 is not divisible by num_heads=3"),
            ({"vocab_size": 0}, ValueError, "vocab_size must be at least 1, got 0"),
            ({"num_layers": -1}, ValueError, "num_layers must be at least 0, got -1"),
            ({"d_ff": 2.5}, TypeError, "d_ff must be an integer"),
            ({"norm": "both"}, ValueError, "norm must be one of"),
            ({"eps": -1.0}, ValueError, "eps must be"),
            ({"norm_kind": "batch"}, ValueError, "norm_kind must be one of 'layer', 'rms'"),
            ({"activation": "swish"}, ValueError, "activation must be one of .*'swiglu'"),
            ({"positions": "relative"}, ValueError, "positions must be one of"),
            ({"num_kv_heads": 2}, ValueError, "num_heads=3 is not a multiple of num_kv_heads=2"),
            ({"positions": "rotary", "d_model": 9}, ValueError, "rotary positions need heads of an even width, got 3"),
            ({"window": (1, 2)}, ValueError, "window has 2 values but there are num_layers=3"),
            ({"rope_theta": (1.0, 2.0, 0.0)}, ValueError, "rope_theta must be"),
            ({"window": -1}, ValueError, "window must be at least 0"),
            ({"dropout": 1.5}, ValueError, "dropout must be"),
            ({"first_norm": False}, ValueError, 'first_norm=False is for norm="pre"'),
            ({"bias": 1}, TypeError, "bias must be True or False"),
        ],
    )
    def test_refuses(self, change, error, message):
        with pytest.raises(error, match=rf"^EncoderConfig: {message}"):
            dataclasses.replace(BERT, **change)

    def test_is_hashable(self):
        assert hash(BERT) == hash(dataclasses.replace(BERT))

    @pytest.mark.parametrize("name", CONFIGS)
    def test_init_draws_what_the_table_says(self, name):
        drawn = jax.eval_shape(partial(init_encoder, config=CONFIGS[name]), jax.random.key(0))
        assert jax.tree.map(lambda leaf: leaf.shape, drawn) == jax.tree.map(
            lambda leaf: leaf.shape, encoder_shapes(CONFIGS[name])
        )


class TestTwins:
    @pytest.mark.parametrize("packed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["padded", "packed"])
    @pytest.mark.parametrize(
        "name", ["modern", *(pytest.param(n, marks=pytest.mark.slow) for n in CONFIGS if n != "modern")]
    )
    def test_agree(self, name, packed):
        """With dropout too: what is dropped depends on the key and the place alone (L10)."""
        config = dataclasses.replace(CONFIGS[name], dropout=0.3 if packed else 0.0)
        given = {"mask": MASK} | ({"segments": PACKED, "dropout_rng": KEY} if packed else {})
        params = random_params(config)
        found = quickly(partial(encode, config=config, **given))(IDS, params)
        wanted = encode(IDS, params, config=config, twin=spec, **given)
        np.testing.assert_allclose(found[MASK], wanted[MASK], rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("config", [*CONFIGS.values(), BERT], ids=[*CONFIGS, "bert"])
    def test_every_weight_matters(self, config):
        params = random_params(config)
        before = encode(IDS, params, config=config, mask=MASK, twin=spec)
        leaves, structure = jax.tree.flatten(params)
        for k, (path, _) in enumerate(jax.tree_util.tree_leaves_with_path(params)):
            changed = jax.tree.unflatten(structure, [*leaves[:k], 2 * leaves[k], *leaves[k + 1 :]])
            difference = np.abs(encode(IDS, changed, config=config, mask=MASK, twin=spec) - before)[MASK].max()
            assert (difference > 1e-6) == (path[-1].name != "b_K"), path


class TestMeaning:
    """By the specification, without a compiler."""

    @pytest.mark.smoke
    @pytest.mark.parametrize("name", CONFIGS)
    def test_packed_texts_are_as_good_as_alone(self, name):
        config = CONFIGS[name]
        params = random_params(config)
        together = encode(IDS, params, config=config, segments=PACKED, twin=spec)
        for row, texts in enumerate([((0, 3), (3, 5)), ((0, 3), (3, 5))]):
            for begin, end in texts:
                alone = encode(IDS[row : row + 1, begin:end], params, config=config, twin=spec)
                np.testing.assert_allclose(together[row, begin:end], alone[0], rtol=1e-12, atol=1e-12)

    @pytest.mark.smoke
    @pytest.mark.parametrize("name", ["modern", "sinusoidal"])
    def test_a_window_bounds_what_a_layer_sees(self, name):
        config = dataclasses.replace(CONFIGS[name], window=1, rope_theta=10000.0)
        weights = layer_attention(IDS, random_params(config), config=config, layer=1)
        near = np.abs(np.subtract.outer(np.arange(5), np.arange(5))) <= 1
        assert (weights[:, :, ~near] == 0).all()
        assert (weights[:, :, near] > 0).all()
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-12)

    def test_rotary_and_alibi_know_distances_alone(self):
        """A text later in a row is the same text: shown by padding in front of it."""
        for name in ("modern", "grouped"):
            config, params = CONFIGS[name], random_params(CONFIGS[name])
            ids, real = np.array([[0, 0, 2, 13, 3]]), np.array([[False, False, True, True, True]])
            later = encode(ids, params, config=config, mask=real, twin=spec)[0, 2:]
            np.testing.assert_allclose(later, encode(ids[:, 2:], params, config=config, twin=spec)[0], atol=1e-12)

    @pytest.mark.slow
    def test_companions_change_no_bit_of_what_is_compiled(self):
        config, params = CONFIGS["modern"], random_params(CONFIGS["modern"], dtype=np.float32)
        run = jax.jit(partial(encode, config=config))
        both = [run(np.stack([IDS[0], row]), params, mask=MASK)[0] for row in (IDS[1], IDS[1, ::-1])]
        np.testing.assert_array_equal(*both)

    def test_companions_change_nothing(self):
        config, params = CONFIGS["modern"], random_params(CONFIGS["modern"])
        other = np.stack([IDS[1], IDS[1, ::-1]])
        both = [encode(np.stack([IDS[0], row]), params, config=config, twin=spec)[0] for row in other]
        np.testing.assert_array_equal(*both)


class TestTraining:
    def test_no_dropout_is_the_same_program(self):
        """Rate 0 with a key, and a rate without one: the same operations, so the same bits."""
        params = random_params(BERT, dtype=np.float32)
        configs = (BERT, {}), (BERT, {"dropout_rng": KEY}), (dataclasses.replace(BERT, dropout=0.5), {})
        programs = {str(jax.make_jaxpr(partial(encode, config=c, **given))(IDS, params)) for c, given in configs}
        assert len(programs) == 1

    @pytest.mark.smoke
    def test_dropout_draws_anew_in_every_layer_and_row(self):
        config = dataclasses.replace(BERT, dropout=0.5, num_layers=0)
        ids = np.repeat(IDS[:1], 2, axis=0)
        found = encode(ids, random_params(config), config=config, dropout_rng=KEY, twin=spec)
        dropped = found == 0
        assert 0.3 < dropped.mean() < 0.7
        assert (dropped[0] != dropped[1]).any()

    @pytest.mark.slow
    def test_scan_and_remat_have_the_same_gradients(self):
        """A first layer of its own, and one that repeats, with the random keys of its place."""
        layers = {"window": (None, 1, 1), "rope_theta": (50.0, 1e4, 1e4)}
        config = dataclasses.replace(CONFIGS["modern"], dropout=0.2, **layers)
        params = random_params(config)
        stacked = stack_layers(params, config)
        assert len(stacked.blocks) == 2

        def loss(params, **options):
            hidden = encode(IDS, params, config=config, mask=MASK, dropout_rng=KEY, **options)
            return (jnp.where(MASK[..., None], hidden, 0) ** 3).mean()

        wanted = stack_layers(quickly(jax.grad(loss))(params), config)
        found = quickly(jax.grad(partial(loss, remat=True)))(stacked)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12), found, wanted)

    def test_remat_keeps_what_attention_gave(self, capsys):
        params = random_params(BERT, dtype=np.float32)
        kept = {}
        for remat in (False, True):
            jax.ad_checkpoint.print_saved_residuals(
                lambda p, remat=remat: encode(IDS, p, config=BERT, remat=remat).sum(), params
            )
            kept[remat] = capsys.readouterr().out.splitlines()
        assert sum("attention_out" in note for note in kept[True]) == BERT.num_layers
        assert sum("attention_lse" in note for note in kept[True]) >= BERT.num_layers
        assert len(kept[True]) < len(kept[False])

    @pytest.mark.smoke
    def test_a_stack_is_the_same_encoder(self):
        config = dataclasses.replace(CONFIGS["modern"], num_layers=6, rope_theta=1e4, window=(None, 1, 2, 1, 2, 1))
        params = random_params(config)
        stacked = stack_layers(params, config)
        kinds = [type(part).__name__ for part in stacked.blocks]
        assert kinds == ["EncoderBlockParams", "LayerStack", "EncoderBlockParams"]
        wanted = encode(IDS, params, config=config, twin=spec)
        np.testing.assert_array_equal(encode(IDS, stacked, config=config, twin=spec), wanted)
        assert stack_layers(stacked, config) is stacked

    def test_narrow_products_of_wide_weights(self):
        params = random_params(BERT, dtype=np.float32)
        text = str(jax.make_jaxpr(partial(encode, config=BERT, dtype="bfloat16"))(IDS, params))
        assert "preferred_element_type=float32" in text
        assert "bf16" in text
        assert jax.eval_shape(partial(encode, config=BERT, dtype="bfloat16"), IDS, params).dtype == np.float32

    @pytest.mark.smoke
    @pytest.mark.parametrize("stored", ["bfloat16", "float16", "float32", "float64"])
    def test_the_result_is_as_wide_as_the_weights(self, stored):
        """In a scan, too, whose carry must not change."""
        config = CONFIGS["grouped"]
        params = stack_layers(random_params(config, dtype=jnp.dtype(stored)), config)
        narrow = "float16" if stored == "float16" else "bfloat16"
        for dtype in (None, narrow):
            out = jax.eval_shape(partial(encode, config=config, dtype=dtype, remat=True), IDS, params)
            assert out.dtype == stored, dtype

    @pytest.mark.slow
    def test_bfloat16_is_near(self):
        config = CONFIGS["grouped"]
        params = random_params(config, dtype=np.float32)
        found = quickly(partial(encode, config=config, dtype="bfloat16"))(IDS, params)
        wanted = encode(IDS, params, config=config, twin=spec)
        assert np.abs(found - wanted).max() < 0.1 * np.abs(wanted).max()
        assert np.abs(found - wanted).max() > 0


@pytest.mark.smoke
class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"segments": PACKED.astype(float)}, TypeError, "segments must be an array of integer dtype"),
            ({"segments": PACKED[:, :4]}, ValueError, "segments has the wrong shape"),
            ({"token_types": IDS * 0}, ValueError, "token_types are given but the encoder has num_token_types=0"),
            ({"dtype": "bfloat16", "twin": spec}, NotImplementedError, "dtype and remat are for JAX"),
            ({"remat": True, "twin": spec}, NotImplementedError, "dtype and remat are for JAX"),
            ({"dtype": "int8"}, TypeError, "dtype must be a floating dtype, such as 'bfloat16', got 'int8'"),
            ({"dtype": "narrow"}, TypeError, "dtype must be a floating dtype, such as 'bfloat16', got 'narrow'"),
            ({"config": {"final_norm": False}}, ValueError, "the last table gamma"),
            ({"config": {"first_norm": True}}, ValueError, "gamma1 of layer 0 of"),
            ({"config": {"bias": True}}, ValueError, "b_Q of layer 0 of params"),
            ({"config": {"num_kv_heads": 1}}, ValueError, "W_K of layer 0 of"),
            ({"config": {"activation": "gelu"}}, ValueError, "W1 of layer 0 of"),
            ({"config": {"norm_bias": True}}, ValueError, "the table beta of params"),
        ],
    )
    def test_refuses(self, arguments, error, message):
        own, changed = CONFIGS["modern"], arguments.get("config", {})
        with pytest.raises(error, match=rf"^encode: {message}"):
            encode(IDS, random_params(own), **arguments | {"config": dataclasses.replace(own, **changed)})

    def test_products_wider_than_the_weights(self):
        with pytest.raises(ValueError, match=r"^encode: dtype=float64 is wider than the weights, float32"):
            encode(IDS, random_params(BERT, dtype=np.float32), config=BERT, dtype="float64")

    def test_a_layer_of_another_kind_or_in_a_stack(self):
        """Refuse weights that would be left out of the sum, or added to it, without a word."""
        config = dataclasses.replace(BERT, norm="pre")
        params = random_params(config)
        without = params.blocks[1]._replace(gamma2=None)
        with pytest.raises(ValueError, match=r"^encode: gamma2 of layer 1 of params is not that of config\.\n.*None"):
            encode(IDS, params._replace(blocks=(params.blocks[0], without, params.blocks[2])), config=config)
        with pytest.raises(TypeError, match=r"^encode: params.blocks, layer 0, must be EncoderBlockParams, got dict"):
            encode(IDS, params._replace(blocks=({}, *params.blocks[1:])), config=config)
        narrow = dataclasses.replace(config, d_ff=7)
        with pytest.raises(
            ValueError, match=r"^encode: W1 of layer 0 of params .*\n.* got \(3, 12, 11\) *expected \(3, 12, 7\)"
        ):
            encode(IDS, stack_layers(params, config), config=narrow)
        with pytest.raises(ValueError, match=r"^stack_layers: params has 3 blocks but config has num_layers=6"):
            stack_layers(params, dataclasses.replace(config, num_layers=6))
