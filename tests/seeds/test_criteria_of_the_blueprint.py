"""The blueprint's tasks, criterion by criterion: the table says which tests show each, and is itself tested.

The tests are small on purpose: numbers that a reader can check in the margin, in NumPy, as the blueprint has it. That
the JAX functions mean the same is shown elsewhere.
"""

import importlib
import inspect
import math
import re

import numpy as np
import pytest

from attendax import spec

# task -> criterion -> (what it asks for, the paper's verification points, the tests that show it)
BLUEPRINT = {
    "S1-T1": {
        "AC1": ("accepts Q, K, V", "V1", ["test_takes_queries_keys_and_values_of_any_sizes"]),
        "AC2": ("QKᵀ, scaled by 1/√d_k", "V1 V2", ["test_scores_by_hand", "test_the_scaling_factor"]),
        "AC3": ("row-wise softmax", "V2 V3", [
            "test_weights_by_hand",
            "test_a_row_of_weights_depends_on_its_query_alone",
        ]),
        "AC4": ("multiplies by V", "V3", ["test_output_by_hand", "test_output_is_weights_times_values"]),
    },
    "S1-T2": {
        "AC1": ("shapes are preserved", "V4", ["test_takes_queries_keys_and_values_of_any_sizes"]),
        "AC2": ("the scaling factor is applied", "V4", ["test_the_scaling_factor"]),
        "AC3": ("a known theoretical result", "V4", [
            "test_output_by_hand",
            "test_equal_keys_give_the_mean_of_the_values",
            "test_one_loud_key_gives_its_value",
            "test_definition.test_scaled_dot_product_attention",
            "test_outside_judges.test_scaled_dot_product_attention_in_torch",
        ]),
    },
    "S2-T1": {
        "AC1": ("the projections W_Q, W_K, W_V, split", "V5", [
            "test_projections_are_split_into_heads",
            "test_a_head_owns_its_columns",
        ]),
        "AC2": ("shapes for h heads", "V5", ["test_shapes_for_h_heads"]),
    },
    "S2-T2": {
        "AC1": ("the heads are concatenated", "V6", ["test_heads_are_concatenated", "test_merging_undoes_splitting"]),
        "AC2": ("the final projection W_O", "V7", [
            "test_the_output_projection",
            "test_outside_judges.test_multi_head_attention_in_torch",
        ]),
    },
    "S3-T1": {
        "AC1": ("multi-head attention is part of the layer", "V8", ["test_the_layer_attends"]),
        "AC2": ("residual connections, Add & Norm", "V8", [
            "test_add_and_norm",
            "test_a_silent_layer_passes_its_input_on",
            "test_layer_norm_by_hand",
            "test_outside_judges.test_encoder_block_in_torch",
        ]),
        "AC3": ("the position-wise feed-forward network", "V8", [
            "test_feed_forward_by_hand",
            "test_feed_forward_acts_on_every_position_alone",
        ]),
    },
    "S4-T1": {
        "AC1": ("the sinusoidal formula", "V9", ["test_positional_encoding_element_by_element"]),
        "AC2": ("a matrix (sequence_length, model_dimension)", "V9", ["test_shape_of_the_positional_encoding"]),
    },
}  # fmt: skip
CRITERIA = {"S1-T1": 4, "S1-T2": 3, "S2-T1": 2, "S2-T2": 2, "S3-T1": 3, "S4-T1": 2}  # how many the blueprint has
STANDARDS = {"test_every_public_function_documents_what_it_takes_gives_and_raises"}  # section 4; PEP 8 is ruff's


def named_tests():
    return [name for rows in BLUEPRINT.values() for _, _, tests in rows.values() for name in tests]


def test_every_criterion_is_shown_by_a_test():
    assert {task: list(rows) for task, rows in BLUEPRINT.items()} == {
        task: [f"AC{number}" for number in range(1, count + 1)] for task, count in CRITERIA.items()
    }
    assert all(tests for rows in BLUEPRINT.values() for _, _, tests in rows.values())
    points = {point for rows in BLUEPRINT.values() for _, points, _ in rows.values() for point in points.split()}
    assert points == {f"V{number}" for number in range(1, 10)}


@pytest.mark.parametrize("name", sorted(set(named_tests())))
def test_the_test_that_the_table_names_is_there(name):
    module, _, function = name.rpartition(".")
    owner = importlib.import_module(module) if module else importlib.import_module(__name__)
    assert inspect.isfunction(getattr(owner, function))
    assert function.startswith("test_")  # or pytest would not run it


def test_no_test_is_missing_from_the_table():
    about_the_table = {name for name in globals() if name.startswith("test_") and "_table" in name}
    about_the_table |= {"test_every_criterion_is_shown_by_a_test"}
    here = {name for name in globals() if name.startswith("test_")}
    assert here - about_the_table - STANDARDS == {name for name in named_tests() if "." not in name}


# --- Sprint 1: scaled dot-product attention --------------------------------------------------------------------------

LN2, LN3 = math.log(2), math.log(3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_takes_queries_keys_and_values_of_any_sizes(rng, leading, dtype):
    Q, K, V = (rng.standard_normal((*leading, *size)).astype(dtype) for size in ((5, 7), (11, 7), (11, 13)))
    output, weights = spec.scaled_dot_product_attention(Q, K, V)
    assert (output.shape, output.dtype) == ((*leading, 5, 13), dtype)
    assert (weights.shape, weights.dtype) == ((*leading, 5, 11), dtype)


def test_scores_by_hand():
    """d_k = 4, so the products are halved."""
    Q = np.array([[1.0, 2.0, 0.0, -1.0], [0.0, 0.0, 3.0, 0.0]])
    K = np.array([[2.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, -4.0, 5.0]])
    products = [[2.0, 2.0, -5.0], [0.0, 3.0, -12.0]]
    assert spec.compute_attention_scores(Q, K, scale=False).tolist() == products
    assert spec.compute_attention_scores(Q, K).tolist() == [[1.0, 1.0, -2.5], [0.0, 1.5, -6.0]]


@pytest.mark.parametrize("d_k", [1, 2, 3, 7, 64])
def test_the_scaling_factor(d_k):
    """Vectors of ones have product d_k and score √d_k; one of zeros beside them has 0."""
    Q, K = np.ones((1, d_k)), np.stack([np.ones(d_k), np.zeros(d_k)])
    np.testing.assert_allclose(spec.compute_attention_scores(Q, K), [[math.sqrt(d_k), 0.0]], rtol=1e-15)
    _, weights = spec.scaled_dot_product_attention(Q, K, K)
    share = math.exp(math.sqrt(d_k)) / (math.exp(math.sqrt(d_k)) + 1)
    np.testing.assert_allclose(weights, [[share, 1 - share]], rtol=1e-11)


def weighing():
    """A query whose scores are ln 1, ln 2, ln 3, and one whose scores are ln 3, ln 1, ln 2: weights in sixths."""
    Q = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    K = 2 * np.array([[0.0, LN3, 0.0, 0.0], [LN2, 0.0, 0.0, 0.0], [LN3, LN2, 0.0, 0.0]])
    return Q, K


def test_weights_by_hand():
    _, weights = spec.scaled_dot_product_attention(*weighing(), np.zeros((3, 1)))
    np.testing.assert_allclose(weights, [[1 / 6, 2 / 6, 3 / 6], [3 / 6, 1 / 6, 2 / 6]], rtol=1e-15)
    np.testing.assert_allclose(spec.attention_weights(np.array([0.0, LN2, LN3])), [1 / 6, 2 / 6, 3 / 6], rtol=1e-15)


def test_a_row_of_weights_depends_on_its_query_alone(rng):
    Q, K, V = (rng.standard_normal(shape) for shape in ((5, 3), (7, 3), (7, 2)))
    _, before = spec.scaled_dot_product_attention(Q, K, V)
    np.testing.assert_allclose(before.sum(axis=1), np.ones(5), rtol=1e-14)
    Q[2] += 1.0
    _, after = spec.scaled_dot_product_attention(Q, K, V)
    assert np.flatnonzero((before != after).any(axis=1)).tolist() == [2]


def test_output_by_hand():
    V = np.array([[6.0, 0.0], [12.0, 6.0], [18.0, -6.0]])
    output, _ = spec.scaled_dot_product_attention(*weighing(), V)
    np.testing.assert_allclose(output, [[1 + 4 + 9, 2 - 3], [3 + 2 + 6, 1 - 2]], rtol=1e-14)


def test_output_is_weights_times_values(rng):
    Q, K, V = (rng.standard_normal(shape) for shape in ((2, 5, 3), (2, 7, 3), (2, 7, 11)))
    output, weights = spec.scaled_dot_product_attention(Q, K, V)
    np.testing.assert_allclose(output, np.einsum("bts,bsv->btv", weights, V), rtol=0, atol=1e-14)


def test_equal_keys_give_the_mean_of_the_values(rng):
    Q, V = rng.standard_normal((2, 5, 3)), rng.standard_normal((2, 7, 11))
    output, _ = spec.scaled_dot_product_attention(Q, np.ones((2, 7, 3)), V)
    np.testing.assert_allclose(output, np.repeat(V.mean(axis=1, keepdims=True), 5, axis=1), rtol=0, atol=1e-14)


def test_one_loud_key_gives_its_value():
    Q, K = np.ones((1, 3)), np.array([[0.0, 0.0, 0.0], [0.0, 1e4, 0.0], [-5.0, 0.0, 0.0]])
    output, weights = spec.scaled_dot_product_attention(Q, K, np.array([[1.0], [2.0], [4.0]]))
    assert (output.tolist(), weights.tolist()) == ([[2.0]], [[0.0, 1.0, 0.0]])


# --- Sprint 2: multi-head attention ----------------------------------------------------------------------------------


def multi_head(rng, num_heads, M=12):
    inputs = [rng.standard_normal((2, length, M)) for length in (5, 7, 7)]
    return inputs, [rng.standard_normal((M, M)) for _ in range(4)], num_heads


def test_projections_are_split_into_heads(rng):
    inputs, projections, num_heads = multi_head(rng, 3)
    _, cache = spec.multi_head_attention_forward(*inputs, *projections, num_heads)
    for name, x, W in zip("qkv", inputs, projections, strict=False):
        for head in range(3):
            own = x @ W[:, 4 * head : 4 * head + 4]
            np.testing.assert_allclose(cache[name][:, head], own, rtol=0, atol=1e-13)


def test_a_head_owns_its_columns():
    """Six columns in two heads: 0 to 2 are the first's, 3 to 5 the second's."""
    x = np.array([[[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], [10.0, 11.0, 12.0, 13.0, 14.0, 15.0]]])
    assert spec.split_heads(x, 2).tolist() == [[[[0, 1, 2], [10, 11, 12]], [[3, 4, 5], [13, 14, 15]]]]


@pytest.mark.parametrize("h", [1, 2, 3, 4, 6, 12])
def test_shapes_for_h_heads(rng, h):
    inputs, projections, _ = multi_head(rng, h)
    output, cache = spec.multi_head_attention_forward(*inputs, *projections, h)
    assert output.shape == (2, 5, 12)
    shapes = {"q": (2, h, 5, 12 // h), "k": (2, h, 7, 12 // h), "v": (2, h, 7, 12 // h), "weights": (2, h, 5, 7)}
    assert {name: cache[name].shape for name in shapes} == shapes


def test_heads_are_concatenated(rng):
    """Each head on its own, by the function of sprint 1; side by side; then W_O."""
    (Q, K, V), (W_Q, W_K, W_V, W_O), num_heads = multi_head(rng, 3)
    columns = [slice(4 * head, 4 * head + 4) for head in range(num_heads)]
    heads = [spec.scaled_dot_product_attention(Q @ W_Q[:, own], K @ W_K[:, own], V @ W_V[:, own])[0] for own in columns]
    output, cache = spec.multi_head_attention_forward(Q, K, V, W_Q, W_K, W_V, W_O, num_heads)
    np.testing.assert_allclose(cache["context"], np.concatenate(heads, axis=-1), rtol=0, atol=1e-13)
    np.testing.assert_allclose(output, np.concatenate(heads, axis=-1) @ W_O, rtol=0, atol=1e-12)


def test_merging_undoes_splitting(rng):
    x = rng.standard_normal((2, 5, 12))
    for num_heads in (1, 2, 3, 4, 6, 12):
        np.testing.assert_array_equal(spec.merge_heads(spec.split_heads(x, num_heads)), x)
    assert spec.merge_heads(np.array([[[[0.0, 1.0]], [[2.0, 3.0]]]])).tolist() == [[[0, 1, 2, 3]]]


def test_the_output_projection(rng):
    """The identity shows the heads; swapping its columns swaps those of the output."""
    inputs, (W_Q, W_K, W_V, W_O), num_heads = multi_head(rng, 3)
    plain, cache = spec.multi_head_attention_forward(*inputs, W_Q, W_K, W_V, np.eye(12), num_heads)
    np.testing.assert_allclose(plain, cache["context"], rtol=1e-15)
    swapped, _ = spec.multi_head_attention_forward(*inputs, W_Q, W_K, W_V, np.eye(12)[:, ::-1], num_heads)
    np.testing.assert_allclose(swapped, plain[..., ::-1], rtol=1e-15)
    mixed, _ = spec.multi_head_attention_forward(*inputs, W_Q, W_K, W_V, W_O, num_heads)
    np.testing.assert_allclose(mixed, plain @ W_O, rtol=0, atol=1e-12)


# --- Sprint 3: the encoder layer -------------------------------------------------------------------------------------


def layer(norm):
    """An encoder layer whose every weight is random: scales of 1 and shifts of 0 would hide what is done with them."""
    rng = np.random.default_rng(3)
    block = spec.TransformerEncoderBlock(6, 3, 11, norm=norm, rng=rng)
    drawn = {name: rng.standard_normal(x.shape) for name, x in block.get_params().items() if name != "attention"}
    block.set_params(drawn)
    return block


def sublayers(block):
    def attend(x):
        return block.attention.forward(x, x, x)

    def feed(x):
        return np.maximum(x @ block.W1 + block.b1, 0) @ block.W2 + block.b2

    return attend, feed


def normalise(x, gamma, beta):
    return gamma * (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-6) + beta


def test_the_layer_attends(rng):
    """A change of one token reaches all; through the attention alone, for the rest acts on every token by itself."""
    block, x = layer("post"), rng.standard_normal((1, 5, 6))
    before = block.forward(x)
    changed = x + np.eye(5)[None, :, 2:3] * rng.standard_normal(6)
    assert (block.forward(changed) != before).any(axis=-1).all()
    block.attention.set_params({"W_O": np.zeros((6, 6))})
    moved = (block.forward(changed) != block.forward(x)).any(axis=-1)
    assert moved.tolist() == [[False, False, True, False, False]]


def test_add_and_norm(rng):
    """The paper: LayerNorm(x + Sublayer(x)), twice; the default, pre-norm: x + Sublayer(LayerNorm(x))."""
    x = rng.standard_normal((2, 5, 6))
    post, pre = layer("post"), layer("pre")
    attend, feed = sublayers(post)
    hidden = normalise(x + attend(x), post.gamma1, post.beta1)
    wanted = normalise(hidden + feed(hidden), post.gamma2, post.beta2)
    np.testing.assert_allclose(post.forward(x), wanted, rtol=0, atol=1e-12)
    attend, feed = sublayers(pre)
    hidden = x + attend(normalise(x, pre.gamma1, pre.beta1))
    wanted = hidden + feed(normalise(hidden, pre.gamma2, pre.beta2))
    np.testing.assert_allclose(pre.forward(x), wanted, rtol=0, atol=1e-12)
    assert spec.TransformerEncoderBlock(6, 3).norm == "pre"


def test_a_silent_layer_passes_its_input_on(rng):
    """With both sublayers 0 only the residual connections are left."""
    x = rng.standard_normal((2, 5, 6))
    silent = {"W2": np.zeros((11, 6)), "b2": np.zeros(6)}
    for norm in ("pre", "post"):
        block = layer(norm)
        block.set_params(silent)
        block.attention.set_params({"W_O": np.zeros((6, 6))})
        twice = normalise(normalise(x, block.gamma1, block.beta1), block.gamma2, block.beta2)
        np.testing.assert_allclose(block.forward(x), x if norm == "pre" else twice, rtol=0, atol=1e-13)


def test_layer_norm_by_hand():
    """Mean 4 and variance 4; then scale and shift."""
    x = np.array([[2.0, 6.0, 2.0, 6.0], [5.0, 5.0, 5.0, 5.0]])
    normalised = spec.layer_norm(x, np.ones(4), np.zeros(4), eps=0.25)
    np.testing.assert_allclose(normalised[0], np.array([-2.0, 2.0, -2.0, 2.0]) / math.sqrt(4.25), rtol=1e-15)
    assert not normalised[1].any()
    scaled = spec.layer_norm(x[:1], np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 0.0, 10.0, 0.0]), eps=0.0)
    np.testing.assert_allclose(scaled, [[-1.0, 2.0, 7.0, 4.0]], rtol=1e-15)


def test_feed_forward_by_hand():
    """One token (1, -2): hidden (1 - 2, 2 + 4, -1 + 1) = (-1, 6, 0), by ReLU (0, 6, 0), out 6 · (2, -1) + b2."""
    W1, b1 = np.array([[1.0, 2.0, -1.0], [1.0, -2.0, 0.0]]), np.array([0.0, 0.0, 1.0])
    W2, b2 = np.array([[7.0, 7.0], [2.0, -1.0], [9.0, 9.0]]), np.array([0.5, 0.25])
    assert spec.feed_forward(np.array([[[1.0, -2.0]]]), W1, b1, W2, b2).tolist() == [[[12.5, -5.75]]]


def test_feed_forward_acts_on_every_position_alone(rng):
    x = rng.standard_normal((2, 5, 3))
    weights = [rng.standard_normal(shape) for shape in ((3, 7), (7,), (7, 3), (3,))]
    together = spec.feed_forward(x, *weights)
    for b in range(2):
        for t in range(5):
            alone = spec.feed_forward(x[b : b + 1, t : t + 1], *weights)
            np.testing.assert_allclose(together[b, t], alone[0, 0], rtol=0, atol=1e-13)


# --- Sprint 4: positional encoding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("d_model", [1, 2, 7, 12])
def test_positional_encoding_element_by_element(d_model):
    encoding = spec.sinusoidal_encoding(13, d_model)
    for pos in range(13):
        for column in range(d_model):
            i = column // 2
            angle = pos / 10000 ** (2 * i / d_model)
            wanted = math.sin(angle) if column == 2 * i else math.cos(angle)
            assert abs(encoding[pos, column] - wanted) < 1e-14


def test_shape_of_the_positional_encoding():
    for sequence_length, model_dimension in ((1, 1), (5, 2), (3, 7), (0, 4), (50, 12)):
        encoding = spec.sinusoidal_encoding(sequence_length, model_dimension)
        assert (encoding.shape, encoding.dtype) == ((sequence_length, model_dimension), np.float64)
    assert spec.sinusoidal_encoding(1, 5).tolist() == [[0, 1, 0, 1, 0]]


# --- Section 4: documentation ----------------------------------------------------------------------------------------

PUBLIC = sorted(name for name, value in vars(spec).items() if inspect.isfunction(value))


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_function_documents_what_it_takes_gives_and_raises(name):
    """Google style: Args with every argument, Returns, Raises."""
    function = getattr(spec, name)
    text = inspect.getdoc(function)
    sections = dict.fromkeys(("Args", "Returns", "Raises"), "")
    current = None
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            current = line.removesuffix(":")
        elif current in sections:
            sections[current] += line + "\n"
    assert all(sections.values()), f"{name} lacks {[title for title, body in sections.items() if not body]}"
    for argument in inspect.signature(function).parameters:
        assert re.search(rf"\b{argument}\b", sections["Args"]), f"{name} does not say what {argument} is"
