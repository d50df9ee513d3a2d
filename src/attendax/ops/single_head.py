"""Attention with one head, as pure JAX functions gathered under the names of the two single-head layers."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attendax import checks
from attendax.checks import check, fail
from attendax.kernels.operands import takes_arrays, widen
from attendax.masks import ArrayLike
from attendax.params import SingleHeadParams

from .attention_core import scaled_dot_product_attention
from .full_attention import attention
from .positional import create_causal_mask
from .weighted_sum import matmul, pull_back


@dataclasses.dataclass(frozen=True)
class Attention:
    """Single-head self-attention, ``softmax(q kᵀ / √M) v W_o`` with q, k, v = x W_q, x W_k, x W_v; it holds no weights.

    Args:
        embedding_dimension: M.
        causal: let a token look only at itself and earlier tokens.

    Raises:
        TypeError, ValueError: ``embedding_dimension`` is not a positive integer.

    Example:
        >>> layer = Attention(64)
        >>> params = layer.init(jax.random.key(0))
        >>> output, weights = layer.forward_with_weights(jnp.ones((2, 10, 64)), params)
        >>> output.shape, weights.shape
        ((2, 10, 64), (2, 10, 10))
    """

    embedding_dimension: int
    _: dataclasses.KW_ONLY
    causal: bool = False

    def __post_init__(self) -> None:
        checks.integer("Attention", "embedding_dimension", self.embedding_dimension)
        checks.boolean("Attention", "causal", self.causal)

    def init(self, rng: Any, dtype: Any = float) -> SingleHeadParams:
        """Weights: four (M, M), normal with standard deviation 0.02."""
        shape = (self.embedding_dimension, self.embedding_dimension)
        return SingleHeadParams(*(0.02 * jax.random.normal(key, shape, dtype) for key in jax.random.split(rng, 4)))

    @takes_arrays
    def forward(self, x: ArrayLike, params: SingleHeadParams, *, causal: bool | None = None) -> Array:
        """Attend within x (B, T, M); ``causal`` None means the layer's own setting. Returns (B, T, M)."""
        return self.forward_with_weights(x, params, causal=causal)[0]

    @takes_arrays
    def forward_with_weights(
        self, x: ArrayLike, params: SingleHeadParams, *, causal: bool | None = None
    ) -> tuple[Array, Array]:
        """``forward``, and the attention weights (B, T, T)."""
        checks.arrays_first("Attention", {"x": x}, "params", params)
        checks.instance("Attention", "params", params, SingleHeadParams)
        check("Attention", {"x": x} | params._asdict())
        wide, w_q, w_k, w_v, w_o = widen(x, *params)
        causal = self.causal if causal is None else checks.boolean("Attention", "causal", causal)
        mask = create_causal_mask(x.shape[1]) if causal else None
        q, k, v = (matmul(wide, w) for w in (w_q, w_k, w_v))
        mixed, weights = scaled_dot_product_attention(q, k, v, mask)
        return matmul(mixed, w_o).astype(x.dtype), weights.astype(x.dtype)

    @takes_arrays
    def backward(
        self, grad_output: ArrayLike, x: ArrayLike, params: SingleHeadParams, *, causal: bool | None = None
    ) -> tuple[Array, SingleHeadParams]:
        """Gradient of x, and those of the weights as ``SingleHeadParams``."""
        arrays = {"x": x, "grad_output": grad_output}
        checks.arrays_first("Attention.backward", arrays, "params", params)
        checks.instance("Attention.backward", "params", params, SingleHeadParams)
        check("Attention.backward", arrays | params._asdict())
        return pull_back(lambda x, params: self.forward(x, params, causal=causal), grad_output, x, params)


@dataclasses.dataclass(frozen=True)
class ScaledDotProductAttention:
    """Scaled dot-product attention with dropout on its weights; see ``spec.ScaledDotProductAttention``.

    Args:
        dropout_p: the dropout rate, used if ``forward`` gets a random key.

    Raises:
        TypeError, ValueError: ``dropout_p`` is not a number in [0, 1].

    Example:
        >>> ScaledDotProductAttention().forward(jnp.ones((2, 8, 64))).shape
        (2, 8, 64)
    """

    dropout_p: float = 0.0

    def __post_init__(self) -> None:
        checks.number("ScaledDotProductAttention", "dropout_p", self.dropout_p, low=0, high=1)

    @takes_arrays
    def forward(
        self,
        query: ArrayLike,
        key: ArrayLike | None = None,
        value: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        *,
        rng: Any = None,
    ) -> Array:
        """Attend; with a random key ``rng`` weights are dropped (training), without one they are not (evaluation)."""
        name = "ScaledDotProductAttention"
        if (key is None) != (value is None):
            fail(ValueError, name, "key and value are given both, or neither for self-attention.")
        alone = key is None
        arrays: dict[str, Any] = {"query": query, "key": query if alone else key, "value": query if alone else value}
        sizes = check(name, arrays)
        shape = sizes["B"], sizes["T"], sizes["S"]
        checks.mask(name, mask, shape, broadcast=True)
        mask = None if mask is None else jnp.broadcast_to(mask, shape)[:, None]
        rate = 0.0 if rng is None else self.dropout_p
        heads = (x[:, None] for x in arrays.values())  # (B, 1, ., .): the one head
        return attention(*heads, mask=mask, dropout_rate=rate, dropout_rng=rng)[:, 0]

    @takes_arrays
    def backward(
        self, grad_output: ArrayLike, query: ArrayLike, key: ArrayLike | None = None, value: ArrayLike | None = None,
        mask: ArrayLike | None = None, *, rng: Any = None,
    ) -> Array | tuple[Array, Array, Array]:  # fmt: skip
        """Gradients (grad_query, grad_key, grad_value), or grad_input where key and value are None."""
        alone = key is None and value is None
        arrays = {"query": query, "key": query if alone else key, "value": query if alone else value}
        check("ScaledDotProductAttention.backward", arrays | {"grad_output": grad_output})
        if alone:
            return pull_back(lambda x: self.forward(x, mask=mask, rng=rng), grad_output, query)[0]
        return pull_back(lambda q, k, v: self.forward(q, k, v, mask, rng=rng), grad_output, query, key, value)


def causal_mask(seq_len: int) -> Array:
    """Boolean (T, T), True where i >= j: ``create_causal_mask`` under the name of the single-head layer."""
    return create_causal_mask(seq_len)
