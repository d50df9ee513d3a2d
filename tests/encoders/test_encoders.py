"""Whole encoders: configuration, initialisation, both twins, attention weights of a layer."""

import dataclasses
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import ops, spec
from attendax.conformance import assert_gradients
from attendax.encoders import EncoderConfig, encode, encoder_shapes, init_encoder, layer_attention
from attendax.ops import in_pieces
from attendax.params import EncoderParams
from compilation import quickly
from random_encoders import IDS, MASK, TYPES, random_params

CONFIG = EncoderConfig(17, 13, 2, d_model=6, num_heads=3, d_ff=11, num_layers=2)
PARAMS = random_params(CONFIG, dtype=np.float32)
BOTH_TWINS = pytest.mark.parametrize("twin", [ops, spec], ids=["ops", "spec"])


class TestInitEncoder:
    @pytest.mark.slow
    def test_leaves(self):
        params = jax.jit(init_encoder, static_argnums=1)(jax.random.key(0), CONFIG)
        assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params) == jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype), encoder_shapes(CONFIG)
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            kind = path[-1].name.rstrip("12")
            if kind == "gamma":
                np.testing.assert_array_equal(leaf, 1.0)
            elif kind in ("beta", "b", "b_Q", "b_K", "b_V", "b_O"):
                np.testing.assert_array_equal(leaf, 0.0)
            else:
                assert 0.005 < float(jnp.std(leaf)) < 0.04, path

    def test_scale(self):
        large = EncoderConfig(1000, 13, 2, d_model=60, num_heads=3, d_ff=11, num_layers=0)
        table = init_encoder(jax.random.key(0), large).embeddings.token
        np.testing.assert_allclose(np.std(table), 0.02, rtol=0.02)

    @pytest.mark.slow
    def test_no_two_leaves_are_alike(self):
        first, second = init_encoder(jax.random.key(0), CONFIG).blocks
        matrices = [first.attention.W_Q, first.attention.W_K, second.attention.W_Q, second.attention.W_K]
        assert len({bytes(np.asarray(matrix)) for matrix in matrices}) == 4

    @pytest.mark.slow
    def test_same_key_same_weights(self):
        chex.assert_trees_all_equal(init_encoder(jax.random.key(3), CONFIG), init_encoder(jax.random.key(3), CONFIG))


class TestEncode:
    @BOTH_TWINS
    @pytest.mark.parametrize("types", [None, TYPES], ids=["type 0", "types given"])
    def test_input_layer_by_definition(self, twin, types):
        """Without blocks: the sum of three rows, then a layer norm, written as loops."""
        config = dataclasses.replace(CONFIG, num_layers=0, eps=1e-3)
        params = random_params(config, dtype=np.float32)
        token, position, token_type, gamma, beta = params.embeddings
        expected = np.zeros((2, 5, 6))
        for b in range(2):
            for t in range(5):
                kind = 0 if types is None else types[b, t]
                row = token[IDS[b, t]].astype(np.float64) + position[t] + token_type[kind]
                expected[b, t] = (row - row.mean()) / np.sqrt(row.var() + 1e-3) * gamma + beta
        found = encode(IDS, params, config=config, token_types=types, twin=twin)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

    @BOTH_TWINS
    def test_blocks_in_order(self, twin):
        """Two layers are the first, then the second, each with the options of the configuration."""
        config = dataclasses.replace(CONFIG, norm="pre", activation="gelu_tanh", eps=1e-3)
        params = random_params(config, dtype=np.float32)
        hidden = encode(
            IDS, params._replace(blocks=()), config=dataclasses.replace(config, num_layers=0), mask=MASK, twin=twin
        )
        for block in params.blocks:
            hidden = twin.encoder_block(
                hidden, block, num_heads=3, mask=MASK[:, None, None], norm="pre", activation="gelu_tanh", eps=1e-3
            )
        found = encode(IDS, params, config=config, mask=MASK, twin=twin)
        np.testing.assert_allclose(found, hidden, rtol=1e-6, atol=1e-6)

    @pytest.mark.smoke
    @pytest.mark.sample(5)
    @pytest.mark.parametrize("norm", ["pre", "post"])
    @pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
    @pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-12)])
    def test_twins_agree(self, norm, activation, dtype, tolerance):
        config = dataclasses.replace(CONFIG, norm=norm, activation=activation)
        params = random_params(config, dtype=dtype)
        with jax.enable_x64(True):
            fast = encode(IDS, params, config=config, mask=MASK, token_types=TYPES)
        right = encode(IDS, params, config=config, mask=MASK, token_types=TYPES, twin=spec)
        assert fast.dtype == right.dtype == dtype
        np.testing.assert_allclose(fast[MASK], right[MASK], rtol=tolerance, atol=tolerance)

    @BOTH_TWINS
    def test_padding_changes_no_bit(self, twin):
        """L6: other token ids in the padding leave every real position as it was, to the bit."""
        outputs = []
        for pad_id in (0, 9, 16):
            ids = np.where(MASK, IDS, pad_id).astype(np.int32)
            outputs.append(np.asarray(encode(ids, PARAMS, config=CONFIG, mask=MASK, twin=twin))[MASK])
        np.testing.assert_array_equal(outputs[0], outputs[1])
        np.testing.assert_array_equal(outputs[0], outputs[2])

    @pytest.mark.sample(2)
    @BOTH_TWINS
    @pytest.mark.parametrize("shape", [(0, 5), (2, 0), (2, 13)])
    def test_any_size(self, twin, shape):
        hidden = encode(np.ones(shape, np.int32), PARAMS, config=CONFIG, mask=np.ones(shape, bool), twin=twin)
        assert hidden.shape == (*shape, 6)

    @pytest.mark.smoke
    @BOTH_TWINS
    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"x": IDS.astype(np.float32)}, TypeError, "encode: x must be an array of integer dtype"),
            ({"x": IDS.astype(bool)}, TypeError, "encode: x must be an array of integer dtype"),
            ({"x": IDS.tolist()}, TypeError, "encode: x must be an array of integer dtype, got list"),
            ({"x": IDS[0]}, ValueError, "encode: x has the wrong shape"),
            ({"x": np.full((1, 14), 1)}, ValueError, "encode: x has T=14 tokens but .* max_positions=13"),
            ({"x": np.full((1, 3), 17)}, ValueError, "encode: x holds 17 but its table has rows 0 to 16"),
            ({"x": np.full((1, 3), -1)}, ValueError, "encode: x holds -1 but its table has rows 0 to 16"),
            ({"mask": MASK.astype(int)}, TypeError, "encode: mask must be an array of boolean dtype"),
            ({"mask": MASK[:, None, None]}, ValueError, "encode: mask has the wrong shape"),
            ({"mask": MASK[:1]}, ValueError, "encode: mask has the wrong shape"),
            ({"token_types": MASK}, TypeError, "encode: token_types must be an array of integer dtype"),
            ({"token_types": TYPES[:, :4]}, ValueError, "encode: token_types has the wrong shape"),
            ({"token_types": TYPES + 1}, ValueError, "encode: token_types holds 2 but its table has rows 0 to 1"),
            ({"config": dataclasses.replace(CONFIG, num_layers=3)}, ValueError, "encode: params has 2 blocks but"),
            ({"config": dataclasses.replace(CONFIG, vocab_size=18)}, ValueError, "encode: the table token of params"),
        ],
    )
    def test_refuses(self, twin, arguments, error, message):
        arguments = {"x": IDS, "config": CONFIG, "twin": twin} | arguments
        with pytest.raises(error, match=rf"^{message}"):
            encode(params=PARAMS, **arguments)

    @pytest.mark.smoke
    def test_refuses_another_twin(self):
        with pytest.raises(TypeError, match=r"^encode: twin must be attendax.ops or attendax.spec"):
            encode(IDS, PARAMS, config=CONFIG, twin=np)

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("outside", [-1, 17])
    def test_traced_id_outside_the_vocabulary_is_nan(self, outside):
        """JAX would take the nearest row; under jit nothing can be raised, so it must at least be seen."""
        hidden = jax.jit(partial(encode, config=CONFIG))(jnp.array([[3, 4], [outside, 4]]), PARAMS)
        assert np.isfinite(hidden[0]).all()
        assert np.isnan(hidden[1]).all()

    def test_compiles_once_for_a_shape(self):
        chex.clear_trace_counter()

        @jax.jit
        @chex.assert_max_traces(n=1)
        def run(params, ids, mask):
            return encode(ids, params, config=CONFIG, mask=mask)

        for seed in range(3):
            run(random_params(CONFIG, seed=seed, dtype=np.float32), IDS + seed, MASK)

    @pytest.mark.slow
    def test_gradient_of_every_weight(self):
        """The gradient with respect to all weights is an EncoderParams and agrees with finite differences."""
        with jax.enable_x64(True):
            config = dataclasses.replace(CONFIG, num_layers=1)
            params = jax.tree.map(jnp.asarray, random_params(config, dtype=np.float64))

            @jax.jit
            def run(params):
                return encode(IDS, params, config=config, mask=MASK)

            gradient = jax.eval_shape(jax.grad(lambda params: run(params).sum()), params)
            assert isinstance(gradient, EncoderParams)
            assert_gradients(run, params)


class TestLayerAttention:
    @pytest.mark.parametrize("norm", ["pre", "post"])
    @pytest.mark.parametrize("layer", [0, 1])
    def test_by_definition(self, norm, layer):
        config = dataclasses.replace(CONFIG, norm=norm)
        params = random_params(config, dtype=np.float32)
        below = dataclasses.replace(config, num_layers=layer)
        hidden = encode(IDS, params._replace(blocks=params.blocks[:layer]), config=below, mask=MASK, twin=spec)
        block = params.blocks[layer]
        if norm == "pre":
            centred = hidden - hidden.mean(-1, keepdims=True)
            hidden = centred / np.sqrt((centred**2).mean(-1, keepdims=True)) * block.gamma1 + block.beta1
        expected = np.zeros((2, 3, 5, 5))
        for b, n, i in np.ndindex(2, 3, 5):
            head = slice(2 * n, 2 * n + 2)
            query = (hidden[b, i] @ block.attention.W_Q + block.attention.b_Q)[head]
            keys = (hidden[b] @ block.attention.W_K + block.attention.b_K)[:, head]
            score = np.where(MASK[b], np.exp(keys @ query / np.sqrt(2)), 0.0)
            expected[b, n, i] = score / score.sum()
        found = layer_attention(IDS, params, config=config, layer=layer, mask=MASK)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.smoke
    @pytest.mark.parametrize("layer", [-1, 2])
    def test_refuses_a_layer_that_is_not_there(self, layer):
        with pytest.raises(ValueError, match=r"^layer_attention: layer"):
            layer_attention(IDS, PARAMS, config=CONFIG, layer=layer)


class TestPieces:
    """Rows that go through the blocks a few at a time come out as they do all at once, with all their gradients."""

    @pytest.mark.slow
    @pytest.mark.parametrize(("piece", "masked"), [(5, False), (15, True)], ids=["a row each", "three, and two over"])
    def test_equal_one_piece(self, monkeypatch, piece, masked):
        params, ids = PARAMS, np.concatenate([IDS, IDS[:, ::-1], IDS[:1]])
        mask = np.concatenate([MASK, MASK, MASK[:1]]) if masked else None

        def loss(params):
            hidden = encode(ids, params, config=CONFIG, mask=mask)
            return (hidden**2 * hidden[::-1]).sum(), hidden

        whole = quickly(jax.grad(loss, has_aux=True))(params)
        monkeypatch.setattr(in_pieces, "LEAST", piece)
        monkeypatch.setattr(in_pieces, "NUMBERS", 0)
        by_rows = quickly(lambda params: jax.grad(loss, has_aux=True)(params))
        assert "while" in by_rows.lower(params).as_text()
        chex.assert_trees_all_close(by_rows(params), whole, rtol=1e-4, atol=1e-4)
