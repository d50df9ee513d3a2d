"""Attention under every kind of mask, padding and causal first, one number at a time (loops.py)."""

import numpy as np
import pytest

import loops
from attendax import masks, ops, spec
from cases import LENGTHS, B, D, G, N, S, T, V, per_batch_mask
from judges import TWINS, assert_close

MASK_VALUES = {
    "causal": (masks.causal(S - T), lambda b, i, j: j <= i + S - T),
    "causal from the start": (masks.causal(), lambda b, i, j: j <= i),
    "window": (masks.window(1, 2), lambda b, i, j: i - 1 <= j <= i + 2),
    "window without left bound": (masks.window(None, 0), lambda b, i, j: j <= i),
    "padding": (masks.padding(LENGTHS), lambda b, i, j: j < LENGTHS[b]),
    "padding of both": (masks.padding(LENGTHS, np.array([1, 4])), lambda b, i, j: j < LENGTHS[b] and i < (1, 4)[b]),
    "prefix": (masks.prefix(np.array([3, 0])), lambda b, i, j: j <= i or j < (3, 0)[b]),
    "segments": (
        masks.segments(np.arange(T)[None] // np.array([[2], [3]]), np.arange(S)[None] // np.array([[2], [3]])),
        lambda b, i, j: i // (2 + b) == j // (2 + b),
    ),
    "function": (masks.from_function(lambda i, j: (i + j) % 3 != 0), lambda b, i, j: (i + j) % 3 != 0),
    "and or not": (
        (masks.causal() & masks.window(2, None)) | ~masks.padding(LENGTHS),
        lambda b, i, j: i - 2 <= j <= i or j >= LENGTHS[b],
    ),
    "dense": (masks.dense(per_batch_mask(B, 1, T, S)), lambda b, i, j: per_batch_mask(B, 1, T, S)[b, 0, i, j]),
}


@pytest.mark.law("L4", "spec", "ops")
@pytest.mark.law("L3", "spec", "ops")
@pytest.mark.sample(3)
@TWINS
@pytest.mark.parametrize("name", MASK_VALUES)
def test_attention_under_every_mask(twin, name, rng):
    """L1 to L5 and L9: grouped heads, V != D, masks as values, bias, lse."""
    query, key, value = rng.normal(size=(B, N, T, D)), rng.normal(size=(B, G, S, D)), rng.normal(size=(B, G, S, V))
    bias = rng.normal(size=(N, T, 1))
    mask, allowed = MASK_VALUES[name]
    out, lse = twin.attention(query, key, value, mask=mask, bias=bias, scale=0.3, return_lse=True)
    for b, n, q, k, v in loops.heads(query, key, value):

        def score(i, j, q=q, k=k, n=n):
            return 0.3 * loops.dot(q[i], k[j]) + bias[n, i, 0]

        wanted, _, wanted_lse = loops.attend(q, k, v, lambda i, j, b=b: allowed(b, i, j), score)
        assert_close(out[b, n], wanted)
        assert_close(lse[b, n], wanted_lse)


@pytest.mark.law("L11", "spec", "ops")
@TWINS
@pytest.mark.parametrize(("t", "s"), [(0, 0), (0, 5), (3, 0)])
def test_l11_blocks_where_no_queries_or_no_keys_are(twin, t, s):
    query, key = np.ones((B, N, t, D)), np.ones((B, N, s, D))
    mask = masks.blocks(np.ones((-(-t // 2), -(-s // 2)), bool), 2, 2)
    assert mask.to_dense(t, s).shape == (t, s)
    out, lse = twin.attention(query, key, key, mask=mask & masks.causal(), return_lse=True)
    np.testing.assert_array_equal(out, np.zeros((B, N, t, D)))
    np.testing.assert_array_equal(lse, np.full((B, N, t), -np.inf))


@pytest.mark.smoke
@pytest.mark.law("L3", "spec", "ops")
def test_masks_that_do_not_go_together_are_refused():
    """L3: a (B, T, S) part would be read as per head; leading axes that disagree are nobody's mask."""
    per_batch = masks.dense(np.ones((B, T, S), bool))
    for mask in (
        per_batch & masks.padding(LENGTHS),
        masks.padding(LENGTHS) | per_batch,
        masks.padding(LENGTHS, np.array([1, 2, 3])),
        masks.segments(np.zeros((B, T), int), np.zeros((3, S), int)),
        masks.padding(LENGTHS) & masks.prefix(np.array([1, 2, 3])),
    ):
        with pytest.raises(ValueError, match=r"masks: parts of shape .* do not go together"):
            mask.to_dense(T, S)
    one_head = np.zeros((T, D)), np.zeros((S, D)), np.zeros((S, V))
    for twin in (spec, ops):
        with pytest.raises(ValueError, match="mask has shape"):
            twin.attention(*one_head, mask=per_batch)
    for f in (lambda i, j: (i - j) * 1.0, lambda i, j: (i == j)[:, :2]):
        with pytest.raises(TypeError, match="from_function: f must return booleans"):
            masks.from_function(f).to_dense(T, S)
