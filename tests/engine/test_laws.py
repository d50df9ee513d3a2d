"""The laws, each on every implementation that claims it. A test cites the number of its law."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import masks, ops, scores, spec
from attendax.conformance import directional_difference
from blockwise import Tiny, Whole
from cases import KEY, B, D, F, G, M, N, S, T, V, block_params, multi_head_params, per_batch_mask
from judges import assert_leaves_close, assert_same_bits, assert_tree_close


def compiled(attention):
    return jax.jit(attention, static_argnames=("dropout_rate", "return_lse", "scale"))


IMPLEMENTATIONS = {
    "spec": spec.attention,
    "ops": compiled(ops.attention),
    "blockwise": compiled(Whole.attention),
    "tiny tiles": compiled(Tiny.attention),
    "default": compiled(attendax.attention),
}
every_implementation = pytest.mark.parametrize("attention", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())


def qkv(rng, dtype=np.float64, scale=1.0):
    shapes = (B, N, T, D), (B, G, S, D), (B, G, S, V)
    return [(scale * rng.normal(size=shape)).astype(dtype) for shape in shapes]


def spec_gradients(query, key, value, cotangent, **options):
    return spec.attention_backward(cotangent, query, key, value, **options)[:3]


def gradients_of(attention):
    @jax.jit
    def run(query, key, value, cotangent, options):
        out, pull_back = jax.vjp(lambda *arrays: attention(*arrays, **options), query, key, value)
        return pull_back(cotangent.astype(out.dtype))

    return lambda query, key, value, cotangent, **options: run(query, key, value, cotangent, options)


GRADIENTS = {
    "spec": spec_gradients,
    "ops": gradients_of(ops.attention),
    "blockwise": gradients_of(Whole.attention),
    "tiny tiles": gradients_of(Tiny.attention),
    "default": gradients_of(attendax.attention),
}
every_gradient = pytest.mark.parametrize("gradients", GRADIENTS.values(), ids=GRADIENTS.keys())


def changed(array, where, value):
    array = array.copy()
    array[where] = value
    return array


# Each law in short, on each implementation


IN_SHORT = ["spec", "ops", "tiny tiles", "default"]
each_implementation = pytest.mark.parametrize("attend", [IMPLEMENTATIONS[name] for name in IN_SHORT], ids=IN_SHORT)


def dense_softmax(table):
    """Of finite scores."""
    powers = np.exp(table - table.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def who_sees_whom(attend, T, S, **options):
    """With equal scores and the unit matrix as values, a positive number is a pair that is allowed."""
    out = attend(np.zeros((1, 1, T, 2)), np.zeros((1, 1, S, 2)), np.eye(S)[None, None], **options)
    return np.asarray(out)[0, 0] > 0


HALVES = slice(0, 4), slice(4, 8)


@pytest.mark.smoke
@pytest.mark.law("L1")
@each_implementation
def test_l1_each_query_head_reads_the_key_head_of_its_group(attend, rng):
    query, key, value = rng.normal(size=(2, 6, 6, 3)), rng.normal(size=(2, 3, 8, 3)), rng.normal(size=(2, 3, 8, 5))
    repeated = np.repeat(key, 2, axis=1), np.repeat(value, 2, axis=1)
    np.testing.assert_allclose(attend(query, key, value), spec.attention(query, *repeated), rtol=1e-11)


@pytest.mark.smoke
@pytest.mark.law("L1")
@pytest.mark.law("L14")
@each_implementation
def test_l1_a_batch_is_not_broadcast_and_the_error_is_the_same_everywhere(attend):
    query, key = np.ones((2, 4, 3, 8)), np.ones((1, 4, 3, 8))
    with pytest.raises(ValueError, match=r"query has leading axes \(2,\) but key has \(1,\)") as caught:
        attend(query, key, key)
    with pytest.raises(ValueError, match="leading axes") as by_definition:
        spec.attention(query, key, key)
    assert str(caught.value).replace("jnp.", "np.") == str(by_definition.value)


@pytest.mark.smoke
@pytest.mark.law("L2")
@each_implementation
def test_l2_scale_then_softcap_then_bias_then_softmax(attend, rng):
    query, key, value, bias = (rng.normal(size=(2, 4, *size)) for size in ((6, 3), (8, 3), (8, 5), (6, 8)))
    table = 3 * np.tanh(0.4 * query @ key.swapaxes(-1, -2) / 3) + bias
    got = attend(query, key, value, scale=0.4, score_mod=scores.softcap(3.0), bias=bias)
    np.testing.assert_allclose(got, dense_softmax(table) @ value, rtol=1e-11, atol=1e-14)


@pytest.mark.smoke
@pytest.mark.law("L3")
@each_implementation
def test_l3_true_lets_a_query_look(attend, rng):
    mask = rng.random((6, 8)) < 0.4
    np.testing.assert_array_equal(who_sees_whom(attend, 6, 8, mask=mask), mask)


@pytest.mark.smoke
@pytest.mark.law("L3")
@each_implementation
def test_l3_what_is_not_boolean_or_lacks_the_head_axis_is_no_mask(attend, rng):
    query, key, value = qkv(rng)
    with pytest.raises(TypeError, match="mask"):
        attend(query, key, value, mask=np.ones((T, S), np.int32))
    with pytest.raises(ValueError, match="mask"):
        attend(query, key, value, mask=np.ones((B, T, S), bool))


@pytest.mark.smoke
@pytest.mark.law("L4")
@each_implementation
def test_l4_causal_sees_up_to_its_own_position_and_the_offset(attend, rng):
    for offset in (0, 2, -2):
        seen = who_sees_whom(attend, 6, 8, mask=masks.causal(offset))
        np.testing.assert_array_equal(seen, [[j <= i + offset for j in range(8)] for i in range(6)])


@pytest.mark.smoke
@pytest.mark.law("L9")
@each_implementation
def test_l9_two_halves_of_the_keys_merge_into_the_whole(attend, rng):
    query, key, value = (rng.normal(size=(2, 4, *size)) for size in ((6, 3), (8, 3), (8, 5)))
    halves = [attend(query, x, y, return_lse=True) for x, y in ((key[:, :, s], value[:, :, s]) for s in HALVES)]
    assert_tree_close(attendax.merge(*halves), attend(query, key, value, return_lse=True), 1e-12, "merged")


@pytest.mark.smoke
@pytest.mark.law("L10")
@each_implementation
def test_l10_dropout_keeps_what_the_definition_keeps(attend, rng):
    """Which is that of ``loops.threefry`` (dropout/test_dropout.py)."""
    seen = who_sees_whom(attend, 6, 8, dropout_rate=0.4, dropout_rng=KEY)
    np.testing.assert_array_equal(seen, spec.dropout.keep(KEY, (1, 1, 6, 8), 0.4)[0, 0])


@pytest.mark.smoke
@pytest.mark.law("L13")
@pytest.mark.parametrize("name", IN_SHORT)
def test_l13_gradients_are_the_slopes_of_differences(name, rng):
    arrays, moves, cotangent = qkv(rng), qkv(rng), rng.normal(size=(B, N, T, V))
    grads = GRADIENTS[name](*arrays, cotangent, mask=masks.causal(1))

    def loss(*arrays):
        return (spec.attention(*arrays, mask=masks.causal(1)) * cotangent).sum()

    for k in range(3):

        def moved(x, k=k):
            return loss(*arrays[:k], x, *arrays[k + 1 :])

        slope = directional_difference(moved, [arrays[k]], [moves[k]])
        np.testing.assert_allclose((np.asarray(grads[k]) * moves[k]).sum(), slope, rtol=1e-8)


@pytest.mark.smoke
@pytest.mark.law("L15")
@each_implementation
def test_l15_the_same_call_gives_the_same_bits_and_writes_to_no_input(attend, rng):
    arrays = qkv(rng)
    for x in arrays:
        x.flags.writeable = False
    copies = [x.copy() for x in arrays]
    first, second = (attend(*arrays, return_lse=True) for _ in range(2))
    assert_same_bits(second, first, "again")
    assert_same_bits(arrays, copies, "inputs")


@pytest.mark.smoke
@pytest.mark.law("L17", "ops", "tiles", "native")
@pytest.mark.parametrize("twin", [ops, Tiny, attendax], ids=["ops", "tiny tiles", "default"])
def test_l17_the_numbers_are_those_of_the_definition_whatever_the_compiler_knows(twin, rng):
    """Eagerly, under jit, with keys and values that are constants of the program, and inside a loss that is a sum."""
    query, key, value = qkv(rng)
    wanted = spec.attention(query, key, value)
    for attend in (twin.attention, jax.jit(twin.attention)):
        np.testing.assert_allclose(attend(query, key, value), wanted, rtol=1e-11)
    out, grad = jax.jit(jax.value_and_grad(lambda q: twin.attention(q, key, value).sum()))(query)
    np.testing.assert_allclose(out, wanted.sum(), rtol=1e-11)
    assert_tree_close(grad, spec_gradients(query, key, value, np.ones_like(wanted))[0], 1e-11, "constant cotangent")


# L5: the empty set

ALLOWED = np.isin(np.arange(T), [0, 2, 4])[:, None] & np.ones((T, S), bool)  # nothing for queries 1 and 3
EMPTY = {"mask": {"mask": ALLOWED}, "bias": {"bias": np.where(ALLOWED, 0.0, -np.inf)}}


@pytest.mark.smoke
@pytest.mark.law("L5")
@pytest.mark.sample(5)
@every_implementation
@pytest.mark.parametrize("option", EMPTY.values(), ids=EMPTY)
def test_l5_a_query_without_keys_gets_zero(attention, option, rng):
    query, key, value = qkv(rng)
    out, lse = map(np.asarray, attention(query, key, value, return_lse=True, **option))
    assert (out[:, :, [1, 3]] == 0).all()
    assert (lse[:, :, [1, 3]] == -np.inf).all()
    assert np.isfinite(out).all()
    assert np.isfinite(lse[:, :, [0, 2, 4]]).all()
    full = np.asarray(attention(query, key, value))
    np.testing.assert_allclose(out[:, :, [0, 2, 4]], full[:, :, [0, 2, 4]], rtol=1e-12)


@pytest.mark.smoke
@pytest.mark.law("L5")
@pytest.mark.sample(5)
@every_gradient
@pytest.mark.parametrize("option", EMPTY.values(), ids=EMPTY)
def test_l5_no_gradient_goes_through_an_empty_row(gradients, option, rng):
    query, key, value = qkv(rng)
    cotangent = rng.normal(size=(B, N, T, V))
    grads = gradients(query, key, value, cotangent, **option)
    assert (np.asarray(grads[0])[:, :, [1, 3]] == 0).all()
    silent = gradients(query, key, value, changed(cotangent, np.s_[:, :, [1, 3]], 0.0), **option)
    assert_tree_close(silent, grads, 1e-14, "an empty row's cotangent")


@pytest.mark.smoke
@pytest.mark.law("L11")
@every_implementation
@pytest.mark.parametrize(("t", "s", "b"), [(T, 0, B), (0, S, B), (0, 0, B), (T, S, 0)])
def test_l11_empty_sizes(attention, t, s, b, rng):
    arrays = rng.normal(size=(b, N, t, D)), rng.normal(size=(b, G, s, D)), rng.normal(size=(b, G, s, V))
    out, lse = map(np.asarray, attention(*arrays, return_lse=True))
    assert out.shape == (b, N, t, V)
    assert (out == 0).all() or s > 0
    assert (lse == -np.inf).all() or s > 0


# L6: what is masked cannot matter


NOT_FINITE = [np.nan, np.inf, -np.inf]


@pytest.mark.smoke
@pytest.mark.law("L6")
@pytest.mark.sample(5)
@pytest.mark.parametrize("which", ["key", "value"])
@pytest.mark.parametrize("twin", IMPLEMENTATIONS)
def test_l6_the_future_cannot_matter(which, twin, rng):
    """A NaN at key 4 under a causal mask: queries 0 to 3 keep every bit, forward and backward; query 4 sees it."""
    arrays = dict(zip(("query", "key", "value"), qkv(rng), strict=True))
    poisoned = arrays | {which: changed(arrays[which], np.s_[:, :, 4], np.nan)}
    mask, past = masks.causal(), np.s_[:, :, :4]
    out, bad = (np.asarray(IMPLEMENTATIONS[twin](**a, mask=mask)) for a in (arrays, poisoned))
    assert_same_bits(bad[past], out[past], "forward")
    assert np.isnan(bad[:, :, 4]).all()
    cotangent = changed(rng.normal(size=(B, N, T, V)), np.s_[:, :, 4:], 0.0)
    grads, bad_grads = (GRADIENTS[twin](**a, cotangent=cotangent, mask=mask) for a in (arrays, poisoned))
    assert_same_bits(np.asarray(bad_grads[0])[past], np.asarray(grads[0])[past], "grad_query")


@pytest.mark.law("L6", "spec", "tiles", "native")
@pytest.mark.sample(1)
@pytest.mark.parametrize("which", ["query", "key", "value"])
@pytest.mark.parametrize("twin", IMPLEMENTATIONS)
def test_l6_a_segment_does_not_leak_into_its_neighbour(which, twin, rng):
    """A visible NaN in segment 0, and so a NaN in its cotangents: segment 1 keeps every bit, forward and backward."""
    arrays = dict(zip(("query", "key", "value"), qkv(rng), strict=True))
    mask = masks.segments(np.array([[0, 0, 1, 1, 1]] * B), np.array([[0, 0, 0, 1, 1, 1, 1]] * B))
    poisoned = arrays | {which: changed(arrays[which], np.s_[:, :, 1], np.nan)}
    out, bad = (np.asarray(IMPLEMENTATIONS[twin](**a, mask=mask)) for a in (arrays, poisoned))
    assert_same_bits(bad[:, :, 2:], out[:, :, 2:], "forward")
    assert np.isnan(bad[:, :, 1]).all()
    grads, bad_grads = (
        GRADIENTS[twin](**a, cotangent=2 * o, mask=mask) for a, o in ((arrays, out), (poisoned, bad))
    )  # the cotangent of Σ out², NaN where out is
    for got, wanted, neighbour in zip(bad_grads, grads, (2, 3, 3), strict=True):
        assert_same_bits(np.asarray(got)[:, :, neighbour:], np.asarray(wanted)[:, :, neighbour:], which)
    assert np.isnan(np.asarray(bad_grads[0])[:, :, 1]).all()


@pytest.mark.law("L6", "spec", "ops")
@pytest.mark.sample(1)
@pytest.mark.parametrize("poison", NOT_FINITE)
def test_l6_in_multi_head_attention_the_weights_stay_clean(poison, rng):
    """Padded tokens meet the projections before they meet the mask; the gradients of the weights must not see them."""
    params, mask = multi_head_params(rng), np.arange(S) < 4
    Q, K, X = rng.normal(size=(B, T, M)), rng.normal(size=(B, S, M)), rng.normal(size=(B, S, M))
    cotangent = rng.normal(size=(B, T, M))

    def by_hand(K, X):
        biases = dict(zip(("b_Q", "b_K", "b_V", "b_O"), params[4:], strict=True))
        output, cache = spec.multi_head_attention_forward(Q, K, X, *params[:4], N, mask[None], **biases)
        return output, spec.multi_head_attention_backward(cotangent, cache)

    @jax.jit
    def by_autodiff(K, X):
        attend = partial(ops.multi_head_attention, num_heads=N, mask=jnp.broadcast_to(mask, (T, S)))
        output, pull_back = jax.vjp(attend, Q, K, X, params)
        return output, pull_back(cotangent)

    for run in (by_hand, by_autodiff):
        poisoned = [changed(x, np.s_[:, 4:], poison) for x in (K, X)]
        assert_same_bits(run(*poisoned), run(K, X), run.__name__)


@pytest.mark.law("L6", "spec", "ops")
def test_l6_in_additive_attention(rng):
    arrays = [rng.normal(size=s) for s in ((B, T, D), (B, S, 4), (B, S, V), (D, 8), (4, 8), (8,))]
    poisoned = [arrays[0], *(changed(x, np.s_[:, 4:], np.nan) for x in arrays[1:3]), *arrays[3:]]
    mask, cotangent = np.arange(S) < 4, rng.normal(size=(B, T, V))
    by_autodiff = additive_by_autodiff(mask)
    assert_same_bits(spec.additive_attention(*poisoned, mask), spec.additive_attention(*arrays, mask), "spec")
    by_hand = partial(spec.additive_attention_backward, cotangent)
    assert_same_bits(by_hand(*poisoned, mask), by_hand(*arrays, mask), "spec gradient")
    assert_same_bits(by_autodiff(*poisoned, cotangent), by_autodiff(*arrays, cotangent), "ops gradient")


def additive_by_autodiff(mask):
    """The output of ``ops.additive_attention`` and the gradients of its six arrays; their cotangent comes last."""

    @jax.jit
    def run(*arrays):
        output, pull = jax.vjp(lambda *a: ops.additive_attention(*a, mask)[0], *arrays[:-1])
        return output, *pull(arrays[-1])

    return run


@pytest.mark.law("L6", "spec", "ops")
@pytest.mark.sample(2)
@pytest.mark.parametrize("read", [True, False], ids=["read", "not read"])
@pytest.mark.parametrize("poison", NOT_FINITE)
@pytest.mark.parametrize("which", [0, 1, 2], ids=["query", "key", "value"])
def test_l6_what_additive_attention_sees(which, poison, read, rng):
    """NaN where the specification has it, the gradients of the weights included; nowhere if nothing reads the row."""
    arrays = [rng.normal(size=s) for s in ((B, T, D), (B, S, 4), (B, S, V), (D, 8), (4, 8), (8,))]
    arrays[which] = changed(arrays[which], np.s_[0, 4, 1], poison)
    mask, cotangent = np.tri(T, S, dtype=bool), rng.normal(size=(B, T, V))
    cotangent[0, 4] *= read
    wanted = spec.additive_attention(*arrays, mask)[0], *spec.additive_attention_backward(cotangent, *arrays, mask)
    assert np.isnan(wanted[0][0, 4]).all()
    assert [np.isnan(x).any() for x in wanted[1:]] == [read] * 6
    assert_leaves_close(additive_by_autodiff(mask)(*arrays, cotangent), wanted, rtol=1e-10, atol=1e-13)


# L7: finite in, finite out


def longdouble_attention(query, key, value, allowed, modify=lambda s: s):
    """The plain formula in extended precision, independent of both twins: out and lse."""
    query, key, value = (
        x.astype(np.longdouble) for x in (query, np.repeat(key, N // G, 1), np.repeat(value, N // G, 1))
    )
    table = modify(np.einsum("bnid,bnjd->bnij", query, key) / np.sqrt(np.longdouble(query.shape[-1])))
    table = np.where(allowed, table, -np.inf)
    largest = np.max(table, axis=-1, keepdims=True)
    largest = np.where(largest == -np.inf, 0, largest)
    powers = np.exp(table - largest)
    total = powers.sum(-1, keepdims=True)
    out = np.einsum("bnij,bnjv->bniv", powers / np.where(total == 0, 1, total), value)
    with np.errstate(divide="ignore"):
        return out, (largest + np.log(total))[..., 0]


HUGE_MODIFIERS = {
    "plain": (None, lambda s: s),
    "softcap": (scores.softcap(1e30), lambda s: np.longdouble(1e30) * np.tanh(s / np.longdouble(1e30))),
    "function": (scores.from_function(lambda s, p: 1.75 * s), lambda s: np.longdouble(1.75) * s),
}


@pytest.mark.law("L7")
@pytest.mark.sample(4)
@every_implementation
@pytest.mark.parametrize("name", HUGE_MODIFIERS)
@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("size", [1e4, 1e30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_l7_huge_scores(attention, size, dtype, width, name, rng):
    """At width 1, under softcap and under a function the score ends in a multiplication, which XLA likes to fuse."""
    query, key = rng.normal(size=(B, N, T, width)), rng.normal(size=(B, G, S, width))
    query, key = ((np.sqrt(size) * x).astype(dtype) for x in (query, key))
    value, mask = rng.normal(size=(B, G, S, V)).astype(dtype), per_batch_mask(B, 1, T, S)
    score_mod, modify = HUGE_MODIFIERS[name]
    out, lse = map(np.asarray, attention(query, key, value, mask=mask, score_mod=score_mod, return_lse=True))
    exact, exact_lse = longdouble_attention(query, key, value, mask, modify)
    single = dtype == np.float32
    np.testing.assert_allclose(lse, exact_lse.astype(np.float64), rtol=3e-6 if single else 1e-12)
    # A score of 1e4 carries a rounding error of 1e4 units; at 1e30 softmax has become the maximum.
    tolerance = 2e-2 if single and size == 1e4 else 1e-5 if single else 1e-10
    np.testing.assert_allclose(out, exact.astype(np.float64), atol=tolerance)


@pytest.mark.law("L7")
@pytest.mark.sample(2)
@every_gradient
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("mod", ["plain", "softcap"])
def test_l7_huge_scores_have_finite_gradients(gradients, width, mod, rng):
    """Whatever ends the score. Of grad_query and grad_key no more is promised: scores of 1e30 are rounded (L8)."""
    shapes = (B, N, T, width), (B, G, S, width), (B, G, S, V), (B, N, T, V)
    query, key, value, cotangent = (rng.normal(size=shape).astype(np.float32) for shape in shapes)
    arrays, score_mod = (np.float32(1e15) * query, np.float32(1e15) * key, value, cotangent), HUGE_MODIFIERS[mod][0]
    grads = gradients(*arrays, score_mod=score_mod)
    assert all(np.isfinite(np.asarray(g)).all() for g in grads)
    exact = spec_gradients(*(x.astype(np.float64) for x in arrays), score_mod=score_mod)
    assert_tree_close(grads[2], exact[2], 1e-6, "grad_value: softmax has become the maximum")


@pytest.mark.smoke
@pytest.mark.law("L7")
@every_implementation
def test_l7_half_precision_does_not_overflow(attention):
    query = np.full((1, 1, 2, 64), 300, np.float16)
    value = np.arange(6, dtype=np.float16).reshape(1, 1, 2, 3)
    out = np.asarray(attention(query, query, value))
    assert out.dtype == np.float16
    np.testing.assert_array_equal(out, np.broadcast_to(value.mean(axis=-2, keepdims=True), out.shape))


@pytest.mark.law("L7")
@pytest.mark.sample(4)
@every_implementation
@pytest.mark.parametrize("lowest", ["scores", "bias"])
def test_l7_a_forbidden_key_never_wins(attention, lowest):
    """Real scores of -2e31, or the customary finfo.min as a bias, under a causal mask: no row sees the future."""
    query, key = np.full((1, 1, 3, 1), -1e16, np.float32), np.full((1, 1, 3, 1), 2e15, np.float32)
    value = np.eye(3, dtype=np.float32)[None, None]
    options = {"bias": np.full((3, 3), np.finfo(np.float32).min)} if lowest == "bias" else {}
    out = np.asarray(attention(query, key, value, mask=masks.causal(), **options))[0, 0]
    np.testing.assert_allclose(out, np.tril(np.ones((3, 3))) / [[1], [2], [3]], rtol=1e-6)


@pytest.mark.law("L7")
@every_implementation
def test_l7_rows_of_65536_sum_to_one(attention):
    """For several draws: one chain of additions keeps the law for some."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        query, key = (rng.normal(size=(1, 1, n, 3)).astype(np.float32) for n in (5, 65536))
        np.testing.assert_allclose(attention(query, key, np.ones_like(key)), 1, atol=1e-6)


# L8: precision


@pytest.mark.law("L8")
@pytest.mark.sample(3)
@every_implementation
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, np.float32, np.float64])
def test_l8_dtypes(attention, dtype, rng):
    query, key, value = qkv(rng, dtype)
    out, lse = map(np.asarray, attention(query, key, value, return_lse=True))
    assert out.dtype == dtype
    assert lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    exact = longdouble_attention(query, key, value, np.ones((T, S), bool))[0].astype(np.float64)
    unit = {2: float(jnp.finfo(dtype).eps), 4: 1e-6, 8: 1e-14}[np.dtype(dtype).itemsize]
    assert np.abs(out.astype(np.float64) - exact).max() <= unit * np.abs(exact).max()


@pytest.mark.smoke
@pytest.mark.law("L8")
@every_implementation
def test_l8_a_wider_bias_keeps_its_resolution(attention):
    """A bias of 1 + 2⁻¹² is 1 in bfloat16; against a competing bias of 1 the difference must be felt."""
    zeros = np.zeros((2, 1), jnp.bfloat16)
    value = np.array([[1.0], [-1.0]], np.float32).astype(jnp.bfloat16)
    bias = np.array([[1 + 2.0**-12, 1.0]] * 2, np.float32)
    out = np.asarray(attention(zeros, zeros, value, bias=bias)).astype(np.float64)
    np.testing.assert_allclose(out, np.tanh(2.0**-13), rtol=1e-2)


@pytest.mark.law("L8", "spec", "ops")
@pytest.mark.parametrize("twin", [spec, ops], ids=["spec", "ops"])
def test_l8_layer_norm_keeps_its_digits_at_a_large_mean(twin, rng):
    x = (1e4 + rng.normal(size=(11, 384))).astype(np.float32)
    one, zero = np.ones(384, np.float32), np.zeros(384, np.float32)
    exact = spec.layer_norm(x.astype(np.float64), one.astype(np.float64), zero.astype(np.float64))
    np.testing.assert_allclose(np.asarray(twin.layer_norm(x, one, zero)), exact, atol=2e-6)


@pytest.mark.law("L8", "spec", "ops")
def test_l8_the_weights_may_be_wider_and_the_result_has_the_dtype_of_the_tokens(rng):
    params, x = block_params(rng), rng.normal(size=(B, T, M)).astype(np.float32)
    for twin in (spec, ops):
        assert twin.encoder_block(x, params, num_heads=N).dtype == np.float32
        assert twin.feed_forward(x, params.W1, params.b1, params.W2, params.b2).dtype == np.float32
    half = x.astype(np.float16)
    assert spec.TransformerEncoderBlock(M, N, F, rng=0).forward(half).dtype == np.float16


@pytest.mark.law("L8", "spec", "ops", "tiles")
@pytest.mark.sample(4)
@pytest.mark.parametrize("attention", [IMPLEMENTATIONS[name] for name in ("spec", "ops", "blockwise")])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, np.float32])
@pytest.mark.parametrize("width", [3, 64, 128])
def test_l8_error_at_most_twice_that_of_the_plain_formula(attention, dtype, width, rng):
    """The plain formula in the same dtype: products, softmax and average all rounded to it."""
    query, key, value = (rng.normal(size=(1, 1, s, width)).astype(dtype) for s in (37, 211, 211))
    exact = spec.attention(*(x.astype(np.float64) for x in (query, key, value)))
    table = jnp.asarray(query) @ jnp.asarray(key).swapaxes(-1, -2) / jnp.asarray(np.sqrt(width), dtype)
    plain = np.asarray(jax.nn.softmax(table, axis=-1) @ jnp.asarray(value)).astype(np.float64)
    ours = np.asarray(attention(query, key, value)).astype(np.float64)
    assert np.sqrt(np.mean((ours - exact) ** 2)) <= 2 * np.sqrt(np.mean((plain - exact) ** 2))


# L15: a row does not depend on its neighbours


@pytest.mark.law("L15")
@pytest.mark.sample(2)
@every_implementation
def test_l15_a_batch_row_alone_gives_the_same(attention, rng):
    query, key, value = qkv(rng)
    together = np.asarray(attention(query, key, value))
    for b in range(B):
        alone = np.asarray(attention(query[b], key[b], value[b]))
        np.testing.assert_allclose(alone, together[b], rtol=1e-13)
