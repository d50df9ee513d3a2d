"""Names of the founding documents: every function, argument, default, attribute and example, as they have it.

The twins may add keyword-only options, nothing else; the weights that a class holds in NumPy are an argument in JAX.
The single-head guide, the demo and the blueprint have files of their own.
"""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attendax import ops, spec

pytestmark = pytest.mark.smoke

TWINS = pytest.mark.parametrize("twin", [spec, ops], ids=["spec", "ops"])
REQUIRED = inspect.Parameter.empty

# --- Signatures ------------------------------------------------------------------------------------------------------

QKV = {"Q": REQUIRED, "K": REQUIRED, "V": REQUIRED}

SIGNATURES = {  # module -> function -> argument -> default
    "attention_core": {
        "compute_attention_scores": {"Q": REQUIRED, "K": REQUIRED, "scale": True},
        "apply_attention_mask": {"scores": REQUIRED, "mask": REQUIRED, "mask_value": -1e9},
        "attention_weights": {"scores": REQUIRED, "axis": -1},
        "scaled_dot_product_attention": QKV | {"mask": None},
        "additive_attention": QKV | {"W_q": REQUIRED, "W_k": REQUIRED, "v": REQUIRED, "mask": None},
        "softmax": {"x": REQUIRED, "axis": -1},
    },
    "multi_head": {
        "split_heads": {"x": REQUIRED, "num_heads": REQUIRED},
        "merge_heads": {"x": REQUIRED},
        "multi_head_attention_forward": QKV
        | {"W_Q": REQUIRED, "W_K": REQUIRED, "W_V": REQUIRED, "W_O": REQUIRED, "num_heads": REQUIRED, "mask": None},
        "multi_head_attention_backward": {"grad_output": REQUIRED, "cache": REQUIRED},
        "MultiHeadAttention": {"d_model": REQUIRED, "num_heads": REQUIRED},
    },
    "positional": {
        "sinusoidal_encoding": {"max_length": REQUIRED, "d_model": REQUIRED},
        "add_positional_encoding": {"x": REQUIRED, "pe": REQUIRED},
        "learned_positional_encoding": {"max_length": REQUIRED, "d_model": REQUIRED},
        "create_causal_mask": {"seq_length": REQUIRED},
        "create_padding_mask": {"lengths": REQUIRED, "max_length": REQUIRED},
    },
    "transformer_block": {
        "layer_norm": {"x": REQUIRED, "gamma": REQUIRED, "beta": REQUIRED, "eps": 1e-6},
        "layer_norm_backward": {"grad_output": REQUIRED, "x": REQUIRED, "gamma": REQUIRED, "eps": 1e-6},
        "feed_forward": {"x": REQUIRED, "W1": REQUIRED, "b1": REQUIRED, "W2": REQUIRED, "b2": REQUIRED},
        "TransformerEncoderBlock": {"d_model": REQUIRED, "num_heads": REQUIRED, "d_ff": None},
        "stack_encoder_blocks": {"x": REQUIRED, "blocks": REQUIRED, "mask": None},
    },
    "single_head": {
        "Attention": {"embedding_dimension": REQUIRED},
        "ScaledDotProductAttention": {"dropout_p": 0.0},
        "causal_mask": {"seq_len": REQUIRED},
    },
}

METHODS = {  # class -> method -> argument -> default
    "MultiHeadAttention": {
        "forward": QKV | {"mask": None},
        "backward": {"grad_output": REQUIRED},
        "get_params": {},
        "set_params": {"params": REQUIRED},
    },
    "TransformerEncoderBlock": {
        "forward": {"x": REQUIRED, "mask": None},
        "backward": {"grad_output": REQUIRED},
        "get_params": {},
        "set_params": {"params": REQUIRED},
    },
    "Attention": {"forward": {"x": REQUIRED}, "backward": {"grad_output": REQUIRED}},
    "ScaledDotProductAttention": {
        "forward": {"query": REQUIRED, "key": None, "value": None, "mask": None},
        "backward": {"grad_output": REQUIRED},
    },
}

# In JAX nothing is drawn without a random key, and blocks are weights, which do not know their number of heads.
REQUIRED_KEYWORDS = {("ops", "learned_positional_encoding"): {"rng"}, ("ops", "stack_encoder_blocks"): {"num_heads"}}


def positional(function):
    """Argument -> default, in order, of what is not keyword-only."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}


def required_keywords(function):
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is REQUIRED}


def assert_signature(got, wanted):
    assert list(got) == list(wanted)
    for name, default in wanted.items():
        assert type(got[name]) is type(default), name
        assert got[name] == default, name


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in SIGNATURES.items() for name in names])
@TWINS
def test_a_name_stands_in_its_module_with_its_arguments_and_defaults(twin, module, name):
    function = getattr(getattr(twin, module), name)
    assert function is getattr(twin, name)
    assert_signature(positional(function), SIGNATURES[module][name])
    assert required_keywords(function) == REQUIRED_KEYWORDS.get((twin.__name__.split(".")[-1], name), set())


@pytest.mark.parametrize(("owner", "method"), [(owner, name) for owner, methods in METHODS.items() for name in methods])
def test_a_method_has_its_arguments_and_defaults(owner, method):
    function = getattr(getattr(spec, owner), method)
    assert_signature(positional(function), {"self": REQUIRED} | METHODS[owner][method])
    assert not required_keywords(function)


@pytest.mark.parametrize("owner", METHODS)
def test_the_twin_of_a_method_takes_the_inputs_and_then_the_weights(owner):
    """Pure functions hold nothing: ``forward(x, params, mask)``, ``backward(grad_output, x, params, mask)``."""
    arguments = METHODS[owner]["forward"]
    inputs = {name: default for name, default in arguments.items() if default is REQUIRED}
    weights = {} if owner == "ScaledDotProductAttention" else {"params": REQUIRED}
    layer, own = getattr(ops, owner), {"self": REQUIRED}
    assert_signature(positional(layer.forward), own | inputs | weights | arguments)
    assert_signature(positional(layer.backward), own | {"grad_output": REQUIRED} | inputs | weights | arguments)


@TWINS
def test_every_forward_has_a_backward(twin):
    """Whether a document names it or not; but for sizes in, constants out."""
    from_sizes = {name for name in SIGNATURES["positional"] if name != "add_positional_encoding"} | {"causal_mask"}
    functions = {
        name for names in SIGNATURES.values() for name in names if name[0].islower() and not name.endswith("_backward")
    }
    for name in functions - from_sizes:
        backward = getattr(twin, f"{name}_backward".replace("attention_forward_", "attention_"))
        assert next(iter(positional(backward))) == "grad_output"
    assert callable(twin.attention_backward)


# --- The examples of seed 000, as written but for the randomness -----------------------------------------------------


@TWINS
def test_the_examples(twin):
    xp = np if twin is spec else jnp
    draw = np.random.default_rng(0).standard_normal
    Q, K = xp.asarray(draw((2, 4, 64))), xp.asarray(draw((2, 4, 64)))
    scores = twin.compute_attention_scores(Q, K)
    assert scores.shape == (2, 4, 4)
    x = xp.asarray(draw((2, 10, 512)))
    split = twin.split_heads(x, num_heads=8)
    assert split.shape == (2, 8, 10, 64)
    np.testing.assert_array_equal(twin.merge_heads(split), x)
    pe = twin.sinusoidal_encoding(100, 512)
    assert pe.shape == (100, 512)
    assert twin.create_causal_mask(4).tolist() == [[j <= i for j in range(4)] for i in range(4)]
    mask = twin.create_padding_mask(xp.array([3, 2]), max_length=4)
    assert mask.tolist() == [[True, True, True, False], [True, True, False, False]]


def test_the_examples_of_masks_to_the_letter():
    """The document shows what NumPy prints."""
    assert repr(spec.create_causal_mask(4)) == (
        "array([[ True, False, False, False],\n"
        "       [ True,  True, False, False],\n"
        "       [ True,  True,  True, False],\n"
        "       [ True,  True,  True,  True]])"
    )
    assert repr(spec.create_padding_mask(np.array([3, 2]), max_length=4)) == (
        "array([[ True,  True,  True, False],\n"
        "       [ True,  True, False, False]])"
    )  # fmt: skip


# --- Seed 000: what the functions return, what the classes hold ------------------------------------------------------


def multi_head_and_back(twin, Q, K, V, W_Q, W_K, W_V, W_O, grad_output):
    output, cache = twin.multi_head_attention_forward(Q, K, V, W_Q, W_K, W_V, W_O, 3)
    assert isinstance(cache, dict)
    return output, *twin.multi_head_attention_backward(grad_output, cache)


SHAPES = [  # how to call it, the shapes that go in, the shapes that come out
    (lambda twin, *x: twin.compute_attention_scores(*x), [(2, 5, 7), (2, 11, 7)], (2, 5, 11)),
    (lambda twin, *x: twin.scaled_dot_product_attention(*x), [(2, 3, 5, 7), (2, 3, 11, 7), (2, 3, 11, 13)],
     ((2, 3, 5, 13), (2, 3, 5, 11))),
    (lambda twin, *x: twin.additive_attention(*x), [(2, 5, 3), (2, 11, 7), (2, 11, 13), (3, 17), (7, 17), (17,)],
     ((2, 5, 13), (2, 5, 11))),
    (multi_head_and_back, [(2, 5, 6), (2, 11, 6), (2, 11, 6), (6, 6), (6, 6), (6, 6), (6, 6), (2, 5, 6)],
     ((2, 5, 6), (2, 5, 6), (2, 11, 6), (2, 11, 6), dict.fromkeys(["W_Q", "W_K", "W_V", "W_O"], (6, 6)))),
    (lambda twin, *x: twin.add_positional_encoding(*x), [(2, 5, 6), (7, 6)], (2, 5, 6)),
    (lambda twin, *x: twin.layer_norm(*x), [(2, 3, 5, 6), (6,), (6,)], (2, 3, 5, 6)),
    (lambda twin, *x: twin.layer_norm_backward(*x), [(2, 5, 6), (2, 5, 6), (6,)], ((2, 5, 6), (6,), (6,))),
    (lambda twin, *x: twin.feed_forward(*x), [(2, 5, 6), (6, 11), (11,), (11, 6), (6,)], (2, 5, 6)),
]  # fmt: skip


@pytest.mark.parametrize(("function", "given", "wanted"), SHAPES)
@TWINS
def test_shapes_that_the_document_states(twin, function, given, wanted):
    if twin is spec:
        result = function(twin, *(np.ones(shape) for shape in given))
    else:
        arrays = (jax.ShapeDtypeStruct(shape, jnp.float64) for shape in given)
        result = jax.eval_shape(lambda *arrays: function(twin, *arrays), *arrays)
    assert jax.tree.map(lambda array: array.shape, result) == wanted


def test_the_mask_value_of_the_document(rng):
    scores = rng.standard_normal((2, 3, 5))
    masked = spec.apply_attention_mask(scores, np.tri(3, 5, dtype=bool))
    np.testing.assert_array_equal(masked, np.where(np.tri(3, 5, dtype=bool), scores, -1e9))
    np.testing.assert_array_equal(ops.apply_attention_mask(jnp.asarray(scores), jnp.tri(3, 5, dtype=bool)), masked)


def test_learned_encodings_are_drawn():
    table = spec.learned_positional_encoding(100, 130, rng=0)
    assert table.shape == (100, 130)
    assert abs(table.mean()) < 0.02 * 4 / math.sqrt(table.size)
    assert abs(table.std() / 0.02 - 1) < 4 / math.sqrt(2 * table.size)
    assert not np.array_equal(spec.learned_positional_encoding(3, 2), spec.learned_positional_encoding(3, 2))


def test_multi_head_attention_class(rng):
    layer = spec.MultiHeadAttention(d_model=6, num_heads=3)
    assert (layer.d_model, layer.num_heads, layer.d_k) == (6, 3, 2)
    names = ["W_Q", "W_K", "W_V", "W_O"]
    params = layer.get_params()
    assert list(params) == names
    for name in names:
        assert params[name] is getattr(layer, name)
        assert params[name].shape == (6, 6)
    Q, K, V, grad = (rng.standard_normal((2, length, 6)) for length in (5, 7, 7, 5))
    mask = np.tri(5, 7, dtype=bool)
    wanted, cache = spec.multi_head_attention_forward(Q, K, V, *params.values(), 3, mask)
    np.testing.assert_array_equal(layer.forward(Q, K, V, mask=mask), wanted)
    *grads, grad_params = layer.backward(grad)
    *wanted, wanted_params = spec.multi_head_attention_backward(grad, cache)
    assert list(grad_params) == names
    for got, other in zip([*grads, *grad_params.values()], [*wanted, *wanted_params.values()], strict=True):
        np.testing.assert_array_equal(got, other)


def test_encoder_block_class(rng):
    block = spec.TransformerEncoderBlock(d_model=6, num_heads=3)
    assert (block.d_model, block.num_heads, block.d_ff) == (6, 3, 24)  # d_ff: 4 · d_model
    assert block.norm == "pre"
    assert spec.TransformerEncoderBlock(6, 3, 11).d_ff == 11
    assert ops.TransformerEncoderBlock(6, 3).d_ff == 24
    assert isinstance(block.attention, spec.MultiHeadAttention)
    shapes = {"W1": (6, 24), "b1": (24,), "W2": (24, 6), "b2": (6,)}
    shapes |= dict.fromkeys(["gamma1", "beta1", "gamma2", "beta2"], (6,))
    assert {name: getattr(block, name).shape for name in shapes} == shapes
    assert set(block.get_params()) == {"attention", *shapes}
    for name, start in {"b1": 0, "b2": 0, "gamma1": 1, "beta1": 0, "gamma2": 1, "beta2": 0}.items():
        assert (getattr(block, name) == start).all(), name
    x, grad = rng.standard_normal((2, 2, 5, 6))
    assert block.forward(x, mask=spec.create_causal_mask(5)).shape == (2, 5, 6)
    grad_x, grad_params = block.backward(grad)
    assert grad_x.shape == (2, 5, 6)
    assert {name: grad.shape for name, grad in grad_params.items() if name != "attention"} == shapes
    assert grad_params["attention"].W_Q.shape == (6, 6)


@pytest.mark.parametrize("make", [
    lambda rng: spec.MultiHeadAttention(6, 3, rng=rng),
    lambda rng: spec.MultiHeadAttention(6, 3, bias=True, rng=rng),
    lambda rng: spec.TransformerEncoderBlock(6, 3, rng=rng),
    lambda rng: spec.Attention(6, rng=rng),
], ids=["heads", "heads with biases", "block", "single head"])  # fmt: skip
def test_weights_travel_from_one_layer_to_another(rng, make):
    """get_params of one, set_params of another: the same function; a seed draws the same weights, no seed others."""
    x = rng.standard_normal((2, 5, 6))

    def run(layer):
        return layer.forward(x, x, x) if isinstance(layer, spec.MultiHeadAttention) else layer.forward(x)

    one, other = make(1), make(2)
    assert not np.array_equal(run(one), run(other))
    other.set_params(one.get_params())
    np.testing.assert_array_equal(run(one), run(other))
    np.testing.assert_array_equal(run(one), run(make(1)))
    assert not np.array_equal(run(make(None)), run(make(None)))
    name, value = next(iter(one.get_params().items()))
    before = run(one)
    if not isinstance(value, tuple):
        one.set_params({name: value + 1})  # the others stay
        assert not np.array_equal(run(one), before)
        np.testing.assert_array_equal(list(one.get_params().values())[1], list(other.get_params().values())[1])


def test_a_stack_is_its_blocks_one_after_the_other(rng):
    blocks = [spec.TransformerEncoderBlock(6, 3, 11, rng=seed) for seed in range(3)]
    x, mask = rng.standard_normal((2, 5, 6)), spec.create_causal_mask(5)
    wanted = blocks[2].forward(blocks[1].forward(blocks[0].forward(x, mask), mask), mask)
    np.testing.assert_array_equal(spec.stack_encoder_blocks(x, blocks, mask), wanted)
    np.testing.assert_array_equal(spec.stack_encoder_blocks(x, []), x)


def test_a_block_that_stands_in_a_stack_twice(rng):
    """Shared weights (Lan et al. 2020): each place has a gradient of its own; their sum is that of the weights."""
    block = spec.TransformerEncoderBlock(6, 3, 11, rng=0)
    x, grad, direction = rng.standard_normal((3, 2, 5, 6))
    W1, move = block.W1, rng.standard_normal((6, 11))
    grad_x, grad_params = spec.stack_encoder_blocks_backward(grad, x, [block, block])
    by_hand = np.sum(grad_x * direction) + sum(np.sum(grads["W1"] * move) for grads in grad_params)

    def loss(step):
        block.set_params({"W1": W1 + step * move})
        return np.sum(grad * spec.stack_encoder_blocks(x + step * direction, [block, block]))

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    assert abs(slope) > 1
    assert abs(by_hand - slope) < 1e-7 * abs(slope)


@pytest.mark.parametrize("make", [
    lambda: spec.MultiHeadAttention(6, 3, rng=0),
    lambda: spec.TransformerEncoderBlock(6, 3, rng=0),
    lambda: spec.Attention(6, rng=0),
], ids=["heads", "block", "single head"])  # fmt: skip
def test_backward_is_that_of_the_last_forward(rng, make):
    """Weights that are set in between belong to the next forward."""
    layer, (x, grad) = make(), rng.standard_normal((2, 2, 5, 6))
    layer.forward(*([x, x, x] if isinstance(layer, spec.MultiHeadAttention) else [x]))
    before = layer.backward(grad)[0]
    attention = getattr(layer, "attention", layer)
    attention.set_params({name: np.zeros_like(weights) for name, weights in attention.get_params().items()})
    np.testing.assert_array_equal(layer.backward(grad)[0], before)
