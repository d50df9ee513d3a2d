"""The parts of a layer in both twins, under the same names: in JAX from ``ops``, in NumPy from ``spec``."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from attendax import ops, spec
from attendax.dispatch import attention
from attendax.kernels import dropout
from attendax.kernels.numerics import fusion_barrier
from attendax.kernels.operands import widen
from attendax.spec import dropout as dropout_by_definition


class InJax:
    """Pieces in JAX. With ``dtype``, products and attention take operands of it.

    Products add up in the dtype of the weights, float32 at least; norms, and what they normalise, are as wide as the
    weights.
    """

    rotary = staticmethod(ops.rotary_encoding)
    sinusoidal = staticmethod(ops.sinusoidal_encoding)
    layer_norm = staticmethod(ops.layer_norm)
    rms_norm = staticmethod(ops.rms_norm)
    attention = staticmethod(attention)
    merge_heads = staticmethod(ops.merge_heads)
    xp = jnp

    def __init__(self, dtype: Any = None) -> None:
        self.dtype = dtype

    def _affine(self, x: Any, W: Any, b: Any) -> Any:
        if self.dtype is None:
            return ops.token_wise.affine(x, W, b)

        def product(x: Any, W: Any) -> Any:
            return jnp.matmul(x.astype(self.dtype), W.astype(self.dtype), preferred_element_type=W.dtype)

        return ops.token_wise.plus(fusion_barrier(product, x, W), b)

    def linear(self, x: Any, W: Any, b: Any) -> Any:
        """``x W + b``."""
        return self._affine(*widen(x, W, b)).astype(x.dtype if self.dtype is None else W.dtype)

    def heads(self, x: Any, *projections: tuple[Any, Any, int]) -> list[Any]:
        """``x W + b`` in so many heads, for each (W, b, heads)."""
        dtype = x.dtype if self.dtype is None else self.dtype
        pairs = [(self._affine(*widen(x, W, b)), count) for W, b, count in projections]
        return [head.astype(dtype) for head in ops.heads.in_heads(*pairs)]

    def feed_forward(self, x: Any, W1: Any, b1: Any, W2: Any, b2: Any, activation: str, gated: bool) -> Any:
        """The network of a layer, where b1 and b2 may be None."""
        wide, W1, b1, W2, b2 = widen(x, W1, b1, W2, b2)
        hidden = ops.token_wise.activated(activation, self._affine(wide, W1, b1), gated)
        return self._affine(hidden, W2, b2).astype(x.dtype)

    def key(self, key_data: Any, number: Any) -> Any:
        """A random key of its own for every number, as two 32-bit words."""
        counter = jnp.zeros(1, jnp.uint32), jnp.reshape(number, 1).astype("uint32")
        return jnp.concatenate(dropout.threefry((key_data[:1], key_data[1:]), counter))

    def drop(self, x: Any, key_data: Any, rate: float) -> Any:
        """Dropout of single numbers of x (B, T, M), by position (L10)."""
        i, j = (jnp.arange(n, dtype=jnp.uint32) for n in x.shape[-2:])
        keys = tuple(word[:, None, None] for word in dropout.head_keys(key_data, x.shape[:1]))
        kept = dropout.keep(keys, i[None, :, None], j[None, None], rate)
        return jnp.where(kept, x / (1 - rate if rate < 1 else 1), 0).astype(x.dtype)


class InNumpy:
    """Pieces in NumPy, by definition."""

    rotary = staticmethod(spec.rotary_encoding)
    sinusoidal = staticmethod(spec.sinusoidal_encoding)
    layer_norm = staticmethod(spec.layer_norm)
    rms_norm = staticmethod(spec.rms_norm)
    attention = staticmethod(spec.attention)
    merge_heads = staticmethod(spec.merge_heads)
    xp = np

    def linear(self, x: Any, W: Any, b: Any) -> Any:
        """``x W + b``."""
        wide, W, b = spec.weighted_sum.widen(x, W, b)
        return (wide @ W if b is None else wide @ W + b).astype(x.dtype)

    def heads(self, x: Any, *projections: tuple[Any, Any, int]) -> list[Any]:
        """``x W + b`` in so many heads, for each (W, b, heads)."""
        return [spec.split_heads(self.linear(x, W, b), count) for W, b, count in projections]

    def feed_forward(self, x: Any, W1: Any, b1: Any, W2: Any, b2: Any, activation: str, gated: bool) -> Any:
        """The network of a layer, where b1 and b2 may be None."""
        b1, b2 = (np.zeros(W.shape[1], W.dtype) if b is None else b for W, b in ((W1, b1), (W2, b2)))
        network = spec.gated_feed_forward if gated else spec.feed_forward
        return network(x, W1, b1, W2, b2, activation=activation)

    def key(self, key_data: Any, number: int) -> Any:
        """A random key of its own for every number, as two 32-bit words."""
        counter = np.zeros(1, np.uint32), np.full(1, number, np.uint32)
        return np.concatenate(dropout_by_definition.threefry((key_data[:1], key_data[1:]), counter))

    def drop(self, x: Any, key_data: Any, rate: float) -> Any:
        """Dropout of single numbers of x (B, T, M), by position (L10)."""
        kept = dropout_by_definition.keep(key_data, x.shape, rate)
        return np.where(kept, x / (1 - rate if rate < 1 else 1), 0).astype(x.dtype)
