"""The judges of a case: the other twin, its derivative by autodiff, finite differences. Each takes what it judges."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import attention, ops, spec
from attendax.conformance import assert_gradients
from compilation import quickly

TWINS = pytest.mark.parametrize("twin", [spec, ops], ids=["spec", "ops"])

# Largest error of the float32 twin against the float64 specification, relative to the largest entry of the array. About
# ten times the unit roundoff 6e-8 for one attention; blocks add up what their parts lose.
FLOAT32_TOLERANCE = {
    "encoder_block": 1e-5,
    "stack": 5e-5,
    "multi_head": 3e-6,
    "Attention": 3e-6,
    "feed_forward": 2e-6,
    "gated": 2e-6,
    "layer_norm": 2e-6,
    "attention": 2e-6,
    "sdpa": 2e-6,
    "additive": 2e-6,
}
FLOAT32_DEFAULT = 1e-6


def float32_tolerance(name: str) -> float:
    return FLOAT32_TOLERANCE.get(name.split("-")[0], FLOAT32_DEFAULT)


def assert_close(got, wanted) -> None:
    """Each number, to the last digits of float64, is that of ``loops``."""
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-12, atol=1e-13)


def assert_leaves_close(got, wanted, **tolerance) -> None:
    """Every leaf, as ``np.testing.assert_allclose`` measures it."""
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, **tolerance)


def assert_tree_close(got, wanted, tolerance: float, what: str) -> None:
    """Every leaf: same shape, same infinities, no entry off by more than tolerance times the largest wanted.

    A leaf that is 0 in truth, and in floating point mere rounding (the gradient of a key bias), is measured against the
    largest entry of the whole tree.
    """
    wanted_leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, wanted))
    got_leaves, got_structure = jax.tree.flatten(jax.tree.map(np.asarray, got))
    assert got_structure == structure, f"{what}: got {got_structure}, expected {structure}"
    largest = max((_largest(leaf) for leaf in wanted_leaves), default=0.0)
    for index, (a, b) in enumerate(zip(got_leaves, wanted_leaves, strict=True)):
        assert a.shape == b.shape, f"{what}, leaf {index}: shape {a.shape}, expected {b.shape}"
        assert not np.isnan(a).any(), f"{what}, leaf {index}: NaN"
        infinite = np.isinf(b)
        np.testing.assert_array_equal(a[infinite], b[infinite], f"{what}, leaf {index}")
        error = np.abs(np.where(infinite, 0, a).astype(np.float64) - np.where(infinite, 0, b)).max(initial=0.0)
        own = _largest(b)
        bound = tolerance * (own if own > 1e-9 * largest else largest)
        assert error <= bound, f"{what}, leaf {index}: error {error:.3g}, allowed {bound:.3g}"


def as_floats(tree) -> list:
    """The floating leaves of a tree, as NumPy in float64."""
    leaves = (np.asarray(x) for x in jax.tree.leaves(tree))
    return [x.astype(np.float64) for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)]


def dense_formula(query, key, value, scale=None):
    """out and lse by the formula that users would write, in the dtype of the arrays."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = jnp.matmul(query * jnp.asarray(scale, query.dtype), key.swapaxes(-1, -2), precision="highest")
    return jnp.matmul(jax.nn.softmax(scores), value, precision="highest"), jax.nn.logsumexp(scores, axis=-1)


def times_as_far(ours, theirs, draws):
    """How many times as far from exact our results are as theirs, each by its root mean square error.

    The median of the draws: what the two functions are given, and the exact results.
    """
    ratios = []
    for given, exact in draws:
        pairs = [zip(as_floats(f(*given)), as_floats(exact), strict=True) for f in (ours, theirs)]
        ratios.append(np.divide(*([np.linalg.norm(x - y) for x, y in each] for each in pairs)))
    return np.median(ratios, axis=0)


def by_definition(arrays, dout, dlse, **options) -> list:
    """out, lse and every gradient by the specification. Nothing comes back through an lse of -inf."""
    out, lse = spec.attention(*arrays, return_lse=True, **options)
    grads = spec.attention_backward(dout, *arrays, grad_lse=np.where(np.isfinite(lse), dlse, 0), **options)
    return [out, lse, *grads[:3], *jax.tree.leaves((grads.grad_bias, grads.grad_score_mod))]


def assert_gradients_of_dense(mask, dense, arrays, implementation=None) -> None:
    """A mask whose arrays the compiler does not know has the gradients of the same mask written out."""

    @jax.jit
    def gradients(mask, *arrays):
        def loss(*arrays):
            return jnp.sum(jnp.sin(attention(*arrays, mask=mask, implementation=implementation)))

        return jax.grad(loss, (0, 1, 2))(*arrays)

    assert_leaves_close(gradients(mask, *arrays), gradients(jnp.asarray(dense), *arrays), rtol=1e-10, atol=1e-12)


def _largest(x) -> float:
    return np.abs(x, where=np.isfinite(x), out=np.zeros(x.shape, np.float64)).max(initial=0.0)


def arrays_of(case, seed: int = 3, dtype=np.float64):
    """The arrays of a case, read-only, so that a function that writes to its input raises."""

    def frozen(x):
        x = np.asarray(x, dtype)
        x.flags.writeable = False
        return x

    return jax.tree.map(frozen, case.arrays(np.random.default_rng(seed)))


def cotangent_of(output, seed: int = 4):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32).astype(x.dtype), output)


@functools.cache
def twin_of(case, twin=ops, dtype=np.float64):
    """The twin under jit: output, the cotangent that the judges use, and the gradients by autodiff.

    It runs twice: the same inputs must give the same bits (L15). In float32 it is compiled as users do it.
    """
    arrays = arrays_of(case, dtype=dtype)
    cotangent = cotangent_of(jax.eval_shape(partial(case.forward, twin), *arrays))

    @(jax.jit if dtype == np.float32 else quickly)
    def run(cotangent, *arrays):
        output, pull_back = jax.vjp(partial(case.forward, twin), *arrays)
        return output, pull_back(cotangent)

    once, again = run(cotangent, *arrays), run(cotangent, *arrays)
    assert_same_bits(again, once, case.name)
    return once[0], cotangent, once[1]


def assert_same_bits(got, wanted, what: str) -> None:
    """Every leaf: the same shape and the same bytes."""
    for index, pair in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)):
        a, b = map(np.asarray, pair)
        assert a.shape == b.shape, f"{what}, leaf {index}: shape {a.shape}, expected {b.shape}"
        assert a.tobytes() == b.tobytes(), f"{what}, leaf {index}: {(a != b).sum()} of {a.size} numbers differ"


def judge_forward(case, spec, twin=ops) -> None:
    """NumPy = JAX, to 1e-12."""
    assert_tree_close(case.forward(spec, *arrays_of(case)), twin_of(case, twin)[0], 1e-12, f"{case.name} forward")


def judge_gradient(case, spec, twin=ops) -> None:
    """By hand = autodiff of the twin, to 1e-10, for a random cotangent."""
    _, cotangent, by_autodiff = twin_of(case, twin)
    by_hand = tuple(case.backward(spec, cotangent, *arrays_of(case)))
    assert_tree_close(by_hand, by_autodiff, 1e-10, f"{case.name} gradient")


def judge_direction(case, spec) -> None:
    """By hand = finite differences. Where a ReLU has its kink a step must not cross it: there it is shorter."""
    forward, backward = partial(case.forward, spec), partial(case.backward, spec)
    assert_gradients(forward, *arrays_of(case), backward=backward, step=1e-3 if case.smooth else 1e-5)
