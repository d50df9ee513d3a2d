"""A learner's five files, right: one text for NumPy, JAX and PyTorch, and a few names that each has its own way for."""

LIBRARIES = {
    "numpy": """
import numpy as np
exp, where, tanh, sin, cos, stack, arange, ones, zeros = (
    np.exp, np.where, np.tanh, np.sin, np.cos, np.stack, np.arange, np.ones, np.zeros)
rng = np.random.default_rng()
def normal(*shape): return rng.normal(size=shape)
def uniform(*shape): return rng.uniform(size=shape)
def largest(x, axis): return np.max(x, axis=axis, keepdims=True)
""",
    "jax": """
import jax
import jax.numpy as jnp
import numpy as np
exp, where, tanh, sin, cos, stack, arange, ones, zeros = (
    jnp.exp, jnp.where, jnp.tanh, jnp.sin, jnp.cos, jnp.stack, jnp.arange, jnp.ones, jnp.zeros)
def key(): return jax.random.key(np.random.default_rng().integers(2**31))
def normal(*shape): return jax.random.normal(key(), shape)
def uniform(*shape): return jax.random.uniform(key(), shape)
def largest(x, axis): return jnp.max(x, axis=axis, keepdims=True)
""",
    "torch": """
import torch
exp, where, tanh, sin, cos, stack, arange, ones, zeros = (
    torch.exp, torch.where, torch.tanh, torch.sin, torch.cos, torch.stack, torch.arange, torch.ones, torch.zeros)
def normal(*shape): return torch.randn(*shape, dtype=torch.float64)
def uniform(*shape): return torch.rand(*shape, dtype=torch.float64)
def largest(x, axis): return torch.amax(x, dim=axis, keepdim=True)
""",
}

FILES = {
    "attention_core": '''
from math import inf, sqrt

def softmax(x, axis=-1):
    m = largest(x, axis)
    e = exp(x - where(m == -inf, 0.0, m))
    total = e.sum(axis=axis, keepdims=True)
    return e / where(total == 0, 1.0, total)

def compute_attention_scores(Q, K, scale=True):
    s = Q @ K.swapaxes(-1, -2)
    return s / sqrt(Q.shape[-1]) if scale else s

def apply_attention_mask(scores, mask, mask_value=-1e9):
    return where(mask, scores, mask_value)

def attention_weights(scores, axis=-1):
    return softmax(scores, axis)

def scaled_dot_product_attention(Q, K, V, mask=None):
    s = compute_attention_scores(Q, K)
    if mask is not None:
        s = apply_attention_mask(s, mask, -inf)
    p = softmax(s)
    return p @ V, p

def pull(p, dp, axis=-1):
    inner = (dp * p).sum(axis=axis, keepdims=True)
    return p * (dp - inner)

def softmax_backward(grad_output, x, axis=-1):
    p = softmax(x, axis)
    return pull(p, grad_output, axis)

def scaled_dot_product_attention_backward(grad_output, Q, K, V, mask=None):
    _, p = scaled_dot_product_attention(Q, K, V, mask)
    dV = p.swapaxes(-1, -2) @ grad_output
    dp = grad_output @ V.swapaxes(-1, -2)
    ds = pull(p, dp)
    c = 1 / sqrt(Q.shape[-1])
    dQ = c * (ds @ K)
    dK = c * (ds.swapaxes(-1, -2) @ Q)
    return dQ, dK, dV

def additive_attention(Q, K, V, W_q, W_k, v, mask=None):
    hidden = tanh((Q @ W_q)[:, :, None, :] + (K @ W_k)[:, None, :, :])
    s = hidden @ v
    if mask is not None:
        s = apply_attention_mask(s, mask, -inf)
    p = softmax(s)
    return p @ V, p
''',
    "multi_head": '''
from attention_core import *

def split_heads(x, num_heads):
    B, T, M = x.shape
    return x.reshape(B, T, num_heads, M // num_heads).swapaxes(1, 2)

def merge_heads(x):
    B, N, T, d = x.shape
    return x.swapaxes(1, 2).reshape(B, T, N * d)

def multi_head_attention_forward(Q, K, V, W_Q, W_K, W_V, W_O, num_heads, mask=None):
    q = split_heads(Q @ W_Q, num_heads)
    k = split_heads(K @ W_K, num_heads)
    v = split_heads(V @ W_V, num_heads)
    heads, weights = scaled_dot_product_attention(q, k, v, mask)
    context = merge_heads(heads)
    output = context @ W_O
    return output, dict(Q=Q, K=K, V=V, W_Q=W_Q, W_K=W_K, W_V=W_V, W_O=W_O, N=num_heads,
                        mask=mask, q=q, k=k, v=v, context=context, output=output)

def affine_backward(dy, x, W):
    dW = (x.swapaxes(-1, -2) @ dy).sum(axis=0)
    return dy @ W.T, dW

def multi_head_attention_backward(grad_output, cache):
    c = cache
    dC, dW_O = affine_backward(grad_output, c["context"], c["W_O"])
    dheads = split_heads(dC, c["N"])
    dq, dk, dv = scaled_dot_product_attention_backward(dheads, c["q"], c["k"], c["v"], c["mask"])
    dQ, dW_Q = affine_backward(merge_heads(dq), c["Q"], c["W_Q"])
    dK, dW_K = affine_backward(merge_heads(dk), c["K"], c["W_K"])
    dV, dW_V = affine_backward(merge_heads(dv), c["V"], c["W_V"])
    return dQ, dK, dV, {"W_Q": dW_Q, "W_K": dW_K, "W_V": dW_V, "W_O": dW_O}

class MultiHeadAttention:
    def __init__(self, d_model, num_heads):
        self.d_model, self.num_heads, self.d_k = d_model, num_heads, d_model // num_heads
        self.W_Q, self.W_K, self.W_V, self.W_O = (normal(d_model, d_model) * 0.1 for _ in range(4))

    def forward(self, Q, K, V, mask=None):
        weights = self.W_Q, self.W_K, self.W_V, self.W_O
        output, self.cache = multi_head_attention_forward(Q, K, V, *weights, self.num_heads, mask)
        return output

    def backward(self, grad_output):
        return multi_head_attention_backward(grad_output, self.cache)

    def get_params(self):
        return {name: getattr(self, name) for name in ("W_Q", "W_K", "W_V", "W_O")}

    def set_params(self, params):
        for name, value in params.items():
            setattr(self, name, value)
''',
    "positional": '''
from math import sqrt

def sinusoidal_encoding(max_length, d_model):
    column = arange(d_model)
    exponent = 2 * (column // 2) / d_model
    angle = (1.0 * arange(max_length))[:, None] / 10000.0 ** (1.0 * exponent)
    return where(column % 2 == 0, sin(angle), cos(angle))

def add_positional_encoding(x, pe):
    T = x.shape[1]
    return x + pe[:T]

def learned_positional_encoding(max_length, d_model):
    return 0.02 * normal(max_length, d_model)

def create_causal_mask(seq_length):
    position = arange(seq_length)
    return position[None, :] <= position[:, None]

def create_padding_mask(lengths, max_length):
    return arange(max_length)[None, :] < lengths[:, None]
''',
    "transformer_block": '''
from math import sqrt
from multi_head import MultiHeadAttention, affine_backward

def normalise(x, eps):
    mean = x.mean(axis=-1, keepdims=True)
    var = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    sigma = (var + eps) ** 0.5
    return (x - mean) / sigma, sigma

def layer_norm(x, gamma, beta, eps=1e-6):
    hat, _ = normalise(x, eps)
    return gamma * hat + beta

def layer_norm_backward(grad_output, x, gamma, eps=1e-6):
    hat, sigma = normalise(x, eps)
    dhat = grad_output * gamma
    first = dhat.mean(axis=-1, keepdims=True)
    second = hat * (dhat * hat).mean(axis=-1, keepdims=True)
    dx = (dhat - first - second) / sigma
    dgamma = (grad_output * hat).reshape(-1, x.shape[-1]).sum(axis=0)
    dbeta = grad_output.reshape(-1, x.shape[-1]).sum(axis=0)
    return dx, dgamma, dbeta

def feed_forward(x, W1, b1, W2, b2):
    a = x @ W1 + b1
    h = where(a > 0, a, 0.0)
    return h @ W2 + b2

def feed_forward_backward(grad_output, x, W1, b1, W2, b2):
    a = x @ W1 + b1
    h = where(a > 0, a, 0.0)
    dh, dW2 = affine_backward(grad_output, h, W2)
    da = dh * (a > 0)
    dx, dW1 = affine_backward(da, x, W1)
    db1, db2 = da.sum(axis=(0, 1)), grad_output.sum(axis=(0, 1))
    return dx, dW1, db1, dW2, db2

class TransformerEncoderBlock:
    def __init__(self, d_model, num_heads, d_ff=None):
        d_ff = d_ff or 4 * d_model
        self.d_model, self.num_heads, self.d_ff = d_model, num_heads, d_ff
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.W1, self.W2 = 0.1 * normal(d_model, d_ff), 0.1 * normal(d_ff, d_model)
        self.b1, self.b2 = zeros(d_ff), zeros(d_model)
        self.gamma1, self.gamma2, self.beta1, self.beta2 = (
            ones(d_model), ones(d_model), zeros(d_model), zeros(d_model))

    def forward(self, x, mask=None):
        n1 = layer_norm(x, self.gamma1, self.beta1)
        h = x + self.attention.forward(n1, n1, n1, mask)
        n2 = layer_norm(h, self.gamma2, self.beta2)
        y = h + feed_forward(n2, self.W1, self.b1, self.W2, self.b2)
        self.kept = x, n1, h, n2
        return y

    def backward(self, grad_output):
        x, n1, h, n2 = self.kept
        dn2, dW1, db1, dW2, db2 = feed_forward_backward(grad_output, n2, self.W1, self.b1, self.W2, self.b2)
        dh2, dgamma2, dbeta2 = layer_norm_backward(dn2, h, self.gamma2)
        dh = grad_output + dh2
        dq, dk, dv, dattention = self.attention.backward(dh)
        dn1 = dq + dk + dv
        dx1, dgamma1, dbeta1 = layer_norm_backward(dn1, x, self.gamma1)
        dx = dh + dx1
        return dx, {"attention": dattention, "W1": dW1, "b1": db1, "W2": dW2, "b2": db2, "gamma1": dgamma1,
                    "beta1": dbeta1, "gamma2": dgamma2, "beta2": dbeta2}

def stack_encoder_blocks(x, blocks, mask=None):
    first = x
    for block in blocks:
        x = block.forward(x, mask)
    return x
''',
    "single_head": '''
from attention_core import *
from positional import create_causal_mask

class Attention:
    def __init__(self, embedding_dimension, causal=False):
        M, self.causal = embedding_dimension, causal
        self.query_weights, self.key_weights, self.value_weights, self.output_weights = (
            0.02 * normal(M, M) for _ in range(4))

    def forward(self, x):
        q, k, v = x @ self.query_weights, x @ self.key_weights, x @ self.value_weights
        mask = create_causal_mask(x.shape[1]) if self.causal else None
        mixed, self.attention_weights = scaled_dot_product_attention(q, k, v, mask)
        return mixed @ self.output_weights

class ScaledDotProductAttention:
    def __init__(self, dropout_p=0.0):
        self.dropout_p, self.training = dropout_p, True

    def train(self):
        self.training = True

    def eval(self):
        self.training = False

    def forward(self, query, key, value, mask=None):
        s = compute_attention_scores(query, key)
        if mask is not None:
            s = where(mask, s, -inf)
        p = softmax(s)
        factor = 1.0
        if self.training and self.dropout_p:
            factor = (uniform(*p.shape) >= self.dropout_p) / (1 - self.dropout_p)
        w = p * factor
        self.attention_weights = w
        self.kept = query, key, value, p, factor
        return w @ value

    def backward(self, grad_output):
        query, key, value, p, factor = self.kept
        dV = (p * factor).swapaxes(-1, -2) @ grad_output
        dp = (grad_output @ value.swapaxes(-1, -2)) * factor
        ds = pull(p, dp) / sqrt(query.shape[-1])
        return ds @ key, ds.swapaxes(-1, -2) @ query, dV
''',
}  # fmt: skip


def files(library="numpy"):
    """Name -> text of the five files."""
    return {f"{name}.py": LIBRARIES[library] + text for name, text in FILES.items()}


def names(library="numpy", old="", new="", files=None):
    """Everything that the five files define, in one namespace, with a text in them replaced, once."""
    text = "".join((files or FILES).values())
    assert not old or text.count(old) == 1, f"{text.count(old)} times: {old}"
    inside = tuple(f"from {name} " for name in FILES)
    lines = [line for line in text.replace(old, new).splitlines() if not line.startswith(inside)]
    found = {"__name__": "learner"}
    exec(LIBRARIES[library] + "\n".join(lines), found)
    return found
