"""What is right at large sizes: the formula in parts is the specification, in every option and direction."""

import numpy as np
import pytest

from attendax.conformance.cases import CASES, pool
from attendax.conformance.cases.case import Inputs
from attendax.conformance.conventions import formula, right
from attendax.conformance.conventions import parts as quick
from attendax.conformance.conventions.parts import pairs
from attendax.conformance.judge import dense
from attendax.conformance.judge.comparing import Tolerance, compare
from attendax.conformance.judge.verdicts import Verdict

COMBINATIONS = (
    "softcap and scale below 0 and sinks",
    "causal and segments and sinks and lse",
    "key lengths and mask (B, 1, T, S) and bias (T, S) and lse",
    "window to the left and cache and bias cut from a longer one",
)
GIVEN = [x for x in pool.ASKED if x != "held"]
BY_SPEC = {name: getattr(right, name).__wrapped__ for name in ("forward", "gradient")}
LARGE = {"B": 2, "N": 6, "G": 2, "T": 130, "S": 131, "D": 8, "V": 5}


def inputs_of(direction, options, sizes, seed=0, numbers="heavy tails"):
    if "segments" in options and "causal" in options:
        sizes = sizes | {"S": sizes["T"]}
    if "cache" in options:
        sizes = sizes | {"T": 4}
    return pool.case_of(direction, options, numbers, sizes, None).inputs(seed, "float32")


def by_formula(direction, inputs, block=quick.BLOCK_PAIRS):
    return quick.joined(getattr(formula, direction), inputs, block, trimmed=True)


def equal(found, wanted):
    assert found.keys() == wanted.keys()
    for leaf, x in wanted.items():
        assert found[leaf].shape == x.shape
        np.testing.assert_allclose(found[leaf], x, rtol=0, atol=1e-12 * np.abs(x[np.isfinite(x)]).max(initial=1e-30))


@pytest.mark.smoke
@pytest.mark.sample(20)
@pytest.mark.parametrize("block", [1, 40, 2**17])
@pytest.mark.parametrize("options", [*GIVEN, *COMBINATIONS])
@pytest.mark.parametrize("direction", ["forward", "gradient"])
def test_it_is_the_specification_in_blocks_of_any_size(direction, options, block):
    inputs = inputs_of(direction, options, dict(B=2, N=6, G=2, T=11, S=13, D=3, V=5))
    with np.errstate(all="ignore"):
        found = by_formula(direction, inputs, block)
    equal(found, BY_SPEC[direction](inputs))


@pytest.mark.smoke
@pytest.mark.parametrize("block", [1, 2**17])  # of one query, whose keys are none
@pytest.mark.parametrize("direction", ["forward", "gradient"])
def test_a_query_that_sees_nothing_gets_nothing(direction, block):
    inputs = inputs_of(direction, "lse", dict(B=1, N=2, G=1, T=3, S=4, D=3, V=5))
    allowed = np.ones((3, 4), bool)
    allowed[1] = False
    inputs = inputs._replace(options=inputs.options | {"mask": allowed})
    with np.errstate(all="ignore"):
        found = by_formula(direction, inputs, block)
    equal(found, BY_SPEC[direction](inputs))
    assert not found["out" if direction == "forward" else "grad query"][:, :, 1].any()


@pytest.mark.smoke
def test_without_any_key_the_gradient_of_a_bias_is_empty():
    inputs = inputs_of("gradient", "bias (T, S)", dict(B=1, N=2, G=1, T=3, S=0, D=3, V=5))
    with np.errstate(all="ignore"):
        equal(formula.gradient(inputs), BY_SPEC["gradient"](inputs))


@pytest.mark.smoke
@pytest.mark.parametrize("direction", ["forward", "gradient"])
def test_a_large_case_is_computed_so_and_a_small_one_is_not(direction):
    asked = []
    whole = getattr(formula, direction)
    counted = quick.by_formula_where_large(lambda part: asked.append(part) or whole(part))(BY_SPEC[direction])
    small, large = (inputs_of(direction, "causal", sizes) for sizes in (LARGE | {"T": 5}, LARGE))
    assert pairs(small) < quick.LARGE_PAIRS < pairs(large)
    equal(counted(small), BY_SPEC[direction](small))
    assert asked == []
    equal(counted(large), BY_SPEC[direction](large))
    assert len(asked) == 4  # a key head of a batch each


@pytest.mark.parametrize("spoil", [np.nan, np.inf, 1e200])
def test_numbers_that_are_not_ordinary_are_for_the_specification(spoil):
    inputs = inputs_of("forward", "plain", LARGE)
    assert quick.is_for(inputs)
    value = inputs.arrays["value"].astype(np.float64)
    value[0, 0, 0, 0] = spoil
    assert not quick.is_for(inputs._replace(arrays=inputs.arrays | {"value": value}))


def test_a_bias_may_forbid():
    inputs = inputs_of("forward", "bias (T, S)", LARGE)
    bias = inputs.arrays["bias"].copy()
    bias[3, ::2] = -np.inf
    inputs = inputs._replace(arrays=inputs.arrays | {"bias": bias})
    assert quick.is_for(inputs)
    with np.errstate(all="ignore"):
        equal(by_formula("forward", inputs), BY_SPEC["forward"](inputs))


@pytest.mark.law("L8", "kit")
def test_l8_an_error_of_delta_changes_gradients_by_no_more_than_is_allowed_for_it():
    """|dout| |v| in the gradient of each score, of any sign; of keys and queries above 0 it is all reached."""
    (case,) = (case for case in CASES if case.name == "gradient: bias with grouped heads")
    inputs = case.inputs(0, "float32")
    arrays = {name: abs(x) if name in ("query", "key") else x for name, x in inputs.arrays.items()}
    query, key, value = (arrays[name].astype(float) for name in ("query", "key", "value"))
    heads = query.shape[1] // key.shape[1]
    key, value = (np.repeat(x, heads, axis=1) for x in (key, value))
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5 + arrays["bias"]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    off = np.linalg.norm(inputs.extra["cotangent"], axis=-1)[..., None] * np.linalg.norm(value, axis=-1)[..., None, :]
    dquery = (weights * off) @ key / query.shape[-1] ** 0.5
    found = dense.of_delta(inputs._replace(arrays=arrays))
    np.testing.assert_allclose(found["grad query"], dquery, rtol=1e-5)
    assert found["grad key"].shape == arrays["key"].shape
    assert found["grad bias"].shape == arrays["bias"].shape
    assert "grad value" not in found


@pytest.mark.parametrize("columns", ["equal", "different"])
@pytest.mark.law("L8", "kit")
def test_l8_a_row_that_sees_equal_values_is_allowed_eight_times_as_much(columns):
    """One key has another number in one column: only the rows that do not see it see equal values still."""
    (case,) = (case for case in CASES if case.name == "gradient: mask (T, S)")
    inputs, other = case.inputs(0, "float32"), 4
    one = np.full_like(inputs.arrays["value"], 0.75)
    one += np.arange(one.shape[-1], dtype=np.float32) * (columns == "different")
    two = one.copy()
    two[..., other, 0] = np.nextafter(np.float32(0.75), np.float32(1))
    found = [dense.of_delta(inputs._replace(arrays=inputs.arrays | {"value": x}))["grad query"] for x in (one, two)]
    sees = np.asarray(inputs.options["mask"])[:, other]
    assert sees.any()
    assert not sees.all()
    ratio = found[0] / found[1]
    np.testing.assert_allclose(ratio[..., sees, :], 8, rtol=1e-4)
    np.testing.assert_allclose(ratio[..., ~sees, :], 1, rtol=1e-4)


@pytest.mark.law("L8", "kit")
def test_l8_more_is_allowed_where_a_derivative_passes_through_the_largest_score():
    """One query sees three keys, of scores 1, 0 and 2: the second is none of a largest score, not even at its turn."""
    arrays = {"query": np.ones((1, 1, 1, 4)), "key": np.ones((1, 1, 3, 4)), "value": np.ones((1, 1, 3, 2))}
    arrays["key"] *= np.array([1, 0, 2])[:, None] / 2
    inputs = Inputs(
        {name: x.astype(np.float32) for name, x in arrays.items()}, {}, {"cotangent": np.ones((1, 1, 1, 2))}
    )
    found = dense.of_largest(inputs)  # Σ p |dp| = 2, and the scale is 1/2
    np.testing.assert_allclose(found["grad key"][0, 0], [[1] * 4, [0] * 4, [1] * 4], rtol=1e-6)
    np.testing.assert_allclose(found["grad query"][0, 0], [[1.5] * 4], rtol=1e-6)
    got, tolerance = {"grad key": np.zeros((3, 4))}, Tolerance(0.01, more=found["grad key"][0, 0])
    for key, verdict in ((2, Verdict.OK), (1, Verdict.WRONG)):
        wanted = np.zeros((3, 4))
        wanted[key] = 1
        assert compare(got, {"grad key": wanted}, {"grad key": tolerance}).verdict is verdict
