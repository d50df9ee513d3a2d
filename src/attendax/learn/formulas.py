"""A correct solution of the course in NumPy, whose lines ``texts/mistakes.toml`` replaces by wrong ones.

``formulas_with`` returns the functions with these replacements. A mistake is named only if its results, computed so,
are the learner's. So these lines are written as learners write them, raise where theirs raise, and check nothing.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from attendax.learn.exercises import GRADS, by_name

DRAWS = np.random.default_rng()
DROPOUT_MASKS: list[np.ndarray] = []  # which weights the learner's dropout kept, one for each forward


def transpose(x):
    """Swap the last two axes."""
    return x.swapaxes(-1, -2)


def softmax(x, axis=-1):
    """``exp(x) / Σ exp(x)``; 0 where every entry is -inf."""
    largest = x.max(axis=axis, keepdims=True)
    e = np.exp(x - np.where(largest == -np.inf, 0, largest))
    total = e.sum(axis=axis, keepdims=True)
    return e / np.where(total == 0, 1, total)


attention_weights = softmax


def softmax_pullback(dp, p, axis=-1):
    """``dx = p (dp - Σ dp p)``, with the result p of softmax."""
    inner = (dp * p).sum(axis=axis, keepdims=True)
    return p * (dp - inner)


def softmax_backward(grad_output, x, axis=-1):
    """The gradient of softmax at x."""
    p = softmax(x, axis)
    return softmax_pullback(grad_output, p, axis)


def compute_attention_scores(Q, K, scale=True):
    """``Q Kᵀ / √d``."""
    s = Q @ transpose(K)
    return s / np.sqrt(Q.shape[-1]) if scale else s


def apply_attention_mask(scores, mask, mask_value=-1e9):
    """The scores, with ``mask_value`` for forbidden pairs."""
    return np.where(mask, scores, mask_value)


def masked_weights(s, mask):
    """Softmax of the masked scores over the keys."""
    if mask is not None:
        s = apply_attention_mask(s, mask, -np.inf)
    return softmax(s)


def scaled_dot_product_attention(Q, K, V, mask=None):
    """``softmax(Q Kᵀ / √d) V``."""
    p = masked_weights(compute_attention_scores(Q, K), mask)
    return p @ V, p


def attention_pullback(dO, Q, K, V, p, factor=1.0):
    """``dV = Pᵀ dO, dP = dO Vᵀ, dS = P (dP - Σ dP P), dQ = c dS K, dK = c dSᵀ Q``; ``factor`` comes from dropout."""
    dV = transpose(p * factor) @ dO
    ds = softmax_pullback(dO @ transpose(V) * factor, p)
    c = 1 / np.sqrt(Q.shape[-1])
    dQ = c * (ds @ K)
    dK = c * (transpose(ds) @ Q)
    return dQ, dK, dV


def scaled_dot_product_attention_backward(grad_output, Q, K, V, mask=None):
    """The gradients, with the weights computed again."""
    _, p = scaled_dot_product_attention(Q, K, V, mask)
    return attention_pullback(grad_output, Q, K, V, p)


def additive_attention(Q, K, V, W_q, W_k, v, mask=None):
    """Weights from ``vᵀ tanh(W_q q + W_k k)``."""
    hidden = np.tanh((Q @ W_q)[:, :, None, :] + (K @ W_k)[:, None, :, :])
    w = masked_weights(hidden @ v, mask)
    return w @ V, w


def split_heads(x, num_heads):
    """(B, T, M) to (B, N, T, d)."""
    B, T, M = x.shape
    return x.reshape(B, T, num_heads, M // num_heads).swapaxes(1, 2)


def merge_heads(x):
    """(B, N, T, d) to (B, T, M)."""
    B, N, T, d = x.shape
    return x.swapaxes(1, 2).reshape(B, T, N * d)


def multi_head_attention_forward(Q, K, V, W_Q, W_K, W_V, W_O, num_heads, mask=None):
    """Project, attend in every head, merge, project; the cache is every local value."""
    q = split_heads(Q @ W_Q, num_heads)
    k = split_heads(K @ W_K, num_heads)
    v = split_heads(V @ W_V, num_heads)
    heads, _ = scaled_dot_product_attention(q, k, v, mask)
    context = merge_heads(heads)
    output = context @ W_O
    return output, locals()


def product_pullback(dy, x, W):
    """``dx = dy Wᵀ, dW = Σ xᵀ dy`` over batch and sequence."""
    dW = (transpose(x) @ dy).sum(axis=0)
    return dy @ W.T, dW


def multi_head_attention_backward(grad_output, cache):
    """The gradients of the five steps, in reverse order."""
    c = cache
    dC, dW_O = product_pullback(grad_output, c["context"], c["W_O"])
    dheads = split_heads(dC, c["num_heads"])
    dq, dk, dv = scaled_dot_product_attention_backward(dheads, c["q"], c["k"], c["v"], c["mask"])
    dQ, dW_Q = product_pullback(merge_heads(dq), c["Q"], c["W_Q"])
    dK, dW_K = product_pullback(merge_heads(dk), c["K"], c["W_K"])
    dV, dW_V = product_pullback(merge_heads(dv), c["V"], c["W_V"])
    return dQ, dK, dV, {"W_Q": dW_Q, "W_K": dW_K, "W_V": dW_V, "W_O": dW_O}


def MultiHeadAttention(grad_output, Q, K, V, W_Q, W_K, W_V, W_O, num_heads, mask):
    """The forward and the gradients of a layer with these weights."""
    output, cache = multi_head_attention_forward(Q, K, V, W_Q, W_K, W_V, W_O, num_heads, mask)
    return {"output": output} | by_name(GRADS, multi_head_attention_backward(grad_output, cache))


def sinusoidal_encoding(max_length, d_model):
    """Sines in the even columns, cosines in the odd ones."""
    position, column = np.arange(max_length)[:, None], np.arange(d_model)
    exponent = 2 * (column // 2) / d_model
    angle = position / 10000.0**exponent
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


def add_positional_encoding(x, pe):
    """``x + pe[:T]``."""
    return x + pe[: x.shape[1]]


def learned_positional_encoding(max_length, d_model):
    """Small normal numbers."""
    return 0.02 * DRAWS.normal(size=(max_length, d_model))


def create_causal_mask(seq_length):
    """True on and below the diagonal."""
    position = np.arange(seq_length)
    return position[None, :] <= position[:, None]


def create_padding_mask(lengths, max_length):
    """True for real tokens."""
    return np.arange(max_length) < lengths[:, None]


def normalise(x, eps):
    """``(x - mean) / deviation`` and the deviation."""
    mean = x.mean(axis=-1, keepdims=True)
    var = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    sigma = np.sqrt(var + eps)
    return (x - mean) / sigma, sigma


def layer_norm(x, gamma, beta, eps=1e-6):
    """``γ (x - mean) / √(var + eps) + β``."""
    hat, _ = normalise(x, eps)
    return gamma * hat + beta


def layer_norm_backward(grad_output, x, gamma, eps=1e-6):
    """``dx = (dx̂ - mean(dx̂) - x̂ mean(dx̂ x̂)) / σ``."""
    hat, sigma = normalise(x, eps)
    dhat = grad_output * gamma
    first = dhat.mean(axis=-1, keepdims=True)
    second = hat * (dhat * hat).mean(axis=-1, keepdims=True)
    dx = (dhat - first - second) / sigma
    tokens = tuple(range(x.ndim - 1))
    return dx, (grad_output * hat).sum(axis=tokens), grad_output.sum(axis=tokens)


def feed_forward(x, W1, b1, W2, b2):
    """``ReLU(x W1 + b1) W2 + b2``."""
    h = np.maximum(x @ W1 + b1, 0)
    return h @ W2 + b2


def feed_forward_backward(grad_output, x, W1, b1, W2, b2):
    """``dh = dy W2ᵀ, da = dh (a > 0), dx = da W1ᵀ``."""
    a = x @ W1 + b1
    dh, dW2 = product_pullback(grad_output, np.maximum(a, 0), W2)
    da = dh * (a > 0)
    dx, dW1 = product_pullback(da, x, W1)
    return dx, dW1, da.sum(axis=(0, 1)), dW2, grad_output.sum(axis=(0, 1))


def TransformerEncoderBlock(x, W1, b1, W2, b2, gamma1, beta1, gamma2, beta2, grad_output=None, **attention):
    """``h = x + A(N1(x)), y = h + F(N2(h))``; or ``dh = dy + N2ᵀ(Fᵀ(dy)), dx = dh + N1ᵀ(Aᵀ(dh))``."""
    n1 = layer_norm(x, gamma1, beta1)
    attended, cache = multi_head_attention_forward(n1, n1, n1, **attention)
    h = x + attended
    n2 = layer_norm(h, gamma2, beta2)
    y = h + feed_forward(n2, W1, b1, W2, b2)
    if grad_output is None:
        return {"output": y}
    dn2, *network = feed_forward_backward(grad_output, n2, W1, b1, W2, b2)
    dh2, *norm2 = layer_norm_backward(dn2, h, gamma2)
    dh = grad_output + dh2
    dq, dk, dv, params = multi_head_attention_backward(dh, cache)
    dn1 = dq + dk + dv
    dx1, *norm1 = layer_norm_backward(dn1, x, gamma1)
    dx = dh + dx1
    names = ("W1", "b1", "W2", "b2", "gamma1", "beta1", "gamma2", "beta2")
    return by_name(("grad_x", "grad_params"), (dx, params | dict(zip(names, network + norm1 + norm2, strict=True))))


def stack_encoder_blocks(x, blocks, mask=None):
    """Block after block."""
    for block in blocks:
        x = block.forward(x, mask)
    return x


def Attention(x, causal, query_weights, key_weights, value_weights, output_weights):
    """``softmax(q kᵀ / √M) v W_o``, and the deviation of the initial weights."""
    q, k, v = x @ query_weights, x @ key_weights, x @ value_weights
    mask = np.tri(x.shape[1], dtype=bool) if causal else None
    mixed, _ = scaled_dot_product_attention(q, k, v, mask)
    return {"output": mixed @ output_weights, "deviation of query_weights, about": 0.02}


def dropout_mask(shape, rate):
    """Mark the weights that dropout keeps: those of the learner's function if known, else random ones."""
    known = next((DROPOUT_MASKS.pop(number) for number, each in enumerate(DROPOUT_MASKS) if each.shape == shape), None)
    return (DRAWS.uniform(size=shape) >= rate) if known is None else known


class ScaledDotProductAttention:
    """Attention with dropout."""

    def __init__(self, dropout_p=0.0):
        self.dropout_p, self.training = dropout_p, True

    def eval(self):
        """Switch dropout off."""
        self.training = False

    def forward(self, query, key, value, mask=None):
        """``w V``, with ``w = P kept / (1 - p)``."""
        p = masked_weights(compute_attention_scores(query, key), mask)
        factor = dropout_mask(p.shape, self.dropout_p) / (1 - self.dropout_p) if self.training else 1.0
        self.attention_weights = p * factor
        self.cache = query, key, value, p, factor
        return self.attention_weights @ value

    def backward(self, grad_output):
        """The gradients at the inputs of the last forward."""
        return attention_pullback(grad_output, *self.cache)
