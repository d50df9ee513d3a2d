"""Multi-head attention: several attentions side by side, each in its own slice of the model width."""

from typing import Any

import numpy as np

from attendax import checks
from attendax.checks import check, fail, knows_keywords
from attendax.params import MultiHeadParams, QKNorm

from .attention_core import compute_attention_scores, compute_attention_scores_backward
from .heads import merge_heads, split_heads
from .layer import Layer, generator, glorot
from .norms import rms_norm, rms_norm_backward
from .token_wise import affine_backward
from .weighted_sum import Array, as_allowed, average, average_backward, public, take_out, widen


@public
def multi_head_attention_forward(
    Q: Array,
    K: Array,
    V: Array,
    W_Q: Array,
    W_K: Array,
    W_V: Array,
    W_O: Array,
    num_heads: int,
    mask: Array | None = None,
    *,
    b_Q: Array | None = None,
    b_K: Array | None = None,
    b_V: Array | None = None,
    b_O: Array | None = None,
    qk_norm: QKNorm | None = None,
    qk_eps: float = 1e-6,
    qk_one_plus: bool = False,
) -> tuple[Array, dict[str, Any]]:
    """Project, attend in every head, put the heads side by side, project again.

    ``MultiHead(Q, K, V) = Concat(head_1, ..., head_N) W_O``, ``head_n = Attention(Q W_Qⁿ, K W_Kⁿ, V W_Vⁿ)`` (Vaswani et
    al. 2017, section 3.2.2), with W_Qⁿ the columns of head n. The biases are those of later models, BERT among them.

    Args:
        Q: queries (B, T, M).
        K: keys (B, S, M_k), of any width.
        V: values (B, S, M_v), of any width.
        W_Q, W_K, W_V, W_O: projections (M, M), (M_k, M), (M_v, M), (M, M); they may be of a wider dtype than ``Q``.
        num_heads: N, a divisor of M.
        mask: None, or boolean, broadcastable to (B, N, T, S); True = attend. A padding mask (B, S) is given as
            ``mask[:, None, None, :]``.
        b_Q, b_K, b_V, b_O: None, or biases (M,).
        qk_norm: None; or gains (d_k,): each head's queries and keys get the root mean square 1, then the gain (Dehghani
            et al. 2023; Qwen3, Gemma 3, OLMo 2).
        qk_eps: added to their mean square, above 0.
        qk_one_plus: whether the gain is 1 + gamma, as Gemma stores it.

    Returns:
        output: (B, T, M) in the dtype of ``Q``.
        cache: what the backward needs: the inputs, the heads ``q``, ``k``, ``v`` (B, N, ., d_k), ``allowed`` and
            ``weights`` (B, N, T, S), and the merged heads ``context`` (B, T, M).

    Raises:
        TypeError: an array is not floating, dtypes differ, a weight is narrower, or the mask is not boolean.
        ValueError: a rank or a size disagrees, or M is not divisible by N.
    """
    params, norm = MultiHeadParams(W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O), (qk_norm, qk_eps, qk_one_plus)
    return forward("multi_head_attention_forward", params, Q, K, V, num_heads, mask, broadcast=True, norm=norm)


def forward(
    function: str, params: MultiHeadParams, Q: Array, K: Array, V: Array, num_heads: int, mask: Array | None, *,
    broadcast: bool, norm: tuple[QKNorm | None, float, bool] = (None, 1e-6, False),
) -> tuple[Array, dict[str, Any]]:  # fmt: skip
    """``multi_head_attention_forward`` of the weights as a NamedTuple; ``broadcast``: whether the mask may (L3)."""
    inputs = {"Q": Q, "K": K, "V": V}
    names = inputs if broadcast else {"query": Q, "key": K, "value": V}
    shape = checks.multi_head(function, names, params, num_heads, mask, broadcast=broadcast)
    gains, eps, one_plus = norm
    eps = checks.qk_norm(function, gains, Q, num_heads, eps, one_plus)
    allowed = as_allowed(mask, shape)
    queries, keys, values, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o = widen(Q, K, V, *params)
    projections = (queries, w_q, b_q), (keys, w_k, b_k), (values, w_v, b_v)
    q, k, v, spoiled = take_out(*(split_heads(_affine(*each), num_heads) for each in projections))
    of_norm: dict[str, Any] = {}
    if gains is not None:
        of_norm = {"qk_norm": gains, "gains": tuple(one_plus + gain for gain in widen(q, *gains)[1:]), "raw": (q, k)}
        q, k = (rms_norm(x, gain, eps) for x, gain in zip((q, k), of_norm["gains"], strict=True))
        of_norm |= {"qk_eps": eps}
    heads, weights = average(np.where(spoiled, np.nan, compute_attention_scores(q, k)), v, allowed)
    context = merge_heads(heads)
    steps = {"q": q, "k": k, "v": v, "allowed": allowed, "weights": weights, "context": context}
    return _affine(context, w_o, b_o).astype(Q.dtype), inputs | params._asdict() | steps | of_norm


def _affine(x: Array, W: Array, b: Array) -> Array:
    return x @ W if b is None else x @ W + b


@public
def multi_head_attention_backward(
    grad_output: Array, cache: dict[str, Any]
) -> tuple[Array, Array, Array, dict[str, Array]]:
    """Pull a gradient back through multi-head attention.

    With c = 1/√d_k, per head: q = Q W_Q + b_Q (k, v alike), ``s = c q kᵀ``, ``p = softmax(s)``, ``o = p v``; then
    ``C = Concat(o)`` and ``out = C W_O + b_O``. Backwards, line by line::

        dW_O = Cᵀ dout,  db_O = Σ dout,  dC = dout W_Oᵀ      out = C W_O + b_O; sums run over batch and sequence
        do   = the columns of dC that the head owns
        dv   = pᵀ do,  dp = do vᵀ
        ds   = p (dp - Σ dp p)                               softmax, row by row; 0 where forbidden
        dq   = c ds k,  dk = c dsᵀ q
        dW_Q = Qᵀ dq,  db_Q = Σ dq,  dQ = dq W_Qᵀ            q = Q W_Q + b_Q
        dW_K = Kᵀ dk,  db_K = Σ dk,  dK = dk W_Kᵀ            (M_k, M), (M,), (B, S, M_k)
        dW_V = Vᵀ dv,  db_V = Σ dv,  dV = dv W_Vᵀ            (M_v, M), (M,), (B, S, M_v)

    db_K is 0 except for rounding: a bias on all keys shifts a row of scores by one number, which softmax does not see.

    With a norm of queries and keys, q and k above are its results γ q̂ and γ k̂, of what was projected; then, by
    ``rms_norm_backward`` with d_k terms in each mean::

        dq₀ = (γ dq - q̂ mean(γ dq q̂)) / ρ,  dγ_Q = Σ dq q̂      k alike; dq₀ and dk₀ go on to the projections
        d(1 + γ) = dγ                                         the gain that Gemma stores has the same gradient

    Args:
        grad_output: gradient with respect to the output (B, T, M).
        cache: from ``multi_head_attention_forward``.

    Returns:
        grad_Q (B, T, M), grad_K (B, S, M_k), grad_V (B, S, M_v), and a dict. The dict has the gradients of the
        projections and of the biases that are not None; with a norm also of gamma_Q and gamma_K. Each gradient has the
        dtype of its input.

    Raises:
        TypeError, ValueError: ``grad_output`` has another dtype or shape than the output.
    """
    checks.instance("multi_head_attention_backward", "cache", cache, dict)
    if "context" not in cache:
        sentence = "cache must be the second result of multi_head_attention_forward."
        fail(ValueError, "multi_head_attention_backward", sentence)
    arrays = {name: cache[name] for name in ("Q", "K", "V", *MultiHeadParams._fields)}
    given = arrays | {"grad_output": grad_output}
    check("multi_head_attention_backward", given, signature="multi_head_attention_forward")
    gradient, Q, K, V, w_q, w_k, w_v, w_o, *_ = widen(grad_output, *arrays.values())
    q, k, v, allowed, weights = (cache[name] for name in ("q", "k", "v", "allowed", "weights"))
    grad_context, grad_W_O, grad_b_O = affine_backward(gradient, cache["context"], w_o)
    grad_scores, grad_v = average_backward(split_heads(grad_context, q.shape[1]), weights, v, allowed)
    grad_q, grad_k = compute_attention_scores_backward(grad_scores, q, k)
    of_gains: dict[str, Array] = {}
    if "qk_norm" in cache:
        pairs = zip((grad_q, grad_k), cache["raw"], cache["gains"], strict=True)
        (grad_q, of_query), (grad_k, of_key) = (rms_norm_backward(*each, cache["qk_eps"]) for each in pairs)
        named = zip(QKNorm._fields, (of_query, of_key), cache["qk_norm"], strict=True)
        of_gains = {name: gradient.astype(gamma.dtype) for name, gradient, gamma in named}
    Q, K, V = (np.where(np.isfinite(x), x, 0) for x in (Q, K, V))  # where not finite, its gradient is 0 or NaN (L6)
    grad_Q, grad_W_Q, grad_b_Q = affine_backward(merge_heads(grad_q), Q, w_q)
    grad_K, grad_W_K, grad_b_K = affine_backward(merge_heads(grad_k), K, w_k)
    grad_V, grad_W_V, grad_b_V = affine_backward(merge_heads(grad_v), V, w_v)
    params = MultiHeadParams(grad_W_Q, grad_W_K, grad_W_V, grad_W_O, grad_b_Q, grad_b_K, grad_b_V, grad_b_O)
    gradients = {"Q": grad_Q, "K": grad_K, "V": grad_V} | params._asdict()
    gradients = {name: gradients[name].astype(x.dtype) for name, x in arrays.items() if x is not None}
    return gradients.pop("Q"), gradients.pop("K"), gradients.pop("V"), gradients | of_gains


@knows_keywords
def multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    params: MultiHeadParams,
    *,
    num_heads: int,
    mask: Array | None = None,
    qk_norm: QKNorm | None = None,
    qk_eps: float = 1e-6,
    qk_one_plus: bool = False,
) -> Array:
    """Multi-head attention of the weights ``params``: ``multi_head_attention_forward`` without its cache.

    Args:
        query: (B, T, M).
        key: (B, S, M_k), of any width.
        value: (B, S, M_v), of any width.
        params: ``MultiHeadParams``.
        num_heads: N, a divisor of M.
        mask: None; boolean, (T, S) or (B, N, T, S) with any axis 1 (L3: nothing else is guessed at); or a value from
            ``attendax.masks``.
        qk_norm, qk_eps, qk_one_plus: as in ``multi_head_attention_forward``.

    Returns:
        (B, T, M) in the dtype of ``query``.

    Raises:
        TypeError, ValueError: as ``multi_head_attention_forward``.
    """
    norm = qk_norm, qk_eps, qk_one_plus
    return forward("multi_head_attention", params, query, key, value, num_heads, mask, broadcast=False, norm=norm)[0]


class MultiHeadAttention(Layer):
    """Multi-head attention with its weights.

    The weights are the attributes ``W_Q`` (M, M), ``W_K`` (M_k, M), ``W_V`` (M_v, M), ``W_O`` (M, M) and, with
    ``bias=True``, ``b_Q, b_K, b_V, b_O`` (M,); otherwise these are None. They are float64; an input of a narrower dtype
    gets its output in that dtype.

    Attributes:
        d_model: M.
        num_heads: N.
        d_k: width of a head, M / N.
        attention_weights: (B, N, T, S), those of the last forward.

    Args:
        d_model: M, divisible by ``num_heads``.
        num_heads: N.
        kdim, vdim: widths M_k of the keys and M_v of the values; None for M.
        bias: whether the projections have biases (0 at the start).
        rng: ``numpy.random.Generator``, or a seed for one; None draws a fresh one.

    Raises:
        TypeError, ValueError: a size is not a positive integer, or M is not divisible by N.

    Example:
        >>> layer = MultiHeadAttention(d_model=6, num_heads=2, rng=0)
        >>> x = np.ones((1, 3, 6))
        >>> layer.forward(x, x, x).shape
        (1, 3, 6)
        >>> grad_Q, grad_K, grad_V, grad_params = layer.backward(np.ones((1, 3, 6)))
        >>> sorted(grad_params)
        ['W_K', 'W_O', 'W_Q', 'W_V']
    """

    Params = MultiHeadParams

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        bias: bool = False,
        rng: Any = None,
    ) -> None:
        self.d_model = checks.integer("MultiHeadAttention", "d_model", d_model)
        self.d_k = checks.heads("MultiHeadAttention", self.d_model, num_heads)
        self.num_heads = int(num_heads)
        checks.boolean("MultiHeadAttention", "bias", bias)
        rng = generator("MultiHeadAttention", rng)
        widths = checks.projections("MultiHeadAttention", self.d_model, kdim, vdim)
        self.W_Q, self.W_K, self.W_V, self.W_O = (glorot(rng, width, self.d_model) for width in widths)
        self.b_Q, self.b_K, self.b_V, self.b_O = (np.zeros(self.d_model) if bias else None for _ in range(4))
        self._cache: dict[str, Any] | None = None

    def forward(self, Q: Array, K: Array, V: Array, mask: Array | None = None) -> Any:
        """Attend; see ``multi_head_attention_forward``. Returns (B, T, M)."""
        output, self._cache = forward(
            "multi_head_attention_forward", self.params, Q, K, V, self.num_heads, mask, broadcast=True
        )
        return output

    def backward(self, grad_output: Array) -> Any:
        """Gradients of the last forward: grad_Q, grad_K, grad_V, grad_params; see ``multi_head_attention_backward``."""
        return multi_head_attention_backward(grad_output, self._after_forward("_cache"))

    @property
    def attention_weights(self) -> Array:
        """The weights of the last forward (B, N, T, S)."""
        return self._after_forward("_cache")["weights"]
