"""What a right function may do: round more than the law allows, add in another order, run on a device."""

import functools

import numpy as np
import pytest

import mistakes_in_directions
import right_attention
import stated
from attendax.conformance.diagnoses.by_numbers import ROUNDED
from attendax.conformance.report.outcomes import Harm
from libraries import implementation

check = functools.partial(stated.check, seed=0, budget=0, in_process=True)


pytestmark = pytest.mark.usefixtures("as_users_have_it")


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
    report = check(
        functools.partial(mistakes_in_directions.right), arrays="jax", only=["one key"], level="forward", device="cpu:0"
    )
    assert report.ok
    assert "jax_default_device" not in "".join(o.reproduction for o in report.cases)


@pytest.mark.smoke
def test_arrays_of_numpy_are_on_no_other_device():
    with pytest.raises(ValueError, match=r"plainest call(.|\n)*numpy  has no device cuda:0(.|\n)*dtype, sizes and"):
        check(right_attention.attend, device="cuda:0", only=["plain"], level="forward")
    assert check(right_attention.attend, device="cpu", only=["plain"], level="forward").ok


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
