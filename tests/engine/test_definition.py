"""Both twins against attention by definition, one number at a time (loops.py)."""

import numpy as np
import pytest

import loops
from attendax.params import EncoderBlockParams
from cases import MASKS, B, D, M, N, S, T, V, block_params, per_batch_mask
from judges import TWINS, assert_close


@pytest.mark.law("L2", "spec", "ops")
@pytest.mark.sample(1)
@TWINS
@pytest.mark.parametrize("name", MASKS)
def test_scaled_dot_product_attention(twin, name, rng):
    Q, K, X = rng.normal(size=(B, 2, T, D)), rng.normal(size=(B, 2, S, D)), rng.normal(size=(B, 2, S, V))
    allowed = np.broadcast_to(True if MASKS[name] is None else MASKS[name], (B, 2, T, S))
    output, weights = twin.scaled_dot_product_attention(Q, K, X, MASKS[name])
    for b, n, *head in loops.heads(Q, K, X):
        out, share, _ = loops.attend(*head, lambda i, j, b=b, n=n: allowed[b, n, i, j], loops.scaled(*head[:2]))
        assert_close(output[b, n], out)
        assert_close(weights[b, n], share)


@pytest.mark.law("L2", "spec", "ops")
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
