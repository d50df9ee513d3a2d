"""L17 for layers that close over their weights and for second derivatives, compiled as users compile.

Calls of attention alone are in ``test_every_law_of_a_call.py``. The tolerance is 1e-5 of the largest entry in float32;
a fault of the compiler is an error of 0.1 to 1e30.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import masks, ops, spec
from attendax.params import EncoderBlockParams, MultiHeadParams
from blockwise import Tiny
from compilation import quickly
from judges import assert_same_bits, dense_formula, times_as_far

pytestmark = pytest.mark.law("L17", "ops", "tiles", "native")

TOLERANCE = 1e-5


def normal(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def assert_close(got, wanted, tolerance, scales):
    """Every leaf to ``tolerance`` of its largest entry, or of its scale where that is larger."""
    leaves = zip(jax.tree.leaves(got), jax.tree.leaves(wanted), scales, strict=True)
    for index, (a, b, scale) in enumerate(leaves):
        a, b = np.asarray(a, np.float64), np.asarray(b)
        assert a.shape == b.shape
        assert np.isfinite(a).all(), f"leaf {index}: not finite"
        error, bound = np.abs(a - b).max(), tolerance * max(np.abs(b).max(), scale)
        assert error <= bound, f"leaf {index}: error {error:.3g}, allowed {bound:.3g}"


# Layers, with weights that they close over


M, F, HEADS = 64, 96, 4
MULTI_HEAD = MultiHeadParams(*normal((4, M, M), 14) / 8)
BLOCK = EncoderBlockParams(
    MULTI_HEAD, normal((M, F), 15) / 8, np.zeros(F), normal((F, M), 16) / 8, np.zeros(M), *(np.ones(M), np.zeros(M)) * 2
)


def like(params, x):
    return jax.tree.map(lambda w: np.asarray(w, x.dtype), params)


def multi_head(twin, x):
    return twin.multi_head_attention(x, x, x, like(MULTI_HEAD, x), num_heads=HEADS)


def multi_head_backward(dout, x):
    cache = spec.multi_head_attention_forward(x, x, x, *like(MULTI_HEAD, x)[:4], HEADS)[1]
    return sum(spec.multi_head_attention_backward(dout, cache)[:3])


def block(twin, x, norm):
    return twin.encoder_block(x, like(BLOCK, x), num_heads=HEADS, norm=norm, mask=masks.causal())


def block_backward(dout, x, norm):
    return spec.encoder_block_backward(dout, x, like(BLOCK, x), num_heads=HEADS, norm=norm, mask=masks.causal())[0]


def seed(twin, x):
    return twin.scaled_dot_product_attention(x, x, x)[0]


def seed_backward(dout, x):
    return sum(spec.scaled_dot_product_attention_backward(dout, x, x, x)[:3])


LAYERS = {
    "multi-head": (multi_head, multi_head_backward),
    "pre": (partial(block, norm="pre"), partial(block_backward, norm="pre")),
    "post": (partial(block, norm="post"), partial(block_backward, norm="post")),
    "scaled_dot_product_attention": (seed, seed_backward),
}
LAYER_LOSSES = {"sum": lambda y: y.sum(), "half": lambda y: y[..., ::2].mean()}


@pytest.mark.sample(1)
@pytest.mark.parametrize(("layer", "loss", "tokens"), [
    ("multi-head", "sum", 128), ("multi-head", "half", 300), ("pre", "sum", 64), ("post", "half", 128),
    ("pre", "half", 300), ("scaled_dot_product_attention", "sum", 64), ("scaled_dot_product_attention", "half", 65),
])  # fmt: skip
def test_a_layer_that_closes_over_its_weights(layer, loss, tokens):
    (layer, backward), loss = LAYERS[layer], LAYER_LOSSES[loss]
    x = normal((2, tokens, M), 17)
    total, gradient = jax.jit(jax.value_and_grad(lambda x: loss(layer(ops, x))))(x)
    wide = x.astype(np.float64)
    out = layer(spec, wide)
    dout = np.asarray(jax.grad(loss)(out))
    scales = np.abs(dout * out).sum(), np.abs(dout).max()
    assert_close((total, gradient), (float(loss(out)), backward(dout, wide)), TOLERANCE, scales)


def test_attention_stats_in_float32_are_near_those_of_float64():
    query, key = (normal((1, 4, 300, 16), k) for k in range(2))
    got = jax.jit(partial(attendax.attention_stats, mask=masks.causal()))(query, key)
    weights = spec.attention_with_weights(*(x.astype(np.float64) for x in (query, key, key)), mask=masks.causal())[2]
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)
    wanted = entropy, weights.max(-1), weights.argmax(-1), weights.sum(-2)
    assert_close(tuple(got), wanted, TOLERANCE, [1.0] * 4)


@pytest.mark.law("L6", "ops", "tiles", "native")
@pytest.mark.slow
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("size", [(1, 5, 8), (12, 64, 16), (2, 300, 16)], ids=str)
def test_what_only_unread_queries_see_changes_no_bit_of_second_derivatives(size, poison):
    """L6: NaN, inf or a huge number in a key and its value, in their directions, or in both."""
    place = size[1] - 2 if size[1] < 50 else 50
    read = place * 4 // 5
    arrays, along = (tuple(normal(size, k + n) for k in range(3)) for n in (0, 3))

    def attend(*arrays):
        return attendax.attention(*arrays, mask=masks.causal())[:, :read]

    @jax.jit
    def everything(arrays, along):
        def gradient(*arrays):
            return jax.grad(lambda *a: (attend(*a) ** 2).sum(), (0, 1, 2))(*arrays)

        def slope(*arrays):
            return (jax.jvp(attend, arrays, along)[1] ** 2).sum()

        return jax.jvp(gradient, arrays, along)[1], jax.grad(slope, (0, 1, 2))(*arrays)

    def spoilt(arrays):
        query, key, value = (x.copy() for x in arrays)
        key[:, place] = value[:, place] = poison
        return query, key, value

    wanted = [x[:, :place] for x in jax.tree.leaves(everything(arrays, along))]
    for given in ((spoilt(arrays), along), (arrays, spoilt(along)), (spoilt(arrays), spoilt(along))):
        assert_same_bits([x[:, :place] for x in jax.tree.leaves(everything(*given))], wanted, str(poison))


@pytest.mark.law("L12", "tiles")
@pytest.mark.slow
@pytest.mark.parametrize("poison", [0.0, np.nan])
def test_l12_third_derivatives_in_reverse(poison):
    """Reverse mode through the program itself (``Plan.reversible``), with masked keys that are finite, and NaN (L6).

    Tiles are 3 x 2, so that every loop, skip and overlap is on the way.
    """
    T, S = 4, 5
    rng = np.random.default_rng(12)
    query, key, value, *along = (rng.normal(size=(2, n, 3)) for n in (T, S, S, T, T))
    bad = [np.where(np.arange(S)[:, None] < 3, x, poison) for x in (key, value)]
    mask = np.arange(S)[None] < 3

    def third(attend):
        first = jax.grad(lambda q: jnp.sum(attend(q) ** 2))
        second = jax.grad(lambda q: jnp.vdot(first(q), along[0]))
        return quickly(jax.grad(lambda q: jnp.vdot(second(q), along[1])))(query)

    def plain(q):
        return jax.nn.softmax(q @ key[:, :3].swapaxes(-1, -2) / np.sqrt(3)) @ value[:, :3]

    got, wanted = third(lambda q: Tiny.attention(q, *bad, mask=mask)), third(plain)
    assert np.abs(wanted).max() > 1e-3  # an expectation of 0 would prove nothing
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-10 * np.abs(wanted).max())


# Keys and values with a large common part, which an exact second derivative does not see


def with_lse(query, key, value, scale):
    return attendax.attention(query, key, value, scale=scale, return_lse=True)


def without(query, key, value, scale):
    return attendax.attention(query, key, value, scale=scale), jnp.zeros(())


def gradients(attend, arrays):
    def loss(*arrays):
        out, lse = attend(*arrays)
        return out.mean() + (lse.sum() if lse.ndim else 0)

    return jax.grad(loss, (0, 1, 2))(*arrays), loss


def reverse_over_reverse(attend, arrays, along):
    def slope(*arrays):
        return sum(jnp.vdot(g, a) for g, a in zip(gradients(attend, arrays)[0], along, strict=True))

    return jax.grad(slope, (0, 1, 2))(*arrays)


def reverse_over_forward(attend, arrays, along):
    loss = gradients(attend, arrays)[1]
    return jax.grad(lambda *a: jax.jvp(loss, a, along)[1], (0, 1, 2))(*arrays)


def forward_over_reverse(attend, arrays, along):
    return jax.jvp(lambda *a: gradients(attend, a)[0], arrays, along)[1]


@pytest.mark.law("L8", "tiles", "native")
@pytest.mark.slow
@pytest.mark.parametrize("implementation", [None, "blockwise"], ids=["by default", "in tiles"])
@pytest.mark.parametrize("alike", [False, True], ids=["saturated", "equal columns"])
@pytest.mark.parametrize(("T", "S", "D"), [(8, 127, 80), (16, 300, 64), (64, 40, 64)])
def test_gradients_of_few_queries_or_keys_are_as_near_as_the_dense_formula(T, S, D, alike, implementation):
    """L8: at most twice the root mean square error of the dense formula, in the median of five draws.

    Equal columns make products of equal terms, of which each is rounded the same way: one chain of them loses the most.
    """

    def gradient(attend):
        def loss(*arrays):
            out, lse = attend(*arrays, scale=D**-0.5)
            return (out**2).sum() + (lse**2).sum()

        return jax.jit(jax.grad(loss, (0, 1, 2)))

    attend = partial(attendax.attention, implementation=implementation, return_lse=True)
    ours, dense = gradient(attend), gradient(dense_formula)

    def draws():
        for draw in range(0, 500, 100):
            query, key, value = (normal((6, *size), draw + k) for k, size in enumerate(((T, D), (S, D), (S, 3))))
            given = [np.broadcast_to(x[..., :1], x.shape) for x in (query, key)] if alike else [4 * query, key]
            yield (*given, value), dense(*(x.astype(np.float64) for x in (*given, value)))

    assert times_as_far(ours, dense, draws()).max() <= 2


HARD = {  # heads, queries, keys, width, mean of keys and values, scale
    "shifted": (with_lse, 3, 512, 23, 64, 30, 0.125),
    "shifted, small": (without, 3, 64, 23, 64, 30, 0.125),
    "saturated": (with_lse, 1, 512, 300, 32, 0, 25.0),
    "saturated, small": (without, 1, 64, 23, 32, 0, 25.0),
}


@pytest.mark.law("L8", "tiles", "native")
@pytest.mark.slow
@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("direction", [reverse_over_reverse, reverse_over_forward, forward_over_reverse])
def test_second_order_is_nearly_as_near_as_the_dense_formula(direction, name):
    """L8: at most twice the root mean square error of the dense formula, in the median of five draws."""
    attend, N, T, S, D, mean, scale = HARD[name]
    sizes = (N, T, D), (N, S, D), (N, S, 5)

    def theirs(*arrays):
        out, lse = dense_formula(*arrays, scale=scale)
        return out, lse if attend is with_lse else jnp.zeros(())

    dense, ours = (jax.jit(partial(direction, f)) for f in (theirs, partial(attend, scale=scale)))

    def draws():
        for draw in range(0, 500, 100):
            query, key, value, *along = (normal(size, draw + k) for k, size in enumerate((*sizes, *sizes)))
            given = (query, key + mean, value + mean), tuple(along)
            yield given, dense(*jax.tree.map(lambda x: x.astype(np.float64), given))

    assert times_as_far(ours, dense, draws()).max() <= 2
