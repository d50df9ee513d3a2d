"""Attention under every score modifier, one number at a time (loops.py)."""

import numpy as np
import pytest

import loops
from attendax import masks, scores
from cases import B, D, N, S, T, V
from judges import TWINS, assert_close

pytestmark = pytest.mark.law("L2", "spec", "ops")

MODIFIERS = {
    "softcap": (lambda a: scores.softcap(0.7), lambda s, n, i, j, a: 0.7 * np.tanh(s / 0.7)),
    "alibi": (lambda a: scores.alibi(a[:, 0], offset=2), lambda s, n, i, j, a: s - a[n, 0] * abs(i + 2 - j)),
    "relative": (lambda a: scores.relative_bias(a), lambda s, n, i, j, a: s + a[n, min(max(j - i, -2), 2) + 2]),
    "composed": (
        lambda a: scores.compose(scores.softcap(0.7), scores.alibi(a[:, 0])),
        lambda s, n, i, j, a: 0.7 * np.tanh(s / 0.7) - a[n, 0] * abs(i - j),
    ),
    "function": (
        lambda a: scores.from_function(lambda s, p, a: s * (1 + p[0]) - (p[1] - p[2]) * a[0, 0], a),
        lambda s, n, i, j, a: s * (1 + n) - (i - j) * a[0, 0],
    ),
}


@pytest.mark.sample(2)
@TWINS
@pytest.mark.parametrize("name", MODIFIERS)
def test_attention_under_every_score_modifier(twin, name, rng):
    """L2: scale, then the modifier, then the bias, then the mask."""
    query, key, value = rng.normal(size=(B, N, T, D)), rng.normal(size=(B, N, S, D)), rng.normal(size=(B, N, S, V))
    array, bias = rng.normal(size=(N, 5)), rng.normal(size=(T, S))
    make, modify = MODIFIERS[name]
    got = twin.attention(query, key, value, score_mod=make(array), bias=bias, mask=masks.causal(2))
    for b, n, q, k, v in loops.heads(query, key, value):

        def score(i, j, q=q, k=k, n=n):
            return modify(loops.scaled(q, k)(i, j), n, i, j, array) + bias[i, j]

        assert_close(got[b, n], loops.attend(q, k, v, lambda i, j: j <= i + 2, score)[0])
