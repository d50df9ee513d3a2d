"""Multi-head attention: several attentions side by side, each in its own slice of the model width. Pure JAX."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from attendax import checks
from attendax.checks import check, fail
from attendax.dispatch import attention
from attendax.kernels.operands import public, takes_arrays, widen
from attendax.mask_kinds import lifted
from attendax.masks import ArrayLike, Mask
from attendax.params import MultiHeadParams, QKNorm
from attendax.sharding.explicit import over_auto_axes

from .full_attention import out_and_weights
from .heads import in_heads
from .heads import merge_heads as merge_heads
from .heads import split_heads as split_heads
from .in_pieces import layer_in_pieces
from .norms import NormOfHeads
from .token_wise import affine, glorot, projection
from .weighted_sum import as_allowed, pull_back


def init_multi_head_attention(
    rng: Any,
    d_model: int,
    num_heads: int,
    *,
    kdim: int | None = None,
    vdim: int | None = None,
    bias: bool = False,
    dtype: Any = float,
) -> MultiHeadParams:
    """Draw the weights of multi-head attention: Glorot-uniform projections, biases 0 or None.

    Args:
        rng: a random key.
        d_model: M.
        num_heads: N, a divisor of M.
        kdim, vdim: widths M_k of the keys and M_v of the values; None for M.
        bias: whether the projections have biases.
        dtype: of the weights; float is the default precision of JAX.

    Returns:
        ``MultiHeadParams``.

    Raises:
        TypeError, ValueError: a size is not a positive integer, or M is not divisible by N.
    """
    name = "init_multi_head_attention"
    d_model = checks.integer(name, "d_model", d_model)
    checks.heads(name, d_model, num_heads)
    checks.boolean(name, "bias", bias)
    widths = checks.projections(name, d_model, kdim, vdim)
    keys = jax.random.split(rng, 4)
    projections = (glorot(key, width, d_model, dtype) for key, width in zip(keys, widths, strict=True))
    return MultiHeadParams(*projections, *(jnp.zeros(d_model, dtype) if bias else None for _ in range(4)))


@public
@over_auto_axes
def multi_head_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    params: MultiHeadParams,
    *,
    num_heads: int,
    mask: Mask | ArrayLike | None = None,
    qk_norm: QKNorm | None = None,
    qk_eps: float = 1e-6,
    qk_one_plus: bool = False,
) -> Array:
    """Project, attend in every head, put the heads side by side, project again (Vaswani et al. 2017, section 3.2.2).

    Args:
        query: (B, T, M).
        key: (B, S, M_k), of any width.
        value: (B, S, M_v), of any width.
        params: ``MultiHeadParams``.
        num_heads: N, a divisor of M.
        mask: None; boolean, (T, S) or (B, N, T, S) with any axis 1 (L3); or a mask from
            ``attendax.masks``.
        qk_norm: None; or gains (d_k,): each head's queries and keys get the root mean square 1, then the gain (Dehghani
            et al. 2023; Qwen3, Gemma 3, OLMo 2).
        qk_eps: added to the mean square, above 0.
        qk_one_plus: whether the gain is 1 + gamma, as Gemma stores it.

    Returns:
        (B, T, M) in the dtype of ``query``.

    Raises:
        TypeError: an array is not floating, dtypes differ, a weight is narrower, or the mask is not boolean.
        ValueError: a rank or a size disagrees, or M is not divisible by N.

    Example:
        >>> params = init_multi_head_attention(jax.random.key(0), 6, 2)
        >>> x = jnp.ones((1, 3, 6))
        >>> multi_head_attention(x, x, x, params, num_heads=2).shape
        (1, 3, 6)
    """
    arrays = {"query": query, "key": key, "value": value}
    shape = checks.multi_head("multi_head_attention", arrays, params, num_heads, mask, broadcast=False)
    eps = checks.qk_norm("multi_head_attention", qk_norm, query, num_heads, qk_eps, qk_one_plus)
    if qk_norm is None:
        return layer_in_pieces(partial(in_tiles, shape=shape), shape, params, query, key, value, mask=mask)

    def layer(weights: Any, Q: Array, K: Array, V: Array, mask: Mask | Array | None) -> Array:
        params, gains = weights
        return in_tiles(params, Q, K, V, mask, shape, NormOfHeads(gains.gamma_Q, gains.gamma_K, eps, qk_one_plus))

    return layer_in_pieces(layer, shape, (params, qk_norm), query, key, value, mask=mask)


def in_tiles(
    params: MultiHeadParams, Q: ArrayLike, K: ArrayLike, V: ArrayLike, mask: Mask | ArrayLike | None,
    shape: tuple[int, ...], norm: NormOfHeads | None = None,
) -> Array:  # fmt: skip
    """The output, in memory O(T + S); ``shape`` is that of the scores (B, N, T, S)."""
    if mask is not None and not isinstance(mask, Mask):
        mask = lifted(mask, 4)
    q, k, v, output_weights = _projected(params, Q, K, V, shape[1], norm)
    return affine(merge_heads(attention(q, k, v, mask=mask)), *output_weights).astype(Q.dtype)


def _projected(params: MultiHeadParams, Q: Any, K: Any, V: Any, num_heads: int, norm: NormOfHeads | None) -> Any:
    """Queries, keys and values of each head, with their norm, and the weights of the output."""
    queries, keys, values, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o = widen(Q, K, V, *params)
    inputs = (queries, w_q, b_q), (keys, w_k, b_k), (values, w_v, b_v)
    q, k, v = in_heads(*((projection(*each), num_heads) for each in inputs))
    return *((q, k) if norm is None else norm(q, k)), v, (w_o, b_o)


def forward(
    params: MultiHeadParams, Q: Any, K: Any, V: Any, allowed: ArrayLike, norm: NormOfHeads | None = None
) -> Any:
    """The output, and the intermediate arrays."""
    q, k, v, output_weights = _projected(params, Q, K, V, allowed.shape[1], norm)
    heads, weights = out_and_weights(q, k, v, allowed)
    context = merge_heads(heads)
    cache = {"q": q, "k": k, "v": v, "allowed": allowed, "weights": weights, "context": context}
    return affine(context, *output_weights).astype(Q.dtype), cache


@public
def multi_head_attention_forward(
    Q: ArrayLike,
    K: ArrayLike,
    V: ArrayLike,
    W_Q: ArrayLike,
    W_K: ArrayLike,
    W_V: ArrayLike,
    W_O: ArrayLike,
    num_heads: int,
    mask: ArrayLike | None = None,
    *,
    b_Q: ArrayLike | None = None,
    b_K: ArrayLike | None = None,
    b_V: ArrayLike | None = None,
    b_O: ArrayLike | None = None,
    qk_norm: QKNorm | None = None,
    qk_eps: float = 1e-6,
    qk_one_plus: bool = False,
) -> tuple[Array, dict[str, Any]]:
    """Multi-head attention by its textbook signature: ``multi_head_attention`` and a cache for its backward.

    Args:
        Q: queries (B, T, M).
        K: keys (B, S, M_k), of any width.
        V: values (B, S, M_v), of any width.
        W_Q, W_K, W_V, W_O: projections (M, M), (M_k, M), (M_v, M), (M, M); they may be of a wider dtype than ``Q``.
        num_heads: N, a divisor of M.
        mask: None, or boolean, broadcastable to (B, N, T, S); True = attend.
        b_Q, b_K, b_V, b_O: None, or biases (M,).
        qk_norm, qk_eps, qk_one_plus: as in ``multi_head_attention``.

    Returns:
        output (B, T, M), and a dict of arrays: the inputs, ``q``, ``k``, ``v``, ``allowed``, ``weights``, ``context``.

    Raises:
        TypeError, ValueError: as ``multi_head_attention``.
    """
    inputs = {"Q": Q, "K": K, "V": V}
    params = MultiHeadParams(W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O)
    shape = checks.multi_head("multi_head_attention_forward", inputs, params, num_heads, mask, broadcast=True)
    eps = checks.qk_norm("multi_head_attention_forward", qk_norm, Q, num_heads, qk_eps, qk_one_plus)
    norm = None if qk_norm is None else NormOfHeads(*qk_norm, eps, qk_one_plus)
    output, steps = forward(params, Q, K, V, as_allowed(mask, shape), norm)
    of_norm = {} if norm is None else norm._asdict()
    return output, inputs | params._asdict() | steps | of_norm


@public
def multi_head_attention_backward(
    grad_output: ArrayLike, cache: dict[str, Any]
) -> tuple[Array, Array, Array, dict[str, Array]]:
    """Gradients grad_Q, grad_K, grad_V and a dict with those of the weights that are not None; derived in ``spec``."""
    checks.instance("multi_head_attention_backward", "cache", cache, dict)
    if "context" not in cache:
        fail(ValueError, "multi_head_attention_backward", "cache must be that of multi_head_attention_forward.")
    arrays = {name: cache[name] for name in ("Q", "K", "V", *MultiHeadParams._fields)}
    given = arrays | {"grad_output": grad_output}
    check("multi_head_attention_backward", given, signature="multi_head_attention_forward")

    arrays |= {name: cache[name] for name in QKNorm._fields if name in cache}

    def of_inputs(inputs):
        params = MultiHeadParams(*(inputs[name] for name in MultiHeadParams._fields))
        gains = [inputs[name] for name in QKNorm._fields if name in inputs]
        norm = NormOfHeads(gains[0], gains[1], cache["eps"], cache["one_plus"]) if gains else None
        return forward(params, inputs["Q"], inputs["K"], inputs["V"], cache["allowed"], norm)[0]

    (grads,) = pull_back(of_inputs, grad_output, arrays)
    grads = {name: grad for name, grad in grads.items() if grad is not None}
    return grads.pop("Q"), grads.pop("K"), grads.pop("V"), grads


@dataclasses.dataclass(frozen=True)
class MultiHeadAttention:
    """Multi-head attention as a pair of pure functions; it holds sizes, never weights.

    Args:
        d_model: M, divisible by ``num_heads``.
        num_heads: N.
        kdim, vdim: widths M_k of the keys and M_v of the values; None for M.
        bias: whether the projections have biases.

    Raises:
        TypeError, ValueError: a size is not a positive integer, or M is not divisible by N.

    Example:
        >>> layer = MultiHeadAttention(d_model=6, num_heads=2)
        >>> params, x = layer.init(jax.random.key(0)), jnp.ones((1, 3, 6))
        >>> layer.forward(x, x, x, params).shape
        (1, 3, 6)
    """

    d_model: int
    num_heads: int
    _: dataclasses.KW_ONLY
    kdim: int | None = None
    vdim: int | None = None
    bias: bool = False

    def __post_init__(self) -> None:
        checks.integer("MultiHeadAttention", "d_model", self.d_model)
        checks.heads("MultiHeadAttention", self.d_model, self.num_heads)
        checks.projections("MultiHeadAttention", self.d_model, self.kdim, self.vdim)
        checks.boolean("MultiHeadAttention", "bias", self.bias)

    @property
    def d_k(self) -> int:
        """Width of a head, M / N."""
        return self.d_model // self.num_heads

    def init(self, rng: Any, dtype: Any = float) -> MultiHeadParams:
        """Weights; see ``init_multi_head_attention``."""
        widths: Any = {"kdim": self.kdim, "vdim": self.vdim}
        return init_multi_head_attention(rng, self.d_model, self.num_heads, **widths, bias=self.bias, dtype=dtype)

    @takes_arrays
    def forward(
        self, Q: ArrayLike, K: ArrayLike, V: ArrayLike, params: MultiHeadParams, mask: ArrayLike | None = None
    ) -> Array:
        """Attend; mask broadcasts to (B, N, T, S). Returns (B, T, M)."""
        arrays = {"Q": Q, "K": K, "V": V}
        checks.arrays_first("MultiHeadAttention.forward", arrays, "params", params)
        shape = checks.multi_head("multi_head_attention_forward", arrays, params, self.num_heads, mask, broadcast=True)
        return layer_in_pieces(partial(in_tiles, shape=shape), shape, params, Q, K, V, mask=mask)

    @takes_arrays
    def backward(
        self, grad_output: ArrayLike, Q: ArrayLike, K: ArrayLike, V: ArrayLike, params: MultiHeadParams,
        mask: ArrayLike | None = None,
    ) -> tuple[Array, Array, Array, MultiHeadParams]:  # fmt: skip
        """Gradients grad_Q, grad_K, grad_V, and those of the weights as ``MultiHeadParams``."""
        arrays = {"Q": Q, "K": K, "V": V, "grad_output": grad_output}
        name = "multi_head_attention_backward"
        checks.arrays_first("MultiHeadAttention.backward", arrays, "params", params)
        checks.instance(name, "params", params, MultiHeadParams)
        check(name, arrays | params._asdict(), signature="multi_head_attention_forward")
        return pull_back(lambda q, k, v, p: self.forward(q, k, v, p, mask), grad_output, Q, K, V, params)
