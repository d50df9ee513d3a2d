"""The blueprint's tasks, criterion by criterion: the table says which tests show each, and is itself tested.

The tests here are small on purpose: numbers that a reader can check in the margin, in NumPy, as the blueprint has it.
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
        "AC1": ("accepts Q, K, V", "V1", ["test_seeds.test_shapes_that_the_document_states"]),
        "AC2": ("QKᵀ, scaled by 1/√d_k", "V1 V2", ["test_scores_by_hand"]),
        "AC3": ("row-wise softmax", "V2 V3", ["test_weights_by_hand"]),
        "AC4": ("multiplies by V", "V3", ["test_output_by_hand"]),
    },
    "S1-T2": {
        "AC1": ("shapes are preserved", "V4", ["test_seeds.test_shapes_that_the_document_states"]),
        "AC2": ("the scaling factor is applied", "V4", ["test_scores_by_hand"]),
        "AC3": ("a known theoretical result", "V4", [
            "test_output_by_hand",
            "test_definition.test_scaled_dot_product_attention",
            "test_outside_judges.test_scaled_dot_product_attention_in_torch",
        ]),
    },
    "S2-T1": {
        "AC1": ("the projections W_Q, W_K, W_V, split", "V5", [
            "test_heads_are_concatenated",
            "test_a_head_owns_its_columns",
        ]),
        "AC2": ("shapes for h heads", "V5", ["test_shapes_for_h_heads"]),
    },
    "S2-T2": {
        "AC1": ("the heads are concatenated", "V6", ["test_heads_are_concatenated", "test_seeds.test_the_examples"]),
        "AC2": ("the final projection W_O", "V7", [
            "test_heads_are_concatenated",
            "test_outside_judges.test_multi_head_attention_in_torch",
        ]),
    },
    "S3-T1": {
        "AC1": ("multi-head attention is part of the layer", "V8", ["test_definition.test_encoder_block"]),
        "AC2": ("residual connections, Add & Norm", "V8", [
            "test_outside_judges.test_layer_norm_in_torch",
            "test_definition.test_encoder_block",
            "test_outside_judges.test_encoder_block_in_torch",
        ]),
        "AC3": ("the position-wise feed-forward network", "V8", [
            "test_outside_judges.test_feed_forward_in_torch",
            "test_definition.test_encoder_block",
        ]),
    },
    "S4-T1": {
        "AC1": ("the sinusoidal formula", "V9", ["test_positional_encoding_element_by_element"]),
        "AC2": ("a matrix (sequence_length, model_dimension)", "V9", ["test_shape_of_the_positional_encoding"]),
    },
}  # fmt: skip
CRITERIA = {"S1-T1": 4, "S1-T2": 3, "S2-T1": 2, "S2-T2": 2, "S3-T1": 3, "S4-T1": 2}  # how many the blueprint has


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


# --- Sprint 1: scaled dot-product attention --------------------------------------------------------------------------

LN2, LN3 = math.log(2), math.log(3)


def test_scores_by_hand():
    """d_k = 4, so the products are halved."""
    Q = np.array([[1.0, 2.0, 0.0, -1.0], [0.0, 0.0, 3.0, 0.0]])
    K = np.array([[2.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, -4.0, 5.0]])
    products = [[2.0, 2.0, -5.0], [0.0, 3.0, -12.0]]
    assert spec.compute_attention_scores(Q, K, scale=False).tolist() == products
    assert spec.compute_attention_scores(Q, K).tolist() == [[1.0, 1.0, -2.5], [0.0, 1.5, -6.0]]


def weighing():
    """A query whose scores are ln 1, ln 2, ln 3, and one whose scores are ln 3, ln 1, ln 2: weights in sixths."""
    Q = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    K = 2 * np.array([[0.0, LN3, 0.0, 0.0], [LN2, 0.0, 0.0, 0.0], [LN3, LN2, 0.0, 0.0]])
    return Q, K


def test_weights_by_hand():
    _, weights = spec.scaled_dot_product_attention(*weighing(), np.zeros((3, 1)))
    np.testing.assert_allclose(weights, [[1 / 6, 2 / 6, 3 / 6], [3 / 6, 1 / 6, 2 / 6]], rtol=1e-15)
    np.testing.assert_allclose(spec.attention_weights(np.array([0.0, LN2, LN3])), [1 / 6, 2 / 6, 3 / 6], rtol=1e-15)


def test_output_by_hand():
    V = np.array([[6.0, 0.0], [12.0, 6.0], [18.0, -6.0]])
    output, _ = spec.scaled_dot_product_attention(*weighing(), V)
    np.testing.assert_allclose(output, [[1 + 4 + 9, 2 - 3], [3 + 2 + 6, 1 - 2]], rtol=1e-14)


# --- Sprint 2: multi-head attention ----------------------------------------------------------------------------------


def multi_head(rng, num_heads, M=12):
    inputs = [rng.standard_normal((2, length, M)) for length in (5, 7, 7)]
    return inputs, [rng.standard_normal((M, M)) for _ in range(4)], num_heads


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
