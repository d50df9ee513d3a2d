"""L9: two attentions over disjoint keys become one over all of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attendax
from attendax import spec
from cases import B, D, G, N, S, T, V
from judges import assert_same_bits, assert_tree_close

pytestmark = pytest.mark.law("L9", "ops")


def arrays(rng):
    return rng.normal(size=(B, N, T, D)), rng.normal(size=(B, G, S, D)), rng.normal(size=(B, G, S, V))


def part(query, key, value, keys, attend=attendax.attention):
    return attend(query, key[:, :, keys], value[:, :, keys], return_lse=True)


@pytest.mark.sample(1)
@pytest.mark.parametrize("ends", [(0, 3, 5, S), (0, 0, 4, S), (0, 1, S, S)])
def test_l9_merge_equals_attention_over_the_union(ends, rng):
    """Associative and commutative, empty parts included; the parts may come from the specification, too."""
    qkv = arrays(rng)
    one, two, three = (part(*qkv, slice(a, b)) for a, b in itertools.pairwise(ends))
    whole = spec.attention(*qkv, return_lse=True)
    orders = [
        attendax.merge(attendax.merge(one, two), three),
        attendax.merge(one, attendax.merge(two, three)),
        attendax.merge(attendax.merge(three, one), two),
    ]
    for merged in orders:
        assert_tree_close(merged, whole, 1e-12, str(ends))
    by_numpy = [part(*qkv, slice(a, b), spec.attention) for a, b in ((0, 4), (4, S))]
    assert_tree_close(attendax.merge(*by_numpy), whole, 1e-12, "parts from NumPy")


def test_l9_the_empty_set_is_neutral_to_the_bit(rng):
    one = part(*arrays(rng), slice(0, S))
    nothing = jnp.zeros_like(one[0]), jnp.full_like(one[1], -jnp.inf)
    assert_same_bits(attendax.merge(one, nothing), one, "right")
    assert_same_bits(attendax.merge(nothing, one), one, "left")
    both = attendax.merge(nothing, nothing)
    assert_same_bits(both, nothing, "nothing and nothing")


@pytest.mark.smoke
def test_l9_what_carries_no_weight_cannot_matter(rng):
    one = part(*arrays(rng), slice(0, S))
    nothing = jnp.full_like(one[0], jnp.nan), jnp.full_like(one[1], -jnp.inf)
    assert_same_bits(attendax.merge(one, nothing), one, "NaN without weight")


@pytest.mark.slow
def test_l9_gradients_flow_through_out_and_lse(rng):
    """The gradient of a merged attention is that of the whole; rows that one part leaves empty included."""
    qkv = arrays(rng)
    mask = np.ones((T, S), bool)
    mask[1, :4] = False  # row 1 has no key in the first part
    mask[2] = False  # row 2 has none at all
    cotangent = rng.normal(size=(B, N, T, V))
    grad_lse = np.where(mask.any(1), rng.normal(size=(B, N, T)), 0)

    def merged(query, key, value):
        pairs = [
            attendax.attention(query, key[:, :, k], value[:, :, k], mask=mask[:, k], return_lse=True)
            for k in (slice(0, 4), slice(4, S))
        ]
        return attendax.merge(*pairs)

    _, pull = jax.vjp(merged, *qkv)
    wanted = spec.attention_backward(cotangent, *qkv, mask=mask, grad_lse=grad_lse)[:3]
    assert_tree_close(pull((cotangent, grad_lse)), wanted, 1e-12, "merged")


def test_l9_huge_lse(rng):
    out, lse = rng.normal(size=(2, T, V)).astype(np.float32), np.full((2, T), 1e30, np.float32)
    merged, merged_lse = attendax.merge((out, lse), (3 * out, lse))
    np.testing.assert_allclose(merged, 2 * out, rtol=1e-6)
    np.testing.assert_array_equal(merged_lse, lse)
    np.testing.assert_array_equal(attendax.merge((out, lse), (3 * out, -lse))[0], out)


def test_the_dtype_is_that_of_the_out(rng):
    out, lse = rng.normal(size=(2, T, V)).astype(jnp.bfloat16), rng.normal(size=(2, T)).astype(np.float32)
    merged, merged_lse = attendax.merge((out, lse), (out, lse))
    assert (merged.dtype, merged_lse.dtype) == (jnp.bfloat16, np.float32)


OUT, LSE = np.zeros((2, T, V)), np.zeros((2, T))
REFUSED = {
    "not a pair": (TypeError, (OUT, (OUT, LSE)), "merge: one must be a pair (out, lse), got "),
    "other out": (ValueError, ((OUT, LSE), (OUT[:, 1:], LSE)), "merge: out1 has T=5 but out2 has T=4."),
    "other lse": (ValueError, ((OUT, LSE[:, 1:]), (OUT, LSE)), "merge: out1 has T=5 but lse1 has T=4."),
    "integers": (TypeError, ((OUT, LSE), (OUT.astype(int), LSE)), "merge: out2 has dtype int64 but must be floating"),
    "narrow lse": (
        TypeError,
        ((OUT, LSE.astype(np.float32)), (OUT, LSE)),
        "merge: out1 has dtype float64 but lse1 has float32",
    ),
}


@pytest.mark.law("L14", "ops")
@pytest.mark.parametrize("name", REFUSED)
def test_l14_merge_refuses(name):
    error, arguments, message = REFUSED[name]
    with pytest.raises(error) as caught:
        attendax.merge(*arguments)
    assert str(caught.value).startswith(message)
