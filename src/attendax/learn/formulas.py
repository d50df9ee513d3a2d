"""The path as a learner writes it in NumPy, right: the texts in which the table of mistakes replaces one by another.

``texts/mistakes.toml`` says of each mistake which text it replaces here, and ``edited`` gives the functions with these
texts. A learner is told a mistake only where its results, computed so, are the learner's. So these lines are written as
learners write them, raise where theirs raise, and check nothing.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import numpy as np

from attendax.learn.exercises import GRADS, named

DRAWS = np.random.default_rng()
KEPT: list[np.ndarray] = []  # the weights that the learner's dropout kept, forward by forward


def turned(x):
    """The last two axes swapped."""
    return x.swapaxes(-1, -2)


def softmax(x, axis=-1):
    """``exp(x) / Σ exp(x)``; 0 where every entry is -inf."""
    largest = x.max(axis=axis, keepdims=True)
    e = np.exp(x - np.where(largest == -np.inf, 0, largest))
    total = e.sum(axis=axis, keepdims=True)
    return e / np.where(total == 0, 1, total)


attention_weights = softmax


def through_softmax(dp, p, axis=-1):
    """``p (dp - Σ dp p)``."""
    inner = (dp * p).sum(axis=axis, keepdims=True)
    return p * (dp - inner)


def softmax_backward(grad_output, x, axis=-1):
    """Through the softmax of x."""
    p = softmax(x, axis)
    return through_softmax(grad_output, p, axis)


def compute_attention_scores(Q, K, scale=True):
    """``Q Kᵀ / √d``."""
    s = Q @ turned(K)
    return s / np.sqrt(Q.shape[-1]) if scale else s


def apply_attention_mask(scores, mask, mask_value=-1e9):
    """The scores, ``mask_value`` where the mask forbids."""
    return np.where(mask, scores, mask_value)


def masked_weights(s, mask):
    """Mask, then softmax over the keys."""
    if mask is not None:
        s = apply_attention_mask(s, mask, -np.inf)
    return softmax(s)


def scaled_dot_product_attention(Q, K, V, mask=None):
    """``softmax(Q Kᵀ / √d) V``."""
    p = masked_weights(compute_attention_scores(Q, K), mask)
    return p @ V, p


def through_attention(dO, Q, K, V, p, factor=1.0):
    """``dV = Pᵀ dO, dP = dO Vᵀ, dS = P (dP - Σ dP P), dQ = c dS K, dK = c dSᵀ Q``; the factor is that of dropout."""
    dV = turned(p * factor) @ dO
    ds = through_softmax(dO @ turned(V) * factor, p)
    c = 1 / np.sqrt(Q.shape[-1])
    dQ = c * (ds @ K)
    dK = c * (turned(ds) @ Q)
    return dQ, dK, dV


def scaled_dot_product_attention_backward(grad_output, Q, K, V, mask=None):
    """The weights again, and back."""
    _, p = scaled_dot_product_attention(Q, K, V, mask)
    return through_attention(grad_output, Q, K, V, p)


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
    """Project, attend in every head, merge, project; all of it is kept."""
    q = split_heads(Q @ W_Q, num_heads)
    k = split_heads(K @ W_K, num_heads)
    v = split_heads(V @ W_V, num_heads)
    heads, _ = scaled_dot_product_attention(q, k, v, mask)
    context = merge_heads(heads)
    output = context @ W_O
    return output, locals()


def through_product(dy, x, W):
    """``dx = dy Wᵀ, dW = Σ xᵀ dy`` over batch and sequence."""
    dW = (turned(x) @ dy).sum(axis=0)
    return dy @ W.T, dW


def multi_head_attention_backward(grad_output, cache):
    """The five steps backwards."""
    c = cache
    dC, dW_O = through_product(grad_output, c["context"], c["W_O"])
    dheads = split_heads(dC, c["num_heads"])
    dq, dk, dv = scaled_dot_product_attention_backward(dheads, c["q"], c["k"], c["v"], c["mask"])
    dQ, dW_Q = through_product(merge_heads(dq), c["Q"], c["W_Q"])
    dK, dW_K = through_product(merge_heads(dk), c["K"], c["W_K"])
    dV, dW_V = through_product(merge_heads(dv), c["V"], c["W_V"])
    return dQ, dK, dV, {"W_Q": dW_Q, "W_K": dW_K, "W_V": dW_V, "W_O": dW_O}


def MultiHeadAttention(grad_output, Q, K, V, W_Q, W_K, W_V, W_O, num_heads, mask):
    """The layer with these weights, forward and backward."""
    output, cache = multi_head_attention_forward(Q, K, V, W_Q, W_K, W_V, W_O, num_heads, mask)
    return {"output": output} | named(GRADS, multi_head_attention_backward(grad_output, cache))


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


def normalised(x, eps):
    """(x - mean) / deviation, and the deviation."""
    mean = x.mean(axis=-1, keepdims=True)
    var = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    sigma = np.sqrt(var + eps)
    return (x - mean) / sigma, sigma


def layer_norm(x, gamma, beta, eps=1e-6):
    """``γ (x - mean) / √(var + eps) + β``."""
    hat, _ = normalised(x, eps)
    return gamma * hat + beta


def layer_norm_backward(grad_output, x, gamma, eps=1e-6):
    """``dx = (dx̂ - mean(dx̂) - x̂ mean(dx̂ x̂)) / σ``."""
    hat, sigma = normalised(x, eps)
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
    dh, dW2 = through_product(grad_output, np.maximum(a, 0), W2)
    da = dh * (a > 0)
    dx, dW1 = through_product(da, x, W1)
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
    return named(("grad_x", "grad_params"), (dx, params | dict(zip(names, network + norm1 + norm2, strict=True))))


def stack_encoder_blocks(x, blocks, mask=None):
    """Block after block."""
    for block in blocks:
        x = block.forward(x, mask)
    return x


def Attention(x, causal, query_weights, key_weights, value_weights, output_weights):
    """``softmax(q kᵀ / √M) v W_o``; and how the layer begins."""
    q, k, v = x @ query_weights, x @ key_weights, x @ value_weights
    mask = np.tri(x.shape[1], dtype=bool) if causal else None
    mixed, _ = scaled_dot_product_attention(q, k, v, mask)
    return {"output": mixed @ output_weights, "deviation of query_weights, about": 0.02}


def keep(shape, rate):
    """The weights that are kept: those that the learner's function kept, or drawn."""
    known = next((KEPT.pop(number) for number, each in enumerate(KEPT) if each.shape == shape), None)
    return (DRAWS.uniform(size=shape) >= rate) if known is None else known


class ScaledDotProductAttention:
    """Attention with dropout."""

    def __init__(self, dropout_p=0.0):
        self.dropout_p, self.training = dropout_p, True

    def eval(self):
        """Drop no weights from now on."""
        self.training = False

    def forward(self, query, key, value, mask=None):
        """``w V``, with ``w = P kept / (1 - p)``."""
        p = masked_weights(compute_attention_scores(query, key), mask)
        factor = keep(p.shape, self.dropout_p) / (1 - self.dropout_p) if self.training else 1.0
        self.attention_weights = p * factor
        self.kept = query, key, value, p, factor
        return self.attention_weights @ value

    def backward(self, grad_output):
        """The gradients of the last forward."""
        return through_attention(grad_output, *self.kept)
