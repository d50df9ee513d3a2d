"""``attendax.attention``: it checks the arguments, then runs the call on one device, or on a mesh that divides it."""

from __future__ import annotations  # so that help() shows ArrayLike, not what it stands for

from typing import Any, Literal, Unpack, overload

import jax
from jax import Array

from attendax.checks import knows_keywords
from attendax.kernels.call import as_asked, checked_call, with_traced
from attendax.kernels.derivatives import attend
from attendax.kernels.operands import takes_arrays
from attendax.masks import ArrayLike, Mask
from attendax.options import Options
from attendax.scores import ScoreModifier
from attendax.sharding.division import DIVISION, attend_by_types


@overload
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: Literal[False] = ..., **options: Unpack[Options]
) -> Array: ...
@overload
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: Literal[True], **options: Unpack[Options]
) -> tuple[Array, Array]: ...
@overload
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, *, return_lse: bool, **options: Unpack[Options]
) -> Array | tuple[Array, Array]: ...
@knows_keywords
@takes_arrays
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    mask: Mask | ArrayLike | None = None,
    bias: ArrayLike | None = None,
    score_mod: ScoreModifier | None = None,
    scale: float | ArrayLike | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Any = None,
    return_lse: bool = False,
    implementation: str | None = None,
) -> Array | tuple[Array, Array]:
    """Average the values, each weighted by how well its key answers the query, in memory O(T + S).

    ``s = scale · Q Kᵀ``; the score modifier; ``+ bias``; the mask; ``p = softmax(s)``; dropout; ``out = p V`` (L2;
    Vaswani et al. 2017, equation 1). jit, vmap and every direction of differentiation work (L12).

    Args:
        query: (..., N, T, D); or (T, D) for one head, and then key and value have two dimensions, too (L1).
        key: (..., G, S, D), N a multiple of G: query head n reads key head n // (N // G).
        value: (..., G, S, V).
        mask: None; boolean, (T, S) or of the full rank of the scores, each axis full or 1, True = may look (L3); or a
            value from ``attendax.masks``: tiles in which it allows no pair are skipped.
        bias: None, or floating, broadcastable to the scores (..., N, T, S); -inf forbids (L5).
        score_mod: None, or a value from ``attendax.scores``.
        scale: a number; 1/√D unless given. Or a scalar array, traced too, such as a learnt temperature; it has its
            gradient.
        dropout_rate: in [0, 1] (L10).
        dropout_rng: a random key, where the rate is above 0.
        return_lse: whether to return the log-sum-exp of the scores, too (L9).
        implementation: "native", a kernel of C++ for CPUs; "blockwise", tiles of JAX for every platform; "dense", which
            builds all T x S scores; or "cudnn", for some calls on an NVIDIA GPU. None: "native" where the library is
            there and takes the call, else "blockwise". ``explain`` says which, and why not the others.

    Returns:
        out (..., N, T, V) in the dtype of ``query``; with ``return_lse`` also lse (..., N, T), natural logarithm,
        float32 or wider. A query that may look at no key has out 0 and lse -inf (L5).

    Raises:
        TypeError: an array is not floating, dtypes differ, or the mask is not boolean.
        ValueError: a rank, a size or an option is out of bounds.
        NotImplementedError: an implementation that this version lacks, or "native" or "cudnn" for a call that it cannot
            take.

    Example:
        >>> import jax.numpy as jnp
        >>> query, key, value = jnp.zeros((1, 2)), jnp.zeros((4, 2)), jnp.arange(4.0)[:, None]
        >>> attention(query, key, value).tolist()
        [[1.5]]
        >>> from attendax import masks
        >>> attention(query, key, value, mask=masks.padding(jnp.array(2))).tolist()
        [[0.5]]
    """
    arrays, options = (query, key, value, mask, bias, score_mod), (scale, dropout_rate, dropout_rng)
    call = checked_call("attention", *arrays, *options, implementation, return_lse, traced=False)
    if DIVISION.value is not None or any(jax.typeof(x).sharding.mesh.explicit_axes for x in (query, key)):
        results = attend_by_types(call, query, key)
    else:
        results = attend(with_traced(call.operands), call.plan)
    return as_asked(results, query, value, return_lse, score_mod)
