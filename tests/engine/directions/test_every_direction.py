"""L12 in tiles: third derivatives, and vmap over each argument alone, beside the specification in float64.

The other directions are rows of ``test_every_law_of_a_call.py``. Tiles are 3 x 2, so that every loop, skip and overlap
is on the way.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import masks, scores, spec
from blockwise import Tiny, Whole
from compilation import quickly

pytestmark = pytest.mark.law("L12", "tiles")

N, T, S, D, V = 2, 4, 5, 2, 3


class Setting(NamedTuple):
    options: dict
    heads: int = N
    bias: tuple = ()


SETTINGS = {
    "plain": Setting({}),
    "causal": Setting({"mask": masks.causal(1)}),
    "padding": Setting({"mask": masks.padding(np.array(3), np.array(3))}),
    "bias": Setting({}, bias=(N, T, S)),
    "softcap": Setting({"score_mod": scores.softcap(0.9)}),
    "dropout": Setting({"dropout_rate": 0.4, "dropout_rng": np.array([3, 8], np.uint32)}),
    "grouped": Setting({"scale": 0.8}, heads=1),
}


def shapes_of(setting):
    shapes = [(N, T, D), (setting.heads, S, D), (setting.heads, S, V)]
    return [*shapes, setting.bias] if setting.bias else shapes


def split(setting, x):
    shapes = shapes_of(setting)
    ends = np.cumsum([0, *map(np.prod, shapes)])
    return [x[a:b].reshape(shape) for a, b, shape in zip(ends[:-1], ends[1:], shapes, strict=True)]


def call(attend, setting, arrays):
    bias = {"bias": arrays[3]} if setting.bias else {}
    return attend(*arrays[:3], **bias, **setting.options, return_lse=True)


def loss(setting, x, twin=Tiny):
    out, lse = call(twin.attention, setting, split(setting, x))
    return jnp.sum(out**2) + 0.3 * jnp.sum(jnp.where(lse == -jnp.inf, 0, lse) ** 2)


class Reference:
    """Value and gradient of the loss by the specification."""

    def __init__(self, setting):
        rng = np.random.default_rng(11)
        self.x = rng.normal(size=sum(int(np.prod(s)) for s in shapes_of(setting)))
        self.setting = setting

    def gradient_at(self, x):
        arrays = split(self.setting, x)
        out, lse = call(spec.attention, self.setting, arrays)
        bias = {"bias": arrays[3]} if self.setting.bias else {}
        grad_lse = 0.6 * np.where(lse == -np.inf, 0, lse)
        grads = spec.attention_backward(2 * out, *arrays[:3], **bias, **self.setting.options, grad_lse=grad_lse)
        return np.concatenate([np.ravel(g) for g in grads if g is not None and hasattr(g, "shape")])


@functools.cache
def reference(name):
    return Reference(SETTINGS[name])


def assert_close(got, wanted, tolerance):
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape
    assert np.abs(wanted).max() > 1e-3  # an expectation of 0 would prove nothing
    np.testing.assert_allclose(got, wanted, atol=tolerance * np.abs(wanted).max(), rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("poison", [0.0, np.nan])
def test_l12_third_derivatives_in_reverse(poison):
    """Reverse mode through the program itself (``Plan.reversible``), with masked keys that are finite, and NaN (L6)."""
    rng = np.random.default_rng(12)
    query, key, value, *along = (rng.normal(size=(N, n, 3)) for n in (T, S, S, T, T))
    bad = [np.where(np.arange(S)[:, None] < 3, x, poison) for x in (key, value)]
    mask = np.arange(S)[None] < 3

    def third(attend):
        first = jax.grad(lambda q: jnp.sum(attend(q) ** 2))
        second = jax.grad(lambda q: jnp.vdot(first(q), along[0]))
        return quickly(jax.grad(lambda q: jnp.vdot(second(q), along[1])))(query)

    def plain(q):
        return jax.nn.softmax(q @ key[:, :3].swapaxes(-1, -2) / np.sqrt(3)) @ value[:, :3]

    assert_close(third(lambda q: Tiny.attention(q, *bad, mask=mask)), third(plain), 1e-10)


EACH_ARGUMENT = [
    (which, name, twin)
    for name, setting in SETTINGS.items()
    for which in range(len(shapes_of(setting)))
    for twin in (Whole, Tiny)
]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("which", "name", "twin"), EACH_ARGUMENT)
def test_l12_vmap_over_each_argument_alone(which, name, twin):
    """Value and gradient with respect to every argument, one of them batched and the others not."""
    setting, ref = SETTINGS[name], reference(name)
    arrays = split(setting, ref.x)
    factors = np.array([1.0, -0.5, 2.0])
    stacked = [x if k != which else factors.reshape(-1, *(1,) * x.ndim) * x for k, x in enumerate(arrays)]

    def run(*arrays):
        return loss(setting, jnp.concatenate([x.ravel() for x in arrays]), twin)

    axes = [0 if k == which else None for k in range(len(arrays))]
    both = jax.vmap(jax.value_and_grad(run, tuple(range(len(arrays)))), axes)
    _, grads = quickly(both)(*stacked)
    summed = quickly(jax.grad(lambda *a: jax.vmap(run, axes)(*a).sum(), tuple(range(len(arrays)))))(*stacked)
    wanted = []
    for index in range(len(factors)):
        x = np.concatenate([np.ravel(a[index] if k == which else a) for k, a in enumerate(stacked)])
        wanted.append(split(setting, ref.gradient_at(x)))
    for k, grad_k in enumerate(grads):
        each = np.stack([w[k] for w in wanted])
        assert_close(grad_k, each, 1e-10)
        assert_close(summed[k], each if k == which else each.sum(axis=0), 1e-10)
