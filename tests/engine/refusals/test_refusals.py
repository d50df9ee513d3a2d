"""Wrong input is refused, in NumPy and in JAX alike: the same exception and the very same words, under jit too (L14).

Every array of every public function is spoilt in every way that a table can generate: kind, dtype, rank, the size of
each axis; every mask and bias likewise. Options, sizes and lengths have a file of their own. Tracing costs most of the
time, so where several mistakes take one path through a check, one of them goes through jit.
"""

import inspect

import jax
import numpy as np
import pytest

from attendax import ops, spec
from refusal_calls import (
    ARRAYS,
    SIZES,
    WITHOUT_ARRAYS,
    arguments,
    array_table,
    assert_refused,
    assert_row,
    call,
    call_traced,
)

pytestmark = pytest.mark.law("L14", "spec", "ops")

EVERY_CALL = [*ARRAYS, *WITHOUT_ARRAYS]


@pytest.fixture(autouse=True)
def whole_tracebacks():
    """JAX spends longer on shortening a traceback than on raising; two thousand refusals add up to half a minute."""
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    yield
    jax.config.update("jax_traceback_filtering", before)


@pytest.mark.smoke
@pytest.mark.parametrize("name", EVERY_CALL)
def test_the_call_that_is_spoilt_below_is_right(name):
    call("spec", name, arguments(name))
    call_traced(name, arguments(name))


def test_every_public_function_is_spoilt_below():
    public = {name for module in (spec, ops) for name, value in vars(module).items() if callable(value)}
    results = {"AttentionGradients"}
    makers = {"init_multi_head_attention", "init_encoder_block"}  # of weights, by the checks of the two classes
    assert public - results - makers == {name.partition(".")[0] for name in EVERY_CALL}
    for name in EVERY_CALL:
        owner = inspect.getattr_static(spec, name.partition(".")[0])
        assert inspect.isfunction(owner) or "." in name or name in WITHOUT_ARRAYS


# --- Arrays: kind, dtype, rank, size ---------------------------------------------------------------------------------

ANY_RANK = {("softmax", "x"), ("attention_weights", "scores"), ("apply_attention_mask", "scores"), ("layer_norm", "x")}
ANY_RANK |= {("rms_norm", "x"), ("rotary_encoding", "x")}
BOTH_OR_NEITHER = {("ScaledDotProductAttention.forward", "key"), ("ScaledDotProductAttention.forward", "value")}


def mistakes(of_array):
    """A parameter set for each mistake that ``of_array(name, argument, axes, is_weight)`` names, of each array."""
    return [
        pytest.param(name, argument, mistake, id=f"{name}-{argument}-{mistake}")
        for name in ARRAYS
        for argument, (axes, is_weight) in array_table(name).items()
        for mistake in of_array(name, argument, axes, is_weight)
    ]


KINDS = {
    "int64": lambda array: array.astype(np.int64),
    "bool": lambda array: array > 0,
    "complex128": lambda array: array.astype(np.complex128),
    "list": np.ndarray.tolist,
    "NoneType": lambda array: None,
}


def wrong_kinds(name, argument, axes, is_weight):
    may_be_none = argument.startswith("b_") or (name, argument) in BOTH_OR_NEITHER
    return [kind for kind in KINDS if not (kind == "NoneType" and may_be_none)]


@pytest.mark.parametrize(("name", "argument", "kind"), mistakes(wrong_kinds))
def test_what_is_no_floating_array(name, argument, kind):
    given = arguments(name)
    given[argument] = KINDS[kind](given[argument])
    message = assert_refused(name, given, TypeError, argument, kind, traced=kind == "int64")
    assert_row(message, argument, given[argument])


def narrower(name, argument, axes, is_weight):
    data = [other for other, (_, is_weight) in array_table(name).items() if not is_weight]
    alone = data == [argument] and argument != "grad_output"  # its weights may be wider
    return [] if alone else ["float32"]


@pytest.mark.smoke
@pytest.mark.parametrize(("name", "argument", "dtype"), mistakes(narrower))
def test_a_dtype_that_differs_and_a_weight_that_is_narrower(name, argument, dtype):
    given = arguments(name)
    given[argument] = given[argument].astype(dtype)
    message = assert_refused(name, given, TypeError, argument, "float32", "float64")
    assert_row(message, argument, given[argument])


def wrong_ranks(name, argument, axes, is_weight):
    return [] if (name, argument) in ANY_RANK else sorted({0, len(axes) - 1, len(axes) + 1})


@pytest.mark.smoke
@pytest.mark.parametrize(("name", "argument", "rank"), mistakes(wrong_ranks))
def test_an_axis_too_many_or_too_few(name, argument, rank):
    given = arguments(name)
    array = given[argument]
    given[argument] = array[None] if rank > array.ndim else np.asarray(array[(0,) * (array.ndim - rank)])
    message = assert_refused(name, given, ValueError, argument, traced=rank > array.ndim)
    assert_row(message, argument, given[argument])


def bound_axes(name, argument, axes, is_weight):
    """The axes whose size is settled by another array, or by the same one elsewhere, or by the layer."""
    every = [axis for axes, _ in array_table(name).values() for axis in axes]
    return [position for position, axis in enumerate(axes) if axis.endswith("!") or every.count(axis) > 1]


@pytest.mark.smoke
@pytest.mark.parametrize(("name", "argument", "position"), mistakes(bound_axes))
def test_a_size_that_disagrees(name, argument, position):
    given = arguments(name)
    array = given[argument]
    given[argument] = np.concatenate([array, array.take([0], position)], position)
    size = array.shape[position]
    message = assert_refused(name, given, ValueError, argument, str(size), str(size + 1))
    assert_row(message, argument, given[argument])


def widths():
    return [
        (name, axis)
        for name in ARRAYS
        for axis in {axis for axes, _ in array_table(name).values() for axis in axes}
        if axis in "DVMFAKab"
    ]


@pytest.mark.smoke
@pytest.mark.parametrize(("name", "width"), sorted(widths()))
def test_a_width_of_zero(name, width):
    given = arguments(name)
    for argument, (axes, _) in array_table(name).items():
        given[argument] = np.zeros([0 if axis == width else SIZES[axis.rstrip("!")] for axis in axes])
    assert_refused(name, given, ValueError, "=0 but a width is at least 1")


# --- Masks and biases ------------------------------------------------------------------------------------------------

# The scores whose pairs a mask chooses, and whether it broadcasts to them as the seeds say or is held to L3.
MASKED = {
    "apply_attention_mask": ((3, 5, 7), True),
    "apply_attention_mask_backward": ((3, 5, 7), True),
    "scaled_dot_product_attention": ((3, 5, 7), True),
    "scaled_dot_product_attention_backward": ((3, 5, 7), True),
    "additive_attention": ((3, 5, 7), True),
    "additive_attention_backward": ((3, 5, 7), True),
    "attention": ((3, 4, 5, 7), False),
    "attention_with_weights": ((3, 4, 5, 7), False),
    "attention_backward": ((3, 4, 5, 7), False),
    "multi_head_attention": ((3, 2, 5, 7), False),
    "multi_head_attention_forward": ((3, 2, 5, 7), True),
    "encoder_block": ((3, 2, 5, 5), False),
    "encoder_block_backward": ((3, 2, 5, 5), False),
    "stack_encoder_blocks": ((3, 2, 5, 5), True),
    "stack_encoder_blocks_backward": ((3, 2, 5, 5), True),
    "MultiHeadAttention.forward": ((3, 2, 5, 7), True),
    "TransformerEncoderBlock.forward": ((3, 2, 5, 5), True),
    "ScaledDotProductAttention.forward": ((3, 5, 7), True),
}
BIASED = [
    "scaled_dot_product_attention",
    "scaled_dot_product_attention_backward",
    "attention",
    "attention_with_weights",
    "attention_backward",
]


@pytest.mark.parametrize(("option", "table"), [("mask", MASKED), ("bias", BIASED)])
def test_every_function_with_a_mask_or_a_bias_is_here(option, table):
    functions = [name for name in ARRAYS if "." not in name]
    takes = {name for name in functions if option in inspect.signature(getattr(spec, name)).parameters}
    assert takes == set(functions).intersection(table)


@pytest.mark.smoke
@pytest.mark.parametrize("kind", ["int64", "float64", "uint8", "list", "str"])
@pytest.mark.parametrize("name", MASKED)
def test_a_mask_that_is_not_boolean(name, kind):
    mask = np.ones(MASKED[name][0][-2:], bool)
    wrong = {"list": mask.tolist(), "str": "causal"}.get(kind)
    given = arguments(name) | {"mask": mask.astype(kind) if wrong is None else wrong}
    assert_refused(name, given, TypeError, "mask must be boolean", kind)


def wrong_masks():
    for name, (shape, broadcasts) in MASKED.items():
        *leading, T, S = shape
        wrong = [(T + 1, S), (T, S + 1), (S + 2, T), (1, *shape), (leading[0] + 1, *shape[1:])]
        if len(shape) == 4:
            wrong += [(3, T, S), (3, leading[1] + 1, T, S)]  # no head axis; a head too many
        if not broadcasts:
            wrong += [(S,), (), (1, T, S)]
        for mask in wrong:
            yield pytest.param(name, mask, id=f"{name}-{mask}")


@pytest.mark.parametrize(("name", "shape"), list(wrong_masks()))
def test_a_mask_that_does_not_fit(name, shape):
    given = arguments(name) | {"mask": np.ones(shape, bool)}
    assert_refused(name, given, ValueError, f"mask has shape {shape} but the scores have shape {MASKED[name][0]}")


@pytest.mark.parametrize("name", [name for name, (_, broadcasts) in MASKED.items() if broadcasts])
def test_a_mask_that_broadcasts_is_right_where_the_seeds_say_so(name):
    """In the other functions L3 holds: rank 2 or the full rank."""
    shape = MASKED[name][0]
    for fitting in (shape, shape[1:], (1, *shape[1:-1], 1), shape[-1:], (1,), ()):
        given = arguments(name) | {"mask": np.ones(fitting, bool)}
        call("spec", name, given)
        call_traced(name, given)


def test_a_mask_without_the_head_axis_is_refused_where_batch_and_heads_are_equal():
    """The trap: a (B, T, S) mask with B == N would broadcast, each sequence's mask to the head of its number."""
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal((3, 3, size, 11)) for name, size in (("query", 5), ("key", 7), ("value", 7))}
    given["mask"] = np.ones((3, 5, 7), bool)
    message = assert_refused("attention", given, ValueError, "mask has shape (3, 5, 7)")
    assert "mask[:, None]" in message


WRONG_BIASES = {
    "a mask": (np.ones((5, 7), bool), TypeError, "bool"),
    "integers": (np.ones((5, 7), np.int64), TypeError, "int64"),
    "complex": (np.ones((5, 7), complex), TypeError, "complex128"),
    "a list": ([[0.0]], TypeError, "list"),
    "a number": (0.5, TypeError, "float"),
    "narrower": (np.ones((5, 7), np.float32), TypeError, "float32"),
    "rows": (np.ones((6, 7)), ValueError, "(6, 7)"),
    "columns": (np.ones((5, 8)), ValueError, "(5, 8)"),
    "rank": (np.ones((1, 1, 1, 5, 7)), ValueError, "(1, 1, 1, 5, 7)"),
}


@pytest.mark.smoke
@pytest.mark.parametrize("mistake", WRONG_BIASES)
@pytest.mark.parametrize("name", BIASED)
def test_a_bias_that_is_none(name, mistake):
    bias, error, fact = WRONG_BIASES[mistake]
    assert_refused(name, arguments(name) | {"bias": bias}, error, "bias", fact)
