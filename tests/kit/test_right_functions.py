"""Right functions as people write them have no fault where only numbers are asked."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stated
from attendax.conformance.diagnoses.by_numbers import ROUNDED
from attendax.conformance.report.outcomes import Harm
from libraries import implementation

check = functools.partial(stated.check, seed=0, budget=0, in_process=True)


pytestmark = pytest.mark.usefixtures("as_users_have_it")


def by_einsum(query, key, value, *, mask=None, is_causal=False):
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key) / jnp.sqrt(query.shape[-1]).astype(query.dtype)
    if is_causal:
        scores = jnp.where(jnp.tri(*scores.shape[-2:], dtype=bool), scores, -1e9)
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), value)


def by_scan(query, key, value, *, is_causal=False):
    """Online softmax, one key at a time."""
    T, scale = query.shape[-2], query.shape[-1] ** -0.5

    def step(carry, inputs):
        top, total, out = carry
        j, k, v = inputs
        score = jnp.einsum("bhqd,bhd->bhq", query.astype("float32"), k.astype("float32")) * scale
        score = jnp.where(is_causal & (j > jnp.arange(T)), -1e30, score)
        new = jnp.maximum(top, score)
        kept, weight = jnp.exp(top - new), jnp.exp(score - new)
        out = out * kept[..., None] + weight[..., None] * v[:, :, None].astype("float32")
        return (new, total * kept + weight, out), None

    shape = query.shape[:-1]
    start = (jnp.full(shape, -1e30), jnp.zeros(shape), jnp.zeros((*shape, value.shape[-1])))
    keys = (jnp.arange(key.shape[-2]), jnp.moveaxis(key, 2, 0), jnp.moveaxis(value, 2, 0))
    _, total, out = jax.lax.scan(step, start, keys)[0]
    return (out / total[..., None]).astype(query.dtype)


def by_loops(query, key, value, *, scale=None):
    out = np.zeros((*query.shape[:-1], value.shape[-1]))
    for place in np.ndindex(query.shape[:-1]):
        scores = key[place[:-1]] @ query[place] * (scale if scale is not None else 1 / np.sqrt(query.shape[-1]))
        weights = np.exp(scores - scores.max())
        out[place] = weights @ value[place[:-1]] / weights.sum()
    return out


@jax.custom_vjp
def by_hand(query, key, value):
    return by_einsum(query, key, value)


def _forward(query, key, value):
    return by_einsum(query, key, value), (query, key, value)


def _backward(saved, grad):
    query, key, value = (x.astype("float32") for x in saved)
    scale = query.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.einsum("bhqd,bhkd->bhqk", query, key) * scale)
    grad = grad.astype("float32")
    dweights = jnp.einsum("bhqd,bhkd->bhqk", grad, value)
    dscores = weights * (dweights - (dweights * weights).sum(-1, keepdims=True)) * scale
    grads = dscores @ key, dscores.swapaxes(-1, -2) @ query, weights.swapaxes(-1, -2) @ grad
    return tuple(x.astype(old.dtype) for x, old in zip(grads, saved, strict=True))


by_hand.defvjp(_forward, _backward)


def custom(query, key, value):
    return by_hand(query, key, value)


def by_torch(query, key, value, *, mask=None, is_causal=False):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)


EVERYDAY = {"einsum": by_einsum, "scan": by_scan, "custom_vjp": custom}


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERYDAY)
def test_a_right_function_of_jax_has_no_fault(name):
    report = check(EVERYDAY[name], arrays="jax", budget=0)
    assert [(o.case.name, o.told()) for o in report.failures] == []
    assert report.counts()["ok"] >= 30


def test_right_loops_have_no_fault():
    report = check(by_loops, arrays="numpy", only=["plain", "one ", "width", "scale", "bfloat16", "float16", "views"])
    assert [(o.case.name, o.told()) for o in report.failures] == []
    assert report.counts()["ok"] >= 10


@pytest.mark.slow
def test_a_wrapper_of_torch_has_no_fault():
    pytest.importorskip("torch", reason="torch is not installed")
    report = check(by_torch, arrays="torch", budget=0)
    assert [o.case.name for o in report.failures] == []
    assert report.counts()["ok"] >= 60


def kernel_of_torch(*, once):
    """A forward and a backward by hand, the context given to ``forward`` or made by ``setup_context``."""
    import torch

    def powers(query, key):
        return torch.softmax(query @ key.mT * query.shape[-1] ** -0.5, dim=-1)

    class Kernel(torch.autograd.Function):
        if once:

            @staticmethod
            def forward(query, key, value):
                return powers(query, key) @ value

            @staticmethod
            def setup_context(context, inputs, output):
                context.save_for_backward(*inputs)

        else:

            @staticmethod
            def forward(context, query, key, value):
                context.save_for_backward(query, key, value)
                return powers(query, key) @ value

        @staticmethod
        def backward(context, grad):
            query, key, value = context.saved_tensors
            weights, dweights = powers(query, key), grad @ value.mT
            scores = weights * (dweights - (weights * dweights).sum(-1, keepdim=True)) * query.shape[-1] ** -0.5
            return scores @ key, scores.mT @ query, weights.mT @ grad

    return lambda query, key, value: Kernel.apply(query, key, value)


@pytest.mark.parametrize("once", [False, True])
def test_a_kernel_of_torch_without_torch_func_has_no_fault(once):
    pytest.importorskip("torch", reason="torch is not installed")
    report = check(kernel_of_torch(once=once), arrays="torch", only=["plain", "vmap"])
    assert [(o.case.name, o.told()) for o in report.failures] == []
    assert report.counts()["ok"] >= 2


def test_what_rounds_more_than_the_law_allows_is_one_cause_and_no_wrong_number():
    """Every step in bfloat16, and all else right: the profile "numbers" has nothing against it."""

    def narrow(query, key, value, *, is_causal=False):
        def step(x):
            return np.asarray(x, np.float32).astype(query.dtype).astype(np.float32)

        query_, key_, value_ = map(step, (query, key, value))
        scores = step(step(query_ * query.shape[-1] ** -0.5) @ key_.swapaxes(-1, -2))
        if is_causal:
            scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
        powers = step(np.exp(scores - scores.max(axis=-1, keepdims=True)))
        return (step(powers / step(powers.sum(axis=-1, keepdims=True))) @ value_).astype(query.dtype)

    given = {"arrays": "numpy", "only": ["plain", "causal"], "level": "forward", "dtype": "bfloat16"} | {
        "sizes": dict(N=2, G=2, T=48, S=300, D=128)
    }
    assert check(narrow, profile="numbers", **given).ok
    causes = check(narrow, profile="law", **given).causes
    assert not {cause.harm for cause in causes} & {Harm.NUMBERS, Harm.GRADIENTS}, causes
    assert ROUNDED in {cause.name for cause in causes if cause.harm is Harm.ROBUSTNESS}


def test_the_gradient_through_what_dropout_kept_may_round_as_the_dense_formula_does():
    pytest.importorskip("torch")
    report = check(implementation("torch-sdpa"), only=["gradient: in blocks: dropout, 1100"], seed=1)
    assert report.counts() == {"ok": 1}


def test_a_long_sum_may_be_taken_one_after_the_other():
    """As torch, MLX and onnxruntime add; NumPy adds in pairs, and its formula is nearly exact."""

    def in_order(query, key, value):
        scores = query @ key.swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = powers / np.cumsum(powers, axis=-1, dtype=np.float32)[..., -1:]
        return np.cumsum(weights[..., None] * value[..., None, :, :], axis=-2, dtype=np.float32)[..., -1, :]

    for seed in range(3):
        report = check(in_order, arrays="numpy", only=["long row of ones"], profile="law", seed=seed, level="forward")
        assert report.counts() == {"ok": 1}


def test_a_device_is_where_arrays_are_made():
    report = check(functools.partial(by_einsum), arrays="jax", only=["one key"], level="forward", device="cpu:0")
    assert report.ok
    assert "jax_default_device" not in "".join(o.reproduction for o in report.cases)


@pytest.mark.smoke
def test_arrays_of_numpy_are_on_no_other_device():
    with pytest.raises(ValueError, match=r"plainest call(.|\n)*numpy  has no device cuda:0(.|\n)*dtype, sizes and"):
        check(by_loops, device="cuda:0", only=["plain"], level="forward")
    assert check(by_loops, device="cpu", only=["plain"], level="forward").ok


def test_a_quick_exp_is_no_wrong_number():
    """As torch's on a CPU, which may be off by 20 roundings; the law allows less (L8)."""

    def attend(query, key, value, *, exp=np.exp):
        scores = query @ key.swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5)
        powers = exp(scores - scores.max(axis=-1, keepdims=True))
        return powers @ value / powers.sum(axis=-1, keepdims=True)

    def quick(x, ulps=20):
        return np.exp(x) * (1 + np.float32(ulps * 2**-23) * np.cos(40 * x))

    only, given = ["plain", "lengths that no block"], {"arrays": "numpy", "level": "forward"}
    assert check(functools.partial(attend, exp=quick), only=only, **given).ok
    (cause,) = check(functools.partial(attend, exp=quick), only=only, profile="law", **given).causes
    assert (cause.name, cause.harm) == (ROUNDED, Harm.ROBUSTNESS)
    coarse = functools.partial(attend, exp=functools.partial(quick, ulps=200))
    assert not check(coarse, only=only, **given).ok
