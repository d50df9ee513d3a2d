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
from attendax.options import Options, in_full
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
@in_full
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
    Vaswani et al. 2017, equation 1). jit, vmap and every direction of differentiation work (L12), that by a scale, too.
    Tiles in which a mask allows no pair are skipped.

    Args:
        {arguments}
        implementation: "native", a kernel of C++ for CPUs; "blockwise", tiles of JAX for every platform; "dense", which
            builds all T x S scores; or "cudnn", for some calls on an NVIDIA GPU. None: "native" where the library is
            there and takes the call, else "blockwise". ``explain`` says which, and why not the others.

    Returns:
        {results}

    Raises:
        {errors}
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
