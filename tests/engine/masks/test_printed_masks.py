"""A mask and a modifier print as one would write them, and what is written makes the same again."""

import jax
import numpy as np
import pytest

from attendax import masks, scores
from attendax.masks import causal, padding
from attendax.scores import alibi, compose, softcap

pytestmark = pytest.mark.smoke


def visible(i, j):
    return j <= i


WRITTEN = [
    "causal()",
    "causal(3)",
    "causal([0, 2])",
    "window(4, None)",
    "window(4, 0, 2)",
    "padding([3, 5])",
    "padding([3, 5], [2, 5])",
    "padding(3)",
    "prefix([3, 1])",
    "prefix([3, 1], 2)",
    "segments([[0, 0, 1]], [[0, 1, 1]])",
    "from_function(visible)",
    "causal() & padding([3, 5])",
    "~causal()",
    "~(causal() & padding([3, 5]))",
    "(causal() | padding([3, 5])) & window(2, 2)",
    "causal() & padding([3, 5]) | window(2, 2)",
    "~prefix([3, 1]) & causal()",
]


def arrays_for(text):
    """Lists in a text are arrays of NumPy."""
    return text.replace("[[", "np.array([[").replace("]]", "]])") if "[[" in text else text.replace("[", "np.array([")


@pytest.mark.parametrize("text", WRITTEN)
def test_a_mask_is_what_one_would_write(text):
    code = arrays_for(text)
    code = code if "[[" in text else code.replace("]", "])")
    mask = eval(code, vars(masks) | {"np": np, "visible": visible})
    assert repr(mask) == text
    assert f"{mask}" == text


@pytest.mark.parametrize(
    ("modifier", "text"),
    [
        (softcap(30.0), "softcap(30.0)"),
        (alibi(np.array([0.5, 0.25])), "alibi([0.5, 0.25])"),
        (alibi(np.array([0.5, 0.25]), 3), "alibi([0.5, 0.25], 3)"),
        (compose(softcap(5.0), alibi(np.array([0.5]))), "compose(softcap(5.0), alibi([0.5]))"),
        (scores.relative_bias(np.zeros((4, 65), np.float32)), "relative_bias(float32[4, 65])"),
        (scores.from_function(lambda s, at, x: s + x, 2.0), "from_function(lambda, 2.0)"),
    ],
)
def test_a_modifier_is_what_one_would_write(modifier, text):
    assert repr(modifier) == text


def test_large_and_traced_arrays_are_told_by_their_shape():
    assert repr(masks.dense(np.ones((3, 5), bool))) == "dense(bool[3, 5])"
    told = []
    jax.jit(lambda n: told.append(repr(causal() & padding(n))))(np.array([3, 5]))
    assert told == ["causal() & padding(int32[2])"]
    assert "object" in repr(jax.tree.unflatten(jax.tree.structure(padding(np.array(3))), [object()]))
