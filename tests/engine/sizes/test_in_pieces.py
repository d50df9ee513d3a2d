"""Layers a few rows of the batch at a time, where nothing is differentiated: the same numbers in less memory."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import masks, ops, spec
from attendax.ops import in_pieces
from compilation import quickly

B, T, M, N = 7, 5, 6, 2
SHAPES = jax.eval_shape(lambda key: ops.init_encoder_block(key, M, N, 9, bias=True), jax.random.key(0))
DRAWN = np.random.default_rng(0)
PARAMS = jax.tree.map(lambda x: DRAWN.standard_normal(x.shape).astype(np.float32), SHAPES)
X, MOVE = (np.random.default_rng(seed).standard_normal((B, T, M)).astype(np.float32) for seed in (1, 2))
LENGTHS = np.array([5, 1, 3, 2, 5, 4, 1], np.int32)
REAL = np.arange(T) < LENGTHS[:, None]
IDS = np.random.default_rng(3).integers(0, 3, (B, T)).astype(np.int32)
MASKS = {
    "none": (None, None),
    "padding": (REAL[:, None, None], REAL[:, None, None]),
    "the same for all": (np.tri(T, dtype=bool), np.tri(T, dtype=bool)),
    "of one row": (np.tri(T, dtype=bool)[None, None], np.tri(T, dtype=bool)),
    "lengths": (masks.padding(LENGTHS), REAL[:, None, None]),
    "lengths and causal": (masks.padding(LENGTHS) & masks.causal(), REAL[:, None, None] & np.tri(T, dtype=bool)),
    "segments": (masks.segments(IDS, IDS), (IDS[:, :, None] == IDS[:, None])[:, None]),
}


@pytest.fixture(autouse=True)
def two_rows_at_a_time(monkeypatch):
    monkeypatch.setattr(in_pieces, "LEAST", 2 * T)
    monkeypatch.setattr(in_pieces, "NUMBERS", 0)


def block(mask=None, **options):
    return lambda x, params: ops.encoder_block(x, params, num_heads=N, mask=mask, **options)


def is_in_pieces(function, *arrays):
    """Whether it has a loop more than the whole."""
    with pytest.MonkeyPatch.context() as patch:
        loops = [jax.jit(lambda *arrays: function(*arrays)).lower(*arrays).as_text().count("stablehlo.while")]
        patch.setattr(in_pieces, "LEAST", 10**6)
        loops += [jax.jit(lambda *arrays: function(*arrays)).lower(*arrays).as_text().count("stablehlo.while")]
    return loops[0] > loops[1]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("mask", MASKS)
def test_a_layer_in_pieces_equals_the_specification(mask, norm):
    """Seven rows two at a time: the last piece has one that is no row of the batch."""
    value, in_full = MASKS[mask]
    attend = block(value, norm=norm)
    assert is_in_pieces(attend, X, PARAMS)
    full = None if in_full is None else np.broadcast_to(in_full, (B, N, T, T))
    wanted = spec.encoder_block(X, PARAMS, num_heads=N, mask=full, norm=norm)
    np.testing.assert_allclose(quickly(attend)(X, PARAMS), wanted, rtol=1e-5, atol=1e-5)


def test_a_square_of_masks_is_not_taken_for_a_batch():
    """Where B = T, a mask (T, T) is the same for all rows, and so are ids (T,); lengths (B,) are of each."""
    x, mask = X[:T], np.tri(T, dtype=bool)
    wanted = spec.encoder_block(x, PARAMS, num_heads=N, mask=np.broadcast_to(mask, (T, N, T, T)))
    assert is_in_pieces(block(mask), x, PARAMS)
    np.testing.assert_allclose(quickly(block(mask))(x, PARAMS), wanted, rtol=1e-5, atol=1e-5)
    lengths, ids = masks.padding(LENGTHS[:T]), np.arange(T, dtype=np.int32) // 2
    for mask, pieces in ((lengths, True), (masks.segments(ids, ids), False)):
        assert is_in_pieces(block(mask), x, PARAMS) == pieces
        wanted = spec.encoder_block(x, PARAMS, num_heads=N, mask=np.broadcast_to(mask.to_dense(T, T), (T, N, T, T)))
        np.testing.assert_allclose(quickly(block(mask))(x, PARAMS), wanted, rtol=1e-5, atol=1e-5)


def test_a_function_of_a_user_may_read_what_it_likes():
    rows = jnp.asarray(LENGTHS)
    mask = masks.from_function(lambda i, j, rows: j < rows[0] + i, rows)
    assert not is_in_pieces(block(mask), X, PARAMS)


def loss(x, params, mask=None):
    return (block(mask)(x, params) * jnp.cos(jnp.arange(M, dtype=np.float32))[None, None]).sum()


MASK = MASKS["lengths"][0]
DERIVATIVES = {
    "both": lambda x, params: jax.grad(loss, (0, 1))(x, params, MASK),
    "of x": lambda x, params: jax.grad(loss)(x, params, MASK),
    "of params": lambda x, params: jax.grad(loss, 1)(x, params, MASK),
    "jvp": lambda x, params: jax.jvp(lambda x: block(MASK)(x, params), (x,), (MOVE,)),
    "twice": lambda x, params: jax.jvp(lambda x: jax.grad(loss)(x, params, MASK), (x,), (MOVE,))[1],
    "checkpoint": lambda x, params: jax.grad(jax.checkpoint(loss))(x, params, MASK),
    "one at a time": lambda x, params: jax.vmap(lambda x: block()(x[None], params))(x),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("way", DERIVATIVES)
def test_derivatives_of_a_layer_are_not_in_pieces(way, monkeypatch):
    run = DERIVATIVES[way]
    found = quickly(run)(X, PARAMS)
    assert not is_in_pieces(run, X, PARAMS)
    monkeypatch.setattr(in_pieces, "LEAST", 10**6)
    jax.clear_caches()
    chex.assert_trees_all_close(found, quickly(run)(X, PARAMS), rtol=1e-4, atol=1e-5)


def test_a_gradient_of_weights_computes_no_tangent_of_the_tokens():
    """The gradient of the weights alone has no product for a tangent of x, which is 0."""
    of_params = jax.jit(jax.grad(loss, 1)).lower(X, PARAMS).compile().cost_analysis()["flops"]
    plain = jax.jit(jax.grad(lambda x, params: (ops.block._at_once(params, x, None, **AT_ONCE)).sum(), 1))
    assert of_params <= 1.02 * plain.lower(X, PARAMS).compile().cost_analysis()["flops"] + 2000


AT_ONCE = {"shape": (B, N, T, T), "norm": "pre", "activation": "relu", "eps": 1e-6}


def test_a_stack_and_a_layer_go_in_pieces_too():
    def stack(x, params):
        return ops.stack_encoder_blocks(x, [params] * 2, num_heads=N)

    assert jax.jit(stack).lower(X, PARAMS).as_text().count("stablehlo.while") == 2
    wanted = spec.encoder_block(spec.encoder_block(X, PARAMS, num_heads=N), PARAMS, num_heads=N)
    np.testing.assert_allclose(quickly(stack)(X, PARAMS), wanted, rtol=1e-5, atol=1e-5)
    layer = ops.TransformerEncoderBlock(M, N, 9)
    assert is_in_pieces(lambda x, params: layer.forward(x, params), X, PARAMS)
    np.testing.assert_allclose(
        layer.forward(X, PARAMS), spec.encoder_block(X, PARAMS, num_heads=N), rtol=1e-5, atol=1e-5
    )


@pytest.mark.smoke
@pytest.mark.parametrize("mask", ["none", "padding", "lengths"])
def test_multi_head_attention_of_other_keys(mask):
    value, in_full = MASKS[mask]
    queries = X[:, :3]

    def attend(x, keys, params):
        return ops.multi_head_attention(x, keys, keys, params.attention, num_heads=N, mask=value)

    assert is_in_pieces(attend, queries, X, PARAMS)
    assert not is_in_pieces(jax.grad(lambda *given: attend(*given).sum(), (0, 1, 2)), queries, X, PARAMS)
    full = None if in_full is None else np.broadcast_to(in_full[:, :, :1], (B, N, 3, T))
    wanted = spec.multi_head_attention(queries, X, X, PARAMS.attention, num_heads=N, mask=full)
    np.testing.assert_allclose(quickly(attend)(queries, X, PARAMS), wanted, rtol=1e-5, atol=1e-5)
    layer = ops.MultiHeadAttention(M, N, bias=True)
    assert is_in_pieces(lambda x, params: layer.forward(x, x, x, params.attention), X, PARAMS)


def test_outside_of_jit_nothing_is_looped_over():
    """Each call would compile its loop anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.lax, "map", None)
        found = block()(X, PARAMS)
    np.testing.assert_allclose(found, quickly(block())(X, PARAMS), rtol=1e-5, atol=1e-5)


def test_a_mesh_a_symbolic_length_and_what_becomes_an_array_go_whole():
    layer = ops.MultiHeadAttention(M, N, bias=True)
    with jax.set_mesh(jax.make_mesh((1,), ("d",))):
        x = jax.device_put(X, jax.P("d"))
        assert jax.jit(lambda x: layer.forward(x, x, x, PARAMS.attention))(x).shape == X.shape

    (length,) = jax.export.symbolic_shape("t")
    exported = jax.export.export(jax.jit(lambda x: block()(x, PARAMS)))
    found = exported(jax.ShapeDtypeStruct((B, length, M), np.float32)).call(X)
    np.testing.assert_allclose(found, quickly(block())(X, PARAMS), rtol=1e-5, atol=1e-5)

    class Weight:
        shape, dtype, ndim, size = (M, 9), np.dtype("float32"), 2, 9 * M

        def __jax_array__(self):
            return jnp.asarray(PARAMS.W1)

        def astype(self, dtype):
            return jnp.asarray(PARAMS.W1, dtype)

    found = jax.jit(lambda x: block()(x, PARAMS._replace(W1=Weight())))(X)
    np.testing.assert_allclose(found, quickly(block())(X, PARAMS), rtol=1e-5, atol=1e-5)


def test_a_layer_in_pieces_needs_the_memory_of_one_piece(monkeypatch):
    monkeypatch.undo()
    params = jax.eval_shape(
        lambda key: ops.init_encoder_block(key, 384, 12, bias=True, dtype=np.float32), jax.random.key(0)
    )
    x = jax.ShapeDtypeStruct((32, 128, 384), np.float32)
    run = jax.jit(lambda x, params: ops.encoder_block(x, params, num_heads=12))
    mebibytes = run.lower(x, params).compile().memory_analysis().temp_size_in_bytes / 2**20
    assert mebibytes < 20  # 54 at once
