"""Attention with one head, as two layers that keep what the backward needs."""

from typing import Any

import numpy as np

from attendax import checks
from attendax.checks import check, fail
from attendax.params import SingleHeadParams

from .attention_core import scaled_dot_product_attention, scaled_dot_product_attention_backward
from .full_attention import attention_backward, attention_with_weights
from .layer import Layer, generator
from .positional import create_causal_mask
from .token_wise import affine_backward
from .weighted_sum import Array, widen


class Attention(Layer):
    """Single-head self-attention with four square projections.

    Every token asks (query), every token offers (key), and what it offers is passed on (value)::

        q = x W_q,  k = x W_k,  v = x W_v,  y = softmax(q kᵀ / √M) v W_o

    Attributes:
        embedding_dimension: M.
        query_weights, key_weights, value_weights, output_weights: (M, M), drawn normal with deviation 0.02.
        causal: whether a token may look only at itself and those before it.
        attention_weights: (B, T, T), those of the last forward.

    Args:
        embedding_dimension: M.
        causal: the default of ``forward``.
        rng: ``numpy.random.Generator``, or a seed for one; None draws a fresh one.

    Raises:
        TypeError, ValueError: ``embedding_dimension`` is not a positive integer.

    Example:
        >>> attention = Attention(embedding_dimension=64, rng=0)
        >>> attention.forward(np.random.randn(2, 10, 64)).shape
        (2, 10, 64)
        >>> attention.attention_weights.shape
        (2, 10, 10)
    """

    Params = SingleHeadParams

    def __init__(self, embedding_dimension: int, *, causal: bool = False, rng: Any = None) -> None:
        self.embedding_dimension = size = checks.integer("Attention", "embedding_dimension", embedding_dimension)
        self.causal = checks.boolean("Attention", "causal", causal)
        rng = generator("Attention", rng)
        for name in SingleHeadParams._fields:
            setattr(self, name, rng.normal(0.0, 0.02, (size, size)))
        self._cache: dict[str, Any] | None = None

    def forward(self, x: Array, *, causal: bool | None = None) -> Any:
        """Attend within x (B, T, M); ``causal`` None means the layer's own setting. Returns (B, T, M)."""
        check("Attention", {"x": x} | self.params._asdict())
        wide, w_q, w_k, w_v, w_o = widen(x, *self.params)
        causal = self.causal if causal is None else checks.boolean("Attention", "causal", causal)
        mask = create_causal_mask(x.shape[1]) if causal else None
        inputs = wide @ w_q, wide @ w_k, wide @ w_v, mask
        mixed, weights = scaled_dot_product_attention(*inputs)
        self._cache = {"x": x, "params": self.params, "inputs": inputs, "mixed": mixed}
        self._cache |= {"weights": weights.astype(x.dtype)}
        return (mixed @ w_o).astype(x.dtype)

    def backward(self, grad_output: Array) -> Any:
        """Gradients of the last forward.

        With o = softmax(q kᵀ/√M) v and ``y = o W_o``::

            dW_o = Σ oᵀ dy,  do = dy W_oᵀ
            dq, dk, dv        from do, by scaled_dot_product_attention_backward
            dW_q = Σ xᵀ dq    and the same for k, v
            dx   = dq W_qᵀ + dk W_kᵀ + dv W_vᵀ      x was used three times

        Args:
            grad_output: gradient with respect to the output (B, T, M).

        Returns:
            grad_x (B, T, M), and a dict with the gradients of the four weights.
        """
        cache = self._after_forward("_cache")
        arrays = {"x": cache["x"], "grad_output": grad_output} | cache["params"]._asdict()
        check("Attention.backward", arrays)
        gradient, x, w_q, w_k, w_v, w_o = widen(grad_output, cache["x"], *cache["params"])
        grad_mixed, grad_w_o, _ = affine_backward(gradient, cache["mixed"], w_o)
        grad_heads = scaled_dot_product_attention_backward(grad_mixed, *cache["inputs"])
        each = (affine_backward(g, x, w)[:2] for g, w in zip(grad_heads, (w_q, w_k, w_v), strict=True))
        (from_q, grad_w_q), (from_k, grad_w_k), (from_v, grad_w_v) = each
        by_name = SingleHeadParams(grad_w_q, grad_w_k, grad_w_v, grad_w_o)._asdict()
        grads = {name: g.astype(getattr(self, name).dtype) for name, g in by_name.items()}
        return (from_q + from_k + from_v).astype(cache["x"].dtype), grads

    @property
    def attention_weights(self) -> Array:
        """The weights of the last forward (B, T, T)."""
        return self._after_forward("_cache")["weights"]


class ScaledDotProductAttention:
    """Scaled dot-product attention with dropout on its weights; it has no weights of its own.

    ``forward(query, key, value, mask=None)`` takes query (B, T, D), key (B, S, D), value (B, S, V) and gives (B, T, V);
    ``forward(input)`` attends within input. A forbidden pair counts as a score of -inf, so that a query without any key
    gets 0 (L5); the customary -1e9 would give it the mean of all values.

    Attributes:
        dropout_p: the share of the weights that is dropped while training.
        training: True at the start; see ``train`` and ``eval``.
        attention_weights: (B, T, S), those of the last forward, after dropout.

    Args:
        dropout_p: in [0, 1].
        rng: ``numpy.random.Generator``, or a seed for one; the source of the dropout.

    Raises:
        TypeError, ValueError: ``dropout_p`` is not a number in [0, 1].

    Example:
        >>> attention = ScaledDotProductAttention()
        >>> attention.forward(np.ones((2, 8, 64))).shape
        (2, 8, 64)
        >>> attention.backward(np.ones((2, 8, 64))).shape
        (2, 8, 64)
    """

    def __init__(self, dropout_p: float = 0.0, *, rng: Any = None) -> None:
        self.dropout_p = checks.number("ScaledDotProductAttention", "dropout_p", dropout_p, low=0, high=1)
        self.training = True
        self._rng = generator("ScaledDotProductAttention", rng)
        self._cache: dict[str, Any] | None = None

    def train(self, mode: bool = True) -> Any:
        """Drop weights from now on (``mode=False``: no longer); returns the layer."""
        self.training = bool(mode)
        return self

    def eval(self) -> Any:
        """Drop no weights from now on; returns the layer."""
        return self.train(False)

    def forward(
        self, query: Array, key: Array | None = None, value: Array | None = None, mask: Array | None = None
    ) -> Any:
        """Attend. mask: None, or boolean, broadcastable to (B, T, S); True = attend."""
        name, alone = "ScaledDotProductAttention", key is None
        if alone != (value is None):
            fail(ValueError, name, "key and value are given both, or neither for self-attention.")
        arrays: dict[str, Any] = {"query": query, "key": query if alone else key, "value": query if alone else value}
        sizes = check(name, arrays)
        shape = sizes["B"], sizes["T"], sizes["S"]
        checks.mask(name, mask, shape, broadcast=True)
        heads = [x[:, None] for x in arrays.values()]  # (B, 1, ., .): the one head
        options: dict[str, Any] = {"mask": None if mask is None else np.broadcast_to(mask, shape)[:, None]}
        if self.training and self.dropout_p:
            words = self._rng.integers(0, 2**32, 2, dtype=np.uint32)
            options |= {"dropout_rate": self.dropout_p, "dropout_rng": words}
        output, _, weights = attention_with_weights(*heads, **options)
        self._cache = {"heads": heads, "options": options, "alone": alone, "weights": weights[:, 0]}
        return output[:, 0]

    def backward(self, grad_output: Array) -> Any:
        """Gradients of the last forward: (grad_query, grad_key, grad_value), or grad_input after ``forward(input)``.

        The derivation is that of ``attention_backward``; the three add up where all three were the one input.
        """
        cache = self._after_forward()
        arrays = dict(zip(("query", "key", "value"), (x[:, 0] for x in cache["heads"]), strict=True))
        check("ScaledDotProductAttention.backward", arrays | {"grad_output": grad_output})
        grads = attention_backward(grad_output[:, None], *cache["heads"], **cache["options"])
        grad_query, grad_key, grad_value = (g[:, 0] for g in grads[:3])
        return grad_query + grad_key + grad_value if cache["alone"] else (grad_query, grad_key, grad_value)

    @property
    def attention_weights(self) -> Array:
        """The weights of the last forward (B, T, S), after dropout."""
        return self._after_forward()["weights"]

    def _after_forward(self) -> Any:
        if self._cache is None:
            fail(RuntimeError, "ScaledDotProductAttention", "no forward has run yet; call forward first.")
        return self._cache


def causal_mask(seq_len: int) -> Array:
    """Boolean (T, T), True where i >= j: ``create_causal_mask`` under the name of the single-head layer.

    Args:
        seq_len: T, 0 or more.

    Returns:
        Boolean (T, T).

    Raises:
        TypeError, ValueError: as ``create_causal_mask``.

    Example:
        >>> causal_mask(2)
        array([[ True, False],
               [ True,  True]])
    """
    return create_causal_mask(seq_len)
