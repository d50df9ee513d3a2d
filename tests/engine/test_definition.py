"""Both twins against attention by definition, one number at a time (loops.py)."""

import numpy as np
import pytest

import loops
from attendax import masks, ops, scores, spec
from attendax.params import EncoderBlockParams
from cases import LENGTHS, MASKS, B, D, G, M, N, S, T, V, block_params, per_batch_mask

TWINS = pytest.mark.parametrize("twin", [spec, ops], ids=["spec", "ops"])


def assert_close(got, wanted):
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-12, atol=1e-13)


@pytest.mark.sample(1)
@TWINS
@pytest.mark.parametrize("name", MASKS)
def test_scaled_dot_product_attention(twin, name, rng):
    Q, K, X = rng.normal(size=(B, 2, T, D)), rng.normal(size=(B, 2, S, D)), rng.normal(size=(B, 2, S, V))
    allowed = np.broadcast_to(True if MASKS[name] is None else MASKS[name], (B, 2, T, S))
    output, weights = twin.scaled_dot_product_attention(Q, K, X, MASKS[name])
    for b in range(B):
        for n in range(2):
            head = Q[b, n].tolist(), K[b, n].tolist(), X[b, n].tolist()
            out, share, _ = loops.attend(*head, lambda i, j, b=b, n=n: allowed[b, n, i, j], loops.scaled(*head[:2]))
            assert_close(output[b, n], out)
            assert_close(weights[b, n], share)


@pytest.mark.sample(1)
@TWINS
def test_additive_attention(twin, rng):
    Q, K, X = rng.normal(size=(B, T, D)), rng.normal(size=(B, S, 4)), rng.normal(size=(B, S, V))
    W_q, W_k, v = rng.normal(size=(D, 8)), rng.normal(size=(4, 8)), rng.normal(size=8)
    allowed = per_batch_mask(B, T, S)
    output, weights = twin.additive_attention(Q, K, X, W_q, W_k, v, allowed)
    for b in range(B):

        def score(i, j, b=b):
            hidden = [
                sum(Q[b, i, c] * W_q[c, a] for c in range(D)) + sum(K[b, j, c] * W_k[c, a] for c in range(4))
                for a in range(8)
            ]
            return sum(np.tanh(h) * v[a] for a, h in enumerate(hidden))

        out, share, _ = loops.attend(Q[b], K[b], X[b].tolist(), lambda i, j, b=b: allowed[b, i, j], score)
        assert_close(output[b], out)
        assert_close(weights[b], share)


@pytest.mark.sample(1)
@TWINS
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_encoder_block(twin, norm, activation, rng):
    """The block holds multi-head attention, feed-forward network and layer norm: all by definition at once."""
    params, x, allowed = block_params(rng), rng.normal(size=(B, T, M)), per_batch_mask(B, N, T, T)
    got = twin.encoder_block(x, params, num_heads=N, mask=allowed, norm=norm, activation=activation, eps=1e-5)
    lists = EncoderBlockParams(
        type(params.attention)(*(w.tolist() for w in params.attention)), *(w.tolist() for w in params[1:])
    )
    for b in range(B):
        wanted = loops.encoder_block(
            x[b].tolist(), lists, N, lambda n, i, j, b=b: allowed[b, n, i, j], norm, activation, 1e-5
        )
        assert_close(got[b], wanted)


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


@pytest.mark.sample(3)
@TWINS
@pytest.mark.parametrize("name", MASK_VALUES)
def test_attention_under_every_mask(twin, name, rng):
    """L1 to L5 and L9: grouped heads, V != D, masks as values, bias, lse."""
    query, key, value = rng.normal(size=(B, N, T, D)), rng.normal(size=(B, G, S, D)), rng.normal(size=(B, G, S, V))
    bias = rng.normal(size=(N, T, 1))
    mask, allowed = MASK_VALUES[name]
    out, lse = twin.attention(query, key, value, mask=mask, bias=bias, scale=0.3, return_lse=True)
    for b in range(B):
        for n in range(N):
            q, k, v = query[b, n].tolist(), key[b, n // (N // G)].tolist(), value[b, n // (N // G)].tolist()

            def score(i, j, q=q, k=k, n=n):
                return 0.3 * loops.dot(q[i], k[j]) + bias[n, i, 0]

            wanted, _, wanted_lse = loops.attend(q, k, v, lambda i, j, b=b: allowed(b, i, j), score)
            assert_close(out[b, n], wanted)
            assert_close(lse[b, n], wanted_lse)


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
    for b in range(B):
        for n in range(N):
            q, k, v = query[b, n].tolist(), key[b, n].tolist(), value[b, n].tolist()

            def score(i, j, q=q, k=k, n=n):
                return modify(loops.scaled(q, k)(i, j), n, i, j, array) + bias[i, j]

            assert_close(got[b, n], loops.attend(q, k, v, lambda i, j: j <= i + 2, score)[0])


def test_dropout_keeps_by_position(rng):
    """L10: a weight is kept by the word that threefry draws for its head, query and key, and by nothing else."""
    query, key, value = rng.normal(size=(B, N, T, D)), rng.normal(size=(B, N, S, D)), rng.normal(size=(B, N, S, V))
    words, rate = (123456789, 4000000000), 0.4
    options = {"dropout_rate": rate, "dropout_rng": np.array(words, np.uint32)}
    got = [twin.attention(query, key, value, **options) for twin in (spec, ops)]
    kept = 0
    for b in range(B):
        for n in range(N):
            head = query[b, n].tolist(), key[b, n].tolist(), value[b, n].tolist()
            _, weights, _ = loops.attend(*head, lambda i, j: True, loops.scaled(*head[:2]))
            head_key = loops.threefry(words, (0, b * N + n))
            keep = [[loops.threefry(head_key, (i, j))[0] >= rate * 2**32 for j in range(S)] for i in range(T)]
            kept += np.sum(keep)
            wanted = np.asarray(weights) * keep / (1 - rate) @ value[b, n]
            for out in got:
                assert_close(out[b, n], wanted)
    assert abs(kept / (B * N * T * S) - (1 - rate)) < 0.1


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
